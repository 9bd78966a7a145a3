"""The bound of masked diffusion beside its exact value, by all masks and by all orders of a short text."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from maskwright.errors import InputError
from maskwright.evaluation.likelihood_bound import bound_texts, draw_masks
from maskwright.objectives.masked_lm import CausalLanguageModel, MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer

TEXT = "the cat sees rivers"


def compute_losses(model: Any, tokenizer: Tokenizer, ids: list[int]) -> dict[tuple[int, ...], list[float]]:
    """For every set of masked places of a text, the losses of its tokens."""
    places = range(1, len(ids) - 1)
    chosen = [one for size in places for one in itertools.combinations(places, size)]
    rows = torch.tensor(
        [[tokenizer.mask_token_id if place in one else ids[place] for place in range(len(ids))] for one in chosen]
    )
    with torch.no_grad():
        logs = model.eval()(input_ids=rows).logits.double().log_softmax(-1)
    return {one: [-float(logs[row, place, ids[place]]) for place in one] for row, one in enumerate(chosen)}


def sum_over_masks(losses: dict[tuple[int, ...], list[float]], num_tokens: int) -> float:
    """The integral of 1/t over all masks: a set of k tokens has the weight (k - 1)! (n - k)! / n!."""
    weight = {size: 1 / (size * math.comb(num_tokens, size)) for size in range(1, num_tokens + 1)}
    return sum(weight[len(places)] * sum(of_tokens) for places, of_tokens in losses.items())


def average_over_orders(losses: dict[tuple[int, ...], list[float]], num_tokens: int) -> float:
    """The mean, over the orders of the tokens, of their negative log-likelihood one after another."""
    totals = []
    for order in itertools.permutations(range(1, num_tokens + 1)):
        hidden = [tuple(sorted(order[step:])) for step in range(num_tokens)]
        totals.append(sum(losses[one][one.index(order[step])] for step, one in enumerate(hidden)))
    return float(np.mean(totals))


def test_the_estimate_is_the_sum_over_all_masks_within_its_stated_error(
    small_model: MaskedLanguageModel, tokenizer: Tokenizer
) -> None:
    losses = compute_losses(small_model, tokenizer, tokenizer.encode(TEXT))
    num_tokens = len(tokenizer.encode(TEXT)) - 2
    assert 4 <= num_tokens <= 7
    exact = sum_over_masks(losses, num_tokens)
    if num_tokens <= 6:
        assert average_over_orders(losses, num_tokens) == pytest.approx(exact, rel=1e-9)
    found = [bound_texts(small_model, tokenizer, [TEXT], num_samples=400, seed=seed) for seed in range(3)]
    for one in found:
        assert one.num_tokens.tolist() == [num_tokens]
        error = math.sqrt(float(one.variances[0]))
        assert abs(float(one.bounds[0]) - exact) < 5 * error
        assert 0 < error < 0.05 * exact
    assert len({float(one.bounds[0]) for one in found}) == 3


def test_a_longer_text_is_the_sum_of_its_parts(small_model: MaskedLanguageModel, tokenizer: Tokenizer) -> None:
    first, *inner, last = tokenizer.encode(TEXT)
    whole = bound_texts(small_model, tokenizer, [TEXT, "the cat"], num_samples=600, max_length=2 + 2)
    parts = [inner[start : start + 2] for start in range(0, len(inner), 2)]
    exact = sum(
        sum_over_masks(compute_losses(small_model, tokenizer, [first, *part, last]), len(part)) for part in parts
    )
    assert abs(float(whole.bounds[0]) - exact) < 5 * math.sqrt(float(whole.variances[0]))


def test_every_number_of_masked_tokens_is_drawn_equally_often() -> None:
    counts = draw_masks(5, 100, np.random.default_rng(0)).sum(1)
    assert set(np.bincount(counts, minlength=6)[1:].tolist()) <= {19, 20, 21}
    assert np.bincount(counts, minlength=6)[0] == 0


def test_eval_gives_the_bound_per_token_word_and_byte_with_intervals(
    command: Any, trained_run: Path, corpus_file: Path
) -> None:
    result = command("eval", trained_run, "diffusion", corpus_file, "--samples", "4", "--json")
    found = json.loads(result.out)
    figures = {figure["measure"]: figure for figure in found["figures"]}
    assert list(figures) == ["nats_per_token", "perplexity", "nats_per_word", "bits_per_byte"]
    total = figures["nats_per_token"]["mean"] * found["tokens"]
    text = corpus_file.read_text(encoding="utf-8").splitlines()
    assert figures["nats_per_word"]["mean"] == pytest.approx(total / sum(len(line.split()) for line in text))
    assert figures["bits_per_byte"]["mean"] == pytest.approx(
        total / math.log(2) / sum(len(line.encode()) for line in text)
    )
    assert figures["perplexity"]["mean"] == pytest.approx(math.exp(figures["nats_per_token"]["mean"]))
    assert all(figure["low"] < figure["mean"] < figure["high"] for figure in figures.values())
    assert found["masks_per_text"] == 4
    assert 0 < found["standard_error_of_masks"] < 0.2
    command("eval", trained_run, "mlm", corpus_file, "--samples", "4").assert_refused(
        "--samples is for diffusion, not mlm"
    )


def test_a_causal_model_has_no_need_of_a_bound(small_model: MaskedLanguageModel, tokenizer: Tokenizer) -> None:
    causal = CausalLanguageModel(
        small_model.encoder,
        tokenizer.vocab_size,
        mask_token_id=tokenizer.mask_token_id,
        special_token_ids=tokenizer.all_special_ids,
    )
    with pytest.raises(InputError, match="its likelihood is exact; measure it with pll"):
        bound_texts(causal, tokenizer, [TEXT])
