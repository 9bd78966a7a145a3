"""Texts and records that a caller holds: each form gives the same texts, and what cannot be read is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from rich.console import Console

import maskwright as mw
from maskwright.errors import InputError, InputWarning
from maskwright.runs.create import create_mlm_dataset
from maskwright.runs.given import name_sources
from maskwright.tasks.tables import as_table
from maskwright.text.in_memory import find_text_column, read_texts
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.text.tokenizer.train import train_tokenizer
from tiny_bert import build_tiny_bert

TEXTS = ["the cat sees a road", "a dog sees the cat", "every road has a cat"]
RECORDS = [{"id": number, "content": text} for number, text in enumerate(TEXTS)]


class PolarsFrame:
    """The methods of polars' frame that are used."""

    def __init__(self, records: list[dict[str, Any]]) -> None:
        self.columns = list(records[0])
        self._records = records

    def iter_rows(self, *, named: bool) -> Iterator[dict[str, Any]]:
        assert named
        return iter(self._records)


class LazyPolarsFrame(PolarsFrame):
    def collect(self) -> PolarsFrame:
        return self

    def collect_schema(self) -> list[str]:
        return self.columns


def make_dataset(records: list[dict[str, Any]]) -> Any:
    return pytest.importorskip("datasets").Dataset.from_list(records)


FORMS: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "dictionaries": lambda records: records,
    "generator": lambda records: (record for record in records),
    "pandas": lambda records: pytest.importorskip("pandas").DataFrame(records),
    "polars": lambda records: pytest.importorskip("polars").DataFrame(records),
    "polars, by its methods": PolarsFrame,
    "arrow": pyarrow.Table.from_pylist,
    "dataset": make_dataset,
    "iterable dataset": lambda records: make_dataset(records).to_iterable_dataset(),
    "iterable dataset without features": lambda records: pytest.importorskip("datasets").IterableDataset.from_generator(
        lambda: iter(records)
    ),
}


@pytest.fixture(params=FORMS)
def make(request: pytest.FixtureRequest) -> Callable[[list[dict[str, Any]]], Any]:
    return FORMS[request.param]


def test_every_form_gives_its_texts_and_says_the_guessed_column(make: Callable[..., Any]) -> None:
    said: list[str] = []
    assert list(read_texts(make(RECORDS), say=said.append)) == TEXTS
    assert len(said) == 1
    assert "its texts are those of 'content'; for another, name it as column=" in said[0]


def test_a_column_called_text_needs_no_words(make: Callable[..., Any]) -> None:
    said: list[str] = []
    assert list(read_texts(make([{"text": text, "title": "x"} for text in TEXTS]), say=said.append)) == TEXTS
    assert said == []


def test_a_tokenizer_learns_the_same_from_every_form(make: Callable[..., Any]) -> None:
    expected = train_tokenizer(TEXTS, vocab_size=60).backend.to_str()
    assert train_tokenizer(make(RECORDS), vocab_size=60, column="content").backend.to_str() == expected


def test_a_dataset_is_made_of_every_form(make: Callable[..., Any], tokenizer: Tokenizer) -> None:
    expected = create_mlm_dataset(TEXTS, tokenizer, max_length=32)
    with pytest.warns(InputWarning, match="those of 'content'"):
        found = create_mlm_dataset(make(RECORDS), tokenizer, max_length=32)
    ids = [sorted(batch.input_ids.flatten().tolist() for batch in loader) for loader in (expected, found)]
    assert ids[0] == ids[1]


def test_labelled_examples_are_read_from_every_form(make: Callable[..., Any]) -> None:
    table = as_table(make([{"text": text, "label": "x"} for text in TEXTS]), "memory:train")
    assert [record.values["text"] for record in table.records] == TEXTS
    assert table.columns == ("text", "label")


@pytest.fixture(scope="module")
def encoder(tokenizer: Tokenizer) -> mw.BERT:
    return build_tiny_bert(tokenizer, hidden_size=16, num_hidden_layers=1, max_position_embeddings=32)


