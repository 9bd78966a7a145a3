"""Scores from sums equal those that scikit-learn and scipy compute from all answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from maskwright.tasks.sequence.classification import Classification
from maskwright.tasks.sequence.multi_label import MultiLabel
from maskwright.tasks.sequence.regression import Regression
from maskwright.tasks.task import Scores, Task, compute_pearson, compute_spearman
from tolerances import rounding

metrics = pytest.importorskip("sklearn.metrics")
stats = pytest.importorskip("scipy.stats")


def score(task: Task, logits: torch.Tensor, targets: torch.Tensor) -> Scores:
    """From the sums of two parts, as a loader would give them."""
    totals = torch.zeros(2 + task.num_figures, dtype=torch.float64)
    for part in (slice(0, 7), slice(7, None)):
        sums = task.loss_sums(logits[None, part], targets[None, part])
        totals += torch.cat([sums.losses, sums.counts, sums.figures])
    return task.compute_metrics(totals.tolist())


@pytest.mark.parametrize("num_classes", [2, 5])
def test_classification(num_classes: int) -> None:
    generator = torch.Generator().manual_seed(num_classes)
    logits = torch.randn(60, num_classes, generator=generator)
    targets = torch.randint(0, num_classes, (60,), generator=generator)
    found = score(Classification([str(n) for n in range(num_classes)]), logits, targets)
    answers = logits.argmax(-1)
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(targets, answers))
    assert found["macro_f1"] == pytest.approx(metrics.f1_score(targets, answers, average="macro"))
    assert found["matthews"] == pytest.approx(metrics.matthews_corrcoef(targets, answers))
    assert found["loss"] == pytest.approx(
        float(torch.nn.functional.cross_entropy(logits, targets)), rel=rounding(60 * num_classes)
    )


def test_a_class_that_never_occurs_does_not_count_in_the_macro_mean() -> None:
    targets, logits = torch.tensor([0, 1] * 6), torch.eye(3)[torch.tensor([0, 1, 1] * 4)]
    found = score(Classification(["a", "b", "never"]), logits, targets)
    assert found["macro_f1"] == pytest.approx(metrics.f1_score(targets, logits.argmax(-1), average="macro"))


def test_answers_that_are_all_the_same_have_no_correlation() -> None:
    found = score(Classification(["a", "b"]), torch.tensor([[1.0, 0.0]] * 10), torch.tensor([0, 1] * 5))
    assert found["matthews"] == 0.0


def test_multi_label() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 4, generator=generator)
    targets = (torch.rand(50, 4, generator=generator) > 0.6).float()
    found = score(MultiLabel(["a", "b", "c", "d"]), logits, targets)
    answers = (logits > 0).int()
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(targets, answers))
    assert found["micro_f1"] == pytest.approx(metrics.f1_score(targets, answers, average="micro"))
    assert found["macro_f1"] == pytest.approx(metrics.f1_score(targets, answers, average="macro"))
    expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)
    assert found["loss"] == pytest.approx(float(expected), rel=rounding(50 * 4))


def test_scores_of_each_class() -> None:
    targets, answers = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 1, 1, 2, 2, 0])
    task = Classification(["x", "y", "z"])
    sums = task.loss_sums(torch.eye(3)[answers][None], targets[None])
    found = task.score_classes([*sums.losses.tolist(), *sums.counts.tolist(), *sums.figures.tolist()])
    expected = metrics.precision_recall_fscore_support(targets, answers)
    names = ("precision", "recall", "f1", "examples")
    for name, values in zip(names, expected, strict=True):
        assert [found[one][name] for one in "xyz"] == pytest.approx(values)


@pytest.mark.parametrize("shift", [0.0, 2000.0])
def test_regression(shift: float) -> None:
    generator = torch.Generator().manual_seed(3)
    targets = torch.randn(40, generator=generator).round(decimals=1) + shift
    logits = (targets + torch.randn(40, generator=generator))[:, None]
    task = Regression()
    found = score(task, logits, targets)
    pearson = stats.pearsonr(logits[:, 0].double(), targets.double())[0]
    assert found["pearson"] == pytest.approx(pearson, abs=rounding(40))
    assert found["loss"] == pytest.approx(float(torch.nn.functional.mse_loss(logits[:, 0], targets)), rel=rounding(40))
    spearman = task.score_answers(logits, targets, [])["spearman"]
    assert spearman == pytest.approx(stats.spearmanr(logits[:, 0], targets)[0])


def test_a_constant_has_no_correlation() -> None:
    values = np.full(9, 0.1)
    moments = [values.sum(), 5.0, (values * values).sum(), 10.0, 3.0]
    assert math.isnan(compute_pearson(9, moments))
    assert math.isnan(compute_spearman(torch.full((9,), 0.1), torch.arange(9.0)))


@pytest.mark.parametrize("task", [Classification(["a", "b"]), MultiLabel(["a", "b"]), Regression()])
def test_without_an_example_the_loss_is_not_a_number(task: Task) -> None:
    found = task.compute_metrics([0.0] * (2 + task.num_figures))
    assert next(iter(found)) == "loss"
    assert math.isnan(found["loss"])
    assert task.default_metric in found
