"""The table of known models: its figures hold, and names are found."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModel

from maskwright.catalogue.table import read_table
from maskwright.errors import InputError
from maskwright.models import FAMILIES
from maskwright.tasks.kinds import KINDS

TABLE = read_table()
LARGE = {"num_attention_heads": 16}
MINILM = {"intermediate_size": 1536}
ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
XLM_R = {**ROBERTA, "vocab_size": 250002}
DEBERTA = {
    "vocab_size": 128100,
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
}
LONGFORMER = {**ROBERTA, "max_position_embeddings": 4098}
ELECTRA_WIDE = {"embedding_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
ALBERT = {"num_attention_heads": 16}
# What the published config.json of each says beyond layers, width and transformers' own defaults for the family.
SETTINGS: dict[str, dict[str, Any]] = {
    "roberta-base": ROBERTA,
    "roberta-large": ROBERTA | LARGE,
    "modernbert-base": {},
    "modernbert-large": LARGE | {"intermediate_size": 2624},
    "bert-base-uncased": {},
    "bert-base-cased": {"vocab_size": 28996},
    "bert-large-uncased": LARGE,
    "bert-large-cased": LARGE | {"vocab_size": 28996},
    "bert-base-multilingual-cased": {"vocab_size": 119547},
    "bert-base-multilingual-uncased": {"vocab_size": 105879},
    "deberta-v3-base": DEBERTA | {"num_attention_heads": 12, "intermediate_size": 3072},
    "deberta-v3-large": DEBERTA | LARGE | {"intermediate_size": 4096},
    "deberta-v3-small": DEBERTA | {"num_attention_heads": 12, "intermediate_size": 3072},
    "albert-base-v2": {"num_attention_heads": 12, "intermediate_size": 3072},
    "albert-large-v2": ALBERT | {"intermediate_size": 4096},
    "albert-xlarge-v2": ALBERT | {"intermediate_size": 8192},
    "albert-xxlarge-v2": {"num_attention_heads": 64, "intermediate_size": 16384},
    "distilbert-base-uncased": {},
    "distilbert-base-cased": {"vocab_size": 28996},
    "distilbert-base-multilingual-cased": {"vocab_size": 119547},
    "minilm": MINILM,
    "minilm-l6": MINILM,
    "electra-base": ELECTRA_WIDE,
    "electra-small": {},
    "electra-large": {"embedding_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096},
    "xlm-roberta-base": XLM_R,
    "xlm-roberta-large": XLM_R | LARGE,
    "xlm-roberta-xl": {},
    "longformer-base-4096": LONGFORMER,
    "longformer-large-4096": LONGFORMER | LARGE,
    "bigbird-roberta-base": {},
    "mpnet-base": {"max_position_embeddings": 514},
    "scibert": {"vocab_size": 31090},
    "biomedbert": {},
    "biobert": {"vocab_size": 28996},
    "legalbert": {},
    "finbert-pretrain": {"vocab_size": 30873},
    "finbert-sentiment": {},
    "codebert-base-mlm": ROBERTA,
    "codebert-base": ROBERTA,
}
WIDE_FEED_FORWARD = ("bert", "roberta", "xlm-roberta", "longformer")


def count_parameters(name: str) -> int:
    """As transformers builds the architecture, without memory for it."""
    model = TABLE.get(name)
    shape: dict[str, Any] = {"num_hidden_layers": model.layers, "hidden_size": model.width}
    if model.model_type == "distilbert":
        shape = {"n_layers": model.layers, "dim": model.width}
    if model.model_type in WIDE_FEED_FORWARD:
        shape["intermediate_size"] = 4 * model.width
    if model.model_type == "longformer":
        shape["attention_window"] = [512] * model.layers
    config = AutoConfig.for_model(model.model_type, **shape | SETTINGS[name])
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in AutoModel.from_config(config).parameters())


def test_every_model_has_its_count_checked() -> None:
    assert {TABLE.get(name).id for name in SETTINGS} == {model.id for model in TABLE.models}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_counted_parameters_are_those_of_the_architecture(name: str) -> None:
    assert count_parameters(name) == TABLE.get(name).counted


@pytest.mark.parametrize("model", TABLE.models, ids=lambda model: model.id)
def test_a_row_agrees_with_itself(model: Any) -> None:
    assert abs(model.parameters - model.counted) / model.counted < 0.06
    assert model.loads == ("native" if model.model_type in FAMILIES else "hf")
    assert "en" in model.languages
    assert all(40 < score.value < 98 for score in model.scores)
    assert all(60 < score.value < 95 for score in model.scores if score.name in ("MNLI-m", "XNLI", "SQuAD-2-EM"))


def test_every_model_is_one_that_finetune_takes_for_every_task() -> None:
    """Natively, or through the classes that transformers has for the task."""
    tables = {kind.their_classes for kind in KINDS.values()}
    for model in TABLE.models:
        config_class = transformers.CONFIG_MAPPING[model.model_type]
        taken = model.model_type in FAMILIES or all(config_class in getattr(transformers, name) for name in tables)
        assert taken, model.id


def test_the_tasks_are_those_of_finetune_and_their_scores_are_known() -> None:
    assert set(TABLE.tasks) == set(KINDS)
    for score in TABLE.tasks.values():
        assert sum(model.find_score(score) is not None for model in TABLE.models) > 10


def test_no_name_means_two_models() -> None:
    names = [name.casefold() for model in TABLE.models for name in {model.id.casefold(), *model.aliases}]
    assert len(names) == len(set(names))


def test_the_tree_names_only_families_of_the_table_and_no_source_is_unused() -> None:
    families = {model.family for model in TABLE.models}
    for leaf in TABLE.leaves.values():
        assert families.issuperset([*leaf.families, *(leaf.when_fastest or ())])
    text = files("maskwright.catalogue").joinpath("models.toml").read_text(encoding="utf-8")
    sources = set(tomllib.loads(text)["sources"].values())
    assert sources == {score.source for model in TABLE.models for score in model.scores}


@pytest.mark.parametrize("name", ["google-bert/bert-base-uncased", "bert-base-uncased", "BERT", "Bert-Base"])
def test_a_model_is_found_by_its_id_and_by_the_names_people_use(name: str) -> None:
    assert TABLE.get(name).id == "google-bert/bert-base-uncased"


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("bert-lrge", "no known model is called 'bert-lrge'; did you mean 'bert-large'?"),
        ("???", "no known model is called '???'; maskwright models list shows those that are known"),
    ],
)
def test_an_unknown_name_is_answered_with_what_to_do(name: str, answer: str) -> None:
    with pytest.raises(InputError) as error:
        TABLE.get(name)
    assert str(error.value) == answer


def test_languages_are_those_the_authors_list() -> None:
    codes = {name: set(TABLE.get(name).languages) for name in ("mbert", "bert-base-multilingual-uncased", "xlm-r")}
    assert codes["mbert"] - codes["bert-base-multilingual-uncased"] == {"th", "mn"}
    assert {"am", "eo", "yi"} <= codes["xlm-r"] - codes["mbert"]
    # 104 languages, of which Simplified and Traditional Chinese share a code
    assert len(codes["mbert"]) == 103
