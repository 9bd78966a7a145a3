"""Token classifiers compute what transformers computes, packed and padded, and go back and forth between the two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from parity_lab import LENGTHS, MAGNITUDE, NUM_TERMS, SETTINGS, build_inputs, compare_gradients, pad
from torch import Tensor
from transformers import AutoConfig, AutoModelForTokenClassification

from maskwright.batch import IGNORED_LABEL, fill_missing
from maskwright.tasks.heads import build_token_head
from maskwright.tasks.loader import AskedBatch, TaskBatch
from maskwright.tasks.model import TaskModel
from maskwright.tasks.new_model import adopt_dense, load_pretrained
from tolerances import assert_rounded

CLASSES = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
FAMILIES = [name for name in SETTINGS if name != "modernbert-mean"]


def build_theirs(family: str) -> Any:
    torch.manual_seed(0)
    model_type, settings = SETTINGS[family]
    config = AutoConfig.for_model(model_type, **settings, num_labels=len(CLASSES))
    config.id2label = dict(enumerate(CLASSES))
    config.label2id = {name: number for number, name in enumerate(CLASSES)}
    theirs = AutoModelForTokenClassification.from_config(config)
    for param in theirs.parameters():  # large enough to tell mistakes
        torch.nn.init.normal_(param, std=0.3)
    return theirs.eval()


def build_labels() -> list[Tensor]:
    """Some tokens of each text are no first piece of a word."""
    generator = torch.Generator().manual_seed(2)
    labels = [torch.randint(0, len(CLASSES), (length,), generator=generator) for length in LENGTHS]
    for row in labels[:3]:
        row[torch.rand(len(row), generator=generator) < 0.4] = IGNORED_LABEL
    return labels


def pack(texts: list[Tensor], labels: list[Tensor]) -> TaskBatch:
    """Two rows: texts 0 and 3, texts 2 and 1."""
    rows, length = [(0, 3), (2, 1)], 21
    ids, documents, positions, samples = torch.zeros(4, 2, length, dtype=torch.long)
    targets = fill_missing((2, 2, max(LENGTHS), 2), torch.int32)
    for row, numbers in enumerate(rows):
        start = 0
        for place, number in enumerate(numbers):
            stop = start + len(texts[number])
            ids[row, start:stop], documents[row, start:stop] = texts[number], place + 1
            positions[row, start:stop], samples[row, start:stop] = torch.arange(stop - start), number
            words = torch.nonzero(labels[number] != IGNORED_LABEL).flatten()
            targets[row, place, : len(words)] = torch.stack([words, labels[number][words]], dim=1).int()
            start = stop
    return TaskBatch(ids, documents, positions, samples, targets=targets)


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_rows_give_the_logits_loss_and_gradients_of_transformers(family: str, tmp_path: Path) -> None:
    theirs = build_theirs(family)
    theirs.save_pretrained(tmp_path)
    ours = TaskModel.from_pretrained(tmp_path)
    texts, labels = build_inputs(), build_labels()
    ids, mask = pad(texts)
    padded_labels = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=IGNORED_LABEL)
    expected = theirs(input_ids=ids, attention_mask=mask, labels=padded_labels)
    expected.loss.backward()

    packed = pack(texts, labels)
    logits = ours.predict(packed)
    assert_rounded(logits[0, :9], expected.logits[0, :9], NUM_TERMS, MAGNITUDE)
    assert_rounded(logits[0, 9:10], expected.logits[3, :1], NUM_TERMS, MAGNITUDE)
    assert_rounded(logits[1, :17], expected.logits[2, :17], NUM_TERMS, MAGNITUDE)
    assert_rounded(logits[1, 17:21], expected.logits[1, :4], NUM_TERMS, MAGNITUDE)
    padded = ours(input_ids=ids, attention_mask=mask, labels=padded_labels)
    is_real = mask.bool()
    assert_rounded(padded.logits[is_real], expected.logits[is_real], NUM_TERMS, MAGNITUDE)
    assert_rounded(padded.loss, expected.loss, NUM_TERMS, MAGNITUDE)
    sums = ours.loss_sums(AskedBatch.of(packed))
    assert int(sums.num_labelled) == int((padded_labels != IGNORED_LABEL).sum())
    loss = sums.loss_sum / sums.num_labelled
    assert_rounded(loss, expected.loss, NUM_TERMS, MAGNITUDE)
    loss.backward()
    compare_gradients(ours, theirs)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_is_read_by_transformers_with_its_labels(family: str, tmp_path: Path) -> None:
    theirs = build_theirs(family)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = TaskModel.from_pretrained(tmp_path / "theirs")
    ours.save_pretrained(tmp_path / "ours")
    again = AutoModelForTokenClassification.from_pretrained(tmp_path / "ours").eval()
    assert type(again) is type(theirs)
    assert again.config.id2label == dict(enumerate(CLASSES))
    state = again.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in theirs.state_dict().items())
    ids, mask = pad(build_inputs())
    expected = ours(input_ids=ids, attention_mask=mask).logits[mask.bool()]
    assert_rounded(again(input_ids=ids, attention_mask=mask).logits[mask.bool()], expected, NUM_TERMS, MAGNITUDE)


def test_a_text_of_one_token_keeps_the_place_of_its_token(tmp_path: Path) -> None:
    build_theirs("bert").save_pretrained(tmp_path)
    ours = TaskModel.from_pretrained(tmp_path)
    assert ours(input_ids=torch.tensor([[7], [8]])).logits.shape == (2, 1, len(CLASSES))


def test_what_pretraining_left_of_modernberts_head_is_kept_and_its_classifier_is_new(tmp_path: Path) -> None:
    build_theirs("modernbert-cls").save_pretrained(tmp_path)
    encoder, config, weights = load_pretrained(tmp_path)
    task_head = build_token_head(encoder, len(CLASSES), config)
    assert adopt_dense(task_head, encoder, weights)
    state = task_head.state_dict()
    assert torch.equal(state["transform.dense.weight"], weights["head.dense.weight"])
    assert torch.equal(state["transform.norm.weight"], weights["head.norm.weight"])
    assert not torch.equal(state["transform.output.weight"], weights["classifier.weight"])
