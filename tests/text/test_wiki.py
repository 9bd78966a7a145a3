from __future__ import annotations

import bz2
import html
import io
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from maskwright.errors import InputError, RunError
from maskwright.text.wiki import pool as wiki_pool
from maskwright.text.wiki import preprocess as wiki
from maskwright.text.wiki.preprocess import WikiReport, count_words, preprocess_wiki_dump

pytest.importorskip("mwparserfromhell", reason="the `wiki` extra is not installed")

DUMPS = Path(__file__).parents[2].parent / "shared" / "data" / "text" / "dumps"
TEN = "one two three four five six seven eight nine ten"
HOSTILE = {
    "nested files": "[[File:x|" * 10_000,
    "open blocks": "<div>" * 200_000,
    "many bullets": "*" * 500_000,
}


def page(title: str, text: str, namespace: int = 0, model: str = "wikitext") -> str:
    return (
        f"<page><title>{html.escape(title)}</title><ns>{namespace}</ns><revision><model>{model}</model>"
        f"<text>{html.escape(text)}</text></revision></page>\n"
    )


def write_dump(path: Path, *pages: str) -> Path:
    names = '<namespace key="6">Datei</namespace><namespace key="14">Kategorie</namespace>'
    head = f"<mediawiki><siteinfo><namespaces>{names}</namespaces></siteinfo>\n"
    content = f"{head}{''.join(pages)}</mediawiki>".encode()
    path.write_bytes(bz2.compress(content) if path.suffix == ".bz2" else content)
    return path


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return write_dump(
        tmp_path / "dump.xml.bz2",
        page("redirect", "#REDIRECT [[x]]"),
        page("kept", f"{{{{Infobox|a=[[b]]}}}}\n'''{TEN}'''<ref>x</ref>.\n\n* too short\n\n{TEN} {TEN}"),
        page("talk", TEN, namespace=1),
        page("data", "{}", model="json"),
        page("nothing", "  "),
        page("only markup", "{{x}} [[Kategorie:x]] [[Datei:y|z]]"),
        page("unfit", "too short"),
        page("second", f"* [[a|{TEN}]]\n* {TEN} eleven"),
    )


