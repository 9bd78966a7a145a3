"""Heads for encoders of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from task_lab import build_records
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

import maskwright as mw
from maskwright.errors import InputError
from maskwright.models.bert import BERT
from maskwright.tasks.nlp_heads import NLPTaskConfig, NLPTaskType, create_nlp_head
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tiny_bert import build_tiny_bert

WIDTH = 32
SHORT: dict[str, Any] = {
    "epochs": 1,
    "batch_size": 8,
    "learning_rate": 5e-3,
    "settings": {"training.device": "cpu", "training.precision": "fp32"},
    "console": Console(quiet=True),
}


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take longer than the runs."""
    monkeypatch.setattr("maskwright.runs.finetune.finetune.write_task_report", lambda *given, **named: [])


class BagOfWords(nn.Module):
    """An encoder of the user's own: each state has the mean of all tokens in it."""

    hidden_size = WIDTH

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, WIDTH)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        vectors, weights = self.embedding(input_ids), attention_mask[..., None].float()
        mean = (vectors * weights).sum(1, keepdim=True) / weights.sum(1, keepdim=True)
        return {"last_hidden_state": vectors + mean}


def take_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    return [(one["text"], one["label"]) for one in build_records(count, seed)]


def make_head(kind: NLPTaskType = NLPTaskType.SENTIMENT_ANALYSIS, num_classes: int | None = 2, **options: Any) -> Any:
    return create_nlp_head(NLPTaskConfig("mine", kind, num_classes, **options), input_dim=WIDTH)


def test_a_head_answers_with_a_logit_for_each_class() -> None:
    encoder = BERT.from_variant("tiny", hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=20)
    head = create_nlp_head(NLPTaskConfig("sentiment", NLPTaskType.SENTIMENT_ANALYSIS, num_classes=3), input_dim=16)
    output = head(encoder(input_ids=torch.randint(0, 20, (4, 6))))
    assert output.logits.shape == (4, 3)
    assert output["logits"] is output.logits
    output.logits.sum().backward()
    assert encoder.embeddings.word.weight.grad is not None


def test_a_measure_is_one_number_of_a_plain_dictionary() -> None:
    head = create_nlp_head(NLPTaskConfig("sts", NLPTaskType.TEXT_SIMILARITY), input_dim=8)
    assert head({"last_hidden_state": torch.randn(2, 3, 8)}).logits.shape == (2, 1)


def test_dropout_is_the_tasks() -> None:
    head = create_nlp_head(NLPTaskConfig("x", NLPTaskType.TEXT_CLASSIFICATION, 2, dropout_rate=0.7), input_dim=8)
    assert head.transform.dropout.p == 0.7


@pytest.mark.parametrize(
    ("kind", "num_classes", "words"),
    [
        (NLPTaskType.SENTIMENT_ANALYSIS, None, "'x' has num_classes=None; it needs at least 2"),
        (NLPTaskType.SENTIMENT_ANALYSIS, 1, "it needs at least 2"),
        (NLPTaskType.TEXT_SIMILARITY, 3, "a measure has one number"),
    ],
)
def test_a_task_without_a_fitting_number_of_classes_is_refused(
    kind: NLPTaskType, num_classes: int | None, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        NLPTaskConfig("x", kind, num_classes)


def test_a_width_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="input_dim is 0"):
        create_nlp_head(NLPTaskConfig("x", NLPTaskType.TEXT_SIMILARITY), input_dim=0)


def test_a_head_and_an_encoder_are_a_model_with_the_loss_of_the_task(tokenizer: Tokenizer) -> None:
    encoder, head = BagOfWords(tokenizer.vocab_size), make_head(num_classes=3, dropout_rate=0.0)
    model = mw.TaskModel(encoder, head)
    ids, labels = torch.tensor([tokenizer.encode("the cat"), tokenizer.encode("a dog")]), torch.tensor([2, 0])
    output = model(input_ids=ids, labels=labels)
    logits = head(encoder(ids, torch.ones_like(ids))).logits
    torch.testing.assert_close(output.logits, logits)
    torch.testing.assert_close(output.loss, F.cross_entropy(logits, labels))
    output.loss.backward()
    assert all(param.grad is not None for param in model.parameters())


