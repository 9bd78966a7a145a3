"""The runs of several seeds in one folder, and what they say together."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.ownership import LOCK_FILE
from maskwright.runs.finetune_report import list_scores
from maskwright.runs.folder import RunFolder
from maskwright.storage import write_text

SUMMARY_FILE = "seeds.json"
_SEED_FOLDER = "seed-{}"


def list_seed_folders(out: Path, num_seeds: int) -> list[Path]:
    """One seed's run is the folder itself."""
    return [out] if num_seeds == 1 else [out / _SEED_FOLDER.format(seed) for seed in range(num_seeds)]


def check_seeds_folder(out: Path) -> None:
    """Refuse a folder that holds something else than runs of seeds."""
    if not out.is_dir():
        return
    first = _SEED_FOLDER.format(0)
    others = [path.name for path in out.iterdir() if path.name != LOCK_FILE]
    if others and not RunFolder(out / first).is_run:
        what = "is a single run" if RunFolder(out).is_run else "exists and holds no runs of seeds"
        raise InputError(f"{out} {what}; choose another --out")


def summarise(figures: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Mean and standard deviation of every score over the seeds; None where a seed has no value."""
    summary: dict[str, dict[str, float | None]] = {}
    for name in list_scores(figures[0]):
        values = [one[name] for one in figures if one.get(name) is not None]
        is_known = len(values) == len(figures)
        summary[name] = {
            "mean": statistics.fmean(values) if is_known else None,
            "deviation": statistics.stdev(values) if is_known and len(values) > 1 else None,
        }
    return summary


def write_summary(out: Path, figures: Sequence[dict[str, Any]]) -> None:
    seeds = [list_scores(one) for one in figures]
    write_text(out / SUMMARY_FILE, json.dumps({"scores": summarise(figures), "seeds": seeds}, indent=2) + "\n")
