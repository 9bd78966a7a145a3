"""On a GPU every family computes the loss and gradients of fp32, in every precision, compiled, recorded or neither.

Rows that are no multiple of a kernel's tile, and memory that was in use before, are where kernels go wrong without a
word. Most combinations are marked slow; in the others every length meets every head size in every precision once, and
every family every head size in every precision.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from torch import Tensor

import maskwright as mw
from maskwright.batch import PackedBatch
from maskwright.models.encoder import FAMILIES
from maskwright.training.engine import Engine
from maskwright.training.state import TrainingState

LENGTHS = (16, 32, 48, 64, 96, 128, 200, 320, 384, 512, 1024)
HEAD_SIZES = (16, 32, 64, 128)
EPSILONS = {"fp32": 2.0**-23, "tf32": 2.0**-10, "bf16": 2.0**-7, "fp16": 2.0**-10, "fp8": 2.0**-3}
WINDOWS = (None, 8, 128)
"""Tokens on either side that local layers see; only ModernBERT has such layers."""
VOCAB_SIZE = 512
NUM_ROWS = 8
NUM_BATCHES = 3
LOSS_SCALE = 2.0**8
"""Of fp16: large enough for gradients not to vanish, small enough for none to overflow."""
NUM_ROUNDINGS = 40
"""What a value goes through in two layers, forward and backward: about ten operations each way and layer."""


@dataclass(frozen=True)
class Case:
    encoder_class: type[Any]
    precision: str
    length: int
    head_size: int
    window: int | None

    def __str__(self) -> str:
        window = "" if self.window is None else f"-window{self.window}"
        return f"{self.encoder_class.__name__}{window}-{self.precision}-{self.length}-{self.head_size}"

    def tolerance(self) -> float:
        """Relative to a gradient's norm: independent roundings add up as a random walk.

        Each is half an epsilon at most, and twice the walk's usual length is allowed. Sums are in fp32 whatever the
        precision; the longest runs over all tokens.
        """
        longest_sum = math.sqrt(NUM_ROWS * self.length) * EPSILONS["fp32"]
        return math.sqrt(NUM_ROUNDINGS) * (EPSILONS[self.precision] + longest_sum)


def list_cases() -> list[Any]:
    kinds = [(encoder_class, None) for encoder_class in FAMILIES.values() if encoder_class is not mw.MPNet]
    kinds += [(mw.ModernBERT, window) for window in WINDOWS if window is not None]
    num_shares = len(kinds)
    kinds.append((mw.MPNet, None))  # it adds scores, for which plain attention kernels serve
    cases = []
    for kind, (encoder_class, window) in enumerate(kinds):
        for number, precision in enumerate(EPSILONS):
            for row, length in enumerate(LENGTHS):
                for column, head_size in enumerate(HEAD_SIZES):
                    is_chosen = (kind + number + row + column) % num_shares == 0
                    case = Case(encoder_class, precision, length, head_size, window)
                    cases.append(pytest.param(case, id=str(case), marks=[] if is_chosen else [pytest.mark.slow]))
    return cases


def build_model(case: Case) -> mw.MaskedLanguageModel:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "hidden_size": 2 * case.head_size,
        "max_position_embeddings": max(LENGTHS) + 2,
        "initializer_range": 0.1,
    }
    if case.encoder_class is mw.ModernBERT:
        has_window = case.window is not None
        settings["global_attn_every_n_layers"] = 2 if has_window else 1
        settings |= {"local_attention": 2 * case.window} if case.window is not None else {}
    known = {field.name for field in fields(case.encoder_class.config_class)}
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    settings |= {name: rate for name, rate in rates.items() if name in known}
    encoder = case.encoder_class.from_variant("tiny", **settings)
    return mw.MaskedLanguageModel(
        encoder, VOCAB_SIZE, mask_token_id=4, special_token_ids=range(5), mlm_head_dropout=0.0
    )


def build_batches(length: int) -> list[PackedBatch]:
    """Rows of documents of random length; one row ends with padding, another is nothing else."""
    random = torch.Generator().manual_seed(length)
    batches = []
    for _ in range(NUM_BATCHES):
        ids = torch.randint(5, VOCAB_SIZE, (NUM_ROWS, length), generator=random)
        documents = (torch.rand(NUM_ROWS, length, generator=random) < 0.08).long().cumsum(1) + 1
        documents[0, length * 3 // 4 :] = 0
        documents[1] = 0
        is_first = documents.diff(dim=1, prepend=documents.new_full((NUM_ROWS, 1), -1)) != 0
        places = torch.arange(length).expand_as(ids)
        positions = places - torch.where(is_first, places, 0).cummax(1).values
        batches.append(PackedBatch(ids, documents, positions, torch.zeros_like(ids)).to("cuda"))
    return batches


def fill_free_memory_with_nan() -> None:
    """So that a kernel which reads what it has not written is found out."""
    blocks = [torch.full((1 << power,), math.nan, device="cuda") for power in range(8, 22) for _ in range(4)]
    del blocks


def differentiate(case: Case, precision: str, compile: bool) -> list[tuple[float, dict[str, Tensor]]]:
    """The mean loss and the gradients of every batch."""
    model = build_model(case)
    training = mw.TrainingConfig(device="cuda", precision=precision, compile=compile)
    engine = Engine(model, mw.OptimizerConfig(), mw.ScheduleConfig(), training, seed=0)
    step = engine.begin(TrainingState(loss_scale=[LOSS_SCALE, 0.0]), print)
    scale = 1.0 if engine.loss_scale is None else float(engine.loss_scale.scale)
    results = []
    for number, batch in enumerate(build_batches(case.length)):
        fill_free_memory_with_nan()
        sums, _, _ = step.compute_gradients(batch, step=number, epoch=0, mask_ratio=0.3)
        grads = {
            name: param.grad.double() / scale for name, param in model.named_parameters() if param.grad is not None
        }
        results.append((float(sums[0] / sums[1]), grads))
    return results


@pytest.mark.gpu
@pytest.mark.timeout(900)  # kernels are compiled, on a machine that may be busy
@pytest.mark.parametrize("case", list_cases())
def test_loss_and_gradients_are_those_of_fp32(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    expected = differentiate(case, "fp32", compile=False)
    modes = ["compiled", "recorded"] if case.precision == "fp8" else ["eager", "compiled", "recorded"]
    tolerance = case.tolerance()
    for mode in modes:
        monkeypatch.setattr("maskwright.training.engine.should_record", lambda *_, mode=mode: mode == "recorded")
        found = differentiate(case, case.precision, compile=mode != "eager")
        for number, ((loss, grads), (exact_loss, exact_grads)) in enumerate(zip(found, expected, strict=True)):
            place = f"{mode}, batch {number}"
            assert abs(loss - exact_loss) <= tolerance * exact_loss, place
            assert grads.keys() == exact_grads.keys()
            whole = torch.stack([grad.norm() for grad in exact_grads.values()]).norm()
            for name, exact in exact_grads.items():
                # Some gradients cancel out (a key's bias has none): a parameter may be off by its share of the whole.
                size = torch.maximum(exact.norm(), whole / math.sqrt(len(exact_grads)))
                error = (grads[name] - exact).norm() / size
                assert error <= tolerance, f"{place}, {name}: off by {error:.2e} of its size, {tolerance:.2e} allowed"
