"""Fine-tuning of encoders that only transformers knows: its own heads, its own folders, and this program's runs."""

from __future__ import annotations

import json
import warnings
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from interruption import assert_resumes_exactly
from qa_lab import build_questions, write_squad
from rich.console import Console
from similarity_lab import build_pairs
from task_lab import Lab, run, write_conll, write_lines

import maskwright as mw
from maskwright.batch import to_padded
from maskwright.errors import InputError, InputWarning
from maskwright.inference.pipeline import pipeline
from maskwright.runs.export import export_model
from maskwright.runs.export_options import ExportOptions
from maskwright.runs.finetune.inputs import load_task_inputs
from maskwright.sections.training import OptimizerConfig
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.loader import TaskBatch
from maskwright.tasks.model import TaskModel
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.optim.optimizers import build_optimizers

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")

_SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 48,
    "initializer_range": 0.1,
}
_XLM = {"emb_dim": 16, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 48, "pad_index": 0, "init_std": 0.1}
_FAMILIES: dict[str, dict[str, Any]] = {
    "DebertaV2": _SMALL | {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]},
    "Longformer": _SMALL | {"attention_window": 4},
    "BigBird": _SMALL | {"block_size": 8, "num_random_blocks": 1, "bos_token_id": 1, "eos_token_id": 2},
    "Esm": _SMALL | {"position_embedding_type": "absolute", "mask_token_id": 4},
    "FNet": _SMALL,
    "XLNet": {"n_layer": 2, "d_model": 16, "n_head": 2, "d_inner": 32, "initializer_range": 0.1},
    "XLM": _XLM,
    "Funnel": {"block_sizes": [1, 1], "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 32},
}
_TASKS = {
    "classification": {"label_column": "label"},
    "multi-label": {"label_column": "labels"},
    "pairs": {"label_column": "label", "second_column": "other"},
    "regression": {"label_column": "score"},
}
_AUTO = {
    "ner": transformers.AutoModelForTokenClassification,
    "qa": transformers.AutoModelForQuestionAnswering,
    "similarity": transformers.AutoModel,
}


@pytest.fixture
def write_encoder(tokenizer: Tokenizer, tmp_path: Path) -> Any:
    """Writes an encoder of a family as `AutoModel` saves it, with a tokenizer, and gives its folder."""

    def write(family: str, **settings: Any) -> Path:
        torch.manual_seed(0)
        ids = {"pad_token_id": tokenizer.pad_token_id, "vocab_size": tokenizer.vocab_size}
        config = getattr(transformers, f"{family}Config")(**_FAMILIES[family] | ids | settings)
        folder = tmp_path / family
        getattr(transformers, f"{family}Model")(config).save_pretrained(folder)
        tokenizer.save(folder)
        return folder

    return write


def configure(lab: Lab, task: str, model: Path, **values: Any) -> TaskConfig:
    """A short run of any task."""
    files: dict[str, Any] = {"model": str(model), **_TASKS.get(task, {"text_column": None})}
    if task == "ner":
        files |= {"train": str(write_conll(lab.folder / "a.conll", 24, 0))}
        files |= {"validation": str(write_conll(lab.folder / "b.conll", 8, 1))}
    if task == "qa":
        files |= {"train": str(write_squad(lab.folder / "a.json", build_questions(24, 0)))}
        files |= {"validation": str(write_squad(lab.folder / "b.json", build_questions(8, 1)))}
    if task == "similarity":
        write_lines(lab.folder / "train.jsonl", build_pairs(24, 0))
        write_lines(lab.folder / "validation.jsonl", build_pairs(8, 1))
        files["loss"] = "cosine"
    return lab.config(task, **files | {"epochs": 1, **values})


def load_theirs(folder: Path, task: str) -> Any:
    """With every weight from the files and none left over."""
    auto = _AUTO.get(task, transformers.AutoModelForSequenceClassification)
    model, report = auto.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return model.eval()


