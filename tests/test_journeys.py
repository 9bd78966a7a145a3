"""Every documented command is run by `make journeys` or has a reason why not, and finds its files there."""

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from journeys import files
from journeys.__main__ import run_all
from journeys.documents import Documented, list_documented, list_unbound, read_page
from journeys.files import read_builtin, write_files
from journeys.plan import Journey, build_plan, find_made_names, select
from journeys.rules import MADE, RULES
from journeys.running import JourneyError, Workshop, judge

ROOT = Path(__file__).parents[1]
DEVICES = ("cpu", "gpu")
INPUT = re.compile(
    r"(?<![\w./*-])(?:runs/[\w-]+|[\w*-][\w./*-]*\.(?:txt|jsonl|json|csv|tsv|conll|yaml|parquet|bz2|zst))\b"
)
OUTPUT = re.compile(r"(?:--out |out=\"|save\(\"|--json |(?:--json )?> |cp \S+ |prepare wiki \S+ )([\w./-]+)")


@pytest.fixture(scope="module")
def documented() -> list[Documented]:
    return list_documented(ROOT)


@pytest.fixture(scope="module")
def plan(documented) -> Callable[[str], list[Journey]]:
    """That of a device, made once for all tests: nothing in it is changed."""
    return functools.cache(lambda device: build_plan(documented, device, seconds=1))


@pytest.fixture(scope="module")
def small_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of the built-in corpus, of which there is little here."""
    sentence = "The list of page {} holds a tuple, and the function returns a dictionary of what it found there."
    documents = ["\n".join([sentence.format(number)] * 3 + ["It reads a file."]) for number in range(400)]
    folder = tmp_path_factory.mktemp("journeys")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "read_python_documentation", lambda: documents)
        write_files(read_builtin(), folder)
    return folder


@pytest.mark.parametrize("device", DEVICES)
def test_everything_documented_is_run_or_has_a_reason(documented, plan, device):
    journeys = plan(device)
    places = sorted(place for journey in journeys for place in journey.places if place != "made for others")
    assert places == sorted(one.place for one in documented)
    assert len([one for one in journeys if not one.skip]) > 100


@pytest.mark.parametrize("device", DEVICES)
def test_what_a_command_reads_is_there(plan, small_files, device):
    written = {str(path.relative_to(small_files)) for path in small_files.rglob("*") if path.is_file()}
    for journey in plan(device):
        if journey.skip:
            continue
        whole = "\n".join([*journey.before, journey.text, journey.settings])
        made = {*OUTPUT.findall(whole), *MADE, "settings.yaml"}
        for name in INPUT.findall(whole):
            name = name.rstrip(".")
            is_there = name in made or any(Path(one).match(name) for one in written)
            assert is_there or (ROOT / name).is_file(), f"{journey.places}: nothing makes {name} (journeys/files.py)"


def test_no_rule_is_stale(plan):
    applied = [rule for device in DEVICES for one in plan(device) for rule in one.rules]
    assert [rule.pattern for rule in RULES if rule not in applied] == []


def test_what_others_need_is_made_before_them(plan):
    used = set()
    for device in DEVICES:
        journeys = plan(device)
        places = {journey.key: place for place, journey in enumerate(journeys)}
        for journey in journeys:
            used.update(journey.needs)
            for key, _ in journey.needs.values():
                assert places[key] < places[journey.key]
                assert not journeys[places[key]].skip
    assert used == set(MADE)


def test_a_page_is_read(tmp_path):
    page = """# Title
```sh
maskwright train a.yaml \\
    run.name=x   # the rest is a comment
# a comment
maskwright fill x "a [MASK]"
```
Then `maskwright eval RUN
mlm x.txt`, `maskwright` and `run.name`.

```
$ maskwright models choose --length 9
error: no
$ maskwright models list
```

```python
import json
value = json.loads("1")
```

```python
print(value)
```

