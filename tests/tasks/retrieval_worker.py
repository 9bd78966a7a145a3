"""What a process of its own does with its share of the examples of sparse and of late retrieval."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from maskwright.tasks.retrieval.colbert import LateRetrieval
from maskwright.tasks.retrieval.dense import DenseRetrieval
from maskwright.tasks.retrieval.settings import RetrievalSettings
from maskwright.tasks.retrieval.splade import SpladeRetrieval

NUM_EXAMPLES = 6
LONGEST = (3, 5)
"""Tokens of the texts of each process."""


def build_task(kind: str) -> DenseRetrieval:
    if kind == "splade":
        task = SpladeRetrieval(RetrievalSettings("splade", temperature=1.0, query_flops=2.0, document_flops=3.0))
        task.follow(1.0)
        return task
    return LateRetrieval(RetrievalSettings("colbert", temperature=1.0, width=4, query_length=0))


def build_examples(kind: str) -> tuple[Tensor, Tensor]:
    """Arranged answers and targets of a query and a document in each row; the last row has no example."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.arange(2.0 * NUM_EXAMPLES, dtype=torch.float64).reshape(NUM_EXAMPLES, 1, 2).expand(-1, 2, -1)
    targets = torch.cat([torch.ones(NUM_EXAMPLES, 2, 1, dtype=torch.float64), numbers], dim=-1)
    targets[-1] = math.nan
    if kind == "splade":
        weights = torch.randn(NUM_EXAMPLES, 2, 20, generator=generator, dtype=torch.float64).relu()
        weights[-1] = 0.0
        return weights, targets
    shape = (NUM_EXAMPLES, 2, LONGEST[1], 4)
    vectors = F.normalize(torch.randn(shape, generator=generator, dtype=torch.float64), dim=-1)
    counts = (torch.rand(shape[:-1], generator=generator) < 0.8).to(vectors)
    counts[..., 0] = 1.0
    counts[: NUM_EXAMPLES // 2, :, LONGEST[0] :] = 0.0
    counts[-1] = 0.0
    return torch.cat([vectors, counts[..., None]], dim=-1), targets


def take_share(answers: Tensor, kind: str, rank: int) -> Tensor:
    own = answers[NUM_EXAMPLES // 2 * rank :][: NUM_EXAMPLES // 2]
    return own if kind == "splade" else own[:, :, : LONGEST[rank]]


def compute_share(folder: str, kind: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        rank = dist.get_rank()
        answers, targets = build_examples(kind)
        own = take_share(answers, kind, rank).clone().requires_grad_()
        sums = build_task(kind).loss_sums(own, targets[NUM_EXAMPLES // 2 * rank :][: NUM_EXAMPLES // 2])
        sums.loss_sum.backward()
        assert own.grad is not None
        found = {"loss": sums.losses.detach(), "gradient": own.grad, "figures": sums.figures}
        save_file(found, f"{folder}/{rank}.safetensors")
    finally:
        dist.destroy_process_group()
