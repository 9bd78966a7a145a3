"""One environment for each group of clients whose requirements agree, made with venv, pip and npm.

torch is installed once, in the environment `base`, and lent to the others by a .pth file: it is large, and a bare
`torch` in a requirement would bring CUDA's libraries.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path


def _name_machine() -> str:
    """As npm names it."""
    system = {"darwin": "mac-arm64-metal" if platform.machine() == "arm64" else "mac-x64"}.get(sys.platform)
    return system or ("linux-arm64" if platform.machine() == "aarch64" else "linux-x64")


BASE = "base"
ENVIRONMENTS = {
    BASE: ["torch==2.13.0", "numpy>=2"],
    "modern": ["transformers>=5", "sentence-transformers>=5", "peft", "langchain-huggingface", "mteb"],
    "older": ["transformers==4.57.*", "optimum-onnx[onnxruntime]"],
    "fastembed": ["fastembed"],
    "flair": ["flair"],
    "spacy": ["spacy-transformers"],
    "curated": ["spacy-curated-transformers<1", "spacy>=3.8", "transformers==4.57.*"],
    "setfit": ["setfit", "transformers<5"],
}
NODE = "node"
LLAMA = "llama"
NODE_ENVIRONMENTS = {
    NODE: ["@huggingface/transformers@4.3.1"],
    # llama.cpp as it is built for this machine; the optional ones are for GPUs.
    LLAMA: ["--omit=optional", "node-llama-cpp@3.22.1", f"@node-llama-cpp/{_name_machine()}@3.22.1"],
}
"""Of npm, in the same way."""
_DONE = "installed.txt"


def prepare(name: str, folder: Path) -> Path:
    """The interpreter of an environment, which is made unless it is there with the same requirements."""
    place = folder / name
    if name in NODE_ENVIRONMENTS:
        return _prepare_node(place, NODE_ENVIRONMENTS[name])
    python = place / "bin/python"
    wanted = "\n".join(ENVIRONMENTS[name])
    if _is_done(place, wanted):
        return python
    if name != BASE:
        prepare(BASE, folder)
    _run(sys.executable, "-m", "venv", "--clear", str(place))
    if name != BASE:
        (packages,) = place.glob("lib/python*/site-packages")
        (lent,) = (folder / BASE).resolve().glob("lib/python*/site-packages")
        (packages / "base.pth").write_text(f"{lent}\n", encoding="utf-8")
    words = ("install", "--quiet", "--no-compile", "--prefer-binary", "--disable-pip-version-check")
    _run(str(python), "-m", "pip", *words, *ENVIRONMENTS[name])
    (place / _DONE).write_text(wanted, encoding="utf-8")
    return python


def _prepare_node(place: Path, packages: list[str]) -> Path:
    wanted = "\n".join(packages)
    if not _is_done(place, wanted):
        place.mkdir(parents=True, exist_ok=True)
        quiet = ("--no-audit", "--no-fund", "--loglevel=error")
        # Scripts of packages are left out: that of onnxruntime-node gets CUDA from another host.
        _run("npm", "install", "--prefix", str(place), "--ignore-scripts", *quiet, *packages)
        (place / _DONE).write_text(wanted, encoding="utf-8")
    return Path("node")


def _is_done(place: Path, wanted: str) -> bool:
    file = place / _DONE
    return file.is_file() and file.read_text(encoding="utf-8") == wanted


def _run(*words: str) -> None:
    done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()[-5:]
        raise RuntimeError(f"{' '.join(words)} failed: {' '.join(lines)}")
