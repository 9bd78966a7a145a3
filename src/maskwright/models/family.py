"""The description of a model family: the names of its weights, settings and heads in Hugging Face's files.

Each family describes itself in the file of its encoder, and `maskwright.models` lists them all.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maskwright.errors import InputError, InputWarning
from maskwright.models.files.model_folder import CONFIG_FILE

State = dict[str, Tensor]
_LAYER_NAME = re.compile(r"layers\.(\d+)\.(.+)")
_OLD_NORM_NAMES = {"gamma": "weight", "beta": "bias"}
_HARMLESS_SETTINGS = frozenset(
    (
        "_name_or_path",
        "add_pooling_layer",
        "architectures",
        "attn_implementation",
        "bos_token_id",
        "chunk_size_feed_forward",
        "classifier_activation",
        "classifier_dropout",
        "classifier_dropout_prob",
        "classifier_pooling",
        "cls_token_id",
        "decoder_start_token_id",
        "deterministic_flash_attn",
        "directionality",
        "do_sample",
        "dtype",
        "eos_token_id",
        "finetuning_task",
        "gradient_checkpointing",
        "id2label",
        "is_encoder_decoder",
        "label2id",
        "layer_types",
        "mask_token_id",
        "maskwright",
        "model_type",
        "num_labels",
        "output_attentions",
        "output_hidden_states",
        "output_past",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
        "prefix",
        "problem_type",
        "qa_dropout",
        "reference_compile",
        "return_dict",
        "rope_parameters",
        "sentence_transformers",
        "sep_token_id",
        "seq_classif_dropout",
        "sparse_pred_ignore_index",
        "sparse_prediction",
        "summary_activation",
        "summary_last_dropout",
        "summary_type",
        "summary_use_proj",
        "task_specific_params",
        "tie_weights_",
        "tie_word_embeddings",
        "tokenizer_class",
        "torch_dtype",
        "torchscript",
        "transformers_version",
        "unk_token_id",
        "use_bfloat16",
        "use_cache",
    )
)
"""Settings of other heads, of generation and of files, which do not change what the encoder computes."""


@dataclass(frozen=True)
class TaskHeadLayout:
    """How a family builds and names the head for a task: logits, with or without a dense layer before them."""

    architecture: str
    output: str = "classifier"
    """Their name of the layer that gives the logits."""
    dense: str | None = None
    """Their name of a dense layer before it; None: there is none."""
    norm: str | None = None
    """Their name of a norm behind the dense layer's activation; None: there is none."""
    activation: str = "tanh"
    pooling: str = "cls"
    has_dense_bias: bool = True
    drops_input: bool = False
    """Whether dropout comes before the dense layer as well as after it."""
    dropout_setting: str | None = "classifier_dropout"
    """Their name of the head's dropout; None: config.json has no setting for it."""
    default_dropout: float | None = None
    """Where there is no such setting; None: that of the hidden states."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Which of `activation`, `pooling` and `has_dense_bias` config.json decides, with its names for them."""


@dataclass(frozen=True)
class PairHeadLayout:
    """The class of a model that was pre-trained on pairs of sentences as well, and its names for the pair head."""

    architecture: str
    modules: Mapping[str, str]


