"""Task batches padded to few shapes ask the same, and recorded steps on a GPU train as plain ones.

What makes a pass recordable is checked on a CPU too: nothing in it needs a value on the host.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kinds_lab import KINDS, load_kind, set_dropout, with_family
from task_lab import Lab, read_final
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import maskwright as mw
from maskwright.models.any_encoder import encode
from maskwright.models.encoder import FAMILIES
from maskwright.runs.finetune.finetune import finetune
from maskwright.runs.finetune.inputs import TaskInputs
from maskwright.tasks import model as task_model
from maskwright.tasks.loader import AskedBatch, TaskBatch, round_documents, round_length, round_rows
from maskwright.tasks.model import TaskModel
from maskwright.tasks.sequence.classification import Classification
from maskwright.training.compute.compiling import GraphedPass, should_compile, should_record
from maskwright.training.distributed.world import World
from maskwright.training.engine import Engine
from maskwright.training.state import TrainingState
from tolerances import assert_rounded, count_terms, rounding

CPU, GPU = torch.device("cpu"), torch.device("cuda")
NUM_TERMS = count_terms(num_layers=2, width=32, length=128)
NUM_EPOCHS = 2
_WITH_ALL, _SLOW = ("bert", "modernbert"), [pytest.mark.slow]
"""The other families take one kind of task each."""
_WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_consecutive", "bincount", "equal"}
_COPYING = {"lift_fresh"}
"""What torch.tensor calls: a copy from the host."""


class _SeesOneHot(TorchFunctionMode):
    """On CPUs alone `one_hot` looks at the values, to check them."""

    is_inside = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        before, self.is_inside = self.is_inside, self.is_inside or function is torch.nn.functional.one_hot
        try:
            return function(*args, **(options or {}))
        finally:
            self.is_inside = before


class HostWatch(TorchDispatchMode):
    """Notes the operations that would make the host wait for a GPU, or a GPU for the host."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.functions = _SeesOneHot()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        name = function.overloadpacket.__name__
        is_counted = name in _WAITING | _COPYING and not self.functions.is_inside
        has_flags = name.startswith("index") and isinstance(args[1], list | tuple)
        if is_counted or (has_flags and any(one is not None and one.dtype == torch.bool for one in args[1])):
            self.found.append(name)
        return function(*args, **(options or {}))


def list_batches(inputs: TaskInputs, few: bool = True, epoch: int = 0) -> list[TaskBatch]:
    loader = inputs.train.with_few_shapes() if few else inputs.train
    batches = list(loader.epoch(epoch))
    assert all(isinstance(batch, TaskBatch) for batch in batches)
    return [batch for batch in batches if isinstance(batch, TaskBatch)]


def differentiate(model: TaskModel, batch: TaskBatch) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    model.zero_grad()
    sums = model.loss_sums(AskedBatch.of(batch))
    sums.losses.sum().backward()
    grads = {name: param.grad.clone() for name, param in model.named_parameters() if param.grad is not None}
    return sums.losses.detach(), torch.cat([sums.counts, sums.figures]), grads


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in {"pairs", "ner", "qa", "contrastive"} else _SLOW) for kind in KINDS]
)
def test_padding_to_few_shapes_changes_neither_examples_nor_loss_nor_gradients(lab: Lab, kind: str) -> None:
    inputs = load_kind(lab, kind, dropout=0.0, batch_size=5)
    model = inputs.build_model(seed=0).train()
    set_dropout(model, 0.0)
    plain, padded = list_batches(inputs, few=False), list_batches(inputs)
    assert any(one.input_ids.shape != other.input_ids.shape for one, other in zip(plain, padded, strict=True))
    for one, other in zip(plain, padded, strict=True):
        numbers = [batch.sample_ids[~batch.is_padding].unique().tolist() for batch in (one, other)]
        assert numbers[0] == numbers[1]
        (loss, figures, grads), (other_loss, other_figures, other_grads) = (
            differentiate(model, b) for b in (one, other)
        )
        assert_rounded(other_loss, loss, NUM_TERMS, magnitude=1.0)
        assert_rounded(other_figures, figures, NUM_TERMS, magnitude=1.0)
        assert_rounded(other_grads, grads, NUM_TERMS, magnitude=1.0)


