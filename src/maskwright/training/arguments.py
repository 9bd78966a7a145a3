"""Checks of a trainer's arguments; for arguments of other frameworks the error says what to use instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.models.any_encoder import find_max_length
from maskwright.objectives.objective import Objective
from maskwright.sections.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.optim.builders import BuiltOptimizer

AS_ROWS = "create_mlm_dataset(..., batch_size=) makes the batches"
_AS_CONFIG = "training=TrainingConfig(...)"
TRAINER_INSTEAD = {
    "args": f"TrainingArguments are {_AS_CONFIG}, optimizer=OptimizerConfig(...) and schedule=ScheduleConfig(...)",
    "train_dataset": "give the batches to fit(train, ...)",
    "eval_dataset": "give held-out batches to fit(train, validation=...)",
    "data_collator": f"the model masks its batches itself; {AS_ROWS}",
    "tokenizer": "create_mlm_dataset(text_file, tokenizer) and model.save_pretrained(folder, tokenizer) take it",
    "processing_class": "create_mlm_dataset(text_file, tokenizer) takes the tokenizer",
    "compute_metrics": "a model has its own metrics; add others in on_epoch_end of a Callback",
    "callbacks": "give them to fit(train, callbacks=[...])",
    "optimizers": "use optimizer=OptimizerConfig(...) and schedule=ScheduleConfig(...)",
    "loss": "a model has its own loss; leave it out",
    "metrics": "a model has its own metrics; leave it out",
    "learning_rate": "use optimizer=OptimizerConfig(learning_rate=...)",
    "epochs": f"give it to fit(train, epochs=...), or use {_AS_CONFIG}",
    "config": f"use {_AS_CONFIG}; a whole Config is the only argument: Trainer(config).train()",
    "device": "use training=TrainingConfig(device=...)",
}
_PARTS = {
    "optimizer": (
        (OptimizerConfig, BuiltOptimizer),
        "OptimizerConfig(type='adamw', learning_rate=5e-5), or what optimizer_builder returns",
    ),
    "schedule": ((ScheduleConfig,), "ScheduleConfig(type='cosine_decay')"),
    "training": ((TrainingConfig,), "TrainingConfig(epochs=3)"),
}


def check_parts(model: Any, **parts: Any) -> None:
    """Raise an InputError for an argument of the wrong type, with an example of the right one."""
    if not isinstance(model, Objective):
        raise InputError(
            f"the model is {describe(model)}, which has no objective to train; give a MaskedLanguageModel(encoder,"
            " vocab_size, ...) or another objective around an encoder, or a whole Config"
        )
    for name, value in parts.items():
        kinds, example = _PARTS[name]
        if value is not None and not isinstance(value, kinds):
            raise InputError(f"{name} is {describe(value)}; expected {example}")


def check_batches(name: str, batches: Any) -> None:
    if isinstance(batches, str | Path):
        raise InputError(
            f"{name} is '{batches}'; fit takes batches, and create_mlm_dataset('{batches}', tokenizer) makes them of a"
            " text file"
        )
    if isinstance(batches, Mapping):
        raise InputError(f"{name} is a dictionary, which is one batch; give a list of batches, such as [batch]")
    if not isinstance(batches, Iterable) and not hasattr(batches, "__getitem__"):
        raise InputError(f"{name} is {describe(batches)}; expected batches, as create_mlm_dataset makes them")


def check_number(name: str, value: Any) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise InputError(f"{name} is {value!r}; expected a whole number")


def describe(value: Any) -> str:
    """A value, or the kind of thing that it is, in words for an error."""
    if isinstance(value, str | int | float | bool | None):
        return repr(value)
    kind = type(value)
    library = kind.__module__.partition(".")[0]
    article = "an" if kind.__name__[0] in "AEIOUaeiou" else "a"
    return f"{article} {kind.__name__}" + (
        "" if library in ("builtins", "maskwright", "__main__") else f" of {library}"
    )


def check_fit(model: Objective, train: Any, validation: Any) -> None:
    """Refuse data that the model cannot take."""
    limit, row_length = find_max_length(model.encoder), getattr(train, "row_length", 0)
    if limit is not None and row_length > limit:
        raise InputError(f"rows have {row_length} tokens, the model has {limit} positions; shorten the rows")
    if isinstance(validation, Iterator):
        raise InputError("the validation data can be read only once; give a list or a loader")
    for batches in (train, validation):
        tokenizer = getattr(batches, "tokenizer", None)
        if isinstance(tokenizer, Tokenizer):
            model.check_tokenizer(tokenizer)
