from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console

import maskwright.recipes
from maskwright.cli.train import load_settings
from maskwright.config import Config
from maskwright.recipes import HEADER_FIELDS, PACKAGED_FOLDER, Recipe, list_recipes
from maskwright.runs.model import _build_encoder
from maskwright.runs.pretrain import pretrain
from maskwright.text.tokenizer.tokenizer import Tokenizer

Command = Callable[..., Any]
PROJECT = Path(__file__).parents[2]
RECIPES = {recipe.name: recipe for recipe in list_recipes()}
SHAPES = {
    "quickstart": (2, 128),
    "bert_standard": (12, 768),
    "classic_bert_base": (12, 768),
    "modern_small": (6, 512),
    "four_minutes": (8, 640),
    "ten_minutes": (12, 768),
    "modern_base": (22, 768),
    "modern_large": (28, 1024),
    "low_resource": (4, 128),
    "small_corpus": (4, 128),
    "electra": (12, 256),
    "hybrid": (6, 512),
    "multilingual": (4, 128),
    "protein_small": (3, 128),
    "diffusion": (3, 128),
    "writer": (8, 640),
}
"""Layers and width of the recipes that begin from random weights."""
CONTINUING = {"classic_bert_base_512", "long_context", "domain_adaptation", "continued_pretraining"}
TWO_STEPS = [
    "data.max_length=32",
    "data.validation_share=0.2",
    "training.max_steps=2",
    "training.max_seconds=null",
    "training.batch_tokens=256",
    "training.batch_tokens_start=null",
    "training.micro_batch_tokens=null",
    "training.device=cpu",
]
TWO_LAYERS = [
    "model.num_hidden_layers=2",
    "model.hidden_size=32",
    "model.num_attention_heads=2",
    "model.intermediate_size=64",
    "model.max_position_embeddings=64",
    "tokenizer.path=null",
    "tokenizer.vocab_size=300",
]
each_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


def test_these_are_the_recipes() -> None:
    assert set(RECIPES) == SHAPES.keys() | CONTINUING


@each_recipe
def test_the_header_says_everything(recipe: Recipe) -> None:
    assert tuple(recipe.header) == HEADER_FIELDS
    assert all(recipe.header.values())


@each_recipe
def test_the_command_in_the_header_is_one(recipe: Recipe) -> None:
    words = shlex.split(recipe.header["Command"])
    settings = words[words.index("train") + 1 :]
    assert settings[0] == recipe.name
    config = load_settings(settings)
    assert config.model.from_ is None or recipe.name in CONTINUING


@each_recipe
def test_the_table_of_the_documentation_repeats_the_header(recipe: Recipe) -> None:
    link = f"[`{recipe.name}`](../recipes/{recipe.name}.yaml)"
    row = f"| {link} | {recipe.purpose} | {recipe.header['Run']} | {recipe.header['Reached']} |"
    assert row in (PROJECT / "docs" / "recipes.md").read_text(encoding="utf-8").splitlines()


def test_the_quickstart_is_the_built_in_one() -> None:
    values = yaml.safe_load(RECIPES["quickstart"].path.read_text(encoding="utf-8"))
    assert load_settings([]) == load_settings(["quickstart"]) == Config(**values, preset="quickstart")


@each_recipe
def test_a_recipe_is_one_thing_by_its_name_as_a_preset_and_as_a_file(recipe: Recipe) -> None:
    named, asked, read = (load_settings([word]) for word in (recipe.name, f"preset={recipe.name}", str(recipe.path)))
    assert named == asked == read.model_copy(update={"preset": recipe.name})


@pytest.mark.parametrize("name", SHAPES)
def test_the_model_has_its_published_size(name: str, tokenizer: Tokenizer) -> None:
    with torch.device("meta"):
        encoder = _build_encoder(load_settings([name]), tokenizer)
    assert (encoder.config.num_hidden_layers, encoder.config.hidden_size) == SHAPES[name]


