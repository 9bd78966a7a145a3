"""Flat rows, which GPUs read without padding: the answers are those of every text alone.

FlashAttention is for GPUs; here a plain loop over the bounds takes its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flat_lab import KINDS, ask, build, build_pipeline, list_numbers
from torch import Tensor

from maskwright.batch import FlatBatch
from maskwright.data.loader import prefetch
from maskwright.errors import InputError, InputWarning
from maskwright.evaluation.likelihood import score_texts
from maskwright.inference import runner
from maskwright.inference.layout import EncodedBatch, Reduction, Sample, lay_out_bounded
from maskwright.inference.pipeline import pipeline
from maskwright.models import any_encoder, documents
from maskwright.models.any_encoder import has_flat_rows
from maskwright.models.compilation import InferenceCompiler
from maskwright.models.encoder import FAMILIES
from maskwright.objectives.masked_lm import CausalLanguageModel, MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tolerances import assert_rounded, count_terms

FLAT_FAMILIES = [name for name, family in FAMILIES.items() if not family.adds_scores]
NUM_TERMS = count_terms(num_layers=2, width=32, length=64)


def attend_one_by_one(
    query: Tensor, key: Tensor, value: Tensor, numbers: Tensor, starts: Tensor, longest: Tensor, half_window: int
) -> Tensor:
    bounds = starts.tolist()
    assert torch.equal(numbers, torch.repeat_interleave(torch.arange(len(starts) - 1) + 1, starts.diff()))
    assert max(stop - start for start, stop in pairwise(bounds)) == int(longest)
    parts = []
    for start, stop in pairwise(bounds):
        places = torch.arange(stop - start)
        is_near = (places[:, None] - places).abs() <= (half_window if half_window >= 0 else stop)
        features = [one[start:stop].transpose(0, 1) for one in (query, key, value)]
        parts.append(F.scaled_dot_product_attention(*features, attn_mask=is_near).transpose(0, 1))
    return torch.empty_like(query).copy_(torch.cat(parts))  # in memory as the query, like FlashAttention's result


@pytest.fixture
def flat_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Flat rows on this CPU; the tokens of each batch."""
    seen: list[int] = []
    encode = runner.encode

    def watch(encoder: Any, batch: Any, is_causal: Tensor | None = None) -> Tensor:
        assert isinstance(batch, FlatBatch)
        seen.append(batch.input_ids.shape[1])
        return encode(encoder, batch, is_causal)

    monkeypatch.setattr(any_encoder, "supports_flat_rows", lambda device, dtype, head_size: True)
    monkeypatch.setattr(documents, "_attend", attend_one_by_one)
    monkeypatch.setattr(runner, "encode", watch)
    return seen


_WITH_LAYERS_OF_BERT = {"distilbert", "electra", "roberta", "xlm-roberta"}


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.slow] * (name in _WITH_LAYERS_OF_BERT)) for name in FLAT_FAMILIES]
)
@pytest.mark.parametrize("kind", KINDS)
def test_answers_of_flat_rows_are_those_of_plain_ones(
    kind: str, family: str, tokenizer: Tokenizer, sentences: list[str], request: pytest.FixtureRequest
) -> None:
    asked = ask(kind, sentences[:12])
    built = build_pipeline(kind, build(family), tokenizer)
    expected = built(asked)
    seen = request.getfixturevalue("flat_rows")
    built.batch_tokens = 60
    found = built(asked)
    assert len(seen) > 1
    assert len(found) == len(asked)
    numbers = [torch.tensor([*list_numbers(answers)]) for answers in (found, expected)]
    assert numbers[0].numel() >= len(asked)
    assert_rounded(*numbers, NUM_TERMS)


def test_a_window_of_attention_is_told_to_flat_rows(flat_rows: list[int]) -> None:
    encoder = build("modernbert", local_attention=4, initializer_range=0.3)
    ids = torch.arange(5, 25)
    with torch.inference_mode():
        expected = encoder(input_ids=ids[None], attention_mask=torch.ones(1, 20)).last_hidden_state[0]
    (found,) = runner.run_packed(encoder, [Sample(ids.tolist())], keep_states, pad_token_id=0)
    assert_rounded(found, expected, NUM_TERMS)


def keep_states(batch: EncodedBatch[Sample]) -> Reduction:
    lengths = batch.lengths
    return Reduction((batch.hidden,), lambda hidden: hidden.split(lengths))


def test_masked_copies_are_documents_of_a_flat_row(tokenizer: Tokenizer, sentences: list[str], request: Any) -> None:
    model = MaskedLanguageModel(build(), 160, tokenizer=tokenizer).eval()
    expected = score_texts(model, tokenizer, sentences[:6]).log_likelihoods
    request.getfixturevalue("flat_rows")
    found = score_texts(model, tokenizer, sentences[:6]).log_likelihoods
    assert_rounded(torch.from_numpy(found), torch.from_numpy(expected), NUM_TERMS, dtype=torch.float32)


def test_a_model_that_looks_back_only_is_read_in_rows_with_a_mask(flat_rows: list[int], tokenizer: Tokenizer) -> None:
    model = CausalLanguageModel(build(), 160, tokenizer=tokenizer).eval()
    assert runner.takes_flat_rows(model.encoder)
    assert not runner.takes_flat_rows(model.encoder, model.find_causal)


def test_scores_by_distance_have_no_flat_rows(flat_rows: list[int]) -> None:
    assert not has_flat_rows(build("mpnet"))


def test_a_cpu_has_no_flat_rows() -> None:
    assert not has_flat_rows(build())


