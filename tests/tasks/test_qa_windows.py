"""Contexts as windows of tokens: nothing is lost, and answers are the same characters before and after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from maskwright.batch import IGNORED_LABEL
from maskwright.errors import InputError
from maskwright.tasks.config import build_task_config
from maskwright.tasks.features import Features
from maskwright.tasks.loader import TaskLoader
from maskwright.tasks.qa.answers import find_context_tokens
from maskwright.tasks.qa.examples import Question
from maskwright.tasks.qa.features import EncodedContext, WindowRule, encode_contexts, featurize_questions
from maskwright.tasks.qa.question_answering import QuestionAnswering
from maskwright.text.tokenizer.tokenizer import Tokenizer, as_tokenizer
from maskwright.text.tokenizer.train import train_tokenizer

LONG = "the small dog sees a long road and  the Cat likes every  green house in the morning before it rains ."


def ask(question: str, context: str, *answers: str) -> Question:
    spans = tuple((context.index(one), context.index(one) + len(one)) for one in answers)
    return Question("here", question, context, answers, spans)


def build(questions: list[Question], tokenizer: Tokenizer, max_length: int, **values: Any) -> Features:
    config = build_task_config({"task": "qa", "model": "m", "train": "t", "validation": "v", **values})
    return featurize_questions(questions, tokenizer, max_length, config)


def encode(text: str, tokenizer: Tokenizer) -> EncodedContext:
    return encode_contexts([text], tokenizer)[text]


@pytest.fixture(scope="module", params=["wordpiece", "byte_level_bpe"])
def any_tokenizer(request: pytest.FixtureRequest, sentences: list[str]) -> Tokenizer:
    return train_tokenizer(sentences, type=request.param, vocab_size=300)


def test_windows_cover_every_token_and_share_the_stride() -> None:
    rule = WindowRule(max_length=20, num_between=0, doc_stride=4)
    windows = rule.cut(question_length=5, context_length=50, name="q")
    assert windows == [(0, 12), (8, 20), (16, 28), (24, 36), (32, 44), (40, 50)]
    assert rule.cut(5, 12, "q") == [(0, 12)]
    assert WindowRule(20, num_between=1, doc_stride=4).cut(5, 12, "q") == [(0, 11), (7, 12)]
    assert WindowRule(20, 0).cut(5, 13, "q") == [(0, 12), (6, 13)]  # half of a short window instead of 128
    assert WindowRule(400, 0).cut(17, 500, "q") == [(0, 380), (252, 500)]


def test_windows_without_room_are_refused_and_say_what_to_change() -> None:
    with pytest.raises(InputError, match="q has 15 tokens, which leaves 2 of 20 tokens to its context"):
        WindowRule(20, 0).cut(15, 30, "q")
    with pytest.raises(InputError, match="the stride is 12 tokens, a window beside q has 12"):
        WindowRule(20, 0, doc_stride=12).cut(5, 30, "q")
    with pytest.raises(InputError, match="expected at least 1 and 0"):
        WindowRule(20, 0, doc_stride=-1)


@pytest.mark.parametrize("max_length", [22, 30, 100])
def test_answers_come_back_as_the_same_characters(any_tokenizer: Tokenizer, max_length: int) -> None:
    answers = ["small dog", "Cat", "green house in the morning", "."]
    questions = [ask("who likes it", LONG, answer) for answer in answers]
    features = build(questions, any_tokenizer, max_length, doc_stride=3)
    targets = QuestionAnswering().encode_targets(features.examples)
    found: dict[str, int] = dict.fromkeys(answers, 0)
    for asked, (first, last) in zip(features.examples, targets.tolist(), strict=True):
        if first > 0:
            start, stop = asked.window.find_characters(first, last)
            assert LONG[start:stop] == asked.question.answers[0]
            found[asked.question.answers[0]] += 1
    assert found["Cat"] > 0
    assert max_length < 100 or min(found.values()) == 1


def test_documents_hold_the_question_then_the_window(any_tokenizer: Tokenizer) -> None:
    question = ask("who likes it", LONG, "Cat")
    features = build([question], any_tokenizer, 24, doc_stride=3)
    targets = QuestionAnswering().encode_targets(features.examples)
    loader = TaskLoader(features, targets, any_tokenizer, batch_size=1)
    context = encode(LONG, any_tokenizer)
    beginning = any_tokenizer.encode(question.text)
    assert len(features.examples) > 1
    for number, asked in enumerate(features.examples):
        batch, window = loader.build_batch(np.array([number])), asked.window
        tokens = context.ids[window.start : window.stop]
        size = len(beginning) + len(tokens) + 1
        assert batch.input_ids[0, :size].tolist() == [*beginning, *tokens, any_tokenizer.sep_token_id]
        assert window.lead == len(beginning)
        is_context = find_context_tokens(batch)[0, :size].tolist()
        assert is_context == [False] * window.lead + [True] * len(tokens) + [False]


def test_two_separators_stand_between_where_the_tokenizer_has_two() -> None:
    words = {word: number for number, word in enumerate(["<s>", "</s>", "<pad>", "<unk>", "<mask>", "who", "a", "cat"])}
    backend = Backend(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    tokenizer = as_tokenizer(backend)
    features = build([ask("who", "a cat", "cat")], tokenizer, 20)
    batch = TaskLoader(features, QuestionAnswering().encode_targets(features.examples), tokenizer, batch_size=1)
    built = batch.build_batch(np.arange(1))
    assert built.input_ids[0, :7].tolist() == backend.encode("who", "a cat").ids == [0, 5, 1, 1, 6, 7, 1]
    assert built.known_targets.tolist() == [[[5, 5]]]
    assert find_context_tokens(built)[0].nonzero().flatten().tolist() == [4, 5]


def test_a_window_without_the_answer_points_at_nothing_and_a_lost_answer_asks_nothing(tokenizer: Tokenizer) -> None:
    lost = Question("here", "who likes it", LONG, ("a bear",), ())
    features = build([ask("who likes it", LONG, "morning"), ask("who likes it", LONG), lost], tokenizer, 20)
    targets = QuestionAnswering().encode_targets(features.examples)
    by_question = [
        [pair for one, pair in zip(features.examples, targets.tolist(), strict=True) if one.question.answers == answers]
        for answers in (("morning",), (), ("a bear",))
    ]
    assert [0, 0] in by_question[0]
    assert any(first > 0 for first, _ in by_question[0])
    assert all(pair == [0, 0] for pair in by_question[1])
    assert all(pair == [IGNORED_LABEL] * 2 for pair in by_question[2])


def test_long_questions_lose_their_end_and_this_is_said(tokenizer: Tokenizer) -> None:
    features = build([ask("the cat " * 40, LONG, "Cat")], tokenizer, 32, max_question_length=6)
    assert "1 questions have more than 6 tokens and lose their end" in features.notes
    assert all(one.window.lead == 8 for one in features.examples)
    assert int(features.sizes.max()) == 32


def test_answers_are_whole_words_unless_the_script_has_no_blanks() -> None:
    vocabulary = [("<unk>", 0.0), ("▁", -3.0), ("▁un", -1.0), ("believ", -1.0), ("able", -1.0), ("▁news", -1.0)]
    vocabulary += [
        ("猫", -1.0),
        ("在", -1.0),
        ("家", -1.0),
        *[(f"<{name}>", 0.0) for name in ("s", "/s", "pad", "mask")],
    ]
    backend = Backend(models.Unigram(vocabulary, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    tokenizer = as_tokenizer(backend)
    context = encode("unbelievable news", tokenizer)
    place = [tokenizer.token(token) for token in context.ids].index("believ")
    assert context.find_characters(place, place) == (0, 12)
    chinese = encode("猫在家", tokenizer)
    place = [tokenizer.token(token) for token in chinese.ids].index("在")
    assert chinese.find_characters(place, place) == (1, 2)
    assert chinese.find_tokens((1, 2)) == (place, place)


def test_the_same_context_is_encoded_once(tokenizer: Tokenizer) -> None:
    features = build([ask("who likes it", LONG, "Cat"), ask("who", LONG, "Cat")], tokenizer, 64)
    assert features.examples[0].window.context is features.examples[1].window.context
