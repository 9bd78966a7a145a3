"""Published tokenizers, read from each of their file layouts, against `transformers` on the same files."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from maskwright.errors import InputError
from maskwright.text.tokenizer import files as tokenizer_files
from maskwright.text.tokenizer.tokenizer import Tokenizer, as_tokenizer, load_tokenizer
from maskwright.text.tokenizer.train import train_tokenizer

_ARCHIVE = Path(__file__).parents[2].parent / "shared" / "data" / "tokenizers.tar.xz"
_NAMES = ["bert-base-uncased", "bert-base-cased", "bert-base-multilingual-cased", "gpt2", "roberta-base"]
_TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Crème brûlée, naïve façade; ÅNGSTRÖM İstanbul",
    "你好、世界。 日本語のテキスト 한국어",
    "🙂 👩‍👩‍👧 ok 🇨🇭!",
    "I don't think they'll say we've it's he'd I'm",
    "several   spaces\tand\n\nlines  ",
    "unbelievably hyper-parametrised 3.14159 #hash @user https://example.org/a_b?c=d",
    "supercalifragilisticexpialidocious" * 5,
    "",
]


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not _ARCHIVE.is_file():
        pytest.skip(f"the archive of published tokenizers is not at {_ARCHIVE}")
    folder = tmp_path_factory.mktemp("published")
    with tarfile.open(_ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def bert(published: Path, tmp_path: Path) -> Path:
    """A folder with nothing but bert-base-uncased's vocab.txt."""
    shutil.copy(published / "bert-base-uncased" / "vocab.txt", tmp_path)
    return tmp_path


@pytest.fixture
def gpt2(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published / "gpt2", tmp_path / "gpt2"))


def load_theirs(folder: Path) -> Any:
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("name", _NAMES)
def test_ids_are_those_of_transformers(published: Path, name: str) -> None:
    ours, theirs = load_tokenizer(published / name), load_theirs(published / name)
    assert ours.vocab_size == len(theirs) + len(ours.added_roles)
    for text in _TEXTS:
        assert ours.encode_batch([text])[0] == theirs(text, add_special_tokens=False)["input_ids"], text
        if name != "gpt2":
            assert ours.encode(text) == theirs(text)["input_ids"]
    if name != "gpt2":
        assert ours.mask_token_id == theirs.mask_token_id
        assert ours.all_special_ids == sorted(theirs.all_special_ids)


@pytest.mark.parametrize("name", ["bert-base-uncased", "bert-base-multilingual-cased"])
def test_vocab_txt_gives_the_ids_of_tokenizer_json(published: Path, name: str) -> None:
    fast, plain = load_tokenizer(published / name), load_tokenizer(published / name / "vocab.txt")
    assert plain.special_tokens == fast.special_tokens
    assert plain.encode_batch(_TEXTS) == fast.encode_batch(_TEXTS)
    assert plain.encode("a [MASK] b") == fast.encode("a [MASK] b")


@pytest.mark.parametrize(("name", "is_cased"), [("bert-base-uncased", False), ("bert-base-cased", True)])
def test_a_bare_vocab_txt_tells_by_its_capitals_whether_case_counts(
    published: Path, tmp_path: Path, name: str, is_cased: bool
) -> None:
    shutil.copy(published / name / "vocab.txt", tmp_path)
    assert load_tokenizer(tmp_path).encode_batch(_TEXTS) == load_tokenizer(published / name).encode_batch(_TEXTS)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": is_cased}))
    assert load_tokenizer(tmp_path).encode_batch(_TEXTS) != load_tokenizer(published / name).encode_batch(_TEXTS)


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_either_of_the_two_files_of_a_byte_level_tokenizer_will_do(published: Path, name: str) -> None:
    tokenizer = load_tokenizer(published / "roberta-base" / name)
    assert tokenizer.encode("Hello world") == [0, 31414, 232, 2]
    assert tokenizer.added_roles == ()


def test_robertas_mask_takes_the_space_before_it_along(published: Path) -> None:
    tokenizer = load_tokenizer(published / "roberta-base")
    assert [tokenizer.token(i) for i in tokenizer.encode("a <mask> b")] == ["<s>", "a", "<mask>", "Ġb", "</s>"]


def assert_gpt2_with_a_mask(tokenizer: Tokenizer) -> None:
    end = 50256
    assert tokenizer.added_roles == ("mask", "pad")
    assert tokenizer.special_tokens["mask"] == "<mask>"
    assert (tokenizer.mask_token_id, tokenizer.pad_token_id, tokenizer.vocab_size) == (50257, 50258, 50259)
    assert (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.unk_token_id) == (end, end, end)
    assert tokenizer.all_special_ids == [50256, 50257, 50258]
    assert [tokenizer.token(i) for i in tokenizer.encode("a <mask> b")][1:-1] == ["a", "<mask>", "Ġb"]


