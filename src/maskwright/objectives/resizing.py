"""Fit a masked language model to a larger vocabulary: a mask token that was missing, or the words of a domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from maskwright.errors import InputError
from maskwright.masking.strategies import build_masker
from maskwright.models.any_encoder import find_input_embedding
from maskwright.models.encoder import PackedEncoder
from maskwright.models.transformers_model import TransformersHead
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.text.tokenizer.words import cut_word

_FRESH_STD = 0.02
_ROW_SIZES = ("embedding_size", "hidden_size", "dim")
"""Names of the embedding's width in configurations: of ALBERT and ELECTRA, of most models, of DistilBERT."""


def resize_embedding(encoder: nn.Module, new_size: int, mean_init: bool = True, noise: float = 0.0) -> Tensor:
    """Give an encoder rows for `new_size` tokens, in place, and return its table (V, D).

    The old rows keep their values; the configuration follows. A table with enough rows stays unchanged.
    """
    embedding = find_input_embedding(encoder)
    if embedding is None:
        raise InputError(f"{type(encoder).__name__} has no embedding table to resize; give it get_input_embeddings()")
    if embedding.num_embeddings < new_size:
        embedding.weight = _replace_parameter(
            embedding.weight, grow_rows(embedding.weight, new_size, mean_init, noise, embedding.padding_idx)
        )
        embedding.num_embeddings = new_size
        _update_config(encoder, new_size)
    return embedding.weight


def resize_output(output: nn.Linear, new_size: int, weight: Tensor | None, mean_init: bool, noise: float) -> None:
    """Resize an output projection to `new_size` tokens; `weight` is the table it is tied to, if any."""
    if weight is None:
        weight = _replace_parameter(output.weight, grow_rows(output.weight, new_size, mean_init, noise))
    output.weight = weight
    if output.bias is not None:  # the mean, since a zero would stand out among biases that have learnt to be negative
        output.bias = _replace_parameter(output.bias, grow_rows(output.bias, new_size))
    output.out_features = new_size


def resize_transformers_model(
    encoder: nn.Module, mlm_head: TransformersHead, new_size: int, mean_init: bool = True, noise: float = 0.0
) -> None:
    """Give the embedding and every table of the head `new_size` rows, in place; tied tables stay tied."""
    config = mlm_head.rest.config
    embedding = find_input_embedding(encoder)
    old_tables: list[Tensor] = [] if embedding is None else [embedding.weight]
    outputs = mlm_head.output_tables(config.vocab_size)
    grown = dict.fromkeys(old_tables, resize_embedding(encoder, new_size, mean_init, noise))
    for table in outputs:
        if table not in grown:  # biases start as the mean, as those of our own heads do
            rows = grow_rows(table, new_size, mean_init, noise) if table.ndim > 1 else grow_rows(table, new_size)
            grown[table] = nn.Parameter(rows, requires_grad=table.requires_grad)
    for module in mlm_head.rest.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if parameter in grown:
                setattr(module, name, grown[parameter])
        if isinstance(module, nn.Linear):
            module.out_features = len(module.weight)
    config.vocab_size = new_size
    encoder.config = config  # one object, since all parts of the model hold it


@torch.no_grad()
def grow_rows(
    table: Tensor, new_size: int, mean_init: bool = True, noise: float = 0.0, skipped_row: int | None = None
) -> Tensor:
    """A table (V, ...) with rows added up to `new_size`: the mean of the old rows, or initialised anew.

    `noise` is added as a share of the old rows' standard deviation; `skipped_row`, the untrained padding, is left out.
    """
    num_new = new_size - len(table)
    is_counted = torch.ones(len(table), dtype=torch.bool, device=table.device)
    if skipped_row is not None:
        is_counted[skipped_row] = False
    counted = table[is_counted].float()
    shape = (num_new, *table.shape[1:])
    rows = counted.mean(dim=0).expand(shape).clone() if mean_init else counted.new_empty(shape).normal_(std=_FRESH_STD)
    if noise:
        rows += noise * counted.std(dim=0) * torch.randn_like(rows)
    return torch.cat([table, rows.to(table.dtype)])


@torch.no_grad()
def set_rows_to_means(table: Tensor, sources: Mapping[int, Sequence[int]]) -> None:
    """Set rows of a table (V, ...) to the mean of other rows, in place: {row: the rows it is the mean of}."""
    for row, others in sources.items():
        table[row] = table[list(others)].float().mean(dim=0)


