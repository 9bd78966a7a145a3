"""The base class of native encoders, which also reads and writes model folders.

A model that Hugging Face's architecture can express is saved under its `model_type`, so that other tools can load it.
Any other is saved under our own type, so that other tools refuse it instead of computing something different.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from maskwright.batch import DocumentBounds, Documents, SortedBounds, check_padded, join_inputs
from maskwright.errors import InputError
from maskwright.models.attention import (
    AttentionMask,
    build_attention_mask,
    build_block_mask,
    limit_to_window,
    supports_blocks,
)
from maskwright.models.compilation import InferenceCompiler, LayerCompiler, run_cast
from maskwright.models.description import build_model_html
from maskwright.models.documents import DocumentGroups, FlatAttention, build_groups, group_documents, limit_groups
from maskwright.models.family import Family
from maskwright.models.files.model_folder import (
    CONFIG_FILE,
    FORMAT_KEY,
    FORMAT_VERSION,
    OWN_KEY,
    OWN_TYPE_PREFIX,
    copy_to_cpu,
    read_model_folder,
    read_own_settings,
    resolve_folder,
    write_model_folder,
)
from maskwright.models.layers import give_memory, init_weights, outlining, zero_residual_outputs
from maskwright.models.recording import InferenceRecorder
from maskwright.models.shape import EncoderShape
from maskwright.storage import refuse_unknown_fields
from maskwright.suggestions import suggest


class EncoderOutput(dict[str, Tensor]):
    @property
    def last_hidden_state(self) -> Tensor:
        """(B, S, D)"""
        return self["last_hidden_state"]


class MaskedLMOutput(dict[str, Tensor]):
    @property
    def loss(self) -> Tensor | None:
        """Mean cross-entropy over the labelled tokens; None without labels."""
        return self.get("loss")

    @property
    def logits(self) -> Tensor | None:
        """(B, S, V); None in training with labels, where only labelled tokens are projected."""
        return self.get("logits")


_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "positions", "document_ids", "is_causal")


class PackedEncoder(nn.Module, ABC):
    """An encoder that reads packed rows: token ids (B, S) to hidden states (B, S, D).

    Subclasses name their family, their configuration class and their sizes, and build their parts from `config`.
    """

    family: ClassVar[Family]
    config_class: ClassVar[type]
    variants: ClassVar[dict[str, dict[str, Any]]]
    config: Any
    layers: nn.ModuleList
    has_mlm_transform: ClassVar[bool] = True
    """Whether this family's prediction head has a dense layer and a norm before the output."""
    stretching_settings: ClassVar[tuple[str, ...]] = ()
    """Settings of rotary positions, which no weight depends on, so a trained model can change them."""
    recomputes_activations = False
    """Whether activation checkpointing is on."""
    adds_scores: ClassVar[bool] = False
    """Whether attention adds scores that depend on positions, which flat rows have no kernel for."""
    layer_compiler: LayerCompiler | None = None
    """Compiles layers in training; None: no compilation."""
    casts_together = False
    """Whether uncompiled layers have their weights cast by one kernel in training."""
    inference_compiler: InferenceCompiler | None = None
    """Compiles layers over flat rows."""
    inference_recorder: InferenceRecorder | None = None
    """Records passes over flat rows of short texts."""
    keeps_last_call = False
    """Whether the last layer's inputs are kept, for its queries, keys and values."""
    last_call: tuple[nn.Module, Tensor, tuple[Any, ...]] | None = None

    @classmethod
    def from_variant(cls, variant: str, **overrides: Any) -> Self:
        """A named size, with any field of the configuration overridden."""
        return cls(cls.build_config(variant, **overrides))

    @classmethod
    def build_config(cls, variant: str, **overrides: Any) -> Any:
        if variant not in cls.variants:
            raise InputError(f"no {cls.__name__} variant '{variant}'{suggest(variant, cls.variants)}")
        known = [field.name for field in fields(cls.config_class)]
        for name in overrides:
            if name not in known:
                raise InputError(f"{cls.__name__} has no option '{name}'{suggest(name, known)}")
        shape = cls.variants[variant]
        if isinstance(overrides.get("hidden_size"), int) and "intermediate_size" not in overrides:
            per_width = shape["intermediate_size"] / shape["hidden_size"]
            overrides["intermediate_size"] = round(overrides["hidden_size"] * per_width)
        return replace(cls.config_class(**shape), **overrides)

    @classmethod
    def from_pretrained(cls, folder_or_id: str | Path) -> Self:
        """The encoder of a saved model, from a folder or a hub id."""
        folder = resolve_folder(folder_or_id)
        config, weights = read_model_folder(folder)
        encoder = build_encoder(config, folder, weights)
        if not isinstance(encoder, cls):
            raise InputError(f"{folder_or_id} holds a {type(encoder).__name__}, not a {cls.__name__}")
        encoder.load_state_dict(encoder.family.from_theirs(weights, encoder.state_dict()))
        return encoder.eval()

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the encoder alone in Hugging Face layout."""
        weights = self.family.to_theirs(self.state_dict())
        write_model_folder(Path(folder), describe_encoder(self, with_head=False), copy_to_cpu(weights))

    def check_config(self, config: Any) -> None:
        """Refuse a configuration of the wrong type."""
        if not isinstance(config, EncoderShape):
            name, kind = type(self).__name__, self.config_class.__name__
            raise InputError(
                f"{name} got a {type(config).__name__}; give a {kind}(...), or build it with {name}.from_variant(...)"
                f" or {name}.from_pretrained(...)"
            )

    @property
    def hidden_size(self) -> int:
        return int(self.config.hidden_size)

    @property
    def vocab_size(self) -> int:
        return int(self.config.vocab_size)

    @property
    def half_window(self) -> int | None:
        """Tokens see those at most so many places away, in some of the layers; None: all, in every layer."""
        return None

    @property
    def embedding_size(self) -> int:
        """The width of the word embeddings, and so of a prediction head that shares their table."""
        return self.hidden_size

    @property
    def max_length(self) -> int:
        """Tokens in the longest input."""
        return int(self.config.max_position_embeddings)

    @property
    @abstractmethod
    def norm_eps(self) -> float: ...

    @property
    @abstractmethod
    def activation(self) -> str:
        """The name of the feed-forward's activation."""

    @property
    @abstractmethod
    def attention_dropout(self) -> float:
        """Dropout of attention weights."""

    @property
    def head_activation(self) -> str:
        """The name of the activation in this family's prediction head, where config.json names no other."""
        return self.family.head_activation or self.activation

    @property
    def mlm_head_bias(self) -> bool:
        """Whether the first product of this family's prediction head has a bias."""
        return True

    @property
    def mlm_norm_bias(self) -> bool:
        """Whether the norm of this family's prediction head has a bias."""
        return True

    @abstractmethod
    def get_input_embeddings(self) -> nn.Embedding: ...

    def _repr_html_(self) -> str:
        return build_model_html(self, self, {})

    def residual_outputs(self) -> list[nn.Linear]:
        """The last linear layer of every residual branch."""
        outputs = (layer.get_submodule(name) for layer in self.layers for name in ("attention.output", "down"))
        return [output for output in outputs if isinstance(output, nn.Linear)]

    @abstractmethod
    def embed(self, input_ids: Tensor, positions: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """Embeddings (B, S, D), the input of the first layer; positions are (S,) or (B, S)."""

    @abstractmethod
    def run_layers(
        self, hidden: Tensor, positions: Tensor, document_ids: Documents, is_causal: Tensor | None = None
    ) -> Tensor:
        """Hidden states (B, S, D) from embedded tokens; `document_ids` is None when each row is one document.

        `is_causal` (B, S) is true for tokens that see only what comes before them.
        """

    def forward(
        self,
        input_ids: Tensor | Mapping[str, Tensor],
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        positions: Tensor | None = None,
        document_ids: Documents = None,
        is_causal: Tensor | None = None,
    ) -> EncoderOutput:
        """Padded use gives `attention_mask`; packed use gives `document_ids` (of a flat row: bounds) and `positions`.

        The inputs may also come as one dictionary. `is_causal` (B, S) is true for tokens that see only what comes
        before them; unset, all see both sides.
        """
        if isinstance(input_ids, Mapping):
            others = {"attention_mask": attention_mask, "token_type_ids": token_type_ids, "is_causal": is_causal}
            return self.forward(**join_inputs(input_ids, _INPUTS, **others))
        if positions is None:
            check_padded(input_ids, attention_mask, token_type_ids)
            length = input_ids.shape[1]
            if length > self.max_length:
                raise InputError(
                    f"the input has {length} tokens, the model has {self.max_length} positions;"
                    " shorten the input or build the model with a larger max_position_embeddings"
                )
            positions = torch.arange(length, device=input_ids.device)
        if document_ids is None and attention_mask is not None:
            document_ids = attention_mask != 0
        try:
            embedded = _as_computed(self.embed(input_ids, positions, token_type_ids))
        except IndexError as error:
            raise InputError(self._describe_ids(input_ids, token_type_ids)) from error
        if self.inference_compiler is not None and isinstance(document_ids, DocumentBounds):
            self.inference_compiler.see(embedded, document_ids)
        if self.layer_compiler is not None and self.training and torch.is_grad_enabled():
            self.layer_compiler.see(embedded)
        return EncoderOutput(last_hidden_state=self.run_layers(embedded, positions, document_ids, is_causal))

    def _describe_ids(self, input_ids: Tensor, token_type_ids: Tensor | None) -> str:
        """A sentence about the id that is outside of an embedding table."""
        for name, ids, size in (
            ("token ids", input_ids, self.vocab_size),
            ("token_type_ids", token_type_ids, int(getattr(self.config, "type_vocab_size", 0))),
        ):
            if ids is not None and (int(ids.min()) < 0 or int(ids.max()) >= size):
                return (
                    f"the input has {name} from {int(ids.min())} to {int(ids.max())}, the model knows 0 to {size - 1}"
                )
        return f"the input has positions beyond the model's {self.max_length}"

    def save(self, *args: Any, **options: Any) -> NoReturn:
        """Keras' name for saving; the error says what to call."""
        raise InputError("an encoder is saved by encoder.save_pretrained(folder)")

    def stretch(self, settings: Mapping[str, Any], ramp_share: float = 0.0) -> None:
        """Change `stretching_settings`: at once, or gradually over the first `ramp_share` of a run."""
        self.config = replace(self.config, **settings)

    def follow(self, progress: float) -> None:
        """Update what changes with the progress of a run."""

    def build_mask(
        self,
        hidden: Tensor,
        positions: Tensor,
        document_ids: Documents,
        is_causal: Tensor | None = None,
        half_window: int | None = None,
    ) -> AttentionMask:
        """The attention mask: tokens see their own document, at most `half_window` places away if given."""
        if isinstance(document_ids, SortedBounds):
            groups = build_groups(document_ids.starts.diff())
            return groups if half_window is None else limit_groups(groups, half_window)
        if isinstance(document_ids, DocumentBounds):
            return FlatAttention(document_ids, half_window)
        head_size = self.hidden_size // self.config.num_attention_heads
        if (
            document_ids is not None
            and hidden.is_cuda  # on CPUs blocks have no backward pass
            and self._find_compiler(hidden) is not None
            and supports_blocks(hidden, head_size, self.attention_dropout)
        ):
            return build_block_mask(document_ids, is_causal, half_window)
        documents = self.find_groups(hidden, document_ids, is_causal)
        if documents is not None:
            return documents if half_window is None else limit_groups(documents, half_window)
        mask = build_attention_mask(document_ids, is_causal)
        return mask if half_window is None else limit_to_window(mask, positions, half_window)

    def find_groups(
        self, hidden: Tensor, document_ids: Tensor | None, is_causal: Tensor | None
    ) -> DocumentGroups | None:
        return None if self.training else group_documents(hidden, document_ids, is_causal)

    def run_layer(self, layer: nn.Module, hidden: Tensor, *others: Any) -> Tensor:
        if self.keeps_last_call:
            self.last_call = layer, hidden, others
        if self.inference_compiler and any(isinstance(one, FlatAttention) for one in others):
            return self.inference_compiler.run(layer, hidden, *others)
        compiler = self._find_compiler(hidden)
        run: Any = layer if compiler is None else partial(compiler.run, layer)
        if compiler is None and self.casts_together and self.training and torch.is_grad_enabled():
            run = partial(run_cast, layer)
        if self.recomputes_activations and torch.is_grad_enabled():
            return checkpoint(run, hidden, *others, use_reentrant=False)
        return run(hidden, *others)

    def project_last(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value (B, H, S, K) of the last layer in the last forward pass, if it `keeps_last_call`."""
        assert self.last_call is not None, "the last forward pass kept nothing"
        (layer, hidden, others), self.last_call = self.last_call, None
        project: Any = layer.project
        query, key, value = project(hidden, *others)
        return query, key, value

    def _find_compiler(self, hidden: Tensor) -> LayerCompiler | None:
        compiler = self.layer_compiler
        return compiler if compiler is not None and self.training and compiler.accepts(hidden) else None

    def reset_parameters(self) -> None:
        init_weights(self, self.config.initializer_range)
        if self.config.residual_init == "zero":
            zero_residual_outputs(self.residual_outputs())


def _as_computed(embedded: Tensor) -> Tensor:
    """Cast hidden states to bf16 if matrix products are in bf16, which halves memory; fp16's range is too small for
    sums over layers.
    """
    kind = embedded.device.type
    is_bf16 = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16
    return embedded.to(torch.bfloat16) if is_bf16 else embedded


FAMILIES: dict[str, type[PackedEncoder]] = {}
"""The native encoders by their `model_type` in config.json; `maskwright.models` lists them."""


def find_encoder_class(config: Mapping[str, Any], folder: Path) -> type[PackedEncoder]:
    """The encoder class for a config.json."""
    if "model_type" not in config:
        raise InputError(f"{folder / CONFIG_FILE} has no 'model_type'; add the one it is{suggest('', FAMILIES)}")
    model_type = str(config["model_type"]).removeprefix(OWN_TYPE_PREFIX)
    if model_type not in FAMILIES:
        raise InputError(f"{folder / CONFIG_FILE} has model_type '{model_type}'{suggest(model_type, FAMILIES)}")
    return FAMILIES[model_type]


def describe_encoder(encoder: PackedEncoder, with_head: bool, is_expressible: bool = True) -> dict[str, Any]:
    """config.json of a model."""
    family = encoder.family
    values, own = family.split_config(encoder.config)
    is_expressible &= own.get("normalization_type", "layer_norm") == "layer_norm"
    is_expressible &= not family.find_unusual(encoder.config)
    prefix = "" if is_expressible else OWN_TYPE_PREFIX
    return {
        "model_type": f"{prefix}{family.model_type}",
        "architectures": [f"{prefix}{family.architectures[with_head]}"],
        **family.stated_settings,
        **values,
        OWN_KEY: {FORMAT_KEY: FORMAT_VERSION, "encoder": own},
    }


def build_encoder(config: Mapping[str, Any], folder: Path, weights: Mapping[str, Tensor]) -> PackedEncoder:
    """The encoder a config.json describes, to be filled with `weights`; until then its own are arbitrary.

    Their shapes are compared with the configuration before memory is allocated.
    """
    encoder = outline_encoder(config, folder)
    encoder.family.check_shapes(weights, encoder.state_dict(), folder)
    return give_memory(encoder)


def outline_encoder(config: Mapping[str, Any], folder: Path) -> PackedEncoder:
    """The encoder a config.json describes, on the meta device: its shapes and settings, no weights."""
    encoder_class = find_encoder_class(config, folder)
    family = encoder_class.family
    own = read_own_settings(config, "encoder")
    refuse_unknown_fields(own, (*family.own_settings, *family.unwritten_settings), folder / CONFIG_FILE)
    try:
        shape = family.read_config(encoder_class.config_class, config, own)
    except InputError as error:
        raise InputError(f"{folder / CONFIG_FILE}: {error}") from error
    with outlining():
        return encoder_class(shape)
