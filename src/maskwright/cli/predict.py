"""`maskwright predict`, `fill` and `generate`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from maskwright.terminal import echo


def predict(
    context: typer.Context,
    kind: Annotated[
        str,
        typer.Argument(
            help="fill-mask, embed, similarity, classify, ner, qa or zero-shot; or transformers' name for it."
        ),
    ],
    model: Annotated[str, typer.Argument(help="A run, a checkpoint, a model folder or a hub id.")],
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT...|-|SOURCE]", help="Texts; - or nothing: lines of standard input; or a source."),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(help="fill-mask: candidates for each mask; unset: 5. classify, qa: unset: the best alone."),
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="fill-mask: rank this word only; may be given several times.")
    ] = None,
    pooling: Annotated[
        str | None, typer.Option(help="embed, similarity: mean, cls; embed: none. Unset: the model's own, or mean.")
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="embed: vectors of length 1, also where the model does not say so.")
    ] = False,
    aggregation: Annotated[
        str | None,
        typer.Option(
            "--aggregation",
            "--aggregation-strategy",
            help="ner: a word's class is that of its first, average or max piece; simple, none: of pieces.",
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label", "--candidate-label", help="zero-shot: a label to choose from; may be given several times."
        ),
    ] = None,
    hypothesis: Annotated[
        str | None,
        typer.Option(
            "--hypothesis",
            "--hypothesis-template",
            help="zero-shot: a sentence with {} for the label; unset: This example is {}.",
        ),
    ] = None,
    multi_label: Annotated[
        bool, typer.Option("--multi-label", help="zero-shot: judge each label on its own; several may be right.")
    ] = False,
    question: Annotated[str | None, typer.Option(help="qa: the question about each text.")] = None,
    max_answer_length: Annotated[int | None, typer.Option(help="qa: longest answer in tokens; unset: 30.")] = None,
    max_question_length: Annotated[int | None, typer.Option(help="qa: tokens kept of a question; unset: 64.")] = None,
    doc_stride: Annotated[int | None, typer.Option(help="qa: tokens that windows share; unset: 128.")] = None,
    handle_impossible_answer: Annotated[
        bool, typer.Option("--handle-impossible-answer", help="qa: the text may have no answer, which is then empty.")
    ] = False,
    max_length: Annotated[int | None, typer.Option(help="Tokens of a window over longer texts.")] = None,
    column: Annotated[str | None, typer.Option(help="Records: the text's, qa: the question's; unset: guessed.")] = None,
    second_column: Annotated[
        str | None,
        typer.Option(help="similarity: the second text's; unset: sentence2. classify: for pairs. qa: the context's."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A .jsonl, .parquet or (embed) .npz file; unset: print.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is there.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; unset: a GPU if there is one.")] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Tokens read at a time; unset: by the device.")] = None,
) -> None:
    """Answers of a model to texts, one JSON line to a text or as a file.

    Sources are read as in training: .txt (a text per line), .jsonl, .csv, .tsv, .parquet, plain or compressed, folders,
    datasets. They may be larger than the memory. Answers come in the order of the texts.

    Examples:

        maskwright predict fill-mask runs/mine "The for [MASK] is used to iterate." --top-k 3

        maskwright predict embed runs/mine articles.jsonl --column body --out vectors.npz

        maskwright predict similarity runs/mine "the cat sleeps" "a dog sleeps"

        maskwright predict classify runs/sst2 reviews.csv --column review --out labels.jsonl

        maskwright predict ner runs/wnut "Ada Lovelace lived in London."

        maskwright predict qa runs/squad --question "When did it open?" museum.txt

        maskwright predict zero-shot runs/mnli "My phone is broken." --label urgent --label "not urgent"
    """
    from maskwright.inference.outputs import format_json
    from maskwright.runs.predict import STDIN
    from maskwright.runs.predict import predict as run

    words = texts or [STDIN]
    asked = ("kind", "model", "texts")
    named = {name: value for name, value in context.params.items() if name not in asked and value not in (None, [], ())}
    run(
        kind,
        model,
        words[0] if len(words) == 1 else words,
        write=None if out is not None else lambda record: echo(format_json(record)),
        **named,
    )


def fill(
    model: Annotated[str, typer.Argument(help="A run, a checkpoint, a model folder or a hub id.")],
    text: Annotated[str, typer.Argument(help="Text with [MASK] or <mask> where a word is missing.")],
    top_k: Annotated[int, typer.Option(help="Candidates for each masked place.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fill the masked words of a text, with probabilities.

    Example:

        maskwright fill runs/quickstart "The for [MASK] is used to iterate over a sequence."
    """
    from dataclasses import asdict

    from maskwright.runs.commands import fill as run

    answers = run(model, text, top_k)
    if as_json:
        echo(json.dumps([[asdict(candidate) for candidate in candidates] for candidates in answers]))
        return
    for candidates in answers:
        for candidate in candidates:
            echo(f"{candidate.score:7.2%}  {candidate.token_str:<16}  {candidate.sequence}")
        if candidates is not answers[-1]:
            echo()


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
