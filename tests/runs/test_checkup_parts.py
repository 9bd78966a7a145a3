from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from maskwright.batch import PackedBatch
from maskwright.config import Config, build_config
from maskwright.models.compilation import LayerCompiler
from maskwright.runs.doctor import step as checkup_step
from maskwright.runs.doctor.findings import Finding, format_bytes
from maskwright.runs.doctor.plan import Plan, check_loader, check_plan, check_step, measure_loader, plan_run
from maskwright.runs.doctor.settings import check_precision, check_settings
from maskwright.runs.doctor.step import StepFigures, measure_steps, watch_attention
from maskwright.runs.duration import format_seconds
from maskwright.training.compute.precision import Precision
from maskwright.training.step import TrainStep

CPU = torch.device("cpu")
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "mlm_head_dropout": 0.0}


def build_figures(**changes: Any) -> StepFigures:
    values: dict[str, Any] = {
        "seconds": 0.5,
        "num_tokens": 990,
        "num_places": 1000,
        "working_bytes": 0,
        "tokens_at_a_time": 1000,
        "attention": "",
        "loss": 5.0,
        "is_finite": True,
        "measured_share": 1.0,
    }
    return StepFigures(**(values | changes))


class Clock:
    """Goes on by a hundredth of a second at every look at it, and otherwise only when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        self.now_s += 0.01
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(checkup_step, "time", clock)
    return clock


class TestSteps:
    def test_a_slow_step_is_measured_in_part_and_scaled(
        self, build_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, data, trainer = build_run()
        whole = measure_steps(trainer, data.train, 0.15)
        monkeypatch.setattr(checkup_step, "_LONGEST_STEP_S", 0.0)
        part = measure_steps(trainer, data.train, 0.15)
        assert (whole.measured_share, part.measured_share) == (1.0, 1 / 8)
        assert part.num_places == whole.num_places == 256
        assert part.working_bytes == pytest.approx(whole.working_bytes, rel=0.5)

    @pytest.mark.parametrize(("few_s", "rows"), [(0.2, 100), (0.7, 25), (9.0, 4)])
    def test_as_many_rows_are_measured_as_time_allows(self, few_s: float, rows: int) -> None:
        assert checkup_step._choose_rows(100, 0.1, lambda few: few_s) == rows

    def test_the_time_that_rows_share_is_not_multiplied(self) -> None:
        # Rows take 1 s each and share 2 s, and the update takes 4 s.
        assert checkup_step._extrapolate(3.0, 5.0, 9.0, measured_rows=3, num_rows=10) == pytest.approx(16)
        assert checkup_step._extrapolate(1.0, 1.0, 5.0, measured_rows=1, num_rows=10) == pytest.approx(14)

    @pytest.mark.parametrize(("row_s", "rows"), [(0.1, 4), (2.0, 2), (6.0, 1)])
    def test_slow_rows_are_measured_in_twos_or_alone(self, row_s: float, rows: int) -> None:
        assert checkup_step._choose_rows(100, row_s, lambda rows: 9.0) == rows

    def test_an_update_slower_than_its_rows_is_not_multiplied(
        self, build_run: Callable[..., Any], clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, data, trainer = build_run()
        step = trainer.optimizers.step

        def step_slowly(skip: torch.Tensor) -> None:
            torch.ones(20_000_000)
            clock.now_s += 1.0
            step(skip)

        monkeypatch.setattr(trainer.optimizers, "step", step_slowly)
        monkeypatch.setattr(checkup_step, "_LONGEST_STEP_S", 0.0)
        monkeypatch.setattr(checkup_step, "_TIMING_S", 0.0)
        figures = measure_steps(trainer, data.train, 0.15)
        assert figures.measured_share == 1 / 8
        assert figures.seconds < 8 * 1.0
        assert 80_000_000 < figures.working_bytes < 130_000_000

    def test_what_the_first_times_take_is_not_part_of_a_step(
        self, build_run: Callable[..., Any], clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, data, trainer = build_run()
        compute_gradients = TrainStep.compute_gradients
        times_seen: Counter[int] = Counter()

        def compile_and_record(self: TrainStep, batch: PackedBatch, **others: Any) -> Any:
            clock.now_s += {0: 0.9, 1: 0.6}.get(times_seen[batch.num_rows], 0.0)
            times_seen[batch.num_rows] += 1
            return compute_gradients(self, batch, **others)

        monkeypatch.setattr(TrainStep, "compute_gradients", compile_and_record)
        monkeypatch.setattr(checkup_step, "_LONGEST_STEP_S", 0.5)
        figures = measure_steps(trainer, data.train, 0.15)
        assert figures.measured_share == 1.0
        assert figures.seconds < 0.5

    def test_growing_batches_are_measured_full_grown(self, build_run: Callable[..., Any]) -> None:
        _, data, trainer = build_run(training={"batch_tokens_start": 64})
        assert data.train.rows_per_batch == 2
        assert measure_steps(trainer, data.train, 0.15).num_places == 256

    def test_a_loss_that_is_no_number_is_a_problem(self) -> None:
        assert check_step(build_figures(), 100).verdict == "OK"
        broken = check_step(build_figures(is_finite=False, loss=float("nan")), 100)
        assert (broken.verdict, broken.advice.split()[1]) == ("problem", "training.precision=auto")

    def test_weights_that_are_not_finite_are_noticed(self, build_run: Callable[..., Any]) -> None:
        _, data, trainer = build_run()
        with torch.no_grad():
            next(trainer.model.parameters()).fill_(float("nan"))
        assert not measure_steps(trainer, data.train, 0.15).is_finite

    def test_a_gradient_that_is_not_finite_in_the_second_step_of_the_run_is_a_problem(
        self, build_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, data, trainer = build_run()
        compute_gradients = TrainStep.compute_gradients

        def lose_gradients(self: TrainStep, batch: PackedBatch, *, step: int, **others: Any) -> Any:
            found = compute_gradients(self, batch, step=step, **others)
            if step == 1:
                torch._foreach_mul_(self._gradients(), float("nan"))
            return found

        monkeypatch.setattr(TrainStep, "compute_gradients", lose_gradients)
        figures = measure_steps(trainer, data.train, 0.15)
        assert not figures.is_finite
        finding = check_step(figures, 100)
        assert (finding.verdict, "not finite by step 2 of the run" in finding.text) == ("problem", True)

    def test_the_steps_are_those_that_the_run_takes(
        self, build_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, data, trainer = build_run(training={"batch_tokens": 64})
        before = copy.deepcopy(trainer.model.state_dict())
        taken: list[torch.Tensor] = []
        step = TrainStep.__call__

        def watch(self: TrainStep, batch: PackedBatch, **others: Any) -> Any:
            if others["step"] == 0:
                changed = [name for name, value in trainer.model.state_dict().items() if not value.equal(before[name])]
                assert changed == [], "steps that are only timed leave the weights as they are"
                taken.clear()
            taken.append(batch.input_ids)
            return step(self, batch, **others)

        monkeypatch.setattr(TrainStep, "__call__", watch)
        figures = measure_steps(trainer, data.train, 0.15)
        batches = [batch.input_ids for batch in data.train.epoch(0)]
        assert figures.num_first_steps == len(taken) == 8
        assert all(map(torch.equal, taken, batches))
        assert figures.last_loss != figures.loss

    @pytest.mark.parametrize(("share_wrong", "verdict"), [(0.0, "OK"), (0.5, "problem")])
    def test_compiled_layers_that_compute_something_else_are_a_problem(
        self, build_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, share_wrong: float, verdict: str
    ) -> None:
        monkeypatch.setattr(torch, "compile", lambda function, **_: function)
        _, data, trainer = build_run(training={"compile": True}, model=NO_DROPOUT)
        run = LayerCompiler.run

        def run_wrongly(self: LayerCompiler, layer: Any, hidden: torch.Tensor, *others: Any) -> torch.Tensor:
            places = torch.arange(hidden.shape[1]) < share_wrong * hidden.shape[1]
            return torch.where(places[:, None], hidden.flip(0, 1), run(self, layer, hidden, *others))

        monkeypatch.setattr(LayerCompiler, "run", run_wrongly)
        figures = measure_steps(trainer, data.train, 0.3)
        assert figures.is_finite
        assert check_step(figures, 100).verdict == verdict
        assert (figures.off_plain < 1e-3) == (verdict == "OK")

    def test_models_with_dropout_are_not_compared(
        self, build_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch, "compile", lambda function, **_: function)
        _, data, trainer = build_run(training={"compile": True})
        assert measure_steps(trainer, data.train, 0.3).off_plain == 0.0

    @pytest.mark.parametrize(("dropout", "kernel"), [(0.0, "SDPA flash"), (0.1, "plain products")])
    def test_the_attention_kernel_is_the_one_that_runs(self, dropout: float, kernel: str) -> None:
        query = torch.randn(1, 2, 8, 16, requires_grad=True)
        attend = torch.nn.functional.scaled_dot_product_attention
        seen = watch_attention(lambda: attend(query, query, query, dropout_p=dropout).sum().backward())
        assert kernel in seen
        assert "backward" not in seen

    def test_compiled_work_is_watched_uncompiled(self) -> None:
        query = torch.randn(1, 2, 8, 16)

        def attend_flexibly() -> torch.Tensor:
            attended = flex_attention(query, query, query)
            assert isinstance(attended, torch.Tensor)
            return attended

        assert watch_attention(torch.compile(attend_flexibly, backend="eager")) == "flex"


class TestLoader:
    def test_a_loader_below_twice_the_need_is_a_warning(self) -> None:
        figures = build_figures(seconds=0.5, num_places=1000)
        assert check_loader(figures, 4100.0).verdict == "OK"
        slow = check_loader(figures, 3900.0)
        assert (slow.verdict, "1.95x what the steps need" in slow.text) == ("warning", True)

    @pytest.mark.parametrize("batch_tokens", [64, 100_000])
    def test_reading_has_a_speed_however_few_batches_there_are(
        self, build_run: Callable[..., Any], batch_tokens: int
    ) -> None:
        _, data, _ = build_run(training={"batch_tokens": batch_tokens})
        assert 0 < measure_loader(data.train) < 1e12


class TestPlan:
    @pytest.mark.parametrize(
        ("training", "steps", "seconds"),
        [
            ({"epochs": 3}, 300, 150.0),
            ({"epochs": 3, "initial_epoch": 1}, 200, 100.0),
            ({"epochs": 3, "max_steps": 70}, 70, 35.0),
            ({"epochs": 3, "max_tokens": 51_200}, 50, 25.0),
            ({"epochs": 3, "max_seconds": 40}, 80, 40.0),
            ({"epochs": 500_000}, 50_000_000, 25e6),
            # Of 300 batches, 75 in steps of one, which take half as long, and 225 in steps of two.
            ({"epochs": 3, "batch_tokens_start": 1024, "batch_tokens": 2048, "batch_ramp_share": 0.5}, 187, 75.0),
        ],
    )
    def test_the_nearest_limit_ends_the_run(self, training: dict[str, Any], steps: int, seconds: float) -> None:
        plan = self.plan(training=training)
        assert plan.num_steps == pytest.approx(steps, abs=1)
        assert plan.seconds == pytest.approx(seconds, rel=0.01)
        assert plan.num_places == pytest.approx(plan.num_epochs * 100 * 1024)

    @pytest.mark.parametrize(
        ("schedule", "warmup_steps"),
        [({"warmup_steps": 7}, 7), ({"warmup_share": 0.2}, 60), ({"warmup_share": 0.2, "decay_steps": 50}, 10)],
    )
    def test_the_warm_up_is_given_in_steps(self, schedule: dict[str, Any], warmup_steps: int) -> None:
        assert self.plan(training={"epochs": 3}, schedule=schedule).warmup_steps == warmup_steps

    def test_a_long_run_has_no_warnings(self) -> None:
        values = {"training": {"epochs": 30}, "optimizer": {"type": "muon"}}
        findings = check_plan(build_config(values), self.plan(**values))
        assert [finding.verdict for finding in findings] == ["OK", "OK"]
        assert "about 3,000 steps" in findings[0].text
        assert "25.0 minutes" in findings[0].text
        assert "(matrices 0.02) in 300 steps, then cosine_decay" in findings[1].text

    @staticmethod
    def plan(**values: dict[str, Any]) -> Plan:
        class Loader:
            row_length, rows_per_batch = 128, 8

            def __len__(self) -> int:
                return 100

        loader: Any = Loader()
        return plan_run(build_config(values), loader, build_figures(seconds=0.5))


class TestSettings:
    def test_the_defaults_have_nothing_odd(self) -> None:
        for preset in ("quickstart", "bert_standard", "low_resource", "domain_adaptation"):
            assert check_settings(Config.from_preset(preset)) == []

    @pytest.mark.parametrize(
        ("values", "words"),
        [
            ({"training": {"epochs": 2, "initial_epoch": 2}}, "training.initial_epoch 2"),
            ({"training": {"keep_optimizer": True}}, "needs model.from to be a run or a checkpoint"),
        ],
    )
    def test_what_a_run_would_refuse_is_a_problem(self, values: dict[str, Any], words: str) -> None:
        (finding,) = check_settings(build_config(values))
        assert finding.verdict == "problem"
        assert words in finding.text
        assert finding.advice


@pytest.mark.parametrize(("fastest", "verdict"), [("fp32", "warning"), ("bf16", "OK")])
def test_few_bits_that_are_slow_on_this_cpu_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, fastest: Any, verdict: str
) -> None:
    monkeypatch.setattr("maskwright.runs.doctor.settings.choose_precision", lambda *_: Precision(fastest, "measured"))
    model = SimpleNamespace(encoder=SimpleNamespace(hidden_size=128))
    engine: Any = SimpleNamespace(precision=Precision("bf16"), device=CPU, model=model)
    assert check_precision(engine).verdict == verdict


def test_an_error_becomes_a_finding_with_its_advice() -> None:
    finding = Finding.from_error("model", ValueError("it is 3; it must be 4; make it 4"))
    assert (finding.verdict, finding.text, finding.advice) == ("problem", "it is 3; it must be 4", "make it 4")
    assert Finding.from_error("model", ValueError("no advice")).text == "no advice"


def test_units_are_readable() -> None:
    assert [format_bytes(size) for size in (12, 1234, 5.67e9)] == ["12 bytes", "1.23 kB", "5.67 GB"]
    assert [format_seconds(s) for s in (0.5, 90, 150, 7200, 200_000)] == [
        "0.5 seconds",
        "90 seconds",
        "2.5 minutes",
        "2.0 hours",
        "2.3 days",
    ]
