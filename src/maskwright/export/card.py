"""The model card: README.md of an exported folder, with known facts about the model only."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import yaml
from torch import nn

from maskwright.config import Config, flatten
from maskwright.errors import InputError
from maskwright.export.comparison import Comparison
from maskwright.models.any_encoder import find_hidden_size, find_max_length
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.held_out import EVALUATION_RATIO

CARD_FILE = "README.md"
TRAINING_CONFIG_FILE = "training_config.yaml"
_SHAPE = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
_SETTINGS = (
    "preset",
    "model.from",
    "training.mode",
    "pairs.task",
    "data.max_length",
    "masking.strategy",
    "masking.ratio",
    "masking.final_ratio",
    "optimizer.type",
    "optimizer.learning_rate",
    "optimizer.weight_decay",
    "optimizer.embedding_decay",
    "schedule.type",
    "training.batch_tokens",
    "training.precision",
    "run.seed",
)
_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")


@dataclass(frozen=True)
class Origin:
    """Facts about a model from its run folder; empty if the run is not available."""

    config: Config | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    """The figures of final.json, or the steps and tokens of a checkpoint."""
    adapted_from: str | None = None
    """The model that the run continued."""


@dataclass(frozen=True)
class CardOptions:
    """Facts that only the publisher of the model knows."""

    language: str | None = None
    license: str | None = None

    def __post_init__(self) -> None:
        for name, example in (("language", "en"), ("license", "apache-2.0")):
            value = getattr(self, name)
            if value is not None and _IDENTIFIER.fullmatch(value) is None:
                raise InputError(f"--{name} is {value!r}; expected an identifier such as {example}")


def build_card(
    name: str,
    model: MaskedLanguageModel,
    tokenizer: Tokenizer,
    origin: Origin,
    comparison: Comparison,
    options: CardOptions,
    for_sentences: bool = False,
) -> str:
    """`name` is the folder's; `for_sentences` describes the encoder with mean pooling instead of the whole model."""
    encoder = model.encoder
    usage = show_sentences(name, encoder) if for_sentences else _show_masks(name, tokenizer)
    exported = encoder if for_sentences else model
    num_parameters = sum(param.numel() for param in exported.parameters())
    sections = [
        _build_front_matter(encoder, options, for_sentences),
        f"# {escape(name)}",
        _describe(encoder, num_parameters, for_sentences),
        f"## How to use\n\nFrom the folder that holds this one:\n\n{usage}",
        f"## Training data\n\n{describe_data(origin)}",
        f"## Configuration\n\n{describe_settings(encoder, origin)}",
        f"## Figures\n\n{_describe_figures(origin)}\n\n{_describe_comparison(comparison, for_sentences)}",
        *_describe_adaptation(origin),
        f"## Limits\n\n{describe_limits(encoder, for_sentences)}",
    ]
    return "\n\n".join(sections) + "\n"


def _build_front_matter(encoder: nn.Module, options: CardOptions, for_sentences: bool) -> str:
    values: dict[str, Any] = {name: value for name, value in asdict(options).items() if value is not None}
    library, task = ("sentence-transformers", "sentence-similarity") if for_sentences else ("transformers", "fill-mask")
    values |= {"library_name": library, "pipeline_tag": task}
    values["tags"] = ["maskwright", type(encoder).__name__.lower(), "feature-extraction" if for_sentences else task]
    return f"---\n{yaml.safe_dump(values, sort_keys=False)}---"


def _describe(encoder: nn.Module, num_parameters: int, for_sentences: bool) -> str:
    what = (
        f"turns a text into a vector of {find_hidden_size(encoder)} numbers, the mean of its tokens' hidden states"
        if for_sentences
        else "fills masked tokens of a text"
    )
    return (
        f"A {type(encoder).__name__} encoder of {num_parameters:,} parameters that {what}. Made with"
        " Maskwright, exported in Hugging Face's layout."
    )


def _show_masks(name: str, tokenizer: Tokenizer) -> str:
    text = f"This is a {tokenizer.mask_token} text."
    return show_code(
        "from transformers import pipeline\n\n"
        f'fill = pipeline("fill-mask", model={name!r})\n'
        f'for answer in fill({text!r}):\n    print(answer["token_str"], answer["score"])',
        "from maskwright import MaskedLanguageModel, fill_mask, load_tokenizer\n\n"
        f"model, tokenizer = MaskedLanguageModel.from_pretrained({name!r}), load_tokenizer({name!r})\n"
        f"for answer in fill_mask(model, tokenizer, {text!r})[0]:\n    print(answer.token_str, answer.score)",
    )


def show_sentences(name: str, encoder: nn.Module) -> str:
    return show_code(
        "from sentence_transformers import SentenceTransformer\n\n"
        f"model = SentenceTransformer({name!r})\n"
        'vectors = model.encode(["This is a text.", "And this is another."])\n'
        "print(model.similarity(vectors, vectors))",
        f"from {type(encoder).__module__} import {type(encoder).__name__}\n\n"
        f"encoder = {type(encoder).__name__}.from_pretrained({name!r})\n"
        "print(encoder.hidden_size)",
    )


def show_code(*snippets: str) -> str:
    """Format a code block; names in it are Python literals, so no line end can close the block."""
    return "\n\n".join(f"```python\n{snippet}\n```" for snippet in snippets)


