"""In which numbers a pipeline computes, and that int8 products are those of rounded weights and tokens."""

from __future__ import annotations

import copy
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from maskwright.errors import InputError
from maskwright.inference.pipeline import pipeline
from maskwright.inference.precision import choose_inference_precision
from maskwright.models import products
from maskwright.models.encoder import FAMILIES
from maskwright.models.products import Int8Linear, RowLinear, find_largest_weight, multiply_rows
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.tasks.heads import build_sequence_head
from maskwright.tasks.model import TaskModel
from maskwright.tasks.sequence.classification import Classification
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.compute import precision as measured
from tolerances import assert_rounded

CPU = torch.device("cpu")
SHAPE = {"vocab_size": 160, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def build(family: str = "bert") -> Any:
    torch.manual_seed(0)
    return FAMILIES[family].from_variant("tiny", **SHAPE, initializer_range=0.1).eval()


@pytest.mark.parametrize("num_rows", [1, 2, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_int8_products_are_off_by_the_rounding_of_their_factors(num_rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    linear, features = torch.nn.Linear(96, 50, bias=bias), torch.randn(num_rows, 96)
    features[0] = 0.0
    with torch.inference_mode():
        found, expected = Int8Linear(linear)(features), linear(features)
        half_weight = linear.weight.abs().amax(1) / find_largest_weight() / 2
        half_token = features.abs().amax(1, keepdim=True) / 127 / 2
        most = features.abs().sum(1, keepdim=True) * half_weight + linear.weight.abs().sum(1) * half_token
        most += 96 * half_weight * half_token
    assert ((found - expected).abs() <= most * 1.001 + 1e-5).all()
    assert not torch.equal(found[1:], expected[1:]) or num_rows == 1
    assert_rounded(found[0], expected[0], 96)


@pytest.mark.skipif(not products.IS_ROW_INVARIANT, reason="torch has oneDNN's product on x86 alone")
@pytest.mark.parametrize("num_factors", [481, 1536])
@pytest.mark.parametrize("bias", [True, False])
def test_long_sums_in_bf16_are_rounded_a_part_at_a_time(
    num_factors: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_has_amx", lambda: True)
    torch.manual_seed(0)
    linear = RowLinear(num_factors, 48, bias=bias).bfloat16()
    features = torch.randn(70, num_factors).bfloat16()
    with torch.inference_mode():
        found, expected = linear(features), linear.double()(features.double())
        linear.bfloat16()
        assert found.dtype == torch.bfloat16
        assert torch.equal(linear(features[:1]), found[:1])
    assert_rounded(found, expected, math.ceil(num_factors / 480), dtype=torch.bfloat16)


@pytest.mark.skipif(not products.IS_ROW_INVARIANT, reason="torch has oneDNN's product on x86 alone")
@torch.no_grad()
def test_parts_of_a_weight_are_kept_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_has_amx", lambda: True)
    linear, features = RowLinear(512, 48, bias=False).bfloat16(), torch.randn(3, 512).bfloat16()
    ask = torch.inference_mode()(multiply_rows)
    first = ask(features, linear.weight, None)
    kept = products._KEPT_PARTS[linear.weight].parts
    assert torch.equal(ask(features, linear.weight, None), first)
    assert products._KEPT_PARTS[linear.weight].parts is kept
    linear.weight.mul_(2)
    assert torch.equal(ask(features, linear.weight, None), first * 2)
    linear.weight.data = linear.weight.data * 2
    assert torch.equal(ask(features, linear.weight, None), first * 4)
    count = len(products._KEPT_PARTS)
    del linear
    assert len(products._KEPT_PARTS) == count - 1


@pytest.mark.skipif(not products.IS_ROW_INVARIANT, reason="torch has oneDNN's product on x86 alone")
@pytest.mark.parametrize("num_factors", [64, 344, 1536])
@torch.no_grad()
def test_packed_weights_give_the_same_and_follow_the_weights(num_factors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_has_amx", lambda: True)
    torch.manual_seed(0)
    plain = RowLinear(num_factors, 48).bfloat16()
    packed = copy.deepcopy(plain)
    products.pack_weights(packed)
    with torch.inference_mode():
        for num_rows in (1, 2, 7, 70, 200):
            features = torch.randn(num_rows, num_factors).bfloat16()
            assert torch.equal(packed(features), plain(features))
    assert all(part.is_mkldnn for part in products._KEPT_PARTS[packed.weight].parts)
    for linear in (plain, packed):
        linear.weight.mul_(2)
    with torch.inference_mode():
        assert torch.equal(packed(features), plain(features))


def test_the_largest_factors_are_summed_exactly() -> None:
    """Every CPU has its own instructions for this, and some cut off sums."""
    signs = torch.tensor([1.0, -1.0])
    for sign, other in itertools.product(signs, signs):
        linear, features = torch.nn.Linear(256, 1, bias=False), sign * torch.ones(4, 256)
        torch.nn.init.constant_(linear.weight, float(other))
        assert_rounded(Int8Linear(linear)(features), features @ linear.weight.T, 256)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_product_of_an_encoder_is_int8_and_its_vectors_stay_near(
    family: str, tokenizer: Tokenizer, sentences: list[str]
) -> None:
    encoder = build(family)
    exact = pipeline("embed", encoder, tokenizer, normalize=True)(sentences[:20])
    rounded = pipeline("embed", encoder, tokenizer, normalize=True, precision="int8")
    assert not any(isinstance(part, torch.nn.Linear) for part in rounded.kind.encoder.modules())
    near = rounded(sentences[:20])
    # each of the 8 or so products adds noise of about 1 %
    assert min(float(one @ other) for one, other in zip(near, exact, strict=True)) > 0.98
    assert [one.tolist() for one in near] == [rounded(text).tolist() for text in sentences[:20]]


def test_a_model_in_memory_is_copied_for_another_precision(tokenizer: Tokenizer, sentences: list[str]) -> None:
    encoder = build()
    assert pipeline("embed", encoder, tokenizer).precision is None
    before = pipeline("embed", encoder, tokenizer)(sentences[0])
    for name in ("int8", "bf16"):
        assert not np.array_equal(pipeline("embed", encoder, tokenizer, precision=name)(sentences[0]), before)
    assert all(isinstance(layer.up, RowLinear) for layer in encoder.layers)
    assert np.array_equal(pipeline("embed", encoder, tokenizer)(sentences[0]), before)


def test_the_head_of_a_task_stays_in_fp32(tokenizer: Tokenizer, sentences: list[str]) -> None:
    encoder = build()
    model = TaskModel(encoder, build_sequence_head(encoder, 3, {}), Classification(["a", "b", "c"])).eval()
    classify = pipeline("classify", model, tokenizer, precision="bf16", top_k=None)
    assert {weight.dtype for weight in classify.kind.encoder.parameters()} == {torch.bfloat16}
    assert {weight.dtype for weight in classify.kind.module.task_head.parameters()} == {torch.float32}
    assert sum(one["score"] for one in classify(sentences[0])) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("name", ["int8", "bf16"])
def test_masks_are_filled_in_any_precision(name: str, tokenizer: Tokenizer) -> None:
    model = MaskedLanguageModel(build(), 160, tokenizer=tokenizer).eval()
    exact = pipeline("fill-mask", model, tokenizer, top_k=160)("the old [MASK] sleeps")
    found = pipeline("fill-mask", model, tokenizer, top_k=160, precision=name)("the old [MASK] sleeps")
    scores = [{one["token"]: one["score"] for one in answers} for answers in (exact, found)]
    assert sum(scores[1].values()) == pytest.approx(1.0, abs=1e-3)
    assert 0 < max(abs(scores[0][token] - scores[1][token]) for token in scores[0]) < 0.01


def test_auto_is_bf16_where_reading_was_measured_to_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_inference_precision("auto", CPU, 384).name == "fp32"
    speeds = {"fp32": 1.0, "bf16": 4.0, "fp16": 9.0}
    monkeypatch.setattr(measured, "_load_speeds", lambda key: speeds if key.endswith("inference, 512 wide") else None)
    assert str(choose_inference_precision("auto", CPU, 384)) == "bf16 (4x as fast as fp32 here)"


def test_reading_is_really_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert choose_inference_precision("auto", CPU, 128).name in ("fp32", "bf16")
    (speeds,) = json.loads((tmp_path / "maskwright" / "precision.json").read_text()).values()
    assert speeds["fp32"] == 1.0
    assert speeds["bf16"] > 0


def test_predict_says_what_it_computes_in(command: Any, bert_folder: Path) -> None:
    told = command("predict", "embed", bert_folder, "a cat", "--precision", "int8")
    assert "precision: int8" in told.err
    exact = command("predict", "embed", bert_folder, "a cat")
    assert "precision" not in exact.err
    rounded, plain = (np.array(json.loads(one.out)["embedding"]) for one in (told, exact))
    assert 0 < abs(rounded - plain).max() < 0.1 * abs(plain).max()
    filled = command("fill", bert_folder, "a [MASK]", "--precision", "bf16")
    assert filled.code == 0


@pytest.mark.parametrize(
    ("name", "device", "words"),
    [
        ("int4", "cpu", "no precision 'int4'"),
        ("fp16", "cpu", "fp16, which is for GPUs"),
        ("int8", "cuda", "int8, which is for CPUs"),
    ],
)
def test_a_precision_that_the_device_lacks_is_refused(name: str, device: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        choose_inference_precision(name, torch.device(device), 64)
