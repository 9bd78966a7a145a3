"""Fine-tuned models compute what transformers computes: logits, loss and every gradient, padded and packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification

from maskwright.batch import PackedBatch, fill_missing
from maskwright.tasks.loader import AskedBatch, TaskBatch
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
PROBLEMS = {
    "single_label_classification": (3, torch.tensor([2, 0, 1, 1])),
    "multi_label_classification": (3, torch.tensor([[1.0, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]])),
    "regression": (1, torch.tensor([0.5, -2.0, 3.25, 0.0])),
}


def build_theirs(family: str, problem: str) -> Any:
    torch.manual_seed(0)
    model_type, settings = SETTINGS[family]
    config = AutoConfig.for_model(model_type, **settings, num_labels=PROBLEMS[problem][0], problem_type=problem)
    theirs = AutoModelForSequenceClassification.from_config(config)
    for param in theirs.parameters():  # large enough to tell mistakes
        torch.nn.init.normal_(param, std=0.3)
    return theirs.eval()


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


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("family", SETTINGS)
def test_packed_rows_give_the_logits_loss_and_gradients_of_transformers(
    family: str, problem: str, tmp_path: Path
) -> None:
    theirs = build_theirs(family, problem)
    theirs.save_pretrained(tmp_path)
    ours = TaskModel.from_pretrained(tmp_path)
    texts, labels = build_inputs(), PROBLEMS[problem][1]
    ids, mask = pad(texts)
    expected = theirs(input_ids=ids, attention_mask=mask, labels=labels)
    expected.loss.backward()

    packed = pack(texts, labels)
    logits = ours.predict(packed)
    in_order = torch.stack([logits[0, 0], logits[1, 1], logits[1, 0], logits[0, 1]])
    assert_rounded(in_order, expected.logits, NUM_TERMS, MAGNITUDE)
    sums = ours.loss_sums(AskedBatch.of(packed))
    loss = sums.loss_sum / sums.num_labelled
    assert_rounded(loss, expected.loss, NUM_TERMS, MAGNITUDE)
    padded = ours(input_ids=ids, attention_mask=mask, labels=labels)
    assert_rounded(padded.logits, expected.logits, NUM_TERMS, MAGNITUDE)
    assert_rounded(padded.loss, expected.loss, NUM_TERMS, MAGNITUDE)
    loss.backward()
    compare_gradients(ours, theirs)


@pytest.mark.parametrize("family", SETTINGS)
def test_a_saved_model_is_read_by_transformers_with_its_labels(family: str, tmp_path: Path) -> None:
    theirs = build_theirs(family, "single_label_classification")
    theirs.config.id2label = {0: "bad", 1: "fair", 2: "good"}
    theirs.config.label2id = {"bad": 0, "fair": 1, "good": 2}
    theirs.save_pretrained(tmp_path / "theirs")
    ours = TaskModel.from_pretrained(tmp_path / "theirs")
    ours.save_pretrained(tmp_path / "ours")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "ours")
    assert type(again) is type(theirs)
    assert again.config.id2label == {0: "bad", 1: "fair", 2: "good"}
    assert again.config.label2id == {"bad": 0, "fair": 1, "good": 2}
    assert again.config.problem_type == "single_label_classification"
    state = again.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in theirs.state_dict().items())
    ids, mask = pad(build_inputs())
    expected = ours(input_ids=ids, attention_mask=mask).logits
    assert_rounded(again.eval()(input_ids=ids, attention_mask=mask).logits, expected, NUM_TERMS, MAGNITUDE)


def test_a_model_loads_back_bit_equal(tmp_path: Path) -> None:
    build_theirs("modernbert-mean", "regression").save_pretrained(tmp_path / "theirs")
    ours = TaskModel.from_pretrained(tmp_path / "theirs")
    ours.save_pretrained(tmp_path / "ours")
    again = TaskModel.from_pretrained(tmp_path / "ours")
    assert ours.state_dict().keys() == again.state_dict().keys()
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in ours.state_dict().items())


def test_gradients_reach_only_what_is_not_frozen(tmp_path: Path) -> None:
    build_theirs("bert", "regression").save_pretrained(tmp_path)
    model = TaskModel.from_pretrained(tmp_path)
    model.freeze_layers(1)
    frozen = {name for name, param in model.named_parameters() if not param.requires_grad}
    assert all(name.startswith(("encoder.embeddings.", "encoder.layers.0.")) for name in frozen)
    assert {name.split(".")[1] for name in frozen} == {"embeddings", "layers"}
    packed = pack(build_inputs(), PROBLEMS["regression"][1])
    assert isinstance(packed, PackedBatch)
    model.loss_sums(AskedBatch.of(packed)).loss_sum.backward()
    assert {name for name, param in model.named_parameters() if param.grad is None} == frozen
