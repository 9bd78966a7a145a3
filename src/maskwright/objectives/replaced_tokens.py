"""`ReplacedTokenDetection`: learn to tell which tokens a small generator replaced (Clark et al. 2020, ELECTRA).

B rows, S row length, D width, M masked slots, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskwright.batch import IGNORED_LABEL, PackedBatch, as_packed
from maskwright.errors import InputError
from maskwright.masking.strategies import DEFAULT_SPAN_MAX_WORDS, DEFAULT_SPAN_P
from maskwright.masking.tokens import CorruptedBatch, Selection, Strategy
from maskwright.models.any_encoder import encode
from maskwright.models.encoder import PackedEncoder, build_encoder, describe_encoder
from maskwright.models.files.model_folder import CONFIG_FILE, OWN_KEY, read_model_folder, resolve_folder
from maskwright.objectives import arguments
from maskwright.objectives.generator import Generator, draw_uniform, find_family_class, sample_tokens
from maskwright.objectives.loss import LossSums, compute_loss_sums, gather_labelled
from maskwright.objectives.objective import TokenObjective
from maskwright.objectives.saving import ModelFiles, StoredWeight, fill_model, name_special_ids, read_arguments
from maskwright.objectives.token_detector import OTHERS_FILE, DetectionHead, DetectionOutput
from maskwright.randomness import Stream, compute_key
from maskwright.text.tokenizer.tokenizer import Tokenizer

_OWN_PART = "replaced_tokens"
NUM_BINS = 128
_LARGEST_LOGIT = 8.0
"""Bins are equally wide in logits; scores beyond this (a probability of 0.9997) fall into the outermost bin."""


@dataclass(frozen=True, kw_only=True)
class ReplaceableBatch(CorruptedBatch):
    """A masked batch whose masked tokens will be replaced by tokens sampled from the generator."""

    draws: Tensor
    """(B, S) numbers in [0, 1) for sampling from the generator: a function of (seed, epoch, sample, position)."""

    @property
    def is_real(self) -> Tensor:
        return ~self.batch.is_padding

    @property
    def original_ids(self) -> Tensor:
        return torch.where(self.selected, self.labels, self.batch.input_ids)

    @property
    def counts(self) -> Tensor:
        """(2,) the masked tokens and the real ones."""
        return torch.stack([self.selected.sum(), self.is_real.sum()])


class ReplacedTokenDetection(TokenObjective):
    """A discriminator, which is the encoder to keep, and a generator that shares its embeddings.

    The loss has two parts: the generator's cross-entropy at masked tokens and, weighted, the discriminator's binary
    cross-entropy at all real tokens. No gradient flows through the sampling.
    """

    mode = "rtd"
    encoder: PackedEncoder
    num_figures = 2 + 2 * NUM_BINS

    def __init__(
        self,
        encoder: PackedEncoder,
        vocab_size: int | None = None,
        mask_ratio: float = 0.15,
        mask_token_id: int | None = None,
        random_token_ratio: float = 0.0,
        unchanged_ratio: float = 0.15,
        special_token_ids: Sequence[int] = (),
        generator_size: float = 0.25,
        generator_layers: int | None = None,
        discriminator_weight: float = 50.0,
        temperature: float = 1.0,
        initializer_range: float = 0.02,
        mlm_head_dropout: float = 0.1,
        layer_norm_eps: float = 1e-12,
        *,
        selection: Selection = "exact",
        seed: int = 0,
        strategy: Strategy = "token",
        span_p: float = DEFAULT_SPAN_P,
        span_max_words: int = DEFAULT_SPAN_MAX_WORDS,
        tokenizer: Any = None,
    ) -> None:
        """`generator_size` is a share of the encoder's attention heads and widths; `generator_layers` defaults to the
        encoder's number of layers. A `temperature` above 1 makes replacements more varied; `propose` uses `seed`. The
        ids may come from a `tokenizer`, as in `MaskedLanguageModel`.
        """
        super().__init__()
        find_family_class(encoder)
        vocab_size, mask_token_id, special_token_ids = arguments.settle_vocabulary(
            tokenizer, vocab_size, mask_token_id, special_token_ids, encoder.vocab_size
        )
        given = locals()
        _check_arguments(given)
        self.generator_size = generator_size
        self.part_weights = (1.0, discriminator_weight)
        self.temperature = temperature
        self.initializer_range = initializer_range
        self.set_masking(given)
        self.encoder = encoder
        self.generator = Generator(
            encoder,
            vocab_size,
            generator_size,
            encoder.config.num_hidden_layers if generator_layers is None else generator_layers,
            initializer_range,
            layer_norm_eps,
            mlm_head_dropout,
        )
        self.detection_head = DetectionHead(encoder, initializer_range)

    @property
    def mlm_head_dropout(self) -> float:
        return self.generator.dropout.p

    @mlm_head_dropout.setter
    def mlm_head_dropout(self, rate: float) -> None:
        arguments.check_head_dropout(rate)
        self.generator.dropout.p = rate

    @property
    def is_recordable(self) -> bool:
        return True

    def other_encoders(self) -> list[nn.Module]:
        return [self.generator.encoder_layers]

    def forward(
        self,
        input_ids: Tensor | Mapping[str, Tensor] | PackedBatch,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> DetectionOutput:
        """Logits (B, S) for the given tokens: positive where a token looks replaced."""
        batch = as_packed(input_ids, attention_mask, token_type_ids)
        return DetectionOutput(logits=self.detect(batch))

    def detect(self, batch: PackedBatch) -> Tensor:
        return self.detection_head(encode(self.encoder, batch))

    def propose(self, inputs: Tensor | Mapping[str, Tensor] | PackedBatch, epoch: int = 0) -> tuple[Tensor, Tensor]:
        """The ids (B, S) that the discriminator would see under the model's own seed, and where they were replaced."""
        corrupted = self.corrupt(as_packed(inputs), self.seed, epoch)
        with torch.no_grad():
            _, ids = self._generate(corrupted)
        return ids, ids != corrupted.original_ids

    def corrupt(
        self, batch: PackedBatch, seed: int, epoch: int, ratio: float | None = None, progress: float = 0.0
    ) -> ReplaceableBatch:
        """Mask a batch for the generator; the result depends on (seed, epoch, sample, position) and the ratio alone."""
        masked = self.masker.corrupt(batch, self.mask_ratio if ratio is None else ratio, seed, epoch)
        return _make_replaceable(masked, seed, epoch)

    def corrupt_for_evaluation(self, batch: PackedBatch, seed: int, ratio: float) -> ReplaceableBatch:
        return _make_replaceable(self.token_masker.corrupt(batch, ratio, seed, 0), seed, 0)

    def loss_sums(self, corrupted: CorruptedBatch) -> LossSums:
        """Losses and right answers of generator and discriminator, and a histogram of the discriminator's scores."""
        if not isinstance(corrupted, ReplaceableBatch):
            raise InputError(
                f"the batch is a {type(corrupted).__name__} without numbers to draw replacements by; corrupt it with"
                " this model's own corrupt()"
            )
        generated, ids = self._generate(corrupted)
        is_replaced, is_real = ids != corrupted.original_ids, corrupted.is_real
        logits = self.detect(corrupted.batch.with_input_ids(ids)).float()
        detection_loss = F.binary_cross_entropy_with_logits(
            logits, is_replaced.float(), weight=is_real.float(), reduction="sum"
        )
        with torch.no_grad():
            num_detected = (((logits > 0) == is_replaced) & is_real).sum()
            bins = count_scores(logits, is_replaced, is_real)
        return LossSums(
            losses=torch.stack([generated.loss_sum, detection_loss]),
            counts=torch.stack([generated.num_labelled, is_real.sum()]),
            figures=torch.cat([torch.stack([generated.num_correct, num_detected]), bins]),
        )

    def _generate(self, corrupted: ReplaceableBatch) -> tuple[LossSums, Tensor]:
        """The generator's loss, and the original ids (B, S) with its samples at the masked tokens."""
        # Static slots keep a GPU from waiting for the host; a CPU has nothing to wait for and skips the empty ones.
        capacity = corrupted.num_slots if corrupted.labels.is_cuda else None
        batch, labels = corrupted.batch, corrupted.labels
        num_tokens = labels.numel()
        every_place = torch.arange(num_tokens, device=labels.device).view(*labels.shape, 1)
        places, slot_labels = gather_labelled(every_place, labels, capacity)
        places = places.squeeze(1)

        self.generator.encoder_layers.recomputes_activations = self.encoder.recomputes_activations
        embedded = self.encoder.embed(batch.input_ids, batch.positions, batch.token_type_ids)
        hidden = self.generator(embedded, batch).flatten(0, 1).index_select(0, places)
        logits = self.generator.predict(hidden, self.encoder.get_input_embeddings().weight)

        drawn = sample_tokens(logits, corrupted.draws.flatten()[places], self.temperature)
        # Empty slots all stand for the first token; their draws go to a place behind the last, which is cut off.
        targets = places.where(slot_labels != IGNORED_LABEL, num_tokens)
        original_ids = corrupted.original_ids
        ids = F.pad(original_ids.flatten(), (0, 1)).scatter(0, targets, drawn.to(original_ids.dtype))
        return compute_loss_sums(logits, slot_labels), ids[:-1].view_as(labels)

    def compute_metrics(self, sums: Sequence[float]) -> dict[str, float]:
        generator_sum, detection_sum, num_masked, num_real, num_predicted, num_detected, *bins = sums
        masked, real = num_masked or float("nan"), num_real or float("nan")
        generator_loss, discriminator_loss = generator_sum / masked, detection_sum / real
        return {
            "loss": self.part_weights[0] * generator_loss + self.part_weights[1] * discriminator_loss,
            "generator_loss": generator_loss,
            "mlm_accuracy": num_predicted / masked,
            "discriminator_loss": discriminator_loss,
            "replaced_accuracy": num_detected / real,
            "replaced_auc": compute_auc(bins[:NUM_BINS], bins[NUM_BINS:]),
        }

    def describe_files(self, tokenizer: Tokenizer | None) -> ModelFiles:
        """The encoder as a model of its own, which Hugging Face's layout has a place for."""
        config = describe_encoder(self.encoder, with_head=False)
        config[OWN_KEY][_OWN_PART] = self._describe_settings()
        return ModelFiles(config | name_special_ids(tokenizer))

    def _describe_settings(self) -> dict[str, Any]:
        """The constructor's arguments, as plain values."""
        return {
            "vocab_size": self.vocab_size,
            "mask_ratio": self.mask_ratio,
            "mask_token_id": self.mask_token_id,
            "special_token_ids": list(self.special_token_ids),
            "generator_size": self.generator_size,
            "generator_layers": self.generator.encoder_layers.config.num_hidden_layers,
            "discriminator_weight": self.part_weights[1],
            "temperature": self.temperature,
            "initializer_range": self.initializer_range,
            "mlm_head_dropout": self.mlm_head_dropout,
            "layer_norm_eps": self.generator.norm.eps,
            "seed": self.seed,
            **self.masker.settings(),
        }

    def list_weights(self) -> dict[str, StoredWeight]:
        """The generator and the detection head are beside the encoder, under their names here."""
        family, state = self.encoder.family, self.encoder.state_dict()
        encoder = {f"encoder.{name}": StoredWeight(tuple(family.their_names(name))) for name in state}
        others = {name: StoredWeight((name,), OTHERS_FILE) for name in self.state_dict() if name not in encoder}
        return encoder | others

    def load_weights(self, folder: str | Path) -> None:
        _check_has_generator(Path(folder))
        super().load_weights(folder)

    @classmethod
    def from_pretrained(cls, folder_or_id: str | Path) -> ReplacedTokenDetection:
        """Load a saved model, its generator included."""
        folder = resolve_folder(folder_or_id)
        config, weights = read_model_folder(folder)
        settings = read_arguments(cls, config, _OWN_PART, ("encoder", "tokenizer"), folder)
        if "vocab_size" not in settings:
            raise InputError(
                f"{folder / CONFIG_FILE} describes no replaced-token detection; load its encoder with"
                " BERT.from_pretrained or ModernBERT.from_pretrained and wrap it in a new ReplacedTokenDetection"
            )
        _check_has_generator(folder)
        model = cls(build_encoder(config, folder, weights), **settings)
        fill_model(model, folder, weights)
        return model.eval()


