"""Entities are counted as the CoNLL script counts them, and as nervaluate does."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskwright.batch import IGNORED_LABEL
from maskwright.errors import InputError
from maskwright.tasks.ner.tags import Entity, find_entities, read_classes_as_tags
from maskwright.tasks.ner.token_classification import EntityCounter, TokenClassification, compute_entity_scores

SCHEMES = {
    "io": ["O", "I-PER", "I-LOC"],
    "bare": ["PER", "O", "LOC"],
    "bio": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"],
    "bioes": ["O", *(f"{letter}-{name}" for name in ("PER", "LOC") for letter in "BIES")],
    "bilou": ["O", *(f"{letter}-{name}" for name in ("PER", "LOC") for letter in "BILU")],
}
TYPES = ("PER", "LOC")


def score_as_conlleval(rows: Sequence[tuple[Sequence[str], Sequence[str]]]) -> dict[str, list[int]]:
    """Hits, predictions and labels of each type, in the words of the script: a walk over both columns side by side."""

    def split(tag: str) -> tuple[str, str]:
        letter, _, name = tag.partition("-")
        letter = {"L": "E", "U": "S"}.get(letter, letter)
        return (letter, name) if name or tag == "O" else ("I", tag)

    def ends(before: tuple[str, str], tag: tuple[str, str]) -> bool:
        if before[0] in ("E", "S"):
            return True
        if before[0] in ("B", "I") and tag[0] in ("B", "S", "O"):
            return True
        return before[0] != "O" and before[1] != tag[1]

    def begins(before: tuple[str, str], tag: tuple[str, str]) -> bool:
        if tag[0] in ("B", "S"):
            return True
        if before[0] in ("E", "S", "O") and tag[0] in ("E", "I"):
            return True
        return tag[0] != "O" and before[1] != tag[1]

    counts = {name: [0, 0, 0] for name in TYPES}
    for guessed, right in rows:
        open_type, last_guess, last_right = "", ("O", ""), ("O", "")
        for guess, gold in zip([*map(split, guessed), ("O", "")], [*map(split, right), ("O", "")], strict=True):
            if open_type:
                guess_ends, gold_ends = ends(last_guess, guess), ends(last_right, gold)
                if guess_ends and gold_ends and last_guess[1] == last_right[1]:
                    counts[open_type][0] += 1
                    open_type = ""
                elif guess_ends != gold_ends or guess[1] != gold[1]:
                    open_type = ""
            guess_begins, gold_begins = begins(last_guess, guess), begins(last_right, gold)
            if guess_begins and gold_begins and guess[1] == gold[1]:
                open_type = gold[1]
            if guess_begins:
                counts[guess[1]][1] += 1
            if gold_begins:
                counts[gold[1]][2] += 1
            last_guess, last_right = guess, gold
    return counts


@st.composite
def draw_rows(draw: st.DrawFn) -> tuple[list[str], list[tuple[list[str], list[str]]]]:
    """Classes, and rows of any of them: most break every scheme."""
    classes = SCHEMES[draw(st.sampled_from(sorted(SCHEMES)))]
    generator = random.Random(draw(st.integers(0, 1 << 20)))
    rows = []
    for length in draw(st.lists(st.integers(1, 12), min_size=1, max_size=6)):
        right = generator.choices(classes, k=length)
        guessed = [tag if generator.random() < 0.7 else generator.choice(classes) for tag in right]
        rows.append((guessed, right))
    return classes, rows


def count(classes: list[str], rows: Sequence[tuple[Sequence[str], Sequence[str]]]) -> dict[str, list[int]]:
    numbers = {name: number for number, name in enumerate(classes)}
    width = max(len(row) for row, _ in rows)
    guessed, right = torch.full((2, len(rows), width), IGNORED_LABEL)
    for place, pair in enumerate(rows):
        for side, names in zip((guessed, right), pair, strict=True):
            side[place, : len(names)] = torch.tensor([numbers[name] for name in names])
    counter = EntityCounter(classes)
    # What is predicted where nothing is asked must not count.
    is_asked = right != IGNORED_LABEL
    figures = counter(guessed.masked_fill(~is_asked, len(classes) - 1), right, is_asked)
    return {name: figures[:, counter.types.index(name)].tolist() for name in TYPES}


@settings(max_examples=400, deadline=None)
@given(draw_rows())
def test_counts_are_those_of_the_conll_script_for_rows_of_any_tags(
    drawn: tuple[list[str], list[tuple[list[str], list[str]]]],
) -> None:
    classes, rows = drawn
    assert count(classes, rows) == score_as_conlleval(rows)


@settings(max_examples=100, deadline=None)
@given(draw_rows())
def test_the_walk_over_a_row_and_the_tensors_find_the_same_entities(
    drawn: tuple[list[str], list[tuple[list[str], list[str]]]],
) -> None:
    classes, rows = drawn
    for _, right in rows:
        numbers = torch.tensor([[classes.index(name) for name in right]])
        (found,) = EntityCounter(classes).list_entities(numbers, torch.ones_like(numbers, dtype=torch.bool))
        assert found == find_entities(read_classes_as_tags(right))


@settings(max_examples=100, deadline=None)
@given(draw_rows())
def test_hits_are_those_of_nervaluates_strict_scores(
    drawn: tuple[list[str], list[tuple[list[str], list[str]]]],
) -> None:
    pytest.importorskip("nervaluate")
    _, rows = drawn
    guessed, right = ([find_entities(read_classes_as_tags(row)) for row in side] for side in zip(*rows, strict=True))
    hits, predicted, actual = (sum(one) for one in zip(*score_as_conlleval(rows).values(), strict=True))
    strict = compute_entity_scores(right, guessed, TYPES)["strict_f1"]
    assert strict == pytest.approx(2 * hits / (predicted + actual) if hits else 0.0)


def test_scores_of_parts_of_entities_are_nervaluates_own() -> None:
    """Against its reader of BIO tags, which finds the entities by itself."""
    evaluator = pytest.importorskip("nervaluate.evaluator")
    right = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-LOC", "I-LOC"], ["O", "O", "O"]]
    guessed = [["B-PER", "O", "O", "B-LOC"], ["O", "B-PER", "I-PER"], ["O", "B-PER", "O"]]
    overall = evaluator.Evaluator(right, guessed, tags=list(TYPES), loader="list").evaluate()["overall"]
    rows = [[find_entities(read_classes_as_tags(row)) for row in side] for side in (right, guessed)]
    scores = compute_entity_scores(rows[0], rows[1], TYPES)
    assert scores == {
        "strict_f1": pytest.approx(overall["strict"].f1),
        "exact_f1": pytest.approx(overall["exact"].f1),
        "partial_f1": pytest.approx(overall["partial"].f1),
        "type_f1": pytest.approx(overall["ent_type"].f1),
    }
    assert scores["strict_f1"] == pytest.approx(2 / 7)
    assert scores["exact_f1"] == pytest.approx(4 / 7)


def test_rows_without_entities_score_nothing() -> None:
    pytest.importorskip("nervaluate")
    assert set(compute_entity_scores([[]], [[]], TYPES).values()) == {0.0}


def test_metrics_add_up_over_batches() -> None:
    task = TokenClassification(SCHEMES["bio"])
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 5, (6, 2, 9, 2), generator=generator)
    targets[:, :, 6:] = IGNORED_LABEL
    logits = torch.randn(6, 2, 9, 5, generator=generator)

    def add(parts: Sequence[slice]) -> list[float]:
        sums = [task.loss_sums(logits[part], targets[part]) for part in parts]
        return torch.stack([torch.cat([one.losses, one.counts, one.figures]) for one in sums]).sum(0).tolist()

    whole, halves = add([slice(0, 6)]), add([slice(0, 1), slice(1, 6)])
    assert halves == pytest.approx(whole)
    metrics = task.compute_metrics(whole)
    per_type = task.score_classes(whole)
    assert list(per_type) == ["PER", "LOC"]
    assert metrics["accuracy"] == pytest.approx(float((logits.argmax(-1) == targets[..., 1])[:, :, :6].double().mean()))
    assert sum(one["examples"] for one in per_type.values()) > 0
    assert metrics["macro_f1"] == pytest.approx(sum(one["f1"] for one in per_type.values()) / 2)
    assert min(metrics["precision"], metrics["recall"]) <= metrics["f1"] <= max(metrics["precision"], metrics["recall"])


@pytest.mark.parametrize(
    ("tags", "entities"),
    [
        (["I-PER", "I-PER", "B-PER"], [Entity("PER", 0, 2), Entity("PER", 2, 3)]),
        (["O", "I-PER", "I-LOC"], [Entity("PER", 1, 2), Entity("LOC", 2, 3)]),
        (["S-PER", "S-PER", "B-LOC", "E-LOC"], [Entity("PER", 0, 1), Entity("PER", 1, 2), Entity("LOC", 2, 4)]),
        (["B-PER", "L-PER", "L-PER"], [Entity("PER", 0, 2), Entity("PER", 2, 3)]),
    ],
)
def test_entities_of_rows(tags: list[str], entities: list[Entity]) -> None:
    assert find_entities(read_classes_as_tags(tags)) == entities


def test_classes_that_are_no_prefixed_tags_are_types() -> None:
    tags = read_classes_as_tags(["O", "E-mail", "Person", "B-LOC"])
    assert [(tag.letter, tag.type) for tag in tags] == [("O", ""), ("", "E-mail"), ("", "Person"), ("B", "LOC")]


def test_classes_without_a_type_are_refused() -> None:
    with pytest.raises(InputError, match="the classes are O; expected at least one type of entity beside O"):
        TokenClassification(["O"])
