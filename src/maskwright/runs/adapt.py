"""Adapt a published encoder to raw text and export it: the runs this takes, one after another."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from maskwright.config import Config, build_config, change_config
from maskwright.errors import InputError, RunError
from maskwright.models.files.model_folder import read_config, read_own_settings, resolve_folder
from maskwright.objectives.mlm_files import lacks_head
from maskwright.recipes import read_recipe
from maskwright.runs.export import export_model, is_exported
from maskwright.runs.export_options import ExportOptions
from maskwright.runs.folder import RunFolder, check_same_config, own_run, refuse_finished
from maskwright.runs.forgetting import MEASURED_SHARE
from maskwright.runs.inputs import open_tokenizer
from maskwright.runs.interruption import ending_in_order
from maskwright.runs.model import fit_row_length
from maskwright.runs.pretrain import Finished, pretrain
from maskwright.runs.texts import Say, is_held_out
from maskwright.sections.data import BUILTIN_CORPUS, SourceLike, build_sources
from maskwright.storage import read_json, restore_folder, whole_folder, write_text
from maskwright.suggestions import OUT, OVERWRITE, name_option
from maskwright.text.sources import read_sources
from maskwright.text.tokenizer.extend import advise_vocabulary
from maskwright.training.distributed.world import is_main_process

_RECIPE = "domain_adaptation"
_EVALUATE_EVERY_STEPS = 100
_MIN_COUNT = 20
_HEAD_BATCHES = 20
_NUM_SHOWN = 5
_RECORD_FILE = "domain_tokens.json"
_HEAD_TRAINING: dict[str, dict[str, Any]] = {
    "optimizer": {"learning_rate": 1e-3, "weight_decay": 0.0},
    "masking": {"ratio": 0.15, "random_token_ratio": 0.1, "unchanged_ratio": 0.1},
    "forgetting": {"general": None},
}
"""A new head beside a frozen encoder: large steps do no harm, and BERT's own masking asks more of each text."""
_NAME = re.compile(r"[^\w.-]+")


@dataclass(frozen=True)
class AdaptOptions:
    texts: Sequence[SourceLike]
    out: Path | None = None
    general: Sequence[SourceLike] = (BUILTIN_CORPUS,)
    max_forgetting: float = 0.1
    new_tokens: int = 0
    """Words of the texts to add to the vocabulary, at most."""
    head_steps: int = 300
    """Steps in which an encoder that came without a prediction head gets one."""
    settings: Sequence[str] = ()
    overwrite: bool = False


@dataclass(frozen=True)
class Adapted:
    run: Finished
    exported: Path | None
    """None where Hugging Face's layout cannot hold the model."""

    def _repr_html_(self) -> str:
        return self.run._repr_html_()


def adapt(model: str, options: AdaptOptions, console: Console, say: Say) -> Adapted:
    """Finished parts are kept: the same command resumes where it stopped."""
    config = fit_row_length(_build_config(model, options), say, may_change_given=True)
    run = RunFolder(Path(config.run.out) / config.run.name)
    with ending_in_order([run.path]), own_run(run.path, OUT, say, is_main_process()):
        is_trained = run.is_finished and not options.overwrite
        if is_trained and is_exported(run):  # before any work is done
            refuse_finished(run)
        if options.new_tokens:
            config = _with_new_tokens(config, model, options, say)
        if lacks_head(resolve_folder(model)):
            config = _with_trained_head(config, options, console, say)
        finished = _read_finished(run, config) if is_trained else pretrain(config, options.overwrite, console)
        _check_trained(finished)
        return Adapted(finished, _export(finished.folder, options, say))


def _check_trained(finished: Finished) -> None:
    """Refuse to continue from or export a diverged run."""
    if finished.trouble is not None:
        raise RunError(finished.trouble)


def _read_finished(run: RunFolder, config: Config) -> Finished:
    """A run that was interrupted between its end and its export."""
    check_same_config(run, config)
    needed = ("forgetting", "loss") if config.training.final_evaluation else ()  # the run of a head measures nothing
    return Finished(run, run.read_final(*needed))


