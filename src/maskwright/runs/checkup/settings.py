"""Settings that are allowed and seldom meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from maskwright.config import Config
from maskwright.errors import InputError
from maskwright.runs.checkup.findings import Finding
from maskwright.runs.pretrain import find_checkpoint
from maskwright.training.trackers import check_trackers

_LEAST_MASKED, _MOST_MASKED = 0.05, 0.5
_USUAL_RATES = {
    "adamw": (1e-6, 5e-3),
    "stable_adamw": (1e-6, 5e-3),
    "muon": (1e-6, 1e-2),
    "lamb": (1e-5, 2e-2),
    "novograd": (1e-5, 5e-2),
    "lion": (1e-7, 1e-3),
    "sgd": (1e-4, 2.0),
}
"""Peak learning rates that are in use for encoders, from adapting a large model to training a tiny one."""
_USUAL_MUON_RATES = (1e-4, 0.1)


def check_settings(config: Config) -> list[Finding]:
    return [*_check_masking(config), *_check_rates(config), *_check_requirements(config)]


def _check_masking(config: Config) -> Iterator[Finding]:
    masking = config.masking
    for key, ratio in (("ratio", masking.ratio), ("final_ratio", masking.final_ratio)):
        if ratio is not None and not _LEAST_MASKED <= ratio <= _MOST_MASKED:
            yield Finding(
                "masking",
                "warning",
                f"masking.{key} is {ratio:g}, usual are {_LEAST_MASKED:g} to {_MOST_MASKED:g}",
                "take 0.15 to 0.4: more leaves too little to guess from, less teaches too little",
            )


def _check_rates(config: Config) -> Iterator[Finding]:
    optimizer = config.optimizer
    rates = [("learning_rate", optimizer.learning_rate, _USUAL_RATES[optimizer.type])]
    if optimizer.type == "muon":
        rates.append(("muon_learning_rate", optimizer.muon_learning_rate, _USUAL_MUON_RATES))
    for key, rate, (least, most) in rates:
        if not least <= rate <= most:
            yield Finding(
                "optimizer",
                "warning",
                f"optimizer.{key} is {rate:g}, for {optimizer.type} {least:g} to {most:g} are usual",
                f"{'lower' if rate > most else 'raise'} it unless you have tried this value",
            )


def _check_requirements(config: Config) -> Iterator[Finding]:
    """What a run refuses when it begins."""
    training = config.training
    checks: list[Callable[[], object]] = [lambda: check_trackers(training.log_to)]
    if training.keep_optimizer:
        checks.append(lambda: find_checkpoint(config.model.from_))
    for check in checks:
        try:
            check()
        except InputError as error:
            yield Finding.from_error("settings", error)
    if training.epochs <= training.initial_epoch:
        yield Finding(
            "settings",
            "problem",
            f"training.epochs is {training.epochs}, training.initial_epoch {training.initial_epoch}",
            "make epochs, the number of the last, the larger",
        )
