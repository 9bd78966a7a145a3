"""`SentencePairModel`: parity with BertForPreTraining, the two parts of its loss, and that it learns and resumes."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForPreTraining

from maskwright.batch import IGNORED_LABEL, PackedBatch, from_padded
from maskwright.data.loader import PackedLoader
from maskwright.data.pairs import build_pairing
from maskwright.data.store import TokenStore
from maskwright.errors import InputError
from maskwright.models.bert import BERT, BERT_FAMILY
from maskwright.models.modernbert import ModernBERT
from maskwright.objectives.sentence_pairs import CorruptedPairs, SentencePairModel
from maskwright.sections.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from maskwright.training.compute.parallel import Alone
from maskwright.training.compute.precision import Precision
from maskwright.training.distributed.world import World
from maskwright.training.held_out import evaluate
from maskwright.training.loop import Callback
from maskwright.training.micro_batches import MicroBatches
from maskwright.training.optim.optimizers import OptimizerSet
from maskwright.training.step import TrainStep
from maskwright.training.trainer import Trainer
from tolerances import assert_rounded, count_terms

V, ROW = 60, 32
PAD, CLS, SEP, MASK = 0, 2, 3, 4
NUM_TERMS = count_terms(num_layers=2, width=16, length=ROW)


@pytest.fixture(autouse=True)
def _one_thread_and_seed():
    """Tiny tensors are slower on several threads; models built one after another differ."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def build_bert(dropout: float = 0.0, hidden_size: int = 16) -> BERT:
    return BERT.from_variant(
        "tiny",
        vocab_size=V,
        hidden_size=hidden_size,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=ROW,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )


def build_modernbert() -> ModernBERT:
    return ModernBERT.from_variant(
        "tiny", vocab_size=V, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )


def build_model(encoder: nn.Module | None = None, *, dropout: float = 0.0, **settings: Any) -> SentencePairModel:
    settings = {"mask_token_id": MASK, "special_token_ids": range(5), "mlm_head_dropout": dropout, **settings}
    return SentencePairModel(encoder or build_bert(dropout), V, **settings)


def make_documents(num_documents: int, seed: int = 0) -> list[list[int]]:
    """Rising ids, so that the order of segments can be told."""
    random = np.random.default_rng(seed)
    return [sorted(random.integers(5, V, int(random.integers(6, 15))).tolist()) for _ in range(num_documents)]


def build_loader(num_documents: int = 64, rows_per_batch: int = 4, kind: str = "sop", **options: Any) -> PackedLoader:
    return PackedLoader(
        TokenStore.from_documents(make_documents(num_documents, options.get("seed", 0)), V),
        cls_token_id=CLS,
        sep_token_id=SEP,
        pad_token_id=PAD,
        row_length=ROW,
        rows_per_batch=rows_per_batch,
        pairing=build_pairing(kind),
        **options,
    )


