"""Save and load a sentence-pair model: a masked language model's files, and the pair head.

A BERT has the head under the names of Hugging Face's BertForPreTraining, in the same file; for families without such
names it is a file of its own.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from maskwright.errors import InputError
from maskwright.models import FAMILIES
from maskwright.models.encoder import PackedEncoder
from maskwright.models.family import PairHeadLayout
from maskwright.models.files.model_folder import (
    CONFIG_FILE,
    OWN_KEY,
    WEIGHTS_FILE,
    copy_to_cpu,
    load_into,
    read_config,
    read_own_settings,
    read_weights,
    resolve_folder,
)
from maskwright.models.files.safetensors_file import read_tensors
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.objectives.saving import fill_masked_lm, load_masked_lm, snapshot_masked_lm
from maskwright.objectives.sentence_pairs import SentencePairModel
from maskwright.objectives.snapshot import ModelSnapshot

PAIR_HEAD_FILE = "pair_head.safetensors"
_HEAD = "pair_head"
_OWN_PART = "sentence_pairs"
_LAYOUTS = [encoder_class.family.pair_head for encoder_class in FAMILIES.values()]
_THEIR_MODULES = [name for layout in _LAYOUTS if layout is not None for name in layout.modules.values()]


def snapshot_sentence_pair(model: SentencePairModel, tokenizer: Any = None, wait: bool = True) -> ModelSnapshot:
    """Without `wait` copies from a GPU still run on return."""
    head = copy_to_cpu(model.pair_head.state_dict(), wait=False)
    snapshot = snapshot_masked_lm(_without_head(model), tokenizer, wait)
    snapshot.config[OWN_KEY][_OWN_PART] = {"pair_weight": model.pair_weight}
    layout = _find_layout(model.encoder)
    if layout is None:
        return replace(snapshot, others={**snapshot.others, PAIR_HEAD_FILE: head})
    assert isinstance(model.encoder, PackedEncoder)
    without_pairs = model.encoder.family.architectures[1]
    architecture = snapshot.config["architectures"][0].replace(without_pairs, layout.architecture)
    weights = {**snapshot.weights, **{_their_name(name, layout): tensor for name, tensor in head.items()}}
    return replace(snapshot, config={**snapshot.config, "architectures": [architecture]}, weights=weights)


def fill_sentence_pair(model: SentencePairModel, folder: Path) -> None:
    """Fill a model of the same shape from a saved one."""
    fill_masked_lm(_without_head(model), folder, used_elsewhere=_THEIR_MODULES)
    _fill_head(model, folder)


def load_sentence_pair(folder_or_id: str | Path, encoder: nn.Module | None = None) -> SentencePairModel:
    folder = resolve_folder(folder_or_id)
    masked_lm = load_masked_lm(folder, encoder, used_elsewhere=_THEIR_MODULES)
    settings = read_own_settings(read_config(folder), _OWN_PART)
    pair_weight = settings.get("pair_weight", 1.0)
    if not isinstance(pair_weight, int | float) or isinstance(pair_weight, bool):
        raise InputError(f"{folder / CONFIG_FILE}: 'pair_weight' is {pair_weight!r}; expected a number such as 1.0")
    model = SentencePairModel.around(masked_lm, pair_weight)
    _fill_head(model, folder)
    return model


def continue_with_pairs(folder_or_id: str | Path, pair_weight: float) -> SentencePairModel:
    """A saved masked language model with its pair head, or with a new one where it has none."""
    folder = resolve_folder(folder_or_id)
    masked_lm = load_masked_lm(folder, build=MaskedLanguageModel, used_elsewhere=_THEIR_MODULES)
    model = SentencePairModel.around(masked_lm, pair_weight)
    if _OWN_PART in read_config(folder).get(OWN_KEY, {}):
        _fill_head(model, folder)
    return model


def _without_head(model: SentencePairModel) -> SentencePairModel:
    """A view of the same weights that has those of a masked language model alone."""
    view = copy.copy(model)
    view._modules = {name: module for name, module in model._modules.items() if name != _HEAD}
    return view


def _fill_head(model: SentencePairModel, folder: Path) -> None:
    layout = _find_layout(model.encoder)
    file = folder / (PAIR_HEAD_FILE if layout is None else WEIGHTS_FILE)
    stored = read_weights(folder) if layout is not None else read_tensors(file) if file.is_file() else {}
    names = {name: name if layout is None else _their_name(name, layout) for name in model.pair_head.state_dict()}
    found = {ours: stored[theirs] for ours, theirs in names.items() if theirs in stored}
    if not found:
        raise InputError(
            f"{folder} holds a model without a pair head; load it with MaskedLanguageModel.from_pretrained and give it"
            " one with SentencePairModel.around"
        )
    load_into(model.pair_head, found, file)


def _find_layout(encoder: nn.Module) -> PairHeadLayout | None:
    """Hugging Face's names for the pair head, where it has any in the encoder's family."""
    return encoder.family.pair_head if isinstance(encoder, PackedEncoder) else None


def _their_name(name: str, layout: PairHeadLayout) -> str:
    module, kind = name.split(".")
    return f"{layout.modules[module]}.{kind}"
