"""Every kind of file that is read, damaged at random: it is read or refused in a sentence, and nothing else happens."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from mutations import mutate
from pyarrow import parquet

from maskwright.config import load_config
from maskwright.errors import InputError, InputWarning
from maskwright.runs.folder import RunFolder
from maskwright.text.tokenizer.tokenizer import Tokenizer, load_tokenizer

_NUM_MUTATIONS, _NUM_SLOW_MUTATIONS = 30, 10_000
_LONGEST_MESSAGE = 2_000
"""One sentence; a path may be long."""


@dataclass(frozen=True)
class Kind:
    """A file in a folder that is whole, and what reads it."""

    build: Callable[[Samples, Path], Path]
    read: Callable[[Path], Any]


@dataclass(frozen=True)
class Samples:
    """What whole files are made of."""

    run: Path
    tokenizer: Tokenizer
    sentences: list[str]


@pytest.fixture(scope="module")
def samples(trained_run: Path, tokenizer: Tokenizer, sentences: list[str]) -> Samples:
    return Samples(trained_run, tokenizer, sentences[:8])


def _in_run(name: str) -> Callable[[Samples, Path], Path]:
    def build(samples: Samples, folder: Path) -> Path:
        shutil.copytree(samples.run, folder / "run")
        return folder / "run" / name

    return build


def _beside_config(name: str) -> Callable[[Samples, Path], Path]:
    """Of a run whose own configuration is short, as it is read every time."""

    def build(samples: Samples, folder: Path) -> Path:
        (folder / "config.yaml").write_text("training: {log_every_steps: 4}\n")
        shutil.copy(samples.run / name, folder)
        return folder / name

    return build


def _in_model(name: str) -> Callable[[Samples, Path], Path]:
    def build(samples: Samples, folder: Path) -> Path:
        for copy in ("model", "whole"):
            shutil.copytree(samples.run / "model", folder / copy)
        return folder / "model" / name

    return build


def _written(name: str, convert: Callable[[Samples], bytes]) -> Callable[[Samples, Path], Path]:
    def build(samples: Samples, folder: Path) -> Path:
        (folder / name).write_bytes(convert(samples))
        return folder / name

    return build


def _lines(samples: Samples) -> bytes:
    return "\n".join(samples.sentences).encode()


def _records(samples: Samples) -> list[dict[str, Any]]:
    return [
        {"text": text, "other": text[::-1], "label": "ab"[number % 2], "score": 0.5 * number}
        for number, text in enumerate(samples.sentences)
    ]


def _json_lines(samples: Samples) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in _records(samples)).encode()


def _table(separator: str, names: str = "text other label score") -> Callable[[Samples], bytes]:
    def convert(samples: Samples) -> bytes:
        lines = [names.split(), *(map(str, record.values()) for record in _records(samples))]
        return "".join(separator.join(line) + "\n" for line in lines).encode()

    return convert


def _parquet(samples: Samples) -> bytes:
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(_records(samples)), buffer)
    return buffer.getvalue()


def _zstandard(samples: Samples) -> bytes:
    return bytes(pyarrow.compress(_lines(samples), "zstd", asbytes=True))


def _squad(samples: Samples) -> bytes:
    answers = [{"text": samples.sentences[0][:3], "answer_start": 0}]
    asked = [{"id": str(number), "question": "who?", "answers": answers} for number in range(2)]
    paragraphs = [{"context": samples.sentences[0], "qas": asked}]
    return json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}).encode()


def _conll(samples: Samples) -> bytes:
    return "\n\n".join(
        "\n".join(f"{word} {'B-X' if place == 0 else 'O'}" for place, word in enumerate(text.split()))
        for text in samples.sentences
    ).encode()


def _dump(samples: Samples) -> bytes:
    pages = "".join(
        f"<page><title>{number}</title><ns>0</ns><revision><model>wikitext</model><text>{text}</text></revision></page>"
        for number, text in enumerate(samples.sentences)
    )
    return f"<mediawiki><siteinfo><namespaces><namespace key='0' /></namespaces></siteinfo>{pages}</mediawiki>".encode()


def _read_texts(path: Path) -> None:
    from maskwright.text.sources import read_source

    for _ in read_source(str(path)):
        pass


def _read_labelled(path: Path) -> None:
    from maskwright.tasks.examples import ColumnNames, read_examples

    read_examples(path, ColumnNames())


def _read_task_file(task: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        from maskwright.tasks.config import build_task_config
        from maskwright.tasks.ner.examples import read_tagged_file
        from maskwright.tasks.qa.examples import read_questions
        from maskwright.tasks.similarity.examples import read_similarity

        readers: dict[str, Callable[..., Any]] = {
            "ner": read_tagged_file,
            "qa": read_questions,
            "similarity": read_similarity,
        }
        config = build_task_config({"task": task, "model": "m", "train": str(path), "validation": str(path)})
        readers[task](path, config)

    return read


def _read_model(path: Path) -> None:
    from maskwright.inference.loading import load_language_model

    load_language_model(path.parent)


def _read_tokenizer(path: Path) -> None:
    """Beside a model that is whole, and was read before."""
    from maskwright.inference.loading import load_language_model

    load_language_model(_load_model(path.parents[1] / "whole"), load_tokenizer(path.parent))


@cache
def _load_model(folder: Path) -> Any:
    from maskwright.objectives.masked_lm import MaskedLanguageModel

    return MaskedLanguageModel.from_pretrained(folder)


def _read_metrics(path: Path) -> None:
    run = RunFolder(path.parent)
    run.read_metrics()
    run.find_lost_metrics(4)


def _read_fingerprint(path: Path) -> None:
    RunFolder(path.parent).read_fingerprint()


def _read_checkpoint(path: Path) -> None:
    """The checksums are made to fit: damage that they find is another test's."""
    from maskwright.training.checkpoints import find_best, find_resumable

    checkpoint = next(folder for folder in path.parents if folder.name.startswith("step-"))
    file = checkpoint / "checksums.json"
    if path != file:
        checksums = json.loads(file.read_text())
        checksums[str(path.relative_to(checkpoint))] = hashlib.sha256(path.read_bytes()).hexdigest()
        file.write_text(json.dumps(checksums))
    find_resumable(checkpoint.parent)
    find_best(checkpoint.parent)


