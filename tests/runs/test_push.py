"""`--push-to-hub`: what arrives at a server that speaks the hub's protocol, and what stays where it refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_stand_in import TOKEN, HubStandIn, serving_hub

import maskwright as mw
from maskwright.errors import InputError
from maskwright.runs.hub import PushError
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tiny_bert import build_tiny_bert

Command = Callable[..., Any]
REPO = "me/tiny"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubStandIn]:
    """As HF_ENDPOINT, HF_TOKEN and HF_HUB_DISABLE_XET set it, which the library reads when it is imported."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    with serving_hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        yield server


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, whose neighbours are free."""
    return Path(shutil.copytree(trained_run, tmp_path / "runs" / "tiny"))


@pytest.fixture
def encoder(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    build_tiny_bert(tokenizer, hidden_size=16, num_hidden_layers=1, max_position_embeddings=32).save_pretrained(
        tmp_path / "model"
    )
    tokenizer.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def finetuning(encoder: Path, tmp_path: Path) -> list[object]:
    """A command that takes a second."""
    lines = [f"the cat {verb} the house\t{label}" for verb, label in (("sees", 0), ("likes", 1))] * 8
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + "\n".join(lines) + "\n", encoding="utf-8")
    files = ["--train", tmp_path / "train.tsv", "--validation", tmp_path / "train.tsv", "--out", tmp_path / "runs/task"]
    return ["finetune", "classification", "training.device=cpu", "--model", encoder, *files, "--epochs", 1]


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_export_arrives_whole_with_its_card(command: Command, hub: HubStandIn, run: Path, corpus_file: Path) -> None:
    result = command("export", run, "--text", corpus_file, "--push-to-hub", REPO, "--private")
    assert result.code == 0, result.err
    assert f"{hub.url}/{REPO}" in result.out
    assert hub.private == {REPO: True}
    assert hub.repositories[REPO] == read_files(run.with_name("tiny-hf"))
    assert hub.repositories[REPO]["README.md"].startswith(b"---\n")
    assert any(request.startswith("PUT /store/") for request in hub.requests)


def test_a_repository_that_is_there_gets_a_new_commit_and_stays_as_public_as_it_was(
    command: Command, hub: HubStandIn, run: Path, corpus_file: Path
) -> None:
    hub.repositories[REPO], hub.private[REPO] = {"old.txt": b"kept"}, False
    assert mw.export(run, text=corpus_file, push_to_hub=REPO).is_dir()
    assert hub.repositories[REPO].keys() >= {"old.txt", "model.safetensors"}
    assert hub.private == {REPO: False}


@pytest.mark.parametrize(
    ("refused", "status", "told"),
    [
        ("/api/repos/create", 401, "hf auth login"),
        pytest.param("/api/repos/create", 403, "may not write there", marks=pytest.mark.slow),
        ("/preupload/", 403, "may not write there"),
        pytest.param("/api/repos/create", 500, "500", marks=pytest.mark.slow),
        pytest.param("/info/lfs/objects/batch", 500, "500", marks=pytest.mark.slow),
        pytest.param("/store/", 403, "may not write there", marks=pytest.mark.slow),
        ("/commit/", 500, "500"),
    ],
)
def test_a_refused_push_keeps_the_export_and_says_how_to_go_on(
    command: Command, hub: HubStandIn, run: Path, corpus_file: Path, refused: str, status: int, told: str
) -> None:
    hub.refusals[refused] = status
    result = command("export", run, "--text", corpus_file, "--push-to-hub", REPO, "--private")
    folder = run.with_name("tiny-hf")
    assert result.code == 1
    assert "error: " in result.err.splitlines()[-1]
    assert told in result.err
    assert "is finished, but not on the hub" in result.err
    assert f"hf upload {REPO} {os.path.relpath(folder)} . --private" in result.err
    assert mw.fill(folder, "the cat [MASK] the green house.")[0]
    assert not hub.repositories.get(REPO)


@pytest.mark.slow  # the command that is named is seen in the test above
def test_the_command_that_an_error_names_pushes_the_folder(
    hub: HubStandIn, run: Path, corpus_file: Path, tmp_path: Path
) -> None:
    """Both in processes of their own, which read the environment as users set it."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "HF_HOME": str(tmp_path / "home"),
    }
    words = [sys.executable, "-m", "maskwright", "export", str(run), "--text", str(corpus_file), "--push-to-hub", REPO]
    hub.refusals["/commit/"] = 403
    refused = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert refused.returncode == 1, refused.stderr
    hub.refusals.clear()
    retry = refused.stderr.strip().rpartition("push it later: ")[2].split()
    assert retry[0] == "hf"
    program = Path(sys.executable).with_name("hf")
    done = subprocess.run([str(program), *retry[1:]], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert hub.repositories[REPO] == read_files(run.with_name("tiny-hf"))


@pytest.mark.slow  # the library tries again for seconds; refusals are tested above
def test_a_hub_that_does_not_answer_keeps_the_work_of_a_fine_tuning(
    command: Command, hub: HubStandIn, finetuning: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # discard, where nobody listens
    result = command(*finetuning, "--push-to-hub", REPO)
    assert result.code == 1
    assert "refused" in result.err
    assert f"hf upload {REPO}" in result.err
    assert "held-out examples" in result.out  # the scores are printed nevertheless
    assert (tmp_path / "runs" / "task" / "final.json").is_file()


@pytest.mark.slow  # that of similarity goes the same way
def test_a_fine_tuned_model_is_pushed_as_its_export_with_a_card(
    command: Command, hub: HubStandIn, finetuning: list[object], tmp_path: Path
) -> None:
    result = command(*finetuning, "--push-to-hub", REPO, "--seeds", 2)
    assert result.code == 0, result.err
    summary = json.loads((tmp_path / "runs" / "task" / "seeds.json").read_text(encoding="utf-8"))
    best = summary["best"]
    assert f"the model of {best} is pushed, the best of 2 by {summary['metric']}" in result.out
    files = hub.repositories[REPO]
    assert b"text-classification" in files["README.md"]
    assert files == read_files(tmp_path / "runs" / "task" / f"{best}-hf")
    assert (
        files["model.safetensors"] == (tmp_path / "runs" / "task" / best / "model" / "model.safetensors").read_bytes()
    )


def test_a_model_for_similarity_is_pushed_as_its_export_to_sentence_transformers(
    hub: HubStandIn, encoder: Path, tmp_path: Path
) -> None:
    pairs = [("the cat sees a road", "a cat sees the road"), ("it rains", "every student likes it")] * 4
    finished = mw.finetune(
        "similarity",
        tmp_path / "run",
        model=encoder,
        train=pairs,
        validation=pairs,
        epochs=1,
        settings={"training.device": "cpu"},
        push_to_hub=REPO,
    )
    files = hub.repositories[REPO]
    assert files == read_files(finished.runs[0].path.with_name("run-sentence-transformers"))
    assert {"modules.json", "1_Pooling/config.json"} <= files.keys()
    assert b"sentence-similarity" in files["README.md"]


def test_an_adapted_encoder_is_pushed_and_a_refusal_has_the_result(
    hub: HubStandIn, run: Path, corpus_file: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {
        "general": corpus_file,
        "max_forgetting": 100.0,
        "settings": {"training.max_steps": 2, "training.device": "cpu", "training.batch_tokens": 256},
        "push_to_hub": REPO,
    }
    adapted = mw.adapt(run, corpus_file, out=tmp_path / "adapted", **options)
    assert adapted.exported is not None
    assert hub.repositories[REPO] == read_files(adapted.exported)
    hub.refusals["/api/repos/create"] = 403
    with pytest.raises(PushError, match="may not write there") as caught:
        mw.adapt(run, corpus_file, out=tmp_path / "again", **options)
    assert caught.value.result.exported.is_dir()


def test_what_cannot_be_pushed_is_said_before_the_work(
    command: Command, hub: HubStandIn, finetuning: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(*finetuning, "--private").assert_refused("private", "--push-to-hub")
    command(*finetuning, "--push-to-hub", "no such/name!").assert_refused("no such/name!", "user/model")
    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        command(*finetuning, "--push-to-hub", REPO).assert_refused("HF_HUB_OFFLINE")
    monkeypatch.delenv("HF_TOKEN")
    command(*finetuning, "--push-to-hub", REPO).assert_refused("hf auth login", "HF_TOKEN")
    with pytest.raises(InputError, match="hf auth login"):
        mw.adapt("model", "text.txt", push_to_hub=REPO)
    assert not (tmp_path / "runs").exists()
    assert hub.requests == []
