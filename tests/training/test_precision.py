"""The numbers a run computes in: measured once, kept for the run's life, and fp16's loss scale."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import maskwright.training.compute.precision as precision_module
from maskwright.batch import from_padded
from maskwright.errors import InputError
from maskwright.models.encoder import FAMILIES
from maskwright.objectives.loss import compute_loss_sums, gather_labelled
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.sections.training import OptimizerConfig, TrainingConfig
from maskwright.training.compute.parallel import ObjectiveModule
from maskwright.training.compute.precision import LossScale, Precision, agree_on_precision, choose_precision
from maskwright.training.loop import Callback
from maskwright.training.trainer import Trainer
from tolerances import assert_rounded, rounding

CPU = torch.device("cpu")


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Counts measurements, which find bf16 three times as fast; the cache is in `tmp_path`."""
    calls = []

    def measure(device, width):
        calls.append(width)
        return {"fp32": 1.0, "bf16": 3.0, "fp16": 0.5}

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(precision_module, "measure_speeds", measure)
    return calls


def test_auto_measures_once_and_remembers(measured, tmp_path):
    assert choose_precision("auto", CPU, 16).name == "bf16"
    assert choose_precision("auto", CPU, 16).name == "bf16"
    assert len(measured) == 1
    assert (tmp_path / "maskwright" / "precision.json").is_file()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"KEY": 3}', '{"KEY": {"bf16": 9.0}}', '{"KEY": {"fp32": "fast"}}'])
def test_a_damaged_memory_is_measured_anew_and_mended(measured, tmp_path, text):
    file = tmp_path / "maskwright" / "precision.json"
    choose_precision("auto", CPU, 16)
    key = next(iter(json.loads(file.read_text())))
    file.write_text(text.replace("KEY", key))
    assert choose_precision("auto", CPU, 16).name == "bf16"
    assert choose_precision("auto", CPU, 16).name == "bf16"
    assert len(measured) == 2


