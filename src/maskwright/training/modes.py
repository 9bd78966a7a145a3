"""Switch a model to prediction for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """No dropout inside the block; afterwards every part is in the mode it was in, also after an error."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, is_training in modes.items():
            part.training = is_training
