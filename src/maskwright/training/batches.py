"""Read batches from a loader with epochs, a list or a `DataLoader`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from torch.utils.data import DataLoader

from maskwright.batch import BatchType, PackedBatch, as_packed
from maskwright.errors import InputError
from maskwright.training.distributed.world import World

Batches = Iterable[Any]
"""A loader with `epoch(n, start_batch)`, or anything that gives batches each time it is iterated."""
Item = TypeVar("Item")


def iterate_batches(
    batches: Batches, epoch: int = 0, start_batch: int = 0, world: World | None = None
) -> Iterator[PackedBatch]:
    """This process's share of the packed batches of one epoch, from `start_batch` on."""
    world = world or World()
    read_epoch: Any = getattr(batches, "epoch", None)
    found = read_epoch(epoch, start_batch) if callable(read_epoch) else _iterate_plain(batches, start_batch)
    if getattr(batches, "world_size", 1) == world.size:
        yield from found
    else:
        yield from (take_share(batch, world) for batch in found)


def _iterate_plain(batches: Batches, start_batch: int) -> Iterator[PackedBatch]:
    return map(as_packed, islice(iter(batches), start_batch, None))


def pad_to_few_shapes(batches: Batches) -> Batches:
    """The same batches, padded so that they share a few shapes if they come from a loader that can do that."""
    pad: Any = getattr(batches, "with_few_shapes", None)
    padded: Batches = pad() if callable(pad) else batches
    return padded


def check_ids(batch: PackedBatch, vocab_size: int) -> None:
    """Refuse ids outside of the vocabulary; ids on a GPU are not checked, because that would synchronise."""
    if batch.input_ids.is_cpu and batch.input_ids.numel():
        lowest, highest = (int(bound) for bound in batch.input_ids.aminmax())
        if lowest < 0 or highest >= vocab_size:
            raise InputError(
                f"a batch holds the token id {lowest if lowest < 0 else highest}, the model's vocab_size is"
                f" {vocab_size} (ids 0 to {vocab_size - 1}); use the model's tokenizer, or build the encoder and the"
                " model with the vocab_size of the one used"
            )


def take_share(batch: BatchType, world: World) -> BatchType:
    """Every n-th row; padding rows are added where rows are too few, so that all processes have equally many."""
    share = batch.map_fields(lambda tensor: tensor[world.rank :: world.size])
    return share.fill_up(-(-batch.num_rows // world.size))


def group_batches(batches: Iterable[Item], size: Callable[[], int]) -> Iterator[tuple[list[Item], bool]]:
    """Groups of `size()` batches (called for each group), and whether it is the last group, which may be smaller."""
    marked = mark_last(batches)
    for batch, is_last in marked:
        group = [batch]
        for more, is_last_of_group in islice(marked, size() - 1):
            group.append(more)
            is_last = is_last_of_group
        yield group, is_last


def count_batches(batches: Any) -> int | None:
    """Batches in an epoch, or None where that is not known."""
    try:
        return len(batches)
    except TypeError:
        return None


def advise_faster(batches: Batches) -> str:
    """Advice for runs whose steps wait for batches; Maskwright's loaders have their own (`faster_advice`)."""
    own: str | None = getattr(batches, "faster_advice", None)
    if own is not None:
        return own
    if isinstance(batches, DataLoader):
        return f"raise the DataLoader's num_workers (it has {batches.num_workers}), or tokenize before training"
    return "tokenize once before training (create_mlm_dataset does), or read through a DataLoader with num_workers"


def mark_last(items: Iterable[Item]) -> Iterator[tuple[Item, bool]]:
    """Each item, and whether it is the last."""
    iterator = iter(items)
    for held in iterator:
        for item in iterator:
            yield held, False
            held = item
        yield held, True
