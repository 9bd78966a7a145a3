"""From a configuration to the kind of model that learns what it says."""

from __future__ import annotations

from functools import partial

from maskwright.config import Config
from maskwright.errors import InputError
from maskwright.objectives.masked_lm import Build, CausalLanguageModel, HybridLanguageModel, MaskedLanguageModel
from maskwright.objectives.sentence_pairs import SentencePairModel
from maskwright.sections.objective import PhaseConfig


def check_objective(config: Config) -> None:
    """Refuse objectives that exclude one another."""
    mode = config.training.mode
    if config.pairs.task is not None and (config.objective or mode != "mlm"):
        raise InputError(
            f"pairs.task={config.pairs.task} is an addition to masked language modelling; set training.mode=mlm and no"
            " phases, or unset it"
        )
    if config.objective and mode != "mlm":
        raise InputError(
            f"training.mode is {mode} and objective has phases, each with a mode of its own; remove training.mode, or"
            " set objective=[]"
        )


def choose_kind(config: Config) -> Build:
    """What makes the model out of an encoder and settings."""
    check_objective(config)
    phases, training = config.objective, config.training
    if config.pairs.task is not None:
        return partial(SentencePairModel, pair_weight=config.pairs.weight)
    if phases:
        mixes = any(phase.mode == "hybrid" for phase in phases)
        return partial(
            HybridLanguageModel,
            causal_share=partial(find_causal_share, phases),
            shifts_masks=mixes,
            evaluates_causally=phases[-1].mode == "clm",
        )
    if training.mode == "hybrid":
        return partial(HybridLanguageModel, causal_share=training.causal_share)
    return CausalLanguageModel if training.mode == "clm" else MaskedLanguageModel


def find_causal_share(phases: list[PhaseConfig], progress: float) -> float:
    """The share of samples whose next tokens are learnt, at a progress in [0, 1]."""
    phase = next((phase for phase in phases if phase.until is None or progress < phase.until), phases[-1])
    return phase.find_share()


def describe_objective(config: Config) -> str:
    masking = f"masking by {config.masking.strategy} from {config.masking.ratio:.0%}"
    mode = config.training.mode if config.pairs.task is None else f"mlm and {config.pairs.task}"
    if not config.objective:
        return mode if mode == "clm" else f"{mode}, {masking}"
    phases = [f"{phase.mode} until {phase.until or 1:.0%}" for phase in config.objective]
    return f"{', then '.join(phases)}, {masking}"