def test_a_head_on_an_encoder_of_ones_own_is_trained_saved_and_loaded(tokenizer: Tokenizer, tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder, train, validation = BagOfWords(tokenizer.vocab_size), take_pairs(64, 0), take_pairs(32, 1)
    finished = mw.finetune(
        "classification",
        tmp_path / "run",
        model=encoder,
        tokenizer=tokenizer,
        head=make_head(),
        train=train,
        validation=validation,
        **{**SHORT, "epochs": 6, "learning_rate": 2e-2},
    )
    assert finished.scores["accuracy"] > 0.9
    with pytest.raises(
        InputError, match=r"model around a BagOfWords; build that encoder and pass it as from_pretrained"
    ):
        _ = finished.model
    model = mw.TaskModel.from_pretrained(str(tmp_path / "run"), encoder=BagOfWords(tokenizer.vocab_size))
    answers = mw.predict("classify", model, [text for text, _ in validation], tokenizer=tokenizer)
    right = sum(answer["label"] == label for answer, (_, label) in zip(answers, validation, strict=True))
    assert right / len(validation) == finished.scores["accuracy"]


def test_a_head_that_computes_as_the_familys_is_saved_as_it(
    tokenizer: Tokenizer, encoder_folder: Path, tmp_path: Path
) -> None:
    pairs = take_pairs(16, 0)
    options = {"model": encoder_folder, "train": pairs, "validation": pairs, **SHORT}
    finished = mw.finetune("classification", tmp_path / "run", head=make_head(dropout_rate=0.3), **options)
    theirs = AutoModelForSequenceClassification.from_pretrained(finished.runs[0].model).eval()
    assert theirs.config.classifier_dropout == 0.3
    ids = torch.tensor([tokenizer.encode("the cat likes a road")])
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, finished.model(ids).logits, rtol=1e-5, atol=1e-5)


def test_any_other_head_is_ours_alone_and_comes_back_as_it_was(tokenizer: Tokenizer, tmp_path: Path) -> None:
    shape = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 32}
    encoder = mw.ModernBERT.from_variant("tiny", vocab_size=tokenizer.vocab_size, **shape)
    pairs = take_pairs(16, 0)
    finished = mw.finetune(
        "classification",
        tmp_path / "run",
        model=encoder,
        tokenizer=tokenizer,
        head=make_head(),
        train=pairs,
        validation=pairs,
        **SHORT,
    )
    answers = mw.predict("classify", finished.model, [text for text, _ in pairs], tokenizer=tokenizer)
    right = sum(answer["label"] == label for answer, (_, label) in zip(answers, pairs, strict=True))
    assert right / len(pairs) == finished.scores["accuracy"]
    assert type(finished.model.task_head) is type(make_head())
    with pytest.raises(ValueError, match="maskwright_modernbert"):
        AutoModelForSequenceClassification.from_pretrained(finished.runs[0].model)


def test_heads_for_entities_and_answers_train(tokenizer: Tokenizer, encoder_folder: Path, tmp_path: Path) -> None:
    assert NLPTaskType.NER is NLPTaskType("named_entity_recognition")
    assert NLPTaskType.QA is NLPTaskType("question_answering")
    tagged = [(["the", "cat", "sees", "it"], ["O", "B-PER", "O", "O"])] * 4
    head = make_head(NLPTaskType.NER, None, labels=["O", "B-PER", "I-PER"])
    run = mw.finetune(
        "ner", tmp_path / "ner", model=encoder_folder, head=head, train=tagged, validation=tagged, **SHORT
    )
    theirs = AutoModelForTokenClassification.from_pretrained(run.runs[0].model).eval()
    ids = torch.tensor([tokenizer.encode("the cat")])
    with torch.no_grad():
        torch.testing.assert_close(theirs(ids).logits, run.model(ids).logits, rtol=1e-5, atol=1e-5)
    asked = [("who sees it", "the cat sees it", "the cat")] * 4
    head = make_head(NLPTaskType.QA, None)
    run = mw.finetune("qa", tmp_path / "qa", model=encoder_folder, head=head, train=asked, validation=asked, **SHORT)
    assert run.model.task_head(torch.zeros(1, 5, WIDTH), None, 1).shape == (1, 5, 2)
    assert head({"last_hidden_state": torch.zeros(2, 5, WIDTH)}).logits.shape == (2, 5, 2)


@pytest.mark.parametrize(
    ("task", "head", "words"),
    [
        (
            "classification",
            make_head(num_classes=3),
            "has 3 classes, the examples have 2; create it with num_classes=2",
        ),
        ("classification", make_head(NLPTaskType.NER), "is for named_entity_recognition, which is ner, not class"),
        ("classification", make_head(NLPTaskType.QA, None), "which is qa, not classification"),
        (
            "classification",
            make_head(num_classes=None, labels=["good", "bad"]),
            "the labels good, bad, the examples bad",
        ),
    ],
)
def test_a_head_that_does_not_fit_the_examples_is_refused(
    encoder_folder: Path, tmp_path: Path, task: str, head: Any, words: str
) -> None:
    pairs = take_pairs(16, 0)
    with pytest.raises(InputError, match=words):
        mw.finetune(task, tmp_path / "run", model=encoder_folder, head=head, train=pairs, validation=pairs, **SHORT)
    assert not (tmp_path / "run").exists()


def test_a_head_of_another_width_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="states of width 32, the encoder's have 16; create it with input_dim=16"):
        mw.TaskModel(build_tiny_bert(tokenizer, hidden_size=16), make_head())
