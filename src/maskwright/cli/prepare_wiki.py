"""`maskwright prepare wiki`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def prepare_wiki(
    dump: Annotated[Path, typer.Argument(help="A pages-articles dump, .xml or .xml.bz2.")],
    output: Annotated[Path, typer.Argument(help="The text file to write, one paragraph per line.")],
    min_length: Annotated[int, typer.Option("--min-length", help="Words that a paragraph must have.")] = 10,
    max_length: Annotated[int, typer.Option("--max-length", help="Words that a paragraph may have.")] = 1000,
    workers: Annotated[int | None, typer.Option("--workers", help="Processes; all cores when left out.")] = None,
    page_time_limit: Annotated[
        float, typer.Option("--page-time-limit", help="Seconds after which a page is given up.")
    ] = 5.0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing output.")] = False,
) -> None:
    """Turn a Wikipedia dump into plain text: articles only, markup removed, one paragraph per line.

    Example:

        maskwright prepare wiki enwiki-latest-pages-articles.xml.bz2 enwiki.txt --min-length 20
    """
    from maskwright.terminal import CleanConsole
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
        console.print(line, highlight=False, markup=False, soft_wrap=True)
