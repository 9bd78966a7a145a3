from __future__ import annotations

import ast
import functools
import os
import re
import traceback
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

import maskwright
from maskwright.config import Config, build_config, flatten, load_config
from maskwright.errors import InputError
from maskwright.models.bert import BertConfig
from maskwright.models.modernbert import MODERNBERT_FAMILY, ModernBertConfig
from maskwright.recipes import list_recipes, read_recipe
from maskwright.sections.base import Section
from maskwright.sections.model import ModelConfig
from maskwright.sections.training import OptimizerConfig, TrainingConfig
from maskwright.tasks.config import load_task_config
from maskwright.untrusted import parse_yaml, read_yaml

SOURCE = Path(maskwright.__file__).parent
VALUES: dict[str, Any] = {
    "preset": "low_resource",
    "run": {"name": "mine", "seed": 7},
    "model": {"from": "runs/other", "mlm_head_dropout": 0.2, "use_stochastic_depth": True},
    "data": {"validation": None, "max_length": 64},
    "optimizer": {"learning_rate": 1e-4},
    "training": {"max_seconds": 2.5},
}
OVERRIDES = [
    "preset=low_resource",
    "run.name=mine",
    "run.seed=7",
    "model.from=runs/other",
    "model.mlm_head_dropout=0.2",
    "model.use_stochastic_depth=true",
    "data.validation=null",
    "data.max_length=64",
    "optimizer.learning_rate=1e-4",
    "training.max_seconds=2.5",
]


