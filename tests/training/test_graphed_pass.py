"""Recorded passes on a GPU give the losses and weights of plain ones; what a recording depends on is noticed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskwright as mw
from maskwright.batch import from_padded
from maskwright.masking.tokens import CorruptedBatch
from maskwright.training.compute.compiling import (
    GraphedPass,
    _copy,
    _describe,
    _list_tensors,
    should_compile,
    should_record,
)
from maskwright.training.distributed.world import World
from maskwright.training.engine import Engine
from maskwright.training.state import TrainingState
from tolerances import count_terms, rounding

VOCAB_SIZE = 200
NUM_STEPS, NUM_ROWS, LENGTH = 8, 8, 200
IN_FP32 = rounding(NUM_STEPS * 2 * count_terms(num_layers=3, width=256, length=LENGTH))
"""Of losses, which are near the logarithm of the vocabulary, relative to them."""


class PlainEncoder(nn.Module):
    """Of the user's own, so nobody knows whether it waits for the host."""

    hidden_size = 8

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(VOCAB_SIZE, 8)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        return {"last_hidden_state": self.word(input_ids)}


@pytest.fixture
def tiny_model() -> mw.MaskedLanguageModel:
    shape = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "max_position_embeddings": 16}
    encoder = mw.BERT.from_variant("tiny", vocab_size=VOCAB_SIZE, **shape)
    return mw.MaskedLanguageModel(encoder, VOCAB_SIZE, mask_token_id=4)


class RecordedError(Exception):
    """Where a GPU would record."""


def build_corrupted(num_slots: int = 8, num_rows: int = 2) -> CorruptedBatch:
    batch = from_padded(torch.arange(6 * num_rows).view(num_rows, 6) + 5)
    return CorruptedBatch(batch, torch.full((num_rows, 6), -100), num_slots)


def test_recordings_are_told_apart_by_shapes_and_slots_but_not_by_values() -> None:
    corrupted = build_corrupted()
    others = replace(corrupted, labels=torch.zeros(2, 6, dtype=torch.long))
    assert _describe(corrupted) == _describe(others)
    assert _describe(corrupted) != _describe(replace(corrupted, num_slots=9))
    assert _describe(corrupted) != _describe(replace(corrupted, is_causal=torch.ones(2, 6, dtype=torch.bool)))


def test_a_copy_shares_no_memory_with_its_original() -> None:
    corrupted = build_corrupted()
    places = {tensor.data_ptr() for tensor in _list_tensors(corrupted)}
    copies = _list_tensors(_copy(corrupted))
    assert len(copies) == len(_list_tensors(corrupted)) == 5
    assert not places & {tensor.data_ptr() for tensor in copies}


def test_slots_stay_while_they_are_enough_and_few_are_idle() -> None:
    graphed = GraphedPass(lambda corrupted, factors: factors, [])
    labels = torch.full((64, 100), -100)  # 266 idle slots are accepted
    base = CorruptedBatch(from_padded(torch.ones(64, 100, dtype=torch.long)), labels, 1_000)
    settled = [graphed._settle_slots(replace(base, num_slots=wanted)).num_slots for wanted in (1_000, 760, 700, 990)]
    assert settled == [1_024, 1_024, 704, 1_280]


def test_a_shape_that_comes_once_is_run_and_neither_recorded_nor_forgetting_the_recording() -> None:
    graphed = GraphedPass(lambda corrupted, factors: factors + 1, [])
    recorded: list[CorruptedBatch] = []

    def record(corrupted: CorruptedBatch, factors: Tensor) -> Any:
        recorded.append(corrupted)
        raise RecordedError

    graphed._record = record  # type: ignore[method-assign]
    whole, odd, factors = build_corrupted(), build_corrupted(num_rows=1), torch.ones(1)
    with pytest.raises(RecordedError):
        graphed(whole, factors)
    assert graphed(odd, factors).item() == 2, "as it is"
    assert graphed(whole, factors).item() == 2
    with pytest.raises(RecordedError):
        graphed(whole, factors)
    assert [one.batch.num_rows for one in recorded] == [2, 2]


def test_compiling_is_for_gpus_unless_asked_for_and_not_for_layers_in_parts() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert not should_compile(mw.TrainingConfig(), cpu, World())
    assert should_compile(mw.TrainingConfig(compile=True), cpu, World())
    assert not should_compile(mw.TrainingConfig(compile=False), gpu, World())
    many = World(rank=0, size=2)
    assert not should_compile(mw.TrainingConfig(parallel="fsdp"), gpu, many)
    with pytest.raises(mw.InputError, match="parallel=fsdp"):
        should_compile(mw.TrainingConfig(parallel="fsdp", compile=True), cpu, many)


def test_only_native_models_that_compute_layers_once_are_recorded(tiny_model: mw.MaskedLanguageModel) -> None:
    gpu = torch.device("cuda")
    assert should_record(tiny_model, mw.TrainingConfig(), gpu, World())
    assert not should_record(tiny_model, mw.TrainingConfig(), torch.device("cpu"), World())
    assert not should_record(tiny_model, mw.TrainingConfig(), gpu, World(rank=0, size=2))
    assert not should_record(tiny_model, mw.TrainingConfig(activation_checkpointing=True), gpu, World())
    detector = mw.ReplacedTokenDetection(tiny_model.encoder, VOCAB_SIZE, mask_token_id=4)
    assert should_record(detector, mw.TrainingConfig(), gpu, World())
    foreign = mw.MaskedLanguageModel(PlainEncoder(), VOCAB_SIZE, mask_token_id=4)
    assert not should_record(foreign, mw.TrainingConfig(), gpu, World())


