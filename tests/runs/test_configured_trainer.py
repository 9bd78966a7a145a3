from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

import maskwright
from maskwright.config import Config, build_config
from maskwright.errors import InputError
from maskwright.models.bert import BERT
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.runs.pretrain import pretrain
from maskwright.runs.trainer import Trainer
from maskwright.sections.objective import PhaseConfig
from maskwright.sections.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from maskwright.training.trainer import Trainer as ModelTrainer

SILENT = Console(file=StringIO())


@pytest.fixture
def config(tiny_values: dict[str, Any]) -> Config:
    tiny_values["training"]["max_steps"] = 4
    return build_config(tiny_values)


@pytest.fixture
def model() -> MaskedLanguageModel:
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16}
    encoder = BERT.from_variant("tiny", vocab_size=60, **shape)
    return MaskedLanguageModel(encoder, 60, mask_token_id=4, special_token_ids=range(5))


def batches(num_batches: int = 3) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [{"input_ids": torch.randint(5, 60, (4, 16), generator=generator)} for _ in range(num_batches)]


class TestOfAConfiguration:
    def test_train_is_the_whole_run_and_leaves_its_model_and_history(self, config: Config, tmp_path: Path) -> None:
        trainer = Trainer(config)
        finished = trainer.train(console=SILENT)
        assert finished.folder.path == tmp_path / "runs" / "tiny"
        assert finished.figures["steps"] == trainer.state.step == 4
        assert (finished.folder.path / "final.json").is_file()
        assert trainer.history.history["loss"][-1] == finished.figures["train_loss"]
        saved = MaskedLanguageModel.from_pretrained(finished.folder.model)
        for name, tensor in saved.state_dict().items():
            assert torch.equal(trainer.model.state_dict()[name], tensor), name

    def test_it_gives_what_pretrain_gives(self, config: Config, tmp_path: Path) -> None:
        ours = Trainer(config).train(console=SILENT)
        config.run.out = str(tmp_path / "others")
        assert ours.figures["loss"] == pretrain(config, console=SILENT).figures["loss"]

    def test_settings_may_change_until_it_trains(self, config: Config) -> None:
        trainer = maskwright.Trainer(config)
        config.training.training_mode = "mlm"
        config.training.mlm_mask_prob = 0.5
        config.training.final_evaluation = False
        config.training.max_steps = 1
        finished = trainer.train(console=SILENT)
        assert finished.figures["steps"] == 1
        assert "loss" not in finished.figures
        assert trainer.model.mask_ratio == 0.5

    def test_a_finished_run_is_replaced_only_when_asked(self, config: Config) -> None:
        trainer = Trainer(config)
        trainer.train(console=SILENT)
        with pytest.raises(InputError, match="holds a finished run"):
            trainer.train(console=SILENT)
        assert trainer.train(overwrite=True, console=SILENT).figures["steps"] == 4

    def test_it_can_fit_on_after_its_run(self, config: Config) -> None:
        trainer = Trainer(config)
        trainer.train(console=SILENT)
        vocab_size = trainer.model.vocab_size
        more = [{"input_ids": batch["input_ids"] % (vocab_size - 5) + 5} for batch in batches()]
        assert len(trainer.fit(more, epochs=2, verbose=False).history["loss"]) == 2

    @pytest.mark.parametrize(
        "use",
        [
            lambda trainer: trainer.fit(batches()),
            lambda trainer: trainer.model,
            lambda trainer: trainer.history,
            lambda trainer: trainer.save_checkpoint(Path("unused")),
        ],
    )
    def test_before_train_there_is_nothing_to_use(self, config: Config, use: Callable[[Trainer], Any]) -> None:
        trainer = Trainer(config)
        with pytest.raises(InputError, match=r"before train\(\), which builds them; call train\(\) first"):
            use(trainer)
        assert not hasattr(trainer, "model")

    def test_a_configuration_and_more_is_refused(self, config: Config) -> None:
        with pytest.raises(InputError, match="a Config holds everything"):
            Trainer(config, OptimizerConfig())
        with pytest.raises(InputError, match="a Config holds everything"):
            Trainer(config, seed=1)


