"""GGUF files: what llama.cpp needs to compute the same vectors, and what it could not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from maskwright.errors import InputError
from maskwright.export.gguf import read_tensors
from maskwright.export.llama_cpp import refuse_for_gguf
from maskwright.models.bert import BERT
from maskwright.models.distilbert import DistilBERT
from maskwright.models.encoder import PackedEncoder
from maskwright.models.files.model_folder import write_small_files
from maskwright.models.files.sentence_modules import describe_pooling
from maskwright.models.modernbert import ModernBERT
from maskwright.models.mpnet import MPNet
from maskwright.models.roberta import RoBERTa
from maskwright.tasks.heads import build_sequence_head
from maskwright.tasks.model import TaskModel
from maskwright.tasks.sequence.classification import Classification
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.text.tokenizer.train import train_tokenizer

Command = Callable[..., Any]
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
MAX_LENGTH = 24


def save(encoder: PackedEncoder, tokenizer: Tokenizer, folder: Path, pooling: Any = "mean") -> Path:
    """A folder of sentence-transformers."""
    torch.manual_seed(0)
    with torch.no_grad():
        for param in encoder.parameters():
            param.add_(torch.randn_like(param) * 0.1)
    encoder.save_pretrained(folder)
    tokenizer.save(folder)
    write_small_files(folder, describe_pooling(encoder.hidden_size, pooling, MAX_LENGTH, True))
    return folder


@pytest.fixture(scope="module")
def byte_level(sentences: list[str]) -> Tokenizer:
    return train_tokenizer(sentences, "byte_level_bpe", 320, lowercase=False)


def export(command: Command, source: Path, corpus_file: Path, *more: object) -> tuple[dict[str, Any], Any]:
    """The keys and tensors of model.gguf."""
    out = source.with_name("out")
    result = command("export", source, "--to", "gguf", "--out", out, "--text", corpus_file, *more)
    assert (result.code, result.err) == (0, "")
    gguf = pytest.importorskip("gguf", reason="reads what was written")
    fields = gguf.GGUFReader(out / "model.gguf").fields
    return {name: field.contents() for name, field in fields.items()}, read_tensors(out / "model.gguf")


def test_a_bert_is_written_with_its_wordpiece_tokenizer(
    command: Command, tokenizer: Tokenizer, corpus_file: Path, tmp_path: Path
) -> None:
    encoder = BERT.from_variant("tiny", vocab_size=tokenizer.vocab_size + 3, max_position_embeddings=40, **SHAPE)
    source = save(encoder, tokenizer, tmp_path / "source", "cls")
    keys, tensors = export(command, source, corpus_file, "--fp16", "--int8", "--license", "apache-2.0")
    assert keys["general.architecture"] == "bert"
    assert keys["general.license"] == "apache-2.0"
    assert (keys["bert.context_length"], keys["bert.pooling_type"], keys["bert.block_count"]) == (MAX_LENGTH, 2, 2)
    assert keys["bert.attention.layer_norm_epsilon"] == pytest.approx(1e-12)
    assert keys["bert.attention.causal"] is False
    state = encoder.state_dict()
    np.testing.assert_array_equal(tensors["position_embd.weight"], state["embeddings.position.weight"][:MAX_LENGTH])
    np.testing.assert_array_equal(tensors["blk.1.attn_k.weight"], state["layers.1.attention.qkv.weight"][32:64])
    np.testing.assert_array_equal(tensors["blk.0.attn_v.bias"], state["layers.0.attention.qkv.bias"][64:])
    assert sum(one.size for one in tensors.values()) == sum(one.numel() for one in state.values()) - 16 * 32

    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    for number, token in enumerate(map(tokenizer.token, range(tokenizer.vocab_size))):
        if number in tokenizer.all_special_ids:
            assert (tokens[number], types[number]) == (token, 3)
        else:
            assert (tokens[number], types[number]) == (token[2:] if token.startswith("##") else f"▁{token}", 1)
    assert tokens[-3:] == [f"[PAD{tokenizer.vocab_size + number}]" for number in range(3)]
    assert types[-3:] == [5] * 3
    assert len(set(tokens)) == len(tokens)
    ids = {role: keys[f"tokenizer.ggml.{role}_token_id"] for role in ("bos", "seperator", "unknown", "padding", "mask")}
    assert [*ids.values()] == [getattr(tokenizer, f"{role}_token_id") for role in ("cls", "sep", "unk", "pad", "mask")]
    assert keys["tokenizer.ggml.normalizer.lowercase"] is keys["tokenizer.ggml.normalizer.strip_accents"] is True

    out = tmp_path / "out"
    small = {name: read_tensors(out / f"model_{name}.gguf") for name in ("fp16", "int8")}
    name = "blk.0.ffn_up.weight"
    np.testing.assert_array_equal(small["fp16"][name], tensors[name].astype(np.float16).astype(np.float32))
    assert 0 < np.abs(small["int8"][name] - tensors[name]).max() <= np.abs(tensors[name]).max() / 127
    np.testing.assert_array_equal(small["int8"]["position_embd.weight"], tensors["position_embd.weight"])
    versions = json.loads((out / "maskwright_export.json").read_text())["figures"]["versions"]
    assert versions.keys() == {"model.gguf", "model_fp16.gguf", "model_int8.gguf"}
    assert 0.999 < versions["model.gguf"]["smallest_cosine"] < 1.00001
    assert versions["model_int8.gguf"]["size_bytes"] < versions["model.gguf"]["size_bytes"] / 2
    card = (out / "README.md").read_text()
    assert "| `model_int8.gguf` |" in card
    assert "Texts of at most 24 tokens" in card


def test_a_modernbert_is_written_with_its_byte_level_bpe(
    command: Command, byte_level: Tokenizer, corpus_file: Path, tmp_path: Path
) -> None:
    encoder = ModernBERT.from_variant(
        "tiny", vocab_size=byte_level.vocab_size, max_position_embeddings=40, local_attention=8, **SHAPE
    )
    keys, tensors = export(command, save(encoder, byte_level, tmp_path / "source"), corpus_file)
    assert keys["general.architecture"] == "modern-bert"
    window = [keys[f"modern-bert.attention.sliding_window{end}"] for end in ("", "_pattern")]
    assert window == [8, encoder.config.global_attn_every_n_layers]
    assert keys["modern-bert.rope.freq_base"] == 160_000
    assert keys["tokenizer.ggml.tokens"] == [byte_level.token(number) for number in range(byte_level.vocab_size)]
    merges = json.loads(byte_level.backend.to_str())["model"]["merges"]
    assert keys["tokenizer.ggml.merges"] == [" ".join(one) for one in merges]
    assert "blk.0.attn_norm.weight" not in tensors
    np.testing.assert_array_equal(tensors["blk.1.attn_norm.weight"], encoder.layers[1].attention_norm.weight.detach())
    np.testing.assert_array_equal(tensors["blk.0.ffn_up.weight"], encoder.layers[0].up.weight.detach())


@pytest.mark.parametrize("encoder_class", [RoBERTa, DistilBERT])
def test_positions_begin_at_the_first_that_a_token_reads(
    command: Command, byte_level: Tokenizer, corpus_file: Path, tmp_path: Path, encoder_class: type[BERT]
) -> None:
    sizes = {**SHAPE, "max_position_embeddings": 40, "pad_token_id": byte_level.pad_token_id}
    encoder = encoder_class.from_variant("tiny", vocab_size=byte_level.vocab_size, **sizes)
    keys, tensors = export(command, save(encoder, byte_level, tmp_path / "source"), corpus_file)
    first = encoder.first_position
    table = encoder.embeddings.position.weight.detach()
    np.testing.assert_array_equal(tensors["position_embd.weight"], table[first : first + MAX_LENGTH])
    assert keys["general.architecture"] == "bert"
    assert ("token_types.weight" in tensors) == (encoder_class is RoBERTa)


def test_what_llama_cpp_cannot_run_is_refused_with_all_reasons(
    tokenizer: Tokenizer, byte_level: Tokenizer, sentences: list[str]
) -> None:
    refused = {
        "it has no architecture for MPNet": (MPNet, {}, tokenizer),
        "its activation is relu, theirs is gelu": (BERT, {"hidden_act": "relu"}, tokenizer),
        "its norms are rms_norm": (BERT, {"normalization_type": "rms_norm"}, tokenizer),
        "its norms have biases": (ModernBERT, {"norm_bias": True}, byte_level),
        "its local_rope_theta is 500, theirs is 10000": (ModernBERT, {"local_rope_theta": 500.0}, byte_level),
        "its tokenizer is Unigram": (BERT, {}, train_tokenizer(sentences, "unigram", 120)),
        r"changes texts first \(Lowercase\)": (BERT, {}, train_tokenizer(sentences, "byte_level_bpe", 300)),
    }
    for reason, (kind, settings, given) in refused.items():
        encoder = kind.from_variant("tiny", vocab_size=given.vocab_size, **SHAPE, **settings)
        with pytest.raises(InputError, match=f"^llama.cpp cannot run this model from GGUF: .*{reason}"):
            refuse_for_gguf(encoder, given)


def test_a_model_for_a_task_is_refused(command: Command, tokenizer: Tokenizer, tmp_path: Path) -> None:
    encoder, task = BERT.from_variant("tiny", vocab_size=tokenizer.vocab_size, **SHAPE), Classification(["a", "b"])
    model = TaskModel(encoder, build_sequence_head(encoder, task.num_outputs, {}), task)
    model.save_pretrained(tmp_path / "model", tokenizer)
    command("export", tmp_path / "model", "--to", "gguf", "--out", tmp_path / "out").assert_refused(
        "--to gguf holds an encoder"
    )
    assert not (tmp_path / "out").exists()
