"""The model card of a fine-tuned model: README.md of an exported folder, with known facts only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import yaml

from maskwright.export.card import (
    TRAINING_CONFIG_FILE,
    CardOptions,
    build_table,
    escape,
    format_figure,
    is_number,
    show_code,
)
from maskwright.export.comparison import Comparison
from maskwright.models.any_encoder import find_max_length, name_encoder
from maskwright.tasks.model import TaskModel

_MOST_NAMED = 20


@dataclass(frozen=True)
class TaskOrigin:
    """Facts about a model from its fine-tuning run; empty if the run is not available."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings of task.yaml."""
    scores: Mapping[str, Any] = field(default_factory=dict)
    """Scores on held-out examples, if these are the weights of the finished run."""
    counts: Mapping[str, int] = field(default_factory=dict)
    seeds: str = ""
    """Which of several seeds it is, and what all of them reached."""


@dataclass(frozen=True)
class Use:
    """The hub's name of a task, our name, and an example of its input."""

    tag: str
    kind: str
    what: str
    example: str = '"This is a text."'


_USES = {
    "ForSequenceClassification": Use(
        "text-classification", "classify", "gives texts, or pairs of them, a label or a number"
    ),
    "ForTokenClassification": Use("token-classification", "ner", "finds entities in texts"),
    "ForQuestionAnswering": Use(
        "question-answering",
        "qa",
        "finds the answer to a question in a text",
        '{"question": "What is this?", "context": "This is a text."}',
    ),
}
_WITHOUT_PIPELINE = "question-answering"
"""transformers 5 has dropped its pipeline and kept the models."""


def build_task_card(
    name: str, model: TaskModel, origin: TaskOrigin, comparison: Comparison, options: CardOptions
) -> str:
    """`name` is the folder's."""
    use = find_model_use(model)
    family = name_encoder(model.encoder)
    num_parameters = sum(param.numel() for param in model.parameters())
    sections = [
        _build_front_matter(use, family, options),
        f"# {escape(name)}",
        f"A {family} encoder of {num_parameters:,} parameters that {use.what}. Made with Maskwright, exported in"
        " Hugging Face's layout.",
        f"## Labels\n\n{_describe_labels(model)}",
        f"## How to use\n\nFrom the folder that holds this one:\n\n{_show_use(name, use, model)}",
        f"## Fine-tuning\n\n{_describe_settings(origin)}",
        f"## Figures\n\n{_describe_scores(origin)}\n\nAt export, {comparison.describe('logits')}.",
        f"## Limits\n\n{describe_limits(model)}",
    ]
    return "\n\n".join(sections) + "\n"


def find_use(architecture: str) -> Use | None:
    """By the name of the class in transformers; None for models of no task."""
    return next((one for ending, one in _USES.items() if architecture.endswith(ending)), None)


def find_model_use(model: TaskModel) -> Use:
    return next(one for ending, one in _USES.items() if model.task_head.files.architecture.endswith(ending))


def describe_task(model: TaskModel, origin: TaskOrigin) -> dict[str, str]:
    """Sections about a fine-tuned model by their headings."""
    return {
        "Labels": _describe_labels(model),
        "Fine-tuning": _describe_settings(origin),
        "Figures": _describe_scores(origin),
    }


def _show_use(name: str, use: Use, model: TaskModel) -> str:
    theirs = (
        f'from transformers import pipeline\n\nanswer = pipeline("{use.tag}", model={name!r})\n'
        f"print(answer({use.example}))"
    )
    if use.tag == _WITHOUT_PIPELINE:
        architecture = model.task_head.files.architecture
        theirs = f"from transformers import {architecture}\n\nmodel = {architecture}.from_pretrained({name!r})"
    ours = f'from maskwright import pipeline\n\nanswer = pipeline("{use.kind}", {name!r})\nprint(answer({use.example}))'
    return show_code(theirs, ours)


def _build_front_matter(use: Use, family: str, options: CardOptions) -> str:
    values: dict[str, Any] = {name: value for name, value in asdict(options).items() if value is not None}
    values |= {"library_name": "transformers", "pipeline_tag": use.tag, "tags": ["maskwright", family.lower(), use.tag]}
    return f"---\n{yaml.safe_dump(values, sort_keys=False)}---"


def _describe_labels(model: TaskModel) -> str:
    described = model.task.describe()
    classes = [str(name) for name in described.get("id2label", {}).values()]
    problem = str(described.get("problem_type", "")).replace("_", " ")
    if len(classes) < 2:
        return "None: an answer is a number." if problem else "None: an answer is a part of the text."
    more = f" and {len(classes) - _MOST_NAMED} more" if len(classes) > _MOST_NAMED else ""
    kind = f" ({problem})" if problem else ""
    return f"{len(classes)} classes{kind}: {', '.join(map(escape, classes[:_MOST_NAMED]))}{more}."


def _describe_settings(origin: TaskOrigin) -> str:
    if not origin.settings:
        return "The run that fine-tuned this model was not at hand when it was exported."
    counts = {label: f"{count:,}" for label, count in origin.counts.items()}
    table = build_table({**origin.settings, **counts}, ("setting", "value"))
    return f"{table}\n\nOptimizer and schedule: [{TRAINING_CONFIG_FILE}]({TRAINING_CONFIG_FILE})."


def _describe_scores(origin: TaskOrigin) -> str:
    rows = {name: format_figure(value) for name, value in origin.scores.items() if is_number(value)}
    if not rows:
        return "No figures on held-out examples are known for these weights."
    table = build_table(rows, ("held-out examples", "value"))
    return f"{table}\n\n{origin.seeds}" if origin.seeds else table


def describe_limits(model: TaskModel) -> str:
    longest = find_max_length(model.encoder)
    limit = "" if longest is None else f"- Texts of at most {longest:,} tokens; longer ones have to be cut.\n"
    return (
        f"{limit}"
        "- It knows the language, the subjects and the labels of its training examples, errors and prejudices included."
        " What is not under Figures was not measured."
    )
