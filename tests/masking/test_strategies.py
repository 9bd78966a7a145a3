"""The strategies by name: how a masker is built, described, saved with a model, and compiled."""

from __future__ import annotations

import pytest
import torch

from maskwright.batch import from_padded
from maskwright.errors import InputError
from maskwright.masking.strategies import SpanMasker, WordMasker, build_masker
from maskwright.masking.tokens import TokenMasker
from maskwright.models.bert import BERT
from maskwright.objectives.masked_lm import MaskedLanguageModel

VOCABULARY = (500, 4, (0, 1, 2, 3, 4))


def build_model(**options) -> MaskedLanguageModel:
    encoder = BERT.from_variant(
        "tiny", vocab_size=500, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=64
    )
    return MaskedLanguageModel(encoder, 500, mask_token_id=4, special_token_ids=range(5), **options)


@pytest.mark.parametrize(
    ("strategy", "kind"), [("token", TokenMasker), ("whole_word", WordMasker), ("span", SpanMasker)]
)
def test_a_masker_is_built_by_name_and_again_from_its_settings(strategy, kind):
    options = {"random_token_ratio": 0.2, "unchanged_ratio": 0.3, "selection": "bernoulli"}
    if strategy == "span":
        options |= {"span_p": 0.4, "span_max_words": 6}
    masker = build_masker(*VOCABULARY, strategy=strategy, **options)
    assert type(masker) is kind
    assert masker.settings() == {"strategy": strategy, **options}
    assert build_masker(*VOCABULARY, **masker.settings()).settings() == masker.settings()


def test_an_unknown_strategy_is_refused():
    with pytest.raises(InputError, match="no masking strategy 'whole_words'; did you mean 'whole_word'"):
        build_model(strategy="whole_words")


@pytest.mark.parametrize("strategy", ["token", "whole_word", "span"])
def test_evaluation_masks_single_tokens_whatever_the_strategy(strategy):
    """On a batch that says nothing of words, as those of validation do."""
    batch = from_padded(torch.arange(10, 60).view(2, 25))
    expected = TokenMasker(*VOCABULARY).corrupt(batch, 0.15, 3, 0)
    model = build_model(strategy=strategy)
    found = model.token_masker.corrupt(batch, 0.15, 3, 0)
    assert torch.equal(found.labels, expected.labels)
    assert torch.equal(found.batch.input_ids, expected.batch.input_ids)
    assert model.token_masker is model.token_masker, "its tables are built once"


def test_a_saved_model_keeps_its_strategy(tmp_path):
    build_model(strategy="span", span_p=0.4, span_max_words=3).save_pretrained(tmp_path)
    assert MaskedLanguageModel.from_pretrained(tmp_path).masker.settings() == {
        "strategy": "span",
        "selection": "exact",
        "random_token_ratio": 0.1,
        "unchanged_ratio": 0.1,
        "span_p": 0.4,
        "span_max_words": 3,
    }


@pytest.mark.parametrize("strategy", ["token", "whole_word", "span"])
def test_masking_is_one_graph_without_waiting_for_the_device(strategy, pack_words):
    masker = build_masker(*VOCABULARY, strategy=strategy)
    batch = pack_words([[(1, [1, 2, 3] * 5), (2, [4, 1] * 4)], [(3, [1] * 20)]])

    def mask(ids, documents, positions, samples, words):
        return masker.corrupt(type(batch)(ids, documents, positions, samples, word_starts=words), 0.2, 1, 0).labels

    fields = (batch.input_ids, batch.document_ids, batch.positions, batch.sample_ids, batch.word_starts)
    compiled = torch.compile(mask, backend="eager", fullgraph=True)
    assert torch.equal(compiled(*fields), mask(*fields))


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", ["token", "whole_word", "span"])
@pytest.mark.parametrize("selection", ["exact", "bernoulli"])
def test_masks_are_the_same_on_cpu_and_gpu_and_nothing_waits(strategy, selection, pack_words):
    batch = pack_words([[(2 * row, [1, 3, 2] * 6), (2 * row + 1, [4, 1, 30])] for row in range(50)])
    on_cpu = build_masker(*VOCABULARY, strategy=strategy, selection=selection).corrupt(batch, 0.2, 9, 1)
    masker, there = build_masker(*VOCABULARY, strategy=strategy, selection=selection), batch.to("cuda")
    masker.corrupt(there, 0.2, 0, 0)  # moves its tables
    torch.cuda.set_sync_debug_mode("error")
    try:
        on_gpu = masker.corrupt(there, 0.2, 9, 1)
        overflowing = on_gpu.num_overflowing()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(on_gpu.labels.cpu(), on_cpu.labels)
    assert torch.equal(on_gpu.batch.input_ids.cpu(), on_cpu.batch.input_ids)
    assert int(overflowing) == 0
