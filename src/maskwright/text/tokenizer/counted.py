"""Train a tokenizer on the counts of words, which many processes can collect, instead of on texts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import get_args

from tokenizers import Tokenizer as Backend
from tokenizers import models, trainers

from maskwright.errors import InputError
from maskwright.suggestions import suggest
from maskwright.text.tokenizer.merges import learn_merges
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.text.tokenizer.train import (
    BYTES,
    UNK,
    Plan,
    TokenizerType,
    build_byte_level,
    build_word_level,
    build_wordpiece,
    check_alphabet,
    check_case,
    describe_no_words,
    describe_rare_words,
    finish,
    learn,
)

_CONTINUATION = "##"
_HASH_RANGE = 1 << 64


def check_countable(type: str) -> None:
    if type not in get_args(TokenizerType):
        raise InputError(f"no tokenizer type '{type}'{suggest(type, get_args(TokenizerType))}")
    if type == "unigram":
        raise InputError(
            "unigram learns from whole texts, not from counts of words; train it on a --sample in this process, or"
            " choose another type"
        )


def check_sample(share: float, seed: int) -> None:
    if not 0 < share <= 1:
        raise InputError(f"the sample is {share:g} of the documents; give a share above 0 and up to 1")
    if not 0 <= seed < _HASH_RANGE:
        raise InputError(f"the seed of the sample is {seed}; give a whole number from 0 on")


def is_sampled(text: str, share: float, seed: int) -> bool:
    """Whether a text is of a sample: by a hash of the text, so whatever is read before it or by whom."""
    digest = blake2b(text.encode(errors="surrogatepass"), digest_size=8, salt=seed.to_bytes(8, "little")).digest()
    return int.from_bytes(digest) < share * _HASH_RANGE


def count_words(texts: Iterable[str], type: str, lowercase: bool) -> dict[str, int]:
    """The words of the texts as a tokenizer of this type cuts them, and how often each occurs."""
    trainer = trainers.BpeTrainer(vocab_size=0, special_tokens=[], show_progress=False)
    backend = _build(type, lowercase)
    backend.model = models.BPE()  # this trainer's, whatever the words are for
    learn(backend, texts, trainer)
    words: dict[str, int] = json.loads(trainer.__getstate__())["BpeTrainer"]["words"]
    return words


def balance_counts(counts: Iterable[Mapping[str, int]], alpha: float) -> dict[str, int]:
    """The words of several sources, the counts of each scaled so that its share is its size to the power of alpha.

    The size of a source is the characters of its words; that of all together stays, but for rounding. The counts of a
    word are rounded for each source, so what is rare in a large one may go.
    """
    if not 0 <= alpha <= 1:
        raise InputError(f"alpha is {alpha:g}; it must lie in [0, 1]: 1 is by size, 0 all sources alike")
    sources = [words for words in counts if words]
    sizes = [sum(len(word) * count for word, count in words.items()) for words in sources]
    powers = [size**alpha for size in sizes]
    balanced: dict[str, int] = {}
    for words, size, power in zip(sources, sizes, powers, strict=True):
        factor = power / sum(powers) * sum(sizes) / size
        for word, count in words.items():
            scaled = round(count * factor)
            if scaled:
                balanced[word] = balanced.get(word, 0) + scaled
    return dict(sorted(balanced.items()))


def train_on_counts(words: Mapping[str, int], type: str, plan: Plan) -> Tokenizer:
    """The tokenizer that `train_tokenizer` learns from the texts in which the words were counted."""
    if not words:
        raise describe_no_words()
    check_case(type, plan.lowercase)
    if type in ("word_level", "character", "smiles"):
        return finish(_learn_words(words, plan, type), plan)
    characters = {character for word in words for character in word}
    if type == "byte_level_bpe":
        check_alphabet(plan, len(plan.specials) + len(BYTES), what="the 256 bytes and the special tokens")
        vocabulary, merges = learn_merges(words, plan.specials, plan.vocab_size, plan.min_frequency, alphabet=BYTES)
        return finish(build_byte_level(models.BPE(vocabulary, merges), plan.lowercase), plan)
    continuations = sorted({f"{_CONTINUATION}{character}" for word in words for character in word[1:]})
    first_tokens = [*plan.specials, *continuations]
    check_alphabet(plan, len(first_tokens) + len(characters))
    vocabulary, _ = learn_merges(words, first_tokens, plan.vocab_size, plan.min_frequency, continuation=_CONTINUATION)
    return finish(build_wordpiece(models.WordPiece(vocabulary, unk_token=UNK), plan.lowercase), plan)


def _learn_words(words: Mapping[str, int], plan: Plan, type: str) -> Backend:
    frequent = sorted((-count, word) for word, count in words.items() if count >= plan.min_frequency)
    if not frequent:
        raise describe_rare_words(plan)
    tokens = dict.fromkeys([*plan.specials, *(word for _, word in frequent)])
    vocabulary = {token: number for number, token in enumerate(list(tokens)[: plan.vocab_size])}
    return build_word_level(models.WordLevel(vocabulary, unk_token=UNK), plan.lowercase, type)


def _build(type: str, lowercase: bool) -> Backend:
    if type == "wordpiece":
        return build_wordpiece(models.WordPiece(unk_token=UNK), lowercase)
    if type == "byte_level_bpe":
        return build_byte_level(models.BPE(), lowercase)
    return build_word_level(models.WordLevel(unk_token=UNK), lowercase, type)
