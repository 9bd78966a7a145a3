"""A whole pre-training run: from a configuration to a trained, evaluated and saved model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console

from maskwright.config import Config
from maskwright.data.loader import PackedLoader
from maskwright.inference.visualize import PredictionView, build_prediction_view
from maskwright.masking.schedule import compute_mask_ratio
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.runs.callbacks import MetricsLog, PeriodicCheckpoints
from maskwright.runs.folder import RunFolder, find_run
from maskwright.runs.inputs import count_tokens, load_data
from maskwright.runs.model import build_model
from maskwright.runs.report import write_report
from maskwright.text.tokenizer import Tokenizer
from maskwright.training.callbacks import Callback, EarlyStopping, TensorBoard
from maskwright.training.checkpoints import find_resumable
from maskwright.training.evaluate import EVALUATION_RATIO, evaluate, evaluate_unigram
from maskwright.training.progress import ProgressDisplay
from maskwright.training.trainer import Trainer

_NUM_SHOWN = 4
_SHOWN_LENGTH = 24
"""Held-out sentences in the report: how many, and of about how many tokens."""


@dataclass(frozen=True)
class FinishedRun:
    folder: RunFolder
    figures: dict[str, Any]
    predictions: PredictionView


def pretrain(config: Config, overwrite: bool = False, console: Console | None = None) -> FinishedRun:
    """Run a configuration, or go on with it where it stopped; wrong input is found before anything is written."""
    console = console or Console()
    run = find_run(config, overwrite)
    data = load_data(config, None if overwrite else run.tokenizer, lambda text: _say(console, f"warning: {text}"))
    tokenizer, train, validation = data.tokenizer, data.train, data.validation
    model = build_model(config, tokenizer)
    token_counts = torch.from_numpy(count_tokens(train, model.vocab_size))
    unigram_loss = evaluate_unigram(model.masker, validation.epoch(0), token_counts)
    trainer = build_trainer(config, model)
    run.begin(config, tokenizer, data.fingerprint, overwrite)
    _resume(trainer, run, console)
    _introduce(config, run, model, train, validation, console)
    trainer.fit(train, validation, callbacks=build_callbacks(config, run, tokenizer, console))

    figures = _evaluate(config, trainer, validation, unigram_loss)
    model.save_pretrained(run.model, tokenizer)
    shown = validation.build_batch([[sample] for sample in _choose_samples(validation)])
    predictions = build_prediction_view(model, shown, tokenizer, len(shown.input_ids), mask_ratio=EVALUATION_RATIO)
    for note in write_report(run, config, figures, predictions):
        _say(console, f"note: {note}")
    run.write_final(figures)
    return FinishedRun(run, figures, predictions)


def _choose_samples(loader: PackedLoader) -> list[int]:
    """Samples of a length that reads well, from all over the held-out text."""
    lengths = loader.samples.lengths
    nearest = np.argsort(np.abs(lengths - _SHOWN_LENGTH), kind="stable")[: 10 * _NUM_SHOWN]
    return sorted(nearest.tolist())[:: max(1, len(nearest) // _NUM_SHOWN)][:_NUM_SHOWN]


def _say(console: Console, text: str, style: str = "yellow") -> None:
    """A line as it is: never wrapped, brackets never read as markup."""
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def build_trainer(config: Config, model: MaskedLanguageModel) -> Trainer:
    masking = config.masking
    final_ratio = masking.ratio if masking.final_ratio is None else masking.final_ratio
    return Trainer(
        model,
        config.optimizer,
        config.schedule,
        config.training,
        mask_ratio=lambda progress: compute_mask_ratio(masking.ratio_schedule, masking.ratio, final_ratio, progress),
        seed=config.run.seed,
    )


def build_callbacks(config: Config, run: RunFolder, tokenizer: Tokenizer, console: Console) -> list[Callback]:
    training = config.training
    callbacks: list[Callback] = [
        ProgressDisplay(console),
        MetricsLog(run),
        PeriodicCheckpoints(run, tokenizer, training.checkpoint_every_steps, training.keep_checkpoints),
    ]
    if training.early_stopping_patience is not None:
        best = run.checkpoints / "best"
        callbacks.append(
            EarlyStopping(patience=training.early_stopping_patience, restore_best_weights=True, best_folder=best)
        )
    if training.tensorboard:
        callbacks.append(TensorBoard(run.tensorboard, update_freq="batch"))
    return callbacks


def _resume(trainer: Trainer, run: RunFolder, console: Console) -> None:
    checkpoint, problems = find_resumable(run.checkpoints)
    for problem in problems:
        _say(console, f"warning: {problem}; falling back to an earlier one")
    if checkpoint is not None:
        trainer.load_checkpoint(checkpoint)
        _say(console, f"resuming {run.path} from step {trainer.state.step}", style="")


def _introduce(
    config: Config,
    run: RunFolder,
    model: MaskedLanguageModel,
    train: PackedLoader,
    validation: PackedLoader,
    console: Console,
) -> None:
    num_parameters = sum(param.numel() for param in model.parameters())
    _say(
        console,
        f"{run.path}  {config.model.from_ or f'{config.model.family} {config.model.variant}'}"
        f"  {num_parameters / 1e6:.1f}M parameters  vocabulary {model.vocab_size:,}\n"
        f"train {train.shards.num_tokens:,} tokens in {train.shards.num_documents:,} documents,"
        f" rows {train.utilisation():.1%} full; held out {validation.shards.num_tokens:,} tokens\n"
        f"objective {config.training.mode}, masking by {config.masking.strategy} from {config.masking.ratio:.0%}",
        style="",
    )


def _evaluate(config: Config, trainer: Trainer, validation: PackedLoader, unigram_loss: float) -> dict[str, Any]:
    """The figures of final.json."""
    state = trainer.state
    figures: dict[str, Any] = {}
    if config.training.final_evaluation:
        evaluation = evaluate(trainer.model, validation.epoch(0))
        figures = {
            "loss": evaluation.loss,
            "accuracy": evaluation.accuracy,
            "perplexity": evaluation.perplexity,
            "unigram_loss": unigram_loss,
            "num_masked": evaluation.num_masked,
        }
    return figures | {
        "train_loss": trainer.history.history["loss"][-1],
        "tokens": state.num_tokens,
        "steps": state.step,
        "seconds": state.elapsed_s,
        "parameters": sum(param.numel() for param in trainer.model.parameters()),
    }