def test_a_home_that_cannot_be_written_to_is_measured_each_time(measured, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # no folder can be made below a file
    assert choose_precision("auto", CPU, 16).name == "bf16"
    assert choose_precision("auto", CPU, 16).name == "bf16"
    assert len(measured) == 2


def test_other_devices_stay_remembered(measured, tmp_path):
    file = tmp_path / "maskwright" / "precision.json"
    file.parent.mkdir()
    file.write_text('{"some GPU": {"fp32": 1.0}}')
    choose_precision("auto", CPU, 16)
    assert json.loads(file.read_text())["some GPU"] == {"fp32": 1.0}


def test_a_cpu_measures_layers_about_as_wide_as_the_models(measured):
    for width in (64, 128, 160, 384, 768, 4096):
        choose_precision("auto", CPU, width)
    assert measured == [128, 512, 768]


def test_a_real_measurement_compares_all_that_a_cpu_has():
    generator = torch.get_rng_state()
    speeds = precision_module.measure_speeds(CPU, 128)
    assert torch.equal(torch.get_rng_state(), generator)
    assert set(speeds) == {"fp32", "bf16", "fp16"}
    assert speeds["fp32"] == 1.0
    assert all(speed > 0 for speed in speeds.values())


@pytest.mark.parametrize(
    ("speeds", "chosen"),
    [
        ({"fp32": 1.0, "bf16": 0.01, "fp16": 0.01}, "fp32"),
        ({"fp32": 1.0, "bf16": 1.1, "fp16": 1.1}, "fp32"),
        ({"fp32": 1.0, "bf16": 3.0, "fp16": 3.1}, "bf16"),
        ({"fp32": 1.0, "bf16": 0.9, "fp16": 3.0}, "fp16"),
        ({"fp32": 1.0, "bf16": 2.0, "fp16": 3.0}, "fp16"),
        ({"fp32": 1.0, "tf32": 6.0, "bf16": 12.0, "fp16": 12.0}, "bf16"),
        ({"fp32": 1.0, "tf32": 6.0, "bf16": 6.5, "fp16": 6.5}, "tf32"),
    ],
)
def test_fewer_bits_must_be_clearly_faster(speeds, chosen):
    assert precision_module.pick(speeds, precision_module._SHORTER).name == chosen


def test_tf32_is_refused_without_the_hardware():
    with pytest.raises(InputError, match=r"training\.precision is tf32, which .* does not have.*use auto"):
        choose_precision("tf32", CPU, 128)


def test_processes_take_the_main_one_s_choice():
    class Second:
        is_main = False

        def sum_facts(self, facts):
            assert facts == [0.0]
            return [2.0]  # the main process's bf16

    assert agree_on_precision(precision_module.Precision("fp32"), Second()).name == "bf16"


class SaveAt(Callback):
    def __init__(self, folder, step):
        self.folder, self.step = folder, step

    def on_step_end(self, step):
        if step == self.step:
            self.trainer.save_checkpoint(self.folder)


def build_trainer(model, precision, **training):
    config = TrainingConfig(device="cpu", precision=precision, **training)
    return Trainer(model, OptimizerConfig(learning_rate=1e-2), training=config)


def test_a_resumed_run_keeps_the_precision_it_was_begun_in(measured, build_model, padded_batches, tmp_path):
    begun = build_trainer(build_model(), "fp32", max_steps=1)
    begun.fit(padded_batches[:2], epochs=1, verbose=False)
    checkpoint = begun.save_checkpoint(tmp_path)
    resumed = build_trainer(build_model(), "auto", max_steps=2)
    assert resumed.engine.precision.name == "bf16"
    resumed.load_checkpoint(checkpoint)
    resumed.fit(padded_batches[:2], epochs=2, verbose=False)
    assert resumed.engine.precision.name == "fp32"
    assert resumed.state.precision == "fp32"
    other = build_trainer(build_model(), "bf16", max_steps=2)
    other.load_checkpoint(checkpoint)
    with pytest.raises(InputError, match=r"computed in fp32; go on with training\.precision=fp32"):
        other.fit(padded_batches[:2], epochs=2, verbose=False)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_few_bits_train_close_to_fp32(build_model, padded_batches, precision):
    losses = {}
    for name in ("fp32", precision):
        trainer = build_trainer(build_model(), name, max_steps=1)
        losses[name] = trainer.fit(padded_batches[:1], epochs=1, verbose=False).history["loss"][0]
        assert all(param.dtype == torch.float32 for param in trainer.model.parameters())
    num_roundings = 10  # of what a layer and the head multiply, for logits of less than 1
    error = rounding(num_roundings, dtype=getattr(torch, {"bf16": "bfloat16", "fp16": "float16"}[precision]))
    assert losses[precision] == pytest.approx(losses["fp32"], abs=error)
    assert losses[precision] != losses["fp32"]


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_gradients_in_bf16_are_off_by_rounding(family):
    """Over documents that share rows."""
    torch.manual_seed(0)
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} if family == "bert" else {}
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 32}
    encoder = FAMILIES[family].from_variant("tiny", vocab_size=90, **shape, **rates)
    model = MaskedLanguageModel(encoder, 90, mask_token_id=4, special_token_ids=range(5), mlm_head_dropout=0.0).train()
    ids = torch.randint(5, 90, (8, 32))
    batch = from_padded(ids)
    batch = replace(batch, document_ids=(torch.arange(32) // 11 + 1).expand_as(ids).contiguous())
    questions = model.ask(batch, seed=0, epoch=0, ratio=0.3)
    gradients = {}
    for name in ("fp32", "bf16"):
        model.zero_grad()
        losses, counts, _ = ObjectiveModule(model, Precision(name))(questions)
        (losses[0] / counts[0]).backward()
        gradients[name] = torch.cat([param.grad.flatten() for param in model.parameters() if param.grad is not None])
    error = (gradients["bf16"] - gradients["fp32"]).norm() / gradients["fp32"].norm()
    num_roundings = 20  # of activations on the way through two layers and a head, and as many of gradients back
    assert 0 < error < rounding(2 * num_roundings, dtype=torch.bfloat16)


def test_empty_slots_of_bf16_count_for_nothing():
    torch.manual_seed(0)
    hidden, labels = torch.randn(2, 40, 8), torch.full((2, 40), -100)
    labels[:, ::5] = 3
    slots, slot_labels = gather_labelled(hidden.bfloat16(), labels)
    assert len(slots) == len(slot_labels) == 64
    exact, exact_labels = gather_labelled(hidden, labels)
    assert len(exact_labels) == 16
    assert torch.equal(slots[:16], exact.bfloat16())
    logits, padded = exact @ torch.randn(8, 5), torch.randn(64, 5)
    padded[:16] = logits
    found, expected = compute_loss_sums(padded, slot_labels), compute_loss_sums(logits, exact_labels)
    assert_rounded(found.loss_sum, expected.loss_sum, 16)
    assert (found.num_labelled, found.num_correct) == (expected.num_labelled, expected.num_correct)


def test_a_run_in_bf16_resumes_to_the_bit(build_model, padded_batches, tmp_path):
    whole = build_trainer(build_model(dropout=0.2), "bf16", max_steps=6)
    whole.fit(padded_batches, epochs=1, callbacks=[SaveAt(tmp_path, 3)], verbose=False)
    resumed = build_trainer(build_model(dropout=0.2, seed=9), "bf16", max_steps=6)
    resumed.load_checkpoint(tmp_path / "step-3")
    resumed.fit(padded_batches, epochs=1, verbose=False)
    assert all(torch.equal(param, resumed.model.get_parameter(name)) for name, param in whole.model.named_parameters())


def test_an_overflow_in_fp16_skips_the_step_and_halves_the_scale(build_model, padded_batches):
    trainer = build_trainer(build_model(), "fp16", max_steps=1)
    before = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    trainer.state.loss_scale = [2.0**24, 7.0]
    trainer._is_resuming = True
    trainer.fit(padded_batches[:1], epochs=1, verbose=False)
    assert trainer.state.num_skipped == 1
    assert trainer.state.bad_streak == 0, "the scale was too large; nothing is wrong with the run"
    assert trainer.engine.loss_scale.fetch() == [2.0**23, 0.0]
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.model.state_dict().items())
    assert trainer.optimizers.state_tensors() == {} or all(
        float(tensor.abs().sum()) == 0.0 for tensor in trainer.optimizers.state_tensors().values()
    )


def test_the_loss_scale_doubles_after_2000_good_steps_and_stays_in_its_range():
    scale, good, bad = LossScale(CPU), torch.tensor(0.0), torch.tensor(1.0)
    for _ in range(1999):
        scale.update(good)
    assert scale.fetch() == [2.0**16, 1999.0]
    scale.update(good)
    assert scale.fetch() == [2.0**17, 0.0]
    scale.update(good)
    scale.update(bad)
    assert scale.fetch() == [2.0**16, 0.0]
    for _ in range(40):
        scale.update(bad)
    assert scale.fetch() == [1.0, 0.0]
    assert bool(scale.is_lowest())
    largest = LossScale(CPU, [2.0**24, 1999.0])
    largest.update(good)
    assert largest.fetch() == [2.0**24, 0.0]


def test_the_loss_scale_is_saved_and_goes_on_where_it_was(build_model, padded_batches, tmp_path):
    trainer = build_trainer(build_model(), "fp16", max_steps=2)
    trainer.fit(padded_batches[:1], epochs=9, verbose=False)
    stood = trainer.engine.loss_scale.fetch()
    assert stood[1] == 2.0
    checkpoint = trainer.save_checkpoint(tmp_path)
    resumed = build_trainer(build_model(), "fp16", max_steps=3)
    resumed.load_checkpoint(checkpoint)
    assert resumed.state.loss_scale == stood
    resumed.fit(padded_batches[:1], epochs=9, verbose=False)
    assert resumed.engine.loss_scale.fetch() == [stood[0], 3.0]


def test_precisions_are_timed_by_turns_and_without_their_first_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that others take for a while takes part of every precision's time, not all of one's."""
    clock, order = [0.0], []
    for name in ("process_time", "perf_counter"):
        monkeypatch.setattr(precision_module.time, name, lambda: clock[0])

    def build(name: str, first_s: float, next_s: float) -> Callable[[], None]:
        def run() -> None:
            clock[0] += next_s if name in order else first_s
            order.append(name)

        return run

    runs = {"fp32": build("fp32", 0.125, 0.0625), "bf16": build("bf16", 0.5, 0.03125)}
    assert precision_module.time_by_turns(runs, CPU) == {"fp32": 1.0, "bf16": 2.0}
    assert order == ["fp32", "bf16"] * (len(order) // 2)
