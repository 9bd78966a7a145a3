"""NeoBERT: folders with the published names, what they compute, and a model's way from text to answers.

Transformers has no NeoBERT. The reference here follows the published formulae one document at a time, in float64 and
with complex numbers, and shares no code with the encoder.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor

import maskwright as mw
from maskwright.batch import PackedBatch
from maskwright.config import build_config
from maskwright.errors import InputError
from maskwright.export.huggingface import find_obstacles
from maskwright.models.any_encoder import encode
from tolerances import assert_rounded, count_terms

WIDTH, NUM_HEADS, NUM_LAYERS, GATED_SIZE, VOCAB_SIZE = 32, 4, 3, 72, 120
CONFIG: dict[str, Any] = {
    "architectures": ["NeoBERTLMHead"],
    "auto_map": {"AutoModelForMaskedLM": "model.NeoBERTLMHead"},
    "classifier_init_range": 0.02,
    "decoder_init_range": 0.02,
    "dim_head": WIDTH // NUM_HEADS,
    "embedding_init_range": 0.02,
    "hidden_size": WIDTH,
    "intermediate_size": 100,  # two thirds are 66, and 72 the next multiple of 8
    "kwargs": {"classifier_init_range": 0.02},
    "max_length": 64,
    "model_type": "neobert",
    "norm_eps": 1e-5,
    "num_attention_heads": NUM_HEADS,
    "num_hidden_layers": NUM_LAYERS,
    "pad_token_id": 0,
    "torch_dtype": "float32",
    "vocab_size": VOCAB_SIZE,
}
"""The keys of the published config.json, for a small model."""
LENGTHS = [20, 1, 13]
IDS = [torch.randint(5, VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(length)) for length in LENGTHS]
NUM_TERMS = count_terms(num_layers=NUM_LAYERS, width=WIDTH, length=sum(LENGTHS))
NAMES_CODE = "ignore:.*names code of its own:maskwright.errors.InputWarning"


def draw_weights(num_layers: int = NUM_LAYERS) -> dict[str, Tensor]:
    """Weights under the published names, large enough to tell mistakes; those of norms are around 1."""
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "model.encoder.weight": (VOCAB_SIZE, WIDTH),
        "model.layer_norm.weight": (WIDTH,),
        "decoder.weight": (VOCAB_SIZE, WIDTH),
        "decoder.bias": (VOCAB_SIZE,),
    }
    for layer in range(num_layers):
        shapes |= {
            f"model.transformer_encoder.{layer}.{name}.weight": shape
            for name, shape in {
                "qkv": (3 * WIDTH, WIDTH),
                "wo": (WIDTH, WIDTH),
                "ffn.w12": (2 * GATED_SIZE, WIDTH),
                "ffn.w3": (WIDTH, GATED_SIZE),
                "attention_norm": (WIDTH,),
                "ffn_norm": (WIDTH,),
            }.items()
        }
    return {
        name: 0.2 * torch.randn(shape, generator=generator) + (1.0 if "norm" in name else 0.0)
        for name, shape in shapes.items()
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As the published one: its names, and a config.json that names code."""
    save_file(draw_weights(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def compute_logits(weights: dict[str, Tensor], ids: Tensor) -> Tensor:
    """(S, V) of one document."""
    return compute_hidden(weights, ids) @ weights["decoder.weight"].T + weights["decoder.bias"]


def compute_hidden(weights: dict[str, Tensor], ids: Tensor) -> Tensor:
    """(S, D) of one document."""
    length, head_size = len(ids), WIDTH // NUM_HEADS

    def norm(hidden: Tensor, name: str) -> Tensor:
        return hidden / (hidden.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weights[name]

    frequencies = 10_000.0 ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
    turns = torch.polar(torch.ones_like(angles), angles)[:, None]

    def rotate(features: Tensor) -> Tensor:
        pairs = torch.view_as_complex(features.reshape(length, NUM_HEADS, head_size // 2, 2))
        return torch.view_as_real(pairs * turns).reshape(length, NUM_HEADS, head_size)

    hidden = weights["model.encoder.weight"][ids]
    for layer in range(NUM_LAYERS):
        prefix = f"model.transformer_encoder.{layer}"
        normed = norm(hidden, f"{prefix}.attention_norm.weight")
        per_head = (normed @ weights[f"{prefix}.qkv.weight"].T).view(length, NUM_HEADS, 3 * head_size)
        query, key, value = per_head.split(head_size, dim=-1)
        scores = torch.einsum("qhk,shk->hqs", rotate(query), rotate(key)) / math.sqrt(head_size)
        attended = torch.einsum("hqs,shk->qhk", scores.softmax(-1), value).reshape(length, WIDTH)
        hidden = hidden + attended @ weights[f"{prefix}.wo.weight"].T
        normed = norm(hidden, f"{prefix}.ffn_norm.weight") @ weights[f"{prefix}.ffn.w12.weight"].T
        value, gate = normed.split(GATED_SIZE, dim=-1)
        hidden = hidden + (F.silu(value) * gate) @ weights[f"{prefix}.ffn.w3.weight"].T
    return norm(hidden, "model.layer_norm.weight")


def pack() -> PackedBatch:
    """All documents in one row, with padding behind them."""
    numbers = torch.arange(1, len(IDS) + 1).repeat_interleave(torch.tensor(LENGTHS))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    return PackedBatch(*(F.pad(row, (0, 4))[None] for row in (torch.cat(IDS), numbers, positions, numbers)))


@pytest.mark.filterwarnings(NAMES_CODE)
def test_logits_and_gradients_are_those_of_the_published_formulae(folder: Path) -> None:
    weights = {name: tensor.double().requires_grad_() for name, tensor in draw_weights().items()}
    expected = torch.cat([compute_logits(weights, ids) for ids in IDS])
    model = mw.MaskedLanguageModel.from_pretrained(folder)
    packed = pack()
    logits = model(packed).logits
    assert logits is not None
    real = logits[~packed.is_padding]
    assert_rounded(real, expected, NUM_TERMS)

    expected.square().mean().backward()
    real.square().mean().backward()
    family = mw.NeoBERT.family
    gradients = {name: param.grad for name, param in model.encoder.named_parameters() if param.grad is not None}
    found = {f"model.{name}": gradient for name, gradient in family.to_theirs(gradients).items()}
    found |= {f"decoder.{name}": param.grad for name, param in model.mlm_output.named_parameters()}  # type: ignore[misc]
    assert_rounded(found, {name: tensor.grad for name, tensor in weights.items()}, 2 * NUM_TERMS)


@pytest.mark.filterwarnings(NAMES_CODE)
def test_padded_rows_give_the_logits_of_their_documents(folder: Path) -> None:
    weights = {name: tensor.double() for name, tensor in draw_weights().items()}
    model = mw.MaskedLanguageModel.from_pretrained(folder)
    ids = torch.nn.utils.rnn.pad_sequence(IDS, batch_first=True)
    attention_mask = (torch.arange(ids.shape[1]) < torch.tensor(LENGTHS)[:, None]).long()
    logits = model(input_ids=ids, attention_mask=attention_mask).logits
    assert logits is not None
    for row, document in zip(logits, IDS, strict=True):
        assert_rounded(row[: len(document)], compute_logits(weights, document), NUM_TERMS)


@pytest.mark.filterwarnings(NAMES_CODE)
def test_a_published_classifier_reads_the_first_token(folder: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    head = {
        "dense.weight": torch.randn(WIDTH, WIDTH, generator=generator),
        "dense.bias": torch.randn(WIDTH, generator=generator),
        "classifier.weight": torch.randn(3, WIDTH, generator=generator),
        "classifier.bias": torch.randn(3, generator=generator),
    }
    weights = {name: tensor for name, tensor in draw_weights().items() if not name.startswith("decoder.")} | head
    save_file(weights, folder / "model.safetensors")
    labels = {"id2label": {"0": "a", "1": "b", "2": "c"}, "architectures": ["NeoBERTForSequenceClassification"]}
    (folder / "config.json").write_text(json.dumps(CONFIG | labels))
    model, packed = mw.TaskModel.from_pretrained(folder), pack()
    logits = model.task_head(encode(model.encoder, packed), packed, len(IDS))
    weights = {name: tensor.double() for name, tensor in weights.items()}
    first = torch.stack([compute_hidden(weights, ids)[0] for ids in IDS])
    pooled = torch.tanh(first @ weights["dense.weight"].T + weights["dense.bias"])
    assert_rounded(logits[0], pooled @ weights["classifier.weight"].T + weights["classifier.bias"], NUM_TERMS)


@pytest.mark.filterwarnings(NAMES_CODE)
def test_what_is_read_is_written_under_the_published_names(folder: Path, tmp_path: Path) -> None:
    model = mw.MaskedLanguageModel.from_pretrained(folder)
    assert isinstance(model.encoder, mw.NeoBERT)
    assert not model.is_tied
    model.save_pretrained(tmp_path / "whole")
    model.encoder.save_pretrained(tmp_path / "encoder")
    given = draw_weights()
    whole = load_file(tmp_path / "whole" / "model.safetensors")
    assert whole.keys() == given.keys()
    assert all(torch.equal(whole[name], tensor) for name, tensor in given.items())
    alone = load_file(tmp_path / "encoder" / "model.safetensors")
    assert {f"model.{name}" for name in alone} == given.keys() - {"decoder.weight", "decoder.bias"}
    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    unwritten = {"auto_map", "classifier_init_range", "dim_head", "embedding_init_range", "kwargs", "torch_dtype"}
    assert {name: config[name] for name in CONFIG.keys() - unwritten} == {
        name: CONFIG[name] for name in CONFIG.keys() - unwritten
    }


def test_the_published_folder_warns_of_its_code_alone(folder: Path, recwarn: pytest.WarningsRecorder) -> None:
    mw.MaskedLanguageModel.from_pretrained(folder)
    assert ["names code of its own" in str(warning.message) for warning in recwarn] == [True]


def test_the_base_size_has_the_published_weights() -> None:
    with torch.device("meta"):
        encoder = mw.NeoBERT.from_variant("base")
    shapes = {name: tuple(tensor.shape) for name, tensor in encoder.family.to_theirs(encoder.state_dict()).items()}
    assert len(shapes) == 2 + 6 * 28
    assert shapes["encoder.weight"] == (30522, 768)
    assert shapes["transformer_encoder.27.qkv.weight"] == (2304, 768)
    assert shapes["transformer_encoder.27.ffn.w12.weight"] == (4096, 768)
    assert shapes["transformer_encoder.27.ffn.w3.weight"] == (768, 2048)


def test_a_tied_output_is_written_too_since_the_published_code_ties_nothing(tmp_path: Path) -> None:
    encoder = mw.NeoBERT.from_variant("tiny", vocab_size=60, hidden_size=32, num_hidden_layers=1)
    model = mw.MaskedLanguageModel(encoder, 60, mask_token_id=4).eval()
    assert model.is_tied
    model.save_pretrained(tmp_path)
    config, weights = json.loads((tmp_path / "config.json").read_text()), load_file(tmp_path / "model.safetensors")
    assert config["model_type"] == "neobert"
    assert torch.equal(weights["decoder.weight"], weights["model.encoder.weight"])
    assert mw.MaskedLanguageModel.from_pretrained(tmp_path).is_tied


@pytest.mark.filterwarnings(NAMES_CODE)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rope": False}, "'rope' is False; only True is supported"),
        ({"rms_norm": False}, "'rms_norm' is False; only True is supported"),
        ({"hidden_act": "gelu"}, "'hidden_act' is 'gelu'; only 'SwiGLU' is supported"),
        ({"ngpt": True}, "'ngpt' is True; only False is supported"),
        ({"num_attention_heads": 32}, "is odd; rotary positions need an even head size"),
    ],
)
def test_variants_of_the_architecture_are_refused(folder: Path, settings: dict[str, Any], message: str) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | settings))
    with pytest.raises(InputError, match=message):
        mw.NeoBERT.from_pretrained(folder)


def test_an_export_to_transformers_says_that_it_has_no_neobert() -> None:
    encoder = mw.NeoBERT.from_variant("tiny", vocab_size=60, hidden_size=32, num_hidden_layers=1)
    (obstacle,) = find_obstacles(mw.MaskedLanguageModel(encoder, 60, mask_token_id=4))
    assert obstacle.startswith("transformers has no NeoBERT")


def test_a_run_trains_one_and_it_fills_masks_and_is_fine_tuned(
    tiny_values: dict[str, Any], tmp_path: Path, command: Callable[..., Any]
) -> None:
    tiny_values["model"] |= {"family": "neobert", "layer_norm_eps": 1e-6}
    run = mw.pretrain(build_config(tiny_values), console=Console(quiet=True)).folder.path
    model = mw.MaskedLanguageModel.from_pretrained(run)
    assert isinstance(model.encoder, mw.NeoBERT)
    assert model.encoder.config.norm_eps == 1e-6
    losses = [record["loss"] for record in map(json.loads, (run / "metrics.jsonl").open()) if "loss" in record]
    assert losses[-1] < losses[0]

    filled = command("fill", run, "the cat [MASK] the green house", "--json")
    assert filled.code == 0, filled
    (candidates,) = json.loads(filled.out)
    assert len(candidates) == 5

    continued = {**tiny_values, "run": {**tiny_values["run"], "name": "more"}, "model": {"from": str(run)}}
    more = mw.pretrain(build_config(continued), console=Console(quiet=True)).folder.path
    assert isinstance(mw.MaskedLanguageModel.from_pretrained(more).encoder, mw.NeoBERT)

    records = [
        {"text": f"the {subject} {verb} the house", "label": label}
        for subject in ("cat", "dog", "bird", "student")
        for verb, label in (("sees", "good"), ("carries", "bad"))
    ]
    examples = tmp_path / "examples.jsonl"
    examples.write_text("".join(json.dumps(record) + "\n" for record in records))
    finetuned = command(
        *("finetune", "classification", "--model", run, "--train", examples, "--validation", examples),
        *("--epochs", 30, "--batch-size", 8, "--learning-rate", 5e-3, "--out", tmp_path / "task"),
    )
    assert finetuned.code == 0, finetuned
    task = mw.TaskModel.from_pretrained(tmp_path / "task" / "model")
    assert isinstance(task.encoder, mw.NeoBERT)
    names = load_file(tmp_path / "task" / "model" / "model.safetensors").keys()
    assert {"dense.weight", "dense.bias", "classifier.weight", "classifier.bias"} <= names
    predicted = mw.pipeline("text-classification", tmp_path / "task" / "model")([one["text"] for one in records])
    assert [one["label"] for one in predicted] == [one["label"] for one in records]
