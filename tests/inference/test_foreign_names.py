"""Pipelines under the names, arguments and shapes of transformers, beside transformers itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sequence_lab import save_classifier
from tiny_models import SHAPE, save

from maskwright.errors import InputError
from maskwright.inference.fill_mask import fill_mask, predict_masked
from maskwright.inference.pipeline import pipeline
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer, load_tokenizer

transformers = pytest.importorskip("transformers")
TEXTS = ["the cat sees the green house.", "a road", "my old teacher likes a long road."]
TOLERANCE = 2e-6
"""Of a probability in float32 that two programs compute."""


def ask_theirs(name: str, folder: Path, **options: Any) -> Any:
    return transformers.pipeline(name, str(folder), device="cpu", **options)


def assert_alike(ours: Any, theirs: Any) -> None:
    """The same nesting, keys, labels and places, and scores within the tolerance."""
    assert isinstance(ours, type(theirs))
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs)
        for key in theirs:
            assert_alike(ours[key], theirs[key])
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_alike(one, other)
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, abs=TOLERANCE)
    else:
        assert ours == theirs


def as_plain(answer: Any) -> Any:
    """Numbers of NumPy as those of Python."""
    if isinstance(answer, dict):
        return {key: as_plain(value) for key, value in answer.items()}
    if isinstance(answer, list):
        return [as_plain(one) for one in answer]
    return answer.item() if isinstance(answer, np.generic) else answer


@pytest.fixture(scope="module")
def classifier(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("classifier"), tokenizer, ["good", "bad", "neither"])


@pytest.fixture(scope="module")
def nli(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("nli"), tokenizer, ["contradiction", "neutral", "entailment"])


def build_head(tokenizer: Tokenizer, folder: Path, head: str, **settings: Any) -> Path:
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=tokenizer.vocab_size, max_position_embeddings=48, **SHAPE, **settings)
    return save(getattr(transformers, head)(config), tokenizer, folder)


@pytest.fixture(scope="module")
def tagger(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    classes = ["O", "B-PER", "I-PER", "B-LOC"]
    settings = {"id2label": dict(enumerate(classes)), "label2id": {one: place for place, one in enumerate(classes)}}
    return build_head(tokenizer, tmp_path_factory.mktemp("tagger"), "BertForTokenClassification", **settings)


@pytest.fixture(scope="module")
def reader(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_head(tokenizer, tmp_path_factory.mktemp("reader"), "BertForQuestionAnswering")


@pytest.mark.parametrize("name", ["text-classification", "sentiment-analysis"])
@pytest.mark.parametrize("inputs", [TEXTS[0], TEXTS, {"text": "the cat", "text_pair": "a dog"}], ids=type)
def test_text_classification_answers_in_the_shape_of_transformers(classifier: Path, name: str, inputs: Any) -> None:
    ours, theirs = pipeline(name, classifier, device=-1), ask_theirs(name, classifier)
    for options in ({}, {"top_k": 1}, {"top_k": 2}, {"top_k": None}):
        assert_alike(ours(inputs, **options), theirs(inputs, **options))


def test_token_classification_lists_tokens_unless_a_strategy_is_asked_for(tagger: Path) -> None:
    ours, theirs = pipeline("token-classification", tagger, device="cpu"), ask_theirs("token-classification", tagger)
    assert ours(TEXTS) == pipeline("ner", tagger, device="cpu", aggregation="none")(TEXTS)
    assert_alike(as_plain(ours(TEXTS)), as_plain(theirs(TEXTS)))
    for strategy in ("simple", "first", "max"):
        found = ours(TEXTS, aggregation_strategy=strategy)
        assert_alike(as_plain(found), as_plain(theirs(TEXTS, aggregation_strategy=strategy)))
        assert pipeline("ner", tagger, aggregation_strategy=strategy, device="cpu")(TEXTS) == found


@pytest.mark.parametrize("options", [{}, {"multi_label": True}, {"hypothesis_template": "it is {}"}], ids=str)
def test_zero_shot_takes_its_labels_with_the_call(nli: Path, options: dict[str, Any]) -> None:
    ours, theirs = pipeline("zero-shot-classification", nli, device="cpu"), ask_theirs("zero-shot-classification", nli)
    labels = ["a cat", "rain", "a road"]
    expected = theirs(TEXTS[0], candidate_labels=labels, **options)
    assert_alike(ours(TEXTS[0], candidate_labels=labels, **options), expected)
    assert ours(TEXTS[0], labels, **options) == ours(TEXTS[0], candidate_labels=labels, **options)
    assert_alike(ours(TEXTS, labels, **options), theirs(TEXTS, labels, **options))


def test_zero_shot_without_labels_says_how_to_give_them(nli: Path) -> None:
    with pytest.raises(InputError, match=r"there are no labels to choose from; give them as candidate_labels="):
        pipeline("zero-shot-classification", nli)(TEXTS[0])


@pytest.mark.parametrize("folder", ["bert_folder", "roberta_folder"])
def test_feature_extraction_has_a_vector_to_each_token_behind_a_batch_axis(
    folder: str, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(folder)
    ours, theirs = pipeline("feature-extraction", path, device="cpu"), ask_theirs("feature-extraction", path)
    np.testing.assert_allclose(ours(TEXTS[1]), np.array(theirs(TEXTS[1]), np.float32), rtol=1e-4, atol=1e-5)
    for one, other in zip(ours(TEXTS), theirs(TEXTS), strict=True):
        np.testing.assert_allclose(one, np.array(other, np.float32), rtol=1e-4, atol=1e-5)


def test_questions_come_by_name_one_or_many(reader: Path) -> None:
    context, questions = "the small dog sees a long road in the morning.", ["who sees?", "what?"]
    qa = pipeline("question-answering", reader, device="cpu")
    expected = pipeline("qa", reader, device="cpu", max_answer_length=15)([(one, context) for one in questions])
    assert_alike(qa(question=questions[0], context=context), expected[0])
    assert_alike(qa(question=questions, context=context), expected)
    assert_alike(qa(question=questions, context=[context, context]), expected)
    assert_alike(qa({"question": questions[1], "context": context}), expected[1])
    assert len(qa(question=questions[0], context=context, top_k=2)) == 2
    answer = qa(question=questions[0], context=context, max_answer_len=1, max_seq_len=32)
    short = pipeline("qa", reader, device="cpu", max_answer_length=1, max_length=32)
    assert_alike(answer, short((questions[0], context)))


def test_options_of_a_call_are_for_that_call_alone(bert_folder: Path) -> None:
    fill = pipeline("fill-mask", bert_folder, device="cpu")
    before = fill("the [MASK] sees")
    assert [len(fill("the [MASK] sees", top_k=2)), len(before)] == [2, 5]
    assert fill("the [MASK] sees", targets=["cat"])[0]["token_str"] == "cat"
    assert fill("the [MASK] sees") == before
    assert pipeline(task="fill-mask", model=bert_folder, device="cpu")("the [MASK] sees") == before


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (lambda folder: pipeline("text-generation", folder), "no kind 'text-generation' .*maskwright.generate"),
        (lambda folder: pipeline("fill-mask"), "a pipeline needs a kind and a model"),
        (lambda folder: pipeline("fil-mask", folder), "did you mean 'fill-mask'"),
        (lambda folder: pipeline("fill-mask", folder, batch_size=8), "no option 'batch_size': .*batch_tokens="),
        (lambda folder: pipeline("fill-mask", folder)("[MASK]", top_k="3"), "top_k is '3'; it must lie between"),
        (
            lambda folder: pipeline("fill-mask", folder, topk=1, top_k=1),
            "'top_k' is .*both are given|'topk' is another",
        ),
        (lambda folder: pipeline("fill-mask", folder)(), "the call has no input; expected a text"),
        (lambda folder: pipeline("fill-mask", folder)("[MASK]", "[MASK]"), "2 arguments are given: make a list"),
        (
            lambda folder: pipeline("fill-mask", folder)("[MASK]", aggregation_strategy="x"),
            "has no option 'aggregation",
        ),
    ],
)
def test_what_is_not_taken_says_what_is(bert_folder: Path, ask: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        ask(bert_folder)


@pytest.mark.parametrize(
    ("device", "name"), [(-1, "cpu"), (1, "cuda:1"), (torch.device("cuda:0"), "cuda:0"), (None, "auto")], ids=str
)
def test_devices_are_numbered_as_in_transformers(
    bert_folder: Path, device: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr("maskwright.inference.pipeline.choose_device", lambda *words: asked.append(words[0]) or "cpu")
    pipeline("fill-mask", bert_folder, device=device)
    assert asked == [name]


def test_a_question_without_its_context_is_refused(reader: Path) -> None:
    qa = pipeline("question-answering", reader)
    with pytest.raises(InputError, match=r"the call has question alone; expected question= and context="):
        qa(question="who?")
    with pytest.raises(InputError, match=r"lists of different lengths"):
        qa(question=["who?", "what?", "when?"], context=["a road", "a dog"])


@pytest.mark.parametrize(("folder", "written"), [("bert_folder", "<mask>"), ("angled_folder", "[MASK]")])
def test_either_spelling_of_the_mask_is_understood(folder: str, written: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(folder)
    model, tokenizer = MaskedLanguageModel.from_pretrained(path), load_tokenizer(path)
    assert tokenizer.mask_token != written
    own, other = f"the {tokenizer.mask_token} sees a road", f"the {written} sees a road"
    assert fill_mask(model, tokenizer, other) == fill_mask(model, tokenizer, own)
    assert predict_masked(model, tokenizer, other) == predict_masked(model, tokenizer, own)
    fill = pipeline("fill-mask", path, device="cpu")
    assert fill([other, other]) == fill([own, own])
    with pytest.raises(InputError, match="to fill"):
        fill("the cat")


@pytest.fixture(scope="module")
def angled_folder(sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A RoBERTa whose tokenizer writes <s>, </s>, <pad>, <unk> and <mask>."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    backend = Backend(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    backend.train_from_iterator(sentences, trainers.BpeTrainer(vocab_size=320, special_tokens=specials))
    tokenizer = Tokenizer(backend)
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=tokenizer.vocab_size, max_position_embeddings=26, pad_token_id=1, type_vocab_size=1, **SHAPE
    )
    return save(transformers.RobertaForMaskedLM(config), tokenizer, tmp_path_factory.mktemp("angled"))
