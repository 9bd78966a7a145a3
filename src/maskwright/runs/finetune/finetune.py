"""A whole fine-tuning run: from labelled files to a trained, evaluated and saved model, for one seed or several."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from maskwright.config import Config, load_config
from maskwright.errors import InputError
from maskwright.models.any_encoder import find_hidden_size
from maskwright.models.files.model_folder import SUMMARY_FILE
from maskwright.runs.callbacks import DivergenceWatch
from maskwright.runs.duration import DurationNotice
from maskwright.runs.finetune.inputs import GivenInputs, TaskInputs, load_task_inputs
from maskwright.runs.finetune.report import draw_task_pictures, format_score, write_task_report
from maskwright.runs.finetune.settings import (
    build_run_config,
    check_seeds_folder,
    find_best,
    list_seed_folders,
    summarise,
    write_summary,
)
from maskwright.runs.folder import RunFolder, find_run, own_run
from maskwright.runs.interruption import LastWrites, ending_in_order
from maskwright.runs.next_commands import suggest_prediction
from maskwright.runs.pretrain import build_callbacks
from maskwright.runs.report import build_run_cell
from maskwright.runs.resume import resume_newest
from maskwright.suggestions import OUT, OVERWRITE
from maskwright.tasks.config import TaskConfig, load_task_config
from maskwright.tasks.loader import TaskBatch, TaskLoader
from maskwright.tasks.model import Answers, TaskModel, answer_examples
from maskwright.tasks.new_model import choose_learning_rate, measure_weights
from maskwright.tasks.retrieval.settings import DENSE
from maskwright.terminal import CleanConsole, say
from maskwright.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from maskwright.training.callbacks import EarlyStopping
from maskwright.training.checkpoints import clear_leftovers, remove_checkpoints
from maskwright.training.compute.device import choose_device
from maskwright.training.compute.precision import check_precision
from maskwright.training.distributed.world import World, join_world, leave_world
from maskwright.training.loop import Callback, Metrics
from maskwright.training.progress import ProgressDisplay
from maskwright.training.trackers import check_trackers
from maskwright.training.trainer import Trainer

TASK_FILE = "task.yaml"
ADAPTER_FOLDER = "adapter"
_NEED_FLOAT64 = ("similarity", "retrieval")
_EVALUATED_AT_ONCE = 8
"""Batches that a GPU evaluates as one: it keeps no activations, and small batches leave it waiting."""
SHORT_TRAINING_S = 60.0
"""After a shorter training no checkpoint, of thrice the model's size, is written: the model itself follows at once."""


@dataclass(frozen=True)
class FinishedTask:
    folder: Path
    metric: str
    runs: list[RunFolder]
    figures: list[dict[str, Any]]
    """The figures of every seed."""
    next_command: str
    """Commands to try with the model."""

    @property
    def scores(self) -> dict[str, float | None]:
        """Scores on the held-out examples; the mean over several seeds."""
        return {name: values["mean"] for name, values in summarise(self.figures).items()}

    @property
    def best_run(self) -> RunFolder:
        """Of several seeds the one with the highest metric."""
        return self.runs[find_best(self.figures)]

    @property
    def trouble(self) -> str | None:
        """Why models of some seeds are unusable, and what to do; None if all are fine."""
        return "; ".join(one["trouble"] for one in self.figures if "trouble" in one) or None

    def _repr_html_(self) -> str:
        scores = {name: format_score(value) for name, value in self.scores.items()}
        return build_run_cell(self.runs[0], {}, {"seeds": str(len(self.runs)), **scores})

    @cached_property
    def model(self) -> TaskModel:
        """The saved model of the best seed."""
        return TaskModel.from_pretrained(self.best_run.model)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.best_run.model)


@dataclass(frozen=True)
class _Session:
    """What the runs of all seeds share."""

    inputs: TaskInputs
    world: World
    console: Console
    overwrite: bool


