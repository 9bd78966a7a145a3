"""Vectors of texts: those of transformers and sentence-transformers, and long texts by windows."""

from __future__ import annotations

import json
import shutil
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import NUM_TERMS

from maskwright.errors import InputError, InputWarning
from maskwright.inference import runner
from maskwright.inference.pipeline import pipeline
from maskwright.models.bert import BERT
from maskwright.objectives.masked_lm import CausalLanguageModel, MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tolerances import assert_rounded

TEXTS = ["the cat sees", "my old teacher remembers the green house", "a", "one red bird likes a long"]


@pytest.fixture(params=["bert_folder", "roberta_folder"])
def folder(request: pytest.FixtureRequest) -> Path:
    return Path(request.getfixturevalue(request.param))


def extract_theirs(folder: Path, texts: list[str]) -> list[np.ndarray[Any, Any]]:
    """A vector to each token, by transformers."""
    transformers = pytest.importorskip("transformers")
    extract = transformers.pipeline("feature-extraction", model=str(folder), tokenizer=str(folder), device="cpu")
    return [np.array(extract(text)[0], np.float32) for text in texts]


def assert_close(found: Any, expected: Any) -> None:
    assert_rounded(np.asarray(found), np.asarray(expected), NUM_TERMS)


def test_without_pooling_the_vectors_are_those_of_feature_extraction(folder: Path) -> None:
    ours = pipeline("embed", folder, device="cpu", pooling="none")(TEXTS)
    for found, expected in zip(ours, extract_theirs(folder, TEXTS), strict=True):
        assert found.shape == expected.shape
        assert_close(found, expected)


@pytest.mark.parametrize(
    ("pooling", "pool"), [("mean", lambda states: states.mean(0)), ("cls", lambda states: states[0])]
)
def test_pooling_is_over_the_tokens_of_a_text(folder: Path, pooling: str, pool: Any) -> None:
    ours = pipeline("embed", folder, device="cpu", pooling=pooling)
    for found, expected in zip(ours(TEXTS), extract_theirs(folder, TEXTS), strict=True):
        assert found.dtype == np.float32
        assert_close(found, pool(expected))
    assert_close(ours(TEXTS[1]), ours(TEXTS)[1])


def test_normalised_vectors_have_length_one_and_keep_their_direction(bert_folder: Path) -> None:
    plain = np.stack(pipeline("embed", bert_folder, device="cpu")(TEXTS))
    unit = np.stack(pipeline("embed", bert_folder, device="cpu", normalize=True)(TEXTS))
    assert_close(np.linalg.norm(unit, axis=1), np.ones(len(TEXTS)))
    assert_close(unit * np.linalg.norm(plain, axis=1, keepdims=True), plain)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_long_text_is_the_mean_of_overlapping_windows_by_their_tokens(bert_folder: Path, pooling: str) -> None:
    words = [f"{a} {b}" for a in ("cat", "dog", "bird", "river") for b in ("the", "a", "one", "house")] * 2
    tokenizer = load_tokenizer(bert_folder)
    ids = tokenizer.encode_batch([" ".join(words)])[0]
    size, overlap = 22, 5  # 24 positions, two of them for [CLS] and [SEP]
    starts = list(range(0, len(ids) - overlap, size - overlap))
    assert len(starts) > 2
    encoder = BERT.from_pretrained(bert_folder)
    vectors, weights = [], []
    for start in starts:
        window = torch.tensor([[tokenizer.cls_token_id, *ids[start : start + size], tokenizer.sep_token_id]])
        with torch.no_grad():
            states = encoder(window).last_hidden_state[0].numpy()
        vectors.append(states.mean(0) if pooling == "mean" else states[0])
        weights.append(len(states))
    assert weights[-1] < weights[0]
    found = pipeline("embed", bert_folder, device="cpu", pooling=pooling)(" ".join(words))
    assert_close(found, np.average(vectors, axis=0, weights=weights))


def test_a_long_text_without_pooling_has_a_vector_to_each_token(bert_folder: Path) -> None:
    text = " ".join(["cat"] * 70)
    states = pipeline("embed", bert_folder, device="cpu", pooling="none")(text)
    assert states.shape == (len(load_tokenizer(bert_folder).encode(text)), 32)


