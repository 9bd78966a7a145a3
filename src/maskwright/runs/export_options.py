"""What an export is asked for, and what all exports share: their kinds, cards and places."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from maskwright.errors import InputError
from maskwright.export.card import CARD_FILE, CardOptions, Origin, describe_data, describe_settings
from maskwright.runs.export_origin import ExportSource, copy_settings
from maskwright.runs.sentence_export import PURPOSES
from maskwright.runs.texts import Say
from maskwright.sections.data import SourceLike
from maskwright.storage import write_text
from maskwright.suggestions import suggest

if TYPE_CHECKING:
    from maskwright.export.onnx_graph import ExportedModel

HUGGING_FACE, SENTENCE_TRANSFORMERS, ONNX, WEB, GGUF = "hf", "sentence-transformers", "onnx", "web", "gguf"
TARGETS = (HUGGING_FACE, SENTENCE_TRANSFORMERS, ONNX, WEB, GGUF)
GRAPHS = (ONNX, WEB)


@dataclass(frozen=True)
class ExportOptions:
    target: str = HUGGING_FACE
    out: Path | None = None
    int8: bool = False
    fp16: bool = False
    purpose: str | None = None
    """What an ONNX graph is for; None: what the model was trained for."""
    texts: Sequence[SourceLike] = ()
    """Sources of text to compare on; none: held-out text of the built-in corpus."""
    card: CardOptions = field(default_factory=CardOptions)
    overwrite: bool = False
    transformers_js: Path | None = None
    """A folder with Transformers.js for a page; None: it comes from npm."""

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise InputError(f"there is no export to '{self.target}'{suggest(self.target, TARGETS)}")
        for word, is_given, targets in (
            ("int8", self.int8, (ONNX, GGUF)),
            ("fp16", self.fp16, (ONNX, GGUF)),
            ("for", self.purpose is not None, GRAPHS),
            ("transformers-js", self.transformers_js is not None, (WEB,)),
        ):
            if is_given and self.target not in targets:
                wanted = " or --to ".join(targets)
                raise InputError(f"--{word} is for --to {wanted}, this is --to {self.target}; leave it out")
        if self.purpose is not None and self.purpose not in PURPOSES:
            raise InputError(f"there is no export --for '{self.purpose}'{suggest(self.purpose, PURPOSES)}")

    @property
    def versions(self) -> dict[str, bool]:
        """The graphs beside that in fp32."""
        return {"int8": self.int8 or self.target == WEB, "fp16": self.fp16}


Write = Callable[[Path, str, Sequence[str], Say], dict[str, Any]]
"""Fills a folder that will be called by a name, compares it on texts, and gives the figures of that."""


def check_task_target(target: str, known: Sequence[str]) -> None:
    if target not in known:
        raise InputError(
            f"--to {target} holds an encoder that was not fine-tuned for a task, and this model was; export it --to"
            f" {' or --to '.join(known)}, or export the model it was made from"
        )


def describe_run(encoder: nn.Module, origin: Origin) -> dict[str, str]:
    """Sections about the training of an encoder by their headings."""
    return {"Training data": describe_data(origin), "Configuration": describe_settings(encoder, origin)}


def write_onnx_card(
    folder: Path,
    name: str,
    model: ExportedModel,
    facts: Mapping[str, str],
    figures: Mapping[str, Any],
    source: ExportSource,
    options: ExportOptions,
) -> None:
    from maskwright.export.onnx_card import build_onnx_card

    is_page = options.target == WEB
    write_text(folder / CARD_FILE, build_onnx_card(name, model, folder, facts, figures, options.card, is_page))
    copy_settings(source.run, folder)


def place_graphs(folder: Path, options: ExportOptions) -> Path:
    from maskwright.export.onnx import MODEL_FOLDER

    return folder / MODEL_FOLDER if options.target == WEB else folder
