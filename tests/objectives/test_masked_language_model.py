"""`MaskedLanguageModel`: its arguments, its head, its loss, and any encoder inside it."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertConfig as TransformersBertConfig
from transformers import BertModel, DistilBertConfig, DistilBertModel

import maskwright as mw
from maskwright.batch import PackedBatch, from_padded
from maskwright.errors import InputError, InputWarning
from maskwright.objectives.loss import compute_loss_sums, gather_labelled
from maskwright.objectives.masked_lm import MaskedLanguageModel
from tolerances import assert_rounded, count_terms

V = 60
SPECIALS = (0, 1, 2, 3, 4)
NUM_TERMS = count_terms(num_layers=2, width=32, length=30)


class CustomEncoder(nn.Module):
    """An encoder of one's own: a required `hidden_size`, a dictionary in and a dictionary out."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.embedding = nn.Embedding(vocab_size, hidden_size)
        layer = nn.TransformerEncoderLayer(hidden_size, 4, 2 * hidden_size, dropout=0.0, batch_first=True)
        self.transformer = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, inputs):
        ids = inputs["input_ids"] if isinstance(inputs, dict) else inputs
        is_padding = inputs["attention_mask"] == 0 if isinstance(inputs, dict) else None
        return {"last_hidden_state": self.transformer(self.embedding(ids), src_key_padding_mask=is_padding)}


def build_native() -> nn.Module:
    return mw.BERT.from_variant(
        "tiny", vocab_size=V, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=32
    )


def build_custom() -> nn.Module:
    return CustomEncoder(V, 32)


def build_transformers() -> nn.Module:
    config = TransformersBertConfig(
        vocab_size=V, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    return BertModel(config, add_pooling_layer=False)


def build_distilbert() -> nn.Module:
    return DistilBertModel(DistilBertConfig(vocab_size=V, dim=32, n_layers=2, n_heads=4, hidden_dim=64))


@pytest.fixture(
    params=[build_native, build_custom, build_transformers, build_distilbert],
    ids=["ours", "custom", "transformers", "distilbert"],
)
def model(request):
    torch.manual_seed(0)
    return MaskedLanguageModel(request.param(), V, mask_token_id=4, special_token_ids=SPECIALS, mlm_head_dropout=0.0)


def make_packed() -> PackedBatch:
    """Two rows with documents of 5, 4 and 6 tokens, and padding."""
    torch.manual_seed(1)
    ids = torch.randint(5, V, (2, 9))
    documents = torch.tensor([[1, 1, 1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 1, 0, 0, 0]])
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 0, 0, 0]])
    return PackedBatch(ids * (documents > 0), documents, positions, documents + torch.tensor([[0], [2]]))


def test_any_encoder_gives_logits_trains_and_learns(model):
    batch = make_packed()
    logits = model.eval()(batch).logits
    assert logits.shape == (2, 9, V)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(30):
        sums = model.train().loss_sums(model.corrupt(batch, seed=0, epoch=0, ratio=0.5))
        loss = sums.loss_sum / sums.num_labelled
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


def test_any_encoder_keeps_documents_apart(model):
    """A document gets the logits it has on its own, so a foreign encoder never attends across documents."""
    model.eval()
    batch = make_packed()
    packed = model(batch).logits
    alone = model(input_ids=batch.input_ids[:1, 5:9]).logits
    assert_rounded(packed[0, 5:9], alone[0], NUM_TERMS)


def test_parts_are_reachable_by_their_names(model):
    assert isinstance(model.mlm_dense, nn.Linear)
    assert isinstance(model.mlm_dropout, nn.Dropout)
    assert isinstance(model.mlm_norm, nn.LayerNorm)
    assert model.mlm_output.out_features == V
    assert model.is_tied


def test_custom_model_is_saved_and_loaded_around_a_new_encoder(tmp_path):
    model = MaskedLanguageModel(build_custom(), V, mask_token_id=4, special_token_ids=SPECIALS).eval()
    model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="around a CustomEncoder"):
        MaskedLanguageModel.from_pretrained(tmp_path)
    loaded = MaskedLanguageModel.from_pretrained(tmp_path, encoder=build_custom())
    ids = torch.randint(5, V, (2, 7))
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert loaded.is_tied


