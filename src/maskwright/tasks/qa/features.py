"""Questions with their contexts to tokens: one document for each window of a context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from maskwright.data.given_pairs import PairStore, Segments
from maskwright.data.pairs import NUM_PAIR_SPECIALS
from maskwright.errors import InputError
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.features import Features, find_tokens_between
from maskwright.tasks.qa.contexts import encode_contexts
from maskwright.tasks.qa.questions import Question
from maskwright.tasks.qa.windows import MAX_QUESTION_LENGTH, Window, WindowRule
from maskwright.text.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class AskedWindow:
    """A window and what is asked about it."""

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
    """Questions without a token, or about a context without one, are left out; no context is cut off."""
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
