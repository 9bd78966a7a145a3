"""Our routes: the answers of `pipeline`, options, errors in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import Running, running

from maskwright.inference.pipeline import pipeline
from maskwright.text.tokenizer.tokenizer import Tokenizer

TEXTS = ["the cat sees a long road.", "every student likes the green house before it rains.", "river"]
LONG = " ".join(["my old teacher remembers the quiet river in the morning"] * 30)
MASKED = ["the [MASK] sees a long road.", "one red [MASK] follows the [MASK]."]
QUESTIONS = [
    {"question": "who sees the road?", "context": "the cat sees a long road. the river is quiet."},
    {"question": "what is quiet?", "context": LONG},
]
LABELS = ["animal", "house", "road"]


def as_plain(answer: Any) -> Any:
    """Arrays and numbers of NumPy as JSON has them."""
    if isinstance(answer, np.ndarray):
        return answer.astype(float).tolist()
    if isinstance(answer, dict):
        return {name: as_plain(value) for name, value in answer.items()}
    return [as_plain(one) for one in answer] if isinstance(answer, list | tuple) else answer


def as_floats(answer: Any) -> Any:
    """Numbers of an answer at the precision at which the model computes: JSON shows no more of its digits."""
    if isinstance(answer, dict):
        return {name: as_floats(value) for name, value in answer.items()}
    if isinstance(answer, list):
        return [as_floats(one) for one in answer]
    return float(np.float32(answer)) if isinstance(answer, float) else answer


CASES: list[tuple[str, str, str, Any, dict[str, Any]]] = [
    ("/fill-mask", "fill-mask", "language", MASKED[0], {}),
    ("/fill-mask", "fill-mask", "language", MASKED, {"top_k": 2}),
    ("/fill-mask", "fill-mask", "language", MASKED[0], {"targets": ["cat", "dog"]}),
    ("/ner", "ner", "entities", TEXTS[0], {}),
    ("/ner", "ner", "entities", [*TEXTS, LONG], {"aggregation": "simple"}),
    ("/classify", "classify", "inference", TEXTS[0], {}),
    ("/classify", "classify", "inference", TEXTS, {"top_k": None}),
    ("/classify", "classify", "inference", [("the cat sleeps", "it rests")], {"top_k": 2}),
    ("/qa", "qa", "questions", QUESTIONS[0], {}),
    ("/qa", "qa", "questions", QUESTIONS, {"top_k": 2, "handle_impossible_answer": True}),
    ("/zero-shot", "zero-shot", "inference", TEXTS[0], {"labels": LABELS}),
    ("/zero-shot", "zero-shot", "inference", TEXTS, {"labels": LABELS, "multi_label": True, "hypothesis": "a {}."}),
]


@pytest.mark.parametrize(("route", "kind", "model", "inputs", "options"), CASES)
def test_a_route_answers_as_the_pipeline_does(
    server: Running,
    model_folders: dict[str, Path],
    route: str,
    kind: str,
    model: str,
    inputs: Any,
    options: dict[str, Any],
) -> None:
    expected = pipeline(kind, model_folders[model], device="cpu", **options)(inputs)
    assert as_floats(server.ask(route, inputs=inputs, model=model, **options)) == as_floats(as_plain(expected))


@pytest.mark.parametrize("options", [{}, {"pooling": "cls", "normalize": True}, {"pooling": "none"}])
@pytest.mark.parametrize("model", ["language", "entities"])
def test_embeddings_are_those_of_the_pipeline_and_windows_read_long_texts(
    server: Running, model_folders: dict[str, Path], model: str, options: dict[str, Any]
) -> None:
    texts = [*TEXTS, LONG]
    answer = server.ask("/api/embed", inputs=texts, model=model, **options)
    expected = pipeline("embed", model_folders[model], device="cpu", **options)(texts)
    for found, vector in zip(answer["embeddings"], expected, strict=True):
        np.testing.assert_array_equal(np.asarray(found, dtype=np.float32), vector)
    assert answer["tokens"] > 300


def test_similarities_of_pairs(server: Running, model_folders: dict[str, Path]) -> None:
    pairs = [(TEXTS[0], TEXTS[1]), (TEXTS[0], TEXTS[0])]
    found = server.ask("/api/similarity", inputs=pairs)
    assert found == pipeline("similarity", model_folders["language"], device="cpu")(pairs)
    assert found[1]["score"] == pytest.approx(1.0)


def test_without_a_model_the_first_that_has_the_kind_answers(server: Running) -> None:
    assert server.ask("/ner", inputs=TEXTS[0]) == server.ask("/ner", inputs=TEXTS[0], model="entities")


def test_options_may_come_under_the_names_of_transformers(server: Running) -> None:
    theirs = server.ask("/zero-shot", inputs=TEXTS[0], parameters={"candidate_labels": LABELS})
    assert theirs == server.ask("/zero-shot", inputs=TEXTS[0], labels=LABELS)


def test_tokens_have_their_places_in_the_text(server: Running, tokenizer: Tokenizer) -> None:
    text = "the cat  sees"
    tokens = server.ask("/api/tokenize", inputs=text)["tokens"]
    assert [token["id"] for token in tokens] == tokenizer.encode(text)
    assert [token["special"] for token in tokens] == [True, *[False] * (len(tokens) - 2), True]
    shown = "".join(text[token["start"] : token["stop"]] for token in tokens if not token["special"])
    assert shown == "thecatsees"


def test_every_model_is_described_without_the_path_of_its_folder(
    server: Running, model_folders: dict[str, Path], tokenizer: Tokenizer
) -> None:
    response = server.client.get("/api/models")
    assert str(model_folders["language"].parent) not in response.text
    described = {one["id"]: one for one in response.json()["models"]}
    assert list(described) == list(model_folders)
    assert described["language"]["kinds"] == ["fill-mask", "embed", "similarity"]
    assert described["language"]["mask_token"] == tokenizer.mask_token
    assert described["entities"]["kinds"][0] == described["entities"]["default_kind"] == "ner"
    assert described["inference"]["kinds"][:2] == ["classify", "zero-shot"]
    assert described["inference"]["labels"] == ["contradiction", "neutral", "entailment"]
    assert "rerank" in described["relevance"]["kinds"]
    assert all(one["ready"] and one["error"] is None for one in described.values())


@pytest.mark.parametrize(
    ("route", "status", "body", "words"),
    [
        ("/fill-mask", 422, {"inputs": "no mask here"}, ["[MASK]"]),
        ("/fill-mask", 422, {"inputs": MASKED[0], "model": "entities"}, ["entities", "fill-mask", "ner"]),
        ("/fill-mask", 422, {"inputs": MASKED[0], "top_k": 0}, ["top_k", "0"]),
        ("/fill-mask", 422, {}, ["inputs", "missing"]),
        ("/fill-mask", 422, {"inputs": MASKED[0], "topk": 3}, ["topk"]),
        ("/fill-mask", 422, {"inputs": 3}, ["inputs"]),
        ("/fill-mask", 422, {"inputs": MASKED[0], "parameters": {"targets": {"a": 1}}}, ["targets"]),
        ("/api/embed", 422, {"inputs": [*TEXTS, "a", "b"], "parameters": {"pooling": [["cls"]]}}, ["pooling"]),
        ("/ner", 404, {"inputs": TEXTS[0], "model": "entitties"}, ["entitties", "did you mean 'entities'"]),
        ("/ner", 422, {"inputs": [TEXTS[0], " "]}, ["text 2", "empty"]),
        ("/ner", 422, {"inputs": TEXTS[0], "aggregation": "best"}, ["best"]),
        ("/classify", 422, {"inputs": "\ud800"}, ["text"]),
        ("/zero-shot", 422, {"inputs": TEXTS[0]}, ["labels"]),
        ("/qa", 422, {"inputs": {"question": "who?"}}, ["context"]),
        ("/api/embed", 422, {"inputs": TEXTS[0], "pooling": "max"}, ["max"]),
    ],
)
def test_a_bad_request_gets_one_sentence(
    server: Running, route: str, status: int, body: dict[str, Any], words: list[str]
) -> None:
    sentence = server.refuse(route, status, body)
    assert all(word in sentence for word in words), sentence
    assert "\n" not in sentence
    assert "Traceback" not in sentence


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"null", b"\xff\xfe", b'{"inputs": NaN}', b"[" * 100_000])
def test_what_is_no_json_object_is_refused(server: Running, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    response = server.client.post("/ner", content=content, headers=headers)
    assert response.status_code in (400, 422)
    assert response.json()["error"]["code"] == response.status_code


def test_unknown_paths_and_methods_have_the_same_shape(server: Running) -> None:
    missing, wrong = server.client.get("/nothing"), server.client.get("/ner")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found")
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (405, "method_not_allowed")


def test_a_model_that_cannot_be_loaded_leaves_the_others(model_folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with running([tmp_path, model_folders["entities"]]) as one:
        assert one.ask("/ner", inputs=TEXTS[0])
        broken, whole = one.client.get("/api/models").json()["models"]
        assert (broken["ready"], whole["ready"]) == (False, True)
        ready = one.client.get("/ready")
        assert (ready.status_code, list(ready.json()["failed"])) == (200, [tmp_path.name])
        assert broken["error"]
        assert one.refuse("/ner", 503, {"inputs": TEXTS[0], "model": tmp_path.name}) == broken["error"]