def test_gpt2_gains_a_mask_and_padding_and_keeps_its_end_of_text(gpt2: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(gpt2)
    assert_gpt2_with_a_mask(tokenizer)
    assert_gpt2_with_a_mask(as_tokenizer(load_theirs(gpt2)))
    tokenizer.save(tmp_path / "saved")
    again, theirs = load_tokenizer(tmp_path / "saved"), load_theirs(tmp_path / "saved")
    assert again.added_roles == ()
    assert len(theirs) == 50259
    for text in [*_TEXTS, "a <mask> b"]:
        assert theirs(text)["input_ids"] == again.encode(text) == tokenizer.encode(text)


def test_a_foreign_tokenizer_is_left_as_it_was(gpt2: Path) -> None:
    theirs = load_theirs(gpt2)
    as_tokenizer(theirs)
    assert len(theirs) == 50257


def test_older_files_of_special_and_added_tokens_are_respected(bert: Path) -> None:
    (bert / "special_tokens_map.json").write_text(
        json.dumps({"mask_token": "[BLANK]", "cls_token": {"content": "[CLS]"}, "additional_special_tokens": ["[E]"]})
    )
    (bert / "added_tokens.json").write_text(json.dumps({"[E]": 30523, "covid": 30522, "[BLANK]": 30524}))
    tokenizer = load_tokenizer(bert)
    assert (tokenizer.mask_token, tokenizer.mask_token_id, tokenizer.added_roles) == ("[BLANK]", 30524, ())
    assert tokenizer.encode_batch(["the [E] has covid [BLANK]"])[0] == [1996, 30523, 2038, 30522, 30524]
    assert {30523, 30524} < set(tokenizer.all_special_ids)
    assert 30522 not in tokenizer.all_special_ids


def test_added_tokens_listed_by_the_settings_are_respected(bert: Path) -> None:
    added = {"30522": {"content": "[E]", "special": True}, "30523": {"content": "covid", "special": False}}
    (bert / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "added_tokens_decoder": added}))
    tokenizer = load_tokenizer(bert)
    assert tokenizer.encode_batch(["[E] covid"])[0] == [30522, 30523]


def test_added_tokens_with_impossible_ids_are_refused(bert: Path) -> None:
    (bert / "added_tokens.json").write_text(json.dumps({"[E]": 40000}))
    with pytest.raises(InputError, match=r"added_tokens\.json gives '\[E\]' the id 40000, but .* it is 30522"):
        load_tokenizer(bert)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.json", b"{", r"vocab\.json is not valid JSON"),
        ("vocab.json", b"[]", r"vocab\.json holds a list"),
        ("vocab.json", b'{"a": "b"}', r"vocab\.json is no vocabulary"),
        ("merges.txt", b"a b c\n", r"merges\.txt, line 1: 'a b c' is no pair of tokens"),
        ("merges.txt", b"#version: 0.2\nqqqqq zzzzz\n", r"merges\.txt does not fit vocab\.json"),
        ("merges.txt", b"\xff\xfe", r"merges\.txt is not UTF-8"),
        ("tokenizer_config.json", b"{", r"tokenizer_config\.json is not valid JSON"),
        (
            "tokenizer_config.json",
            b'{"added_tokens_decoder": {"x": {"content": "y"}}}',
            r'config\.json: "x" is no token',
        ),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"50257": 3}}', r"config\.json: 3 is no token"),
        ("special_tokens_map.json", b"\xff", r"special_tokens_map\.json is not valid JSON"),
        ("added_tokens.json", b'{"a": null}', r"added_tokens\.json: null is no token id"),
        ("tokenizer.json", b"{}", r"tokenizer\.json is not a tokenizer\.json"),
    ],
)
def test_a_broken_file_is_named(gpt2: Path, name: str, content: bytes, message: str) -> None:
    (gpt2 / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_tokenizer(gpt2)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"some\ntext\n", r"vocab\.txt has no line '\[UNK\]'"), (b"\xff\xfe", "is not UTF-8"), (b"", "has no line")],
)
def test_a_text_that_is_no_vocabulary_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_tokenizer(tmp_path)


def test_a_vocabulary_without_its_merges_is_refused(gpt2: Path) -> None:
    (gpt2 / "merges.txt").unlink()
    with pytest.raises(InputError, match=r"vocab\.json needs merges\.txt beside it"):
        load_tokenizer(gpt2)


def test_a_sentencepiece_model_is_refused_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(b"x")
    with pytest.raises(InputError, match=r"SentencePiece model.*save_pretrained"):
        load_tokenizer(tmp_path)


def build_with_gap(mask_id: int) -> Backend:
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "word": 9, "[MASK]": mask_id}
    return Backend(models.WordLevel({t: i for t, i in vocabulary.items() if i >= 0}, unk_token="[UNK]"))


def test_a_vocabulary_with_gaps_is_as_large_as_its_largest_id() -> None:
    assert Tokenizer(build_with_gap(mask_id=4)).vocab_size == 10


def test_an_added_token_that_falls_on_a_taken_id_is_refused() -> None:
    backend = build_with_gap(mask_id=-1)
    backend.add_tokens(["a", "b", "c", "d"])
    with pytest.raises(InputError, match=r"the tokens .* and 'word' share the id 9"):
        Tokenizer(backend)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"])
