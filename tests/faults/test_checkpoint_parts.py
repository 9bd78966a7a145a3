"""Checkpoints that two processes write, each the rows that it has."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from part_jobs import SAVED_AT, STOPPED_AT, build_trainer, fit
from prestarted import Prestarted
from rank_jobs import build_loader
from safetensors.torch import load_file

from maskwright.errors import InputError
from maskwright.models.files.model_folder import read_shapes, read_weights
from maskwright.models.files.tensor_parts import StoredTensors, list_part_files
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.runs.run_store import RunStore, fetch_checkpoint
from maskwright.stores.addresses import parse_store
from maskwright.training.checkpoint_parts import prepare_parts
from maskwright.training.checkpoints import check_whole, find_resumable, read_checkpoint
from maskwright.training.distributed.world import World
from tolerances import assert_rounded, count_terms

_FILES = ("model/model", "optimizer", "average")


@pytest.fixture(scope="module")
def folder(prestarted: Prestarted, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    arguments = {"folder": str(folder)}
    for rank in prestarted.start_ranks("part_jobs:save_and_resume", arguments, folder / "said", 2):
        assert rank.wait(200.0) == 0, rank.text()
    return folder


def find_checkpoint(folder: Path, kind: str) -> Path:
    return folder / kind / f"step-{SAVED_AT}"


def assert_same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different


def test_every_process_writes_what_it_has(folder: Path) -> None:
    parts, gathered = find_checkpoint(folder, "parts"), find_checkpoint(folder, "gathered")
    files = {file.relative_to(parts).as_posix() for file in parts.rglob("*.safetensors")}
    assert files == {f"{name}.part-{rank}-of-2.safetensors" for name in _FILES for rank in (0, 1)}
    for name in _FILES:
        sizes = [
            sum(tensor.nbytes for tensor in load_file(parts / file).values())
            for file in sorted(files)
            if file.startswith(f"{name}.")
        ]
        whole = sum(tensor.nbytes for tensor in load_file(gathered / f"{name}.safetensors").values())
        assert sum(sizes) == whole
        assert max(sizes) < 0.6 * whole


def test_the_parts_are_the_gathered_checkpoint_bit_for_bit(folder: Path) -> None:
    parts, gathered = find_checkpoint(folder, "parts"), find_checkpoint(folder, "gathered")
    for name in _FILES:
        assert_same_bits(
            dict(StoredTensors(parts / f"{name}.safetensors")), load_file(gathered / f"{name}.safetensors")
        )
    assert {name: info.shape for name, info in read_shapes(parts / "model").items()} == {
        name: info.shape for name, info in read_shapes(gathered / "model").items()
    }
    assert_same_bits(read_weights(parts / "model"), read_weights(gathered / "model"))
    assert (parts / "state.json").read_bytes() == (gathered / "state.json").read_bytes()
    assert (parts / "model/config.json").read_bytes() == (gathered / "model/config.json").read_bytes()


def test_machines_without_a_disk_in_common_gather_it(folder: Path) -> None:
    whole, gathered = find_checkpoint(folder, "machine-0"), find_checkpoint(folder, "gathered")
    names = {file.relative_to(gathered).as_posix() for file in gathered.rglob("*") if file.is_file()}
    assert {file.relative_to(whole).as_posix() for file in whole.rglob("*") if file.is_file()} == names
    assert (whole / "checksums.json").read_bytes() == (gathered / "checksums.json").read_bytes()
    assert not (folder / "machine-1").exists()


def test_two_processes_go_on_as_if_they_had_not_stopped(folder: Path) -> None:
    assert_same_bits(load_file(folder / "unbroken.safetensors"), load_file(folder / "resumed.safetensors"))


def test_one_process_goes_on_as_from_the_gathered_one(folder: Path, tmp_path: Path) -> None:
    found = {}
    for kind in ("parts", "gathered"):
        trainer = build_trainer()
        trainer.load_checkpoint(find_checkpoint(folder, kind))
        assert trainer.state.step == SAVED_AT
        fit(trainer, [], tmp_path / f"{kind}.safetensors")
        assert trainer.state.step == STOPPED_AT
        found[kind] = load_file(tmp_path / f"{kind}.safetensors")
    assert_same_bits(found["parts"], found["gathered"])


@pytest.mark.slow
def test_three_processes_go_on_with_the_parts_of_two(prestarted: Prestarted, folder: Path, tmp_path: Path) -> None:
    arguments = {"folder": str(tmp_path), "checkpoint": str(find_checkpoint(folder, "parts")), "weights": "three"}
    for rank in prestarted.start_ranks("part_jobs:resume", arguments, tmp_path / "said", 3):
        assert rank.wait(200.0) == 0, rank.text()
    three, two = load_file(tmp_path / "three"), load_file(folder / "unbroken.safetensors")
    assert_rounded(three, two, STOPPED_AT * 2 * count_terms(num_layers=2, width=16, length=16))


def test_the_model_in_parts_is_used_like_any_other_and_saved_whole(folder: Path, tmp_path: Path) -> None:
    models = [MaskedLanguageModel.from_pretrained(find_checkpoint(folder, kind)) for kind in ("parts", "gathered")]
    batch = next(iter(build_loader(4, 2).epoch(0)))
    parts, gathered = (model.eval()(batch).logits for model in models)
    assert torch.equal(parts, gathered)
    models[0].save_pretrained(tmp_path)
    assert_same_bits(
        load_file(tmp_path / "model.safetensors"),
        load_file(find_checkpoint(folder, "gathered") / "model/model.safetensors"),
    )


def test_rows_are_read_from_the_parts_that_have_them(folder: Path) -> None:
    stored = read_checkpoint(find_checkpoint(folder, "parts")).optimizer
    assert isinstance(stored, StoredTensors)
    name = max(stored, key=lambda name: stored.infos[name].shape)
    height = stored.infos[name].shape[0]
    for first, end in ((0, height), (height // 2 - 1, height // 2 + 1), (0, 0), (height - 1, height)):
        assert torch.equal(stored.read_rows(name, first, end), stored[name][first:end])


@pytest.mark.parametrize("damage", ["remove", "flip"])
def test_a_checkpoint_without_one_of_its_parts_is_none(folder: Path, tmp_path: Path, damage: str) -> None:
    copy = tmp_path / "step-3"
    for file in find_checkpoint(folder, "parts").rglob("*"):
        if file.is_file():
            target = copy / file.relative_to(find_checkpoint(folder, "parts"))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    part = copy / "optimizer.part-1-of-2.safetensors"
    assert find_resumable(tmp_path)[0] == copy
    if damage == "remove":
        part.unlink()
        with pytest.raises(InputError, match="does not have all parts of optimizer"):
            list_part_files(copy / "optimizer.safetensors")
    else:
        content = bytearray(part.read_bytes())
        content[-1] ^= 1
        part.write_bytes(content)
    checkpoint, problems = find_resumable(tmp_path)
    assert checkpoint is None
    assert "step-3 is unusable" in problems[0]
    assert "optimizer" in problems[0]


def test_a_store_gives_it_back_part_by_part(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASKWRIGHT_CACHE", str(tmp_path / "cache"))
    parts, url = find_checkpoint(folder, "parts"), parse_store(f"file://{tmp_path / 'store'}") / "run"
    RunStore(url).upload_checkpoint(parts)
    fetched = fetch_checkpoint(url) / "checkpoints" / parts.name
    check_whole(fetched)
    assert_same_bits(dict(read_checkpoint(fetched).optimizer), dict(read_checkpoint(parts).optimizer))


def test_what_an_earlier_attempt_left_is_no_place_for_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prepare_parts(tmp_path, 3, World())
    (tmp_path / ".step-3.tmp" / "optimizer.part-0-of-4.safetensors").write_bytes(b"")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *given, **named: None)  # as of files that another program holds open
        assert not prepare_parts(tmp_path, 3, World())
    assert prepare_parts(tmp_path, 3, World())
    assert not list((tmp_path / ".step-3.tmp").iterdir())


@pytest.mark.parametrize(
    ("is_killed", "rank"),
    [
        pytest.param(True, 1, id="killed"),
        pytest.param(False, 1, marks=pytest.mark.slow, id="full"),
        pytest.param(False, 0, marks=pytest.mark.slow, id="full-main"),
    ],
)
def test_a_process_that_fails_while_writing_leaves_the_checkpoint_before(
    prestarted: Prestarted, tmp_path: Path, is_killed: bool, rank: int
) -> None:
    arguments = {"folder": str(tmp_path), "is_killed": is_killed, "rank": rank}
    ranks = prestarted.start_ranks("part_jobs:fail_while_writing", arguments, tmp_path / "said", 2)
    codes = [rank.wait(200.0) for rank in ranks]
    checkpoint, problems = find_resumable(tmp_path)
    assert checkpoint == tmp_path / f"step-{SAVED_AT - 1}"
    assert problems == []
    if is_killed:
        assert codes == [1, -9], [rank.text() for rank in ranks]
        assert "rank 1" in ranks[0].text()
    else:
        assert codes == [0, 0], [rank.text() for rank in ranks]
        warning = (tmp_path / "warnings-0.txt").read_text()
        assert f"cannot write {tmp_path / f'step-{SAVED_AT}'}: rank {rank}: " in warning
        assert "No space left" in warning
        assert not list(tmp_path.glob(".step-*"))
    assert read_checkpoint(checkpoint).state.step == SAVED_AT - 1