@dataclass(frozen=True)
class Family:
    """One architecture's layout. Module names map to one name of theirs, or to several that we keep stacked."""

    model_type: str
    architectures: tuple[str, str]
    """Of the encoder alone, and with a masked-language-model head."""
    prefix: str
    """Before the encoder's weights in a model with a head."""
    layer_prefix: str
    """Before a layer's weights, with {} for its number."""
    modules: Mapping[str, str]
    layer_modules: Mapping[str, tuple[str, ...]]
    head_modules: Mapping[str, str]
    """Modules of the prediction head, which may be the output alone; the output's bias is named by `output_bias`."""
    output_bias: str
    sequence_head: TaskHeadLayout
    token_head: TaskHeadLayout
    span_head: TaskHeadLayout
    own_settings: tuple[str, ...]
    """Settings that only Maskwright has, stored under their own key in config.json."""
    fixed_settings: Mapping[str, Any]
    """Their settings for which we support one value only."""
    setting_names: Mapping[str, str] = field(default_factory=dict)
    """Their names for settings of ours, where they differ."""
    unwritten_settings: tuple[str, ...] = ()
    """Our settings that are constant in this family, and so not written."""
    unused_settings: tuple[str, ...] = ()
    """Their settings that have no effect."""
    stated_settings: Mapping[str, Any] = field(default_factory=dict)
    """Their settings that change nothing here, stated because some readers refuse a config.json without them."""
    read_newer: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    """Translates newer names of settings in config.json."""
    ties_output: bool = True
    """Whether the output is tied to the embeddings unless config.json says otherwise; if not, files hold both."""
    is_in_transformers: bool = True
    """Whether transformers has its classes; if not, folders need the code of the published models."""
    head_activation: str | None = None
    """Default activation of the prediction head; None: that of the layers."""
    head_activation_setting: str | None = None
    """Their name of the prediction head's activation; None: it is constant in the family."""
    causal_architecture: str | None = None
    """Their class for a causal language model; None: there is none."""
    pair_head: PairHeadLayout | None = None
    """Their head for sentence pairs in pre-training; None: there is none."""
    embedding_parts: tuple[str, ...] = ()
    """Modules that only `embed` uses, so that layers can run on another encoder's embeddings; empty: unsupported."""
    run_settings: Mapping[str, tuple[str, ...]] | None = None
    """Settings of a run's `model` section with other names in this family; None: runs cannot build this family."""

    def derive(self, **changes: Any) -> Family:
        """A family described by its differences from this one; fields that hold for this one only are reset."""
        alone = {"causal_architecture": None, "pair_head": None, "embedding_parts": (), "run_settings": None}
        return replace(self, **{**alone, **changes})

    def their_names(self, name: str) -> list[str]:
        """Their names for one of the encoder's weights; several when ours is theirs stacked."""
        module, kind = name.rsplit(".", 1)
        match = _LAYER_NAME.fullmatch(module)
        if match is None:
            return [f"{self.modules[module]}.{kind}"]
        layer, part = match.groups()
        return [f"{self.layer_prefix.format(layer)}.{theirs}.{kind}" for theirs in self.layer_modules[part]]

    def to_theirs(self, state: Mapping[str, Tensor]) -> State:
        renamed: State = {}
        for name, tensor in state.items():
            names = self.their_names(name)
            renamed |= dict(zip(names, tensor.chunk(len(names)), strict=True))
        return renamed

    def from_theirs(self, weights: Mapping[str, Tensor], names: Iterable[str]) -> State:
        """The weights under our names; missing ones are left out."""
        weights = self.normalise(weights)
        found: State = {}
        for name in names:
            theirs = self.their_names(name)
            if all(their_name in weights for their_name in theirs):
                found[name] = torch.cat([weights[their_name] for their_name in theirs])
        return found

    def read_config(self, config_class: type, config: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
        """The encoder's configuration; unknown settings are ignored with a warning, wrong types are refused."""
        for name, value in self.fixed_settings.items():
            if config.get(name, value) != value:
                raise InputError(f"'{name}' is {config[name]!r}; only {value!r} is supported")
        known = {one.name: one.default for one in fields(config_class)}
        flat = self.read_newer(config)
        given = {name: flat.get(self.setting_names.get(name, name)) for name in known}
        for name in (*self.unwritten_settings, *self.own_settings):
            given[name] = own.get(name)
        chosen = {name: value for name, value in given.items() if value is not None}
        for name, value in chosen.items():
            _check_type(name, value, known[name])
        self._warn_of_strangers(config, known)
        return config_class(**chosen)

    def split_config(self, config: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Settings under their names, and the settings that only Maskwright has."""
        values = asdict(config)
        own = {name: values.pop(name) for name in self.own_settings}
        own |= self.find_unusual(config)
        for name in self.unwritten_settings:
            del values[name]
        return {self.setting_names.get(name, name): value for name, value in values.items()}, own

    def find_unusual(self, config: Any) -> dict[str, Any]:
        """Settings that are the same in all models of the family, but not in this one."""
        usual = {one.name: one.default for one in fields(config)}
        named = {name: getattr(config, name) for name in self.unwritten_settings}
        return {name: value for name, value in named.items() if value != usual[name]}

    def normalise(self, weights: Mapping[str, Tensor]) -> State:
        """Undo what differs between checkpoints: the encoder's prefix and the first release's names in norms."""
        return {self.normalise_name(name): tensor for name, tensor in weights.items()}

    def normalise_name(self, name: str) -> str:
        stem, _, kind = name.removeprefix(f"{self.prefix}.").rpartition(".")
        return f"{stem}.{_OLD_NORM_NAMES.get(kind, kind)}" if stem else kind

    def check_shapes(self, weights: Mapping[str, Tensor], state: Mapping[str, Tensor], folder: Path) -> None:
        """Compare a folder's weights with an encoder's without copying: stacked weights are compared block by block."""
        given = self.normalise(weights)
        expected = {
            theirs: (block.shape[0] // len(names), *block.shape[1:])
            for name, block in state.items()
            for names in [self.their_names(name)]
            for theirs in names
        }
        missing = [name for name in expected if name not in given]
        if missing:
            raise InputError(f"{folder} lacks {len(missing)} weights of the model, first '{missing[0]}'")
        for name, shape in expected.items():
            if tuple(given[name].shape) != shape:
                raise InputError(
                    f"{folder}: '{name}' has shape {tuple(given[name].shape)}, {CONFIG_FILE} says {shape}; the two do"
                    " not belong together"
                )

    def _warn_of_strangers(self, config: Mapping[str, Any], known: Iterable[str]) -> None:
        names = {self.setting_names.get(name, name) for name in known}
        strangers = sorted(set(config) - names - set(self.fixed_settings) - set(self.unused_settings))
        strangers = [name for name in strangers if name not in _HARMLESS_SETTINGS]
        if strangers:
            listed = ", ".join(f"'{name}'" for name in strangers)
            warnings.warn(f"settings unknown to {self.model_type} are ignored: {listed}", InputWarning, stacklevel=3)


def _check_type(name: str, value: Any, default: Any) -> None:
    expected: tuple[type, ...] = (int, float) if isinstance(default, float) else (type(default),)
    if not isinstance(value, expected) or isinstance(value, bool) != isinstance(default, bool):
        raise InputError(f"'{name}' is {value!r}; expected a value such as {default!r}")
