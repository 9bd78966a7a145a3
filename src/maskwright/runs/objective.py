"""The objective that a configuration asks for: its class, its phases over a run, and which settings exclude others."""

from __future__ import annotations

from functools import partial

from maskwright.config import Config
from maskwright.errors import InputError
from maskwright.masking.strategies import compute_mask_ratio
from maskwright.objectives.masked_lm import (
    Build,
    CausalLanguageModel,
    DiffusionLanguageModel,
    HybridLanguageModel,
    MaskedLanguageModel,
)
from maskwright.objectives.sentence_pairs import SentencePairModel
from maskwright.recipes import read_recipe
from maskwright.runs.students import check_distillation, choose_student, load_teacher
from maskwright.sections.objective import PhaseConfig


def check_objective(config: Config) -> None:
    """Refuse objectives that exclude one another."""
    check_distillation(config)
    mode = config.training.mode
    if config.pairs.task is not None and (config.objective or mode != "mlm"):
        raise InputError(
            f"pairs.task={config.pairs.task} is an addition to masked language modelling; set training.mode=mlm and no"
            " phases, or unset it"
        )
    if config.masking.strategy == "adaptive" and (mode == "rtd" or config.pairs.task or config.distillation.teacher):
        raise InputError(
            "masking.strategy=adaptive follows the loss of masked tokens alone; set masking.strategy to another one, or"
            " train with training.mode mlm or hybrid, without pairs.task and without a teacher"
        )
    if config.objective and mode != "mlm":
        raise InputError(
            f"training.mode is {mode} and objective has phases, each with a mode of its own; remove training.mode, or"
            " set objective=[]"
        )
    if mode == "diffusion":
        _check_masking_unset(config)


def _check_masking_unset(config: Config) -> None:
    """Diffusion masks in its own way: settings of masking have no effect. Those of a recipe may stay."""
    recipe = {} if config.preset is None else read_recipe(config.preset).get("masking", {})
    for name, own in type(config.masking).model_fields.items():
        value = getattr(config.masking, name)
        if value not in (own.default, recipe.get(name)):
            raise InputError(
                f"masking.{name} is {value}, but training.mode=diffusion masks single tokens by a share of its own for"
                " each sample; leave it out"
            )


def choose_kind(config: Config) -> Build:
    """The class, or function, that builds the model from an encoder and settings."""
    check_objective(config)
    phases, training = config.objective, config.training
    if config.distillation.teacher is not None:
        return choose_student(config, load_teacher(config))
    if config.pairs.task is not None:
        return partial(SentencePairModel, pair_weight=config.pairs.weight)
    if any(phase.mode != "mlm" for phase in phases):
        mixes = any(phase.mode == "hybrid" for phase in phases)
        return partial(
            HybridLanguageModel,
            causal_share=partial(find_causal_share, phases),
            shifts_masks=mixes,
            evaluates_causally=phases[-1].mode == "clm",
        )
    if training.mode == "hybrid":
        return partial(HybridLanguageModel, causal_share=training.causal_share)
    if training.mode == "diffusion":
        return partial(DiffusionLanguageModel, min_share=config.diffusion.min_share)
    return CausalLanguageModel if training.mode == "clm" else MaskedLanguageModel


def find_causal_share(phases: list[PhaseConfig], progress: float) -> float:
    """The share of samples trained on next tokens, at a progress in [0, 1]."""
    return find_phase(phases, progress).find_share()


def find_phase(phases: list[PhaseConfig], progress: float) -> PhaseConfig:
    return next((phase for phase in phases if phase.until is None or progress < phase.until), phases[-1])


def find_mask_ratio(config: Config, progress: float) -> float:
    """The share of tokens to mask, at a progress in [0, 1]: that of the phase, or of the schedule."""
    of_phase = find_phase(config.objective, progress).mask_ratio if config.objective else None
    if of_phase is not None:
        return of_phase
    masking = config.masking
    final_ratio = masking.ratio if masking.final_ratio is None else masking.final_ratio
    return compute_mask_ratio(masking.ratio_schedule, masking.ratio, final_ratio, progress)


def describe_objective(config: Config) -> str:
    masking = f"masking by {config.masking.strategy} from {config.masking.ratio:.0%}"
    mode = config.training.mode if config.pairs.task is None else f"mlm and {config.pairs.task}"
    if config.distillation.teacher is not None:
        mode = f"{mode} and {config.distillation.objective}'s of {config.distillation.teacher}"
    if not config.objective:
        unmasked = {"clm": mode, "diffusion": f"{mode}, masking any share of each sample"}
        return unmasked.get(mode, f"{mode}, {masking}")
    phases = [
        f"{phase.mode} until {phase.until or 1:.0%}" + (f" at {phase.mask_ratio:.0%}" if phase.mask_ratio else "")
        for phase in config.objective
    ]
    return f"{', then '.join(phases)}, {masking}"