def test_few_shapes_are_few_and_hold_what_they_are_made_for() -> None:
    for length in range(1, 600):
        rounded = round_length(length)
        assert length <= rounded < length + 64
        for number in range(1, 70):
            assert number <= round_rows(number, rounded) <= max(number * 5 / 4, number + 256 // rounded)
            assert number <= round_documents(number, rounded)
    assert {round_rows(number, 128) for number in range(1, 7)} == {2, 4, 6}
    assert len({round_rows(number, 384) for number in range(16, 33)}) == 5
    assert {round_documents(number, 128) for number in range(1, 33)} == {16, 32}


@pytest.mark.parametrize(
    ("model_type", "kind"),
    [
        pytest.param(model_type, kind, marks=[] if model_type in _WITH_ALL or number % len(KINDS) == place else _SLOW)
        for number, model_type in enumerate(FAMILIES)
        for place, kind in enumerate(KINDS)
    ],
)
def test_a_pass_needs_no_value_on_the_host(
    lab: Lab, kind: str, model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_model, "encode_documents", encode)  # as on a GPU
    inputs = with_family(load_kind(lab, kind), model_type, dropout=0.1)
    model, batch = inputs.build_model(seed=0).train(), list_batches(inputs)[0]
    assert model.is_recordable
    with HostWatch() as watch, watch.functions:
        model.loss_sums(AskedBatch.of(batch)).losses.sum().backward()
    assert watch.found == []


@pytest.mark.parametrize("model_type", FAMILIES)
def test_weights_cast_together_give_the_loss_and_gradients_of_weights_cast_one_by_one(
    lab: Lab, model_type: str
) -> None:
    inputs = with_family(load_kind(lab, "ner"), model_type, dropout=0.0)
    model, batch = inputs.build_model(seed=0).train(), list_batches(inputs)[0]
    set_dropout(model, 0.0)
    found = []
    for casts in (False, True):
        if casts:
            model.cast_together()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found.append(differentiate(model, batch))
    (loss, _, grads), (cast_loss, _, cast_grads) = found
    assert_rounded(cast_loss, loss, num_terms=1, magnitude=1.0, dtype=torch.bfloat16)
    assert_rounded(cast_grads, grads, num_terms=2, magnitude=1.0, dtype=torch.bfloat16)


def test_the_watch_notices_what_waits() -> None:
    values = torch.arange(3.0)
    with HostWatch() as watch, watch.functions:
        float(values.sum()), values[values > 1], values.nonzero(), values + torch.tensor(1.0)
        torch.nn.functional.one_hot(values.long(), 3)
    assert watch.found == ["_local_scalar_dense", "index", "nonzero", "lift_fresh"]


def test_tasks_are_recorded_and_compiled_only_on_request(lab: Lab) -> None:
    model = load_kind(lab, "classification").build_model(seed=0)
    given = mw.TrainingConfig()
    assert should_record(model, given, GPU, World())
    assert not should_compile(given, GPU, World(), varies_in_shape=model.varies_in_shape)
    assert not should_record(model, given, CPU, World())
    assert not should_record(model, given, GPU, World(rank=0, size=2))
    assert not should_record(model, mw.TrainingConfig(compile=False), GPU, World())
    assert not should_record(model, mw.TrainingConfig(activation_checkpointing=True), GPU, World())


def test_heads_and_tasks_of_the_users_own_may_wait_so_they_are_not_recorded(lab: Lab) -> None:
    class OwnTask(Classification):
        """Nobody knows what it does."""

    model = load_kind(lab, "classification").build_model(seed=0)
    assert model.is_recordable
    assert not TaskModel(model.encoder, model.task_head, OwnTask(["bad", "good"])).is_recordable


def test_each_shape_is_recorded_when_it_comes_again_up_to_a_limit() -> None:
    recorded: list[int] = []

    class Recorder(GraphedPass):
        def _record(self, questions: Any, factors: Tensor) -> Any:
            recorded.append(questions.batch.num_rows)
            return NotImplemented

    def see(num_rows: int) -> None:
        ids = torch.ones(num_rows, 4, dtype=torch.long)
        batch = TaskBatch(ids, ids, ids, ids, targets=torch.zeros(num_rows, 1, dtype=torch.long))
        try:
            graphed(AskedBatch.of(batch), torch.ones(1))
        except AttributeError:  # there is nothing to replay
            assert num_rows in recorded

    graphed = Recorder(lambda questions, factors: factors, [], most_graphs=2)
    for num_rows in (1, 2, 3, 2, 1, 3, 3, 2):
        see(num_rows)
    assert recorded == [2, 1]


def train(inputs: TaskInputs, precision: str, compile: bool | None) -> tuple[list[list[float]], Tensor, Tensor, int]:
    """Sums and gradient norms of all steps, the last gradients, the weights, and how many graphs there were."""
    model = inputs.build_model(seed=0)
    training = mw.TrainingConfig(device="cuda", precision=precision, compile=compile)
    optimizer = mw.OptimizerConfig(type="sgd", learning_rate=1e-2)  # its steps are as exact as the gradients
    engine = Engine(model, optimizer, mw.ScheduleConfig(), training, seed=0)
    step, found, number = engine.begin(TrainingState(), print), [], 0
    for epoch in range(NUM_EPOCHS):
        for batch in list_batches(inputs, epoch=epoch):
            engine.set_learning_rate(number, 0.0)
            result = step(batch.to("cuda"), step=number, epoch=epoch, mask_ratio=None)
            found.append([*result.sums.tolist(), float(result.grad_norm)])
            number += 1
    grads = torch.cat([param.grad.flatten() for param in model.parameters() if param.grad is not None]).cpu()
    weights = torch.cat([param.detach().flatten() for param in model.parameters()]).cpu()
    num_graphs = 0 if step._graphed is None else len(step._graphed._recordings)
    return found, grads, weights, num_graphs


def compare(inputs: TaskInputs, precision: str) -> None:
    """Dropout draws the same, so the steps differ by rounding, which grows from step to step."""
    plain, grads, weights, none = train(inputs, precision, compile=False)
    recorded, recorded_grads, recorded_weights, num_graphs = train(inputs, precision, compile=None)
    assert none == 0 < num_graphs
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    share = rounding(len(plain), dtype=dtype) if precision == "bf16" else rounding(len(plain) * NUM_TERMS)
    first, other_first = (torch.tensor(one) for one in (plain, recorded))
    # The loss and the norm; a figure counts decisions, of which one may fall otherwise by a rounding.
    for place in (0, -1):
        torch.testing.assert_close(other_first[:, place], first[:, place], rtol=share, atol=share)
    assert other_first[:, 1].equal(first[:, 1]), "the counts"
    assert (recorded_grads - grads).norm() <= share * grads.norm()
    assert (recorded_weights - weights).norm() <= share * weights.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_recorded_steps_of_every_task_train_as_plain_ones(lab: Lab, kind: str, precision: str) -> None:
    compare(load_kind(lab, kind, dropout=0.1), precision)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_recorded_steps_of_every_family_train_as_plain_ones(lab: Lab, model_type: str, precision: str) -> None:
    compare(with_family(load_kind(lab, "ner"), model_type, dropout=0.1), precision)


@pytest.mark.gpu
def test_frozen_layers_stay_as_they_are_in_recorded_steps(lab: Lab) -> None:
    inputs = load_kind(lab, "classification", freeze_layers=1)
    compare(inputs, "fp32")
    frozen = {name for name, param in inputs.build_model(0).named_parameters() if not param.requires_grad}
    model = inputs.build_model(seed=0)
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    mw.Trainer(model, training=mw.TrainingConfig(device="cuda", precision="bf16")).fit(inputs.train, epochs=2)
    same = {name for name, param in model.named_parameters() if param.detach().cpu().equal(before[name])}
    assert frozen
    assert same == frozen


@pytest.mark.gpu
def test_a_recorded_run_scores_as_a_plain_one(lab: Lab) -> None:
    inputs = load_kind(lab, "classification")
    finals = []
    for name, settings in (("plain", ["training.compile=false"]), ("recorded", [])):
        config = inputs.config.model_copy(update={"epochs": 4})
        finetune(config, lab.folder / name, settings=["training.device=cuda", "training.precision=fp32", *settings])
        finals.append(read_final(lab.folder / name))
    assert finals[1]["steps"] == finals[0]["steps"]
    assert finals[1]["accuracy"] == pytest.approx(finals[0]["accuracy"], abs=1 / finals[0]["examples"])
