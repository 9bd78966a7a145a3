"""Masked language modelling with a second question: does one segment follow the other?

Next-sentence prediction (Devlin et al. 2018) and sentence-order prediction (Lan et al. 2019) differ in the pairs their
loader makes; the model is the same. B rows, S row length, D width, P pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from maskwright.batch import IGNORED_LABEL, PackedBatch
from maskwright.errors import InputError
from maskwright.masking.tokens import CorruptedBatch
from maskwright.models.any_encoder import encode, find_hidden_size
from maskwright.models.encoder import FAMILIES, PackedEncoder
from maskwright.models.family import PairHeadLayout
from maskwright.models.files.model_folder import (
    CONFIG_FILE,
    OWN_KEY,
    WEIGHTS_FILE,
    load_into,
    read_config,
    read_own_settings,
    resolve_folder,
)
from maskwright.models.layers import init_weights
from maskwright.objectives.loss import LossSums, compute_loss_sums, gather_labelled
from maskwright.objectives.masked_lm import MaskedLanguageModel, load_masked_lm
from maskwright.objectives.saving import ModelFiles, StoredWeight, read_stored
from maskwright.storage import refuse_unknown_fields
from maskwright.text.tokenizer.tokenizer import Tokenizer

PAIR_HEAD_FILE = "pair_head.safetensors"
_HEAD = "pair_head"
_OWN_PART = "sentence_pairs"
_LAYOUTS = [encoder_class.family.pair_head for encoder_class in FAMILIES.values()]
_THEIR_MODULES = [name for layout in _LAYOUTS if layout is not None for name in layout.modules.values()]
_SMALLEST_PAIR = 5
"""[CLS], [SEP], [SEP] and two tokens, so a row has at most S / 5 pairs."""


class PairHead(nn.Module):
    """BERT's pair head: a dense layer with tanh on the [CLS] state, then two logits: the second segment follows, or
    not.
    """

    def __init__(self, hidden_size: int, initializer_range: float) -> None:
        super().__init__()
        self.pooler = nn.Linear(hidden_size, hidden_size)
        self.classifier = nn.Linear(hidden_size, 2)
        init_weights(self, initializer_range)

    def forward(self, cls_states: Tensor) -> Tensor:
        """Logits (..., 2) of hidden states (..., D)."""
        return self.classifier(torch.tanh(self.pooler(cls_states)))


@dataclass(frozen=True)
class CorruptedPairs(CorruptedBatch):
    """A masked batch with labels for masked tokens and for pairs."""

    @classmethod
    def of(cls, corrupted: CorruptedBatch) -> CorruptedPairs:
        return cls(**{field.name: getattr(corrupted, field.name) for field in fields(corrupted)})

    @property
    def pair_labels(self) -> Tensor:
        """(B, S); all ignored in batches without pairs."""
        given = self.batch.pair_labels
        return torch.full_like(self.labels, IGNORED_LABEL) if given is None else given

    @property
    def counts(self) -> Tensor:
        """(2,) masked tokens and labelled pairs."""
        return torch.stack([self.selected.sum(), (self.pair_labels != IGNORED_LABEL).sum()])


class SentencePairModel(MaskedLanguageModel):
    """A masked language model that also predicts whether the second segment of a pair follows the first.

    Each part of the loss is a mean of its own, over masked tokens and over labelled pairs; `pair_weight` weighs the
    second. `settings` are those of `MaskedLanguageModel`.
    """

    num_figures = 2

    def __init__(
        self, encoder: nn.Module, vocab_size: int | None = None, *, pair_weight: float = 1.0, **settings: Any
    ) -> None:
        super().__init__(encoder, vocab_size, **settings)
        if not 0.0 < pair_weight < float("inf"):
            raise InputError(f"pair_weight is {pair_weight}; it must be positive, BERT and ALBERT used 1")
        self.part_weights = (1.0, pair_weight)
        self.pair_head = PairHead(find_hidden_size(encoder), self.initializer_range)

    @classmethod
    def around(cls, model: MaskedLanguageModel, pair_weight: float = 1.0) -> Self:
        """A masked language model and its weights, shared and not copied, with a new pair head."""
        if model.mlm_head is not None:
            raise InputError(
                f"{type(model.encoder).__name__} is a model of transformers, which learns by masking alone; give a"
                " model of a native family for sentence pairs"
            )
        paired = cls(
            model.encoder,
            model.vocab_size,
            pair_weight=pair_weight,
            mask_ratio=model.mask_ratio,
            mask_token_id=model.mask_token_id,
            special_token_ids=model.special_token_ids,
            mlm_head_activation=model.mlm_head_activation,
            initializer_range=model.initializer_range,
            mlm_head_dropout=model.mlm_head_dropout,
            layer_norm_eps=model.layer_norm_eps,
            tie_word_embeddings=model.is_tied,
            seed=model.seed,
            **model.masker.settings(),
        )
        paired.mlm_dense, paired.mlm_norm, paired.mlm_output = model.mlm_dense, model.mlm_norm, model.mlm_output
        paired.pair_head.to(model.mlm_output.weight.device)
        return paired.train(model.training)

    @property
    def pair_weight(self) -> float:
        return self.part_weights[1]

    def corrupt(
        self, batch: PackedBatch, seed: int, epoch: int, ratio: float | None = None, progress: float = 0.0
    ) -> CorruptedPairs:
        return CorruptedPairs.of(super().corrupt(batch, seed, epoch, ratio, progress))

    def corrupt_for_evaluation(self, batch: PackedBatch, seed: int, ratio: float) -> CorruptedPairs:
        return CorruptedPairs.of(super().corrupt_for_evaluation(batch, seed, ratio))

    def loss_sums(self, corrupted: CorruptedBatch) -> LossSums:
        """Two parts: over the masked tokens and over the labelled pairs; right answers of both as figures."""
        is_static = corrupted.labels.is_cuda
        hidden = encode(self.encoder, corrupted.batch, corrupted.is_causal)
        tokens = self._score(hidden, corrupted.labels, corrupted.num_slots if is_static else None)
        num_rows, row_length = corrupted.labels.shape
        capacity = num_rows * max(1, row_length // _SMALLEST_PAIR) if is_static else None
        cls_states, pair_labels = gather_labelled(hidden, CorruptedPairs.of(corrupted).pair_labels, capacity)
        pairs = compute_loss_sums(self.pair_head(cls_states), pair_labels)
        return LossSums(
            torch.cat([tokens.losses, pairs.losses]),
            torch.cat([tokens.counts, pairs.counts]),
            torch.cat([tokens.figures, pairs.figures]),
        )

    def compute_metrics(self, sums: Sequence[float]) -> dict[str, float]:
        """`loss` is the weighted sum of both; without a labelled pair it is that of the masked tokens."""
        mlm_sum, pair_sum, num_masked, num_pairs, mlm_correct, pair_correct = sums
        masked = super().compute_metrics((mlm_sum, num_masked, mlm_correct))
        count = num_pairs or float("nan")
        pair_loss = pair_sum / count
        return {
            "loss": masked["loss"] + (self.pair_weight * pair_loss if num_pairs else 0.0),
            "mlm_loss": masked["loss"],
            self.accuracy_name: masked[self.accuracy_name],
            "pair_loss": pair_loss,
            "pair_accuracy": pair_correct / count,
        }

    def predict_pairs(self, batch: PackedBatch) -> Tensor:
        """Logits (P, 2) for the documents of a batch, row by row: the second segment follows, or does not."""
        is_first = (batch.positions == 0) & ~batch.is_padding
        return self.pair_head(encode(self.encoder, batch)[is_first])

    def describe_files(self, tokenizer: Tokenizer | None) -> ModelFiles:
        described = super().describe_files(tokenizer)
        config = described.config
        config[OWN_KEY][_OWN_PART] = {"pair_weight": self.pair_weight}
        if isinstance(self.encoder, PackedEncoder) and self.encoder.family.pair_head is not None:
            without_pairs, with_pairs = self.encoder.family.architectures[1], self.encoder.family.pair_head.architecture
            config["architectures"] = [config["architectures"][0].replace(without_pairs, with_pairs)]
        return described

    def list_weights(self) -> dict[str, StoredWeight]:
        """A BERT has the pair head under the names of BertForPreTraining; others have it in a file of its own."""
        return {**super().list_weights(), **self._list_head_weights()}

    def _list_head_weights(self) -> dict[str, StoredWeight]:
        layout = _find_layout(self.encoder)
        return {
            f"{_HEAD}.{name}": StoredWeight((name,), PAIR_HEAD_FILE)
            if layout is None
            else StoredWeight((_their_name(name, layout),))
            for name in self.pair_head.state_dict()
        }

    @classmethod
    def from_pretrained(cls, folder_or_id: str | Path, encoder: nn.Module | None = None) -> SentencePairModel:
        """Load a saved model, or a BERT of others that has a next-sentence head."""
        folder = resolve_folder(folder_or_id)
        masked_lm = load_masked_lm(folder, encoder, used_elsewhere=_THEIR_MODULES)
        settings = read_own_settings(read_config(folder), _OWN_PART)
        refuse_unknown_fields(settings, ("pair_weight",), folder / CONFIG_FILE)
        pair_weight = settings.get("pair_weight", 1.0)
        if not isinstance(pair_weight, int | float) or isinstance(pair_weight, bool):
            raise InputError(f"{folder / CONFIG_FILE}: 'pair_weight' is {pair_weight!r}; expected a number such as 1.0")
        model = cls.around(masked_lm, pair_weight)
        model.fill_pair_head(folder)
        return model

    def fill_pair_head(self, folder: Path) -> None:
        """Take the pair head of a folder whose masked language model this is."""
        found = read_stored(self, self._list_head_weights(), folder)
        if not found:
            raise InputError(
                f"{folder} holds a model without a pair head; load it with MaskedLanguageModel.from_pretrained and give"
                " it one with SentencePairModel.around"
            )
        file = PAIR_HEAD_FILE if _find_layout(self.encoder) is None else WEIGHTS_FILE
        state = {name.removeprefix(f"{_HEAD}."): tensor for name, tensor in found.items()}
        load_into(self.pair_head, state, folder / file)


def continue_with_pairs(folder_or_id: str | Path, pair_weight: float) -> SentencePairModel:
    """A saved masked language model with its pair head, or with a new one where it has none."""
    folder = resolve_folder(folder_or_id)
    masked_lm = load_masked_lm(folder, build=MaskedLanguageModel, used_elsewhere=_THEIR_MODULES)
    model = SentencePairModel.around(masked_lm, pair_weight)
    if _OWN_PART in read_config(folder).get(OWN_KEY, {}):
        model.fill_pair_head(folder)
    return model


def _find_layout(encoder: nn.Module) -> PairHeadLayout | None:
    """Hugging Face's names for the pair head, where it has any in the encoder's family."""
    return encoder.family.pair_head if isinstance(encoder, PackedEncoder) else None


def _their_name(name: str, layout: PairHeadLayout) -> str:
    module, kind = name.split(".")
    return f"{layout.modules[module]}.{kind}"
