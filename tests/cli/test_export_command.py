"""`maskwright export`: where it writes, what it never replaces, and what it says of the run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import maskwright as mw
from maskwright.models.files.model_folder import write_small_files

Command = Callable[..., Any]
MARKER = "maskwright_export.json"


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, whose neighbours are free."""
    return Path(shutil.copytree(trained_run, tmp_path / "runs" / "tiny"))


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def list_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_is_exported_beside_itself(command: Command, run: Path, corpus_file: Path) -> None:
    result = command("export", run, "--to", "hf", "--text", corpus_file)
    assert (result.code, result.err) == (0, "")
    folder = run.with_name("tiny-hf")
    assert {path.name for path in folder.iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "training_config.yaml",
        MARKER,
    }
    figures = read(folder / MARKER)["figures"]
    assert f"differ by at most {figures['largest_difference']:.2g}" in result.out
    assert Path(result.out.splitlines()[-1].removesuffix(" is ready")).resolve() == folder.resolve()
    assert (folder / "training_config.yaml").read_bytes() == (run / "config.yaml").read_bytes()


def test_the_export_answers_like_the_run(command: Command, run: Path, corpus_file: Path) -> None:
    command("export", run, "--text", corpus_file)
    text = "the cat [MASK] the green house."
    answers = [command("fill", folder, text, "--json").out for folder in (run, run.with_name("tiny-hf"))]
    assert answers[0] == answers[1]