def finetune(
    config: TaskConfig,
    out: Path,
    *,
    num_seeds: int = 1,
    settings: Sequence[str] = (),
    overwrite: bool = False,
    console: Console | None = None,
    given: GivenInputs | None = None,
) -> FinishedTask:
    """Train, or resume where the same call stopped; input is checked before anything is written.

    The run of a single seed is `out` itself; several seeds have a folder each in it, and seeds.json has mean and
    deviation. `given` is what the configuration only names, as it is in memory.
    """
    if num_seeds < 1:
        raise InputError(f"the number of seeds is {num_seeds}; it must be at least 1")
    folders = list_seed_folders(out, num_seeds)
    configs = [build_run_config(config, folder, seed, settings) for seed, folder in enumerate(folders)]
    training = configs[0].training
    check_trackers([*training.log_to, *(["tensorboard"] if training.tensorboard else [])])
    device = choose_device(training.device)
    if device.type == "mps" and config.task in _NEED_FLOAT64:
        device, training = torch.device("cpu"), training.model_copy(update={"device": "cpu"})
        configs = [one.model_copy(update={"training": training}) for one in configs]
        say(console or CleanConsole(), f"{config.task} tells texts apart in float64, which Apple GPUs lack: on the CPU")
    check_precision(training.precision, device)
    with ending_in_order(folders):
        world = join_world(device.type == "cuda", training.dead_process_seconds)
        console = console or CleanConsole()
        console.quiet |= not world.is_main
        with world.naming_the_departed(), ExitStack() as ownership:
            world.main_first(lambda: ownership.enter_context(own_run(out, OUT, partial(say, console), world.is_main)))
            inputs = world.main_first(lambda: _prepare(config, out, folders, overwrite, console, given, device))
            configs = _settle_learning_rate(configs, inputs, console)
            session = _Session(inputs, world, console, overwrite)
            figures = [_run_seed(one, session) for one in configs]
            if num_seeds > 1 and world.is_main:
                write_summary(out, figures)
            world.sum_facts([0.0])  # who left while another still writes would be taken for dead
        leave_world()
    command = suggest_prediction(folders[0], inputs.held_out, gives_vectors=config.kind in (None, DENSE))
    return FinishedTask(out, inputs.metric, [RunFolder(folder) for folder in folders], figures, command)


def _prepare(
    config: TaskConfig,
    out: Path,
    folders: Sequence[Path],
    overwrite: bool,
    console: Console,
    given: GivenInputs | None,
    device: torch.device,
) -> TaskInputs:
    """All checks before the first run begins."""
    if len(folders) > 1:
        check_seeds_folder(out)
    if not overwrite:
        is_summarised = len(folders) == 1 or (out / SUMMARY_FILE).is_file()
        if is_summarised and all(RunFolder(folder).is_finished for folder in folders):
            raise InputError(f"{out} holds a finished run; choose another {OUT}, or add {OVERWRITE} to replace it")
        for folder in folders:
            _check_same_task(folder, config)
    return load_task_inputs(config, lambda text: say(console, text), given, device)


def _settle_learning_rate(configs: list[Config], inputs: TaskInputs, console: Console) -> list[Config]:
    if inputs.config.learning_rate is not None:
        return configs
    size, width = measure_weights(inputs.encoder), find_hidden_size(inputs.encoder)
    rate = choose_learning_rate(width, size, inputs.config.lora is not None)
    say(console, f"learning rate: {rate:g}, for weights of root mean square {size:.3f} and a width of {width}")
    optimizer = configs[0].optimizer.model_copy(update={"learning_rate": rate})
    return [one.model_copy(update={"optimizer": optimizer}) for one in configs]


def _check_same_task(folder: Path, config: TaskConfig) -> None:
    """An unfinished run is resumed only with the task it was started with."""
    file = folder / TASK_FILE
    if not file.is_file():
        return
    started, asked = load_task_config(file).model_dump(), config.model_dump()
    for key, value in asked.items():
        if started[key] != value:
            raise InputError(
                f"{folder} is a run with {key}={started[key]}, this command has {key}={value}; repeat its settings,"
                f" choose another {OUT}, or add {OVERWRITE}"
            )


def _run_seed(config: Config, session: _Session) -> dict[str, Any]:
    """The figures of one seed: of a run that is finished already, or trained now."""
    inputs, world, seed = session.inputs, session.world, config.run.seed
    run = RunFolder(Path(config.run.out) / config.run.name)
    if run.is_finished and not session.overwrite:
        _check_alike(run, config, inputs)
        return run.read_final(inputs.metric)

    def begin() -> TaskModel:
        find_run(config, session.overwrite)
        model = inputs.build_model(seed, partial(say, session.console))
        if world.is_main:
            run.begin(config, inputs.tokenizer, inputs.fingerprint, session.overwrite)
            inputs.config.save(run.path / TASK_FILE)
            clear_leftovers(run.checkpoints)
        return model

    model = world.main_first(begin)
    trainer = Trainer(model, config.optimizer, config.schedule, config.training, seed=seed)
    resume_newest(trainer, run, session.console)
    train = inputs.train.with_seed(seed).for_rank(world.rank, world.size)
    validation = inputs.validation.for_rank(world.rank, world.size)
    if trainer.engine.device.type == "cuda" and not validation.needs_whole_batches:
        validation = validation.with_batch_size(_EVALUATED_AT_ONCE * validation.batch_size)
    _introduce(trainer, run, session)
    notice = _build_notice(train, session.console)
    watch = DivergenceWatch(run)
    with watch.naming_good_checkpoint():
        trainer.fit(train, validation, callbacks=[notice, *_build_callbacks(config, run, session, watch)])
    last = LastWrites(run, trainer, config.training, lambda text: say(session.console, f"warning: {text}"))
    adapter = None if inputs.config.lora is None else model.merge_adapters()
    if world.is_main:
        last.keep(lambda: model.save_pretrained(run.model, inputs.tokenizer))
        if adapter is not None:
            last.write(lambda: adapter.write(run.path / ADAPTER_FOLDER, inputs.config.model), adapter.num_bytes)
    answers = answer_examples(model, validation, world, trainer.engine.device, trainer.warn)
    figures = _build_figures(model, answers, trainer, inputs)
    figures |= watch.judge(figures.get("loss"))
    if world.is_main:
        draw = partial(draw_task_pictures, model.task, answers.values, validation.targets, figures["classes"])
        for note in last.write(lambda: write_task_report(run, inputs.config, figures, draw), 0):
            say(session.console, f"note: {note}")
        last.write(lambda: run.write_final(figures), 0)
        remove_checkpoints(run.checkpoints, config.training.keep_every_steps)
    return figures


