"""An encoder with a prediction head: what masked, causal and hybrid language models have in common.

B rows, S row length, D width, M masked slots, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from maskwright.batch import IGNORED_LABEL, PackedBatch, as_packed
from maskwright.errors import InputError
from maskwright.masking.strategies import DEFAULT_SPAN_MAX_WORDS, DEFAULT_SPAN_P
from maskwright.masking.tokens import CorruptedBatch, Selection, Strategy
from maskwright.models.any_encoder import (
    check_has_weights,
    encode,
    find_hidden_size,
    find_input_embedding,
    find_max_length,
)
from maskwright.models.compilation import FunctionCompiler
from maskwright.models.encoder import MaskedLMOutput, PackedEncoder
from maskwright.models.layers import ACTIVATIONS, Dropout, LayerNorm, build_activation, init_weights
from maskwright.models.products import RowLinear
from maskwright.models.transformers_model import TransformersHead
from maskwright.objectives import arguments
from maskwright.objectives.loss import (
    LossSums,
    compute_loss_in_parts,
    compute_loss_sums,
    compute_token_losses,
    gather_labelled,
)
from maskwright.objectives.objective import TokenObjective
from maskwright.suggestions import suggest


class PredictingModel(TokenObjective):
    """An encoder with a prediction head: hidden states to logits over the vocabulary, and their loss.

    The arguments are those of `MaskedLanguageModel`.
    """

    num_figures = 1
    accuracy_name: ClassVar[str] = "mlm_accuracy"
    predicts_next: ClassVar[bool] = False
    """Whether a token is predicted at the position before it."""

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
        given = locals()
        _check_arguments(given)
        arguments.check_embedding(encoder, vocab_size)
        self.mlm_head_activation = mlm_head_activation
        self.initializer_range = initializer_range
        self.layer_norm_eps = layer_norm_eps
        self.set_masking(given)
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
            self.mlm_dense: nn.Module = RowLinear(hidden_size, head_size, bias=getattr(encoder, "mlm_head_bias", True))
            self.mlm_activation = build_activation(self.mlm_head_activation)
            self.mlm_norm: nn.Module = LayerNorm(
                head_size, eps=self.layer_norm_eps, bias=getattr(encoder, "mlm_norm_bias", True)
            )
        else:
            self.mlm_dense, self.mlm_activation, self.mlm_norm = nn.Identity(), nn.Identity(), nn.Identity()
        self.mlm_dropout = Dropout(dropout)
        self.mlm_output = RowLinear(head_size, self.vocab_size)
        for part in (self.mlm_dense, self.mlm_norm, self.mlm_output):
            init_weights(part, self.initializer_range)
        embedding = find_input_embedding(encoder)
        if ties is False or embedding is None or embedding.weight.shape != self.mlm_output.weight.shape:
            return
        if ties or isinstance(encoder, PackedEncoder) or arguments.may_be_tied(embedding.weight, encoder):
            self.mlm_output.weight = embedding.weight

    @property
    def mlm_head_dropout(self) -> float:
        return self.mlm_dropout.p

    @mlm_head_dropout.setter
    def mlm_head_dropout(self, rate: float) -> None:
        arguments.check_head_dropout(rate)
        self.mlm_dropout.p = rate

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
        """(B, S) true for tokens with causal attention in `forward`; None if all tokens see both sides."""
        return None

    def _check_length(self, padded: PackedBatch) -> None:
        """Refuse rows that are longer than the position table; packed batches are checked by their loader."""
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

    def loss_sums(self, corrupted: CorruptedBatch) -> LossSums:
        """The loss and the number of right answers, summed over the masked tokens of a batch."""
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

    def _score(
        self, hidden: Tensor, labels: Tensor, capacity: int | None = None, weights: Tensor | None = None
    ) -> LossSums:
        """The sums over labelled tokens, whose losses `weights` (B, S) multiply if given."""
        slots, slot_labels = gather_labelled(hidden, labels, capacity)
        if weights is None and self.learning_masker is not None and torch.is_grad_enabled():
            sums, losses = compute_token_losses(self.predict(slots), slot_labels)
            self.learning_masker.record(slot_labels, losses)
            return sums
        slot_weights = None if weights is None else gather_labelled(weights[..., None], labels, capacity)[0][:, 0]
        if self._head_compiler is not None and torch.is_grad_enabled():
            features = self._head_compiler.run(_transform, self, slots)
            output = self.mlm_output
            return compute_loss_in_parts(
                features, output.weight, output.bias, slot_labels, self._head_compiler, slot_weights
            )
        return compute_loss_sums(self.predict(slots), slot_labels, slot_weights)

    @property
    def is_recordable(self) -> bool:
        return isinstance(self.encoder, PackedEncoder) and self.mlm_head is None and self.learning_masker is None

    def compile_parts(self) -> None:
        """Compile the head too, so that the softmax over the vocabulary is fused and the logits are never all in
        memory.
        """
        super().compile_parts()
        if self.mlm_head is None:
            self._head_compiler = FunctionCompiler()

    @contextmanager
    def uncompiled(self) -> Iterator[None]:
        """Inside the block, compiled layers run uncompiled."""
        encoder: Any = self.encoder
        layer_compiler, head_compiler = getattr(encoder, "layer_compiler", None), self._head_compiler
        encoder.layer_compiler = self._head_compiler = None
        try:
            yield
        finally:
            encoder.layer_compiler, self._head_compiler = layer_compiler, head_compiler


def shift_left(labels: Tensor, batch: PackedBatch) -> Tensor:
    """Labels one place earlier, where that is still in the same document; -100 elsewhere."""
    shares_document = torch.roll(batch.document_ids, -1, dims=1) == batch.document_ids
    shares_document[:, -1] = False
    return torch.roll(labels, -1, dims=1).masked_fill(~shares_document | batch.is_padding, IGNORED_LABEL)


def _transform(model: PredictingModel, slots: Tensor) -> Tensor:
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
