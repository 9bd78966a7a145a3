"""Continue a text with a causal model: a look at what it has learnt, no more. V vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskwright.batch import from_padded
from maskwright.errors import InputError
from maskwright.models.any_encoder import encode, find_max_length
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import as_tokenizer
from maskwright.training.compute.device import evaluation_mode


@torch.no_grad()
def generate(
    model: MaskedLanguageModel,
    tokenizer: Any,
    text: str,
    max_new_tokens: int = 30,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int = 0,
) -> str:
    """The text and its continuation, up to its end, `max_new_tokens` or the model's length.

    Temperature 0 takes the most probable token each time; otherwise tokens are drawn, from the `top_k` best if set.
    """
    if model.mode == "mlm":
        raise InputError("the model was trained to fill masked tokens, not to continue text; use fill")
    if temperature < 0 or max_new_tokens < 1 or (top_k is not None and top_k < 1):
        raise InputError(
            f"temperature is {temperature}, max_new_tokens {max_new_tokens}, top_k {top_k}; temperature must be at"
            " least 0, the others at least 1"
        )
    tokenizer = as_tokenizer(tokenizer)
    ids = tokenizer.encode(text)[:-1]  # without the token that ends a text
    limit = find_max_length(model.encoder) or len(ids) + max_new_tokens
    if len(ids) >= limit:
        raise InputError(f"the text has {len(ids)} tokens, the model takes {limit}; shorten it")
    generator = torch.Generator().manual_seed(seed)
    with evaluation_mode(model):
        for _ in range(min(max_new_tokens, limit - len(ids))):
            chosen = _choose(_predict_next(model, ids), temperature, top_k, generator)
            if chosen == tokenizer.sep_token_id:
                break
            ids.append(chosen)
    return tokenizer.decode(ids[1:], skip_special_tokens=True)


def _predict_next(model: MaskedLanguageModel, ids: list[int]) -> Tensor:
    """(V,) logits of the token after the last."""
    batch = from_padded(torch.tensor([ids], device=next(model.parameters()).device))
    hidden = encode(model.encoder, batch, torch.ones_like(batch.input_ids, dtype=torch.bool))
    return model.predict(hidden[0, -1]).float().cpu()


def _choose(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    if top_k is not None and top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], float("-inf"))
    return int(torch.multinomial((logits / temperature).softmax(0), 1, generator=generator))
