"""Classes by nearest neighbors, against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from maskwright.errors import InputError
from maskwright.runs.eval.embeddings import Classes, Vectors, predict_by_neighbors


def draw(num_vectors: int, seed: int) -> tuple[Vectors, Classes]:
    generator = np.random.default_rng(seed)
    classes = generator.integers(0, 4, num_vectors)
    vectors = generator.normal(size=(num_vectors, 6)) + 0.7 * np.eye(6)[classes]
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), classes


def test_neighbors_vote_as_in_scikit_learn() -> None:
    """With an odd number of two classes there are no ties, which scikit-learn breaks in another way."""
    known, classes = draw(60, seed=0)
    vectors, _ = draw(30, seed=1)
    theirs = KNeighborsClassifier(5, metric="cosine").fit(known, classes % 2)
    ours = predict_by_neighbors(vectors, known, classes % 2, 5, leaves_one_out=False)
    assert ours.tolist() == theirs.predict(vectors).tolist()


def test_a_text_is_not_its_own_neighbor() -> None:
    known, classes = draw(40, seed=2)
    found = predict_by_neighbors(known, known, classes, 3, leaves_one_out=True)
    for number in (0, 17, 39):
        others = np.arange(40) != number
        alone = predict_by_neighbors(known[[number]], known[others], classes[others], 3, leaves_one_out=False)
        assert found[number] == alone[0]
    assert (predict_by_neighbors(known, known, classes, 1, leaves_one_out=False) == classes).all()
    assert (predict_by_neighbors(known, known, classes, 1, leaves_one_out=True) != classes).any()


def test_the_nearer_class_wins_where_classes_have_as_many() -> None:
    known = np.array([[1, 0], [0.6, 0.8], [0, 1], [-1, 0]], dtype=np.float32)
    vector = np.array([[0.8, 0.6]], dtype=np.float32)
    assert predict_by_neighbors(vector, known, np.array([0, 1, 2, 2]), 2, leaves_one_out=False).tolist() == [1]


def test_more_neighbors_than_texts_are_refused() -> None:
    known, classes = draw(5, seed=3)
    with pytest.raises(InputError, match="5 neighbors are asked for, there are 4 texts; lower --neighbors"):
        predict_by_neighbors(known, known, classes, 5, leaves_one_out=True)
