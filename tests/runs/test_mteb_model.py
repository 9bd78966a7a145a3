"""Models as mteb takes them: by its protocols, and, where it is installed, by its own evaluation of a local task."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import maskwright as mw
from maskwright.errors import InputError
from maskwright.inference.search.retriever import open_retriever
from maskwright.runs.eval.mteb_model import MtebEncoder, MtebReranker, MtebSearch

ANIMALS, PLACES = ("cat", "dog", "bird", "student"), ("house", "road", "river")
DOCUMENTS = [
    {"id": f"d{n}", "title": "", "text": f"the {one} sees the {two}"}
    for n, (one, two) in enumerate((one, two) for one in ANIMALS for two in PLACES)
]
QUERIES = [
    {"id": f"q{n}", "text": f"{one} {two}"}
    for n, (one, two) in enumerate((one, two) for one in ANIMALS for two in PLACES)
]


class Prompt(Enum):
    """As mteb's PromptType."""

    QUERY = "query"
    DOCUMENT = "document"


def batch(texts: list[str]) -> list[dict[str, list[str]]]:
    """As mteb's data loaders give texts."""
    return [{"text": texts[start : start + 5]} for start in range(0, len(texts), 5)]


@pytest.fixture
def train(trained_run: Path, tmp_path: Path) -> Callable[..., Path]:
    """A tiny model of a kind, by its run."""

    def build(task: str = "retrieval", **options: Any) -> Path:
        records = [
            {"query": query["text"], "positive": one["text"], "negatives": ["it rains"]}
            for query, one in zip(QUERIES, DOCUMENTS, strict=True)
        ]
        settings = {"training.device": "cpu", "training.precision": "fp32"}
        out = tmp_path / f"{task}-{len(list(tmp_path.iterdir()))}"
        mw.finetune(
            task, out, model=trained_run, train=records, validation=records, epochs=1, settings=settings, **options
        )
        return out

    return build


def test_an_encoder_gives_vectors_of_roles_and_their_cosines(train: Callable[..., Path]) -> None:
    folder = train(query_prompt="my old ")
    model = mw.open_mteb(folder)
    assert isinstance(model, MtebEncoder)
    texts = [one["text"] for one in DOCUMENTS]
    vectors = {prompt: model.encode(batch(texts), prompt_type=prompt, batch_size=2) for prompt in (*Prompt, None)}
    for prompt, role in ((Prompt.QUERY, "query"), (Prompt.DOCUMENT, "document")):
        assert np.array_equal(vectors[prompt], np.stack(mw.pipeline("embed", folder, role=role)(texts)))
    assert np.array_equal(vectors[None], vectors[Prompt.DOCUMENT])
    assert not np.allclose(vectors[Prompt.QUERY], vectors[None])
    units = F.normalize(torch.from_numpy(vectors[None]), dim=-1)
    cosines = model.similarity(vectors[None], vectors[None][:2])
    assert torch.equal(cosines, units @ units[:2].T)
    pairwise = model.similarity_pairwise(vectors[None], vectors[None][::-1].copy())
    assert torch.allclose(pairwise, (units * units.flip(0)).sum(-1))
    with pytest.warns(mw.InputWarning):
        assert not model.encode([{"text": ["", "a cat"]}])[0].any()


@pytest.mark.parametrize("kind", ["colbert", "splade"])
def test_other_retrievers_search_as_ours_do(train: Callable[..., Path], kind: str) -> None:
    if kind == "splade":
        pytest.importorskip("scipy")
    folder = train(kind=kind)
    model = mw.open_mteb(folder)
    assert isinstance(model, MtebSearch)
    model.index([*DOCUMENTS, {"id": "empty", "title": "", "text": ""}], task_metadata=None)
    found = model.search(QUERIES, top_k=3, task_metadata=None)
    retriever = open_retriever(str(folder))
    part = retriever.store_texts([one["text"] for one in DOCUMENTS])
    queries = retriever.embed_queries([one["text"] for one in QUERIES])
    scores = retriever.score_all(queries, *part)
    for row, query in enumerate(QUERIES):
        own = {one["id"]: float(score) for one, score in zip(DOCUMENTS, scores[row], strict=True)}
        assert sorted(found[query["id"]].values(), reverse=True) == pytest.approx(sorted(own.values())[:-4:-1])
        assert all(score == pytest.approx(own[name]) for name, score in found[query["id"]].items())
    listed = {query["id"]: ["d1", "unknown", "d5"] for query in QUERIES}
    chosen = model.search(QUERIES, top_k=3, top_ranked=listed, task_metadata=None)
    assert chosen["q0"] == pytest.approx({"d1": float(scores[0][1]), "d5": float(scores[0][5])})


def test_a_reranker_scores_pairs(train: Callable[..., Path]) -> None:
    folder = train("rerank", num_negatives=1)
    model = mw.open_mteb(folder)
    assert isinstance(model, MtebReranker)
    sides = [[one["text"] for one in side] for side in (QUERIES, DOCUMENTS)]
    scores = model.predict(*map(batch, sides), task_metadata=None)
    expected = mw.pipeline("classify", folder)(list(zip(*sides, strict=True)))
    assert scores.tolist() == pytest.approx([one["score"] for one in expected])


def test_what_gives_classes_is_refused(trained_run: Path, tmp_path: Path) -> None:
    records = [{"text": one["text"], "label": one["text"].split()[1]} for one in DOCUMENTS]
    mw.finetune("classification", tmp_path / "run", model=trained_run, train=records, validation=records, epochs=1)
    with pytest.raises(InputError, match="has several classes for a text"):
        mw.open_mteb(tmp_path / "run")


def test_mteb_itself_agrees_with_eval(train: Callable[..., Path], tmp_path: Path, command: Any) -> None:
    mteb = pytest.importorskip("mteb", reason="mteb evaluates the model")
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval

    class Local(AbsTaskRetrieval):  # type: ignore[misc]
        metadata = mteb.get_task("NFCorpus").metadata.model_copy(update={"name": "Local", "eval_splits": ["test"]})

        def load_data(self, *_: Any, **__: Any) -> None:
            answers = {query["id"]: {one["id"]: 1} for query, one in zip(QUERIES, DOCUMENTS, strict=True)}
            data = {
                "corpus": Dataset.from_list(DOCUMENTS),
                "queries": Dataset.from_list(QUERIES),
                "relevant_docs": answers,
                "top_ranked": None,
            }
            self.dataset, self.data_loaded = {"default": {"test": data}}, True

    collection = tmp_path / "collection"
    (collection / "qrels").mkdir(parents=True)
    for name, records in (("corpus", DOCUMENTS), ("queries", QUERIES)):
        lines = [json.dumps({"_id": one["id"], "text": one["text"]}) for one in records]
        (collection / f"{name}.jsonl").write_text("\n".join(lines))
    qrels = [f"{query['id']}\t{one['id']}\t1" for query, one in zip(QUERIES, DOCUMENTS, strict=True)]
    (collection / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(qrels))
    for kind in ("dense", "colbert"):
        folder = train(kind=kind)
        results = mteb.evaluate(mw.open_mteb(folder), [Local()], cache=None, overwrite_strategy="always")
        theirs = results.task_results[0].scores["test"][0]
        ours = json.loads(command("eval", folder, "retrieval", collection, "--json").out)["figures"]
        means = {one["measure"]: one["mean"] for one in ours}
        for name, measure in (("ndcg_at_10", "ndcg@10"), ("mrr_at_10", "mrr@10"), ("recall_at_10", "recall@10")):
            assert theirs[name] == pytest.approx(means[measure], abs=2e-5)  # mteb rounds to five places