def write_yaml(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_yaml_overrides_and_python_give_the_same_configuration(tmp_path: Path) -> None:
    from_python = build_config(VALUES)
    assert load_config(write_yaml(tmp_path, yaml.safe_dump(VALUES))) == from_python
    assert load_config(write_yaml(tmp_path, ""), OVERRIDES) == from_python
    assert load_config(None, OVERRIDES) == from_python
    assert Config.from_preset("low_resource", VALUES) == from_python
    assert from_python.optimizer.learning_rate == 1e-4
    assert from_python.model.use_stochastic_depth is True


def test_overrides_win_over_the_file_and_the_file_over_the_preset(tmp_path: Path) -> None:
    path = write_yaml(tmp_path, "preset: low_resource\nmasking: {ratio: 0.3, unchanged_ratio: 0.2}\n")
    config = load_config(path, ["masking.ratio=0.4"])
    assert config.masking.ratio == 0.4
    assert config.masking.unchanged_ratio == 0.2
    assert config.masking.random_token_ratio == read_recipe("low_resource")["masking"]["random_token_ratio"]


def test_without_a_file_the_quickstart_is_the_start(tmp_path: Path) -> None:
    assert load_config() == Config.from_preset("quickstart")
    assert load_config(write_yaml(tmp_path, "run: {name: mine}")) == Config(run={"name": "mine"})


def test_the_starting_model_is_called_from_in_files_and_from__in_python() -> None:
    config = build_config({"model": {"from": "bert-base-uncased"}})
    assert config == build_config({"model": {"from_": "bert-base-uncased"}})
    assert config.model.from_ == "bert-base-uncased"
    assert config.model_dump(by_alias=True)["model"]["from"] == "bert-base-uncased"
    assert "from_" not in config.model.shape_overrides()


def test_empty_sections_mean_their_defaults(tmp_path: Path) -> None:
    path = write_yaml(tmp_path, "training:\ndata:\n")
    assert load_config(path) == Config()
    assert load_config(path, ["training.epochs=5"]).training.epochs == 5


@pytest.mark.parametrize("name", ["2024", "007", "2024-01-05", "1e3", "yes"])
def test_a_name_that_looks_like_a_number_or_a_date_stays_a_name(tmp_path: Path, name: str) -> None:
    assert load_config(None, [f"run.name={name}"]).run.name == name
    assert load_config(write_yaml(tmp_path, f"run: {{name: '{name}'}}")).run.name == name


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["trainig.epochs=3"], "unknown configuration key 'trainig'; did you mean 'training'?"),
        (["training.epoch=3"], "unknown configuration key 'training.epoch'; did you mean 'epochs'?"),
        (["model.form=x"], "unknown configuration key 'model.form'; did you mean 'from'?"),
        (["data.zzz=1"], "unknown configuration key 'data.zzz'; known are cache_gb, max_length, packing_window"),
        (["preset=low_resorce"], "no preset 'low_resorce'; did you mean 'low_resource'?"),
        (["preset=[low_resource]"], "no preset '['low_resource']'"),
        (["training.epochs=0"], "configuration key 'training.epochs' is '0': expected a value greater than or equal"),
        (["training.epochs=many"], "configuration key 'training.epochs' is 'many': expected a whole number"),
        (["optimizer.type=adam2"], "configuration key 'optimizer.type' is 'adam2': expected 'adamw', "),
        (["optimizer.learning_rate=inf"], "'optimizer.learning_rate' is 'inf': expected a finite number"),
        (["run.name=../elsewhere"], "configuration key 'run.name' is '../elsewhere'"),
        (["run.name=.."], "configuration key 'run.name' is '..'"),
        (["run.name=my run"], "configuration key 'run.name' is 'my run': a run's folder has letters, digits"),
        (["run.seed=-1"], "configuration key 'run.seed' is '-1'"),
        (["data=corpus.txt"], "configuration key 'data' is 'corpus.txt'"),
        (
            ["masking.random_token_ratio=0.7", "masking.unchanged_ratio=0.4"],
            "random_token_ratio + unchanged_ratio exceeds 1",
        ),
        (["training.epochs"], "'training.epochs' is not an override; write section.key=value"),
        (["=3"], "'=3' is not an override"),
        (["data.train={pth: x}"], "unknown configuration key 'pth'; did you mean 'path'?"),
        (["data.train=x", "data.train.path=y"], "'data.train.path=y': train is not a section"),
    ],
)
def test_a_mistake_is_answered_with_the_key_and_what_would_do(overrides: list[str], complaint: str) -> None:
    with pytest.raises(InputError) as refusal:
        load_config(None, overrides)
    assert complaint in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"run: [unclosed", "is not valid YAML"),
        (b"run: {name: \xff}", "is not valid YAML"),
        (b"run: !!python/object/apply:os.getcwd []", "is not valid YAML"),
        (b"- run", "holds a list; expected sections such as"),
        (b"just words", "holds a str; expected sections such as"),
        (b"a: " + b"1" * 5000, "line 1: has a number of more than 4300 digits"),
        (b"a: " + b"1:" * 5000 + b"1", "line 1: has a number of more than 4300 digits"),
        (b"a: 2026-13-45", "is not valid YAML: month must be in 1..12"),
        (b"run:\n  name: a\n  seed: 1\n  name: b\n", "line 4: gives the key 'name' a second time; keep one of them"),
        (b"run: {}\n\nrun: {}\n", "line 3: gives the key 'run' a second time"),
        (b"run: &a {name: *a}", "line 1: refers to what it is a part of"),
        (b"run: *missing", "is not valid YAML: found undefined alias"),
        (b"[" * 100 + b"]" * 100, "line 1: is nested more than 64 levels deep"),
        (b"- " * 5000, "line 1: is nested more than 64 levels deep"),
        (b"# " + b"x" * (2 << 20), "is larger than 2,097,152 bytes"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_in_one_line(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=complaint) as refusal:
        load_config(path)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_plain_value_in_the_place_of_a_section_is_not_hidden_by_an_override(tmp_path: Path) -> None:
    path = write_yaml(tmp_path, "data: corpus.txt\n")
    with pytest.raises(InputError, match=r"configuration key 'data' is 'corpus\.txt': expected a section"):
        load_config(path, ["data.max_length=64"])


def test_flattened_values_are_under_the_keys_of_overrides() -> None:
    flat = flatten(Config().model_dump(by_alias=True))
    assert flat["training.epochs"] == Config().training.epochs
    assert "model.from" in flat
    assert not [key for key, value in flat.items() if isinstance(value, dict)]


@pytest.mark.parametrize(("text", "services"), [("[wandb, mlflow]", ["wandb", "mlflow"]), ("[]", [])])
def test_trackers_are_a_list_of_known_names(text: str, services: list[str]) -> None:
    assert load_config(None, [f"training.log_to={text}"]).training.log_to == services
    with pytest.raises(InputError, match=r"'training\.log_to\.0' is 'comet': expected 'tensorboard', 'wandb'"):
        load_config(None, ["training.log_to=[comet]"])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no configuration file at .*absent\.yaml"):
        load_config(tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    ("preset", "mask_ratio", "random_token_ratio", "unchanged_ratio", "mlm_head_dropout"),
    [
        ("bert_standard", 0.15, 0.1, 0.1, 0.1),
        ("low_resource", 0.20, 0.05, 0.05, 0.15),
        ("domain_adaptation", 0.10, 0.05, 0.05, 0.05),
    ],
)
def test_presets_have_their_published_values(
    preset: str, mask_ratio: float, random_token_ratio: float, unchanged_ratio: float, mlm_head_dropout: float
) -> None:
    config = Config.from_preset(preset)
    assert config.masking.ratio == mask_ratio
    assert config.masking.random_token_ratio == random_token_ratio
    assert config.masking.unchanged_ratio == unchanged_ratio
    assert config.model.mlm_head_dropout == mlm_head_dropout


def test_domain_adaptation_takes_small_steps_from_any_model() -> None:
    config = Config.from_preset("domain_adaptation")
    assert (config.optimizer.learning_rate, config.optimizer.weight_decay, config.training.epochs) == (1e-5, 0.001, 2)
    assert config.model.shape_overrides() == {}


@pytest.mark.parametrize("preset", [*(recipe.name for recipe in list_recipes()), None])
def test_a_saved_configuration_reloads_equal(tmp_path: Path, preset: str | None) -> None:
    config = build_config({"preset": preset, "run": {"name": "2024-01-05"}, "model": {"from": "a/b"}})
    config.save(tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config


def test_assignments_are_checked_like_the_constructor() -> None:
    config = Config()
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        config.training.epochs = 0
    with pytest.raises(ValueError, match="exceeds 1"):
        config.masking.random_token_ratio = 0.95


@functools.cache
def _attributes_read() -> set[tuple[str, str]]:
    """What modules other than the configuration's own read an attribute from, and its name."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        if path.name != "config.py" and path.parent.name != "sections":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    found.add((_last_name(node.value), node.attr))
    return found


def _last_name(value: ast.expr) -> str:
    """What a name, or a chain of attributes, ends with; nothing for other expressions."""
    return value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""


def _settings_read(section: str) -> set[str]:
    """Every attribute that is read from what a module calls the section."""
    holders = (section, "config", "settings")
    return {name for holder, name in _attributes_read() if holder.endswith(holders)}


def _sections() -> dict[str, type[Section]]:
    annotations = {name: field.annotation for name, field in Config.model_fields.items() if name != "preset"}
    return {name: kind for name, kind in annotations.items() if isinstance(kind, type) and issubclass(kind, Section)}


def test_every_section_is_looked_at() -> None:
    assert {*_sections(), "preset", "objective"} == set(Config.model_fields)


@pytest.mark.parametrize("section", sorted(_sections()))
def test_every_setting_is_read_somewhere(section: str) -> None:
    settings = set(_sections()[section].model_fields)
    if section == "model":
        settings -= _shape_settings()
    assert settings - _settings_read(section) == set()


def test_every_shape_setting_is_an_option_of_some_encoder() -> None:
    bert = {field.name for field in fields(BertConfig)}
    modernbert = {field.name for field in fields(ModernBertConfig)}
    run_settings = MODERNBERT_FAMILY.run_settings
    assert run_settings is not None
    for name in _shape_settings():
        theirs = run_settings.get(name, (name,))
        assert name in bert or set(theirs) <= modernbert, name
    for theirs in run_settings.values():
        assert set(theirs) <= modernbert


def _shape_settings() -> set[str]:
    """The model settings that are handed to the encoder by name."""
    every_shape: dict[str, Any] = {
        name: {"hidden_act": "gelu", "residual_init": "zero", "normalization_type": "rms_norm"}.get(name, 0.5)
        for name, field in ModelConfig.model_fields.items()
        if field.default is None and name != "from_"
    }
    integers = [name for name, field in ModelConfig.model_fields.items() if field.annotation == int | None]
    booleans = [name for name, field in ModelConfig.model_fields.items() if field.annotation == bool | None]
    every_shape |= dict.fromkeys(integers, 2) | dict.fromkeys(booleans, True)
    return set(ModelConfig(**every_shape).shape_overrides())


@pytest.mark.parametrize(
    ("phases", "complaint"),
    [
        ("[{mode: clm, until: 0.25}, {mode: mlm, until: 0.9}]", "the last phase ends at 0.9; it must end at 1"),
        ("[{mode: clm}, {mode: mlm}]", "phase 1 has no 'until'"),
        ("[{mode: clm, until: 0.5}, {mode: hybrid, until: 0.4}, {mode: mlm}]", "phase 2 ends at 0.4, phase 1 at 0.5"),
        ("[{moed: clm}]", "unknown configuration key 'objective.0.moed'; did you mean 'mode'"),
        ("[{mode: rtd}]", "configuration key 'objective.0.mode' is 'rtd'"),
    ],
)
def test_a_plan_of_phases_that_does_not_fit_together_is_refused(phases: str, complaint: str) -> None:
    with pytest.raises(InputError, match=re.escape(complaint)):
        load_config(None, [f"objective={phases}"])


def test_phases_are_read_from_overrides_and_files_alike(tmp_path: Path) -> None:
    config = load_config(None, ["objective=[{mode: clm, until: 0.25}, {mode: mlm}]"])
    assert [(phase.mode, phase.until) for phase in config.objective] == [("clm", 0.25), ("mlm", None)]
    config.save(tmp_path / "config.yaml")
    assert load_config(tmp_path / "config.yaml") == config


def set_value(section: Any, name: str, value: Any) -> None:
    setattr(section, name, value)


PYTHON_MISTAKES: list[tuple[Callable[[], Any], str]] = [
    (lambda: OptimizerConfig(learning_rate="x"), "configuration key 'learning_rate' is 'x': expected a number"),
    (lambda: OptimizerConfig(learning_rate=-1), "'learning_rate' is -1: expected a value greater than 0"),
    (lambda: OptimizerConfig(type="adamW"), "'type' is 'adamW': expected 'adamw', .* or 'sgd'; did you mean 'adamw'"),
    (lambda: OptimizerConfig(lr=1), "unknown configuration key 'lr'; use optimizer.learning_rate"),
    (lambda: OptimizerConfig("adamw"), r"OptimizerConfig takes its settings by name, such as OptimizerConfig\(type="),
    (lambda: TrainingConfig(epochs=2.5), "'epochs' is 2.5: expected a whole number"),
    (lambda: TrainingConfig(compile="maybe"), "'compile' is 'maybe': expected true or false"),
    (lambda: TrainingConfig(log_to="wandb"), "'log_to' is 'wandb': expected a list"),
    (lambda: TrainingConfig(num_train_epochs=3), "unknown configuration key 'num_train_epochs'; use training.epochs"),
    (lambda: TrainingConfig(batch_tokens=10, batch_tokens_start=3), "batch_tokens 10 is not a multiple"),
    (lambda: Config(training={"epochs": "x"}), "'training.epochs' is 'x': expected a whole number"),
    (lambda: Config(training=5), "configuration key 'training' is 5: expected a section with keys of its own"),
    (lambda: Config(trainng={}), "unknown configuration key 'trainng'; did you mean 'training'"),
    (lambda: Config(data={"train": 5}), "'data.train' is 5: a source of text is 5; expected a file"),
    (lambda: Config(data={"train": [5]}), "a source of text is 5; expected a path"),
    (lambda: Config(data={"train": [{"column": "text"}]}), "configuration key 'path' is missing"),
    (lambda: Config(run={"name": "a/b"}), "'run.name' is 'a/b': a run's folder has letters"),
    (lambda: Config(preset="low_resorce"), "no preset 'low_resorce'; did you mean 'low_resource'"),
    (lambda: Config.from_preset("low_resource", 5), "overrides are 5; expected a dictionary"),
    (lambda: set_value(Config().training, "epochs", "x"), "'epochs' is 'x': expected a whole number"),
    (lambda: set_value(Config().training, "epoch", 3), "unknown configuration key 'epoch'; did you mean 'epochs'"),
    (lambda: set_value(Config(), "training", 5), "'training' is 5: expected a section"),
]


@pytest.mark.parametrize(("make", "reason"), PYTHON_MISTAKES, ids=[reason for _, reason in PYTHON_MISTAKES])
def test_mistakes_in_python_get_our_sentence_and_no_word_of_pydantic(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        make()
    assert isinstance(caught.value, ValueError)
    shown = "".join(traceback.format_exception(caught.value))
    for word in ("Input should", "validation error", "errors.pydantic.dev", "[type="):
        assert word not in shown


def test_every_kind_of_problem_a_setting_can_have_is_put_in_our_words() -> None:
    """Give each setting values that cannot be right, and look for the fallback and for pydantic's words."""
    wrong = ["\x00", -(10**400), 1.5, None, [], {}, object(), float("nan"), "", b"x", ["x"], {"x": 1}]
    sections = {name: field.annotation for name, field in Config.model_fields.items()}
    for name, section in sections.items():
        if not isinstance(section, type) or not hasattr(section, "model_fields"):
            continue
        for setting, field in section.model_fields.items():
            for value in wrong:
                try:
                    Config(**{name: {field.alias or setting: value}})
                except InputError as error:
                    message = str(error)
                    assert "Input should" not in message, (name, setting, value)
                    assert "another kind of value" not in message, (name, setting, value)


def test_a_preset_named_in_python_has_its_values() -> None:
    assert Config(preset="low_resource") == Config.from_preset("low_resource")
    given = Config(preset="low_resource", masking={"ratio": 0.4})
    assert (given.masking.ratio, given.masking.random_token_ratio) == (0.4, 0.05)


ALIAS_BOMB = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))
MERGE_BOMB = "".join(f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 10)}]\n  k{n}: 1\n" for n in range(1, 10))


