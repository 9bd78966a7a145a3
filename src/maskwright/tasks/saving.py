"""Save and load a fine-tuned model in Hugging Face's layout: its encoder, its head and the names of its labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from maskwright.errors import InputError
from maskwright.models.encoder import PackedEncoder
from maskwright.models.encoding import find_hidden_size
from maskwright.models.families import family_of
from maskwright.models.family import State
from maskwright.models.pretrained import (
    OWN_KEY,
    OWN_TYPE_PREFIX,
    build_encoder,
    copy_to_cpu,
    describe_encoder,
    load_into,
    read_model_folder,
    read_own_settings,
    resolve_folder,
)
from maskwright.models.transformers_loading import is_foreign
from maskwright.models.weights_reading import WEIGHTS_FILE
from maskwright.objectives.saving import CUSTOM_TYPE
from maskwright.objectives.snapshot import ModelSnapshot
from maskwright.tasks.kinds import find_described_kind
from maskwright.tasks.model import TaskModel
from maskwright.tasks.nlp_heads import SETTINGS_PART as NLP_HEAD_PART
from maskwright.tasks.nlp_heads import load_nlp_head
from maskwright.tasks.task_head import TaskHead
from maskwright.text.tokenizer import Tokenizer, as_tokenizer


def snapshot_task(model: TaskModel, tokenizer: Any = None, wait: bool = True) -> ModelSnapshot:
    """Without `wait` copies from a GPU still run on return."""
    tokenizer = None if tokenizer is None else as_tokenizer(tokenizer)
    if not isinstance(model.encoder, PackedEncoder):
        return _snapshot_custom(model, tokenizer, wait)
    family = family_of(model.encoder)
    config = describe_encoder(model.encoder, with_head=True)
    prefix = OWN_TYPE_PREFIX if str(config["model_type"]).startswith(OWN_TYPE_PREFIX) else ""
    config["architectures"] = [f"{prefix}{model.task_head.files.architecture}"]
    described = {**model.task_head.files.settings, **model.task.describe()}
    config |= {**described, OWN_KEY: {**config[OWN_KEY], **described.get(OWN_KEY, {})}}
    if tokenizer is not None:
        config |= {"cls_token_id": tokenizer.cls_token_id, "sep_token_id": tokenizer.sep_token_id}
    weights = {f"{family.prefix}.{name}": one for name, one in family.to_theirs(model.encoder.state_dict()).items()}
    head_state = model.task_head.state_dict()
    weights |= {theirs: head_state[ours] for ours, theirs in _name_weights(model.task_head).items()}
    small_files = model.task_head.files.small_files
    return ModelSnapshot(config, copy_to_cpu(weights, wait), tokenizer, small_files=small_files)


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
    refuse_foreign(config, folder)
    kind = find_described_kind(config, folder)
    task = kind.from_description(config)
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


def load_pretrained(folder: Path) -> tuple[PackedEncoder, dict[str, Any], State]:
    """An encoder to be fine-tuned, with the config.json and all weights it came with."""
    config, weights = read_model_folder(folder)
    refuse_foreign(config, folder)
    encoder = build_encoder(config, folder, weights)
    encoder.load_state_dict(family_of(encoder).from_theirs(weights, encoder.state_dict()))
    return encoder, config, weights


def adopt_dense(task_head: TaskHead, encoder: PackedEncoder, weights: Mapping[str, Tensor]) -> bool:
    """Take what pre-training left of the head, and say whether there was any.

    That is BERT's pooler, or the transform of ModernBERT's predictions. Labels differ from task to task, so the last
    layer stays new.
    """
    family = family_of(encoder)
    given = family.normalise(weights)
    if task_head.output is None:
        return False
    state, last = task_head.state_dict(), {id(param) for param in task_head.output.parameters()}
    inner = {name for name, param in task_head.named_parameters() if id(param) not in last}
    names = {ours: family.normalise_name(theirs) for ours, theirs in _name_weights(task_head).items() if ours in inner}
    if not all(theirs in given and given[theirs].shape == state[ours].shape for ours, theirs in names.items()):
        return False
    task_head.load_state_dict({**state, **{ours: given[theirs] for ours, theirs in names.items()}})
    return True


def refuse_foreign(config: Mapping[str, Any], folder: Path) -> None:
    if is_foreign(config) or "model_type" not in config:
        raise InputError(
            f"{folder} has model_type '{config.get('model_type')}', which is not built natively; fine-tune a BERT,"
            " RoBERTa, XLM-R, DistilBERT, ALBERT, ELECTRA, MPNet or ModernBERT"
        )


def _fill(model: TaskModel, weights: State, folder: Path) -> None:
    if not isinstance(model.encoder, PackedEncoder):
        for part, module in (("encoder.", model.encoder), ("task_head.", model.task_head)):
            own = {name.removeprefix(part): one for name, one in weights.items() if name.startswith(part)}
            load_into(module, own, folder / WEIGHTS_FILE)
        return
    family = family_of(model.encoder)
    given = family.normalise(weights)
    load_into(model.encoder, family.from_theirs(weights, model.encoder.state_dict()), folder / WEIGHTS_FILE)
    names = {ours: family.normalise_name(theirs) for ours, theirs in _name_weights(model.task_head).items()}
    head_state = {ours: given[theirs] for ours, theirs in names.items() if theirs in given}
    load_into(model.task_head, head_state, folder / WEIGHTS_FILE)


def _name_weights(task_head: TaskHead) -> dict[str, str]:
    """Their names of the head's weights."""
    modules = dict(task_head.named_modules())
    return {
        f"{ours}.{name}": f"{theirs}.{name}"
        for ours, theirs in task_head.files.modules.items()
        for name, _ in modules[ours].named_parameters()
    }
