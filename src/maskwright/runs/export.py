"""Export a saved model, its fine-tuned task or its detector: from a name and a run to a folder that others read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maskwright.errors import InputError
from maskwright.export.card import (
    CARD_FILE,
    CardOptions,
    Origin,
    build_card,
)
from maskwright.export.huggingface import (
    build_detector_card,
    export_detector,
    export_huggingface,
    export_sentence_transformers,
    export_task_huggingface,
)
from maskwright.export.layout import check_layout
from maskwright.export.task_card import TaskOrigin, build_task_card, describe_task
from maskwright.models.files.model_folder import find_task_architecture, read_config, read_own_settings, resolve_folder
from maskwright.objectives.masked_lm import MaskedLanguageModel
from maskwright.objectives.token_detector import OTHERS_FILE, TokenDetector, as_electra
from maskwright.ownership import owning
from maskwright.runs.export_options import (
    GGUF,
    GRAPHS,
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
from maskwright.runs.export_origin import (
    ExportSource,
    choose_folder,
    copy_settings,
    find_source,
    read_origin,
    read_task_origin,
)
from maskwright.runs.folder import RunFolder
from maskwright.runs.model import load_model
from maskwright.runs.sentence_export import (
    EMBEDDINGS,
    is_for_embeddings,
)
from maskwright.runs.texts import Say, is_held_out
from maskwright.runs.vector_export import prepare_gguf, prepare_retriever, prepare_sentences, prepare_similarity
from maskwright.sections.data import DataConfig, SourceLike
from maskwright.storage import restore_folder, whole_folder, write_text
from maskwright.suggestions import OUT, OVERWRITE
from maskwright.tasks.heads import RETRIEVAL_PART
from maskwright.tasks.heads import SETTINGS_PART as SIMILARITY_SETTINGS
from maskwright.tasks.model import TaskModel
from maskwright.text.sources import read_python_documentation, read_sources
from maskwright.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from maskwright.version import __version__

if TYPE_CHECKING:
    pass

MARKER_FILE = "maskwright_export.json"
"""Marks a folder as an export, with its measurements; only such a folder is ever replaced."""
_MOST_TEXTS = 2_000
"""The number of texts to compare on; the rest of a large corpus is not read."""


def export_model(name: str, options: ExportOptions, say: Say) -> Path:
    """Export a model and return the folder, which appears only when it is complete and verified."""
    source = find_source(resolve_folder(name))
    folder = options.out or choose_folder(name, source, options.target)
    with owning(folder, say=say):
        _write_export(name, source, folder, options, say)
    return folder


def _write_export(name: str, source: ExportSource, folder: Path, options: ExportOptions, say: Say) -> None:
    _check_replaceable(folder, options.overwrite)
    config = read_config(source.folder)
    is_similarity = bool(read_own_settings(config, SIMILARITY_SETTINGS))
    if is_similarity and options.target == HUGGING_FACE:
        raise InputError(
            f"{source.folder} was fine-tuned for similarity, which is not a class of transformers; export it --to"
            f" {SENTENCE_TRANSFORMERS}, or --to {ONNX}"
        )
    if read_own_settings(config, RETRIEVAL_PART) and not is_similarity:
        write = prepare_retriever(source, options)
    elif is_similarity and options.target == SENTENCE_TRANSFORMERS:
        write = prepare_similarity(source, options)
    else:
        write = _choose_writer(name, config, source, options)
    texts = _read_texts(options.texts)
    if read_own_settings(config, "sentence_pairs") and not _gives_vectors(source, options):
        say("the head for pairs of sentences stays behind; the encoder and the head for masked tokens are exported")
    with _opening_library(options, say) as library, whole_folder(folder) as temporary:
        say(f"exporting {name} to {folder}")
        figures = write(temporary, folder.resolve().name, texts, say)
        if library is not None:
            from maskwright.export.web import write_page

            write_page(temporary, folder.resolve().name, library)
        check_layout(temporary, options.target)
        marker = {"maskwright": __version__, "to": options.target, "figures": figures}
        write_text(temporary / MARKER_FILE, json.dumps(marker, indent=2) + "\n")


@contextmanager
def _opening_library(options: ExportOptions, say: Say) -> Iterator[Path | None]:
    """Transformers.js for a page; None: the export is none."""
    if options.target != WEB:
        yield None
        return
    from maskwright.export.web import open_library

    with open_library(options.transformers_js, say) as library:
        yield library


def is_exported(run: RunFolder, target: str = HUGGING_FACE) -> bool:
    """Whether a run's export lies where `export_model` puts it."""
    name = str(run.path)
    folder = choose_folder(name, find_source(resolve_folder(name)), target)
    restore_folder(folder)
    return (folder / MARKER_FILE).is_file()


def _choose_writer(name: str, config: Mapping[str, Any], source: ExportSource, options: ExportOptions) -> Write:
    if options.target == GGUF:
        return prepare_gguf(config, source, options)
    if _gives_vectors(source, options):
        return prepare_sentences(source, options)
    if find_task_architecture(config):
        return _prepare_task(source, options)
    # The encoder alone goes to sentence-transformers, however it was trained.
    if holds_detector(source.folder) and options.target != SENTENCE_TRANSFORMERS:
        return _prepare_detector(source, options)
    return _prepare(name, source, options)


def _gives_vectors(source: ExportSource, options: ExportOptions) -> bool:
    """Whether an export is for embeddings: because it is asked for, or the model or the format can do nothing else."""
    if options.target == GGUF:
        return True
    if options.target not in GRAPHS or options.purpose is not None:
        return options.purpose == EMBEDDINGS
    return not holds_detector(source.folder) and is_for_embeddings(source.folder)


