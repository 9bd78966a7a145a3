"""Whole runs of every objective that shares the prediction head."""

from __future__ import annotations

import copy
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BertForPreTraining

import maskwright as mw
from maskwright.batch import from_padded
from maskwright.config import build_config
from maskwright.errors import InputError
from maskwright.inference.fill_mask import fill_mask
from maskwright.inference.generate import generate
from maskwright.objectives.masked_lm import CausalLanguageModel, DiffusionLanguageModel, HybridLanguageModel
from maskwright.runs.model import load_model
from maskwright.runs.objective import choose_kind, find_causal_share
from maskwright.runs.pretrain import FinishedRun, pretrain
from maskwright.sections.objective import PhaseConfig
from tolerances import assert_rounded, count_terms

NUM_TERMS = count_terms(num_layers=1, width=32, length=7)

PLAN = [{"mode": "clm", "until": 0.5}, {"mode": "mlm"}]


def run(values: dict[str, Any], name: str, **changes: Any) -> FinishedRun:
    values = copy.deepcopy(values)
    values["run"]["name"] = name
    values["training"] |= {"precision": "fp32", "device": "cpu", **changes.pop("training", {})}
    return pretrain(build_config({**values, **changes}), console=Console(quiet=True))


@pytest.mark.parametrize(
    ("changes", "kind", "metric"),
    [
        ({"training": {"mode": "clm"}}, CausalLanguageModel, "val_clm_accuracy"),
        ({"training": {"mode": "hybrid", "causal_share": 0.3}}, HybridLanguageModel, "val_accuracy"),
        ({"objective": PLAN}, HybridLanguageModel, "val_accuracy"),
        ({"training": {"mode": "diffusion"}}, DiffusionLanguageModel, "val_mlm_accuracy"),
    ],
)
def test_a_run_is_saved_as_what_it_was_trained_as(
    tiny_values: dict[str, Any], changes: dict[str, Any], kind: type, metric: str
) -> None:
    finished = run(tiny_values, "mode", **changes)
    assert metric in finished.trainer.history.history
    model, _ = load_model(str(finished.folder.path))
    assert type(model) is kind
    ids = torch.tensor([[5, 6, 7, 8]])
    assert_rounded(model(ids).logits, finished.trainer.model(ids).logits, NUM_TERMS)


def test_a_causal_bert_is_read_by_transformers(tiny_values: dict[str, Any]) -> None:
    finished = run(tiny_values, "clm", training={"mode": "clm"})
    theirs = AutoModelForCausalLM.from_pretrained(finished.folder.model).eval()
    ids = torch.tensor([[5, 6, 7, 8, 9, 10]])
    assert_rounded(theirs(ids).logits, finished.trainer.model(ids).logits, NUM_TERMS)


