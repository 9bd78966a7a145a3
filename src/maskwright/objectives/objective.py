"""The base class of what a trainer trains: a model with a loss over packed batches and its metrics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from torch import Tensor, nn

from maskwright.batch import PackedBatch, Questions
from maskwright.errors import InputError
from maskwright.masking.strategies import build_masker
from maskwright.masking.tokens import CorruptedBatch, Masker, TokenMasker
from maskwright.masking.weighted import AdaptiveMasker, FrequencyMasker, WeightedMasker
from maskwright.models.compilation import LayerCompiler
from maskwright.models.description import build_model_html
from maskwright.models.encoder import PackedEncoder
from maskwright.objectives import arguments
from maskwright.objectives.loss import LossSums
from maskwright.objectives.saving import SavedModel
from maskwright.text.tokenizer.tokenizer import Tokenizer

_KERAS_COMPILE = {"optimizer", "loss", "metrics", "loss_weights", "run_eagerly", "steps_per_execution", "jit_compile"}
_MASKER_OPTIONS = ("strategy", "random_token_ratio", "unchanged_ratio", "selection", "span_p", "span_max_words")


class Objective(SavedModel):
    """A loss in one or several parts.

    Each part is a sum over labels, divided by its own count over the whole batch, whatever the number of micro-batches
    and processes, and weighted. Counts are known before the model runs: `counts` of what `ask` returns.
    """

    mode: ClassVar[str]
    """Its name in configurations."""
    evaluates_causally = False
    """Whether evaluations predict next tokens instead of masked ones."""
    vocab_size: int
    mask_ratio: float | None = None
    """The share of tokens that is masked; None without masking."""
    part_weights: tuple[float, ...] = (1.0,)
    num_figures: ClassVar[int]
    """Sums beside losses and counts that the metrics are computed from."""
    varies_in_shape: ClassVar[bool] = False
    """Whether batches differ in shape, so that several CUDA graphs are needed and compiling rarely pays."""

    @abstractmethod
    def ask(
        self, batch: PackedBatch, seed: int, epoch: int, ratio: float | None = None, progress: float = 0.0
    ) -> Questions:
        """Inputs and labels for a batch: a function of (seed, epoch, sample, position), ratio and progress.

        `ratio` replaces the model's own `mask_ratio`.
        """

    @abstractmethod
    def ask_for_evaluation(self, batch: PackedBatch, seed: int, ratio: float) -> Questions:
        """Inputs and labels that are the same in every evaluation, whatever the run and its progress."""

    @abstractmethod
    def loss_sums(self, questions: Any) -> LossSums:
        """The parts of the loss, their counts and the figures, for what `ask` returned."""

    @abstractmethod
    def compute_metrics(self, sums: Sequence[float]) -> dict[str, float]:
        """Metrics from sums of losses, counts and figures in this order; `loss` comes first, NaN without a count."""

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Refuse data whose tokenizer does not fit the model."""
        arguments.check_tokenizer_size(tokenizer, self.vocab_size)

    def describe_purpose(self) -> dict[str, str]:
        """What a notebook shows of the model beside its size and shape."""
        masking = {} if self.mask_ratio is None else {"masked tokens": f"{self.mask_ratio:.0%}"}
        return {"objective": self.mode} | masking

    def _repr_html_(self) -> str:
        return build_model_html(self, self.encoder, self.describe_purpose())

    @property
    def is_recordable(self) -> bool:
        """Whether CUDA graphs are possible: static shapes, and no synchronisation with the host."""
        return False

    def compile_parts(self) -> None:
        """Compile the parts of the model that are worth it, for training."""
        for encoder in (self.encoder, *self.other_encoders()):
            if isinstance(encoder, PackedEncoder):
                encoder.layer_compiler = LayerCompiler()

    def cast_together(self) -> None:
        """Cast the weights of a layer by one kernel in training: fewer kernels, for CUDA graphs of small batches."""
        for encoder in (self.encoder, *self.other_encoders()):
            if isinstance(encoder, PackedEncoder):
                encoder.casts_together = True

    def follow(self, progress: float) -> None:
        """Called before each step with the progress of the run."""
        for encoder in (self.encoder, *self.other_encoders()):
            if isinstance(encoder, PackedEncoder):
                encoder.follow(progress)

    def begin_step(self) -> None:
        """Called before the gradients of a step are computed, and again where that is repeated."""

    def end_step(self, step: int, skip: Tensor, add_up: Callable[[Tensor], Tensor]) -> None:
        """Called after each step, by all processes, with 1 in `skip` if it changed nothing."""

    def collect_tables(self, add_up: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        """What questions depend on beside (seed, epoch, sample, position) and progress, for checkpoints."""
        return {}

    def load_tables(self, tables: Mapping[str, Tensor], is_main: bool) -> None:
        """Go on from what `collect_tables` returned."""

    def set_token_counts(self, counts: Tensor) -> None:
        """How often each id, (V,), occurs in the training text, for masking by frequency."""

    def other_encoders(self) -> list[nn.Module]:
        """Other encoders beside `encoder`, whose layers FSDP shards one by one."""
        return []

    def fit(self, *args: Any, **options: Any) -> NoReturn:
        """Keras' name; the error says what to call, as it does for `compile`, `save` and `summary`."""
        raise InputError(
            "a Trainer trains a model: Trainer(model, OptimizerConfig(learning_rate=5e-4)).fit(batches, epochs=5)"
        )

    def compile(self, *args: Any, **options: Any) -> None:
        """As `torch.nn.Module.compile`."""
        if not _KERAS_COMPILE.isdisjoint(options):
            raise InputError(
                "a model needs no compile(optimizer=...): give Trainer(model, OptimizerConfig(...)) the settings"
            )
        super().compile(*args, **options)

    def save(self, *args: Any, **options: Any) -> NoReturn:
        raise InputError(
            "a model is saved by model.save_pretrained(folder, tokenizer), its encoder by model.encoder.save_pretrained"
        )

    def summary(self, *args: Any, **options: Any) -> NoReturn:
        raise InputError("print(model) shows its layers, and maskwright models memory what it needs")

    @property
    def num_sums(self) -> int:
        return 2 * len(self.part_weights) + self.num_figures


class TokenObjective(Objective):
    """An objective whose labels are tokens that a masker chooses and replaces."""

    masker: Masker
    special_token_ids: tuple[int, ...]
    seed: int
    """The seed of masks outside of training."""

    def set_masking(self, given: Mapping[str, Any]) -> None:
        """Set the vocabulary, the mask ratio and the masker from a constructor's checked arguments, by name."""
        self.vocab_size = given["vocab_size"]
        self.special_token_ids = tuple(sorted({int(token_id) for token_id in given["special_token_ids"]}))
        self.mask_ratio = given["mask_ratio"]
        self.seed = given["seed"]
        options = {name: given[name] for name in _MASKER_OPTIONS}
        self.masker = build_masker(self.vocab_size, given["mask_token_id"], self.special_token_ids, **options)

    @abstractmethod
    def corrupt(
        self, batch: PackedBatch, seed: int, epoch: int, ratio: float | None = None, progress: float = 0.0
    ) -> CorruptedBatch:
        """The masked batch with its labels."""

    @abstractmethod
    def corrupt_for_evaluation(self, batch: PackedBatch, seed: int, ratio: float) -> CorruptedBatch:
        """The same masks in every evaluation."""

    def ask(
        self, batch: PackedBatch, seed: int, epoch: int, ratio: float | None = None, progress: float = 0.0
    ) -> CorruptedBatch:
        return self.corrupt(batch, seed, epoch, ratio, progress)

    def ask_for_evaluation(self, batch: PackedBatch, seed: int, ratio: float) -> CorruptedBatch:
        return self.corrupt_for_evaluation(batch, seed, ratio)

    @property
    def mask_ratio(self) -> float:
        return self._mask_ratio

    @mask_ratio.setter
    def mask_ratio(self, ratio: float) -> None:
        arguments.check_mask_ratio(ratio)
        self._mask_ratio = ratio

    @property
    def learning_masker(self) -> AdaptiveMasker | None:
        """The masker, if it follows the model's losses."""
        return self.masker if isinstance(self.masker, AdaptiveMasker) else None

    def begin_step(self) -> None:
        if self.learning_masker is not None:
            self.learning_masker.begin_step()

    def end_step(self, step: int, skip: Tensor, add_up: Callable[[Tensor], Tensor]) -> None:
        if self.learning_masker is not None:
            self.learning_masker.end_step(step, skip, add_up)

    def collect_tables(self, add_up: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        return self.masker.tables(add_up) if isinstance(self.masker, WeightedMasker) else {}

    def load_tables(self, tables: Mapping[str, Tensor], is_main: bool) -> None:
        if isinstance(self.masker, WeightedMasker):
            self.masker.load_tables(tables, is_main)

    def set_token_counts(self, counts: Tensor) -> None:
        if isinstance(self.masker, FrequencyMasker):
            self.masker.set_counts(counts)

    @property
    def mask_token_id(self) -> int:
        return self.masker.mask_token_id

    @property
    def token_masker(self) -> TokenMasker:
        """A masker of single tokens, whatever the strategy in training, so that models can be compared."""
        return self.masker.token_masker

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Refuse a tokenizer with other ids, or with special tokens that would be masked."""
        arguments.check_tokenizer(tokenizer, self.vocab_size, self.mask_token_id, self.special_token_ids)