def _prepare_detector(source: ExportSource, options: ExportOptions) -> Write:
    """The writer of a detector of replaced tokens."""
    detector = load_detector(source.folder, options.target, HUGGING_FACE)
    tokenizer, origin = load_tokenizer(source.folder), read_origin(source)

    def write(folder: Path, name: str, texts: Sequence[str], say: Say) -> dict[str, Any]:
        return write_detector_folder(detector, tokenizer, folder, name, source.run, origin, options.card, texts, say)

    return write


def _prepare_task(source: ExportSource, options: ExportOptions) -> Write:
    """The writer of a fine-tuned model, which is loaded and found fit first."""
    check_task_target(options.target, (HUGGING_FACE, ONNX, WEB))
    model, tokenizer = TaskModel.from_pretrained(source.folder), load_tokenizer(source.folder)

    def write(folder: Path, name: str, texts: Sequence[str], say: Say) -> dict[str, Any]:
        origin = read_task_origin(source.run, is_checkpoint=source.checkpoint is not None)
        if options.target in GRAPHS:
            from maskwright.export.task_onnx import export_task_onnx

            place = place_graphs(folder, options)
            figures = export_task_onnx(model, tokenizer, place, **options.versions, texts=texts, say=say)
            write_onnx_card(folder, name, model, describe_task(model, origin), figures, source, options)
            return figures
        return write_task_folder(model, tokenizer, folder, name, source.run, origin, options.card, texts, say)

    return write


def _prepare(name: str, source: ExportSource, options: ExportOptions) -> Write:
    """The same of a language model."""
    model, tokenizer = load_model(name, needs_head=options.target != SENTENCE_TRANSFORMERS)

    def write(folder: Path, name: str, texts: Sequence[str], say: Say) -> dict[str, Any]:
        return _write(model, tokenizer, folder, name, source, options, texts, say)

    return write


def _write(
    model: MaskedLanguageModel,
    tokenizer: Tokenizer,
    folder: Path,
    name: str,
    source: ExportSource,
    options: ExportOptions,
    texts: Sequence[str],
    say: Say,
) -> dict[str, Any]:
    """Fill the folder, which will be called `name`; the figures of the comparison."""
    if options.target in GRAPHS:
        from maskwright.export.onnx import export_onnx

        place = place_graphs(folder, options)
        figures = export_onnx(model, tokenizer, place, **options.versions, texts=texts, say=say)
        facts = describe_run(model.encoder, read_origin(source))
        write_onnx_card(folder, name, model, facts, figures, source, options)
        return figures
    for_sentences = options.target == SENTENCE_TRANSFORMERS
    export = export_sentence_transformers if for_sentences else export_huggingface
    comparison = export(model, tokenizer, folder, texts=texts, say=say)
    origin = read_origin(source)
    card = build_card(name, model, tokenizer, origin, comparison, options.card, for_sentences)
    write_text(folder / CARD_FILE, card)
    copy_settings(source.run, folder)
    return asdict(comparison)


def _check_replaceable(folder: Path, overwrite: bool) -> None:
    restore_folder(folder)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder} is a file; choose another {OUT}")
    if not any(folder.iterdir()):
        return
    if not (folder / MARKER_FILE).is_file():
        raise InputError(f"{folder} exists and is not an export; choose another {OUT}")
    if not overwrite:
        raise InputError(f"{folder} holds an export; choose another {OUT}, or add {OVERWRITE} to replace it")


def _read_texts(sources: Sequence[SourceLike]) -> list[str]:
    if sources:
        return list(islice(read_sources(list(sources)), _MOST_TEXTS))
    share = DataConfig().validation_share
    return [text for text in read_python_documentation() if is_held_out(text, share)]


def write_task_folder(
    model: TaskModel,
    tokenizer: Tokenizer,
    folder: Path,
    name: str,
    run: RunFolder | None,
    origin: TaskOrigin,
    card: CardOptions,
    texts: Sequence[str],
    say: Say,
) -> dict[str, Any]:
    """Fill the folder, which will be called `name`; the figures of the comparison."""
    comparison = export_task_huggingface(model, tokenizer, folder, texts=texts, say=say)
    write_text(folder / CARD_FILE, build_task_card(name, model, origin, comparison, card))
    copy_settings(run, folder)
    return asdict(comparison)


def holds_detector(folder: Path) -> bool:
    return (folder / OTHERS_FILE).is_file()


def load_detector(folder: Path, target: str, known: str) -> TokenDetector:
    """The detector of a model folder, if `target` is the `known` one and its layout has a place for the encoder."""
    if target != known:
        raise InputError(
            f"{folder} was trained with training.mode=rtd to find replaced tokens, which --to {target} does not hold;"
            f" export it --to {known}, or fine-tune it for a task and export that"
        )
    detector = TokenDetector.from_pretrained(folder)
    as_electra(detector.encoder)
    return detector


def write_detector_folder(
    detector: TokenDetector,
    tokenizer: Tokenizer,
    folder: Path,
    name: str,
    run: RunFolder | None,
    origin: Origin,
    card: CardOptions,
    texts: Sequence[str],
    say: Say,
) -> dict[str, Any]:
    """Fill the folder, which will be called `name`; the figures of the comparison."""
    say("the generator stays behind; the detector of replaced tokens is exported as ElectraForPreTraining")
    comparison = export_detector(detector, tokenizer, folder, texts=texts, say=say)
    write_text(folder / CARD_FILE, build_detector_card(name, detector, origin, comparison, card))
    copy_settings(run, folder)
    return asdict(comparison)
