from __future__ import annotations

import pytest
import torch

from maskwright.training.distributed.world import World
from maskwright.training.optim import muon
from maskwright.training.optim.muon import Muon, orthogonalize
from tolerances import rounding

# Five rounds of the quintic with Jordan's coefficients take singular values of a well-conditioned matrix into about
# [0.7, 1.2]: it trades exactness for speed, by design.
SMALLEST, LARGEST = 0.65, 1.25


def bound_error(matrix: torch.Tensor) -> float:
    """Of a result after five rounds of three products.

    A rounding error grows with the singular value of its direction: from the smallest to about 1, and in a round by no
    more than the first coefficient.
    """
    values = torch.linalg.svdvals(matrix)
    growth = min(float(values.norm() / values.min()), 3.4445**5)
    return rounding(5 * 3 * max(matrix.shape), growth)


def random_matrix(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(16, 16), (48, 16), (16, 48)])
def test_singular_values_come_near_one(shape):
    values = torch.linalg.svdvals(orthogonalize([random_matrix(*shape)])[0])
    assert len(values) == 16
    # A square Gaussian matrix has a singular value near 0, which five rounds may leave below the band.
    ordinary = values if shape[0] != shape[1] else values[:-2]
    assert ordinary.min() > SMALLEST
    assert values.max() < LARGEST


@pytest.mark.parametrize("shape", [(12, 12), (32, 12), (12, 32)])
def test_singular_vectors_are_kept(shape):
    """The result is U f(S) V^T, so in the basis of the input's singular vectors it is diagonal."""
    matrix = random_matrix(*shape)
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    core = u.T @ orthogonalize([matrix])[0] @ vh.T
    torch.testing.assert_close(core, torch.diag(core.diagonal()), atol=bound_error(matrix), rtol=0)
    assert (core.diagonal() > 0).all()


@pytest.mark.parametrize("shape", [(32, 12), (12, 32)])
def test_result_is_near_the_orthogonal_factor(shape):
    """Within 0.35 of U V^T in spectral norm: the quintic's band around 1."""
    matrix = random_matrix(*shape)
    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    assert torch.linalg.matrix_norm(orthogonalize([matrix])[0] - u @ vh, ord=2) < 0.35


def test_scale_of_the_input_does_not_matter():
    matrix = random_matrix(8, 24)
    torch.testing.assert_close(*orthogonalize([matrix, 1000 * matrix]), atol=bound_error(matrix), rtol=0)


def test_zero_matrix_stays_zero():
    assert torch.equal(orthogonalize([torch.zeros(4, 6)])[0], torch.zeros(4, 6))


@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (20, 8), (8, 20)])
def test_stacked_blocks_are_orthogonalized_each_alone(rows, columns):
    blocks = [random_matrix(rows, columns, seed) * (seed + 1) for seed in range(3)]
    stacked = orthogonalize([torch.cat(blocks)], num_stacked=3)[0]
    alone = torch.cat([orthogonalize([block])[0] for block in blocks])
    torch.testing.assert_close(stacked, alone, atol=max(map(bound_error, blocks)), rtol=0)


def test_matrices_of_several_shapes_keep_their_order():
    matrices = [random_matrix(6, 4, 0), random_matrix(4, 6, 1), random_matrix(6, 4, 2)]
    for matrix, result in zip(matrices, orthogonalize(matrices), strict=True):
        torch.testing.assert_close(result, orthogonalize([matrix])[0], atol=bound_error(matrix), rtol=0)


@pytest.mark.parametrize("shape", [(24, 8), (8, 24)])
def test_steps_follow_the_formula(shape):
    weight = torch.nn.Parameter(random_matrix(*shape, seed=1))
    expected, buffer = weight.detach().clone(), torch.zeros(shape)
    optimizer = Muon([weight], lr=0.1, momentum=0.9, weight_decay=0.5)
    for step in range(3):
        gradient = random_matrix(*shape, seed=10 + step)
        weight.grad = gradient.clone()
        optimizer.step()

        buffer = 0.9 * buffer + 0.1 * gradient
        direction = 0.1 * gradient + 0.9 * buffer
        scale = max(1.0, shape[0] / shape[1]) ** 0.5
        expected = expected * (1 - 0.1 * 0.5) - 0.1 * scale * orthogonalize([direction])[0]
        torch.testing.assert_close(weight.detach(), expected, atol=(step + 1) * bound_error(direction), rtol=0)


