"""Labels: which classes there are, how much they weigh, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from maskwright.batch import fill_missing
from maskwright.errors import InputError
from maskwright.tasks.config import TaskConfig, build_task_config
from maskwright.tasks.examples import Example
from maskwright.tasks.kinds import find_kind
from maskwright.tasks.sequence.classification import Classification
from maskwright.tasks.sequence.multi_label import MultiLabel
from maskwright.tasks.sequence.regression import Regression
from tolerances import assert_rounded


def build(*labels: Any) -> list[Example]:
    return [Example(f"f.tsv:{number}", "text", None, label) for number, label in enumerate(labels, start=2)]


def config(**values: Any) -> TaskConfig:
    return build_task_config({"task": "classification", "model": "m", "train": "f.tsv", "validation": "v", **values})


def test_whole_numbers_are_in_their_order_and_names_in_the_alphabets() -> None:
    assert Classification.from_examples(build("10", "9", 2, "9"), config()).classes == ("2", "9", "10")
    assert Classification.from_examples(build("no", "yes", " maybe "), config()).classes == ("maybe", "no", "yes")


def test_labels_become_numbers() -> None:
    task = Classification.from_examples(build("no", "yes", True), config())
    assert task.encode_targets(build("yes", "no", True)).tolist() == [2, 0, 1]


@pytest.mark.parametrize("labels", [(["a", "b"], [], ["b"]), ("a|b", "", "b"), ("a; b", "", "b"), ("a,b", "", " b ")])
def test_several_labels_are_read_from_lists_and_from_fields(labels: tuple[Any, ...]) -> None:
    task = MultiLabel.from_examples(build(*labels), config())
    assert task.classes == ("a", "b")
    assert task.encode_targets(build(*labels)).tolist() == [[1, 1], [0, 0], [0, 1]]


@pytest.mark.parametrize(
    ("task", "labels", "words"),
    [
        ("classification", ["a", "a"], "only the label 'a'; a classifier needs at least two"),
        ("classification", ["1.5", "2"], "measures and no classes: use regression"),
        ("classification", [["a"], ["b"]], "f.tsv:2 has a list as its label.*use multi-label"),
        ("classification", [f"id{number}" for number in range(30)], "30 different labels in 30 examples"),
        ("multi-label", [[], []], "no label at all"),
        ("multi-label", [["a"], ["b", None]], "in which one is missing; take it out"),
        ("regression", ["1", "high"], "f.tsv:3 has the label 'high'; regression learns numbers: use classification"),
        ("regression", [1.0, float("nan")], "f.tsv:3 has the label nan"),
        ("regression", ["2", 2.0], "all examples of f.tsv have the label 2"),
    ],
)
def test_labels_of_another_task_are_refused(task: str, labels: list[Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        find_kind(task).from_examples(build(*labels), config())


def test_a_label_that_training_did_not_show_is_refused() -> None:
    task = Classification.from_examples(build("a", "b"), config())
    with pytest.raises(InputError, match=r"f\.tsv:3 has the label 'c', which no training example has; known are a, b"):
        task.encode_targets(build("a", "c"))


@pytest.mark.parametrize("option", [{"class_weights": "balanced"}, {"label_smoothing": 0.1}])
def test_a_measure_has_no_classes_to_weigh(option: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="regression has none: leave it out"):
        Regression.from_examples(build(1, 2), config(**option))


def test_balanced_weights_let_all_classes_count_alike() -> None:
    examples = build("a", "a", "a", "b")
    task = Classification.from_examples(examples, config(class_weights="balanced"))
    assert task.class_weights is not None
    weights = task.class_weights[task.encode_targets(examples)]
    assert_rounded(weights[:3].sum(), weights[3], num_terms=3)
    assert_rounded(weights.mean(), 1.0, num_terms=4)


def test_given_weights_keep_their_ratio_and_weigh_the_loss() -> None:
    examples = build("a", "a", "a", "b")
    task = Classification.from_examples(examples, config(class_weights="1,4"))
    logits, targets = torch.randn(1, 4, 2, generator=torch.Generator().manual_seed(0)), task.encode_targets(examples)
    each = torch.nn.functional.cross_entropy(logits[0], targets, reduction="none")
    expected = (each[:3].sum() + 4 * each[3]) / (7 / 4)  # a mean weight of 1
    assert_rounded(task.loss_sums(logits, targets[None]).loss_sum, expected, num_terms=4 * 2)


@pytest.mark.parametrize(
    ("weights", "words"),
    [("1,2,3", "has 3 numbers, there are 2 classes"), ("1,x", "expected balanced"), ("1,-1", "must be positive")],
)
def test_weights_that_do_not_fit_are_refused(weights: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Classification.from_examples(build("a", "b"), config(class_weights=weights))


def test_positives_of_a_rare_label_can_weigh_as_much_as_its_negatives() -> None:
    task = MultiLabel.from_examples(build(["a"], ["b"], ["b"], ["b"]), config(class_weights="balanced"))
    assert task.positive_weights is not None
    assert_rounded(task.positive_weights, [3.0, 1 / 3], num_terms=1)


def test_smoothing_gives_a_share_of_the_label_to_all_classes() -> None:
    logits, targets = torch.tensor([[[2.0, -1.0]]]), torch.tensor([[0]])
    log_shares = logits[0, 0].log_softmax(-1)
    sums = Classification(["a", "b"], label_smoothing=0.2).loss_sums(logits, targets)
    assert_rounded(sums.loss_sum, -(0.9 * log_shares[0] + 0.1 * log_shares[1]), num_terms=4)


@pytest.mark.parametrize(
    ("task", "targets", "num_outputs"),
    [
        (Classification(["a", "b"], [0.5, 2.0]), torch.tensor([[1, 0]]), 2),
        (MultiLabel(["a", "b"]), torch.tensor([[[1.0, 0.0], [0.0, 0.0]]]), 2),
        (Regression(), torch.tensor([[-100.0, 3.0]]), 1),
    ],
)
def test_places_without_a_document_change_nothing(task: Any, targets: torch.Tensor, num_outputs: int) -> None:
    """Also where a measure happens to be the number that marks ignored classes."""
    logits = torch.randn(1, 5, num_outputs, generator=torch.Generator().manual_seed(0))
    longer = fill_missing((1, 5, *targets.shape[2:]), targets.dtype)
    longer[:, :2] = targets
    few, many = task.loss_sums(logits[:, :2], targets), task.loss_sums(logits, longer)
    assert many.counts.tolist() == few.counts.tolist() == [2]
    assert_rounded(many.losses, few.losses, num_terms=5 * num_outputs)
    assert_rounded(many.figures, few.figures, num_terms=5 * num_outputs)
