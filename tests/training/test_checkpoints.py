from __future__ import annotations

import hashlib
import json
import re

import pytest
import torch

import maskwright.training.checkpoints as checkpoints_module
from maskwright.errors import InputError, RunError
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.sections.training import OptimizerConfig, TrainingConfig
from maskwright.training.checkpoints import Retention, find_best, find_resumable
from maskwright.training.trainer import Trainer


@pytest.fixture
def trainer(build_model, padded_batches) -> Trainer:
    trainer = Trainer(build_model(), OptimizerConfig(learning_rate=1e-2), training=TrainingConfig(device="cpu"))
    trainer.fit(padded_batches[:2], epochs=1)
    return trainer


def save_at(trainer, folder, step, **arguments):
    trainer.state.step = step
    return trainer.save_checkpoint(folder, **arguments)


def test_holds_safetensors_and_json_alone(trainer, tmp_path):
    checkpoint = trainer.save_checkpoint(tmp_path)
    assert checkpoint == tmp_path / "step-2"
    files = sorted(str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*") if path.is_file())
    assert files == [
        "checksums.json",
        "model/config.json",
        "model/model.safetensors",
        "optimizer.safetensors",
        "state.json",
    ]
    assert json.loads((checkpoint / "state.json").read_text())["state"]["step"] == 2


def test_its_model_can_be_used(trainer, tmp_path, padded_batches):
    checkpoint = trainer.save_checkpoint(tmp_path)
    loaded = MaskedLanguageModel.from_pretrained(checkpoint)
    trainer.model.eval()
    assert torch.equal(loaded(padded_batches[0]).logits, trainer.model(padded_batches[0]).logits)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("killed")])
def test_failing_save_leaves_the_one_before(trainer, tmp_path, monkeypatch, error):
    first = save_at(trainer, tmp_path, 10)

    def write_half(path, tensors, **_):
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(checkpoints_module, "write_safetensors", write_half)
    for step in (10, 20):  # over the same name, and under a new one
        with pytest.raises(RunError if isinstance(error, OSError) else RuntimeError, match=r"No space|killed"):
            save_at(trainer, tmp_path, step)
    assert [path.name for path in tmp_path.iterdir()] == ["step-10"]
    assert find_resumable(tmp_path) == (first, [])


@pytest.mark.parametrize(
    "name", ["model/model.safetensors", "optimizer.safetensors", "state.json", "model/config.json"]
)
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_damaged_checkpoint_is_passed_over(trainer, tmp_path, name, damage):
    good = save_at(trainer, tmp_path, 10)
    bad = save_at(trainer, tmp_path, 20)
    file = bad / name
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    elif damage == "truncate":
        file.write_bytes(data[: len(data) // 2])
    else:
        file.unlink()
    found, problems = find_resumable(tmp_path)
    assert found == good
    assert len(problems) == 1
    assert "step-20" in problems[0]
    assert file.name in problems[0]
    with pytest.raises(InputError, match=file.name.replace(".", r"\.")):
        trainer.load_checkpoint(bad)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"stat', "{}"])
def test_damaged_list_of_checksums_is_passed_over(trainer, tmp_path, text):
    good, bad = save_at(trainer, tmp_path, 10), save_at(trainer, tmp_path, 20)
    (bad / "checksums.json").write_text(text)
    found, problems = find_resumable(tmp_path)
    assert found == good
    assert "checksums.json" in problems[0]


@pytest.mark.parametrize(
    "name", ["model/model.safetensors", "model/config.json", "optimizer.safetensors", "state.json"]
)
def test_a_file_that_must_be_there_needs_a_checksum(trainer, tmp_path, name):
    checkpoint = trainer.save_checkpoint(tmp_path)
    file = checkpoint / "checksums.json"
    checksums = json.loads(file.read_text())
    del checksums[name]
    file.write_text(json.dumps(checksums))
    with pytest.raises(InputError, match=rf"checksums\.json has no checksum of {name}"):
        trainer.load_checkpoint(checkpoint)
    (checkpoint / name).unlink()
    with pytest.raises(InputError, match=rf"{name} is missing"):
        trainer.load_checkpoint(checkpoint)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"state": {"step": 10**30}, "history": {}}, r"is damaged: it is that of step 10+$"),
        ({"state": {}, "history": {}}, "does not say where the run stood"),
        ({"state": {"step": 2}}, "does not say where the run stood"),
        ({}, "does not say where the run stood"),
    ],
)
def test_a_state_that_is_none_is_passed_over(trainer, tmp_path, change, complaint):
    good, bad = save_at(trainer, tmp_path, 10), save_at(trainer, tmp_path, 20)
    (bad / "state.json").write_text(json.dumps(change))
    checksums = json.loads((bad / "checksums.json").read_text())
    checksums["state.json"] = hashlib.sha256((bad / "state.json").read_bytes()).hexdigest()
    (bad / "checksums.json").write_text(json.dumps(checksums))
    found, problems = find_resumable(tmp_path)
    assert found == good
    assert re.search(rf"step-20 is unusable: .*state\.json {complaint}", problems[0])


