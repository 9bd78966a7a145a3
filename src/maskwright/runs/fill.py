"""`maskwright.fill` and `maskwright.generate`: a masked place filled, a text continued.

They import their modules when they run, so that mistakes in arguments are reported at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from maskwright.errors import InputError
from maskwright.suggestions import checks_arguments

if TYPE_CHECKING:
    from maskwright.inference.fill_mask import Candidate
    from maskwright.inference.precision import Compile
    from maskwright.objectives.masked_lm import MaskedLanguageModel
    from maskwright.runs.given import GivenModel


@checks_arguments
def fill(
    model: GivenModel,
    text: str,
    top_k: int = 5,
    *,
    precision: str | None = None,
    compile: Compile | None = None,
    tokenizer: Any = None,
) -> list[list[Candidate]]:
    """The `top_k` most probable tokens for each masked place of a text, with probabilities."""
    from maskwright.inference.answers import Answers
    from maskwright.inference.fill_mask import fill_mask
    from maskwright.inference.precision import prepare_model

    opened, tokenizer = _open_language_model(model, tokenizer)
    prepared = prepare_model(opened, precision, is_given=not isinstance(model, str | Path), compile=compile)
    return Answers(fill_mask(prepared, tokenizer, text, top_k), [text])


@checks_arguments
def generate(
    model: GivenModel,
    tokenizer: Any = None,
    text: str | None = None,
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
    """A text and its continuation: `generate("runs/mine", "Once")`, or a model with its tokenizer.

    A causal model writes up to `max_new_tokens` (30), from left to right. Any other writes exactly as many, or fills
    the gaps of the text: [MASK] is one token, [MASK:5] five, [MASK:2-6] as many as fit best. It does so in `steps` (one
    for each token) by the `strategy` "confidence" (the default), "random" or "blockwise" (blocks of `block_size`, 8).
    Temperature 0 takes the most probable token each time; otherwise tokens are drawn, from the `top_k` best and those
    that sum up to `top_p`, if set.
    """
    if text is None and isinstance(model, str | Path) and isinstance(tokenizer, str):
        tokenizer, text = None, tokenizer
    if text is None:
        raise InputError("there is no text to continue; give it as text=, '' to begin with nothing")
    from maskwright.inference.generate import generate as run

    opened = _open_language_model(model, tokenizer)
    sampling: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    return run(*opened, text, max_new_tokens, steps=steps, strategy=strategy, block_size=block_size, **sampling)


def _open_language_model(model: GivenModel, tokenizer: Any) -> tuple[MaskedLanguageModel, Any]:
    from maskwright.inference.loading import load_language_model
    from maskwright.runs.model import load_model

    if isinstance(model, str | Path) and tokenizer is None:
        return load_model(str(model))
    return load_language_model(model, tokenizer)
