"""Late interaction: queries that are filled up, the loss by best matches, whole runs, and MultiVectorEncoder beside."""

from __future__ import annotations

import string
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
from maskwright.inference.pipeline import pipeline
from maskwright.runs.finetune.inputs import TaskInputs, load_task_inputs
from maskwright.tasks.config import TaskConfig
from maskwright.tasks.heads import TEXT_ROLES
from maskwright.tasks.loader import AskedBatch
from maskwright.tasks.model import TaskModel
from maskwright.tasks.retrieval.colbert import LateHead, LateRetrieval
from tolerances import assert_rounded, count_terms

NUM_TERMS = count_terms(num_layers=2, width=32, length=64)
QUERY_LENGTH = 12
TEXTS = ["the cat sees a long road.", "one red bird"]


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maskwright.runs.finetune.finetune.write_task_report", lambda *given, **named: [])


def build_records(subjects: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {
            "query": f"{subject} {verb}",
            "positive": f"{subject} {verb} a long road.",
            "negatives": [f"{subject} the green house."],
            "scores": [3.0, len(subject) / 10],
        }
        for subject in subjects
        for verb in VERBS
    ]


@pytest.fixture
def late_lab(lab: Lab) -> Lab:
    write_lines(lab.folder / "train.jsonl", build_records(SUBJECTS[:4]))
    write_lines(lab.folder / "validation.jsonl", build_records(SUBJECTS[4:]))
    return lab


def make_config(lab: Lab, **values: Any) -> TaskConfig:
    given = {"task": "retrieval", "kind": "colbert", "text_column": None, "width": 16, "query_length": QUERY_LENGTH}
    return lab.config(**{**given, **values})


def load(lab: Lab, **values: Any) -> TaskInputs:
    return load_task_inputs(make_config(lab, **values), lambda text: None)


def embed_plainly(inputs: TaskInputs, model: TaskModel, text: str, query_length: int | None) -> Tensor:
    """(tokens, C) of one text alone, filled up if it is a query, without punctuation if not."""
    assert isinstance(model.task_head, LateHead)
    tokenizer = inputs.tokenizer
    ids = tokenizer.backend.encode(text).ids
    if query_length is not None:
        ids = ids[: query_length - 1] + ids[-1:] if len(ids) > query_length else ids
        ids = ids + [tokenizer.mask_token_id] * (query_length - len(ids))
    hidden = model.encoder(torch.tensor([ids])).last_hidden_state[0]
    vectors = F.normalize(model.task_head.projection(hidden), dim=-1)
    punctuation = {tokenizer.backend.token_to_id(one) for one in string.punctuation}
    return vectors if query_length is not None else vectors[[one not in punctuation for one in ids]]


def match(query: Tensor, document: Tensor) -> Tensor:
    return (query @ document.T).amax(1).sum()


@pytest.mark.parametrize("query_length", [QUERY_LENGTH, 5, 0])
@pytest.mark.parametrize("loss", ["contrastive", "margin-mse", "kl"])
def test_the_loss_has_the_best_matches_of_tokens(late_lab: Lab, loss: str, query_length: int) -> None:
    inputs = load(late_lab, loss=loss, query_length=query_length)
    model = inputs.build_model(seed=0).eval()
    examples = inputs.train.features.examples[:6]
    batch = inputs.train.build_batch(np.arange(6))
    assert (batch.input_ids == inputs.tokenizer.mask_token_id).any() == (query_length == QUERY_LENGTH)
    sums = model.loss_sums(AskedBatch.of(batch))
    texts = [one.texts for one in examples]
    queries = [
        embed_plainly(inputs, model, one[0], query_length or len(inputs.tokenizer.backend.encode(one[0]).ids))
        for one in texts
    ]
    sides = [[embed_plainly(inputs, model, one[side], None) for one in texts] for side in (1, 2)]
    if loss == "contrastive":
        scores = torch.stack([torch.stack([match(query, one) for side in sides for one in side]) for query in queries])
        expected = F.cross_entropy(scores, torch.arange(6))
    else:
        scores = torch.stack(
            [torch.stack([match(query, side[place]) for side in sides]) for place, query in enumerate(queries)]
        )
        taught = torch.tensor([one.scores for one in examples])
        margins = scores - taught
        expected = (
            F.kl_div(scores.log_softmax(1), taught.softmax(1), reduction="batchmean")
            if loss == "kl"
            else (margins[:, 0] - margins[:, 1]).square().mean()
        )
    magnitude = float(scores.abs().max()) ** 2
    assert_rounded(sums.loss_sum / sums.num_labelled, expected, NUM_TERMS, magnitude)
    params = list(model.parameters())
    found = sums.loss_sum / sums.num_labelled
    grads = [torch.autograd.grad(one, params, allow_unused=True) for one in (found, expected)]
    for ours, plain in zip(*grads, strict=True):
        assert (ours is None) == (plain is None)
        if ours is not None and plain is not None:
            torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-4 * float(plain.abs().max()) + 1e-6)


