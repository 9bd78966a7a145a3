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
from maskwright.models.files.safetensors_file import read_tensors
from maskwright.models.layers import build_activation, init_weights
from maskwright.text.tokenizer.tokenizer import as_tokenizer

OTHERS_FILE = "replaced_tokens.safetensors"
"""Of a run with `training.mode=rtd`: its generator and this head, for which Hugging Face's layout has no place."""
_OWN_HEAD = "detection_head."
_ARCHITECTURE = "ElectraForPreTraining"
_HEAD_MODULES = {"dense": "discriminator_predictions.dense", "output": "discriminator_predictions.dense_prediction"}


class DetectionOutput(dict[str, Tensor]):
    @property
    def logits(self) -> Tensor:
        """(B, S), positive where a token looks replaced."""
        return self["logits"]


class DetectionHead(nn.Module):
    """One logit (...) for each of the hidden states (..., D), positive where the token looks replaced."""

    def __init__(self, encoder: PackedEncoder, initializer_range: float) -> None:
        super().__init__()
        self.dense = nn.Linear(encoder.hidden_size, encoder.hidden_size, bias=encoder.mlm_head_bias)
        self.activation = build_activation(encoder.activation)
        self.output = nn.Linear(encoder.hidden_size, 1)
        init_weights(self, initializer_range)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.output(self.activation(self.dense(hidden))).squeeze(-1)


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
        """Logits (B, S) for the given tokens: positive where a token looks replaced."""
        batch = as_packed(input_ids, attention_mask, token_type_ids)
        return DetectionOutput(logits=self.detection_head(encode(self.encoder, batch)))

    @classmethod
    def from_pretrained(cls, folder_or_id: str | Path) -> TokenDetector:
        """The detector of a run with `training.mode=rtd`, or a published ELECTRA discriminator."""
        folder = resolve_folder(folder_or_id)
        config, weights = read_model_folder(folder)
        if (folder / OTHERS_FILE).is_file():
            trained = read_tensors(folder / OTHERS_FILE)
            names = [f"{module}.{kind}" for module in _HEAD_MODULES for kind in ("weight", "bias")]
            own = {_their_name(name): trained.get(f"{_OWN_HEAD}{name}") for name in names}
            weights |= {name: tensor for name, tensor in own.items() if tensor is not None}
        if not all(f"{name}.weight" in weights for name in _HEAD_MODULES.values()):
            raise InputError(
                f"{folder} holds no detector of replaced tokens; expected a run with training.mode=rtd or an"
                f" {_ARCHITECTURE} of transformers"
            )
        encoder = build_encoder(config, folder, weights)
        encoder.load_state_dict(encoder.family.from_theirs(weights, encoder.state_dict()))
        head = DetectionHead(encoder, encoder.config.initializer_range)
        stored = {name: weights.get(_their_name(name)) for name in head.state_dict()}
        load_into(head, {name: tensor for name, tensor in stored.items() if tensor is not None}, folder)
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
            as_tokenizer(tokenizer).save(Path(folder), has_segments(encoder), max_length=encoder.max_length)


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
