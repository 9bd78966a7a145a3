from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import maskwright
import maskwright.cli.app as app_module
from maskwright.cli.app import app
from maskwright.errors import RunError

Command = Callable[..., Any]
SURFACE = {
    "": {"--version", "--debug", "--install-completion", "--show-completion"},
    "train": {"settings", "--config", "--overwrite", "--list"},
    "adapt": {
        "model",
        "words",
        "--text",
        "--out",
        "--general",
        "--max-forgetting",
        "--new-tokens",
        "--head-steps",
        "--for",
        "--pairs",
        "--epochs",
        "--batch-size",
        "--overwrite",
        "--private",
        "--push-to-hub",
    },
    "distill": {
        "teacher",
        "words",
        "--text",
        "--layers",
        "--width",
        "--objective",
        "--out",
        "--overwrite",
    },
    "finetune": {
        "task",
        "settings",
        "--model",
        "--train",
        "--validation",
        "--out",
        "--group-by",
        "--text-column",
        "--second-column",
        "--label-column",
        "--tag-scheme",
        "--epochs",
        "--learning-rate",
        "--batch-size",
        "--max-length",
        "--seeds",
        "--lora",
        "--freeze-layers",
        "--layer-decay",
        "--class-weights",
        "--label-smoothing",
        "--teacher",
        "--hard-label-weight",
        "--doc-stride",
        "--max-answer-length",
        "--max-question-length",
        "--loss",
        "--pooling",
        "--temperature",
        "--negative-column",
        "--num-negatives",
        "--symmetric",
        "--false-negative-margin",
        "--dims",
        "--query-prompt",
        "--document-prompt",
        "--kind",
        "--query-flops",
        "--document-flops",
        "--width",
        "--query-length",
        "--metric",
        "--patience",
        "--overwrite",
        "--private",
        "--push-to-hub",
    },
    "doctor": {"settings", "--config", "--json", "--nodes"},
    "launch": {
        "target",
        "settings",
        "--config",
        "--nodes",
        "--gpus",
        "--min-nodes",
        "--restarts",
        "--hours",
        "--partition",
        "--account",
        "--image",
        "--namespace",
        "--runtime",
        "--volume",
        "--accelerator",
        "--address",
        "--setup",
        "--env",
        "--out",
        "--submit",
        "--overwrite",
    },
    "fill": {"model", "text", "--top-k", "--precision", "--json", "--compile"},
    "eval": {
        "model",
        "suite",
        "sources",
        "--against",
        "--word-l2r",
        "--max-length",
        "--samples",
        "--train",
        "--neighbors",
        "--pooling",
        "--split",
        "--rerank",
        "--rerank-depth",
        "--seeds",
        "--tasks",
        "--limit",
        "--epochs",
        "--learning-rate",
        "--out",
        "--json",
        "--precision",
        "--compile",
    },
    "index": {
        "model",
        "corpus",
        "--out",
        "--store",
        "--dims",
        "--column",
        "--append",
        "--overwrite",
        "--precision",
    },
    "mine": {
        "model",
        "examples",
        "--out",
        "--corpus",
        "--num-negatives",
        "--depth",
        "--skip",
        "--margin",
        "--relative-margin",
        "--teacher",
        "--precision",
        "--overwrite",
    },
    "search": {"index", "query", "--queries", "--top-k", "--model", "--rerank", "--rerank-depth", "--json"},
    "generate": {
        "model",
        "text",
        "--max-new-tokens",
        "--length",
        "--temperature",
        "--top-k",
        "--top-p",
        "--seed",
        "--steps",
        "--strategy",
        "--block-size",
    },
    "embed": {
        "model",
        "texts",
        "--pooling",
        "--normalize",
        "--role",
        "--max-length",
        "--column",
        "--id-column",
        "--keep-columns",
        "--out",
        "--overwrite",
        "--device",
        "--batch-tokens",
        "--precision",
        "--compile",
        "--on",
    },
    "predict": {
        "kind",
        "model",
        "texts",
        "--id-column",
        "--keep-columns",
        "--top-k",
        "--target",
        "--pooling",
        "--normalize",
        "--role",
        "--aggregation",
        "--aggregation-strategy",
        "--label",
        "--candidate-label",
        "--hypothesis",
        "--hypothesis-template",
        "--multi-label",
        "--question",
        "--max-answer-length",
        "--max-question-length",
        "--doc-stride",
        "--handle-impossible-answer",
        "--max-length",
        "--column",
        "--second-column",
        "--out",
        "--overwrite",
        "--device",
        "--batch-tokens",
        "--precision",
        "--compile",
        "--on",
    },
    "export": {
        "model",
        "--to",
        "--out",
        "--int8",
        "--fp16",
        "--for",
        "--text",
        "--language",
        "--license",
        "--overwrite",
        "--private",
        "--push-to-hub",
        "--transformers-js",
    },
    "tokenizer": set(),
    "tokenizer train": {
        "sources",
        "--out",
        "--type",
        "--vocab-size",
        "--special-token",
        "--cased",
        "--min-frequency",
        "--sample",
        "--seed",
        "--on",
        "--workers",
        "--max-words",
        "--alpha",
        "--overwrite",
    },
    "serve": {
        "models",
        "--host",
        "--port",
        "--device",
        "--precision",
        "--api-key",
        "--cors",
        "--batch-tokens",
        "--max-wait-ms",
        "--max-body-mb",
        "--max-texts",
        "--max-request-tokens",
        "--max-queue-tokens",
        "--max-queue-s",
        "--max-concurrent",
        "--timeout-s",
        "--read-timeout-s",
        "--index",
        "--board",
        "--compile",
    },
    "board": {"runs", "--host", "--port", "--api-key"},
    "compare": {"runs", "--out", "--overwrite"},
    "sweep": {"settings", "--config", "--out", "--trials", "--keep-one-of", "--seed", "--overwrite"},
    "tokenizer show": {"tokenizer", "text", "--json"},
    "tokenizer advise": {"tokenizer", "sources", "--max-tokens", "--min-count", "--out", "--json"},
    "models": set(),
    "models list": {"--json"},
    "models memory": {"model", "--json"},
    "models choose": {
        "--language",
        "--task",
        "--length",
        "--fastest",
        "--best-accuracy",
        "--max-parameters",
        "--domain",
        "--json",
    },
    "prepare": set(),
    "prepare shards": {
        "settings",
        "--tokenizer",
        "--out",
        "--validation-share",
        "--max-length",
        "--workers",
        "--on",
        "--memory",
        "--overwrite",
    },
    "prepare wiki": {
        "dump",
        "output",
        "--min-length",
        "--max-length",
        "--workers",
        "--page-time-limit",
        "--overwrite",
    },
}


