"""A GPU's memory is really full: evaluation and inference go on in smaller parts, with the same answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import maskwright as mw
from maskwright.batch import PackedBatch
from maskwright.errors import InputWarning
from maskwright.inference.layout import EncodedBatch, Reduction, Sample
from maskwright.inference.runner import run_packed
from maskwright.training.held_out import Evaluation, evaluate
from tolerances import assert_rounded, count_terms, rounding

VOCAB_SIZE, LENGTH = 1000, 128
NUM_TERMS = count_terms(num_layers=2, width=128, length=LENGTH)

pytestmark = pytest.mark.gpu


@pytest.fixture
def model() -> mw.MaskedLanguageModel:
    torch.manual_seed(0)
    encoder = mw.BERT.from_variant("tiny", vocab_size=VOCAB_SIZE, max_position_embeddings=LENGTH)
    return mw.MaskedLanguageModel(encoder, VOCAB_SIZE, mask_token_id=4, special_token_ids=range(5)).cuda().eval()


@pytest.fixture
def full_memory() -> Iterator[None]:
    """No more than twice what was ever in use so far."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(
        2 * torch.cuda.max_memory_reserved() / torch.cuda.get_device_properties(0).total_memory
    )
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def build_batch(num_rows: int) -> PackedBatch:
    ids = torch.randint(5, VOCAB_SIZE, (num_rows, LENGTH), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(LENGTH).expand_as(ids).contiguous()
    return PackedBatch(ids, torch.ones_like(ids), positions, torch.zeros_like(ids))


@pytest.fixture
def in_small_parts(model: mw.MaskedLanguageModel) -> tuple[Evaluation, list[Tensor]]:
    torch.cuda.reset_peak_memory_stats()
    batch = build_batch(4096)
    parts = [batch.rows(start, start + 32) for start in range(0, batch.num_rows, 32)]
    return evaluate(model, parts), embed(model, batch_tokens=32 * LENGTH)


def embed(model: mw.MaskedLanguageModel, batch_tokens: int) -> list[Tensor]:
    samples = [Sample(row) for row in build_batch(4096).input_ids.tolist()]
    return list(run_packed(model.encoder, samples, take_means, pad_token_id=0, batch_tokens=batch_tokens))


def take_means(batch: EncodedBatch[Sample]) -> Reduction:
    return Reduction((torch.stack([hidden.mean(0) for hidden in batch.split()]),), list)


def test_an_evaluation_that_does_not_fit_goes_on_in_parts(model, in_small_parts, full_memory) -> None:
    expected, _ = in_small_parts
    with pytest.warns(InputWarning, match="out of memory with 524288 tokens at a time in an evaluation") as caught:
        found = evaluate(model, [build_batch(4096)])
    assert len(caught) > 1, "halved once would still not fit"
    assert found.loss == pytest.approx(expected.loss, rel=rounding(NUM_TERMS))
    assert found.num_masked == expected.num_masked


def test_texts_that_do_not_fit_together_go_in_smaller_batches(model, in_small_parts, full_memory) -> None:
    _, expected = in_small_parts
    with pytest.warns(InputWarning, match="out of memory with .* tokens at a time; going on with at most"):
        found = embed(model, batch_tokens=4096 * LENGTH)
    for one, other in zip(found, expected, strict=True):
        assert_rounded(one, other, NUM_TERMS, magnitude=1.0)
