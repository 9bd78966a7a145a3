from __future__ import annotations

import re
from io import StringIO

import pytest
import torch
from rich.console import Console
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from maskwright.batch import PackedBatch
from maskwright.errors import InputError
from maskwright.inference.visualize import build_prediction_view, split_text, visualize_mlm_predictions
from maskwright.models.bert import BERT
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [*SPECIALS, "the", "cat", "run", "##ning", "<b>", ".", "[red]", "sat", "mat", "dog"]
THE, CAT, RUN, NING, TAG, DOT, MARKUP, SAT, MAT, DOG = range(5, 15)


def build_tokenizer(model, decoder=None) -> Tokenizer:
    backend = Backend(model)
    backend.add_special_tokens(SPECIALS)
    if decoder is not None:
        backend.decoder = decoder
    return Tokenizer(backend)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    ids = {token: place for place, token in enumerate(VOCABULARY)}
    return build_tokenizer(models.WordPiece(ids, unk_token="[UNK]"), decoders.WordPiece())


@pytest.fixture
def model() -> MaskedLanguageModel:
    """Answers "cat" everywhere."""
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 16}
    encoder = BERT.from_variant("tiny", vocab_size=len(VOCABULARY), **shape)
    settings = {"mask_token_id": 4, "special_token_ids": range(5), "mask_ratio": 0.5}
    model = MaskedLanguageModel(encoder, len(VOCABULARY), random_token_ratio=0.0, unchanged_ratio=0.0, **settings)
    with torch.no_grad():
        model.mlm_output.bias[CAT] = 100.0
    return model


PADDED = {
    "input_ids": torch.tensor(
        [
            [2, THE, CAT, SAT, RUN, NING, DOT, 3, 0, 0],
            [2, THE, DOG, SAT, THE, MAT, THE, DOG, DOT, 3],
            [2, THE, TAG, TAG, MARKUP, TAG, TAG, 3, 0, 0],
        ]
    ),
}
PADDED["attention_mask"] = (PADDED["input_ids"] != 0).long()
PACKED = PackedBatch(
    input_ids=torch.tensor([[2, THE, CAT, SAT, 3, 2, THE, DOG, DOT, 3], [2, THE, MAT, SAT, THE, CAT, DOT, 3, 0, 0]]),
    document_ids=torch.tensor([[1] * 5 + [2] * 5, [1] * 8 + [0] * 2]),
    positions=torch.tensor([[*range(5), *range(5)], [*range(8), 0, 0]]),
    sample_ids=torch.tensor([[7] * 5 + [8] * 5, [9] * 8 + [0] * 2]),
)


def show(model, inputs, tokenizer, **arguments) -> list[str]:
    console = Console(file=StringIO(), width=200)
    visualize_mlm_predictions(model, inputs, tokenizer, console=console, **arguments)
    return console.file.getvalue().splitlines()


def test_prints_original_masked_and_prediction(model, tokenizer):
    lines = show(model, PADDED, tokenizer)
    assert [line for line in lines if line.startswith("Sample")] == [
        line for line in lines if line.startswith("Sample") and line.endswith("right")
    ]
    originals = [line.removeprefix("Original:     ") for line in lines if line.startswith("Original:")]
    assert originals == ["the cat sat running.", "the dog sat the mat the dog.", "the <b> <b> [red] <b> <b>"]
    masked = [line.removeprefix("Masked Input: ").split() for line in lines if line.startswith("Masked Input:")]
    predicted = [line.removeprefix("Prediction:   ").split() for line in lines if line.startswith("Prediction:")]
    assert len(masked) == len(predicted) == 3
    for question, answer in zip(masked, predicted, strict=True):
        assert " ".join(question).count("[MASK]") >= 3
        assert " ".join(question).replace("[MASK]", "cat") == " ".join(answer)


def test_packed_rows_are_shown_document_by_document(model, tokenizer):
    lines = show(model, PACKED, tokenizer)
    originals = [line.removeprefix("Original:     ") for line in lines if line.startswith("Original:")]
    assert originals == ["the cat sat", "the dog.", "the mat sat the cat."]


@pytest.mark.parametrize(("num_samples", "shown"), [(1, 1), (2, 2), (4, 3)])
@pytest.mark.parametrize("inputs", [PADDED, PACKED], ids=["padded", "packed"])
def test_number_of_samples(model, tokenizer, inputs, num_samples, shown):
    view = build_prediction_view(model, inputs, tokenizer, num_samples=num_samples)
    assert len(view.samples) == shown
    with pytest.raises(InputError, match="num_samples is 0"):
        build_prediction_view(model, inputs, tokenizer, num_samples=0)


