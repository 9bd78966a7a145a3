"""Fine-tuned models compute what transformers computes: logits, loss and every gradient, padded and packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from parity_lab import MAGNITUDE, NUM_TERMS, SETTINGS, build_inputs, compare_gradients, pack, pad
from transformers import AutoConfig, AutoModelForSequenceClassification

from maskwright.batch import PackedBatch
from maskwright.tasks.loader import AskedBatch
from maskwright.tasks.model import TaskModel
from tolerances import assert_rounded

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
