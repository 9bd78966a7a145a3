"""Answers to questions: the same as from transformers' logits, and always the characters they claim to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
from pyarrow import parquet
from tiny_models import SCORE_ERROR, SHAPE, save
from typer.testing import CliRunner

from maskwright.cli.app import app
from maskwright.errors import InputError, InputWarning
from maskwright.inference.pipeline import pipeline
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.text.tokenizer.train import train_tokenizer
from tolerances import rounding

transformers = pytest.importorskip("transformers")
MAX_LENGTH = 48
CONTEXT = "  The small dog sees a long road, and  the Cat likes\nevery green house in the morning — before it rains."
QUESTIONS = ["who likes the house?", "what does the dog see", "when?"]
LONG = "\n".join(f"{number}. {CONTEXT}" for number in range(12))


@pytest.fixture(scope="module", params=["bert", "roberta"])
def qa_folder(request: pytest.FixtureRequest, sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 48 positions as transformers writes it; RoBERTa's words carry the space before them."""
    kind = {"bert": "wordpiece", "roberta": "byte_level_bpe"}[request.param]
    return build_folder(request.param, train_tokenizer(sentences, type=kind, vocab_size=300), tmp_path_factory)


@pytest.fixture(scope="module")
def bert_qa(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_folder("bert", tokenizer, tmp_path_factory)


def build_folder(family: str, tokenizer: Tokenizer, factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        family,
        vocab_size=tokenizer.vocab_size,
        max_position_embeddings=MAX_LENGTH + (tokenizer.pad_token_id + 1 if family == "roberta" else 0),
        pad_token_id=tokenizer.pad_token_id,
        type_vocab_size=1 if family == "roberta" else 2,
        **SHAPE,
    )
    return save(transformers.AutoModelForQuestionAnswering.from_config(config), tokenizer, factory.mktemp(family))


def build(folder: Path, **options: Any) -> Any:
    return pipeline("qa", folder, device="cpu", **options)


class ByHand:
    """What the question-answering pipeline of transformers 4 did with one window, on the logits of transformers 5."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()

    def answer(
        self, question: str, context: str, *, longest: int, top_k: int, may_be_unanswered: bool
    ) -> list[dict[str, Any]]:
        has_types = self.model.config.type_vocab_size > 1
        encoded = self.tokenizer(question, context, return_tensors="pt", return_token_type_ids=has_types)
        with torch.no_grad():
            output = self.model(**encoded)
        parts = encoded.sequence_ids(0)
        is_counted = torch.tensor([place == 0 or part == 1 for place, part in enumerate(parts)])
        starts, ends = (
            logits[0].masked_fill(~is_counted, -1e4).softmax(0) for logits in (output.start_logits, output.end_logits)
        )
        tokens = [place for place, part in enumerate(parts) if part == 1]
        pairs = [(first, last) for first in tokens for last in tokens if first <= last < first + longest]
        pairs.sort(key=lambda pair: -float(starts[pair[0]] * ends[pair[1]]))
        answers: dict[str, dict[str, Any]] = {}
        for first, last in pairs[: 2 * top_k + 10]:
            start = encoded.word_to_chars(0, encoded.token_to_word(0, first), 1).start
            end = encoded.word_to_chars(0, encoded.token_to_word(0, last), 1).end
            text = context[start:end]
            said = answers.setdefault(text.lower(), {"score": 0.0, "start": start, "end": end, "answer": text})
            said["score"] += float(starts[first] * ends[last])
        if may_be_unanswered:
            answers[""] = {"score": float(starts[0] * ends[0]), "start": 0, "end": 0, "answer": ""}
        return sorted(answers.values(), key=lambda one: -float(one["score"]))[:top_k]


@pytest.mark.parametrize("may_be_unanswered", [False, True])
@pytest.mark.parametrize(("longest", "top_k"), [(3, 1), (30, 1), (30, 3)])
def test_a_short_context_is_answered_as_by_transformers(
    qa_folder: Path, longest: int, top_k: int, may_be_unanswered: bool
) -> None:
    theirs = ByHand(qa_folder)
    ours = build(qa_folder, max_answer_length=longest, top_k=top_k, handle_impossible_answer=may_be_unanswered)
    for question in QUESTIONS:
        for context in (CONTEXT[2:36], "the Cat, every green house.", "rain"):
            expected = theirs.answer(
                question, context, longest=longest, top_k=top_k, may_be_unanswered=may_be_unanswered
            )
            found = ours((question, context))
            assert isinstance(found, dict) == (top_k == 1)
            found = found if isinstance(found, list) else [found]
            assert all(list(one) == ["score", "start", "end", "answer"] for one in found)
            assert found == [{**one, "score": pytest.approx(one["score"], abs=SCORE_ERROR)} for one in expected]


def test_the_same_words_are_one_answer_with_the_probability_of_all(bert_qa: Path) -> None:
    once, twice = build(bert_qa, top_k=30, max_answer_length=1)([("who?", "the cat"), ("who?", "the cat The cat")])
    assert sorted(one["answer"] for one in once) == ["cat", "the"]
    assert sorted(one["answer"].lower() for one in twice) == ["cat", "the"]


@pytest.mark.parametrize("context", [CONTEXT, LONG], ids=["one window", "many windows"])
def test_answers_are_the_characters_they_claim_to_be(qa_folder: Path, context: str) -> None:
    answers = build(qa_folder, top_k=40, doc_stride=6)({"question": QUESTIONS[0], "context": context})
    assert len(answers) > 10
    assert len({one["answer"].lower() for one in answers}) == len(answers)
    scores = [one["score"] for one in answers]
    assert scores == sorted(scores, reverse=True)
    assert 0.0 < sum(scores) <= 1.0 + rounding(len(scores))
    for one in answers:
        assert context[one["start"] : one["end"]] == one["answer"] == one["answer"].strip() != ""


def test_an_answer_does_not_depend_on_what_stands_far_from_it(bert_qa: Path) -> None:
    """The best span of the whole is the best of some window; its score is its share of all windows."""
    ours = build(bert_qa, max_length=40, doc_stride=10)
    whole = ours((QUESTIONS[0], LONG))
    assert LONG[whole["start"] : whole["end"]] == whole["answer"]
    alone = ours((QUESTIONS[0], LONG + "\n" + LONG))
    assert alone["answer"] == whole["answer"]
    assert alone["score"] < whole["score"]


def test_batches_do_not_change_answers(bert_qa: Path) -> None:
    items = [(question, context) for question in QUESTIONS for context in (CONTEXT, "the cat", LONG)]
    ours = build(bert_qa, doc_stride=6)
    together = ours(items)
    for item, found in zip(items, together, strict=True):
        alone = ours(item)
        assert (alone["start"], alone["end"]) == (found["start"], found["end"])
        assert alone["score"] == pytest.approx(found["score"], abs=SCORE_ERROR)


def test_long_questions_are_cut_with_a_warning(bert_qa: Path) -> None:
    with pytest.warns(InputWarning, match="question 1 has .* tokens and is asked by its first 5"):
        build(bert_qa, max_question_length=5)(("the cat " * 9, CONTEXT))


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("who?", "expected a question and its context"),
        (("who?",), "expected a question and its context"),
        ({"question": "who?"}, "expected a question and its context: question and context"),
        (3, "expected a question and its context"),
    ],
)
def test_what_is_no_question_is_refused(bert_qa: Path, item: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        build(bert_qa)([("who?", "a cat"), item])


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (("", "a cat"), r"^question 1 is empty; give it some text"),
        (("who?", " \n"), r"^the context of question 1 is empty"),
        (("who?", "\u200b\u200d"), r"^question 1 or its context has no token"),
    ],
)
def test_an_empty_text_of_several_is_none_and_one_alone_is_named(bert_qa: Path, item: Any, words: str) -> None:
    ours = build(bert_qa)
    expected = r"^1 of 3 questions have no text in the question or its context; their answer is None$"
    with pytest.warns(InputWarning, match=expected):
        assert [one is None for one in ours([("who?", "a cat"), item, ("who?", "a dog")])] == [False, True, False]
    with pytest.raises(InputError, match=words):
        ours(item)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"top_k": 0}, "top_k is 0; it must be at least 1"),
        ({"max_answer_length": 0}, "max_answer_length is 0"),
        ({"doc_stride": -1}, "the stride -1"),
        ({"max_length": 99}, "max_length is 99"),
        ({"pooling": "mean"}, "qa has no option 'pooling'"),
    ],
)
def test_options_out_of_range_are_refused(bert_qa: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        build(bert_qa, **options)


def test_a_model_without_such_a_head_is_refused(bert_folder: Path) -> None:
    with pytest.raises(InputError, match="holds BertForMaskedLM; expected a model fine-tuned for a task"):
        build(bert_folder)


def predict(*words: str, text: str | None = None) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["predict", "qa", *words, "--device", "cpu"], input=text)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_question_is_asked_about_texts_standard_input_and_whole_files(bert_qa: Path, tmp_path: Path) -> None:
    model, expected = str(bert_qa), build(bert_qa)((QUESTIONS[0], LONG))
    file = tmp_path / "long.txt"
    file.write_text(LONG, encoding="utf-8")
    (from_file,) = predict(model, str(file), "--question", QUESTIONS[0])
    (from_stdin,) = predict(model, "-", "--question", QUESTIONS[0], text=LONG)
    assert from_file == from_stdin == {"row": 0, "question": QUESTIONS[0], "context": LONG, **expected}
    texts = predict(model, CONTEXT, "the cat", "--question", "who?", "--top-k", "2", "--max-answer-length", "1")
    assert [one["context"] for one in texts] == [CONTEXT, "the cat"]
    assert all(len(one["answers"]) == 2 for one in texts)


def test_questions_come_from_records_of_every_format(bert_qa: Path, tmp_path: Path) -> None:
    records = [{"question": question, "context": CONTEXT, "id": question} for question in QUESTIONS]
    expected = build(bert_qa)([(question, CONTEXT) for question in QUESTIONS])
    lines = tmp_path / "q.jsonl"
    lines.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "q.parquet")
    squad = {
        "data": [{"paragraphs": [{"context": CONTEXT, "qas": [{"id": "1", "question": one} for one in QUESTIONS]}]}]
    }
    (tmp_path / "q.json").write_text(json.dumps(squad), encoding="utf-8")
    for name in ("q.jsonl", "q.parquet", "q.json"):
        found = predict(str(bert_qa), str(tmp_path / name))
        assert [one["question"] for one in found] == QUESTIONS
        assert [(one["start"], one["end"]) for one in found] == [(one["start"], one["end"]) for one in expected]
        assert all(one["context"][one["start"] : one["end"]] == one["answer"] for one in found)
    (tmp_path / "none.json").write_text('{"data": []}', encoding="utf-8")
    for top_k in ("1", "2"):
        outs = [tmp_path / f"{name}{top_k}.parquet" for name in ("q", "none")]
        for name, out in zip(("q.json", "none.json"), outs, strict=True):
            predict(str(bert_qa), str(tmp_path / name), "--top-k", top_k, "--out", str(out))
        some, none = (parquet.read_table(out) for out in outs)
        assert (some.num_rows, none.num_rows) == (len(QUESTIONS), 0)
        assert none.schema == some.schema, "no question is a table without rows"
    renamed = tmp_path / "r.csv"
    renamed.write_text(f'passage\n"{CONTEXT}"\n', encoding="utf-8")
    (found_one,) = predict(str(bert_qa), str(renamed), "--question", QUESTIONS[0], "--column", "passage")
    assert found_one["start"] == expected[0]["start"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["the cat"], "there is no question; give --question beside texts"),
        (["q.jsonl", "--question", "who?", "--second-column", "x"], "with --question use --column for the contexts"),
        (["the cat", "--question", "who?", "--column", "x"], "are for files of records"),
        (["missing.json"], "no file at missing.json"),
        (["the cat", "--question", " "], "--question is empty; give it some text"),
    ],
)
def test_wrong_words_are_refused_in_one_line(bert_qa: Path, words: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["predict", "qa", str(bert_qa), *words, "--device", "cpu"])
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)


def test_a_question_is_for_qa_alone(bert_folder: Path) -> None:
    result = CliRunner().invoke(app, ["predict", "embed", str(bert_folder), "the cat", "--question", "who?"])
    assert "--question is for qa, not embed" in str(result.exception)