@pytest.mark.parametrize("name", ["x" * 5000, "../step-10/state.json", "a\0b"])
def test_a_list_that_names_what_is_no_file_of_the_checkpoint_is_damage(trainer, tmp_path, name):
    good, bad = save_at(trainer, tmp_path, 10), save_at(trainer, tmp_path, 20)
    file = bad / "checksums.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), name: "0" * 64}))
    found, problems = find_resumable(tmp_path)
    assert found == good
    assert "is missing" in problems[0]


def test_losses_below_zero_are_no_damage(trainer, tmp_path):
    trainer.state.best_loss, trainer.state.first_loss = -2.0, -0.5
    checkpoint = trainer.save_checkpoint(tmp_path)
    assert find_resumable(tmp_path) == (checkpoint, [])


def test_a_damaged_name_of_the_best_is_said(trainer, tmp_path):
    (tmp_path / "best.json").write_text("{}")
    with pytest.raises(InputError, match=r"best\.json names no step; delete it"):
        find_best(tmp_path)


def test_no_usable_checkpoint(trainer, tmp_path):
    assert find_resumable(tmp_path / "nowhere") == (None, [])
    (save_at(trainer, tmp_path, 10) / "state.json").unlink()
    found, problems = find_resumable(tmp_path)
    assert found is None
    assert len(problems) == 1


def test_keeps_the_newest(trainer, tmp_path):
    for step in (8, 9, 10, 11):  # by number, not by name
        save_at(trainer, tmp_path, step, retention=Retention(last=2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-11"]


def test_the_one_just_written_is_kept_beside_a_damaged_newer_one(trainer, tmp_path):
    (save_at(trainer, tmp_path, 20) / "state.json").write_text("{")
    written = save_at(trainer, tmp_path, 12, retention=Retention(last=1))
    assert find_resumable(tmp_path)[0] == written


def test_saving_twice_replaces(trainer, tmp_path, build_model):
    save_at(trainer, tmp_path, 10)
    with torch.no_grad():
        trainer.model.mlm_dense.bias.fill_(7.0)
    checkpoint = save_at(trainer, tmp_path, 10)
    assert [path.name for path in tmp_path.iterdir()] == ["step-10"]
    other = Trainer(build_model(), training=TrainingConfig(device="cpu"))
    other.load_checkpoint(checkpoint)
    assert (other.model.mlm_dense.bias == 7.0).all()


def test_checkpoint_of_another_model_is_refused(trainer, tmp_path, build_model):
    checkpoint = trainer.save_checkpoint(tmp_path)
    other = Trainer(build_model(tie_word_embeddings=False), training=TrainingConfig(device="cpu"))
    with pytest.raises(InputError, match="lacks"):
        other.load_checkpoint(checkpoint)


def test_a_list_of_checksums_that_lost_one_is_damage(trainer, tmp_path, tokenizer):
    """Whatever it no longer covers: not only what training goes on from, but the tokenizer as well."""
    checkpoint = save_at(trainer, tmp_path, 10, tokenizer=tokenizer)
    file = checkpoint / "checksums.json"
    whole = json.loads(file.read_text())
    assert {"model/tokenizer.json", "model/config.json", "state.json"} <= whole.keys()
    for name in whole:
        file.write_text(json.dumps({other: value for other, value in whole.items() if other != name}))
        found, (problem,) = find_resumable(tmp_path)
        assert found is None
        assert problem.endswith(f"checksums.json has no checksum of {name}")
    file.write_text(json.dumps(whole))
    (checkpoint / ".DS_Store").write_bytes(b"of another program")
    assert find_resumable(tmp_path) == (checkpoint, [])


def test_the_best_checkpoint_is_not_named_by_what_is_no_step(tmp_path):
    for text in ("{}", '{"step": "x"}', "[" * 100_000):
        (tmp_path / "best.json").write_text(text)
        with pytest.raises(InputError, match=r"best\.json (names no step; delete it|is not valid JSON)"):
            find_best(tmp_path)