def test_a_flat_batch_knows_its_documents() -> None:
    packed = lay_out_bounded(
        [Sample([5, 6]), Sample([7, 8, 9, 7, 8, 9], num_documents=2), Sample([5], [1])], torch.device("cpu")
    )
    batch = packed.batch
    assert isinstance(batch, FlatBatch)
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 9, 7, 8, 9, 5]]
    assert batch.document_ids.tolist() == [[1, 1, 2, 2, 2, 3, 3, 3, 4]]
    assert batch.positions.tolist() == [[0, 1, 0, 1, 2, 0, 1, 2, 0]]
    assert batch.token_type_ids is not None
    assert batch.token_type_ids.tolist() == [[0] * 8 + [1]]
    assert batch.bounds.starts.tolist() == [0, 2, 5, 8, 9]
    assert int(batch.bounds.longest) == 3
    assert packed.num_documents == 4
    doubled = batch.map_fields(lambda values: values * 2)
    assert doubled.bounds.starts.tolist() == [0, 4, 10, 16, 18]
    with pytest.raises(InputError, match="a flat batch has one row"):
        FlatBatch(*(torch.zeros(2, 3, dtype=torch.long),) * 4, bounds=batch.bounds)


def test_reading_ahead_keeps_the_order_and_stops_at_its_bound() -> None:
    read: list[int] = []

    def produce() -> Iterator[int]:
        for number in range(100):
            read.append(number)
            yield number

    items = prefetch(produce(), 2)
    assert next(items) == 0
    assert list(items) == list(range(1, 100))
    given_up = prefetch(produce(), 2)
    next(given_up)
    given_up.close()
    assert len(read) < 200


def test_an_error_while_reading_ahead_comes_after_what_was_read() -> None:
    def produce() -> Iterator[int]:
        yield 1
        raise InputError("the second text is broken")

    items = prefetch(produce(), 4)
    assert next(items) == 1
    with pytest.raises(InputError, match="the second text is broken"):
        next(items)


@pytest.mark.slow  # compiling takes seconds; test_compiled_layers.py compares them too
@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_layers_compiled_once_take_rows_of_any_length(
    family: str, flat_rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    random = np.random.default_rng(0)
    batches = [[Sample(random.integers(5, 150, size).tolist()) for size in sizes] for sizes in ((9, 4), (3, 17, 8))]
    encoder = build(family)
    expected = [run_flat(encoder, samples) for samples in batches]
    encoder.inference_compiler = InferenceCompiler()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for samples, states in zip(batches, expected, strict=True):
        assert_rounded(run_flat(encoder, samples), states, NUM_TERMS)
    num_kinds = 2 if family == "modernbert" else 1
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == num_kinds


def run_flat(encoder: Any, samples: list[Sample]) -> Tensor:
    return torch.cat(list(runner.run_packed(encoder, samples, keep_states, pad_token_id=0)))


def test_compiled_code_finds_attention_where_it_looks_for_it(flat_rows: list[int]) -> None:
    """Some families hand queries over that are contiguous in another order of axes."""
    features = torch.randn(4, 5, 8).transpose(0, 1)
    starts, longest = torch.tensor([0, 2, 5], dtype=torch.int32), torch.tensor(3, dtype=torch.int32)
    bounds = torch.tensor([1, 1, 2, 2, 2]), starts, longest
    attend = documents._attend_opaquely
    assert not documents._attend(features, features, features, *bounds, -1).is_contiguous()
    torch.library.opcheck(attend, (features, features, features, *bounds, -1), test_utils="test_faketensor")
    assert attend(features, features, features, *bounds, -1).is_contiguous()


def test_compilation_waits_for_its_tokens(flat_rows: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(
        torch, "compile", lambda call, **options: lambda *given: calls.append("compiled") or call(*given)
    )
    encoder = build()
    encoder.inference_compiler = InferenceCompiler(tokens_before=12)
    run_flat(encoder, [Sample([5] * 10)])
    assert not calls
    run_flat(encoder, [Sample([5] * 10)])
    assert calls == ["compiled"] * 2


def test_compilation_is_for_long_documents(flat_rows: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(
        torch, "compile", lambda call, **options: lambda *given: calls.append("compiled") or call(*given)
    )
    encoder = build()
    encoder.inference_compiler = InferenceCompiler(tokens_before=12, least_length=8)
    run_flat(encoder, [Sample([5] * 10), Sample([5] * 3)])
    run_flat(encoder, [Sample([5] * 11)])
    assert not calls
    run_flat(encoder, [Sample([5] * 12), Sample([5] * 4)])
    assert calls == ["compiled"] * 2
    run_flat(encoder, [Sample([5] * 10), Sample([5] * 3)])
    assert calls == ["compiled"] * 2


def test_a_layer_the_compiler_cannot_take_runs_as_it_is(flat_rows: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> Tensor:
        raise torch._dynamo.exc.Unsupported("no such operation")

    monkeypatch.setattr(torch, "compile", lambda call, **options: refuse)
    encoder, samples = build(), [Sample([5, 6, 7])]
    expected = run_flat(encoder, samples)
    encoder.inference_compiler = InferenceCompiler()
    with pytest.warns(InputWarning, match="the compiler cannot take a BertLayer"):
        found = run_flat(encoder, samples)
    assert_rounded(found, expected, NUM_TERMS)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"compile": True}, "compile is true, and the model is not on a GPU"),
        ({"compile": "sometimes"}, "compile is 'sometimes'; expected auto, true or false"),
        ({"precision": "fp8"}, "precision is fp8, which cpu does not have"),
    ],
)
def test_what_a_cpu_has_not_is_refused(options: dict[str, Any], words: str, tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match=words):
        pipeline("embed", build(), tokenizer, **options)


def test_auto_compiles_nothing_on_a_cpu(tokenizer: Tokenizer) -> None:
    assert str(pipeline("embed", build(), tokenizer, compile="auto").compilation) == (
        "false (the model is not on a GPU)"
    )
