"""The pictures of a fine-tuning run's report, by what its task asks."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence

from torch import Tensor

from maskwright.runs.pictures.class_bars import draw_class_bars
from maskwright.runs.pictures.confusion import count_confusions, draw_confusion
from maskwright.runs.pictures.reliability import draw_reliability
from maskwright.runs.pictures.scatter import draw_scatter
from maskwright.runs.pictures.style import Picture
from maskwright.tasks.sequence.classification import Classification, calibrate
from maskwright.tasks.sequence.regression import Regression
from maskwright.tasks.similarity.text_similarity import ContrastiveSimilarity, CosineSimilarity
from maskwright.tasks.task import Scores, Task


def draw_task_pictures(task: Task, answers: Tensor, targets: Tensor, classes: Mapping[str, Scores]) -> list[Picture]:
    """Of the answers to all held-out examples and the scores of each class; an `ImportError` without matplotlib."""
    pictures = [draw_class_bars(classes)] if classes else []
    if isinstance(task, Classification):
        counts = count_confusions(answers.argmax(-1), targets, task.num_outputs)
        pictures.append(draw_confusion(task.classes, counts))
        pictures.append(draw_reliability(calibrate(answers, targets)))
    elif isinstance(task, Regression):
        name = "cosine" if isinstance(task, CosineSimilarity) else "answer"
        pictures.append(draw_scatter(answers[:, 0], targets, name, is_same_scale=True))
    elif isinstance(task, ContrastiveSimilarity):
        labels = targets[:, 1]
        is_labelled = ~labels.isnan()
        if is_labelled.any():
            values = answers[is_labelled, 0], labels[is_labelled]
            pictures.append(draw_scatter(*values, "cosine", is_same_scale=False))
    return pictures


def build_pictures_html(pictures: Sequence[Picture]) -> str:
    return "".join(
        f"<h2>{html.escape(one.title)}</h2><p>{html.escape(one.caption)}</p>"
        f'<img alt="{html.escape(one.title)}" src="data:image/png;base64,{base64.b64encode(one.png).decode()}">'
        for one in pictures
    )