def test_a_shorter_window_may_be_asked_for(bert_folder: Path) -> None:
    whole = pipeline("embed", bert_folder, device="cpu")(TEXTS[1])
    cut = pipeline("embed", bert_folder, device="cpu", max_length=8)(TEXTS[1])
    assert np.abs(whole - cut).max() > 0.01
    for length in (2, 25):
        with pytest.raises(InputError, match=f"max_length is {length}; it must be more than 2, .* at most 24"):
            pipeline("embed", bert_folder, max_length=length)


def test_order_is_kept_over_many_texts(bert_folder: Path) -> None:
    texts = [" ".join(["cat", "river", "bird"][: number % 3 + 1] * (number % 5 + 1)) for number in range(40)]
    ours = pipeline("embed", bert_folder, device="cpu", batch_tokens=32)
    for text, vector in zip(texts, ours(texts), strict=True):
        assert_close(vector, ours(text))


def test_an_encoder_without_a_head_is_enough(bert_folder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(bert_folder)
    encoder = BERT.from_pretrained(bert_folder)
    encoder.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    expected = pipeline("embed", bert_folder, device="cpu")(TEXTS)
    assert_close(pipeline("embed", tmp_path, device="cpu")(TEXTS), expected)
    assert_close(pipeline("embed", encoder, tokenizer)(TEXTS), expected)
    assert_close(pipeline("embed", MaskedLanguageModel.from_pretrained(bert_folder), tokenizer)(TEXTS), expected)


def test_a_model_that_only_transformers_knows_is_embedded(
    tokenizer: Tokenizer, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.MegatronBertConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=0.3,
    )
    transformers.MegatronBertModel(config).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    recwarn.clear()
    ours = pipeline("embed", tmp_path, device="cpu")(TEXTS)
    assert not [warning for warning in recwarn if "prediction head" in str(warning.message)]
    for found, expected in zip(ours, extract_theirs(tmp_path, TEXTS), strict=True):
        assert_close(found, expected.mean(0))


def test_a_causal_model_sees_only_what_comes_before(tokenizer: Tokenizer, tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 24}
    encoder = BERT.from_variant("tiny", vocab_size=tokenizer.vocab_size, initializer_range=0.5, **shape)
    specials = {"mask_token_id": tokenizer.mask_token_id, "special_token_ids": tokenizer.all_special_ids}
    CausalLanguageModel(encoder, tokenizer.vocab_size, **specials).save_pretrained(tmp_path, tokenizer)
    short, long = pipeline("embed", tmp_path, device="cpu", pooling="none")(["the cat", "the cat sees a bird"])
    assert_close(long[:3], short[:3])


def test_a_folder_of_sentence_transformers_says_how_to_pool(bert_folder: Path, tmp_path: Path) -> None:
    expected = build_sentence_folder(bert_folder, tmp_path / "model", pooling="cls")
    ours = pipeline("embed", tmp_path / "model", device="cpu")(TEXTS)
    assert_close(ours, expected.encode(TEXTS))
    override = pipeline("embed", tmp_path / "model", device="cpu", pooling="mean", normalize=False)(TEXTS)
    prompted = [f"one red {text}" for text in TEXTS]
    assert_close(override, pipeline("embed", bert_folder, device="cpu")(prompted))


def build_sentence_folder(source: Path, folder: Path, pooling: str) -> Any:
    """A model of sentence-transformers, saved by it."""
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    shutil.copytree(source, folder.with_name("plain"))
    transformer = modules.Transformer(str(folder.with_name("plain")))
    model = library.SentenceTransformer(
        modules=[transformer, modules.Pooling(transformer.get_embedding_dimension(), pooling), modules.Normalize()],
        device="cpu",
        prompts={"ask": "one red "},
        default_prompt_name="ask",
    )
    model.save_pretrained(str(folder))
    return library.SentenceTransformer(str(folder), device="cpu")


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_text_of_several_is_none_and_one_alone_is_named(bert_folder: Path, text: str) -> None:
    embed = pipeline("embed", bert_folder, device="cpu")
    texts = [text, *("the cat", "a bird") * 800, text, "the road", text]
    with pytest.warns(InputWarning, match="^3 of 1,604 texts have no text; their answer is None$"):
        answers = embed(texts)
    assert [answer is None for answer in answers] == [one == text for one in texts]
    assert_rounded(answers[1], embed("the cat"), NUM_TERMS)
    with pytest.raises(InputError, match=r"^text 1 is empty"):
        embed(text)


def test_missing_texts_of_a_column_are_none(bert_folder: Path) -> None:
    pandas = pytest.importorskip("pandas")
    for missing in (None, float("nan"), pandas.NA):
        with pytest.warns(InputWarning, match="^1 of 2 texts have no text"):
            answers = pipeline("feature-extraction", bert_folder, device="cpu")(
                pandas.Series(["a", missing], dtype=object)
            )
        assert [answer is None for answer in answers] == [False, True]


def test_pooling_that_is_not_known_is_refused(bert_folder: Path) -> None:
    with pytest.raises(InputError, match="no pooling 'man'; did you mean 'mean'"):
        pipeline("embed", bert_folder, pooling="man")


def test_kinds_and_options_that_are_not_known_are_refused(bert_folder: Path) -> None:
    with pytest.raises(InputError, match="no kind 'fillmask' of prediction; did you mean 'fill-mask'"):
        pipeline("fillmask", bert_folder)
    with pytest.raises(InputError, match="embed has no option 'top_k'"):
        pipeline("embed", bert_folder, top_k=3)


def test_a_model_without_its_tokenizer_is_refused(bert_folder: Path, roberta_folder: Path) -> None:
    encoder = BERT.from_pretrained(bert_folder)
    with pytest.raises(InputError, match="comes without a tokenizer"):
        pipeline("embed", encoder)
    with pytest.raises(InputError, match="use the model's tokenizer"):
        pipeline("embed", encoder, load_tokenizer(roberta_folder))
    with pytest.raises(InputError, match="a BERT predicts no tokens"):
        pipeline("fill-mask", encoder, load_tokenizer(bert_folder))


@pytest.mark.parametrize("inputs", [3, [3], ["a", b"b"]])
def test_what_is_no_text_is_refused(bert_folder: Path, inputs: Any) -> None:
    with pytest.raises(InputError, match="expected a text or a list of texts"):
        pipeline("embed", bert_folder, device="cpu")(inputs)


def test_the_settings_of_a_sentence_folder_are_in_its_small_files(bert_folder: Path, tmp_path: Path) -> None:
    build_sentence_folder(bert_folder, tmp_path / "model", pooling="mean")
    names = [module["type"].rsplit(".", 1)[1] for module in json.loads((tmp_path / "model/modules.json").read_text())]
    settings = pipeline("embed", tmp_path / "model").kind.settings
    assert names == ["Transformer", "Pooling", "Normalize"]
    assert (settings.pooling, settings.normalize, settings.prompt) == ("mean", True, "one red ")


def test_answers_come_before_the_last_text_is_read(bert_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "WINDOW_SAMPLES", 30)
    monkeypatch.setattr("maskwright.inference.pipeline._CHUNK_ITEMS", 20)
    monkeypatch.setattr("maskwright.inference.pipeline._FIRST_ITEMS", 20)
    numbers = count()
    texts = (f"the cat {number}" for number in numbers)
    answers = pipeline("embed", bert_folder, device="cpu").stream(texts)
    assert [text for text, _ in islice(answers, 25)] == [f"the cat {number}" for number in range(25)]
    assert next(numbers) <= 40


@pytest.mark.slow  # test_ner_pipeline.py has one too
def test_a_text_of_a_megabyte_has_a_vector(bert_folder: Path) -> None:
    text = "abcdefghij " * 95_400
    assert len(text) > 1_000_000
    vector = pipeline("embed", bert_folder, device="cpu")(text)
    assert vector.shape == (32,)
    assert np.isfinite(vector).all()
