"""Weights in formats that are not read: which a folder has, and the one line that converts them.

Pickled files run code as they are loaded, so the user decides where that happens; it never does in this program.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.untrusted import read_json_object

_PICKLED = "pickled weights are not read, because loading them runs code"
_REASONS = {
    ".bin": _PICKLED,
    ".ckpt": _PICKLED,
    ".pt": _PICKLED,
    ".pth": _PICKLED,
    ".h5": "TensorFlow weights are not read",
    ".msgpack": "Flax weights are not read",
}
_NOT_WEIGHTS = {"training_args.bin", "optimizer.bin", "scheduler.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"}
_CLASS_NAME = re.compile(r"[A-Za-z0-9]+(Model|For[A-Za-z]+)")
_WITH_OWN_HEAD = ("deberta", "deberta-v2")
"""Their published files hold a head that transformers reads only if told so, and else draws anew."""
_OLD_TRANSFORMERS = " (with 'transformers<5', the last to read them)"


def find_foreign_weights(folder: Path) -> Path | None:
    """The first file of weights that is not safetensors, those that transformers knows by name before others."""
    files = [
        path
        for path in folder.iterdir()
        if path.suffix in _REASONS and path.name not in _NOT_WEIGHTS and path.is_file()
    ]
    return min(files, key=lambda path: (_loading_option(path) is None, path.name), default=None)


def refuse_foreign_weights(file: Path) -> InputError:
    """Why a file is not read, and what to run where its source is trusted."""
    return InputError(f"{file.parent} has its weights in {file.name} only; {_REASONS[file.suffix]}; {_advice(file)}")


def _advice(file: Path) -> str:
    option = _loading_option(file)
    if option is None:
        target = str(file.with_name("model.safetensors"))
        return (
            "load the model with the program that saved it and run there: "
            f"from safetensors.torch import save_model; save_model(model, {target!r})"
        )
    code = (
        f"import sys; from transformers import {_find_class(file.parent)} as Model; "
        f"Model.from_pretrained(sys.argv[1]{option}).save_pretrained(sys.argv[1])"
    )
    note = _OLD_TRANSFORMERS if file.suffix != ".bin" else ""
    folder = shlex.quote(str(file.parent))
    return f'if you trust where it comes from, convert it with: python -c "{code}" {folder}{note}'


def _loading_option(file: Path) -> str | None:
    """What `from_pretrained` needs to be told to read a file; None if it does not read a file of that name."""
    if re.fullmatch(r"pytorch_model(-\d+-of-\d+)?\.bin", file.name):
        return ", legacy=False" if _read_config(file.parent).get("model_type") in _WITH_OWN_HEAD else ""
    return {"tf_model.h5": ", from_tf=True", "flax_model.msgpack": ", from_flax=True"}.get(file.name)


def _read_config(folder: Path) -> dict[str, Any]:
    config_file = folder / "config.json"
    return read_json_object(config_file) if config_file.is_file() else {}


def _find_class(folder: Path) -> str:
    """The class config.json names, so that no head is lost or made up; never text that could do more than name one."""
    architectures = _read_config(folder).get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    return name if isinstance(name, str) and _CLASS_NAME.fullmatch(name) else "AutoModelForMaskedLM"