def test_the_words_of_the_command_line_are_these() -> None:
    """Other people's scripts rely on them: a change here is a change of the interface."""
    group: Any = typer.main.get_command(app)
    assert dict(list_commands("", group)) == SURFACE


def list_commands(name: str, command: Any) -> Iterator[tuple[str, set[str]]]:
    assert not any(parameter.secondary_opts for parameter in command.params)
    yield name, {option for parameter in command.params for option in parameter.opts}
    for word, subcommand in getattr(command, "commands", {}).items():
        yield from list_commands(f"{name} {word}".strip(), subcommand)


@pytest.mark.parametrize(
    ("words", "example"),
    [
        (["--help"], "maskwright train"),
        (["train", "--help"], "maskwright train small_corpus data.train=corpus.txt run.name=mine"),
        (["fill", "--help"], 'maskwright fill runs/quickstart "The for [MASK] is used to iterate over a sequence."'),
    ],
)
def test_help_shows_an_example(command: Command, words: list[str], example: str) -> None:
    result = command(*words)
    assert (result.code, result.err) == (0, "")
    assert "Usage: maskwright" in result.out
    assert "Example" in result.out
    assert example in re.sub(r"\s+", " ", result.out)


def test_without_words_the_help_is_shown(command: Command) -> None:
    result = command()
    assert "Usage: maskwright" in result.out
    assert result.err == ""
    assert result.code == 2


def test_version(command: Command) -> None:
    result = command("--version")
    assert (result.code, result.out) == (0, f"{maskwright.__version__}\n")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["trian"], "No such command 'trian'"),
        (["train", "--overwite"], "No such option: --overwite"),
        (["fill"], "Missing argument 'model'"),
        (["fill", "model", "text", "--top-k", "many"], "Invalid value for '--top-k'"),
    ],
)
def test_bad_usage_is_one_line(command: Command, words: list[str], complaint: str) -> None:
    command(*words).assert_refused(complaint)


@pytest.mark.parametrize("place", [0, 2])
def test_debug_shows_the_traceback_and_keeps_the_exit_code(command: Command, place: int) -> None:
    words = ["train", "unknown.key=1"]
    words.insert(place, "--debug")
    result = command(*words)
    assert result.code == 2
    assert "Traceback (most recent call last)" in result.err
    assert result.err.splitlines()[-1].startswith("error: unknown configuration key 'unknown'")


def test_python_dash_m_is_the_same_program() -> None:
    program = [sys.executable, "-m", "maskwright"]
    version = subprocess.run([*program, "--version"], check=False, capture_output=True, text=True)
    assert (version.returncode, version.stdout, version.stderr) == (0, f"{maskwright.__version__}\n", "")
    mistake = subprocess.run([*program, "train", "runn.name=x"], check=False, capture_output=True, text=True)
    assert (mistake.returncode, mistake.stdout) == (2, "")
    assert mistake.stderr == "error: unknown configuration key 'runn'; did you mean 'run'?\n"


def _fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr("maskwright.config.load_config", fail)


