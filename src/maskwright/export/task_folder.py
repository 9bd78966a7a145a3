"""A fine-tuned model as a Hugging Face folder, which their `AutoModelFor...` of its task loads. B texts, S length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from maskwright.export.comparison import Comparison, Sample, split_rows
from maskwright.export.huggingface import TheirLayout, refuse, write_compared
from maskwright.export.obstacles import find_encoder_obstacles
from maskwright.models.files.model_folder import OWN_TYPE_PREFIX
from maskwright.tasks.foreign import has_own_head
from maskwright.tasks.model import TaskModel
from maskwright.text.tokenizer import Tokenizer

_NUM_AXES_OF_TOKENS = 3


def export_task_huggingface(
    model: TaskModel, tokenizer: Tokenizer, folder: Path, *, texts: Sequence[str], say: Callable[[str], None]
) -> Comparison:
    """Write the folder, read it back and compare logits on the texts, as `export_huggingface` does."""
    obstacles = find_encoder_obstacles(model.encoder)
    if has_own_head(model.task_head):
        name = model.task_head.files.architecture.removeprefix(OWN_TYPE_PREFIX)
        obstacles.append(f"transformers has no {name}, so its head is Maskwright's own; use the folder as it is")
    refuse("Hugging Face's layout", obstacles)
    layout = TheirLayout(model.task_head.files.architecture, TaskModel.from_pretrained, _split)
    return write_compared(model, tokenizer, folder, layout, texts=texts, say=say)


def _split(logits: Tensor, sample: Sample) -> list[Tensor]:
    """One tensor to a text, without padding."""
    return split_rows(logits, sample) if logits.ndim == _NUM_AXES_OF_TOKENS else list(logits.cpu())
