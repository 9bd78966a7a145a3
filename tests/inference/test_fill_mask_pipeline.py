"""Fill-mask over many texts: the answers of transformers, long texts and bad ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import SCORE_ERROR

from maskwright.errors import InputError, InputWarning
from maskwright.inference.pipeline import pipeline
from maskwright.models.bert import BERT
from maskwright.objectives.masked_lm import CausalLanguageModel, MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer, load_tokenizer

TEXTS = [
    "the cat {} the green house.",
    "{}",
    "every student {} a long {} before it rains.",
    "the quiet {} zebra 9 likes .",
    "my old {} remembers {} green {} with great care.",
    "one red bird sees {}",
]


def load_theirs(folder: Path, **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.pipeline("fill-mask", model=str(folder), tokenizer=str(folder), device="cpu", **options)


def assert_same(ours: Any, theirs: Any) -> None:
    """The same answer, scores up to rounding."""
    assert type(ours) is type(theirs)
    if isinstance(ours, list):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            assert_same(mine, other)
        return
    assert list(ours) == list(theirs) == ["score", "token", "token_str", "sequence"]
    assert ours["score"] == pytest.approx(theirs["score"], abs=SCORE_ERROR)
    assert {**ours, "score": 0} == {**theirs, "score": 0}


@pytest.fixture(params=["bert_folder", "roberta_folder"])
def folder(request: pytest.FixtureRequest) -> Path:
    return Path(request.getfixturevalue(request.param))


@pytest.fixture
def texts(folder: Path) -> list[str]:
    mask_token = load_tokenizer(folder).mask_token
    return [text.replace("{}", mask_token) for text in TEXTS]


def test_many_texts_have_the_answers_of_transformers_in_order(folder: Path, texts: list[str]) -> None:
    assert_same(pipeline("fill-mask", folder, device="cpu")(texts), load_theirs(folder)(texts))


@pytest.mark.parametrize("top_k", [1, 40])
def test_one_text_has_the_answer_of_transformers(folder: Path, texts: list[str], top_k: int) -> None:
    ours = pipeline("fill-mask", folder, device="cpu", top_k=top_k)
    for text in texts[:3]:
        assert_same(ours(text), load_theirs(folder)(text, top_k=top_k))


def test_targets_have_the_answer_of_transformers(folder: Path, texts: list[str]) -> None:
    targets = ["s", "the", "remembers the", "t"]
    with pytest.warns(InputWarning, match="'remembers the' is no single token of the model; its first piece '.+' is"):
        ours = pipeline("fill-mask", folder, device="cpu", targets=targets)
    assert_same(ours(texts), load_theirs(folder)(texts, targets=targets))
    one = pipeline("fill-mask", folder, device="cpu", targets="s", top_k=3)
    assert_same(one(texts[0]), load_theirs(folder)(texts[0], targets="s", top_k=3))


def test_a_target_without_any_piece_is_left_aside_and_one_must_be_left(bert_folder: Path) -> None:
    with pytest.warns(InputWarning, match="' ' is no single token of the model; it is left aside"):
        ours = pipeline("fill-mask", bert_folder, device="cpu", targets=[" ", "the"])
    assert [candidate["token_str"] for candidate in ours("a [MASK].")] == ["the"]
    with pytest.warns(InputWarning), pytest.raises(InputError, match="none of the targets is a token"):
        pipeline("fill-mask", bert_folder, device="cpu", targets=[" "])


def test_a_mask_in_a_long_text_is_answered_from_the_tokens_around_it(bert_folder: Path) -> None:
    ours = pipeline("fill-mask", bert_folder, device="cpu")
    before, after = ["cat"] * 11, ["dog"] * 10
    near = " ".join([*before, "[MASK]", *after])  # with [CLS] and [SEP] exactly 24
    far = " ".join([*["river"] * 50, near, *["bird"] * 60])
    expected = ours(near)
    with pytest.warns(InputWarning, match=r"^text 1 \('river .*\) has .* tokens, the model takes 22: each mask"):
        assert_same(ours(far), expected)


def test_each_mask_of_a_long_text_has_its_own_window(bert_folder: Path) -> None:
    ours = pipeline("fill-mask", bert_folder, device="cpu")
    text = " ".join(["[MASK]", *["cat"] * 100, "[MASK]", *["river"] * 100, "[MASK]"])
    with pytest.warns(InputWarning, match="tokens around it"):
        first, middle, last = ours(text)
    assert "cat" in first[0]["sequence"]
    assert "river" not in first[0]["sequence"]
    assert {"cat", "river"} <= set(middle[0]["sequence"].split())
    assert "cat" not in last[0]["sequence"]


def test_only_the_first_long_text_is_warned_of(bert_folder: Path, recwarn: pytest.WarningsRecorder) -> None:
    pipeline("fill-mask", bert_folder, device="cpu")(["[MASK]" + " cat" * 40, "[MASK]" + " bird" * 50])
    assert len([warning for warning in recwarn if warning.category is InputWarning]) == 1


def test_a_text_of_a_megabyte_is_answered(bert_folder: Path) -> None:
    text = "the quiet river " * 33_000 + "[MASK] " + "likes a long road " * 30_000
    assert len(text) > 1_000_000
    with pytest.warns(InputWarning, match="each mask"):
        candidates = pipeline("fill-mask", bert_folder, device="cpu")(text)
    assert len(candidates) == 5


def test_a_text_without_a_mask_is_named(bert_folder: Path) -> None:
    ours = pipeline("fill-mask", bert_folder, device="cpu")
    with pytest.raises(InputError, match=r"^text 1 \('the cat sees'\) has no \[MASK\] to fill: write \[MASK\]"):
        ours("the cat sees")
    with pytest.warns(InputWarning, match=r"^1 of 2 texts have no text or no \[MASK\]; their answer is None$"):
        filled, nothing = ours(["the [MASK]", "the cat sees"])
    assert (len(filled), nothing) == (5, None)


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_text_of_several_is_none_and_one_alone_is_named(bert_folder: Path, text: str) -> None:
    ours = pipeline("fill-mask", bert_folder, device="cpu")
    with pytest.warns(InputWarning, match="^1 of 3 texts"):
        assert [answer is None for answer in ours(["[MASK]", text, "a [MASK]"])] == [False, True, False]
    with pytest.raises(InputError, match=r"^text 1 is empty"):
        ours(text)


@pytest.mark.parametrize("top_k", [0, 100_000])
def test_a_number_of_candidates_that_cannot_be_is_refused(bert_folder: Path, top_k: int) -> None:
    with pytest.raises(InputError, match=f"top_k is {top_k}"):
        pipeline("fill-mask", bert_folder, top_k=top_k)


def test_a_causal_model_answers_one_place_before_the_mask(tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 24}
    encoder = BERT.from_variant("tiny", vocab_size=tokenizer.vocab_size, initializer_range=0.5, **shape)
    specials = {"mask_token_id": tokenizer.mask_token_id, "special_token_ids": tokenizer.all_special_ids}
    model = CausalLanguageModel(encoder, tokenizer.vocab_size, **specials).eval()
    ids = tokenizer.encode("the cat [MASK] the house")
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, ids.index(tokenizer.mask_token_id) - 1]
    best = pipeline("fill-mask", model, tokenizer, top_k=1)("the cat [MASK] the house")[0]
    assert best["token"] == int(logits.argmax())
    assert best["score"] == pytest.approx(float(logits.softmax(0).max()), abs=SCORE_ERROR)


def test_dropout_of_the_head_is_off(bert_folder: Path) -> None:
    model, tokenizer = MaskedLanguageModel.from_pretrained(bert_folder), load_tokenizer(bert_folder)
    expected = pipeline("fill-mask", model, tokenizer)("the [MASK] sees")
    model.train()
    assert_same(pipeline("fill-mask", model, tokenizer)("the [MASK] sees"), expected)
    assert all(part.training for part in model.modules())
