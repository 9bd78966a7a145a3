"""DDP and FSDP on a GPU give what one process gives: a world of one over NCCL, two processes on one card over gloo."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from prestarted import Prestarted, find_free_port
from rank_jobs import SEED, train
from safetensors.torch import load_file
from torch import Tensor

import maskwright as mw
from maskwright.batch import PackedBatch
from maskwright.models.files.tensor_parts import StoredTensors
from maskwright.sections.training import OptimizerConfig
from maskwright.training.checkpoints import find_resumable
from maskwright.training.compute.parallel import Alone, Replicated, Sharded
from maskwright.training.compute.precision import Precision
from maskwright.training.distributed.world import World
from maskwright.training.micro_batches import MicroBatches
from maskwright.training.optim import muon
from maskwright.training.optim.optimizers import build_optimizers
from maskwright.training.step import TrainStep
from tolerances import count_terms, rounding

pytestmark = pytest.mark.gpu

DEVICE, BACKEND = torch.device("cuda", 0), "nccl"
VOCAB_SIZE, LENGTH, WIDTH, NUM_STEPS = 1000, 128, 128, 3
LEARNING_RATE = 1e-2
MUON_RATE = OptimizerConfig().muon_learning_rate
TOLERANCE = rounding(NUM_STEPS * 2 * count_terms(num_layers=2, width=WIDTH, length=LENGTH))
MUON_STEP = MUON_RATE * rounding(5 * 3, dtype=torch.bfloat16)
"""On GPUs Muon's 5 iterations of 3 products are in bf16, so that is how exact a step of its matrices is."""
BF16_STEP = LEARNING_RATE * 2 * 3 * torch.finfo(torch.bfloat16).eps / 2
"""A step of Adam is at most the learning rate, and as wrong as the gradient twice over, which is rounded thrice."""


