"""Compiled layers compute what plain ones do, and block masks say what dense ones say."""

from __future__ import annotations

import copy
import pickle
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

import maskwright as mw
from maskwright.batch import PackedBatch
from maskwright.models.attention import (
    BLOCK_SIZE,
    build_attention_mask,
    build_block_mask,
    limit_to_window,
    supports_blocks,
)
from maskwright.models.compilation import LayerCompiler
from maskwright.models.layers import GELU, LayerNorm, RMSNorm, compute_share_below
from tolerances import assert_rounded, count_terms, rounding

VOCAB_SIZE = 60


def make_document_ids(length: int, num_rows: int = 3) -> Tensor:
    """Rows of documents of random length; the second ends with padding."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.zeros(num_rows, length, dtype=torch.long)
    for row in ids:
        place, number = 0, 1
        while place < length:
            size = int(torch.randint(1, length // 2 + 2, (1,), generator=generator))
            row[place : place + size] = number
            place, number = place + size, number + 1
    ids[1, length - length // 5 :] = 0
    return ids


def build_dense(ids: Tensor, is_causal: Tensor | None, half_window: int | None) -> Tensor:
    mask = build_attention_mask(ids, is_causal)
    if half_window is not None:
        mask = limit_to_window(mask, torch.arange(ids.shape[1]), half_window)
    assert mask is not None
    return mask.expand(len(ids), 1, *mask.shape[2:])


def as_blocks(mask: Tensor) -> Tensor:
    """(rows, blocks, block, blocks, block), false beyond the row."""
    missing = -mask.shape[-1] % BLOCK_SIZE
    padded = F.pad(mask[:, 0], (0, missing, 0, missing))
    return padded.unflatten(2, (-1, BLOCK_SIZE)).unflatten(1, (-1, BLOCK_SIZE))


_MASKED = [(100, None, True), (300, 200, True), (640, 200, False)]
"""Of shorter and longer rows than a block, with and without a window, both ways."""


@pytest.mark.parametrize(
    ("length", "half_window", "has_causal"),
    [
        pytest.param(*case, marks=[] if case in _MASKED else [pytest.mark.slow])
        for case in product([100, 128, 300, 640], [None, 5, 200], [False, True])
    ],
)
def test_block_masks_hold_every_pair_that_dense_masks_allow(
    length: int, half_window: int | None, has_causal: bool
) -> None:
    ids = make_document_ids(length)
    is_causal = (torch.arange(3) != 1)[:, None].expand_as(ids) if has_causal else None
    blocks = build_block_mask(ids, is_causal, half_window)
    dense = build_dense(ids, is_causal, half_window)
    by_block = as_blocks(dense)
    is_listed = blocks.to_dense()[:, 0].bool()
    assert not (by_block.any(4).any(2) & ~is_listed).any()
    for row in range(len(ids)):
        for query, count in enumerate(blocks.full_kv_num_blocks[row, 0].tolist()):
            keys = blocks.full_kv_indices[row, 0, query, :count].tolist()
            assert all(by_block[row, query, :, key].all() for key in keys), "a block that is not checked is not full"
    query, key, value = torch.randn(3, 3, 2, length, 16)
    attended = flex_attention(query, key, value, block_mask=blocks)
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=dense)
    assert_rounded(attended, expected, 16 + 2 * length)


def test_blocks_of_other_documents_and_beyond_the_window_are_left_out() -> None:
    ids = torch.arange(1, 5).repeat_interleave(BLOCK_SIZE)[None]
    assert build_block_mask(ids).to_dense()[0, 0].equal(torch.eye(4, dtype=torch.int32))
    one = torch.ones_like(ids)
    near = build_block_mask(one, half_window=64).to_dense()[0, 0]
    assert near.sum() == 4 + 2 * 3, "its own block and its neighbours"


def test_attention_dropout_and_odd_head_sizes_have_no_block_kernels() -> None:
    hidden = torch.zeros(1, BLOCK_SIZE, 8)
    assert supports_blocks(hidden, 64, 0.0)
    assert not supports_blocks(hidden, 64, 0.1)
    assert not supports_blocks(hidden, 48, 0.0)


@pytest.mark.parametrize("length", [96, 128])
@pytest.mark.parametrize("head_size", [64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_short_rows_with_large_heads_in_fp32_have_a_kernel_that_takes_minutes_to_compile(
    length: int, head_size: int, dtype: torch.dtype
) -> None:
    is_slow = (length, head_size, dtype) == (96, 128, torch.float32)
    assert supports_blocks(torch.zeros(1, length, 8, dtype=dtype), head_size, 0.0) != is_slow


def build_batch(num_rows: int = 2, length: int = 12) -> PackedBatch:
    ids = torch.randint(5, VOCAB_SIZE, (num_rows, length), generator=torch.Generator().manual_seed(1))
    document_ids = torch.arange(length).expand(num_rows, length) // 5 + 1
    return PackedBatch(ids, document_ids, torch.arange(length).expand_as(ids) % 5, torch.zeros_like(ids))


def build_model(family: str) -> mw.MaskedLanguageModel:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 3, "vocab_size": VOCAB_SIZE}
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} if family == "BERT" else {}
    encoder = getattr(mw, family).from_variant("tiny", **shape, **rates, max_position_embeddings=16)
    return mw.MaskedLanguageModel(
        encoder, VOCAB_SIZE, mask_token_id=4, special_token_ids=range(5), mlm_head_dropout=0.0
    )


def differentiate(model: mw.MaskedLanguageModel, batch: PackedBatch) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    sums = model.train().loss_sums(model.corrupt(batch, seed=3, epoch=0, ratio=0.4))
    sums.loss_sum.backward()
    return sums.loss_sum.detach(), {name: param.grad.clone() for name, param in model.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["BERT", "ModernBERT"])
def test_compiled_models_have_the_loss_and_gradients_of_plain_ones(family: str) -> None:
    plain, compiled = build_model(family), build_model(family)
    compiled.compile_parts()
    (expected, expected_grads), (loss, grads) = (differentiate(model, build_batch()) for model in (plain, compiled))
    num_terms = count_terms(num_layers=3, width=16, length=12)
    assert_rounded(loss, expected, num_terms)
    assert_rounded(grads, expected_grads, 2 * num_terms)


def test_a_copy_of_a_compiled_model_has_kernels_of_its_own() -> None:
    model = build_model("BERT")
    model.compile_parts()
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert copied._head_compiler is not None
        assert copied._head_compiler is not model._head_compiler
        assert copied.encoder.layer_compiler is not model.encoder.layer_compiler


def test_the_first_shape_and_shapes_that_come_twice_in_a_row_run_compiled() -> None:
    compiler = LayerCompiler()
    first, odd = torch.zeros(4, 6, 8), torch.zeros(3, 6, 8)
    compiler.see(first)
    assert compiler.accepts(first)
    with torch.no_grad():
        assert not compiler.accepts(first)
    for hidden in (odd, first, odd, first):
        compiler.see(hidden)
    assert not compiler.accepts(odd), "the last batch of an epoch"
    for _ in range(2):
        compiler.see(odd)
    assert compiler.accepts(odd), "batches that have grown"
    assert compiler.accepts(first)


def test_the_short_formula_of_gelu_is_exact_to_single_precision() -> None:
    x = torch.linspace(-12, 12, 100_001)
    exact, in_double = F.gelu(x.double()), x.double() * compute_share_below(x.double())[0]
    of_formula = 1.5e-7 / 2  # of the share below x, which is (1 + erf) / 2
    assert ((in_double - exact).abs() <= of_formula * x.abs()).all()
    num_operations = 20
    error = (x * compute_share_below(x)[0] - exact).abs()
    assert (error <= (of_formula + rounding(num_operations)) * x.abs()).all()
    assert GELU()(x).equal(F.gelu(x)), "kernels that are not compiled stay torch's own"


@pytest.mark.parametrize("norm", [LayerNorm(8), RMSNorm(8), LayerNorm(8, bias=False)])
def test_norms_answer_in_the_numbers_they_are_asked_in(norm: torch.nn.Module) -> None:
    hidden = torch.randn(3, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert norm(hidden.bfloat16()).dtype == torch.bfloat16
        assert norm(hidden).dtype == torch.float32
    num_roundings = 2  # of what goes in and of what comes out
    assert_rounded(norm(hidden.bfloat16()), norm(hidden), num_roundings, dtype=torch.bfloat16)


def test_hidden_states_are_bf16_between_layers_where_products_are() -> None:
    model, batch = build_model("BERT").eval(), build_batch()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.encoder(batch.input_ids, document_ids=batch.document_ids, positions=batch.positions)
    assert hidden.last_hidden_state.dtype == torch.bfloat16
