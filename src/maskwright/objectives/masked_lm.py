"""`MaskedLanguageModel`: any encoder, a prediction head, and the masked-language-model objective.

Its causal and hybrid kinds have the same weights and learn from other questions. B rows, S row length, D width,
M masked slots, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from maskwright.batch import IGNORED_LABEL, PackedBatch, as_packed
from maskwright.errors import InputError
from maskwright.masking.spans import DEFAULT_SPAN_MAX_WORDS, DEFAULT_SPAN_P
from maskwright.masking.strategies import build_masker
from maskwright.masking.tokens import CorruptedBatch, Selection, Strategy
from maskwright.models.compilation import FunctionCompiler
from maskwright.models.dropout import Dropout
from maskwright.models.encoder import PackedEncoder
from maskwright.models.encoding import encode, find_hidden_size, find_input_embedding, find_max_length
from maskwright.models.init import init_weights
from maskwright.models.keras_encoder import check_has_weights
from maskwright.models.layers import ACTIVATIONS, LayerNorm, build_activation
from maskwright.models.output import MaskedLMOutput
from maskwright.models.pretrained import (
    OWN_KEY,
    build_encoder,
    find_family,
    read_model_folder,
    read_own_settings,
    resolve_folder,
)
from maskwright.models.transformers_head import TransformersHead
from maskwright.models.transformers_loading import is_foreign
from maskwright.models.weights_reading import CONFIG_FILE
from maskwright.objectives import arguments
from maskwright.objectives.loss import LossSums, compute_loss_in_parts, compute_loss_sums, gather_labelled
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
from maskwright.objectives.objective import TokenObjective
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
from maskwright.suggestions import suggest
from maskwright.text.tokenizer import Tokenizer

_NOT_SETTINGS = ("encoder", "mlm_head", "tie_word_embeddings", "tokenizer")
"""Arguments of the constructor that are made of weights, or tell what other settings do."""
_OBJECTIVE_FIELDS = ("mode", "causal_share", "shifts_masks", "evaluates_causally")


class MaskedLanguageModel(TokenObjective):
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
        arguments.check_embedding(encoder, vocab_size)
        self.vocab_size = vocab_size
        self.special_token_ids = tuple(sorted({int(token_id) for token_id in special_token_ids}))
        self.mlm_head_activation = mlm_head_activation
        self.initializer_range = initializer_range
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
            self._build_head(mlm_head_dropout, layer_norm_eps, tie_word_embeddings)
        else:
            self.mlm_dropout = Dropout(mlm_head_dropout)

    def _build_head(self, dropout: float, norm_eps: float, ties: bool | None) -> None:
        encoder, hidden_size = self.encoder, find_hidden_size(self.encoder)
        head_size = encoder.embedding_size if isinstance(encoder, PackedEncoder) else hidden_size
        self.mlm_dense = nn.Linear(hidden_size, head_size, bias=getattr(encoder, "mlm_head_bias", True))
        self.mlm_activation = build_activation(self.mlm_head_activation)
        self.mlm_dropout = Dropout(dropout)
        self.mlm_norm = LayerNorm(head_size, eps=norm_eps, bias=getattr(encoder, "mlm_norm_bias", True))
        self.mlm_output = nn.Linear(head_size, self.vocab_size)
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

    def describe_files(self, tokenizer: Tokenizer | None) -> ModelFiles:
        config = describe_language_model(self)
        config[OWN_KEY] |= {"masked_lm": describe_settings(self), "objective": self.describe_objective()}
        return ModelFiles(config | ({} if self.mlm_head is not None else name_special_ids(tokenizer)))

    def describe_objective(self) -> dict[str, Any]:
        """What config.json says of the kind of language model beside the settings that all kinds have."""
        return {"mode": self.mode}

    def list_weights(self) -> dict[str, StoredWeight]:
        return name_weights(self)

    @classmethod
    def from_pretrained(cls, folder_or_id: str | Path, encoder: nn.Module | None = None) -> MaskedLanguageModel:
        """Load a saved model, as the kind it was trained as unless a subclass is asked for it.

        A model type that is not ours is read through transformers, its head included. One around an encoder of your own
        needs that encoder, built as it was, as `encoder`.
        """
        return load_masked_lm(folder_or_id, encoder, None if cls is MaskedLanguageModel else cls)


class CausalLanguageModel(MaskedLanguageModel):
    """Every token sees what comes before it in its document, and itself, and predicts the next one.

    Weights and arguments are those of a `MaskedLanguageModel`, so either can go on from the other. `forward` takes
    labels at their own places and gives logits of the next token, as `transformers`' causal models do.
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
        """The batch as it is; every token's label is the one after it."""
        return ask_next_tokens(batch)

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Nothing is masked, so it is the number of tokens alone that counts."""
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

    A share of the samples is continued from left to right, the others have masked tokens filled.

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
        """`causal_share` is a number, or gives one for a run's progress in [0, 1]."""
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
        """Masks alone, so that the figures compare with those of other objectives; or next tokens alone."""
        if self.evaluates_causally:
            return ask_next_tokens(batch)
        return self._shift(super().corrupt_for_evaluation(batch, seed, ratio), batch)

    def _shift(self, masked: CorruptedBatch, batch: PackedBatch) -> CorruptedBatch:
        return replace(masked, labels=shift_left(masked.labels, batch)) if self.shifts_masks else masked


