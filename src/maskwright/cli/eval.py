"""`maskwright eval`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from maskwright.terminal import echo


def evaluate(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(help="A run, a checkpoint or a model folder, also by URL, or a hub id; retrieval: also bm25."),
    ],
    suite: Annotated[
        str,
        typer.Argument(
            help="What to measure: mlm, pll, diffusion, minimal-pairs, cloze, embeddings, retrieval or glue."
        ),
    ],
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Texts for mlm, pll and diffusion; .jsonl for minimal-pairs and cloze; labelled files for embeddings;"
            " a folder in BEIR's layout for retrieval; for glue GLUE's folder, then KEY=VALUE settings of the runs."
        ),
    ],
    against: Annotated[
        str | None, typer.Option(help="Another model to compare with, by a paired test on the same items.")
    ] = None,
    word_l2r: Annotated[
        bool, typer.Option("--word-l2r", help="pll, minimal-pairs: also mask the rest of a token's word.")
    ] = False,
    max_length: Annotated[
        int | None, typer.Option(help="mlm, diffusion: sequence length; unset: up to 512, or the model's.")
    ] = None,
    samples: Annotated[int | None, typer.Option(min=2, help="diffusion: random masks of each text; unset: 32.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="All but mlm and glue: precision, as of predict; unset: fp32.")
    ] = None,
    compile: Annotated[
        str | None, typer.Option(help="All but mlm and glue: compile layers, as of predict; unset: auto.")
    ] = None,
    train: Annotated[
        str | None, typer.Option(help="embeddings: labelled texts to find neighbors in; unset: leave-one-out.")
    ] = None,
    neighbors: Annotated[
        int | None, typer.Option(min=1, help="embeddings: number of neighbors (k-NN); unset: 10.")
    ] = None,
    pooling: Annotated[
        str | None, typer.Option(help="embeddings, retrieval: mean or cls; unset: the model's own.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="retrieval: the file of judgements in qrels; unset: test, or the only one.")
    ] = None,
    rerank: Annotated[str | None, typer.Option(help="retrieval: a reranker that orders anew what MODEL finds.")] = None,
    rerank_depth: Annotated[
        int | None, typer.Option(min=1, help="retrieval: documents of a query that it reads; unset: 100.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="glue: runs per task, each with its own seed; unset: 3.")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="glue: tasks, such as CoLA,RTE; unset: all in the folder.")] = None,
    limit: Annotated[int | None, typer.Option(min=2, help="glue: train on only the first N examples.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="glue: epochs of fine-tuning; unset: 3.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="glue: peak learning rate; unset: suits the encoder.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="glue: folder of the runs; unset: runs/glue.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Evaluate a model, with a 95% confidence interval for every figure.

    mlm: loss, accuracy and perplexity under fixed masks on 15% of single tokens, the same for every model;
    a causal model (training.mode=clm) predicts every next token.

    pll: pseudo-log-likelihood and pseudo-perplexity of texts; for a causal model the exact log-likelihood.

    diffusion: an upper bound on the negative log-likelihood of texts, of any model that fills masks: per token, per
    word and in bits per byte.

    minimal-pairs: how often the model prefers the acceptable sentence of two, on files like BLiMP's.

    cloze: how often a single-token answer is among the top 1, 5 and 10 predictions, on files like LAMA's.

    embeddings: correlation of cosines with the scores of pairs, and k-NN classification accuracy.

    retrieval: nDCG, recall and reciprocal rank of exact search in a folder with corpus.jsonl, queries.jsonl and
    qrels/*.tsv.

    glue: fine-tunes on each task with several seeds; finished runs are not repeated.

    Examples:

        maskwright eval runs/mine mlm held-out.txt

        maskwright eval runs/mine minimal-pairs blimp/ --against runs/other --json

        maskwright eval runs/mine embeddings sts-dev.csv banking77.csv --against runs/other

        maskwright eval runs/mine retrieval scifact/ --against bm25

        maskwright eval runs/mine glue glue_data/ --tasks CoLA,RTE --seeds 5
    """
    from maskwright.runs.eval.evaluate import evaluate as run
    from maskwright.runs.eval.glue_report import GlueReport, format_glue
    from maskwright.runs.eval.report import format_report

    is_glue = suite == "glue"
    named = {
        name: value for name, value in context.params.items() if name not in ("model", "suite", "sources", "as_json")
    }
    report = run(model, suite, sources[0] if is_glue else sources, settings=sources[1:] if is_glue else (), **named)
    if as_json:
        echo(json.dumps(report.to_json()))
    else:
        echo(format_glue(report) if isinstance(report, GlueReport) else format_report(report))
