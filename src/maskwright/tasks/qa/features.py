"""Tokenize questions with their contexts: one document for each window of a context.

Each window follows the whole question. Tokens keep their characters, to map answers both ways. T tokens of a context.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.batch import IGNORED_LABEL
from maskwright.data.given_pairs import PairStore, Segments
from maskwright.data.pairs import NUM_PAIR_SPECIALS
from maskwright.errors import InputError
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.features import Features, find_tokens_between
from maskwright.tasks.qa.examples import Question, Span
from maskwright.text.tokenizer.tokenizer import CHUNK_CHARS, Tokenizer, group_texts

Ints = NDArray[np.int64]
_SPACELESS = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
"""Scripts without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
MAX_ANSWER_LENGTH = 30
MAX_QUESTION_LENGTH = 64
NO_ANSWER = 0
"""The place of [CLS], the target of start and end if a window has no answer."""
_USUAL_STRIDE = 128
_FEWEST_OF_A_CONTEXT = 4


@dataclass(frozen=True)
class EncodedContext:
    text: str
    ids: list[int]
    starts: Ints
    """(T,) the first character of each token, blanks aside."""
    ends: Ints
    """(T,) the character behind its last; the same where a token has no characters of its own."""
    word_starts: Ints
    """(T,) the first character of the word that a token belongs to."""
    word_ends: Ints

    def find_tokens(self, span: Span) -> tuple[int, int] | None:
        """The first and the last token that contain any of these characters."""
        first = int(np.searchsorted(self.ends, span[0], side="right"))
        last = int(np.searchsorted(self.starts, span[1], side="left")) - 1
        return (first, last) if first <= last else None

    def find_characters(self, first: int, last: int) -> Span:
        """What the words from one token to another say: answers begin and end with whole words."""
        return _trim(self.text, int(self.word_starts[first]), int(self.word_ends[last]))


def encode_contexts(texts: Iterable[str], tokenizer: Tokenizer) -> dict[str, EncodedContext]:
    """Tokenize each distinct context once."""
    encoded = {}
    for chunk in group_texts(dict.fromkeys(texts), CHUNK_CHARS):
        for text, encoding in zip(chunk, tokenizer.encode_spans(chunk), strict=True):
            encoded[text] = _read_encoding(text, encoding)
    return encoded


def _read_encoding(text: str, encoding: Any) -> EncodedContext:
    places = np.asarray([_trim(text, *offsets) for offsets in encoding.offsets], dtype=np.int64).reshape(-1, 2)
    starts, ends = places[:, 0].copy(), places[:, 1].copy()
    # A token of no word, such as an added one, is a word of its own: each such number is different.
    words = np.asarray([-1 - place if word is None else word for place, word in enumerate(encoding.word_ids)], np.int64)
    if not len(words):
        return EncodedContext(text, [], starts, ends, starts, ends)
    firsts = np.flatnonzero(np.diff(words, prepend=words[0] - 1))
    lengths = np.diff(firsts, append=len(words))
    word_starts = np.repeat(np.minimum.reduceat(starts, firsts), lengths)
    word_ends = np.repeat(np.maximum.reduceat(ends, firsts), lengths)
    if _SPACELESS.search(text):
        pairs = zip(word_starts.tolist(), word_ends.tolist(), strict=True)
        is_spaceless = np.asarray([_SPACELESS.search(text, *pair) is not None for pair in pairs])
        word_starts, word_ends = np.where(is_spaceless, starts, word_starts), np.where(is_spaceless, ends, word_ends)
    return EncodedContext(text, encoding.ids, starts, ends, word_starts, word_ends)


def _trim(text: str, start: int, end: int) -> Span:
    """Trim whitespace; some tokenizers count the space before a word as part of the word."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


@dataclass(frozen=True)
class WindowRule:
    """Splits a question and its context into documents of at most `max_length` tokens."""

    max_length: int
    num_between: int
    """Tokens between question and context beside one separator."""
    doc_stride: int | None = None
    """Tokens that a window shares with the next; None: 128, or half of the window if that is less."""
    max_question_length: int = MAX_QUESTION_LENGTH

    def __post_init__(self) -> None:
        if self.max_question_length < 1 or (self.doc_stride is not None and self.doc_stride < 0):
            raise InputError(
                f"the longest question is {self.max_question_length} tokens and the stride {self.doc_stride}; expected"
                " at least 1 and 0"
            )

    def cut(self, question_length: int, context_length: int, name: str) -> list[Span]:
        """(start, stop) of the windows over a context, for a question of so many tokens; `name` is for errors."""
        room = self.max_length - NUM_PAIR_SPECIALS - self.num_between - question_length
        if context_length <= room:
            return [(0, context_length)]
        if room < _FEWEST_OF_A_CONTEXT:
            raise InputError(
                f"{name} has {question_length} tokens, which leaves {max(room, 0)} of {self.max_length} tokens to its"
                " context; raise the longest input (max_length) or lower the longest question (max_question_length)"
            )
        overlap = min(_USUAL_STRIDE, room // 2) if self.doc_stride is None else self.doc_stride
        if overlap >= room:
            raise InputError(
                f"the stride is {overlap} tokens, a window beside {name} has {room}; choose a"
                " stride (doc_stride) of at most half of that"
            )
        starts = range(0, context_length - overlap, room - overlap)
        return [(start, min(start + room, context_length)) for start in starts]

    def find_lead(self, question_length: int) -> int:
        """The place of a window's first token in its document: behind [CLS], question and separators."""
        return NUM_PAIR_SPECIALS - 1 + question_length + self.num_between