def test_a_custom_encoder_may_hold_a_number_without_dimensions(tmp_path):
    encoder = build_custom()
    encoder.register_buffer("num_updates", torch.tensor(7))
    MaskedLanguageModel(encoder, V, mask_token_id=4, special_token_ids=SPECIALS).save_pretrained(tmp_path)
    other = build_custom()
    other.register_buffer("num_updates", torch.tensor(0))
    assert MaskedLanguageModel.from_pretrained(tmp_path, encoder=other).encoder.num_updates == 7


def first_loss(model: MaskedLanguageModel) -> float:
    ids = torch.randint(5, model.vocab_size, (8, 64), generator=torch.Generator().manual_seed(3))
    inputs, labels, _ = model.eval()._mask_tokens({"input_ids": ids}, epoch=0)
    with torch.no_grad():
        return model(**inputs, labels=labels).loss.item()


def build_wide(std: float = 1.0) -> nn.Module:
    torch.manual_seed(0)
    encoder = CustomEncoder(2000, 256)
    nn.init.normal_(encoder.embedding.weight, std=std)
    return encoder


def test_a_table_that_would_spoil_the_first_loss_is_not_tied_unasked():
    guessing = math.log(2000)
    encoder = build_wide()
    table = encoder.embedding.weight.detach().clone()
    with pytest.warns(InputWarning, match=r"loss would start at 5\d\.\d, where guessing has 7\.6") as caught:
        model = MaskedLanguageModel(encoder, 2000, mask_token_id=4, special_token_ids=SPECIALS)
    assert len(caught) == 1
    assert not model.is_tied
    assert torch.equal(encoder.embedding.weight, table)
    # An output of standard deviation 0.02 spreads logits by 0.02 * sqrt(256), which adds half the square of that.
    assert first_loss(model) == pytest.approx(guessing + 0.5 * 0.02**2 * 256, abs=0.2)


def test_how_a_table_is_tied_can_be_chosen(recwarn):
    tied = MaskedLanguageModel(build_wide(), 2000, mask_token_id=4, tie_word_embeddings=True)
    assert tied.is_tied
    assert first_loss(tied) > 40
    assert not MaskedLanguageModel(build_wide(), 2000, mask_token_id=4, tie_word_embeddings=False).is_tied
    assert MaskedLanguageModel(build_wide(std=0.1), 2000, mask_token_id=4).is_tied
    assert not recwarn.list


def test_an_untied_model_is_loaded_without_a_word(tmp_path, recwarn):
    model = MaskedLanguageModel(build_wide(), 2000, mask_token_id=4, tie_word_embeddings=False).eval()
    model.save_pretrained(tmp_path)
    loaded = MaskedLanguageModel.from_pretrained(tmp_path, encoder=build_wide(std=2.0))
    ids = torch.randint(5, 2000, (2, 7))
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert not recwarn.list


class NoHiddenSize(nn.Module):
    def forward(self, input_ids):
        return {"last_hidden_state": input_ids}


class NoHiddenState(nn.Module):
    hidden_size = 8

    def forward(self, input_ids):
        return {"hidden": input_ids}


def test_missing_attribute_and_missing_output_are_named():
    with pytest.raises(InputError, match="NoHiddenSize has no attribute 'hidden_size'"):
        MaskedLanguageModel(NoHiddenSize(), V, mask_token_id=4)
    model = MaskedLanguageModel(NoHiddenState(), V, mask_token_id=4)
    with pytest.raises(InputError, match=r"NoHiddenState returned keys \['hidden'\] without 'last_hidden_state'"):
        model(torch.ones(1, 3, dtype=torch.long))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask_ratio": 0.0}, r"mask_ratio is 0.0; it must lie in \(0, 1\]"),
        ({"mask_ratio": 1.5}, "mask_ratio is 1.5"),
        ({"random_token_ratio": 0.6, "unchanged_ratio": 0.5}, r"0.6 \+ unchanged_ratio 0.5 is 1.1; .* at most 1"),
        ({"random_token_ratio": -0.1}, r"random_token_ratio is -0.1; it must lie in \[0, 1\]"),
        ({"unchanged_ratio": 1.1}, "unchanged_ratio is 1.1"),
        ({"mask_token_id": 60}, r"mask_token_id is 60, outside the vocabulary of 60 \(0 to 59\)"),
        ({"mask_token_id": -1}, "mask_token_id is -1"),
        ({"special_token_ids": [0, 99]}, "special token id 99"),
        ({"vocab_size": 61}, "embeds 60 tokens, vocab_size is 61; build the encoder with vocab_size=61"),
        ({"vocab_size": 1, "mask_token_id": 0}, "vocab_size is 1"),
        ({"mlm_head_dropout": 1.0}, r"mlm_head_dropout is 1.0; it must lie in \[0, 1\)"),
        ({"mlm_head_activation": "gleu"}, "'gleu' for mlm_head_activation; did you mean 'gelu'"),
        ({"initializer_range": 0.0}, "initializer_range is 0.0; it must be positive"),
        ({"layer_norm_eps": -1e-12}, "layer_norm_eps"),
        ({"selection": "some"}, "selection is 'some'"),
    ],
)
def test_bad_arguments_say_the_value_the_range_and_the_fix(arguments, message):
    with pytest.raises(InputError, match=message):
        MaskedLanguageModel(build_native(), **{"vocab_size": V, "mask_token_id": 4, **arguments})


