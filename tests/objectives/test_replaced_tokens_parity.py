"""Generator and discriminator compute what transformers' ELECTRA computes: losses and every gradient."""

import pytest
import torch
from torch import Tensor
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

from maskwright.batch import IGNORED_LABEL, PackedBatch, from_padded, to_padded
from maskwright.models.bert import BERT, BERT_FAMILY
from maskwright.objectives.replaced_tokens import ReplacedTokenDetection
from tolerances import assert_rounded, count_terms

VOCAB_SIZE, WIDTH, EPOCH = 60, 32, 3
LENGTHS = [12, 5, 9]
NUM_TERMS = count_terms(num_layers=2, width=WIDTH, length=sum(LENGTHS) + 4)
GENERATOR_NAMES = {
    "projection": "electra.embeddings_project",
    "dense": "generator_predictions.dense",
    "norm": "generator_predictions.LayerNorm",
}
HEAD_NAMES = {"dense": "discriminator_predictions.dense", "output": "discriminator_predictions.dense_prediction"}


def build_ours(generator_size: float) -> ReplacedTokenDetection:
    """Weights large enough to tell mistakes, no dropout."""
    torch.manual_seed(0)
    encoder = BERT.from_variant(
        "tiny",
        vocab_size=VOCAB_SIZE,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = ReplacedTokenDetection(
        encoder,
        VOCAB_SIZE,
        mask_ratio=0.4,
        mask_token_id=4,
        special_token_ids=range(5),
        generator_size=generator_size,
        mlm_head_dropout=0.0,
    )
    with torch.no_grad():
        for param in model.parameters():
            param.add_(torch.randn_like(param) * 0.1)
    return model.train()


def name_for_generator(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Ours under the names of ElectraForMaskedLM; tensors we lack there are left out."""
    layers = take(tensors, "generator.encoder_layers.")
    theirs = {f"electra.{name}": tensor for name, tensor in BERT_FAMILY.to_theirs(layers).items()}
    embeddings = {name: tensor for name, tensor in take(tensors, "encoder.").items() if name.startswith("embeddings")}
    theirs |= {f"electra.{name}": tensor for name, tensor in BERT_FAMILY.to_theirs(embeddings).items()}
    theirs |= rename(take(tensors, "generator."), GENERATOR_NAMES)
    theirs["generator_lm_head.bias"] = tensors["generator.output_bias"]
    return theirs


def name_for_discriminator(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Ours under the names of ElectraForPreTraining."""
    encoder = BERT_FAMILY.to_theirs(take(tensors, "encoder."))
    theirs = {f"electra.{name}": tensor for name, tensor in encoder.items()}
    return theirs | rename(take(tensors, "detection_head."), HEAD_NAMES)


def take(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def rename(tensors: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    split = {name: name.rpartition(".") for name in tensors}
    return {f"{names[m]}.{kind}": tensors[name] for name, (m, _, kind) in split.items() if m in names}


def build_theirs(kind: type, ours: ReplacedTokenDetection, config, weights: dict[str, Tensor]) -> torch.nn.Module:
    theirs = kind(
        ElectraConfig(
            vocab_size=VOCAB_SIZE,
            embedding_size=WIDTH,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            intermediate_size=config.intermediate_size,
            max_position_embeddings=16,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            layer_norm_eps=1e-12,
        )
    )
    with torch.no_grad():
        named = dict(theirs.named_parameters())
        assert set(named) == set(weights)
        for name, param in named.items():
            param.copy_(weights[name])
    return theirs.train()


def make_batch(layout: str) -> PackedBatch:
    generator = torch.Generator().manual_seed(1)
    attention_mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    input_ids = torch.randint(5, VOCAB_SIZE, attention_mask.shape, generator=generator) * attention_mask
    token_type_ids = torch.randint(0, 2, attention_mask.shape, generator=generator) * attention_mask
    padded = from_padded(input_ids, attention_mask, token_type_ids, sample_ids=torch.arange(1, len(LENGTHS) + 1))
    if layout == "padded":
        return padded
    is_real = attention_mask.bool()
    document_ids = (attention_mask * torch.arange(1, len(LENGTHS) + 1)[:, None])[is_real]
    fields = (input_ids[is_real], document_ids, padded.positions[is_real], document_ids, token_type_ids[is_real])
    return PackedBatch(*(torch.nn.functional.pad(field, (0, 4))[None] for field in fields))


def assert_same_gradients(theirs: torch.nn.Module, ours: dict[str, Tensor]) -> None:
    expected = {name: param.grad for name, param in theirs.named_parameters()}
    assert_rounded({name: ours[name] for name in expected}, expected, 2 * NUM_TERMS)


def collect_gradients(model: ReplacedTokenDetection) -> dict[str, Tensor]:
    """Zeros where none came, as happens to the parts that a loss does not reach."""
    return {
        name: torch.zeros_like(param) if param.grad is None else param.grad for name, param in model.named_parameters()
    }


def as_theirs(batch: PackedBatch, labels: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """One document per row, and labels laid out alike with -100 at padding."""
    inputs, _ = to_padded(batch)
    laid_out = to_padded(batch.with_input_ids(labels))[0]["input_ids"]
    return inputs, laid_out.where(inputs["attention_mask"] == 1, IGNORED_LABEL)


@pytest.mark.parametrize("generator_size", [0.5, 1.0], ids=["half the width", "the same width"])
@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_generator_loss_and_gradients_agree(layout, generator_size):
    ours = build_ours(generator_size)
    config = ours.generator.encoder_layers.config
    theirs = build_theirs(ElectraForMaskedLM, ours, config, name_for_generator(ours.state_dict()))
    corrupted = ours.corrupt(make_batch(layout), 0, EPOCH)
    sums = ours.loss_sums(corrupted)
    assert int(sums.counts[0]) > 5
    loss = sums.losses[0] / sums.counts[0]

    inputs, labels = as_theirs(corrupted.batch, corrupted.labels)
    expected = theirs(**inputs, labels=labels).loss
    assert_rounded(loss, expected, NUM_TERMS)
    loss.backward()
    expected.backward()
    assert_same_gradients(theirs, name_for_generator(collect_gradients(ours)))


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_discriminator_loss_and_gradients_agree(layout):
    ours = build_ours(0.5)
    theirs = build_theirs(ElectraForPreTraining, ours, ours.encoder.config, name_for_discriminator(ours.state_dict()))
    batch = make_batch(layout)
    sums = ours.loss_sums(ours.corrupt(batch, 0, EPOCH))
    loss = sums.losses[1] / sums.counts[1]
    assert int(sums.counts[1]) == sum(LENGTHS)

    ids, is_replaced = ours.propose(batch, EPOCH)
    assert 5 < int(is_replaced.sum()) < sum(LENGTHS)
    inputs, labels = as_theirs(batch.with_input_ids(ids), is_replaced.long())
    expected = theirs(**inputs, labels=labels).loss
    assert_rounded(loss, expected, NUM_TERMS)
    loss.backward()
    expected.backward()
    assert_same_gradients(theirs, name_for_discriminator(collect_gradients(ours)))


def test_logits_of_a_call_are_theirs():
    ours = build_ours(0.5)
    theirs = build_theirs(ElectraForPreTraining, ours, ours.encoder.config, name_for_discriminator(ours.state_dict()))
    inputs, _ = to_padded(make_batch("padded"))
    is_real = inputs["attention_mask"] == 1
    assert_rounded(ours(**inputs).logits[is_real], theirs(**inputs).logits[is_real], NUM_TERMS)
