"""`maskwright generate`"""

from __future__ import annotations

from typing import Annotated

import typer

from maskwright.terminal import echo


def generate(
    model: Annotated[str, typer.Argument(help="A run, a checkpoint or a model folder trained with training.mode=clm.")],
    text: Annotated[str, typer.Argument(help="The text to continue.")],
    max_new_tokens: Annotated[int, typer.Option(help="The most tokens to add.")] = 30,
    temperature: Annotated[float, typer.Option(help="0 takes the most probable token, 1 draws by probability.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Draw from this many best tokens only.")] = None,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
) -> None:
    """Continue a text with a causal model: a look at what it has learnt, not a product.

    Example:

        maskwright generate runs/mine "The for statement is" --temperature 0.8 --top-k 20
    """
    from maskwright.runs.commands import generate as run

    echo(run(model, None, text, max_new_tokens, temperature=temperature, top_k=top_k, seed=seed))