@pytest.mark.parametrize("bomb", [ALIAS_BOMB, MERGE_BOMB], ids=["alias", "merge"])
@pytest.mark.parametrize("read", [load_config, load_task_config])
def test_aliases_that_stand_for_too_much_are_refused(tmp_path: Path, read: Callable[[Path], object], bomb: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("a0: &a0 {x: 1, y: 2}\n" + bomb)
    with pytest.raises(InputError, match=r"config.yaml, line \d+: stands for more than 200,000 values") as refusal:
        read(path)
    assert "\n" not in str(refusal.value)


def test_aliases_and_merged_sections_are_read(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "\ufeffrun: {name: é}\noptimizer: &o {weight_decay: 0.5, learning_rate: 1.e-3}\n"
        "data: {train: &t corpus.txt, validation: *t}\n",
        encoding="utf-8",
    )
    config = load_config(path)
    assert (config.run.name, config.data.validation, config.optimizer.weight_decay) == ("é", "corpus.txt", 0.5)
    merged = parse_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\n", "text")
    assert (
        merged
        == yaml.safe_load("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\n")
        == {
            "a": {"x": 1, "y": 2},
            "b": {"x": 1, "y": 3},
        }
    )


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16-le", "utf-16-be"])
def test_a_configuration_with_a_byte_order_mark_is_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "config.yaml"
    mark = "" if encoding == "utf-8-sig" else "\ufeff"
    path.write_bytes(f"{mark}run: {{name: é}}\n".encode(encoding))
    assert load_config(path).run.name == "é"


def test_a_value_on_the_command_line_has_the_same_bounds() -> None:
    with pytest.raises(InputError, match="line 1: gives the key 'path' a second time"):
        load_config(None, ["data.train={path: a.txt, path: b.txt}"])
    with pytest.raises(InputError, match="nested more than 64 levels"):
        load_config(None, ["data.train=" + "[" * 1000 + "]" * 1000])


def test_every_recipe_is_read_as_yaml_reads_it() -> None:
    for recipe in list_recipes():
        assert read_yaml(recipe.path) == yaml.safe_load(recipe.path.read_text(encoding="utf-8"))


def test_a_mistake_names_the_file_it_is_in(tmp_path: Path) -> None:
    path = write_yaml(tmp_path, "training: {epochs: many}")
    with pytest.raises(InputError, match=rf"^{path}: configuration key 'training.epochs' is 'many'"):
        load_config(path)
    assert load_config(path, ["training.epochs=3"]).training.epochs == 3
    with pytest.raises(InputError, match=r"^configuration key 'training.max_steps' is 'x'"):
        load_config(path, ["training.epochs=3", "training.max_steps=x"])


@pytest.mark.parametrize("text", ["[" * 100_000, "training: {epochs: " + "1" * 5_000 + "}", "run: {seed: 2001-99-99}"])
def test_yaml_that_python_cannot_read_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    path = write_yaml(tmp_path, text)
    with pytest.raises(InputError, match=r"is not valid YAML: |nested more than|more than 4300 digits") as refused:
        load_config(path)
    assert len(str(refused.value)) < len(str(path)) + 250


def test_half_of_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"invalid Unicode character escape|half of a character"
    ):  # as libyaml is there
        load_config(write_yaml(tmp_path, 'data: {train: ["x\\ud800"]}'))
    with pytest.raises(InputError, match=r"'data' holds \\ud800, half of a character"):
        build_config({"data": {"train": ["x\ud800"]}})
    name = os.fsdecode(b"caf\xe9.txt")  # a file name that is no UTF-8
    assert build_config({"data": {"train": name}}).data.train == name
