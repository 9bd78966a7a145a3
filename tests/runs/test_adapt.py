"""Adaptation: a trained encoder learns a domain, what it forgets is watched, and the result is exported."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForMaskedLM, AutoTokenizer

import maskwright as mw
from maskwright.config import build_config
from maskwright.errors import InputError, RunInterruptedError
from maskwright.runs.adapt import AdaptOptions, adapt
from maskwright.runs.folder import RunFolder
from maskwright.runs.pretrain import pretrain
from maskwright.storage import read_json
from maskwright.training.loop import Callback
from tolerances import assert_rounded, count_terms

QUIET = Console(quiet=True)
DOMAIN = [f"the patient {number} received phosphorylated enzymes and improved slowly" for number in range(120)]
GENERAL = [f"the red house number {number} stands near the old bridge" for number in range(120)]
LETTERS = ["the quick brown fox jumps over the lazy dog"] * 3
SMALL = ("training.batch_tokens=256", "data.max_length=32", "training.precision=fp32")


def write_lines(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows the general text a little, and cuts the domain's words into pieces."""
    folder = tmp_path_factory.mktemp("published")
    general = write_lines(folder / "general.txt", GENERAL + LETTERS)
    model = {"variant": "tiny", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    values = {
        "run": {"name": "base", "out": str(folder)},
        "model": {**model, "max_position_embeddings": 32},
        "tokenizer": {"vocab_size": 120},
        "data": {"train": general, "max_length": 32},
        "optimizer": {"learning_rate": 3e-3},
        "training": {"max_steps": 40, "epochs": 40, "batch_tokens": 256, "precision": "fp32"},
    }
    return pretrain(build_config(values), console=QUIET).folder.model


def run_adaptation(model: Path, folder: Path, *settings: str, **options: Any) -> Any:
    texts = [write_lines(folder / "domain.txt", DOMAIN)]
    general = [write_lines(folder / "general.txt", GENERAL)]
    given = AdaptOptions(texts, folder / "adapted", general, settings=(*SMALL, *settings), **options)
    return adapt(str(model), given, QUIET, lambda text: None)


def test_the_domain_is_learnt_and_the_result_is_a_model_for_transformers(published: Path, tmp_path: Path) -> None:
    adapted = run_adaptation(
        published, tmp_path, "training.max_steps=12", "optimizer.learning_rate=1e-3", max_forgetting=9.0
    )
    figures = adapted.run.figures
    assert figures["loss"] < figures["loss_before"] - 0.05
    assert figures["forgetting"] == pytest.approx(figures["general_loss"] - figures["general_loss_before"])
    assert adapted.exported.resolve() == tmp_path / "adapted-hf"
    ids = AutoTokenizer.from_pretrained(adapted.exported)("the patient improved", return_tensors="pt")
    theirs = AutoModelForMaskedLM.from_pretrained(adapted.exported).eval()(**ids).logits
    ours = mw.MaskedLanguageModel.from_pretrained(adapted.run.folder.model)(ids["input_ids"]).logits
    assert_rounded(theirs, ours, count_terms(num_layers=2, width=32, length=32))
    card = (adapted.exported / "README.md").read_text()
    assert f"{figures['loss_before']:,.4f} to {figures['loss']:,.4f}" in card
    assert f"{figures['general_loss_before']:,.4f} to {figures['general_loss']:,.4f}" in card


@pytest.mark.parametrize(("own_dropout", "expected"), [(0.1, 0.05), (0.0, 0.0), (None, 0.0)])
def test_gentle_settings_are_the_default(
    published: Path, tmp_path: Path, own_dropout: float | None, expected: float
) -> None:
    shutil.copytree(published, tmp_path / "model")
    config_file = tmp_path / "model" / "config.json"
    values = read_json(config_file)
    values["maskwright"]["masked_lm"]["mlm_head_dropout"] = own_dropout
    if own_dropout is None:
        del values["maskwright"]
    config_file.write_text(json.dumps(values))
    run_adaptation(tmp_path / "model", tmp_path, "training.max_steps=1")
    config = mw.load_config(tmp_path / "adapted" / "config.yaml")
    assert config.preset == "domain_adaptation"
    assert config.masking.ratio == 0.10
    assert config.model.mlm_head_dropout == expected
    assert config.optimizer.learning_rate == 1e-5


def test_a_run_that_forgets_too_much_ends_with_the_last_weights_within(published: Path, tmp_path: Path) -> None:
    settings = ("optimizer.learning_rate=2e-2", "training.evaluate_every_steps=2", "training.max_steps=40")
    adapted = run_adaptation(published, tmp_path, *settings, max_forgetting=0.05)
    figures = adapted.run.figures
    assert figures["stopped_for_forgetting_at"] < 40
    assert figures["forgetting"] <= 0.05
    record = read_json(tmp_path / "adapted" / "forgetting.json")
    assert record["general"][-1][1] - record["before"]["general_loss"] > 0.05
    assert figures["steps"] == figures["stopped_for_forgetting_at"]
    assert "with the last weights that were within" in (adapted.exported / "README.md").read_text()


def test_new_words_join_the_vocabulary_and_stay_one_token(published: Path, tmp_path: Path) -> None:
    adapted = run_adaptation(published, tmp_path, "training.max_steps=2", new_tokens=5, max_forgetting=9.0)
    tokenizer = mw.load_tokenizer(adapted.run.folder.model)
    old = mw.load_tokenizer(published)
    assert tokenizer.vocab_size > old.vocab_size
    assert len(old.backend.encode("phosphorylated", add_special_tokens=False).ids) >= 3
    assert len(tokenizer.backend.encode("phosphorylated", add_special_tokens=False).ids) == 1
    assert mw.MaskedLanguageModel.from_pretrained(adapted.run.folder.model).is_tied


def test_an_encoder_without_a_head_gets_one_and_is_itself_unchanged_by_that(published: Path, tmp_path: Path) -> None:
    encoder = mw.BERT.from_pretrained(published)
    encoder.save_pretrained(tmp_path / "alone")
    mw.load_tokenizer(published).save(tmp_path / "alone")
    with pytest.warns(UserWarning, match="without a prediction head"):
        adapted = run_adaptation(tmp_path / "alone", tmp_path, "training.max_steps=2", head_steps=5)
    head_run = RunFolder(tmp_path / "adapted-head")
    headed = mw.MaskedLanguageModel.from_pretrained(head_run.model)
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(tensor, headed.encoder.state_dict()[name]), name
    assert mw.load_config(head_run.config_file).training.max_steps == 5
    assert adapted.run.figures["steps"] == 2
    assert f"Adapted from {tmp_path / 'alone'}" in (adapted.exported / "README.md").read_text().replace("\\", "")


class _KilledError(Exception):
    """Stands for a process that is gone."""


class _Kill(Callback):
    def on_step_end(self, step: int) -> None:
        if step == 7:
            raise _KilledError


@pytest.mark.parametrize(
    "case", ["new words", *(pytest.param(case, marks=pytest.mark.slow) for case in ("whole model", "no head"))]
)
def test_a_broken_adaptation_goes_on_as_if_it_had_not_been(
    case: str, published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (
        "training.max_steps=12",
        "training.evaluate_every_steps=3",
        "training.checkpoint_every_steps=4",
        "optimizer.learning_rate=1e-3",
    )
    options: dict[str, Any] = {"max_forgetting": 9.0, "head_steps": 3, "new_tokens": 5 if case == "new words" else 0}
    model = published
    if case == "no head":
        model = tmp_path / "alone"
        mw.BERT.from_pretrained(published).save_pretrained(model)
        mw.load_tokenizer(published).save(model)
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    whole = run_adaptation(model, tmp_path / "whole", *settings, **options)

    from maskwright.runs import pretrain as module

    build_callbacks = module.build_callbacks

    def kill_the_adaptation(*given: Any) -> list[Callback]:
        is_head = given[0].model.freeze_encoder
        return [*([] if is_head else [_Kill()]), *build_callbacks(*given)]

    with monkeypatch.context() as patch:
        patch.setattr(module, "build_callbacks", kill_the_adaptation)
        with pytest.raises(_KilledError):
            run_adaptation(model, tmp_path / "broken", *settings, **options)
    resumed = run_adaptation(model, tmp_path / "broken", *settings, **options)
    records = [read_json(tmp_path / name / "adapted" / "forgetting.json") for name in ("whole", "broken")]
    assert records[0] == records[1]
    assert len(records[0]["general"]) >= 4
    for figure in ("loss", "general_loss", "forgetting"):
        assert resumed.run.figures[figure] == whole.run.figures[figure]


def test_parts_that_were_made_from_something_else_are_not_used(published: Path, tmp_path: Path) -> None:
    run_adaptation(published, tmp_path, "training.max_steps=1", new_tokens=5)
    shutil.rmtree(tmp_path / "adapted")
    with pytest.raises(InputError, match="was made from"):
        run_adaptation(published, tmp_path, "training.max_steps=1", new_tokens=4)

    mw.BERT.from_pretrained(published).save_pretrained(tmp_path / "alone")
    mw.load_tokenizer(published).save(tmp_path / "alone")
    run_adaptation(tmp_path / "alone", tmp_path, "training.max_steps=1", head_steps=1, overwrite=True)
    shutil.rmtree(tmp_path / "adapted")
    with pytest.raises(InputError, match=r"adapted-head is a finished run with training\.epochs=1"):
        run_adaptation(tmp_path / "alone", tmp_path, "training.max_steps=1", head_steps=2)


def test_an_adaptation_interrupted_in_its_export_is_exported_by_the_same_command(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr("maskwright.runs.adapt.export_model", interrupt)
        with pytest.raises(RunInterruptedError, match=r"adapted \(finished\) is kept") as ending:
            run_adaptation(published, tmp_path, "training.max_steps=1")
    assert ending.value.exit_code == 143
    weights = (tmp_path / "adapted" / "model" / "model.safetensors").read_bytes()
    with pytest.raises(InputError, match=r"finished run with training\.max_steps=1"):
        run_adaptation(published, tmp_path, "training.max_steps=2")
    adapted = run_adaptation(published, tmp_path, "training.max_steps=1")
    assert (adapted.exported / "config.json").is_file()
    assert adapted.run.figures == read_json(tmp_path / "adapted" / "final.json")
    assert (tmp_path / "adapted" / "model" / "model.safetensors").read_bytes() == weights, "nothing is trained again"


_UNFINISHED = ("training.max_steps=4", "training.checkpoint_every_steps=2")


@pytest.fixture(scope="module")
def unfinished(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an adaptation that has its checkpoints and no end."""
    folder = tmp_path_factory.mktemp("unfinished")
    run_adaptation(published, folder, *_UNFINISHED)
    (folder / "adapted" / "final.json").unlink()
    return folder


@pytest.mark.parametrize("text", ["{}", '{"before": {}, "general": [], "stopped_at": null}', '{"before": {"x": 1.0}}'])
def test_a_damaged_record_of_what_was_measured_is_named(published: Path, unfinished: Path, text: str) -> None:
    (unfinished / "adapted" / "forgetting.json").write_text(text)
    with pytest.raises(InputError, match=r"forgetting\.json does not say what was measured before the run; restore it"):
        run_adaptation(published, unfinished, *_UNFINISHED)


def test_finished_work_is_not_done_again_or_replaced(published: Path, tmp_path: Path) -> None:
    run_adaptation(published, tmp_path, "training.max_steps=1")
    with pytest.raises(InputError, match="holds a finished run"):
        run_adaptation(published, tmp_path, "training.max_steps=1")
    run_adaptation(published, tmp_path, "training.max_steps=1", overwrite=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("model.from=elsewhere",), "a setting says 'elsewhere' where the first word says"),
        (("training.mode=rtd",), "rtd"),
        (("forgetting.general=null",), r"a setting says None where --general .* says"),
        (("forgetting.max_increase=5",), r"a setting says 5\.0 where --max-forgetting .* says 0\.1"),
        (("run.name=other",), r"where --out .* says"),
        (("training.final_evaluation=false",), "which needs the last figures"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    published: Path, tmp_path: Path, settings: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        run_adaptation(published, tmp_path, *settings)
    assert not (tmp_path / "adapted").exists()


def test_freezing_needs_a_trained_encoder(tiny_values: dict[str, Any]) -> None:
    config = build_config(tiny_values | {"model": {"freeze_encoder": True}})
    with pytest.raises(InputError, match=r"give the trained one as model\.from"):
        pretrain(config, console=QUIET)


def test_rows_are_lowered_to_what_the_model_takes_and_that_is_said(published: Path, tmp_path: Path) -> None:
    said: list[str] = []
    texts, general = write_lines(tmp_path / "domain.txt", DOMAIN), write_lines(tmp_path / "general.txt", GENERAL)
    short = ("training.max_steps=1", "training.batch_tokens=256", "training.precision=fp32")
    for settings in (short, (*short, "data.max_length=512")):  # the default of 128, and a value of the user's
        options = AdaptOptions([texts], tmp_path / "adapted", [general], settings=settings, overwrite=True)
        adapted = adapt(str(published), options, QUIET, said.append)
        assert mw.load_config(adapted.run.folder.config_file).data.max_length == 32
    lowered = [line for line in said if "data.max_length" in line]
    assert lowered == [
        f"data.max_length is 32 instead of {length}: {published} takes no more tokens" for length in (128, 512)
    ]
