"""Adaptation for retrieval: pairs made of raw text, a retriever that learns a domain from them, and what it refuses."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import maskwright as mw
from maskwright.errors import InputError
from maskwright.models.bert import BERT
from maskwright.tasks.retrieval.raw_pairs import PAIR_KINDS, RawDocument, make_pairs, read_kinds
from maskwright.text.tokenizer.train import train_tokenizer

QUIET = Console(quiet=True)
NUM_TOPICS, NUM_WORDS = 8, 8
COMMON = [f"common{number}" for number in range(20)]
FAST = {"training.device": "cpu", "training.precision": "fp32", "optimizer.learning_rate": 5e-3, "data.max_length": 48}


def name_words(topic: int, half: int) -> list[str]:
    """Words of a topic; queries have those of one half, documents to be found those of the other."""
    return [f"topic{topic}{'ab'[half]}{number}" for number in range(NUM_WORDS)]


def write_text(topic: int, halves: tuple[int, ...], length: int, generator: random.Random) -> str:
    words = [word for half in halves for word in name_words(topic, half)]
    return " ".join(generator.choice(words if generator.random() < 0.6 else COMMON) for _ in range(length))


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maskwright.runs.finetune.finetune.write_task_report", lambda *given, **named: [])


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw text of a field, an encoder that knows nothing of it, and a collection to measure on."""
    folder, generator = tmp_path_factory.mktemp("field"), random.Random(0)
    topics = [number % NUM_TOPICS for number in range(240)]
    texts = [write_text(topic, (0, 1), 40, generator) for topic in topics]
    records = [
        {"text": text, "title": name_words(topic, 0)[0]} if number % 2 else {"text": text}
        for number, (topic, text) in enumerate(zip(topics, texts, strict=True))
    ]
    (folder / "raw.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    tokenizer = train_tokenizer(lambda: iter(texts), "word_level", 400, True, 1)
    torch.manual_seed(0)
    encoder = BERT.from_variant(
        "tiny",
        vocab_size=tokenizer.vocab_size,
        pad_token_id=tokenizer.pad_token_id,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.1,
    )
    encoder.save_pretrained(folder / "encoder")
    tokenizer.save(folder / "encoder")
    _write_collection(folder / "collection", generator)
    return folder


def _write_collection(folder: Path, generator: random.Random) -> None:
    """The documents of a topic answer a query that has none of their words."""
    (folder / "qrels").mkdir(parents=True)
    documents = {f"d{number}": (number % NUM_TOPICS) for number in range(64)}
    queries = {f"q{number}": (number % NUM_TOPICS) for number in range(32)}
    for name, topics, half, length in (("corpus", documents, 1, 20), ("queries", queries, 0, 5)):
        lines = [
            json.dumps({"_id": one, "text": write_text(topic, (half,), length, generator)})
            for one, topic in topics.items()
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    grades = [f"{q}\t{d}\t1" for q, asked in queries.items() for d, topic in documents.items() if topic == asked]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(grades) + "\n")


def adapt(field: Path, out: Path, **options: Any) -> Any:
    settings = FAST | options.pop("settings", {})
    given = {"purpose": "retrieval", "batch_size": 32, "settings": settings, "console": QUIET, **options}
    return mw.adapt(field / "encoder", given.pop("text", field / "raw.jsonl"), out=out, **given)


def measure(model: Path, field: Path) -> float:
    (figures,) = mw.evaluate(model, "retrieval", field / "collection").figures
    return next(one.mean for one in figures if one.measure == "ndcg@10")


def test_a_field_is_learnt_from_its_raw_text(field: Path, tmp_path: Path) -> None:
    adapted = adapt(field, tmp_path / "run", epochs=3)
    figures = adapted.run.figures
    assert figures["mrr@10"] > figures["mrr@10_before"] + 0.1
    assert adapted.exported == tmp_path / "run" / "model"
    before, after = measure(field / "encoder", field), measure(adapted.exported, field)
    assert after > before + 0.3
    mw.index(adapted.exported, field / "collection", out=tmp_path / "idx", console=QUIET)
    words = name_words(3, 0)
    (hits,) = mw.search(tmp_path / "idx", [f"{words[0]} {words[1]}"], top_k=4)
    assert sum("topic3" in hit.text for hit in hits) >= 3
    assert (adapted.exported / "modules.json").is_file()  # of sentence-transformers


def read_lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_pairs_lie_beside_the_run_and_are_made_once(field: Path, tmp_path: Path) -> None:
    adapt(field, tmp_path / "run", epochs=2, settings={"training.max_steps": 1})
    train = read_lines(tmp_path / "run-pairs" / "train.jsonl")
    held_out = read_lines(tmp_path / "run-pairs" / "held-out.jsonl")
    titled = [one for one in train if one["query"] in {name_words(topic, 0)[0] for topic in range(NUM_TOPICS)}]
    assert len(titled) == 2 * 120  # none of the twelve documents that are held out has a title
    assert len(train) - len(titled) == 2 * 228
    assert len(held_out) == 12
    crops = [one for one in train if one not in titled]
    assert len({one["query"] for one in crops}) > 0.9 * len(crops)  # each time elsewhere
    with pytest.raises(InputError, match="holds a finished run"):
        adapt(field, tmp_path / "run", epochs=2, settings={"training.max_steps": 1})
    with pytest.raises(InputError, match=r"was made from .*choose another --out"):
        adapt(field, tmp_path / "run", epochs=3)


def make(document: RawDocument, *kinds: str, epoch: int = 0) -> list[Any]:
    return list(make_pairs(document, 7, kinds or PAIR_KINDS, epoch))


def test_crops_are_parts_of_a_passage_and_cut_anew_in_every_epoch() -> None:
    words = [f"w{number}" for number in range(300)]
    document = RawDocument("", " ".join(words))
    pairs = make(document)
    assert [one.kind for one in pairs] == ["crops"] * 3
    for place, pair in enumerate(pairs):
        for text in (pair.query, pair.positive):
            assert text in " ".join(words[100 * place : 100 * place + 100])
            assert 10 <= len(text.split()) <= 50
    assert pairs == make(document)
    assert all(one != other for one, other in zip(pairs, make(document, epoch=1), strict=True))
    sizes = [len(one.query.split()) for epoch in range(60) for one in make(document, epoch=epoch)]
    assert min(sizes) == 10
    assert max(sizes) == 50


def test_titles_and_twins() -> None:
    long, short = " ".join(["word"] * 200), "a short text"
    assert [one.kind for one in make(RawDocument("a title", long))] == ["titles", "crops", "crops"]
    (first, *_) = make(RawDocument("a title", long), "titles")
    assert (first.query, first.positive) == ("a title", " ".join(["word"] * 100))
    assert [one.kind for one in make(RawDocument("a title", short))] == ["titles", "twins"]
    assert make(RawDocument("", short), "crops") == []
    (twin,) = make(RawDocument("", short), "twins")
    assert twin.query == twin.positive == short
    assert Counter(one.kind for one in make(RawDocument("", long), "twins")) == {"twins": 2}
    assert make(RawDocument("only a title", " ")) == []


def test_text_without_spaces_is_cut_between_characters() -> None:
    text = "".join(chr(0x4E00 + number) for number in range(100))
    (pair,) = make(RawDocument("", text))
    assert pair.kind == "crops"
    assert pair.query in text
    assert 10 <= len(pair.query) <= 50


def test_kinds_of_pairs_are_named() -> None:
    assert read_kinds("crops, twins") == ("crops", "twins")
    assert read_kinds(None) == PAIR_KINDS
    with pytest.raises(InputError, match="no pairs of kind 'crop'; did you mean 'crops'"):
        read_kinds("crop")


def test_two_columns_are_a_title_and_a_text(field: Path, tmp_path: Path) -> None:
    records = [{"name": f"title {number}", "body": f"a body of number {number}"} for number in range(60)]
    path = tmp_path / "named.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    source = {"path": str(path), "column": "name", "second_column": "body"}
    adapt(field, tmp_path / "run", text=[source], pairs="titles", settings={"training.max_steps": 1})
    assert {"query": "title 7", "positive": "a body of number 7"} in read_lines(tmp_path / "run-pairs" / "train.jsonl")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"purpose": "search"}, "purpose of an adaptation is 'search'"),
        ({"purpose": None}, "--batch-size .* is for --for retrieval"),
        ({"new_tokens": 5}, "--new-tokens .* is for adaptation by masked tokens"),
        ({"head_steps": 5}, "--head-steps .* is for adaptation by masked tokens"),
        ({"batch_size": 1}, "batch_size is 1; it must be at least 2"),
        ({"epochs": 0}, "epochs is 0; it must be at least 1"),
        ({"pairs": "questions"}, "no pairs of kind 'questions'"),
        ({"settings": {"training.epochs": 3}}, "is an option of this command; give --epochs"),
        ({"text": {"path": "raw.txt", "weight": 2.0}}, "raw.txt has the weight 2"),
        ({"settings": {"masking.ratio": 0.3}}, "has no effect on fine-tuning"),
    ],
)
def test_what_cannot_be_is_one_sentence(field: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        adapt(field, tmp_path / "run", **options)
    assert not list(tmp_path.iterdir())


def test_too_little_text_is_refused(field: Path, tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("one line\nanother line\n")
    with pytest.raises(InputError, match="the 2 documents give 1 pairs"):
        adapt(field, tmp_path / "run", text=tmp_path / "few.txt")
