"""What every native encoder must do, whatever its family."""

import pytest
import torch

from maskwright.errors import InputError
from maskwright.models import FAMILIES
from maskwright.models.bert import BERT
from maskwright.models.modernbert import ModernBERT
from tolerances import assert_rounded, count_terms, sampling

SMALL = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
FAMILY_CLASSES = list(FAMILIES.values())


@pytest.fixture(params=FAMILY_CLASSES, ids=lambda cls: cls.__name__)
def encoder_class(request):
    return request.param


def make_rows(num_documents: int = 3, length: int = 8):
    """The same documents as one packed row and as padded rows."""
    torch.manual_seed(0)
    documents = torch.randint(5, 60, (num_documents, length))
    packed = {
        "input_ids": documents.reshape(1, -1),
        "document_ids": torch.arange(1, num_documents + 1).repeat_interleave(length)[None],
        "positions": torch.arange(length).repeat(num_documents)[None],
    }
    return documents, packed


def test_a_document_is_encoded_alike_alone_and_packed(encoder_class):
    encoder = encoder_class.from_variant("tiny", **SMALL).eval()
    documents, packed = make_rows()
    alone = encoder(input_ids=documents).last_hidden_state
    together = encoder(**packed).last_hidden_state.view_as(alone)
    assert_rounded(together, alone, count_terms(num_layers=3, width=32, length=24))


def test_a_token_sees_nothing_of_other_documents(encoder_class):
    encoder = encoder_class.from_variant("tiny", **SMALL).eval()
    _, packed = make_rows()
    before = encoder(**packed).last_hidden_state
    changed = packed["input_ids"].clone()
    changed[0, :8] = 7
    after = encoder(**{**packed, "input_ids": changed}).last_hidden_state
    assert torch.equal(before[0, 8:], after[0, 8:])
    assert not torch.equal(before[0, :8], after[0, :8])


def test_padding_does_not_change_real_tokens(encoder_class):
    encoder = encoder_class.from_variant("tiny", **SMALL).eval()
    documents, _ = make_rows()
    wide = torch.nn.functional.pad(documents, (0, 5))
    attention_mask = (torch.arange(wide.shape[1]) < 8).long().expand_as(wide)
    padded = encoder(input_ids=wide, attention_mask=attention_mask).last_hidden_state
    alone = encoder(input_ids=documents).last_hidden_state
    assert_rounded(padded[:, :8], alone, count_terms(num_layers=3, width=32, length=13))
    assert torch.isfinite(padded).all()


def test_a_row_of_nothing_but_padding_gives_finite_numbers(encoder_class):
    encoder = encoder_class.from_variant("tiny", **SMALL)
    ids = torch.zeros(2, 6, dtype=torch.long)
    hidden = encoder(input_ids=ids, attention_mask=torch.zeros_like(ids)).last_hidden_state
    hidden.sum().backward()
    assert torch.isfinite(hidden).all()
    assert all(torch.isfinite(param.grad).all() for param in encoder.parameters() if param.grad is not None)


def test_too_long_input_is_refused_with_both_lengths(encoder_class):
    encoder = encoder_class.from_variant("tiny", **SMALL, max_position_embeddings=16)
    with pytest.raises(InputError, match=rf"17 tokens.*{encoder.max_length} positions"):
        encoder(input_ids=torch.ones(1, 17, dtype=torch.long))


def test_zero_residual_init_makes_a_fresh_encoder_see_single_tokens_only(encoder_class):
    encoder = encoder_class.from_variant("tiny", **SMALL, residual_init="zero").eval()
    ids = torch.tensor([[5, 6, 7, 8]])
    other = torch.tensor([[5, 9, 9, 9]])
    assert torch.equal(encoder(ids).last_hidden_state[:, 0], encoder(other).last_hidden_state[:, 0])


def test_unknown_variant_and_option_are_named(encoder_class):
    with pytest.raises(InputError, match="'bse'; did you mean 'base'"):
        encoder_class.from_variant("bse")
    with pytest.raises(InputError, match="'hidden_sise'; did you mean 'hidden_size'"):
        encoder_class.from_variant("tiny", hidden_sise=3)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"num_attention_heads": 5}, "multiple of num_attention_heads 5"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"residual_init": "ones"}, "residual_init is 'ones'"),
    ],
)
def test_impossible_shapes_are_refused(encoder_class, overrides, message):
    with pytest.raises(InputError, match=message):
        encoder_class.from_variant("tiny", **{**SMALL, **overrides})


