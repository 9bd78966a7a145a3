"""A detector of replaced tokens as a Hugging Face folder, which `ElectraForPreTraining` loads. B texts, S length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import yaml

from maskwright.export.card import (
    CardOptions,
    Origin,
    build_table,
    describe_data,
    describe_limits,
    describe_settings,
    escape,
    format_figure,
    is_number,
    show_code,
)
from maskwright.export.comparison import Comparison, split_rows
from maskwright.export.huggingface import TheirLayout, find_encoder_obstacles, refuse, write_compared
from maskwright.objectives.token_detector import TokenDetector
from maskwright.text.tokenizer.tokenizer import Tokenizer

_FIGURES = {"replaced_accuracy": "right answers", "replaced_auc": "area under the ROC curve"}


def export_detector(
    detector: TokenDetector, tokenizer: Tokenizer, folder: Path, *, texts: Sequence[str], say: Callable[[str], None]
) -> Comparison:
    """Write the folder, read it back and compare logits on the texts, as `export_huggingface` does."""
    refuse("Hugging Face's layout", find_encoder_obstacles(detector.encoder))
    layout = TheirLayout("ElectraForPreTraining", TokenDetector.from_pretrained, split_rows)
    return write_compared(detector, tokenizer, folder, layout, texts=texts, say=say)


def build_detector_card(
    name: str, detector: TokenDetector, origin: Origin, comparison: Comparison, options: CardOptions
) -> str:
    """`name` is the folder's."""
    num_parameters = sum(param.numel() for param in detector.parameters())
    values = {key: value for key, value in asdict(options).items() if value is not None}
    values |= {"library_name": "transformers", "tags": ["maskwright", "electra"]}
    figures = {label: origin.figures[key] for key, label in _FIGURES.items() if is_number(origin.figures.get(key))}
    rows = {label: format_figure(value) for label, value in figures.items()}
    measured = build_table(rows, ("replaced tokens of held-out text", "value")) if rows else "No figures are known."
    usage = show_code(
        "from transformers import AutoTokenizer, ElectraForPreTraining\n\n"
        f"tokenizer, model = AutoTokenizer.from_pretrained({name!r}), ElectraForPreTraining.from_pretrained({name!r})\n"
        'print(model(**tokenizer("This is a text.", return_tensors="pt")).logits > 0)'
    )
    sections = [
        f"---\n{yaml.safe_dump(values, sort_keys=False)}---",
        f"# {escape(name)}",
        f"An encoder of {num_parameters:,} parameters that tells which tokens of a text were replaced (ELECTRA's"
        " discriminator), to be fine-tuned. Made with Maskwright, exported in Hugging Face's layout.",
        f"## How to use\n\nFrom the folder that holds this one:\n\n{usage}",
        f"## Training data\n\n{describe_data(origin)}",
        f"## Configuration\n\n{describe_settings(detector.encoder, origin)}",
        f"## Figures\n\n{measured}\n\nAt export, {comparison.describe('logits')}.",
        f"## Limits\n\n{describe_limits(detector.encoder, for_sentences=False)}",
    ]
    return "\n\n".join(sections) + "\n"
