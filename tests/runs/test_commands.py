"""The commands as Python functions: what they take in memory, what they return, and how they refuse."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow
import pytest
import torch
import typer
from rich.console import Console
from transformers import BertModel

import maskwright as mw
from maskwright.cli.app import app
from maskwright.errors import InputError
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.tasks.config import build_task_config
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tiny_bert import build_tiny_bert

datasets = pytest.importorskip("datasets")
pd = pytest.importorskip("pandas")

QUIET = Console(quiet=True)
SETTINGS = {"training.device": "cpu", "training.precision": "fp32"}
SHORT: dict[str, Any] = {"epochs": 1, "batch_size": 8, "learning_rate": 5e-3, "settings": SETTINGS, "console": QUIET}
Make = Callable[[Path, list[dict[str, str]]], Any]


def build_examples(count: int) -> list[dict[str, str]]:
    verbs = [("likes", "good"), ("sees", "bad"), ("follows", "good"), ("remembers", "bad")]
    subjects = ["the cat", "a small dog", "every student"]
    return [
        {"text": f"{subjects[number % 3]} {verbs[number % 4][0]} the green house", "label": verbs[number % 4][1]}
        for number in range(count)
    ]


def write_lines(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def make_dataset(folder: Path, records: list[dict[str, str]]) -> Any:
    """With classes as numbers that have names, as the datasets of the hub have them."""
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["good", "bad"])}
    )
    return datasets.Dataset.from_list(records, features=features)


def save_dataset(folder: Path, records: list[dict[str, str]]) -> str:
    place = folder / f"saved-{len(records)}"
    make_dataset(folder, records).save_to_disk(place)
    return f"hf:{place}"


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take longer than the runs."""
    monkeypatch.setattr("maskwright.runs.finetune.finetune.write_task_report", lambda *given, **named: [])


@pytest.fixture(scope="module")
def encoder(tokenizer: Tokenizer) -> mw.BERT:
    return build_tiny_bert(tokenizer, max_position_embeddings=32, initializer_range=0.1)