class TestOfAModel:
    def test_it_is_the_trainer_of_the_loop(self, model: MaskedLanguageModel) -> None:
        trainer = maskwright.Trainer(model)
        assert isinstance(trainer, ModelTrainer)
        assert inspect.signature(trainer.fit) == inspect.signature(ModelTrainer(model).fit)

    def test_fit_works_as_ever(self, model: MaskedLanguageModel) -> None:
        arguments = (OptimizerConfig(learning_rate=1e-2), ScheduleConfig(), TrainingConfig(device="cpu"))
        initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        losses = []
        for kind in (Trainer, ModelTrainer):
            model.load_state_dict(initial)
            trainer = kind(model, *arguments, mask_ratio=lambda progress: 0.4, seed=3)
            losses.append(trainer.fit(batches(), epochs=2, verbose=False).history["loss"])
        assert losses[0] == losses[1]
        assert losses[0][1] < losses[0][0]

    def test_train_needs_a_configuration(self, model: MaskedLanguageModel) -> None:
        with pytest.raises(InputError, match=r"train\(\) needs a configuration, Trainer\(config\)"):
            Trainer(model).train()

    def test_a_name_it_does_not_have_is_an_attribute_error(self, model: MaskedLanguageModel) -> None:
        with pytest.raises(AttributeError, match="no attribute 'modle'"):
            Trainer(model).modle  # noqa: B018


def test_a_mode_beside_phases_is_refused_before_anything_is_written(config: Config, tmp_path: Path) -> None:
    config.training.training_mode = "clm"
    config.objective = [PhaseConfig()]
    with pytest.raises(InputError, match=r"training\.mode is clm and objective has phases"):
        Trainer(config).train(console=SILENT)
    assert not (tmp_path / "runs").exists()


class TestLogTo:
    def test_a_missing_package_is_refused_before_anything_is_written(
        self, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "wandb", None)
        config.training.log_to = ["wandb"]
        with pytest.raises(InputError, match="asks for wandb, which needs a package: pip install wandb"):
            Trainer(config).train(console=SILENT)
        assert not (tmp_path / "runs").exists()

    def test_a_tracker_gets_the_runs_name_settings_and_metrics(
        self, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        started: list[dict[str, Any]] = []
        logged: list[dict[str, float]] = []
        trackio = ModuleType("trackio")
        run = SimpleNamespace(name="tiny", log=lambda metrics, step: logged.append({**metrics, "step": step}))
        trackio.init = lambda **arguments: started.append(arguments) or run
        trackio.finish = lambda: None
        monkeypatch.setitem(sys.modules, "trackio", trackio)
        config.training.log_to = ["trackio"]
        config.training.mlm_mask_prob = 0.25
        for _ in range(2):
            Trainer(config).train(overwrite=True, console=SILENT)
        assert [(call["name"], call["resume"]) for call in started] == [("tiny", "never")] * 2
        assert started[0]["config"]["masking.ratio"] == 0.25
        assert started[0]["config"]["run_folder"] == str(tmp_path / "runs" / "tiny")
        assert {"loss", "val_loss"} <= {name for line in logged for name in line}

    @pytest.mark.parametrize("settings", [{"tensorboard": True}, {"log_to": ["tensorboard"]}])
    def test_tensorboard_can_be_asked_for_in_two_ways(
        self, tiny_values: dict[str, Any], tmp_path: Path, settings: dict[str, Any]
    ) -> None:
        tiny_values["training"] |= {"max_steps": 1, **settings}
        Trainer(build_config(tiny_values)).train(console=SILENT)
        assert len(list((tmp_path / "runs" / "tiny" / "tensorboard").iterdir())) == 1
