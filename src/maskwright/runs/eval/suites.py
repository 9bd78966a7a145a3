"""The suites of `maskwright eval`: files and models in, a report out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from maskwright.errors import InputError
from maskwright.evaluation.cloze import Unasked, rank_answers, read_cloze
from maskwright.evaluation.figures import Measure
from maskwright.evaluation.likelihood import TextScores, score_texts
from maskwright.evaluation.likelihood_bound import DEFAULT_SAMPLES, TextBounds, bound_texts
from maskwright.evaluation.minimal_pairs import judge_pairs, read_pairs
from maskwright.inference.precision import Computing, prepare_model
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.runs.eval.report import ItemScores, Report, build_report, group_by
from maskwright.runs.model import load_model
from maskwright.runs.texts import Say, read_texts
from maskwright.sections.data import SourceLike, build_sources
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.compute.device import choose_device

PRECISION_AT = (1, 5, 10)
_TIE = 0.5
_PSEUDO_NAMES = ("pseudo_log_likelihood", "pseudo_perplexity")
_PLL, _WORD_PLL, _LIKELIHOOD = "pseudo-log-likelihood", "pseudo-log-likelihood, word-l2r", "log-likelihood"


def evaluate_likelihood(
    models: Sequence[str], sources: Sequence[SourceLike], word_l2r: bool, warn: Say, computing: Computing
) -> Report:
    """`pll`: the log-likelihood of texts, and e to the power of minus its mean over tokens.

    That is not the perplexity of `mlm`: a masked model's has one token masked at a time, a causal one's leaves out
    the end of a text. So it has names of its own.
    """
    singles = _read_singles("pll", sources, warn)
    loaded = [open_model(name, computing) for name in models]
    kinds = [_describe_score(model, word_l2r) for model, _ in loaded]
    if len(set(kinds)) > 1:
        raise InputError(
            f"{models[0]} gives a {kinds[0]} and {models[1]} a {kinds[1]}, which do not compare; compare them by"
            " minimal-pairs"
        )
    scores = [score_texts(model, tokenizer, singles, word_l2r=word_l2r) for model, tokenizer in loaded]
    names = ("log_likelihood", "text_perplexity") if kinds[0] == _LIKELIHOOD else _PSEUDO_NAMES
    totals = {"texts": len(singles), "tokens": int(scores[0].num_tokens[scores[0].fits].sum())}
    items = [_measure_texts(one, *names) for one in scores]
    return build_report("pll", models, items, score=kinds[0], items="texts", groups={}, totals=totals)


def evaluate_bound(
    models: Sequence[str],
    sources: Sequence[SourceLike],
    samples: int | None,
    max_length: int | None,
    warn: Say,
    computing: Computing,
) -> Report:
    """`diffusion`: an upper bound on the negative log-likelihood, per token, per word (what stands between spaces) and
    in bits per byte of UTF-8.

    Models with different tokenizers have no common tokens, and are compared by words and bytes alone.
    """
    texts = _read_singles("diffusion", sources, warn)
    num_samples = DEFAULT_SAMPLES if samples is None else samples
    loaded = [open_model(name, computing) for name in models]
    scores = [
        bound_texts(model, tokenizer, texts, num_samples=num_samples, max_length=max_length)
        for model, tokenizer in loaded
    ]
    shares_tokens = len({tokenizer.backend.to_str() for _, tokenizer in loaded}) == 1
    own = scores[0]
    totals = {
        "texts": len(texts),
        "tokens": int(own.num_tokens.sum()),
        "masks_per_text": num_samples,
        "standard_error_of_masks": float(np.sqrt(own.variances.sum()) / own.num_tokens.sum()),
    }
    items = [ItemScores(_measure_bounds(one, texts, shares_tokens), [None] * len(texts)) for one in scores]
    asked = f"upper bound on the negative log-likelihood, from {num_samples} random masks of each text"
    return build_report("diffusion", models, items, score=asked, items="texts", groups={}, totals=totals)


def evaluate_pairs(models: Sequence[str], sources: Sequence[str], word_l2r: bool, computing: Computing) -> Report:
    """`minimal-pairs`: how often the acceptable sentence is the more probable one."""
    pairs = read_pairs(sources)
    loaded = [open_model(name, computing) for name in models]
    kinds = [_describe_score(model, word_l2r) for model, _ in loaded]
    verdicts = [judge_pairs(model, tokenizer, pairs, word_l2r=word_l2r) for model, tokenizer in loaded]
    groups = {
        **group_by("phenomenon", [pair.phenomenon for pair in pairs]),
        **group_by("field", [pair.field for pair in pairs]),
        **group_by("paradigm", [pair.paradigm for pair in pairs]),
    }
    scores = [ItemScores([Measure.of_values("accuracy", one.points)], _name_unfit(one.fits)) for one in verdicts]
    kind = " against ".join(dict.fromkeys(kinds))
    ties = [int((one.points[one.fits] == _TIE).sum()) for one in verdicts]
    totals = {"pairs": len(pairs), **dict(zip(("ties", "ties_against"), ties, strict=False))}
    return build_report("minimal-pairs", models, scores, score=kind, items="pairs", groups=groups, totals=totals)


def evaluate_cloze(models: Sequence[str], sources: Sequence[str], computing: Computing) -> Report:
    """`cloze`: how often the answer is among the first k tokens."""
    items = read_cloze(sources)
    scores = []
    for name in models:
        model, tokenizer = open_model(name, computing)
        answers = rank_answers(model, tokenizer, items)
        at_k = [Measure.of_values(f"precision@{k}", (answers.ranks <= k).astype(float)) for k in PRECISION_AT]
        reciprocal = Measure.of_values("reciprocal_rank", 1 / np.maximum(answers.ranks, 1))
        scores.append(ItemScores([*at_k, reciprocal], answers.unasked))
    groups = group_by("relation", [item.relation for item in items])
    totals = {"questions": len(items)}
    score = "rank of the answer among all tokens"
    return build_report("cloze", models, scores, score=score, items="questions", groups=groups, totals=totals)


def open_model(name: str, computing: Computing | None = None) -> tuple[MaskedLanguageModel, Tokenizer]:
    model, tokenizer = load_model(name)
    model.to(choose_device("auto"))
    if computing is None:
        return model, tokenizer
    prepared = prepare_model(model, computing.precision or "fp32", is_given=False, compile=computing.compile)
    return prepared, tokenizer


def _read_singles(suite: str, sources: Sequence[SourceLike], warn: Say) -> list[str]:
    """All texts of some sources, none of which may be a pair."""
    texts = [text for source in build_sources(list(sources)) for text in read_texts(source, warn)]
    singles = [text for text in texts if isinstance(text, str)]
    if len(singles) < len(texts):
        raise InputError(f"{suite} scores single texts, a source gives pairs (second_column); leave second_column out")
    return singles


def _describe_score(model: MaskedLanguageModel, word_l2r: bool) -> str:
    if model.evaluates_causally:
        return _LIKELIHOOD
    return _WORD_PLL if word_l2r else _PLL


def _measure_texts(scores: TextScores, likelihood: str, perplexity: str) -> ItemScores:
    counts = scores.num_tokens.astype(float)
    return ItemScores(
        [
            Measure.of_values(likelihood, scores.log_likelihoods),
            Measure(perplexity, scores.log_likelihoods, counts, is_perplexity=True),
        ],
        _name_unfit(scores.fits),
    )


def _measure_bounds(scores: TextBounds, texts: Sequence[str], with_tokens: bool) -> list[Measure]:
    num_words = np.asarray([len(text.split()) for text in texts], dtype=np.float64)
    num_bytes = np.asarray([len(text.encode()) for text in texts], dtype=np.float64)
    num_tokens = scores.num_tokens.astype(np.float64)
    of_tokens = [
        Measure("nats_per_token", scores.bounds, num_tokens),
        Measure("perplexity", -scores.bounds, num_tokens, is_perplexity=True),
    ]
    return [
        *(of_tokens if with_tokens else []),
        Measure("nats_per_word", scores.bounds, num_words),
        Measure("bits_per_byte", scores.bounds / math.log(2), num_bytes),
    ]


def _name_unfit(fits: NDArray[np.bool_]) -> list[str | None]:
    return [None if fit else Unasked.TOO_LONG for fit in fits]
