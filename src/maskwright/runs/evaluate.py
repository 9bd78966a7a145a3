"""Measure a saved model, or two, on texts under fixed masks."""

from __future__ import annotations

from collections.abc import Sequence

from maskwright.errors import InputError
from maskwright.evaluation.figures import Measure
from maskwright.evaluation.masked_questions import SampleScores, score_samples
from maskwright.models.encoding import find_max_length
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.runs.evaluation.report import ItemScores, Report, build_report
from maskwright.runs.evaluation.suites import open_model
from maskwright.runs.inputs import pack_documents
from maskwright.runs.texts import Say, read_texts
from maskwright.sections.data import build_sources
from maskwright.training.evaluate import Evaluation

_ROW_LENGTH = 512
_ROWS_PER_BATCH = 16


def evaluate_texts(name: str, sources: Sequence[str], max_length: int | None, warn: Say) -> dict[str, float]:
    """The figures of a model under fixed masks on 15% of single tokens, or on next tokens for a causal one."""
    return dict(evaluate_masked([name], sources, max_length, warn).totals)


def evaluate_masked(models: Sequence[str], sources: Sequence[str], max_length: int | None, warn: Say) -> Report:
    """`mlm`: loss, accuracy and perplexity; two models are asked for the same tokens, so they share a tokenizer."""
    loaded = [open_model(name) for name in models]
    row_length = _choose_row_length(models, [model for model, _ in loaded], max_length)
    (model, tokenizer), other = loaded[0], loaded[-1]
    if other[1].backend.to_str() != tokenizer.backend.to_str():
        raise InputError(
            f"{models[0]} and {models[-1]} have different tokenizers, so they cannot be asked for the same tokens;"
            " compare them by pll or minimal-pairs"
        )
    if other[0].evaluates_causally != model.evaluates_causally:
        raise InputError(
            f"of {models[0]} and {models[-1]} one fills masked tokens and one continues text, and their losses do not"
            " compare; compare them by minimal-pairs"
        )
    texts = [text for source in build_sources(list(sources)) for text in read_texts(source, warn)]
    loader = pack_documents(
        texts, tokenizer, warn, row_length=row_length, rows_per_batch=_ROWS_PER_BATCH, shuffle=False
    )
    scores = [score_samples(one, loader.epoch(0)) for one, _ in loaded]
    items = [_measure(one, scored) for (one, _), scored in zip(loaded, scores, strict=True)]
    totals = {**_compute_totals(model, scores[0]), "documents": len(texts)}
    asked = "next tokens" if model.evaluates_causally else "fixed masks on 15% of single tokens"
    return build_report("mlm", models, items, score=asked, items="samples", groups={}, totals=totals)


def _choose_row_length(names: Sequence[str], models: Sequence[MaskedLanguageModel], max_length: int | None) -> int:
    limits = [find_max_length(model.encoder) for model in models]
    if max_length is None:
        return min(_ROW_LENGTH, *(limit or _ROW_LENGTH for limit in limits))
    for name, limit in zip(names, limits, strict=True):
        if limit is not None and max_length > limit:
            raise InputError(f"the row length is {max_length}, {name} takes {limit} tokens; lower --max-length")
    return max_length


def _measure(model: MaskedLanguageModel, scores: SampleScores) -> ItemScores:
    loss = Measure("loss", scores.loss_sums, scores.num_questions)
    accuracy = Measure(model.accuracy_name, scores.num_correct, scores.num_questions)
    perplexity = Measure("perplexity", -scores.loss_sums, scores.num_questions, is_perplexity=True)
    return ItemScores([loss, accuracy, perplexity], [None] * len(scores.loss_sums))


def _compute_totals(model: MaskedLanguageModel, scores: SampleScores) -> dict[str, float]:
    sums = (scores.loss_sums, scores.num_questions, scores.num_correct)
    metrics = model.compute_metrics([float(values.sum()) for values in sums])
    evaluation = Evaluation(metrics, int(scores.num_questions.sum()))
    return {**metrics, "perplexity": evaluation.perplexity, "questions": evaluation.num_masked}
