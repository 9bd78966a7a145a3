"""`MaskedLanguageModel`: any encoder, a prediction head, and the masked-language-model objective.

The causal, hybrid and diffusion models have the same weights and other labels. B rows, S row length, D width, M masked
slots, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from maskwright.batch import PackedBatch, as_packed
from maskwright.errors import InputError
from maskwright.masking.shares import DEFAULT_MIN_SHARE, DiffusionBatch, mask_by_shares
from maskwright.masking.tokens import CorruptedBatch
from maskwright.models.any_encoder import encode
from maskwright.models.encoder import PackedEncoder, build_encoder, find_encoder_class
from maskwright.models.files.model_folder import (
    CONFIG_FILE,
    OWN_KEY,
    read_model_folder,
    read_own_settings,
    resolve_folder,
)
from maskwright.models.transformers_model import is_foreign
from maskwright.objectives import arguments
from maskwright.objectives.loss import LossSums
from maskwright.objectives.mlm_files import (
    check_head,
    describe_language_model,
    describe_settings,
    guess_settings,
    list_head_weights,
    load_foreign,
    name_weights,
    warn_of_strangers,
)
from maskwright.objectives.prediction import PredictingModel, shift_left
from maskwright.objectives.saving import (
    CUSTOM_TYPE,
    ModelFiles,
    StoredWeight,
    fill_model,
    name_special_ids,
    read_arguments,
)
from maskwright.randomness import Stream, compute_key, random_uint32, threshold
from maskwright.storage import refuse_unknown_fields
from maskwright.text.tokenizer.tokenizer import Tokenizer

_NOT_SETTINGS = ("encoder", "mlm_head", "tie_word_embeddings", "tokenizer")
"""Arguments of the constructor that are no plain settings."""
_OBJECTIVE_FIELDS = ("mode", "causal_share", "shifts_masks", "evaluates_causally", "min_share")


class MaskedLanguageModel(PredictingModel):
    """A masked-language-model head and objective around any encoder.

    The encoder needs `hidden_size` and must return `last_hidden_state` of shape (batch, length, hidden_size). The
    output projection shares the encoder's embedding table where the two have the same shape, unless the table is so
    large that the first loss would be far above that of guessing; `tie_word_embeddings` decides it. An `mlm_head` of
    another library's model takes the place of ours, as that library tied it.

    A `tokenizer` (an object, a file or a folder) tells `vocab_size`, `mask_token_id` and which tokens are special;
    `special_token_ids` are then further ones that are never masked. Without it `mask_token_id` is BERT's, 103.
    """

    mode: ClassVar[str] = "mlm"

    def corrupt(
        self, batch: PackedBatch, seed: int, epoch: int, ratio: float | None = None, progress: float = 0.0
    ) -> CorruptedBatch:
        """Mask a batch; the result depends on (seed, epoch, sample, position) and the ratio alone."""
        return self.masker.corrupt(batch, self.mask_ratio if ratio is None else ratio, seed, epoch)

    def corrupt_for_evaluation(self, batch: PackedBatch, seed: int, ratio: float) -> CorruptedBatch:
        return self.token_masker.corrupt(batch, ratio, seed, 0)

    def _mask_tokens(
        self, inputs: Mapping[str, Tensor] | Tensor | PackedBatch, epoch: int | None = None
    ) -> tuple[dict[str, Tensor] | PackedBatch, Tensor, Tensor]:
        """Mask a batch in the layout it came in: (masked_inputs, labels, selected).

        Each call gives new masks; with `epoch` it gives the masks of that epoch.
        """
        if epoch is None:
            epoch, self._mask_calls = self._mask_calls, self._mask_calls + 1
        corrupted = self.corrupt(as_packed(inputs), self.seed, epoch)
        if isinstance(inputs, PackedBatch):
            return corrupted.batch, corrupted.labels, corrupted.selected
        others = dict(inputs) if isinstance(inputs, Mapping) else {}
        return {**others, "input_ids": corrupted.batch.input_ids}, corrupted.labels, corrupted.selected

    def describe_files(self, tokenizer: Tokenizer | None) -> ModelFiles:
        config = describe_language_model(self)
        config[OWN_KEY] |= {"masked_lm": describe_settings(self), "objective": self.describe_objective()}
        return ModelFiles(config | ({} if self.mlm_head is not None else name_special_ids(tokenizer)))

    def describe_objective(self) -> dict[str, Any]:
        """The objective's own settings for config.json."""
        return {"mode": self.mode}

    def list_weights(self) -> dict[str, StoredWeight]:
        return name_weights(self)

    @classmethod
    def from_pretrained(cls, folder_or_id: str | Path, encoder: nn.Module | None = None) -> MaskedLanguageModel:
        """Load a saved model with the objective it was trained with, unless a subclass is called.

        Other model types are loaded through transformers, with their head. A model around your own encoder needs that
        encoder, built as it was, as `encoder`.
        """
        return load_masked_lm(folder_or_id, encoder, None if cls is MaskedLanguageModel else cls)