def ask_theirs(model: Any, **inputs: torch.Tensor) -> torch.Tensor:
    output = model(**inputs)
    if "start_logits" in output:
        return torch.stack([output.start_logits, output.end_logits], dim=-1)
    answer: torch.Tensor = output.logits if "logits" in output else output.last_hidden_state
    return answer


@pytest.mark.parametrize(
    ("family", "task"),
    [
        ("DebertaV2", "classification"),
        pytest.param("DebertaV2", "similarity", marks=pytest.mark.slow),
        pytest.param("Longformer", "multi-label", marks=pytest.mark.slow),
        ("Longformer", "qa"),
        pytest.param("BigBird", "ner", marks=pytest.mark.slow),
        pytest.param("BigBird", "qa", marks=pytest.mark.slow),
        ("XLNet", "pairs"),
        pytest.param("XLNet", "qa", marks=pytest.mark.slow),
        pytest.param("XLM", "regression", marks=pytest.mark.slow),
    ],
)
def test_a_run_trains_the_family_s_own_head_and_leaves_a_folder_that_transformers_reads(
    lab: Lab, tmp_path: Path, write_encoder: Any, family: str, task: str
) -> None:
    config = configure(lab, task, write_encoder(family))
    (figures,) = run(config, tmp_path / "run").figures
    assert figures["steps"] > 0
    folder = tmp_path / "run" / "model"
    theirs, ours = load_theirs(folder, task), TaskModel.from_pretrained(folder)
    if task not in _AUTO:
        assert theirs.config.id2label == dict(enumerate(ours.task.describe()["id2label"].values()))
    inputs = load_task_inputs(config, lambda text: None)
    batch = next(iter(inputs.validation))
    assert isinstance(batch, TaskBatch)
    padded, index = to_padded(batch)
    if getattr(theirs.config, "type_vocab_size", 0) < 2:
        padded.pop("token_type_ids", None)
    with torch.no_grad():
        answers = ours.predict(batch)
        for number, length in enumerate(padded["attention_mask"].sum(1).tolist()):
            row = {name: tensor[number : number + 1, :length] for name, tensor in padded.items()}
            if family == "Longformer" and task == "qa":  # theirs insists on three separators, and finds the same
                is_separator = row["input_ids"] == theirs.config.sep_token_id
                row["global_attention_mask"] = (is_separator.long().cumsum(1) == 0).long()
            expected = ask_theirs(theirs, **row)
            is_own = index.view(batch.input_ids.shape) // padded["input_ids"].shape[1] == number
            is_own &= ~batch.is_padding
            if task in ("ner", "qa"):
                found = answers[is_own]
            else:
                found = answers[is_own.any(1).long().argmax(), batch.document_ids[is_own][0] - 1]
            wanted = expected[0].mean(0) if task == "similarity" else expected[0]
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "task"), [("DebertaV2", "classification"), pytest.param("Esm", "qa", marks=pytest.mark.slow)]
)
def test_an_interrupted_run_ends_as_an_uninterrupted_one(
    lab: Lab, tmp_path: Path, write_encoder: Any, monkeypatch: pytest.MonkeyPatch, family: str, task: str
) -> None:
    """ESM has no class for questions, so its head is ours; both have dropout."""
    config = configure(lab, task, write_encoder(family), epochs=2, layer_decay=0.9, freeze_layers=0)
    assert_resumes_exactly(partial(run, config), tmp_path, monkeypatch, dies_at=5)


def test_a_foreign_encoder_learns_and_answers_as_the_pipelines_of_transformers_do(
    lab: Lab, tmp_path: Path, write_encoder: Any
) -> None:
    config = configure(lab, "classification", write_encoder("DebertaV2"), epochs=8)
    (figures,) = run(config, tmp_path / "run").figures
    assert figures["accuracy"] > 0.95
    texts = ["the cat likes the green house", "every student sees a road"]
    theirs = transformers.pipeline("text-classification", str(tmp_path / "run" / "model"))(texts)
    ours = pipeline("classify", tmp_path / "run")(texts)
    assert [one["label"] for one in ours] == [one["label"] for one in theirs] == ["good", "bad"]
    assert [one["score"] for one in ours] == pytest.approx([one["score"] for one in theirs], abs=1e-5)


