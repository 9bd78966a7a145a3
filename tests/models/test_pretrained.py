"""Model folders: what is saved is what is loaded, and damage is named."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForMaskedLM

from maskwright.errors import InputError
from maskwright.models import FAMILIES
from maskwright.models.bert import BERT
from maskwright.models.files.model_folder import resolve_folder
from maskwright.models.modernbert import ModernBERT
from maskwright.objectives.masked_lm import MaskedLanguageModel
from tolerances import assert_rounded, count_terms

SMALL = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS = torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(0))
NUM_TERMS = count_terms(num_layers=2, width=32, length=9)


@pytest.fixture(params=list(FAMILIES.values()), ids=lambda cls: cls.__name__)
def model(request):
    torch.manual_seed(0)
    encoder = request.param.from_variant("tiny", **SMALL)
    return MaskedLanguageModel(
        encoder,
        60,
        mask_token_id=4,
        special_token_ids=[0, 1, 2, 3, 4],
        layer_norm_eps=encoder.norm_eps,
        mlm_head_activation=encoder.head_activation,
    ).eval()


def test_whole_model_round_trip_is_bit_equal(model, tmp_path):
    model.mask_ratio = 0.3
    model.save_pretrained(tmp_path)
    loaded = MaskedLanguageModel.from_pretrained(tmp_path)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    assert loaded.is_tied
    assert loaded.mask_ratio == 0.3
    assert loaded.special_token_ids == (0, 1, 2, 3, 4)
    assert torch.equal(model(IDS).logits, loaded(IDS).logits)


def test_encoder_alone_round_trip_is_bit_equal(model, tmp_path):
    model.encoder.save_pretrained(tmp_path)
    loaded = type(model.encoder).from_pretrained(tmp_path)
    assert torch.equal(loaded(IDS).last_hidden_state, model.encoder(IDS).last_hidden_state)
    assert loaded.config == model.encoder.config


@pytest.mark.parametrize(("written", "read"), [("mean", "mean"), ("cls", "cls"), (None, "cls")])
def test_what_a_classifier_reads_stays_with_a_modernbert(tmp_path, written, read):
    encoder = ModernBERT.from_variant("tiny", **SMALL)
    assert encoder.config.classifier_pooling == "mean"
    encoder.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings.pop("classifier_pooling") == "mean"
    given = {} if written is None else {"classifier_pooling": written}
    (tmp_path / "config.json").write_text(json.dumps(settings | given))
    assert ModernBERT.from_pretrained(tmp_path).config.classifier_pooling == read


def test_encoder_can_be_taken_out_of_a_whole_model_folder(model, tmp_path):
    model.save_pretrained(tmp_path)
    loaded = type(model.encoder).from_pretrained(tmp_path)
    assert torch.equal(loaded(IDS).last_hidden_state, model.encoder(IDS).last_hidden_state)


def test_transformers_reads_the_folder_with_equal_logits(model, tmp_path):
    model.save_pretrained(tmp_path)
    theirs = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    assert_rounded(theirs(IDS).logits, model(IDS).logits, NUM_TERMS)
    encoder = AutoModel.from_pretrained(tmp_path).eval()
    hidden = encoder(IDS).last_hidden_state
    assert_rounded(hidden, model.encoder(IDS).last_hidden_state, NUM_TERMS)


def test_untied_output_survives_both_ways(model, tmp_path):
    untied = MaskedLanguageModel(
        model.encoder,
        60,
        mask_token_id=4,
        layer_norm_eps=model.mlm_norm.eps,
        mlm_head_activation=model.mlm_head_activation,
        tie_word_embeddings=False,
    ).eval()
    torch.nn.init.normal_(untied.mlm_output.bias)
    untied.save_pretrained(tmp_path)
    loaded = MaskedLanguageModel.from_pretrained(tmp_path)
    assert not loaded.is_tied
    assert torch.equal(loaded(IDS).logits, untied(IDS).logits)
    theirs = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    assert_rounded(theirs(IDS).logits, untied(IDS).logits, NUM_TERMS)


def test_folder_holds_only_safetensors_and_json(model, tmp_path):
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    json.loads((tmp_path / "config.json").read_text())
    assert load_file(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("encoder_options", "model_options"),
    [
        ({"normalization_type": "rms_norm"}, {}),
        ({}, {"mlm_head_activation": "relu"}),
        ({}, {"layer_norm_eps": 1e-6}),
    ],
    ids=["rms_norm", "head activation", "head eps"],
)
def test_what_bert_of_hugging_face_cannot_express_is_not_called_bert(tmp_path, encoder_options, model_options):
    model = MaskedLanguageModel(
        BERT.from_variant("tiny", **SMALL, **encoder_options), 60, mask_token_id=4, **model_options
    ).eval()
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="maskwright_bert"):
        AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert torch.equal(MaskedLanguageModel.from_pretrained(tmp_path)(IDS).logits, model(IDS).logits)


def test_missing_file_is_named(model, tmp_path):
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"not a complete model folder: model\.safetensors is missing"):
        MaskedLanguageModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("size", [0, 7, 2000])
def test_truncated_weights_are_named(model, tmp_path, size):
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(InputError, match=r"model\.safetensors is damaged"):
        MaskedLanguageModel.from_pretrained(tmp_path)


def test_weights_of_another_shape_are_named_with_both_shapes(model, tmp_path):
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["vocab_size"] = config["maskwright"]["masked_lm"]["vocab_size"] = 61
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        InputError, match=rf"\(60, {model.encoder.embedding_size}\).*\(61, {model.encoder.embedding_size}\)"
    ):
        MaskedLanguageModel.from_pretrained(tmp_path)


def test_encoder_without_head_is_told_apart_from_a_whole_model(model, tmp_path):
    model.encoder.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="without a masked-language-model head"):
        MaskedLanguageModel.from_pretrained(tmp_path)


def test_other_family_is_refused_by_class(model, tmp_path):
    model.save_pretrained(tmp_path)
    other = next(other for other in FAMILIES.values() if not isinstance(model.encoder, other))
    with pytest.raises(InputError, match=f"not a {other.__name__}"):
        other.from_pretrained(tmp_path)


def test_unknown_model_type_is_named(tmp_path, model):
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))
    with pytest.raises(InputError, match="model_type 'gpt2'"):
        MaskedLanguageModel.from_pretrained(tmp_path)


def test_names_of_the_first_bert_release_are_understood(tmp_path):
    from safetensors.torch import save_file

    encoder = BERT.from_variant("tiny", **SMALL).eval()
    encoder.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    old = {
        "bert."
        + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in weights.items()
    }
    save_file(old, tmp_path / "model.safetensors")
    assert torch.equal(BERT.from_pretrained(tmp_path)(IDS).last_hidden_state, encoder(IDS).last_hidden_state)


@pytest.mark.parametrize("name", ["/no/such/folder", "./missing", "a/b/c"])
def test_a_path_that_is_not_there_is_not_looked_up_on_the_hub(name):
    with pytest.raises(InputError, match="no model folder at"):
        resolve_folder(name)


def test_a_mistyped_name_beside_local_folders_is_not_looked_up_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(InputError, match="no model folder at runs/quikstart"):
        resolve_folder("runs/quikstart")


def test_an_unknown_hub_id_is_one_clear_sentence(monkeypatch):
    import huggingface_hub

    def refuse(*args, **kwargs):
        raise OSError("offline\nand a long story")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(InputError, match=r"'some/model' is neither a folder nor a model the hub could give: offline$"):
        resolve_folder("some/model")


@pytest.mark.parametrize("setting", [{"attention_bias": True}, {"mlp_bias": True}, {"layer_types": ["a", "b"]}])
def test_settings_that_would_compute_something_else_are_refused(tmp_path, setting):
    encoder = FAMILIES["modernbert"].from_variant("tiny", **SMALL)
    encoder.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | setting))
    with pytest.raises(InputError, match=next(iter(setting))):
        type(encoder).from_pretrained(tmp_path)


@pytest.mark.parametrize("distance", [1, 2, 3])
def test_layers_listed_by_kind_are_understood(tmp_path, distance):
    from transformers import ModernBertConfig, ModernBertModel

    kinds = ["full_attention" if layer % distance == 0 else "sliding_attention" for layer in range(4)]
    shape = {**SMALL, "num_hidden_layers": 4, "intermediate_size": 48, "local_attention": 4, "pad_token_id": 0}
    theirs = ModernBertModel(ModernBertConfig(**shape, layer_types=kinds)).eval()
    theirs.save_pretrained(tmp_path)
    ours = FAMILIES["modernbert"].from_pretrained(tmp_path)
    assert ours.config.global_attn_every_n_layers == distance
    assert_rounded(ours(IDS).last_hidden_state, theirs(IDS).last_hidden_state, 2 * NUM_TERMS)  # twice the layers
