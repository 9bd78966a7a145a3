"""Preparation: the same shards however they are made, and never stale ones."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maskwright.data.shards import PreparedShards, ShardWriter
from maskwright.errors import InputError, RunError
from maskwright.runs import prepare as module
from maskwright.runs.prepare import describe_prepared, prepare
from maskwright.runs.prepare_tasks import PrepareOptions
from maskwright.sections.data import QualityConfig, build_sources
from maskwright.text.tokenizer.encode import TextEncoder
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.text.tokenizer.train import train_tokenizer

OPTIONS = PrepareOptions(validation_share=0.2, part_chars=400)


@pytest.fixture
def texts() -> list[str]:
    words = ["river", "stone", "bridge", "lamp", "garden", "winter", "paper", "engine", "harbour", "letter"]
    random = np.random.default_rng(0)
    return [" ".join(random.choice(words, random.integers(3, 12))) + f" {number}" for number in range(80)]


@pytest.fixture
def source(tmp_path: Path, texts: list[str]) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(texts), encoding="utf-8")
    return path


@pytest.fixture
def words(texts: list[str]) -> Tokenizer:
    return train_tokenizer(texts, "wordpiece", vocab_size=120)


def run(source: Path, tokenizer: Tokenizer, out: Path, options: PrepareOptions = OPTIONS, **kwargs: Any) -> Any:
    return prepare(build_sources(str(source)), tokenizer, out, options, **{"num_workers": 1, **kwargs})


def read_documents(folder: Path, split: str) -> list[list[int]]:
    shards = PreparedShards(folder, split)
    documents = []
    for number in range(shards.num_shards):
        store = shards.store(number)
        documents += [store.ids[a:b].tolist() for a, b in zip(store.offsets[:-1], store.offsets[1:], strict=True)]
    return documents


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_document_is_in_one_split_with_its_own_ids(tmp_path, source, texts, words):
    manifest = run(source, words, tmp_path / "out")
    train, validation = (read_documents(tmp_path / "out", split) for split in ("train", "validation"))
    assert sorted(train + validation) == sorted(words.encode_batch(texts))
    assert 4 <= len(validation) <= 30
    assert manifest["num_documents"] == len(texts)
    assert len(manifest["splits"]["train"]) > 3
    assert not list(tmp_path.glob(".*"))


def test_words_are_prepared_with_the_tokens(tmp_path, source, texts, words):
    run(source, words, tmp_path / "out")
    starts: dict[tuple[int, ...], list[int]] = {}
    for split in ("train", "validation"):
        shards = PreparedShards(tmp_path / "out", split)
        for store in map(shards.store, range(shards.num_shards)):
            flags = np.unpackbits(store.word_bits, count=store.num_tokens)
            for begin, end in zip(store.offsets[:-1], store.offsets[1:], strict=True):
                starts[tuple(store.ids[begin:end].tolist())] = flags[begin:end].tolist()
    for text, ids in zip(texts, words.encode_batch(texts), strict=True):
        assert starts[tuple(ids)] == [int(not words.token(token_id).startswith("##")) for token_id in ids]
        assert sum(starts[tuple(ids)]) == len(text.split())


def test_shards_with_words_are_hardly_larger_than_their_ids(tmp_path, source, words):
    run(source, words, tmp_path / "out", PrepareOptions(validation_share=0.0))
    info = PreparedShards(tmp_path / "out", "train").infos[0]
    num_documents_bytes = 2 * info.num_documents
    assert info.ids_dtype == "<u2"
    assert (info.num_bytes - num_documents_bytes) / (2 * info.num_tokens) < 1.07


def test_a_folder_of_an_earlier_version_is_replaced_only_when_asked(tmp_path, source, words):
    run(source, words, tmp_path / "out")
    manifest_file = tmp_path / "out" / "manifest.json"
    manifest = json.loads(manifest_file.read_text())
    manifest_file.write_text(json.dumps(manifest | {"format": 1, "key": "of the earlier version"}))
    with pytest.raises(InputError, match=r"prepared by another version of maskwright \(format 1, this one writes 2\)"):
        run(source, words, tmp_path / "out")
    run(source, words, tmp_path / "out", overwrite=True)
    assert json.loads(manifest_file.read_text())["key"] == manifest["key"]


def test_the_number_of_workers_changes_nothing(tmp_path, source, words):
    run(source, words, tmp_path / "one", num_workers=1)
    run(source, words, tmp_path / "two", num_workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_what_is_prepared_is_not_prepared_again(tmp_path, source, words, monkeypatch):
    run(source, words, tmp_path / "out")
    before = contents(tmp_path / "out")
    monkeypatch.setattr(TextEncoder, "encode", None)
    said: list[str] = []
    run(source, words, tmp_path / "out", say=said.append)
    assert contents(tmp_path / "out") == before
    assert "already prepared" in said[0]


def change_text(source: Path) -> dict[str, Any]:
    source.write_text(source.read_text().replace("river", "rival"))
    return {}


def change_options(source: Path) -> dict[str, Any]:
    return {"options": PrepareOptions(validation_share=0.3, part_chars=400)}


def change_parts(source: Path) -> dict[str, Any]:
    return {"options": PrepareOptions(validation_share=0.2, part_chars=500)}


def change_quality(source: Path) -> dict[str, Any]:
    return {"options": PrepareOptions(validation_share=0.2, part_chars=400, quality=QualityConfig(min_words=6))}


def change_tokenizer(source: Path) -> dict[str, Any]:
    return {"tokenizer": train_tokenizer(source.read_text().splitlines(), "wordpiece", vocab_size=90)}


CHANGES = [change_text, change_options, change_parts, change_quality, change_tokenizer]


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_is_refused_without_overwrite_and_done_anew_with_it(
    tmp_path, source, words, change: Callable[[Path], dict[str, Any]]
):
    run(source, words, tmp_path / "out")
    before = contents(tmp_path / "out")
    arguments = {"source": source, "tokenizer": words, "options": OPTIONS, **change(source)}
    with pytest.raises(InputError, match=r"was prepared with other (sources|tokenizer_sha256|options)"):
        run(out=tmp_path / "out", **arguments)
    assert contents(tmp_path / "out") == before
    run(out=tmp_path / "out", overwrite=True, **arguments)
    run(out=tmp_path / "fresh", **arguments)
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


@pytest.mark.parametrize("change", [None, *CHANGES])
def test_an_interrupted_preparation_goes_on_only_with_the_same_input(tmp_path, source, words, monkeypatch, change):
    encoded: list[str] = []
    original = TextEncoder.encode

    def stop_after_a_while(self, batches):
        for result in original(self, batches):
            if len(encoded) > 30:
                raise KeyboardInterrupt
            encoded.extend(result.texts)
            yield result

    monkeypatch.setattr(TextEncoder, "encode", stop_after_a_while)
    with pytest.raises(KeyboardInterrupt):
        run(source, words, tmp_path / "out")
    assert not (tmp_path / "out").exists()

    again: list[str] = []

    def watch(self, batches):
        for result in original(self, batches):
            again.extend(result.texts)
            yield result

    monkeypatch.setattr(TextEncoder, "encode", watch)
    arguments = {"source": source, "tokenizer": words, "options": OPTIONS}
    arguments |= change(source) if change else {}
    run(out=tmp_path / "out", **arguments)
    run(out=tmp_path / "fresh", **arguments)
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")
    num_documents = read_manifest_number(tmp_path / "fresh")
    num_resumed = len(again) - num_documents
    assert (num_resumed < num_documents) == (change is None)


def read_manifest_number(folder: Path) -> int:
    return int(json.loads((folder / "manifest.json").read_text())["num_documents"])


def test_a_full_disk_leaves_the_earlier_output_whole(tmp_path, source, words, monkeypatch):
    run(source, words, tmp_path / "out")
    before = contents(tmp_path / "out")

    def fail(self, ids, lengths, word_starts):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ShardWriter, "add", fail)
    with pytest.raises(RunError, match="No space left on device"):
        run(source, words, tmp_path / "out", change_options(source)["options"], overwrite=True)
    assert contents(tmp_path / "out") == before


def test_a_folder_that_is_not_prepared_data_is_never_replaced(tmp_path, source, words):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="exists and is not prepared data"):
        run(source, words, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"


def test_quality_steps_are_counted_over_all_sources(tmp_path, source, words):
    sources = build_sources([str(source), str(source)])
    options = PrepareOptions(validation_share=0.1, quality=QualityConfig(drop_duplicates=True))
    manifest = prepare(sources, words, tmp_path / "out", options, num_workers=1)
    assert manifest["num_documents"] == 80
    assert manifest["dropped_documents"] == {"duplicate": 80}


def test_the_description_says_how_full_rows_are_and_that_nothing_is_dropped(tmp_path, source, words):
    run(source, words, tmp_path / "out")
    train, validation, losses = describe_prepared(tmp_path / "out", 64)
    assert "documents" in train
    assert "rows of 64" in validation
    assert losses.startswith("0 tokens dropped")
    assert PreparedShards(tmp_path / "out", "train").row_counts(64, 10_000) is not None


def test_files_of_others_in_the_output_are_never_removed(tmp_path, source, words):
    run(source, words, tmp_path / "out")
    (tmp_path / "out" / "NOTES.md").write_text("mine")
    with pytest.raises(InputError, match=r"holds other files, such as NOTES\.md"):
        run(source, words, tmp_path / "out", change_options(source)["options"], overwrite=True)
    assert (tmp_path / "out" / "NOTES.md").read_text() == "mine"


def test_a_manifest_of_another_program_is_not_ours(tmp_path, source, words):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text('{"name": "web app"}')
    with pytest.raises(InputError, match="is not prepared data"):
        run(source, words, tmp_path / "out", overwrite=True)


def test_a_source_may_be_a_mapping_written_as_one_word(tmp_path, words):
    (tmp_path / "rows.csv").write_text("title,body\nx,river stone bridge\ny,lamp garden winter\n")
    sources = build_sources(f"{{path: {tmp_path / 'rows.csv'}, column: body}}")
    manifest = prepare(sources, words, tmp_path / "out", PrepareOptions(validation_share=0.0), num_workers=1)
    assert manifest["num_documents"] == 2


@pytest.mark.parametrize("text", ["{}", '{"shards": 3}', "[" * 100_000])
def test_a_damaged_record_of_a_part_is_named(tmp_path, source, words, monkeypatch, text):
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_summarise", stop)
        with pytest.raises(KeyboardInterrupt):
            run(source, words, tmp_path / "out")
    record = next((tmp_path / ".out.preparing" / "parts").glob("*.json"))
    record.write_text(text)
    with pytest.raises(InputError, match=rf"{record.name} .*; delete it, and this part of the text is prepared again"):
        run(source, words, tmp_path / "out")
    record.unlink()
    run(source, words, tmp_path / "out")
    run(source, words, tmp_path / "unbroken")
    assert contents(tmp_path / "out") == contents(tmp_path / "unbroken")


def test_damaged_shards_are_prepared_again_when_asked(tmp_path, source, words):
    run(source, words, tmp_path / "out")
    whole = contents(tmp_path / "out")
    next((tmp_path / "out" / "train").glob("*.ids")).write_bytes(b"")
    manifest = tmp_path / "out" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"splits": {}}))
    with pytest.raises(InputError, match="prepare the data again with --overwrite"):
        PreparedShards(tmp_path / "out", "train")
    run(source, words, tmp_path / "out", overwrite=True)
    assert contents(tmp_path / "out") == whole
