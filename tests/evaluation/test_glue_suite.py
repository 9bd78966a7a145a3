"""`maskwright eval MODEL glue`: published layouts, seeds, finished runs kept, two models on the same examples."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.metrics import matthews_corrcoef

from maskwright.errors import InputError
from maskwright.models.bert import BERT
from maskwright.runs.eval import glue as glue_module
from maskwright.runs.eval.glue import GlueOptions, evaluate_glue
from maskwright.runs.eval.glue_files import find_tasks, write_files
from maskwright.runs.eval.glue_report import GlueReport, format_glue
from maskwright.runs.finetune import inputs
from maskwright.tasks import kinds
from maskwright.tasks.features import featurize
from maskwright.tasks.model import TaskModel
from maskwright.tasks.new_model import load_pretrained
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.trainer import Trainer

Command = Callable[..., Any]
SETTINGS = ("training.device=cpu", "training.precision=fp32")


@pytest.fixture(autouse=True)
def _quick_runs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pictures, which other tests look at, would take most of the time; tiny tensors are slower on several threads."""
    monkeypatch.setattr("maskwright.runs.finetune.finetune.write_task_report", lambda *given, **named: [])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def models(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folders = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        folder = tmp_path_factory.mktemp("encoders") / f"tiny-{seed}"
        encoder = BERT.from_variant(
            "tiny",
            vocab_size=tokenizer.vocab_size,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=32,
            initializer_range=0.1,
        )
        encoder.save_pretrained(folder)
        tokenizer.save(folder)
        folders.append(str(folder))
    return folders


def draw(num_lines: int, seed: int) -> list[tuple[str, int]]:
    generator = random.Random(seed)
    lines = []
    for _ in range(num_lines):
        label = generator.randint(0, 1)
        verb = generator.choice(["likes", "follows"] if label else ["sees", "remembers"])
        lines.append((f"{generator.choice(['the cat', 'every student'])} {verb} a long road.", label))
    return lines


def write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    """CoLA without a header, RTE without a held-out file, MNLI with two of them, QNLI without one to train on."""
    folder = tmp_path / "glue"
    for name, number, seed in (("train", 40, 0), ("dev", 20, 1)):
        write(folder / "CoLA" / f"{name}.tsv", [f"gj04\t{label}\t\t{text}" for text, label in draw(number, seed)])
    named = ("not_entailment", "entailment")
    rows = [f"{number}\t{text}\tit rains\t{named[label]}" for number, (text, label) in enumerate(draw(40, 2))]
    write(folder / "RTE" / "train.tsv", ["index\tsentence1\tsentence2\tlabel", *rows])
    for number, name in enumerate(("train", "dev_matched", "dev_mismatched")):
        rows = [f"{text}\tit rains\t{named[label]}" for text, label in draw(24, 3 + number)]
        write(folder / "MNLI" / f"{name}.tsv", ["sentence1\tsentence2\tgold_label", *rows])
    write(folder / "QNLI" / "dev_part1.tsv", ["index\tquestion\tsentence\tlabel"])
    return folder


def evaluate(models: list[str], glue: Path, out: Path, **options: Any) -> GlueReport:
    given = {"seeds": 2, "epochs": 1, "learning_rate": 3e-3, "settings": SETTINGS, **options}
    return evaluate_glue(models, glue, GlueOptions(out=out, **given), Console(quiet=True))


def count_fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    fits: list[int] = []
    fit = Trainer.fit
    monkeypatch.setattr(Trainer, "fit", lambda self, *args, **rest: (fits.append(1), fit(self, *args, **rest))[1])
    return fits


def test_tasks_are_trained_scored_and_not_repeated(
    models: list[str], glue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = count_fits(monkeypatch)
    report = evaluate(models[:1], glue, tmp_path / "out", tasks=["cola", "MNLI"])
    assert len(fits) == 4
    names = [(figure.task, figure.measure, figure.n) for figure in report.figures[0]]
    assert names == [
        ("CoLA", "matthews", 20),
        ("MNLI", "accuracy", 24),
        ("MNLI mismatched", "accuracy", 24),
        ("average", "of tasks", 2),
    ]
    cola, matched, mismatched, average = report.figures[0]
    (folder,) = (path.parent for path in (tmp_path / "out").glob("*/CoLA/seed-1"))
    answers = json.loads((folder / "seed-1" / "glue.json").read_text(encoding="utf-8"))["dev"]
    assert cola.seeds[1] == pytest.approx(matthews_corrcoef(answers["labels"], answers["answers"]))
    final = json.loads((folder / "seed-1" / "final.json").read_text(encoding="utf-8"))
    assert cola.seeds[1] == pytest.approx(final["matthews"])
    expected = np.mean([cola.seeds, np.mean([matched.seeds, mismatched.seeds], axis=0)], axis=0)
    assert average.seeds == pytest.approx(expected.tolist())
    assert cola.deviation == pytest.approx(np.std(cola.seeds, ddof=1))

    again = evaluate(models[:1], glue, tmp_path / "out", tasks=["CoLA", "MNLI"])
    assert again == report
    more = evaluate(models[:1], glue, tmp_path / "out", tasks=["CoLA"], seeds=3)
    assert len(fits) == 5
    assert more.figures[0][0].seeds[:2] == cola.seeds


def test_a_model_is_read_once_for_all_tasks_and_seeds(
    models: list[str], glue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers are those of runs that read it for themselves, and each held-out set is tokenized once."""
    expected = (
        evaluate(models[:1], glue, tmp_path / "one", tasks=["CoLA"]),
        evaluate(models[:1], glue, tmp_path / "other", tasks=["MNLI"]),
    )
    read: list[Path] = []
    tokenized: list[str] = []

    def watch(folder: Path) -> Any:
        read.append(folder)
        return load_pretrained(folder)

    def watch_features(examples: Any, *given: Any) -> Any:
        tokenized.append(examples[0].text)
        return featurize(examples, *given)

    monkeypatch.setattr(glue_module, "load_pretrained", watch)
    monkeypatch.setattr(inputs, "load_pretrained", watch)
    monkeypatch.setattr(kinds, "featurize", watch_features)
    both = evaluate(models[:1], glue, tmp_path / "both", tasks=["CoLA", "MNLI"])
    assert read == [Path(models[0])]
    assert len(tokenized) == 2 + 2 + 3, "train and validation of each task, and the held-out sets for all seeds"
    assert both.figures[0][0] == expected[0].figures[0][0]
    assert both.figures[0][1:3] == expected[1].figures[0][:2]
    assert evaluate(models[:1], glue, tmp_path / "both", tasks=["CoLA", "MNLI"]) == both
    assert len(read) == 1, "what is finished needs no model"


def test_a_single_seed_can_be_followed_by_more(
    models: list[str], glue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = count_fits(monkeypatch)
    one = evaluate(models[:1], glue, tmp_path / "out", tasks=["CoLA"], seeds=1, limit=16)
    assert one.to_json()["figures"][0]["deviation"] is None
    two = evaluate(models[:1], glue, tmp_path / "out", tasks=["CoLA"], seeds=2, limit=16)
    assert len(fits) == 2
    assert two.figures[0][0].seeds[0] == one.figures[0][0].seeds[0]
    with pytest.raises(InputError, match="this command has epochs=2; repeat its settings or choose another --out"):
        evaluate(models[:1], glue, tmp_path / "out", tasks=["CoLA"], limit=16, epochs=2)
    with pytest.raises(InputError, match="begun with other settings of optimizer, schedule or training"):
        evaluate(models[:1], glue, tmp_path / "out", tasks=["CoLA"], limit=16, settings=["optimizer.weight_decay=0.5"])
    with pytest.raises(InputError, match=r"train\.jsonl holds other examples .* choose another --out"):
        evaluate(models[:1], glue, tmp_path / "out", tasks=["CoLA"], limit=17)
    assert len(fits) == 2


def test_a_chosen_learning_rate_and_settings_that_change_no_result_repeat_nothing(
    models: list[str], glue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = count_fits(monkeypatch)
    options: dict[str, Any] = {"tasks": ["CoLA"], "seeds": 1, "limit": 16, "learning_rate": None}
    first = evaluate(models[:1], glue, tmp_path / "out", **options)
    again = evaluate(models[:1], glue, tmp_path / "out", **options, settings=[*SETTINGS, "training.keep_checkpoints=1"])
    assert len(fits) == 1
    assert again == first


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "does not hold the answers to dev; delete it"),
        ('{"dev": {"answers": [1.0], "labels": []}}', "does not hold the answers to dev; delete it"),
        ('{"dev": {"answers": "x", "labels": []}}', "is damaged: 'dev.answers' is 'x'"),
        ('{"dev": {"answers": [1.0], "labels": [1.0]}}', "are of different examples; delete these files"),
        ("[" * 100_000, "is not valid JSON: it is nested too deeply"),
    ],
)
def test_damaged_answers_are_named(
    models: list[str], glue: Path, tmp_path_factory: pytest.TempPathFactory, text: str, words: str
) -> None:
    out = tmp_path_factory.getbasetemp() / "glue-with-answers"  # trained once
    options: dict[str, Any] = {"tasks": ["CoLA"], "seeds": 2, "limit": 16}
    if not out.exists():
        evaluate(models[:1], glue, out, **options)
    file = max(out.rglob("glue.json"))
    whole = file.read_text()
    file.write_text(text)
    try:
        with pytest.raises(InputError, match=words):
            evaluate(models[:1], glue, out, **options)
    finally:
        file.write_text(whole)


def test_two_models_are_compared_over_examples(models: list[str], glue: Path, tmp_path: Path) -> None:
    report = evaluate(models, glue, tmp_path / "out", tasks=["CoLA"], limit=16, seeds=1)
    assert report.differences is not None
    (line,) = report.differences
    own, other = (figures[0].mean for figures in report.figures)
    assert line.difference == pytest.approx(own - other)
    assert line.low <= line.difference <= line.high
    assert 0 < line.p_value <= 1
    table = format_glue(report).splitlines()
    assert table[-2].split()[0] == "CoLA"
    assert table[-2].split()[-1] == f"{line.p_value:.4f}"
    assert table[-1].split()[0] == "average"
    assert report.to_json()["against"]["model"] == models[1]


def test_a_share_of_the_training_file_is_held_out_where_there_is_no_other(glue: Path, tmp_path: Path) -> None:
    said: list[str] = []
    (found,) = find_tasks(glue, ["RTE"], said.append)
    files = write_files(found, tmp_path / "data", None, said.append)
    lines = {path: path.read_text(encoding="utf-8").splitlines() for path in (files.train, files.validation)}
    assert [len(one) for one in lines.values()] == [36, 4]
    published = (glue / "RTE" / "train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    together = sorted(json.loads(line)["sentence1"] for one in lines.values() for line in one)
    assert together == sorted(line.split("\t")[1] for line in published)
    assert said == ["RTE: no held-out file, so 4 of the train.tsv examples are held out"]
    again = write_files(found, tmp_path / "again", 10, said.append)
    assert again.validation.read_bytes() == files.validation.read_bytes()
    assert again.train.read_text(encoding="utf-8").splitlines() == lines[files.train][:10]


def test_what_a_folder_lacks_is_said_and_the_folder_of_one_task_will_do(glue: Path) -> None:
    said: list[str] = []
    assert [one.task.name for one in find_tasks(glue, None, said.append)] == ["CoLA", "MNLI", "RTE"]
    assert f"QNLI: no training file in {glue}, left out" in said
    assert len(said) == 6
    said.clear()
    assert [one.task.name for one in find_tasks(glue / "CoLA", None, said.append)] == ["CoLA"]
    assert said == []
    with pytest.raises(InputError, match="GLUE has no task 'COLLA'; did you mean"):
        find_tasks(glue, ["COLLA"], said.append)
    with pytest.raises(InputError, match="holds no training file of QNLI"):
        find_tasks(glue, ["QNLI"], said.append)
    with pytest.raises(InputError, match="no folder at"):
        find_tasks(glue / "absent", None, said.append)


def test_the_command_prints_json_alone(command: Command, models: list[str], glue: Path, tmp_path: Path) -> None:
    words = ("eval", models[0], "glue", glue / "CoLA", "training.device=cpu", "--seeds", 1, "--epochs", 1)
    result = command(*words, "--limit", 8, "--out", tmp_path / "out", "--json")
    assert result.code == 0, result
    content = json.loads(result.out)
    assert [figure["task"] for figure in content["figures"]] == ["CoLA", "average"]
    model = TaskModel.from_pretrained(next((tmp_path / "out").glob("*/CoLA/seed-0/model")))
    assert model.task.num_outputs == 2
