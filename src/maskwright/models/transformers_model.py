"""Models of types that only `transformers` knows, built by it out of what our own reader read.

It is given the configuration and the tensors, never the folder: no file of the folder is opened by it, no code that a
configuration names is run. A masked language model comes in two parts, its encoder and its head. For a task a model
comes whole, as the class that transformers has for that task, or as the encoder alone.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from maskwright.errors import InputError
from maskwright.models.any_encoder import call_foreign, find_max_length
from maskwright.models.encoder import FAMILIES
from maskwright.models.files.model_folder import CONFIG_FILE, OWN_KEY, OWN_TYPE_PREFIX, warn_of_unused
from maskwright.models.layers import outlining

_SET_ELSEWHERE = (
    "_attn_implementation",
    "attn_implementation",
    "dtype",
    "experts_implementation",
    "fusion_config",
    "return_dict",
    "torch_dtype",
    "transformers_weights",
    OWN_KEY,
)
"""Settings of loading and running, which are ours to choose; none changes what a model computes."""
_LARGEST_EXCESS = 3
"""An encoder without a head, or with two tables of the vocabulary, stays well below it."""
_FEW_LAYERS = 100
"""Layers that share their weights may be more than these."""
_PROBE_LENGTH = 8
_BLOCK_SPARSE, _FULL = "block_sparse", "original_full"
MASKED_LM = "MODEL_FOR_MASKED_LM_MAPPING"
ENCODER = "MODEL_MAPPING"
"""Names that transformers has for its tables of classes by their configuration."""


class TransformersHead(nn.Module):
    """All of a masked language model but its encoder, as a function from hidden states to logits.

    Their classes have no common name for the prediction head and no common way to call it, so the head is the class's
    own `forward` in which the encoder's answer is given. D width, V vocabulary.
    """

    def __init__(self, model: Any) -> None:
        """`model` is a masked language model of transformers; its modules are shared, not copied."""
        super().__init__()
        encoder = model.base_model
        rest = copy.copy(model)
        rest._modules = {name: module for name, module in model._modules.items() if module is not encoder}
        # Not as a module, so that the encoder's weights stay the encoder's alone.
        rest.__dict__[model.base_model_prefix] = _AnsweredEncoder(encoder)
        self.rest = rest
        self.encoder_name: str = model.base_model_prefix
        """The encoder's name in the whole model, and so in its files."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits (..., V) of hidden states (..., D)."""
        as_one_row = hidden.reshape(1, -1, hidden.shape[-1])  # some heads read rows only
        logits: Tensor = self.rest(inputs_embeds=as_one_row).logits
        return logits.view(*hidden.shape[:-1], -1)

    @property
    def ties(self) -> dict[str, str]:
        """Weights of the whole model that are another's own, by name; files hold the other alone."""
        return dict(self.rest.all_tied_weights_keys)

    def output_tables(self, vocab_size: int) -> list[nn.Parameter]:
        """The head's parameters with a row for each token: its output matrix, tied or not, and biases."""
        return [parameter for parameter in self.rest.parameters() if parameter.shape[:1] == (vocab_size,)]


