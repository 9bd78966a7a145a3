"""A Keras model on the torch backend as an encoder: run with KERAS_BACKEND=torch where keras is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from maskwright.batch import PackedBatch, from_padded
from maskwright.errors import InputError
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.sections.training import OptimizerConfig
from maskwright.training.optim.optimizers import build_optimizers
from tolerances import assert_rounded, count_terms

if os.environ.get("KERAS_BACKEND") != "torch":
    pytest.skip("needs KERAS_BACKEND=torch", allow_module_level=True)
keras = pytest.importorskip("keras")

V, D = 40, 16


def mix(hidden: Any, attention_mask: Any, dropout: float) -> Any:
    """A layer in which every token sees the mean of its row."""
    weights = keras.ops.cast(attention_mask, "float32")[..., None]
    mean = keras.ops.sum(hidden * weights, axis=1, keepdims=True) / keras.ops.sum(weights, axis=1, keepdims=True)
    mixed = keras.layers.Dense(D, activation="gelu")(keras.layers.Dropout(dropout)(hidden + mean))
    return keras.layers.LayerNormalization()(mixed)


def build_functional(dropout: float = 0.0) -> Any:
    keras.utils.set_random_seed(0)
    inputs = {name: keras.Input((None,), dtype="int64", name=name) for name in ("input_ids", "attention_mask")}
    hidden = mix(keras.layers.Embedding(V, D)(inputs["input_ids"]), inputs["attention_mask"], dropout)
    encoder = keras.Model(inputs, {"last_hidden_state": hidden})
    encoder.hidden_size = D
    return encoder


class SubclassedEncoder(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.hidden_size = D
        self.embedding = keras.layers.Embedding(V, D)
        self.dense = keras.layers.Dense(D, activation="gelu")

    def call(self, input_ids: Any, attention_mask: Any) -> dict[str, Any]:
        weights = keras.ops.cast(attention_mask, "float32")[..., None]
        hidden = self.embedding(input_ids)
        mean = keras.ops.sum(hidden * weights, axis=1, keepdims=True) / keras.ops.sum(weights, axis=1, keepdims=True)
        return {"last_hidden_state": self.dense(hidden + mean)}


def build_subclassed() -> Any:
    keras.utils.set_random_seed(0)
    encoder = SubclassedEncoder()
    ids = torch.ones(1, 2, dtype=torch.long)
    encoder(input_ids=ids, attention_mask=ids)
    return encoder


def wrap(encoder: Any) -> MaskedLanguageModel:
    torch.manual_seed(0)
    return MaskedLanguageModel(encoder, V, mask_token_id=4, special_token_ids=range(5), mlm_head_dropout=0.0)


def make_packed() -> PackedBatch:
    """A row of two documents, of 5 and 4 tokens."""
    torch.manual_seed(1)
    documents = torch.tensor([[1] * 5 + [2] * 4])
    positions = torch.tensor([[*range(5), *range(4)]])
    return PackedBatch(torch.randint(5, V, (1, 9)), documents, positions, documents)


@pytest.mark.parametrize("build", [build_functional, build_subclassed])
def test_a_keras_encoder_learns_with_all_its_weights(build: Any) -> None:
    encoder = build()
    model = wrap(encoder)
    optimizers = build_optimizers(model, OptimizerConfig(learning_rate=1e-2))
    before = [weight.numpy().copy() for weight in encoder.trainable_weights]
    batch = make_packed()
    losses = []
    for _ in range(30):
        sums = model.loss_sums(model.corrupt(batch, seed=0, epoch=0, ratio=0.4))
        loss = sums.loss_sum / sums.num_labelled
        optimizers.zero_grad()
        loss.backward()
        optimizers.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
    assert before
    assert all((old != new.numpy()).any() for old, new in zip(before, encoder.trainable_weights, strict=True))


@pytest.mark.parametrize("build", [build_functional, build_subclassed])
def test_documents_of_a_row_do_not_see_each_other(build: Any) -> None:
    model, batch = wrap(build()).eval(), make_packed()
    whole = model(batch).logits
    alone = model(from_padded(batch.input_ids[:, 5:])).logits
    assert_rounded(whole[:, 5:], alone, count_terms(num_layers=1, width=D, length=9))


def test_dropout_of_a_keras_encoder_follows_the_mode_of_the_model() -> None:
    model, batch = wrap(build_functional(dropout=0.5)), make_packed()
    model.train()
    assert not torch.equal(model(batch).logits, model(batch).logits)
    model.eval()
    torch.testing.assert_close(model(batch).logits, model(batch).logits, rtol=0, atol=0)


@pytest.mark.parametrize("build", [build_functional, build_subclassed])
def test_a_saved_model_comes_back_around_a_new_encoder(build: Any, tmp_path: Path) -> None:
    model, batch = wrap(build()).eval(), make_packed()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1
    model.save_pretrained(tmp_path)
    back = MaskedLanguageModel.from_pretrained(tmp_path, encoder=build())
    torch.testing.assert_close(back(batch).logits, model(batch).logits, rtol=0, atol=0)
    with pytest.raises(InputError, match=r"pass it as from_pretrained\(folder, encoder=...\)"):
        MaskedLanguageModel.from_pretrained(tmp_path)


def test_what_a_keras_encoder_lacks_is_named() -> None:
    encoder = build_functional()
    del encoder.hidden_size
    with pytest.raises(InputError, match="has no attribute 'hidden_size'"):
        wrap(encoder)
    with pytest.raises(InputError, match="SubclassedEncoder has no weights yet; call it once on a batch"):
        wrap(SubclassedEncoder())
