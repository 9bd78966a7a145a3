"""`MaskedLanguageModel`: any encoder, a prediction head, and the masked-language-model objective.

B rows, S row length, D width, M masked slots, V vocabulary.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskwright.batch import IGNORED_LABEL, PackedBatch, as_packed
from maskwright.errors import InputError, InputWarning
from maskwright.masking.spans import DEFAULT_SPAN_MAX_WORDS, DEFAULT_SPAN_P
from maskwright.masking.strategies import build_masker
from maskwright.masking.tokens import CorruptedBatch, Selection, Strategy, TokenMasker
from maskwright.models.any_encoder import (
    check_has_weights,
    encode,
    find_hidden_size,
    find_input_embedding,
    find_max_length,
)
from maskwright.models.compilation import FunctionCompiler
from maskwright.models.encoder import PackedEncoder
from maskwright.models.init import init_weights
from maskwright.models.layers import ACTIVATIONS, Dropout, LayerNorm, build_activation
from maskwright.models.output import MaskedLMOutput
from maskwright.models.transformers_model import TransformersHead
from maskwright.objectives import arguments
from maskwright.objectives.loss import LossSums, compute_loss_sums, gather_labelled
from maskwright.objectives.next_tokens import shift_left
from maskwright.objectives.objective import Objective
from maskwright.objectives.snapshot import ModelSnapshot
from maskwright.objectives.vocabulary_loss import compute_loss_in_parts
from maskwright.suggestions import suggest
from maskwright.text.tokenizer.tokenizer import Tokenizer

_MAX_LOSS_OF_TYING = 12.0
"""How far above the loss of guessing a model may start for its output to be tied unasked: a table's standard deviation
may be 0.3 at a width of 256 and 0.19 at 768, ten times what new ones of ours have; that of `nn.Embedding` is 1."""
_NUM_TRIED_STATES = 16
_TRIAL_SEED = 0x7461626C65
"""One that nobody draws a table with: the same numbers in states and table would look like an answer that is known."""


class MaskedLanguageModel(Objective):
    """A masked-language-model head and objective around any encoder.

    The encoder needs `hidden_size` and must return `last_hidden_state` of shape (batch, length, hidden_size). The
    output projection shares the encoder's embedding table where the two have the same shape, unless the table is so
    large that the first loss would be far above that of guessing; `tie_word_embeddings` decides it. An `mlm_head` of
    another library's model takes the place of ours, as that library tied it.

    A `tokenizer` (an object, a file or a folder) tells `vocab_size`, `mask_token_id` and which tokens are special;
    `special_token_ids` are then further ones that are never masked. Without it `mask_token_id` is BERT's, 103.
    """

    num_figures = 1
    mode: ClassVar[str] = "mlm"
    accuracy_name: ClassVar[str] = "mlm_accuracy"
    predicts_next: ClassVar[bool] = False
    """Whether the answer for a token stands one place before it."""

    def __init__(
        self,
        encoder: nn.Module,
        vocab_size: int | None = None,
        mask_ratio: float = 0.15,
        mask_token_id: int | None = None,
        random_token_ratio: float = 0.1,
        unchanged_ratio: float = 0.1,
        special_token_ids: Sequence[int] = (),
        mlm_head_activation: str = "gelu",
        initializer_range: float = 0.02,
        mlm_head_dropout: float = 0.1,
        layer_norm_eps: float = 1e-12,
        *,
        tie_word_embeddings: bool | None = None,
        selection: Selection = "exact",
        seed: int = 0,
        strategy: Strategy = "token",
        span_p: float = DEFAULT_SPAN_P,
        span_max_words: int = DEFAULT_SPAN_MAX_WORDS,
        mlm_head: TransformersHead | None = None,
        tokenizer: Any = None,
    ) -> None:
        super().__init__()
        check_has_weights(encoder)
        num_embedded = encoder.vocab_size if isinstance(encoder, PackedEncoder) else None
        vocab_size, mask_token_id, special_token_ids = arguments.settle_vocabulary(
            tokenizer, vocab_size, mask_token_id, special_token_ids, num_embedded
        )
        _check_arguments(locals())
        _check_embedding(encoder, vocab_size)
        self.vocab_size = vocab_size
        self.special_token_ids = tuple(sorted({int(token_id) for token_id in special_token_ids}))
        self.mlm_head_activation = mlm_head_activation
        self.initializer_range = initializer_range
        self.layer_norm_eps = layer_norm_eps
        self.seed = seed
        self.mask_ratio = mask_ratio
        self.masker = build_masker(
            vocab_size,
            mask_token_id,
            self.special_token_ids,
            strategy=strategy,
            random_token_ratio=random_token_ratio,
            unchanged_ratio=unchanged_ratio,
            selection=selection,
            span_p=span_p,
            span_max_words=span_max_words,
        )
        self._mask_calls = 0
        self._head_compiler: FunctionCompiler | None = None

        self.encoder = encoder
        self.mlm_head = mlm_head
        if mlm_head is None:
            self._build_head(mlm_head_dropout, tie_word_embeddings)
        else:
            self.mlm_dropout = Dropout(mlm_head_dropout)

    def _build_head(self, dropout: float, ties: bool | None) -> None:
        encoder, hidden_size = self.encoder, find_hidden_size(self.encoder)
        head_size = encoder.embedding_size if isinstance(encoder, PackedEncoder) else hidden_size
        if getattr(encoder, "has_mlm_transform", True):
            self.mlm_dense: nn.Module = nn.Linear(hidden_size, head_size, bias=getattr(encoder, "mlm_head_bias", True))
            self.mlm_activation = build_activation(self.mlm_head_activation)
            self.mlm_norm: nn.Module = LayerNorm(
                head_size, eps=self.layer_norm_eps, bias=getattr(encoder, "mlm_norm_bias", True)
            )
        else:
            self.mlm_dense, self.mlm_activation, self.mlm_norm = nn.Identity(), nn.Identity(), nn.Identity()
        self.mlm_dropout = Dropout(dropout)
        self.mlm_output = nn.Linear(head_size, self.vocab_size)
        for part in (self.mlm_dense, self.mlm_norm, self.mlm_output):
            init_weights(part, self.initializer_range)
        embedding = find_input_embedding(encoder)
        if ties is False or embedding is None or embedding.weight.shape != self.mlm_output.weight.shape:
            return
        if ties or isinstance(encoder, PackedEncoder) or _may_be_tied(embedding.weight, encoder):
            self.mlm_output.weight = embedding.weight

    @property
    def mask_ratio(self) -> float:
        return self._mask_ratio

    @mask_ratio.setter
    def mask_ratio(self, ratio: float) -> None:
        arguments.check_mask_ratio(ratio)
        self._mask_ratio = ratio

    @property
    def mlm_head_dropout(self) -> float:
        return self.mlm_dropout.p

    @mlm_head_dropout.setter
    def mlm_head_dropout(self, rate: float) -> None:
        arguments.check_head_dropout(rate)
        self.mlm_dropout.p = rate

    @property
    def mask_token_id(self) -> int:
        return self.masker.mask_token_id

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Refuse data of a tokenizer with other ids, or one whose special tokens would be masked."""
        arguments.check_tokenizer(tokenizer, self.vocab_size, self.mask_token_id, self.special_token_ids)

    @property
    def token_masker(self) -> TokenMasker:
        """Masks single tokens whatever the training's strategy, so that models can be compared."""
        return self.masker.token_masker

    @property
    def is_tied(self) -> bool:
        embedding = find_input_embedding(self.encoder)
        return embedding is not None and any(table is embedding.weight for table in self.output_tables)

    @property
    def output_tables(self) -> list[Tensor]:
        """The head's parameters with a row for each token: the output matrix, tied or not, and its bias."""
        if self.mlm_head is not None:
            return list(self.mlm_head.output_tables(self.vocab_size))
        return [self.mlm_output.weight, self.mlm_output.bias]

    def forward(
        self,
        input_ids: Tensor | Mapping[str, Tensor] | PackedBatch,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> MaskedLMOutput:
        """Logits (B, S, V) of the input as it is, without masking.

        The inputs may come as one dictionary, labels too. With `labels` (-100 where there is nothing to predict) the
        mean loss is returned as well; in training mode the vocabulary projection then runs at labelled tokens only and
        no logits are returned.
        """
        if isinstance(input_ids, Mapping):
            labels = input_ids.get("labels") if labels is None else labels
        batch = as_packed(input_ids, attention_mask, token_type_ids)
        if batch is not input_ids:
            self._check_length(batch)
        hidden = encode(self.encoder, batch, self.find_causal(batch))
        output = MaskedLMOutput()
        if labels is not None:
            _check_labels(labels, batch)
            labels = shift_left(labels, batch) if self.predicts_next else labels
            output["loss"] = _mean_loss(self._score(hidden, labels))
        if labels is None or not self.training:
            output["logits"] = self.predict(hidden)
        return output

    def find_causal(self, batch: PackedBatch) -> Tensor | None:
        """(B, S) true for tokens that `forward` lets see only what comes before them; None when all see both sides."""
        return None

    def _check_length(self, padded: PackedBatch) -> None:
        """Say it before the position table is overrun; the positions of a packed batch are its loader's business."""
        limit, length = find_max_length(self.encoder), padded.input_ids.shape[1]
        if limit is not None and length > limit:
            raise InputError(
                f"the input has {length} tokens, the model has {limit} positions; shorten the input or build the"
                " encoder with a larger max_position_embeddings"
            )

    def predict(self, hidden: Tensor) -> Tensor:
        """Vocabulary logits (..., V) of hidden states (..., D)."""
        if self.mlm_head is not None:
            return self.mlm_head(self.mlm_dropout(hidden))
        return self.mlm_output(self.transform(hidden))

    def transform(self, hidden: Tensor) -> Tensor:
        return self.mlm_norm(self.mlm_dropout(self.mlm_activation(self.mlm_dense(hidden))))

    def corrupt(
        self, batch: PackedBatch, seed: int, epoch: int, ratio: float | None = None, progress: float = 0.0
    ) -> CorruptedBatch:
        """Mask a batch; the result depends on (seed, epoch, sample, position) and the ratio alone."""
        return self.masker.corrupt(batch, self.mask_ratio if ratio is None else ratio, seed, epoch)

    def corrupt_for_evaluation(self, batch: PackedBatch, seed: int, ratio: float) -> CorruptedBatch:
        return self.token_masker.corrupt(batch, ratio, seed, 0)

    def loss_sums(self, corrupted: CorruptedBatch) -> LossSums:
        """The objective: loss and hits summed over the masked tokens of a corrupted batch."""
        # Static slots keep a GPU from waiting for the host; a CPU has nothing to wait for and skips the empty ones.
        capacity = corrupted.num_slots if corrupted.labels.is_cuda else None
        hidden = encode(self.encoder, corrupted.batch, corrupted.is_causal)
        return self._score(hidden, corrupted.labels, capacity)

    def compute_metrics(self, sums: Sequence[float]) -> dict[str, float]:
        loss_sum, num_labelled, num_correct = sums
        count = num_labelled or float("nan")
        return {"loss": loss_sum / count, self.accuracy_name: num_correct / count}

    def compute_loss(self, y: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """Mean cross-entropy of logits (B, S, V) against ids (B, S), where `sample_weight` is true or y is not -100."""
        labels = y if sample_weight is None else y.masked_fill(~sample_weight.bool(), IGNORED_LABEL)
        return _mean_loss(compute_loss_sums(y_pred.flatten(0, -2), labels.flatten()))

    def _score(self, hidden: Tensor, labels: Tensor, capacity: int | None = None) -> LossSums:
        slots, slot_labels = gather_labelled(hidden, labels, capacity)
        if self._head_compiler is not None and torch.is_grad_enabled():
            features = self._head_compiler.run(_transform, self, slots)
            output = self.mlm_output
            return compute_loss_in_parts(features, output.weight, output.bias, slot_labels, self._head_compiler)
        return compute_loss_sums(self.predict(slots), slot_labels)

    @property
    def is_recordable(self) -> bool:
        return isinstance(self.encoder, PackedEncoder) and self.mlm_head is None

    def compile_parts(self) -> None:
        """The head too: its softmax over the vocabulary then never leaves the kernel, nor are all logits kept."""
        super().compile_parts()
        if self.mlm_head is None:
            self._head_compiler = FunctionCompiler()

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        """Inside, what is compiled runs as plain layers."""
        encoder: Any = self.encoder
        layer_compiler, head_compiler = getattr(encoder, "layer_compiler", None), self._head_compiler
        encoder.layer_compiler = self._head_compiler = None
        try:
            yield
        finally:
            encoder.layer_compiler, self._head_compiler = layer_compiler, head_compiler

    def _mask_tokens(
        self, inputs: Mapping[str, Tensor] | Tensor | PackedBatch, epoch: int | None = None
    ) -> tuple[dict[str, Tensor] | PackedBatch, Tensor, Tensor]:
        """Mask a batch in the layout it came in: (masked_inputs, labels, selected).

        Each call masks anew; give `epoch` to get the masks of that epoch again.
        """
        if epoch is None:
            epoch, self._mask_calls = self._mask_calls, self._mask_calls + 1
        corrupted = self.corrupt(as_packed(inputs), self.seed, epoch)
        if isinstance(inputs, PackedBatch):
            return corrupted.batch, corrupted.labels, corrupted.selected
        others = dict(inputs) if isinstance(inputs, Mapping) else {}
        return {**others, "input_ids": corrupted.batch.input_ids}, corrupted.labels, corrupted.selected

    def snapshot(self, tokenizer: Any = None, wait: bool = True) -> ModelSnapshot:
        from maskwright.objectives.saving import snapshot_masked_lm

        return snapshot_masked_lm(self, tokenizer, wait)

    def load_weights(self, folder: str | Path) -> None:
        from maskwright.objectives.saving import fill_masked_lm

        fill_masked_lm(self, Path(folder))

    @classmethod
    def from_pretrained(cls, folder_or_id: str | Path, encoder: nn.Module | None = None) -> MaskedLanguageModel:
        """Load a saved model, as the kind it was trained as unless a subclass is asked for it.

        A model type that is not ours is read through transformers, its head included. One around an encoder of your own
        needs that encoder, built as it was, as `encoder`.
        """
        from maskwright.objectives.saving import load_masked_lm

        return load_masked_lm(folder_or_id, encoder, None if cls is MaskedLanguageModel else cls)


def _transform(model: MaskedLanguageModel, slots: Tensor) -> Tensor:
    return model.transform(slots)


def _check_labels(labels: Any, batch: PackedBatch) -> None:
    found = tuple(labels.shape) if isinstance(labels, Tensor) else f"a {type(labels).__name__}"
    if found != tuple(batch.input_ids.shape):
        raise InputError(f"labels are {found}; expected a tensor like input_ids, {tuple(batch.input_ids.shape)}")


def _mean_loss(sums: LossSums) -> Tensor:
    """Zero, not NaN, when nothing is labelled."""
    return sums.loss_sum / sums.num_labelled.clamp(min=1)


def _check_arguments(given: Mapping[str, Any]) -> None:
    arguments.check_vocabulary(given["vocab_size"], given["mask_token_id"], given["special_token_ids"])
    arguments.check_corruption(given["random_token_ratio"], given["unchanged_ratio"], given["selection"])
    arguments.check_head_dropout(given["mlm_head_dropout"])
    for name in ("initializer_range", "layer_norm_eps"):
        if not given[name] > 0:
            raise InputError(f"{name} is {given[name]}; it must be positive")
    activation = given["mlm_head_activation"]
    if activation not in ACTIVATIONS:
        raise InputError(f"no activation '{activation}' for mlm_head_activation{suggest(activation, ACTIVATIONS)}")


def _may_be_tied(table: Tensor, encoder: nn.Module) -> bool:
    """Whether a model around a table that is not ours would start near the loss of guessing; a warning if not."""
    if table.is_meta:
        return True
    first_loss, guessing = _measure_first_loss(table), math.log(len(table))
    if first_loss <= guessing + _MAX_LOSS_OF_TYING:
        return True
    warnings.warn(
        f"the embedding table of {type(encoder).__name__} (standard deviation {table.detach().std():.2g}) is too large"
        f" to be tied to the output: the loss would start at {first_loss:.1f}, where guessing has {guessing:.1f}; so"
        " the output got weights of its own and the table stays as it is. Choose with tie_word_embeddings=False (as"
        " now) or True (tied nevertheless)",
        InputWarning,
        stacklevel=4,
    )
    return False


@torch.no_grad()
def _measure_first_loss(table: Tensor) -> float:
    """The loss of answers that know nothing, at the output of a new head over a table (V, D)."""
    width = table.shape[1]
    states = torch.randn(_NUM_TRIED_STATES, width, generator=torch.Generator().manual_seed(_TRIAL_SEED))
    features = F.layer_norm(states, (width,)).to(table.device, table.dtype)
    logits = (features @ table.T).float()
    return float((logits.logsumexp(-1) - logits.mean(-1)).mean())


def _check_embedding(encoder: nn.Module, vocab_size: int) -> None:
    embedding = find_input_embedding(encoder)
    if embedding is not None and embedding.num_embeddings < vocab_size:
        raise InputError(
            f"the encoder embeds {embedding.num_embeddings} tokens, vocab_size is {vocab_size};"
            f" build the encoder with vocab_size={vocab_size}"
        )