def test_left_padding_of_xlnet_is_written_for_others(
    lab: Lab, tmp_path: Path, write_encoder: Any, corpus_file: Path
) -> None:
    """Its last token speaks for the text, so padding on the right would be the answer."""
    run(configure(lab, "classification", write_encoder("XLNet")), tmp_path / "run")
    texts = ["the cat likes the green house", "a dog sees it", "my old teacher carries a road"]
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    encoded = their_tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = load_theirs(tmp_path / "run" / "model", "classification")(**encoded).logits.softmax(-1)
    ours = pipeline("classify", tmp_path / "run")(texts)
    assert [one["score"] for one in ours] == pytest.approx(theirs.amax(-1).tolist(), abs=1e-5)
    options = ExportOptions(out=tmp_path / "out", texts=(str(corpus_file),))
    assert export_model(str(tmp_path / "run"), options, lambda line: None).is_dir()


def test_entities_answers_and_vectors_of_foreign_encoders_are_predicted(
    lab: Lab, tmp_path: Path, write_encoder: Any
) -> None:
    folder = write_encoder("BigBird")
    for task in ("ner", "qa", "similarity"):
        run(configure(lab, task, folder), tmp_path / task)
    theirs = transformers.pipeline("token-classification", str(tmp_path / "ner" / "model"), aggregation_strategy="none")
    text = "the cat likes the green house"
    found = pipeline("ner", tmp_path / "ner", aggregation="none")(text)
    assert [one["score"] for one in found] == pytest.approx([one["score"] for one in theirs(text)], abs=1e-5)
    context = "the house the cat sees the road"
    reply = pipeline("qa", tmp_path / "qa")({"question": "who likes it", "context": context})
    assert context[reply["start"] : reply["end"]] == reply["answer"]
    vectors = pipeline("embed", tmp_path / "similarity")([text, context])
    sentences = pytest.importorskip("sentence_transformers").SentenceTransformer(str(tmp_path / "similarity" / "model"))
    np.testing.assert_allclose(np.asarray(vectors), sentences.encode([text, context]), rtol=0, atol=1e-5)


def test_a_family_without_a_class_gets_a_head_of_ours_and_that_is_said(
    lab: Lab, tmp_path: Path, write_encoder: Any, corpus_file: Path
) -> None:
    config = configure(lab, "qa", write_encoder("Esm"))
    said: list[str] = []
    load_task_inputs(config, said.append)
    assert any("transformers has no EsmForQuestionAnswering: the head is Maskwright's own" in line for line in said)
    run(config, tmp_path / "run")
    reply = pipeline("qa", tmp_path / "run")({"question": "who likes it", "context": "the cat sees the road"})
    assert reply["answer"]
    theirs, report = transformers.AutoModel.from_pretrained(tmp_path / "run" / "model", output_loading_info=True)
    assert set(report["unexpected_keys"]) == {"qa_outputs.weight", "qa_outputs.bias"}
    ours = TaskModel.from_pretrained(tmp_path / "run").encoder.base_model
    assert all(torch.equal(one, theirs.state_dict()[name]) for name, one in ours.state_dict().items())
    options = ExportOptions(out=tmp_path / "exported", texts=(str(corpus_file),))
    with pytest.raises(InputError, match="transformers has no EsmForQuestionAnswering"):
        export_model(str(tmp_path / "run"), options, said.append)


