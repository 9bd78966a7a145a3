from __future__ import annotations

import math

import pytest
import torch

from maskwright.batch import as_packed
from maskwright.data.loader import PackedLoader
from maskwright.data.store import TokenStore
from maskwright.errors import InputError
from maskwright.evaluation.perplexity import calculate_perplexity
from maskwright.models.bert import BERT
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.training.held_out import evaluate


@pytest.fixture
def model() -> MaskedLanguageModel:
    torch.manual_seed(0)
    encoder = BERT.from_variant(
        "tiny", vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, initializer_range=0.3
    )
    return MaskedLanguageModel(encoder, 50, mask_token_id=4, special_token_ids=range(5), mask_ratio=0.3).train()


@pytest.fixture
def batches() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [{"input_ids": torch.randint(5, 50, (4, 10), generator=generator)} for _ in range(5)]


def test_is_the_exponential_of_the_loss_under_the_masks_of_every_evaluation(model, batches):
    expected = evaluate(model, map(as_packed, batches), mask_ratio=0.15)  # though the model masks 30%
    assert 5 * 4 <= expected.num_masked <= 5 * 4 * 2
    assert calculate_perplexity(model, batches) == pytest.approx(math.exp(expected.loss))


def test_is_deterministic_in_training_mode(model, batches):
    assert calculate_perplexity(model, batches) == calculate_perplexity(model, batches)
    assert model.training


def test_number_of_batches(model, batches):
    assert calculate_perplexity(model, batches, num_batches=2) == calculate_perplexity(model, batches[:2])
    assert calculate_perplexity(model, batches, num_batches=2) != calculate_perplexity(model, batches)
    assert calculate_perplexity(model, batches, num_batches=None) == calculate_perplexity(model, batches)


def test_reads_no_more_batches_than_asked(model, batches):
    stream = iter(batches)
    calculate_perplexity(model, stream, num_batches=2)
    assert next(stream) is batches[2]


def test_packed_loader_gives_the_same_batches_each_time(model):
    documents = torch.randint(5, 50, (40, 6), generator=torch.Generator().manual_seed(1)).tolist()
    loader = PackedLoader(
        TokenStore.from_documents(documents, 50),
        cls_token_id=2,
        sep_token_id=3,
        pad_token_id=0,
        row_length=16,
        rows_per_batch=2,
    )
    first = calculate_perplexity(model, loader, num_batches=3)
    assert calculate_perplexity(model, loader, num_batches=3) == first


@pytest.mark.parametrize("num_batches", [0, -1])
def test_nothing_to_read_is_refused(model, batches, num_batches):
    with pytest.raises(InputError, match="num_batches"):
        calculate_perplexity(model, batches, num_batches=num_batches)
    with pytest.raises(InputError, match="no batch"):
        calculate_perplexity(model, [])
