"""Text that is written by filling masks step by step, beside the same steps by hand."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from maskwright.errors import InputError
from maskwright.inference.fill_mask import predict_masked
from maskwright.inference.generate import generate
from maskwright.inference.unmask import Sampling, Unmasking, list_fillings
from maskwright.objectives.masked_lm import DiffusionLanguageModel, HybridLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tiny_bert import build_tiny_bert


def build(tokenizer: Tokenizer, kind: type = DiffusionLanguageModel) -> Any:
    torch.manual_seed(0)
    encoder = build_tiny_bert(
        tokenizer, hidden_size=16, num_hidden_layers=1, initializer_range=0.5, max_position_embeddings=24
    )
    return kind(encoder, tokenizer=tokenizer).eval()


@pytest.fixture
def model(tokenizer: Tokenizer) -> Any:
    return build(tokenizer)


@torch.no_grad()
def predict(model: Any, tokenizer: Tokenizer, ids: list[int]) -> torch.Tensor:
    """(S, V) log-probabilities without special tokens."""
    logits = model(input_ids=torch.tensor([ids])).logits[0].clone()
    logits[:, tokenizer.all_special_ids] = -torch.inf
    return logits.log_softmax(-1)


def fill_by_hand(model: Any, tokenizer: Tokenizer, ids: list[int], block_size: int | None = None) -> list[int]:
    """One token at a time, the most probable one of the text or of the first block that has masks."""
    ids = list(ids)
    masked = [place for place, token in enumerate(ids) if token == tokenizer.mask_token_id]
    blocks = [masked[start : start + (block_size or 99)] for start in range(0, len(masked), block_size or 99)]
    for block in blocks:
        left = list(block)
        while left:
            best, tokens = predict(model, tokenizer, ids).max(-1)
            place = max(left, key=lambda one, best=best: float(best[one]))
            ids[place] = int(tokens[place])
            left.remove(place)
    return ids


def decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids[1:-1])


@pytest.mark.parametrize(("options", "block_size"), [({}, None), ({"strategy": "blockwise", "block_size": 2}, 2)])
def test_the_most_probable_token_is_written_first(
    model: Any, tokenizer: Tokenizer, options: dict[str, Any], block_size: int | None
) -> None:
    first, *prompt, last = tokenizer.encode("the cat")
    masked = [first, *prompt, *[tokenizer.mask_token_id] * 6, last]
    expected = decode(tokenizer, fill_by_hand(model, tokenizer, masked, block_size))
    assert generate(model, tokenizer, "the cat", 6, **options) == expected


def test_steps_are_passes_through_the_model_and_all_masks_are_filled(model: Any, tokenizer: Tokenizer) -> None:
    passes: list[int] = []
    model.encoder.register_forward_hook(lambda *_: passes.append(1))
    for steps, expected in ((1, 1), (3, 3), (7, 7), (50, 10), (None, 10)):
        for options in (
            {"strategy": "confidence"},
            {"strategy": "random"},
            {"strategy": "blockwise", "block_size": 10},
        ):
            passes.clear()
            text = generate(model, tokenizer, "", 10, steps=steps, **options)
            assert len(passes) == expected
            assert "[MASK]" not in text
    counts = [count for _, counts in Unmasking(5, "blockwise", 4).plan(torch.arange(10)) for count in counts]
    assert sum(counts) == 10


def test_what_is_drawn_is_a_function_of_the_seed(model: Any, tokenizer: Tokenizer) -> None:
    for strategy in ("confidence", "random", "blockwise"):
        texts = [
            generate(model, tokenizer, "the", 8, temperature=1.0, strategy=strategy, seed=seed) for seed in (0, 1, 0)
        ]
        assert texts[0] == texts[2] != texts[1]
        assert all(text.startswith("the") for text in texts)


def test_gaps_say_how_many_tokens_they_are(tokenizer: Tokenizer) -> None:
    def list_runs(text: str) -> list[list[int]]:
        runs = []
        for ids in list_fillings(tokenizer, text):
            flags = "".join("m" if token == tokenizer.mask_token_id else "." for token in ids)
            runs.append([len(run) for run in re.findall("m+", flags)])
        return runs

    assert list_runs("the [MASK:5] house") == list_runs("the <mask:5> house") == [[5]]
    assert list_runs("the [MASK] house [MASK:2]") == [[1, 2]]
    assert list_runs("[MASK][MASK][MASK:2] house") == [[4]]
    assert list_runs("the [MASK:1-3] house [MASK:1-2]") == [[a, b] for a in (1, 2, 3) for b in (1, 2)]


def test_of_several_lengths_the_text_is_taken_whose_tokens_are_the_most_probable(
    model: Any, tokenizer: Tokenizer
) -> None:
    scores = {}
    for ids in list_fillings(tokenizer, "the cat [MASK:1-4] house"):
        filled = fill_by_hand(model, tokenizer, ids)
        alone = [
            float(
                predict(model, tokenizer, [*filled[:place], tokenizer.mask_token_id, *filled[place + 1 :]])[
                    place, token
                ]
            )
            for place, token in enumerate(filled)
            if 0 < place < len(filled) - 1
        ]
        scores[decode(tokenizer, filled)] = sum(alone) / len(alone)
    assert len(scores) == 4
    assert generate(model, tokenizer, "the cat [MASK:1-4] house") == max(scores, key=lambda text: scores[text])


def test_a_model_that_answers_one_place_earlier_fills_gaps_too(tokenizer: Tokenizer) -> None:
    model = build(tokenizer, HybridLanguageModel)
    text = "the cat [MASK] the house"
    assert generate(model, tokenizer, text) == predict_masked(model, tokenizer, text)


def test_tokens_beyond_top_p_are_never_drawn() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).expand(500, 4)
    generator = torch.Generator().manual_seed(0)
    for top_p, expected in ((0.4, {0}), (0.6, {0, 1}), (0.9, {0, 1, 2}), (1.0, {0, 1, 2, 3})):
        assert set(Sampling(1.0, top_p=top_p).choose(logits, generator).tolist()) == expected
    assert set(Sampling(1.0, top_k=2).choose(logits, generator).tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("the [MASK:0]", {}, r"a gap is written \[MASK:0\]"),
        ("the [MASK:5-2]", {}, r"a gap is written \[MASK:5-2\]"),
        ("the [MASK:1-9] [MASK:1-9]", {}, "81 choices of lengths, at most 64"),
        ("the [MASK:40]", {}, "the model takes 24"),
        ("the", {"max_new_tokens": 40}, "the model takes 24"),
        ("the [MASK]", {"max_new_tokens": 3}, "leave out --max-new-tokens"),
        ("the", {"strategy": "best"}, "no strategy 'best'"),
        ("the", {"block_size": 3}, "block_size is for the strategy blockwise"),
        ("the", {"steps": 0}, "steps is 0"),
        ("the", {"top_p": 1.5}, r"top_p is 1\.5"),
        ("the", {"temperature": -1.0}, r"temperature is -1\.0"),
    ],
)
def test_what_cannot_be_written_is_refused(
    model: Any, tokenizer: Tokenizer, text: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        generate(model, tokenizer, text, **options)


def test_the_command_writes_and_fills(command: Any, model: Any, tokenizer: Tokenizer, tmp_path: Any) -> None:
    model.save_pretrained(tmp_path, tokenizer)
    tokenizer.save(tmp_path)
    filled = command("generate", tmp_path, "the [MASK:2-3] house", "--strategy", "random", "--seed", "3")
    assert filled.code == 0
    assert filled.out.rstrip() == generate(model, tokenizer, "the [MASK:2-3] house", strategy="random", seed=3)
    assert command("generate", tmp_path, "--length", "5", "--temperature", "0.7", "--top-p", "0.9").code == 0
    command("generate", tmp_path, "the [MASK:50]").assert_refused("the model takes 24")
