"""A detector of replaced tokens as a Hugging Face folder, which `ElectraForPreTraining` loads. B texts, S length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import yaml
from torch import Tensor

from maskwright.export.card import (
    CardOptions,
    Origin,
    describe_data,
    describe_limits,
    describe_settings,
    format_figure,
    is_number,
    show_code,
)
from maskwright.export.comparison import (
    OWN_READER,
    Comparison,
    Sample,
    check_equal,
    check_tokenizer,
    choose_sample,
    compare,
    find_reader,
    split_rows,
)
from maskwright.export.huggingface import NEEDS_TRANSFORMERS, check_type, complete_settings, refuse
from maskwright.export.markdown import build_table, escape
from maskwright.export.obstacles import find_encoder_obstacles
from maskwright.models.transformers_loading import quiet_transformers
from maskwright.objectives.token_detector import TokenDetector
from maskwright.text.tokenizer import Tokenizer
from maskwright.training.modes import evaluation_mode

_FIGURES = {"replaced_accuracy": "right answers", "replaced_auc": "area under the ROC curve"}


def export_detector(
    detector: TokenDetector, tokenizer: Tokenizer, folder: Path, *, texts: Sequence[str], say: Callable[[str], None]
) -> Comparison:
    """Write the folder, read it back and compare logits on the texts, as `export_huggingface` does."""
    refuse("Hugging Face's layout", find_encoder_obstacles(detector.encoder))
    sample = choose_sample(texts, tokenizer, detector.encoder)
    detector.save_pretrained(folder, tokenizer)
    check_type(folder)
    complete_settings(folder, detector.encoder, tokenizer)
    read_back = TokenDetector.from_pretrained(folder)
    say(f"{OWN_READER}: {check_equal(detector, read_back, folder)} tensors are bit-equal")
    reader = find_reader("transformers")
    if reader is None:
        found, reader = _compute_logits(read_back, sample), OWN_READER
        say(f"transformers is not installed, so the comparison is with {OWN_READER} only; {NEEDS_TRANSFORMERS}")
    else:
        found = _compute_their_logits(folder, sample)
    expected = split_rows(_compute_logits(detector, sample), sample)
    comparison = compare(reader, expected, split_rows(found, sample), sample)
    say(comparison.describe("logits"))
    return comparison


@torch.no_grad()
def _compute_logits(detector: TokenDetector, sample: Sample) -> Tensor:
    with evaluation_mode(detector):
        return detector(**sample.pad()).logits


@torch.no_grad()
def _compute_their_logits(folder: Path, sample: Sample) -> Tensor:
    with quiet_transformers() as transformers:
        check_tokenizer(sample, folder)
        theirs = transformers.ElectraForPreTraining.from_pretrained(str(folder)).eval()
        return theirs(**sample.pad()).logits


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
