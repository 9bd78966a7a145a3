"""The Python API as people of Keras and transformers use it: taken, or answered in one sentence of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.models.encoder import EncoderShape
from maskwright.tasks.model import TaskModel
from maskwright.tasks.sequence.classification import Classification
from maskwright.tasks.sequence.sequence_head import build_sequence_head
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tiny_bert import build_tiny_bert


@pytest.fixture(scope="module")
def encoder(tokenizer: Tokenizer) -> mw.BERT:
    return build_tiny_bert(tokenizer).eval()


@pytest.fixture(scope="module")
def model(encoder: mw.BERT, tokenizer: Tokenizer) -> mw.MaskedLanguageModel:
    mlm = mw.MaskedLanguageModel(
        encoder,
        tokenizer.vocab_size,
        mask_token_id=tokenizer.mask_token_id,
        special_token_ids=tokenizer.all_special_ids,
    )
    return mlm.eval()


@pytest.fixture(scope="module")
def inputs(tokenizer: Tokenizer) -> dict[str, torch.Tensor]:
    return tokenizer(["the cat sees a road", "a dog"], padding=True, return_tensors="pt")


def test_an_encoder_takes_a_dictionary(encoder: mw.BERT, inputs: dict[str, torch.Tensor]) -> None:
    expected = encoder(**inputs)["last_hidden_state"]
    assert torch.equal(encoder(inputs).last_hidden_state, expected)
    with_extras = {**inputs, "special_tokens_mask": inputs["input_ids"], "labels": inputs["input_ids"]}
    assert torch.equal(encoder(with_extras).last_hidden_state, expected)
    ids = {"input_ids": inputs["input_ids"]}
    assert torch.equal(encoder(ids, attention_mask=inputs["attention_mask"]).last_hidden_state, expected)
    assert not torch.equal(encoder(ids).last_hidden_state, expected)


def test_models_take_a_dictionary_with_labels(
    model: mw.MaskedLanguageModel, encoder: mw.BERT, inputs: dict[str, torch.Tensor]
) -> None:
    labels = inputs["input_ids"]
    found, expected = model({**inputs, "labels": labels}), model(**inputs, labels=labels)
    assert torch.equal(found.loss, expected.loss)
    assert torch.equal(found.logits, expected.logits)
    task = TaskModel(encoder, build_sequence_head(encoder, 2, {}), Classification(["a", "b"])).eval()
    classes = torch.tensor([0, 1])
    assert torch.equal(task({**inputs, "labels": classes})["loss"], task(**inputs, labels=classes)["loss"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"attention_msk": 1}, "'attention_msk', which is not read; call it 'attention_mask'"),
        ({"padding_mask": 1}, "'padding_mask', which is not read; call it 'attention_mask'"),
        ({"segment_ids": 1}, "call it 'token_type_ids'"),
        ({"input_ids": [[1, 2]]}, r"input_ids is a list; expected a tensor of token ids"),
        ({"input_ids": np.ones((1, 2))}, r"input_ids is a ndarray; expected a tensor"),
        ({"input_ids": torch.ones(1, 2)}, "dtype torch.float32; token ids are integers"),
        ({"input_ids": torch.ones(2).long()}, r"input_ids has shape \(2,\); expected \(batch, length\)"),
        ({"input_ids": torch.full((2, 7), 9999)}, "token ids from 9999 to 9999, the model knows 0 to"),
        ({"attention_mask": torch.ones(1, 3)}, r"attention_mask has shape \(1, 3\), input_ids has \(2, 7\)"),
        ({"attention_mask": [[1]]}, "attention_mask is a list; expected a tensor"),
        ({"token_type_ids": torch.full((2, 7), 5)}, "token_type_ids from 5 to 5, the model knows 0 to 1"),
    ],
)
def test_wrong_inputs_are_named(
    model: mw.MaskedLanguageModel, inputs: dict[str, torch.Tensor], change: dict[str, Any], reason: str
) -> None:
    for module in (model, model.encoder):
        with pytest.raises(mw.InputError, match=reason):
            module({**inputs, **change})


def test_labels_of_another_shape_are_refused(model: mw.MaskedLanguageModel, inputs: dict[str, torch.Tensor]) -> None:
    with pytest.raises(mw.InputError, match=r"labels are \(2, 3\); expected a tensor like input_ids, \(2, 7\)"):
        model(inputs, labels=torch.ones(2, 3).long())


@pytest.mark.parametrize(
    ("options", "texts", "pairs"),
    [
        ({}, "the cat sees", None),
        ({}, ["the cat sees", "a"], None),
        ({}, "the cat sees", "a long road"),
        ({"padding": True}, ["the cat sees", "a"], ["a long road", "one red bird"]),
        ({"padding": "max_length", "truncation": True, "max_length": 6}, ["the quiet river carries", "a"], None),
        ({"truncation": True, "max_length": 7}, "the quiet river", "every student remembers a road"),
        ({"add_special_tokens": False}, "the cat", None),
        ({"padding": "longest", "return_tensors": "np"}, ["the cat sees", "a"], None),
    ],
)
def test_a_tokenizer_is_called_as_one_of_transformers(
    tokenizer: Tokenizer, options: dict[str, Any], texts: Any, pairs: Any, tmp_path: Any
) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer.save_pretrained(tmp_path)
    theirs = transformers.BertTokenizerFast.from_pretrained(tmp_path)
    expected, found = theirs(texts, pairs, **options), mw.Tokenizer.from_pretrained(tmp_path)(texts, pairs, **options)
    assert list(found) == ["input_ids", "token_type_ids", "attention_mask"]
    for name, value in found.items():
        assert np.array_equal(
            np.concatenate([np.ravel(one) for one in value]), np.concatenate([np.ravel(one) for one in expected[name]])
        )
    assert len(tokenizer) == len(theirs)
    assert (tokenizer.pad_token, tokenizer.cls_token) == (theirs.pad_token, theirs.cls_token)


ASKED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda one: one.tokenizer(["a", "the cat"], return_tensors="pt"), "different numbers of tokens; .*padding=True"),
    (lambda one: one.tokenizer(["a"], return_tensors="tf"), "return_tensors is 'tf'; expected 'pt'"),
    (lambda one: one.tokenizer("a", truncation=True), "need a max_length"),
    (lambda one: one.tokenizer("a", truncation=True, max_length=2), "max_length is 2; it must be more than 2"),
    (lambda one: one.tokenizer([3]), "text holds 3; expected a text"),
    (lambda one: one.tokenizer("a", ["b", "c"]), "1 texts and 2 second ones"),
    (lambda one: one.tokenizer.encode(["the cat"]), "the text is a list; give one text"),
    (lambda one: one.tokenizer.encode_batch("the cat"), "texts is one text; give a list"),
    (lambda one: mw.load_tokenizer(5), "a tokenizer is 5; expected"),
    (lambda one: mw.train_tokenizer("corpus.txt"), "no file, folder or glob match at corpus.txt"),
    (lambda one: mw.train_tokenizer(["a"], vocab_size="x"), "vocab_size is 'x'; expected a whole number"),
    (lambda one: mw.BERT.from_pretrained(5), "a model is 5; expected a model folder"),
    (lambda one: mw.BERT({"hidden_size": 3}), r"BERT got a dict; give a BertConfig\(...\), or build it with"),
    (lambda one: mw.BertConfig(hidden_size="x"), "hidden_size is 'x'; expected a whole number"),
    (lambda one: mw.BertConfig(hidden_sze=3), "BertConfig has no setting 'hidden_sze'; did you mean 'hidden_size'"),
    (lambda one: mw.ModernBertConfig(norm_eps="x"), "norm_eps is 'x'; expected a number"),
    (lambda one: mw.ModernBertConfig(norm_bias=1), "norm_bias is 1; expected True or False"),
    (lambda one: mw.BERT.from_variant("tiny", hidden_size="x"), "hidden_size is 'x'; expected a whole number"),
    (lambda one: mw.BERT.from_variant(5), "no BERT variant '5'; known are base"),
    (lambda one: one.model.fit([]), r"a Trainer trains a model: Trainer\(model"),
    (lambda one: one.model.compile(optimizer="adamw"), r"a model needs no compile\(optimizer=...\)"),
    (lambda one: one.model.save("x.keras"), r"saved by model.save_pretrained\(folder, tokenizer\)"),
    (lambda one: one.model.encoder.save("x.keras"), r"saved by encoder.save_pretrained"),
    (lambda one: one.model.summary(), r"print\(model\) shows its layers"),
    (
        lambda one: mw.predict_masked("runs/x", one.tokenizer, "[MASK]"),
        "the model is a str; give a MaskedLanguageModel",
    ),
    (lambda one: mw.predict_masked(one.model, one.tokenizer, ["[MASK]"]), "the text is a list; give one text"),
    (lambda one: mw.mask_text("a b", ["x"]), "position 'x' is no whole number"),
    (lambda one: mw.NLPTaskConfig("s", "sentiment_analysis", 3), "did you mean 'NLPTaskType.SENTIMENT_ANALYSIS'"),
    (lambda one: mw.create_nlp_head({}, 3), r"task_config is a dict; expected NLPTaskConfig\("),
    (lambda one: mw.Trainer(one.model, mask_ratio=0.3), "mask_ratio is 0.3; expected a function .*model.mask_ratio"),
    (lambda one: mw.Trainer(one.model, seed="x"), "seed is 'x'; expected a whole number"),
]


@pytest.mark.parametrize(("ask", "reason"), ASKED, ids=[reason for _, reason in ASKED])
def test_a_wrong_or_foreign_argument_gets_a_sentence(
    tokenizer: Tokenizer, model: mw.MaskedLanguageModel, ask: Callable[[Any], Any], reason: str
) -> None:
    one = type("Parts", (), {"tokenizer": tokenizer, "model": model})
    with pytest.raises(mw.InputError, match=reason):
        ask(one)


def test_torchs_own_compile_is_still_there(model: mw.MaskedLanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, *args, **options: asked.append(options))
    model.compile(dynamic=True)
    assert asked == [{"dynamic": True}]


def test_a_shape_can_be_copied_and_replaced() -> None:
    import copy
    import dataclasses
    import pickle

    config = mw.BertConfig(hidden_size=24, num_attention_heads=2)
    assert isinstance(config, EncoderShape)
    assert copy.deepcopy(config) == pickle.loads(pickle.dumps(config)) == config
    assert dataclasses.replace(config, vocab_size=7).vocab_size == 7


@pytest.mark.parametrize(
    ("name", "ours"),
    [("AutoTokenizer", "load_tokenizer"), ("TrainingArguments", "TrainingConfig"), ("Trianer", "'Trainer'")],
)
def test_a_name_of_others_is_answered_with_ours(name: str, ours: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; .*{ours}"):
        getattr(mw, name)


@pytest.mark.parametrize(
    ("name", "instead"), [("save_model", "save_pretrained"), ("predict", r"pipeline\(kind, trainer.model")]
)
def test_a_method_of_other_trainers_is_answered_with_ours(
    model: mw.MaskedLanguageModel, name: str, instead: str
) -> None:
    trainer = mw.Trainer(model, training=mw.TrainingConfig(device="cpu"))
    with pytest.raises(AttributeError, match=instead):
        getattr(trainer, name)
    assert not hasattr(trainer, name)


def test_a_trainer_evaluates_under_the_same_masks_each_time(
    model: mw.MaskedLanguageModel, tokenizer: Tokenizer, sentences: list[str]
) -> None:
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    trainer = mw.Trainer(model, training=mw.TrainingConfig(device="cpu", epochs=1))
    figures = trainer.evaluate([batch])
    assert figures == trainer.evaluate([batch])
    history = trainer.fit([batch], validation_data=[batch], verbose=0).history
    after = trainer.evaluate([batch])
    assert {f"val_{name}": [value] for name, value in after.items()}.items() <= history.items()
    assert after["loss"] < figures["loss"]
