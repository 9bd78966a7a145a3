"""A model as ONNX answers what it answers in torch, in fp32 and nearly so in int8."""

from __future__ import annotations

import functools
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from maskwright.errors import InputError, RunError
from maskwright.export import onnx as export_module
from maskwright.export import onnx_graph, onnx_versions
from maskwright.export.onnx import export_onnx
from maskwright.export.onnx_graph import answer_with_onnx, answer_with_torch, build_inputs, check_graph, save_graph
from maskwright.export.onnx_versions import halve_graph, quantize_graph, quantize_rows
from maskwright.models.bert import BERT
from maskwright.models.modernbert import ModernBERT
from maskwright.objectives.masked_lm import CausalLanguageModel, MaskedLanguageModel
from maskwright.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tolerances import assert_rounded, count_terms, rounding

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
onnxscript = pytest.importorskip("onnxscript")

MAX_LENGTH = 40
NUM_TERMS = count_terms(num_layers=2, width=32, length=MAX_LENGTH)
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": MAX_LENGTH}


def build(kind: str, tokenizer: Tokenizer, seed: int = 0) -> MaskedLanguageModel:
    """Weights large enough for answers that differ."""
    torch.manual_seed(seed)
    shape: dict[str, Any] = {**SHAPE, "vocab_size": tokenizer.vocab_size, "initializer_range": 0.2}
    if "modernbert" in kind:
        encoder: nn.Module = ModernBERT.from_variant("tiny", **shape, local_attention=8, global_attn_every_n_layers=2)
    else:
        encoder = BERT.from_variant("tiny", **shape | {"num_hidden_layers": 1})
    kind_class = CausalLanguageModel if "causal" in kind else MaskedLanguageModel
    special = {"mask_token_id": tokenizer.mask_token_id, "special_token_ids": tokenizer.all_special_ids}
    return kind_class(encoder, tokenizer.vocab_size, **special)


class Exported:
    def __init__(self, kind: str, tokenizer: Tokenizer, texts: list[str], folder: Path) -> None:
        self.model, self.folder = build(kind, tokenizer), folder
        self.lines: list[str] = []
        self.figures = export_onnx(
            self.model, tokenizer, folder, int8=True, fp16=True, texts=texts, say=self.lines.append
        )


@pytest.fixture(scope="module")
def export_once(tokenizer, sentences, tmp_path_factory) -> Callable[[str], Exported]:
    """Tracing takes seconds, so each kind is exported once for all tests."""
    return functools.cache(lambda kind: Exported(kind, tokenizer, sentences, tmp_path_factory.mktemp(kind) / "out"))


_SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("modernbert", "causal", "causal modernbert")]


@pytest.fixture(params=["bert", *_SLOW])
def exported(request, export_once) -> Exported:
    return export_once(request.param)


@pytest.fixture
def bert_file(export_once) -> Path:
    return export_once("bert").folder / "model.onnx"


@pytest.fixture
def quick_graphs(monkeypatch, bert_file) -> None:
    """Exports take the graph of `build("bert")` instead of tracing again."""
    monkeypatch.setattr(export_module, "write_graph", lambda model, path: shutil.copy(bert_file, path))


def names_of(model: MaskedLanguageModel) -> list[str]:
    return onnx_graph.find_input_names(model.encoder)


def test_graph_equals_torch_at_every_length_in_small_and_large_batches(exported):
    expected, found = answer_with_torch(exported.model.eval()), answer_with_onnx(exported.folder / "model.onnx")
    random = np.random.default_rng(1)
    for length in range(1, MAX_LENGTH + 1):
        for rows in (1, 7):
            lengths = random.integers(1, length + 1, (rows, 1))
            inputs = {
                "input_ids": random.integers(0, exported.model.vocab_size, (rows, length)),
                "attention_mask": (np.arange(length) < lengths).astype(np.int64),
                "token_type_ids": random.integers(0, 2, (rows, length)),
            }
            inputs = {name: inputs[name] for name in names_of(exported.model)}
            assert_rounded(found(inputs), expected(inputs), NUM_TERMS)


@pytest.mark.parametrize("file", ["model.onnx", "model_int8.onnx", "model_fp16.onnx"])
def test_rows_of_padding_alone_give_numbers(exported, file):
    ids = np.ones((3, 5), dtype=np.int64)
    inputs = {"input_ids": ids, "attention_mask": ids * [[1], [0], [1]], "token_type_ids": ids * 0}
    logits = answer_with_onnx(exported.folder / file)({name: inputs[name] for name in names_of(exported.model)})
    assert np.isfinite(logits).all()


