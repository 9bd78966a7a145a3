"""`maskwright distill` and `maskwright.distill`: a smaller encoder that learns from a larger one on raw text."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from maskwright.config import Settings, build_config, list_settings
from maskwright.errors import InputError
from maskwright.runs.given import GivenModel, keep_model, name_folder, name_sources
from maskwright.runs.pretrain import FinishedRun, pretrain
from maskwright.sections.data import build_sources
from maskwright.suggestions import checks_arguments, name_option, refuse_below

_EVALUATE_EVERY_STEPS = 500


@checks_arguments
def distill(
    teacher: GivenModel,
    text: Any,
    *,
    layers: int,
    width: int | None = None,
    objective: Literal["distilbert", "minilm"] = "distilbert",
    out: str | Path | None = None,
    settings: Settings = (),
    overwrite: bool = False,
    tokenizer: Any = None,
    console: Console | None = None,
) -> FinishedRun:
    """Train an encoder of the teacher's family with fewer `layers` on raw text, to answer as the teacher does.

    Texts are sources as `data.train` takes them, or records in memory with a column `text`. The objective is that of
    DistilBERT (predictions and hidden states) or of MiniLM (the last layer's attention), each with masked language
    modelling. A student of the teacher's width begins as evenly spaced layers of it; one of another `width` is for
    `minilm` and begins anew. `settings` are those of a run, as `{"distillation.temperature": 4}`. A teacher in memory
    needs its `tokenizer`. The same call on an unfinished run resumes it. The figures of the result compare both.
    """
    refuse_below(1, layers=layers, width=width)
    folder = Path(out) if out is not None else Path("runs") / f"{name_folder(teacher)}-{layers}-layers"
    inputs = folder.with_name(f"{folder.name}-inputs")
    texts = name_sources(text, inputs, are_texts=True)
    if not texts:
        raise InputError(f"no text to learn from is given; give {name_option('text')}")
    named = keep_model(teacher, tokenizer, inputs)
    values: dict[str, Any] = {
        "run": {"name": folder.name, "out": str(folder.parent)},
        "model": {"num_hidden_layers": layers, "hidden_size": width},
        "data": {"train": build_sources(texts)},
        "distillation": {"teacher": named.place, "objective": objective},
        "optimizer": {"learning_rate": 5e-4},
        "training": {"evaluate_every_steps": _EVALUATE_EVERY_STEPS},
    }
    config = build_config(values, list_settings(settings))
    for option, given, expected in (
        ("layers", config.model.num_hidden_layers, layers),
        ("width", config.model.hidden_size, width),
        ("objective", config.distillation.objective, objective),
        ("out", (config.run.name, config.run.out), (folder.name, str(folder.parent))),
    ):
        if given != expected:
            named_option = name_option(option)
            raise InputError(f"a setting says {given!r} where {named_option} says {expected!r}; give one of the two")
    return pretrain(config, overwrite, console)
