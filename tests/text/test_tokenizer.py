from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from maskwright.errors import InputError
from maskwright.text.tokenizer import Tokenizer, as_tokenizer, load_tokenizer
from maskwright.text.training import TokenizerType, train_tokenizer

_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_TYPES: list[TokenizerType] = ["wordpiece", "word_level"]
_TRAIN_AND_PRINT = """
import sys
from maskwright.text.training import train_tokenizer
sys.stdout.write(train_tokenizer(sys.stdin.read().splitlines(), vocab_size=160).backend.to_str())
"""


@pytest.mark.parametrize("kind", _TYPES)
def test_special_tokens_come_first_and_stay_whole_in_text(sentences: list[str], kind: TokenizerType) -> None:
    tokenizer = train_tokenizer(sentences, kind, vocab_size=160)
    assert [tokenizer.token(token_id) for token_id in range(5)] == _SPECIALS
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.cls_token_id) == (0, 1, 2)
    assert (tokenizer.sep_token_id, tokenizer.mask_token_id, tokenizer.mask_token) == (3, 4, "[MASK]")
    assert tokenizer.all_special_ids == [0, 1, 2, 3, 4]
    ids = tokenizer.encode("the [MASK] sees")
    assert (ids[0], ids[2], ids[-1]) == (2, 4, 3)


def test_wordpiece_vocabulary_keeps_to_its_size_and_covers_the_text(sentences: list[str]) -> None:
    tokenizer = train_tokenizer(sentences, vocab_size=100)
    assert tokenizer.vocab_size == 100
    assert all(1 not in ids for ids in tokenizer.encode_batch(sentences))
    assert any(token.startswith("##") for token in map(tokenizer.token, tokenizer.encode("remembers")))


def test_word_level_splits_at_whitespace_only(sentences: list[str]) -> None:
    tokenizer = train_tokenizer(sentences, "word_level", vocab_size=160, min_frequency=1)
    assert [tokenizer.token(i) for i in tokenizer.encode_batch(["the cat sees care. zebra"])[0]] == [
        "the",
        "cat",
        "sees",
        "care.",
        "[UNK]",
    ]


def test_the_same_text_gives_the_same_tokenizer_in_every_process(sentences: list[str], tokenizer: Tokenizer) -> None:
    """The trainer's own order changes from process to process; ties between equally frequent pairs are many here."""
    for _ in range(3):
        command = [sys.executable, "-c", _TRAIN_AND_PRINT]
        done = subprocess.run(command, input="\n".join(sentences), capture_output=True, text=True, check=True)
        assert done.stdout == tokenizer.backend.to_str()


@pytest.mark.parametrize("kind", _TYPES)
def test_lowercase_folds_case_or_keeps_it(kind: TokenizerType) -> None:
    texts = ["Paris Paris paris"]
    folded = train_tokenizer(texts, kind, vocab_size=100, lowercase=True, min_frequency=1)
    kept = train_tokenizer(texts, kind, vocab_size=100, lowercase=False, min_frequency=1)
    assert folded.encode("Paris") == folded.encode("paris")
    assert kept.encode("Paris") != kept.encode("paris")
    assert kept.decode(kept.encode("Paris")) == "Paris"


@pytest.mark.parametrize("kind", _TYPES)
def test_saved_and_loaded_tokenizers_are_the_same(tmp_path: Path, sentences: list[str], kind: TokenizerType) -> None:
    tokenizer = train_tokenizer(sentences, kind, vocab_size=160)
    tokenizer.save(tmp_path)
    for loaded in (load_tokenizer(tmp_path), load_tokenizer(tmp_path / "tokenizer.json")):
        assert loaded.backend.to_str() == tokenizer.backend.to_str()
        assert loaded.special_tokens == tokenizer.special_tokens


@given(text=st.text(max_size=60))
def test_any_text_is_encoded_between_cls_and_sep_within_the_vocabulary(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids)


