"""No weights of its own: the vector of a text is pooled from its tokens, as sentence-transformers does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.errors import InputError
from maskwright.models.any_encoder import name_encoder
from maskwright.models.encoder import PackedEncoder
from maskwright.models.files.model_folder import read_own_settings
from maskwright.models.files.sentence_files import describe_pooling
from maskwright.models.transformers_encoder import TunedEncoder
from maskwright.suggestions import suggest
from maskwright.tasks.pooling import Pooling, pool
from maskwright.tasks.task_head import HeadFiles, TaskHead

POOLINGS = ("mean", "cls")
SETTINGS_PART = "similarity"
"""Where config.json keeps the settings of the task, in the object that is ours."""


class EmbeddingHead(TaskHead):
    """Vectors (B, N, D) of whole documents."""

    output = None

    def __init__(self, pooling: Pooling, files: HeadFiles) -> None:
        super().__init__()
        self.pooling = pooling
        self.files = files

    def forward(self, hidden: Tensor, batch: PackedBatch, num_documents: int) -> Tensor:
        return pool(hidden, batch, num_documents, self.pooling).float()


def build_embedding_head(encoder: TunedEncoder, num_outputs: int, config: Mapping[str, Any]) -> EmbeddingHead:
    """The head that a config.json of the task asks for."""
    settings = read_own_settings(config, SETTINGS_PART)
    pooling = check_pooling(str(settings.get("pooling")))
    given = settings.get("max_length")
    max_length = min(given, encoder.max_length) if isinstance(given, int) else encoder.max_length
    architecture = encoder.family.architectures[0] if isinstance(encoder, PackedEncoder) else name_encoder(encoder)
    files = HeadFiles(architecture, {}, {}, describe_pooling(encoder.hidden_size, pooling, max_length))
    return EmbeddingHead(pooling, files)


def check_pooling(name: str) -> Pooling:
    if name not in POOLINGS:
        raise InputError(f"no pooling '{name}'{suggest(name, POOLINGS)}")
    return cast(Pooling, name)
