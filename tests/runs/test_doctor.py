from __future__ import annotations

import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from maskwright.config import build_config
from maskwright.errors import InputError, RunError
from maskwright.runs.doctor.examine import examine
from maskwright.runs.doctor.findings import CheckUp, Finding, Verdict, print_checkup
from maskwright.text.tokenizer.train import train_tokenizer


@pytest.fixture
def values(tiny_values: dict[str, Any]) -> dict[str, Any]:
    tiny_values["training"]["precision"] = "fp32"
    return tiny_values


@pytest.fixture(autouse=True)
def brief_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maskwright.runs.doctor.step._MOST_TIMED", 2)


def find(checkup: CheckUp, area: str, verdict: Verdict) -> list[Finding]:
    return [finding for finding in checkup.findings if (finding.area, finding.verdict) == (area, verdict)]


def examine_values(values: dict[str, Any]) -> CheckUp:
    return examine(build_config(values))


def list_files(folder: Path) -> set[Path]:
    return {file for file in folder.rglob("*") if file.is_file()}


def test_a_healthy_run_is_described_and_nothing_is_written(values: dict[str, Any], tmp_path: Path) -> None:
    values["training"] |= {"epochs": 40, "max_steps": None, "batch_tokens": 96}
    values["model"]["attention_probs_dropout_prob"] = 0.0
    before = list_files(tmp_path)
    checkup = examine_values(values)
    assert checkup.count("problem") == 0
    assert list_files(tmp_path) == before
    assert not (tmp_path / "runs").exists()
    areas = "folder tokenizer data rows model device precision attention memory disk step speed loader run schedule"
    assert {finding.area for finding in checkup.findings} >= set(areas.split())
    (model,) = find(checkup, "model", "OK")
    assert "bert tiny, 1 layers x 32" in model.text
    (attention,) = find(checkup, "attention", "OK")
    assert "SDPA flash" in attention.text
    # 60 short sentences hold far too few tokens to be measured on; nothing else is wrong.
    assert {finding.area for finding in checkup.findings if finding.verdict == "warning"} <= {
        "held out",
        "rows",
        "loader",
    }


@pytest.mark.slow
def test_a_compiled_run_is_measured_and_compared_with_plain_layers(values: dict[str, Any]) -> None:
    values["training"]["compile"] = True
    values["model"] |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "mlm_head_dropout": 0.0}
    checkup = examine_values(values)
    assert checkup.count("problem") == 0
    assert find(checkup, "step", "OK")


def test_every_finding_that_is_not_ok_says_what_to_do(values: dict[str, Any]) -> None:
    values["masking"] = {"ratio": 0.9, "final_ratio": 0.01}
    values["optimizer"] = {"type": "muon", "learning_rate": 0.5, "muon_learning_rate": 1e-6}
    values["schedule"] = {"warmup_steps": 20}
    values["training"] |= {"batch_tokens": 100_000, "checkpoint_every_steps": 500}
    checkup = examine_values(values)
    warnings = [finding for finding in checkup.findings if finding.verdict == "warning"]
    for words in (
        "masking.ratio is 0.9",
        "masking.final_ratio is 0.01",
        "optimizer.learning_rate is 0.5",
        "optimizer.muon_learning_rate is 1e-06",
        "10 steps teach a model little",
        "warm-up of 20 steps is not over when the run ends after 10",
        "takes the whole epoch",
        "500 steps apart, so the run ends before the first",
        "masked tokens an evaluation",
    ):
        assert sum(words in finding.text for finding in warnings) == 1, words
    assert all(finding.advice for finding in warnings)
    assert checkup.summary == f"OK with {len(warnings)} warnings"
    assert checkup.exit_code == 0


class TestRunFolder:
    def test_a_finished_run_of_the_name_is_a_warning(
        self, values: dict[str, Any], trained_run: Path, tmp_path: Path
    ) -> None:
        shutil.copytree(trained_run, tmp_path / "runs" / "tiny")
        before = list_files(tmp_path)
        (finding,) = find(examine_values(values), "folder", "warning")
        assert "holds a finished run" in finding.text
        assert "choose another run.name" in finding.text + finding.advice
        assert list_files(tmp_path) == before

    def test_a_folder_that_is_no_run_is_a_problem(self, values: dict[str, Any], tmp_path: Path) -> None:
        (tmp_path / "runs" / "tiny").mkdir(parents=True)
        (tmp_path / "runs" / "tiny" / "thesis.txt").write_text("years of work")
        checkup = examine_values(values)
        (finding,) = find(checkup, "folder", "problem")
        assert finding.advice == "choose another run.name or run.out"
        assert (checkup.summary, checkup.exit_code) == ("1 problem", 2)
        # Such a run is not begun, so it is not measured; what was wrong with its text is told all the same.
        assert not find(checkup, "speed", "OK")
        assert find(checkup, "data", "OK")


