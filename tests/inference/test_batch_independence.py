"""On an x86 CPU the answer to an input is the same to the bit, whatever else is asked and however it is batched.

Sizes are large enough for products whose kernel and order of summation MKL would choose by the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from maskwright.evaluation.answers import AskedPlaces, score_answers
from maskwright.inference.pipeline import pipeline
from maskwright.models.encoder import FAMILIES, PackedEncoder
from maskwright.models.products import IS_ROW_INVARIANT
from maskwright.objectives.masked_lm import CausalLanguageModel, MaskedLanguageModel
from maskwright.tasks.heads import build_sequence_head, build_span_head, build_token_head
from maskwright.tasks.model import TaskModel
from maskwright.tasks.ner.token_classification import TokenClassification
from maskwright.tasks.qa.question_answering import QuestionAnswering
from maskwright.tasks.sequence.classification import Classification
from maskwright.text.tokenizer.tokenizer import Tokenizer

pytestmark = [
    pytest.mark.skipif(not IS_ROW_INVARIANT, reason="promised for x86 CPUs"),
    pytest.mark.filterwarnings("ignore:.*each mask of such a text"),
]

SHAPE = {"hidden_size": 384, "num_hidden_layers": 2, "num_attention_heads": 6, "intermediate_size": 1536}
SETTINGS = {"vocab_size": 160, "max_position_embeddings": 74, "initializer_range": 0.1}
FEW_TOKENS = 70
"""A batch of a few texts."""


def build(family: str) -> PackedEncoder:
    torch.manual_seed(0)
    own = {"local_attention": 16} if family == "modernbert" else {}
    return FAMILIES[family].from_variant("tiny", **SHAPE, **SETTINGS, **own).eval()


@pytest.fixture(scope="module")
def texts(sentences: list[str]) -> list[str]:
    """Of one sentence to six, of which the longest are read in windows."""
    joined = [" ".join(sentences[first : first + 1 + first % 6]) for first in range(12)]
    return [*joined, joined[0], "a"]


def as_arrays(answer: Any) -> Any:
    return answer.tolist() if isinstance(answer, np.ndarray) else answer


def assert_alike(ask: Callable[[int | None], Any], items: list[Any]) -> None:
    """The answers to all, to each alone, to a few at a time and in another order."""
    ask_all, ask_few = ask(None), ask(FEW_TOKENS)
    together = [as_arrays(one) for one in ask_all(items)]
    assert [as_arrays(ask_all(item)) for item in items] == together
    assert [as_arrays(one) for one in ask_few(items)] == together
    assert [as_arrays(one) for one in ask_all(items[::-1])][::-1] == together


@pytest.fixture
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_two_threads")
def test_threads_share_the_rows_and_not_the_sums(tokenizer: Tokenizer, texts: list[str]) -> None:
    encoder = build("bert")
    assert_alike(lambda tokens: pipeline("embed", encoder, tokenizer, batch_tokens=tokens), texts[:8])


_WITH_LAYERS_OF_BERT = {"distilbert", "electra", "roberta", "xlm-roberta"}


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.slow] * (name in _WITH_LAYERS_OF_BERT)) for name in FAMILIES]
)
def test_vectors_of_every_family(family: str, tokenizer: Tokenizer, texts: list[str]) -> None:
    encoder = build(family)
    assert_alike(lambda tokens: pipeline("embed", encoder, tokenizer, batch_tokens=tokens), texts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pooling", ["cls", "none"])
def test_vectors_of_first_tokens_and_of_all(
    pooling: str, dtype: torch.dtype, tokenizer: Tokenizer, texts: list[str]
) -> None:
    encoder = build("bert").to(dtype)
    assert_alike(lambda tokens: pipeline("embed", encoder, tokenizer, batch_tokens=tokens, pooling=pooling), texts)


def test_vectors_of_packed_weights(tokenizer: Tokenizer, texts: list[str]) -> None:
    encoder = build("bert")
    assert_alike(lambda tokens: pipeline("embed", encoder, tokenizer, batch_tokens=tokens, precision="bf16"), texts)


def list_cases(kinds: Sequence[Any]) -> list[Any]:
    """Every kind with every family; one family is in the default tests, where vectors are tested of all."""
    return [
        pytest.param(kind, name, marks=[pytest.mark.slow] * (name != "modernbert"))
        for kind in kinds
        for name in FAMILIES
    ]


@pytest.mark.parametrize(("objective", "family"), list_cases([MaskedLanguageModel, CausalLanguageModel]))
def test_candidates_for_masks(
    objective: type[MaskedLanguageModel], family: str, tokenizer: Tokenizer, texts: list[str]
) -> None:
    model = objective(build(family), 160, tokenizer=tokenizer).eval()
    masked = [f"{text} [MASK]" for text in texts[:-1]]
    assert_alike(lambda tokens: pipeline("fill-mask", model, tokenizer, batch_tokens=tokens), masked)


def build_task_model(kind: str, family: str) -> TaskModel:
    encoder = build(family)
    classes = ["entailment", "neutral", "contradiction"]
    if kind == "ner":
        tags = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
        return TaskModel(encoder, build_token_head(encoder, len(tags), {}), TokenClassification(tags)).eval()
    if kind == "qa":
        return TaskModel(encoder, build_span_head(encoder, 2, {}), QuestionAnswering()).eval()
    return TaskModel(encoder, build_sequence_head(encoder, len(classes), {}), Classification(classes)).eval()


@pytest.mark.parametrize(("kind", "family"), list_cases(["classify", "ner", "qa", "zero-shot"]))
def test_answers_of_every_task(kind: str, family: str, tokenizer: Tokenizer, texts: list[str]) -> None:
    model = build_task_model(kind, family)
    options = {"classify": {"top_k": None}, "ner": {"aggregation": "none"}, "zero-shot": {"labels": ["cat", "bird"]}}
    items = [{"question": texts[-2], "context": text} for text in texts] if kind == "qa" else texts
    assert_alike(lambda tokens: pipeline(kind, model, tokenizer, batch_tokens=tokens, **options.get(kind, {})), items)


def test_likelihoods_of_tokens(tokenizer: Tokenizer, texts: list[str]) -> None:
    model = MaskedLanguageModel(build("bert"), 160, tokenizer=tokenizer).eval()
    samples = []
    for ids in tokenizer.encode_batch(texts[:12]):
        ids = np.asarray(ids[:60])
        places = np.arange(0, len(ids), 2)
        samples.append(AskedPlaces(ids, places=places, labels=ids[places]))

    def score(asked: list[AskedPlaces]) -> list[list[float]]:
        take = lambda logits, labels: logits.log_softmax(-1).gather(1, labels[:, None])[:, 0]  # noqa: E731
        return [one.tolist() for one in score_answers(model, 0, asked, take)]

    assert [score([sample])[0] for sample in samples] == score(samples)


def test_products_of_torch_depend_on_the_number_of_rows(
    tokenizer: Tokenizer, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the others would not notice, if they could not fail."""
    monkeypatch.setattr("maskwright.models.products.IS_ROW_INVARIANT", False)
    embed = pipeline("embed", build("bert"), tokenizer)
    assert any(not np.array_equal(embed(text), vector) for text, vector in zip(texts, embed(texts), strict=True))
