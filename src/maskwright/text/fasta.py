"""FASTA files, sequences of proteins, DNA or RNA under `>` headers, to records and documents.

Letters are upper-cased, as lower case only marks repeats (soft masking). Gaps of alignments (`-`, `.`) and a final stop
(`*`) are no part of the sequence; letters for several or unknown residues (X, N, B, Z, J and others) stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from maskwright.errors import InputError
from maskwright.text import sentences
from maskwright.text.corpus import decode_lines
from maskwright.text.records import RecordTally, Texts
from maskwright.text.streams import ByteStream

_LEFT_OUT = str.maketrans("", "", "-. \t\r")
_STRANGER = re.compile(r"[^A-Z*]")


@dataclass
class FastaRecord:
    """A sequence, or of a long one a piece."""

    name: str
    """The first word of the header."""
    line: int
    """That of the header."""
    sequence: str = ""
    is_piece: bool = False
    """Whether more of the sequence follows, or came before."""
    trouble: str | None = None


def fasta_texts(stream: ByteStream, tally: RecordTally) -> Iterator[Texts]:
    """The sequences, long ones in pieces; records without a sequence, or with what is no letter, count as broken."""
    for record in fasta_records(stream, tally):
        if record.trouble is None:
            tally.report.num_documents += 1
            yield (record.sequence,)


def fasta_records(stream: ByteStream, tally: RecordTally) -> Iterator[FastaRecord]:
    """Every record in its place, pieces of long sequences one after another; broken ones say their trouble."""
    longest = sentences.MAX_DOCUMENT_CHARS
    keeps_whole = tally.report.keeps_long_texts
    record: FastaRecord | None = None
    parts: list[str] = []
    for number, line in decode_lines(stream, tally.report, cut_long_lines=True):
        if line.startswith(">"):
            if record is not None:
                yield _finish(record, parts, stream, tally)
            name = line[1:].split(maxsplit=1)
            record, parts = FastaRecord(name[0] if name else "", number), []
            tally.num_seen += 1
        elif line.strip() and not line.startswith(";"):
            if record is None:
                raise InputError(
                    f"{stream.path}:{number} is no FASTA: the first line must be a header that begins with >"
                )
            parts.append(line.translate(_LEFT_OUT).upper())
            while not keeps_whole and record.trouble is None and sum(map(len, parts)) > longest:
                whole = "".join(parts)
                record.is_piece = True
                tally.report.note_long(f"{stream.path}:{record.line}")
                piece = _finish(FastaRecord(record.name, record.line, is_piece=True), [whole[:longest]], stream, tally)
                record.trouble = piece.trouble
                parts = [whole[longest:]]
                if piece.trouble is None:
                    yield piece
    if record is not None:
        yield _finish(record, parts, stream, tally)


def _finish(record: FastaRecord, parts: list[str], stream: ByteStream, tally: RecordTally) -> FastaRecord:
    where = f"{stream.path}:{record.line}"
    if record.trouble is not None:
        return record
    record.sequence = "".join(parts).removesuffix("*")
    stranger = _STRANGER.search(record.sequence)
    if stranger is not None:
        record.trouble = f"('{record.name}') holds '{stranger[0]}', which stands for no residue"
    elif not record.sequence:
        record.trouble = f"('{record.name}') has a header and no sequence"
    if record.trouble is not None:
        tally.skip(where, record.trouble)
    return record
