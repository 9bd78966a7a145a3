"""Settings of masking: what is refused, and that strategies reach the model and the data."""

from __future__ import annotations

import pytest

from maskwright.config import build_config
from maskwright.errors import InputError
from maskwright.runs.inputs import load_data
from maskwright.runs.model import build_model


def load(values, **masking):
    config = build_config({**values, "masking": masking})
    return config, load_data(config, None, lambda text: None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ratio": 0}, r"'masking\.ratio' is 0: .*greater than 0"),
        ({"ratio": 1.5}, r"'masking\.ratio' is 1\.5: .*less than or equal to 1"),
        ({"span_max_words": 0}, r"'masking\.span_max_words' is 0: .*greater than or equal to 1"),
        ({"span_p": 0}, r"'masking\.span_p' is 0: .*greater than 0"),
        ({"strategy": "word"}, r"'masking\.strategy' is 'word'"),
    ],
)
def test_impossible_settings_are_refused_in_one_sentence(settings, message):
    with pytest.raises(InputError, match=message) as refusal:
        build_config({"masking": settings})
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("strategy", ["token", "whole_word", "span"])
def test_the_strategy_reaches_the_model_and_its_training_data(tiny_values, strategy):
    config, data = load(tiny_values, strategy=strategy, span_p=0.5, span_max_words=4, ratio=0.3)
    model = build_model(config, data.tokenizer)
    assert model.masker.strategy == strategy
    if strategy == "span":
        assert (model.masker.settings()["span_p"], model.masker.settings()["span_max_words"]) == (0.5, 4)
    batch = next(data.train.epoch(0))
    for loader in (data.train, data.validation):
        assert (next(loader.epoch(0)).word_starts is None) == (strategy == "token")
    assert model.corrupt(batch, 0, 0).selected.any()


def test_texts_masked_by_words_have_the_words_of_the_tokenizer(tiny_values):
    tiny_values["tokenizer"]["vocab_size"] = 70
    _, data = load(tiny_values, strategy="whole_word")
    for batch in data.train.epoch(0):
        tokens = [data.tokenizer.token(token_id) for token_id in batch.input_ids.flatten().tolist()]
        assert batch.word_starts.flatten().tolist() == [not token.startswith("##") for token in tokens]
    assert any(token.startswith("##") for token in tokens)


def test_augmented_texts_can_be_masked_by_words(tiny_values):
    tiny_values["augmentation"] = {"probability": 1.0, "word_dropout": 0.3}
    _, data = load(tiny_values, strategy="span")
    for epoch in (0, 1):
        assert next(data.train.epoch(epoch)).word_starts is not None
