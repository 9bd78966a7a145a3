"""`maskwright finetune`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from maskwright.errors import RunError
from maskwright.terminal import say

if TYPE_CHECKING:
    from rich.console import Console

    from maskwright.runs.finetune.finetune import FinishedTask

_MOST_COLUMNS = 6
"""Scores that fit side by side in a terminal of 80 columns; more are printed below each other."""
_Settings = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE ...]", help="Settings of the run, such as training.device=cpu."),
]
_LORA = "--lora"


def complete_lora(words: list[str]) -> list[str]:
    """The option may stand without a rank, which typer's options cannot; then it means the usual one."""
    if words[:1] != ["finetune"] or _LORA not in words:
        return words
    from maskwright.tasks.config import DEFAULT_RANK

    place = words.index(_LORA) + 1
    is_alone = place == len(words) or words[place].startswith("--") or "=" in words[place]
    return [*words[:place], *([str(DEFAULT_RANK)] if is_alone else []), *words[place:]]


def finetune(
    context: typer.Context,
    task: Annotated[
        str,
        typer.Argument(
            help="classification, multi-label, ner, pairs, qa, regression, rerank, retrieval or similarity."
        ),
    ],
    model: Annotated[str, typer.Option(help="The encoder: a model folder, a run or a hub id.")],
    train: Annotated[
        str,
        typer.Option(
            help="Labelled examples: .csv, .tsv, .jsonl, .parquet, a glob, hf:NAME; ner: CoNLL; qa: SQuAD; retrieval: a"
            " folder in BEIR's layout."
        ),
    ],
    validation: Annotated[
        str | None, typer.Option(help="Held-out labelled examples; unset: a tenth of --train, of each label alike.")
    ] = None,
    settings: _Settings = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; unset: runs/MODEL-TASK.")] = None,
    group_by: Annotated[
        str | None, typer.Option(help="Without --validation: hold out records with one value of this column together.")
    ] = None,
    text_column: Annotated[str | None, typer.Option(help="Column of the text; unset: detected.")] = None,
    second_column: Annotated[str | None, typer.Option(help="Column of the second text of a pair.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Column of the label; unset: detected.")] = None,
    tag_scheme: Annotated[str | None, typer.Option(help="ner: convert tags to io, bio or bioes.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs; unset: 3.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate; unset: suits the encoder.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples per optimizer step; unset: 32.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Maximum tokens of an example; unset: the model's.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Train with N seeds; report mean and deviation.")] = 1,
    lora: Annotated[
        int | None,
        typer.Option(
            metavar="[RANK]", help="Train factors of this rank (8) beside a frozen encoder's matrices, and the head."
        ),
    ] = None,
    freeze_layers: Annotated[int | None, typer.Option(help="Freeze the embeddings and the first N layers.")] = None,
    layer_decay: Annotated[
        float | None, typer.Option(help="Learning-rate factor from a layer to the one below.")
    ] = None,
    class_weights: Annotated[str | None, typer.Option(help="balanced, or a weight for each class: 1,2.5.")] = None,
    label_smoothing: Annotated[float | None, typer.Option(help="Share of each label spread over all classes.")] = None,
    teacher: Annotated[
        str | None,
        typer.Option(help="classification, pairs, regression: a model fine-tuned for it, whose answers are learnt."),
    ] = None,
    hard_label_weight: Annotated[
        float | None, typer.Option(help="With --teacher: weight of labels against its answers; unset: 0.5.")
    ] = None,
    doc_stride: Annotated[int | None, typer.Option(help="qa: overlap of windows in tokens; unset: 128.")] = None,
    max_answer_length: Annotated[int | None, typer.Option(help="qa: maximum tokens of an answer; unset: 30.")] = None,
    max_question_length: Annotated[
        int | None, typer.Option(help="qa: maximum tokens of a question; unset: 64.")
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="similarity: contrastive or cosine; retrieval: contrastive, margin-mse or kl; rerank: contrastive, bce"
            " or mse."
        ),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="retrieval: dense, splade (weights of tokens) or colbert (vectors of tokens).")
    ] = None,
    pooling: Annotated[str | None, typer.Option(help="similarity, retrieval: mean or cls; unset: mean.")] = None,
    temperature: Annotated[
        float | None,
        typer.Option(help="similarity, retrieval: temperature of the loss; unset: 0.05. With --teacher: 2."),
    ] = None,
    negative_column: Annotated[
        str | None, typer.Option(help="similarity, retrieval, rerank: column of hard negatives.")
    ] = None,
    num_negatives: Annotated[
        int | None,
        typer.Option(help="retrieval, rerank: hard negatives of a query; unset: those there are, at most 4."),
    ] = None,
    symmetric: Annotated[
        bool | None, typer.Option("--symmetric", help="retrieval: documents are to find their queries too.")
    ] = None,
    false_negative_margin: Annotated[
        float | None,
        typer.Option(help="retrieval: what is nearer than a query's document by more than this is no negative."),
    ] = None,
    dims: Annotated[
        str | None, typer.Option(help="retrieval: lengths of prefixes that are vectors too (Matryoshka): 256,128,64.")
    ] = None,
    query_prompt: Annotated[str | None, typer.Option(help="retrieval: put before each query.")] = None,
    document_prompt: Annotated[str | None, typer.Option(help="retrieval: put before each document.")] = None,
    query_flops: Annotated[
        float | None, typer.Option(help="splade: weight of what makes queries sparse; unset: 5e-5.")
    ] = None,
    document_flops: Annotated[
        float | None, typer.Option(help="splade: weight of what makes documents sparse; unset: 3e-5.")
    ] = None,
    width: Annotated[int | None, typer.Option(help="colbert: numbers of a token's vector; unset: 128.")] = None,
    query_length: Annotated[
        int | None,
        typer.Option(help="colbert: queries are cut and filled up to so many tokens; 0: as they are; unset: 32."),
    ] = None,
    metric: Annotated[str | None, typer.Option(help="Score for --patience and tables, such as matthews.")] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after N epochs without a better metric.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run.")] = False,
    push_to_hub: Annotated[
        str | None, typer.Option(metavar="REPO", help="Push the model to the Hugging Face hub, as USER/NAME.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="With --push-to-hub: make a private repository.")] = False,
) -> None:
    """Fine-tune an encoder on labelled texts or pairs of texts.

    Columns are found by their usual names, and GLUE's files are read as published. The same command on an unfinished
    run resumes it. transformers also loads the result in OUT/model.

    Examples:

        maskwright finetune classification --model bert-base-uncased --train train.tsv --validation dev.tsv

        maskwright finetune regression --model runs/mine --train sts-train.csv --validation sts-dev.csv --seeds 5

        maskwright finetune similarity --model runs/mine --train nli.jsonl --validation sts-dev.csv --loss contrastive

        maskwright finetune retrieval --model runs/mine --train collection/ --batch-size 128

        maskwright finetune rerank --model runs/mine --train hard.jsonl

        maskwright finetune ner --model runs/mine --train train.conll --validation dev.conll

        maskwright finetune classification --model bert-large-uncased --train train.tsv --lora

        maskwright finetune qa --model bert-base-uncased --train train-v2.0.json --validation dev-v2.0.json
    """

    from maskwright.runs.finetune_command import finetune as run
    from maskwright.runs.hub import PushError
    from maskwright.terminal import CleanConsole

    console, problem = CleanConsole(), None
    named = {name: value for name, value in context.params.items() if value is not None}
    try:
        finished = run(**named, console=console)
    except PushError as error:
        finished, problem = error.result, error
    _print_scores(finished, console)
    if problem is not None:
        raise problem
    if finished.trouble is not None:
        raise RunError(finished.trouble)


def _print_scores(finished: FinishedTask, console: Console) -> None:
    from rich.table import Table

    from maskwright.runs.finetune.report import format_score, list_scores
    from maskwright.runs.finetune.settings import summarise

    names = list(list_scores(finished.figures[0]))
    rows = [["held-out examples", *names]]
    for run, figures in zip(finished.runs, finished.figures, strict=True):
        rows.append([run.path.name, *(format_score(figures.get(name)) for name in names)])
    if len(finished.runs) > 1:
        summary = summarise(finished.figures)
        for label in ("mean", "deviation"):
            rows.append([label, *(format_score(summary[name][label]) for name in names)])
    if len(names) > _MOST_COLUMNS:
        rows = [list(column) for column in zip(*rows, strict=True)]
    table = Table(*rows[0], box=None)
    for row in rows[1:]:
        table.add_row(*row)
    console.print(table)
    lines = [f"{run.model}  the model; {run.report_file} has its curves" for run in finished.runs]
    for line in (*lines, "Try next:", f"  {finished.next_command}"):
        say(console, line)
