"""Texts cut into sentences, and sources that are read so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskwright.config import Config
from maskwright.errors import InputError
from maskwright.runs.inputs import open_tokenizer
from maskwright.runs.prepare import prepare
from maskwright.runs.prepare_tasks import PrepareOptions
from maskwright.runs.texts import read_documents
from maskwright.sections.data import build_sources
from maskwright.text.sentences import split_sentences
from maskwright.text.sources import read_source
from maskwright.text.tokenizer.train import train_tokenizer


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It rains. It pours!", ["It rains.", "It pours!"]),
        ("A heading\nOne line.\nAnother\nline.", ["One line.", "line."]),
        ('"Is it so?" he asked. "Yes!" She left.', ['"Is it so?" he asked.', '"Yes!"', "She left."]),
        ("It cost 3.12 million, e.g. in the U.K. today. (So he said.) Enough", None),
        ("Dr. J. R. Smith met Mr. Brown. No. 5 is alive.", ["Dr. J. R. Smith met Mr. Brown.", "No. 5 is alive."]),
        ("彼は来た。私も行く。", ["彼は来た。", "私も行く。"]),
        ("Wait… What?!", ["Wait…", "What?!"]),
        ("no mark at all", []),
        ("", []),
    ],
)
def test_sentences(text: str, sentences: list[str] | None) -> None:
    expected = ["It cost 3.12 million, e.g. in the U.K. today.", "(So he said.)"] if sentences is None else sentences
    assert list(split_sentences(text)) == expected


@given(st.text(alphabet="ab A.!? \n\"'。", max_size=60))
def test_sentences_are_parts_of_the_text_in_order_and_end_like_sentences(text: str) -> None:
    place = 0
    for sentence in split_sentences(text):
        place = text.index(sentence, place) + len(sentence)
        assert sentence.rstrip("\"'")[-1] in ".!?。"


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    texts = [f"Stone {number} is old. The bridge over it is new. Title {number}" for number in range(20)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def test_a_source_is_read_as_sentences(documents: Path) -> None:
    found = list(read_source({"path": str(documents), "sentences": True}))
    assert found[:3] == ["Stone 0 is old.", "The bridge over it is new.", "Stone 1 is old."]
    assert len(found) == 40


def test_a_source_without_sentences_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("one\ntwo\n", encoding="utf-8")
    with pytest.raises(InputError, match="holds no sentence"):
        list(read_source({"path": str(path), "sentences": True}))


def test_sentences_of_pairs_are_refused(documents: Path) -> None:
    with pytest.raises(InputError, match="sentences cuts single texts"):
        build_sources({"path": str(documents), "sentences": True, "second_column": "other"})


def test_whole_texts_and_their_sentences_need_held_out_texts_of_their_own(documents: Path, tmp_path: Path) -> None:
    both = [{"path": str(documents)}, {"path": str(documents), "sentences": True}]
    with pytest.raises(InputError, match="read whole and as sentences"):
        read_documents(Config.model_validate({"data": {"train": both}}), print)
    read = read_documents(Config.model_validate({"data": {"train": both, "validation": str(documents)}}), print)
    assert [len(texts) for texts in read.train] == [20, 40]
    train_tokenizer(read.train[0], "wordpiece", 200).save(tmp_path / "tokenizer")
    tokenizer = open_tokenizer(str(tmp_path / "tokenizer"))
    with pytest.raises(InputError, match="read whole and as sentences"):
        prepare(build_sources(both), tokenizer, tmp_path / "out")
    manifest = prepare(build_sources(both), tokenizer, tmp_path / "out", PrepareOptions(validation_share=0.0))
    assert manifest["num_documents"] == 60
    assert ["sentences" in source for source in manifest["sources"]] == [False, True]
