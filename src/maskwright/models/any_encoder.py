"""One way to run any encoder on packed rows.

Native encoders read packed rows; a foreign encoder gets a padded view, one document per row, and its hidden states are
written back into the rows. B rows, S row length, D width.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from maskwright.batch import FlatBatch, PackedBatch, flatten_documents, to_padded
from maskwright.errors import InputError
from maskwright.models.documents import supports_flat_rows
from maskwright.models.encoder import EncoderOutput, PackedEncoder


def encode(encoder: nn.Module, batch: PackedBatch, is_causal: Tensor | None = None) -> Tensor:
    """Hidden states (B, S, D) of a packed batch; those of padding tokens are meaningless.

    `is_causal` (B, S) is true for tokens that see only what comes before them; foreign encoders cannot do that.
    """
    if isinstance(encoder, PackedEncoder):
        if isinstance(batch, FlatBatch) and encoder.inference_recorder is not None:
            return encoder.inference_recorder.run(encoder, batch, encoder.half_window, partial(_read_packed, encoder))
        return _read_packed(encoder, batch, is_causal)
    if is_causal is not None:
        raise InputError(
            f"{type(encoder).__name__} always sees both sides of a token, so it cannot learn to continue text; use BERT"
            " or ModernBERT of ours, or train it by masking"
        )
    inputs, index = to_padded(batch)
    padded = call_foreign(encoder, inputs)
    return padded.flatten(0, 1)[index].view(*batch.input_ids.shape, -1)


def _read_packed(encoder: PackedEncoder, batch: PackedBatch, is_causal: Tensor | None = None) -> Tensor:
    output: EncoderOutput = encoder(
        input_ids=batch.input_ids,
        document_ids=batch.bounds if isinstance(batch, FlatBatch) else batch.document_ids,
        positions=batch.positions,
        token_type_ids=batch.token_type_ids,
        is_causal=is_causal,
    )
    return output.last_hidden_state


def encode_documents(encoder: nn.Module, batch: PackedBatch) -> Tensor:
    """As `encode`; on a CPU a native encoder computes neither padding nor the attention between documents."""
    is_flat = isinstance(encoder, PackedEncoder) and not encoder.adds_scores and encoder.layer_compiler is None
    if not is_flat or batch.input_ids.device.type != "cpu" or bool(batch.is_padding.all()):
        return encode(encoder, batch)
    flat, places = flatten_documents(batch)
    hidden = encode(encoder, flat)[0]
    states = hidden.new_zeros(batch.input_ids.numel(), hidden.shape[-1]).index_copy(0, places, hidden)
    return states.view(*batch.input_ids.shape, -1)


def has_flat_rows(encoder: nn.Module) -> bool:
    """Whether an encoder reads flat rows: a native one on a GPU, in 16 bits, with a kernel for its attention."""
    if not isinstance(encoder, PackedEncoder) or encoder.adds_scores:
        return False
    weight = next(encoder.layers.parameters())
    head_size = encoder.hidden_size // encoder.config.num_attention_heads
    return supports_flat_rows(weight.device, weight.dtype, head_size)


def call_foreign(encoder: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """Call an encoder by keywords if it takes them, else with the inputs as one dictionary."""
    if is_keras(encoder):
        return read_hidden_state(_call_keras(encoder, inputs), encoder)
    parameters = inspect.signature(encoder.forward).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if "input_ids" in parameters or takes_any:
        accepted = {name: value for name, value in inputs.items() if takes_any or name in parameters}
        return read_hidden_state(encoder(**accepted), encoder)
    return read_hidden_state(encoder(dict(inputs)), encoder)


def _call_keras(encoder: Any, inputs: Mapping[str, Tensor]) -> Any:
    """Keras' `forward` takes any arguments, so the signature of `call` is used; `training` is given with every call."""
    parameters = inspect.signature(encoder.call).parameters
    if "input_ids" in parameters:
        accepted = {name: value for name, value in inputs.items() if name in parameters}
        return encoder(**accepted, training=encoder.training)
    return encoder(dict(inputs), training=encoder.training)