@pytest.fixture(scope="module")
def nccl() -> Iterator[None]:
    """A world of one process."""
    torch.cuda.set_device(DEVICE)
    dist.init_process_group(BACKEND, init_method=f"tcp://127.0.0.1:{find_free_port()}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def build_model() -> mw.MaskedLanguageModel:
    torch.manual_seed(0)
    encoder = mw.BERT.from_variant(
        "tiny",
        vocab_size=VOCAB_SIZE,
        hidden_size=WIDTH,
        num_attention_heads=2,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return mw.MaskedLanguageModel(
        encoder, VOCAB_SIZE, mask_token_id=4, special_token_ids=range(5), mlm_head_dropout=0.0
    )


def build_batch(seed: int) -> PackedBatch:
    ids = torch.randint(5, VOCAB_SIZE, (16, LENGTH), generator=torch.Generator().manual_seed(seed))
    positions = torch.arange(LENGTH).expand_as(ids).contiguous()
    return PackedBatch(ids, torch.ones_like(ids), positions, torch.zeros_like(ids)).to(DEVICE)


def take_steps(
    kind: str,
    optimizer: str = "adamw",
    precision: Any = "fp32",
    gradient_dtype: torch.dtype = torch.float32,
    micro_batch_tokens: int | None = None,
    compiled: bool = False,
) -> dict[str, Tensor]:
    """The weights after a few steps."""
    model, chosen = build_model(), Precision(precision)
    chosen.apply()
    placed: Alone
    if kind == "fsdp":
        placed = Sharded(model, chosen, World(), DEVICE, gradient_dtype)
    else:
        model.to(DEVICE)
        placed = Replicated(model, chosen, gradient_dtype) if kind == "ddp" else Alone(model, chosen)
    if compiled:
        model.compile_parts()
    # With a small epsilon Adam blows up what rounding leaves of a gradient of 0 to a step of full size.
    config = OptimizerConfig(type=optimizer, learning_rate=LEARNING_RATE, epsilon=0.1)
    optimizers = build_optimizers(placed.trained, config, World())
    micro_batches = MicroBatches(micro_batch_tokens, True, pytest.fail)
    step = TrainStep(placed, optimizers, World(), SEED, 1.0, micro_batches)
    placed.train()
    for index in range(NUM_STEPS):
        result = step(build_batch(index), step=index, epoch=0, mask_ratio=0.3)
        assert float(result.skip) == 0.0
    placed.gather()
    return {name: weight.detach().float().cpu() for name, weight in model.named_parameters()}


def find_difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def find_movement(weights: dict[str, Tensor]) -> float:
    return find_difference(weights, {name: one.detach() for name, one in build_model().named_parameters()})


@pytest.mark.parametrize("micro_batch_tokens", [None, 4 * LENGTH])
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_over_nccl_adamw_steps_like_one_process(nccl: None, kind: str, micro_batch_tokens: int | None) -> None:
    alone = take_steps("alone")
    assert find_movement(alone) > 10 * TOLERANCE
    assert find_difference(take_steps(kind, micro_batch_tokens=micro_batch_tokens), alone) < TOLERANCE


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_over_nccl_muon_steps_like_one_process(nccl: None, kind: str) -> None:
    alone = take_steps("alone", "muon")
    assert find_movement(alone) > 10 * NUM_STEPS * MUON_STEP / 5
    assert find_difference(take_steps(kind, "muon"), alone) < NUM_STEPS * MUON_STEP


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_over_nccl_bf16_is_as_exact_as_in_one_process(nccl: None, kind: str) -> None:
    """Twice the distance of one process in bf16 from one in fp32."""
    exact, alone = take_steps("alone"), take_steps("alone", precision="bf16")
    assert find_difference(take_steps(kind, precision="bf16"), exact) <= 2 * find_difference(alone, exact)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_over_nccl_gradients_exchanged_in_bf16_are_rounded_to_it(nccl: None, kind: str) -> None:
    difference = find_difference(take_steps(kind, gradient_dtype=torch.bfloat16), take_steps("alone"))
    assert 0 < difference < NUM_STEPS * BF16_STEP + TOLERANCE


def test_over_nccl_compiled_layers_step_like_one_process(nccl: None) -> None:
    compiled = take_steps("alone", compiled=True)
    assert find_difference(take_steps("ddp", compiled=True), compiled) < TOLERANCE


def test_muon_shares_its_iteration_over_nccl(nccl: None) -> None:
    blocks = torch.randn(5, 96, 64, generator=torch.Generator().manual_seed(0)).to(DEVICE, torch.bfloat16)
    assert torch.equal(muon._share_newton_schulz(blocks, 5, World()), muon._newton_schulz(blocks, 5))


_ON_GPU = {"device": DEVICE.type, "compile": False}
_FSDP: dict[str, Any] = {"parallel": "fsdp"}
_MOST_STEPS = 12
_SMALL_TOLERANCE = rounding(_MOST_STEPS * 2 * count_terms(num_layers=2, width=16, length=16))
_BOUNDS = {"adamw": _SMALL_TOLERANCE, "muon": _MOST_STEPS * MUON_STEP}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process on the GPU, with each optimizer."""
    folder = tmp_path_factory.mktemp("alone")
    for optimizer in _BOUNDS:
        train(folder, optimizer, training=_ON_GPU, optimizer={"type": optimizer})
    return folder


def train_in_two(prestarted: Prestarted, folder: Path, variant: dict[str, Any]) -> dict[str, Tensor]:
    """The weights of two processes that share the card."""
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port())}
    ranks = [
        prestarted.start(
            "rank_jobs:train_all",
            {"folder": str(folder), "variants": {"two": variant}},
            folder / f"said-{rank}",
            places | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in (0, 1)
    ]
    for rank in ranks:
        assert rank.wait(200.0) == 0, rank.text()
    return load_file(folder / "two.safetensors")


@pytest.mark.parametrize("optimizer", list(_BOUNDS))
def test_two_processes_on_one_card_train_like_one(
    prestarted: Prestarted, alone: Path, tmp_path: Path, optimizer: str
) -> None:
    two = train_in_two(prestarted, tmp_path, {"training": _ON_GPU, "optimizer": {"type": optimizer}})
    assert find_difference(two, load_file(alone / f"{optimizer}.safetensors")) < _BOUNDS[optimizer]


def test_one_gpu_goes_on_from_the_parts_that_two_processes_on_cpus_have_written(
    prestarted: Prestarted, alone: Path, tmp_path: Path
) -> None:
    train_in_two(prestarted, tmp_path, {"training": _FSDP, "save_at": 3})
    checkpoint, problems = find_resumable(tmp_path / "two")
    assert checkpoint is not None
    assert not problems
    assert len(list(checkpoint.rglob("*.part-*-of-2.safetensors"))) == 4
    assert all(torch.isfinite(tensor).all() for tensor in StoredTensors(checkpoint / "optimizer.safetensors").values())
    train(tmp_path, "rest", training=_ON_GPU, resume="two/step-3")
    rest = load_file(tmp_path / "rest.safetensors")
    assert find_difference(rest, load_file(alone / "adamw.safetensors")) < _SMALL_TOLERANCE