def test_scale_of_stacked_parameters_is_that_of_a_block():
    """Three square blocks scale by 1, not by the square root of 3."""
    weight = torch.nn.Parameter(torch.zeros(24, 8))
    gradient = random_matrix(24, 8)
    weight.grad = gradient
    Muon([{"params": [weight], "num_stacked": 3}], lr=1.0).step()
    expected = -orthogonalize([gradient], num_stacked=3)[0]
    torch.testing.assert_close(weight.detach(), expected, atol=max(map(bound_error, gradient.chunk(3))), rtol=0)


@pytest.mark.parametrize("shape", [(16, 16), (32, 8), (8, 32)])
def test_agrees_with_torch(shape):
    """torch's Muon iterates in bf16, here in three steps of size 0.1: each has five rounds of three products."""
    ours, theirs = (torch.nn.Parameter(random_matrix(*shape)) for _ in range(2))
    settings = {"lr": 0.1, "momentum": 0.95, "weight_decay": 0.2}
    optimizers = (Muon([ours], **settings), torch.optim.Muon([theirs], **settings, adjust_lr_fn="original"))
    for step in range(3):
        ours.grad, theirs.grad = (random_matrix(*shape, seed=5 + step) for _ in range(2))
        for optimizer in optimizers:
            optimizer.step()
    assert (ours - random_matrix(*shape)).abs().max() > 0.05
    error = rounding(3 * 5 * 3, magnitude=0.1, dtype=torch.bfloat16)
    torch.testing.assert_close(ours, theirs, atol=error, rtol=0)


def test_parameters_without_gradient_stay():
    with_gradient, without = (torch.nn.Parameter(random_matrix(4, 4)) for _ in range(2))
    with_gradient.grad = random_matrix(4, 4, 1)
    Muon([with_gradient, without], weight_decay=0.1).step()
    assert torch.equal(without, random_matrix(4, 4))
    assert not torch.equal(with_gradient, random_matrix(4, 4))


@pytest.mark.parametrize(("num_matrices", "num_processes"), [(5, 2), (4, 4), (3, 5), (1, 2)])
def test_processes_do_a_share_of_the_iteration_each(
    monkeypatch: pytest.MonkeyPatch, num_matrices: int, num_processes: int
) -> None:
    """In turn here, with what the others would send kept from a first round; in processes: test_several_processes."""
    matrices = [random_matrix(16, 12, seed) for seed in range(num_matrices)]
    sent: dict[int, torch.Tensor] = {}
    iterated: list[int] = []
    original = muon._newton_schulz

    def gather(every: torch.Tensor, own: torch.Tensor) -> None:
        sent[rank] = own.clone()
        every.copy_(torch.cat([sent.get(other, torch.zeros_like(own)) for other in range(num_processes)]))

    def iterate(blocks: torch.Tensor, num_iterations: int) -> torch.Tensor:
        iterated.append(len(blocks))
        return original(blocks, num_iterations)

    monkeypatch.setattr(muon, "_gather", gather)
    monkeypatch.setattr(muon, "_newton_schulz", iterate)
    for _ in range(2):
        found = []
        for rank in range(num_processes):
            found.append(orthogonalize(matrices, world=World(rank, num_processes)))
    monkeypatch.undo()
    assert max(iterated) == -(-num_matrices // num_processes)
    if num_matrices > 1:
        assert sum(iterated) == 2 * num_matrices
    for every in found:
        for matrix, result, expected in zip(matrices, every, orthogonalize(matrices), strict=True):
            torch.testing.assert_close(result, expected, rtol=0, atol=bound_error(matrix))
