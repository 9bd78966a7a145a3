"""`maskwright doctor`: build everything as for training, take a few steps and report problems; nothing is written."""

from __future__ import annotations

from pathlib import Path

import torch

from maskwright.config import Config
from maskwright.errors import InputError, RunError, describe_briefly, is_out_of_memory
from maskwright.runs.doctor.findings import CheckUp, Finding, build_example
from maskwright.runs.doctor.memory import (
    MemoryNeed,
    add_working_memory,
    check_fixed_need,
    check_need,
    estimate_fixed_need,
    measure_capacity,
)
from maskwright.runs.doctor.plan import check_loader, check_plan, check_speed, check_step, measure_loader, plan_run
from maskwright.runs.doctor.settings import (
    check_attention,
    check_device,
    check_disk,
    check_model,
    check_precision,
    check_settings,
    count_checkpoints,
    estimate_checkpoint_bytes,
)
from maskwright.runs.doctor.step import StepFigures, measure_steps
from maskwright.runs.doctor.text import check_text
from maskwright.runs.folder import find_run
from maskwright.runs.inputs import TrainingData, count_tokens, load_data
from maskwright.runs.model import build_model, fit_row_length
from maskwright.runs.pretrain import build_trainer
from maskwright.training.distributed.world import is_launched


def examine(config: Config) -> CheckUp:
    """Find problems of a run before it starts; unreadable text is an error, as in training."""
    if is_launched():
        raise InputError("doctor runs in one process, several were launched; start it without torchrun, or add --nodes")
    checkup = CheckUp()
    try:
        config = fit_row_length(config, lambda text: checkup.findings.append(Finding("data", "OK", text)))
    except InputError as error:  # there is no model to continue from
        checkup.findings.append(Finding.from_error("model", error))
        return checkup
    folder, kept_tokenizer = _check_folder(config)
    checkup.findings.append(folder)
    data = load_data(config, kept_tokenizer, lambda text: checkup.findings.append(_note(text)))
    checkup.findings += check_text(data)
    checkup.findings += check_settings(config)
    try:
        _examine_model(config, data, checkup)
    except InputError as error:
        checkup.findings.append(Finding.from_error("model", error))
    except RunError as error:
        checkup.findings.append(Finding.from_error("memory", error))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        advice = "take a smaller model, or several GPUs with training.parallel=fsdp"
        checkup.findings.append(Finding("memory", "problem", describe_briefly(error), advice))
    return checkup


def _check_folder(config: Config) -> tuple[Finding, Path | None]:
    """Whether the run may start, and the tokenizer of an unfinished run that it would resume."""
    try:
        run = find_run(config, overwrite=True)
    except InputError as error:
        return Finding.from_error("folder", error), None
    try:
        find_run(config)
    except InputError as error:
        refusal = Finding.from_error("folder", error)
        return Finding("folder", "warning", refusal.text, refusal.advice), None
    if run.is_run:
        return Finding("folder", "OK", f"{run.path} holds an unfinished run, which train goes on with"), run.tokenizer
    return Finding("folder", "OK", f"{run.path} is free"), None


def _note(text: str) -> Finding:
    return Finding("data", "warning", text, "go on if that is expected")


def _examine_model(config: Config, data: TrainingData, checkup: CheckUp) -> None:
    """Build the model and take steps; nothing is measured for a run that would be refused."""
    model = build_model(config, data.tokenizer)
    model.set_token_counts(torch.from_numpy(count_tokens(data.train, model.vocab_size)))
    checkup.findings.append(check_model(config, model))
    checkup.example = build_example(model, data.tokenizer, data.validation, config.run.seed)
    if checkup.count("problem"):
        return
    trainer = build_trainer(config, model)
    checkup.findings += [check_device(config, trainer.engine), check_precision(trainer.engine)]
    need, capacity = estimate_fixed_need(trainer.engine), measure_capacity(trainer.engine.device)
    too_large = check_fixed_need(need, capacity)
    if too_large is not None:
        checkup.findings.append(too_large)
        return
    of_phases = (phase.mask_ratio or 0.0 for phase in config.objective)
    ratio = max(config.masking.ratio, config.masking.final_ratio or 0.0, *of_phases)
    figures = measure_steps(trainer, data.train, ratio)
    checkup.findings += _judge_steps(config, data, model.vocab_size, need, capacity, figures)


def _judge_steps(
    config: Config, data: TrainingData, vocab_size: int, need: MemoryNeed, capacity: int, figures: StepFigures
) -> list[Finding]:
    whole_need = add_working_memory(need, figures.working_bytes, figures.tokens_at_a_time)
    plan = plan_run(config, data.train, figures)
    checkpoint_bytes = estimate_checkpoint_bytes(need, data.tokenizer)
    num_checkpoints = count_checkpoints(config.training, plan.num_steps)
    return [
        check_attention(figures.attention),
        *(Finding("memory", "warning", text, "set it before the run") for text in figures.warnings),
        check_need(whole_need, capacity),
        check_disk(Path(config.run.out), checkpoint_bytes, num_checkpoints, need.weights),
        check_step(figures, vocab_size),
        check_speed(figures),
        check_loader(figures, measure_loader(data.train)),
        *check_plan(config, plan),
    ]
