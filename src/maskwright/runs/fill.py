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
    max_new_tokens: int = 30,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int = 0,
) -> str:
    """A text and its continuation by a causal model: `generate("runs/mine", "Once")`, or a model with its tokenizer.

    Temperature 0 takes the most probable token each time; otherwise tokens are drawn, from the `top_k` best if set.
    """
    if text is None and isinstance(model, str | Path) and isinstance(tokenizer, str):
        tokenizer, text = None, tokenizer
    if text is None:
        raise InputError("there is no text to continue; give it as text=")
    from maskwright.inference.generate import generate as run

    opened = _open_language_model(model, tokenizer)
    return run(*opened, text, max_new_tokens, temperature=temperature, top_k=top_k, seed=seed)


def _open_language_model(model: GivenModel, tokenizer: Any) -> tuple[MaskedLanguageModel, Any]:
    from maskwright.inference.loading import load_language_model
    from maskwright.runs.model import load_model

    if isinstance(model, str | Path) and tokenizer is None:
        return load_model(str(model))
    return load_language_model(model, tokenizer)