def test_every_seed_begins_with_the_weights_of_the_folder(lab: Lab, write_encoder: Any) -> None:
    inputs = load_task_inputs(configure(lab, "classification", write_encoder("DebertaV2")), lambda text: None)
    first = inputs.build_model(seed=0)
    begun = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    with torch.no_grad():
        for parameter in first.parameters():
            parameter += 1.0
    again, other = inputs.build_model(seed=0).state_dict(), inputs.build_model(seed=1).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in begun.items())
    changed = {name for name, tensor in begun.items() if not torch.equal(tensor, other[name])}
    assert changed == {f"encoder.model.{name}.weight" for name in ("pooler.dense", "classifier")}


def test_the_last_layer_of_a_fine_tuned_model_is_replaced_and_the_rest_of_its_head_is_kept(
    lab: Lab, tmp_path: Path, write_encoder: Any
) -> None:
    run(configure(lab, "classification", write_encoder("Longformer")), tmp_path / "first")
    before = TaskModel.from_pretrained(tmp_path / "first").state_dict()
    config = configure(lab, "regression", tmp_path / "first")
    inputs = load_task_inputs(config, lambda text: None)
    model = inputs.build_model(seed=5)
    after, head = model.state_dict(), "encoder.model.classifier"
    assert torch.equal(after[f"{head}.dense.weight"], before[f"{head}.dense.weight"])
    assert after[f"{head}.out_proj.weight"].shape == (1, 16)
    assert model.task_head.output.bias.item() == pytest.approx(float(inputs.train.targets.mean()))


@pytest.mark.parametrize("family", ["DebertaV2", "XLM", "BigBird", "XLNet"])
def test_layers_are_found_for_rates_and_freezing(lab: Lab, write_encoder: Any, family: str) -> None:
    config = configure(lab, "classification", write_encoder(family), layer_decay=0.5, freeze_layers=1)
    model = load_task_inputs(config, lambda text: None).build_model(seed=0)
    names = {param: name for name, param in model.encoder.model.named_parameters()}
    groups = build_optimizers(model, OptimizerConfig(learning_rate=1.0)).groups
    rates = {names[param]: group["lr"] for group in groups for param in group["params"]}
    base = f"{model.encoder.model.base_model_prefix}."
    trained = {name.removeprefix(base): rate for name, rate in rates.items() if name.startswith(base)}
    assert trained
    assert set(trained.values()) == {0.5}
    assert all(".1." in name or "pooler" in name for name in trained), "the second of two layers, and what is behind"
    assert {rate for name, rate in rates.items() if not name.startswith(base)} == {1.0}


def test_layers_that_are_in_no_list_are_said_to_be_so(lab: Lab, write_encoder: Any) -> None:
    folder = write_encoder("Funnel", block_sizes=[1, 2])
    config = configure(lab, "classification", folder, freeze_layers=1)
    with pytest.raises(InputError, match="FunnelBaseModel share their weights or are not in one list; freezing some"):
        load_task_inputs(config, lambda text: None).build_model(seed=0)


def test_batches_of_foreign_encoders_are_of_similar_length(lab: Lab, write_encoder: Any) -> None:
    generator = np.random.default_rng(0)
    words = ["the", "cat", "sees", "a", "road"]
    records = [
        {"text": " ".join(generator.choice(words, generator.integers(1, 40))), "label": "ab"[number % 2]}
        for number in range(70)
    ]
    for name in ("train", "validation"):
        write_lines(lab.folder / f"{name}.jsonl", records)
    loader = load_task_inputs(configure(lab, "classification", write_encoder("DebertaV2")), lambda text: None).train

    def list_batches(epoch: int, start: int = 0) -> list[list[int]]:
        return [sorted(set(batch.sample_ids[~batch.is_padding].tolist())) for batch in loader.epoch(epoch, start)]

    first = list_batches(0)
    assert sorted(np.concatenate(first)) == list(range(70))
    assert [len(batch) for batch in first] == [8] * 8 + [6]
    assert first != list_batches(1)
    assert list_batches(0, start=3) == first[3:]
    sizes = loader.features.sizes
    padded = sum(len(batch) * max(sizes[batch]) for batch in first)
    assert padded < 1.15 * sizes.sum(), "batches in any order would be more than half padding"
    assert [max(sizes[batch]) for batch in first] != sorted((max(sizes[batch]) for batch in first), reverse=True)


