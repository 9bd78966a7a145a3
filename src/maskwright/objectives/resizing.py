"""Fit a masked language model to a larger vocabulary: a mask token that was missing, or the words of a domain."""

from __future__ import annotations

from collections.abc import Sequence

from maskwright.errors import InputError
from maskwright.masking.strategies import build_masker
from maskwright.models.resizing import resize_embedding, resize_output, resize_transformers_model, set_rows_to_means
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.spelling import cut_word
from maskwright.text.tokenizer.tokenizer import Tokenizer


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
    spread; `mean_init` off: drawn anew). The output stays tied if it was. Resize before an optimizer is built, since
    the tables are new parameters.
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

    A new token starts as the mean of the pieces that `old` cuts it into, in the embedding, an untied output and the
    output's bias. Rows that the model has to spare are used first; logits of the old tokens stay as they were.
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