def describe_data(origin: Origin) -> str:
    if origin.config is None:
        return "The run that trained this model was not at hand when it was exported."
    train = origin.config.data.train
    sources = [train] if isinstance(train, str) else [f"{source.path} (weight {source.weight:g})" for source in train]
    rows: dict[str, Any] = {f"source {number}": source for number, source in enumerate(sources, start=1)}
    labels = {
        "train_documents": "training documents",
        "train_tokens": "training tokens",
        "tokens": "tokens seen in training",
        "steps": "steps",
    }
    rows |= {label: f"{origin.figures[key]:,}" for key, label in labels.items() if is_number(origin.figures.get(key))}
    return build_table(rows, ("", "as configured and counted"))


def describe_settings(encoder: nn.Module, origin: Origin) -> str:
    shape: Any = encoder.config
    rows = {name: getattr(shape, name) for name in _SHAPE if hasattr(shape, name)}
    if origin.config is None:
        return build_table(rows, ("setting", "value"))
    settings = flatten(origin.config.model_dump(by_alias=True))
    rows |= {name: settings[name] for name in _SETTINGS if settings.get(name) is not None}
    table = build_table(rows, ("setting", "value"))
    return f"{table}\n\nAll settings: [{TRAINING_CONFIG_FILE}]({TRAINING_CONFIG_FILE})."


def _describe_figures(origin: Origin) -> str:
    figures = {name: value for name, value in origin.figures.items() if is_number(value)}
    if "loss" not in figures or origin.figures.get("objective") == "rtd":  # the generator's are not the encoder's
        return "No figures on held-out text are known for these weights."
    shown = {
        "loss": figures.get("mlm_loss", figures["loss"]),
        "accuracy": figures.get("accuracy"),
        "perplexity": figures.get("perplexity"),
        "unigram loss": figures.get("unigram_loss"),
        "masked tokens": figures.get("num_masked"),
    }
    rows = {label: format_figure(value) for label, value in shown.items() if value is not None}
    held_out = (
        "texts of its own" if origin.config and origin.config.data.validation else "a share of the training texts"
    )
    asked = (
        f"In them {EVALUATION_RATIO:.0%} of single tokens are masked, the same in every evaluation; the loss is the"
        " mean cross-entropy in nats, the perplexity its exponential"
    )
    if origin.figures.get("objective") == "diffusion":
        rows["tokens"] = rows.pop("masked tokens")
        asked = (
            "The loss is an upper bound on their negative log-likelihood in nats per token (masked diffusion), the"
            " perplexity its exponential; the accuracy is that of masked tokens, of which each text has another share"
        )
    return (
        f"{build_table(rows, ('held-out text', 'value'))}\n\n"
        f"Held out were {held_out}. {asked}, the unigram loss that of guessing by the tokens' frequency in training."
    )


def _describe_adaptation(origin: Origin) -> list[str]:
    """The losses before and after a run that measured forgetting; empty for other runs."""
    figures = {name: value for name, value in origin.figures.items() if is_number(value)}
    if "forgetting" not in figures or "loss" not in figures or origin.config is None:
        return []
    rows = {
        f"{label} text, {measure}": f"{format_figure(figures[f'{prefix}{measure}_before'])} to"
        f" {format_figure(figures.get(f'{prefix}mlm_{measure}', figures[f'{prefix}{measure}']))}"
        for label, prefix in (("domain", ""), ("general", "general_"))
        for measure in ("loss", "accuracy")
    }
    general = origin.config.forgetting.general
    names = [general] if isinstance(general, str) else [source.path for source in general or ()]
    stopped = figures.get("stopped_for_forgetting_at")
    end = "" if stopped is None else f" It ended at step {stopped:,}, with the last weights that were within."
    return [
        f"## Adaptation\n\nAdapted from {escape(str(origin.adapted_from))}. On held-out text, before and after:"
        f"\n\n{build_table(rows, ('', 'before and after'))}\n\nGeneral text: {escape(', '.join(names))}. The loss on"
        f" it has changed by {figures['forgetting']:+.4f} nats; the run was to end beyond"
        f" {figures['max_forgetting']:g}.{end}"
    ]


def _describe_comparison(comparison: Comparison, for_sentences: bool) -> str:
    what = "vectors" if for_sentences else "logits"
    return f"At export, {comparison.describe(what)}."


def describe_limits(encoder: nn.Module, for_sentences: bool) -> str:
    limits = [
        "- It knows the language and the subjects of its training data, errors and prejudices included. What is not"
        " under Figures was not measured.",
    ]
    longest = find_max_length(encoder)
    if longest is not None:
        limits.insert(0, f"- Texts of at most {longest:,} tokens; longer ones have to be cut.")
    if for_sentences:
        limits.append(
            "- It was trained on text alone, not to compare sentences: fine-tune it on pairs of sentences"
            " before trusting its similarities."
        )
    return "\n".join(limits)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def format_figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"


_MARKUP = re.compile(r"([\\`*_\[\]|~$#!])")


def escape(value: Any) -> str:
    """One line of plain text: no markup, no HTML, nothing invisible."""
    line = " ".join(str(value).split())
    visible = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in line)
    return _MARKUP.sub(r"\\\1", html.escape(visible, quote=False))


def build_table(rows: Mapping[str, Any], heading: tuple[str, str]) -> str:
    lines = [f"| {heading[0]} | {heading[1]} |", "| --- | --- |"]
    lines += [f"| {escape(label)} | {escape(value)} |" for label, value in rows.items()]
    return "\n".join(lines)
