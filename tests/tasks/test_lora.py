"""LoRA: adapters and the head alone are trained, and what is left is a plain model, and a folder for peft."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from interruption import assert_resumes_exactly
from kinds_lab import load_kind
from task_lab import Lab, build_records, run, write_conll, write_lines

import maskwright as mw
from maskwright.errors import InputError
from maskwright.models.encoder import FAMILIES
from maskwright.models.files.safetensors_file import read_tensors
from maskwright.runs.finetune import finetune
from maskwright.runs.finetune.inputs import load_task_inputs
from maskwright.tasks.lora import ADAPTERS_FILE, is_factor
from maskwright.tasks.model import TaskModel
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.checkpoints import list_checkpoints
from tolerances import assert_rounded, count_terms, rounding

NUM_TERMS = count_terms(num_layers=2, width=32, length=32)
TEXTS = ["the cat likes the green house", "every student sees a road"]
WriteEncoder = Callable[[str], Path]


@pytest.fixture
def peft() -> Any:
    return pytest.importorskip("peft", reason="peft is not installed (pip install 'maskwright[lora]')")


@pytest.fixture
def write_encoder(tokenizer: Tokenizer, tmp_path: Path) -> WriteEncoder:
    """Writes a tiny encoder of a native family, or DeBERTa of transformers, and gives its folder."""

    def write(family: str) -> Path:
        folder = tmp_path / family
        torch.manual_seed(0)
        shape: dict[str, Any] = {
            "vocab_size": tokenizer.vocab_size,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "max_position_embeddings": 40,
            "initializer_range": 0.1,
            "pad_token_id": tokenizer.pad_token_id,
        }
        if family == "deberta-v2":
            own = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}
            transformers.DebertaV2Model(transformers.DebertaV2Config(**shape, **own)).save_pretrained(folder)
        else:
            known = {field.name for field in fields(FAMILIES[family].config_class)}
            given = {name: value for name, value in shape.items() if name in known}
            FAMILIES[family].from_variant("tiny", **given).save_pretrained(folder)
        tokenizer.save(folder)
        return folder

    return write


def read_scores(folder: Path, pages: list[str]) -> torch.Tensor:
    """Of transformers' class, from the folder alone."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(**transformers.AutoTokenizer.from_pretrained(folder)(pages, padding=True, return_tensors="pt"))[0]


@pytest.mark.usefixtures("peft")
@pytest.mark.parametrize("kind", ["classification", "regression", "ner", "qa", "contrastive"])
def test_new_adapters_change_nothing_and_merged_ones_compute_what_they_did(lab: Lab, kind: str) -> None:
    inputs = load_kind(lab, kind, lora=4)
    model = inputs.build_model(0).eval()
    plain = load_kind(lab, kind).build_model(0).eval()
    batch = next(iter(inputs.validation))
    with torch.no_grad():
        assert_rounded(model.predict(batch), plain.predict(batch), NUM_TERMS)
        for name, param in model.named_parameters():
            if is_factor(name):
                param.normal_(std=0.1)
        changed = model.predict(batch)
        assert (changed - plain.predict(batch)).abs().max() > 100 * rounding(NUM_TERMS, float(changed.abs().max()))
        model.merge_adapters()
        assert_rounded(model.predict(batch), changed, NUM_TERMS)
    assert model.state_dict().keys() == plain.state_dict().keys()
    assert [type(part) for part in model.modules()] == [type(part) for part in plain.modules()]


@pytest.mark.usefixtures("peft")
def test_nothing_but_the_factors_and_the_head_is_trained(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetune, "SHORT_TRAINING_S", 0.0)
    config = lab.config(lora=4, epochs=8, learning_rate=2e-2)
    (figures,) = run(config, tmp_path / "run", "training.keep_every_steps=4").figures
    assert figures["accuracy"] > 0.9
    before = load_task_inputs(config, lambda text: None).encoder.state_dict()
    after = TaskModel.from_pretrained(tmp_path / "run").encoder.state_dict()
    assert before.keys() == after.keys()
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    matrices = ("attention.qkv.weight", "attention.output.weight", "up.weight", "down.weight")
    assert changed == {f"layers.{layer}.{matrix}" for layer in range(2) for matrix in matrices}
    for name in changed:
        assert torch.linalg.matrix_rank(after[name].double() - before[name].double(), rtol=1e-4) <= 4

    (checkpoint, *_) = list_checkpoints(tmp_path / "run" / "checkpoints")
    states = read_tensors(checkpoint / "optimizer.safetensors")
    trained = {name.partition("|")[0] for name in states}
    assert {name for name in trained if not is_factor(name)} == {
        f"task_head.transform.{name}" for name in ("dense.weight", "dense.bias", "output.weight", "output.bias")
    }
    assert sum(is_factor(name) for name in trained) == 2 * len(changed)
    everything = run(lab.config(epochs=1), tmp_path / "whole", "training.keep_every_steps=4").runs[0]
    (whole, *_) = list_checkpoints(everything.checkpoints)
    assert sum(map(torch.numel, states.values())) < 0.6 * sum(
        map(torch.numel, read_tensors(whole / "optimizer.safetensors").values())
    )