@pytest.mark.parametrize("changes", [{"objective": PLAN}, {"training": {"mode": "diffusion"}}])
def test_a_run_resumed_half_way_is_bit_equal(tiny_values: dict[str, Any], changes: dict[str, Any]) -> None:
    """A plan in its first phase, and shares of masked tokens, which are drawn anew in every epoch."""
    settings = {**changes, "training": {**changes.get("training", {}), "keep_checkpoints": 10}}
    whole = run(tiny_values, "plan", **copy.deepcopy(settings))
    folder = whole.folder.path
    expected = load_file(folder / "model" / "model.safetensors")
    lines = [{**line, "tokens_per_s": 0, "elapsed_s": 0, "data_wait": 0} for line in whole.folder.read_metrics()]
    (folder / "final.json").unlink()
    for checkpoint in (folder / "checkpoints").iterdir():
        if checkpoint.name != "step-5":
            shutil.rmtree(checkpoint)
    assert (folder / "checkpoints" / "step-5").is_dir()
    resumed = run(tiny_values, "plan", **copy.deepcopy(settings))
    found = load_file(folder / "model" / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    again = [{**line, "tokens_per_s": 0, "elapsed_s": 0, "data_wait": 0} for line in resumed.folder.read_metrics()]
    assert again == lines


def test_masking_goes_on_from_a_causal_run(tiny_values: dict[str, Any]) -> None:
    first = run(tiny_values, "clm", training={"mode": "clm"})
    second = run({**tiny_values, "model": {"from": str(first.folder.path)}}, "mlm")
    assert type(second.trainer.model) is mw.MaskedLanguageModel
    assert "val_mlm_accuracy" in second.trainer.history.history


def test_figures_of_masked_runs_are_those_of_the_same_questions(tiny_values: dict[str, Any]) -> None:
    figures = [
        run(tiny_values, "a").figures,
        run(tiny_values, "b", masking={"strategy": "whole_word", "ratio": 0.3}).figures,
        run(tiny_values, "c", training={"mode": "hybrid"}).figures,
    ]
    assert len({one["unigram_loss"] for one in figures}) == 1
    assert len({one["num_masked"] for one in figures}) == 1
    assert len({one["loss"] for one in figures}) == 3


def test_figures_of_a_diffusion_run_are_a_bound_for_each_held_out_token(
    tiny_values: dict[str, Any], corpus_file: Path, sentences: list[str]
) -> None:
    finished = run(
        {**tiny_values, "data": {**tiny_values["data"], "validation": str(corpus_file)}},
        "diffusion",
        training={"mode": "diffusion"},
    )
    figures = finished.figures
    _, tokenizer = load_model(str(finished.folder.path))
    assert figures["perplexity"] == pytest.approx(math.exp(figures["loss"]))
    assert figures["num_masked"] == sum(map(len, tokenizer.encode_batch(sentences)))
    shared = mw.evaluate(finished.folder.path, "mlm", [str(corpus_file)]).totals
    assert 0.1 < shared["questions"] / figures["num_masked"] < 0.2, "fixed masks of 15%, as for any model"
    assert shared["perplexity"] == pytest.approx(math.exp(shared["loss"]))


def test_masking_settings_that_diffusion_does_not_use_are_refused() -> None:
    for name, value in (("ratio", 0.3), ("strategy", "span"), ("random_token_ratio", 0.0)):
        config = build_config({"training": {"mode": "diffusion"}, "masking": {name: value}})
        with pytest.raises(InputError, match=rf"masking\.{name} is {value}, but training\.mode=diffusion"):
            choose_kind(config)
    of_recipe = build_config({"preset": "modern_small", "training": {"mode": "diffusion"}})
    assert of_recipe.masking.ratio == 0.3
    choose_kind(of_recipe)


def test_phases_change_where_they_end() -> None:
    mixed = PhaseConfig(mode="hybrid", until=0.5, causal_share=0.3)
    phases = [PhaseConfig(mode="clm", until=0.25), mixed, PhaseConfig()]
    shares = [find_causal_share(phases, progress) for progress in (0.0, 0.249, 0.25, 0.499, 0.5, 1.0)]
    assert shares == [1.0, 1.0, 0.3, 0.3, 0.0, 0.0]


def test_a_mode_beside_phases_is_refused() -> None:
    config = build_config({"objective": PLAN, "training": {"mode": "clm"}})
    with pytest.raises(InputError, match=r"training\.mode is clm and objective has phases"):
        choose_kind(config)


@pytest.fixture(scope="module")
def causal(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    values = {
        "run": {"out": str(tmp_path_factory.mktemp("causal"))},
        "model": {"variant": "tiny", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
        "tokenizer": {"vocab_size": 160},
        "data": {"train": str(corpus_file), "max_length": 32},
        "optimizer": {"learning_rate": 1e-2},
        "training": {"mode": "clm", "max_steps": 60, "epochs": 100, "batch_tokens": 256},
    }
    return run(values, "clm").folder.path


class TestLooks:
    def test_a_causal_model_continues_a_text(self, causal: Path) -> None:
        model, tokenizer = load_model(str(causal))
        text = generate(model, tokenizer, "the", 8)
        assert text.startswith("the ")
        assert text == generate(model, tokenizer, "the", 8)
        drawn = {generate(model, tokenizer, "the", 8, temperature=1.5, seed=seed) for seed in range(5)}
        assert len(drawn) > 1
        assert generate(model, tokenizer, "the", 8, temperature=1.0, top_k=1) == text

    def test_the_continuation_is_the_most_probable_token_each_time(self, causal: Path) -> None:
        model, tokenizer = load_model(str(causal))
        ids = tokenizer.encode("the")[:-1]
        best = int(model(torch.tensor([ids])).logits[0, -1].argmax())
        assert generate(model, tokenizer, "the", 1) == tokenizer.decode([*ids[1:], best], skip_special_tokens=True)

    def test_the_command_line_continues_and_measures(self, causal: Path, corpus_file: Path, command: Any) -> None:
        result = command("generate", causal, "the", "--max-new-tokens", "5")
        assert (result.code, result.out.startswith("the ")) == (0, True)
        result = command("eval", causal, "mlm", corpus_file)
        assert (result.code, "clm_accuracy" in result.out) == (0, True)

    def test_too_long_a_text_and_odd_numbers_are_refused(self, causal: Path, command: Any) -> None:
        command("generate", causal, "the " * 50).assert_refused("the model takes 32")
        command("generate", causal, "the", "--temperature=-1").assert_refused("temperature is -1.0")

    def test_gaps_and_steps_are_not_for_a_causal_model(self, causal: Path, command: Any) -> None:
        command("generate", causal, "the [MASK:2]").assert_refused("writes from left to right")
        command("generate", causal, "the", "--steps", "2").assert_refused("writes from left to right")


def test_a_shifted_model_fills_masks_with_the_answer_one_place_earlier(tiny_values: dict[str, Any]) -> None:
    finished = run(tiny_values, "hybrid", training={"mode": "hybrid"})
    model, tokenizer = load_model(str(finished.folder.path))
    text = f"the {tokenizer.mask_token} sat"
    ids = tokenizer.encode(text)
    place = ids.index(tokenizer.mask_token_id)
    best = int(model(torch.tensor([ids])).logits[0, place - 1].argmax())
    assert fill_mask(model, tokenizer, text, 1)[0][0].token == best


@pytest.mark.parametrize("task", [pytest.param("nsp", marks=pytest.mark.slow), "sop"])
def test_pairs_are_a_second_part_of_the_loss_and_of_the_saved_model(tiny_values: dict[str, Any], task: str) -> None:
    finished = run(tiny_values, "pairs", pairs={"task": task, "weight": 0.5})
    history = finished.trainer.history.history
    assert history["val_loss"][-1] == pytest.approx(history["val_mlm_loss"][-1] + 0.5 * history["val_pair_loss"][-1])
    again = run({**tiny_values, "model": {"from": str(finished.folder.path)}}, "more", pairs={"task": task})
    assert isinstance(again.trainer.model, mw.SentencePairModel)
    theirs = BertForPreTraining.from_pretrained(finished.folder.model).eval()
    ids, segments = torch.tensor([[2, 6, 7, 3, 8, 9, 3]]), torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    ours = finished.trainer.model.predict_pairs(from_padded(ids, token_type_ids=segments))
    expected = theirs(ids, token_type_ids=segments).seq_relationship_logits
    assert_rounded(ours, expected, NUM_TERMS, magnitude=1.0)


def test_pairs_beside_another_objective_are_refused() -> None:
    with pytest.raises(InputError, match=r"pairs\.task=nsp is an addition to masked"):
        choose_kind(build_config({"pairs": {"task": "nsp"}, "training": {"mode": "clm"}}))


def test_replaced_tokens_are_detected_in_a_run_that_resumes(tiny_values: dict[str, Any]) -> None:
    settings = {"training": {"mode": "rtd", "keep_checkpoints": 10}, "replaced_tokens": {"generator_size": 0.5}}
    whole = run(tiny_values, "rtd", **copy.deepcopy(settings))
    assert 0 <= whole.figures["replaced_auc"] <= 1
    expected = load_file(whole.folder.model / "replaced_tokens.safetensors")
    (whole.folder.path / "final.json").unlink()
    for checkpoint in whole.folder.checkpoints.iterdir():
        if checkpoint.name != "step-5":
            shutil.rmtree(checkpoint)
    run(tiny_values, "rtd", **copy.deepcopy(settings))
    found = load_file(whole.folder.model / "replaced_tokens.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
