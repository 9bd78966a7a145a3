"""A model as its files will hold it, independent of the model's further changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from maskwright.models.family import State
from maskwright.models.files.model_folder import write_model_folder
from maskwright.models.files.safetensors_file import write_safetensors
from maskwright.models.files.sentence_files import write_small_files
from maskwright.text.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class ModelSnapshot:
    config: dict[str, Any]
    weights: State
    tokenizer: Tokenizer | None
    others: dict[str, State] = field(default_factory=dict)
    """Further weights by the name of their file, for what Hugging Face's layout has no place for."""
    small_files: Mapping[str, Any] = field(default_factory=dict)
    """What further JSON files hold, by their names."""
    pads_left: bool = False
    """Whether others must put padding before a text."""

    @property
    def num_bytes(self) -> int:
        """Those of the tensors; the files beside them are small."""
        return sum(tensor.nbytes for part in (self.weights, *self.others.values()) for tensor in part.values())

    def write(self, folder: Path) -> None:
        write_model_folder(folder, self.config, self.weights)
        for name, weights in self.others.items():
            write_safetensors(folder / name, weights)
        write_small_files(folder, self.small_files)
        if self.tokenizer is not None:
            has_segments = self.config.get("type_vocab_size", 0) > 1
            self.tokenizer.save(folder, has_segments, self.pads_left)
