"""`maskwright predict`, `embed`, `fill` and `generate`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from maskwright.terminal import echo

_KEEP_COLUMNS = "--keep-columns"
_ALL_COLUMNS = "*"

Model = Annotated[str, typer.Argument(help="A run, a checkpoint or a model folder, also by URL, or a hub id.")]
Texts = Annotated[
    list[str] | None,
    typer.Argument(metavar="[TEXT...|-|SOURCE]", help="Texts; a file, folder or dataset; - or nothing: stdin."),
]
MaxLength = Annotated[int | None, typer.Option(help="Tokens per window; longer texts are read in several.")]
IdColumn = Annotated[
    str | None, typer.Option(help="Column written with each answer in place of row numbers; unset: id, if any.")
]
KeepColumns = Annotated[
    str | None,
    typer.Option(metavar="[NAMES]", help="Copy these columns (a,b) to the answers; without names: all columns."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file; discard kept answers.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; unset: a GPU if there is one.")]
BatchTokens = Annotated[int | None, typer.Option(help="Tokens per batch; unset: chosen for the device.")]
Precision = Annotated[
    str | None, typer.Option(help="fp32, bf16, fp16 and fp8 (GPUs), int8 (CPUs) or auto; unset: auto.")
]
Compile = Annotated[
    str | None, typer.Option(help="Compile layers on a GPU: auto (large jobs), true or false; unset: auto.")
]
Role = Annotated[
    str | None,
    typer.Option(help="embed: query or document, which some retrievers embed differently; unset: a text as it is."),
]
On = Annotated[
    str | None,
    typer.Option(metavar="WHERE", help="ray or ray://HOST:PORT: a cluster answers, into --out; unset: this process."),
]


def complete_keep_columns(words: list[str]) -> list[str]:
    """The option may stand without names, which typer's options cannot; then it means all columns."""
    if _KEEP_COLUMNS not in words:
        return words
    place = words.index(_KEEP_COLUMNS) + 1
    is_alone = place == len(words) or (words[place].startswith("-") and words[place] != "-")
    return [*words[:place], *([_ALL_COLUMNS] if is_alone else []), *words[place:]]


def predict(
    context: typer.Context,
    kind: Annotated[
        str,
        typer.Argument(
            help="fill-mask, embed, similarity, classify, ner, qa or zero-shot, or the name in transformers."
        ),
    ],
    model: Model,
    texts: Texts = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            help="Number of answers; unset: 5 candidates per mask for fill-mask, the best one for classify and qa."
        ),
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="fill-mask: rank only this word; may be given several times.")
    ] = None,
    pooling: Annotated[
        str | None, typer.Option(help="embed, similarity: mean or cls; embed also: none. Unset: the model's, or mean.")
    ] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="embed: normalize vectors to length 1, even if the model does not.")
    ] = False,
    role: Role = None,
    aggregation: Annotated[
        str | None,
        typer.Option(
            "--aggregation",
            "--aggregation-strategy",
            help="ner: class of a word from its tokens: first, average or max; simple, none: class per token.",
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
        bool, typer.Option("--multi-label", help="zero-shot: score each label independently; several may be right.")
    ] = False,
    question: Annotated[str | None, typer.Option(help="qa: the question to ask about each text.")] = None,
    max_answer_length: Annotated[int | None, typer.Option(help="qa: maximum tokens of an answer; unset: 30.")] = None,
    max_question_length: Annotated[
        int | None, typer.Option(help="qa: maximum tokens of a question; unset: 64.")
    ] = None,
    doc_stride: Annotated[int | None, typer.Option(help="qa: overlap of windows in tokens; unset: 128.")] = None,
    handle_impossible_answer: Annotated[
        bool, typer.Option("--handle-impossible-answer", help="qa: allow an empty answer if the text has none.")
    ] = False,
    max_length: MaxLength = None,
    column: Annotated[
        str | None, typer.Option(help="Column of the text, for qa of the question; unset: text, sentence1 or question.")
    ] = None,
    second_column: Annotated[
        str | None,
        typer.Option(help="Column of the second text of a pair, for qa of the context; unset: sentence2 or context."),
    ] = None,
    id_column: IdColumn = None,
    keep_columns: KeepColumns = None,
    out: Annotated[
        Path | None, typer.Option(help="Output file: .jsonl, .parquet or (embed) .npz; unset: print.")
    ] = None,
    overwrite: Overwrite = False,
    device: Device = None,
    batch_tokens: BatchTokens = None,
    precision: Precision = None,
    compile: Compile = None,
    on: On = None,
) -> None:
    """Run a model on texts. Prints one line of JSON per text, or writes a file.

    Sources are read as in training: .txt (one text per line), .jsonl, .csv, .tsv, .parquet, plain or compressed,
    folders, datasets. They may be larger than memory. Every text or record has one answer, in order, with its row
    number or id; without text it is null. With --out the same command continues after it was killed.

    Examples:

        maskwright predict fill-mask runs/mine "The for [MASK] is used to iterate." --top-k 3

        maskwright predict embed runs/mine articles.jsonl --column body --out vectors.npz

        maskwright predict classify runs/mine s3://crawl/**/*.jsonl --out labels.parquet --on ray

        maskwright predict similarity runs/mine "the cat sleeps" "a dog sleeps"

        maskwright predict classify runs/sst2 reviews.csv --column review --out labels.jsonl

        maskwright predict ner runs/wnut "Ada Lovelace lived in London."

        maskwright predict qa runs/squad --question "When did it open?" museum.txt

        maskwright predict zero-shot runs/mnli "My phone is broken." --label urgent --label "not urgent"
    """
    _predict(kind, model, texts, context.params)