def _check_has_generator(folder: Path) -> None:
    if not (folder / OTHERS_FILE).is_file():
        raise InputError(
            f"{folder} has no {OTHERS_FILE}, so it holds no generator; load its encoder with BERT.from_pretrained or"
            " ModernBERT.from_pretrained and wrap it in a new ReplacedTokenDetection"
        )


def count_scores(logits: Tensor, is_positive: Tensor, is_counted: Tensor) -> Tensor:
    """(2 * NUM_BINS,) how many scores fall into each bin: first those of positives, then those of negatives."""
    scaled = (logits.float() / _LARGEST_LOGIT + 1.0) * (NUM_BINS / 2)
    bins = scaled.clamp(0, NUM_BINS - 1).long() + NUM_BINS * ~is_positive
    counts = torch.zeros(2 * NUM_BINS, dtype=torch.long, device=logits.device)
    return counts.scatter_add_(0, bins.flatten(), is_counted.long().flatten())


def compute_auc(positives: Sequence[float], negatives: Sequence[float]) -> float:
    """How often a positive scores above a negative; a tie, here one bin, counts half. NaN without one of either."""
    num_pairs = sum(positives) * sum(negatives)
    if not num_pairs:
        return float("nan")
    below = accumulate(negatives, initial=0.0)
    won = sum(
        positive * (lower + negative / 2)
        for positive, negative, lower in zip(positives, negatives, below, strict=False)
    )
    return won / num_pairs


