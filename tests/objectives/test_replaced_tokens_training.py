"""Replaced-token detection in the training loop, on disk and back."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import AutoModel

from maskwright.data.loader import PackedLoader
from maskwright.data.store import TokenStore
from maskwright.errors import InputError
from maskwright.models.bert import BERT
from maskwright.models.modernbert import ModernBERT
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.objectives.replaced_tokens import ReplacedTokenDetection
from maskwright.sections.training import OptimizerConfig, ScheduleConfig, TrainingConfig
from maskwright.training.compute.parallel import Alone
from maskwright.training.compute.precision import Precision
from maskwright.training.distributed.world import World
from maskwright.training.held_out import evaluate
from maskwright.training.loop import Callback
from maskwright.training.micro_batches import MicroBatches
from maskwright.training.optim.optimizers import OptimizerSet, build_optimizers
from maskwright.training.step import TrainStep
from maskwright.training.trainer import Trainer
from tolerances import assert_rounded, count_terms

V = 60
NUM_TERMS = count_terms(num_layers=1, width=32, length=16)


@pytest.fixture(autouse=True)
def _one_thread():
    """Tiny tensors are slower on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def build_model(family=BERT, seed=0, dropout=0.0, width=32, **arguments):
    torch.manual_seed(seed)
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob") if family is BERT else ("mlp_dropout",)
    rates = dict.fromkeys(names, dropout)
    encoder = family.from_variant(
        "tiny",
        vocab_size=V,
        hidden_size=width,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=16,
        **rates,
    )
    settings = {"mask_token_id": 4, "special_token_ids": range(5), "mlm_head_dropout": dropout, **arguments}
    return ReplacedTokenDetection(encoder, V, **settings)


def build_loader(num_documents=48, rows_per_batch=4, seed=0):
    """Documents of one topic each, with four ids to a topic; most of the vocabulary occurs nowhere."""
    generator = np.random.default_rng(seed)
    topics, lengths = generator.integers(0, 3, num_documents), generator.integers(6, 14, num_documents)
    documents = [
        (5 + 4 * topic + generator.integers(0, 4, length)).tolist()
        for topic, length in zip(topics, lengths, strict=True)
    ]
    return PackedLoader(
        TokenStore.from_documents(documents, V),
        cls_token_id=2,
        sep_token_id=3,
        pad_token_id=0,
        row_length=16,
        rows_per_batch=rows_per_batch,
        seed=seed,
    )


class KeepGradients(OptimizerSet):
    """Leaves the weights alone, so that gradients can be compared."""

    def step(self, skip=None) -> None: ...


def run_step(model, batch, optimizers, micro_batch_tokens=None):
    micro_batches = MicroBatches(micro_batch_tokens, is_alone=True, warn=pytest.fail)
    step = TrainStep(Alone(model, Precision("fp32")), optimizers, World(), 7, None, micro_batches)
    return step(batch, step=0, epoch=0, mask_ratio=0.3)


def compute_gradients(model, batch, micro_batch_tokens=None):
    optimizers = KeepGradients([torch.optim.SGD(model.parameters(), lr=1.0)], model)
    result = run_step(model, batch, optimizers, micro_batch_tokens)
    return result, {name: param.grad.clone() for name, param in model.named_parameters()}


def test_micro_batches_give_the_gradients_of_the_whole_batch():
    model = build_model().train()
    batch = next(build_loader(rows_per_batch=7).epoch(0))
    parts = [model.corrupt(batch.rows(row, row + 1), 7, 0, 0.3) for row in range(7)]
    for part in (0, 1):
        assert len({int(one.counts[part]) for one in parts}) > 1, "the test needs unlike counts"
    whole, expected = compute_gradients(model, batch)
    for micro_batch_tokens in (16, 48):  # one row and three rows at a time, the last micro-batch a smaller one
        result, gradients = compute_gradients(model, batch, micro_batch_tokens)
        for found, exact in zip(result.sums, whole.sums, strict=True):
            assert_rounded(found, exact, NUM_TERMS)
        assert_rounded(gradients, expected, 2 * NUM_TERMS)


def test_gradients_are_those_of_the_weighted_means():
    model = build_model(discriminator_weight=20.0).train()
    batch = next(build_loader().epoch(0))
    _, gradients = compute_gradients(model, batch)
    model.zero_grad()
    sums = model.loss_sums(model.corrupt(batch, 7, 0, 0.3))
    (sums.losses[0] / sums.counts[0] + 20.0 * sums.losses[1] / sums.counts[1]).backward()
    assert_rounded(gradients, {name: param.grad for name, param in model.named_parameters()}, 2 * NUM_TERMS)


@pytest.mark.parametrize("family", [BERT, ModernBERT])
@pytest.mark.parametrize("type", ["adamw", "muon"])
def test_a_step_changes_every_weight(type, family):
    model = build_model(family).train()
    before = {name: param.detach().clone() for name, param in model.named_parameters()}
    batch = next(build_loader().epoch(0))
    run_step(model, batch, build_optimizers(model, OptimizerConfig(type=type, learning_rate=1e-2)))
    assert [name for name, param in model.named_parameters() if torch.equal(before[name], param)] == []


