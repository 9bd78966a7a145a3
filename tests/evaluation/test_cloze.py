from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from maskwright.errors import InputError, RunError
from maskwright.evaluation.cloze import ClozeItem, Unasked, rank_answers, read_cloze
from maskwright.inference.fill_mask import fill_mask
from maskwright.objectives.masked_lm import CausalLanguageModel, MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.text.tokenizer.train import train_tokenizer

Write = Callable[..., str]
SQUAD = {"masked_sentences": ["the [MASK] sees."], "obj_label": "cat", "id": "1", "sub_label": "Squad"}
TREX = {
    "obj_label": "France",
    "predicate_id": "P27",
    "evidences": [{"sub_surface": "x", "obj_surface": "French", "masked_sentence": "a <mask> writer"}],
}


def test_both_layouts_of_lama_are_read(write_jsonl: Write) -> None:
    items = read_cloze([write_jsonl([SQUAD, TREX], "probe.jsonl")])
    assert items == [
        ClozeItem("the [MASK] sees.", "cat", "probe"),
        ClozeItem("a [MASK] writer", "French", "P27"),
    ]


def test_without_a_surface_the_label_is_the_answer(write_jsonl: Write) -> None:
    record = TREX | {"evidences": [{"masked_sentence": "[MASK] is a country"}]}
    assert read_cloze([write_jsonl([record])])[0].answer == "France"


@pytest.mark.parametrize(
    ("record", "complaint"),
    [
        ({"sentence_good": "x"}, r":1 has no list 'masked_sentences' or 'evidences'; its fields are 'sentence_good'"),
        (SQUAD | {"masked_sentences": "the [MASK]"}, ":1 has no list 'masked_sentences'"),
        (SQUAD | {"masked_sentences": ["the cat"]}, r":1 has no \[MASK\] or <mask> in its sentence"),
        (SQUAD | {"masked_sentences": [""]}, ":1 is empty"),
        ({"masked_sentences": ["the [MASK]"]}, ":1 has no field 'obj_label'"),
        (TREX | {"evidences": [{"obj_surface": "x"}]}, "holds a NoneType"),
    ],
)
def test_a_line_that_is_no_question_is_named(write_jsonl: Write, record: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        read_cloze([write_jsonl([record])])


def test_ranks_are_those_of_the_candidates_for_the_mask(small_model: MaskedLanguageModel, tokenizer: Tokenizer) -> None:
    texts = ["the [MASK] sees the road.", "a [MASK]", "[MASK] likes it.", "the small [MASK]"]
    items = [ClozeItem(text, answer, "r") for text in texts for answer in ("cat", "dog", "the")]
    ranks = rank_answers(small_model, tokenizer, items)
    assert ranks.unasked == [None] * len(items)
    for item, rank in zip(items, ranks.ranks.tolist(), strict=True):
        (candidates,) = fill_mask(small_model, tokenizer, item.text, tokenizer.vocab_size)
        assert [candidate.token_str for candidate in candidates].index(item.answer) + 1 == rank


def test_a_model_that_knows_nothing_gets_no_rank_for_free(
    small_model: MaskedLanguageModel, tokenizer: Tokenizer
) -> None:
    with torch.no_grad():
        small_model.mlm_output.weight.zero_()
    assert rank_answers(small_model, tokenizer, [ClozeItem("the [MASK]", "cat", "")]).ranks == [tokenizer.vocab_size]


def test_questions_that_cannot_be_asked_say_why(small_model: MaskedLanguageModel, tokenizer: Tokenizer) -> None:
    items = [
        ClozeItem("[MASK] and [MASK]", "cat", ""),
        ClozeItem("the [MASK] sees", "catdog", ""),
        ClozeItem("the [MASK] sees", "green house", ""),
        ClozeItem("the [MASK] sees", "\u4e16", ""),
        ClozeItem("the [MASK] " + "sees " * 30, "cat", ""),
        ClozeItem("the [MASK] sees", "cat", ""),
    ]
    result = rank_answers(small_model, tokenizer, items)
    assert result.unasked == [
        Unasked.SEVERAL_MASKS,
        Unasked.SEVERAL_TOKENS,
        Unasked.SEVERAL_TOKENS,
        Unasked.UNKNOWN,
        Unasked.TOO_LONG,
        None,
    ]
    assert (result.ranks > 0).tolist() == [False] * 5 + [True]


def test_the_answer_takes_the_space_before_it_along(sentences: list[str], small_model: MaskedLanguageModel) -> None:
    tokenizer = train_tokenizer(sentences, "byte_level_bpe", vocab_size=400)
    model = MaskedLanguageModel(
        type(small_model.encoder).from_variant("tiny", vocab_size=tokenizer.vocab_size, num_hidden_layers=1),
        tokenizer.vocab_size,
        mask_token_id=tokenizer.mask_token_id,
        special_token_ids=tokenizer.all_special_ids,
    )
    result = rank_answers(model, tokenizer, [ClozeItem("a small [MASK] sees the green house.", "dog", "")])
    assert result.unasked == [None]
    (candidates,) = fill_mask(
        model, tokenizer, f"a small {tokenizer.mask_token} sees the green house.", tokenizer.vocab_size
    )
    assert candidates[int(result.ranks[0]) - 1].token_str == " dog"


def test_a_causal_model_is_refused(small_model: MaskedLanguageModel, tokenizer: Tokenizer) -> None:
    causal = CausalLanguageModel(small_model.encoder, tokenizer.vocab_size, mask_token_id=tokenizer.mask_token_id)
    with pytest.raises(InputError, match="does not see what follows"):
        rank_answers(causal, tokenizer, [ClozeItem("the [MASK]", "cat", "")])


def test_a_broken_model_gives_no_ranks(small_model: MaskedLanguageModel, tokenizer: Tokenizer) -> None:
    torch.nn.init.constant_(small_model.mlm_output.bias, float("nan"))
    with pytest.raises(RunError, match="not finite"):
        rank_answers(small_model, tokenizer, [ClozeItem("the [MASK]", "cat", "")])


def test_published_files_are_read(published_files: Path) -> None:
    items = read_cloze([str(published_files / "lama")])
    assert len(items) == 473 + 305
    assert {item.relation for item in items} == {"P140", "test"}
