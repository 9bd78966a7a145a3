"""Entities of texts: the answers of transformers, places in the text, long texts and bad models."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import SCORE_ERROR
from torch import nn

from maskwright.errors import InputError, InputWarning
from maskwright.inference.ner import encode_pieces, find_word_windows
from maskwright.inference.pipeline import pipeline
from maskwright.runs.predict import predict
from maskwright.tasks.model import TaskModel
from maskwright.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from maskwright.text.tokenizer.train import train_tokenizer

CLASSES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
AGGREGATIONS = ["none", "simple", "first", "average", "max"]
TEXTS = [
    "The cat sees the green house.",
    "Zanzibar, my old teacher-friend (from Québec!) remembers 42 rivers in the morning",
    "  every student   likes a long road before it rains... ",
    "q",
    "the unbelievably housecatlike dog's road 漢字 carries one red bird",
    "river",
]


def save_classifier(kind: str, tokenizer: Tokenizer, folder: Path, classes: list[str] = CLASSES) -> Path:
    transformers = pytest.importorskip("transformers")
    shape: dict[str, Any] = {
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 80,
        "pad_token_id": tokenizer.pad_token_id,
        "initializer_range": 0.3,
        "id2label": dict(enumerate(classes)),
        "label2id": {name: number for number, name in enumerate(classes)},
    }
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **shape)
    model = transformers.AutoModelForTokenClassification.from_config(config)
    torch.nn.init.normal_(model.classifier.weight, std=0.6)
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return folder


@pytest.fixture(scope="module")
def ner_folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier("bert", tokenizer, tmp_path_factory.mktemp("ner"))


@pytest.fixture(scope="module")
def roberta_ner_folder(sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its tokenizer knows the sentences' words, with the blank before them."""
    tokenizer = train_tokenizer(sentences, type="byte_level_bpe", vocab_size=600)
    return save_classifier("roberta", tokenizer, tmp_path_factory.mktemp("roberta_ner"))


@pytest.fixture(params=["ner_folder", "roberta_ner_folder"])
def folder(request: pytest.FixtureRequest) -> Path:
    return Path(request.getfixturevalue(request.param))