def test_training_lowers_both_losses_and_learns_to_detect():
    """At this temperature the generator goes on drawing ids that fit no document, so there is something to detect."""
    model = build_model(temperature=4.0)
    validation = build_loader(96, rows_per_batch=16, seed=1)
    before = evaluate(model, validation).metrics
    trainer = Trainer(
        model,
        OptimizerConfig(type="adamw", learning_rate=5e-3),
        ScheduleConfig(type="cosine_decay", warmup_steps=5),
        TrainingConfig(device="cpu", precision="fp32"),
    )
    trainer.fit(build_loader(192, rows_per_batch=16), epochs=4, verbose=False)
    after = evaluate(model, validation).metrics
    assert trainer.state.step < 60
    assert after["generator_loss"] < before["generator_loss"] - 1.0
    assert after["discriminator_loss"] < before["discriminator_loss"] - 0.3
    assert after["mlm_accuracy"] > before["mlm_accuracy"]
    assert before["replaced_auc"] < 0.6 < after["replaced_auc"] - 0.1


class SaveAt(Callback):
    """Saves at one step, as a run that is killed right after would have."""

    def __init__(self, folder, step):
        self.folder, self.step = folder, step

    def on_step_end(self, step):
        if step == self.step:
            self.trainer.save_checkpoint(self.folder)


def test_resumed_run_equals_an_uninterrupted_one(tmp_path):
    def build_trainer(seed):
        return Trainer(
            build_model(dropout=0.2, seed=seed),
            OptimizerConfig(type="adamw", learning_rate=1e-2),
            ScheduleConfig(type="cosine_decay", warmup_steps=3),
            TrainingConfig(device="cpu", precision="fp32"),
            seed=5,
        )

    train, validation = build_loader(), build_loader(10, seed=1)
    step = len(train) + 2
    whole = build_trainer(seed=0)
    whole.fit(train, validation, epochs=2, callbacks=[SaveAt(tmp_path, step)], verbose=False)
    resumed = build_trainer(seed=99)
    resumed.load_checkpoint(tmp_path / f"step-{step}")
    resumed.fit(train, validation, epochs=2, verbose=False)
    assert resumed.history.history == whole.history.history
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name


@pytest.mark.parametrize("family", [BERT, ModernBERT])
def test_a_saved_model_comes_back_whole(tmp_path, family):
    model = build_model(
        family,
        mask_ratio=0.3,
        strategy="span",
        generator_size=0.5,
        generator_layers=2,
        discriminator_weight=30.0,
        temperature=1.5,
        seed=3,
    )
    model.save_pretrained(tmp_path)
    loaded = ReplacedTokenDetection.from_pretrained(tmp_path)
    assert not loaded.training
    assert loaded.snapshot().config == model.snapshot().config
    assert loaded.part_weights == (1.0, 30.0)
    assert loaded.masker.strategy == "span"
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    batch = next(build_loader().epoch(0))
    expected = model.eval().loss_sums(model.corrupt_for_evaluation(batch, 1, 0.3))
    assert torch.equal(loaded.loss_sums(loaded.corrupt_for_evaluation(batch, 1, 0.3)).losses, expected.losses)


def test_the_saved_encoder_is_the_discriminator_for_others(tmp_path, tokenizer):
    model = build_model().eval()
    model.save_pretrained(tmp_path / "whole", tokenizer)
    model.encoder.save_pretrained(tmp_path / "encoder")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "encoder")]
    assert weights[0] == weights[1]
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    assert config["sep_token_id"] == config["eos_token_id"] == tokenizer.sep_token_id
    assert (tmp_path / "whole" / "tokenizer.json").is_file()

    input_ids = torch.randint(5, V, (2, 9))
    expected = model.encoder(input_ids).last_hidden_state
    ours = BERT.from_pretrained(tmp_path / "whole")
    assert_rounded(ours(input_ids).last_hidden_state, expected, NUM_TERMS)
    theirs = AutoModel.from_pretrained(tmp_path / "whole").eval()
    assert_rounded(theirs(input_ids).last_hidden_state, expected, NUM_TERMS)


def test_folders_of_other_models_are_refused(tmp_path):
    model = build_model()
    model.encoder.save_pretrained(tmp_path / "encoder")
    with pytest.raises(InputError, match="describes no replaced-token detection; load its encoder"):
        ReplacedTokenDetection.from_pretrained(tmp_path / "encoder")
    with pytest.raises(InputError, match=r"has no replaced_tokens\.safetensors, so it holds no generator"):
        model.load_weights(tmp_path / "encoder")
    model.save_pretrained(tmp_path / "whole")
    with pytest.raises(InputError, match="without a masked-language-model head"):
        MaskedLanguageModel.from_pretrained(tmp_path / "whole")


def test_damaged_weights_and_settings_are_named(tmp_path):
    model = build_model()
    model.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"'generator\.\S+' has shape"):
        build_model(generator_size=0.5).load_weights(tmp_path)
    others = tmp_path / "replaced_tokens.safetensors"
    others.write_bytes(others.read_bytes()[:-8])
    with pytest.raises(InputError, match=r"replaced_tokens\.safetensors is damaged"):
        model.load_weights(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["maskwright"]["replaced_tokens"]["temperature"] = "warm"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="'temperature' is 'warm', which is no setting of a model"):
        ReplacedTokenDetection.from_pretrained(tmp_path)
