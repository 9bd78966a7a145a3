from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskwright.errors import InputError
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.text.tokenizer.train import TokenizerType, train_tokenizer

_TYPES: list[TokenizerType] = ["wordpiece", "byte_level_bpe", "unigram", "word_level"]
_VOCAB_SIZE = 290
_TRAIN_AND_PRINT = f"""
import sys
from maskwright.text.tokenizer.train import train_tokenizer
texts = sys.stdin.read().splitlines()
for kind in sys.argv[1:]:
    print(train_tokenizer(texts, kind, vocab_size={_VOCAB_SIZE}).backend.to_str())
"""


@pytest.fixture(scope="module")
def byte_level(sentences: list[str]) -> Tokenizer:
    return train_tokenizer(sentences, "byte_level_bpe", vocab_size=400, lowercase=False)


def test_the_same_text_gives_the_same_tokenizer_in_every_process(sentences: list[str]) -> None:
    """The trainers' own order changes from process to process; ties between equally frequent pairs are many here."""
    expected = [train_tokenizer(sentences, kind, vocab_size=_VOCAB_SIZE).backend.to_str() for kind in _TYPES]
    for seed in ("1", "2", "3"):
        command = [sys.executable, "-c", _TRAIN_AND_PRINT, *_TYPES]
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            command, input="\n".join(sentences), capture_output=True, text=True, check=True, env=environment
        )
        assert done.stdout.splitlines() == expected


@pytest.mark.parametrize("kind", _TYPES)
def test_a_list_an_iterator_and_a_function_give_the_same(sentences: list[str], kind: TokenizerType) -> None:
    texts = [*sentences, "a text\nof two lines\u2028or three"]
    sources = [texts, iter(texts), lambda: iter(texts)]
    trained = [train_tokenizer(source, kind, vocab_size=_VOCAB_SIZE).backend.to_str() for source in sources]
    assert trained[0] == trained[1] == trained[2]


@pytest.mark.parametrize("kind", _TYPES)
def test_an_error_while_reading_comes_out_as_it_was_raised(kind: TokenizerType) -> None:
    def read() -> Iterator[str]:
        yield "some words"
        raise InputError("line 2 is broken")

    for source in (read(), read):
        with pytest.raises(InputError, match=r"^line 2 is broken$"):
            train_tokenizer(source, kind, vocab_size=_VOCAB_SIZE)


@pytest.mark.parametrize("kind", _TYPES)
def test_special_tokens_of_the_user_follow_ours_and_stay_whole(sentences: list[str], kind: TokenizerType) -> None:
    tokenizer = train_tokenizer(sentences, kind, vocab_size=_VOCAB_SIZE, special_tokens=["[USER]", "<doc>"])
    assert [tokenizer.token(token_id) for token_id in (4, 5, 6)] == ["[MASK]", "[USER]", "<doc>"]
    assert tokenizer.all_special_ids == list(range(7))
    assert {5, 6} < set(tokenizer.encode("the [USER] sees <doc>"))
    assert tokenizer.vocab_size <= _VOCAB_SIZE


@pytest.mark.parametrize("token", ["", " ", "[MASK]", "[USER]"])
def test_special_tokens_that_are_empty_or_taken_are_refused(token: str) -> None:
    with pytest.raises(InputError, match="special token"):
        train_tokenizer(["some words"], special_tokens=["[USER]", token])


def test_wordpiece_vocabulary_keeps_to_its_size_and_covers_the_text(sentences: list[str]) -> None:
    tokenizer = train_tokenizer(sentences, vocab_size=100)
    assert tokenizer.vocab_size == 100
    assert all(1 not in ids for ids in tokenizer.encode_batch(sentences))
    assert any(token.startswith("##") for token in map(tokenizer.token, tokenizer.encode("remembers")))


def test_word_level_splits_at_whitespace_only(sentences: list[str]) -> None:
    tokenizer = train_tokenizer(sentences, "word_level", vocab_size=160, min_frequency=1)
    ids = tokenizer.encode_batch(["the cat sees care. zebra"])[0]
    assert [tokenizer.token(token_id) for token_id in ids] == ["the", "cat", "sees", "care.", "[UNK]"]