def test_a_run_learns_and_multivectorencoder_gives_its_vectors(late_lab: Lab, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers", minversion="6")
    prompts = {"query_prompt": "my old ", "document_prompt": "the quiet "}
    first, last = (
        run(make_config(late_lab, epochs=epochs, batch_size=20, **prompts), tmp_path / f"{epochs}").figures[0]
        for epochs in (1, 8)
    )
    assert last["loss"] < first["loss"]
    assert last["accuracy"] >= first["accuracy"]
    model = TaskModel.from_pretrained(tmp_path / "8")
    assert isinstance(model.task, LateRetrieval)
    assert model.task.settings.skipped_tokens
    theirs = sentence_transformers.MultiVectorEncoder(str(tmp_path / "8" / "model"), device="cpu")
    folder = mw.export(tmp_path / "8", "sentence-transformers", out=tmp_path / "out")
    exported = sentence_transformers.MultiVectorEncoder(str(folder), device="cpu")
    for role in TEXT_ROLES:
        pipe = pipeline("embed", tmp_path / "8", role=role, precision="fp32")
        for one in (theirs, exported):
            found = (one.encode_query if role == "query" else one.encode_document)(TEXTS)
            for ours, vectors in zip(pipe(TEXTS), found, strict=True):
                assert_rounded(ours, vectors.numpy(), NUM_TERMS)
    assert "| accuracy |" in (folder / "README.md").read_text(encoding="utf-8")
    with pytest.raises(InputError, match="which --to web does not hold"):
        mw.export(tmp_path / "8", "web", out=tmp_path / "page")


@pytest.mark.parametrize("query_length", [QUERY_LENGTH, 0])
def test_pylate_gives_the_vectors(late_lab: Lab, tmp_path: Path, query_length: int) -> None:
    pylate = pytest.importorskip("pylate.models", reason="PyLate is not here, which needs an environment of its own")
    inputs = load(late_lab, query_length=query_length, query_prompt="my old ", document_prompt="the quiet ")
    inputs.build_model(seed=0).save_pretrained(tmp_path, inputs.tokenizer)
    theirs = pylate.ColBERT(str(tmp_path), device="cpu")
    for role in TEXT_ROLES:
        pipe = pipeline("embed", tmp_path, role=role, precision="fp32")
        found = theirs.encode(TEXTS, is_query=role == "query", prompt_name=role)
        for ours, vectors in zip(pipe(TEXTS), found, strict=True):
            assert_rounded(ours, vectors, NUM_TERMS)


def test_a_folder_of_late_interaction_has_no_similarity(late_lab: Lab, tmp_path: Path) -> None:
    inputs = load(late_lab)
    inputs.build_model(seed=0).save_pretrained(tmp_path, inputs.tokenizer)
    with pytest.raises(InputError, match="a retriever of late interaction"):
        pipeline("similarity", tmp_path)
    with pytest.raises(InputError, match="pooling is for one vector of a text"):
        pipeline("embed", tmp_path, pooling="mean")
    with pytest.raises(InputError, match="no role 'querry' of a text"):
        pipeline("embed", tmp_path, role="querry")


@pytest.mark.slow  # tracing takes seconds
def test_the_onnx_graph_gives_the_vectors(late_lab: Lab, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    inputs = load(late_lab)
    model = inputs.build_model(seed=0).eval()
    model.save_pretrained(tmp_path / "model", inputs.tokenizer)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    folder = mw.export(tmp_path / "model", "onnx", text=tmp_path / "texts.txt", out=tmp_path / "graph")
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    (output,) = session.get_outputs()
    assert output.name == "token_embeddings"
    with torch.no_grad():
        expected = embed_plainly(inputs, model, TEXTS[1], QUERY_LENGTH)
    whole = inputs.tokenizer.backend.encode(TEXTS[1]).ids
    ids = np.array([whole + [inputs.tokenizer.mask_token_id] * (QUERY_LENGTH - len(whole))])
    values = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": 0 * ids}
    (found,) = session.run(None, {one.name: values[one.name] for one in session.get_inputs()})
    assert_rounded(found[0], expected, NUM_TERMS)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "filled up to as many with mask tokens" in card


@pytest.mark.slow  # as test_retrieval_dense.py
def test_an_interrupted_run_ends_as_an_uninterrupted_one(
    late_lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_resumes_exactly(partial(run, make_config(late_lab, epochs=3)), tmp_path, monkeypatch, dies_at=5)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"symmetric": True}, "--symmetric is for --kind dense or splade, not colbert"),
        ({"dims": "16"}, "--dims is for --kind dense, not colbert"),
        ({"kind": "dense", "query_length": None}, "--width is for --kind colbert, not dense"),
        ({"query_length": 33}, "--query-length is 33, texts have at most 32 tokens"),
        ({"query_length": 2}, "leaves a query no token of its own"),
    ],
)
def test_wrong_settings_are_refused(late_lab: Lab, values: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        load(late_lab, **values)
