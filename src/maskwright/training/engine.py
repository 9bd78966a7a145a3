"""The engine of a trainer: a model on its devices with optimizer, average and loss scale, saved and loaded together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

from maskwright.errors import InputError
from maskwright.models.any_encoder import find_hidden_size, recompute_activations
from maskwright.models.files.model_folder import MODEL_FOLDER
from maskwright.objectives.objective import Objective
from maskwright.sections.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from maskwright.training.checkpoint_parts import PartContents, collect_parts
from maskwright.training.checkpoints import CheckpointContents, StoredRun, collect_contents, read_checkpoint
from maskwright.training.compute.compiling import should_compile, should_record, use_fp8_products
from maskwright.training.compute.device import choose_device
from maskwright.training.compute.parallel import place_model
from maskwright.training.compute.precision import LossScale, Precision, agree_on_precision, choose_precision
from maskwright.training.distributed.world import join_world
from maskwright.training.micro_batches import MicroBatches
from maskwright.training.optim.average import WeightAverage
from maskwright.training.optim.optimizers import build_optimizers
from maskwright.training.optim.schedules import compute_learning_rate, scale_learning_rate
from maskwright.training.state import History, TrainingState
from maskwright.training.step import TrainStep


class Engine:
    """Takes steps, saves and loads; epochs and data are the trainer's business."""

    def __init__(
        self,
        model: Objective,
        optimizer: OptimizerConfig,
        schedule: ScheduleConfig,
        training: TrainingConfig,
        seed: int,
    ) -> None:
        self.model = model
        self.optimizer_config, self.schedule_config, self.config = optimizer, schedule, training
        self.seed = seed
        self.device = choose_device(training.device)
        self.world = join_world(self.device.type == "cuda", training.dead_process_seconds)
        chosen = choose_precision(training.precision, self.device, find_hidden_size(model.encoder))
        self.precision = agree_on_precision(chosen, self.world)
        self.precision.apply()
        recompute_activations(model.encoder, training.activation_checkpointing)
        self.placed = place_model(
            model, self.precision, self.world, self.device, training.parallel, training.gradient_dtype
        )
        varies = model.varies_in_shape
        self.is_compiled = should_compile(training, self.device, self.world, varies_in_shape=varies)
        # Models that are compiled by default are recorded only if they are.
        self.is_recorded = (self.is_compiled or varies) and should_record(model, training, self.device, self.world)
        if self.is_compiled:
            model.compile_parts()
        if self.is_recorded and not self.is_compiled:
            model.cast_together()
        self._round_products()
        self.optimizers = build_optimizers(self.placed.trained, optimizer, self.world)
        decay = training.average_decay
        self.average = None if decay is None else WeightAverage(self.placed.trained, decay)
        self.loss_scale: LossScale | None = None
        self._train_step: TrainStep | None = None

    def begin(self, state: TrainingState, warn: Callable[[str], None]) -> TrainStep:
        """Prepare for training from the given state."""
        if self.precision.needs_loss_scale:
            self.loss_scale = LossScale(self.device, state.loss_scale)
        self.placed.train()
        if self._train_step is None:
            self._train_step = self._build_train_step(warn)
        self._train_step.loss_scale = self.loss_scale
        return self._train_step

    def _build_train_step(self, warn: Callable[[str], None]) -> TrainStep:
        """Built once for all epochs, so that the micro-batch size found and captured CUDA graphs are kept."""
        return TrainStep(
            self.placed,
            self.optimizers,
            self.world,
            self.seed,
            self.optimizer_config.gradient_clipping_by_norm,
            MicroBatches(self.config.micro_batch_tokens, self.world.size == 1, warn),
            average=self.average,
            is_graphed=self.is_recorded,
        )

    def settle_precision(self, state: TrainingState) -> None:
        """A resumed run keeps its precision, even if `auto` would now choose another."""
        begun_in = state.precision
        if begun_in is not None and begun_in != self.precision.name:
            if self.config.precision != "auto":
                raise InputError(f"the run was computed in {begun_in}; go on with training.precision={begun_in}")
            self.precision = Precision(begun_in, "the run was begun in it")
            self.precision.apply()
            self.placed.use(self.precision)
            self._round_products()
        state.precision = self.precision.name

    def _round_products(self) -> None:
        if self.precision.name == "fp8":
            use_fp8_products(self.model, self.device, self.is_compiled)

    def set_learning_rate(self, step: int, progress: float) -> float:
        peak = self.optimizer_config.learning_rate
        rate = compute_learning_rate(self.schedule_config, peak, step, progress)
        rate = scale_learning_rate(self.optimizer_config.scale_with_processes, rate, self.world.size)
        self.optimizers.set_learning_rate(rate, peak)
        return rate

    def note_loss_scale(self, state: TrainingState) -> None:
        """Store the loss scale in the state, for the next epoch or a resumed run."""
        if self.loss_scale is not None:
            state.loss_scale = self.loss_scale.fetch()

    def collect_contents(self, state: TrainingState, history: History, tokenizer: Any) -> CheckpointContents | None:
        """A copy of everything, in the main process; all processes must call this together."""
        self.note_loss_scale(state)
        self.placed.gather()
        optimizer_state = self.optimizers.state_tensors()
        average = None if self.average is None else self.average.tensors()
        tables = self.model.collect_tables(self.world.sum)
        if not self.world.is_main:
            return None
        return collect_contents(self.model, optimizer_state, average, state, history, tokenizer, tables)

    def collect_parts(self, state: TrainingState, history: History, tokenizer: Any) -> PartContents:
        """A copy of what this process has of everything, where processes write what they have."""
        self.note_loss_scale(state)
        average = None if self.average is None else self.average.own_tensors()
        weights = self.placed.trained.state_dict()
        optimizer_state = self.optimizers.own_state_tensors()
        tables = self.model.collect_tables(self.world.sum)
        return collect_parts(
            self.model, self.world, weights, optimizer_state, average, state, history, tokenizer, tables
        )

    def load(self, checkpoint: Path, optimizer: Literal["fresh", "kept"]) -> StoredRun:
        """Load a checkpoint's weights, and its optimizer state if that is kept."""
        stored = read_checkpoint(checkpoint)
        self.model.load_weights(checkpoint / MODEL_FOLDER)
        self.placed.scatter()
        if optimizer == "kept":
            self.optimizers.load_state_tensors(stored.optimizer)
            if stored.tables:
                self.model.load_tables(stored.tables, self.world.is_main)
        if self.average is not None:
            if stored.average is None:
                self.average.restart()
            else:
                self.average.load(stored.average)
        return stored

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Inside the block, the model has the averaged weights, if there is an average."""
        with nullcontext() if self.average is None else self.average.in_place():
            self.placed.gather()
            yield
        self.placed.gather()

    def finish(self) -> None:
        """Leave the model with its final weights (averaged, if there is an average), in evaluation mode."""
        if self.average is not None:
            self.average.adopt()
        self.placed.gather()
        self.model.eval()
