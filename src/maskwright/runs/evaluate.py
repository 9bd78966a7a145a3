"""Measure a saved model on texts."""

from __future__ import annotations

from collections.abc import Sequence

from maskwright.errors import InputError
from maskwright.models.encoding import find_max_length
from maskwright.runs.inputs import pack_documents
from maskwright.runs.model import load_model
from maskwright.runs.texts import Say, read_texts
from maskwright.sections.data import build_sources
from maskwright.training.device import choose_device
from maskwright.training.evaluate import evaluate

_ROW_LENGTH = 512
_ROWS_PER_BATCH = 16


def evaluate_texts(name: str, sources: Sequence[str], max_length: int | None, warn: Say) -> dict[str, float]:
    """The figures of a model under fixed masks on 15% of single tokens, or on next tokens for a causal one."""
    model, tokenizer = load_model(name)
    limit = find_max_length(model.encoder)
    row_length = min(limit or _ROW_LENGTH, _ROW_LENGTH) if max_length is None else max_length
    if limit is not None and row_length > limit:
        raise InputError(f"the row length is {row_length}, {name} takes {limit} tokens; lower --max-length")
    texts = [text for source in build_sources(list(sources)) for text in read_texts(source, warn)]
    loader = pack_documents(
        texts, tokenizer, warn, row_length=row_length, rows_per_batch=_ROWS_PER_BATCH, shuffle=False
    )
    evaluation = evaluate(model.to(choose_device("auto")), loader.epoch(0))
    return {
        **evaluation.metrics,
        "perplexity": evaluation.perplexity,
        "questions": evaluation.num_masked,
        "documents": len(texts),
    }