class CausalLanguageModel(MaskedLanguageModel):
    """Every token sees what comes before it in its document, and itself, and predicts the next one.

    Weights and arguments are those of a `MaskedLanguageModel`, so each can continue training from the other. `forward`
    takes labels at their own places and gives logits of the next token, as `transformers`' causal models do.
    """

    mode = "clm"
    accuracy_name = "clm_accuracy"
    predicts_next = True
    evaluates_causally = True

    def __init__(self, encoder: nn.Module, vocab_size: int | None = None, *arguments: Any, **settings: Any) -> None:
        check_can_be_causal(encoder)
        super().__init__(encoder, vocab_size, *arguments, **settings)

    def corrupt(
        self, batch: PackedBatch, seed: int, epoch: int, ratio: float | None = None, progress: float = 0.0
    ) -> CorruptedBatch:
        """The unchanged batch; each token's label is the next token."""
        return ask_next_tokens(batch)

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Only the vocabulary size is checked, as nothing is masked."""
        arguments.check_tokenizer_size(tokenizer, self.vocab_size)

    def corrupt_for_evaluation(self, batch: PackedBatch, seed: int, ratio: float) -> CorruptedBatch:
        return self.corrupt(batch, seed, 0)

    def find_causal(self, batch: PackedBatch) -> Tensor:
        return torch.ones_like(batch.input_ids, dtype=torch.bool)

    def compute_metrics(self, sums: Sequence[float]) -> dict[str, float]:
        metrics = super().compute_metrics(sums)
        return metrics | {"perplexity": math.exp(min(metrics["loss"], 700.0))}


class HybridLanguageModel(MaskedLanguageModel):
    """Masked and causal language modelling in one run (as in GPT-BERT, Charpentier & Samuel 2024).

    A share of the samples is trained on next tokens, the others on masked tokens.

    Which sample is which is a function of (seed, epoch, sample). With `shifts_masks` a masked token is answered one
    place before it, as the next token of a causal sample is, so that one way of predicting serves both.
    """

    mode = "hybrid"
    accuracy_name = "accuracy"

    def __init__(
        self,
        encoder: nn.Module,
        vocab_size: int | None = None,
        *arguments: Any,
        causal_share: float | Callable[[float], float] = 0.5,
        shifts_masks: bool = True,
        evaluates_causally: bool = False,
        **settings: Any,
    ) -> None:
        """`causal_share` is a number, or a function of a run's progress in [0, 1]."""
        check_can_be_causal(encoder)
        if isinstance(causal_share, int | float) and not 0 <= causal_share <= 1:
            raise InputError(f"causal_share is {causal_share}; it must lie in [0, 1], 0.5 is half of the samples")
        super().__init__(encoder, vocab_size, *arguments, **settings)
        self.causal_share = causal_share
        self.shifts_masks = shifts_masks
        self.evaluates_causally = evaluates_causally

    @property
    def predicts_next(self) -> bool:  # type: ignore[override]
        return self.shifts_masks

    def describe_objective(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "causal_share": None if callable(self.causal_share) else self.causal_share,
            "shifts_masks": self.shifts_masks,
            "evaluates_causally": self.evaluates_causally,
        }

    def corrupt(
        self, batch: PackedBatch, seed: int, epoch: int, ratio: float | None = None, progress: float = 0.0
    ) -> CorruptedBatch:
        ratio = self.mask_ratio if ratio is None else ratio
        masked = self._shift(self.masker.corrupt(batch, ratio, seed, epoch), batch)
        if self.causal_share == 0:
            return masked
        # A share that follows progress may be 0 for a while: batches stay of one kind, as compiled kernels want them.
        share = self.causal_share(progress) if callable(self.causal_share) else self.causal_share
        draws = random_uint32(compute_key(seed, epoch, Stream.OBJECTIVE), batch.sample_ids)
        is_causal = draws < threshold(share)
        input_ids = torch.where(is_causal, batch.input_ids, masked.batch.input_ids)
        labels = torch.where(is_causal, label_next_tokens(batch), masked.labels)
        num_slots = _count_slots(labels.shape, share, masked.num_slots)
        return CorruptedBatch(batch.with_input_ids(input_ids), labels, num_slots, is_causal)

    def corrupt_for_evaluation(self, batch: PackedBatch, seed: int, ratio: float) -> CorruptedBatch:
        """Only masks, so that figures are comparable between objectives, or only next tokens."""
        if self.evaluates_causally:
            return ask_next_tokens(batch)
        return self._shift(super().corrupt_for_evaluation(batch, seed, ratio), batch)

    def _shift(self, masked: CorruptedBatch, batch: PackedBatch) -> CorruptedBatch:
        return replace(masked, labels=shift_left(masked.labels, batch)) if self.shifts_masks else masked


