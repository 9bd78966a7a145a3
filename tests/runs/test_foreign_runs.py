"""Runs that continue a model of transformers: trained, broken off, resumed, and refused what it cannot learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from rich.console import Console

from maskwright.config import build_config
from maskwright.errors import InputError
from maskwright.runs.callbacks import PeriodicCheckpoints
from maskwright.runs.export import export_model
from maskwright.runs.export_options import ExportOptions
from maskwright.runs.folder import RunFolder
from maskwright.runs.model import fit_row_length, load_model
from maskwright.runs.pretrain import pretrain
from maskwright.text.tokenizer.tokenizer import Tokenizer

_SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
}


class KilledError(BaseException):
    """As final as a kill: no handler of ours catches it."""


@pytest.fixture
def settings(tiny_values: dict[str, Any], tmp_path: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """A short run from a DeBERTa with dropout, with its tokenizer in `tmp_path / "deberta"`."""
    torch.manual_seed(0)
    config = transformers.DebertaV2Config(
        vocab_size=tokenizer.vocab_size,
        relative_attention=True,
        position_buckets=8,
        pos_att_type=["p2c", "c2p"],
        **_SMALL,
    )
    transformers.DebertaV2ForMaskedLM(config).save_pretrained(tmp_path / "deberta")
    tokenizer.save(tmp_path / "deberta")
    tiny_values["model"] = {"from": str(tmp_path / "deberta")}
    tiny_values["training"] |= {"precision": "fp32", "batch_tokens": 96, "checkpoint_every_steps": 3}
    del tiny_values["tokenizer"]
    return tiny_values


def run(values: dict[str, Any], name: str, **sections: dict[str, Any]) -> RunFolder:
    for section, changes in ({"run": {"name": name}} | sections).items():
        values = values | {section: values.get(section, {}) | changes}
    return pretrain(build_config(values), console=Console(quiet=True)).folder


def test_a_broken_run_of_a_foreign_model_ends_as_the_unbroken_one(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    unbroken = run(settings, "unbroken")
    losses = [line["loss"] for line in unbroken.read_metrics() if "loss" in line]
    assert losses[-1] < losses[0]
    save = PeriodicCheckpoints.on_step_end

    def die_at_step_seven(self: PeriodicCheckpoints, *arguments: Any) -> None:
        save(self, *arguments)
        if self.trainer.state.step == 7:
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(PeriodicCheckpoints, "on_step_end", die_at_step_seven)
        with pytest.raises(KilledError):
            run(settings, "broken")
    resumed = run(settings, "broken")
    weights = [(one.model / "model.safetensors").read_bytes() for one in (unbroken, resumed)]
    assert weights[0] == weights[1]
    finals = [json.loads(one.final_file.read_text()) for one in (unbroken, resumed)]
    assert finals[0]["loss"] == finals[1]["loss"]

    model, tokenizer = load_model(str(unbroken.path))
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(unbroken.model).eval()
    ids = torch.tensor([tokenizer.encode("the cat sees the green house.")])
    torch.testing.assert_close(model(ids).logits, theirs(input_ids=ids).logits, rtol=0, atol=0)
    assert transformers.AutoTokenizer.from_pretrained(unbroken.model).mask_token == tokenizer.mask_token


def test_rows_are_lowered_to_what_a_foreign_model_takes(settings: dict[str, Any]) -> None:
    del settings["data"]["max_length"]
    assert fit_row_length(build_config(settings), lambda text: None).data.max_length == 40


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"training": {"mode": "clm"}}, "DebertaV2Model always sees both sides"),
        ({"training": {"mode": "hybrid"}}, "DebertaV2Model always sees both sides"),
        ({"training": {"mode": "rtd"}}, "a model of transformers, which learns by masking alone"),
        ({"pairs": {"task": "nsp"}}, "a model of transformers, which learns by masking alone"),
        ({"data": {"max_length": 48}}, "data.max_length is 48, .* takes 40 tokens"),
        ({"model": {"hidden_size": 32}}, "brings its own shape; remove model.hidden_size"),
    ],
)
def test_what_a_foreign_model_cannot_do_is_refused_before_anything_is_written(
    settings: dict[str, Any], sections: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        run(settings, "refused", **sections)
    assert not (tmp_path / "runs" / "refused").exists()


def test_a_folder_with_a_sentencepiece_model_alone_is_refused_with_the_way_to_convert_it(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    for file in (tmp_path / "deberta").glob("*token*"):
        file.unlink()
    (tmp_path / "deberta" / "spm.model").write_bytes(b"\0")
    with pytest.raises(InputError, match=r"spm.model is a SentencePiece model.*AutoTokenizer.*save_pretrained"):
        run(settings, "refused")


def test_a_run_of_a_foreign_model_is_exported_with_a_card(settings: dict[str, Any]) -> None:
    finished = run(settings, "exported", training={"max_steps": 2})
    said: list[str] = []
    texts = (settings["data"]["train"],)
    folder = export_model(str(finished.path), ExportOptions(texts=texts), said.append)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    assert type(theirs) is transformers.DebertaV2ForMaskedLM
    assert any("logits of 8 texts" in line for line in said)
    assert "A DebertaV2Model encoder of" in (folder / "README.md").read_text()
