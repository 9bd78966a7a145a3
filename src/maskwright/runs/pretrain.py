"""A whole pre-training run: from a configuration to a trained, evaluated and saved model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from maskwright.batch import PackedBatch
from maskwright.config import Config, open_config
from maskwright.data.loader import PackedLoader
from maskwright.errors import InputError
from maskwright.inference.visualize import PredictionView, build_prediction_view
from maskwright.objectives.distillation import Student
from maskwright.objectives.masked_lm import DiffusionLanguageModel, MaskedLanguageModel
from maskwright.objectives.objective import Objective
from maskwright.runs.callbacks import DivergenceWatch, MetricsLog, PeriodicCheckpoints, RollBack
from maskwright.runs.duration import DurationNotice, suggest_shorter_run
from maskwright.runs.folder import RunFolder, find_run, own_run
from maskwright.runs.forgetting import ForgettingGuard, load_general_text
from maskwright.runs.inputs import TrainingData, count_tokens, load_data
from maskwright.runs.insight import look_into, read_parts_of_speech, write_insight
from maskwright.runs.interruption import GracefulStop, LastWrites, ending_in_order
from maskwright.runs.mixing import describe_parts, measure_unseen, mix_sources, read_unseen, split_held_out
from maskwright.runs.model import TrainedModel, build_model, describe_start, fit_row_length
from maskwright.runs.next_commands import suggest_commands
from maskwright.runs.objective import describe_objective, find_mask_ratio
from maskwright.runs.pause import PauseAt
from maskwright.runs.predictions import PredictionLog
from maskwright.runs.report import build_run_cell, format_figures, write_report
from maskwright.runs.resume import find_checkpoint, resume
from maskwright.runs.run_store import RunStore
from maskwright.runs.teacher_figures import measure_teacher
from maskwright.runs.upload import open_store, uploading
from maskwright.sections.data import BUILTIN_CORPUS
from maskwright.tasks.ner.examples import RawSentence
from maskwright.terminal import CleanConsole, say, warn
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.callbacks import EarlyStopping
from maskwright.training.checkpoints import Retention, clear_leftovers
from maskwright.training.compute.device import choose_device
from maskwright.training.compute.precision import check_precision
from maskwright.training.distributed.world import World, join_world, leave_world
from maskwright.training.held_out import EVALUATION_RATIO, choose_token_loss, evaluate_unigram
from maskwright.training.loop import Callback
from maskwright.training.progress import ProgressDisplay
from maskwright.training.trackers import build_trackers, check_trackers
from maskwright.training.trainer import Trainer

_NUM_SHOWN = 4
_SHOWN_LENGTH = 24
"""Held-out sentences in the report: how many, and of about how many tokens."""
_TIMED_LENGTH = 128
"""Tokens of a row that are timed before a run: a whole one of thousands may take a minute on a CPU."""


@dataclass(frozen=True)
class Finished:
    """The files of a finished run."""

    folder: RunFolder
    figures: dict[str, Any]

    @property
    def trouble(self) -> str | None:
        """Why the model is unusable, and what to do; None if it is fine."""
        return self.figures.get("trouble")

    def _repr_html_(self) -> str:
        return build_run_cell(self.folder, self.figures, format_figures(self.figures))


@dataclass(frozen=True)
class FinishedRun(Finished):
    predictions: PredictionView | None
    """Held-out sentences with the model's predictions; None if it predicts no tokens."""
    trainer: Trainer
    next_commands: list[str]
    """Commands to try with the model."""

    @property
    def model(self) -> Objective:
        """The model, with the weights that were evaluated and saved."""
        return self.trainer.model


