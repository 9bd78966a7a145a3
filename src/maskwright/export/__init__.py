"""Export models to other formats. The package is callable, as the command: `maskwright.export(model, to="onnx")`."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Command(ModuleType):
    """The command has the name of this package, which takes its place in `maskwright` as soon as it is imported."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """See `maskwright.runs.commands.export`."""
        return import_module("maskwright.runs.commands").export(*args, **options)


sys.modules[__name__].__class__ = _Command
