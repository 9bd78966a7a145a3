"""Questions as people write them down, and answers found where they stand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from qa_lab import build_questions, write_squad
from task_lab import write_lines

from maskwright.errors import InputError
from maskwright.tasks.config import build_task_config
from maskwright.tasks.qa.examples import QuestionFile, find_answer, read_questions

CONTEXT = "  The cat saw the dog.\nThe Cat saw  the\tbird."


def read(path: Path, **values: Any) -> QuestionFile:
    return read_questions(
        path, build_task_config({"task": "qa", "model": "m", "train": "t", "validation": "v", **values})
    )


@pytest.mark.parametrize(
    ("answer", "start", "found"),
    [
        ("The cat", 2, (2, 9)),
        ("the", 14, (14, 17)),
        ("the", 30, (36, 39)),
        ("The cat", None, (2, 9)),
        ("The cat", 24, (2, 9)),
        (" the dog ", 13, (14, 21)),
        ("the bird", 0, (36, 44)),
        ("SAW THE BIRD", 3, (31, 44)),
        ("a.t", 0, None),
        ("", 0, None),
        ("  ", 0, None),
        ("The cat", -1, (2, 9)),
        ("The cat", 10**6, (2, 9)),
    ],
)
def test_an_answer_is_found_where_it_is_said_to_be_or_nearest_to_that(
    answer: str, start: int | None, found: tuple[int, int] | None
) -> None:
    assert find_answer(CONTEXT, answer, start) == found


def test_whole_words_come_before_parts_of_words() -> None:
    context = "The party was in the Art hall, a state-of-the-art one."
    assert find_answer(context, "art") == (context.index("art one"), context.index("art one") + 3)
    assert find_answer(context, "hal") == (context.index("hal"), context.index("hal") + 3)


@pytest.mark.parametrize("start", ["14.0", 14.0])
def test_tables_may_write_whole_numbers_with_a_point(tmp_path: Path, start: Any) -> None:
    record = {"question": "who?", "context": CONTEXT, "answer": "the", "start": start}
    (question,) = read(write_lines(tmp_path / "q.jsonl", [record])).examples
    assert question.spans == ((14, 17),)


@pytest.mark.parametrize("start", ["14.5", "Infinity", "here"])
def test_a_start_that_is_no_whole_number_is_refused(tmp_path: Path, start: str) -> None:
    record = {"question": "who?", "context": CONTEXT, "answer": "the", "start": start}
    with pytest.raises(InputError, match="expected the number of a character"):
        read(write_lines(tmp_path / "q.jsonl", [record]))


def test_squad_files_are_read_as_published(tmp_path: Path) -> None:
    path = write_squad(tmp_path / "dev-v2.0.json", build_questions(20, seed=0, unanswered=0.5))
    file = read(path)
    assert len(file.examples) == 20
    num_unanswered = sum(not one.answers for one in file.examples)
    assert 0 < num_unanswered < 20
    assert f"{num_unanswered} have no answer" in file.describe()
    assert file.examples[3].place == f"{path}: q3"
    for one in file.examples:
        assert [one.context[slice(*span)] for span in one.spans] == list(one.answers)


def test_a_plausible_answer_to_an_impossible_question_is_none(tmp_path: Path) -> None:
    asked = {"id": "1", "question": "who?", "is_impossible": True, "plausible_answers": [{"text": "a cat"}]}
    asked["answers"] = [{"text": "a cat", "answer_start": 0}]
    known = {"id": "2", "question": "what?", "answers": [{"text": "a cat", "answer_start": 0}]}
    content = {"data": [{"paragraphs": [{"context": "a cat", "qas": [asked, known]}]}]}
    path = tmp_path / "train.json.gz"
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    assert [one.answers for one in read(path).examples] == [(), ("a cat",)]


@pytest.mark.parametrize(
    ("fields", "answers", "spans"),
    [
        ({"answers": {"text": ["dog", "the dog"], "answer_start": [18, 14]}}, ("dog", "the dog"), ((18, 21), (14, 21))),
        ({"answers": {"text": [], "answer_start": []}}, (), ()),
        ({"answers": [{"text": "dog", "answer_start": 18}]}, ("dog",), ((18, 21),)),
        ({"answers": ["dog"]}, ("dog",), ((18, 21),)),
        ({"answer": "the", "answer_start": 36}, ("the",), ((36, 39),)),
        ({"answer": "the", "start": 14}, ("the",), ((14, 17),)),
        ({"answer": {"text": "dog"}}, ("dog",), ((18, 21),)),
        ({"answer": ""}, (), ()),
        ({"answer": None}, (), ()),
        ({"answers": ["dog", "a bear"]}, ("dog", "a bear"), ((18, 21),)),
    ],
)
def test_records_say_their_answers_in_many_ways(
    tmp_path: Path, fields: dict[str, Any], answers: tuple[str, ...], spans: tuple[tuple[int, int], ...]
) -> None:
    record = {"question": " who? ", "context": CONTEXT, **fields}
    (question,) = read(write_lines(tmp_path / "q.jsonl", [record])).examples
    assert (question.text, question.context, question.answers, question.spans) == ("who?", CONTEXT, answers, spans)


def test_tables_are_read_with_named_columns(tmp_path: Path) -> None:
    table = tmp_path / "q.csv"
    table.write_text('q,passage,gold,answer_start\nwho?,"the cat, the cat",the cat,9\nwhy?,none here,,\n', "utf-8")
    file = read(table, text_column="q", second_column="passage", label_column="gold")
    assert [one.spans for one in file.examples] == [((9, 16),), ()]
    table.write_text(f"question,context,answer\nwho?,{'a dog ' * 30_000}cat,cat\n", "utf-8")
    assert read(table).examples[0].spans == ((180_000, 180_003),)
    records = [{"question": "who?", "context": "a cat", "answers": {"text": ["cat"], "answer_start": [2]}}]
    parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "q.parquet")
    assert read(tmp_path / "q.parquet").examples[0].spans == ((2, 5),)
    parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "r.parquet")
    assert [one.spans for one in read(tmp_path / "?.parquet").examples] == [((2, 5),), ((2, 5),)]


def test_a_parquet_file_whose_texts_are_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "q.parquet"
    records = [{"id": "1", "question": "who?", "context": "zebra", "answers": {"text": ["ze"], "answer_start": [0]}}]
    parquet.write_table(pyarrow.Table.from_pylist(records), path, compression="none", use_dictionary=False)
    path.write_bytes(path.read_bytes().replace(b"zebra", b"\xefebra"))
    with pytest.raises(InputError, match=r"q.parquet holds a text that is not UTF-8; write the file again"):
        read(path)


def test_answers_that_are_not_there_are_counted_and_shown(tmp_path: Path) -> None:
    records = [
        {"question": "who?", "context": "a cat", "answer": "cat"},
        {"question": "who?", "context": "a cat", "answer": "a bear"},
        {"question": " ", "context": "a cat", "answer": "cat"},
    ]
    path = write_lines(tmp_path / "q.jsonl", records)
    file = read(path)
    assert [one.answers for one in file.examples] == [("cat",), ("a bear",)]
    told = file.describe()
    assert f"1 answers not found in their context, left out of training, first: {path}:2 'a bear'" in told
    assert "2 questions about 1 contexts" in told
    assert "1 with an empty text left out" in told


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("q.json", "{", r"q\.json is not JSON"),
        ("q.json", "[]", "has no list 'data' as SQuAD's files have"),
        ("q.json", '{"data": [{"paragraphs": [{"context": "a"}]}]}', "a part without a list 'qas' of objects"),
        ("q.json", '{"data": []}', "holds no question with a context"),
        ("q.jsonl", '{"question": "who?", "answer": "a"}', r"q\.jsonl:1 has no 'context'; expected text"),
        ("q.jsonl", '{"question": 3, "context": "a"}', "has a int in 'question'"),
        ("q.jsonl", '{"question": "a", "context": "a"}', "has no 'answers' or 'answer'; it has question, context"),
        ("q.jsonl", '{"question": "a", "context": "a", "answer": 3}', "has 3 in 'answer'; expected a text"),
        ("q.jsonl", '{"question": "a", "context": "a", "answer": "a", "start": "x"}', "starts at 'x'; expected"),
        ("q.jsonl", '{"question": "a", "context": "a", "answer": "b"}', "none of the 1 answers .* is in its context"),
        ("q.parquet", "nothing", "is damaged or no Parquet file"),
        ("q.docx", "nothing", "has an unknown suffix"),
    ],
)
def test_what_is_no_question_is_refused_with_its_place(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=words):
        read(tmp_path / name)


def test_columns_are_not_named_for_squad_files(tmp_path: Path) -> None:
    path = write_squad(tmp_path / "dev.json", build_questions(2, seed=0))
    with pytest.raises(InputError, match="has no columns to name"):
        read(path, text_column="question")
    with pytest.raises(InputError, match=r"no file at .*none\.json"):
        read(tmp_path / "none.json")
