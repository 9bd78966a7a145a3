"""`maskwright adapt`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from maskwright.terminal import echo


def adapt(
    model: Annotated[str, typer.Argument(help="The encoder to adapt: a model folder, a run or a hub id.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILES...] [KEY=VALUE ...]", help="More files for --text, and settings of the run."),
    ] = None,
    text: Annotated[list[str] | None, typer.Option(help="Text of the domain; may be given several times.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; unset: runs/MODEL-adapted.")] = None,
    general: Annotated[
        list[str] | None,
        typer.Option(help="General text to measure forgetting on; unset: Python's own documentation."),
    ] = None,
    max_forgetting: Annotated[
        float, typer.Option(help="Stop if the loss on general text rises by more than this many nats.")
    ] = 0.1,
    new_tokens: Annotated[
        int, typer.Option(min=0, help="Add up to this many words of the domain to the vocabulary.")
    ] = 0,
    head_steps: Annotated[
        int, typer.Option(min=1, help="If the encoder has no prediction head: steps to train one.")
    ] = 300,
    purpose: Annotated[
        Literal["retrieval"] | None, typer.Option("--for", help="Learn to find these texts, from pairs made of them.")
    ] = None,
    pairs: Annotated[
        str | None, typer.Option(help="--for retrieval: crops, titles, twins, or several: crops,titles; unset: all.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="--for retrieval: times each text is cut anew; unset: 1.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="--for retrieval: pairs of a step, told from each other; unset: 64.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run of this name.")] = False,
    push_to_hub: Annotated[
        str | None, typer.Option(metavar="REPO", help="Push the model to the Hugging Face hub, as USER/NAME.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="With --push-to-hub: make a private repository.")] = False,
) -> None:
    """Adapt a published encoder to your text and export the result.

    The defaults are conservative: 10% of the tokens masked, little dropout, a low learning rate, two epochs. The loss
    on held-out text of the domain and on general text is measured before and after. If the model forgets too much, the
    run stops and restores the last weights below the limit. The same command on an unfinished run resumes it.

    Examples:

        maskwright adapt bert-base-uncased --text notes.txt --out runs/clinical

        maskwright adapt runs/mine --text 'contracts/*.jsonl' --general wiki.txt training.max_seconds=600

        maskwright adapt runs/clinical --for retrieval --text notes.txt --out runs/finder
    """
    from maskwright.runs.commands import adapt as run
    from maskwright.runs.hub import PushError
    from maskwright.runs.pretrain import FinishedRun
    from maskwright.sections.data import BUILTIN_CORPUS

    words, problem = words or [], None
    try:
        adapted = run(
            model,
            [*(text or []), *(word for word in words if "=" not in word)],
            out=out,
            general=general or BUILTIN_CORPUS,
            max_forgetting=max_forgetting,
            new_tokens=new_tokens,
            head_steps=head_steps,
            purpose=purpose,
            pairs=pairs,
            epochs=epochs,
            batch_size=batch_size,
            overwrite=overwrite,
            push_to_hub=push_to_hub,
            private=private,
            settings=[word for word in words if "=" in word],
        )
    except PushError as error:
        adapted, problem = error.result, error
    if purpose is None:
        _print_figures(adapted.run.figures)
    else:
        _print_scores(adapted.run.figures)
    echo(f"\n{adapted.run.folder.path}  the run; report.html has its curves")
    if adapted.exported is not None:
        readers = "transformers and others, with a card" if purpose is None else "sentence-transformers and others"
        echo(f"{adapted.exported}  the model for {readers}")
    if isinstance(adapted.run, FinishedRun):
        echo("\n  ".join(["Try next:", *adapted.run.next_commands]))
    if problem is not None:
        raise problem


def _print_figures(figures: dict[str, Any]) -> None:
    echo(f"\n{'held-out text':>14}  {'before':>8}  {'after':>8}   loss in nats, accuracy")
    for label, prefix in (("domain", ""), ("general", "general_")):
        losses = figures[f"{prefix}loss_before"], figures.get(f"{prefix}mlm_loss", figures[f"{prefix}loss"])
        shares = figures[f"{prefix}accuracy_before"], figures[f"{prefix}accuracy"]
        echo(f"{label:>14}  {losses[0]:8.4f}  {losses[1]:8.4f}   {shares[0]:.1%} -> {shares[1]:.1%}")
    echo(f"{'forgetting':>14}  {figures['forgetting']:+8.4f}, at most {figures['max_forgetting']:g}")
    if "stopped_for_forgetting_at" in figures:
        echo(
            f"{'':>14}  stopped at step {figures['stopped_for_forgetting_at']:,} with the last weights below the limit"
        )


def _print_scores(figures: dict[str, Any]) -> None:
    echo(f"\n{'held-out pairs':>14}  {'before':>8}  {'after':>8}")
    for name in ("loss", "accuracy", "mrr@10"):
        echo(f"{name:>14}  {figures[f'{name}_before']:8.4f}  {figures[name]:8.4f}")