def test_texts_of_every_form_are_answered_measured_and_adapted_to(
    make: Callable[..., Any], encoder: mw.BERT, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """What `adapt` reads is what it writes down first."""
    with pytest.warns(InputWarning, match="those of 'content'"):
        answers = mw.predict("embed", encoder, make(RECORDS), tokenizer=tokenizer)
    assert [one.tolist() for one in answers] == [
        one.tolist() for one in mw.predict("embed", encoder, TEXTS, tokenizer=tokenizer)
    ]
    model = mw.MaskedLanguageModel(encoder, tokenizer=tokenizer)
    expected = mw.evaluate(model, "pll", [{"text": text} for text in TEXTS], tokenizer=tokenizer)
    with pytest.warns(InputWarning, match="for another, call it 'text'"):
        found = mw.evaluate(model, "pll", make(RECORDS), tokenizer=tokenizer)
    assert found.figures[0][0].mean == expected.figures[0][0].mean
    with pytest.warns(InputWarning, match="for another, call it 'text'"):
        (file,) = name_sources(make(RECORDS), tmp_path, are_texts=True)
    lines = Path(str(file)).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [{"text": text} for text in TEXTS]


def test_examples_of_every_form_are_learned_from(
    make: Callable[..., Any], encoder: mw.BERT, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    examples = [{**record, "label": "ab"[number % 2]} for number, record in enumerate(RECORDS)]
    finished = mw.finetune(
        "classification",
        tmp_path / "run",
        model=encoder,
        tokenizer=tokenizer,
        train=make(examples),
        validation=make(examples),
        epochs=1,
        settings={"training.device": "cpu"},
        console=Console(quiet=True),
    )
    assert finished.figures[0]["train_examples"] == finished.figures[0]["examples"] == len(TEXTS)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"text": TEXTS}, "memory:texts is a dict of text; give one of its splits, or a list of dictionaries"),
        ({"a": 1}, "memory:texts is a dict of a"),
        (3, "an input is a int; expected a text or a list of texts"),
        ([1, 2], "an input is a int"),
    ],
    ids=["dictionary of columns", "dictionary", "number", "numbers"],
)
def test_what_cannot_be_answered_is_refused(encoder: mw.BERT, tokenizer: Tokenizer, data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mw.predict("embed", encoder, data, tokenizer=tokenizer)


def test_one_record_and_the_splits_of_a_dataset(encoder: mw.BERT, tokenizer: Tokenizer) -> None:
    assert len(mw.predict("embed", encoder, {"text": "the cat"}, tokenizer=tokenizer)) == 1
    splits = pytest.importorskip("datasets").DatasetDict({"train": make_dataset(RECORDS)})
    with pytest.raises(InputError, match="the DatasetDict holds the splits train; give one of them"):
        mw.predict("embed", encoder, splits, tokenizer=tokenizer)


@pytest.mark.parametrize("form", ["series", "generator", "array", "column"])
def test_strings_come_in_every_form(form: str, tokenizer: Tokenizer) -> None:
    data = {
        "series": lambda: pytest.importorskip("pandas").Series(TEXTS),
        "generator": lambda: (text for text in TEXTS),
        "array": lambda: pytest.importorskip("numpy").array(TEXTS),
        "column": lambda: make_dataset(RECORDS)["content"],
    }[form]
    assert list(read_texts(data())) == TEXTS
    assert len(create_mlm_dataset(data(), tokenizer, max_length=32).samples) == len(TEXTS)
    assert (
        train_tokenizer(data(), vocab_size=60).backend.to_str()
        == train_tokenizer(TEXTS, vocab_size=60).backend.to_str()
    )


@pytest.mark.parametrize(
    ("data", "column", "message"),
    [
        (
            [{"a": "x", "b": "y"}],
            None,
            "the list has no column known to hold text; it has 'a', 'b': name it as column=",
        ),
        (RECORDS, "body", "the list has no column 'body'; it has 'id', 'content': name it as column="),
        (["a cat", 3], None, "among the texts is a int, 3; give strings"),
        ([{"text": "a cat"}, "a dog"], None, "list:2 is a str; expected a record"),
        (TEXTS, "text", "column is 'text', and a list of texts has no columns"),
        (3, None, "int is of type int; expected"),
        (LazyPolarsFrame(RECORDS), None, "is a LazyPolarsFrame; give the data frame that its collect"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_cannot_be_read_is_refused(data: Any, column: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(read_texts(data, column))
    with pytest.raises(InputError, match=message):
        train_tokenizer(data, vocab_size=60, column=column)


def test_the_only_column_of_strings_is_the_text() -> None:
    said: list[str] = []
    assert find_text_column({"number": 1, "Zeile": "ein Satz"}, None, "the list", said.append) == "Zeile"
    assert find_text_column({"Text": "b", "x": "a"}, None, "the list", said.append) == "Text"
    assert len(said) == 2


def test_nothing_is_imported_for_the_sake_of_a_form() -> None:
    """What is not loaded cannot have made the data."""
    code = (
        "import sys; from maskwright.text.in_memory import read_texts; list(read_texts([{'text': 'a'}]));"
        "print([name for name in ('pandas', 'polars', 'datasets') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_table_of_nothing_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="the Table is empty; expected at least one text"):
        create_mlm_dataset(pyarrow.table({"text": []}), tokenizer)
    with pytest.raises(InputError, match="no word to learn a vocabulary from"):
        train_tokenizer(pyarrow.table({"text": []}))
