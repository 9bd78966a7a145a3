"""Whole runs of similarity: they learn, resume exactly, and leave a folder whose vectors are those of training."""

from __future__ import annotations

import json
import shutil
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interruption import assert_resumes_exactly
from similarity_lab import build_pairs, build_scored_pairs, embed_padded, load, make_config, run, write_pairs
from task_lab import Lab, write_lines

from maskwright.errors import InputError
from maskwright.inference.pipeline import pipeline
from maskwright.runs.export import export_model
from maskwright.runs.export_options import ExportOptions
from maskwright.runs.finetune.inputs import load_task_inputs
from maskwright.tasks.model import TaskModel
from maskwright.tasks.similarity.text_similarity import ContrastiveSimilarity
from maskwright.text.tokenizer.tokenizer import load_tokenizer
from tolerances import assert_rounded, count_terms, rounding

NUM_TERMS = count_terms(num_layers=2, width=32, length=32)
TEXTS = ["the cat sees a long road", "one red bird", "my old teacher follows the green house before it rains"]


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests look at them, and they would take most of the time."""
    monkeypatch.setattr("maskwright.runs.finetune.finetune.write_task_report", lambda *given, **named: [])


@pytest.fixture
def pairs_lab(lab: Lab) -> Lab:
    write_pairs(lab, build_pairs(96, seed=0), build_pairs(40, seed=1))
    return lab


def read_final(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "final.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("loss", [pytest.param("cosine", marks=pytest.mark.slow), "contrastive"])
def test_a_run_learns_which_texts_belong_together(lab: Lab, tmp_path: Path, loss: str) -> None:
    build = build_scored_pairs if loss == "cosine" else build_pairs
    pairs = build(40, seed=1)
    write_pairs(lab, build(96, seed=0), pairs)
    config = make_config(lab, loss=loss, epochs=6)
    before = load(lab, loss=loss)
    untrained = pipeline("similarity", before.encoder, before.tokenizer, pooling="mean")
    cosines = [one["score"] for one in untrained([(one["sentence1"], one["sentence2"]) for one in pairs])]
    labels = [one["score"] for one in pairs]
    finished = run(config, tmp_path / "run")
    (figures,) = finished.figures
    assert finished.metric == "pearson"
    assert figures["pearson"] > max(0.8, float(np.corrcoef(cosines, labels)[0, 1]))
    assert figures["spearman"] > 0.6
    after = pipeline("similarity", tmp_path / "run")([(one["sentence1"], one["sentence2"]) for one in pairs])
    assert np.corrcoef([one["score"] for one in after], labels)[0, 1] == pytest.approx(
        figures["pearson"], abs=rounding(NUM_TERMS)
    )


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_saved_folder_gives_the_vectors_of_training_everywhere(
    pairs_lab: Lab, tmp_path: Path, pooling: str
) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    run(make_config(pairs_lab, pooling=pooling, epochs=1), tmp_path / "run")
    model = TaskModel.from_pretrained(tmp_path / "run")
    assert isinstance(model.task, ContrastiveSimilarity)
    with torch.no_grad():
        expected = embed_padded(load(pairs_lab), model.encoder, TEXTS, pooling).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = np.stack(pipeline("embed", tmp_path / "run", normalize=True)(TEXTS))
    assert_rounded(ours, expected, NUM_TERMS)
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "run" / "model"), device="cpu")
    assert theirs.max_seq_length == 32
    assert_rounded(theirs.encode(TEXTS, normalize_embeddings=True), expected, NUM_TERMS)


def test_the_folder_needs_no_export_and_cuts_texts_where_training_did(pairs_lab: Lab, tmp_path: Path) -> None:
    run(make_config(pairs_lab, max_length=8, epochs=1), tmp_path / "run")
    settings = json.loads((tmp_path / "run" / "model" / "sentence_bert_config.json").read_text(encoding="utf-8"))
    assert settings["max_seq_length"] == 8
    assert load_tokenizer(tmp_path / "run" / "model").model_max_length == 8
    again = make_config(pairs_lab, model=str(tmp_path / "run"), max_length=16, epochs=1)
    run(again, tmp_path / "again")  # which may be longer
    assert load_tokenizer(tmp_path / "again" / "model").model_max_length == 16
    with pytest.raises(InputError, match="not a class of transformers; export it --to sentence-transformers"):
        export_model(str(tmp_path / "run"), ExportOptions("hf", tmp_path / "out"), print)


@pytest.mark.parametrize("is_installed", [True, False])
def test_an_export_adds_the_card_and_the_comparison(
    pairs_lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_installed: bool
) -> None:
    if is_installed:
        pytest.importorskip("sentence_transformers")
    else:
        monkeypatch.setattr("maskwright.export.similarity.find_reader", lambda package: None)
    run(make_config(pairs_lab, epochs=1), tmp_path / "run")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    said: list[str] = []
    options = ExportOptions("sentence-transformers", tmp_path / "out", texts=[str(tmp_path / "texts.txt")])
    folder = export_model(str(tmp_path / "run"), options, said.append)
    assert_rounded(
        np.stack(pipeline("embed", folder)(TEXTS)), np.stack(pipeline("embed", tmp_path / "run")(TEXTS)), NUM_TERMS
    )
    reader = "sentence-transformers" if is_installed else "maskwright's own reader"
    assert any(line.startswith(reader) and "vectors of" in line for line in said)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: sentence-similarity" in card
    assert "SentenceTransformer('out')" in card
    assert "| spearman |" in card


def test_an_interrupted_run_ends_as_an_uninterrupted_one(
    pairs_lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout, in the second epoch, with a watch on the correlation of the held-out pairs."""
    config = make_config(pairs_lab, patience=2)
    assert_resumes_exactly(partial(run, config), tmp_path, monkeypatch, dies_at=8)


