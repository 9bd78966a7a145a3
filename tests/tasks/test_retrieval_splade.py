"""Sparse retrievers: weights of documents and their gradients, the loss, whole runs, and SparseEncoder beside them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from interruption import assert_resumes_exactly
from similarity_lab import SUBJECTS, VERBS
from task_lab import Lab, run, write_lines
from torch import Tensor

import maskwright as mw
from maskwright.errors import InputError
from maskwright.models.any_encoder import encode
from maskwright.runs.finetune.inputs import TaskInputs, load_task_inputs
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.loader import AskedBatch
from maskwright.tasks.model import TaskModel
from maskwright.tasks.retrieval import splade
from maskwright.tasks.retrieval.splade import SpladeHead, SpladeRetrieval
from tolerances import assert_rounded, count_terms

NUM_TERMS = count_terms(num_layers=2, width=32, length=64)
SPREAD = splade._spread_few, splade._spread_all
TEXTS = ["the cat sees a long road", "one red bird"]


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maskwright.runs.finetune.finetune.write_task_report", lambda *given, **named: [])


def build_records(subjects: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {
            "query": f"{subject} {verb}",
            "positive": f"{subject} {verb} a long road",
            "negatives": [f"{subject} the green house"],
            "scores": [3.0, len(subject) / 10],
        }
        for subject in subjects
        for verb in VERBS
    ]


@pytest.fixture
def splade_lab(lab: Lab, trained_run: Path) -> Lab:
    lab = Lab(lab.folder, trained_run)  # with a head for masked tokens
    write_lines(lab.folder / "train.jsonl", build_records(SUBJECTS[:4]))
    write_lines(lab.folder / "validation.jsonl", build_records(SUBJECTS[4:]))
    return lab


def make_config(lab: Lab, **values: Any) -> TaskConfig:
    return lab.config(**{"task": "retrieval", "kind": "splade", "text_column": None, **values})


def load(lab: Lab, **values: Any) -> TaskInputs:
    return load_task_inputs(make_config(lab, **values), lambda text: None)


def weigh_padded(inputs: TaskInputs, model: TaskModel, texts: list[str]) -> Tensor:
    """(texts, V) by the plain formula, one text at a time."""
    head = model.task_head
    assert isinstance(head, SpladeHead)
    rows = []
    for text in texts:
        ids = torch.tensor([inputs.tokenizer.backend.encode(text).ids])
        hidden = model.encoder(ids).last_hidden_state
        logits = head.mlm_output(head.mlm_norm(head.mlm_activation(head.mlm_dense(hidden))))
        rows.append(torch.log1p(logits.relu()).amax(1)[0])
    return torch.stack(rows)


def test_weights_and_their_gradients_are_those_of_the_plain_formula(
    splade_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splade, "_CPU_TOKENS", 20)  # documents of a batch in several parts
    inputs = load(splade_lab)
    model = inputs.build_model(seed=0).double().eval()
    batch = inputs.train.build_batch(np.arange(6))
    found = model.task_head(encode(model.encoder, batch), batch, batch.known_targets.shape[1])
    texts = [text for one in inputs.train.features.examples[:6] for text in one.texts]
    numbers = batch.sample_ids[(batch.positions == 0) & ~batch.is_padding].tolist()
    order = [3 * number + place for number in dict.fromkeys(numbers) for place in range(3)]
    expected = weigh_padded(inputs, model, [texts[place] for place in order])
    is_there = ~batch.known_targets[..., 0].isnan()
    torch.testing.assert_close(found[is_there], expected)
    assert (expected == 0).any()
    factors = torch.randn(expected.shape, dtype=torch.float64)
    params = [param for param in model.parameters() if param.requires_grad]
    grads = [
        torch.autograd.grad((one * factors).sum(), params, allow_unused=True) for one in (found[is_there], expected)
    ]
    for ours, plain in zip(*grads, strict=True):
        assert (ours is None) == (plain is None)
        if ours is not None and plain is not None:
            torch.testing.assert_close(ours, plain)


def test_few_gradients_are_spread_as_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splade, "_GRADIENTS", 7)
    generator = torch.Generator().manual_seed(0)
    features, weight = (torch.randn(size, 4, dtype=torch.float64, generator=generator) for size in (9, 11))
    parts = [[(0, 3), (3, 4)], [(5, 9)]]
    gradient = torch.randn(3, 11, dtype=torch.float64, generator=generator).relu()
    places = torch.randint(0, 2, (3, 11), dtype=torch.int32, generator=generator)
    places[1] = 0  # a document of one token
    few, all_of_them = (spread(gradient, features, weight, places, parts) for spread in SPREAD)
    torch.testing.assert_close(few, all_of_them)


@pytest.mark.parametrize("loss", ["contrastive", "margin-mse", "kl"])
def test_the_loss_has_products_and_a_regulariser_that_grows(splade_lab: Lab, loss: str) -> None:
    inputs = load(splade_lab, loss=loss, query_flops=0.5, document_flops=0.25)
    model = inputs.build_model(seed=0).eval()
    examples = inputs.train.features.examples[:6]
    asked = AskedBatch.of(inputs.train.build_batch(np.arange(6)))
    with torch.no_grad():
        queries, answers, others = (
            weigh_padded(inputs, model, [one.texts[side] for one in examples]) for side in range(3)
        )
        plain = model.loss_sums(asked)
        if loss == "contrastive":
            scores = torch.cat([queries @ answers.T, queries @ others.T], 1)
            expected = F.cross_entropy(scores, torch.arange(6))
        else:
            scores = torch.stack([(queries * one).sum(-1) for one in (answers, others)], 1)
            taught = torch.tensor([one.scores for one in examples])
            expected = (
                F.kl_div(scores.log_softmax(1), taught.softmax(1), reduction="batchmean")
                if loss == "kl"
                else ((scores - taught)[:, 0] - (scores - taught)[:, 1]).square().mean()
            )
        magnitude = float(scores.abs().max()) ** 2
        assert_rounded(plain.loss_sum / plain.num_labelled, expected, NUM_TERMS, magnitude)
        flops = 0.5 * queries.mean(0).square().sum() + 0.25 * torch.cat([answers, others]).mean(0).square().sum()
        model.task.train()
        for progress, growth in ((0.0, 0.0), (1 / 6, 0.25), (0.9, 1.0)):
            model.follow(progress)
            sums = model.loss_sums(asked)
            assert_rounded(sums.loss_sum / sums.num_labelled, expected + growth * flops, NUM_TERMS, magnitude)
    metrics = model.compute_metrics([float(one) for one in (*plain.losses, *plain.counts, *plain.figures)])
    assert metrics["query_tokens"] == pytest.approx(float((queries > 0).sum(1).double().mean()))


def test_a_run_learns_and_sparseencoder_gives_its_weights(splade_lab: Lab, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    prompts = {"query_prompt": "my old ", "document_prompt": "the quiet "}
    finished = run(make_config(splade_lab, epochs=8, batch_size=20, **prompts), tmp_path / "run")
    first, last = (run(make_config(splade_lab, epochs=n, batch_size=20), tmp_path / f"{n}").figures[0] for n in (1, 8))
    assert last["accuracy"] > first["accuracy"]
    assert finished.figures[0]["document_tokens"] > 0
    assert finished.next_command.startswith("maskwright index ")  # predict takes no such model
    model = TaskModel.from_pretrained(tmp_path / "run")
    assert isinstance(model.task, SpladeRetrieval)
    theirs = sentence_transformers.SparseEncoder(str(tmp_path / "run" / "model"), device="cpu")
    inputs = load(splade_lab)
    for role, encode_texts in (("query", theirs.encode_query), ("document", theirs.encode_document)):
        with torch.no_grad():
            ours = weigh_padded(inputs, model, [prompts[f"{role}_prompt"] + text for text in TEXTS])
        assert (ours > 0).any()
        assert_rounded(ours, encode_texts(TEXTS, convert_to_sparse_tensor=False), NUM_TERMS, 10.0)
    folder = mw.export(tmp_path / "run", "sentence-transformers", out=tmp_path / "out")
    exported = sentence_transformers.SparseEncoder(str(folder), device="cpu")
    assert_rounded(
        *(one.encode_query(TEXTS, convert_to_sparse_tensor=False) for one in (exported, theirs)), NUM_TERMS, 10.0
    )
    assert "| accuracy |" in (folder / "README.md").read_text(encoding="utf-8")
    with pytest.raises(InputError, match="which --to web does not hold"):
        mw.export(tmp_path / "run", "web", out=tmp_path / "page")


@pytest.mark.slow  # tracing takes seconds
def test_the_onnx_graph_gives_the_weights(splade_lab: Lab, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    inputs = load(splade_lab, query_prompt="my old ")
    model = inputs.build_model(seed=0).eval()
    model.save_pretrained(tmp_path / "model", inputs.tokenizer)
    with pytest.raises(InputError, match="--for is for encoders"):
        mw.export(tmp_path / "model", "onnx", purpose="embed", out=tmp_path / "graph")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    folder = mw.export(tmp_path / "model", "onnx", text=tmp_path / "texts.txt", int8=True, out=tmp_path / "graph")
    versions = json.loads((folder / "maskwright_export.json").read_text(encoding="utf-8"))["figures"]["versions"]
    assert versions["onnx fp32"]["same_answers"] == 1.0
    assert versions["onnx int8"]["size_bytes"] < versions["onnx fp32"]["size_bytes"]
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    (output,) = session.get_outputs()
    assert output.name == "sparse_embedding"
    encoded = [inputs.tokenizer.backend.encode(text).ids for text in TEXTS]
    width = max(map(len, encoded))
    ids = np.array([row + [inputs.tokenizer.pad_token_id] * (width - len(row)) for row in encoded])
    is_real = np.array([[1] * len(row) + [0] * (width - len(row)) for row in encoded])
    values = {"input_ids": ids, "attention_mask": is_real, "token_type_ids": 0 * ids}
    (found,) = session.run(None, {one.name: values[one.name] for one in session.get_inputs()})
    with torch.no_grad():
        assert_rounded(found, weigh_padded(inputs, model, TEXTS), NUM_TERMS, 10.0)
    assert "Before a query stands `my old `" in (folder / "README.md").read_text(encoding="utf-8")


def test_more_weight_of_the_regulariser_leaves_fewer_tokens(splade_lab: Lab, tmp_path: Path) -> None:
    few, many = (
        run(
            make_config(splade_lab, epochs=6, query_flops=weight, document_flops=weight), tmp_path / f"{weight}"
        ).figures[0]
        for weight in (1.0, 0.0)
    )
    assert few["document_tokens"] < many["document_tokens"]
    assert few["query_tokens"] < many["query_tokens"]


@pytest.mark.slow  # as test_retrieval_dense.py
def test_an_interrupted_run_ends_as_an_uninterrupted_one(
    splade_lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(splade_lab, epochs=3, query_flops=0.1, document_flops=0.1)
    assert_resumes_exactly(partial(run, config), tmp_path, monkeypatch, dies_at=5)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"kind": "spade"}, "there is no kind 'spade' of retriever; did you mean 'splade'"),
        ({"dims": "16"}, "--dims is for --kind dense, not splade"),
        ({"pooling": "cls"}, "--pooling is for --kind dense, not splade"),
        ({"kind": "dense", "query_flops": 0.1}, "--query-flops is for --kind splade, not dense"),
        ({"lora": 4}, "--lora is for --kind dense"),
        ({"task": "rerank"}, "--kind is for retrieval"),
    ],
)
def test_wrong_settings_are_refused(splade_lab: Lab, values: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        load(splade_lab, **values)


def weigh_first_texts(inputs: TaskInputs, model: TaskModel) -> tuple[Tensor, list[set[int]]]:
    """Weights of the training texts, and the tokens that they have."""
    texts = [text for one in inputs.train.features.examples for text in one.texts]
    with torch.no_grad():
        weights = weigh_padded(inputs, model.eval(), texts)
    return weights, [set(inputs.tokenizer.backend.encode(text).ids) for text in texts]


def test_without_a_head_tokens_begin_as_themselves(splade_lab: Lab, lab: Lab) -> None:
    inputs, said = load(splade_lab, model=str(lab.model)), []
    weights, own = weigh_first_texts(inputs, inputs.build_model(0, said.append))
    wanted = weights.shape[1] // 8
    assert len(said) == 1
    assert said[0].startswith("the model has no masked-language-model head")
    assert said[0].endswith(f" {wanted} of a text")
    assert (weights > 0).sum(1).double().mean() == pytest.approx(wanted, abs=1)
    found = [set(row.topk(len(tokens)).indices.tolist()) & tokens for row, tokens in zip(weights, own, strict=True)]
    share = sum(map(len, found)) / sum(map(len, own))
    assert share > 0.5, f"{share:.2f} of the tokens of texts are among those with the largest weights"


def test_a_head_that_gives_most_tokens_a_weight_is_lowered_as_a_whole(splade_lab: Lab) -> None:
    inputs, said = load(splade_lab), []
    given = inputs.build_model(0)
    name = next(name for name in inputs.weights if name.endswith("predictions.bias"))
    inputs.weights[name] = inputs.weights[name] + 50.0
    lowered = inputs.build_model(0, said.append)
    weights, _ = weigh_first_texts(inputs, lowered)
    assert len(said) == 1
    assert "tokens of a text a weight: all are lowered by" in said[0]
    assert (weights > 0).sum(1).double().mean() == pytest.approx(weights.shape[1] // 8, abs=1)
    shifts = (lowered.task_head.mlm_output.bias - given.task_head.mlm_output.bias).detach()
    assert float(shifts.max() - shifts.min()) < 2 * 128 * torch.finfo(torch.float32).eps  # a softmax does not see it


def test_a_family_whose_head_has_no_place_for_an_offset_is_refused(splade_lab: Lab, tmp_path: Path) -> None:
    tokenizer = load(splade_lab).tokenizer
    encoder = mw.ModernBERT.from_variant("tiny", vocab_size=tokenizer.vocab_size, num_hidden_layers=1)
    encoder.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    with pytest.raises(InputError, match="holds no masked-language-model head"):
        load(splade_lab, model=str(tmp_path)).build_model(seed=0)