def test_inputs_and_outputs_are_named_as_others_expect(exported):
    graph = onnx.load(exported.folder / "model.onnx").graph
    segments = [] if isinstance(exported.model.encoder, ModernBERT) else ["token_type_ids"]
    assert [value.name for value in graph.input] == ["input_ids", "attention_mask", *segments]
    assert [value.name for value in graph.output] == ["logits"]
    for value in (*graph.input, *graph.output):
        axes = value.type.tensor_type.shape.dim
        assert [axes[0].dim_param, axes[1].dim_param] == ["batch_size", "sequence_length"]


def test_the_tokenizer_beside_the_graph_names_the_inputs_that_the_graph_takes(exported):
    settings = json.loads((exported.folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    graph = onnx.load(exported.folder / "model.onnx").graph
    assert sorted(settings["model_input_names"]) == sorted(value.name for value in graph.input)


def test_segments_change_the_answer_of_a_model_that_has_them(bert_file):
    ids = np.full((1, 4), 7, dtype=np.int64)
    found = answer_with_onnx(bert_file)
    first = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
    assert np.abs(found(first) - found({**first, "token_type_ids": ids * 0 + 1})).max() > 0.1


def test_a_causal_graph_does_not_look_ahead(exported):
    inputs = list(build_inputs(names_of(exported.model), exported.model.vocab_size, 10))[-1]
    changed = {**inputs, "input_ids": inputs["input_ids"].copy()}
    changed["input_ids"][0, -1] = (changed["input_ids"][0, -1] + 1) % exported.model.vocab_size
    found = answer_with_onnx(exported.folder / "model.onnx")
    before, after = (found(one)[:, :-1] for one in (inputs, changed))
    is_same = np.abs(after - before).max() <= rounding(NUM_TERMS, np.abs(before).max())
    assert is_same == isinstance(exported.model, CausalLanguageModel)


def test_int8_is_a_quarter_of_the_weights_and_answers_nearly_the_same(exported):
    names = names_of(exported.model)
    inputs = list(build_inputs(names, exported.model.vocab_size, MAX_LENGTH))[-1]
    full, small = (answer_with_onnx(exported.folder / name)(inputs) for name in ("model.onnx", "model_int8.onnx"))
    assert not np.array_equal(full, small)
    assert np.corrcoef(full.ravel(), small.ravel())[0, 1] > 0.99
    versions = exported.figures["versions"]
    assert versions["onnx int8"]["loss"] == pytest.approx(versions["onnx fp32"]["loss"], abs=0.05)

    def matrices(name: str) -> dict[int, int]:
        totals: dict[int, int] = {}
        for tensor in onnx.load(exported.folder / name).graph.initializer:
            if len(tensor.dims) == 2 and tensor.dims[0] > 2:
                totals[tensor.data_type] = totals.get(tensor.data_type, 0) + int(np.prod(tensor.dims))
        return totals

    positions = 0 if "token_type_ids" not in names else MAX_LENGTH * 32
    before, after = matrices("model.onnx")[onnx.TensorProto.FLOAT], matrices("model_int8.onnx")
    assert after[onnx.TensorProto.INT8] == before - positions
    assert after.get(onnx.TensorProto.FLOAT, 0) == positions


def test_fp16_is_half_of_the_weights_and_answers_within_its_rounding(exported):
    names = names_of(exported.model)
    inputs = list(build_inputs(names, exported.model.vocab_size, MAX_LENGTH))[-1]
    full, half = (answer_with_onnx(exported.folder / name)(inputs) for name in ("model.onnx", "model_fp16.onnx"))
    assert full.dtype == half.dtype == np.float32
    assert not np.array_equal(full, half)
    assert_rounded(half, full, NUM_TERMS, dtype=torch.float16)
    versions = exported.figures["versions"]
    assert versions["onnx fp16"]["loss"] == pytest.approx(versions["onnx fp32"]["loss"], abs=0.01)
    weights = [tensor for tensor in onnx.load(exported.folder / "model_fp16.onnx").graph.initializer if tensor.dims]
    in_full = [tensor for tensor in weights if tensor.data_type == onnx.TensorProto.FLOAT]
    assert sum(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in weights) > 10
    assert bool(in_full) == isinstance(exported.model.encoder, ModernBERT)  # the frequencies of its rotary angles


@pytest.mark.slow  # what stays in fp32 is tested above
def test_rotary_angles_of_late_positions_are_not_rounded_to_fp16(tokenizer, tmp_path):
    torch.manual_seed(0)
    shape: dict[str, Any] = {**SHAPE, "max_position_embeddings": 2048, "num_hidden_layers": 1, "initializer_range": 0.2}
    encoder = ModernBERT.from_variant("tiny", **shape, vocab_size=tokenizer.vocab_size)
    model = MaskedLanguageModel(encoder, tokenizer=tokenizer).eval()
    onnx_graph.write_graph(model, tmp_path / "model.onnx")
    halve_graph(tmp_path / "model.onnx", tmp_path / "model_fp16.onnx")
    inputs = list(build_inputs(names_of(model), model.vocab_size, 2048))[-1]
    full, half = (answer_with_onnx(tmp_path / name)(inputs) for name in ("model.onnx", "model_fp16.onnx"))
    assert_rounded(half[:, -64:], full[:, -64:], NUM_TERMS, dtype=torch.float16)


def test_values_that_fp16_cannot_hold_are_refused(quick_graphs, monkeypatch, tokenizer, sentences, tmp_path):
    def halve(source: Path, target: Path) -> None:
        graph = onnx.load(source)
        norm = next(tensor for tensor in graph.graph.initializer if tensor.name.endswith("embeddings.norm.weight"))
        norm.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(norm) * 1e5, norm.name))
        onnx.save(graph, target.with_name("large.onnx"))
        halve_graph(target.with_name("large.onnx"), target)

    monkeypatch.setattr(export_module, "halve_graph", halve)
    model = build("bert", tokenizer)
    with pytest.raises(RunError, match=r"model_fp16\.onnx gives NaN or infinity.*export without this version"):
        export_onnx(model, tokenizer, tmp_path / "out", fp16=True, texts=sentences, say=lambda line: None)
    assert list(tmp_path.iterdir()) == []