def _make_replaceable(masked: CorruptedBatch, seed: int, epoch: int) -> ReplaceableBatch:
    batch = masked.batch
    draws = draw_uniform(compute_key(seed, epoch, Stream.SAMPLING), batch.sample_ids, batch.positions)
    return ReplaceableBatch(batch, masked.labels, masked.num_slots, masked.is_causal, draws=draws)


def _check_arguments(given: Mapping[str, Any]) -> None:
    arguments.check_vocabulary(given["vocab_size"], given["mask_token_id"], given["special_token_ids"])
    arguments.check_corruption(given["random_token_ratio"], given["unchanged_ratio"], given["selection"])
    arguments.check_head_dropout(given["mlm_head_dropout"])
    positive = ("discriminator_weight", "temperature", "initializer_range", "layer_norm_eps")
    arguments.check_positive(**{name: given[name] for name in positive})
    embedded, vocab_size = given["encoder"].vocab_size, given["vocab_size"]
    if embedded < vocab_size:
        raise InputError(
            f"the encoder embeds {embedded} tokens, vocab_size is {vocab_size};"
            f" build the encoder with vocab_size={vocab_size}"
        )
    size, layers = given["generator_size"], given["generator_layers"]
    if not 0.0 < size <= 1.0:
        raise InputError(f"generator_size is {size}; it must lie in (0, 1], ELECTRA used 0.25 to 0.33")
    if layers is not None and (not isinstance(layers, int) or layers < 1):
        raise InputError(
            f"generator_layers is {layers}; it must be an integer of at least 1, or None for the encoder's"
        )