def _read_best(path: Path) -> None:
    from maskwright.training.checkpoints import find_best

    find_best(path.parent)


def _build_best(samples: Samples, folder: Path) -> Path:
    (folder / "best.json").write_text(json.dumps({"step": 4, "value": 2.5}))
    return folder / "best.json"


def _resume(path: Path) -> None:
    """Loads the checkpoint into a trainer, as a run does that goes on."""
    from maskwright.training.checkpoints import read_checkpoint

    _read_checkpoint(path)
    read_checkpoint(path.parent)


def _prepared(name: str) -> Callable[[Samples, Path], Path]:
    def build(samples: Samples, folder: Path) -> Path:
        from maskwright.runs.prepare import prepare
        from maskwright.runs.prepare_tasks import PrepareOptions
        from maskwright.sections.data import build_sources

        (folder / "texts.txt").write_bytes(_lines(samples))
        sources = build_sources(str(folder / "texts.txt"))
        prepare(sources, samples.tokenizer, folder / "out", PrepareOptions(validation_share=0.0), num_workers=1)
        return next((folder / "out").glob(name))

    return build


def _read_prepared(path: Path) -> None:
    from maskwright.data.shards import PreparedShards, is_prepared
    from maskwright.runs.prepare import describe_prepared

    folder = next(folder for folder in path.parents if folder.name == "out")
    if is_prepared(folder):
        shards = PreparedShards(folder, "train")
        for number in range(shards.num_shards):
            shards.store(number)
        describe_prepared(folder, 16)


