"""Rerankers: what they learn from, their loss, and that others give the same numbers."""

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
from task_lab import Lab, run, write_lines

import maskwright as mw
from maskwright.errors import InputError
from maskwright.inference.pipeline import pipeline
from maskwright.inference.search.rerank import Reranker
from maskwright.runs.finetune.inputs import TaskInputs, load_task_inputs
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.loader import AskedBatch
from maskwright.tasks.model import TaskModel
from tolerances import assert_rounded, count_terms

NUM_TERMS = count_terms(num_layers=2, width=32, length=64)
ANIMALS, PLACES = ("cat", "dog", "bird"), ("house", "road", "river")


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maskwright.runs.finetune.finetune.write_task_report", lambda *given, **named: [])


def build_records(animal: str) -> list[dict[str, Any]]:
    """A house is always the answer, which the smallest encoder learns in seconds."""
    return [
        {
            "query": f"the {animal} {verb}",
            "positive": f"the {animal} {verb} a house",
            "negatives": [f"the {animal} {verb} a {place}" for place in PLACES[1:]],
            "scores": [4.0, 0.5, -2.0],
        }
        for verb in ("sees", "follows", "remembers", "likes", "carries")
        for _ in range(5)
    ]


@pytest.fixture
def rerank_lab(lab: Lab) -> Lab:
    write_lines(lab.folder / "train.jsonl", [one for animal in ANIMALS[:2] for one in build_records(animal)])
    write_lines(lab.folder / "validation.jsonl", build_records(ANIMALS[2])[::5])
    return lab


def make_config(lab: Lab, **values: Any) -> TaskConfig:
    return lab.config(**{"task": "rerank", "text_column": None, **values})


def load(lab: Lab, **values: Any) -> TaskInputs:
    return load_task_inputs(make_config(lab, **values), lambda text: None)


def score_padded(inputs: TaskInputs, model: TaskModel, pairs: list[tuple[str, str]]) -> torch.Tensor:
    encoded = [inputs.tokenizer.backend.encode(*pair) for pair in pairs]
    with torch.no_grad():
        return torch.cat(
            [
                model(torch.tensor([one.ids]), token_type_ids=torch.tensor([one.type_ids])).logits.flatten()
                for one in encoded
            ]
        )


@pytest.mark.parametrize("loss", ["bce", "mse"])
def test_the_loss_is_that_of_each_pair(rerank_lab: Lab, loss: str) -> None:
    inputs = load(rerank_lab, loss=loss, num_negatives=2)
    model = inputs.build_model(seed=0).eval()
    examples = inputs.train.features.examples[:6]
    labels = [4.0, 0.5, -2.0] if loss == "mse" else [1.0, 0.0, 0.0]
    assert [one.label for one in examples] == 2 * labels
    with torch.no_grad():
        sums = model.loss_sums(AskedBatch.of(inputs.train.build_batch(np.arange(6))))
    logits = score_padded(inputs, model, [(one.text, one.second) for one in examples])
    wanted = torch.tensor(2 * labels)
    expected = F.mse_loss(logits, wanted) if loss == "mse" else F.binary_cross_entropy_with_logits(logits, wanted)
    assert_rounded(sums.loss_sum / sums.num_labelled, expected, NUM_TERMS, 20.0)


def test_the_contrastive_loss_is_that_of_each_query(rerank_lab: Lab) -> None:
    inputs = load(rerank_lab, batch_size=16)
    examples = inputs.train.features.examples[:3]
    size = len(examples[0].texts) - 1
    assert size == 5
    assert inputs.train.batch_size == 16 // size
    model = inputs.build_model(seed=0).eval()
    batch = inputs.train.build_batch(np.arange(3))
    with torch.no_grad():
        sums, kept = model.answer(batch)
    pairs = [(one.texts[0], text) for one in examples for text in one.texts[1:]]
    logits = score_padded(inputs, model, pairs).view(3, size)
    expected = F.cross_entropy(logits, torch.zeros(3, dtype=torch.long))
    assert_rounded(sums.loss_sum / sums.num_labelled, expected, NUM_TERMS, 20.0)
    metrics = model.compute_metrics([*map(float, (sums.loss_sum, sums.num_labelled, sums.figures[0]))])
    assert metrics["accuracy"] == pytest.approx(float((logits.argmax(1) == 0).double().mean()))
    layout = (batch.sample_ids, batch.positions, batch.document_ids)
    for row, ids, positions, documents in zip(kept, *layout, strict=True):
        for place, number in enumerate(ids[(positions == 0) & (documents > 0)].tolist()):
            assert_rounded(row[place], logits[number], NUM_TERMS, 20.0)
    ranks = 1 + (logits[:, 1:] > logits[:, :1]).sum(1).double()
    (mrr,) = inputs.task.score_answers(logits, inputs.train.targets[:3], examples).values()
    assert mrr == pytest.approx(float((1 / ranks).mean()))
    equal = inputs.task.score_answers(torch.zeros(3, size), inputs.train.targets[:3], examples)
    assert [*equal.values()] == [pytest.approx(1 / size)]  # a model that says nothing gets no credit


