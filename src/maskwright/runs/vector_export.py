"""Exports of models that turn texts into vectors: encoders of sentences, similarity models and retrievers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from maskwright.errors import InputError
from maskwright.export.card import CARD_FILE
from maskwright.export.task_card import describe_task
from maskwright.models.files.model_folder import find_task_architecture
from maskwright.runs.export_options import (
    HUGGING_FACE,
    ONNX,
    SENTENCE_TRANSFORMERS,
    WEB,
    ExportOptions,
    Write,
    check_task_target,
    describe_run,
    place_graphs,
    write_onnx_card,
)
from maskwright.runs.export_origin import ExportSource, copy_settings, read_origin, read_task_origin
from maskwright.runs.sentence_export import (
    build_embed,
    is_for_embeddings,
    load_sentence_encoder,
    prepare_sentence_graph,
    write_sentence_onnx,
)
from maskwright.runs.texts import Say
from maskwright.storage import write_text
from maskwright.tasks.model import TaskModel
from maskwright.text.tokenizer.tokenizer import load_tokenizer


def prepare_sentences(source: ExportSource, options: ExportOptions) -> Write:
    """The writer of an encoder for embeddings, which is loaded and found fit first."""
    loaded, origin = load_sentence_encoder(source.folder), read_origin(source)

    def write(folder: Path, name: str, texts: Sequence[str], say: Say) -> dict[str, Any]:
        model, files = prepare_sentence_graph(loaded, source.folder, say)
        place = place_graphs(folder, options)
        figures = write_sentence_onnx(model, files, loaded, place, **options.versions, texts=texts, say=say)
        write_onnx_card(folder, name, model, describe_run(loaded.encoder, origin), figures, source, options)
        return figures

    return write


def prepare_gguf(config: Mapping[str, Any], source: ExportSource, options: ExportOptions) -> Write:
    """The writer of an encoder for llama.cpp, which is found fit first."""
    from maskwright.export.gguf import build_gguf_card, check_can_export, export_gguf
    from maskwright.export.llama_cpp import refuse_for_gguf

    check_can_export()
    if find_task_architecture(config) and not is_for_embeddings(source.folder):
        check_task_target(options.target, (HUGGING_FACE, ONNX, WEB))
    loaded, origin = load_sentence_encoder(source.folder, "a GGUF file"), read_origin(source)
    refuse_for_gguf(loaded.encoder, loaded.tokenizer)

    def write(folder: Path, name: str, texts: Sequence[str], say: Say) -> dict[str, Any]:
        model, _ = prepare_sentence_graph(loaded, source.folder, say, "a GGUF file")
        max_length = loaded.tokenizer.model_max_length
        assert max_length is not None  # which has just been set
        figures = export_gguf(
            model,
            loaded.tokenizer,
            folder,
            name,
            **options.versions,
            max_length=max_length,
            texts=texts,
            embed=lambda encoder, rows: build_embed(replace(loaded, encoder=encoder))(rows),
            card=options.card,
            say=say,
        )
        facts = describe_run(loaded.encoder, origin)
        write_text(folder / CARD_FILE, build_gguf_card(name, model, facts, figures, options.card))
        copy_settings(source.run, folder)
        return figures

    return write


def prepare_similarity(source: ExportSource, options: ExportOptions) -> Write:
    """The writer of a model for similarity, whose own folder is nearly one of sentence-transformers."""
    model, loaded = TaskModel.from_pretrained(source.folder), load_sentence_encoder(source.folder)

    def write(folder: Path, name: str, texts: Sequence[str], say: Say) -> dict[str, Any]:
        from maskwright.export.similarity import build_similarity_card, export_similarity

        graph, _ = prepare_sentence_graph(loaded, source.folder, say)
        embed = build_embed(loaded)
        comparison = export_similarity(model, graph, loaded.tokenizer, folder, texts=texts, embed=embed, say=say)
        origin = read_task_origin(source.run, is_checkpoint=source.checkpoint is not None)
        card = build_similarity_card(name, model, graph, origin, comparison, options.card)
        write_text(folder / CARD_FILE, card)
        copy_settings(source.run, folder)
        return asdict(comparison)

    return write


def prepare_retriever(source: ExportSource, options: ExportOptions) -> Write:
    """The writer of a retriever of other than one vector, whose own folder is nearly one of sentence-transformers."""
    if options.target == ONNX:
        return _prepare_retriever_graph(source, options)
    if options.target != SENTENCE_TRANSFORMERS:
        raise InputError(
            f"{source.folder} is a retriever that gives other than one vector to a text, which --to {options.target}"
            f" does not hold; export it --to {SENTENCE_TRANSFORMERS} or --to {ONNX}"
        )
    model, tokenizer = TaskModel.from_pretrained(source.folder), load_tokenizer(source.folder)

    def write(folder: Path, name: str, texts: Sequence[str], say: Say) -> dict[str, Any]:
        from maskwright.export.retriever import build_retriever_card, export_retriever

        comparison = export_retriever(model, tokenizer, folder, texts=texts, say=say)
        origin = read_task_origin(source.run, is_checkpoint=source.checkpoint is not None)
        write_text(folder / CARD_FILE, build_retriever_card(name, model, origin, comparison, options.card))
        copy_settings(source.run, folder)
        return asdict(comparison)

    return write


def _prepare_retriever_graph(source: ExportSource, options: ExportOptions) -> Write:
    if options.purpose is not None:
        raise InputError(f"--for is for encoders, and {source.folder} is a retriever of its own kind; leave it out")
    model, tokenizer = TaskModel.from_pretrained(source.folder), load_tokenizer(source.folder)

    def write(folder: Path, name: str, texts: Sequence[str], say: Say) -> dict[str, Any]:
        from maskwright.export.retriever import describe_texts
        from maskwright.export.task_onnx import export_task_onnx

        figures = export_task_onnx(model, tokenizer, folder, **options.versions, texts=texts, say=say)
        facts = describe_task(model, read_task_origin(source.run, is_checkpoint=source.checkpoint is not None))
        facts = {"Queries and documents": describe_texts(model)} | {
            key: facts[key] for key in ("Fine-tuning", "Figures")
        }
        write_onnx_card(folder, name, model, facts, figures, source, options)
        return figures

    return write
