"""A model as a Hugging Face folder, which `AutoModelFor...` of its task loads without flags, or why that cannot be.

B texts, S length.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maskwright.errors import InputError
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
from maskwright.models.any_encoder import find_max_length
from maskwright.models.encoder import PackedEncoder, describe_encoder
from maskwright.models.files.model_folder import CONFIG_FILE, OWN_TYPE_PREFIX
from maskwright.models.transformers_encoder import TransformersEncoder
from maskwright.models.transformers_model import quiet_transformers
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.storage import read_json, write_text
from maskwright.tasks.foreign import has_own_head
from maskwright.tasks.model import TaskModel
from maskwright.text.tokenizer.files import SETTINGS_FILE
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.compute.device import evaluation_mode

_NEEDS_TRANSFORMERS = "pip install 'maskwright[hf]' to compare with transformers as well"


def export_huggingface(
    model: MaskedLanguageModel,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    texts: Sequence[str],
    say: Callable[[str], None],
) -> Comparison:
    """Write the folder, read it back and compare logits on the texts.

    A model that the layout cannot hold is an `InputError`, an answer that differs a `RunError`.
    """
    refuse("Hugging Face's layout", find_obstacles(model))
    layout = TheirLayout("AutoModelForMaskedLM", MaskedLanguageModel.from_pretrained, split_rows)
    return write_compared(model, tokenizer, folder, layout, texts=texts, say=say)


@dataclass(frozen=True)
class TheirLayout:
    """How a model that was written is read again, by them and by us."""

    architecture: str
    """Their class."""
    read: Callable[[Path], nn.Module]
    split: Callable[[Tensor, Sample], list[Tensor]]
    """One tensor to a text from the logits, without padding."""


def write_compared(
    model: Any,
    tokenizer: Tokenizer,
    folder: Path,
    layout: TheirLayout,
    *,
    texts: Sequence[str],
    say: Callable[[str], None],
) -> Comparison:
    """Write a model that has `save_pretrained`, read it back, and compare its logits with those of their class."""
    sample = choose_sample(texts, tokenizer, model.encoder)
    model.save_pretrained(folder, tokenizer)
    _check_type(folder)
    complete_settings(folder, model.encoder, tokenizer)
    read_back = layout.read(folder)
    say(f"{OWN_READER}: {check_equal(model, read_back, folder)} tensors are bit-equal")
    reader = find_reader("transformers")
    if reader is None:
        found, reader = _compute_logits(read_back, sample), OWN_READER
        say(f"transformers is not installed, so the comparison is with {OWN_READER} only; {_NEEDS_TRANSFORMERS}")
    else:
        pads_left = isinstance(model.encoder, TransformersEncoder) and model.encoder.pads_left
        found = _compute_their_logits(layout.architecture, folder, sample, pads_left)
    expected = layout.split(_compute_logits(model, sample), sample)
    comparison = compare(reader, expected, layout.split(found, sample), sample)
    say(comparison.describe("logits"))
    return comparison


def refuse(layout: str, obstacles: Sequence[str]) -> None:
    if obstacles:
        raise InputError(f"{layout} cannot hold this model: {'; '.join(obstacles)}")


def _check_type(folder: Path) -> None:
    """Saving has the last word on what their layout can hold."""
    model_type = str(read_json(folder / CONFIG_FILE)["model_type"])
    if model_type.startswith(OWN_TYPE_PREFIX):
        raise InputError(f"Hugging Face's layout cannot hold this model: it can only be saved as our own {model_type}")


def complete_settings(folder: Path, encoder: nn.Module, tokenizer: Tokenizer) -> None:
    """Add what their loaders look for beside the model's shape: precision, special tokens, the longest input."""
    config = read_json(folder / CONFIG_FILE)
    config["dtype"] = str(next(encoder.parameters()).dtype).removeprefix("torch.")
    if isinstance(encoder, PackedEncoder):
        cls_id, sep_id = tokenizer.cls_token_id, tokenizer.sep_token_id
        config |= {"cls_token_id": cls_id, "sep_token_id": sep_id, "bos_token_id": cls_id, "eos_token_id": sep_id}
    _write_json(folder / CONFIG_FILE, config)
    settings = read_json(folder / SETTINGS_FILE)
    max_length = find_max_length(encoder)
    if max_length is not None:
        settings["model_max_length"] = max_length
    _write_json(folder / SETTINGS_FILE, settings)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    write_text(path, json.dumps(values, indent=2) + "\n")


@torch.no_grad()
def _compute_logits(model: nn.Module, sample: Sample) -> Tensor:
    device = next(model.parameters()).device
    with evaluation_mode(model):
        logits: Tensor = model(**{name: tensor.to(device) for name, tensor in sample.pad().items()}).logits
    return logits