class TestModelAndTokenizer:
    def test_a_tokenizer_of_another_model_is_a_problem_not_a_crash(
        self, values: dict[str, Any], trained_run: Path, sentences: list[str], tmp_path: Path
    ) -> None:
        train_tokenizer(sentences, vocab_size=80).save(tmp_path / "other")
        values["tokenizer"] = {"path": str(tmp_path / "other")}
        values["model"] = {"from": str(trained_run)}
        (finding,) = find(examine_values(values), "model", "problem")
        assert "differ too" in finding.text
        assert finding.advice == "use the model's tokenizer"

    def test_text_that_the_tokenizer_does_not_know_is_a_warning(
        self, values: dict[str, Any], sentences: list[str], tmp_path: Path
    ) -> None:
        greek = tmp_path / "greek.txt"
        greek.write_text("\n".join(f"{sentence} αβγ" for sentence in sentences), encoding="utf-8")
        train_tokenizer(sentences, vocab_size=160).save(tmp_path / "latin")
        values["tokenizer"] = {"path": str(tmp_path / "latin")}
        values["data"]["train"] = str(greek)
        (finding,) = find(examine_values(values), "tokenizer", "warning")
        share = float(finding.text.split("held-out text ")[1].split("%")[0])
        assert 5 < share < 15
        assert "tokens to a word" in finding.text

    def test_a_device_that_is_not_there_is_a_problem(
        self, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        values["training"]["device"] = "cuda"
        checkup = examine_values(values)
        assert any("no CUDA GPU" in finding.text for finding in checkup.findings if finding.verdict == "problem")

    @pytest.mark.parametrize(
        ("error", "advice"),
        [
            (RunError("out of memory with a single row; use a smaller model"), "use a smaller model"),
            (torch.OutOfMemoryError("CUDA out of memory.\nsee the manual"), "take a smaller model"),
            (RuntimeError("CUDA error: out of memory\nsee the manual"), "take a smaller model"),
        ],
    )
    def test_memory_that_runs_out_is_a_problem_not_a_crash(
        self, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch, error: Exception, advice: str
    ) -> None:
        def fail(*_: Any) -> None:
            raise error

        monkeypatch.setattr("maskwright.runs.doctor.examine.measure_steps", fail)
        (finding,) = find(examine_values(values), "memory", "problem")
        assert "out of memory" in finding.text
        assert finding.advice.startswith(advice)

    def test_a_model_that_cannot_fit_takes_no_step(
        self, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("maskwright.runs.doctor.examine.measure_capacity", lambda device: 1000)
        monkeypatch.setattr("maskwright.runs.doctor.examine.measure_steps", lambda *_: pytest.fail("a step was taken"))
        (finding,) = find(examine_values(values), "memory", "problem")
        assert "are more than the 1 kB there are" in finding.text


class TestText:
    def test_documents_longer_than_a_row_are_split_and_said_to_be(self, values: dict[str, Any], tmp_path: Path) -> None:
        file = tmp_path / "long.txt"
        file.write_text("\n".join(f"word{number} " * length for number, length in enumerate([4, 4, 4, 200])))
        values["data"] |= {"train": str(file), "validation": str(file)}
        (finding,) = find(examine_values(values), "data", "OK")
        assert "25.0% are longer than a row of 32" in finding.text
        assert "nothing is cut off" in finding.text

    def test_records_that_were_skipped_are_a_warning(
        self, values: dict[str, Any], corpus_file: Path, tmp_path: Path
    ) -> None:
        file = tmp_path / "broken.txt"
        file.write_bytes(corpus_file.read_bytes() + b"bad \xff byte\n")
        values["data"]["train"] = str(file)
        assert "not valid UTF-8" in find(examine_values(values), "data", "warning")[0].text

    def test_text_that_is_not_there_is_the_usual_error(self, values: dict[str, Any], tmp_path: Path) -> None:
        values["data"]["train"] = str(tmp_path / "nowhere.txt")
        with pytest.raises(InputError, match=r"nowhere\.txt"):
            examine_values(values)


def test_several_processes_are_refused(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="start it without torchrun"):
        examine_values(values)


class TestExample:
    @pytest.fixture
    def lines(self, values: dict[str, Any]) -> list[str]:
        values["masking"] = {"ratio": 0.4, "random_token_ratio": 0.0, "unchanged_ratio": 0.0}
        checkup = examine_values(values)
        example = checkup.example
        assert example is not None
        self.num_selected = sum(example.selected)
        console = Console(file=StringIO(), force_terminal=True, color_system="standard", width=40)
        print_checkup(checkup, console)
        return console.file.getvalue().splitlines()  # type: ignore[attr-defined]

    def test_a_sentence_is_shown_with_its_masked_tokens_in_colour(self, lines: list[str], sentences: list[str]) -> None:
        original, seen, _ = lines[-3:]
        assert self.num_selected > 0
        assert seen.count("[MASK]") == self.num_selected
        assert seen.count("\x1b[1;33m") == original.count("\x1b[1;32m") == self.num_selected

    def test_each_finding_is_one_line(self, lines: list[str]) -> None:
        assert [line for line in lines[:-3] if not line.startswith("\x1b")] == []
        assert "OK with" in lines[-1]
