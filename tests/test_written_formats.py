"""What was written before folders had a format version loads; what a later version writes is refused in one sentence.

`written_before/` holds a checkpoint and models as the last version without a format version wrote them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForMaskedLM

from maskwright.data.loader import PackedLoader
from maskwright.data.store import TokenStore
from maskwright.errors import InputError, NewerFormatError
from maskwright.models.bert import BERT
from maskwright.models.encoder import FAMILIES, PackedEncoder
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.objectives.replaced_tokens import ReplacedTokenDetection
from maskwright.objectives.saving import SavedModel
from maskwright.objectives.sentence_pairs import SentencePairModel
from maskwright.objectives.token_detector import TokenDetector
from maskwright.sections.training import OptimizerConfig, TrainingConfig
from maskwright.tasks.model import TaskModel
from maskwright.training.checkpoints import find_resumable, read_checkpoint
from maskwright.training.trainer import Trainer

BEFORE = Path(__file__).parent / "written_before"
CHECKPOINT = BEFORE / "checkpoint" / "step-2"
MODELS: dict[str, Callable[[Path], SavedModel]] = {
    "checkpoint/step-2/model": MaskedLanguageModel.from_pretrained,
    "replaced_tokens": ReplacedTokenDetection.from_pretrained,
    "sentence_pairs": SentencePairModel.from_pretrained,
    "classification": TaskModel.from_pretrained,
}
NEWER = r"has format version 2, this maskwright reads up to 1; a newer version of maskwright wrote it, so use that one$"
UNKNOWN = "has the field 'sparkle', which this version does not know; a newer version of maskwright wrote it"


def read_json(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text(encoding="utf-8")))


def change_config(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    config = read_json(folder / "config.json")
    change(config["maskwright"])
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def change_state(checkpoint: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """With the checksum that the changed file has."""
    values, checksums = read_json(checkpoint / "state.json"), read_json(checkpoint / "checksums.json")
    change(values)
    (checkpoint / "state.json").write_text(json.dumps(values), encoding="utf-8")
    checksums["state.json"] = hashlib.sha256((checkpoint / "state.json").read_bytes()).hexdigest()
    (checkpoint / "checksums.json").write_text(json.dumps(checksums), encoding="utf-8")


def build_trainer(model: MaskedLanguageModel, max_steps: int) -> Trainer:
    training = TrainingConfig(max_steps=max_steps, device="cpu", precision="fp32")
    return Trainer(model, OptimizerConfig(learning_rate=1e-3), training=training)


def build_loader() -> PackedLoader:
    store = TokenStore.from_documents([list(range(5, 5 + length)) for length in (4, 5, 6) * 4], 24)
    ids = {"cls_token_id": 2, "sep_token_id": 3, "pad_token_id": 0}
    return PackedLoader(store, **ids, row_length=8, rows_per_batch=4)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CHECKPOINT, tmp_path / "step-2"))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_without_a_version_loads_and_is_written_with_one(name: str, tmp_path: Path) -> None:
    assert "format_version" not in read_json(BEFORE / name / "config.json")["maskwright"]
    MODELS[name](BEFORE / name).save_pretrained(tmp_path)
    written, before = read_json(tmp_path / "config.json"), read_json(BEFORE / name / "config.json")
    assert written["maskwright"].pop("format_version") == 1
    stated = FAMILIES[before["model_type"].removeprefix("maskwright_")].family.stated_settings  # newer than these files
    assert written == {**stated, **before}
    files = sorted(file.name for file in (BEFORE / name).glob("*.safetensors"))
    assert files == sorted(file.name for file in tmp_path.glob("*.safetensors"))
    for file in files:
        expected, found = load_file(BEFORE / name / file), load_file(tmp_path / file)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[weight], tensor) for weight, tensor in expected.items())


def test_a_run_goes_on_from_a_checkpoint_without_a_version(checkpoint: Path, tmp_path: Path) -> None:
    model = MaskedLanguageModel.from_pretrained(checkpoint)
    trainer = build_trainer(model.train(), max_steps=4)
    trainer.load_checkpoint(checkpoint)
    assert trainer.state.step == 2
    first_moments = [name for name in trainer.optimizers.state_tensors() if "exp_avg" in name]
    stored = load_file(checkpoint / "optimizer.safetensors")
    assert first_moments
    assert all(torch.equal(trainer.optimizers.state_tensors()[name], stored[name]) for name in first_moments)
    trainer.fit(build_loader(), epochs=9)
    again = trainer.save_checkpoint(tmp_path / "again")
    assert read_json(again / "state.json")["format_version"] == 1
    assert read_checkpoint(again).state.step == 4


def test_hugging_face_tools_read_a_folder_with_a_version(tmp_path: Path) -> None:
    model = MaskedLanguageModel.from_pretrained(CHECKPOINT)
    model.save_pretrained(tmp_path)
    assert read_json(tmp_path / "config.json")["maskwright"]["format_version"] == 1
    assert AutoConfig.from_pretrained(tmp_path).hidden_size == 8
    theirs = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(theirs.get_input_embeddings().weight, model.encoder.get_input_embeddings().weight)


def test_an_encoder_and_a_detector_alone_carry_the_version_too(tmp_path: Path) -> None:
    PackedEncoder.from_pretrained(CHECKPOINT / "model").save_pretrained(tmp_path / "encoder")
    TokenDetector.from_pretrained(BEFORE / "replaced_tokens").save_pretrained(tmp_path / "detector")
    for name in ("encoder", "detector"):
        assert read_json(tmp_path / name / "config.json")["maskwright"]["format_version"] == 1


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_a_later_format_is_refused(name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BEFORE / name, tmp_path / "model"))
    model = MODELS[name](folder)
    change_config(folder, lambda own: own.update(format_version=2))
    for load in (MODELS[name], BERT.from_pretrained, model.load_weights):
        with pytest.raises(InputError, match=rf"config\.json {NEWER}"):
            load(folder)


@pytest.mark.parametrize("version", [0, -1, True, "1", None, 1.0])
def test_a_version_that_is_none_is_damage(version: Any, checkpoint: Path) -> None:
    change_state(checkpoint, lambda values: values.update(format_version=version))
    with pytest.raises(InputError, match=r"state\.json is damaged: its format version is"):
        read_checkpoint(checkpoint)
    change_config(checkpoint / "model", lambda own: own.update(format_version=version))
    with pytest.raises(InputError, match=r"config\.json is damaged: its format version is"):
        MaskedLanguageModel.from_pretrained(checkpoint)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("checkpoint/step-2/model", None),
        ("checkpoint/step-2/model", "encoder"),
        ("checkpoint/step-2/model", "masked_lm"),
        ("checkpoint/step-2/model", "objective"),
        ("replaced_tokens", "replaced_tokens"),
        ("sentence_pairs", "sentence_pairs"),
        ("classification", "nlp_head"),
    ],
)
def test_an_unknown_field_of_a_model_is_named(name: str, part: str | None, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BEFORE / name, tmp_path / "model"))
    change_config(folder, lambda own: (own if part is None else own.setdefault(part, {})).update(sparkle=1))
    with pytest.raises(InputError, match=rf"config\.json {UNKNOWN}"):
        MODELS[name](folder)


def test_an_objective_of_a_later_version_is_named(checkpoint: Path) -> None:
    change_config(checkpoint / "model", lambda own: own["objective"].update(mode="telepathy"))
    with pytest.raises(InputError, match="the mode 'telepathy', which this version does not know"):
        MaskedLanguageModel.from_pretrained(checkpoint)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.update(format_version=2), NEWER),
        (lambda values: values.update(sparkle=1), UNKNOWN),
        (lambda values: values["state"].update(sparkle=1), UNKNOWN),
    ],
)
def test_a_checkpoint_of_a_later_version_is_refused_and_left_where_it_is(
    change: Callable[[dict[str, Any]], Any], message: str, checkpoint: Path
) -> None:
    change_state(checkpoint, change)
    with pytest.raises(InputError, match=rf"state\.json {message}"):
        read_checkpoint(checkpoint)
    shutil.copytree(BEFORE / "checkpoint" / "step-2", checkpoint.with_name("step-1"))
    with pytest.raises(NewerFormatError, match=rf"step-2/state\.json {message}"):  # its place is not another's
        find_resumable(checkpoint.parent)