def pretrain(
    config: Config | str | Path,
    overwrite: bool = False,
    console: Console | None = None,
    *,
    pause_at: float | None = None,
) -> FinishedRun:
    """Run a configuration, or resume it where it stopped; input is checked before anything is written.

    A string is a YAML file or a recipe. Started by `torchrun`, all processes train together and the main one writes.
    With `pause_at`, a share of the run's budget, `RunPaused` is raised there; the next call goes on.
    """
    config = open_config(config)
    check_trackers(_choose_trackers(config))
    device = choose_device(config.training.device)
    check_precision(config.training.precision, device)
    with ending_in_order([Path(config.run.out) / config.run.name]):
        return _run(config, overwrite, device, console or CleanConsole(), pause_at)


def _run(
    config: Config, overwrite: bool, device: torch.device, console: Console, pause_at: float | None
) -> FinishedRun:
    world = join_world(device.type == "cuda", config.training.dead_process_seconds)
    console.quiet |= not world.is_main
    tell = partial(say, console)
    with world.naming_the_departed(), ExitStack() as ownership:
        folder = Path(config.run.out) / config.run.name
        world.main_first(lambda: ownership.enter_context(own_run(folder, "run.name", tell, world.is_main)))
        config = world.main_first(lambda: fit_row_length(config, tell))
        store = open_store(config, overwrite, world, tell)
        start = world.main_first(lambda: _begin(config, overwrite, world, console, store))
        with uploading(store, start.run, config, world, tell):
            finished = _train(config, start, world, console, pause_at)
        world.sum_facts([0.0])  # who left while another still writes would be taken for dead
    leave_world()
    return finished


@dataclass(frozen=True)
class _Start:
    """The state at the start of a run."""

    run: RunFolder
    data: TrainingData
    model: TrainedModel
    unigram_loss: float
    token_counts: Tensor
    """Of the training text, (V,)."""
    general: PackedLoader | None
    """General text, if forgetting is measured."""
    unseen: Mapping[str, PackedLoader]
    """Text that nothing is learnt from, by name."""
    tagged: list[RawSentence]
    """Sentences with parts of speech, if `data.parts_of_speech` names some."""


def _begin(config: Config, overwrite: bool, world: World, console: Console, store: RunStore | None) -> _Start:
    overwrite = overwrite and world.is_main
    _check_settings(config)
    run = find_run(config, overwrite)
    tagged = read_parts_of_speech(config.data.parts_of_speech)

    data = load_data(config, None if overwrite else run.tokenizer, partial(warn, console))
    mix_sources(config, data.train)
    split_held_out(config, data.validation)
    unseen = read_unseen(config, data.tokenizer, partial(warn, console))
    general = load_general_text(config, data.tokenizer, partial(warn, console))
    model = build_model(config, data.tokenizer)
    token_counts = torch.from_numpy(count_tokens(data.train, model.vocab_size))
    model.set_token_counts(token_counts)
    if model.evaluates_causally:  # the end of each segment is a next token too
        token_counts[data.tokenizer.sep_token_id] += data.train.shards.num_documents * (data.train.num_specials - 1)
    unigram_loss = evaluate_unigram(model, data.validation.epoch(0), token_counts)
    if world.is_main:
        run.begin(config, data.tokenizer, data.fingerprint, overwrite)
        clear_leftovers(run.checkpoints)
        if store is not None and overwrite:
            store.clear()
    return _Start(run, data, model, unigram_loss, token_counts, general, unseen, tagged)


def _check_settings(config: Config) -> None:
    """Check settings that would otherwise fail only in training."""
    training = config.training
    if training.epochs <= training.initial_epoch:
        raise InputError(
            f"training.epochs is {training.epochs}, training.initial_epoch {training.initial_epoch}; epochs must be the"
            " larger"
        )
    if training.keep_optimizer:
        find_checkpoint(config.model.from_)