```yaml
data: {train: x}
```
"""
    found = read_page(page, "docs/x.md")
    assert [(one.kind, one.text, one.place) for one in found] == [
        ("shell", "maskwright train a.yaml run.name=x", "docs/x.md:3"),
        ("shell", 'maskwright fill x "a [MASK]"', "docs/x.md:6"),
        ("shell", "maskwright models choose --length 9", "docs/x.md:12"),
        ("shell", "maskwright models list", "docs/x.md:14"),
        ("python", 'import json\nvalue = json.loads("1")\n', "docs/x.md:18"),
        ("python", "print(value)\n", "docs/x.md:23"),
        ("yaml", "data: {train: x}\n", "docs/x.md:27"),
        ("shell", "maskwright eval RUN mlm x.txt", "docs/x.md:8"),
    ]
    assert [one.is_refused for one in found] == [False, False, True, False, False, False, False, False]
    assert list_unbound(found[5].text) == {"value"}
    snippet = build_plan([found[5]], "cpu", seconds=1)[0]
    assert snippet.text == 'import json\nvalue = json.loads("1")\n\nprint(value)\n'


def test_a_snippet_with_an_unknown_name_is_refused():
    with pytest.raises(LookupError, match="what gadget is"):
        build_plan([Documented("python", "gadget.run()\n", "docs/x.md:1", "docs/x.md")], "cpu", seconds=1)


def test_a_snippet_runs_earlier_ones_for_their_names_alone_and_under_the_same_rules():
    first = 'import maskwright as mw\n\nrun = mw.train(None, {"data.train": "corpus.txt", "run.name": "mine"})\n'
    alone = Documented("python", "print(mw.__version__)", "docs/python.md:9", "docs/python.md", (first,))
    needy = Documented("python", "print(mw.__version__, run)", "docs/python.md:9", "docs/python.md", (first,))
    texts = [
        next(one.text for one in build_plan([some], "cpu", 5) if "__version__" in one.text) for some in (alone, needy)
    ]
    assert texts[0] == "import maskwright as mw\nprint(mw.__version__)"
    assert '"run.name": "typed", "training.max_seconds": 5' in texts[1]


def test_a_small_budget_is_too_short_to_learn(documented):
    def list_learning(seconds):
        return [journey for journey in build_plan(documented, "cpu", seconds) if journey.learns]

    assert len(list_learning(seconds=15)) > 5
    assert list_learning(seconds=14) == []


def test_a_selection_has_all_that_it_needs(plan):
    chosen = [journey.text for journey in select(plan("cpu"), "predict ner runs/wnut")]
    assert chosen[-1].startswith("maskwright predict ner runs/wnut")
    assert chosen[0].startswith("maskwright train data.train=corpus.txt run.name=mine")
    assert chosen[1].startswith("maskwright finetune ner")
    assert len(chosen) == 3


def test_names_that_a_command_writes_are_not_needed():
    assert find_made_names(Journey("maskwright prepare x.txt --tokenizer tok --out data/corpus", "shell", [])) == [
        "tok"
    ]
    assert find_made_names(Journey("maskwright predict ner runs/mine-ner x", "shell", [])) == ["runs/mine-ner"]
    recipe = find_made_names(Journey("maskwright train long_context data.train=x", "shell", []))
    assert recipe == ["runs/modern-base"]


def test_a_failure_is_shown_and_holds_up_only_those_who_need_it(tmp_path, small_files, capsys):
    workshop = Workshop(tmp_path / "work", small_files, timeout_s=60, threads=1)
    good = Journey("maskwright --version && mkdir runs runs/x && cp corpus.txt runs/x", "shell", ["a:1"])
    bad = Journey("maskwright train absent.yaml", "shell", ["a:2"])
    used = "test -s runs/mine/corpus.txt && test -s mined.txt && touch runs/mine/../mine-hf && ls runs"
    user = Journey(
        used, "shell", ["a:3"], needs={"runs/mine": (good.key, "runs/x"), "mined.txt": (good.key, "runs/x/corpus.txt")}
    )
    waiting = Journey("true", "shell", ["a:4"], needs={"x": (bad.key, "x")})
    refused = Journey(bad.text, "shell", ["a:5"], settings="# the error is documented", is_refused=True)
    outcomes = run_all([good, bad, user, waiting, refused], workshop, jobs=2, keep=False)
    assert [one.status for one in outcomes] == ["ok", "FAILED", "ok", "skipped", "ok"]
    assert outcomes[2].figure == "mine-hf"  # beside its own copy
    assert outcomes[1].figure == "exit code 2, expected 0"
    assert "absent" in outcomes[1].tail
    assert outcomes[3].figure == "needs x, which failed"
    assert "    | error: " in capsys.readouterr().out


def test_a_command_that_does_not_end_is_stopped(tmp_path, small_files):
    workshop = Workshop(tmp_path / "work", small_files, timeout_s=0.2, threads=None)
    outcome = workshop.run(Journey("sleep 60 | cat", "shell", []), tmp_path / "work/sleep", {})
    assert (outcome.status, outcome.figure) == ("FAILED", "did not end in time")
    assert outcome.seconds < 60


@pytest.mark.parametrize(
    ("final", "learns", "wrong"),
    [
        ({"loss": 2.0, "train_loss": 2.0}, True, ""),
        ({"loss": 5.0, "train_loss": 2.0}, False, ""),
        ({"loss": 5.0, "train_loss": 2.0}, True, "no better than unigram 4.000"),
        ({"loss": 9.0, "train_loss": 9.0}, False, "above ln"),
        ({"loss": 46.0, "generator_loss": 3.0, "train_loss": 46.0}, True, ""),
        ({"loss": float("nan"), "train_loss": 2.0}, False, "loss is nan"),
        ({"loss": 2.0, "loss_before": 1.0, "train_loss": 2.0}, True, "no better than before 1.000"),
        ({"task": "ner", "metric": "f1", "f1": 0.0}, True, "no better than the baseline"),
        ({"task": "ner", "metric": "f1", "f1": None}, False, "f1 is None"),
        ({"task": "pairs", "metric": "accuracy", "accuracy": 0.5}, True, "no better than the baseline's 0.750"),
        ({"task": "pairs", "metric": "accuracy", "accuracy": 0.8}, True, ""),
    ],
)
def test_a_run_is_judged_by_its_figures(tmp_path, final, learns, wrong):
    run = tmp_path / "runs/mine"
    (run / "model").mkdir(parents=True)
    (run / "model/config.json").write_text(json.dumps({"vocab_size": 1000}))
    classes = {"a": {"examples": 3}, "b": {"examples": 1}} if final.get("task") == "pairs" else {}
    (run / "final.json").write_text(json.dumps({"unigram_loss": 4.0, "steps": 3, "classes": classes} | final))
    journey = Journey("maskwright train", "shell", [], learns=learns)
    user = Journey("maskwright fill", "shell", [], needs={"runs/mine": ("", "")})
    assert judge(user, tmp_path, 0, "list\n", "") == "list"  # the figures are not of this journey
    if wrong:
        with pytest.raises(JourneyError, match=re.escape(wrong)):
            judge(journey, tmp_path, 0, "", "")
    else:
        assert judge(journey, tmp_path, 0, "", "").startswith(("loss", "accuracy"))


@pytest.mark.parametrize(
    ("printed", "said"), [("loss nan", ""), ('{"loss": NaN}', ""), ("done", "Traceback (most recent call last):\n")]
)
def test_what_is_printed_is_judged(tmp_path, printed, said):
    with pytest.raises(JourneyError):
        judge(Journey("maskwright eval", "shell", []), tmp_path, 0, printed, said)
    assert judge(
        Journey("maskwright eval", "shell", []), tmp_path, 0, "NaN steps, an info of nanoseconds: 3\n", ""
    ) == ("NaN steps, an info of nanoseconds: 3")
