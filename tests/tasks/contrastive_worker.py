"""What a process of its own does with its share of the pairs."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import save_file

from maskwright.tasks.similarity.contrastive import Groups, compute_contrastive_losses


def build_groups() -> Groups:
    generator = torch.Generator().manual_seed(0)
    vectors = F.normalize(torch.randn(6, 2, 5, generator=generator, dtype=torch.float64), dim=-1)
    texts = torch.tensor([[1, 2], [3, 4], [5, 2], [7, 8], [1, 10], [11, 12]]).double()
    return Groups(vectors, texts, torch.tensor([True, True, True, True, True, False]))


def compute_share(folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        rank = dist.get_rank()
        whole, own = build_groups(), slice(3 * rank, 3 * rank + 3)
        vectors = whole.vectors[own].clone().requires_grad_()
        groups = Groups(vectors, whole.texts[own], whole.is_asked[own])
        losses, hits = compute_contrastive_losses(groups, 0.05)
        losses[groups.is_asked].sum().backward()
        assert vectors.grad is not None
        found = {"losses": losses.detach(), "gradient": vectors.grad, "hits": hits}
        save_file(found, f"{folder}/{rank}.safetensors")
    finally:
        dist.destroy_process_group()