def read_hidden_state(output: Any, encoder: nn.Module) -> Tensor:
    """Find `last_hidden_state` in what an encoder returned."""
    if isinstance(output, Mapping):
        hidden, found = output.get("last_hidden_state"), f"keys {sorted(output)}"
    else:
        hidden, found = getattr(output, "last_hidden_state", None), f"a {type(output).__name__}"
    if not isinstance(hidden, torch.Tensor):
        raise InputError(
            f"{type(encoder).__name__} returned {found} without 'last_hidden_state'; return a dictionary or an object"
            " that has it, of shape (batch, length, hidden_size)"
        )
    return hidden


def find_hidden_size(encoder: nn.Module) -> int:
    for owner in (encoder, getattr(encoder, "config", None)):
        hidden_size = getattr(owner, "hidden_size", None)
        if isinstance(hidden_size, int):
            return hidden_size
    raise InputError(
        f"{type(encoder).__name__} has no attribute 'hidden_size'; set it to the width of its last_hidden_state"
    )


def name_encoder(encoder: nn.Module) -> str:
    """The name of the encoder's class; for a model of transformers with a head, the class of its encoder."""
    return type(getattr(encoder, "base_model", encoder)).__name__


def has_segments(encoder: nn.Module) -> bool:
    """Whether the encoder takes `token_type_ids` for the two texts of a pair; others may refuse them."""
    num_segments = getattr(getattr(encoder, "config", None), "type_vocab_size", 0)
    return isinstance(num_segments, int) and num_segments > 1


def find_max_length(encoder: nn.Module) -> int | None:
    """The longest input an encoder takes; None if unknown.

    RoBERTa and others in transformers start positions after that of padding, and so use fewer rows than they have.
    """
    if isinstance(encoder, PackedEncoder):
        return encoder.max_length
    encoder = getattr(encoder, "base_model", encoder)  # theirs with a head on it
    limit = getattr(getattr(encoder, "config", None), "max_position_embeddings", None)
    positions = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    padding = getattr(positions, "padding_idx", None)
    if not isinstance(limit, int) or limit < 1:
        return None
    return limit if padding is None else limit - padding - 1


def find_input_embedding(encoder: nn.Module) -> nn.Embedding | None:
    """The embedding table of token ids: from `get_input_embeddings`, else the encoder's largest embedding."""
    get_input_embeddings: Any = getattr(encoder, "get_input_embeddings", None)
    if get_input_embeddings is not None:
        embedding = get_input_embeddings()
        return embedding if isinstance(embedding, nn.Embedding) else None
    embeddings = [module for module in encoder.modules() if isinstance(module, nn.Embedding)]
    return max(embeddings, key=lambda embedding: embedding.num_embeddings, default=None)


def count_tokens(encoder: nn.Module) -> int:
    """The number of tokens in an encoder's embedding table; 0 if unknown."""
    embedding = find_input_embedding(encoder)
    return 0 if embedding is None else embedding.num_embeddings


def recompute_activations(encoder: nn.Module, enabled: bool) -> None:
    """Enable activation checkpointing in an encoder: less memory, more time."""
    if isinstance(encoder, PackedEncoder):
        encoder.recomputes_activations = enabled
    elif enabled:
        enable: Any = getattr(encoder, "gradient_checkpointing_enable", None)
        if not callable(enable):
            raise InputError(
                f"training.activation_checkpointing is on, but {type(encoder).__name__} has no"
                " gradient_checkpointing_enable(); leave it off"
            )
        enable()


def is_keras(encoder: nn.Module) -> bool:
    """Whether a module is a Keras 3 model on the torch backend, whose weights have numbered names."""
    return any(base.__module__.partition(".")[0] == "keras" for base in type(encoder).__mro__)


def check_has_weights(encoder: nn.Module) -> None:
    """Refuse a Keras model that is not built yet, because an optimizer would miss its weights."""
    if is_keras(encoder) and not getattr(encoder, "built", True):
        raise InputError(
            f"{type(encoder).__name__} has no weights yet; call it once on a batch such as"
            " {'input_ids': ids, 'attention_mask': ones} before it is wrapped"
        )


def find_stable_names(encoder: nn.Module) -> dict[str, str]:
    """Stable names of weights for a file: Keras numbers layers per process, so a second `dense` is `dense_1`."""
    state = encoder.state_dict(keep_vars=True)
    if not is_keras(encoder):
        return {name: name for name in state}
    variables: Any = encoder.variables
    numbers = {id(variable.value): number for number, variable in enumerate(variables)}
    return {name: f"variables.{numbers[id(value)]}" if id(value) in numbers else name for name, value in state.items()}
