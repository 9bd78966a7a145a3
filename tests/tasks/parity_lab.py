"""The shapes, texts and comparisons that the parity tests of all tasks share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskwright.batch import fill_missing
from maskwright.tasks.loader import TaskBatch
from maskwright.tasks.model import TaskModel
from tolerances import assert_rounded, count_terms

VOCAB_SIZE = 90
SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TOKENS = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
DISTILBERT = {
    "vocab_size": VOCAB_SIZE,
    "dim": 24,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 32,
    "max_position_embeddings": 40,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "seq_classif_dropout": 0.0,
}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", SHAPE | NO_DROPOUT),
    "roberta": ("roberta", SHAPE | NO_DROPOUT | {"type_vocab_size": 1}),
    "xlm-roberta": ("xlm-roberta", SHAPE | NO_DROPOUT | {"type_vocab_size": 1}),
    "distilbert": ("distilbert", DISTILBERT),
    "albert": ("albert", SHAPE | NO_DROPOUT | {"embedding_size": 16, "classifier_dropout_prob": 0.0}),
    "electra": ("electra", SHAPE | NO_DROPOUT | {"embedding_size": 16}),
    "mpnet": ("mpnet", SHAPE | NO_DROPOUT),
    "modernbert-cls": ("modernbert", SHAPE | TOKENS | {"classifier_pooling": "cls"}),
    "modernbert-mean": (
        "modernbert",
        SHAPE | TOKENS | {"classifier_pooling": "mean", "classifier_bias": True, "classifier_activation": "relu"},
    ),
}
LENGTHS = (9, 4, 17, 1)
NUM_TERMS = count_terms(num_layers=2, width=24, length=21)  # of the longest row, packed
MAGNITUDE = 0.3 * 24**0.5  # of sums of normed states times weights, and of what comes back through them


def build_inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, VOCAB_SIZE, (length,), generator=generator) for length in LENGTHS]


def pad(texts: list[Tensor]) -> tuple[Tensor, Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    lengths = torch.tensor([len(text) for text in texts])
    return ids, (torch.arange(ids.shape[1]) < lengths[:, None]).long()


def pack(texts: list[Tensor], labels: Tensor) -> TaskBatch:
    """Two rows: texts 0 and 3, texts 2 and 1; one row has padding at its end."""
    rows, length = [(0, 3), (2, 1)], 21
    ids, documents, positions, samples = torch.zeros(4, 2, length, dtype=torch.long)
    targets = fill_missing((2, 2, *labels.shape[1:]), labels.dtype)
    for row, numbers in enumerate(rows):
        start = 0
        for place, number in enumerate(numbers):
            stop = start + len(texts[number])
            ids[row, start:stop], documents[row, start:stop] = texts[number], place + 1
            positions[row, start:stop], samples[row, start:stop] = torch.arange(stop - start), number
            targets[row, place] = labels[number]
            start = stop
    return TaskBatch(ids, documents, positions, samples, targets=targets)


def compare_gradients(ours: TaskModel, theirs: Any) -> None:
    """Their gradients are laid into a copy of our model under our names, by loading them as weights."""
    expected = {name: param.grad for name, param in theirs.named_parameters() if param.grad is not None}
    with torch.no_grad():
        for param in ours.parameters():
            assert param.grad is not None
            param.copy_(param.grad)
    written = ours.snapshot().weights
    compared = [name for name in written if name in expected]
    assert len(compared) >= len(expected) - 1  # a table of token types that nothing reads
    found, exact = ({name: tensors[name] for name in compared} for tensors in (written, expected))
    assert_rounded(found, exact, 2 * NUM_TERMS, MAGNITUDE)