def make_padded_pairs() -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Padded pairs as transformers takes them, labels of some tokens, and labels of the pairs."""
    generator = torch.Generator().manual_seed(3)
    lengths = [(6, 4), (3, 9), (5, 5), (2, 2)]
    input_ids = torch.zeros(4, 15, dtype=torch.long)
    types, attended = torch.zeros_like(input_ids), torch.zeros_like(input_ids)
    labels = torch.full_like(input_ids, IGNORED_LABEL)
    for row, (first, second) in enumerate(lengths):
        tokens = torch.randint(5, V, (first + second,), generator=generator).tolist()
        ids = [CLS, *tokens[:first], SEP, *tokens[first:], SEP]
        input_ids[row, : len(ids)] = torch.tensor(ids)
        types[row, first + 2 : len(ids)] = 1
        attended[row, : len(ids)] = 1
        for place in (1, first, first + 2):
            labels[row, place] = int(torch.randint(5, V, (1,), generator=generator))
    inputs = {"input_ids": input_ids, "attention_mask": attended, "token_type_ids": types}
    return inputs, labels, torch.tensor([0, 1, 1, 0])


def corrupt_as_given(inputs: dict[str, Tensor], labels: Tensor, pair_labels: Tensor) -> CorruptedPairs:
    batch = from_padded(**inputs)
    at_cls = torch.full_like(batch.input_ids, IGNORED_LABEL)
    at_cls[:, 0] = pair_labels
    return CorruptedPairs(replace(batch, pair_labels=at_cls), labels, num_slots=labels.numel())


def save_theirs(folder: Path) -> BertForPreTraining:
    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=120,  # ours expects [MASK] at 103 where no tokenizer says otherwise
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=ROW,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    theirs = BertForPreTraining(config)
    for parameter in theirs.parameters():  # larger than at the start, so that differences show
        nn.init.normal_(parameter, std=0.2)
    theirs.save_pretrained(folder)
    return theirs


def test_losses_and_gradients_equal_those_of_bert_for_pretraining(tmp_path: Path) -> None:
    theirs = save_theirs(tmp_path)
    ours = SentencePairModel.from_pretrained(tmp_path).train()
    ours.mlm_head_dropout = 0.0
    inputs, labels, pair_labels = make_padded_pairs()
    output = theirs.train()(**inputs, labels=labels, next_sentence_label=pair_labels)
    output.loss.backward()
    sums = ours.loss_sums(corrupt_as_given(inputs, labels, pair_labels))
    assert sums.counts.tolist() == [12, 4]
    means = sums.losses / sums.counts
    means.sum().backward()

    expected = nn.functional.cross_entropy(output.seq_relationship_logits, pair_labels)
    assert_rounded(means[1], expected, NUM_TERMS)
    assert_rounded(means.sum(), output.loss, NUM_TERMS)
    assert_rounded(ours.predict_pairs(from_padded(**inputs)), output.seq_relationship_logits, NUM_TERMS)
    encoder_gradients = {name: parameter.grad for name, parameter in ours.encoder.named_parameters()}
    found = {f"bert.{name}": gradient for name, gradient in BERT_FAMILY.to_theirs(encoder_gradients).items()}
    found |= {
        "bert.pooler.dense.weight": ours.pair_head.pooler.weight.grad,
        "bert.pooler.dense.bias": ours.pair_head.pooler.bias.grad,
        "cls.seq_relationship.weight": ours.pair_head.classifier.weight.grad,
        "cls.seq_relationship.bias": ours.pair_head.classifier.bias.grad,
        "cls.predictions.transform.dense.weight": ours.mlm_dense.weight.grad,
        "cls.predictions.bias": ours.mlm_output.bias.grad,
    }
    their_gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    assert_rounded(found, {name: their_gradients[name] for name in found}, 2 * NUM_TERMS)


def test_packing_changes_neither_part_of_the_loss() -> None:
    model = build_model().eval()
    batch = next(build_loader().epoch(0))
    assert int(batch.document_ids.max()) > 1
    corrupted = model.corrupt(batch, 0, 0, 0.3)
    whole = model.loss_sums(corrupted)
    alone = torch.zeros(2)
    for row in range(batch.num_rows):
        for document in range(1, int(batch.document_ids[row].max()) + 1):
            place = batch.document_ids[row] == document
            cut = {name: getattr(corrupted.batch, name)[row, place][None] for name in ("input_ids", "token_type_ids")}
            one = replace(from_padded(**cut), pair_labels=corrupted.pair_labels[row, place][None])
            alone += model.loss_sums(CorruptedPairs(one, corrupted.labels[row, place][None], 0)).losses
    assert_rounded(whole.losses, alone, NUM_TERMS)
    assert whole.counts.tolist() == corrupted.counts.tolist()
    assert whole.counts[1] > 4


class KeepGradients(OptimizerSet):
    """Leaves the weights alone, so that gradients can be compared."""

    def step(self, skip: Tensor | None = None) -> None: ...


def compute_gradients(model: SentencePairModel, batch: PackedBatch, micro_batch_tokens: int | None = None):
    optimizers = KeepGradients([torch.optim.SGD(model.parameters(), lr=1.0)], model)
    micro_batches = MicroBatches(micro_batch_tokens, is_alone=True, warn=pytest.fail)
    step = TrainStep(Alone(model, Precision("fp32")), optimizers, World(), 7, None, micro_batches)
    result = step(batch, step=0, epoch=0, mask_ratio=0.3)
    return result, {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def test_micro_batches_give_the_gradients_of_the_whole_batch() -> None:
    model = build_model(pair_weight=2.0).train()
    batch = next(build_loader(rows_per_batch=7).epoch(0))
    counts = [int((row != IGNORED_LABEL).sum()) for row in batch.pair_labels]
    assert len(set(counts)) > 1, "the test needs unlike numbers of pairs"
    whole, expected = compute_gradients(model, batch)
    assert whole.sums[3] == sum(counts)
    for micro_batch_tokens in (ROW, 3 * ROW):
        result, gradients = compute_gradients(model, batch, micro_batch_tokens)
        for found, exact in zip(result.sums, whole.sums, strict=True):
            assert_rounded(found, exact, NUM_TERMS)
        assert int(result.num_overflowing) == 0
        assert_rounded(gradients, expected, 2 * NUM_TERMS)


def test_gradients_are_those_of_the_weighted_sum_of_means() -> None:
    model = build_model(pair_weight=0.5).train()
    batch = next(build_loader().epoch(0))
    _, gradients = compute_gradients(model, batch)
    sums = model.loss_sums(model.corrupt(batch, 7, 0, 0.3))
    model.zero_grad()
    (sums.losses[0] / sums.counts[0] + 0.5 * sums.losses[1] / sums.counts[1]).backward()
    assert_rounded(gradients, {name: parameter.grad for name, parameter in model.named_parameters()}, 2 * NUM_TERMS)


def test_batches_without_pairs_train_the_masked_part_alone() -> None:
    model = build_model().train()
    batch = replace(next(build_loader().epoch(0)), pair_labels=None)
    _, gradients = compute_gradients(model, batch)
    assert not gradients["pair_head.pooler.weight"].any()
    assert gradients["mlm_dense.weight"].any()
    metrics = evaluate(model, [batch]).metrics
    assert metrics["loss"] == metrics["mlm_loss"] > 0
    assert math.isnan(metrics["pair_loss"])


def test_metrics_are_means_of_their_own_part() -> None:
    metrics = build_model(pair_weight=3.0).compute_metrics([20.0, 6.0, 10.0, 4.0, 5.0, 3.0])
    assert metrics == {"loss": 6.5, "mlm_loss": 2.0, "mlm_accuracy": 0.5, "pair_loss": 1.5, "pair_accuracy": 0.75}
    assert next(iter(metrics)) == "loss"


def test_pair_weight_must_be_positive() -> None:
    with pytest.raises(InputError, match=r"pair_weight is 0\.0; it must be positive"):
        build_model(pair_weight=0.0)


def fit(model: SentencePairModel, train: PackedLoader, validation: PackedLoader, epochs: int, *callbacks: Callback):
    trainer = Trainer(
        model,
        OptimizerConfig(type="adamw", learning_rate=1e-2),
        ScheduleConfig(type="cosine_decay", warmup_steps=3),
        TrainingConfig(device="cpu", log_every_steps=4),
        seed=5,
    )
    return trainer, lambda: trainer.fit(train, validation, epochs=epochs, callbacks=callbacks, verbose=False)


@pytest.mark.slow  # what is learnt is compared with transformers above
def test_order_that_can_be_learned_is_learned() -> None:
    model = build_model(build_bert(hidden_size=32))
    validation = build_loader(100, seed=1, shuffle=False)
    before = evaluate(model, validation.epoch(0)).metrics["pair_accuracy"]
    _, run = fit(model, build_loader(300, rows_per_batch=8), validation, 10)
    history = run().history
    assert before < 0.65
    assert history["val_pair_accuracy"][-1] > 0.9
    assert history["val_mlm_loss"][-1] < history["val_mlm_loss"][0]


class SaveAt(Callback):
    """Saves at one step, as a run that is killed right after would have."""

    def __init__(self, folder: Path, step: int) -> None:
        self.folder, self.step = folder, step

    def on_step_end(self, step: int) -> None:
        if step == self.step:
            self.trainer.save_checkpoint(self.folder)


@pytest.mark.parametrize(
    ("build_encoder", "kind"),
    [
        (lambda: build_bert(dropout=0.2), "nsp"),
        pytest.param(lambda: build_bert(dropout=0.2), "sop", marks=pytest.mark.slow),
        pytest.param(build_modernbert, "nsp", marks=pytest.mark.slow),
        (build_modernbert, "sop"),
    ],
)
def test_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, kind: str, build_encoder) -> None:
    train, validation = build_loader(kind=kind), build_loader(10, kind=kind, seed=1, shuffle=False)
    step = len(train) + 2
    whole, run_whole = fit(build_model(build_encoder(), dropout=0.2), train, validation, 2, SaveAt(tmp_path, step))
    run_whole()
    resumed, run_rest = fit(build_model(build_encoder(), dropout=0.2), train, validation, 2)
    resumed.load_checkpoint(tmp_path / f"step-{step}")
    run_rest()
    assert resumed.history.history == whole.history.history
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name
