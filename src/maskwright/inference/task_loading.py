"""Fine-tuned models by name, for prediction: an encoder, its task and its head."""

from __future__ import annotations

from typing import Any

from torch import nn

from maskwright.errors import InputError
from maskwright.inference.loading import Source, check_vocabulary, choose_tokenizer, given_tokenizer
from maskwright.models.files.model_folder import resolve_folder
from maskwright.tasks.model import TaskModel
from maskwright.tasks.task import Task
from maskwright.text.tokenizer.tokenizer import Tokenizer


def load_task_model(model: Source, tokenizer: Any, purpose: str, *expected: type[Task]) -> tuple[TaskModel, Tokenizer]:
    """A run, a model folder or a hub id with its own tokenizer, or a `TaskModel` with the one given.

    `purpose` is what the model is wanted for, as an error would say it ("classify texts"), and `expected` are the tasks
    that can do it: a model of another task, or of none, is an `InputError`.
    """
    if isinstance(model, nn.Module):
        if not isinstance(model, TaskModel):
            raise InputError(f"a {type(model).__name__} is no model to {purpose}; give a TaskModel or a name")
        found = model, given_tokenizer(tokenizer)
    else:
        folder = resolve_folder(model)
        found = TaskModel.from_pretrained(folder), choose_tokenizer(folder, tokenizer)
    task = found[0].task
    if not isinstance(task, expected):
        names = " or ".join(one.__name__ for one in expected)
        raise InputError(
            f"the model was fine-tuned for {type(task).__name__}, and {names} is needed to {purpose}; choose a model"
            " that was fine-tuned for that"
        )
    check_vocabulary(found[0].encoder, found[1])
    return found
