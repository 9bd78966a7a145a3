"""Files of tagged words: every scheme is known, comments are told from words, and broken rows are named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from maskwright.errors import InputError
from maskwright.tasks.config import TaskConfig, build_task_config
from maskwright.tasks.kinds import check_own_settings
from maskwright.tasks.ner.examples import TaggedFile, read_tagged_file
from maskwright.tasks.ner.tags import (
    Scheme,
    Tag,
    convert_tags,
    find_break,
    find_entities,
    list_classes,
    read_classes_as_tags,
)
from maskwright.tasks.ner.token_classification import TokenClassification


def build_config(**values: Any) -> TaskConfig:
    return build_task_config({"task": "ner", "model": "m", "train": "t", "validation": "v", **values})


def read(path: Path, text: str, **values: Any) -> TaggedFile:
    path.write_text(text, encoding="utf-8")
    return read_tagged_file(path, build_config(**values))


def show(file: TaggedFile) -> list[tuple[str, str]]:
    """Each sentence as its words and its tags."""
    return [(" ".join(one.words), " ".join(map(str, one.tags))) for one in file.examples]


@pytest.mark.parametrize("between", ["\t", " ", "   ", "\tNNP\tx\t"])
def test_the_word_is_the_first_column_and_the_tag_the_last(tmp_path: Path, between: str) -> None:
    lines = ["-DOCSTART- -X- O", "", "Ada B-PER", "Lovelace I-PER", "", " ", "", "in O", "London B-LOC"]
    rows = [line.replace(" ", between) if line[:1].isalpha() else line for line in lines]
    file = read(tmp_path / "a.conll", "\r\n".join(rows))
    assert show(file) == [("Ada Lovelace", "B-PER I-PER"), ("in London", "O B-LOC")]
    assert file.describe() == f"2 sentences of {tmp_path / 'a.conll'}, 4 words, 2 entities, BIO tags"
    assert file.examples[1].place_of(1) == f"{tmp_path / 'a.conll'}:9"


def test_a_document_start_ends_a_sentence(tmp_path: Path) -> None:
    file = read(tmp_path / "a.conll", "Ada B-PER\n-DOCSTART- O\nLondon B-LOC\n")
    assert [words for words, _ in show(file)] == ["Ada", "London"]


def test_comments_are_left_out_and_counted_and_hash_words_are_kept(tmp_path: Path) -> None:
    text = "# id 7 domain=news\n#\tO\n#Ada\tB-PER\n# text = Ada\n\n#\n! \tO\n"
    file = read(tmp_path / "a.conll", text)
    assert show(file) == [("# #Ada", "O B-PER"), ("!", "O")]
    assert file.describe().endswith("; 3 comments left out")


def test_hashtags_are_words_where_tags_are_bare_types(tmp_path: Path) -> None:
    file = read(tmp_path / "a.conll", "#Obama PER\nspoke O\n# id 7\nin O\n#Paris LOC\n")
    assert show(file) == [("#Obama spoke in #Paris", "PER O O LOC")]


def test_words_may_hold_blanks_between_tabs_and_odd_spaces_between_blanks(tmp_path: Path) -> None:
    assert show(read(tmp_path / "a.tsv", "New York\tB-LOC\n"))[0][0] == "New York"
    assert read(tmp_path / "b.txt", "New\u00a0York B-LOC\n").examples[0].words == ("New\u00a0York",)


def test_compressed_files_and_json_lines_are_read(tmp_path: Path) -> None:
    packed = tmp_path / "a.conll.gz"
    packed.write_bytes(gzip.compress(b"Ada B-PER\n"))
    assert show(read_tagged_file(packed, build_config())) == [("Ada", "B-PER")]
    records = [{"tokens": ["Ada", "sees"], "ner_tags": ["B-PER", "O"]}, {"tokens": [], "ner_tags": []}]
    text = "".join(json.dumps(record) + "\n" for record in records)
    assert show(read(tmp_path / "b.jsonl", text)) == [("Ada sees", "B-PER O")]
    text = json.dumps({"w": ["Ada"], "tags": ["O"], "gold": ["B-PER"]})
    file = read(tmp_path / "c.jsonl", text, text_column="w", label_column="gold")
    assert show(file) == [("Ada", "B-PER")]


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        ("O I-PER I-PER I-LOC", "IO"),
        ("PER PER O person-actor", "IO"),
        ("B-PER I-PER B-PER O", "BIO"),
        ("I-PER B-PER O I-LOC I-LOC", "IOB1"),
        ("B-PER I-PER E-PER S-LOC S-LOC O", "BIOES"),
        ("B-PER L-PER U-LOC O", "BILOU"),
        ("S-PER", "BIOES"),
    ],
)
def test_the_scheme_is_found_and_said(tmp_path: Path, tags: str, scheme: str) -> None:
    file = read(tmp_path / "a.conll", "".join(f"w {tag}\n" for tag in tags.split()))
    assert file.scheme.value == scheme
    assert f", {scheme} tags" in file.describe()
    assert show(file)[0][1] == tags


@pytest.mark.parametrize("wanted", ["io", "bio", "bioes"])
@pytest.mark.parametrize(
    "tags", ["I-PER I-PER B-PER O I-LOC", "B-PER L-PER U-PER O U-LOC", "B-PER I-PER B-PER O I-LOC"]
)
def test_tags_of_any_scheme_are_converted_with_their_entities(tmp_path: Path, tags: str, wanted: str) -> None:
    file = read(tmp_path / "a.conll", "".join(f"w {tag}\n" for tag in tags.split()), tag_scheme=wanted)
    expected = {
        "io": "I-PER I-PER I-PER O I-LOC",
        "bio": "B-PER I-PER B-PER O B-LOC",
        "bioes": "B-PER E-PER S-PER O S-LOC",
    }
    assert show(file)[0][1] == expected[wanted]
    assert f"converted to {wanted.upper()}" in file.describe()
    assert ("; 1 entities become one with the one before" in file.describe()) == (wanted == "io")


def test_conversion_keeps_the_entities_of_every_row_and_the_rules_of_its_scheme() -> None:
    rows = [["B-PER", "I-PER", "I-LOC", "O", "B-LOC", "B-LOC"], ["I-LOC"], ["O"], ["B-PER", "I-LOC", "I-LOC"]]
    for row in map(read_classes_as_tags, rows):
        for scheme in (Scheme.BIO, Scheme.BIOES):
            converted = convert_tags(row, scheme)
            assert find_entities(converted) == find_entities(row)
            assert find_break(converted, scheme) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Ada B-PER\nsees\n", ":2 has one column, 'sees'; expected a word and its tag"),
        ("Ada B-PER\nsees VB O\n", ":2 has 3 columns, the rows before have 2"),
        ("Ada\tB-PER\n\tO\n", ":2 has no word"),
        ("Ada X-\n", ":1 has the tag 'X-'; expected O, or one of B, I, E, S, L, U and a type"),
        ("Ada B-\n", ":1 has the tag 'B-'"),
        ("Ada Q-PER\n", ":1 has the tag 'Q-PER'"),
        ("Ada B-PER\nin O\nLondon LOC\n", ":3 has the tag 'LOC' without a prefix, but .*:1 has 'B-PER'"),
        ("Ada B-PER\n\nin O\nLondon I-LOC\n", r":4 has I-LOC behind O, which BIO tags do not have; repair it, or let"),
        ("Ada B-PER\nis O\n\nBob S-PER\n", ":2 has O behind B-PER, which BIOES tags do not have"),
        ("Ada I-PER\nBob E-PER\n", ":1 has I-PER behind O, which BIOES tags do not have"),
        ("Bob S-PER\nAda B-PER\n", ":2 has B-PER at the end of its sentence, which BIOES tags do not have"),
        ("Ada E-PER\n\nBob U-PER\n", ":1 has E-PER behind O, which BIOES tags do not have, and 1 more sentences"),
        ("Ada O\nsees O\n", "has no entity: all of its 2 words are tagged O"),
        ("", "holds no sentence"),
        ("\n# a comment\n-DOCSTART- O\n", "holds no sentence"),
    ],
)
def test_broken_files_are_refused_with_their_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        read(tmp_path / "a.conll", text)
    assert str(tmp_path / "a.conll") in str(error.value)
    assert "\n" not in str(error.value)


def test_irregular_tags_are_taken_as_the_conll_script_reads_them_when_converted(tmp_path: Path) -> None:
    file = read(tmp_path / "a.conll", "Ada B-PER\n\nin O\nLondon I-LOC\n", tag_scheme="bio")
    assert show(file)[1] == ("in London", "O B-LOC")
    assert "irregular tags converted to BIO" in file.describe()


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"words": ["a", "b"], "tags": ["O"]}, ":1 has 2 words and 1 tags"),
        ({"words": ["a"], "tags": [3]}, ":1 has 3 in 'tags'; expected words, and tags such as B-PER"),
        ({"words": "a b", "tags": ["O"]}, ":1 has a str in 'words'; expected a list"),
        ({"words": ["a", " "], "tags": ["O", "O"]}, ":1 has an empty word or tag in 'words'"),
        ({"text": "a", "tags": ["O"]}, "has none of the columns words, tokens; it has text, tags: .* --text-column"),
    ],
)
def test_broken_records_are_refused_with_their_line(tmp_path: Path, record: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read(tmp_path / "a.jsonl", json.dumps(record))


def test_columns_and_files_that_have_no_meaning_here_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--text-column is for \.jsonl; .* is read as CoNLL"):
        read(tmp_path / "a.conll", "Ada B-PER\n", text_column="x")
    with pytest.raises(InputError, match="--second-column is for pairs of texts"):
        read(tmp_path / "a.conll", "Ada B-PER\n", second_column="x")
    with pytest.raises(
        InputError, match=r"is a \.csv file; words and tags are read from CoNLL files, \.jsonl and \.parquet"
    ):
        read(tmp_path / "a.csv", "Ada,B-PER\n")
    with pytest.raises(InputError, match=r"has no column 'x'; it has words, tags: choose one with --label-column"):
        read(tmp_path / "a.jsonl", json.dumps({"words": ["a"], "tags": ["O"]}), label_column="x")


def test_a_tag_scheme_is_one_of_three_and_only_for_ner() -> None:
    with pytest.raises(InputError, match="tag_scheme"):
        build_config(tag_scheme="iob3")
    with pytest.raises(InputError, match="--tag-scheme is for ner; pairs has no use for it: leave it out"):
        check_own_settings(build_config(task="pairs", tag_scheme="bio"))
    check_own_settings(build_config(tag_scheme="bio"))


def test_a_held_out_file_of_another_scheme_is_refused(tmp_path: Path) -> None:
    train = read(tmp_path / "a.conll", "Ada B-PER\n")
    train.check_same_form(read(tmp_path / "b.conll", "Ada B-PER\nLovelace I-PER\n"))
    with pytest.raises(InputError, match=r"b.conll:2 has I-PER behind O, but .*a.conll has BIO tags, which have none"):
        train.check_same_form(read(tmp_path / "b.conll", "sees O\nAda I-PER\n"))


def test_all_tags_of_the_types_of_training_are_classes_and_others_are_refused(tmp_path: Path) -> None:
    train = read(tmp_path / "a.conll", "Ada B-PER\nsees O\n\nLondon B-LOC\n")
    task = TokenClassification.from_examples(train.examples, build_config())
    assert task.classes == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    task.check_examples(read(tmp_path / "b.conll", "New B-LOC\nYork I-LOC\n").examples)
    with pytest.raises(
        InputError, match=r"b.conll:3 has the label 'B-ORG', which no training example has; known are O"
    ):
        task.check_examples(read(tmp_path / "b.conll", "Ada B-PER\n\nACM B-ORG\n").examples)


def test_classes_without_a_word_get_a_weight_too(tmp_path: Path) -> None:
    train = read(tmp_path / "a.conll", "Ada B-PER\nsees O\nLondon O\n")
    task = TokenClassification.from_examples(train.examples, build_config(class_weights="balanced"))
    assert task.class_weights is not None
    assert task.class_weights[1] == 2 * task.class_weights[0]
    assert len(task.class_weights) == 3


def test_bare_types_and_files_without_o_keep_their_names() -> None:
    assert list_classes([Tag("", "NOUN"), Tag("", "VERB")]) == ["NOUN", "VERB"]