def test_files_hold_no_path_of_this_machine(exported):
    source = str(Path(onnx_graph.__file__).parent.parent).encode()
    for name in ("model.onnx", "model_int8.onnx", "model_fp16.onnx"):
        content = (exported.folder / name).read_bytes()
        assert source not in content
        assert b"stack_trace" not in content


def test_configuration_and_tokenizer_lie_beside_the_graph(exported, tokenizer):
    assert {path.name for path in exported.folder.iterdir()} == {
        "config.json",
        "model.onnx",
        "onnx",
        "model_fp16.onnx",
        "model_int8.onnx",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert load_tokenizer(exported.folder).encode("the cat") == tokenizer.encode("the cat")
    assert [path.name for path in exported.folder.parent.iterdir()] == ["out"]


def test_browsers_find_the_same_files_under_their_names(exported):
    names = {
        "model.onnx": "model.onnx",
        "model_quantized.onnx": "model_int8.onnx",
        "model_fp16.onnx": "model_fp16.onnx",
    }
    assert {path.name for path in (exported.folder / "onnx").iterdir()} == set(names)
    for name, file in names.items():
        assert (exported.folder / "onnx" / name).samefile(exported.folder / file)


def test_a_disk_without_links_gets_copies_and_an_older_one_is_replaced(
    quick_graphs, monkeypatch, tokenizer, sentences, tmp_path
):
    def refuse(*paths: Path) -> None:
        raise OSError("no links here")

    monkeypatch.setattr("os.link", refuse)
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").write_text("older")
    export_onnx(build("bert", tokenizer), tokenizer, tmp_path, int8=False, texts=sentences, say=lambda line: None)
    assert (tmp_path / "onnx" / "model.onnx").read_bytes() == (tmp_path / "model.onnx").read_bytes()
    assert not (tmp_path / "onnx" / "model.onnx").samefile(tmp_path / "model.onnx")


def test_figures_are_said_and_returned(exported):
    assert list(exported.figures["versions"]) == ["torch fp32", "onnx fp32", "onnx fp16", "onnx int8"]
    table = [line for line in exported.lines if line.startswith(("torch fp32", "onnx"))]
    for line, figures in zip(table, exported.figures["versions"].values(), strict=True):
        assert f"{figures['loss']:.4f}" in line
        assert f"{figures['latency_ms'][8]:.1f} ms" in line
        assert figures["latency_ms"][1] > 0
    assert f"at most {exported.figures['largest_difference']:.1e}" in exported.lines[0]
    assert f"lengths 1 to {MAX_LENGTH} in batches of 1 to 7" in exported.lines[0]
    size = (exported.folder / "model.onnx").stat().st_size
    assert exported.figures["versions"]["onnx fp32"]["size_bytes"] == size


def test_the_model_given_is_left_as_it_was(quick_graphs, tokenizer, sentences, tmp_path):
    model = build("bert", tokenizer).train()
    export_onnx(model, tokenizer, tmp_path / "out", int8=False, texts=sentences, say=lambda line: None)
    assert model.training
    assert model.encoder.training
    assert not (tmp_path / "out" / "model_int8.onnx").exists()


def test_a_graph_that_computes_something_else_is_refused_and_leaves_nothing(
    quick_graphs, tokenizer, sentences, tmp_path
):
    other = build("bert", tokenizer, seed=1)
    with pytest.raises(RunError, match=r"differ from torch's by \d.* at most 0\.001 is allowed"):
        export_onnx(other, tokenizer, tmp_path / "out", int8=True, texts=sentences, say=lambda line: None)
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_gives_nan_is_refused(bert_file, tokenizer, tmp_path):
    broken = onnx.load(bert_file)
    bias = next(tensor for tensor in broken.graph.initializer if tensor.name.endswith("mlm_output.bias"))
    bias.CopyFrom(onnx.numpy_helper.from_array(np.full(bias.dims, np.nan, dtype=np.float32), bias.name))
    onnx.save(broken, tmp_path / "nan.onnx")
    model = build("bert", tokenizer).eval()
    with pytest.raises(RunError, match="NaN or infinity"):
        check_graph(tmp_path / "nan.onnx", model, MAX_LENGTH)


def test_a_graph_with_other_names_is_refused(bert_file, tokenizer, tmp_path):
    renamed = onnx.load(bert_file)
    for names in (*(node.output for node in renamed.graph.node), *(node.input for node in renamed.graph.node)):
        names[:] = ["logits_1" if name == "logits" else name for name in names]
    renamed.graph.output[0].name = "logits_1"
    onnx.save(renamed, tmp_path / "model.onnx")
    with pytest.raises(RunError, match="gives logits_1; expected logits"):
        check_graph(tmp_path / "model.onnx", build("bert", tokenizer).eval(), MAX_LENGTH)


def test_other_files_of_the_folder_stay(quick_graphs, tokenizer, sentences, tmp_path):
    (tmp_path / "README.md").write_text("kept")
    model = build("bert", tokenizer)
    export_onnx(model, tokenizer, tmp_path, int8=False, texts=sentences, say=lambda line: None)
    assert (tmp_path / "README.md").read_text() == "kept"
    assert (tmp_path / "model.onnx").is_file()


@pytest.mark.parametrize(("limit", "is_said"), [(-1.0, True), (0.1, False)])
def test_a_loss_that_grows_much_in_int8_is_said(
    quick_graphs, monkeypatch, tokenizer, sentences, tmp_path, limit, is_said
):
    monkeypatch.setattr(export_module, "_NOTABLE_LOSS", limit)
    lines: list[str] = []
    model = build("bert", tokenizer)
    export_onnx(model, tokenizer, tmp_path / "out", int8=True, texts=sentences, say=lines.append)
    assert any("nats of held-out loss, which is much" in line for line in lines) == is_said


def test_large_weights_lie_beside_the_graph(monkeypatch, bert_file, tokenizer, tmp_path):
    for module in (onnx_graph, onnx_versions):
        monkeypatch.setattr(module, "LARGEST_FILE_BYTES", 1)
    save_graph(onnxscript.ir.load(bert_file), tmp_path / "model.onnx")
    quantize_graph(tmp_path / "model.onnx", tmp_path / "model_int8.onnx")
    halve_graph(tmp_path / "model.onnx", tmp_path / "model_fp16.onnx")
    assert {path.name for path in tmp_path.iterdir()} == {
        "model.onnx",
        "model.onnx_data",
        "model_int8.onnx",
        "model_int8.onnx_data",
        "model_fp16.onnx",
        "model_fp16.onnx_data",
    }
    model = build("bert", tokenizer).eval()
    names = names_of(model)
    check_graph(tmp_path / "model.onnx", model, MAX_LENGTH)
    inputs = list(build_inputs(names, model.vocab_size, MAX_LENGTH))[-1]
    full, *others = (answer_with_onnx(file)(inputs) for file in sorted(tmp_path.glob("*.onnx")))
    for other in others:
        assert np.corrcoef(full.ravel(), other.ravel())[0, 1] > 0.99


def test_int8_weights_keep_to_seven_bits(exported):
    for tensor in onnx.load(exported.folder / "model_int8.onnx").graph.initializer:
        if tensor.data_type == onnx.TensorProto.INT8:
            assert np.abs(onnx.numpy_helper.to_array(tensor).astype(int)).max() <= 64


def test_quantized_rows_are_within_half_a_step_of_the_table():
    table = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32) * np.arange(20)[:, None]
    rows, scales = quantize_rows(table.astype(np.float32))
    assert np.abs(rows).max() == 64
    assert (np.abs(rows * scales[:, None] - table) <= scales[:, None] * 0.501).all()
    assert not rows[0].any()


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_the_command_that_brings_it(monkeypatch, tokenizer, tmp_path, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=r"pip install 'maskwright\[export\]'"):
        export_onnx(build("bert", tokenizer), tokenizer, tmp_path / "o", int8=False, texts=["a"], say=lambda line: None)
