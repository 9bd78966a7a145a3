"""The typed description of a fine-tuning run, kept as task.yaml beside its config.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from maskwright.errors import InputError
from maskwright.sections.base import Section
from maskwright.storage import dump_yaml, write_text
from maskwright.untrusted import read_yaml

DEFAULT_RANK = 8
"""Of LoRA's factors."""


class TaskConfig(Section):
    task: str = Field(
        description="classification, multi-label, ner, pairs, qa, regression, rerank, retrieval or similarity."
    )
    model: str = Field(description="The encoder to start from: a model folder, a run or a hub id.")
    train: str = Field(
        description="Labelled examples: .csv, .tsv, .jsonl, .parquet, a glob of them, hf:NAME[:CONFIG][@SPLIT]; ner:"
        " also CoNLL; qa: also SQuAD."
    )
    validation: str | None = Field(
        default=None, description="Held-out labelled examples; unset: a tenth of train, of each label alike."
    )
    group_by: str | None = Field(
        default=None,
        description="Without validation: the column whose equal values are held out together or not at all.",
    )
    text_column: str | None = Field(default=None, description="The column with the text; unset: guessed.")
    second_column: str | None = Field(
        default=None, description="The column with the second text of a pair; unset: guessed."
    )
    label_column: str | None = Field(default=None, description="The column with the label; unset: guessed.")
    tag_scheme: Literal["io", "bio", "bioes"] | None = Field(
        default=None, description="ner: convert tags to io, bio or bioes; unset: keep those of the files."
    )
    epochs: int = Field(default=3, ge=1, description="Passes over the training examples.")
    learning_rate: float | None = Field(
        default=None, gt=0, description="Peak learning rate of the head; unset: chosen for the encoder."
    )
    batch_size: int = Field(default=32, ge=1, description="Examples of a step.")
    max_length: int | None = Field(
        default=None, ge=8, description="Longest example in tokens; unset: what the model takes."
    )
    lora: int | None = Field(
        default=None,
        ge=1,
        description="Train factors of this rank beside the encoder's matrices, and the head; unset: train all weights.",
    )
    freeze_layers: int | None = Field(
        default=None, ge=0, description="Keep the embeddings and so many first layers as they are; unset: train all."
    )
    layer_decay: float = Field(
        default=1.0, gt=0, le=1, description="Learning rate of a layer against that of the next one."
    )
    class_weights: str | None = Field(default=None, description="balanced, or a number for each class: 1,2.5.")
    label_smoothing: float = Field(
        default=0.0, ge=0, lt=1, description="Share of the label given to all classes alike."
    )
    teacher: str | None = Field(
        default=None,
        description="classification, pairs, regression: a model fine-tuned for the same task, whose answers are learnt"
        " beside the labels.",
    )
    hard_label_weight: float | None = Field(
        default=None, ge=0, le=1, description="With a teacher: weight of the labels against its answers; unset: 0.5."
    )
    doc_stride: int | None = Field(
        default=None,
        ge=0,
        description="qa: tokens that a window shares with the next; unset: 128, or half of the window.",
    )
    max_answer_length: int | None = Field(default=None, ge=1, description="qa: longest answer in tokens; unset: 30.")
    max_question_length: int | None = Field(
        default=None, ge=1, description="qa: tokens of a question that are kept; unset: 64."
    )
    loss: str | None = Field(
        default=None,
        description="similarity: contrastive or cosine; retrieval: contrastive, margin-mse or kl; rerank: contrastive,"
        " bce or mse.",
    )
    kind: str | None = Field(
        default=None,
        description="retrieval: dense (a vector of a text), splade (weights of tokens) or colbert (vectors of tokens).",
    )
    pooling: str | None = Field(default=None, description="similarity, retrieval: mean or cls; unset: mean.")
    temperature: float | None = Field(
        default=None,
        gt=0,
        description="similarity, retrieval: what cosines are divided by in the loss; unset: 0.05. With a teacher of"
        " classes: what logits are divided by; unset: 2.",
    )
    negative_column: str | None = Field(
        default=None,
        description="similarity, retrieval, rerank: the column of texts that do not belong to the first.",
    )
    num_negatives: int | None = Field(
        default=None,
        ge=0,
        description="retrieval, rerank: hard negatives of a query; unset: those there are, at most 4.",
    )
    symmetric: bool = Field(default=False, description="retrieval: documents are to find their queries too.")
    false_negative_margin: float | None = Field(
        default=None,
        description="retrieval: what is nearer to a query than its document by more than this cosine is no negative.",
    )
    dims: str | None = Field(
        default=None, description="retrieval: lengths of prefixes that are to be vectors too: 256,128,64."
    )
    query_prompt: str = Field(default="", description="retrieval: put before each query.")
    document_prompt: str = Field(default="", description="retrieval: put before each document.")
    query_flops: float | None = Field(
        default=None, ge=0, description="retrieval of kind splade: weight of what makes queries sparse; unset: 5e-5."
    )
    document_flops: float | None = Field(
        default=None, ge=0, description="retrieval of kind splade: weight of what makes documents sparse; unset: 3e-5."
    )
    width: int | None = Field(
        default=None, ge=1, description="retrieval of kind colbert: numbers of a token's vector; unset: 128."
    )
    query_length: int | None = Field(
        default=None,
        ge=0,
        description="retrieval of kind colbert: tokens that queries are cut or filled up to; 0: neither; unset: 32.",
    )
    metric: str | None = Field(default=None, description="What early stopping and tables go by; unset: the task's own.")
    patience: int | None = Field(
        default=None, ge=1, description="Stop after so many epochs without a better metric, and go back to the best."
    )

    def save(self, path: str | Path) -> None:
        write_text(Path(path), dump_yaml(self.model_dump()))


def build_task_config(values: Mapping[str, Any]) -> TaskConfig:
    return TaskConfig.read(values)


def load_task_config(path: str | Path) -> TaskConfig:
    values = read_yaml(Path(path))
    if not isinstance(values, dict):
        raise InputError(f"{path} holds a {type(values).__name__}; expected the settings of a task")
    try:
        return build_task_config(values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