def _check_alike(run: RunFolder, config: Config, inputs: TaskInputs) -> None:
    """Refuse a finished seed that was trained with other settings, as seeds are compared with each other."""
    started = load_config(run.config_file)
    if (started.optimizer, started.schedule) != (config.optimizer, config.schedule):
        raise InputError(
            f"{run.path} was trained with other optimizer or schedule settings; repeat them, or add {OVERWRITE}"
        )
    if run.read_fingerprint() != inputs.fingerprint:
        raise InputError(
            f"{run.path} was trained on other examples; give those, choose another {OUT}, or add {OVERWRITE}"
        )


class TaskProgress(ProgressDisplay):
    """Shows the task's metric on the examples just seen beside the loss."""

    def __init__(self, console: Console, metric: str) -> None:
        super().__init__(console)
        self.metric = metric

    def format_score(self, metrics: Metrics) -> str:
        # A correlation needs labels, which training examples may lack.
        score = metrics[self.metric]
        return "" if math.isnan(score) else f"  {self.metric} {score:.3f}"


def _build_callbacks(config: Config, run: RunFolder, session: _Session, watch: DivergenceWatch) -> list[Callback]:
    """Those of every run, with the task's metric in the progress and in early stopping."""
    inputs, others = session.inputs, list[Callback]([watch])
    if inputs.config.patience is not None:
        others.append(
            EarlyStopping(
                f"val_{inputs.metric}",
                inputs.config.patience,
                mode="max",
                restore_best_weights=True,
                best_folder=run.checkpoints / "best",
            )
        )
    callbacks = build_callbacks(
        config, run, inputs.tokenizer, session.world, session.console, others, least_s=SHORT_TRAINING_S
    )
    kept = [callback for callback in callbacks if not isinstance(callback, ProgressDisplay)]
    return [TaskProgress(session.console, inputs.metric), *kept]


def _build_notice(train: TaskLoader, console: Console) -> DurationNotice:
    num_examples = min(train.batch_size, train.num_examples)

    def build_rows(num_rows: int) -> TaskBatch:
        return train.build_batch(np.arange(min(num_rows, num_examples)))

    places = build_rows(num_examples).input_ids.numel()
    shorter = "shorter: fewer --epochs, a smaller --model, a lower --max-length or training.max_seconds=3600"
    return DurationNotice(build_rows, num_examples, places / num_examples, shorter, lambda text: say(console, text))


def _introduce(trainer: Trainer, run: RunFolder, session: _Session) -> None:
    inputs, precision = session.inputs, trainer.engine.precision
    params = list(trainer.model.parameters())
    num_trained = sum(param.numel() for param in params if param.requires_grad)
    say(
        session.console,
        f"{run.path}  {inputs.config.task} with {inputs.config.model}"
        f"  {sum(param.numel() for param in params) / 1e6:.1f}M parameters, {num_trained / 1e6:.1f}M trained"
        f"  {trainer.engine.device}, {precision.name} ({precision.reason})",
    )


def _build_figures(model: TaskModel, answers: Answers, trainer: Trainer, inputs: TaskInputs) -> dict[str, Any]:
    """The figures of final.json."""
    state, loader = trainer.state, inputs.validation
    task = copy.deepcopy(model.task).cpu()  # where the answers are
    whole = task.score_answers(answers.values, loader.targets, loader.features.examples)
    scores = {**task.compute_metrics(answers.sums), **whole}
    figures: dict[str, Any] = {
        "task": inputs.config.task,
        "metric": inputs.metric,
        # JSON has no NaN, which the correlation with a constant is.
        **{name: value if math.isfinite(value) else None for name, value in scores.items()},
        "classes": task.score_classes(answers.sums),
        "examples": loader.num_examples,
        "train_examples": inputs.train.num_examples,
        "train_loss": trainer.history.history["loss"][-1],
        "epochs": len(trainer.history.history["loss"]),
        "tokens": state.num_tokens,
        "steps": state.step,
        "seconds": state.elapsed_s,
        "parameters": sum(param.numel() for param in model.parameters()),
    }
    return figures
