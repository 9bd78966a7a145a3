"""Retrievers of one vector: their losses against plain formulas, whole runs, and what others read of them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from interruption import assert_resumes_exactly
from similarity_lab import SUBJECTS, VERBS, embed_padded
from task_lab import Lab, run, write_lines
from torch import Tensor

from maskwright.errors import InputError
from maskwright.inference.pipeline import pipeline
from maskwright.models.files.model_folder import resolve_folder
from maskwright.runs.export import export_model
from maskwright.runs.export_options import ExportOptions
from maskwright.runs.finetune.inputs import TaskInputs, load_task_inputs
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.loader import AskedBatch
from maskwright.tasks.model import TaskModel
from maskwright.tasks.retrieval.dense import DenseRetrieval
from tolerances import assert_rounded, count_terms

NUM_TERMS = count_terms(num_layers=2, width=32, length=64)
MAGNITUDE = 1 / 0.05  # of cosines over the temperature
TEXTS = ["the cat sees a long road", "one red bird"]


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maskwright.runs.finetune.finetune.write_task_report", lambda *given, **named: [])


def build_records(subjects: tuple[str, ...] = SUBJECTS) -> list[dict[str, Any]]:
    return [
        {
            "query": f"{subject} {verb}",
            "positive": f"{subject} {verb} a long road",
            "negatives": [f"{subject} the green house", f"{verb} it rains"],
            "scores": [2.0 + len(verb) / 4, 1.0, len(subject) / 10],
        }
        for subject in subjects
        for verb in VERBS
    ]


@pytest.fixture
def retrieval_lab(lab: Lab) -> Lab:
    write_lines(lab.folder / "train.jsonl", build_records(SUBJECTS[:4]))
    write_lines(lab.folder / "validation.jsonl", build_records(SUBJECTS[4:]))
    return lab


def make_config(lab: Lab, **values: Any) -> TaskConfig:
    return lab.config(**{"task": "retrieval", "text_column": None, **values})


def load(lab: Lab, **values: Any) -> TaskInputs:
    return load_task_inputs(make_config(lab, **values), lambda text: None)


def compute_loss(lab: Lab, **values: Any) -> tuple[Tensor, list[Tensor]]:
    """The mean loss of six examples, and their vectors by plain padding: query, positive and negatives, (6, D)."""
    inputs = load(lab, **values)
    model = inputs.build_model(seed=0).eval()
    with torch.no_grad():
        sums = model.loss_sums(AskedBatch.of(inputs.train.build_batch(np.arange(6))))
        examples = inputs.train.features.examples[:6]
        sides = [
            embed_padded(inputs, model.encoder, [one.texts[side] for one in examples], "mean")
            for side in range(len(examples[0].texts))
        ]
    return sums.loss_sum / sums.num_labelled, sides


def contrast(queries: Tensor, documents: list[Tensor], is_left_out: Tensor | None = None) -> Tensor:
    logits = torch.cat([queries @ one.T for one in documents], dim=1) / 0.05
    if is_left_out is not None:
        logits = logits.masked_fill(is_left_out, float("-inf"))
    return F.cross_entropy(logits, torch.arange(len(queries)))


def find_equal(lab: Lab) -> Tensor:
    """(6, 18) whether a document of another example has the text of the own one, or of a query."""
    examples = build_records(SUBJECTS[:4])[:6]
    documents = [[one["positive"], *one["negatives"]][side] for side in range(3) for one in examples]
    rows = [[text in (one["query"], one["positive"]) for text in documents] for one in examples]
    return torch.tensor(rows) & ~torch.eye(6, 18, dtype=torch.bool)


def test_the_contrastive_loss_has_all_documents_of_the_batch(retrieval_lab: Lab) -> None:
    loss, (queries, *documents) = compute_loss(retrieval_lab)
    assert_rounded(loss, contrast(queries, documents, find_equal(retrieval_lab)), NUM_TERMS, MAGNITUDE)
    both, _ = compute_loss(retrieval_lab, symmetric=True)
    back = contrast(documents[0], [queries])
    assert_rounded(both, (loss + back) / 2, NUM_TERMS, MAGNITUDE)


def test_what_is_nearer_than_the_document_by_the_margin_is_no_negative(retrieval_lab: Lab) -> None:
    _, (queries, *documents) = compute_loss(retrieval_lab)
    cosines = torch.cat([queries @ one.T for one in documents], dim=1)
    lead = cosines - cosines.diagonal()[:, None]
    for share in (0.2, 0.7):
        margin = float(lead.quantile(share)) + 1e-4
        nearer = (lead > margin) & ~torch.eye(6, 18, dtype=torch.bool)
        assert 0 < nearer.sum() < nearer.numel() - 6
        loss, _ = compute_loss(retrieval_lab, false_negative_margin=margin)
        expected = contrast(queries, documents, nearer | find_equal(retrieval_lab))
        assert_rounded(loss, expected, NUM_TERMS, MAGNITUDE)


def test_prefixes_are_vectors_too(retrieval_lab: Lab) -> None:
    loss, sides = compute_loss(retrieval_lab, dims="16,8,64")  # a length beyond the width is the whole vector
    lengths = [[F.normalize(side[:, :width], dim=-1) for side in sides] for width in (32, 16, 8)]
    losses = [contrast(queries, documents, find_equal(retrieval_lab)) for queries, *documents in lengths]
    assert_rounded(loss, torch.stack(losses).mean(), NUM_TERMS, MAGNITUDE)


@pytest.mark.parametrize("name", ["margin-mse", "kl"])
def test_a_teachers_scores_are_learnt(retrieval_lab: Lab, name: str) -> None:
    loss, (queries, *documents) = compute_loss(retrieval_lab, loss=name)
    scores = torch.stack([(queries * one).sum(-1) for one in documents], dim=1) / 0.05
    taught = torch.tensor([one["scores"] for one in build_records(SUBJECTS[:4])[:6]])
    if name == "kl":
        expected = F.kl_div(scores.log_softmax(1), taught.softmax(1), reduction="batchmean")
    else:
        margins = [(one[:, :1] - one[:, 1:]) for one in (scores, taught)]
        expected = (margins[0] - margins[1]).square().mean()
    assert_rounded(loss, expected, NUM_TERMS, MAGNITUDE**2)


def test_a_run_learns_to_find_documents(retrieval_lab: Lab, tmp_path: Path) -> None:
    finished = run(make_config(retrieval_lab, epochs=8, batch_size=20), tmp_path / "run")
    (figures,) = finished.figures
    assert finished.metric == "accuracy"
    with torch.no_grad():
        inputs = load(retrieval_lab)
        texts = [one.texts for one in inputs.validation.features.examples]
        model = TaskModel.from_pretrained(tmp_path / "run").eval()
        queries, documents = (
            embed_padded(inputs, model.encoder, [one[side] for one in texts], "mean") for side in (0, 1)
        )
        cosines = queries @ documents.T
    ranks = 1 + (cosines > cosines.diagonal()[:, None]).sum(1)
    assert figures["mrr@10"] == pytest.approx(float((1 / ranks).mean()), rel=1e-6)
    assert figures["mrr@10"] > 0.6


def test_the_folder_is_one_of_sentence_transformers_with_its_prompts(retrieval_lab: Lab, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    prompts = {"query_prompt": "my old ", "document_prompt": "the quiet "}
    run(make_config(retrieval_lab, epochs=1, dims="16", **prompts), tmp_path / "run")
    task = TaskModel.from_pretrained(tmp_path / "run").task
    assert isinstance(task, DenseRetrieval)
    assert (task.settings.dims, task.settings.query_prompt) == ((16,), "my old ")
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "run" / "model"), device="cpu")
    for role, encode in (("query", theirs.encode_query), ("document", theirs.encode_document)):
        ours = np.stack(pipeline("embed", tmp_path / "run", normalize=True, role=role)(TEXTS))
        plain = pipeline("embed", tmp_path / "run", normalize=True)
        prompted = np.stack(plain([prompts[f"{role}_prompt"] + text for text in TEXTS]))
        assert_rounded(ours, encode(TEXTS, normalize_embeddings=True), NUM_TERMS)
        assert_rounded(ours, prompted, NUM_TERMS)
    options = ExportOptions("sentence-transformers", tmp_path / "out")
    folder = export_model(str(tmp_path / "run"), options, lambda text: None)
    exported = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    assert_rounded(exported.encode_query(TEXTS), theirs.encode_query(TEXTS), NUM_TERMS)
    assert "| accuracy |" in (folder / "README.md").read_text(encoding="utf-8")


def test_an_interrupted_run_ends_as_an_uninterrupted_one(
    retrieval_lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_resumes_exactly(partial(run, make_config(retrieval_lab, epochs=3)), tmp_path, monkeypatch, dies_at=5)


def test_the_best_seed_and_its_shorter_vectors_reach_the_export(retrieval_lab: Lab, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    finished = run(make_config(retrieval_lab, epochs=2, dims="16,8"), tmp_path / "seeds", num_seeds=2)
    scores = [one["accuracy"] for one in finished.figures]
    best = tmp_path / "seeds" / f"seed-{scores.index(max(scores))}"
    assert finished.best_run.path == best
    assert resolve_folder(tmp_path / "seeds") == best / "model"
    options = ExportOptions("sentence-transformers", tmp_path / "out")
    folder = export_model(str(tmp_path / "seeds"), options, lambda text: None)
    assert (folder / "model.safetensors").read_bytes() == (best / "model" / "model.safetensors").read_bytes()
    card = (folder / "README.md").read_text(encoding="utf-8")
    mean = sum(scores) / 2
    assert f"{best.name} of 2 seeds, chosen as the best by accuracy" in card
    assert f"accuracy {mean:.4f} ± " in card
    assert "truncate_dim=8" in card
    whole = torch.from_numpy(np.stack(pipeline("embed", folder, normalize=True)(TEXTS)))
    for width in (16, 8):
        theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu", truncate_dim=width)
        vectors = theirs.encode(TEXTS, normalize_embeddings=True, convert_to_tensor=True)
        assert_rounded(vectors, F.normalize(whole[:, :width], dim=-1), NUM_TERMS)


def test_prefixes_have_scores_of_their_own(retrieval_lab: Lab, tmp_path: Path) -> None:
    finished = run(make_config(retrieval_lab, epochs=2, dims="8"), tmp_path / "run")
    documents = [one["positive"] for one in build_records(SUBJECTS[4:])]
    queries = [one["query"] for one in build_records(SUBJECTS[4:])]
    embed = pipeline("embed", finished.folder)
    sides = [F.normalize(torch.from_numpy(np.stack(embed(texts)))[:, :8], dim=-1) for texts in (queries, documents)]
    cosines = sides[0] @ sides[1].T
    ranks = 1 + (cosines > cosines.diagonal()[:, None]).sum(1)
    reciprocal = torch.where(ranks <= 10, 1.0 / ranks, 0.0)
    assert finished.scores["mrr@10 of 8"] == pytest.approx(float(reciprocal.mean()), rel=1e-6)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"loss": "cosine"}, "there is no loss 'cosine' for retrieval; known are contrastive, kl, margin-mse"),
        ({"loss": "kl", "symmetric": True}, "--symmetric is for --loss contrastive, not kl"),
        ({"loss": "kl", "false_negative_margin": 0.1}, "--false-negative-margin is for --loss contrastive"),
        ({"dims": "64,big"}, "--dims is '64,big'; expected lengths"),
        ({"batch_size": 1}, "nothing to compare with"),
        ({"label_smoothing": 0.1}, "--label-smoothing is for classes"),
        ({"task": "similarity", "dims": "8"}, "--dims is for retrieval"),
    ],
)
def test_wrong_settings_are_refused(retrieval_lab: Lab, values: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        load(retrieval_lab, **values)


def test_damaged_settings_are_refused(retrieval_lab: Lab, tmp_path: Path) -> None:
    run(make_config(retrieval_lab, epochs=1), tmp_path / "run")
    path = tmp_path / "run" / "model" / "config.json"
    for values, words in (({"dims": "all"}, "'dims' is 'all'"), ({"breadth": 3}, "the field 'breadth'")):
        config = json.loads(path.read_text())
        config["maskwright"]["retrieval"] |= values
        damaged = tmp_path / "damaged"
        damaged.mkdir(exist_ok=True)
        for file in path.parent.iterdir():
            if file.is_file():
                (damaged / file.name).write_bytes(file.read_bytes())
        (damaged / "config.json").write_text(json.dumps(config))
        with pytest.raises(InputError, match=words):
            TaskModel.from_pretrained(damaged)