def embed(
    context: typer.Context,
    model: Model,
    texts: Texts = None,
    pooling: Annotated[str | None, typer.Option(help="mean, cls or none; unset: the model's, or mean.")] = None,
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Normalize vectors to length 1, even if the model does not.")
    ] = False,
    role: Role = None,
    max_length: MaxLength = None,
    column: Annotated[str | None, typer.Option(help="Column of the text; unset: text or sentence1.")] = None,
    id_column: IdColumn = None,
    keep_columns: KeepColumns = None,
    out: Annotated[Path | None, typer.Option(help="Output file: .npz, .jsonl or .parquet; unset: print.")] = None,
    overwrite: Overwrite = False,
    device: Device = None,
    batch_tokens: BatchTokens = None,
    precision: Precision = None,
    compile: Compile = None,
    on: On = None,
) -> None:
    """Turn texts into vectors: short for `maskwright predict embed`.

    Example:

        maskwright embed runs/mine articles.jsonl --column body --out vectors.npz
    """
    _predict("embed", model, texts, context.params)


def _predict(kind: str, model: str, texts: list[str] | None, options: dict[str, Any]) -> None:
    from maskwright.inference.outputs import format_json
    from maskwright.runs.predict import predict as run
    from maskwright.runs.rows import STDIN

    words = texts or [STDIN]
    asked = ("kind", "model", "texts")
    named = {name: value for name, value in options.items() if name not in asked and value not in (None, [], ())}
    run(
        kind,
        model,
        words[0] if len(words) == 1 else words,
        write=None if options["out"] is not None else lambda record: echo(format_json(record)),
        **named,
    )


def fill(
    model: Annotated[str, typer.Argument(help="A run, a checkpoint or a model folder, also by URL, or a hub id.")],
    text: Annotated[str, typer.Argument(help="Text with [MASK] or <mask> where a word is missing.")],
    top_k: Annotated[int, typer.Option(help="Candidates for each mask.")] = 5,
    precision: Annotated[str | None, typer.Option(help="fp32, bf16, int8 or auto; unset: auto.")] = None,
    compile: Annotated[
        str | None, typer.Option(help="Compile layers on a GPU: auto, true or false; unset: auto.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fill the masked words of a text, with probabilities.

    Example:

        maskwright fill runs/quickstart "The for [MASK] is used to iterate over a sequence."
    """
    from dataclasses import asdict

    from maskwright.runs.fill import fill as run

    answers = run(model, text, top_k, precision=precision, compile=compile)
    if as_json:
        echo(json.dumps([[asdict(candidate) for candidate in candidates] for candidates in answers]))
        return
    for candidates in answers:
        for candidate in candidates:
            echo(f"{candidate.score:7.2%}  {candidate.token_str:<16}  {candidate.sequence}")
        if candidates is not answers[-1]:
            echo()


def generate(
    model: Annotated[str, typer.Argument(help="A run, a checkpoint or a model folder, also by URL, or a hub id.")],
    text: Annotated[
        str, typer.Argument(help="The text to continue; or with gaps to fill: [MASK], [MASK:5] or [MASK:2-6] tokens.")
    ] = "",
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens", "--length", help="Tokens to write, for a causal model at most; unset: 30, or the gaps."
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0: the most probable token; 1: sample by probability.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Sample only from the k most probable tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample only from the most probable tokens that sum up to p.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    steps: Annotated[
        int | None, typer.Option(help="Masked models: steps in which all is written; unset: one for each token.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(help="Masked models: which tokens first: confidence, random or blockwise; unset: confidence."),
    ] = None,
    block_size: Annotated[int | None, typer.Option(help="blockwise: tokens of a block; unset: 8.")] = None,
) -> None:
    """Write text with a diffusion model or any other that fills masks, or continue it with a causal model.

    A masked model (training.mode=diffusion, mlm) writes after the text, or fills the gaps in it, in any order. A causal
    model (training.mode=clm) writes from left to right.

    Examples:

        maskwright generate runs/mine "The for statement is" --length 20 --temperature 0.8 --top-k 20

        maskwright generate runs/mine "The [MASK:2-5] statement is used to [MASK:3]." --strategy blockwise
    """
    from maskwright.runs.fill import generate as run

    sampling: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    echo(run(model, None, text, max_new_tokens, steps=steps, strategy=strategy, block_size=block_size, **sampling))