@pytest.fixture
def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing curves takes longer than the rest of a tiny run."""
    monkeypatch.setattr("maskwright.runs.pretrain.write_report", lambda *_: [])


def run_two_steps(name: str, corpus: Path, out: Path, *others: str) -> Path:
    words = [name, f"data.train={corpus}", f"run.out={out}", *TWO_STEPS, *others]
    run = pretrain(load_settings(words), console=Console(quiet=True))
    assert run.figures["steps"] == 2
    assert torch.isfinite(torch.tensor(run.figures["loss"]))
    return run.folder.path


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("name", ["low_resource", "electra", "hybrid", "multilingual", "protein_small"])
def test_two_steps_of_a_recipe_work(name: str, corpus_file: Path, tmp_path: Path) -> None:
    run = run_two_steps(name, corpus_file, tmp_path, *TWO_LAYERS)
    assert (run / "model" / "model.safetensors").is_file()


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("name", ["domain_adaptation", "continued_pretraining"])
def test_two_steps_from_a_trained_model_work(name: str, corpus_file: Path, trained_run: Path, tmp_path: Path) -> None:
    words = [f"model.from={trained_run}"]
    if name == "domain_adaptation":
        words.append(f"forgetting.general={corpus_file}")  # the documentation of Python takes long to read
    run = run_two_steps(name, corpus_file, tmp_path, *words)
    assert (run / "forgetting.json").is_file() == (name == "domain_adaptation")


@pytest.mark.usefixtures("without_report")
def test_both_parts_of_the_classic_follow_one_another(corpus_file: Path, tmp_path: Path) -> None:
    first = run_two_steps("classic_bert_base", corpus_file, tmp_path, *TWO_LAYERS)
    second = run_two_steps("classic_bert_base_512", corpus_file, tmp_path, f"model.from={first}", "data.max_length=64")
    assert json.loads((second / "model" / "config.json").read_text())["max_position_embeddings"] == 64


@pytest.mark.usefixtures("without_report")
def test_a_modern_base_becomes_longer(corpus_file: Path, tmp_path: Path) -> None:
    short = run_two_steps("modern_base", corpus_file, tmp_path, *TWO_LAYERS, "model.max_position_embeddings=32")
    longer = run_two_steps(
        "long_context",
        corpus_file,
        tmp_path,
        f"model.from={short}",
        "model.max_position_embeddings=128",
        "data.max_length=128",
    )
    config = json.loads((longer / "model" / "config.json").read_text())
    assert (config["max_position_embeddings"], config["global_rope_theta"]) == (128, 160_000.0)


def test_a_recipe_that_the_device_cannot_run_is_refused_before_anything_is_written(
    command: Command, corpus_file: Path, tmp_path: Path
) -> None:
    words = [f"data.train={corpus_file}", "tokenizer.path=null", "training.device=cpu", f"run.out={tmp_path}/runs"]
    command("train", "four_minutes", *words).assert_refused("training.precision is fp8, which", "use auto")
    assert not (tmp_path / "runs").exists()


def test_the_list_names_every_recipe_with_its_purpose(command: Command) -> None:
    result = command("train", "--list")
    assert (result.code, result.err) == (0, "")
    shown = result.out.splitlines()
    for recipe in RECIPES.values():
        assert any(line.split(maxsplit=1) == [recipe.name, recipe.purpose] for line in shown)


class TestNames:
    def test_a_recipe_is_found_from_any_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        config = load_settings(["modern_small", "training.max_seconds=60"])
        assert (config.run.name, config.training.max_seconds) == ("modern-small", 60)

    def test_a_file_comes_before_a_recipe(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("modern_small").write_text("run: {name: mine}\n")
        assert load_settings(["modern_small"]).run.name == "mine"

    @pytest.mark.parametrize("name", ["train", "doctor"])
    def test_a_mistyped_name_is_answered_with_the_nearest(self, command: Command, name: str) -> None:
        command(name, "modern_smal").assert_refused(
            "no configuration file or recipe 'modern_smal'; did you mean 'modern_small'?"
        )

    def test_a_name_like_no_recipe_is_answered_with_all(self, command: Command) -> None:
        command("train", "zzz", "training.epochs=1").assert_refused("no configuration file or recipe 'zzz'", *RECIPES)

    def test_without_words_it_is_the_quickstart(self) -> None:
        assert load_settings(None) == Config.from_preset("quickstart")


class TestInstalled:
    def test_the_wheel_carries_the_recipes_where_they_are_looked_for(self) -> None:
        project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
        wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
        assert wheel["force-include"] == {"recipes": f"maskwright/{PACKAGED_FOLDER}"}
        assert {path.stem for path in (PROJECT / "recipes").glob("*.yaml")} == set(RECIPES)

    def test_the_packaged_folder_is_taken(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(maskwright.recipes, "_PACKAGE", tmp_path)
        (tmp_path / PACKAGED_FOLDER).mkdir()
        (tmp_path / PACKAGED_FOLDER / "mine.yaml").write_text("# For: a test\n#   of mine\n# More: nothing\nrun: {}\n")
        assert [(recipe.name, recipe.header) for recipe in list_recipes()] == [("mine", {"For": "a test of mine"})]
