"""Every optimizer of our own against torch's, or against its paper's formula written out number by number."""

from __future__ import annotations

import math

import pytest
import torch

from maskwright.training.optim import algorithms
from maskwright.training.optim.algorithms import Lamb, Lion, NovoGrad, Sgd, StableAdamW
from tolerances import assert_rounded

NUM_STEPS = 5
RATE = 0.05
DECAY = 0.3


def random_values(seed: int, num: int = 12) -> list[float]:
    return torch.randn(num, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist()


# The third gradient is far larger than those before it, which is what StableAdamW and NovoGrad react to.
GRADIENTS = [[value * (20 if step == 2 else 1) for value in random_values(100 + step)] for step in range(NUM_STEPS)]


def run(optimizer_class, shape=(3, 4), start=None, **settings) -> list[float]:
    weight = torch.nn.Parameter(torch.tensor(start or random_values(0), dtype=torch.float64).reshape(shape))
    optimizer = optimizer_class([weight], lr=RATE, weight_decay=DECAY, **settings)
    for gradient in GRADIENTS:
        weight.grad = torch.tensor(gradient, dtype=torch.float64).reshape(shape)
        optimizer.step()
    return weight.detach().flatten().tolist()


def norm(values: list[float]) -> float:
    return math.sqrt(sum(value * value for value in values))


def assert_near(found: list[float], expected: list[float]) -> None:
    assert_rounded(found, expected, NUM_STEPS * len(expected), dtype=torch.float64)


def follow_stable_adamw(weights: list[float], beta1=0.9, beta2=0.98, epsilon=1e-6) -> list[float]:
    """Wortsman et al. 2023, algorithm 2."""
    v, u = [0.0] * len(weights), [0.0] * len(weights)
    for t, gradient in enumerate(GRADIENTS, start=1):
        b1 = beta1 * (1 - beta1 ** (t - 1)) / (1 - beta1**t)
        b2 = beta2 * (1 - beta2 ** (t - 1)) / (1 - beta2**t)
        v = [b1 * old + (1 - b1) * g for old, g in zip(v, gradient, strict=True)]
        u = [b2 * old + (1 - b2) * g * g for old, g in zip(u, gradient, strict=True)]
        ratios = [g * g / max(square, epsilon**2) for g, square in zip(gradient, u, strict=True)]
        rate = RATE / max(1.0, math.sqrt(sum(ratios) / len(ratios)))
        weights = [
            w - rate * DECAY * w - rate * mean / (math.sqrt(square) + epsilon)
            for w, mean, square in zip(weights, v, u, strict=True)
        ]
    return weights


def test_stable_adamw_follows_its_paper():
    assert_near(run(StableAdamW), follow_stable_adamw(random_values(0)))
    settings = {"beta1": 0.7, "beta2": 0.9, "epsilon": 0.1}
    assert_near(run(StableAdamW, **settings), follow_stable_adamw(random_values(0), **settings))


def test_stable_adamw_takes_a_smaller_step_than_adamw_when_the_gradient_leaps():
    steps = {}
    for name, optimizer_class in {"stable": StableAdamW, "plain": torch.optim.AdamW}.items():
        weight = torch.nn.Parameter(torch.zeros(4))
        optimizer = optimizer_class([weight], lr=RATE)
        for size in (1.0, 1.0, 100.0):
            before = weight.detach().clone()
            weight.grad = torch.full((4,), size)
            optimizer.step()
        steps[name] = float((weight.detach() - before).abs().max())
    assert steps["stable"] < 0.75 * steps["plain"]


def follow_lamb(weights: list[float], adapts: bool, beta1=0.9, beta2=0.999, epsilon=1e-6) -> list[float]:
    """You et al. 2019, algorithm 2."""
    m, v = [0.0] * len(weights), [0.0] * len(weights)
    for t, gradient in enumerate(GRADIENTS, start=1):
        m = [beta1 * old + (1 - beta1) * g for old, g in zip(m, gradient, strict=True)]
        v = [beta2 * old + (1 - beta2) * g * g for old, g in zip(v, gradient, strict=True)]
        update = []
        for mean, square, w in zip(m, v, weights, strict=True):
            ratio = (mean / (1 - beta1**t)) / (math.sqrt(square / (1 - beta2**t)) + epsilon)
            update.append(ratio + DECAY * w)
        trust = norm(weights) / norm(update) if adapts and norm(weights) and norm(update) else 1.0
        weights = [w - RATE * trust * change for w, change in zip(weights, update, strict=True)]
    return weights


def test_lamb_follows_its_paper():
    assert_near(run(Lamb), follow_lamb(random_values(0), adapts=True))
    settings = {"beta1": 0.7, "beta2": 0.9, "epsilon": 0.1}
    assert_near(run(Lamb, **settings), follow_lamb(random_values(0), adapts=True, **settings))


def test_lamb_leaves_vectors_their_size():
    assert_near(run(Lamb, shape=(12,)), follow_lamb(random_values(0), adapts=False))


def test_lamb_moves_a_matrix_of_zeros():
    start = [0.0] * 12
    moved = run(Lamb, start=start)
    assert_near(moved, follow_lamb(start, adapts=True))
    assert norm(moved) > 0


def follow_novograd(weights: list[float], beta1=0.95, beta2=0.98, epsilon=1e-8) -> list[float]:
    """Ginsburg et al. 2019, algorithm 1."""
    v, m = 0.0, [0.0] * len(weights)
    for t, gradient in enumerate(GRADIENTS, start=1):
        square = norm(gradient) ** 2
        v = square if t == 1 else beta2 * v + (1 - beta2) * square
        m = [
            beta1 * old + (g / (math.sqrt(v) + epsilon) + DECAY * w)
            for old, g, w in zip(m, gradient, weights, strict=True)
        ]
        weights = [w - RATE * change for w, change in zip(weights, m, strict=True)]
    return weights


def test_novograd_follows_its_paper():
    assert_near(run(NovoGrad), follow_novograd(random_values(0)))
    settings = {"beta1": 0.7, "beta2": 0.9, "epsilon": 0.1}
    assert_near(run(NovoGrad, **settings), follow_novograd(random_values(0), **settings))


def follow_lion(weights: list[float], beta1=0.9, beta2=0.99) -> list[float]:
    """Chen et al. 2023, algorithm 2."""
    m = [0.0] * len(weights)
    for gradient in GRADIENTS:
        c = [beta1 * old + (1 - beta1) * g for old, g in zip(m, gradient, strict=True)]
        weights = [w - RATE * (math.copysign(1, one) + DECAY * w) for w, one in zip(weights, c, strict=True)]
        m = [beta2 * old + (1 - beta2) * g for old, g in zip(m, gradient, strict=True)]
    return weights


def test_lion_follows_its_paper():
    assert_near(run(Lion), follow_lion(random_values(0)))
    settings = {"beta1": 0.3, "beta2": 0.6}
    assert_near(run(Lion, **settings), follow_lion(random_values(0), **settings))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_equals_torch(momentum):
    assert_near(run(Sgd, momentum=momentum), run(torch.optim.SGD, momentum=momentum))


@pytest.mark.parametrize("optimizer_class", [StableAdamW, Lamb, NovoGrad, Lion, Sgd])
def test_a_gradient_of_zero_gives_finite_weights(optimizer_class):
    weight = torch.nn.Parameter(torch.ones(2, 3))
    optimizer = optimizer_class([weight], lr=RATE)
    for size in (0.0, 1.0):
        weight.grad = torch.full((2, 3), size)
        optimizer.step()
    assert weight.isfinite().all()
    assert (weight < 1).all()


@pytest.mark.parametrize("optimizer_class", [StableAdamW, Lamb, NovoGrad, Lion, Sgd])
def test_parameters_without_gradient_stay_and_get_no_state(optimizer_class):
    with_gradient, without = (torch.nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    with_gradient.grad = torch.ones(2, 2)
    optimizer = optimizer_class([with_gradient, without], lr=RATE, weight_decay=DECAY)
    optimizer.step()
    assert torch.equal(without, torch.ones(2, 2))
    assert not torch.equal(with_gradient, torch.ones(2, 2))
    assert without not in optimizer.state


@pytest.mark.parametrize("max_elements", [12, 24, 1000], ids=["alone", "two_at_a_time", "all_together"])
@pytest.mark.parametrize("optimizer_class", [StableAdamW, Lamb, NovoGrad, Lion, Sgd])
def test_parameters_of_one_shape_are_stepped_each_for_itself(monkeypatch, optimizer_class, max_elements):
    """However many are stacked to be stepped at once."""
    monkeypatch.setattr(algorithms, "_MAX_STACK_ELEMENTS", max_elements)
    starts = [random_values(seed) for seed in range(3)]
    weights = [torch.nn.Parameter(torch.tensor(start, dtype=torch.float64).reshape(3, 4)) for start in starts]
    optimizer = optimizer_class(weights, lr=RATE, weight_decay=DECAY)
    for gradient in GRADIENTS:
        for size, weight in enumerate(weights, start=1):
            weight.grad = torch.tensor(gradient, dtype=torch.float64).reshape(3, 4)
            weight.grad[0] *= size
        optimizer.step()
    for size, (start, weight) in enumerate(zip(starts, weights, strict=True), start=1):
        alone = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64).reshape(3, 4))
        lonely = optimizer_class([alone], lr=RATE, weight_decay=DECAY)
        for gradient in GRADIENTS:
            alone.grad = torch.tensor(gradient, dtype=torch.float64).reshape(3, 4)
            alone.grad[0] *= size
            lonely.step()
        assert_rounded(weight, alone, NUM_STEPS * weight.numel(), dtype=torch.float64)
