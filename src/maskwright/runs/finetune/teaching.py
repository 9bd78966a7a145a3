"""Ask a teacher, a model fine-tuned for the same task, about all training examples, once before a run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from maskwright.errors import InputError
from maskwright.models.any_encoder import find_max_length
from maskwright.models.files.model_folder import resolve_folder
from maskwright.models.transformers_encoder import TransformersEncoder
from maskwright.runs.texts import Say
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.examples import Example
from maskwright.tasks.features import featurize
from maskwright.tasks.loader import TaskLoader
from maskwright.tasks.model import TaskModel, answer_examples
from maskwright.tasks.sequence.taught import find_order
from maskwright.tasks.task import Task
from maskwright.text.tokenizer.tokenizer import load_tokenizer

_UNSTATED_LENGTH = 512


def ask_teacher(
    config: TaskConfig, task: Task, examples: Sequence[Example], device: torch.device | str, say: Say
) -> Tensor:
    """(examples, C) its logits in the order of the task's classes, or its numbers. It reads with its own tokenizer."""
    name = str(config.teacher)
    folder = resolve_folder(name)
    teacher, tokenizer = TaskModel.from_pretrained(folder).to(device), load_tokenizer(folder)
    order = find_order(task, teacher.task, name)
    features = featurize(examples, tokenizer, find_max_length(teacher.encoder) or _UNSTATED_LENGTH)
    if features.num_empty:
        read = {one.place for one in features.examples}
        place = next(one.place for one in examples if one.place not in read)
        raise InputError(f"the teacher {name} has no token for the text of {place}; take it out, or give another one")
    targets = teacher.task.encode_targets(features.examples)
    is_padded = isinstance(teacher.encoder, TransformersEncoder)
    loader = TaskLoader(
        features, targets, tokenizer, batch_size=config.batch_size, shuffle=False, groups_lengths=is_padded
    )
    answers = answer_examples(teacher, loader, device=device, warn=say)
    scores = teacher.compute_metrics(answers.sums)
    metric = teacher.task.default_metric
    say(f"teacher: {name}, {metric} {scores[metric]:.3f} on the training examples")
    return answers.values[:, order]