@pytest.mark.parametrize(
    ("variant", "layers", "width"), [("tiny", 4, 256), ("small", 6, 512), ("base", 12, 768), ("large", 24, 1024)]
)
def test_bert_variants_have_their_published_sizes(variant, layers, width):
    config = BERT.build_config(variant)
    assert (config.num_hidden_layers, config.hidden_size, config.intermediate_size) == (layers, width, 4 * width)
    assert config.hidden_size // config.num_attention_heads == 64


def test_bert_base_has_the_parameters_of_bert_base():
    with torch.device("meta"):
        encoder = BERT.from_variant("base")
    # 109,482,240 parameters of BertModel less its pooler (768 * 768 + 768).
    assert sum(param.numel() for param in encoder.parameters()) == 109_482_240 - 590_592


def test_modernbert_base_has_the_published_number_of_parameters():
    with torch.device("meta"):
        encoder = ModernBERT.from_variant("base")
    assert 148e6 < sum(param.numel() for param in encoder.parameters()) < 150e6


def test_bert_overrides_reach_the_model():
    encoder = BERT.from_variant(
        "tiny",
        **SMALL,
        max_position_embeddings=33,
        hidden_dropout_prob=0.3,
        attention_probs_dropout_prob=0.2,
        normalization_type="rms_norm",
        use_stochastic_depth=True,
        stochastic_depth_rate=0.6,
    )
    assert encoder.embeddings.position.num_embeddings == 33
    assert encoder.embeddings.dropout.p == 0.3
    assert encoder.layers[0].dropout.p == 0.3
    assert encoder.layers[0].attention.dropout == 0.2
    assert isinstance(encoder.layers[0].attention_norm, torch.nn.RMSNorm)
    assert [layer.stochastic_depth.rate for layer in encoder.layers] == pytest.approx([0.2, 0.4, 0.6])


@pytest.mark.parametrize("option", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_bert_dropout_acts_in_training_only(option):
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, option: 0.5}
    encoder = BERT.from_variant("tiny", **SMALL, **rates)
    ids = torch.randint(5, 60, (2, 8))
    torch.manual_seed(0)
    first, second = (encoder.train()(ids).last_hidden_state for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(encoder.eval()(ids).last_hidden_state, encoder(ids).last_hidden_state)


def test_stochastic_depth_skips_whole_rows_and_keeps_the_expectation():
    from maskwright.models.layers import StochasticDepth

    torch.manual_seed(0)
    skipped = StochasticDepth(0.25).train()(torch.ones(4000, 3, 2))
    per_row = skipped.flatten(1)
    assert ((per_row == 0).all(1) | (per_row == per_row[:, :1]).all(1)).all()
    assert (per_row[:, 0] == 0).float().mean().item() == pytest.approx(0.25, abs=sampling(0.25, 4000))
    assert skipped.mean().item() == pytest.approx(1.0, abs=sampling(0.25, 4000) / 0.75)
    assert torch.equal(StochasticDepth(0.25).eval()(torch.ones(2, 3, 4)), torch.ones(2, 3, 4))


def test_modernbert_local_layers_see_their_window_only():
    encoder = ModernBERT.from_variant(
        "tiny", **{**SMALL, "num_hidden_layers": 2}, local_attention=4, global_attn_every_n_layers=2
    ).eval()
    hidden, layer = torch.randn(1, 12, 32), encoder.layers[1]
    assert not layer.is_global
    from maskwright.models.attention import Rotation, limit_to_window

    positions = torch.arange(12)
    window = limit_to_window(None, positions, 2)
    rotation = Rotation(positions, 8, 10_000.0)
    before = layer(hidden, window, rotation)
    hidden[0, 3] = torch.randn(32)
    after = layer(hidden, window, rotation)
    changed = (before != after).any(-1)[0].nonzero().flatten().tolist()
    assert changed == [1, 2, 3, 4, 5]