def count_added_parameters(config: Mapping[str, Any], num_used: int, num_new: int) -> int | None:
    """The parameters that new tokens add to the model a config.json describes, beside `num_used` tokens of it.

    A row of the embedding, one of an output that is not tied to it, and a bias for each token; spare rows cost nothing.
    None if the configuration does not give the width of a row.
    """
    num_rows = config.get("vocab_size")
    row_size = next((config[name] for name in _ROW_SIZES if name in config), None)
    if not isinstance(num_rows, int) or not isinstance(row_size, int):
        return None
    output_size = 0 if config.get("tie_word_embeddings", True) else row_size
    return max(0, num_used + num_new - num_rows) * (row_size + output_size + 1)


def _replace_parameter(old: Tensor, values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=old.requires_grad)


def _update_config(encoder: nn.Module, new_size: int) -> None:
    config: Any = getattr(encoder, "config", None)
    if isinstance(encoder, PackedEncoder):
        encoder.config = replace(config, vocab_size=new_size)
    elif hasattr(config, "vocab_size"):
        config.vocab_size = new_size


def resize_vocabulary(
    model: MaskedLanguageModel,
    new_size: int,
    mean_init: bool = True,
    *,
    noise: float = 0.0,
    mask_token_id: int | None = None,
    special_token_ids: Sequence[int] | None = None,
) -> None:
    """Give a model `new_size` tokens, in place; logits of the old tokens stay as they were.

    New tokens start as the mean of the old, in the embedding, the output and its bias (`noise`: as a share of their
    spread; without `mean_init`: initialised anew). The output stays tied if it was. Resize before an optimizer is
    built, since the tables are new parameters.
    """
    if new_size < model.vocab_size:
        raise InputError(
            f"the model has {model.vocab_size} tokens, {new_size} are fewer; a vocabulary is never cut, as its tokens'"
            " ids would change"
        )
    mask_token_id = model.mask_token_id if mask_token_id is None else mask_token_id
    special_ids = model.special_token_ids if special_token_ids is None else special_token_ids
    for token_id in (mask_token_id, *special_ids):
        if not 0 <= token_id < new_size:
            raise InputError(f"token id {token_id} is outside the vocabulary of {new_size}")
    old = model.masker
    masker = build_masker(new_size, mask_token_id, special_ids, **old.settings())
    if new_size > model.vocab_size and model.mlm_head is not None:
        resize_transformers_model(model.encoder, model.mlm_head, new_size, mean_init, noise)
    elif new_size > model.vocab_size:
        is_tied = model.is_tied
        table = resize_embedding(model.encoder, new_size, mean_init, noise)
        resize_output(model.mlm_output, new_size, table if is_tied else None, mean_init, noise)
    model.vocab_size = new_size
    model.special_token_ids = tuple(sorted({int(token_id) for token_id in special_ids}))
    model.masker = masker


def extend_vocabulary(model: MaskedLanguageModel, old: Tokenizer, new: Tokenizer) -> None:
    """Fit a model of the tokenizer `old` to `new`, which has the same tokens and more, in place.

    A new token starts as the mean of its pieces in `old`, in the embedding, an untied output and the output's bias.
    Spare rows of the model are used first; logits of the old tokens stay as they were.
    """
    _check_extends(model, old, new)
    words = {token: token_id for token, token_id in new.backend.get_vocab().items() if token_id >= old.vocab_size}
    specials = set(new.all_special_ids)
    sources = {token_id: cut_word(old, token) for token, token_id in words.items() if token_id not in specials}
    size = max(model.vocab_size, new.vocab_size)
    resize_vocabulary(model, size, mask_token_id=new.mask_token_id, special_token_ids=new.all_special_ids)
    embedding = resize_embedding(model.encoder, size)
    set_rows_to_means(embedding, sources)
    for table in model.output_tables:
        if table is not embedding:
            set_rows_to_means(table, sources)


def _check_extends(model: MaskedLanguageModel, old: Tokenizer, new: Tokenizer) -> None:
    if model.vocab_size < old.vocab_size:
        raise InputError(
            f"the tokenizer has {old.vocab_size} tokens, the model {model.vocab_size}; give the model's own tokenizer"
        )
    found = new.backend.get_vocab()
    moved = next((token for token, token_id in old.backend.get_vocab().items() if found.get(token) != token_id), None)
    if moved is not None:
        raise InputError(
            f"'{moved}' is token {old.backend.token_to_id(moved)} of the old tokenizer and {found.get(moved)} of the"
            " new one; extend the old one with add_domain_tokens"
        )
