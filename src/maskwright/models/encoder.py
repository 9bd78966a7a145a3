"""What every native encoder has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from maskwright.batch import check_padded, join_inputs
from maskwright.errors import InputError
from maskwright.models.attention import (
    AttentionMask,
    build_attention_mask,
    build_block_mask,
    limit_to_window,
    supports_blocks,
)
from maskwright.models.compilation import LayerCompiler
from maskwright.models.init import init_weights, zero_residual_outputs
from maskwright.models.layers import ACTIVATIONS
from maskwright.models.output import EncoderOutput
from maskwright.suggestions import suggest

_LARGEST_SIZE = 1 << 24
_MOST_LAYERS = 1024
_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "positions", "document_ids", "is_causal")


class EncoderShape:
    """What the configurations of encoders, frozen dataclasses, have in common: names and types are checked."""

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Only looks at the names; the dataclass sets the fields."""
        known = [field.name for field in fields(cls)]  # type: ignore[arg-type] # every subclass is a dataclass
        for name in settings:
            if name not in known:
                raise InputError(f"{cls.__name__} has no setting '{name}'{suggest(name, known)}")
        return super().__new__(cls)


class PackedEncoder(nn.Module, ABC):
    """An encoder that reads packed rows: token ids (B, S) to hidden states (B, S, D).

    Subclasses name their configuration class and their sizes, and build their parts from `config`.
    """

    config_class: ClassVar[type]
    variants: ClassVar[dict[str, dict[str, Any]]]
    config: Any
    recomputes_activations = False
    """Whether a layer's inner results are computed again in the backward pass instead of being kept."""
    layer_compiler: LayerCompiler | None = None
    """Runs layers compiled in training, where it is set."""

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
        from maskwright.models.pretrained import load_encoder

        encoder = load_encoder(folder_or_id)
        if not isinstance(encoder, cls):
            raise InputError(f"{folder_or_id} holds a {type(encoder).__name__}, not a {cls.__name__}")
        return encoder

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the encoder alone in Hugging Face layout."""
        from maskwright.models.pretrained import save_encoder

        save_encoder(folder, self)

    @property
    def hidden_size(self) -> int:
        return int(self.config.hidden_size)

    @property
    def vocab_size(self) -> int:
        return int(self.config.vocab_size)

    @property
    @abstractmethod
    def embedding_size(self) -> int:
        """The width of the word embeddings, and so of a prediction head that shares their table."""

    @property
    @abstractmethod
    def max_length(self) -> int:
        """Tokens in the longest input."""

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
        """Share of attention weights left out in training."""

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

    @abstractmethod
    def residual_outputs(self) -> list[nn.Linear]:
        """The last product of every residual branch."""

    @abstractmethod
    def embed(self, input_ids: Tensor, positions: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """What the first layer takes, (B, S, D); positions are (S,) or (B, S)."""

    @abstractmethod
    def run_layers(
        self, hidden: Tensor, positions: Tensor, document_ids: Tensor | None, is_causal: Tensor | None = None
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
        document_ids: Tensor | None = None,
        is_causal: Tensor | None = None,
    ) -> EncoderOutput:
        """Padded use gives `attention_mask`; packed use gives `document_ids` and `positions`.

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
        if self.layer_compiler is not None and self.training and torch.is_grad_enabled():
            self.layer_compiler.see(embedded)
        return EncoderOutput(last_hidden_state=self.run_layers(embedded, positions, document_ids, is_causal))

    def _describe_ids(self, input_ids: Tensor, token_type_ids: Tensor | None) -> str:
        """Which id no table has a row for."""
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
        """Keras' name, which says what to call."""
        raise InputError("an encoder is saved by encoder.save_pretrained(folder)")

    def follow(self, progress: float) -> None:
        """Take note of how much of a run is done, where something of the encoder changes with it."""

    def build_mask(
        self,
        hidden: Tensor,
        positions: Tensor,
        document_ids: Tensor | None,
        is_causal: Tensor | None = None,
        half_window: int | None = None,
    ) -> AttentionMask:
        """What tokens may see: their own document, at most `half_window` places away where it is given."""
        head_size = self.hidden_size // self.config.num_attention_heads
        if (
            document_ids is not None
            and hidden.is_cuda  # on CPUs blocks have no backward pass
            and self._find_compiler(hidden) is not None
            and supports_blocks(head_size, self.attention_dropout)
        ):
            return build_block_mask(document_ids, is_causal, half_window)
        mask = build_attention_mask(document_ids, is_causal)
        return mask if half_window is None else limit_to_window(mask, positions, half_window)

    def run_layer(self, layer: nn.Module, hidden: Tensor, *others: Any) -> Tensor:
        compiler = self._find_compiler(hidden)
        run: Any = layer if compiler is None else partial(compiler.run, layer)
        if self.recomputes_activations and torch.is_grad_enabled():
            return checkpoint(run, hidden, *others, use_reentrant=False)
        return run(hidden, *others)

    def _find_compiler(self, hidden: Tensor) -> LayerCompiler | None:
        compiler = self.layer_compiler
        return compiler if compiler is not None and self.training and compiler.accepts(hidden) else None

    def reset_parameters(self) -> None:
        init_weights(self, self.config.initializer_range)
        if self.config.residual_init == "zero":
            zero_residual_outputs(self.residual_outputs())