@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'{"a": ' + b"[" * 1000 + b"]" * 1000 + b"}", "is nested more than 64 levels deep"),
        (b'{"a": [' + b"[]," * 1_000_000 + b"[]]}", "has more than 1,000,000 JSON values"),
        (b'{"a": "' + b" " * (16 << 20) + b'"}', "is larger than 16777216 bytes"),
        (b'{"a": 1, "a": 2}', "the key 'a' occurs twice"),
    ],
    ids=["deep", "many", "large", "twice"],
)
def test_the_small_files_of_a_tokenizer_have_bounds(bert: Path, name: str, content: bytes, complaint: str) -> None:
    (bert / name).write_bytes(content)
    with pytest.raises(InputError, match=complaint) as refusal:
        load_tokenizer(bert)
    assert str(bert / name) in str(refusal.value)
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt"])
def test_a_vocabulary_beyond_any_published_one_is_refused(bert: Path, monkeypatch, name: str) -> None:
    monkeypatch.setattr(tokenizer_files, "_MAX_BYTES", 1 << 20)
    (bert / name).write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(InputError, match=f"{name} is larger than 1 MiB, the most that is read of it"):
        load_tokenizer(bert)


def _panic_at_once(values: dict[str, Any]) -> None:
    values["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}


def _panic_in_use(values: dict[str, Any]) -> None:
    values["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    }


@pytest.mark.parametrize("damage", [_panic_at_once, _panic_in_use])
def test_a_file_that_makes_the_library_panic_is_refused_in_a_sentence(
    tokenizer: Tokenizer, tmp_path: Path, capfd: pytest.CaptureFixture[str], damage: Any
) -> None:
    tokenizer.save(tmp_path)
    file = tmp_path / "tokenizer.json"
    values = json.loads(file.read_text())
    damage(values)
    file.write_text(json.dumps(values))
    with pytest.raises(InputError, match=r"tokenizer\.json is not a tokenizer\.json: "):
        load_tokenizer(tmp_path)
    assert capfd.readouterr().err == "", "the library's own report comes before anybody can catch the panic"


@pytest.mark.parametrize("name", ["tokenizer.json", "merges.txt"])
def test_what_the_library_says_of_a_long_token_is_cut(tokenizer: Tokenizer, tmp_path: Path, name: str) -> None:
    if name == "tokenizer.json":
        tokenizer.save(tmp_path)
        values = json.loads((tmp_path / name).read_text())
        values["model"]["vocab"]["long"] = "x" * 100_000
        (tmp_path / name).write_text(json.dumps(values))
    else:
        (tmp_path / "vocab.json").write_text('{"a": 0}')
        (tmp_path / name).write_text(f"a {'b' * 100_000}\n")
    with pytest.raises(InputError, match=name) as refused:
        load_tokenizer(tmp_path)
    assert len(str(refused.value)) < 500


def test_an_id_in_digits_that_python_cannot_read_is_no_id(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "merges.txt").write_text("")
    (tmp_path / "added_tokens.json").write_text('{"b": "²"}')
    with pytest.raises(InputError, match=r"added_tokens\.json: .* is no token id"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_that_lacks_its_unknown_token_says_so(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    file = tmp_path / "tokenizer.json"
    values = json.loads(file.read_text())
    values["model"]["unk_token"] = "[ABSENT]"
    file.write_text(json.dumps(values))
    with pytest.raises(InputError, match="the tokenizer cannot encode a text: WordPiece error: Missing"):
        load_tokenizer(tmp_path).encode("漢字")


@pytest.mark.parametrize(
    "encode",
    [
        lambda tokenizer, text: tokenizer(text),
        lambda tokenizer, text: tokenizer.encode(text),
        lambda tokenizer, text: tokenizer.encode_batch(["whole", text]),
        lambda tokenizer, text: tokenizer.encode_spans([text]),
    ],
)
def test_half_of_a_surrogate_pair_is_refused_with_its_place(tokenizer: Tokenizer, encode: Any) -> None:
    with pytest.raises(InputError, match=r"a text 'the \\ud800 cat' is not UTF-8; .* the character at 4"):
        encode(tokenizer, "the \ud800 cat")
    with pytest.raises(InputError, match=r"'the \\ud800 cat' is not UTF-8"):
        train_tokenizer(["the \ud800 cat"], vocab_size=60)


@pytest.mark.parametrize("token", ["[\ud800]", {"content": "[\ud800]"}])
@pytest.mark.parametrize("file", ["tokenizer_config.json", "special_tokens_map.json"])
def test_a_special_token_with_half_of_a_surrogate_pair_is_refused(
    tokenizer: Tokenizer, tmp_path: Path, file: str, token: Any
) -> None:
    tokenizer.save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()  # which is asked first
    (tmp_path / file).write_text(json.dumps({"mask_token": token}))
    with pytest.raises(InputError, match=r"'mask_token' of the tokenizer in .* is not UTF-8; .*character at 1"):
        load_tokenizer(tmp_path)