class DiffusionLanguageModel(MaskedLanguageModel):
    """Masked diffusion: the share of masked tokens is drawn anew for each sample, so the model can write whole texts.

    The loss is an upper bound on the negative log-likelihood, in nats for each ordinary token, masked or not (Sahoo et
    al. 2024, MDLM). Weights and arguments are those of a `MaskedLanguageModel`; its ratio, strategy and split have no
    effect on training, but still on `token_masker`.
    """

    mode = "diffusion"
    num_figures = 2

    def __init__(
        self,
        encoder: nn.Module,
        vocab_size: int | None = None,
        *arguments: Any,
        min_share: float = DEFAULT_MIN_SHARE,
        **settings: Any,
    ) -> None:
        """`min_share` is the lower limit of the drawn shares."""
        if not 0 < min_share < 1:
            raise InputError(f"min_share is {min_share}; it must lie between 0 and 1, such as 0.001")
        super().__init__(encoder, vocab_size, *arguments, **settings)
        self.min_share = min_share
        self.mask_ratio = (1 + min_share) / 2  # in the mean

    def describe_objective(self) -> dict[str, Any]:
        return {"mode": self.mode, "min_share": self.min_share}

    def describe_purpose(self) -> dict[str, str]:
        return {"objective": self.mode, "masked tokens": "any share"}

    def corrupt(
        self, batch: PackedBatch, seed: int, epoch: int, ratio: float | None = None, progress: float = 0.0
    ) -> DiffusionBatch:
        """Mask a batch; the result depends on (seed, epoch, sample, position) alone, not on the ratio."""
        return mask_by_shares(self.masker, batch, seed, epoch, self.min_share)

    def ask_for_evaluation(self, batch: PackedBatch, seed: int, ratio: float) -> DiffusionBatch:
        """Masks of any share, as in training; those of `corrupt_for_evaluation` are for all models the same."""
        return mask_by_shares(self.masker, batch, seed, 0, self.min_share)

    def loss_sums(self, corrupted: CorruptedBatch) -> LossSums:
        """The weighted loss, the tokens that could have been masked, and the right answers among those masked."""
        assert isinstance(corrupted, DiffusionBatch)
        capacity = corrupted.num_slots if corrupted.labels.is_cuda else None
        hidden = encode(self.encoder, corrupted.batch)
        sums = self._score(hidden, corrupted.labels, capacity, corrupted.weights)
        return LossSums(sums.losses, corrupted.counts, torch.cat([sums.figures, sums.counts]))

    def compute_metrics(self, sums: Sequence[float]) -> dict[str, float]:
        loss_sum, num_maskable, num_correct, num_masked = sums
        loss = loss_sum / (num_maskable or float("nan"))
        accuracy = num_correct / (num_masked or float("nan"))
        return {"loss": loss, self.accuracy_name: accuracy, "perplexity": math.exp(min(loss, 700.0))}


Build = Callable[..., MaskedLanguageModel]
"""A function that builds a model from an encoder and settings."""