def _as_computed(embedded: Tensor) -> Tensor:
    """In bf16 where products are: half the memory between layers. fp16 has too small a range for sums over layers."""
    kind = embedded.device.type
    is_bf16 = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16
    return embedded.to(torch.bfloat16) if is_bf16 else embedded


def build_shape(layers: int, width: int, attn_heads: int, intermediate_size: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": attn_heads,
        "intermediate_size": intermediate_size,
    }


def check_shape(config: Any, rates: tuple[str, ...], activation: str) -> None:
    """The checks every encoder's configuration shares; `rates` and `activation` name its fields of those kinds."""
    for field in fields(config):
        _check_type(field.name, getattr(config, field.name), field.default)
    sizes = ("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size", "max_position_embeddings")
    for name, largest in (*((name, _LARGEST_SIZE) for name in sizes), ("num_hidden_layers", _MOST_LAYERS)):
        if not 1 <= getattr(config, name) <= largest:
            raise InputError(f"{name} is {getattr(config, name)}; it must lie between 1 and {largest:,}")
    if not 0 <= config.pad_token_id < config.vocab_size:
        raise InputError(f"pad_token_id is {config.pad_token_id}, outside the vocabulary of {config.vocab_size}")
    if config.hidden_size % config.num_attention_heads:
        raise InputError(
            f"hidden_size {config.hidden_size} is not a multiple of num_attention_heads {config.num_attention_heads}"
        )
    for name in rates:
        if not 0.0 <= getattr(config, name) < 1.0:
            raise InputError(f"{name} is {getattr(config, name)}; it must lie in [0, 1)")
    check_positive(config, ("initializer_range",))
    check_choice(activation, getattr(config, activation), ACTIVATIONS)
    check_choice("residual_init", config.residual_init, ("normal", "zero"))


_TYPES: dict[type, tuple[type, str]] = {
    bool: (bool, "True or False"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "text"),
}


def _check_type(name: str, value: Any, default: Any) -> None:
    """The type of a setting is that of its default."""
    kind, expected = _TYPES.get(type(default), (object, ""))
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{name} is {value!r}; expected {expected}")


def check_config(encoder: PackedEncoder, config: Any) -> None:
    """Refuse what an encoder cannot be built of."""
    if not isinstance(config, EncoderShape):
        name, kind = type(encoder).__name__, encoder.config_class.__name__
        raise InputError(
            f"{name} got a {type(config).__name__}; give a {kind}(...), or build it with {name}.from_variant(...) or"
            f" {name}.from_pretrained(...)"
        )


def check_positive(config: Any, names: tuple[str, ...]) -> None:
    for name in names:
        if not getattr(config, name) > 0:
            raise InputError(f"{name} is {getattr(config, name)}; it must be positive")


def check_choice(name: str, value: str, known: Any) -> None:
    if value not in known:
        raise InputError(f"{name} is '{value}'{suggest(str(value), known)}")