def test_a_model_whose_answers_padding_changes_is_warned_of(lab: Lab, write_encoder: Any) -> None:
    config = configure(lab, "classification", write_encoder("FNet"))
    with pytest.warns(InputWarning, match="padding changes the answers of FNetModel"):
        load_task_inputs(config, lambda text: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error", InputWarning)
        load_task_inputs(configure(lab, "classification", write_encoder("DebertaV2")), lambda text: None)


@pytest.mark.parametrize("target", ["hf", pytest.param("onnx", marks=pytest.mark.slow)])
def test_a_fine_tuned_foreign_model_is_exported(
    lab: Lab, tmp_path: Path, write_encoder: Any, corpus_file: Path, target: str
) -> None:
    if target == "onnx":
        pytest.importorskip("onnxruntime")
    run(configure(lab, "classification", write_encoder("DebertaV2", num_hidden_layers=1)), tmp_path / "run")
    said: list[str] = []
    options = ExportOptions(target, out=tmp_path / "out", texts=(str(corpus_file),))
    folder = export_model(str(tmp_path / "run"), options, said.append)
    if target == "hf":
        assert "A DebertaV2Model encoder of" in (folder / "README.md").read_text(encoding="utf-8")
        assert load_theirs(folder, "classification")
    else:
        assert (folder / "model.onnx").is_file()
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"] == "deberta-v2"


def test_a_sentencepiece_model_alone_is_answered_with_the_command_that_converts_it(
    lab: Lab, write_encoder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_encoder("DebertaV2")
    for file in folder.glob("*token*"):
        file.unlink()
    (folder / "spm.model").write_bytes(b"\0")
    with pytest.raises(
        InputError, match=r"spm.model is a SentencePiece model.*pip install .* && python -c '.*'"
    ) as error:
        load_task_inputs(configure(lab, "classification", folder), lambda text: None)
    assert "\n" not in str(error.value)
    asked: dict[str, Any] = {}

    def take_from_hub(name: str, allow_patterns: list[str]) -> str:
        asked["patterns"] = allow_patterns
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", take_from_hub)
    with pytest.raises(InputError, match=r"spm\.model is a SentencePiece model"):
        load_task_inputs(configure(lab, "classification", Path("microsoft/deberta-v3-tiny")), lambda text: None)
    assert any(fnmatch("spm.model", pattern) for pattern in asked["patterns"])


def test_a_head_of_create_nlp_head_on_an_encoder_of_theirs_comes_back_as_it_was(
    write_encoder: Any, tmp_path: Path
) -> None:
    folder = write_encoder("DebertaV2")
    examples = [("the cat", "good"), ("a dog", "bad")] * 4
    task = mw.NLPTaskConfig("mood", mw.NLPTaskType.SENTIMENT_ANALYSIS, labels=["bad", "good"])
    finished = mw.finetune(
        "classification",
        tmp_path / "run",
        model=folder,
        head=mw.create_nlp_head(task, input_dim=16),
        train=examples,
        validation=examples,
        epochs=1,
        console=Console(quiet=True),
    )
    ids = torch.arange(5, 13)[None]
    trained = finished.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    finished.model.save_pretrained(tmp_path / "again", finished.tokenizer)
    again = TaskModel.from_pretrained(tmp_path / "again")
    assert type(again.task_head).__name__ == "NLPSequenceHead"
    assert again(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.equal(trained)
    (answer,) = mw.predict("classify", tmp_path / "run", ["the cat"])
    assert answer["label"] in ("bad", "good")
