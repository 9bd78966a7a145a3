"""Question answering computes what transformers computes: logits, loss and every gradient, padded and packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from parity_lab import MAGNITUDE, NUM_TERMS, SETTINGS, build_inputs, compare_gradients, pack, pad
from transformers import AutoConfig, AutoModelForQuestionAnswering

from maskwright.batch import IGNORED_LABEL
from maskwright.tasks.loader import AskedBatch
from maskwright.tasks.model import TaskModel
from maskwright.tasks.qa.answers import OUTSIDE, find_best_spans
from maskwright.tasks.qa.question_answering import QuestionAnswering
from tolerances import assert_rounded

FAMILIES = [family for family in SETTINGS if family != "modernbert-cls"]
"""One of the two ModernBERTs: there is no pooling here."""
PLACES = torch.tensor([[2, 5], [0, 0], [16, 16], [0, 0]])


def build_theirs(family: str) -> Any:
    torch.manual_seed(0)
    model_type, settings = SETTINGS[family]
    theirs = AutoModelForQuestionAnswering.from_config(AutoConfig.for_model(model_type, **settings, qa_dropout=0.0))
    for param in theirs.parameters():  # large enough to tell mistakes
        torch.nn.init.normal_(param, std=0.3)
    return theirs.eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_rows_give_the_logits_loss_and_gradients_of_transformers(family: str, tmp_path: Path) -> None:
    """Their loss lets padding take part, so theirs is computed text by text."""
    theirs = build_theirs(family)
    theirs.save_pretrained(tmp_path)
    ours = TaskModel.from_pretrained(tmp_path)
    assert isinstance(ours.task, QuestionAnswering)
    texts = build_inputs()
    singles = [
        theirs(input_ids=text[None], start_positions=place[None, 0], end_positions=place[None, 1])
        for text, place in zip(texts, PLACES, strict=True)
    ]
    expected = torch.stack([one.loss for one in singles]).mean()
    expected.backward()

    packed = pack(texts, PLACES)
    logits = ours.predict(packed)
    assert_rounded(logits[0, :9, 0], singles[0].start_logits[0], NUM_TERMS, MAGNITUDE)
    assert_rounded(logits[1, :17, 1], singles[2].end_logits[0], NUM_TERMS, MAGNITUDE)
    sums = ours.loss_sums(AskedBatch.of(packed))
    loss = sums.loss_sum / sums.num_labelled
    assert_rounded(loss, expected, NUM_TERMS, MAGNITUDE)

    ids, mask = pad(texts)
    padded = ours(input_ids=ids, attention_mask=mask, labels=PLACES)
    with_padding = theirs(input_ids=ids, attention_mask=mask)
    is_real = mask.bool()
    for side, given in enumerate((with_padding.start_logits, with_padding.end_logits)):
        assert_rounded(padded.logits[..., side][is_real], given[is_real], NUM_TERMS, MAGNITUDE)
    assert_rounded(padded.loss, expected, NUM_TERMS, MAGNITUDE)
    loss.backward()
    compare_gradients(ours, theirs)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_is_read_by_transformers(family: str, tmp_path: Path) -> None:
    theirs = build_theirs(family)
    theirs.save_pretrained(tmp_path / "theirs")
    TaskModel.from_pretrained(tmp_path / "theirs").save_pretrained(tmp_path / "ours")
    again = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "ours")
    assert type(again) is type(theirs)
    state = again.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in theirs.state_dict().items())


def test_nothing_is_learned_where_nothing_is_asked(tmp_path: Path) -> None:
    build_theirs("bert").save_pretrained(tmp_path)
    model = TaskModel.from_pretrained(tmp_path)
    places = PLACES.clone()
    places[[0, 2]] = IGNORED_LABEL
    some = model.loss_sums(AskedBatch.of(pack(build_inputs(), places)))
    assert int(some.num_labelled) == 2
    some.loss_sum.backward()
    assert all(param.grad is not None and bool(param.grad.isfinite().all()) for param in model.parameters())
    none = model.loss_sums(AskedBatch.of(pack(build_inputs(), torch.full_like(places, IGNORED_LABEL))))
    assert (none.loss_sum.item(), int(none.num_labelled), none.figures.tolist()) == (0.0, 0, [0.0, 0.0])


def test_windows_are_scored_by_the_tokens_they_share() -> None:
    """Start and end stand at places 3 and 4 of both documents; the right answers are 3 to 4, and 4 to 6."""
    logits = torch.zeros(1, 2, 8, 3)
    logits[..., 3, 0], logits[..., 4, 1] = 9.0, 9.0
    logits[..., 2:, 2] = 1.0
    sums = QuestionAnswering().loss_sums(logits, torch.tensor([[[3, 4], [4, 6]]]))
    assert sums.figures.tolist() == pytest.approx([1.0, 1.0 + 2 * 1 / 5])
    logits[:, :, 0, :2] = 10.0
    sums = QuestionAnswering().loss_sums(logits, torch.tensor([[[0, 0], [4, 6]]]))
    assert sums.figures.tolist() == [1.0, 1.0]


def test_the_best_spans_are_those_of_all_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    starts, ends = torch.randn(2, 3, 15, generator=generator)
    is_context = torch.rand(3, 15, generator=generator) < 0.8
    spans = find_best_spans(starts, ends, is_context, max_length=4, num_spans=7)
    for row in range(3):
        pairs = [
            (float(starts[row, first] + ends[row, last]), first, last)
            for first in range(15)
            for last in range(first, min(15, first + 4))
            if is_context[row, first] and is_context[row, last]
        ]
        expected = sorted(pairs, reverse=True)[:7]
        found = list(zip(*(one[row].tolist() for one in (spans.scores, spans.starts, spans.ends)), strict=True))
        assert [one[1:] for one in found] == [one[1:] for one in expected]
        assert [one[0] for one in found] == [one[0] for one in expected]


def test_spans_that_are_none_are_known_by_their_score() -> None:
    """Two tokens have three spans; one of the two may not begin or end an answer."""
    spans = find_best_spans(torch.ones(2), torch.ones(2), torch.tensor([False, True]), max_length=30, num_spans=6)
    assert spans.scores[0] == 2.0
    assert (int(spans.starts[0]), int(spans.ends[0])) == (1, 1)
    assert bool((spans.scores[1:] <= OUTSIDE).all())
