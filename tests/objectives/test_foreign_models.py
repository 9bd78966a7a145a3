"""Models of transformers that are not ours to build: loaded with their heads, run on packed rows, saved as theirs."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

from maskwright.batch import PackedBatch, to_padded
from maskwright.errors import InputError, InputWarning
from maskwright.masking.tokens import CorruptedBatch
from maskwright.models.files.model_folder import read_weights
from maskwright.models.transformers_model import load_transformers_model
from maskwright.objectives.masked_lm import CausalLanguageModel, MaskedLanguageModel
from maskwright.objectives.resizing import extend_vocabulary, resize_vocabulary
from maskwright.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tolerances import assert_rounded, count_terms

pytestmark = pytest.mark.filterwarnings("ignore:.*has no tokenizer.json")

V = 120
_SMALL = {
    "vocab_size": V,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
NUM_TERMS = count_terms(num_layers=2, width=16, length=26)
_DEBERTA = {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]}
_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "deberta-v3": ("DebertaV2", _DEBERTA),
    "deberta-v3 with its own head": ("DebertaV2", _DEBERTA | {"legacy": False}),
    "longformer": ("Longformer", {"attention_window": 4}),
    "bigbird": ("BigBird", {"block_size": 2, "num_random_blocks": 1, "bos_token_id": 1, "eos_token_id": 2}),
    "roformer": ("RoFormer", {}),
    "rembert with an output of its own": (
        "RemBert",
        {"input_embedding_size": 8, "output_embedding_size": 24, "bos_token_id": 1, "eos_token_id": 2},
    ),
}


def build_theirs(name: str, kind: str = "ForMaskedLM") -> Any:
    family, settings = _MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**_SMALL | settings)
    return getattr(transformers, f"{family}{kind}")(config).eval()


load = MaskedLanguageModel.from_pretrained


@pytest.fixture(params=list(_MODELS))
def theirs(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """One of theirs, saved as `tmp_path / "theirs"`."""
    model = build_theirs(request.param)
    model.save_pretrained(tmp_path / "theirs")
    return model


@pytest.fixture
def deberta_folder(tmp_path: Path) -> Path:
    build_theirs("deberta-v3").save_pretrained(tmp_path / "deberta")
    return tmp_path / "deberta"


def make_packed(*lengths: int) -> PackedBatch:
    """A row of documents of these lengths, and one of the first of them and padding."""
    torch.manual_seed(1)
    width = sum(lengths)
    ids = torch.randint(5, V, (2, width))
    documents = torch.repeat_interleave(torch.arange(1, len(lengths) + 1), torch.tensor(lengths)).repeat(2, 1)
    positions = torch.cat([torch.arange(length) for length in lengths]).repeat(2, 1)
    documents[1, lengths[0] :] = 0
    positions[1, lengths[0] :] = 0
    return PackedBatch(ids * (documents > 0), documents, positions, documents + torch.tensor([[0], [9]]))


def make_labels(batch: PackedBatch) -> torch.Tensor:
    is_asked = (batch.positions % 3 == 1) & ~batch.is_padding
    return torch.where(is_asked, (batch.input_ids + 7) % V, -100)


def compute_their_loss(theirs: Any, batch: PackedBatch, labels: torch.Tensor) -> torch.Tensor:
    """The mean loss of the padded call, one document per row."""
    inputs, index = to_padded(batch)
    logits = theirs(**inputs).logits.flatten(0, 1)[index]
    return F.cross_entropy(logits, labels.flatten())


def test_packed_rows_give_the_logits_loss_and_gradients_of_the_padded_call(theirs: Any, tmp_path: Path) -> None:
    model = load(tmp_path / "theirs")
    for lengths in [(5, 4, 3), (20, 6)]:  # the longer ones are too long for BigBird's full attention
        batch = make_packed(*lengths)
        labels = make_labels(batch)
        reference = copy.deepcopy(theirs)
        inputs, index = to_padded(batch)
        expected = reference(**inputs).logits.flatten(0, 1)[index].view(*batch.input_ids.shape, V)
        is_real = ~batch.is_padding
        assert_rounded(model(batch).logits[is_real], expected[is_real], NUM_TERMS)
        sums = model.loss_sums(CorruptedBatch(batch, labels, labels.numel()))
        loss = compute_their_loss(reference, batch, labels)
        assert_rounded(sums.loss_sum / sums.num_labelled, loss, NUM_TERMS)
        model.zero_grad()
        (sums.loss_sum / sums.num_labelled).backward()
        loss.backward()
        for part, their_part in [(model.encoder, reference.base_model), (model.mlm_head.rest, reference)]:
            their_parameters = dict(their_part.named_parameters(remove_duplicate=False))
            names = [name for name, _ in part.named_parameters()]
            found, exact = (
                {name: named[name].grad for name in names if named[name].grad is not None}
                for named in (dict(part.named_parameters()), their_parameters)
            )
            assert_rounded(found, exact, 2 * NUM_TERMS)


def test_a_saved_model_is_theirs_again_with_no_flags_and_equal_logits(theirs: Any, tmp_path: Path) -> None:
    model = load(tmp_path / "theirs")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01
    model.save_pretrained(tmp_path / "ours")
    back, report = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    assert type(back) is type(theirs)
    ids = torch.randint(5, V, (2, 9))
    expected = model(ids).logits
    torch.testing.assert_close(back.eval()(input_ids=ids).logits, expected, rtol=0, atol=0)
    torch.testing.assert_close(load(tmp_path / "ours")(ids).logits, expected, rtol=0, atol=0)
    stored, written = (set(load_file(tmp_path / name / "model.safetensors")) for name in ("theirs", "ours"))
    assert written == stored
    other = load(tmp_path / "theirs")
    other.load_weights(tmp_path / "ours")
    torch.testing.assert_close(other(ids).logits, expected, rtol=0, atol=0)


def test_a_copy_shares_nothing_with_its_original(theirs: Any, tmp_path: Path) -> None:
    model = load(tmp_path / "theirs")
    ids = torch.randint(5, V, (2, 9))
    copied, expected = copy.deepcopy(model), model(ids).logits
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    torch.testing.assert_close(copied(ids).logits, expected, rtol=0, atol=0)


def test_settings_of_masking_survive_saving(deberta_folder: Path, tmp_path: Path) -> None:
    model = load(deberta_folder)
    model.mask_ratio, model.seed, model.mlm_head_dropout = 0.3, 7, 0.25
    model.save_pretrained(tmp_path / "saved")
    back = load(tmp_path / "saved")
    assert (back.mask_ratio, back.seed, back.mlm_head_dropout) == (0.3, 7, 0.25)


def test_bigbirds_attention_depends_on_the_batch_alone(tmp_path: Path) -> None:
    build_theirs("bigbird").save_pretrained(tmp_path)
    short, long = make_packed(5, 4), make_packed(20, 6)
    fresh, used = load(tmp_path), load(tmp_path)
    used(short)
    generator_state = torch.get_rng_state()
    torch.testing.assert_close(used(long).logits, fresh(long).logits, rtol=0, atol=0)
    assert used.encoder.attention_type == "block_sparse"
    used(short)
    assert used.encoder.attention_type == "original_full"
    assert torch.equal(torch.get_rng_state(), generator_state), "the change drew random numbers"


@pytest.mark.parametrize("mean_init", [True, False])
def test_a_larger_vocabulary_keeps_logits_and_ties_and_is_saved(theirs: Any, tmp_path: Path, mean_init: bool) -> None:
    model = load(tmp_path / "theirs")
    was_tied, ids = model.is_tied, torch.randint(5, V, (2, 9))
    before = model(ids).logits
    resize_vocabulary(model, V + 9, mean_init)
    after = model(ids).logits
    assert after.shape[-1] == V + 9
    assert model.is_tied == was_tied
    assert_rounded(after[..., :V], before, NUM_TERMS)
    assert model(ids + 9).logits.shape == after.shape
    model.save_pretrained(tmp_path / "larger")
    back = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "larger").eval()
    torch.testing.assert_close(back(input_ids=ids).logits, after, rtol=0, atol=0)


def test_new_words_start_as_the_mean_of_their_pieces(tmp_path: Path, tokenizer: Tokenizer) -> None:
    family, settings = _MODELS["rembert with an output of its own"]
    config = getattr(transformers, f"{family}Config")(**_SMALL | settings | {"vocab_size": tokenizer.vocab_size})
    transformers.RemBertForMaskedLM(config).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    model = MaskedLanguageModel.from_pretrained(tmp_path)
    old, new = load_tokenizer(tmp_path), load_tokenizer(tmp_path)
    new.backend.add_tokens(["catriver"])
    new = Tokenizer(new.backend, new.special_tokens)
    extend_vocabulary(model, old, new)
    pieces = old.encode_batch(["catriver"])[0]
    word = new.backend.token_to_id("catriver")
    tables = [model.encoder.get_input_embeddings().weight, *model.output_tables]
    assert len(tables) == 3
    for table in tables:
        assert_rounded(table[word], table[pieces].mean(dim=0), len(pieces))


def test_an_encoder_without_a_head_is_refused_unless_a_new_one_is_wanted(tmp_path: Path) -> None:
    from maskwright.objectives.masked_lm import load_masked_lm

    build_theirs("longformer", "Model").save_pretrained(tmp_path)
    with pytest.raises(InputError, match="without a masked-language-model head"):
        load(tmp_path)
    with pytest.warns(InputWarning, match="gets a new one, which knows nothing yet"):
        model = load_masked_lm(tmp_path, may_lack_head=True)
    expected = transformers.LongformerModel.from_pretrained(tmp_path).embeddings.word_embeddings.weight
    torch.testing.assert_close(model.encoder.embeddings.word_embeddings.weight, expected, rtol=0, atol=0)


def test_the_biases_of_a_new_head_are_zero_whatever_the_memory_held(tmp_path: Path) -> None:
    build_theirs("longformer", "Model").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    junk = [torch.full((V,), float("nan")) for _ in range(2000)]
    del junk
    head = load_transformers_model(config, read_weights(tmp_path), tmp_path).mlm_head
    biases = {name: bias for name, bias in head.named_parameters() if name.endswith("bias")}
    assert biases
    assert all(torch.equal(bias, torch.zeros_like(bias)) for bias in biases.values())


def test_debertas_own_head_is_found_in_files_whose_configuration_does_not_tell_of_it(tmp_path: Path) -> None:
    theirs = build_theirs("deberta-v3 with its own head")
    theirs.save_pretrained(tmp_path)
    edit_config(tmp_path, legacy=None)
    ids = torch.randint(5, V, (2, 9))
    assert_rounded(load(tmp_path)(ids).logits, theirs(input_ids=ids).logits, NUM_TERMS)


def edit_config(folder: Path, **values: Any) -> None:
    """Set values; None removes one."""
    config = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps({name: one for name, one in config.items() if one is not None}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "nobodys"}, "'nobodys', which neither Maskwright nor transformers"),
        ({"model_type": "gpt2"}, "'gpt2', for which transformers has no masked language model"),
        ({"model_type": "bart", "d_model": 16}, "'bart', which writes text"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised model"),
        ({"hidden_size": "wide"}, "transformers cannot read it"),
        ({"hidden_size": 15}, "transformers cannot build it"),
        ({"intermediate_size": 30}, "transformers cannot load it"),
        ({"vocab_size": 10**9}, "describes a model of .* the two do not belong together"),
        ({"num_hidden_layers": 3}, "lacks 20 weights of the model, first 'deberta.encoder.layer.2"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused_in_one_sentence(
    deberta_folder: Path, values: dict[str, Any], message: str
) -> None:
    edit_config(deberta_folder, **values)
    with pytest.raises(InputError, match=message) as caught:
        load(deberta_folder)
    assert "\n" not in str(caught.value)


def test_pickled_weights_are_refused_and_code_is_never_run(deberta_folder: Path) -> None:
    edit_config(deberta_folder, auto_map={"AutoModelForMaskedLM": "evil.Model"}, attn_implementation="evil/kernel")
    (deberta_folder / "evil.py").write_text("raise SystemExit('ran')\n")
    with pytest.warns(InputWarning, match="names code of its own"):
        model = load(deberta_folder)
    assert type(model.encoder).__name__ == "DebertaV2Model"
    (deberta_folder / "model.safetensors").rename(deberta_folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="pickled weights are not read"):
        load(deberta_folder)


def test_without_transformers_the_command_that_installs_it_is_given(
    deberta_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maskwright.models.transformers_model.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"'deberta-v2', which is read through transformers; run: pip install 'maskw"):
        load(deberta_folder)


def test_weights_with_no_place_are_left_aside_with_a_warning(deberta_folder: Path) -> None:
    weights = load_file(deberta_folder / "model.safetensors")
    save_file(weights | {"classifier.weight": torch.zeros(2, 16)}, deberta_folder / "model.safetensors")
    with pytest.warns(InputWarning, match="weights of classifier are ignored"):
        load(deberta_folder)


def test_a_folder_without_a_tokenizer_says_how_to_make_one(deberta_folder: Path) -> None:
    with pytest.warns(InputWarning, match=r"AutoTokenizer.from_pretrained.*save_pretrained"):
        load(deberta_folder)


def test_a_model_of_theirs_cannot_continue_text(deberta_folder: Path) -> None:
    with pytest.raises(InputError, match="always sees both sides of a token"):
        CausalLanguageModel.from_pretrained(deberta_folder)
