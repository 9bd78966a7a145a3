"""Save and load a fine-tuned model in Hugging Face's layout: its encoder, its head and the names of its labels."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from maskwright.errors import InputError
from maskwright.models.any_encoder import find_hidden_size
from maskwright.models.encoder import PackedEncoder, build_encoder, describe_encoder
from maskwright.models.family import State
from maskwright.models.files.model_folder import (
    OWN_KEY,
    OWN_TYPE_PREFIX,
    WEIGHTS_FILE,
    copy_to_cpu,
    load_into,
    read_model_folder,
    read_own_settings,
    resolve_folder,
)
from maskwright.models.transformers_encoder import TransformersEncoder, TunedEncoder
from maskwright.models.transformers_model import is_foreign
from maskwright.objectives.saving import CUSTOM_TYPE
from maskwright.objectives.snapshot import ModelSnapshot
from maskwright.tasks.foreign import build_foreign, describe_foreign, fill_foreign, load_foreign_encoder
from maskwright.tasks.kinds import TaskKind, find_described_kind
from maskwright.tasks.model import TaskModel
from maskwright.tasks.nlp_heads import SETTINGS_PART as NLP_HEAD_PART
from maskwright.tasks.nlp_heads import load_nlp_head
from maskwright.tasks.task import Task
from maskwright.tasks.task_head import TaskHead, name_head_weights
from maskwright.text.tokenizer.tokenizer import Tokenizer, as_tokenizer


def snapshot_task(model: TaskModel, tokenizer: Any = None, wait: bool = True) -> ModelSnapshot:
    """Without `wait` copies from a GPU still run on return."""
    tokenizer = None if tokenizer is None else as_tokenizer(tokenizer)
    if not isinstance(model.encoder, TunedEncoder):
        return _snapshot_custom(model, tokenizer, wait)
    config, weights = _describe(model)
    described = {**model.task_head.files.settings, **model.task.describe()}
    config |= {**described, OWN_KEY: {**config[OWN_KEY], **described.get(OWN_KEY, {})}}
    if tokenizer is not None:
        config |= {"cls_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id}
    small_files = model.task_head.files.small_files
    pads_left = isinstance(model.encoder, TransformersEncoder) and model.encoder.pads_left
    return ModelSnapshot(config, copy_to_cpu(weights, wait), tokenizer, small_files=small_files, pads_left=pads_left)


def _describe(model: TaskModel) -> tuple[dict[str, Any], State]:
    """config.json without the task, and all weights under their names."""
    if isinstance(model.encoder, TransformersEncoder):
        return describe_foreign(model.encoder, model.task_head)
    family = model.encoder.family
    config = describe_encoder(model.encoder, with_head=True)
    prefix = OWN_TYPE_PREFIX if str(config["model_type"]).startswith(OWN_TYPE_PREFIX) else ""
    config["architectures"] = [f"{prefix}{model.task_head.files.architecture}"]
    weights = {f"{family.prefix}.{name}": one for name, one in family.to_theirs(model.encoder.state_dict()).items()}
    head_state = model.task_head.state_dict()
    weights |= {theirs: head_state[ours] for ours, theirs in name_head_weights(model.task_head).items()}
    return config, weights


def _snapshot_custom(model: TaskModel, tokenizer: Tokenizer | None, wait: bool) -> ModelSnapshot:
    """Around an encoder of the user's own, of which only its weights can be written down."""
    files = model.task_head.files
    config = {
        "model_type": CUSTOM_TYPE,
        "encoder_class": type(model.encoder).__name__,
        "architectures": [files.architecture],
        **files.settings,
        **model.task.describe(),
    }
    return ModelSnapshot(config, copy_to_cpu(_list_custom_weights(model), wait), tokenizer)


def _list_custom_weights(model: TaskModel) -> dict[str, Tensor]:
    parts = {"encoder": model.encoder, "task_head": model.task_head}
    return {f"{part}.{name}": one for part, module in parts.items() for name, one in module.state_dict().items()}


def fill_task(model: TaskModel, folder: Path) -> None:
    """Fill a model of the same shape from a saved one."""
    _fill(model, read_model_folder(folder)[1], folder)


