"""Labelled files: what is read of them, what is guessed, what is refused."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from maskwright.errors import InputError, InputWarning
from maskwright.tasks.examples import ColumnNames, Example, ExampleFile, choose_columns, read_examples
from maskwright.tasks.features import featurize
from maskwright.tasks.labels import collect_classes, read_label
from maskwright.tasks.tables import read_table
from maskwright.text.tokenizer.tokenizer import Tokenizer

PUBLISHED = Path(__file__).parents[2].parent / "shared" / "data" / "tasks.tar.xz"
GUESSED = ColumnNames()


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def read(path: Path, **options: Any) -> ExampleFile:
    return read_examples(path, GUESSED, **options)


def listed(file: ExampleFile) -> list[tuple[str, str | None, Any]]:
    return [(one.text, one.second, one.label) for one in file.examples]


def test_a_comma_separated_file_may_quote_commas_quotes_and_newlines(tmp_path: Path) -> None:
    file = read(write(tmp_path / "a.csv", 'text,label\n"one, ""two""\nthree",yes\nfour,no\n'))
    assert listed(file) == [('one, "two"\nthree', None, "yes"), ("four", None, "no")]
    assert file.examples[1].place.endswith("a.csv:4")


def test_parquet_is_read_with_its_columns(tmp_path: Path) -> None:
    records = [{"text": "one", "label": 1}, {"text": "two", "label": 0}]
    parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "a.parquet")
    assert listed(read(tmp_path / "a.parquet")) == [("one", None, 1), ("two", None, 0)]
    (tmp_path / "b.parquet").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"b\.parquet is damaged or no Parquet file"):
        read(tmp_path / "b.parquet")


def test_a_glob_is_all_of_its_files_in_order(tmp_path: Path) -> None:
    write(tmp_path / "train-2.tsv", "label\ttext\nyes\tthree\n")
    write(tmp_path / "train-1.tsv", "text\tlabel\none\tyes\ntwo\tno\n")
    write(tmp_path / "other.tsv", "a\tb\nx\ty\n")
    file = read(tmp_path / "train-*.tsv")
    assert listed(file) == [("one", None, "yes"), ("two", None, "no"), ("three", None, "yes")]
    assert [example.place.rpartition("/")[2] for example in file.examples] == [
        "train-1.tsv:2",
        "train-1.tsv:3",
        "train-2.tsv:2",
    ]
    with pytest.raises(InputError, match=r"other\.tsv has the columns a, b, and .*train-1\.tsv text, label"):
        read(tmp_path / "*.tsv")
    with pytest.raises(InputError, match="holds no file that can be read"):
        read(tmp_path / "test-*.tsv")


def test_a_name_with_brackets_is_a_file_where_there_is_one(tmp_path: Path) -> None:
    assert listed(read(write(tmp_path / "a[1].tsv", "text\tlabel\none\tyes\n"))) == [("one", None, "yes")]


def test_a_field_may_be_as_long_as_a_document(tmp_path: Path) -> None:
    text = "word " * 40_000
    (example,) = read(write(tmp_path / "a.csv", f'text,label\n"{text}",x\n')).examples
    assert example.text == text.strip()


def test_quotes_of_a_tab_separated_file_are_text(tmp_path: Path) -> None:
    text = '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t2\t3\t" The pie\tA pie "\r\n0\t4\t5\tx"\ty\r\n'
    file = read(write(tmp_path / "msr.tsv", text))
    assert listed(file) == [('" The pie', 'A pie "', "1"), ('x"', "y", "0")]


def test_cola_has_no_header(tmp_path: Path) -> None:
    file = read(write(tmp_path / "cola.tsv", "gj04\t1\t\tIt works.\ngj04\t0\t*\tIt work.\n"))
    assert listed(file) == [("It works.", None, "1"), ("It work.", None, "0")]


def test_the_sts_benchmark_has_tabs_no_header_and_now_and_then_more_fields(tmp_path: Path) -> None:
    lines = (
        'main-captions\tMSRvid\t2012\t1\t5.000\tA "plane", off.\tA plane.\nmain-news\tx\t2\t3\t1.5\ta\tb\turl\turl\n'
    )
    file = read(write(tmp_path / "sts-dev.csv", lines))
    assert listed(file) == [('A "plane", off.', "A plane.", "5.000"), ("a", "b", "1.5")]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("index\tsentence1\tsentence2\tlabel", ("sentence1", "sentence2", "label")),
        ("index\tquestion\tsentence\tlabel", ("question", "sentence", "label")),
        ("id\tqid1\tquestion1\tquestion2\tis_duplicate", ("question1", "question2", "is_duplicate")),
        ("premise\thypothesis\tgold_label", ("premise", "hypothesis", "gold_label")),
        ("Sentence\tLabel", ("Sentence", None, "Label")),
        ("text\tcategory", ("text", None, "category")),
    ],
)
def test_columns_are_found_by_their_usual_names(
    tmp_path: Path, header: str, expected: tuple[str, str | None, str]
) -> None:
    cells = "\t".join("x" for _ in header.split("\t"))
    columns = read(write(tmp_path / "a.tsv", f"{header}\n{cells}\n")).columns
    assert (columns.text, columns.second, columns.label) == expected


def test_columns_can_be_named_and_a_named_text_has_no_guessed_second(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "sentence1\tsentence2\tlabel\tkind\na\tb\t1\tx\n")
    single = read_examples(path, ColumnNames(text="sentence2", label="kind"))
    assert listed(single) == [("b", None, "x")]
    pair = read_examples(path, ColumnNames(text="sentence2", second="sentence1"))
    assert listed(pair) == [("b", "a", "1")]


def test_pairs_without_agreement_and_empty_texts_are_counted_and_left_out(tmp_path: Path) -> None:
    records = [
        {"sentence1": "a", "sentence2": "b", "gold_label": "neutral"},
        {"sentence1": "a", "sentence2": "b", "gold_label": "-"},
        {"sentence1": "a", "sentence2": "  ", "gold_label": "neutral"},
        {"sentence1": "a", "sentence2": None, "gold_label": "neutral"},
    ]
    file = read(write(tmp_path / "snli.jsonl", "\n".join(map(json.dumps, records))))
    assert (len(file.examples), file.num_undecided, file.num_blank) == (1, 1, 2)
    assert "2 with an empty text left out" in file.describe()
    assert "1 without an agreed label left out" in file.describe()


@pytest.mark.parametrize(
    ("name", "text", "named", "words"),
    [
        ("a.tsv", "text\tlabel\nx\t1\n", ColumnNames(label="gold"), "has no column 'gold'; it has 'text', 'label'"),
        ("a.tsv", "stuff\tlabel\nx\t1\n", GUESSED, "no column known to hold text; it has 'stuff', 'label'"),
        ("a.tsv", "text\tmark\nx\t1\n", GUESSED, "no column known to hold labels; it has 'text', 'mark'"),
        ("a.tsv", "text\tlabel\nx\t1\ny\t\nz\t\n", GUESSED, "a.tsv:3 has no label in 'label', and 1 more"),
        ("a.tsv", "text\tlabel\nx\n", GUESSED, "a.tsv:2 has 1 fields, the header 2"),
        ("a.tsv", "text\tlabel\n \t1\n", GUESSED, "no example with text"),
        ("a.tsv", "text\tlabel\n", GUESSED, "holds no example"),
        ("a.tsv", "", GUESSED, "is empty"),
        ("a.csv", 'text,label\n"x,1\n', GUESSED, "a.csv:2 is no comma-separated record"),
        ("a.jsonl", "{\n", GUESSED, "a.jsonl:1 is not JSON"),
        ("a.jsonl", "[1]\n", GUESSED, "a.jsonl:1 holds a list"),
        ("a.jsonl", '{"text": 3, "label": 1}\n', GUESSED, "a.jsonl:1 has a int in 'text'"),
        ("a.txt", "x\n", GUESSED, "unknown suffix"),
        ("a.tsv", "text\tlabel\nx\t1\n", ColumnNames(second="text"), "add --text-column"),
        ("a.tsv", "text\tlabel\nx\t1\n", ColumnNames(text="label"), "name different ones"),
    ],
)
def test_a_file_that_cannot_be_learnt_from_is_refused(
    tmp_path: Path, name: str, text: str, named: ColumnNames, words: str
) -> None:
    with pytest.raises(InputError) as refused:
        read_examples(write(tmp_path / name, text), named)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_task_of_pairs_refuses_single_texts(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no two columns known to hold a pair"):
        read(write(tmp_path / "a.tsv", "text\tlabel\nx\t1\n"), needs_pair=True)


def test_texts_longer_than_the_model_lose_their_end_and_are_counted(tmp_path: Path, tokenizer: Tokenizer) -> None:
    text = "text\tlabel\nthe cat sees the green house\t1\nthe cat\t0\n"
    features = featurize(read(write(tmp_path / "a.tsv", text)).examples, tokenizer, 5)
    assert features.num_cut == 1
    assert features.sizes.tolist() == [5, 4]
    assert tokenizer.decode(features.store.ids[:3]) == "the cat sees"


def test_of_a_pair_the_longer_text_is_cut(tmp_path: Path, tokenizer: Tokenizer) -> None:
    text = "sentence1\tsentence2\tlabel\nthe cat sees the green house\tthe cat\t1\n"
    features = featurize(read(write(tmp_path / "a.tsv", text)).examples, tokenizer, 8)
    assert features.num_cut == 1
    assert tokenizer.decode(features.store.ids) == "the cat sees the cat"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not PUBLISHED.is_file():
        pytest.skip("needs ../shared/data/tasks.tar.xz")
    folder = tmp_path_factory.mktemp("tasks")
    with tarfile.open(PUBLISHED) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.mark.parametrize(
    ("name", "num_examples", "is_pair", "labels"),
    [
        ("glue/CoLA/train.tsv", 8551, False, {"0", "1"}),
        ("glue/SST-2/train.tsv", 67349, False, {"0", "1"}),
        ("glue/MRPC/train.tsv", 3668, True, {"0", "1"}),
        ("glue/RTE/train.tsv", 2490, True, {"entailment", "not_entailment"}),
        ("glue/WNLI/train.tsv", 635, True, {"0", "1"}),
        ("stsbenchmark/sts-train.csv", 5749, True, None),
        ("stsbenchmark/sts-dev.csv", 1500, True, None),
    ],
)
def test_published_files_are_read_whole(
    published: Path, name: str, num_examples: int, is_pair: bool, labels: set[str] | None
) -> None:
    """The numbers are those that the benchmarks' authors give."""
    file = read(published / name)
    assert (len(file.examples), file.num_blank) == (num_examples, 0)
    assert (file.columns.second is not None) == is_pair
    if labels is None:
        assert all(0.0 <= float(example.label) <= 5.0 for example in file.examples)
    else:
        assert {example.label for example in file.examples} == labels


def test_half_of_a_surrogate_pair_in_a_file_is_replaced_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one \\ud800", "label": "a\\udfff"}\n{"text": "two \\ud83d\\ude42", "label": "b"}\n')
    with pytest.warns(InputWarning, match=r"a\.jsonl: 1 lines have half of a surrogate pair \(first .*:1\).* U\+FFFD"):
        table = read_table(path)
    assert [record.values for record in table.records] == [
        {"text": "one \ufffd", "label": "a\ufffd"},
        {"text": "two \U0001f642", "label": "b"},
    ]


def test_a_label_that_no_file_can_hold_is_refused() -> None:
    with pytest.raises(InputError, match=r"a label '\\ud800' is not UTF-8"):
        read_label(Example("memory:1", "text", None, "\ud800"))


def test_labels_of_more_digits_than_python_reads_are_names() -> None:
    long = "1" * 5_000
    assert collect_classes(["2", long, "10"], 6, "a.csv") == ("10", long, "2")


def test_columns_are_asked_for_by_the_option_and_the_argument(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"choose one with --label-column \(label_column= in Python\)"):
        choose_columns(tmp_path / "a.csv", ["text", "label"], ColumnNames(label="absent"), needs_pair=False)
