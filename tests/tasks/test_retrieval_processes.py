"""Sparse and late retrieval in several processes: the loss, its regulariser and gradients of the whole batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from prestarted import Prestarted
from retrieval_worker import build_examples, build_task, take_share
from safetensors.torch import load_file


@pytest.mark.parametrize("kind", [pytest.param("splade", marks=pytest.mark.slow), "colbert"])
def test_shares_add_up_to_the_whole_batch(prestarted: Prestarted, tmp_path: Path, kind: str) -> None:
    answers, targets = build_examples(kind)
    answers.requires_grad_()
    sums = build_task(kind).loss_sums(answers, targets)
    sums.loss_sum.backward()
    assert answers.grad is not None
    given = {"folder": str(tmp_path), "kind": kind}
    ranks = prestarted.start_ranks("retrieval_worker:compute_share", given, tmp_path / "said", 2)
    assert [rank.wait() for rank in ranks] == [0, 0], [rank.text() for rank in ranks]
    shares = [load_file(tmp_path / f"{rank}.safetensors") for rank in (0, 1)]
    torch.testing.assert_close(sum(one["loss"] for one in shares), sums.losses.detach())
    torch.testing.assert_close(sum(one["figures"] for one in shares), sums.figures)
    for rank, share in enumerate(shares):
        torch.testing.assert_close(share["gradient"], take_share(answers.grad, kind, rank))