Build = Callable[..., MaskedLanguageModel]
"""Makes a model out of an encoder and settings."""


def find_objective(config: Mapping[str, Any]) -> Build:
    """The kind that a config.json describes; without our word on it, a decoder is causal."""
    described = read_own_settings(config, "objective")
    refuse_unknown_fields(described, _OBJECTIVE_FIELDS, Path(CONFIG_FILE))
    share, mode = described.get("causal_share"), described.get("mode", "clm" if config.get("is_decoder") else "mlm")
    if not isinstance(mode, str) or not (share is None or type(share) in (int, float)):
        raise InputError(f"'objective' of config.json is {described!r}, which is no objective of a model")
    match mode:
        case "mlm":
            return MaskedLanguageModel
        case "clm":
            return CausalLanguageModel
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
    """`build` makes the model out of an encoder and settings; unset, it becomes what it was trained as.

    With `may_lack_head` an encoder alone gets a new prediction head, and a warning says so. Modules that are
    `used_elsewhere` are left aside without a word.
    """
    folder = resolve_folder(folder_or_id)
    config, weights = read_model_folder(folder)
    settings = read_arguments(MaskedLanguageModel, config, "masked_lm", _NOT_SETTINGS, folder)
    build = build or find_objective(config)
    config.pop("is_decoder", None)  # said by the class that is built
    if is_foreign(config):
        return build(**load_foreign(config, weights, folder, may_lack_head, settings)).eval()
    if config.get("model_type") != CUSTOM_TYPE:
        is_whole = check_head(find_family(config, folder), weights, folder, may_lack_head)
        native = build_encoder(config, folder, weights)
        settings = {**guess_settings(folder, config, native), **settings}
        model = build(native, tie_word_embeddings=_read_tying(config, folder), **settings)
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


def _read_tying(config: Mapping[str, Any], folder: Path) -> bool:
    is_tied = config.get("tie_word_embeddings", True)
    if not isinstance(is_tied, bool):
        raise InputError(f"{folder / CONFIG_FILE}: 'tie_word_embeddings' is {is_tied!r}; expected true or false")
    return is_tied


def label_next_tokens(batch: PackedBatch) -> Tensor:
    """(B, S) the id after each token within its document, -100 after its last and on padding."""
    return shift_left(batch.input_ids, batch)


def ask_next_tokens(batch: PackedBatch) -> CorruptedBatch:
    """The batch as it is, seen from left to right; every token's label is the one after it."""
    everywhere = torch.ones_like(batch.input_ids, dtype=torch.bool)
    return CorruptedBatch(batch, label_next_tokens(batch), batch.input_ids.numel(), everywhere)


def shift_left(labels: Tensor, batch: PackedBatch) -> Tensor:
    """Labels one place earlier, where that is still in the same document; -100 elsewhere."""
    shares_document = torch.roll(batch.document_ids, -1, dims=1) == batch.document_ids
    shares_document[:, -1] = False
    return torch.roll(labels, -1, dims=1).masked_fill(~shares_document | batch.is_padding, IGNORED_LABEL)


def check_can_be_causal(encoder: nn.Module) -> None:
    if not isinstance(encoder, PackedEncoder):
        raise InputError(
            f"{type(encoder).__name__} always sees both sides of a token, so it cannot learn to continue text; use BERT"
            " or ModernBERT of ours, or train it by masking"
        )


def _count_slots(shape: torch.Size, causal_share: float, num_masked_slots: int) -> int:
    """Enough for next tokens of a share of the samples and masks of the others, up to six standard deviations.

    The samples, a row long at most, are drawn one by one: a causal one needs a slot for every token.
    """
    num_tokens, length = shape.numel(), shape[1]
    masked_share = num_masked_slots / num_tokens
    expected = num_tokens * (causal_share + (1 - causal_share) * masked_share)
    deviation = (1 - masked_share) * math.sqrt(num_tokens * length * causal_share * (1 - causal_share))
    return min(num_tokens, math.ceil(expected + 6 * deviation))


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