@torch.no_grad()
def _compute_their_logits(architecture: str, folder: Path, sample: Sample, pads_left: bool) -> Tensor:
    with quiet_transformers() as transformers:
        check_tokenizer(sample, folder)
        theirs = getattr(transformers, architecture).from_pretrained(str(folder)).eval()
        output: Any = theirs(**sample.pad(pads_left))
    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], dim=-1)
    logits: Tensor = output.logits
    return logits


_NUM_AXES_OF_TOKENS = 3


def export_task_huggingface(
    model: TaskModel, tokenizer: Tokenizer, folder: Path, *, texts: Sequence[str], say: Callable[[str], None]
) -> Comparison:
    """Write the folder, read it back and compare logits on the texts, as `export_huggingface` does."""
    obstacles = find_encoder_obstacles(model.encoder)
    if has_own_head(model.task_head):
        name = model.task_head.files.architecture.removeprefix(OWN_TYPE_PREFIX)
        obstacles.append(f"transformers has no {name}, so its head is Maskwright's own; use the folder as it is")
    refuse("Hugging Face's layout", obstacles)
    layout = TheirLayout(model.task_head.files.architecture, TaskModel.from_pretrained, _split)
    return write_compared(model, tokenizer, folder, layout, texts=texts, say=say)


def _split(logits: Tensor, sample: Sample) -> list[Tensor]:
    """One tensor to a text, without padding."""
    return split_rows(logits, sample) if logits.ndim == _NUM_AXES_OF_TOKENS else list(logits.cpu())


_IS_CAUSAL = "it continues text (training.mode=clm), where a token sees what comes before it; theirs sees both sides"


def find_obstacles(model: MaskedLanguageModel) -> list[str]:
    """What keeps the whole model from being read as theirs; nothing if it can be."""
    if model.mlm_head is not None:
        return []
    obstacles = find_pooling_obstacles(model)
    encoder = model.encoder
    if not isinstance(encoder, PackedEncoder):
        return obstacles
    if model.predicts_next and model.mode != "clm":
        obstacles.append(
            f"it answers a masked token one place before it (training.mode={model.mode}), theirs in its own place"
        )
    return [*obstacles, *_find_head_obstacles(model, encoder)]


def find_pooling_obstacles(model: MaskedLanguageModel) -> list[str]:
    """What keeps the encoder alone from being read as theirs, whatever the prediction head."""
    if model.mlm_head is not None:
        return [
            f"{type(model.encoder).__name__} is read through transformers; export it with --to hf, and"
            " sentence-transformers adds mean pooling to that folder by itself"
        ]
    return [*find_encoder_obstacles(model.encoder), *([_IS_CAUSAL] if model.mode == "clm" else [])]


def find_encoder_obstacles(encoder: nn.Module) -> list[str]:
    """What keeps the encoder from being read as theirs, whatever stands on it."""
    if isinstance(encoder, TransformersEncoder):
        return []
    if not isinstance(encoder, PackedEncoder):
        return [f"{type(encoder).__name__} is an encoder of your own, they have no architecture for it"]
    if not encoder.family.is_in_transformers:
        return [
            f"transformers has no {type(encoder).__name__}; a run's own folder has the names of the published models"
        ]
    theirs = f"Hugging Face's {type(encoder).__name__}"
    obstacles = []
    if getattr(encoder.config, "normalization_type", "layer_norm") != "layer_norm":
        obstacles.append(f"its norms are {encoder.config.normalization_type}, {theirs} has layer_norm only")
    elif describe_encoder(encoder, with_head=False)["model_type"].startswith(OWN_TYPE_PREFIX):
        obstacles.append(f"its configuration sets what is the same in every {theirs}")
    if getattr(encoder.config, "use_stochastic_depth", False):
        obstacles.append(
            f"its training skips layers at random (use_stochastic_depth), {theirs} would train without; to export it"
            " for use alone, set that to false in its config.json"
        )
    return obstacles


def _find_head_obstacles(model: MaskedLanguageModel, encoder: PackedEncoder) -> list[str]:
    obstacles = []
    if model.vocab_size != encoder.vocab_size:
        obstacles.append(
            f"it predicts {model.vocab_size} tokens and embeds {encoder.vocab_size}, theirs has one vocab_size for both"
        )
    if not encoder.has_mlm_transform:
        return obstacles
    if model.layer_norm_eps != encoder.norm_eps:
        obstacles.append(
            f"the norm of its prediction head has eps {model.layer_norm_eps:g} and its encoder's {encoder.norm_eps:g},"
            " theirs has one for both"
        )
    activation = encoder.head_activation
    if model.mlm_head_activation != activation and encoder.family.head_activation_setting is None:
        obstacles.append(
            f"the activation of its prediction head is {model.mlm_head_activation}, theirs would be {activation}"
        )
    return obstacles
