"""Tensors that are cut in parts over processes (FSDP2's DTensor), and the whole tensors they stand for."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def gather_whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor; for one in parts, all processes call this together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def distribute_like(whole: Tensor, like: Tensor) -> Tensor:
    """This process's part of a tensor that every process has whole."""
    if not isinstance(like, DTensor):
        return whole
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def compute_square_sum(tensor: Tensor) -> Tensor:
    """The squared norm of the whole tensor, as a plain tensor without dimensions."""
    return gather_whole(tensor.square().sum())