@given(text=st.text(max_size=60))
def test_byte_level_gives_any_text_back_exactly(byte_level: Tokenizer, text: str) -> None:
    ids = byte_level.encode_batch([text])[0]
    assert byte_level.decode(ids, skip_special_tokens=False) == text


def test_byte_level_gives_emoji_chinese_and_spaces_back_exactly(byte_level: Tokenizer) -> None:
    text = "  Café 你好、世界 🙂👩‍👩‍👧 don't\n\tstop  "
    assert byte_level.decode(byte_level.encode(text)) == text
    assert 1 not in byte_level.encode(text)


def test_unigram_learns_whole_words_without_their_punctuation() -> None:
    texts = ["the river runs, the river, a house", "house. the river rises. one house and the river"] * 20
    tokenizer = train_tokenizer(texts, "unigram", vocab_size=60)
    tokens = [tokenizer.token(token_id) for token_id in tokenizer.encode_batch(["the river, house."])[0]]
    assert tokens[-1] == "."
    assert "▁river" in tokens
    assert tokenizer.decode(tokenizer.encode("The river,  house.")) == "the river, house."
    pieces = [tokenizer.token(token_id) for token_id in range(5, tokenizer.vocab_size)]
    assert not [piece for piece in pieces if len(piece) > 1 and set(piece) & set(",.")]


@pytest.mark.parametrize("kind", _TYPES)
def test_lowercase_folds_case_or_keeps_it(kind: TokenizerType) -> None:
    texts = ["Paris Paris paris"]
    folded = train_tokenizer(texts, kind, vocab_size=300, lowercase=True, min_frequency=1)
    kept = train_tokenizer(texts, kind, vocab_size=300, lowercase=False, min_frequency=1)
    assert folded.encode("Paris") == folded.encode("paris")
    assert kept.encode("Paris") != kept.encode("paris")
    assert kept.decode(kept.encode("Paris")) == "Paris"


@pytest.mark.parametrize("kind", _TYPES)
def test_a_vocabulary_of_special_tokens_alone_is_refused(kind: TokenizerType) -> None:
    with pytest.raises(InputError, match="vocab_size is 5; it must exceed the 5 special tokens"):
        train_tokenizer(["some words"], kind, vocab_size=5)


@pytest.mark.parametrize(
    ("kind", "too_small", "needed"), [("wordpiece", 10, 12), ("byte_level_bpe", 100, 261), ("unigram", 7, 10)]
)
def test_a_vocabulary_smaller_than_the_alphabet_is_refused_with_the_size_needed(
    kind: TokenizerType, too_small: int, needed: int
) -> None:
    with pytest.raises(InputError, match=f"vocab_size is {too_small}, .* take {needed} tokens"):
        train_tokenizer(["abcd"], kind, vocab_size=too_small)
    assert train_tokenizer(["abcd"], kind, vocab_size=needed).vocab_size == needed


@pytest.mark.parametrize("kind", _TYPES)
@pytest.mark.parametrize("texts", [["   ", "\t"], []])
def test_text_without_words_is_refused(kind: TokenizerType, texts: list[str]) -> None:
    with pytest.raises(InputError, match="no word to learn a vocabulary from"):
        train_tokenizer(texts, kind, vocab_size=300)


def test_an_unknown_type_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"no tokenizer type 'unigramm'.*unigram"):
        train_tokenizer(["some words"], "unigramm")  # type: ignore[arg-type]


def test_words_that_are_all_too_rare_are_refused() -> None:
    with pytest.raises(InputError, match="no word of the text occurs 5 times; lower min_frequency"):
        train_tokenizer(["some words"], "word_level", min_frequency=5)


def test_a_full_folder_for_temporary_files_is_the_one_that_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Texts that can be read only once are kept there while the tokenizer learns."""

    class FullFile:
        def __enter__(self) -> FullFile:
            return self

        def __exit__(self, *_: object) -> None: ...

        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("tempfile.TemporaryFile", lambda *_, **__: FullFile())
    with pytest.raises(OSError, match="No space left") as failed:
        train_tokenizer(iter(["the cat"]), vocab_size=60)
    assert failed.value.filename == str(tmp_path)


def test_ctrl_c_ends_training_before_the_text_does() -> None:
    ended = []

    def read() -> Iterator[str]:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(2_000_000):
            yield "the cat sees the dog."
        ended.append(True)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            train_tokenizer(read, vocab_size=100)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not ended
