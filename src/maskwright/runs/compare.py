"""Runs side by side on one page: final figures, the settings in which they differ, curves over each other."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from maskwright.config import flatten
from maskwright.errors import InputError
from maskwright.pictures.charts import draw_bars, draw_rows, draw_runs, frame
from maskwright.runs.finetune.finetune import TASK_FILE
from maskwright.runs.folder import RunFolder
from maskwright.runs.insight import Band, read_insight
from maskwright.runs.report import PANELS, build_page
from maskwright.storage import read_json, write_text
from maskwright.suggestions import OVERWRITE, checks_arguments
from maskwright.untrusted import read_yaml

_FEWEST, _MOST = 2, 8
"""As many as there are colours."""
OWN_SETTINGS = {"run.name", "run.out", "run.store"}
"""In which all runs differ."""


@checks_arguments
def compare(runs: Sequence[str | Path], out: str | Path = "compare.html", *, overwrite: bool = False) -> Path:
    """Write a page that shows runs beside each other, finished or not; returns its path.

    Curves are over each other, one colour a run; points on a dashed line are held-out figures. Settings that are equal
    are left out.
    """
    if isinstance(runs, str | Path) or not _FEWEST <= len(runs) <= _MOST:
        found = "one" if isinstance(runs, str | Path) else str(len(runs))
        raise InputError(f"{found} of runs is given to compare; give {_FEWEST} to {_MOST}, such as runs/a runs/b")
    page = Path(out)
    if page.exists() and not overwrite:
        raise InputError(f"{page} is there already; choose another --out, or add {OVERWRITE}")
    folders = _name_runs([RunFolder(Path(run)) for run in runs])
    write_text(page, build_page("Comparison of runs", _build_body(folders)))
    return page


def find_differences(settings: Sequence[Mapping[str, Any]]) -> tuple[dict[str, list[Any]], int]:
    """By dotted key the value of each, of the settings in which they differ; and how many are equal."""
    flat = [flatten(one) for one in settings]
    keys = dict.fromkeys(key for one in flat for key in one if key not in OWN_SETTINGS)
    values = {key: [one.get(key) for one in flat] for key in keys}
    differing = {key: found for key, found in values.items() if any(one != found[0] for one in found)}
    return differing, len(values) - len(differing)


def _name_runs(runs: Sequence[RunFolder]) -> dict[str, RunFolder]:
    """By the last parts of their paths, as many as tell them apart."""
    paths = [run.path.resolve() for run in runs]
    for path, run in zip(paths, runs, strict=True):
        if not run.is_run:
            raise InputError(
                f"{run.path} is no run{run.describe_damage()}; give folders with config.yaml, such as runs/a"
            )
        if paths.count(path) > 1:
            raise InputError(f"{run.path} is given twice; give different runs")
    num_parts = next(
        count
        for count in range(1, max(len(path.parts) for path in paths) + 1)
        if len({path.parts[-count:] for path in paths}) == len(paths)
    )
    return {"/".join(path.parts[-num_parts:]): run for path, run in zip(paths, runs, strict=True)}


def _build_body(runs: Mapping[str, RunFolder]) -> str:
    differing, num_same = find_differences([_read_settings(run) for run in runs.values()])
    settings = {key: [_show(value) for value in values] for key, values in differing.items()}
    lead = f"Settings that differ: {len(differing)}; that are the same: {num_same}."
    curves = draw_runs({name: run.read_metrics() for name, run in runs.items()}, PANELS)
    return (
        f"<h2>Figures</h2>{_build_table(list(runs), _list_figures(runs))}"
        f"<h2>Settings</h2><p>{lead}</p>{_build_table(list(runs), settings) if settings else ''}"
        f"{f'<h2>Curves</h2>{curves}' if curves else ''}{_draw_bands(runs)}"
    )


def _read_settings(run: RunFolder) -> dict[str, Any]:
    """Those of config.yaml, and of a fine-tuning under `task` those of task.yaml."""
    task = run.path / TASK_FILE
    return {**read_yaml(run.config_file), **({"task": read_yaml(task)} if task.is_file() else {})}


def _list_figures(runs: Mapping[str, RunFolder]) -> dict[str, list[str]]:
    """Those of final.json that are numbers; a run that has not finished has none."""
    finals = [read_json(run.final_file) if run.is_finished else {} for run in runs.values()]
    names = dict.fromkeys(name for final in finals for name, value in final.items() if _is_number(value))
    rows = {"state": ["finished" if run.is_finished else "not finished" for run in runs.values()]}
    return rows | {name: [_show(final.get(name)) for final in finals] for name in names}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _show(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if _is_number(value) else str(value)


def _build_table(names: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    header = "".join(f"<th>{html.escape(name)}</th>" for name in ("", *names))
    lines = [
        f"<tr><th>{html.escape(key)}</th>{''.join(f'<td>{html.escape(value)}</td>' for value in values)}</tr>"
        for key, values in rows.items()
    ]
    return f'<div class="wide"><table><tr>{header}</tr>{"".join(lines)}</table></div>'


def _draw_bands(runs: Mapping[str, RunFolder]) -> str:
    """Right answers by frequency and by part of speech, of the runs that know them."""
    known = {name: one for name, run in runs.items() if (one := read_insight(run)) is not None}
    frequency = {name: one.bands for name, one in known.items() if one.bands}
    speech = {name: one.speech for name, one in known.items() if one.speech}
    return _draw(
        draw_bars,
        frequency,
        "Frequent and rare tokens",
        "Held-out tokens predicted right, by how often they stand among a million tokens of the run's training text.",
    ) + _draw(
        draw_rows,
        speech,
        "Parts of speech",
        "Tokens predicted right in the sentences of the run's data.parts_of_speech.",
    )


def _draw(draw: Callable[..., str], known: Mapping[str, Sequence[Band]], title: str, words: str) -> str:
    if len(known) < _FEWEST:
        return ""
    labels = list(dict.fromkeys(band.label for bands in known.values() for band in bands))
    by_label = {name: {band.label: band.accuracy for band in bands} for name, bands in known.items()}
    series = {name: [found.get(label) for label in labels] for name, found in by_label.items()}
    return f"<h2>{title}</h2><p>{words}</p>{frame([draw('Right answers', labels, series)])}"
