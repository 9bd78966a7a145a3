"""Export the encoder of any model to ONNX for embeddings: from a model folder to a graph that gives vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.errors import InputError
from maskwright.export.onnx_graph import SentenceEncoder
from maskwright.inference.embed import Embed
from maskwright.inference.loading import LoadedEncoder, load_text_encoder, read_sentence_settings
from maskwright.inference.runner import run_windows
from maskwright.models.any_encoder import find_hidden_size, find_max_length, name_encoder
from maskwright.models.encoder import PackedEncoder, describe_encoder
from maskwright.models.files.model_folder import find_task_architecture, read_config, read_own_settings
from maskwright.models.files.sentence_modules import describe_pooling
from maskwright.objectives.masked_lm import CausalLanguageModel, find_objective
from maskwright.objectives.mlm_files import lacks_head
from maskwright.objectives.saving import ModelFiles, name_special_ids
from maskwright.runs.texts import Say
from maskwright.tasks.heads import SETTINGS_PART as SIMILARITY_SETTINGS

EMBEDDINGS, MASKS = "embed", "fill-mask"
PURPOSES = (EMBEDDINGS, MASKS)


def is_for_embeddings(folder: Path) -> bool:
    """Whether a model folder was made for vectors of texts, or holds an encoder that can do nothing else."""
    if read_own_settings(read_config(folder), SIMILARITY_SETTINGS) or read_sentence_settings(folder) is not None:
        return True
    return find_task_architecture(read_config(folder)) is None and lacks_head(folder)


def load_sentence_encoder(folder: Path, what: str = "a graph") -> LoadedEncoder:
    """The encoder of a model folder, if `what` is written can hold how its tokens see each other."""
    if find_objective(read_config(folder)) is CausalLanguageModel:
        raise InputError(
            f"{folder} continues text (training.mode=clm), where a token sees what comes before it; {what}"
            " for embeddings sees both sides, so it would compute other vectors"
        )
    return load_text_encoder(folder)


def prepare_sentence_graph(
    loaded: LoadedEncoder, source: Path, say: Say, what: str = "a graph"
) -> tuple[SentenceEncoder, ModelFiles]:
    """The encoder with its pooling, and the files that describe both to others; `what` is written of them."""
    settings, tokenizer = loaded.settings, loaded.tokenizer
    if settings.pooling == "none":
        raise InputError(f"{source} gives a vector to each token; {what} for embeddings needs pooling mean or cls")
    lengths = [one for one in (settings.max_length, find_max_length(loaded.encoder)) if one is not None]
    max_length = min(lengths, default=None)
    if max_length is not None and (tokenizer.model_max_length is None or tokenizer.model_max_length > max_length):
        tokenizer.model_max_length = max_length  # there is no other place for what its vectors were made for
    pooling = describe_pooling(find_hidden_size(loaded.encoder), settings.pooling, max_length, settings.normalize)
    if settings.prompt or settings.lowercases:
        change = f"puts '{settings.prompt}' before each text" if settings.prompt else "lowers the case of each text"
        say(f"{source} {change}, which {what} cannot; sentence-transformers does, elsewhere do so before you tokenize")
    pooling["sentence_bert_config.json"]["do_lower_case"] = settings.lowercases
    if settings.prompt:
        prompts = {"prompts": {"default": settings.prompt}, "default_prompt_name": "default"}
        pooling["config_sentence_transformers.json"] |= prompts
    model = SentenceEncoder(loaded.encoder.float(), settings.pooling, settings.normalize)
    return model, ModelFiles(_describe(loaded, source), pooling)


def write_sentence_onnx(
    model: SentenceEncoder,
    files: ModelFiles,
    loaded: LoadedEncoder,
    folder: Path,
    *,
    int8: bool,
    fp16: bool,
    texts: Sequence[str],
    say: Say,
) -> dict[str, Any]:
    """Fill the folder with the graph and what it needs; the figures of the comparison."""
    from maskwright.export.sentence_onnx import export_sentence_onnx

    return export_sentence_onnx(
        model,
        loaded.tokenizer,
        folder,
        files,
        int8=int8,
        fp16=fp16,
        texts=texts,
        embed=build_embed(loaded),
        say=say,
    )


def _describe(loaded: LoadedEncoder, source: Path) -> dict[str, Any]:
    """config.json of the encoder alone."""
    if isinstance(loaded.encoder, PackedEncoder):
        config = describe_encoder(loaded.encoder, with_head=False)
        return config | name_special_ids(loaded.tokenizer, with_ends=True)
    return read_config(source) | {"architectures": [name_encoder(loaded.encoder)]}


def build_embed(loaded: LoadedEncoder) -> Callable[[Sequence[Sequence[int]]], NDArray[np.float32]]:
    """Vectors of texts given by their ids, whatever their length."""
    kind = Embed(loaded.encoder, loaded.tokenizer, replace(loaded.settings, max_length=None))
    return lambda rows: _embed_ids(kind, rows)


def _embed_ids(kind: Embed, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    prepared = kind.prepare_ids(rows)
    windows = run_windows(
        kind.encoder,
        (sample for one in prepared for sample in one.samples),
        kind.reduce,
        pad_token_id=kind.pad_token_id,
        model=kind.module,
    )
    reduced = [[vector] for window in windows for vector in window]
    return np.stack(kind.answer_all(list(zip(prepared, reduced, strict=True)))).astype(np.float32)