@pytest.fixture(scope="module")
def folder(encoder: mw.BERT, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> str:
    place = str(tmp_path_factory.mktemp("encoder") / "tiny")
    encoder.save_pretrained(place)
    tokenizer.save(place)
    return place


@pytest.fixture(scope="module")
def classifier(folder: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Learnt from files, by name."""
    place = tmp_path_factory.mktemp("classifier")
    train, validation = (write_lines(place / f"{count}.jsonl", build_examples(count)) for count in (24, 8))
    return mw.finetune(
        "classification", model=folder, train=train, validation=validation, out=str(place / "run"), **SHORT
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda place, records: records,
        lambda place, records: [(one["text"], one["label"]) for one in records],
        lambda place, records: pd.DataFrame(records),
        lambda place, records: pyarrow.Table.from_pylist(records),
        make_dataset,
        save_dataset,
        lambda place, records: Path(write_lines(place / f"{len(records)}.jsonl", records)),
    ],
    ids=["dictionaries", "tuples", "data frame", "arrow", "dataset", "hf:", "path"],
)
def test_examples_in_memory_teach_what_a_file_teaches(classifier: Any, folder: str, tmp_path: Path, make: Make) -> None:
    train, validation = (make(tmp_path, build_examples(count)) for count in (24, 8))
    finished = mw.finetune(
        "classification", tmp_path / "run", model=folder, train=train, validation=validation, **SHORT
    )
    assert finished.scores == classifier.scores
    assert finished.model.task.classes == ("bad", "good")
    weights = classifier.model.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in finished.model.state_dict().items())


@pytest.mark.parametrize("kind", ["encoder", "language model", "transformers"])
def test_a_model_in_memory_is_as_good_as_its_folder(
    classifier: Any, encoder: mw.BERT, tokenizer: Tokenizer, folder: str, tmp_path: Path, kind: str
) -> None:
    model: Any = encoder
    if kind == "language model":
        model = MaskedLanguageModel(
            encoder,
            tokenizer.vocab_size,
            mask_token_id=tokenizer.mask_token_id,
            special_token_ids=tokenizer.all_special_ids,
        )
    elif kind == "transformers":
        model = BertModel.from_pretrained(folder, add_pooling_layer=False)
    examples = {"train": build_examples(24), "validation": build_examples(8)}
    finished = mw.finetune("classification", tmp_path / "run", model=model, tokenizer=tokenizer, **examples, **SHORT)
    assert finished.scores == classifier.scores
    name = build_task_config(_read_yaml(tmp_path / "run" / "task.yaml")).model
    assert name.startswith(f"memory:{type(model).__name__}-")


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def test_a_run_is_not_resumed_with_another_model_in_memory(
    encoder: mw.BERT, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples: dict[str, Any] = {"train": build_examples(24), "validation": build_examples(8), "tokenizer": tokenizer}

    class KilledError(BaseException):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr("maskwright.runs.finetune.finetune.answer_examples", die)
        with pytest.raises(KilledError):
            mw.finetune("classification", tmp_path / "run", model=encoder, **examples, **SHORT)
    other = build_tiny_bert(tokenizer, max_position_embeddings=32, initializer_range=0.2)
    with pytest.raises(
        InputError, match=r"run is a run with model=memory:BERT-\w+, this command has model=memory:BERT"
    ):
        mw.finetune("classification", tmp_path / "run", model=other, **examples, **SHORT)
    assert mw.finetune("classification", tmp_path / "run", model=encoder, **examples, **SHORT).scores["loss"]


def test_other_tasks_learn_from_memory(folder: str, tmp_path: Path) -> None:
    tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B-PER"]))
    features = datasets.Features({"tokens": datasets.Sequence(datasets.Value("string")), "ner_tags": tags})
    words = [(["the", "cat", "sees", "a", "road"], [0, 1, 0, 0, 0]), (["a", "dog", "sees", "it"], [0, 1, 0, 0])]
    tagged = datasets.Dataset.from_list([{"tokens": w, "ner_tags": t} for w, t in words], features=features)
    names = [(sentence, ["O" if not tag else "B-PER" for tag in numbers]) for sentence, numbers in words]
    entities = mw.finetune("ner", tmp_path / "ner", model=folder, train=tagged, validation=names, **SHORT)
    assert entities.model.task.classes == ("O", "B-PER", "I-PER")

    asked = ("who sees a road", "the cat sees a road", "the cat")
    frame = pd.DataFrame(
        [{"question": asked[0], "context": asked[1], "answers": {"text": ["the cat"], "answer_start": [0]}}]
    )
    answers = mw.finetune("qa", tmp_path / "qa", model=folder, train=[asked] * 2, validation=frame, **SHORT)
    assert answers.figures[0]["questions"] == 1

    scored = [("the cat", "a dog", 1), ("the road", "my old teacher", 0), ("a house", "the house", 1)]
    frame = pd.DataFrame(scored, columns=["sentence1", "sentence2", "score"])
    similar = mw.finetune("similarity", tmp_path / "sts", model=folder, train=scored, validation=frame, **SHORT)
    assert similar.figures[0]["train_examples"] == 2  # the pairs that belong together
    assert similar.figures[0]["examples"] == 3


def test_labelled_examples_come_from_the_hub_by_name(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, classifier: Any
) -> None:
    asked = []

    def load(name: str, config: str | None, split: str, streaming: bool) -> Any:
        asked.append((name, config, split))
        return make_dataset(tmp_path, build_examples(24 if split == "train" else 8)).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load)
    finished = mw.finetune(
        "classification",
        tmp_path / "run",
        model=folder,
        train="hf:glue:sst2",
        validation="hf:glue:sst2@validation",
        **SHORT,
    )
    assert asked == [("glue", "sst2", "train"), ("glue", "sst2", "validation")]
    assert finished.scores == classifier.scores


def test_a_task_config_is_taken_as_before(folder: str, tmp_path: Path) -> None:
    train, validation = (write_lines(tmp_path / f"{count}.jsonl", build_examples(count)) for count in (24, 8))
    values = {"task": "classification", "model": folder, "train": train, "validation": validation, "epochs": 1}
    finished = mw.finetune(build_task_config(values), tmp_path / "run", num_seeds=2, settings=SETTINGS, console=QUIET)
    assert [run.path.name for run in finished.runs] == ["seed-0", "seed-1"]
    losses = [figures["loss"] for figures in finished.figures]
    assert finished.scores["loss"] == pytest.approx(sum(losses) / 2)


GOOD = build_examples(8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": "clasification"}, "no task 'clasification'; did you mean 'classification'"),
        ({"label_column": "labl"}, "memory:train has no column 'labl'; it has 'text', 'label'"),
        ({"train": "absent.csv"}, "no file at absent.csv"),
        ({"train": [{**GOOD[0], "label": None}, *GOOD]}, "memory:train:1 has no label in 'label'"),
        ({"train": pd.DataFrame([*GOOD, {"text": "the cat"}])}, "memory:train:9 has no label in 'label'"),
        ({"train": [("the cat",)]}, r"memory:train:1 has 1 parts; expected a dictionary or \(text, label\) or"),
        ({"train": ["the cat"]}, "memory:train:1 has a str; expected a dictionary"),
        ({"train": []}, "memory:train holds no example"),
        ({"train": 3}, "memory:train is of type int; expected the path of a file"),
        ({"train": {"train": GOOD, "test": GOOD}}, "memory:train is a dict of train, test; give one of its splits"),
        ({"train": None}, "finetune needs train: labelled examples; give train="),
        ({"epochs": "many"}, "'epochs' is 'many'"),
        ({"epoch": 3}, "finetune has no argument 'epoch'; did you mean 'epochs'"),
        ({"model": torch.nn.Linear(2, 2)}, "the model is a Linear, an encoder of your own, which needs a head"),
        ({"model": build_task_config}, "the model is a function"),
    ],
)
def test_wrong_input_of_finetune_is_one_sentence(
    folder: str, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    given = {"task": "classification", "model": folder, "train": GOOD, "validation": GOOD, "out": tmp_path / "run"}
    with pytest.raises(InputError, match=words) as caught:
        mw.finetune(**{**given, **changes}, console=QUIET)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["train", "doctor", "prepare", "adapt", "finetune", "evaluate", "predict", "fill"])
def test_arguments_that_a_command_does_not_have_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} has no argument 'overwritten'"):
        getattr(mw, name)(overwritten=True)


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(InputError, match="predict: missing a required argument: 'model'; it takes kind, model, texts"):
        mw.predict("classify")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mw.evaluate("x", "glue", "y", seeds=0), "seeds is 0; it must be at least 1"),
        (lambda: mw.evaluate("x", "embeddings", "y", neighbors=0), "neighbors is 0; it must be at least 1"),
        (lambda: mw.adapt("x", "y", new_tokens=-1), "new_tokens is -1; it must be at least 0"),
        (lambda: mw.adapt("x", "y", head_steps=0), "head_steps is 0; it must be at least 1"),
        (lambda: mw.prepare("x", tokenizer="y", out="z", workers=0), "workers is 0; it must be at least 1"),
        (lambda: mw.advise_tokenizer("x", "y", min_count=0), "min_count is 0; it must be at least 1"),
        (
            lambda: mw.finetune("ner", model="x", train="y", validation="z", seeds=0),
            "seeds is 0; it must be at least 1",
        ),
    ],
)
def test_numbers_that_the_command_line_refuses_are_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


NAMES: dict[str, tuple[str, dict[str, str]]] = {
    "train": ("train", {"config_file": "config"}),
    "doctor": ("doctor", {"config_file": "config"}),
    "adapt": ("adapt", {"words": "settings"}),
    "finetune": ("finetune", {}),
    "eval": ("evaluate", {}),
    "fill": ("fill", {}),
    "generate": ("generate", {}),
    "predict": ("predict", {}),
    "export": ("export", {}),
}
ONLY_PRINTED = {"as_json", "shows_recipes"}


@functools.cache
def read_app() -> Any:
    return typer.main.get_command(app)


@pytest.mark.parametrize("command", NAMES)
def test_a_function_has_the_options_of_its_command(command: str) -> None:
    name, renamed = NAMES[command]
    group: Any = read_app()
    options = {renamed.get(one.name, one.name) for one in group.commands[command].params} - ONLY_PRINTED - {"help"}
    function = getattr(importlib.import_module(mw._HOMES[name]), name)  # export is a room of the package too
    assert options <= set(inspect.signature(function).parameters)


class TestRefusals:
    """The same mistake on the command line and in Python: the advice has the words of both."""

    @pytest.mark.parametrize(
        ("verb", "in_python", "on_command_line", "advised"),
        [
            (
                "predict",
                {"kind": "embed", "texts": ["a"], "out": "{there}.jsonl"},
                ["embed", "{run}", "a", "--out", "{there}.jsonl"],
                {"out": "", "overwrite": "True"},
            ),
            (
                "predict",
                {"kind": "embed", "texts": ["a"], "out": "{there}/new/a.jsonl"},
                ["embed", "{run}", "a", "--out", "{there}/new/a.jsonl"],
                {"out": ""},
            ),
            ("export", {"out": "{there}.jsonl"}, ["{run}", "--out", "{there}.jsonl"], {"out": ""}),
            ("export", {"out": "{there}"}, ["{run}", "--out", "{there}"], {"out": ""}),
            (
                "adapt",
                {"text": "{there}.jsonl", "out": "{there}", "settings": {"run.name": "x"}},
                ["{run}", "--text", "{there}.jsonl", "--out", "{there}", "run.name=x"],
                {"out": ""},
            ),
            (
                "finetune",
                {"task": "classification", "train": "{labels}", "validation": "{labels}", "out": "{there}", "seeds": 2},
                [
                    "classification",
                    *("--model", "{run}", "--train", "{labels}", "--validation", "{labels}"),
                    *("--out", "{there}", "--seeds", "2"),
                ],
                {"out": ""},
            ),
            (
                "finetune",
                {
                    "task": "classification",
                    "train": "{labels}",
                    "validation": "{labels}",
                    "out": "{new}",
                    "settings": {"training.epochs": "2"},
                },
                [
                    "classification",
                    *("--model", "{run}", "--train", "{labels}", "--validation", "{labels}"),
                    *("--out", "{new}", "training.epochs=2"),
                ],
                {"epochs": ""},
            ),
        ],
    )
    def test_advice_has_options_and_arguments(
        self,
        command: Callable[..., Any],
        trained_run: Path,
        tmp_path: Path,
        verb: str,
        in_python: dict[str, Any],
        on_command_line: list[str],
        advised: dict[str, str],
    ) -> None:
        (tmp_path / "there").mkdir()
        (tmp_path / "there" / "a.txt").write_text("a")
        (tmp_path / "there.jsonl").write_text('{"text": "a cat"}\n')
        places = {"run": trained_run, "there": tmp_path / "there", "new": tmp_path / "new"}
        places["labels"] = Path(write_lines(tmp_path / "labels.jsonl", build_examples(12)))

        def fill(value: Any) -> Any:
            return value.format(**places) if isinstance(value, str) else value

        with pytest.raises(InputError) as refusal:
            getattr(mw, verb)(model=str(trained_run), **{name: fill(value) for name, value in in_python.items()})
        said = command(verb, *map(fill, on_command_line))
        assert said.code == 2
        for name, value in advised.items():
            words = f"--{name} ({name}={value} in Python)"
            assert words in str(refusal.value)
            assert words in " ".join(said.err.split())

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({}, "holds a finished run"),
            ({"epochs": 2}, "this command has epochs=2"),
        ],
    )
    def test_a_finished_task_names_both_ways_to_replace_it(
        self, folder: str, tmp_path: Path, changes: dict[str, Any], words: str
    ) -> None:
        labels = write_lines(tmp_path / "labels.jsonl", build_examples(12))
        given = {"model": folder, "train": labels, "validation": labels, "out": tmp_path / "out", **SHORT}
        mw.finetune("classification", **given)
        if changes:
            (tmp_path / "out" / "final.json").unlink()
        with pytest.raises(InputError) as refusal:
            mw.finetune("classification", **given | changes)
        assert words in str(refusal.value)
        assert "--out (out= in Python), or add --overwrite (overwrite=True in Python)" in str(refusal.value)


class TestPredict:
    TEXTS: ClassVar = ["the cat likes the green house", "the cat sees the green house"]

    @pytest.fixture
    def answers(self, classifier: Any) -> list[dict[str, Any]]:
        return list(mw.pipeline("classify", classifier.folder)(self.TEXTS))

    @pytest.mark.parametrize(
        "make",
        [
            lambda texts: texts,
            tuple,
            pd.Series,
            lambda texts: [{"text": text} for text in texts],
            lambda texts: pd.DataFrame({"text": texts}),
            lambda texts: datasets.Dataset.from_dict({"text": texts}),
            lambda texts: np.array(texts, dtype=object),
        ],
        ids=["list", "tuple", "series", "dictionaries", "data frame", "dataset", "array"],
    )
    def test_answers_are_a_list_in_the_order_of_the_texts(
        self, classifier: Any, answers: list[dict[str, Any]], make: Callable[[list[str]], Any]
    ) -> None:
        assert mw.predict("classify", classifier.folder, make(self.TEXTS)) == answers

    def test_a_text_a_file_and_a_named_column(
        self, classifier: Any, answers: list[dict[str, Any]], tmp_path: Path
    ) -> None:
        records = [{"body": text} for text in self.TEXTS]
        file = write_lines(tmp_path / "texts.jsonl", records)
        for texts in (file, Path(file), records):
            found = mw.predict("classify", classifier.folder, texts, column="body", console=QUIET)
            assert [one["label"] for one in found] == [one["label"] for one in answers]
        assert mw.predict("classify", classifier.folder, self.TEXTS[0]) == mw.predict(
            "classify", classifier.model, [self.TEXTS[0]], tokenizer=classifier.tokenizer
        )

    def test_answers_go_to_a_file_or_to_a_function(self, classifier: Any, tmp_path: Path) -> None:
        out, seen = str(tmp_path / "answers.jsonl"), []
        assert mw.predict("classify", classifier.folder, self.TEXTS, out=out) is None
        assert mw.predict("classify", classifier.folder, self.TEXTS, write=seen.append) is None
        lines = [json.loads(line) for line in Path(out).read_text(encoding="utf-8").splitlines()]
        assert [line["text"] for line in lines] == [record["text"] for record in seen] == self.TEXTS
        with pytest.raises(InputError, match=r"answers.jsonl"):
            mw.predict("classify", classifier.folder, self.TEXTS, out=out)

    def test_pairs_in_memory(self, folder: str) -> None:
        pairs = [("the cat", "a dog"), ("the road", "the road")]
        expected = mw.pipeline("similarity", folder)(pairs)
        assert mw.predict("similarity", folder, pairs) == expected
        frame = pd.DataFrame(pairs, columns=["a", "b"])
        assert mw.predict("similarity", folder, frame, column="a", second_column="b") == expected

    @pytest.mark.parametrize(
        ("kind", "texts", "options", "words"),
        [
            ("clasify", ["x"], {}, "no kind 'clasify'"),
            ("classify", pd.DataFrame({"a": ["x"], "b": ["y"]}), {}, "no column known to hold text; it has 'a', 'b'"),
            ("classify", ["x"], {"column": "text"}, "--column and --second-column are for files of records"),
            ("classify", ["x"], {"question": "who?"}, "--question is for qa, not classify"),
            ("classify", Path("absent.txt"), {}, "absent.txt"),
            ("classify", [3], {}, "an input is 3"),
            ("classify", 3, {}, "an input is 3"),
        ],
    )
    def test_wrong_input_is_one_sentence(
        self, classifier: Any, kind: str, texts: Any, options: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(InputError, match=words):
            mw.predict(kind, classifier.folder, texts, **options)


def test_a_question_is_asked_of_texts_and_tables(folder: str, tmp_path: Path) -> None:
    asked = [("who sees a road", "the cat sees a road", "the cat")] * 2
    run = mw.finetune("qa", tmp_path / "qa", model=folder, train=asked, validation=asked, **SHORT)
    contexts = ["the cat sees a road", "a dog follows the house"]
    expected = mw.pipeline("qa", run.folder)([("who sees", context) for context in contexts])
    assert mw.predict("qa", run.folder, contexts, question="who sees") == expected
    assert mw.predict("qa", run.folder, [("who sees", context) for context in contexts]) == expected
    frame = pd.DataFrame({"context": contexts, "question": "who sees"})
    assert mw.predict("qa", run.folder, frame) == expected
    assert mw.predict("qa", run.folder, frame[["context"]], question="who sees") == expected


class TestLanguageModel:
    def test_train_returns_the_model_and_resumes_nothing_that_is_finished(
        self, tiny_values: dict[str, Any], tmp_path: Path
    ) -> None:
        tiny_values["data"]["train"] = Path(tiny_values["data"]["train"])
        run = mw.train(tiny_values, {"training": {"max_steps": 3}, "run.name": "short"}, console=QUIET)
        assert run.folder.path == tmp_path / "runs" / "short"
        assert run.figures["steps"] == 3
        assert isinstance(run.model, MaskedLanguageModel)
        with pytest.raises(InputError, match="holds a finished run"):
            mw.pretrain(str(run.folder.config_file), console=QUIET)

    def test_doctor_returns_its_findings(self, tiny_values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("maskwright.runs.doctor.step._MOST_TIMED", 2)
        checkup = mw.doctor(tiny_values, ["training.precision=fp32"])
        assert checkup.verdict in ("OK", "warning")
        with pytest.raises(InputError, match=r"unknown configuration key 'training\.epoch'"):
            mw.doctor(tiny_values, {"training.epoch": 3})

    def test_fill_and_generate_take_names_and_models(self, trained_run: Path) -> None:
        (candidates,) = mw.fill(str(trained_run), "the cat [MASK] the green house", top_k=2)
        assert len(candidates) == 2
        model, tokenizer = mw.MaskedLanguageModel.from_pretrained(trained_run), mw.load_tokenizer(trained_run / "model")
        assert mw.fill(model, "the cat [MASK] the green house", 2, tokenizer=tokenizer) == [candidates]
        for words in ((str(trained_run), "the cat [MASK:2]."), (model, tokenizer, "the cat [MASK:2].")):
            assert mw.generate(*words).startswith("the cat ")
        with pytest.raises(InputError, match="no text to continue"):
            mw.generate(model, tokenizer)

    def test_a_causal_model_continues_texts_by_name_or_in_memory(self, tiny_values: dict[str, Any]) -> None:
        causal = {"training": {"mode": "clm", "max_steps": 2, "precision": "fp32"}}
        run = mw.train(tiny_values, causal, console=QUIET)
        named = mw.generate(run.folder.path, "the cat", max_new_tokens=3)
        assert named.startswith("the cat")
        assert mw.generate(run.model, mw.load_tokenizer(run.folder.model), "the cat", 3) == named

    def test_evaluate_reports_on_models_and_records_in_memory(
        self, trained_run: Path, corpus_file: Path, sentences: list[str]
    ) -> None:
        model, tokenizer = mw.MaskedLanguageModel.from_pretrained(trained_run), mw.load_tokenizer(trained_run / "model")
        named = mw.evaluate(str(trained_run), "mlm", corpus_file)
        given = mw.evaluate(model, "mlm", pd.DataFrame({"text": sentences}), tokenizer=tokenizer)
        assert given.totals == named.totals
        assert given.figures == named.figures
        assert given.models[0].startswith("memory:MaskedLanguageModel-")
        pairs = [{"sentence_good": "the cat sees a road", "sentence_bad": "cat the road sees a"}]
        report = mw.evaluate(trained_run, "minimal-pairs", pairs, against=model, against_tokenizer=tokenizer)
        assert report.totals["pairs"] == 1
        assert report.differences[0].difference == 0
        classes = [
            {"text": text, "label": text.split()[-1]} for text in ("a long road", "the road", "it rains", "he rains")
        ]
        known = mw.evaluate(trained_run, "embeddings", classes, train=pd.DataFrame(classes), neighbors=1)
        assert known.figures[0][0].mean == 1.0  # each text finds itself

    @pytest.mark.parametrize(
        ("suite", "options", "words"),
        [
            ("mlmm", {}, "no suite 'mlmm'; did you mean 'mlm'"),
            ("mlm", {"seeds": 3}, "--seeds is for glue, not mlm"),
            ("cloze", {"word_l2r": True}, "--word-l2r is for pll and minimal-pairs, not cloze"),
            ("glue", {}, "glue reads the folder of its files, not a list"),
            ("mlm", {"tokenizer": "x"}, "tokenizer is for a model in memory"),
        ],
    )
    def test_wrong_input_of_evaluate(self, trained_run: Path, suite: str, options: dict[str, Any], words: str) -> None:
        with pytest.raises(InputError, match=words):
            mw.evaluate(trained_run, suite, [{"text": "x"}], **options)

    def test_export_writes_a_model_in_memory(self, trained_run: Path, sentences: list[str], tmp_path: Path) -> None:
        import maskwright.export.card  # noqa: F401 - from now on the package has the name

        model, tokenizer = mw.MaskedLanguageModel.from_pretrained(trained_run), mw.load_tokenizer(trained_run / "model")
        texts = [{"text": text} for text in sentences[:8]]
        folder = mw.export(model, "hf", out=str(tmp_path / "out"), text=texts, tokenizer=tokenizer, console=QUIET)
        assert folder == tmp_path / "out"
        again = mw.MaskedLanguageModel.from_pretrained(folder).state_dict()
        assert all(torch.equal(tensor, again[name]) for name, tensor in model.state_dict().items())
        with pytest.raises(InputError, match="give the folder to write as out="):
            mw.export(model, tokenizer=tokenizer)
        with pytest.raises(InputError, match="no export to 'onx'; did you mean 'onnx'"):
            mw.export(str(trained_run), "onx")

    def test_adapt_takes_a_model_and_texts_in_memory(
        self, trained_run: Path, sentences: list[str], corpus_file: Path, tmp_path: Path
    ) -> None:
        model, tokenizer = mw.MaskedLanguageModel.from_pretrained(trained_run), mw.load_tokenizer(trained_run / "model")
        words = {"max_steps": 2, "batch_tokens": 256, "precision": "fp32", "device": "cpu"}
        options: dict[str, Any] = {
            "out": str(tmp_path / "adapted"),
            "general": corpus_file,
            "max_forgetting": 9.0,
            "settings": {"training": words, "data.max_length": 32},
            "console": QUIET,
        }
        adapted = mw.adapt(model, pd.DataFrame({"text": sentences}), tokenizer=tokenizer, **options)
        assert adapted.run.figures["steps"] == 2
        assert adapted.exported is not None
        config = mw.load_config(adapted.run.folder.config_file)
        assert Path(str(config.model.from_)).parent == tmp_path / "adapted-inputs"
        with pytest.raises(InputError, match="holds a finished run"):  # the same model and texts, so the same run
            mw.adapt(model, pd.DataFrame({"text": sentences}), tokenizer=tokenizer, **options)
        with pytest.raises(InputError, match="give it as tokenizer="):
            mw.adapt(model, str(corpus_file), out=tmp_path / "other")


def test_prepare_and_advise_take_strings_and_objects(tokenizer: Tokenizer, corpus_file: Path, tmp_path: Path) -> None:
    manifest = mw.prepare(
        str(corpus_file), tokenizer=tokenizer, out=str(tmp_path / "data"), workers=1, max_length=32, console=QUIET
    )
    assert manifest["num_documents"] == 60
    with pytest.raises(InputError, match=r"'training\.epochs=3' has no effect on preparation"):
        mw.prepare(str(corpus_file), tokenizer=tokenizer, out=tmp_path / "x", settings=["training.epochs=3"])
    advice = mw.advise_tokenizer(tokenizer, corpus_file, min_count=5)
    assert advice.before.num_words > 0


def test_published_models_are_listed_and_chosen() -> None:
    chosen = mw.choose_model(domain="biomedical", max_parameters="200M")
    assert chosen.model in mw.list_models()
    assert chosen.model.domain == "biomedical"


def test_strings_are_paths_everywhere(
    trained_run: Path, corpus_file: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    assert mw.train_tokenizer(str(corpus_file), vocab_size=160).backend.to_str() == tokenizer.backend.to_str()
    config = mw.Config(run={"out": tmp_path}, data={"train": corpus_file}, tokenizer={"path": trained_run})
    assert (config.run.out, config.data.train) == (str(tmp_path), str(corpus_file))
    config.run.out = tmp_path / "runs"  # type: ignore[assignment]
    assert config.run.out == str(tmp_path / "runs")
    config.save(str(tmp_path / "config.yaml"))
    assert mw.load_config(str(tmp_path / "config.yaml")) == config
    model = mw.MaskedLanguageModel.from_pretrained(str(trained_run))
    model.load_weights(str(trained_run / "model"))
    trainer = mw.Trainer(model)
    checkpoint = trainer.save_checkpoint(str(tmp_path / "checkpoints"))
    trainer.load_checkpoint(str(checkpoint))
    trainer.continue_from(str(checkpoint))
