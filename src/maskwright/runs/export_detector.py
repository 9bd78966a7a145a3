"""Export a model trained with training.mode=rtd: the detector of replaced tokens, without its generator."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.export.card import CARD_FILE, TRAINING_CONFIG_FILE, CardOptions, Origin
from maskwright.export.detector import build_detector_card, export_detector
from maskwright.objectives.token_detector import OTHERS_FILE, TokenDetector, as_electra
from maskwright.runs.folder import RunFolder
from maskwright.runs.texts import Say
from maskwright.storage import write_text
from maskwright.text.tokenizer import Tokenizer


def holds_detector(folder: Path) -> bool:
    return (folder / OTHERS_FILE).is_file()


def load_detector(folder: Path, target: str, known: str) -> TokenDetector:
    """The detector of a model folder, if `target` is the `known` one and its layout has a place for the encoder."""
    if target != known:
        raise InputError(
            f"{folder} was trained with training.mode=rtd to find replaced tokens, which --to {target} does not hold;"
            f" export it --to {known}, or fine-tune it for a task and export that"
        )
    detector = TokenDetector.from_pretrained(folder)
    as_electra(detector.encoder)
    return detector


def write_detector_folder(
    detector: TokenDetector,
    tokenizer: Tokenizer,
    folder: Path,
    name: str,
    run: RunFolder | None,
    origin: Origin,
    card: CardOptions,
    texts: Sequence[str],
    say: Say,
) -> dict[str, Any]:
    """Fill the folder, which will be called `name`; the figures of the comparison."""
    say("the generator stays behind; the detector of replaced tokens is exported as ElectraForPreTraining")
    comparison = export_detector(detector, tokenizer, folder, texts=texts, say=say)
    write_text(folder / CARD_FILE, build_detector_card(name, detector, origin, comparison, card))
    if run is not None:
        shutil.copyfile(run.config_file, folder / TRAINING_CONFIG_FILE)
    return asdict(comparison)