def test_epochs_share_one_training_step(tiny_model: mw.MaskedLanguageModel) -> None:
    engine = Engine(tiny_model, mw.OptimizerConfig(), mw.ScheduleConfig(), mw.TrainingConfig(device="cpu"), seed=0)
    assert engine.begin(TrainingState(), print) is engine.begin(TrainingState(), print)


def train(
    family: str, compile: bool, precision: str, objective: type[Any] = mw.MaskedLanguageModel
) -> tuple[list[float], Tensor]:
    """Losses over steps of falling mask ratio, and the weights after them."""
    torch.manual_seed(0)
    shape = {"num_hidden_layers": 3, "vocab_size": VOCAB_SIZE, "max_position_embeddings": 256}
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} if family == "BERT" else {}
    encoder = getattr(mw, family).from_variant("tiny", **shape, **rates)
    model = objective(encoder, VOCAB_SIZE, mask_token_id=4, special_token_ids=range(5), mlm_head_dropout=0.0)
    training = mw.TrainingConfig(device="cuda", precision=precision, compile=compile)
    engine = Engine(model, mw.OptimizerConfig(learning_rate=1e-3), mw.ScheduleConfig(), training, seed=0)
    step = engine.begin(TrainingState(), print)
    random = torch.Generator().manual_seed(2)
    num_parts = len(model.part_weights)
    losses: list[float] = []
    for number in range(NUM_STEPS):
        ids = torch.randint(5, VOCAB_SIZE, (NUM_ROWS, 256), generator=random)
        ids[:, LENGTH - number :] = 0
        batch = from_padded(ids, attention_mask=ids != 0).to("cuda")
        result = step(batch, step=number, epoch=0, mask_ratio=0.4 - 0.03 * number)
        sums, counts, _ = result.sums.tensor_split([num_parts, 2 * num_parts])
        losses += (sums / counts).tolist()
    return losses, torch.cat([param.detach().flatten() for param in model.parameters()]).cpu()


def average_rounding(num_roundings: int, dtype: torch.dtype) -> float:
    """Of a mean loss: of logits below 1, as they are in so short a run, over tokens whose errors average out."""
    num_masked = 0.15 * NUM_ROWS * LENGTH
    return rounding(NUM_STEPS * num_roundings, dtype=dtype) / math.sqrt(num_masked)


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["BERT", "ModernBERT"])
@pytest.mark.parametrize(("precision", "most"), [("fp32", 1e-3), ("bf16", 0.2)])
def test_recorded_and_compiled_steps_train_as_plain_ones(family: str, precision: str, most: float) -> None:
    """Weights differ by a small share: Adam's steps are of one size, also where a gradient is little but rounding."""
    (plain, weights), (recorded, recorded_weights) = (
        train(family, is_compiled, precision) for is_compiled in (False, True)
    )
    num_roundings = 3 * 12  # of what goes into and comes out of the products, norms and sums of three layers
    atol = average_rounding(num_roundings, torch.bfloat16) if precision == "bf16" else 0.0
    torch.testing.assert_close(torch.tensor(recorded), torch.tensor(plain), rtol=IN_FP32, atol=atol)
    assert (recorded_weights - weights).norm() <= most * weights.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["BERT", "ModernBERT"])
def test_recorded_detection_of_replaced_tokens_trains_as_a_plain_one(family: str) -> None:
    (plain, weights), (recorded, recorded_weights) = (
        train(family, is_compiled, "fp32", mw.ReplacedTokenDetection) for is_compiled in (False, True)
    )
    one_other_draw = 1 / (NUM_ROWS * LENGTH)
    torch.testing.assert_close(torch.tensor(recorded), torch.tensor(plain), rtol=IN_FP32, atol=one_other_draw)
    assert (recorded_weights - weights).norm() <= 1e-3 * weights.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["BERT", "ModernBERT"])
def test_products_in_eight_bits_train_as_those_in_sixteen(family: str) -> None:
    (sixteen, weights), (eight, eight_weights) = (train(family, True, precision) for precision in ("bf16", "fp8"))
    assert eight != sixteen
    num_products = 3 * 4  # of which the inputs are rounded to eight bits
    atol = average_rounding(num_products, torch.float8_e4m3fn)
    torch.testing.assert_close(torch.tensor(eight), torch.tensor(sixteen), rtol=0, atol=atol)
    assert (eight_weights - weights).norm() <= 0.3 * weights.norm()


@pytest.mark.gpu
def test_recorded_steps_repeat_themselves_exactly() -> None:
    (first, weights), (second, second_weights) = (train("ModernBERT", True, "bf16") for _ in range(2))
    assert first == second
    assert weights.equal(second_weights)


@pytest.mark.gpu
def test_a_graph_that_memory_does_not_hold_is_captured_of_smaller_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocator gives a capture memory of its own, so what ran before may still not fit into it."""
    expected, weights = train("BERT", True, "fp32")
    loss_sums, captured = mw.MaskedLanguageModel.loss_sums, []

    def fill_memory(self: mw.MaskedLanguageModel, corrupted: CorruptedBatch) -> Any:
        if torch.cuda.is_current_stream_capturing():
            captured.append(len(corrupted.labels))
            if captured[-1] == NUM_ROWS:
                torch.empty(1 << 45, device="cuda")
        return loss_sums(self, corrupted)

    monkeypatch.setattr(mw.MaskedLanguageModel, "loss_sums", fill_memory)
    found, found_weights = train("BERT", True, "fp32")
    assert captured == [NUM_ROWS]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=IN_FP32, atol=0.0)
    assert (found_weights - weights).norm() <= 1e-3 * weights.norm()
