from __future__ import annotations

import bz2
import tracemalloc
from pathlib import Path

import pytest

from maskwright.errors import InputError
from maskwright.text.wiki.dump import WikiDump

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10" xml:lang="de">
<siteinfo><namespaces><namespace key="0" /><namespace key="6">Datei</namespace></namespaces></siteinfo>
"""
PAGE = (
    "<page><title>A &amp; B</title><ns>0</ns><revision><model>wikitext</model>"
    "<text xml:space='preserve'>one &lt;b&gt;two&lt;/b&gt; ä</text></revision></page>\n"
)
DUMP = f"{HEAD}{PAGE}{PAGE}</mediawiki>"


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        DUMP.encode(),
        bz2.compress(DUMP.encode()),
        b"".join(bz2.compress(part.encode()) for part in [HEAD, PAGE, PAGE, "</mediawiki>"]),
    ],
    ids=["plain", "bz2", "multistream"],
)
def test_pages_are_read_from_plain_and_compressed_dumps(tmp_path: Path, content: bytes) -> None:
    dump = WikiDump(write(tmp_path / "dump", content))
    pages = list(dump.pages())
    assert [(page.title, page.text) for page in pages] == [("A & B", "one <b>two</b> ä")] * 2
    assert dump.namespaces == {"0": "", "6": "Datei"}
    assert (dump.num_pages, dump.num_bytes) == (2, len(content))


def test_the_last_revision_counts_and_other_slots_do_not(tmp_path: Path) -> None:
    page = (
        "<page><title>x</title><ns>0</ns><redirect title='y'/>"
        "<revision><model>css</model><text>old</text></revision>"
        "<revision><contributor><id>1</id></contributor><model>json</model><text>new</text>"
        "<content><role>x</role><model>other</model><text>slot</text></content></revision></page>"
    )
    (found,) = WikiDump(write(tmp_path / "dump.xml", f"{HEAD}{page}</mediawiki>")).pages()
    assert (found.text, found.model, found.is_redirect) == ("new", "json", True)


@pytest.mark.parametrize(
    ("text", "is_redirect"), [("#REDIRECT [[x]]", True), ("\n#redirect: [[x]]", True), ("x", False)]
)
def test_a_redirect_is_known_by_its_text_too(tmp_path: Path, text: str, is_redirect: bool) -> None:
    page = f"<page><title>x</title><ns>0</ns><revision><text>{text}</text></revision></page>"
    (found,) = WikiDump(write(tmp_path / "dump.xml", f"<mediawiki>{page}</mediawiki>")).pages()
    assert found.is_redirect == is_redirect


BILLION_LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE mediawiki [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
    "<mediawiki><page><title>&b;</title></page></mediawiki>"
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (BILLION_LAUGHS, "declares a DOCTYPE"),
        (
            f"{HEAD}{PAGE}<page><title>&x;</title></page></mediawiki>",
            "not well-formed XML after 1 pages: undefined entity",
        ),
        (f"{HEAD}{PAGE}<page></mediawiki>", "not well-formed XML after 1 pages: mismatched tag"),
        (f"{HEAD}{PAGE}{PAGE}", "cut off after 2 pages"),
        (f"{HEAD}{PAGE}<page><title>x", "cut off after 1 pages"),
        (bz2.compress(DUMP.encode())[:-20], "cut off or damaged after 0 pages"),
        (
            bz2.compress(f"{HEAD}{PAGE}".encode()) + bz2.compress(DUMP.encode())[:-20],
            "cut off or damaged after 1 pages",
        ),
        (bz2.compress(b"x" * 99)[:30] + b"\0" * 99, "cut off or damaged after 0 pages"),
        (f"{HEAD}{PAGE}".encode() + b"\xff</mediawiki>", "not well-formed XML after 1 pages"),
        ("<html></html>", "its root element is <html>"),
        ("no xml at all", "not well-formed XML"),
        ("", "cut off after 0 pages"),
        (f"{HEAD}</mediawiki>", "holds no page"),
        ("<mediawiki>" + "<a>" * 99, "nests elements"),
        ("<mediawiki><!--" + "x" * 5_000_000, "tag or comment of over"),
    ],
    ids=lambda value: None if isinstance(value, bytes) or len(value) > 60 else value,
)
def test_what_is_no_whole_dump_is_refused_by_name(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = write(tmp_path / "dump.xml.bz2", content)
    with pytest.raises(InputError) as caught:
        list(WikiDump(path).pages())
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file at"):
        list(WikiDump(tmp_path / "none.xml").pages())
    with pytest.raises(InputError, match="is a folder"):
        list(WikiDump(tmp_path).pages())


def test_memory_does_not_grow_with_the_dump_nor_with_one_page(tmp_path: Path) -> None:
    long_page = PAGE.replace("one ", "one " * 6_000_000)
    pages = PAGE.replace("one ", "one " * 5_000) * 2_000
    path = write(tmp_path / "dump.xml", f"{HEAD}{pages}{long_page}</mediawiki>")
    tracemalloc.start()
    try:
        oversized = [page.title for page in WikiDump(path).pages() if page.is_oversized]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert oversized == ["A & B"]
    assert peak_bytes < path.stat().st_size / 2