def test_defaults_are_those_of_bert():
    encoder = mw.BERT.from_variant("tiny", hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    model = MaskedLanguageModel(encoder, 30522)
    assert (model.mask_ratio, model.mask_token_id, model.mlm_head_dropout) == (0.15, 103, 0.1)
    assert (model.masker.random_token_ratio, model.masker.unchanged_ratio) == (0.1, 0.1)
    assert model.mlm_norm.eps == 1e-12
    assert model.mlm_dense.weight.std().item() == pytest.approx(0.02, rel=5 / math.sqrt(2 * 256))  # of 256 draws


def test_mask_ratio_and_dropout_can_be_changed_later_and_are_checked():
    model = MaskedLanguageModel(build_native(), V, mask_token_id=4, special_token_ids=SPECIALS)
    batch = from_padded(torch.randint(5, V, (50, 20)))
    model.mask_ratio = 0.5
    assert model.corrupt(batch, 0, 0).selected.float().mean().item() == pytest.approx(0.5, abs=0.01)
    model.mask_ratio = 0.1
    assert model.corrupt(batch, 0, 0).selected.float().mean().item() == pytest.approx(0.1, abs=0.01)
    model.mlm_head_dropout = 0.7
    hidden = torch.randn(1, 4, 32)
    assert not torch.equal(model.train().predict(hidden), model.predict(hidden))
    model.mlm_head_dropout = 0.0
    assert torch.equal(model.train().predict(hidden), model.predict(hidden))
    with pytest.raises(InputError, match="mask_ratio is 2"):
        model.mask_ratio = 2
    with pytest.raises(InputError, match="mlm_head_dropout is -1"):
        model.mlm_head_dropout = -1


def test_mask_tokens_masks_anew_at_each_call_and_repeats_an_epoch():
    model = MaskedLanguageModel(build_native(), V, mask_token_id=4, special_token_ids=SPECIALS)
    inputs = {"input_ids": torch.randint(5, V, (4, 20)), "attention_mask": torch.ones(4, 20, dtype=torch.long)}
    before = copy.deepcopy(inputs)
    masked, labels, selected = model._mask_tokens(inputs)
    _, labels_again, _ = model._mask_tokens(inputs)
    assert torch.equal(inputs["input_ids"], before["input_ids"])
    assert set(masked) == {"input_ids", "attention_mask"}
    assert torch.equal(labels[selected], inputs["input_ids"][selected])
    assert not torch.equal(labels, labels_again)
    first, second = (model._mask_tokens(inputs, epoch=3)[1] for _ in range(2))
    assert torch.equal(first, second)
    packed = make_packed()
    masked_packed, packed_labels, _ = model._mask_tokens(packed)
    assert isinstance(masked_packed, PackedBatch)
    assert (packed_labels[packed.is_padding] == -100).all()


def test_loss_is_that_of_the_full_logits_at_labelled_tokens():
    model = MaskedLanguageModel(build_native(), V, mask_token_id=4).eval()
    ids = torch.randint(5, V, (3, 8))
    labels = torch.where(torch.rand(3, 8) < 0.4, ids, -100)
    output = model(input_ids=ids, labels=labels)
    expected = F.cross_entropy(output.logits.flatten(0, 1), labels.flatten())
    assert_rounded(output.loss, expected, NUM_TERMS)
    assert output["loss"] is output.loss
    assert model.train()(input_ids=ids, labels=labels).logits is None


def test_compute_loss_of_masked_tokens_is_the_loss_of_the_forward_pass():
    model = MaskedLanguageModel(build_native(), V, mask_token_id=4, special_token_ids=SPECIALS).eval()
    inputs = {"input_ids": torch.randint(5, V, (4, 20))}
    masked, labels, selected = model._mask_tokens(inputs)
    logits = model(masked).logits
    loss = model.compute_loss(y=inputs["input_ids"], y_pred=logits, sample_weight=selected)
    assert_rounded(loss, model(masked, labels=labels).loss, NUM_TERMS)
    assert_rounded(loss, model.compute_loss(y=labels, y_pred=logits), NUM_TERMS)
    assert model.compute_loss(y=labels, y_pred=logits, sample_weight=torch.zeros_like(selected)).item() == 0.0


def test_nothing_labelled_gives_zero_loss_and_no_nan():
    model = MaskedLanguageModel(build_native(), V, mask_token_id=4)
    ids = torch.full((2, 5), 7)
    loss = model(input_ids=ids, labels=torch.full_like(ids, -100)).loss
    loss.backward()
    assert loss.item() == 0.0
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_static_slots_give_the_same_sums_and_gradients_as_exact_ones():
    torch.manual_seed(0)
    hidden = torch.randn(2, 10, 4, requires_grad=True)
    weight = torch.randn(V, 4)
    labels = torch.where(torch.rand(2, 10) < 0.4, torch.randint(0, V, (2, 10)), -100)
    results = []
    for capacity in (None, 20, int((labels != -100).sum())):
        slots, slot_labels = gather_labelled(hidden, labels, capacity)
        assert capacity is None or len(slots) == capacity
        sums = compute_loss_sums(slots @ weight.T, slot_labels)
        (gradient,) = torch.autograd.grad(sums.loss_sum, hidden)
        results.append((sums.loss_sum, sums.num_correct, sums.num_labelled, gradient))
    for other in results[1:]:
        for actual, expected in zip(other, results[0], strict=True):
            assert_rounded(actual, expected, num_terms=4 + V + 20)


def test_labelled_tokens_beyond_the_capacity_are_left_out_not_mixed_up():
    hidden = torch.arange(6.0).view(1, 6, 1)
    labels = torch.tensor([[10, -100, 12, 13, -100, 15]])
    slots, slot_labels = gather_labelled(hidden, labels, capacity=2)
    assert slots.flatten().tolist() == [0.0, 2.0]
    assert slot_labels.tolist() == [10, 12]


def test_too_long_input_is_refused_with_both_lengths():
    model = MaskedLanguageModel(build_native(), V, mask_token_id=4)
    with pytest.raises(InputError, match=r"33 tokens, the model has 32 positions"):
        model(torch.full((1, 33), 7))


def test_works_inside_the_trainer_of_transformers(tmp_path):
    from transformers import Trainer, TrainingArguments

    torch.manual_seed(0)
    model = MaskedLanguageModel(build_native(), V, mask_token_id=4, special_token_ids=SPECIALS)
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(5, V, (16, 8))]
    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=3,
        per_device_train_batch_size=8,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows)
    assert trainer.train().training_loss > 0
    assert trainer.evaluate()["eval_loss"] > 0


@pytest.mark.gpu
def test_loss_and_gradients_agree_between_cpu_and_gpu():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    on_cpu = MaskedLanguageModel(build_native(), V, mask_token_id=4, special_token_ids=SPECIALS).eval()
    on_gpu = copy.deepcopy(on_cpu).cuda()
    batch = from_padded(torch.randint(5, V, (16, 30)))
    sums = []
    for model, rows in ((on_cpu, batch), (on_gpu, batch.to("cuda"))):
        result = model.loss_sums(model.corrupt(rows, 0, 0))
        (result.loss_sum / result.num_labelled).backward()
        sums.append(result)
    assert_rounded(sums[1].loss_sum, sums[0].loss_sum, NUM_TERMS)
    assert int(sums[1].num_labelled) == int(sums[0].num_labelled)
    on_gpu_grads, on_cpu_grads = (
        {name: param.grad for name, param in model.named_parameters()} for model in (on_gpu, on_cpu)
    )
    assert_rounded(on_gpu_grads, on_cpu_grads, 2 * NUM_TERMS)
