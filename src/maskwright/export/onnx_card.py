"""The model card of an ONNX folder: how to run its graphs, and what was measured of them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from maskwright.export.card import CardOptions, escape, format_figure, show_code
from maskwright.export.onnx import BROWSER_FOLDER, GRAPH_FILE, INT8_FILE
from maskwright.export.onnx_graph import ExportedModel, SentenceEncoder, find_output_names
from maskwright.export.retriever import find_format
from maskwright.export.task_card import find_model_use
from maskwright.models.any_encoder import find_max_length, name_encoder
from maskwright.tasks.model import TaskModel
from maskwright.tasks.retrieval.dense import DenseRetrieval

_COLUMNS = {
    "loss": "held-out loss",
    "same_answers": "answers as torch",
    "mean_cosine": "mean cosine with torch",
    "smallest_cosine": "smallest cosine",
}


def build_onnx_card(
    name: str,
    model: ExportedModel,
    folder: Path,
    facts: Mapping[str, str],
    figures: Mapping[str, Any],
    card: CardOptions,
    is_page: bool = False,
) -> str:
    """`name` is what the folder will be called; `facts` are further sections by their headings.

    `is_page`: the folder is opened in a browser, and holds the int8 graph alone.
    """
    task, does = describe_use(model)
    family = name_encoder(model.encoder)
    num_parameters = sum(param.numel() for param in model.parameters())
    values: dict[str, Any] = {key: value for key, value in asdict(card).items() if value is not None}
    values |= {"library_name": "transformers.js", "pipeline_tag": task, "tags": ["maskwright", "onnx", family.lower()]}
    outputs = " and ".join(f"`{output}`" for output in find_output_names(model))
    longest = find_max_length(model.encoder)
    limit = "" if longest is None else f"- Texts of at most {longest:,} tokens; longer ones have to be cut.\n"
    usage = _show_page(name) if is_page else _show_use(name, model, (folder / INT8_FILE).exists())
    shape = "a page that runs it in the browser" if is_page else f"ONNX graphs with the output {outputs}"
    sections = [
        f"---\n{yaml.safe_dump(values, sort_keys=False)}---",
        f"# {escape(name)}",
        f"A {family} encoder of {num_parameters:,} parameters that {does}, as {shape}. Made with Maskwright.",
        f"## How to use\n\nFrom the folder that holds this one:\n\n{usage}",
        *(f"## {heading}\n\n{text}" for heading, text in facts.items()),
        f"## Versions\n\n{_build_versions(figures.get('versions', {}))}",
        f"## Limits\n\n{limit}- It knows the language, the subjects and the labels of its training data, errors and"
        " prejudices included. What is not in this card was not measured.",
    ]
    return "\n\n".join(sections) + "\n"


def describe_use(model: ExportedModel) -> tuple[str, str]:
    """The hub's name of what the graph is for, and what it does."""
    if isinstance(model, SentenceEncoder):
        return "feature-extraction", f"turns a text into a vector (pooling: {model.pooling})"
    if isinstance(model, TaskModel) and isinstance(model.task, DenseRetrieval):
        return "feature-extraction", f"gives a text {find_format(model).gives}"
    if isinstance(model, TaskModel):
        use = find_model_use(model)
        return use.tag, use.what
    return "fill-mask", "fills masked tokens of a text"


def _show_page(name: str) -> str:
    return (
        f"```sh\npython -m http.server --directory {shlex.quote(name)}\n```\n\nThen open the address that it prints."
        " Any server of files will do; a page that is opened from the disk cannot read the model."
    )


def _show_use(name: str, model: ExportedModel, has_int8: bool) -> str:
    task, _ = describe_use(model)
    plain = (
        "import onnxruntime\nfrom transformers import AutoTokenizer\n\n"
        f"tokenizer = AutoTokenizer.from_pretrained({name!r})\n"
        f"session = onnxruntime.InferenceSession({f'{name}/{GRAPH_FILE}'!r})\n"
        'inputs = dict(tokenizer("This is a text.", return_tensors="np"))\n'
        "for output, values in zip(session.get_outputs(), session.run(None, inputs)):\n"
        "    print(output.name, values.shape)"
    )
    if isinstance(model, TaskModel) and isinstance(model.task, DenseRetrieval):
        return show_code(plain)
    python = show_code(plain, _show_their_python(name, task))
    dtype = "q8" if has_int8 else "fp32"
    script = (
        'import { env, pipeline } from "@huggingface/transformers";\n\n'
        'env.localModelPath = "./";\nenv.allowRemoteModels = false;\n'
        f'const run = await pipeline("{task}", {json.dumps(name)}, {{ dtype: "{dtype}" }});\n'
        f"console.log(await run({_show_arguments(model, task)}));"
    )
    return (
        f"{python}\n\n```js\n{script}\n```\n\n`{BROWSER_FOLDER}/` holds the same graphs under the names that"
        " transformers.js looks for."
    )


_CLASSES = {
    "fill-mask": "ORTModelForMaskedLM",
    "text-classification": "ORTModelForSequenceClassification",
    "token-classification": "ORTModelForTokenClassification",
    "question-answering": "ORTModelForQuestionAnswering",
}
"""optimum's, by the hub's name of a task."""


def _show_their_python(name: str, task: str) -> str:
    if task not in _CLASSES:
        return (
            "from sentence_transformers import SentenceTransformer\n\n"
            f'model = SentenceTransformer({name!r}, backend="onnx", model_kwargs={{"file_name": {GRAPH_FILE!r}}})\n'
            'print(model.encode(["This is a text."]).shape)'
        )
    return (
        f"from optimum.onnxruntime import {_CLASSES[task]}\n\n"
        f"model = {_CLASSES[task]}.from_pretrained({name!r}, file_name={GRAPH_FILE!r})"
    )


def _show_arguments(model: ExportedModel, task: str) -> str:
    if isinstance(model, SentenceEncoder):
        normalize = ", normalize: true" if model.normalizes else ""
        return f'["This is a text."], {{ pooling: "{model.pooling}"{normalize} }}'
    return {
        "fill-mask": "`This is a ${run.tokenizer.mask_token} text.`",
        "question-answering": '"What is this?", "This is a text."',
    }.get(task, '"This is a text."')


def _build_versions(versions: Mapping[str, Mapping[str, Any]]) -> str:
    columns = {key: label for key, label in _COLUMNS.items() if any(key in one for one in versions.values())}
    lines = [f"| version | size | {' | '.join(columns.values())} |", f"| --- | --- |{' --- |' * len(columns)}"]
    for name, figures in versions.items():
        cells = [f"{figures['size_bytes'] / 1e6:,.1f} MB", *(format_figure(figures[key]) for key in columns)]
        lines.append(f"| {escape(name)} | {' | '.join(cells)} |")
    return "\n".join(lines)