def test_a_query_without_tokens_in_a_document_is_left_out(rerank_lab: Lab) -> None:
    records = build_records(ANIMALS[0])
    records[1]["negatives"][1] = "\u200b"
    write_lines(rerank_lab.folder / "train.jsonl", records)
    features = load(rerank_lab, num_negatives=2).train.features
    assert [int(one.place.rsplit(":", 1)[1]) for one in features.examples] == [1, *range(3, 26)]
    assert features.num_empty == 1
    with pytest.raises(InputError, match="leaves a document nothing to be told from"):
        load(rerank_lab, num_negatives=0)


def test_a_reranker_learns_and_crossencoder_gives_its_numbers(rerank_lab: Lab, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    finished = run(make_config(rerank_lab, epochs=4, batch_size=16, num_negatives=2), tmp_path / "run")
    assert finished.metric == "accuracy"
    assert finished.figures[0]["mrr@10"] == 1.0
    record = build_records(ANIMALS[2])[0]
    documents = [record["positive"], *record["negatives"]]
    (ours,) = Reranker(str(tmp_path / "run")).score([record["query"]], [documents])
    assert ours[0] > max(ours[1:])
    theirs = sentence_transformers.CrossEncoder(str(tmp_path / "run" / "model"), device="cpu")
    pairs = [(record["query"], text) for text in documents]
    assert_rounded(np.asarray(ours, np.float32), theirs.predict(pairs), NUM_TERMS, 10.0)
    folder = mw.export(tmp_path / "run", "hf", out=tmp_path / "out")
    exported = sentence_transformers.CrossEncoder(str(folder), device="cpu")
    assert_rounded(exported.predict(pairs), theirs.predict(pairs), NUM_TERMS, 10.0)
    assert [one["score"] for one in pipeline("classify", folder)(pairs)] == pytest.approx(ours, abs=1e-4)


@pytest.mark.slow  # as a run that learns labels
def test_an_interrupted_run_ends_as_an_uninterrupted_one(
    rerank_lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(rerank_lab, epochs=1, batch_size=16)
    assert_resumes_exactly(partial(run, config), tmp_path, monkeypatch, dies_at=5)


def test_negatives_are_drawn_where_there_are_none(lab: Lab) -> None:
    records = [{"query": f"the {one} {two}", "positive": f"a {one} {two}"} for one in ANIMALS for two in PLACES]
    records.append({"query": "the cat house", "positive": "a long road"})
    write_lines(lab.folder / "train.jsonl", records)
    write_lines(lab.folder / "validation.jsonl", records[:4])
    examples = load(lab, loss="bce", num_negatives=3).train.features.examples
    assert len(examples) == 4 * 10
    answers = {("the cat house", "a cat house"), ("the cat house", "a long road")}
    for one in examples:
        assert one.label == ((one.text, one.second) in answers or one.second == one.text.replace("the", "a", 1))
    with pytest.raises(InputError, match="too few documents for 30 negatives"):
        load(lab, num_negatives=30)


def test_hard_negatives_are_mixed_with_documents_of_other_queries(rerank_lab: Lab) -> None:
    rain = [f"it rains {number} times" for number in range(6)]
    for given, kept in ((1, 1), (6, 4)):
        records = [one | {"negatives": rain[:given]} for one in build_records(ANIMALS[0])]
        write_lines(rerank_lab.folder / "train.jsonl", records)
        examples = load(rerank_lab, loss="bce").train.features.examples
        answers = {one["positive"] for one in records}
        size = 1 + 2 * kept
        assert len(examples) == size * len(records)
        for start, record in zip(range(0, len(examples), size), records, strict=True):
            texts = [one.second for one in examples[start : start + size]]
            assert texts[: 1 + kept] == [record["positive"], *rain[:kept]]
            assert set(texts[1 + kept :]) <= answers - {record["positive"]}
            assert len(set(texts)) == size
            assert [one.label for one in examples[start : start + size]] == [1.0] + [0.0] * (size - 1)
    assert len(load(rerank_lab, loss="bce", num_negatives=2).train.features.examples) == 3 * len(records)


def test_what_is_found_is_reranked(rerank_lab: Lab, trained_run: Path, tmp_path: Path, command: Any) -> None:
    pytest.importorskip("bm25s", reason="BM25 finds the documents")
    run(make_config(rerank_lab, epochs=4, batch_size=16, num_negatives=2), tmp_path / "run")
    folder = tmp_path / "collection"
    (folder / "qrels").mkdir(parents=True)
    texts = [f"the {animal} sees the {place}" for animal in ANIMALS for place in PLACES]
    write_lines(folder / "corpus.jsonl", [{"_id": f"d{n}", "text": text} for n, text in enumerate(texts)])
    write_lines(folder / "queries.jsonl", [{"_id": "q", "text": "the bird"}, {"_id": "r", "text": "the river"}])
    (folder / "qrels" / "test.tsv").write_text("q\td8\t1\nr\td2\t1\n")
    words = ("eval", "bm25", "retrieval", folder, "--rerank", tmp_path / "run", "--against", "bm25", "--json")
    content = json.loads(command(*words).out)
    assert content["score"].startswith("BM25, reranked against BM25")
    mw.index("bm25", folder, out=tmp_path / "idx")
    (found,) = mw.search(tmp_path / "idx", "the bird", rerank=tmp_path / "run", top_k=3)
    (scores,) = Reranker(str(tmp_path / "run")).score(["the bird"], [texts])
    best = np.argsort(-np.asarray(scores), kind="stable")[:3]
    assert [hit.score for hit in found] == pytest.approx([scores[place] for place in best], abs=1e-5)
    mean = next(line["mean"] for line in content["figures"] if line["measure"] == "mrr@10")
    others, queries = Reranker(str(tmp_path / "run")), ["the bird", "the river"]
    ranks = [
        1 + sum(score > own[answer] for score in own)
        for own, answer in zip(others.score(queries, [texts, texts]), (8, 2), strict=True)
    ]
    assert mean == pytest.approx(np.mean([1 / rank for rank in ranks]))
    command("eval", "bm25", "retrieval", folder, "--rerank-depth", 3).assert_refused("--rerank-depth is for --rerank")
    command("search", tmp_path / "idx", "the bird", "--rerank", trained_run).assert_refused("expected a model")


def test_a_retriever_learns_the_scores_of_a_reranker(
    rerank_lab: Lab, trained_run: Path, tmp_path: Path, command: Any
) -> None:
    teacher, path = tmp_path / "teacher", tmp_path / "taught.jsonl"
    run(make_config(rerank_lab, epochs=2, batch_size=16), teacher)
    mined = ("mine", rerank_lab.model, rerank_lab.folder / "train.jsonl", "--num-negatives", 2)
    assert command(*mined, "--teacher", teacher, "--out", path).code == 0
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    documents = [[one["positive"], *one["negatives"]] for one in records]
    expected = Reranker(str(teacher)).score([one["query"] for one in records], documents)
    assert [one["scores"] for one in records] == [pytest.approx(own, abs=1e-5) for own in expected]
    config = make_config(
        rerank_lab, task="retrieval", train=str(path), validation=None, loss="margin-mse", epochs=6, batch_size=16
    )
    first, last = (run(config.model_copy(update={"epochs": n}), tmp_path / f"{n}").figures[0]["loss"] for n in (1, 6))
    assert last < first
    command(*mined, "--teacher", trained_run, "--out", tmp_path / "no.jsonl").assert_refused("expected a model")
    assert not (tmp_path / "no.jsonl").exists()


def test_wrong_settings_are_refused(rerank_lab: Lab) -> None:
    with pytest.raises(InputError, match="there is no loss 'kl' for rerank"):
        load(rerank_lab, loss="kl")
    with pytest.raises(InputError, match="--symmetric is for retrieval"):
        load(rerank_lab, symmetric=True)
