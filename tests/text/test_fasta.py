"""FASTA files as sources: records over several lines, case, gaps, stops, and what is broken."""

from __future__ import annotations

import gzip

import pytest

from maskwright.errors import InputError
from maskwright.text import sentences
from maskwright.text.corpus import ReadingReport
from maskwright.text.rows import WantedColumns, read_rows
from maskwright.text.sources import read_part, read_source
from maskwright.text.tokenizer.train import train_tokenizer

PROTEINS = """>sp|P69905|HBA_HUMAN Haemoglobin
MVLSPADK
tnvkaawg

>second an alignment
;a comment
MK--L.X*
>third
A*C
"""


def read(path, **settings):
    report = ReadingReport()
    return list(read_source({"path": str(path), **settings}, report)), report


@pytest.mark.parametrize("suffix", [".fasta", ".fa", ".faa", ".fna", ".fasta.gz"])
def test_sequences_are_documents(tmp_path, suffix):
    file = tmp_path / f"proteins{suffix}"
    file.write_bytes(gzip.compress(PROTEINS.encode()) if suffix.endswith("gz") else PROTEINS.encode())
    texts, report = read(file)
    assert texts == ["MVLSPADKTNVKAAWG", "MKLX", "A*C"]
    assert report.num_documents == 3
    assert not report.warnings()


def test_windows_lines_are_lines(tmp_path):
    file = tmp_path / "proteins.fa"
    file.write_bytes(PROTEINS.replace("\n", "\r\n").encode())
    assert read(file)[0] == ["MVLSPADKTNVKAAWG", "MKLX", "A*C"]


def test_broken_records_are_left_out_and_counted(tmp_path):
    file = tmp_path / "proteins.fasta"
    file.write_text(PROTEINS + ">empty\n>odd\nMK1L\n>\nM\n")
    texts, report = read(file)
    assert texts[3:] == ["M"]
    (warning,) = report.warnings()
    assert f"{file}:10 ('empty') has a header and no sequence" in warning
    assert f"{file}:11 ('odd') holds '1', which stands for no residue" in warning


def test_many_broken_records_are_refused(tmp_path):
    file = tmp_path / "proteins.fasta"
    file.write_text(PROTEINS + ">odd\nM?\n" * 200)
    with pytest.raises(InputError, match=r"of the first \d+ records are broken, first .*holds .\?."):
        read(file)


@pytest.mark.parametrize("content", ["MKV\n>late\nMK\n", "no fasta at all\n"])
def test_what_is_no_fasta_is_refused_in_one_sentence(tmp_path, content):
    file = tmp_path / "proteins.fasta"
    file.write_text(content)
    with pytest.raises(InputError, match=r"proteins\.fasta:1 is no FASTA: the first line must be a header") as refusal:
        read(file)
    assert "\n" not in str(refusal.value)


def test_a_file_without_records_is_empty(tmp_path):
    file = tmp_path / "proteins.fasta"
    file.write_text("\n;only a comment\n")
    with pytest.raises(InputError, match="holds no text"):
        read(file)


@pytest.mark.parametrize("line", [60, 10**6])
def test_a_chromosome_is_several_documents(tmp_path, monkeypatch, line):
    monkeypatch.setattr(sentences, "MAX_DOCUMENT_CHARS", 1000)
    bases = "acgtn" * 730
    lines = [bases[start : start + line] for start in range(0, len(bases), line)]
    file = tmp_path / "genome.fa"
    file.write_text(">chr1\n" + "\n".join(lines) + "\n>chr2\nACGT\n")
    texts, report = read(file)
    assert "".join(texts[:-1]) == bases.upper()
    assert max(map(len, texts)) <= 1000
    assert texts[-1] == "ACGT"
    assert (report.num_documents, report.num_long_lines) == (len(texts), 1)


def test_rows_have_the_header_s_name(tmp_path):
    file = tmp_path / "proteins.fasta"
    file.write_text(PROTEINS + ">empty\n")
    rows = list(read_rows(str(file), WantedColumns(("text",)), ReadingReport()))
    assert [(row.values["id"], row.texts[0]) for row in rows] == [
        ("sp|P69905|HBA_HUMAN", "MVLSPADKTNVKAAWG"),
        ("second", "MKLX"),
        ("third", "A*C"),
        ("empty", None),
    ]


def test_a_second_column_is_refused(tmp_path):
    file = tmp_path / "proteins.fasta"
    file.write_text(PROTEINS)
    with pytest.raises(InputError, match="second_column"):
        read(file, second_column="other")


def test_characters_are_tokens_and_come_back_without_spaces():
    tokenizer = train_tokenizer(["MKVLA", "MX*"], "character", min_frequency=1, lowercase=False)
    encoding = tokenizer.backend.encode("MK[MASK]LZ", add_special_tokens=False)
    assert encoding.tokens == ["M", "K", "[MASK]", "L", "[UNK]"]
    assert tokenizer.backend.decode(tokenizer.backend.encode("MKVLA*").ids) == "MKVLA*"
    assert tokenizer.vocab_size == 5 + len(set("MKVLAX*"))


def test_smiles_are_atoms_bonds_and_rings():
    text = "C[C@@H](N)C(=O)O.[Na+]>>BrCC%12Clc1ccccc1"
    tokenizer = train_tokenizer([text], "smiles", min_frequency=1, lowercase=False)
    tokens = tokenizer.backend.encode(text, add_special_tokens=False).tokens
    assert tokens[:6] == ["C", "[C@@H]", "(", "N", ")", "C"]
    assert tokens[10:20] == ["O", ".", "[Na+]", ">>", "Br", "C", "C", "%12", "Cl", "c"]
    assert tokenizer.backend.decode(tokenizer.backend.encode(text).ids) == text


def test_smiles_keep_their_case():
    with pytest.raises(InputError, match="SMILES tells aromatic atoms by their case; keep it"):
        train_tokenizer(["CCO"], "smiles")


def test_a_part_of_the_files_is_read_alike(tmp_path):
    from maskwright.sections.data import SourceConfig
    from maskwright.text.records import RecordTally
    from maskwright.text.sources import list_files

    for number in range(2):
        (tmp_path / f"{number}.fa").write_text(PROTEINS)
    source = SourceConfig(path=str(tmp_path))
    tally = RecordTally(source.path, 0.01, ReadingReport())
    assert list(read_part(source, list_files(source)[1:], tally)) == ["MVLSPADKTNVKAAWG", "MKLX", "A*C"]
