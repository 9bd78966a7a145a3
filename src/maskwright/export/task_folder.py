"""A fine-tuned model as a Hugging Face folder, which their `AutoModelFor...` of its task loads. B texts, S length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
from maskwright.export.obstacles import find_encoder_obstacles
from maskwright.models.transformers_loading import quiet_transformers
from maskwright.tasks.model import TaskModel
from maskwright.text.tokenizer import Tokenizer
from maskwright.training.modes import evaluation_mode

_NUM_AXES_OF_TOKENS = 3


def export_task_huggingface(
    model: TaskModel, tokenizer: Tokenizer, folder: Path, *, texts: Sequence[str], say: Callable[[str], None]
) -> Comparison:
    """Write the folder, read it back and compare logits on the texts, as `export_huggingface` does."""
    refuse("Hugging Face's layout", find_encoder_obstacles(model.encoder))
    sample = choose_sample(texts, tokenizer, model.encoder)
    model.save_pretrained(folder, tokenizer)
    check_type(folder)
    complete_settings(folder, model.encoder, tokenizer)
    read_back = TaskModel.from_pretrained(folder)
    say(f"{OWN_READER}: {check_equal(model, read_back, folder)} tensors are bit-equal")
    reader = find_reader("transformers")
    if reader is None:
        found, reader = _compute_logits(read_back, sample), OWN_READER
        say(f"transformers is not installed, so the comparison is with {OWN_READER} only; {NEEDS_TRANSFORMERS}")
    else:
        found = _compute_their_logits(model.task_head.files.architecture, folder, sample)
    expected = _compute_logits(model, sample)
    comparison = compare(reader, _split(expected, sample), _split(found, sample), sample)
    say(comparison.describe("logits"))
    return comparison


def _split(logits: Tensor, sample: Sample) -> list[Tensor]:
    """One tensor to a text, without padding."""
    return split_rows(logits, sample) if logits.ndim == _NUM_AXES_OF_TOKENS else list(logits.cpu())


@torch.no_grad()
def _compute_logits(model: TaskModel, sample: Sample) -> Tensor:
    device = next(model.parameters()).device
    with evaluation_mode(model):
        return model(**{name: tensor.to(device) for name, tensor in sample.pad().items()}).logits


@torch.no_grad()
def _compute_their_logits(architecture: str, folder: Path, sample: Sample) -> Tensor:
    with quiet_transformers() as transformers:
        check_tokenizer(sample, folder)
        theirs = getattr(transformers, architecture).from_pretrained(str(folder)).eval()
        output: Any = theirs(**sample.pad())
    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], dim=-1)
    logits: Tensor = output.logits
    return logits