class _AnsweredEncoder:
    """Stands where the encoder stood: called, it answers with the hidden states it is given."""

    def __init__(self, encoder: nn.Module) -> None:
        self._encoder = encoder

    def __call__(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _Answer:
        return _Answer(inputs_embeds)

    def __getattr__(self, name: str) -> Any:
        """Some heads read the encoder's embedding table."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._encoder, name)


class _Answer:
    """An encoder's output that has the last hidden state and nothing else."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


@dataclass(frozen=True)
class TransformersModel:
    """A masked language model in the two parts that we call one after the other."""

    encoder: nn.Module
    mlm_head: TransformersHead
    vocab_size: int
    has_new_head: bool
    """Whether the files held no prediction head, so that its weights are newly drawn."""


def is_foreign(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is of a type that is neither read natively nor our own."""
    model_type = config.get("model_type")
    return isinstance(model_type, str) and model_type not in FAMILIES and not model_type.startswith(OWN_TYPE_PREFIX)


def load_transformers_model(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], folder: Path
) -> TransformersModel:
    """The model that a config.json describes, filled with `weights`, in fp32."""
    _check_installed(config, folder)
    with quiet_transformers() as transformers:
        settings = _read_settings(transformers, config, weights, folder)
        model_class = _find_class(transformers, settings, MASKED_LM)
        if model_class is None:
            raise InputError(
                f"{folder / CONFIG_FILE} has model_type '{settings.model_type}', for which transformers has no masked"
                " language model; wrap its encoder yourself:"
                " MaskedLanguageModel(AutoModel.from_pretrained(folder), vocab_size)"
            )
        _check_size(_outline(model_class, settings, weights, folder), weights, folder)
        model, missing, unused = _build(model_class, settings, weights, folder)
    warn_of_unused({name.rpartition(".")[0] for name in unused}, folder)
    _choose_attention_by_length(model.base_model)
    head = TransformersHead(model)
    _check_complete(model, missing, folder)
    vocab_size = _check_parts(model.eval(), head, folder)
    has_new_head = any(not name.startswith(f"{head.encoder_name}.") for name in missing)
    return TransformersModel(model.base_model, head, vocab_size, has_new_head)


def load_transformers_class(
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    folder: Path,
    table: str,
    num_outputs: int | None = None,
    has_new_output: bool = False,
) -> Any | None:
    """A whole model of the class that a table of transformers has for a config.json; None if it has none.

    Weights that only a head lacks are newly drawn. With `num_outputs` the last layer has so many, and with
    `has_new_output` it is new in any case.
    """
    _check_installed(config, folder)
    with quiet_transformers() as transformers:
        settings = _read_settings(transformers, config, weights, folder)
        model_class = _find_class(transformers, settings, table)
        if model_class is None:
            return None
        if num_outputs is not None and settings.num_labels != num_outputs:
            settings.num_labels = num_outputs
        outline = _outline(model_class, settings, weights, folder)
        _check_size(outline, weights, folder)
        if num_outputs is not None and has_new_output:
            replaced = f"{find_output_name(outline, num_outputs)}."
            weights = {name: tensor for name, tensor in weights.items() if not name.startswith(replaced)}
        model, missing, _ = _build(model_class, settings, weights, folder)
    _choose_attention_by_length(model.base_model)
    _check_complete(model, missing, folder)
    if not has_new_output and num_outputs is not None:
        absent = [name for name in missing if "pooler" not in name]
        if absent:
            raise InputError(f"{folder} lacks {len(absent)} weights of the model, first '{absent[0]}'")
    return model


def find_output_name(model: Any, num_outputs: int) -> str:
    """The name of the last layer outside the encoder that has so many outputs."""
    encoder = {id(module) for module in model.base_model.modules()}
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and id(module) not in encoder and module.out_features == num_outputs
    ]
    if not names:
        raise InputError(
            f"{type(model).__name__} has no last layer of {num_outputs} outputs, so it cannot be fine-tuned here;"
            " take a model of another family"
        )
    return names[-1]


def describe_config(model: Any) -> dict[str, Any]:
    """Their config.json of a model, with a place for what is ours."""
    config: dict[str, Any] = json.loads(model.config.to_json_string())
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return config | {"architectures": [type(model).__name__], "dtype": dtype, OWN_KEY: {}}


def _check_installed(config: Mapping[str, Any], folder: Path) -> None:
    if find_spec("transformers") is None:
        raise InputError(
            f"{folder / CONFIG_FILE} has model_type '{config['model_type']}', which is read through transformers; run:"
            " pip install 'maskwright[hf]'"
        )


@contextmanager
def quiet_transformers() -> Iterator[Any]:
    """The library without its progress bars and its report on weights."""
    transformers = import_module("transformers")
    logging = transformers.utils.logging
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield transformers
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()


def _read_settings(transformers: Any, config: Mapping[str, Any], names: Iterable[str], folder: Path) -> Any:
    """A config.json as the configuration class of transformers reads it."""
    file, model_type = folder / CONFIG_FILE, config["model_type"]
    if model_type not in transformers.CONFIG_MAPPING:
        raise InputError(
            f"{file} has model_type '{model_type}', which neither Maskwright nor transformers"
            f" {transformers.__version__} knows; correct it, or install the transformers that saved the model"
        )
    config_class = transformers.CONFIG_MAPPING[model_type]
    if config.get("quantization_config"):
        raise InputError(f"{file} is of a quantised model, which cannot be trained; take the one it was made of")
    kept = {name: value for name, value in config.items() if name not in _SET_ELSEWHERE}
    try:
        settings = config_class.from_dict(kept | _find_deberta_head(config, names))
    except Exception as error:  # transformers raises many kinds for a value it does not take
        raise InputError(f"{file}: transformers cannot read it ({first_line(error)})") from error
    if settings.is_encoder_decoder:
        raise InputError(f"{file} has model_type '{model_type}', which writes text; take a model that encodes only")
    return settings


def _find_class(transformers: Any, settings: Any, table: str) -> Any | None:
    classes = getattr(transformers, table)
    found: Any = classes.get(type(settings), None)
    if not isinstance(found, Sequence):
        return found
    named = [one for one in found if one.__name__ in (settings.architectures or ())]  # Funnel has two encoders
    return (named or found)[0]


def _find_deberta_head(config: Mapping[str, Any], names: Iterable[str]) -> dict[str, bool]:
    """DeBERTa's published files hold its own head, which transformers builds only if told not to build BERT's."""
    if config["model_type"] not in ("deberta", "deberta-v2") or "legacy" in config:
        return {}
    return {"legacy": not any(name.startswith("lm_predictions.") for name in names)}


def _outline(model_class: Any, settings: Any, weights: Mapping[str, Tensor], folder: Path) -> Any:
    """The model without memory for its weights."""
    num_layers = getattr(settings, "num_hidden_layers", 0)
    if isinstance(num_layers, int) and num_layers > max(len(weights), _FEW_LAYERS):
        raise InputError(f"{folder / CONFIG_FILE} has {num_layers:,} layers, the files {len(weights):,} weights")
    try:
        with outlining():
            return model_class(settings)
    except Exception as error:  # transformers raises many kinds for settings that do not go together
        raise InputError(f"{folder / CONFIG_FILE}: transformers cannot build it ({first_line(error)})") from error


def _check_size(outline: nn.Module, weights: Mapping[str, Tensor], folder: Path) -> None:
    """Compare the number of weights with what the configuration asks for, before memory is taken for it."""
    asked = sum(parameter.numel() for parameter in outline.parameters())
    stored = sum(tensor.numel() for tensor in weights.values())
    if asked > _LARGEST_EXCESS * stored:
        raise InputError(
            f"{folder / CONFIG_FILE} describes a model of {asked:,} parameters, the weights are {stored:,}; the two do"
            " not belong together"
        )


def _build(
    model_class: Any, settings: Any, weights: Mapping[str, Tensor], folder: Path
) -> tuple[Any, list[str], list[str]]:
    """The filled model, the names of weights that the files have not, and of those that it has no place for."""
    try:
        model, report = model_class.from_pretrained(
            None, config=settings, state_dict=dict(weights), dtype=torch.float32, output_loading_info=True
        )
    except Exception as error:  # transformers raises many kinds for weights of other shapes
        raise InputError(f"{folder}: transformers cannot load it ({first_line(error)})") from error
    missing = sorted(report["missing_keys"])
    _zero_biases(model, missing)
    return model, missing, sorted(report["unexpected_keys"])


@torch.no_grad()
def _zero_biases(model: Any, names: Iterable[str]) -> None:
    """New biases begin at zero. transformers 5 leaves those that are parameters of their own as memory was found."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name in names:
        if name in parameters and name.rpartition(".")[2] == "bias":
            parameters[name].zero_()


def _check_complete(model: Any, missing: Iterable[str], folder: Path) -> None:
    """An encoder must be whole, but for a pooler, which pre-training may have left out."""
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    absent = [name for name in missing if name.startswith(prefix) and "pooler" not in name]
    if absent:
        raise InputError(f"{folder} lacks {len(absent)} weights of the model, first '{absent[0]}'")


@torch.no_grad()
def _check_parts(model: Any, head: TransformersHead, folder: Path) -> int:
    """Make sure that the two parts, one after the other, are the whole; returns the size of the vocabulary."""
    encoder = model.base_model
    length = min(_PROBE_LENGTH, find_max_length(encoder) or _PROBE_LENGTH)
    input_ids = torch.arange(length)[None] % model.config.vocab_size
    inputs = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
    name = type(model).__name__
    try:
        with torch.random.fork_rng(devices=[]):
            whole: Tensor = model(**inputs).logits
            parts = head(call_foreign(encoder, inputs))
    except Exception as error:  # what a class needs beside token ids shows in many ways
        raise InputError(f"{folder}: {name} cannot be run on token ids alone ({first_line(error)})") from error
    if parts.shape != whole.shape or not torch.allclose(parts, whole, rtol=1e-4, atol=1e-5):
        raise InputError(
            f"{folder}: {name} is not an encoder and a head that reads its hidden states, so it cannot be trained here;"
            " wrap its encoder yourself: MaskedLanguageModel(AutoModel.from_pretrained(folder), vocab_size)"
        )
    return whole.shape[-1]


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _choose_attention_by_length(encoder: nn.Module) -> None:
    """Set the attention before every call, where the encoder is a BigBird with sparse attention.

    By itself it changes to full attention at the first batch that is too short for blocks and never changes back, so
    that what it computes would depend on the batches before, and a resumed run would differ from an unbroken one.
    """
    config: Any = encoder.config
    if config.model_type == "big_bird" and config.attention_type == _BLOCK_SPARSE:
        encoder.register_forward_pre_hook(_set_attention, with_kwargs=True)


def _set_attention(encoder: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    input_ids = named["input_ids"] if "input_ids" in named else arguments[0]
    config = encoder.config
    # Two global, three sliding and the random blocks, and as many random ones to spare (Zaheer et al. 2020).
    longest_full = (5 + 2 * config.num_random_blocks) * config.block_size
    attention_type = _FULL if input_ids.shape[1] <= longest_full else _BLOCK_SPARSE
    if attention_type != encoder.attention_type:
        with torch.random.fork_rng(devices=[]):  # it draws weights that it then replaces by the old ones
            encoder.set_attention_type(attention_type)