def load_task(folder_or_id: str | Path, own_encoder: nn.Module | None = None) -> TaskModel:
    """`own_encoder` is the encoder of a model around one of the user's own."""
    folder = resolve_folder(folder_or_id)
    config, weights = read_model_folder(folder)
    if config.get("model_type") == CUSTOM_TYPE:
        return _load_custom(config, weights, folder, own_encoder)
    if own_encoder is not None:
        raise InputError(f"{folder} has an encoder of its own; leave encoder out")
    kind = find_described_kind(config, folder)
    task = kind.from_description(config)
    if is_foreign(config):
        their_encoder, task_head = build_foreign(kind, task.num_outputs, config, weights, folder)
        return TaskModel(their_encoder, task_head, task).eval()
    encoder = build_encoder(config, folder, weights)
    model = TaskModel(encoder, kind.build_head(encoder, task.num_outputs, config), task)
    _fill(model, weights, folder)
    return model.eval()


def _load_custom(config: Mapping[str, Any], weights: State, folder: Path, encoder: nn.Module | None) -> TaskModel:
    if encoder is None:
        raise InputError(
            f"{folder} is a model around a {config.get('encoder_class')}; build that encoder and pass it as"
            " from_pretrained(folder, encoder=...)"
        )
    kind = find_described_kind(config, folder)
    task = kind.from_description(config)
    own_head = load_nlp_head(read_own_settings(config, NLP_HEAD_PART), find_hidden_size(encoder))
    model = TaskModel(encoder, own_head, task)
    _fill(model, weights, folder)
    return model.eval()


def load_pretrained(folder: Path) -> tuple[TunedEncoder, dict[str, Any], State]:
    """An encoder to be fine-tuned, with the config.json and all weights it came with."""
    config, weights = read_model_folder(folder)
    if is_foreign(config):
        return load_foreign_encoder(config, weights, folder), config, weights
    encoder = build_encoder(config, folder, weights)
    encoder.load_state_dict(encoder.family.from_theirs(weights, encoder.state_dict()))
    return encoder, config, weights


def build_new(
    kind: TaskKind, task: Task, encoder: TunedEncoder, config: Mapping[str, Any], weights: State, folder: Path
) -> tuple[TunedEncoder, TaskHead]:
    """A copy of the encoder and a new head for it, which keeps what pre-training left of one.

    `config` is the config.json that encoder and weights came with and what the task says of its labels.
    """
    if isinstance(encoder, TransformersEncoder):
        own = {name: tensor.clone() for name, tensor in weights.items()}  # transformers takes tensors as they are
        return build_foreign(kind, task.num_outputs, config, own, folder, is_new=True)
    encoder = copy.deepcopy(encoder)
    task_head = kind.build_head(encoder, task.num_outputs, config)
    adopt_dense(task_head, encoder, weights)
    return encoder, task_head


def adopt_dense(task_head: TaskHead, encoder: PackedEncoder, weights: Mapping[str, Tensor]) -> bool:
    """Take what pre-training left of the head, and say whether there was any.

    That is BERT's pooler, or the transform of ModernBERT's predictions. Labels differ from task to task, so the last
    layer stays new.
    """
    family = encoder.family
    given = family.normalise(weights)
    if task_head.output is None:
        return False
    state, last = task_head.state_dict(), {id(param) for param in task_head.output.parameters()}
    inner = {name for name, param in task_head.named_parameters() if id(param) not in last}
    names = {
        ours: family.normalise_name(theirs) for ours, theirs in name_head_weights(task_head).items() if ours in inner
    }
    if not all(theirs in given and given[theirs].shape == state[ours].shape for ours, theirs in names.items()):
        return False
    task_head.load_state_dict({**state, **{ours: given[theirs] for ours, theirs in names.items()}})
    return True


def _fill(model: TaskModel, weights: State, folder: Path) -> None:
    if isinstance(model.encoder, TransformersEncoder):
        fill_foreign(model.encoder, model.task_head, weights, folder)
        return
    if not isinstance(model.encoder, PackedEncoder):
        for part, module in (("encoder.", model.encoder), ("task_head.", model.task_head)):
            own = {name.removeprefix(part): one for name, one in weights.items() if name.startswith(part)}
            load_into(module, own, folder / WEIGHTS_FILE)
        return
    family = model.encoder.family
    given = family.normalise(weights)
    load_into(model.encoder, family.from_theirs(weights, model.encoder.state_dict()), folder / WEIGHTS_FILE)
    names = {ours: family.normalise_name(theirs) for ours, theirs in name_head_weights(model.task_head).items()}
    head_state = {ours: given[theirs] for ours, theirs in names.items() if theirs in given}
    load_into(model.task_head, head_state, folder / WEIGHTS_FILE)
