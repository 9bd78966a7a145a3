"""`maskwright prepare` and `maskwright prepare wiki`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from maskwright.cli.usage import Commands


class _ShardsByDefault(TyperGroup):
    """`prepare SOURCE...` is short for `prepare shards SOURCE...`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help"):
            args = ["shards", *args]
        return super().parse_args(ctx, args)


prepare_app = Commands(
    cls=_ShardsByDefault,
    help="""Prepare text for training; `prepare SOURCE...` is short for `prepare shards SOURCE...`.

Examples:

    maskwright prepare corpus/*.jsonl.zst --tokenizer runs/quickstart --out data/corpus

    maskwright prepare wiki dump.xml.bz2 wiki.txt
""",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@prepare_app.command("shards")
def prepare_shards(
    settings: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE... [KEY=VALUE ...]", help="Files, folders, globs, datasets; quality.* settings."
        ),
    ],
    tokenizer: Annotated[str, typer.Option(help="A tokenizer file or folder, or a run or model with one.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    validation_share: Annotated[
        float, typer.Option(help="Share of documents held out; 1: only held-out documents, for data.validation.")
    ] = 0.01,
    max_length: Annotated[
        int, typer.Option(help="Sequence length to compute packing for, so that runs start at once.")
    ] = 128,
    workers: Annotated[int | None, typer.Option(help="Worker processes; unset: one per core.", min=1)] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE", help="processes, ray or ray://HOST:PORT do the work; unset: threads of this process."
        ),
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(
            metavar="GB", help="Memory of each worker to find duplicates; unset: 1, in this process all it takes."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing prepared folder.")] = False,
) -> None:
    """Tokenize sources into memory-mapped shards for training.

    The same command resumes an interrupted preparation; finished parts are not done again.

    Examples:

        maskwright prepare corpus/*.jsonl.zst --tokenizer runs/quickstart --out data/corpus

        maskwright prepare s3://crawl/**/*.jsonl.zst --tokenizer tok --out data/crawl --on ray

        maskwright prepare crawl quality.drop_near_duplicates=true --tokenizer tok --out data/crawl --on processes

        maskwright prepare a.txt b.parquet quality.drop_duplicates=true --tokenizer tok --out data/ab
    """
    from maskwright.runs.commands import prepare

    overrides = [word for word in settings if word.startswith("quality.") and "=" in word]
    prepare(
        [word for word in settings if word not in overrides],
        tokenizer=tokenizer,
        out=out,
        validation_share=validation_share,
        max_length=max_length,
        workers=workers,
        on=on,
        memory=memory,
        overwrite=overwrite,
        settings=overrides,
    )


@prepare_app.command("wiki")
def prepare_wiki(
    dump: Annotated[Path, typer.Argument(help="A pages-articles dump: .xml or .xml.bz2.")],
    output: Annotated[Path, typer.Argument(help="The text file to write, one paragraph per line.")],
    min_length: Annotated[int, typer.Option("--min-length", help="Minimum number of words in a paragraph.")] = 10,
    max_length: Annotated[int, typer.Option("--max-length", help="Maximum number of words in a paragraph.")] = 1000,
    workers: Annotated[int | None, typer.Option("--workers", help="Worker processes; unset: one per core.")] = None,
    page_time_limit: Annotated[
        float, typer.Option("--page-time-limit", help="Skip a page that takes longer than this many seconds.")
    ] = 5.0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing output.")] = False,
) -> None:
    """Turn a Wikipedia dump into plain text: articles only, markup removed, one paragraph per line.

    Example:

        maskwright prepare wiki enwiki-latest-pages-articles.xml.bz2 enwiki.txt --min-length 20
    """
    from maskwright.terminal import CleanConsole, say
    from maskwright.text.wiki.preprocess import preprocess_wiki_dump

    console = CleanConsole()
    report = preprocess_wiki_dump(
        dump,
        output,
        min_length,
        max_length,
        workers=workers,
        page_time_limit_s=page_time_limit,
        overwrite=overwrite,
        console=console,
    )
    for line in [*report.lines(), f"{output}  the text; next: maskwright train data.train={output}"]:
        say(console, line)
