"""Fit a masked language model to a larger vocabulary, such as that of a tokenizer which gained a mask token."""

from __future__ import annotations

from collections.abc import Sequence

from maskwright.errors import InputError
from maskwright.masking.strategies import build_masker
from maskwright.models.resizing import resize_embedding, resize_output
from maskwright.objectives.masked_lm import MaskedLanguageModel


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
    if new_size > model.vocab_size:
        is_tied = model.is_tied
        table = resize_embedding(model.encoder, new_size, mean_init, noise)
        resize_output(model.mlm_output, new_size, table if is_tied else None, mean_init, noise)
    model.vocab_size = new_size
    model.special_token_ids = tuple(sorted({int(token_id) for token_id in special_ids}))
    model.masker = masker
