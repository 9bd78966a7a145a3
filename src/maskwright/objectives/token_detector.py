"""A trained detector of replaced tokens: ELECTRA's discriminator, ours or a published one.

B rows, S row length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from maskwright.batch import PackedBatch, as_packed
from maskwright.errors import InputError
from maskwright.models.any_encoder import encode, has_segments
from maskwright.models.bert import BERT
from maskwright.models.electra import ELECTRA, ELECTRA_FAMILY, ElectraConfig
from maskwright.models.encoder import PackedEncoder, build_encoder, describe_encoder
from maskwright.models.family import State
from maskwright.models.files.model_folder import (
    copy_to_cpu,
    load_into,
    read_model_folder,
    resolve_folder,
    write_model_folder,
)
from maskwright.objectives.detection_head import DetectionHead, DetectionOutput
from maskwright.objectives.replaced_tokens import ReplacedTokenDetection
from maskwright.objectives.replaced_tokens_saving import OTHERS_FILE
from maskwright.text.tokenizer.tokenizer import as_tokenizer

_ARCHITECTURE = "ElectraForPreTraining"
_HEAD_MODULES = {"dense": "discriminator_predictions.dense", "output": "discriminator_predictions.dense_prediction"}


class TokenDetector(nn.Module):
    """An encoder and a head that tells which tokens were replaced."""

    def __init__(self, encoder: PackedEncoder, detection_head: DetectionHead) -> None:
        super().__init__()
        self.encoder = encoder
        self.detection_head = detection_head

    def forward(
        self,
        input_ids: Tensor | Mapping[str, Tensor] | PackedBatch,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> DetectionOutput:
        """Logits (B, S) of the tokens as they are: positive where one looks replaced."""
        batch = as_packed(input_ids, attention_mask, token_type_ids)
        return DetectionOutput(logits=self.detection_head(encode(self.encoder, batch)))

    @classmethod
    def from_pretrained(cls, folder_or_id: str | Path) -> TokenDetector:
        """The detector of a run with `training.mode=rtd`, or a published ELECTRA discriminator."""
        folder = resolve_folder(folder_or_id)
        if (folder / OTHERS_FILE).is_file():
            trained = ReplacedTokenDetection.from_pretrained(folder)
            return cls(trained.encoder, trained.detection_head).eval()
        config, weights = read_model_folder(folder)
        if not all(f"{name}.weight" in weights for name in _HEAD_MODULES.values()):
            raise InputError(
                f"{folder} holds no detector of replaced tokens; expected a run with training.mode=rtd or an"
                f" {_ARCHITECTURE} of transformers"
            )
        encoder = build_encoder(config, folder, weights)
        encoder.load_state_dict(ELECTRA_FAMILY.from_theirs(weights, encoder.state_dict()))
        head = DetectionHead(encoder, encoder.config.initializer_range)
        load_into(head, {name: weights[_their_name(name)] for name in head.state_dict()}, folder)
        return cls(encoder, head).eval()

    def save_pretrained(self, folder: str | Path, tokenizer: Any = None) -> None:
        """Write a folder that transformers reads as ElectraForPreTraining."""
        encoder = as_electra(self.encoder)
        config = describe_encoder(encoder, with_head=False) | {"architectures": [_ARCHITECTURE]}
        weights: State = {
            f"{ELECTRA_FAMILY.prefix}.{name}": tensor
            for name, tensor in ELECTRA_FAMILY.to_theirs(encoder.state_dict()).items()
        }
        weights |= {_their_name(name): tensor for name, tensor in self.detection_head.state_dict().items()}
        write_model_folder(Path(folder), config, copy_to_cpu(weights))
        if tokenizer is not None:
            as_tokenizer(tokenizer).save(Path(folder), has_segments(encoder))


def as_electra(encoder: PackedEncoder) -> ELECTRA:
    """The same encoder under ELECTRA's name: a BERT is one whose embeddings are as wide as its layers."""
    if isinstance(encoder, ELECTRA):
        electra = encoder
    elif type(encoder) is BERT:
        electra = ELECTRA(ElectraConfig(**asdict(encoder.config), embedding_size=encoder.hidden_size))
        electra.load_state_dict(encoder.state_dict())
    else:
        raise InputError(
            f"transformers has no {type(encoder).__name__} that detects replaced tokens, only BERT and ELECTRA; export"
            " the encoder alone --to sentence-transformers, a folder that its AutoModel reads too"
        )
    if electra.config.normalization_type != "layer_norm":
        raise InputError("transformers' ELECTRA has no RMSNorm; train with normalization_type=layer_norm to export")
    return electra


def _their_name(name: str) -> str:
    module, kind = name.split(".")
    return f"{_HEAD_MODULES[module]}.{kind}"
