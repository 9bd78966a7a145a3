from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from maskwright.config import build_config
from maskwright.errors import InputError, InputWarning
from maskwright.models.bert import BERT
from maskwright.models.encoder import FAMILIES
from maskwright.models.modernbert import ModernBERT
from maskwright.runs.model import build_model, check_vocabulary, fit_row_length
from maskwright.text.tokenizer.tokenizer import Tokenizer, as_tokenizer, load_tokenizer

SMALL = {"variant": "tiny", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}


def build(tokenizer: Tokenizer, values: dict[str, Any]) -> Any:
    values = {"data": {"max_length": 24}, **values, "model": SMALL | values.get("model", {})}
    return build_model(build_config(values), tokenizer)


def test_the_model_fits_the_tokenizer_and_the_rows(tokenizer: Tokenizer) -> None:
    model = build(tokenizer, {})
    assert isinstance(model.encoder, BERT)
    assert model.vocab_size == model.encoder.config.vocab_size == tokenizer.vocab_size
    assert model.encoder.config.max_position_embeddings == 24
    assert model.encoder.config.pad_token_id == tokenizer.pad_token_id
    assert model.mask_token_id == tokenizer.mask_token_id
    assert model.special_token_ids == tuple(tokenizer.all_special_ids)


@pytest.mark.parametrize(("family", "near"), [("brt", "; did you mean 'bert'?"), ("roberta", "; did you mean 'bert'?")])
def test_a_family_that_no_run_builds_is_refused_before_text_is_read(family: str, near: str) -> None:
    config = build_config({"model": {"family": family}})
    with pytest.raises(InputError) as refusal:
        fit_row_length(config, print)
    buildable = [name for name, encoder_class in FAMILIES.items() if encoder_class.family.run_settings is not None]
    choices = f"{', '.join(map(repr, buildable[:-1]))} or '{buildable[-1]}'"
    assert str(refusal.value) == f"configuration key 'model.family' is '{family}': expected {choices}{near}"


def test_masking_and_head_settings_reach_the_model(tokenizer: Tokenizer) -> None:
    masking = {"ratio": 0.4, "random_token_ratio": 0.2, "unchanged_ratio": 0.3, "selection": "bernoulli"}
    head = {"mlm_head_dropout": 0.25, "mlm_head_activation": "relu", "layer_norm_eps": 1e-6, "initializer_range": 0.05}
    model = build(tokenizer, {"masking": masking, "model": head, "run": {"seed": 9}})
    assert (model.mask_ratio, model.seed) == (0.4, 9)
    assert (model.masker.random_token_ratio, model.masker.unchanged_ratio) == (0.2, 0.3)
    assert model.masker.selection == "bernoulli"
    assert (model.mlm_head_dropout, model.mlm_head_activation) == (0.25, "relu")
    assert (model.mlm_norm.eps, model.initializer_range) == (1e-6, 0.05)


def test_shape_settings_reach_a_modernbert_under_its_own_names(tokenizer: Tokenizer) -> None:
    settings = {
        "family": "modernbert",
        "hidden_act": "silu",
        "hidden_dropout_prob": 0.2,
        "attention_probs_dropout_prob": 0.3,
        "layer_norm_eps": 1e-6,
        "local_attention": 8,
        "norm_bias": True,
    }
    model = build(tokenizer, {"model": settings})
    assert isinstance(model.encoder, ModernBERT)
    config = model.encoder.config
    assert (config.hidden_activation, config.norm_eps, config.local_attention) == ("silu", 1e-6, 8)
    assert (config.embedding_dropout, config.mlp_dropout, config.attention_dropout) == (0.2, 0.2, 0.3)
    assert config.norm_bias is True
    assert model.mlm_norm.eps == 1e-6


def test_a_recipe_for_another_family_lends_what_the_chosen_family_has(tokenizer: Tokenizer) -> None:
    config = build_config({"preset": "quickstart", "model": {"family": "bert"}})
    with pytest.warns(InputWarning, match="quickstart is for modernbert; bert ignores its model.norm_bias, "):
        encoder = build_model(config, tokenizer).encoder
    assert isinstance(encoder, BERT)
    assert (encoder.config.hidden_size, encoder.config.intermediate_size, encoder.config.hidden_act) == (
        128,
        344,
        "silu",
    )


