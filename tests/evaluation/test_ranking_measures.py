"""Figures of rankings, against trec_eval's own code and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from maskwright.evaluation.ranking import Found, measure_rankings


def measure(found: list[Found], grades: list[dict[str, int]]) -> dict[str, list[float]]:
    return {one.name: one.sums.tolist() for one in measure_rankings(found, grades)}


def test_figures_are_those_computed_by_hand() -> None:
    found = [Found(["a", "b", "c"], [0.1, 0.9, 0.5]), Found(["a", "b"], [2.0, 1.0])]
    grades = [{"c": 2, "a": 1, "x": 1}, {"z": 1}]
    ideal = 2 + 1 / math.log2(3) + 1 / math.log2(4)
    assert measure(found, grades) == {
        "ndcg@10": pytest.approx([(2 / math.log2(3) + 1 / math.log2(4)) / ideal, 0.0]),
        "recall@10": pytest.approx([2 / 3, 0.0]),
        "recall@100": pytest.approx([2 / 3, 0.0]),
        "mrr@10": pytest.approx([0.5, 0.0]),
    }


def test_only_the_first_ten_count_but_for_recall_at_100() -> None:
    names = [f"d{number:03}" for number in range(120)]
    found = [Found(names, np.linspace(1, 0, 120).tolist())]
    at = {place: measure(found, [{names[place]: 1}]) for place in (9, 10, 99, 100)}
    assert [at[place]["recall@10"][0] for place in at] == [1, 0, 0, 0]
    assert [at[place]["recall@100"][0] for place in at] == [1, 1, 1, 0]
    assert [at[place]["mrr@10"][0] for place in at] == [0.1, 0, 0, 0]
    assert at[9]["ndcg@10"][0] == pytest.approx(1 / math.log2(11))
    assert at[10]["ndcg@10"][0] == 0


def test_equal_scores_are_ordered_by_id_not_by_their_place() -> None:
    """The larger id first, as in trec_eval."""
    for names in (["a", "b"], ["b", "a"]):
        found = [Found(names, [1.0, 1.0])]
        assert measure(found, [{"b": 1}])["mrr@10"] == [1.0]
        assert measure(found, [{"a": 1}])["mrr@10"] == [0.5]


def test_negative_grades_and_unjudged_documents_gain_nothing() -> None:
    found = [Found(["a", "b", "c"], [3.0, 2.0, 1.0])]
    assert measure(found, [{"a": -1, "c": 1}])["ndcg@10"] == pytest.approx([1 / math.log2(4)])


@pytest.mark.parametrize("num_scores", [1_000_000, 7])
def test_figures_equal_those_of_pytrec_eval(num_scores: int) -> None:
    """With few scores most documents tie."""
    trec = pytest.importorskip("pytrec_eval", reason="trec_eval's own code; it has wheels for x86 alone")
    rng = np.random.default_rng(num_scores)
    names = [f"doc{number}" for number in range(300)]
    run, qrels = {}, {}
    for query in range(40):
        chosen = rng.choice(names, 150, replace=False)
        scores = rng.integers(0, num_scores, 150).astype(np.float32)
        run[f"q{query}"] = dict(zip(chosen.tolist(), scores.tolist(), strict=True))
        judged = rng.choice(names, 30, replace=False)
        qrels[f"q{query}"] = {**{name: int(rng.integers(0, 4)) for name in judged.tolist()}, names[query]: 1}
    theirs = trec.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recall.10,100"}).evaluate(run)
    found = [Found([*one], [*one.values()]) for one in run.values()]
    best = {query: dict.fromkeys(one.rank()[:10]) for query, one in zip(run, found, strict=True)}
    cut = {query: {name: 10.0 - rank for rank, name in enumerate(names)} for query, names in best.items()}
    reciprocal = trec.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(cut)
    ours = measure(found, [qrels[query] for query in run])
    for name, key in (("ndcg@10", "ndcg_cut_10"), ("recall@10", "recall_10"), ("recall@100", "recall_100")):
        assert ours[name] == pytest.approx([theirs[query][key] for query in run], abs=1e-12)
    assert ours["mrr@10"] == pytest.approx([reciprocal[query]["recip_rank"] for query in run], abs=1e-12)