def _word_files(name: str) -> Callable[[Samples, Path], Path]:
    def build(samples: Samples, folder: Path) -> Path:
        from maskwright.text.tokenizer.train import train_tokenizer

        if name == "vocab.txt":
            ids = samples.tokenizer.backend.get_vocab()
            words = sorted(ids, key=ids.__getitem__)
            (folder / name).write_text("\n".join(words))
        else:
            trained = train_tokenizer(samples.sentences, "byte_level_bpe", vocab_size=300)
            model = json.loads(trained.backend.to_str())["model"]
            (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
            (folder / "merges.txt").write_text("\n".join(" ".join(pair) for pair in model["merges"]))
        return folder / name

    return build


def _sentence_file(name: str) -> Callable[[Samples, Path], Path]:
    def build(samples: Samples, folder: Path) -> Path:
        from maskwright.runs.export import export_model
        from maskwright.runs.export_options import ExportOptions

        (folder / "texts.txt").write_bytes(_lines(samples))
        options = ExportOptions("sentence-transformers", folder / "sentences", texts=[str(folder / "texts.txt")])
        with pytest.MonkeyPatch.context() as patch:  # the library would be imported for a comparison alone
            patch.setattr("maskwright.export.huggingface.find_reader", lambda package: None)
            export_model(str(samples.run), options, lambda text: None)
        return folder / "sentences" / name

    return build


def _read_sentence_folder(path: Path) -> None:
    from maskwright.inference.loading import read_sentence_settings

    read_sentence_settings(path.parent if path.name == "modules.json" else path.parent.parent)


def _read_task_settings(path: Path) -> None:
    from maskwright.tasks.config import load_task_config

    load_task_config(path)


def _read_dump(path: Path) -> None:
    from maskwright.text.wiki.dump import WikiDump

    for _ in WikiDump(path).pages():
        pass


def _read_suite(name: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        from maskwright.evaluation.cloze import read_cloze
        from maskwright.evaluation.minimal_pairs import read_pairs

        {"pairs": read_pairs, "cloze": read_cloze}[name]([str(path)])

    return read


_TASK = b"task: classification\nmodel: m\ntrain: a.jsonl\nvalidation: b.jsonl\nepochs: 2\nlearning_rate: null\n"
_CONFIG = b"model:\n  family: bert\n  hidden_size: 32\ndata:\n  train: [a.txt, {path: b.jsonl, weight: 2}]\n"
_STEP = "checkpoints/step-10"

KINDS: dict[str, Kind] = {
    "configuration": Kind(_written("config.yaml", lambda _: _CONFIG), load_config),
    "run/config.yaml": Kind(_in_run("config.yaml"), load_config),
    "run/metrics.jsonl": Kind(_beside_config("metrics.jsonl"), _read_metrics),
    "run/final.json": Kind(_in_run("final.json"), lambda path: RunFolder(path.parent).read_final("loss")),
    "run/data.json": Kind(_in_run("data.json"), _read_fingerprint),
    "checkpoint/state.json": Kind(_in_run(f"{_STEP}/state.json"), _resume),
    "checkpoint/checksums.json": Kind(_in_run(f"{_STEP}/checksums.json"), _resume),
    "checkpoint/optimizer.safetensors": Kind(_in_run(f"{_STEP}/optimizer.safetensors"), _resume),
    "best.json": Kind(_build_best, _read_best),
    "task.yaml": Kind(_written("task.yaml", lambda _: _TASK), _read_task_settings),
    "model/config.json": Kind(_in_model("config.json"), _read_model),
    "model/model.safetensors": Kind(_in_model("model.safetensors"), _read_model),
    "model/tokenizer.json": Kind(_in_model("tokenizer.json"), _read_tokenizer),
    "model/tokenizer_config.json": Kind(_in_model("tokenizer_config.json"), _read_tokenizer),
    "model/special_tokens_map.json": Kind(_in_model("special_tokens_map.json"), _read_tokenizer),
    "vocab.txt": Kind(_word_files("vocab.txt"), load_tokenizer),
    "vocab.json": Kind(_word_files("vocab.json"), lambda path: load_tokenizer(path.parent)),
    "merges.txt": Kind(_word_files("merges.txt"), lambda path: load_tokenizer(path.parent)),
    "modules.json": Kind(_sentence_file("modules.json"), _read_sentence_folder),
    "pooling": Kind(_sentence_file("1_Pooling/config.json"), _read_sentence_folder),
    ".txt": Kind(_written("a.txt", _lines), _read_texts),
    ".txt in UTF-16": Kind(_written("a.txt", lambda samples: _lines(samples).decode().encode("utf-16")), _read_texts),
    ".txt.gz": Kind(_written("a.txt.gz", lambda samples: gzip.compress(_lines(samples), mtime=0)), _read_texts),
    ".txt.bz2": Kind(_written("a.txt.bz2", lambda samples: bz2.compress(_lines(samples))), _read_texts),
    ".txt.xz": Kind(_written("a.txt.xz", lambda samples: lzma.compress(_lines(samples))), _read_texts),
    ".txt.zst": Kind(_written("a.txt.zst", _zstandard), _read_texts),
    ".jsonl": Kind(_written("a.jsonl", _json_lines), _read_texts),
    ".csv": Kind(_written("a.csv", _table(",")), _read_texts),
    ".tsv": Kind(_written("a.tsv", _table("\t")), _read_texts),
    ".parquet": Kind(_written("a.parquet", _parquet), _read_texts),
    "labels in .jsonl": Kind(_written("a.jsonl", _json_lines), _read_labelled),
    "labels in .tsv": Kind(_written("a.tsv", _table("\t")), _read_labelled),
    "CoNLL": Kind(_written("a.conll", _conll), _read_task_file("ner")),
    "SQuAD": Kind(_written("a.json", _squad), _read_task_file("qa")),
    "similarity": Kind(_written("a.tsv", _table("\t", "text_a text_b label score")), _read_task_file("similarity")),
    "minimal pairs": Kind(
        _written("a.jsonl", lambda _: b'{"sentence_good": "a b.", "sentence_bad": "b a."}\n' * 3), _read_suite("pairs")
    ),
    "cloze": Kind(
        _written("a.jsonl", lambda _: b'{"masked_sentences": ["a [MASK]."], "obj_label": "b"}\n' * 3),
        _read_suite("cloze"),
    ),
    "wiki dump": Kind(_written("dump.xml", _dump), _read_dump),
    "wiki dump, bz2": Kind(_written("dump.xml.bz2", lambda samples: bz2.compress(_dump(samples))), _read_dump),
    "shards/manifest": Kind(_prepared("manifest.json"), _read_prepared),
    "shards/ids": Kind(_prepared("train/*.ids"), _read_prepared),
    "shards/lengths": Kind(_prepared("train/*.lengths"), _read_prepared),
}


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, samples: Samples, tmp_path: Path) -> tuple[Kind, Path]:
    kind = KINDS[request.param]
    return kind, kind.build(samples, tmp_path)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        yield


def test_the_whole_file_is_read(place: tuple[Kind, Path]) -> None:
    kind, path = place
    kind.read(path)


@pytest.mark.parametrize(
    "num_mutations",
    [_NUM_MUTATIONS, pytest.param(_NUM_SLOW_MUTATIONS, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])],
)
def test_a_mutated_file_is_read_or_refused(place: tuple[Kind, Path], num_mutations: int) -> None:
    kind, path = place
    whole, failures = path.read_bytes(), {}
    for seed in range(num_mutations):
        path.write_bytes(mutate(whole, seed))
        try:
            kind.read(path)
        except InputError as error:
            if "Traceback" in str(error) or len(str(error)) > _LONGEST_MESSAGE:
                failures[seed] = str(error)[:400]
        except BaseException as error:  # a panic of the tokenizers library is no Exception
            if isinstance(error, KeyboardInterrupt):
                raise
            failures[seed] = f"{type(error).__name__}: {str(error)[:400]}"
    assert failures == {}