def _train(config: Config, start: _Start, world: World, console: Console, pause_at: float | None) -> FinishedRun:
    run, tokenizer = start.run, start.data.tokenizer
    train = start.data.train.for_rank(world.rank, world.size)
    validation = start.data.validation.for_rank(world.rank, world.size)
    trainer = build_trainer(config, start.model)
    resume(config, trainer, run, console)
    _introduce(config, trainer, run, train, validation, console)
    guard = None
    if start.general is not None:
        guard = ForgettingGuard(run, start.general, validation, config.forgetting.max_increase, world)
    watch = DivergenceWatch(run, start.unigram_loss)
    others: list[Callback] = [watch] if guard is None else [watch, guard]
    shown = None
    if isinstance(start.model, MaskedLanguageModel):
        shown = validation.build_batch([[sample] for sample in _choose_samples(validation)])
        if world.size == 1:  # the weights of several may lie in parts
            others.append(PredictionLog(run, shown, tokenizer))
    if pause_at is not None:
        retention = Retention(config.training.keep_checkpoints, config.training.keep_every_steps)
        others.append(PauseAt(pause_at, run, tokenizer, validation, retention))
    callbacks = build_callbacks(config, run, tokenizer, world, console, others)
    with watch.naming_good_checkpoint():
        trainer.fit(train, validation, callbacks=[_build_notice(config, train, console), *callbacks])

    model, last = start.model, LastWrites(run, trainer, config.training, partial(warn, console))
    if world.is_main:
        last.keep(lambda: model.save_pretrained(run.model, tokenizer))
    figures = _evaluate(config, trainer, train, validation, start.unigram_loss)
    if config.training.final_evaluation:
        figures |= measure_unseen(trainer, start.unseen, start.token_counts)
    figures |= watch.judge(choose_token_loss(figures) if "loss" in figures else None)
    if guard is not None:
        figures |= guard.compute_figures()
    if isinstance(model, Student) and config.training.final_evaluation:
        figures |= measure_teacher(config, model, trainer, tokenizer, validation)
    predictions = None
    if shown is not None:
        assert isinstance(model, MaskedLanguageModel)
        predictions = build_prediction_view(model, shown, tokenizer, len(shown.input_ids), mask_ratio=EVALUATION_RATIO)
    insight = None
    if isinstance(model, MaskedLanguageModel) and world.size == 1 and config.training.final_evaluation:
        insight = look_into(model, validation.epoch(0), start.token_counts, tokenizer, start.tagged)
    if world.is_main:
        if insight is not None:
            last.write(lambda: write_insight(run, insight), 0)
        for note in last.write(lambda: write_report(run, config, figures, predictions, insight), 0):
            say(console, f"note: {note}", "yellow")
        last.write(lambda: run.write_final(figures), 0)
    is_builtin = config.data.train == BUILTIN_CORPUS
    commands = suggest_commands(model, tokenizer, run.path, predictions, is_builtin)
    return FinishedRun(run, figures, predictions, trainer, commands)


def _build_notice(config: Config, train: PackedLoader, console: Console) -> DurationNotice:
    def build_rows(num_rows: int) -> PackedBatch:
        return train.first_rows(num_rows).map_fields(lambda field: field[:, :_TIMED_LENGTH])

    shorter = suggest_shorter_run(config)
    return DurationNotice(build_rows, train.rows_per_batch, train.row_length, shorter, partial(say, console))