@pytest.mark.parametrize("error", [RunError("the loss is nan"), OSError(28, "No space left on device")])
def test_a_failed_run_exits_with_one(command: Command, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    _fail_with(monkeypatch, error)
    result = command("train")
    assert (result.code, result.err) == (1, f"error: {error}\n")


@pytest.mark.parametrize(
    "error", [RuntimeError("can't start new thread"), BlockingIOError(11, "Resource temporarily unavailable")]
)
def test_a_system_that_starts_no_thread_is_said_in_words(
    command: Command, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    _fail_with(monkeypatch, error)
    result = command("train")
    assert result.code == 1
    assert result.err == (
        "error: the system starts no more threads or processes for this command; end others, or raise the limit"
        " (ulimit -u; of a container its pids limit)\n"
    )


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (RuntimeError("CUDA error: out of memory\nSearch for it in the manual"), "CUDA error: out of memory"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_memory_that_runs_out_anywhere_is_said_in_words(
    command: Command, monkeypatch: pytest.MonkeyPatch, error: Exception, problem: str
) -> None:
    _fail_with(monkeypatch, error)
    result = command("train")
    assert result.code == 1
    assert result.err == (
        f"error: out of memory ({problem}); end other programs that use it, or take a smaller model or batch\n"
    )


def test_a_message_of_several_lines_becomes_one(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    _fail_with(monkeypatch, RunError("first\nsecond"))
    assert command("train").err == "error: first second\n"


def test_an_interrupt_says_how_to_go_on(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    _fail_with(monkeypatch, KeyboardInterrupt())
    result = command("train")
    assert result.code == 130
    assert "the same command goes on" in result.err


@pytest.mark.parametrize(
    ("words", "target", "expected"),
    [
        (("predict", "embed", "m", "x"), "runs.predict.predict", "nothing was written"),
        (("export", "m"), "runs.commands.export", "nothing was written"),
        (("prepare", "wiki", "a.xml", "b.txt"), "text.wiki.preprocess.preprocess_wiki_dump", "nothing was written"),
        (("tokenizer", "show", "m"), "runs.inputs.open_tokenizer", "nothing was written"),
        (("prepare", "a.txt", "--tokenizer", "t", "--out", "b"), "runs.commands.prepare", "what is prepared so far"),
        (("eval", "m", "glue", "folder"), "runs.eval.evaluate.evaluate", "finished runs are kept"),
        (("eval", "m", "mlm", "a.txt"), "runs.eval.evaluate.evaluate", "nothing was written"),
    ],
)
def test_an_interrupt_says_what_is_true_of_each_verb(
    command: Command, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], target: str, expected: str
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"maskwright.{target}", interrupt)
    result = command(*words)
    assert result.code == 130
    assert result.err.startswith(f"interrupted; {expected}")


def test_before_a_run_begins_a_rank_that_is_gone_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As torchrun has it: processes of one parent, each with its rank, and SIGTERM to all when one has ended."""
    for name, value in {"RANK": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "getppid", os.getpid)  # the ranks below are this process's own
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    ranks = [subprocess.Popen(["sleep", "60"], env=os.environ | {"RANK": str(rank)}) for rank in (4, 5)]
    try:
        app_module._leave_launch(signal.SIGTERM, None)
        ranks[1].kill()
        ranks[1].wait()
        app_module._leave_launch(signal.SIGTERM, None)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert codes == [143, 1]
    asked, lost = capsys.readouterr().err.splitlines()
    assert asked == "error: interrupted; the same command begins or resumes the run"
    assert lost == "error: rank 5 ended before it met the others; the same command begins or resumes the run"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("maskwright fi", {"fill", "finetune"}, marks=pytest.mark.slow),
        ("maskwright finetune --lo", {"--lora", "--loss"}),
    ],
)
def test_a_shell_completes_commands_and_options(line: str, expected: set[str]) -> None:
    """As the script asks that --install-completion writes for bash."""
    code = "import sys; sys.argv = ['maskwright']; from maskwright.cli.app import main; main()"
    asked = {"_MASKWRIGHT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ | asked)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == expected


def test_completion_is_installed_for_a_shell(tmp_path: Path) -> None:
    code = "import sys; sys.argv = ['maskwright', *sys.argv[1:]]; from maskwright.cli.app import main; main()"
    words = [sys.executable, "-c", code, "--install-completion", "bash"]
    home = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ | home)
    assert done.returncode == 0, done.stderr
    assert "_MASKWRIGHT_COMPLETE=complete_bash" in (tmp_path / ".bash_completions" / "maskwright.sh").read_text()


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    _fail_with(monkeypatch, ZeroDivisionError())
    monkeypatch.setattr("sys.argv", ["maskwright", "train"])
    with pytest.raises(ZeroDivisionError):
        maskwright.cli.app.main()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["adapt"], "adapt [OPTIONS] MODEL [FILES...] [KEY=VALUE ...]"),
        (["prepare", "wiki"], "prepare wiki [OPTIONS] DUMP OUTPUT"),
        (["tokenizer", "show"], "tokenizer show [OPTIONS] TOKENIZER [TEXT]"),
        (["models", "memory"], "models memory [OPTIONS] MODEL"),
    ],
)
def test_help_says_how_a_command_is_typed(command, words, line):
    assert f"Usage: maskwright {line}" in " ".join(command(*words, "--help").out.split())
