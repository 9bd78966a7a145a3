"""Add whole words to a tokenizer, so that each becomes one token, and measure what that saves.

No other word is tokenized differently afterwards:

- WordPiece: an added token that matches whole words of the normalised text. In the vocabulary itself it would also
  match the beginning of longer words, which the model splits greedily.
- BPE: a vocabulary entry with `ignore_merges`, so that the model looks up a whole word before it merges. Merges for
  the word would need tokens in between, and an added token would lose the space before it.
- Unigram: a piece whose score is the sum of the word's pieces plus a tiny margin. It replaces exactly those pieces, so
  other words keep theirs; a longer word that began with the same pieces begins with the new one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Backend

from maskwright.errors import InputError
from maskwright.text.tokenizer.domain_tokens import DomainToken, Fragmentation, FragmentationMeter, choose_domain_tokens
from maskwright.text.tokenizer.tokenizer import CHUNK_CHARS, Tokenizer, group_texts
from maskwright.text.tokenizer.words import cut_word, find_spelling

_HAIR = 1e-6
_UNKNOWN_PENALTY = 10.0
"""By how much the library scores an unknown character below the worst piece."""


def add_domain_tokens(tokenizer: Tokenizer, tokens: Iterable[DomainToken]) -> Tokenizer:
    """A new tokenizer with these words behind all old tokens, whose ids stay; the old tokenizer is not touched."""
    if tokenizer.kind == "WordLevel":
        raise InputError("a word-level tokenizer never cuts a word, so there is none to add; train a larger one")
    tokens = list(tokens)
    _check_tokens(tokenizer, tokens)
    spellings = [token.spelling for token in tokens]
    settings = json.loads(tokenizer.backend.to_str())
    if tokenizer.kind == "WordPiece":
        _add_whole_words(settings, spellings, tokenizer.vocab_size)
    elif tokenizer.kind == "BPE":
        _check_splits(tokenizer)
        _add_entries(settings, spellings, tokenizer.vocab_size)
    else:
        _add_pieces(settings, spellings, tokenizer)
    backend = Backend.from_str(json.dumps(settings))
    extended = Tokenizer(backend, tokenizer.special_tokens, tokenizer.added_roles, tokenizer.model_max_length)
    _check_ids(tokenizer, extended, spellings)
    if tokenizer.kind == "BPE":
        _check_old_words(tokenizer, extended)
    return extended


def _check_tokens(tokenizer: Tokenizer, tokens: Sequence[DomainToken]) -> None:
    seen: set[str] = set()
    for token in tokens:
        if tokenizer.backend.token_to_id(token.spelling) is not None or token.spelling in seen:
            raise InputError(f"'{token.spelling}' is in the vocabulary already, or given twice; leave it out")
        seen.add(token.spelling)
        pieces = [tokenizer.token(token_id) for token_id in cut_word(tokenizer, token.spelling)]
        if pieces != list(token.pieces):
            raise InputError(
                f"'{token.spelling}' is cut into {' '.join(pieces)} by this tokenizer, not into"
                f" {' '.join(token.pieces)}; choose words with the tokenizer they are added to"
            )


def _add_whole_words(settings: dict[str, Any], spellings: Sequence[str], first_id: int) -> None:
    flags = {"single_word": True, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    settings["added_tokens"] += [
        {"id": token_id, "content": spelling, **flags} for token_id, spelling in enumerate(spellings, first_id)
    ]


def _add_entries(settings: dict[str, Any], spellings: Sequence[str], first_id: int) -> None:
    vocabulary = settings["model"]["vocab"]
    for token in settings["added_tokens"]:  # the library would number those behind the vocabulary anew
        vocabulary.setdefault(token["content"], token["id"])
    vocabulary |= {spelling: token_id for token_id, spelling in enumerate(spellings, first_id)}
    settings["model"]["ignore_merges"] = True


def _add_pieces(settings: dict[str, Any], spellings: Sequence[str], tokenizer: Tokenizer) -> None:
    vocabulary = settings["model"]["vocab"]
    scores = dict(vocabulary)
    unknown = min(scores.values()) - _UNKNOWN_PENALTY
    for token in sorted(settings["added_tokens"], key=lambda token: token["id"]):
        if token["content"] not in scores:
            vocabulary.append([token["content"], 0.0])
    for spelling in spellings:
        pieces = [piece.value for piece in tokenizer.backend.model.tokenize(spelling)]
        vocabulary.append([spelling, sum(scores.get(piece, unknown * len(piece)) for piece in pieces) + _HAIR])


def _check_splits(tokenizer: Tokenizer) -> None:
    """Refuse pre-tokenizers that hand whole texts to BPE, as those of Llama 2 and Gemma do."""
    backend = tokenizer.backend
    text = "a a" if backend.normalizer is None else backend.normalizer.normalize_str("a a")
    if backend.pre_tokenizer is None or len(backend.pre_tokenizer.pre_tokenize_str(text)) < 2:
        raise InputError(
            "this BPE tokenizer hands whole texts to its merges, so words cannot be added to it; use a tokenizer that"
            " splits texts into words"
        )


def _check_ids(old: Tokenizer, extended: Tokenizer, spellings: Sequence[str]) -> None:
    expected = old.backend.get_vocab() | {s: token_id for token_id, s in enumerate(spellings, old.vocab_size)}
    found = extended.backend.get_vocab()
    moved = next((token for token, token_id in expected.items() if found.get(token) != token_id), None)
    if moved is not None:
        raise InputError(
            f"'{moved}' would get the id {found.get(moved)} instead of {expected[moved]}; number the vocabulary without"
            " gaps before words are added to it"
        )


def _check_old_words(old: Tokenizer, extended: Tokenizer) -> None:
    """Refuse if looking up whole words changes old words, through tokens that merges never produce."""
    model, spelling = old.backend.model, find_spelling(old)
    vocabulary = old.backend.get_vocab(with_added_tokens=False)
    hidden = [token for token, token_id in vocabulary.items() if [p.id for p in model.tokenize(token)] != [token_id]]
    texts = ["\n" + spelling.read(token) for token in hidden]  # after a blank, so that no space is put before it
    for token, before, after in zip(hidden, old.encode_batch(texts), extended.encode_batch(texts), strict=True):
        if before != after:
            raise InputError(
                f"the merges of this BPE tokenizer never make its token '{token}', which would appear once whole words"
                " are looked up; use a tokenizer whose merges make all its tokens"
            )


@dataclass(frozen=True)
class VocabularyAdvice:
    tokens: list[DomainToken]
    num_texts: int
    """The number of texts that the tokens were chosen from."""
    before: Fragmentation
    """Fragmentation of the held-out texts, before and after."""
    after: Fragmentation
    extended: Tokenizer

    @property
    def saved_share(self) -> float:
        return 1 - self.after.num_tokens / max(self.before.num_tokens, 1)


def advise_vocabulary(
    read: Callable[[], Iterable[str]],
    is_held_out: Callable[[str], bool],
    tokenizer: Tokenizer,
    max_tokens: int,
    min_count: int,
) -> VocabularyAdvice:
    """Choose words from the texts that are not held out and measure on those that are; `read` is called twice."""
    tokens = choose_domain_tokens((text for text in read() if not is_held_out(text)), tokenizer, max_tokens, min_count)
    extended = add_domain_tokens(tokenizer, tokens) if tokens else tokenizer
    meters = [FragmentationMeter(tokenizer), FragmentationMeter(extended)]
    num_texts = 0

    def held_out() -> Iterator[str]:
        nonlocal num_texts
        for text in read():
            if is_held_out(text):
                yield text
            else:
                num_texts += 1

    for group in group_texts(held_out(), CHUNK_CHARS):
        for meter in meters:
            meter.add(group)
    before, after = (meter.figures for meter in meters)
    if not num_texts or not before.num_texts:
        raise InputError(
            f"of {num_texts + before.num_texts} texts {before.num_texts} are held out by a hash, so there is nothing to"
            " choose from or nothing to measure on; give more texts, one document on each line"
        )
    return VocabularyAdvice(tokens, num_texts, before, after, extended)