@dataclass(frozen=True)
class Window:
    """Tokens `start` to `stop` of a context, which begin at place `lead` of their document."""

    context: EncodedContext
    start: int
    stop: int
    lead: int

    def find_place(self, span: Span) -> tuple[int, int] | None:
        """The first and the last place of the document that hold an answer; None if it is not wholly in the window."""
        tokens = self.context.find_tokens(span)
        if tokens is None or tokens[0] < self.start or tokens[1] >= self.stop:
            return None
        return tokens[0] - self.start + self.lead, tokens[1] - self.start + self.lead

    def find_characters(self, first: int, last: int) -> Span:
        """Those of the context that stand at places of the document."""
        shift = self.start - self.lead
        return self.context.find_characters(first + shift, last + shift)

    def find_target(self, spans: tuple[Span, ...], is_answered: bool) -> tuple[int, int]:
        """The target span; ignored if the context has none of the answers."""
        if is_answered and not any(self.context.find_tokens(span) for span in spans):
            return IGNORED_LABEL, IGNORED_LABEL
        places = (self.find_place(span) for span in spans)
        return next((place for place in places if place is not None), (NO_ANSWER, NO_ANSWER))


@dataclass(frozen=True)
class AskedWindow:
    """A window with its question and target."""

    question: Question
    window: Window

    @property
    def place(self) -> str:
        return self.question.place

    @property
    def content(self) -> tuple[Any, ...]:
        """What a model learns from: of the context the window alone, as there may be many."""
        window, question = self.window, self.question
        start, stop = window.context.find_characters(window.start, window.stop - 1)
        return question.text, window.context.text[start:stop], question.answers, question.spans, start

    def find_target(self) -> tuple[int, int]:
        return self.window.find_target(self.question.spans, bool(self.question.answers))


def featurize_questions(
    questions: Sequence[Question], tokenizer: Tokenizer, max_length: int, config: TaskConfig
) -> Features:
    """Tokenize questions; those without tokens, or whose context has none, are dropped. No context is truncated."""
    between = find_tokens_between(tokenizer)
    longest = config.max_question_length or MAX_QUESTION_LENGTH
    rule = WindowRule(max_length, len(between), config.doc_stride, longest)
    asked_ids = tokenizer.encode_batch([one.text for one in questions])
    contexts = encode_contexts([one.context for one in questions], tokenizer)
    examples: list[AskedWindow] = []
    firsts: list[list[int]] = []
    num_kept = num_cut = 0
    for question, ids in zip(questions, asked_ids, strict=True):
        context = contexts[question.context]
        if not ids or not context.ids:
            continue
        num_kept += 1
        num_cut += len(ids) > longest
        ids = ids[:longest]
        for start, stop in rule.cut(len(ids), len(context.ids), f"the question of {question.place}"):
            examples.append(AskedWindow(question, Window(context, start, stop, rule.find_lead(len(ids)))))
            firsts.append(ids)
    if not examples:
        raise InputError(f"no question up to {questions[-1].place} has a token of the model's vocabulary")
    notes = [f"{num_kept:,} questions in {len(examples):,} windows of at most {max_length} tokens"]
    notes += [f"{num_cut:,} questions have more than {longest} tokens and lose their end"] * bool(num_cut)
    seconds = [[*between, *one.window.context.ids[one.window.start : one.window.stop]] for one in examples]
    store = PairStore.from_segments(
        _concatenate(firsts), _concatenate(seconds), tokenizer.vocab_size, max_length - NUM_PAIR_SPECIALS
    )
    return Features(store, examples, 0, len(questions) - num_kept, notes=tuple(notes))


def _concatenate(parts: Sequence[Sequence[int]]) -> Segments:
    ids = np.fromiter(chain.from_iterable(parts), dtype=np.int64)
    return Segments(ids, np.asarray([len(part) for part in parts], dtype=np.int64))
