"""A general text, one of a domain, and small tokenizers of every kind that know the first and not the second."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from maskwright.text.tokenizer.domain_tokens import DomainToken, choose_domain_tokens
from maskwright.text.tokenizer.extend import add_domain_tokens
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.text.tokenizer.train import TokenizerType, train_tokenizer

GENERAL = [
    "the small cat follows a bird before it rains, and the old teacher remembers every student.",
    "zebras jump over quiet boxes (with great vigour); a fox likes the green house.",
] * 20 + ["".join(chr(97 + (first + step * 7) % 26) for step in range(26)) for first in range(26)]
DOMAIN = ["the angiogenesis follows apoptosis, and angiogenesis remembers every zygote"] * 6 + ["the zygote rains"] * 3
KINDS: tuple[TokenizerType, ...] = ("wordpiece", "byte_level_bpe", "unigram")
SIZES = {"wordpiece": 190, "byte_level_bpe": 390, "unigram": 110, "word_level": 90}
SPELLED = {"wordpiece": "{}", "byte_level_bpe": "Ġ{}", "unigram": "▁{}"}


@cache
def train_all() -> dict[str, Tokenizer]:
    return {kind: train_tokenizer(GENERAL, kind, size) for kind, size in SIZES.items()}  # type: ignore[arg-type]


@cache
def extend_all() -> dict[str, Tokenizer]:
    return {kind: add_domain_tokens(train_all()[kind], choose_terms(train_all()[kind])) for kind in KINDS}


def choose_terms(tokenizer: Tokenizer) -> list[DomainToken]:
    """Only the words of the domain; the smallest vocabularies cut others too."""
    return [token for token in choose(tokenizer) if token.word in ("angiogenesis", "apoptosis", "zygote")]


def choose(tokenizer: Tokenizer, texts: Sequence[str] = DOMAIN, **options: Any) -> list[DomainToken]:
    return choose_domain_tokens(texts, tokenizer, **{"min_count": 3, **options})


def cut(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token(token_id) for token_id in tokenizer.encode_batch([text])[0]]