def find_objective(config: Mapping[str, Any]) -> Build:
    """The class for a config.json; a decoder without our own settings is causal."""
    described = read_own_settings(config, "objective")
    refuse_unknown_fields(described, _OBJECTIVE_FIELDS, Path(CONFIG_FILE))
    mode = described.get("mode", "clm" if config.get("is_decoder") else "mlm")
    share, min_share = described.get("causal_share"), described.get("min_share")
    are_numbers = all(number is None or type(number) in (int, float) for number in (share, min_share))
    if not isinstance(mode, str) or not are_numbers:
        raise InputError(f"'objective' of config.json is {described!r}, which is no objective of a model")
    match mode:
        case "mlm":
            return MaskedLanguageModel
        case "clm":
            return CausalLanguageModel
        case "diffusion":
            return partial(DiffusionLanguageModel, min_share=DEFAULT_MIN_SHARE if min_share is None else min_share)
        case "hybrid":
            return partial(
                HybridLanguageModel,
                causal_share=0.0 if share is None else float(share),
                shifts_masks=bool(described.get("shifts_masks", True)),
                evaluates_causally=bool(described.get("evaluates_causally", False)),
            )
    raise InputError(
        f"'objective' of config.json has the mode '{mode}', which this version does not know; a newer version of"
        " maskwright wrote it, so use that one"
    )


def load_masked_lm(
    folder_or_id: str | Path,
    encoder: nn.Module | None = None,
    build: Build | None = None,
    may_lack_head: bool = False,
    used_elsewhere: Iterable[str] = (),
) -> MaskedLanguageModel:
    """`build` makes the model from an encoder and settings; unset, the model keeps the objective it was trained with.

    With `may_lack_head` an encoder alone gets a new prediction head, and a warning says so. Modules that are
    `used_elsewhere` are ignored without a warning.
    """
    folder = resolve_folder(folder_or_id)
    config, weights = read_model_folder(folder)
    settings = read_arguments(MaskedLanguageModel, config, "masked_lm", _NOT_SETTINGS, folder)
    build = build or find_objective(config)
    config.pop("is_decoder", None)  # said by the class that is built
    if is_foreign(config):
        return build(**load_foreign(config, weights, folder, may_lack_head, settings)).eval()
    if config.get("model_type") != CUSTOM_TYPE:
        is_whole = check_head(find_encoder_class(config, folder), weights, folder, may_lack_head)
        native = build_encoder(config, folder, weights)
        settings = {**guess_settings(folder, config, native), **settings}
        model = build(native, tie_word_embeddings=_read_tying(config, native.family.ties_output, folder), **settings)
        warn_of_strangers(model, native, weights, used_elsewhere, folder)
        fill_model(model, folder, weights, may_lack=() if is_whole else list_head_weights(model))
        return model.eval()
    if encoder is None:
        raise InputError(
            f"{folder / CONFIG_FILE} is a model around a {config.get('encoder_class')}; build that encoder and"
            " pass it as from_pretrained(folder, encoder=...)"
        )
    model = build(encoder, tie_word_embeddings="mlm_output.weight" not in weights, **settings)
    fill_model(model, folder, weights)
    return model.eval()


def _read_tying(config: Mapping[str, Any], default: bool, folder: Path) -> bool:
    is_tied = config.get("tie_word_embeddings", default)
    if not isinstance(is_tied, bool):
        raise InputError(f"{folder / CONFIG_FILE}: 'tie_word_embeddings' is {is_tied!r}; expected true or false")
    return is_tied


def label_next_tokens(batch: PackedBatch) -> Tensor:
    """(B, S) the id after each token within its document, -100 after its last and on padding."""
    return shift_left(batch.input_ids, batch)


def ask_next_tokens(batch: PackedBatch) -> CorruptedBatch:
    """The unchanged batch with causal attention; each token's label is the next token."""
    everywhere = torch.ones_like(batch.input_ids, dtype=torch.bool)
    return CorruptedBatch(batch, label_next_tokens(batch), batch.input_ids.numel(), everywhere)


def check_can_be_causal(encoder: nn.Module) -> None:
    if not isinstance(encoder, PackedEncoder):
        raise InputError(
            f"{type(encoder).__name__} always sees both sides of a token, so it cannot learn to continue text; use BERT"
            " or ModernBERT of ours, or train it by masking"
        )


def _count_slots(shape: torch.Size, causal_share: float, num_masked_slots: int) -> int:
    """Slots for the next tokens of a share of the samples and the masks of the others, with six standard deviations of
    room.

    The samples, a row long at most, are drawn one by one: a causal one needs a slot for every token.
    """
    num_tokens, length = shape.numel(), shape[1]
    masked_share = num_masked_slots / num_tokens
    expected = num_tokens * (causal_share + (1 - causal_share) * masked_share)
    deviation = (1 - masked_share) * math.sqrt(num_tokens * length * causal_share * (1 - causal_share))
    return min(num_tokens, math.ceil(expected + 6 * deviation))