def ask_theirs(folder: Path, texts: list[str], aggregation: str) -> list[list[dict[str, Any]]]:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.pipeline("token-classification", model=str(folder), tokenizer=str(folder), device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of every token where a tokenizer does not know words
        return [theirs(text, aggregation_strategy=aggregation) for text in texts]


def assert_same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Key for key and in order, scores up to rounding."""
    assert [list(one) for one in ours] == [list(one) for one in theirs]
    assert [{**one, "score": 0} for one in ours] == [{**one, "score": 0} for one in theirs]
    expected = [float(one["score"]) for one in theirs]
    assert [one["score"] for one in ours] == pytest.approx(expected, abs=2 * SCORE_ERROR)  # of twice the weights


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_texts_have_the_answers_of_transformers(folder: Path, aggregation: str) -> None:
    """Where blanks or bytes are tokens of their own, theirs may be entities; those texts are left to another test."""
    tokenizer = load_tokenizer(folder)
    pieces = encode_pieces(tokenizer, nn.Embedding(600, 4), TEXTS, lambda place: "text")
    texts = [text for text, one in zip(TEXTS, pieces, strict=True) if all(map(one.has_text, range(len(one.ids))))]
    texts = [text for text in texts if text.isascii() or folder.name.startswith("ner")]
    assert len(texts) >= 3
    expected = ask_theirs(folder, texts, aggregation)
    assert sum(map(len, expected)) > 3
    ours = pipeline("ner", folder, device="cpu", aggregation=aggregation)
    for answer, theirs in zip(ours(texts), expected, strict=True):
        assert_same(answer, theirs)
    assert_same(ours(texts[1]), expected[1])


@pytest.mark.parametrize("aggregation", ["first", "average", "max"])
def test_words_are_never_split(folder: Path, aggregation: str) -> None:
    for text, entities in zip(
        TEXTS, pipeline("ner", folder, device="cpu", aggregation=aggregation)(TEXTS), strict=True
    ):
        for entity in entities:
            for border in (entity["start"], entity["end"]):
                around = text[max(border - 1, 0) : border + 1]
                assert len(around) < 2 or not (around.isascii() and around.isalpha())
    assert pipeline("ner", folder, device="cpu").kind.example["entities"][0].keys() == {
        *("entity_group", "score", "word", "start", "end")
    }


@pytest.mark.parametrize("kind", ["unigram", "byte_level_bpe", "wordpiece"])
def test_tokens_of_blanks_are_no_words_and_bytes_of_a_character_are_one(kind: str, sentences: list[str]) -> None:
    tokenizer = train_tokenizer(sentences, type=kind, vocab_size=320)
    text = "  the cat,  \u5317\u4eac saw\n\u00e9t\u00e9 zebra"
    if kind == "unigram":  # what it has never seen is no part of a word
        text = f"  {sentences[0].replace(' ', '  ')}"
    encoder = nn.Embedding(tokenizer.vocab_size, 4)
    (pieces,) = encode_pieces(tokenizer, encoder, [text], lambda place: "text")
    words = [text[pieces.spans[word[0]][0] : pieces.spans[word[-1]][1]] for word in pieces.words]
    assert "".join(words) == "".join(text.split())
    if kind != "wordpiece":
        assert words == text.split()


def test_newlines_part_words_where_tokens_do_not_say(roberta_ner_folder: Path) -> None:
    """The pipeline of transformers knows blanks alone there, and takes lines for one word."""
    ours = pipeline("ner", roberta_ner_folder, device="cpu", aggregation="first")
    text = "cat\ndog\tbird"
    (prepared,) = ours.kind.prepare([text], str)
    spans = prepared.pieces.spans
    words = [text[spans[word[0]][0] : spans[word[-1]][1]].strip() for word in prepared.pieces.words]
    assert [word for word in words if word] == ["cat", "dog", "bird"]


def test_tags_that_end_entities_are_read_by_their_own_rules(tokenizer: Tokenizer, tmp_path: Path) -> None:
    classes = ["O", "B-PER", "I-PER", "E-PER", "S-PER"]
    folder = save_classifier("bert", tokenizer, tmp_path, classes)
    tokens = pipeline("ner", folder, device="cpu", aggregation="none")(TEXTS)
    groups = pipeline("ner", folder, device="cpu", aggregation="simple")(TEXTS)
    seen = [one["entity"] for row in tokens for one in row]
    assert {"E-PER", "S-PER"} <= set(seen)
    for row, found in zip(tokens, groups, strict=True):
        starts, before = [], {"entity": "O", "index": -1}
        for one in row:
            touches = one["index"] == before["index"] + 1
            if one["entity"][0] in "BS" or not touches or before["entity"][0] in "ES":
                starts.append(one["start"])
            before = one
        assert [one["start"] for one in found] == starts
    assert {one["entity_group"] for row in groups for one in row} == {"PER"}


def test_each_token_of_a_long_text_is_answered_from_its_window(ner_folder: Path) -> None:
    text = "the cat sees my old teacher and every student follows one red bird with great care " * 9
    model, tokenizer = TaskModel.from_pretrained(ner_folder), load_tokenizer(ner_folder)
    ours = pipeline("ner", model, tokenizer, max_length=20, aggregation="none")
    (prepared,) = ours.kind.prepare([text], str)
    classes: list[int] = []
    for (start, stop), (begin, end) in find_word_windows(prepared.pieces.continues, 18):
        ids = [tokenizer.cls_token_id, *prepared.pieces.ids[start:stop], tokenizer.sep_token_id]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids])).logits[0, 1:-1]
        classes += logits.argmax(-1)[begin - start : end - start].tolist()
    assert len(classes) == len(prepared.pieces.ids) > 100
    expected = {number: CLASSES[one] for number, one in enumerate(classes, start=1) if one}
    found = ours(text)
    assert {one["index"]: one["entity"] for one in found} == expected
    assert all(text[one["start"] : one["end"]].lower() == one["word"].removeprefix("##") for one in found)


def test_windows_hand_over_at_words_and_each_token_is_where_it_is_farther_from_the_edge() -> None:
    continues = np.random.default_rng(0).random(300) < 0.3
    parts = find_word_windows(continues, 40)
    assert [begin for _, (begin, _) in parts] == [0, *(end for _, (_, end) in parts[:-1])]
    assert parts[-1][1][1] == 300
    for (start, stop), (begin, end) in parts:
        assert start <= begin < end <= stop
        assert stop - start <= 40
        assert begin == 0 or not continues[begin]
        assert begin == 0 or 1 <= begin - start <= 5
        assert end == 300 or 5 <= stop - end <= 9


def test_a_word_longer_than_what_windows_share_is_handed_over_in_the_middle() -> None:
    parts = find_word_windows(np.array([False] + [True] * 99), 40)
    assert parts[1] == ((30, 70), (35, 65))


def test_a_text_of_a_megabyte_is_answered(ner_folder: Path) -> None:
    text = ("the quiet river likes a long road" + " " * 400 + "\n") * 2_400
    assert len(text) > 1_000_000
    found = pipeline("ner", ner_folder, device="cpu")(text)
    assert found[-1]["end"] > len(text) - 900
    assert len(found) > 2_000


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_text_of_several_is_none_and_one_alone_is_named(ner_folder: Path, text: str) -> None:
    ours = pipeline("ner", ner_folder, device="cpu")
    with pytest.warns(InputWarning, match="^1 of 3 texts"):
        assert [answer is None for answer in ours(["the cat", text, "a bird"])] == [False, True, False]
    with pytest.raises(InputError, match=r"^text 1 is empty"):
        ours(text)


def test_a_text_without_a_token_has_no_entity(ner_folder: Path) -> None:
    assert pipeline("ner", ner_folder, device="cpu")("\u200b\u200d") == []


def test_a_model_without_the_head_is_refused(bert_folder: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="holds BertForMaskedLM; expected a model fine-tuned for a task"):
        pipeline("ner", bert_folder)
    with pytest.raises(InputError, match="a Linear is no model to find entities"):
        pipeline("ner", torch.nn.Linear(2, 2), tokenizer)


def test_a_model_of_another_task_is_refused(ner_folder: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.from_pretrained(ner_folder)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    with pytest.raises(
        InputError, match="fine-tuned for Classification, and TokenClassification is needed to find ent"
    ):
        pipeline("ner", tmp_path)


def test_an_unknown_aggregation_is_refused(ner_folder: Path) -> None:
    with pytest.raises(InputError, match="no aggregation 'frist'; did you mean 'first'"):
        pipeline("ner", ner_folder, aggregation="frist")


def test_a_model_in_memory_is_answered_without_dropout(ner_folder: Path) -> None:
    expected = pipeline("ner", ner_folder, device="cpu")(TEXTS[0])
    model = TaskModel.from_pretrained(ner_folder).train()
    answer = pipeline("ner", model, load_tokenizer(ner_folder))(TEXTS[0])
    assert answer == expected
    assert all(part.training for part in model.modules())


@pytest.mark.parametrize("aggregation", ["first", "none"])
def test_a_parquet_file_begins_well_with_texts_that_have_no_entity(
    ner_folder: Path, tmp_path: Path, aggregation: str
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    lines = ["\u200b"] * 1_100 + [TEXTS[0]]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    out, console = tmp_path / "a.parquet", pytest.importorskip("rich.console").Console(quiet=True)
    texts = tmp_path / "a.txt"
    predict("ner", ner_folder, texts, aggregation=aggregation, out=out, device="cpu", console=console)
    rows = parquet.read_table(out).to_pylist()
    assert rows[0]["entities"] == []
    expected = pipeline("ner", ner_folder, device="cpu", aggregation=aggregation)(TEXTS[0])
    assert rows[-1] == {"row": len(rows) - 1, "text": TEXTS[0], "entities": expected}