def test_pairs_without_labels_are_judged_by_who_finds_whom(pairs_lab: Lab, tmp_path: Path) -> None:
    unlabelled = [
        {"anchor": f"{subject} {verb}", "positive": f"{subject} {verb} a long road"}
        for subject in ("the cat", "one red bird", "every student")
        for verb in ("sees", "likes", "carries")
    ]
    write_pairs(pairs_lab, unlabelled, unlabelled)
    finished = run(make_config(pairs_lab, epochs=4), tmp_path / "run")
    assert finished.metric == "accuracy"
    assert finished.figures[0]["accuracy"] == 1.0
    assert finished.figures[0]["pearson"] is None
    assert "spearman" not in finished.figures[0]


def test_hard_negatives_are_asked_of_the_training_file_alone(lab: Lab, tmp_path: Path) -> None:
    words = ("red", "blue", "green", "old")
    rows = [{"anchor": f"the {one}", "positive": f"a {one}", "hard": f"not {one}"} for one in words]
    write_lines(lab.folder / "train.jsonl", rows)
    write_lines(lab.folder / "validation.jsonl", [{key: row[key] for key in ("anchor", "positive")} for row in rows])
    config = lab.config("similarity", text_column=None, negative_column="hard", epochs=1)
    finished = run(config, tmp_path / "out")
    assert 0.0 <= finished.figures[0]["accuracy"] <= 1.0
    with pytest.raises(InputError, match="has no column 'harder'"):
        run(lab.config("similarity", text_column=None, negative_column="harder"), tmp_path / "other")


def test_the_user_is_told_what_labels_were_taken_for(pairs_lab: Lab) -> None:
    said: list[str] = []
    load_task_inputs(make_config(pairs_lab, loss="cosine"), said.append)
    load_task_inputs(make_config(pairs_lab), said.append)
    told = "\n".join(said)
    assert "labels: 0 to 5 scaled to cosines of 0 to 1" in told
    num_belonging = sum(one["score"] >= 4 for one in build_pairs(96, seed=0))
    assert f"({num_belonging} of 4 or more belong together); {96 - num_belonging} that do not belong together" in told


def test_entailed_pairs_are_taken_and_the_others_left(lab: Lab) -> None:
    labels = ["entailment", "neutral", "contradiction", "entailment"]
    records = [
        {"premise": f"the cat {number}", "hypothesis": "one red bird", "label": one}
        for number, one in enumerate(labels)
    ]
    write_pairs(lab, records, records)
    inputs = load(lab)
    assert [one.texts[0] for one in inputs.train.features.examples] == ["the cat 0", "the cat 3"]
    assert inputs.validation.targets[:, 1].tolist() == [1, 0, 0, 1]
    assert inputs.metric == "pearson"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"loss": "triplet"}, "there is no loss 'triplet' for similarity; known are contrastive, cosine"),
        ({"pooling": "max"}, "no pooling 'max'"),
        ({"loss": "cosine", "temperature": 0.1}, "--temperature is for --loss contrastive"),
        ({"loss": "cosine", "negative_column": "sentence2"}, "--negative-column is for --loss contrastive"),
        ({"batch_size": 1}, "nothing to compare with"),
        ({"class_weights": "balanced"}, "--class-weights is for classes"),
        ({"negative_column": "absent"}, "no column 'absent'; choose one with --negative-column"),
        ({"text_column": "sentence1"}, "no two columns known to hold a pair"),
        ({"task": "regression", "loss": "cosine"}, "--loss is for rerank and retrieval and similarity"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_written(
    pairs_lab: Lab, tmp_path: Path, values: dict[str, Any], words: str
) -> None:
    config = pairs_lab.config(**{"task": "similarity", "text_column": None, **values})
    with pytest.raises(InputError, match=words):
        run(config, tmp_path / "out" / "run")
    assert not (tmp_path / "out").exists()


def test_micro_batches_leave_the_loss_as_it_is(pairs_lab: Lab, tmp_path: Path) -> None:
    """Without dropout, whose draws depend on the parts."""
    encoder = tmp_path / "encoder"
    shutil.copytree(pairs_lab.model, encoder)
    settings = json.loads((encoder / "config.json").read_text())
    settings |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (encoder / "config.json").write_text(json.dumps(settings))
    config = make_config(pairs_lab, model=str(encoder), epochs=2, batch_size=24)
    whole, parts = (
        run(config, tmp_path / name, f"training.micro_batch_tokens={size}").figures[0]["loss"]
        for name, size in (("whole", "null"), ("parts", 64))
    )
    # Adam's first steps are as long for small gradients, which rounding changes, as for large ones.
    assert parts == pytest.approx(whole, rel=1e-3)
