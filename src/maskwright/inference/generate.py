"""Write text: a causal model continues it token by token, any other fills masks step by step. V vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskwright.batch import from_padded
from maskwright.errors import InputError, check_count
from maskwright.inference.unmask import Sampling, Unmasking, has_gaps, list_fillings, unmask
from maskwright.models.any_encoder import encode, find_max_length
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.suggestions import name_option
from maskwright.text.tokenizer.tokenizer import Tokenizer, as_tokenizer
from maskwright.training.compute.device import evaluation_mode

DEFAULT_NEW_TOKENS = 30


def generate(
    model: MaskedLanguageModel,
    tokenizer: Any,
    text: str,
    max_new_tokens: int | None = None,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    steps: int | None = None,
    strategy: str | None = None,
    block_size: int | None = None,
) -> str:
    """The text and its continuation, or the text with its gaps filled.

    A causal model writes up to the end of a text, `max_new_tokens` (30) or its own length. A model that fills masks
    writes as many tokens as it is asked for: the gaps of the text ([MASK], [MASK:5], [MASK:2-6]), or if it has none
    `max_new_tokens` after it. `steps`, `strategy` and `block_size` are for those. Temperature 0 takes the most probable
    token each time; otherwise tokens are drawn, from the `top_k` best and those that sum up to `top_p`, if set.
    """
    tokenizer, sampling = as_tokenizer(tokenizer), Sampling(temperature, top_k, top_p)
    if max_new_tokens is not None:
        check_count("max_new_tokens", max_new_tokens, 1)
    has_masks = has_gaps(tokenizer, text)
    asks_to_unmask = has_masks or (steps, strategy, block_size) != (None, None, None)
    with evaluation_mode(model):
        if model.mode == "clm" or (model.mode == "hybrid" and not asks_to_unmask):
            if asks_to_unmask:
                raise InputError(
                    "a causal model (training.mode=clm) writes from left to right; give a text without masks, and leave"
                    " out steps, strategy and block_size"
                )
            return _continue(model, tokenizer, text, max_new_tokens or DEFAULT_NEW_TOKENS, sampling, seed)
        unmasking = Unmasking(steps, strategy or "confidence", block_size)
        if has_masks and max_new_tokens is not None:
            raise InputError(f"the gaps of the text say how long they are; leave out {name_option('max_new_tokens')}")
        fillings = list_fillings(tokenizer, text)
        if not has_masks:
            (ids,) = fillings
            num_new = max_new_tokens or DEFAULT_NEW_TOKENS
            fillings = [[*ids[:-1], *[tokenizer.mask_token_id] * num_new, ids[-1]]]
        filled = unmask(model, tokenizer, fillings, unmasking, sampling, seed)
    return tokenizer.decode(filled[1:-1], skip_special_tokens=True)


@torch.no_grad()
def _continue(
    model: MaskedLanguageModel, tokenizer: Tokenizer, text: str, max_new_tokens: int, sampling: Sampling, seed: int
) -> str:
    ids = tokenizer.encode(text)[:-1]  # without the token that ends a text
    limit = find_max_length(model.encoder) or len(ids) + max_new_tokens
    if len(ids) >= limit:
        raise InputError(f"the text has {len(ids)} tokens, the model takes {limit}; shorten it")
    generator = torch.Generator().manual_seed(seed)
    for _ in range(min(max_new_tokens, limit - len(ids))):
        chosen = int(sampling.choose(_predict_next(model, ids)[None], generator))
        if chosen == tokenizer.sep_token_id:
            break
        ids.append(chosen)
    return tokenizer.decode(ids[1:], skip_special_tokens=True)


def _predict_next(model: MaskedLanguageModel, ids: list[int]) -> Tensor:
    """(V,) logits of the token after the last."""
    batch = from_padded(torch.tensor([ids], device=next(model.parameters()).device))
    hidden = encode(model.encoder, batch, torch.ones_like(batch.input_ids, dtype=torch.bool))
    return model.predict(hidden[0, -1]).float().cpu()
