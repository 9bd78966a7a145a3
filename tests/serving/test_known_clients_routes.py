"""The routes of OpenAI and of text-embeddings-inference: their shapes, formats and errors."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import Running

from maskwright.inference.pipeline import Pipeline, pipeline
from maskwright.text.tokenizer.tokenizer import Tokenizer

TEXTS = ["the cat sees a long road.", "every student likes the green house before it rains."]


@pytest.fixture(scope="module")
def embed(model_folders: dict[str, Path]) -> Pipeline[Any, Any]:
    return pipeline("embed", model_folders["language"], device="cpu", normalize=True)


@pytest.fixture(scope="module")
def unit_vectors(embed: Pipeline[Any, Any]) -> np.ndarray[Any, Any]:
    return np.stack(embed(TEXTS))


def as_vectors(found: Any) -> np.ndarray[Any, Any]:
    return np.asarray(found, dtype=np.float32)


def test_embeddings_in_openais_shape(server: Running, unit_vectors: np.ndarray[Any, Any], tokenizer: Tokenizer) -> None:
    answer = server.ask("/v1/embeddings", input=TEXTS, model="language", user="somebody")
    assert (answer["object"], answer["model"]) == ("list", "language")
    assert [(one["object"], one["index"]) for one in answer["data"]] == [("embedding", 0), ("embedding", 1)]
    np.testing.assert_array_equal(as_vectors([one["embedding"] for one in answer["data"]]), unit_vectors)
    num_tokens = sum(len(tokenizer.encode(text)) for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


def test_an_empty_list_has_an_empty_answer(server: Running) -> None:
    assert server.ask("/v1/embeddings", input=[])["data"] == []


def test_base64_holds_the_same_numbers(server: Running) -> None:
    (given,) = server.ask("/v1/embeddings", input=TEXTS[0])["data"]
    (coded,) = server.ask("/v1/embeddings", input=TEXTS[0], encoding_format="base64")["data"]
    decoded = np.frombuffer(base64.b64decode(coded["embedding"]), dtype="<f4")
    np.testing.assert_array_equal(decoded, as_vectors(given["embedding"]))


def test_fewer_dimensions_have_length_one_again(server: Running, embed: Pipeline[Any, Any]) -> None:
    found = as_vectors(server.ask("/v1/embeddings", input=TEXTS[0], dimensions=5)["data"][0]["embedding"])
    expected = embed(TEXTS[0])[:5]
    np.testing.assert_array_equal(found, (expected / float(np.linalg.norm(expected))).astype(np.float32))
    assert "vectors have 32" in server.refuse("/v1/embeddings", 422, {"input": TEXTS[0], "dimensions": 33})


@pytest.mark.parametrize("has_specials", [True, False])
def test_tokens_may_be_given_in_place_of_texts(server: Running, tokenizer: Tokenizer, has_specials: bool) -> None:
    rows = [tokenizer.encode(text, add_special_tokens=has_specials) for text in TEXTS]
    of_texts = server.ask("/v1/embeddings", input=TEXTS)
    assert server.ask("/v1/embeddings", input=rows) == of_texts
    assert server.ask("/v1/embeddings", input=rows[0])["data"] == server.ask("/v1/embeddings", input=TEXTS[0])["data"]


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"input": [5, 100_000]}, 422, "100000"),
        ({"input": [[5], [-1]]}, 422, "input 2 has token id -1"),
        ({"input": [[5], []]}, 422, "input 2 has no token"),
        ({"input": ["a", 3]}, 422, "input"),
        ({"input": TEXTS[0], "model": "text-embedding-3-small"}, 404, "text-embedding-3-small"),
        ({"input": TEXTS[0], "model": "../../etc/passwd"}, 404, "there is no model"),
        ({"input": TEXTS[0], "encoding_format": "int8"}, 422, "encoding_format"),
        ({"input": ""}, 422, "empty"),
    ],
)
def test_bad_embeddings_requests(server: Running, body: dict[str, Any], status: int, word: str) -> None:
    assert word in server.refuse("/v1/embeddings", status, body)


def test_models_are_listed_as_openai_does(server: Running, model_folders: dict[str, Path]) -> None:
    listed = server.client.get("/v1/models").json()
    assert [one["id"] for one in listed["data"]] == list(model_folders)
    assert server.client.get("/v1/models/language").json() == listed["data"][0]
    assert server.client.get("/v1/models/none").status_code == 404


def test_embed_as_text_embeddings_inference_does(
    server: Running, embed: Pipeline[Any, Any], unit_vectors: np.ndarray[Any, Any]
) -> None:
    np.testing.assert_array_equal(as_vectors(server.ask("/embed", inputs=TEXTS, truncate=True)), unit_vectors)
    np.testing.assert_array_equal(as_vectors(server.ask("/embed", inputs=TEXTS[0])), embed(TEXTS[0])[None])
    plain = as_vectors(server.ask("/embed", inputs=TEXTS[0], normalize=False))
    assert not np.allclose(np.linalg.norm(plain), 1.0)


def test_embed_all_has_a_vector_for_each_token(server: Running, tokenizer: Tokenizer) -> None:
    found = server.ask("/embed_all", inputs=TEXTS)
    assert [len(one) for one in found] == [len(tokenizer.encode(text)) for text in TEXTS]


def test_similarity_of_a_sentence_to_others(server: Running, unit_vectors: np.ndarray[Any, Any]) -> None:
    found = server.ask("/similarity", inputs={"source_sentence": TEXTS[0], "sentences": [TEXTS[1], TEXTS[0]]})
    assert found == pytest.approx([float(unit_vectors[0] @ unit_vectors[1]), 1.0], abs=1e-6)


def test_predict_takes_texts_pairs_and_lists_of_both(server: Running) -> None:
    single = server.ask("/predict", inputs=TEXTS[0])
    assert [sorted(one) for one in single] == [["label", "score"]] * 3
    assert sum(one["score"] for one in single) == pytest.approx(1.0)
    pair = server.ask("/predict", inputs=TEXTS)
    batch = server.ask("/predict", inputs=[[TEXTS[0]], TEXTS])
    assert [one["label"] for one in batch[0]] == [one["label"] for one in single]
    assert [one["label"] for one in batch[1]] == [one["label"] for one in pair]
    assert "3 texts" in server.refuse("/predict", 422, {"inputs": [["a", "b", "c"]]})
    assert "raw_scores" in server.refuse("/predict", 422, {"inputs": "a", "raw_scores": True})


def test_rerank_sorts_texts_by_their_score(server: Running, model_folders: dict[str, Path]) -> None:
    texts = [*TEXTS, "river"]
    found = server.ask("/rerank", query="what does the cat see?", texts=texts, return_text=True)
    pairs = [("what does the cat see?", text) for text in texts]
    scores = [one["score"] for one in pipeline("classify", model_folders["relevance"], device="cpu")(pairs)]
    order = sorted(range(3), key=lambda number: -scores[number])
    assert [one["index"] for one in found] == order
    assert [one["text"] for one in found] == [texts[number] for number in order]


def test_tokenize_with_and_without_special_tokens(server: Running, tokenizer: Tokenizer) -> None:
    (found,) = server.ask("/tokenize", inputs=TEXTS[0])
    assert [token["id"] for token in found] == tokenizer.encode(TEXTS[0])
    both = server.ask("/tokenize", inputs=TEXTS, add_special_tokens=False)
    assert [[token["id"] for token in one] for one in both] == tokenizer.encode_batch(TEXTS)


def test_info_and_health(server: Running) -> None:
    info = server.client.get("/info").json()
    assert (info["model_id"], info["model_type"]) == ("language", {"embedding": {"pooling": "mean"}})
    assert server.client.get("/health").status_code == 200


def test_errors_have_the_shape_of_text_embeddings_inference(server: Running) -> None:
    response = server.client.post("/embed", json={"inputs": ""})
    assert (response.status_code, response.json()["error_type"]) == (422, "Validation")
    assert "empty" in response.json()["error"]


def test_the_root_answers_what_the_inputs_call_for(server: Running) -> None:
    """As the hub's client asks: everything of one address."""
    assert server.ask("/", inputs="the [MASK] sees.") == server.ask("/fill-mask", inputs="the [MASK] sees.")
    compared = {"source_sentence": TEXTS[0], "sentences": TEXTS}
    assert server.ask("/", inputs=compared) == server.ask("/similarity", inputs=compared)
    assert "source_sentence" in server.refuse("/", 422, {"inputs": {"source_sentence": 1, "sentences": TEXTS}})
    asked = {"question": "who sees?", "context": TEXTS[0]}
    assert server.ask("/", inputs=asked) == server.ask("/qa", inputs=asked)
    found = server.ask("/", inputs=TEXTS[0], parameters={"candidate_labels": ["a", "b"]})
    ours = server.ask("/zero-shot", inputs=TEXTS[0], labels=["a", "b"])
    assert [(one["label"], one["score"]) for one in found] == list(zip(ours["labels"], ours["scores"], strict=True))