def test_a_setting_of_another_family_that_the_user_gives_is_refused(tokenizer: Tokenizer) -> None:
    values = {"preset": "quickstart", "model": {"family": "bert", "local_attention": 8}}
    with (
        pytest.warns(InputWarning, match="bert ignores its model.norm_bias"),
        pytest.raises(InputError, match="BERT has no option 'local_attention'"),
    ):
        build_model(build_config(values), tokenizer)


def test_the_seed_decides_the_weights(tokenizer: Tokenizer) -> None:
    first, again, other = (build(tokenizer, {"run": {"seed": seed}}).encoder.state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_a_model_to_continue_from_keeps_its_weights_and_takes_the_masking(trained_run: Path) -> None:
    tokenizer = load_tokenizer(trained_run / "model")
    masking = {"ratio": 0.5, "unchanged_ratio": 0.0}
    shape = {"hidden_size": 32, "num_hidden_layers": 1}  # the same, as in the configuration that made it
    values = {"model": {"from": str(trained_run), **shape}, "data": {"max_length": 32}, "masking": masking}
    model = build_model(build_config(values), tokenizer)
    reloaded = type(model).from_pretrained(trained_run).state_dict()
    assert all(torch.equal(tensor, reloaded[name]) for name, tensor in model.state_dict().items())
    assert (model.mask_ratio, model.masker.unchanged_ratio) == (0.5, 0.0)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"data": {"max_length": 64}}, r"data\.max_length is 64, .* takes 32 tokens; lower it"),
        ({"model": {"hidden_size": 64}}, r"brings its own shape; remove model\.hidden_size"),
    ],
)
def test_settings_against_the_model_to_continue_from_are_refused(
    trained_run: Path, settings: dict[str, Any], complaint: str
) -> None:
    values = {"data": {"max_length": 32}, **settings}
    values["model"] = {**settings.get("model", {}), "from": str(trained_run)}
    with pytest.raises(InputError, match=complaint):
        build_model(build_config(values), load_tokenizer(trained_run / "model"))


def test_a_tokenizer_may_be_smaller_than_the_model_but_not_larger(tokenizer: Tokenizer) -> None:
    backend = tokenizer.backend.from_str(tokenizer.backend.to_str())
    backend.add_tokens(["brandnew"])
    larger = as_tokenizer(backend)
    check_vocabulary(build(larger, {}), tokenizer)
    with pytest.raises(InputError, match="use the model's tokenizer"):
        check_vocabulary(build(tokenizer, {}), larger)


def test_a_tokenizer_with_another_mask_token_is_refused(tokenizer: Tokenizer) -> None:
    other = Tokenizer(
        tokenizer.backend.from_str(tokenizer.backend.to_str()), {**tokenizer.special_tokens, "mask": "the"}
    )
    with pytest.raises(InputError, match="the tokenizer's mask token is"):
        check_vocabulary(build(tokenizer, {}), other)


def test_rows_that_nobody_asked_for_are_lowered_to_what_the_model_takes(trained_run: Path) -> None:
    said: list[str] = []
    unset = build_config({"model": {"from": str(trained_run)}})
    assert fit_row_length(unset, said.append).data.max_length == 32
    assert said == [f"data.max_length is 32 instead of 128: {trained_run} takes no more tokens"]
    given = build_config({"model": {"from": str(trained_run)}, "data": {"max_length": 64}})
    stretched = build_config({"model": {"from": str(trained_run), "max_position_embeddings": 256}})
    for config in (given, stretched, build_config({})):
        assert fit_row_length(config, pytest.fail) is config


def test_a_shape_that_a_preset_sets_is_answered_with_the_preset_that_does_not(trained_run: Path) -> None:
    config = build_config({"preset": "quickstart", "model": {"from": str(trained_run)}, "data": {"max_length": 32}})
    with pytest.raises(InputError, match=r"preset quickstart sets model\.hidden_size; add preset=domain_adaptation"):
        build_model(config, load_tokenizer(trained_run / "model"))