def _build_config(model: str, options: AdaptOptions) -> Config:
    out = options.out or Path("runs") / f"{_NAME.sub('-', Path(model).name)}-adapted"
    texts, general = build_sources(list(options.texts)), build_sources(list(options.general))
    values: dict[str, Any] = {
        "preset": _RECIPE,
        "run": {"name": out.name, "out": str(out.parent)},
        "model": {"from": model, "mlm_head_dropout": _choose_head_dropout(model)},
        "data": {"train": texts},
        "forgetting": {"general": general, "max_increase": options.max_forgetting},
        "training": {"evaluate_every_steps": _EVALUATE_EVERY_STEPS},
    }
    config = build_config(values, options.settings)
    for option, given, expected in (
        (OUT, (config.run.name, config.run.out), (out.name, str(out.parent))),
        ("the first word", config.model.from_, model),
        (name_option("text"), config.data.train, texts),
        (name_option("general"), config.forgetting.general, general),
        (name_option("max_forgetting"), config.forgetting.max_increase, options.max_forgetting),
        ("the command, which needs the last figures,", config.training.final_evaluation, True),
    ):
        if given != expected:
            raise InputError(f"a setting says {given!r} where {option} says {expected!r}; give one of the two")
    if config.run.store is not None:
        raise InputError("run.store keeps a run of train in a store, not the several runs of adapt; leave it out")
    return config


def _choose_head_dropout(model: str) -> float:
    """A low dropout; 0 for a head that was trained without.

    The heads of transformers have no dropout.
    """
    own = read_own_settings(read_config(resolve_folder(model)), "masked_lm").get("mlm_head_dropout", 0.0)
    return min(float(own), float(read_recipe(_RECIPE)["model"]["mlm_head_dropout"]))


def _with_new_tokens(config: Config, model: str, options: AdaptOptions, say: Say) -> Config:
    """Words chosen from the texts that the run does not hold out, in a tokenizer beside the run."""
    folder = Path(config.run.out) / f"{config.run.name}-tokenizer"
    made_from = {"model": model, "texts": list(options.texts), "most": options.new_tokens}
    restore_folder(folder)
    if folder.is_dir() and not options.overwrite:
        found = read_json(folder / _RECORD_FILE) if (folder / _RECORD_FILE).is_file() else None
        if found != made_from:
            raise InputError(
                f"{folder} was made from {found}, not {made_from}; choose another {OUT}, or add {OVERWRITE}"
            )
        return change_config(config, {"tokenizer": {"path": str(folder)}})
    share = config.data.validation_share
    advice = advise_vocabulary(
        lambda: read_sources(list(options.texts)),
        lambda text: is_held_out(text, share),
        open_tokenizer(model),
        options.new_tokens,
        _MIN_COUNT,
    )
    if not advice.tokens:
        raise InputError("--new-tokens: no word of the texts is frequent and badly cut; leave it out")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(folder) as temporary:
        advice.extended.save(temporary)
        write_text(temporary / _RECORD_FILE, json.dumps(made_from, indent=2) + "\n")
    shown = ", ".join(token.word for token in advice.tokens[:_NUM_SHOWN])
    say(
        f"{len(advice.tokens):,} words join the vocabulary ({shown}, ...);"
        f" held-out text has {advice.saved_share:.1%} fewer tokens with them"
    )
    return change_config(config, {"tokenizer": {"path": str(folder)}})


def _with_trained_head(config: Config, options: AdaptOptions, console: Console, say: Say) -> Config:
    """Train a new head in a separate run with a frozen encoder, which an untrained head's gradients would harm.

    It trains on the half of the texts that is not used for evaluation later.
    """
    name = f"{config.run.name}-head"
    changes = {
        **_HEAD_TRAINING,
        "run": {"name": name},
        "model": {"freeze_encoder": True},
        "data": {
            "train": [*build_sources(list(options.texts)), *build_sources(list(options.general))],
            "validation_share": MEASURED_SHARE,
        },
        "training": {
            "max_steps": options.head_steps,
            "epochs": options.head_steps,
            "evaluate_every_steps": None,
            "evaluate_max_batches": _HEAD_BATCHES,
            "final_evaluation": False,
        },
    }
    head_config = change_config(config, changes)
    run = RunFolder(Path(config.run.out) / name)
    if run.is_finished and not options.overwrite:
        _check_trained(_read_finished(run, head_config))
    else:
        say(f"the encoder came without a prediction head: {options.head_steps} steps train one, the encoder unchanged")
        _check_trained(pretrain(head_config, options.overwrite, console))
    return change_config(config, {"model": {"from": str(run.path)}, "tokenizer": {"path": None}})


def _export(run: RunFolder, options: AdaptOptions, say: Say) -> Path | None:
    chosen = ExportOptions(texts=tuple(options.texts), overwrite=options.overwrite)
    try:
        return export_model(str(run.path), chosen, say)
    except InputError as error:
        say(f"not exported: {error}")
        return None
