"""The names other frameworks give to settings: translated on the way in, and never saved."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from maskwright.config import Config, build_config, load_config
from maskwright.errors import InputError
from maskwright.recipes import read_recipe
from maskwright.sections.objective import MaskingConfig
from maskwright.sections.synonyms import SYNONYMS
from maskwright.sections.training import TrainingConfig

THEIRS = """
training:
  training_mode: "mlm"     # Set to "mlm" for masked LM, "clm" for causal LM
  mlm_mask_prob: 0.25
  mlm_replace_prob: 0.7
  mlm_random_prob: 0.2
  final_evaluation: false
  eval_interval: 500
  eval_steps: 50
"""
OURS = {
    "masking": {"ratio": 0.25, "random_token_ratio": 0.2, "unchanged_ratio": 0.1},
    "training": {
        "mode": "mlm",
        "final_evaluation": False,
        "evaluate_every_steps": 500,
        "evaluate_max_batches": 50,
    },
}


@pytest.fixture
def seed_file(tmp_path: Path) -> Path:
    path = tmp_path / "seed.yaml"
    path.write_text(THEIRS, encoding="utf-8")
    return path


def shares(config: Config) -> tuple[float, float]:
    return config.masking.random_token_ratio, config.masking.unchanged_ratio


def test_files_overrides_and_python_all_take_these_names(seed_file: Path, tmp_path: Path) -> None:
    ours = build_config(OURS)
    values = yaml.safe_load(THEIRS)
    assert load_config(seed_file) == ours
    assert build_config(values) == ours
    assert Config(**values) == ours
    empty = tmp_path / "empty.yaml"
    empty.touch()
    assert load_config(empty, [f"training.{name}={value}" for name, value in values["training"].items()]) == ours
    assigned = Config()
    for name in ("mlm_replace_prob", "mlm_random_prob", "training_mode", "mlm_mask_prob", "eval_interval"):
        setattr(assigned.training, name, values["training"][name])
    assigned.training.final_evaluation = False
    assigned.training.eval_steps = 50
    assert assigned == ours


def test_a_saved_configuration_has_our_names_only(seed_file: Path, tmp_path: Path) -> None:
    config = load_config(seed_file)
    config.save(tmp_path / "config.yaml")
    assert not [name for name in SYNONYMS if name in (tmp_path / "config.yaml").read_text()]
    assert load_config(tmp_path / "config.yaml") == config


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (0.1, 0.1)),
        ({"mlm_replace_prob": 0.8}, (0.1, 0.1)),
        ({"mlm_replace_prob": 0.6}, (0.1, 0.3)),
        ({"mlm_replace_prob": 0.9}, (0.1, 0.0)),
        ({"mlm_random_prob": 0.05}, (0.05, 0.15)),
        ({"mlm_random_prob": 0.2}, (0.2, 0.0)),
        ({"mlm_replace_prob": 0.0, "mlm_random_prob": 1 / 3}, (1 / 3, 2 / 3)),
        ({"mlm_replace_prob": 1.0, "mlm_random_prob": 0.0}, (0.0, 0.0)),
    ],
)
def test_what_is_not_given_of_the_shares_is_berts(given: dict[str, float], expected: tuple[float, float]) -> None:
    assert shares(build_config({"training": given})) == pytest.approx(expected, abs=1e-12)


def test_one_share_over_a_preset_keeps_the_presets_other_share() -> None:
    assert read_recipe("low_resource")["masking"]["random_token_ratio"] == 0.05
    assert shares(load_config(None, ["preset=low_resource", "training.mlm_replace_prob=0.85"])) == (0.05, 0.1)
    assert shares(load_config(None, ["preset=low_resource", "training.mlm_random_prob=0.1"])) == (0.1, 0.0)


def test_an_override_wins_over_the_file_in_either_spelling(seed_file: Path) -> None:
    assert load_config(seed_file, ["masking.ratio=0.4"]).masking.ratio == 0.4
    assert load_config(seed_file, ["training.mlm_mask_prob=0.4"]).masking.ratio == 0.4
    assert shares(load_config(seed_file, ["training.mlm_random_prob=0.1"])) == (0.1, 0.2)
    seed_file.write_text("masking: {ratio: 0.3}\n")
    assert load_config(seed_file, ["training.mlm_mask_prob=0.4"]).masking.ratio == 0.4


def test_a_preset_is_no_second_spelling() -> None:
    assert read_recipe("quickstart")["masking"]["ratio"] != 0.4
    assert load_config(None, ["training.mlm_mask_prob=0.4"]).masking.ratio == 0.4


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["training.mlm_mask_prob=0.2", "masking.ratio=0.3"], "training.mlm_mask_prob is 0.2 and masking.ratio is 0.3"),
        (["training.training_mode=mlm", "training.mode=clm"], "training.training_mode is mlm and training.mode is clm"),
        (["training.eval_steps=5", "training.evaluate_max_batches=6"], "they are one setting, keep one of them"),
        (["training.mlm_random_prob=0.2", "masking.random_token_ratio=0.1"], "masking.random_token_ratio is 0.1"),
        (["training.mlm_replace_prob=0.8", "masking.unchanged_ratio=0.2"], "masking.unchanged_ratio is 0.2"),
        (["training.mlm_replace_prob=0.7", "training.mlm_random_prob=0.4"], "exceed 1 together"),
        (["training.mlm_replace_prob=0.95"], "mlm_replace_prob 0.95 and mlm_random_prob 0.1 exceed 1 together"),
        (["training.mlm_replace_prob=most"], "mlm_replace_prob is 'most'; expected a number from 0 to 1"),
        (["training.mlm_replace_prob=-0.1"], "mlm_replace_prob is '-0.1'; expected a number from 0 to 1"),
        (["training.mlm_random_prob=nan"], "mlm_random_prob is 'nan'; expected a number from 0 to 1"),
        (["training.mlm_mask_prob=many"], "configuration key 'training.mlm_mask_prob' is 'many': expected"),
        (["training.eval_interval=0"], "configuration key 'training.eval_interval' is '0': expected"),
        (["training.training_mode=gpt"], "configuration key 'training.training_mode' is 'gpt': expected 'mlm'"),
        (["training.mlm_mask_prb=0.1"], "unknown configuration key 'training.mlm_mask_prb'; did you mean 'mlm_mask_p"),
    ],
)
def test_a_mistake_is_answered_in_the_words_it_was_made_in(overrides: list[str], complaint: str) -> None:
    with pytest.raises(InputError) as refusal:
        load_config(None, overrides)
    assert complaint in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_both_spellings_of_the_same_value_are_fine() -> None:
    values = {"training": {"mlm_mask_prob": "0.20", "mlm_replace_prob": 0.8}}
    config = build_config({**values, "masking": {"ratio": 0.2, "unchanged_ratio": 0.1, "random_token_ratio": 0.1}})
    assert config.masking.ratio == 0.2


def test_clm_is_a_known_mode() -> None:
    assert build_config({"training": {"training_mode": "clm"}}).training.mode == "clm"


class TestAttributes:
    def test_reading_and_writing_act_on_the_real_settings(self) -> None:
        config = Config()
        training = config.training
        assert (training.mlm_mask_prob, training.mlm_replace_prob, training.mlm_random_prob) == (0.15, 0.8, 0.1)
        training.mlm_mask_prob, training.training_mode, training.eval_interval = 0.3, "clm", 7
        assert (config.masking.ratio, training.mode, training.evaluate_every_steps) == (0.3, "clm", 7)
        config.masking.ratio, training.mode, training.evaluate_max_batches = 0.4, "mlm", 9
        assert (training.mlm_mask_prob, training.training_mode, training.eval_steps) == (0.4, "mlm", 9)

    def test_one_share_keeps_the_other_and_the_rest_stays_unchanged(self) -> None:
        config = Config()
        config.training.mlm_replace_prob = 0.7
        assert shares(config) == (0.1, 0.2)
        config.training.mlm_random_prob = 0.3
        assert shares(config) == (0.3, 0.0)
        config.training.mlm_random_prob = 0.05
        assert shares(config) == (0.05, 0.25)
        assert config.training.mlm_replace_prob == 0.7

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("mlm_mask_prob", 0),
            ("mlm_replace_prob", 0.95),
            ("mlm_random_prob", "many"),
            ("training_mode", "gpt"),
            ("eval_interval", 0),
        ],
    )
    def test_a_wrong_value_is_refused_and_changes_nothing(self, name: str, value: Any) -> None:
        config = Config()
        with pytest.raises(ValueError, match=r"expected|exceed|expected"):
            setattr(config.training, name, value)
        assert config == Config()

    def test_new_sections_are_the_ones_that_count(self) -> None:
        config = Config()
        training = config.training
        config.masking = MaskingConfig(ratio=0.5)
        assert training.mlm_mask_prob == 0.5
        training.mlm_mask_prob = 0.6
        assert config.masking.ratio == 0.6
        assert config.training is training
        config.training = TrainingConfig(epochs=9)
        config.training.mlm_mask_prob = 0.7
        assert config.masking.ratio == 0.7

    @pytest.mark.parametrize(
        "make_copy",
        [
            copy.deepcopy,
            lambda config: config.model_copy(deep=True),
            lambda config: config.model_copy(update={"masking": MaskingConfig(ratio=0.2)}),
            lambda config: Config(training=config.training, masking=MaskingConfig(ratio=0.2)),
            lambda config: pickle.loads(pickle.dumps(config)),
        ],
    )
    def test_a_copy_is_on_its_own(self, make_copy: Callable[[Config], Config]) -> None:
        config = build_config({"masking": {"ratio": 0.2}})
        copied = make_copy(config)
        assert copied == config
        copied.training.mlm_mask_prob = 0.5
        copied.training.epochs = 11
        assert (copied.masking.ratio, config.masking.ratio, config.training.mlm_mask_prob) == (0.5, 0.2, 0.2)
        assert config.training.epochs == Config().training.epochs
        assert copied != config

    def test_a_shallow_copy_shares_its_masking_and_can_get_another(self) -> None:
        config = Config()
        for copied in (copy.copy(config), config.model_copy()):
            copied.training.mlm_mask_prob = 0.5
            assert config.training.mlm_mask_prob == 0.5
            copied.masking = MaskingConfig(ratio=0.25)
            assert (copied.training.mlm_mask_prob, config.training.mlm_mask_prob) == (0.25, 0.5)

    def test_a_section_alone_says_where_its_masking_is_set(self) -> None:
        config = Config()
        for alone in (TrainingConfig(), config.training.model_copy(), copy.deepcopy(config.training)):
            with pytest.raises(InputError, match="belongs to none"):
                alone.mlm_mask_prob = 0.5
            alone.eval_steps = 3
            assert alone.evaluate_max_batches == 3
        assert config == Config()

    def test_whose_a_section_is_does_not_count_in_comparisons(self) -> None:
        assert Config().training == TrainingConfig()
        assert Config(masking={"ratio": 0.5}).training == Config().training
        assert Config().training != TrainingConfig(epochs=4)
        assert Config(masking={"ratio": 0.5}) != Config()


def test_a_run_of_such_a_file_keeps_our_names_and_the_final_evaluation(
    command: Callable[..., Any], tiny_values: dict[str, Any], tmp_path: Path
) -> None:
    theirs = {"training_mode": "mlm", "mlm_mask_prob": 0.25, "mlm_replace_prob": 0.7, "mlm_random_prob": 0.2}
    tiny_values["training"] |= theirs | {"final_evaluation": True, "max_steps": 2}
    path = tmp_path / "theirs.yaml"
    path.write_text(yaml.safe_dump(tiny_values), encoding="utf-8")
    assert command("train", path).code == 0
    run = tmp_path / "runs" / "tiny"
    saved = yaml.safe_load((run / "config.yaml").read_text())
    assert saved["masking"]["ratio"] == 0.25
    assert (saved["masking"]["random_token_ratio"], saved["masking"]["unchanged_ratio"]) == (0.2, 0.1)
    assert not set(SYNONYMS) & set(saved["training"])
    assert {"loss", "perplexity"} <= set(json.loads((run / "final.json").read_text()))
