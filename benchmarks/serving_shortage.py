"""`maskwright` with a shortage of memory built in: a batch with a text of SIZE tokens or more cannot be computed.

python benchmarks/serving_shortage.py SIZE serve ...
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from maskwright.cli.app import main
from maskwright.inference.embed import Embed

size = int(sys.argv.pop(1))
reduce = Embed.reduce


def run_short(self: Embed, batch: Any) -> Sequence[Any]:
    if max(batch.lengths) >= size:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1099511627776 bytes")
    return reduce(self, batch)


Embed.reduce = run_short  # type: ignore[method-assign]
main()