@pytest.mark.parametrize("kind", _TYPES)
def test_a_vocabulary_of_special_tokens_alone_is_refused(kind: TokenizerType) -> None:
    with pytest.raises(InputError, match="vocab_size is 5; it must exceed the 5 special tokens"):
        train_tokenizer(["some words"], kind, vocab_size=5)


def test_a_vocabulary_smaller_than_the_alphabet_is_refused_with_the_size_needed() -> None:
    with pytest.raises(InputError, match="vocab_size is 10, the characters of the text alone take 12 tokens"):
        train_tokenizer(["abcd"], vocab_size=10)
    assert train_tokenizer(["abcd"], vocab_size=12).vocab_size == 12


@pytest.mark.parametrize("kind", _TYPES)
def test_text_without_words_is_refused(kind: TokenizerType) -> None:
    with pytest.raises(InputError, match="no word to learn a vocabulary from"):
        train_tokenizer(["   ", "\t"], kind, vocab_size=100)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no tokenizer at .*tokenizer\.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", [b"{not json", b'{"model": 3}', b"\xff\xfe\x00"])
def test_a_damaged_tokenizer_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(InputError, match=r"tokenizer\.json is not a tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_damaged_settings_beside_the_tokenizer_are_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(InputError, match=r"tokenizer_config\.json is not valid JSON"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_without_a_mask_token_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    text = tokenizer.backend.to_str().replace("[MASK]", "[OTHER]")
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(InputError, match=r"no mask token \(looked for \[MASK\], <mask>\)"):
        load_tokenizer(tmp_path)


def test_special_tokens_named_by_the_settings_win_over_the_usual_spelling(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "mask_token": {"content": "the"}}))
    assert load_tokenizer(tmp_path).mask_token_id == tokenizer.backend.token_to_id("the")


def test_every_added_special_token_is_special(tokenizer: Tokenizer) -> None:
    backend = Backend.from_str(tokenizer.backend.to_str())
    backend.add_special_tokens(["[ENTITY]"])
    backend.add_tokens(["ordinary"])
    larger = as_tokenizer(backend)
    assert larger.all_special_ids == [0, 1, 2, 3, 4, backend.token_to_id("[ENTITY]")]
    assert larger.vocab_size == tokenizer.vocab_size + 2


def test_a_fast_tokenizer_of_transformers_is_accepted(tokenizer: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    names = {f"{role}_token": token for role, token in tokenizer.special_tokens.items()}
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Backend.from_str(tokenizer.backend.to_str()), **names
    )
    ours = as_tokenizer(theirs)
    assert ours.encode("the cat sees") == theirs("the cat sees")["input_ids"]
    assert ours.mask_token_id == theirs.mask_token_id
    assert as_tokenizer(ours) is ours


def test_a_tokenizer_that_pads_and_truncates_is_used_without_and_left_as_it_was(tokenizer: Tokenizer) -> None:
    backend = Backend.from_str(tokenizer.backend.to_str())
    backend.enable_padding(length=9)
    backend.enable_truncation(2)
    assert as_tokenizer(backend).encode("the cat sees") == tokenizer.encode("the cat sees")
    assert backend.padding["length"] == 9
    assert backend.truncation["max_length"] == 2


def test_something_else_is_no_tokenizer() -> None:
    with pytest.raises(InputError, match="a dict is not a tokenizer this can use"):
        as_tokenizer({})


@pytest.mark.parametrize("kind", _TYPES)
def test_transformers_reads_a_saved_tokenizer(tmp_path: Path, sentences: list[str], kind: TokenizerType) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = train_tokenizer(sentences, kind, vocab_size=160)
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.mask_token == "[MASK]"
    assert theirs.mask_token_id == tokenizer.mask_token_id
    for text in [*sentences[:10], "An unseen Word, [MASK]!"]:
        assert theirs(text)["input_ids"] == tokenizer.encode(text)
