"""Where words begin: the same as the library's own word numbers, for every kind of tokenizer and text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from maskwright.text.tokenizer.encode import encode_corpus, encode_texts
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.text.tokenizer.train import TokenizerType, train_tokenizer
from maskwright.text.words import build_boundaries

TEXTS = [
    "The lighthouse keeper's daughter wasn't afraid: “storms,” she said, “pass.”",
    "Die Donaudampfschifffahrt begann 1829; heute fährt man weiter — bis ans Meer!",
    "L'été dernier, nous avons visité l'île d'Yeu (85350).",
    "小さな灯台は海のそばにあります。中文没有空格,标点除外。",
    "ภาษาไทยเขียนติดกันโดยไม่เว้นวรรค ระหว่างคำ",
    "हिन्दी में लिखा गया एक वाक्य।",
    "Маяк стоит на скале над морем, и 3.14 — число.",
    "def f(x):\n    return x['key'] + 1  # spaces\n\n\treturn\n",
    "emoji 👩‍🔬🎉 and a tab\there   three spaces ",
]
KINDS = ("wordpiece", "byte_level_bpe", "unigram", "word_level")
SIZES = {"wordpiece": 330, "byte_level_bpe": 420, "unigram": 260, "word_level": 400}


@pytest.fixture(scope="module")
def trained() -> dict[str, Tokenizer]:
    return {kind: train(kind) for kind in KINDS}


def train(kind: TokenizerType, **options) -> Tokenizer:
    return train_tokenizer(TEXTS * 3, kind, SIZES[kind], lowercase=False, **options)


def find_words(tokenizer: Tokenizer, texts: list[str]) -> list[list[bool]]:
    encoded = encode_texts(texts, tokenizer, build_boundaries(tokenizer))
    assert encoded.ids.tolist() == [token_id for ids in tokenizer.encode_batch(texts) for token_id in ids]
    return [part.tolist() for part in np.split(encoded.word_starts, np.cumsum(encoded.lengths)[:-1])]


def ask_library(tokenizer: Tokenizer, texts: list[str]) -> list[list[bool]]:
    numbers = [encoding.word_ids for encoding in tokenizer.backend.encode_batch(texts, add_special_tokens=False)]
    return [[place == 0 or ids[place] != ids[place - 1] for place in range(len(ids))] for ids in numbers]


def spell(tokenizer: Tokenizer, text: str) -> list[str]:
    """The words as tokens joined by dots."""
    tokens = [tokenizer.token(token_id) for token_id in tokenizer.encode_batch([text])[0]]
    joined = "".join(
        (" " if start else "·") + t for t, start in zip(tokens, find_words(tokenizer, [text])[0], strict=True)
    )
    return joined.split()


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_those_of_the_pre_tokenizer(trained, kind):
    assert find_words(trained[kind], TEXTS) == ask_library(trained[kind], TEXTS)
    assert build_boundaries(trained[kind]).needs_word_ids is False, "tokens alone tell the words of this kind"


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(
        st.lists(st.sampled_from([*"ab1 .,'!\n\t中ที่é“—", "  ", "'s", "[MASK]"]), max_size=25).map("".join),
        min_size=1,
        max_size=4,
    )
)
def test_words_of_any_text_are_those_of_the_pre_tokenizer(trained, texts):
    for kind in KINDS:
        tokenizer = trained[kind]
        unknown = [[i == tokenizer.unk_token_id for i in ids] for ids in tokenizer.encode_batch(texts)]
        found, expected = find_words(tokenizer, texts), ask_library(tokenizer, texts)
        for row, other, skipped in zip(found, expected, unknown, strict=True):
            # Next to an unknown token, which is never masked, a word begins or ends anyway.
            places = [p for p in range(len(row)) if not skipped[p] and not (p and skipped[p - 1])]
            assert [row[p] for p in places] == [other[p] for p in places], (kind, texts)


def test_gpt2_words_hold_their_space_and_leave_punctuation_apart(trained):
    words = spell(trained["byte_level_bpe"], "keeper's daughter wasn't “afraid”")
    assert ["".join(word.split("·")) for word in words][:3] == ["keeper", "'s", "Ġdaughter"]
    assert len(words) == 8  # keeper 's daughter wasn 't “ afraid ”


def test_chinese_characters_are_words_of_their_own_for_bert_only(trained):
    text = "中文没有空格"
    assert len(spell(trained["wordpiece"], text)) == 6
    assert len(spell(trained["byte_level_bpe"], text)) == 1
    assert len(spell(trained["unigram"], text)) == 1


def test_added_tokens_are_words_of_their_own(trained):
    for kind in ("wordpiece", "byte_level_bpe", "unigram"):
        tokenizer = Tokenizer(Backend.from_str(trained[kind].backend.to_str()))
        tokenizer.backend.add_tokens([AddedToken("covid", normalized=False)])
        tokenizer = Tokenizer(Backend.from_str(tokenizer.backend.to_str()))
        texts = ["the covidity of covid", "precovidpost"]
        assert find_words(tokenizer, texts) == ask_library(tokenizer, texts)


def rebuild(tokenizer: Tokenizer, pre_tokenizer: pre_tokenizers.PreTokenizer | None) -> Tokenizer:
    """A tokenizer with another pre-tokenizer, as files from elsewhere have them."""
    backend = Backend.from_str(tokenizer.backend.to_str())
    backend.pre_tokenizer = pre_tokenizer
    return Tokenizer(backend)


def test_words_of_foreign_pre_tokenizers_are_found_by_table_or_by_asking(trained):
    marks = pre_tokenizers.Metaspace(prepend_scheme="always")
    split = pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?[^\s\p{N}]+|\s+"), "isolated")
    foreign = {
        "xlm-roberta": (
            rebuild(trained["unigram"], pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marks])),
            False,
        ),
        "roberta": (rebuild(trained["byte_level_bpe"], pre_tokenizers.ByteLevel(add_prefix_space=True)), False),
        "llama-3": (
            rebuild(
                trained["byte_level_bpe"],
                pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
            ),
            True,
        ),
        "digits": (
            rebuild(
                trained["unigram"], pre_tokenizers.Sequence([marks, pre_tokenizers.Digits(individual_digits=True)])
            ),
            True,
        ),
        "lost spaces": (
            rebuild(
                trained["unigram"],
                pre_tokenizers.Sequence(
                    [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="never")]
                ),
            ),
            True,
        ),
    }
    for name, (tokenizer, needs_word_ids) in foreign.items():
        assert build_boundaries(tokenizer).needs_word_ids is needs_word_ids, name
        assert find_words(tokenizer, TEXTS) == ask_library(tokenizer, TEXTS), name


def test_a_tokenizer_that_never_splits_text_has_words_at_its_marks_of_spaces():
    """Llama 2 and Gemma: spaces become marks, and the whole text goes to the model in one piece."""
    vocabulary = {"<unk>": 0, "▁": 1, "a": 2, "b": 3, "▁a": 4, "ab": 5}
    backend = Backend(models.BPE(vocabulary, [("▁", "a"), ("a", "b")], unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Replace("▁", " ")
    tokenizer = Tokenizer(backend)
    assert spell(tokenizer, "ab bab a") == ["▁a·b", "▁·b·ab", "▁a"]


def test_bytes_outside_any_character_do_not_shift_words():
    """A vocabulary without some bytes drops them, which leaves parts of characters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    kept = [character for character in alphabet if character != "Ã"]  # the first byte of é
    backend = Backend(models.BPE({token: number for number, token in enumerate(kept)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = Tokenizer(backend)
    words = spell(tokenizer, "été ab, cd")
    assert words[-3:] == ["Ġ·a·b", ",", "Ġ·c·d"]


def test_a_corpus_in_memory_has_the_same_words_and_empty_texts_none(trained):
    tokenizer = trained["wordpiece"]
    corpus = encode_corpus(["", TEXTS[0], "", TEXTS[1]], tokenizer)
    assert corpus.lengths.tolist()[::2] == [0, 0]
    assert corpus.word_starts.tolist() == [flag for row in ask_library(tokenizer, TEXTS[:2]) for flag in row]
    assert len(encode_corpus([], tokenizer).ids) == 0
