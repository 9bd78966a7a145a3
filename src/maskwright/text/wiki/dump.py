"""A MediaWiki XML dump, plain or bz2, read page by page: memory does not grow with the dump.

The parser is expat of the standard library: it is strict, it streams, and a handler refuses DOCTYPE, without which
no entity can be declared.
"""

from __future__ import annotations

import bz2
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from xml.parsers import expat

from maskwright.errors import InputError
from maskwright.text.streams import check_expansion, open_file

_CHUNK_BYTES = 1 << 18
_MAX_TEXT_CHARS = 1 << 23
"""MediaWiki itself stores at most 2 MB per page."""
_MAX_TOKEN_BYTES = 1 << 22
_MAX_DEPTH = 32
_BZ2_MAGIC = b"BZh"
_REDIRECT = re.compile(r"\s*#redirect\b[^\[\n]*\[\[", re.IGNORECASE)


@dataclass
class WikiPage:
    """One page in its last revision of the dump."""

    title: str = ""
    namespace: str = "0"
    model: str = "wikitext"
    text: str = ""
    has_redirect: bool = False
    is_oversized: bool = False

    @property
    def is_redirect(self) -> bool:
        return self.has_redirect or _REDIRECT.match(self.text) is not None


@dataclass
class WikiDump:
    """An open dump: `pages()` yields each page once; the names of namespaces are known from the first page on."""

    path: Path
    namespaces: dict[str, str] = field(default_factory=dict)
    """Local names by number: {"6": "Datei", "14": "Kategorie", ...}."""
    num_pages: int = 0
    num_bytes: int = 0
    """How far the file was read; of a compressed one, in compressed bytes."""

    def pages(self) -> Iterator[WikiPage]:
        """Errors: InputError for what is no dump, is cut off or malformed, or declares a DOCTYPE."""
        handler = _DumpHandler(self)
        with open_file(self.path) as raw:
            file = bz2.BZ2File(raw) if _is_bz2(raw) else raw
            num_parsed = 0
            while chunk := self._read(file):
                self.num_bytes = raw.tell()
                self._parse(handler, chunk)
                num_parsed += len(chunk)
                check_expansion(self.path, self.num_bytes, num_parsed)
                if num_parsed - handler.parser.CurrentByteIndex > _MAX_TOKEN_BYTES:
                    raise InputError(f"{self.path} holds a tag or comment of over {_MAX_TOKEN_BYTES:,} bytes")
                yield from handler.take_pages()
            self._parse(handler, b"")
            yield from handler.take_pages()
        if not self.num_pages:
            raise InputError(f"{self.path} holds no page; expected a MediaWiki pages-articles dump")

    def _read(self, file: BufferedReader | bz2.BZ2File) -> bytes:
        try:
            return file.read1(_CHUNK_BYTES)
        except (EOFError, OSError) as error:
            raise InputError(f"{self.path} is cut off or damaged {self._after()}: {error}") from error

    def _parse(self, handler: _DumpHandler, chunk: bytes) -> None:
        try:
            handler.parser.Parse(chunk, not chunk)
        except expat.ExpatError as error:
            what = "is not well-formed XML" if chunk else "is cut off"
            raise InputError(f"{self.path} {what} {self._after()}: {error}") from error

    def _after(self) -> str:
        return f"after {self.num_pages:,} pages"


class _DumpHandler:
    """Expat's events to pages. Text is collected only inside the few elements that matter, and to a bound."""

    def __init__(self, dump: WikiDump) -> None:
        self.dump = dump
        self.parser = expat.ParserCreate("UTF-8")
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self._refuse_doctype
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self._path: list[str] = []
        self._pages: list[WikiPage] = []
        self._page = WikiPage()
        self._pieces: list[str] = []
        self._num_chars = 0
        self._namespace_key = ""

    def take_pages(self) -> list[WikiPage]:
        """The pages finished since the last call."""
        pages, self._pages = self._pages, []
        return pages

    def _refuse_doctype(self, *_: object) -> None:
        raise InputError(f"{self.dump.path} declares a DOCTYPE, which no MediaWiki dump has: refused (entity attacks)")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name)
        if len(self._path) == 1 and name != "mediawiki":
            raise InputError(f"{self.dump.path} is no MediaWiki dump: its root element is <{name}>, not <mediawiki>")
        if len(self._path) > _MAX_DEPTH:
            raise InputError(f"{self.dump.path} nests elements {_MAX_DEPTH} deep; no MediaWiki dump does")
        self._pieces, self._num_chars = [], 0
        match self._path[1:]:
            case ["page"]:
                self._page = WikiPage()
            case ["page", "redirect"]:
                self._page.has_redirect = True
            case ["page", "revision"]:
                self._page.text, self._page.model, self._page.is_oversized = "", "wikitext", False
            case ["siteinfo", "namespaces", "namespace"]:
                self._namespace_key = attributes.get("key", "")

    def _characters(self, text: str) -> None:
        self._num_chars += len(text)
        if self._num_chars <= _MAX_TEXT_CHARS:
            self._pieces.append(text)

    def _end(self, name: str) -> None:
        text = "".join(self._pieces)
        match self._path[1:]:
            case ["page"]:
                self._pages.append(self._page)
                self.dump.num_pages += 1
            case ["page", "title"]:
                self._page.title = text
            case ["page", "ns"]:
                self._page.namespace = text.strip()
            case ["page", "revision", "model"]:
                self._page.model = text.strip()
            case ["page", "revision", "text"]:
                self._page.text = text
                self._page.is_oversized = self._num_chars > _MAX_TEXT_CHARS
            case ["siteinfo", "namespaces", "namespace"]:
                self.dump.namespaces[self._namespace_key] = text
        self._path.pop()
        self._pieces, self._num_chars = [], 0


def _is_bz2(file: BufferedReader) -> bool:
    start = file.read(len(_BZ2_MAGIC))
    file.seek(0)
    return start == _BZ2_MAGIC