@pytest.mark.usefixtures("peft")
@pytest.mark.parametrize("family", ["bert", pytest.param("deberta-v2", marks=pytest.mark.slow)])
def test_an_interrupted_run_ends_as_an_uninterrupted_one(
    lab: Lab, tmp_path: Path, write_encoder: WriteEncoder, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    config = lab.config(model=str(write_encoder(family)), lora=2, patience=2, layer_decay=0.9, freeze_layers=0)
    assert_resumes_exactly(partial(run, config), tmp_path, monkeypatch, dies_at=13)


@pytest.mark.usefixtures("peft")
def test_a_checkpoint_is_read_as_a_plain_model_and_only_resumed_beside_its_own_encoder(
    lab: Lab, tmp_path: Path, write_encoder: WriteEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetune, "SHORT_TRAINING_S", 0.0)
    folder = write_encoder("bert")
    config = lab.config(model=str(folder), lora=2, epochs=2)
    out = run(config, tmp_path / "run", "training.keep_every_steps=16").runs[0]
    model = list_checkpoints(out.checkpoints)[0] / "model"
    assert (model / ADAPTERS_FILE).is_file()
    assert not (out.model / ADAPTERS_FILE).exists()
    pipe = mw.pipeline("classify", model)
    assert [one["label"] for one in pipe(TEXTS)] == [one["label"] for one in mw.pipeline("classify", out.path)(TEXTS)]
    same = load_task_inputs(config, lambda text: None).build_model(1)
    same.load_weights(model)
    assert_rounded(
        dict(same.collect_state()) | {"one": torch.ones(1)},
        {**TaskModel.from_pretrained(model).state_dict(), "one": torch.ones(1)}
        | {name: tensor for name, tensor in same.state_dict().items() if is_factor(name)},
        num_terms=2,
    )
    encoder = mw.BERT.from_pretrained(folder)
    with torch.no_grad():
        encoder.layers[0].up.weight[0, 0] += 0.01
    encoder.save_pretrained(folder)
    other = load_task_inputs(config, lambda text: None).build_model(0)
    with pytest.raises(InputError, match=r"trained with LoRA beside another encoder.*layers\.0\.up\.weight"):
        other.load_weights(model)


@pytest.mark.parametrize(
    "family",
    [
        *("bert", "modernbert", "deberta-v2"),
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("albert", "distilbert", "electra", "mpnet", "roberta")
        ),
    ],
)
def test_peft_puts_the_adapter_on_the_encoder_and_computes_what_the_model_does(
    peft: Any, lab: Lab, tmp_path: Path, write_encoder: WriteEncoder, family: str
) -> None:
    folder = write_encoder(family)
    run(lab.config(model=str(folder), lora=4), tmp_path / "run")
    base = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "run" / "adapter").eval()
    encoded = transformers.AutoTokenizer.from_pretrained(tmp_path / "run" / "model")(
        TEXTS, padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        found = adapted(**encoded).logits
    expected = read_scores(tmp_path / "run" / "model", TEXTS)
    assert_rounded(found, expected, NUM_TERMS)
    pipe = mw.pipeline("classify", tmp_path / "run", precision="fp32")
    assert [one["score"] for one in pipe(TEXTS)] == pytest.approx(
        expected.softmax(-1).amax(-1).tolist(), abs=rounding(NUM_TERMS)
    )


@pytest.mark.parametrize(
    ("task", "auto"),
    [
        pytest.param("ner", transformers.AutoModelForTokenClassification, marks=pytest.mark.slow),
        ("qa", transformers.AutoModelForQuestionAnswering),
        ("similarity", transformers.AutoModel),
    ],
)
def test_the_adapters_of_other_tasks_are_read_by_peft_too(
    peft: Any, lab: Lab, tmp_path: Path, task: str, auto: Any
) -> None:
    inputs = load_kind(lab, "contrastive" if task == "similarity" else task, lora=2)
    run(inputs.config, tmp_path / "run")
    theirs = auto.from_pretrained(tmp_path / "run" / "model").eval()
    labels = {} if task == "similarity" else {"num_labels": theirs.config.num_labels}
    adapted = peft.PeftModel.from_pretrained(
        auto.from_pretrained(lab.model, **labels), tmp_path / "run" / "adapter"
    ).eval()
    ids = torch.arange(5, 25).view(2, 10)
    with torch.no_grad():
        found, expected = adapted(input_ids=ids)[0], theirs(input_ids=ids)[0]
    assert_rounded(found, expected, NUM_TERMS)
    kind = json.loads((tmp_path / "run" / "adapter" / "adapter_config.json").read_text(encoding="utf-8"))["task_type"]
    assert kind == {"ner": "TOKEN_CLS", "qa": "QUESTION_ANS", "similarity": "FEATURE_EXTRACTION"}[task]


@pytest.mark.usefixtures("peft")
def test_a_family_that_peft_cannot_name_is_trained_and_leaves_no_adapter_folder(
    lab: Lab, tmp_path: Path, write_encoder: WriteEncoder
) -> None:
    run(lab.config(model=str(write_encoder("neobert")), lora=2), tmp_path / "run")
    assert not (tmp_path / "run" / "adapter").exists()
    assert len(mw.pipeline("classify", tmp_path / "run")(TEXTS)) == 2


@pytest.mark.usefixtures("peft")
def test_weights_that_are_cast_together_give_gradients_to_the_factors_alone(lab: Lab) -> None:
    """As on a GPU, where one kernel casts the weights of a layer."""
    inputs = load_kind(lab, "classification", lora=2, dropout=0.0)
    gradients = []
    for casts_together in (False, True):
        model = inputs.build_model(0).train()
        model.encoder.casts_together = casts_together
        torch.manual_seed(0)
        with torch.no_grad():
            for name, param in model.named_parameters():
                if is_factor(name):
                    param.normal_(std=0.1)
        with torch.autocast("cpu", torch.bfloat16):
            model.loss_sums(model.ask(next(iter(inputs.train)), 0, 0)).loss_sum.backward()
        gradients.append({name: param.grad for name, param in model.named_parameters() if param.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    assert all(is_factor(name) or name.startswith("task_head.") for name in gradients[1])
    largest = max(float(one.abs().max()) for one in gradients[0].values())
    assert_rounded(gradients[1], gradients[0], NUM_TERMS, largest, torch.bfloat16)


@pytest.mark.usefixtures("peft")
def test_the_learning_rate_is_ten_times_that_of_all_weights_and_named_ranks_are_taken(lab: Lab, tmp_path: Path) -> None:
    train, settings = write_lines(tmp_path / "few.jsonl", build_records(16, 0)), {"training.device": "cpu"}
    rates = []
    for lora in (None, True, 3):
        finished = mw.finetune(
            "classification",
            tmp_path / f"run-{lora}",
            model=lab.model,
            train=train,
            validation=train,
            epochs=1,
            lora=lora,
            settings=settings,
        )
        text = (finished.folder / "config.yaml").read_text(encoding="utf-8")
        rates.append(float(text.partition("learning_rate:")[2].split()[0]))
        if lora:
            stored = json.loads((finished.folder / "adapter" / "adapter_config.json").read_text(encoding="utf-8"))
            assert stored["r"] == (8 if lora is True else lora)
    assert rates[1] == rates[2] == pytest.approx(10 * rates[0])


def test_wrong_ranks_and_a_missing_library_are_said_before_anything_is_read(
    lab: Lab, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    conll = write_conll(tmp_path / "train.conll", 8, 0)
    words = ("finetune", "ner", "--model", lab.model, "--train", conll, "--out", tmp_path / "out")
    command(*words, "--lora", 0).assert_refused("lora", "1")
    command(*words, "--lora", "half").assert_refused("--lora", "integer")
    monkeypatch.setattr("maskwright.tasks.lora.find_spec", lambda name: None)
    command(*words, "--lora").assert_refused("pip install 'maskwright[lora]'")
    command(*words, "--lora", "training.device=cpu").assert_refused("pip install 'maskwright[lora]'")
    assert not (tmp_path / "out").exists()
