"""What a notebook shows: models, answers and runs as HTML of their own, whose style stays inside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import maskwright as mw
from maskwright.inference.answers import Answers
from maskwright.inference.fill_mask import Candidate
from maskwright.pictures.look import frame_cell
from maskwright.runs.folder import RunFolder
from maskwright.runs.pretrain import Finished


def test_the_style_of_a_cell_is_inside_of_its_own_block() -> None:
    shown = frame_cell("<p>body</p>")
    style = shown.partition("<style>")[2].partition("</style>")[0]
    assert style.startswith(".maskwright {")
    assert style.endswith("}")
    depth = 0
    for place, letter in enumerate(style):  # the first block closes at the very end
        depth += (letter == "{") - (letter == "}")
        assert depth > 0 or place < len(".maskwright {") or place == len(style) - 1
    assert "--hue-0: #" in style
    assert ".chart .curve" in style
    assert "url(" not in style


def test_models_show_their_size_and_shape() -> None:
    encoder = mw.BERT.from_variant("tiny", vocab_size=300)
    model = mw.MaskedLanguageModel(encoder, vocab_size=300, mask_ratio=0.25)
    for parameter in encoder.parameters():
        parameter.requires_grad = False
    shown = model._repr_html_()
    total = sum(parameter.numel() for parameter in model.parameters())
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert f"<th>parameters</th><td>{total:,}, of which {trained:,} are trained</td>" in shown
    assert "<caption>MaskedLanguageModel</caption>" in shown
    assert "<th>masked tokens</th><td>25%</td>" in shown
    assert "<th>encoder</th><td>BERT</td>" in shown
    assert "<th>layers</th><td>4</td>" in encoder._repr_html_()
    assert "<th>encoder</th>" not in encoder._repr_html_()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([{"label": "a<b", "score": 0.75}], ["0.750 a&lt;b", "width: 4.50em"]),
        ([Candidate(0.5, 7, "dog", "a dog")], ["0.500 dog"]),
        ({"labels": ["x", "y"], "scores": [0.9, 0.1]}, ["0.900 x", "0.100 y"]),
        ([{"entity_group": "PER", "word": "Ada", "score": 0.99}], ["0.990 Ada <b>PER</b>"]),
        ({"score": -0.25}, ["width: 0.00em", "-0.250"]),
        (np.zeros(4), ["vector of 4 numbers"]),
        (np.zeros((3, 4)), ["vector of 4 numbers for each of 3 tokens"]),
        (None, ["no text"]),
        ([{"label": "a", "score": 0.0}] * 12, ["and 2 more"]),
    ],
)
def test_answers_of_every_kind_become_a_table(answer: object, words: list[str]) -> None:
    answers = Answers([answer], ["asked <i>"])
    assert len(answers) == 1
    shown = answers._repr_html_()
    assert "asked &lt;i&gt;" in shown
    for one in words:
        assert one in shown


def test_answers_are_a_list_and_long_ones_are_cut() -> None:
    assert Answers([1, 2]) == [1, 2]
    assert "and 10 more" in Answers(range(60))._repr_html_()


def test_functions_return_what_a_notebook_can_show(trained_run: Path) -> None:
    filled = mw.fill(trained_run, "the cat [MASK] a long road", top_k=2)
    assert isinstance(filled, list)
    assert "the cat [MASK] a long road" in filled._repr_html_()
    embedded = mw.predict("embed", trained_run, ["the cat", "a dog"])
    assert [len(one) for one in embedded] == [len(embedded[0])] * 2
    assert "<th>a dog</th><td>vector of " in embedded._repr_html_()
    run = RunFolder(trained_run)
    shown = Finished(run, run.read_final())._repr_html_()
    assert "held-out loss" in shown
    assert "<svg" in shown
