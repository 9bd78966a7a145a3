from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from maskwright.config import load_config
from maskwright.runs.callbacks import MetricsLog

Command = Callable[..., Any]


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def read_metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def interrupted_run(command: Command, tiny_command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that was interrupted at step 8, its last checkpoint at step 5."""

    log = MetricsLog.on_log

    def log_and_stop(callback: MetricsLog, metrics: dict[str, float]) -> None:
        log(callback, metrics)
        if metrics["step"] > 7:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MetricsLog, "on_log", log_and_stop)
        assert command(*tiny_command).code == 130
    run = tmp_path / "runs" / "tiny"
    # That of step 3 was taken before the first evaluation, at the end of the first epoch.
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-3", "step-5"]
    assert read_metrics(run)[-1]["step"] == 8
    return run


class _References(HTMLParser):
    """Whatever a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [str(value) for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]


class TestFinishedRun:
    def test_its_configuration_is_the_resolved_one(self, trained_run: Path, corpus_file: Path) -> None:
        config = load_config(trained_run / "config.yaml")
        assert config.training.max_steps == 12
        assert config.data.train == str(corpus_file)
        values = yaml.safe_load((trained_run / "config.yaml").read_text())
        assert values["optimizer"]["weight_decay"] == 0.01

    def test_metrics_have_their_names_and_go_up_to_the_last_step(self, trained_run: Path) -> None:
        lines = [line for line in read_metrics(trained_run) if "loss" in line]
        names = {"step", "epoch", "tokens", "loss", "mlm_accuracy", "lr", "grad_norm", "tokens_per_s"}
        assert all(names <= set(line) for line in lines)
        steps = [line["step"] for line in lines]
        assert steps == sorted(set(steps))
        assert steps[-1] == 12
        assert {4, 8, 12} <= set(steps)
        assert lines[-1]["loss"] < lines[0]["loss"]

    def test_final_figures(self, trained_run: Path) -> None:
        figures = json.loads((trained_run / "final.json").read_text())
        assert {"loss", "accuracy", "perplexity", "unigram_loss", "tokens", "seconds"} <= set(figures)
        assert figures["perplexity"] == pytest.approx(2.718281828 ** figures["loss"])
        assert 0 <= figures["accuracy"] <= 1
        assert figures["tokens"] == read_metrics(trained_run)[-1]["tokens"]
        assert figures["steps"] == 12

    def test_the_report_needs_nothing_but_itself(self, trained_run: Path) -> None:
        text = (trained_run / "report.html").read_text(encoding="utf-8")
        references = _References()
        references.feed(text)
        assert references.found == []
        assert "<svg" in text
        assert "http://" not in text
        assert "https://" not in text
        assert "@import" not in text
        assert "url(" not in text

    def test_the_report_shows_predictions_figures_and_settings(self, trained_run: Path) -> None:
        text = (trained_run / "report.html").read_text(encoding="utf-8")
        assert text.count(">Sample ") == 4
        assert "[MASK]" in text
        assert "unigram baseline" in text
        assert "max_steps: 12" in text

    def test_the_curves_are_a_picture(self, trained_run: Path) -> None:
        assert (trained_run / "curves.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")

    def test_the_newest_checkpoints_are_kept(self, trained_run: Path) -> None:
        assert sorted(path.name for path in (trained_run / "checkpoints").iterdir()) == ["step-10", "step-12"]


def test_a_run_ends_with_filled_sentences_figures_and_next_commands(
    command: Command, tiny_command: list[str], tmp_path: Path, trained_run: Path
) -> None:
    result = command(*tiny_command)
    assert (result.code, result.err) == (0, "")
    run = tmp_path / "runs" / "tiny"
    assert result.out.count("Masked Input: ") == 4
    assert "masked accuracy" in result.out
    assert f'maskwright fill {run} "' in result.out
    ours, theirs = (json.loads((folder / "final.json").read_text()) for folder in (run, trained_run))
    assert ours["loss"] == theirs["loss"], "the same settings give the same model"


class TestExistingFolder:
    def test_a_finished_run_is_refused_and_left_as_it_was(
        self, command: Command, trained_run: Path, tmp_path: Path
    ) -> None:
        run = Path(shutil.copytree(trained_run, tmp_path / "tiny"))
        before = snapshot(run)
        words = ["train", run / "config.yaml", f"run.out={tmp_path}"]
        command(*words).assert_refused(f"{run} holds a finished run", "--overwrite")
        assert snapshot(run) == before

    def test_overwrite_replaces_the_run_and_nothing_else(
        self, command: Command, trained_run: Path, tmp_path: Path
    ) -> None:
        run = Path(shutil.copytree(trained_run, tmp_path / "tiny"))
        (run / "notes.txt").write_text("keep me")
        words = [
            "train",
            run / "config.yaml",
            f"run.out={tmp_path}",
            "training.max_steps=2",
            "tokenizer.vocab_size=120",
        ]
        assert command(*words, "--overwrite").code == 0
        assert json.loads((run / "final.json").read_text())["steps"] == 2
        assert json.loads((run / "model" / "config.json").read_text())["vocab_size"] == 120
        assert [line["step"] for line in read_metrics(run) if "loss" in line] == [2]
        assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-2"]
        assert (run / "notes.txt").read_text() == "keep me"

    @pytest.mark.parametrize(
        "mistake", ["model.num_attention_heads=5", "data.train=absent.txt", "tokenizer.path=absent.json"]
    )
    def test_overwrite_with_a_mistake_costs_nothing(
        self, command: Command, trained_run: Path, tmp_path: Path, mistake: str
    ) -> None:
        run = Path(shutil.copytree(trained_run, tmp_path / "tiny"))
        before = snapshot(run)
        command("train", run / "config.yaml", f"run.out={tmp_path}", mistake, "--overwrite").assert_refused()
        assert snapshot(run) == before

    @pytest.mark.parametrize("name", ["thesis.txt", "config.yaml"])
    def test_a_folder_that_is_no_run_is_never_overwritten(
        self, command: Command, tiny_command: list[str], tmp_path: Path, name: str
    ) -> None:
        folder = tmp_path / "runs" / "tiny"
        folder.mkdir(parents=True)
        (folder / name).write_text("data: {train: mine.txt}\n")
        before = snapshot(tmp_path)
        for words in (tiny_command, [*tiny_command, "--overwrite"]):
            command(*words).assert_refused(f"{folder} exists and is not a run")
        assert snapshot(tmp_path) == before

    def test_a_file_in_the_place_of_the_run_is_refused(
        self, command: Command, tiny_command: list[str], tmp_path: Path
    ) -> None:
        (tmp_path / "runs").mkdir()
        (tmp_path / "runs" / "tiny").write_text("a file")
        for words in (tiny_command, [*tiny_command, "--overwrite"]):
            command(*words).assert_refused("cannot write to", "is a file")

    def test_an_empty_folder_is_used(self, command: Command, tiny_command: list[str], tmp_path: Path) -> None:
        (tmp_path / "runs" / "tiny").mkdir(parents=True)
        assert command(*tiny_command, "training.max_steps=1").code == 0
        assert (tmp_path / "runs" / "tiny" / "final.json").is_file()


class TestUnfinishedRun:
    def test_the_same_command_resumes_and_ends_as_if_never_interrupted(
        self, command: Command, tiny_command: list[str], interrupted_run: Path, trained_run: Path
    ) -> None:
        with (interrupted_run / "metrics.jsonl").open("a") as file:
            file.write('{"step": 7, "lo')  # as a crash leaves it
        result = command(*tiny_command)
        assert (result.code, result.err) == (0, "")
        assert f"resuming {interrupted_run} from step 5" in result.out
        resumed, whole = (json.loads((run / "final.json").read_text()) for run in (interrupted_run, trained_run))
        for name in ("loss", "accuracy", "unigram_loss", "tokens", "steps"):
            assert resumed[name] == whole[name], name
        logged, expected = (
            [(line["step"], line.get("loss"), line.get("val_loss")) for line in read_metrics(run)]
            for run in (interrupted_run, trained_run)
        )
        assert logged == expected

    def test_changed_settings_are_refused_and_nothing_changes(
        self, command: Command, tiny_command: list[str], interrupted_run: Path
    ) -> None:
        before = snapshot(interrupted_run)
        command(*tiny_command, "optimizer.learning_rate=0.5").assert_refused(
            "unfinished run with optimizer.learning_rate=0.003, this command has optimizer.learning_rate=0.5"
        )
        assert snapshot(interrupted_run) == before

    def test_overwrite_starts_it_anew(self, command: Command, tiny_command: list[str], interrupted_run: Path) -> None:
        result = command(*tiny_command, "training.max_steps=1", "--overwrite")
        assert result.code == 0
        assert "resuming" not in result.out
        assert json.loads((interrupted_run / "final.json").read_text())["steps"] == 1


class TestBadInput:
    @pytest.mark.parametrize("key", ["data.train", "data.validation"])
    @pytest.mark.parametrize(
        ("content", "complaint"),
        [
            (b"", "is empty"),
            (b"\x7fELF\x00\x00\x01\x02", "is a binary file"),
            (b" \n\n\t\n", "holds no text"),
            (None, "no file, folder or glob match at"),
        ],
        ids=["empty", "binary", "blank", "missing"],
    )
    def test_a_file_without_text_is_refused_before_anything_is_made(
        self, command: Command, tiny_command: list[str], tmp_path: Path, key: str, content: bytes | None, complaint: str
    ) -> None:
        text = tmp_path / "text.txt"
        if content is not None:
            text.write_bytes(content)
        command(*tiny_command, f"{key}={text}").assert_refused(complaint, str(text))
        assert not (tmp_path / "runs").exists()

    @pytest.mark.parametrize(
        ("mistake", "complaint"),
        [
            ("model.num_attention_heads=5", "hidden_size 32 is not a multiple of num_attention_heads 5"),
            ("model.max_position_embeddings=16", "model.max_position_embeddings is 16, data.max_length is 32"),
            ("model.hidden_act=gleu", "did you mean 'gelu'?"),
            ("model.mlm_head_activation=gleu", "did you mean 'gelu'?"),
            ("model.local_attention=8", "BERT has no option 'local_attention'"),
            ("model.from=absent/model/folder", "absent/model/folder"),
            ("tokenizer.path=absent.json", "no tokenizer at absent.json"),
            ("tokenizer.vocab_size=10", "vocab_size is 10"),
            ("training.device=gpu", "gpu"),
            ("unknown.key=1", "unknown configuration key 'unknown'"),
            ("trainig.epochs=1", "did you mean 'training'?"),
            ("preset=bert_standart", "did you mean 'bert_standard'?"),
            ("training.epochs", "is not an override"),
        ],
    )
    def test_a_wrong_setting_is_refused_before_anything_is_made(
        self, command: Command, tiny_command: list[str], tmp_path: Path, mistake: str, complaint: str
    ) -> None:
        command(*tiny_command, mistake).assert_refused(complaint)
        assert not (tmp_path / "runs").exists()

    def test_a_wrong_file_of_settings_is_refused(self, command: Command, tmp_path: Path) -> None:
        path = tmp_path / "config.yaml"
        path.write_text("run: {name: [\n")
        command("train", path).assert_refused(str(path), "is not valid YAML")

    def test_a_single_document_cannot_be_split(self, command: Command, tiny_command: list[str], tmp_path: Path) -> None:
        text = tmp_path / "text.txt"
        text.write_text("only one line of text\n")
        command(*tiny_command, f"data.train={text}").assert_refused("too few to hold some out; give data.validation")

    def test_output_that_cannot_be_written_is_refused(
        self, command: Command, tiny_command: list[str], corpus_file: Path
    ) -> None:
        out = corpus_file / "runs"
        command(*tiny_command, f"run.out={out}").assert_refused(f"cannot write to {out}", f"{corpus_file} is a file")

    def test_invalid_utf8_is_trained_on_with_a_warning(
        self, command: Command, tiny_command: list[str], tmp_path: Path, corpus_file: Path
    ) -> None:
        text = tmp_path / "text[fr].txt"
        text.write_bytes(corpus_file.read_bytes() + b"the caf\xe9 is open.\n")
        result = command(*tiny_command, f"data.train={text}", "training.max_steps=1")
        assert (result.code, result.err) == (0, "")
        assert f"warning: {text}: 1 lines are not valid UTF-8" in result.out

    @pytest.mark.parametrize("megabytes", [1, pytest.param(10, marks=pytest.mark.slow)])
    def test_a_line_of_megabytes_is_trained_on_with_a_warning(
        self,
        command: Command,
        tiny_command: list[str],
        tmp_path: Path,
        corpus_file: Path,
        sentences: list[str],
        megabytes: int,
    ) -> None:
        words = (" ".join(sentences) + " ") * (420 * megabytes)
        text = tmp_path / "text.txt"
        text.write_text("\n".join([sentences[0], words, sentences[1]]))
        assert text.stat().st_size > megabytes * 1_000_000
        settings = [f"data.train={text}", f"data.validation={corpus_file}", "tokenizer.type=word_level"]
        result = command(*tiny_command, *settings, "training.max_steps=1", "data.max_length=512")
        assert (result.code, result.err) == (0, "")
        assert f"warning: {text}: 1 texts of more than 1,000,000 characters were cut into documents" in result.out
        num_words = len(" ".join([sentences[0], words, sentences[1]]).split())
        num_pieces = -(-len(words) // 1_000_000)
        assert f"train {num_words:,} tokens in {num_pieces + 2} documents" in result.out


def test_a_trained_model_can_be_continued_under_other_settings(
    command: Command, trained_run: Path, corpus_file: Path, tmp_path: Path
) -> None:
    words = [f"model.from={trained_run}", f"data.train={corpus_file}", f"run.out={tmp_path}", "run.name=adapted"]
    command("train", *words).assert_refused("brings its own shape", "preset=domain_adaptation")
    words += ["data.max_length=32", "training.max_steps=1"]
    assert command("train", "preset=domain_adaptation", *words).code == 0
    settings = json.loads((tmp_path / "adapted" / "model" / "config.json").read_text())["maskwright"]["masked_lm"]
    assert (settings["mask_ratio"], settings["mlm_head_dropout"]) == (0.10, 0.05)


@pytest.mark.parametrize(
    "words", [["--config", "FILE", "training.epochs=2"], ["training.epochs=2", "--config", "FILE"]]
)
@pytest.mark.parametrize("verb", ["train", "doctor"])
def test_the_configuration_may_be_named_by_an_option(
    command: Command,
    tiny_command: list[str],
    verb: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    class Enough(Exception):  # noqa: N818 - not an error
        pass

    def stop(config: Any, *others: Any) -> None:
        asked.append(config)
        raise Enough

    monkeypatch.setattr("maskwright.runs.pretrain.pretrain", stop)
    monkeypatch.setattr("maskwright.runs.doctor.examine.examine", stop)
    with pytest.raises(Enough):
        command(verb, *[word.replace("FILE", tiny_command[1]) for word in words])
    assert asked == [load_config(tiny_command[1], ["training.epochs=2"])]


def test_two_configurations_are_refused(command: Command, tiny_command: list[str]) -> None:
    command(*tiny_command, "--config", "other.yaml").assert_refused("--config other.yaml are both given; keep one")
    command("train", "--config", "nowhere.yaml").assert_refused("no configuration file or recipe 'nowhere.yaml'")
