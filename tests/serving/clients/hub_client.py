"""`huggingface_hub.InferenceClient`: every kind at its address."""

import sys

import huggingface_hub
import numpy as np
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

url, key = sys.argv[1:3]
text = "the cat sees a long road."


def at(path: str) -> InferenceClient:
    return InferenceClient(model=f"{url}{path}", api_key=key)


vectors = np.asarray(at("/embed").feature_extraction([text, "river"], normalize=True, truncate=True))
assert vectors.shape[0] == 2
assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0)
scores = at("/similarity").sentence_similarity(text, other_sentences=[text, "river"])
assert abs(scores[0] - 1.0) < 1e-5
candidates = at("").fill_mask("the [MASK] sees a road.", top_k=3)
assert len(candidates) == 3
assert candidates[0].score >= candidates[1].score
masked = at("/fill-mask").fill_mask("the [MASK] sees a road.", targets=["cat", "dog"])
assert len(masked) == 2
entities = at("/ner").token_classification("the cat sees london and the quiet river", aggregation_strategy="simple")
assert all(entity.end > entity.start for entity in entities)
answer = at("/qa").question_answering(question="who sees the road?", context=text)
assert text[answer.start : answer.end] == answer.answer
labels = at("").zero_shot_classification(text, candidate_labels=["animal", "house"])
assert {label.label for label in labels} == {"animal", "house"}
try:
    at("/ner").token_classification("")
except HfHubHTTPError as error:
    assert error.response.status_code == 422
else:
    raise AssertionError
print(
    f"huggingface_hub {huggingface_hub.__version__}: feature_extraction {vectors.shape}, sentence_similarity,"
    f" fill_mask, token_classification ({len(entities)} entities), question_answering, zero_shot_classification"
)