def test_without_text_the_built_in_corpus_is_compared(
    command: Command, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [f"the cat sees house number {number}" for number in range(200)]
    monkeypatch.setattr("maskwright.runs.export.read_python_documentation", lambda: documents)
    result = command("export", run, "--out", tmp_path / "out")
    assert (result.code, result.err) == (0, "")
    assert 0 < read(tmp_path / "out" / MARKER)["figures"]["num_texts"] <= 8


def test_the_card_has_the_figures_of_the_run(command: Command, run: Path, corpus_file: Path) -> None:
    command("export", run, "--text", corpus_file, "--language", "en", "--license", "mit")
    card = (run.with_name("tiny-hf") / "README.md").read_text(encoding="utf-8")
    final = read(run / "final.json")
    front = yaml.safe_load(card.split("---\n")[1])
    assert (front["language"], front["license"]) == ("en", "mit")
    assert f"| loss | {final['loss']:,.4f} |" in card
    assert f"| tokens seen in training | {final['tokens']:,} |" in card
    assert "| optimizer.type |" in card
    assert "sentences.txt" in card


def test_a_checkpoint_gets_its_own_progress_and_no_final_figures(
    command: Command, run: Path, corpus_file: Path
) -> None:
    checkpoint = run / "checkpoints" / "step-10"
    result = command("export", checkpoint, "--text", corpus_file)
    assert (result.code, result.err) == (0, "")
    card = (run.with_name("tiny-step-10-hf") / "README.md").read_text(encoding="utf-8")
    assert "| steps | 10 |" in card
    assert "No figures on held-out text are known" in card
    assert f"{read(run / 'final.json')['loss']:,.4f}" not in card


def test_a_model_folder_without_its_run_is_exported_with_what_is_known(
    command: Command, run: Path, corpus_file: Path, tmp_path: Path
) -> None:
    alone = Path(shutil.copytree(run / "model", tmp_path / "alone"))
    assert command("export", alone, "--text", corpus_file).code == 0
    folder = tmp_path / "alone-hf"
    assert "was not at hand" in (folder / "README.md").read_text(encoding="utf-8")
    assert not (folder / "training_config.yaml").exists()


def test_a_model_of_the_hub_is_exported_into_the_working_folder(
    command: Command, run: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloaded = shutil.copytree(run / "model", tmp_path / "cache")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *arguments, **options: str(downloaded))
    monkeypatch.chdir(tmp_path)
    assert command("export", "someone/their-model", "--text", corpus_file).code == 0
    assert (tmp_path / "their-model-hf" / MARKER).is_file()


def test_sentence_transformers_folder_is_written(command: Command, run: Path, corpus_file: Path) -> None:
    result = command("export", run, "--to", "sentence-transformers", "--text", corpus_file)
    assert (result.code, result.err) == (0, "")
    folder = run.with_name("tiny-sentence-transformers")
    assert (folder / "1_Pooling" / "config.json").is_file()
    assert "library_name: sentence-transformers" in (folder / "README.md").read_text(encoding="utf-8")
    assert "vectors of 8 texts" in result.out


def test_an_encoder_without_a_head_is_enough_for_sentences(
    command: Command, run: Path, corpus_file: Path, tmp_path: Path
) -> None:
    mw.BERT.from_pretrained(run).save_pretrained(tmp_path / "alone")
    mw.load_tokenizer(run / "model").save(tmp_path / "alone")
    result = command("export", tmp_path / "alone", "--to", "sentence-transformers", "--text", corpus_file)
    assert (result.code, result.err) == (0, "")
    again = command("export", tmp_path / "alone", "--to", "hf", "--text", corpus_file)
    assert again.code == 2
    assert "without a masked-language-model head" in again.err


def test_an_export_is_replaced_only_when_asked(command: Command, run: Path, corpus_file: Path) -> None:
    words = ("export", run, "--text", corpus_file)
    assert command(*words).code == 0
    folder = run.with_name("tiny-hf")
    (folder / "notes.txt").write_text("mine")
    before = list_files(folder)
    command(*words).assert_refused("tiny-hf holds an export", "--overwrite")
    assert list_files(folder) == before
    assert command(*words, "--overwrite").code == 0
    assert not (folder / "notes.txt").exists()


@pytest.mark.parametrize("place", ["runs/tiny", "runs/tiny/model", "other"])
def test_a_folder_that_is_no_export_is_never_replaced(
    command: Command, run: Path, corpus_file: Path, tmp_path: Path, place: str
) -> None:
    folder = tmp_path / place
    folder.mkdir(exist_ok=True)
    (folder / "notes.txt").write_text("mine")
    before = list_files(folder)
    command("export", run, "--out", folder, "--text", corpus_file, "--overwrite").assert_refused("is not an export")
    assert list_files(folder) == before


def test_an_empty_folder_is_filled(command: Command, run: Path, corpus_file: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert command("export", run, "--out", tmp_path / "empty", "--text", corpus_file).code == 0
    assert (tmp_path / "empty" / MARKER).is_file()


def test_a_file_in_the_place_of_the_folder_is_refused(
    command: Command, run: Path, corpus_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    command("export", run, "--out", tmp_path / "file", "--text", corpus_file).assert_refused("is a file")


def test_a_failed_comparison_leaves_nothing(
    command: Command, run: Path, corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maskwright.export.comparison._LARGEST_DIFFERENCE", -1.0)
    before = sorted(run.parent.iterdir())
    result = command("export", run, "--text", corpus_file)
    assert result.code == 1
    assert "answers differently" in result.err
    assert sorted(run.parent.iterdir()) == before


def test_a_model_that_the_layout_cannot_hold_is_refused_and_nothing_is_left(
    command: Command, run: Path, corpus_file: Path
) -> None:
    file = run / "model" / "config.json"
    config = read(file)
    config["maskwright"]["masked_lm"]["mlm_head_activation"] = "relu"
    file.write_text(json.dumps(config))
    before = sorted(run.parent.iterdir())
    command("export", run, "--text", corpus_file).assert_refused("cannot hold this model", "is relu")
    assert sorted(run.parent.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--to", "onxn"), "no export to 'onxn'"),
        (("--int8",), "--int8 is for --to onnx"),
        (("--to", "sentence-transformers", "--int8"), "--int8 is for --to onnx"),
        (("--fp16",), "--fp16 is for --to onnx"),
        (("--language", "two words"), "--language is 'two words'"),
    ],
)
def test_options_that_do_not_fit_are_refused(command: Command, run: Path, words: tuple[str, ...], reason: str) -> None:
    command("export", run, *words).assert_refused(reason)


def test_a_missing_model_is_refused(command: Command, tmp_path: Path) -> None:
    command("export", tmp_path / "absent").assert_refused("no model folder at", "absent")


@pytest.mark.parametrize(("int8", "fp16"), [(False, False), (True, False), (False, True)])
def test_onnx_is_written_by_its_own_exporter(
    command: Command, run: Path, corpus_file: Path, monkeypatch: pytest.MonkeyPatch, int8: bool, fp16: bool
) -> None:
    def export_onnx(
        model: Any, tokenizer: Any, folder: Path, *, int8: bool, fp16: bool, texts: Any, say: Any
    ) -> dict[str, Any]:
        (folder / "onnx").mkdir()
        for name in ("model.onnx", "onnx/model.onnx"):
            (folder / name).write_bytes(b"graph")
        write_small_files(folder, {"config.json": model.snapshot(tokenizer).config})
        tokenizer.save(folder, has_segments=True, max_length=32)
        say(f"{len(texts)} texts")
        return {"int8": int8, "fp16": fp16}

    monkeypatch.setattr("maskwright.export.onnx.export_onnx", export_onnx)
    words = ("--to", "onnx", "--license", "mit", *(["--int8"] if int8 else []), *(["--fp16"] if fp16 else []))
    result = command("export", run, "--text", corpus_file, *words)
    assert (result.code, result.err) == (0, "")
    assert "60 texts" in result.out
    folder = run.with_name("tiny-onnx")
    names = {"config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "model.onnx", "onnx"}
    assert {path.name for path in folder.iterdir()} == names | {"README.md", "training_config.yaml", MARKER}
    card = (folder / "README.md").read_text(encoding="utf-8")
    front = yaml.safe_load(card.split("---\n")[1])
    assert (front["license"], front["pipeline_tag"], front["library_name"]) == ("mit", "fill-mask", "transformers.js")
    assert "sentences.txt" in card
    assert 'pipeline("fill-mask", "tiny-onnx", { dtype: "fp32" })' in card
    assert read(folder / MARKER)["figures"] == {"int8": int8, "fp16": fp16}
