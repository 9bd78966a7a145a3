"""Our encoders compute what transformers computes: logits, loss and every gradient, padded and packed."""

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForMaskedLM, BertConfig, BertModel

from maskwright.batch import PackedBatch
from maskwright.models.bert import BERT
from maskwright.models.encoder import FAMILIES
from maskwright.objectives.masked_lm import MaskedLanguageModel
from tolerances import assert_rounded, count_terms

VOCAB_SIZE = 120
LENGTHS = ([7], pytest.param([16, 3, 9], marks=pytest.mark.slow), [40, 1, 25, 40])
SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
TOKENS = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}


NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
DISTILBERT = {
    "vocab_size": VOCAB_SIZE,
    "dim": 32,
    "n_layers": 4,
    "n_heads": 4,
    "hidden_dim": 48,
    "max_position_embeddings": 64,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
SETTINGS = {
    "bert": [SHAPE | NO_DROPOUT, SHAPE | NO_DROPOUT | {"hidden_act": "relu"}],
    "roberta": [SHAPE | NO_DROPOUT | {"type_vocab_size": 1, "hidden_act": "relu"}, SHAPE | NO_DROPOUT],
    "xlm-roberta": [SHAPE | NO_DROPOUT],
    "distilbert": [DISTILBERT, DISTILBERT | {"activation": "relu", "sinusoidal_pos_embds": True}],
    "albert": [SHAPE | NO_DROPOUT | {"embedding_size": 16}, SHAPE | NO_DROPOUT | {"num_hidden_groups": 3}],
    "electra": [SHAPE | NO_DROPOUT | {"embedding_size": 16}, SHAPE | NO_DROPOUT | {"embedding_size": 32}],
    "mpnet": [SHAPE | NO_DROPOUT, SHAPE | NO_DROPOUT | {"hidden_act": "relu"}],
    "modernbert": [
        SHAPE | TOKENS | {"local_attention": 8},
        SHAPE | TOKENS | {"local_attention": 8, "norm_bias": True},
        SHAPE | TOKENS | {"local_attention": 8, "classifier_bias": True, "classifier_activation": "silu"},
    ],
}
CASES = [
    pytest.param((model_type, settings), id=f"{model_type}-{number}")
    for model_type, several in SETTINGS.items()
    for number, settings in enumerate(several)
]


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    """A model of transformers with weights large enough to tell mistakes, and ours with the same weights."""
    tmp_path = tmp_path_factory.mktemp("theirs")
    torch.manual_seed(0)
    model_type, settings = request.param
    theirs = AutoModelForMaskedLM.from_config(AutoConfig.for_model(model_type, **settings))
    theirs.requires_grad_(True)  # transformers 4 freezes sinusoidal positions, 5 trains them
    with torch.no_grad():
        for param in theirs.parameters():
            param.add_(torch.randn_like(param) * 0.1)
    theirs.save_pretrained(tmp_path)
    ours = MaskedLanguageModel.from_pretrained(tmp_path).train()
    ours.mlm_head_dropout = 0.0
    return theirs, ours


@pytest.fixture
def models(pair):
    """Both in training, without gradients."""
    for model in pair:
        model.train().zero_grad()
    return pair


def make_padded(lengths: list[int]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(sum(lengths))
    input_ids = torch.randint(5, VOCAB_SIZE, (len(lengths), max(lengths)), generator=generator)
    attention_mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": input_ids * attention_mask, "attention_mask": attention_mask}


def make_labels(padded: dict[str, Tensor]) -> Tensor:
    """About every third real token is to be predicted."""
    positions = torch.arange(padded["input_ids"].shape[1])
    return torch.where((positions % 3 == 0) & (padded["attention_mask"] == 1), padded["input_ids"], -100)


def pack_into_one_row(padded: dict[str, Tensor], row_length: int) -> PackedBatch:
    """All documents of a padded batch in one row, followed by padding."""
    rows = [torch.zeros(row_length, dtype=torch.long) for _ in range(4)]
    begin = 0
    for document, (ids, mask) in enumerate(zip(padded["input_ids"], padded["attention_mask"], strict=True), start=1):
        length = int(mask.sum())
        place = slice(begin, begin + length)
        rows[0][place], rows[1][place] = ids[:length], document
        rows[2][place], rows[3][place] = torch.arange(length), document
        begin += length
    return PackedBatch(*(row[None] for row in rows))


def their_gradients(theirs: torch.nn.Module, ours: MaskedLanguageModel) -> dict[str, Tensor]:
    """Gradients of transformers' model under our names."""
    family = ours.encoder.family
    gradients = {
        name.removeprefix(f"{family.prefix}."): p.grad for name, p in theirs.named_parameters(remove_duplicate=False)
    }
    renamed = family.from_theirs(gradients, [name for name, _ in ours.encoder.named_parameters()])
    renamed = {f"encoder.{name}": gradient for name, gradient in renamed.items()}
    for module, theirs_name in family.head_modules.items():
        for kind in ("weight", "bias"):
            if f"{theirs_name}.{kind}" in gradients:
                renamed[f"{module}.{kind}"] = gradients[f"{theirs_name}.{kind}"]
    renamed["mlm_output.bias"] = gradients[family.output_bias]
    return renamed


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_padded_logits_loss_and_gradients_agree(models, lengths):
    theirs, ours = models
    padded = make_padded(lengths)
    labels = make_labels(padded)
    expected = theirs(**padded, labels=labels)
    is_real = padded["attention_mask"].bool()
    num_terms = count_terms(num_layers=4, width=32, length=max(lengths))
    assert_rounded(ours.eval()(**padded).logits[is_real], expected.logits[is_real], num_terms)
    loss = ours.train()(**padded, labels=labels).loss
    assert_rounded(loss, expected.loss, num_terms)

    expected.loss.backward()
    loss.backward()
    gradients = their_gradients(theirs, ours)
    named = dict(ours.named_parameters())
    assert set(gradients) >= set(named)
    assert_rounded(
        {name: param.grad for name, param in named.items()}, {name: gradients[name] for name in named}, 2 * num_terms
    )


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_packed_logits_loss_and_gradients_agree(models, lengths):
    theirs, ours = models
    padded = make_padded(lengths)
    labels = make_labels(padded)
    expected = theirs(**padded, labels=labels)
    packed = pack_into_one_row(padded, row_length=sum(lengths) + 5)
    is_real = padded["attention_mask"].bool()
    packed_labels = torch.full_like(packed.input_ids, -100)
    packed_labels[~packed.is_padding] = labels[is_real]

    logits = ours.eval()(packed).logits[~packed.is_padding]
    num_terms = count_terms(num_layers=4, width=32, length=packed.input_ids.shape[1])
    assert_rounded(logits, expected.logits[is_real], num_terms)
    loss = ours.train()(packed, labels=packed_labels).loss
    assert_rounded(loss, expected.loss, num_terms)

    expected.loss.backward()
    loss.backward()
    gradients = their_gradients(theirs, ours)
    named = dict(ours.named_parameters())
    assert_rounded(
        {name: param.grad for name, param in named.items()}, {name: gradients[name] for name in named}, 2 * num_terms
    )


def test_encoder_with_segments_agrees_with_bert_model(tmp_path):
    torch.manual_seed(1)
    theirs = BertModel(BertConfig(**SHAPE)).eval()
    theirs.save_pretrained(tmp_path)
    padded = make_padded([12, 30])
    token_type_ids = (torch.arange(30) > 8).long().expand(2, 30) * padded["attention_mask"]
    expected = theirs(**padded, token_type_ids=token_type_ids).last_hidden_state
    actual = BERT.from_pretrained(tmp_path)(**padded, token_type_ids=token_type_ids)
    is_real = padded["attention_mask"].bool()
    num_terms = count_terms(num_layers=4, width=32, length=30)
    assert_rounded(actual["last_hidden_state"][is_real], expected[is_real], num_terms)
    assert actual.last_hidden_state.shape == (2, 30, 32)


def test_every_native_family_is_compared():
    assert {name for name, one in FAMILIES.items() if one.family.is_in_transformers} == set(SETTINGS)