def _choose_samples(loader: PackedLoader) -> list[int]:
    """Samples of a length that reads well, from all over the held-out text."""
    lengths = loader.samples.lengths
    nearest = np.argsort(np.abs(lengths - _SHOWN_LENGTH), kind="stable")[: 10 * _NUM_SHOWN]
    return sorted(nearest.tolist())[:: max(1, len(nearest) // _NUM_SHOWN)][:_NUM_SHOWN]


def build_trainer(config: Config, model: TrainedModel) -> Trainer:
    return Trainer(
        model,
        config.optimizer,
        config.schedule,
        config.training,
        mask_ratio=None if isinstance(model, DiffusionLanguageModel) else partial(find_mask_ratio, config),
        seed=config.run.seed,
    )


def _choose_trackers(config: Config) -> list[str]:
    training = config.training
    return [*training.log_to, *(["tensorboard"] if training.tensorboard else [])]


def build_callbacks(
    config: Config,
    run: RunFolder,
    tokenizer: Tokenizer,
    world: World,
    console: Console,
    others: Sequence[Callback] = (),
    least_s: float = 0.0,
) -> list[Callback]:
    """`least_s` is the time of training below which only signals and `checkpoint_every_steps` write checkpoints."""
    training = config.training
    retention = Retention(training.keep_checkpoints, training.keep_every_steps)
    log = MetricsLog(run)
    callbacks: list[Callback] = [ProgressDisplay(console), log]
    if training.rollback_deviations is not None:
        callbacks.append(RollBack(run, training.rollback_deviations, log))
    if training.early_stopping_patience is not None:
        best = run.checkpoints / "best"
        callbacks.append(
            EarlyStopping(patience=training.early_stopping_patience, restore_best_weights=True, best_folder=best)
        )
    if world.is_main:
        values = config.model_dump(by_alias=True)
        callbacks += build_trackers(_choose_trackers(config), name=config.run.name, folder=run.path, parameters=values)
    callbacks += others
    # Last, so that a checkpoint follows what the others did at its step.
    callbacks.append(
        PeriodicCheckpoints(run, tokenizer, training.checkpoint_every_steps, retention, training.keep_best, least_s)
    )
    callbacks.append(GracefulStop(run, tokenizer, retention))
    return callbacks


def _introduce(
    config: Config,
    trainer: Trainer,
    run: RunFolder,
    train: PackedLoader,
    validation: PackedLoader,
    console: Console,
) -> None:
    model, precision, world = trainer.model, trainer.engine.precision, trainer.world
    num_parameters = sum(param.numel() for param in model.parameters())
    lines = [
        f"{run.path}  {describe_start(config)}  {num_parameters / 1e6:.1f}M parameters"
        f"  vocabulary {model.vocab_size:,}",
        f"train {train.shards.num_tokens:,} tokens in {train.shards.num_documents:,} documents,"
        f" rows {train.utilisation():.1%} full; held out {validation.shards.num_tokens:,} tokens",
        f"objective {describe_objective(config)}",
        f"{trainer.engine.device}, {precision.name} ({precision.reason})",
    ]
    num_gpus = torch.cuda.device_count()
    if world.size > 1:
        lines.append(f"{world.size} processes, {config.training.parallel}")
    elif num_gpus > 1 and config.training.device == "auto":
        lines.append(
            f"one of {num_gpus} GPUs is used; for all of them: torchrun --nproc-per-node {num_gpus} -m maskwright"
            " train ..."
        )
    for line in lines:
        say(console, line)


def _evaluate(
    config: Config, trainer: Trainer, train: PackedLoader, validation: PackedLoader, unigram_loss: float
) -> dict[str, Any]:
    """The figures of final.json."""
    state = trainer.state
    figures: dict[str, Any] = {}
    if config.training.final_evaluation:
        evaluation = trainer.measure(validation)
        figures = {
            **trainer.model.compute_metrics(evaluation.sums),
            "accuracy": evaluation.accuracy,
            "perplexity": evaluation.perplexity,
            "unigram_loss": unigram_loss,
            "num_masked": evaluation.num_masked,
            "objective": trainer.model.mode,
            "asked": "next" if trainer.model.evaluates_causally else "masked",
            **describe_parts(evaluation),
        }
    return figures | {
        "train_documents": train.shards.num_documents,
        "train_tokens": train.shards.num_tokens,
        "train_loss": trainer.history.history["loss"][-1],
        "tokens": state.num_tokens,
        "steps": state.step,
        "seconds": state.elapsed_s,
        "first_step_s": trainer.first_step_s,
        "parameters": sum(param.numel() for param in trainer.model.parameters()),
    }
