"""`maskwright index`, `maskwright search` and `maskwright mine`"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from maskwright.errors import InputError
from maskwright.terminal import echo

_SHOWN = 160
"""Characters of a document in a table."""


def index(
    model: Annotated[str, typer.Argument(help="A retriever: a run, a model folder or a hub id; or bm25.")],
    corpus: Annotated[
        str,
        typer.Argument(help="Documents: a folder in BEIR's layout, .jsonl, .parquet, .csv, .tsv, .txt, a glob."),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the index.")],
    store: Annotated[str, typer.Option(help="Vectors as float, int8, or binary with int8 to rescore.")] = "float",
    dims: Annotated[int | None, typer.Option(min=1, help="Keep so many numbers of each vector; unset: all.")] = None,
    column: Annotated[str, typer.Option(help="Column of the text; a column 'title' is put before it.")] = "text",
    append: Annotated[bool, typer.Option("--append", help="Add the documents to an index that is there.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an index that is there.")] = False,
    precision: Annotated[str | None, typer.Option(help="Precision, as of predict; unset: auto.")] = None,
) -> None:
    """Make an index of documents, in which `maskwright search` finds them. It may be larger than memory.

    Documents have the id of their column _id or id, or are numbered. The same command on an unfinished index goes on.

    Examples:

        maskwright index runs/mine-retrieval collection/ --out idx

        maskwright index runs/mine-retrieval articles.jsonl --column body --store binary --out idx

        maskwright index bm25 collection/ --out words
    """
    from maskwright.runs.search.index import index as run

    run(
        model,
        corpus,
        out=out,
        store=store,
        dims=dims,
        column=column,
        append=append,
        overwrite=overwrite,
        precision=precision,
    )


def search(
    index: Annotated[Path, typer.Argument(help="The folder of an index.")],
    query: Annotated[list[str] | None, typer.Argument(help="What to look for, once or several times.")] = None,
    queries: Annotated[
        str | None, typer.Option(help="Queries of a file with _id and text, as BEIR's queries.jsonl; prints JSON.")
    ] = None,
    top_k: Annotated[int, typer.Option(min=1, help="Number of documents.")] = 10,
    model: Annotated[str | None, typer.Option(help="The model of the index, if it lies elsewhere now.")] = None,
    rerank: Annotated[str | None, typer.Option(help="A reranker that orders anew what is found.")] = None,
    rerank_depth: Annotated[int, typer.Option(min=1, help="Documents of a query that it reads.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON per query.")] = False,
) -> None:
    """Find the documents of an index that answer a query best.

    Examples:

        maskwright search idx "who opened the museum?"

        maskwright search idx --queries collection/queries.jsonl --top-k 100 > found.jsonl
    """
    from maskwright.runs.search.search import search as run
    from maskwright.tasks.retrieval.collection import read_documents

    if bool(query) == (queries is not None):
        raise InputError('give a query, such as maskwright search idx "who opened the museum?", or --queries FILE')
    asked = [(None, text) for text in query or ()] if queries is None else [one[:2] for one in read_documents(queries)]
    texts = [text for _, text in asked]
    found = run(index, texts, top_k=top_k, model=model, rerank=rerank, rerank_depth=rerank_depth)
    for (name, text), hits in zip(asked, found, strict=True):
        if as_json or queries is not None:
            labels = {} if name is None else {"_id": name}
            echo(json.dumps({**labels, "query": text, "hits": [asdict(hit) for hit in hits]}, ensure_ascii=False))
            continue
        for rank, hit in enumerate(hits, start=1):
            shown = " ".join(hit.text.split())
            echo(f"{rank:>3}  {hit.score:.4f}  {hit.id}  {shown if len(shown) <= _SHOWN else f'{shown[:_SHOWN]}...'}")


def mine(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A retriever: a run, a model folder or a hub id; or bm25.")],
    examples: Annotated[
        str, typer.Argument(help="A folder in BEIR's layout (its train judgements), a file of its qrels, or a table.")
    ],
    out: Annotated[Path, typer.Option(help="The .jsonl file to write, which finetune retrieval reads.")],
    corpus: Annotated[str | None, typer.Option(help="More documents beside a table: _id and text.")] = None,
    num_negatives: Annotated[int, typer.Option(min=1, help="Hard negatives of an example, at most.")] = 4,
    depth: Annotated[int, typer.Option(min=1, help="Documents of a query that are looked at.")] = 100,
    skip: Annotated[int, typer.Option(min=0, help="Leave the first so many out.")] = 0,
    margin: Annotated[
        float | None, typer.Option(help="A negative's score is lower than the answer's by this at least.")
    ] = None,
    relative_margin: Annotated[
        float | None, typer.Option(help="The same as a share of the answer's score, such as 0.05.")
    ] = None,
    teacher: Annotated[
        str | None, typer.Option(help="A reranker whose scores of the documents are written, to be learnt.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="Precision, as of predict; unset: auto.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Find hard negatives: documents that a retriever takes for answers to a query, and that are none.

    Examples:

        maskwright mine runs/retriever collection/ --relative-margin 0.05 --out hard.jsonl

        maskwright mine bm25 pairs.csv --num-negatives 7 --out hard.jsonl

        maskwright mine runs/retriever collection/ --teacher runs/reranker --out taught.jsonl
    """
    from maskwright.runs.search.mine import mine as run

    run(**context.params)
