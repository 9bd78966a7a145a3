"""A batch of a task on a CPU: neither padding nor attention between documents is computed, and nothing else changes."""

from __future__ import annotations

import pytest
import torch

from maskwright.batch import PackedBatch, flatten_documents
from maskwright.models.any_encoder import encode, encode_documents
from maskwright.models.bert import BERT
from maskwright.models.encoder import PackedEncoder
from maskwright.models.modernbert import ModernBERT

SHAPE = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
EXTRAS = {BERT: {}, ModernBERT: {"local_attention": 4, "global_attn_every_n_layers": 2}}
LENGTHS = ((5, 9, 2), (12,), (), (9, 5))


def build_batch() -> PackedBatch:
    """Rows of several documents, of one, and of padding alone."""
    generator = torch.Generator().manual_seed(0)
    documents, positions = (
        torch.zeros(len(LENGTHS), 17, dtype=torch.long),
        torch.zeros(len(LENGTHS), 17, dtype=torch.long),
    )
    for row, lengths in enumerate(LENGTHS):
        start = 0
        for number, length in enumerate(lengths, start=1):
            documents[row, start : start + length] = number
            positions[row, start : start + length] = torch.arange(length)
            start += length
    ids = torch.randint(1, 60, documents.shape, generator=generator)
    return PackedBatch(ids * (documents > 0), documents, positions, documents, token_type_ids=(positions > 3).long())


@pytest.mark.parametrize("kind", [BERT, ModernBERT])
def test_states_and_gradients_are_those_of_the_rows(kind: type[PackedEncoder]) -> None:
    torch.manual_seed(0)
    dropouts = {name: 0.0 for name in kind.config_class.__dataclass_fields__ if "dropout" in name}
    encoder = kind.from_variant("tiny", **SHAPE, **EXTRAS[kind], **dropouts).double().train()
    batch = build_batch()
    is_real = ~batch.is_padding
    factors = torch.randn(int(is_real.sum()), 16, dtype=torch.float64)
    found = [read(encoder, batch)[is_real] for read in (encode_documents, encode)]
    torch.testing.assert_close(*found)
    grads = [torch.autograd.grad((one * factors).sum(), list(encoder.parameters()), allow_unused=True) for one in found]
    assert any(one is not None for one in grads[0])
    torch.testing.assert_close(*grads)


def test_documents_lie_from_the_shortest_to_the_longest() -> None:
    batch = build_batch()
    flat, places = flatten_documents(batch)
    assert flat.bounds.starts.diff().tolist() == [2, 5, 5, 9, 9, 12]
    assert int(flat.bounds.longest) == 12
    for name in ("input_ids", "positions", "token_type_ids", "sample_ids"):
        assert torch.equal(getattr(flat, name)[0], getattr(batch, name).flatten()[places])
    assert torch.equal(places.sort().values, (~batch.is_padding).flatten().nonzero()[:, 0])


def test_attention_is_dropped_in_documents_too() -> None:
    torch.manual_seed(0)
    encoder = BERT.from_variant("tiny", **SHAPE, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.5).train()
    batch = build_batch()
    first, second = (encode_documents(encoder, batch) for _ in range(2))
    assert not torch.equal(first, second)
    encoder.eval()
    assert torch.equal(encode_documents(encoder, batch), encode_documents(encoder, batch))