def test_paragraphs_come_out_one_per_line_with_every_page_counted(dump: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "text.txt"
    report = preprocess_wiki_dump(dump, output, max_length=19, workers=1)
    assert output.read_text(encoding="utf-8") == f"{TEN}.\n{TEN}\n{TEN} eleven\n"
    assert list(output.parent.iterdir()) == [output]
    pages = WikiReport(pages=8, kept=2, redirects=1, other_namespace=1, other_model=1, empty=2, unfit=1)
    assert report == replace(pages, paragraphs=3, words=31, too_short=2, too_long=1, elapsed_s=report.elapsed_s)
    assert report.pages == report.kept + sum(report.dropped.values())
    assert any("no paragraph of fitting length" in line for line in report.lines())


def test_the_output_does_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    pages = [page(str(number), f"{TEN} {number} " + "''x'' " * (number * 37 % 200)) for number in range(80)]
    dump = write_dump(tmp_path / "dump.xml", *pages)
    outputs = [tmp_path / "1.txt", tmp_path / "2.txt"]
    for num_workers, output in enumerate(outputs, start=1):
        preprocess_wiki_dump(dump, output, workers=num_workers)
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    assert [line.split()[10] for line in outputs[0].read_text().splitlines()] == [str(n) for n in range(80)]


def test_hostile_pages_cost_only_themselves(tmp_path: Path) -> None:
    hostile = [text for title, content in HOSTILE.items() for text in (page(title, content), page("good", TEN))]
    dump = write_dump(tmp_path / "dump.xml", page("braces", "{{" * 50_000), *hostile)
    report = preprocess_wiki_dump(dump, tmp_path / "text.txt", workers=2, page_time_limit_s=0.7)
    assert (report.timed_out, report.kept, report.empty) == (3, 3, 1)
    assert report.given_up == list(HOSTILE)
    assert (tmp_path / "text.txt").read_text() == f"{TEN}\n" * 3


FRAGILE_WORKER = """
import json, os, sys, time
sys.stdin.readline()
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    text = json.loads(line)
    if text == "die":
        os.abort()
    if text == "fail":
        print(json.dumps({"error": "RecursionError"}), flush=True)
    elif text == "half":
        print('{"paragraphs": ["x', end="", flush=True)
        os._exit(0)
    else:
        print(json.dumps({"paragraphs": [text]}), flush=True)
"""


def test_a_worker_that_dies_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "worker.py"
    program.write_text(FRAGILE_WORKER)
    monkeypatch.setattr(wiki_pool, "_PROGRAM", [str(program)])
    pages = [page(text, text) for text in ["die", "good 1", "half", "fail", "good 2", "die"]]
    report = preprocess_wiki_dump(write_dump(tmp_path / "d.xml", *pages), tmp_path / "t.txt", min_length=1, workers=1)
    assert (report.crashed, report.kept, report.given_up) == (4, 2, ["die", "half", "fail", "die"])
    assert (tmp_path / "t.txt").read_text() == "good 1\ngood 2\n"


def test_a_worker_that_cannot_start_ends_the_run(dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiki_pool, "_PROGRAM", ["-c", "raise SystemExit('no memory')"])
    with pytest.raises(RunError, match="could not be started: no memory"):
        preprocess_wiki_dump(dump, tmp_path / "text.txt", workers=1)
    assert not (tmp_path / "text.txt").exists()


def test_an_existing_output_is_refused_and_survives_a_bad_dump(dump: Path, tmp_path: Path) -> None:
    output = tmp_path / "text.txt"
    output.write_text("precious\n")
    with pytest.raises(InputError, match=r"text\.txt exists"):
        preprocess_wiki_dump(dump, output)
    broken = tmp_path / "broken.xml.bz2"
    broken.write_bytes(dump.read_bytes()[:-30])
    with pytest.raises(InputError, match=r"broken\.xml\.bz2 is cut off or damaged after 0 pages"):
        preprocess_wiki_dump(broken, output, overwrite=True)
    cut = write_dump(tmp_path / "cut.xml", page("x", TEN), page("y", TEN))
    cut.write_bytes(cut.read_bytes()[:-40])
    with pytest.raises(InputError, match=r"cut\.xml is cut off after 1 pages"):
        preprocess_wiki_dump(cut, output, overwrite=True)
    assert output.read_text() == "precious\n"
    assert not list(tmp_path.glob(".*"))
    preprocess_wiki_dump(dump, output, overwrite=True)
    assert output.read_text().startswith("one two")


def test_wrong_settings_are_refused(dump: Path, tmp_path: Path) -> None:
    output = tmp_path / "text.txt"
    for settings, message in [
        ({"min_length": 5, "max_length": 4}, "min_length 5 and max_length 4"),
        ({"workers": 0}, "workers is 0"),
        ({"page_time_limit_s": 0.0}, "page_time_limit_s is 0.0"),
    ]:
        with pytest.raises(InputError, match=message):
            preprocess_wiki_dump(dump, output, **settings)
    with pytest.raises(InputError, match="is the dump itself"):
        preprocess_wiki_dump(dump, dump, overwrite=True)
    with pytest.raises(InputError, match="is a folder"):
        preprocess_wiki_dump(dump, tmp_path)


def test_a_missing_parser_is_told_in_one_line(dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiki, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'maskwright\[wiki\]'"):
        preprocess_wiki_dump(dump, tmp_path / "text.txt")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_shows_pages_per_second(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    for name in ("_PLAIN_INTERVAL_S", "_BAR_INTERVAL_S"):
        monkeypatch.setattr(f"maskwright.text.wiki.preprocess.{name}", 0.0)
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=100)
    preprocess_wiki_dump(dump, tmp_path / "text.txt", workers=1, console=console)
    assert isinstance(console.file, io.StringIO)
    assert "8 pages" in console.file.getvalue()
    assert "pages/s" in console.file.getvalue()


def test_words_are_counted_without_spaces_too() -> None:
    assert count_words("one two, three-four") == 3
    assert count_words("日本語の文。") == 5
    assert count_words("BERTは 良い、 model") == 5


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_an_interrupt_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    dump = write_dump(tmp_path / "dump.xml", *[page(title, text) for title, text in HOSTILE.items()])
    output = tmp_path / "text.txt"
    code = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job inherits that it is ignored
        "from maskwright.text.wiki.preprocess import preprocess_wiki_dump\n"
        f"preprocess_wiki_dump({str(dump)!r}, {str(output)!r}, workers=2, page_time_limit_s=100)"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    parent = psutil.Process(run.pid)
    deadline_s = time.monotonic() + 60
    while len(parent.children()) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    workers = parent.children(recursive=True)
    run.send_signal(signal.SIGINT)
    _, error = run.communicate(timeout=30)
    assert "KeyboardInterrupt" in error
    assert len(workers) == 2
    assert not [worker for worker in workers if worker.is_running()]
    assert not output.exists()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.skipif(not DUMPS.exists(), reason="no real dumps beside the repository")
@pytest.mark.parametrize(
    ("pattern", "min_kept", "min_words"),
    [
        pytest.param("enwiki-*", 100, 400_000, marks=pytest.mark.slow),
        pytest.param("smallwiki-*", 750, 60_000, marks=pytest.mark.slow),
        ("tinywiki-*", 3, 1_000),
    ],
)
def test_real_dumps_become_text_without_markup(tmp_path: Path, pattern: str, min_kept: int, min_words: int) -> None:
    """At most two lines of each kind of markup may remain in a whole dump."""
    (dump,) = DUMPS.glob(pattern)
    report: WikiReport = preprocess_wiki_dump(dump, tmp_path / "text.txt")
    lines = (tmp_path / "text.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == report.paragraphs
    assert report.kept >= min_kept
    assert report.words >= min_words
    assert report.timed_out + report.crashed == 0
    for markup in ["[[", "]]", "{{", "}}", "{|", "|}", "<ref", "</", "&nbsp;", "'''", "==", "__", "thumb|"]:
        assert sum(markup in line for line in lines) <= 2, markup
