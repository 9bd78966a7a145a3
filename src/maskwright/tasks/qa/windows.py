"""Contexts that are longer than the model: windows of their tokens, each with the whole question before it."""

from __future__ import annotations

from dataclasses import dataclass

from maskwright.batch import IGNORED_LABEL
from maskwright.data.pairs import NUM_PAIR_SPECIALS
from maskwright.errors import InputError
from maskwright.tasks.qa.answer_search import Span
from maskwright.tasks.qa.contexts import EncodedContext

MAX_ANSWER_LENGTH = 30
MAX_QUESTION_LENGTH = 64
NO_ANSWER = 0
"""The place of [CLS], where start and end stand when a window has no answer."""
_USUAL_STRIDE = 128
_FEWEST_OF_A_CONTEXT = 4


@dataclass(frozen=True)
class WindowRule:
    """How a question and its context become documents of at most `max_length` tokens."""

    max_length: int
    num_between: int
    """Tokens between question and context beside one separator."""
    doc_stride: int | None = None
    """Tokens that a window shares with the next; None: 128, or half of the window where that is less."""
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
        """What the model should point at; nothing is asked where the context has none of the answers."""
        if is_answered and not any(self.context.find_tokens(span) for span in spans):
            return IGNORED_LABEL, IGNORED_LABEL
        places = (self.find_place(span) for span in spans)
        return next((place for place in places if place is not None), (NO_ANSWER, NO_ANSWER))
