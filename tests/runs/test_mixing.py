"""Several languages in a run: their mixture, their held-out figures, and text that nothing is learnt from."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from rich.console import Console

from maskwright.config import build_config
from maskwright.errors import InputError
from maskwright.runs.inputs import load_data
from maskwright.runs.mixing import mix_sources, split_held_out
from maskwright.runs.objective import find_mask_ratio
from maskwright.runs.pause import RunPaused
from maskwright.runs.pretrain import pretrain

PHASES = [
    {"until": 0.5, "mask_ratio": 0.3, "sampling_alpha": 0.7},
    {"until": 0.75, "mask_ratio": 0.15},
    {"mask_ratio": 0.05, "sampling_alpha": 0.0},
]


@pytest.fixture
def languages(tiny_values, sentences, tmp_path):
    """A large and a small source, and one that is never learnt from."""
    for name, texts in (("large", sentences), ("small", sentences[::9]), ("other", sentences[::15])):
        lines = [" ".join(reversed(text.split())) if name != "large" else text for text in texts]
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    tiny_values["data"]["train"] = [
        {"path": str(tmp_path / "large.txt")},
        {"path": str(tmp_path / "small.txt"), "name": "klein"},
    ]
    tiny_values["data"]["sampling_alpha"] = 0.5
    return tiny_values


def load(values):
    config = build_config(values)
    data = load_data(config, None, lambda text: None)
    mix_sources(config, data.train)
    split_held_out(config, data.validation)
    return config, data


def test_a_phase_has_its_mask_ratio_and_its_mixture(languages):
    languages["objective"] = PHASES
    languages["training"]["max_steps"] = None
    config, data = load(languages)
    assert [find_mask_ratio(config, progress) for progress in (0.0, 0.5, 0.8, 1.0)] == [0.3, 0.15, 0.05, 0.05]
    mixture = data.train.mixture
    assert mixture.phases == [(0.5, 0.7), (0.75, 0.5), (1.0, 0.0)]
    assert mixture.num_rows == 10 * data.train.num_rows
    shards = [data.train.locate_rows(epoch)[0] for epoch in (0, 9)]
    sizes = np.bincount(data.train.locate_rows(0)[0])
    assert (shards[1] == 1).mean() == pytest.approx(0.5, abs=0.05), sizes
    assert 0 < (shards[0] == 1).mean() < 0.45


def test_without_a_word_of_it_sources_are_read_by_their_weights(languages):
    del languages["data"]["sampling_alpha"]
    _, data = load(languages)
    assert data.train.mixture is None


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("augmentation", {"probability": 0.5}, r"set augmentation\.probability=0"),
        ("training", {"max_seconds": 5.0}, r"leave training\.max_seconds and training\.batch_tokens_start unset"),
        ("data", {"start": 0.5}, "give at least one of them start 0"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(languages, section, values, message):
    languages["objective"] = PHASES
    if "start" in values:
        for source in languages["data"]["train"]:
            source["start"] = 0.5
    else:
        languages.setdefault(section, {}).update(values)
    with pytest.raises(InputError, match=message) as refusal:
        load(languages)
    assert "\n" not in str(refusal.value)


def test_text_that_is_learnt_from_is_not_unseen(languages):
    languages["data"]["unseen"] = languages["data"]["train"][:1]
    with pytest.raises(InputError, match=r"data\.unseen holds .*large\.txt, which data\.train learns from"):
        pretrain(build_config(languages), console=Console(quiet=True))


def test_a_run_tells_what_it_knows_of_each_language(languages, tmp_path):
    languages["data"]["unseen"] = [str(tmp_path / "other.txt")]
    languages["training"] |= {"evaluate_every_steps": 6}
    run = pretrain(build_config(languages), console=Console(quiet=True))
    final = json.loads(run.folder.final_file.read_text())
    assert set(final["sources"]) == {"large", "klein"}
    counts = [one["num_masked"] for one in final["sources"].values()]
    assert sum(counts) == final["num_masked"]
    losses = [one["loss"] for one in final["sources"].values()]
    mean = sum(loss * count for loss, count in zip(losses, counts, strict=True)) / sum(counts)
    assert mean == pytest.approx(final["loss"])
    assert final["unseen"]["other"]["loss"] > 0
    assert final["unseen"]["other"]["unigram_loss"] > 0
    evaluated = [json.loads(line) for line in run.folder.metrics_file.read_text().splitlines() if "val_loss" in line]
    assert all({"val_loss", "val_loss_large", "val_loss_klein"} <= line.keys() for line in evaluated)
    assert "klein" in run.folder.report_file.read_text()


def test_a_resumed_mixture_is_that_of_an_uninterrupted_run(languages, tmp_path):
    languages["objective"] = PHASES
    languages["data"]["train"][1]["start"] = 0.3
    whole = pretrain(build_config(languages), console=Console(quiet=True))
    languages["run"]["out"] = str(tmp_path / "again")
    with pytest.raises(RunPaused):
        pretrain(build_config(languages), console=Console(quiet=True), pause_at=0.4)
    resumed = pretrain(build_config(languages), console=Console(quiet=True))
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name