def test_two_calls_ask_the_same_and_seeds_differ(model, tokenizer):
    first, again = (build_prediction_view(model.train(), PADDED, tokenizer) for _ in range(2))
    assert first.samples == again.samples
    assert model.training
    others = [build_prediction_view(model, PADDED, tokenizer, seed=seed).samples for seed in (1, 2, 3)]
    assert any(other != first.samples for other in others)


def test_right_answers_are_counted_among_the_masked(model, tokenizer):
    view = build_prediction_view(model, {"input_ids": torch.tensor([[2, CAT, THE, CAT, CAT, 3]])}, tokenizer)
    (sample,) = view.samples
    pairs = [
        (original == " cat") for original, selected in zip(sample.original, sample.selected, strict=True) if selected
    ]
    assert sum(sample.selected) == 2
    assert sample.num_correct == sum(pairs)


@pytest.mark.parametrize(("mask_ratio", "num_masked"), [(None, 4), (1.0, 8), (0.25, 2)])
def test_mask_ratio_is_the_models_own_unless_given(model, tokenizer, mask_ratio, num_masked):
    inputs = {"input_ids": PADDED["input_ids"][1:2]}
    (sample,) = build_prediction_view(model, inputs, tokenizer, mask_ratio=mask_ratio).samples
    assert sum(sample.selected) == num_masked
    assert sample.masked.count(" [MASK]") == num_masked


def test_html_is_escaped_and_coloured(model, tokenizer):
    text = build_prediction_view(model, PADDED, tokenizer, mask_ratio=0.5)._repr_html_()
    assert "&lt;b&gt;" in text
    assert "<b>" not in text
    assert text.count('<table class="sample">') == 3
    assert re.findall(r"<(?:td|th|caption)(?! style=\"text-align: left\")", text) == []
    right, wrong = '<b class="right" style="color:#18794e">cat</b>', '<b class="wrong" style="color:#b42318">cat</b>'
    assert right in text or wrong in text


def test_terminal_colours_right_and_wrong_answers(model, tokenizer):
    console = Console(file=StringIO(), force_terminal=True, color_system="standard", width=200)
    inputs = {"input_ids": torch.tensor([[2, CAT, DOG, 3]])}
    build_prediction_view(model, inputs, tokenizer, mask_ratio=1.0).print(console)
    (line,) = [line for line in console.file.getvalue().splitlines() if "Prediction" in line]
    green, red = "\x1b[1;32m", "\x1b[1;31m"
    assert f"{green}cat\x1b[0m" in line
    assert f"{red} cat\x1b[0m" in line


def test_view_as_plain_string(model, tokenizer):
    inputs = {"input_ids": torch.tensor([[2, DOG, RUN, NING, 3]])}
    assert str(build_prediction_view(model, inputs, tokenizer, mask_ratio=1.0)).splitlines() == [
        "Sample 1",
        "Original:     dog running",
        "Masked Input: [MASK] [MASK] [MASK]",
        "Prediction:   cat cat cat",
        "-" * 80,
    ]


def test_words_of_a_word_level_tokenizer_are_spaced():
    words = ["hash", "##tag", "cat,"]
    ids = {token: place for place, token in enumerate([*SPECIALS, *words])}
    tokenizer = build_tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    assert split_text(tokenizer, [5, 6, 7, 4]) == [" hash", " ##tag", " cat,", " [MASK]"]


@pytest.mark.parametrize(
    ("decoder", "tokens", "expected"),
    [
        (decoders.ByteLevel(), ["The", "Ġcat", "s", "Ġsat"], "The cats sat"),
        (decoders.Metaspace(), ["▁The", "▁cat", "s", "▁sat"], "The cats sat"),
        (decoders.WordPiece(), ["the", "cat", "##s", "."], "the cats."),
    ],
)
def test_pieces_follow_the_tokenizers_decoder(decoder, tokens, expected):
    ids = {token: place for place, token in enumerate([*SPECIALS, *tokens])}
    tokenizer = build_tokenizer(models.WordLevel(ids, unk_token="[UNK]"), decoder)
    pieces = split_text(tokenizer, [5, 6, 7, 8])
    assert "".join(pieces).strip() == expected
    assert len(pieces) == 4


def test_a_character_whose_bytes_are_several_tokens_is_whole():
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False)
    dash, year = (spelled.pre_tokenize_str(text)[0][0] for text in ("–", " 1783"))  # noqa: RUF001
    ids = {token: place for place, token in enumerate([*SPECIALS, year, *dash])}
    tokenizer = build_tokenizer(models.WordLevel(ids, unk_token="[UNK]"), decoders.ByteLevel())
    whole = [ids[year], *(ids[byte] for byte in dash), ids[year]]
    assert split_text(tokenizer, whole) == [" 1783", "–", "", "", " 1783"]  # noqa: RUF001
    partly = split_text(tokenizer, [ids[dash[0]], tokenizer.mask_token_id, ids[dash[2]]])
    assert partly == ["\ufffd", "[MASK]", "\ufffd"]
