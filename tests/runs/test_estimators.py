"""Encoders as scikit-learn's estimators: parameters, clones, pipelines, searches and scores."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.errors import InputError
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tiny_bert import build_tiny_bert

estimator_checks = pytest.importorskip(
    "sklearn.utils.estimator_checks", reason="scikit-learn is not installed (pip install 'maskwright[eval]')"
)
CPU = {"training.device": "cpu", "training.precision": "fp32"}


@pytest.fixture(scope="module")
def encoder(tokenizer: Tokenizer) -> mw.BERT:
    return build_tiny_bert(tokenizer, max_position_embeddings=32, initializer_range=0.1)


@pytest.fixture(scope="module")
def folder(encoder: mw.BERT, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> str:
    place = str(tmp_path_factory.mktemp("encoder") / "tiny")
    encoder.save_pretrained(place)
    tokenizer.save(place)
    return place


@pytest.fixture(scope="module")
def examples(sentences: list[str]) -> tuple[list[str], list[int]]:
    """The verb decides the class, which is a number."""
    return sentences, [7 if "likes" in text or "follows" in text else -2 for text in sentences]


@pytest.fixture(scope="module")
def classifier(folder: str, examples: tuple[list[str], list[int]]) -> Any:
    return mw.TextClassifier(folder, epochs=12, batch_size=8, learning_rate=5e-3, settings=CPU).fit(*examples)


def test_vectors_are_those_of_the_pipeline_in_every_form_of_texts(
    encoder: mw.BERT, tokenizer: Tokenizer, folder: str, sentences: list[str]
) -> None:
    expected = np.stack(mw.pipeline("embed", encoder, tokenizer)(sentences))
    pd = pytest.importorskip("pandas")
    for given in (
        sentences,
        np.array(sentences),
        np.array(sentences, dtype=object)[:, None],
        pd.Series(sentences),
        pd.DataFrame({"review": sentences}),
        iter(sentences),
    ):
        found = mw.TextEmbedder(encoder, tokenizer=tokenizer).transform(given)
        assert np.array_equal(found, expected)
    named = mw.TextEmbedder(folder, pooling="cls", normalize=True, device="cpu").fit_transform(sentences)
    assert np.linalg.norm(named, axis=1) == pytest.approx(1.0, rel=1e-5)
    assert mw.TextEmbedder(encoder, tokenizer=tokenizer).transform([]).shape == (0, 32)


def test_settings_are_read_set_and_cloned(folder: str) -> None:
    from sklearn.base import clone

    embedder = mw.TextEmbedder(folder, pooling="mean")
    first = embedder.transform(["the cat"])
    assert embedder.get_params() == {
        "model": folder,
        "tokenizer": None,
        "pooling": "mean",
        "normalize": False,
        "max_length": None,
        "device": None,
    }
    assert not np.allclose(embedder.set_params(pooling="cls").transform(["the cat"]), first)
    copy = clone(embedder)
    assert copy is not embedder
    assert copy.get_params() == embedder.get_params()
    assert np.array_equal(pickle.loads(pickle.dumps(embedder)).transform(["a"]), embedder.transform(["a"]))
    classifier = mw.TextClassifier(folder, epochs=2, settings=CPU)
    assert clone(classifier).get_params() == classifier.get_params()
    assert clone(classifier).set_params(epochs=5).epochs == 5
    with pytest.raises(ValueError, match="Invalid parameter 'epoch'"):
        classifier.set_params(epoch=5)


def test_an_embedder_is_the_first_step_of_a_pipeline(folder: str, examples: tuple[list[str], list[int]]) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(mw.TextEmbedder(folder), LogisticRegression(C=100.0, max_iter=500))
    assert model.fit(*examples).score(*examples) > 0.8
    assert set(model.predict(examples[0][:3])) <= {7, -2}


def test_a_classifier_learns_and_answers_with_the_classes_it_was_given(
    classifier: Any, examples: tuple[list[str], list[int]], tmp_path: Path
) -> None:
    texts, labels = examples
    assert classifier.classes_.tolist() == [-2, 7]
    assert classifier.score(texts, labels) > 0.95
    shares = classifier.predict_proba(texts)
    assert shares.shape == (len(texts), 2)
    assert shares.sum(axis=1) == pytest.approx(1.0, abs=1e-5)
    assert np.array_equal(classifier.predict(texts), classifier.classes_[shares.argmax(axis=1)])
    classifier.save(tmp_path / "model")
    answers = mw.pipeline("classify", tmp_path / "model", precision="fp32")(texts)
    assert [int(one["label"]) for one in answers] == classifier.predict(texts).tolist()
    assert np.array_equal(pickle.loads(pickle.dumps(classifier)).predict(texts), classifier.predict(texts))


def test_equal_seeds_give_equal_models(folder: str, examples: tuple[list[str], list[int]]) -> None:
    first, same, other = (
        mw.TextClassifier(folder, epochs=1, seed=seed, settings=["training.device=cpu"]).fit(*examples)
        for seed in (3, 3, 4)
    )
    assert np.array_equal(first.predict_proba(examples[0]), same.predict_proba(examples[0]))
    assert not np.array_equal(first.predict_proba(examples[0]), other.predict_proba(examples[0]))


@pytest.mark.slow  # a search clones, sets and fits, as the tests above do
def test_a_search_finds_the_better_of_two_settings(folder: str, examples: tuple[list[str], list[int]]) -> None:
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    base = mw.TextClassifier(folder, epochs=20, batch_size=8, settings=CPU)
    parts = StratifiedKFold(2, shuffle=True, random_state=0)
    search = GridSearchCV(base, {"learning_rate": [1e-7, 5e-3]}, cv=parts)
    search.fit(*examples)
    assert search.best_params_ == {"learning_rate": 5e-3}
    assert search.best_estimator_.score(*examples) > 0.9


def test_lora_is_a_setting_too(folder: str, examples: tuple[list[str], list[int]]) -> None:
    pytest.importorskip("peft", reason="peft is not installed (pip install 'maskwright[lora]')")
    fitted = mw.TextClassifier(folder, epochs=16, batch_size=8, learning_rate=1e-2, lora=4, settings=CPU).fit(*examples)
    assert fitted.score(*examples) > 0.8
    assert not any("lora" in name for name, _ in fitted.model_.named_parameters())


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (["a", "b"], [1], r"2 texts and labels of shape \(1,\)"),
        ("a text", [1], "X is a str; expected a list"),
        (["a", 3], [0, 1], "X:2 is a int; expected a text"),
        (["a", "b"], [1, 1], "class"),
        (["a", "b", "c", "d"], np.array(["1", 1, "1", 1], dtype=object), "labels are of several types"),
    ],
)
def test_wrong_input_is_one_sentence(folder: str, texts: Any, labels: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mw.TextClassifier(folder, epochs=1, settings=CPU).fit(texts, labels)


def test_answers_need_a_fit_and_frames_of_several_columns_are_refused(folder: str) -> None:
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        mw.TextClassifier(folder).predict(["a"])
    frame = pytest.importorskip("pandas").DataFrame({"a": ["x"], "b": ["y"]})
    with pytest.raises(InputError, match=r"X has the columns a, b; give the one of texts, such as X\['a'\]"):
        mw.TextEmbedder(folder).transform(frame)


def test_without_scikit_learn_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "maskwright.runs.estimators", raising=False)
    with pytest.raises(InputError, match=r"pip install 'maskwright\[eval\]'"):
        _ = mw.TextClassifier


CHECKS = [
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_estimator_tags_renamed",
    "check_estimators_unfitted",
    "check_get_params_invariance",
    "check_mixin_order",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_set_params",
    "check_valid_tag_types",
]
"""Scikit-learn's own checks of estimators, but for those that fit numbers."""


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("build", [mw.TextEmbedder, mw.TextClassifier], ids=lambda build: build.__name__)
def test_scikit_learns_checks_of_estimators_pass(folder: str, build: Callable[[str], Any], check: str) -> None:
    getattr(estimator_checks, check)(build.__name__, build(folder))
