"""What a run learns from: texts, several sources with weights, augmented texts, or prepared shards."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from maskwright.config import build_config
from maskwright.data.loader import PackedLoader
from maskwright.errors import InputError
from maskwright.runs import texts as texts_module
from maskwright.runs.inputs import TrainingData, count_tokens, load_data
from maskwright.runs.prepare import prepare
from maskwright.runs.prepare_tasks import PrepareOptions
from maskwright.sections.data import build_sources
from maskwright.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from maskwright.text.tokenizer.train import train_tokenizer
from maskwright.training.batches import advise_faster


def load(values: dict[str, Any], said: list[str] | None = None) -> TrainingData:
    return load_data(build_config(values), None, (said if said is not None else []).append)


def texts_of(loader: PackedLoader, tokenizer: Tokenizer, epoch: int = 0) -> list[str]:
    texts = []
    for batch in loader.epoch(epoch):
        for row in range(batch.num_rows):
            for document in range(1, int(batch.document_ids[row].max()) + 1):
                texts.append(tokenizer.decode(batch.input_ids[row][batch.document_ids[row] == document].tolist()))
    return texts


@pytest.fixture
def prepared(tmp_path: Path, corpus_file: Path, sentences: list[str]) -> Path:
    tokenizer = train_tokenizer(sentences, vocab_size=160)
    out = tmp_path / "prepared"
    prepare(build_sources(str(corpus_file)), tokenizer, out, PrepareOptions(validation_share=0.2), num_workers=1)
    return out


def test_a_source_of_weight_two_is_seen_twice(tiny_values, tmp_path):
    for name, words in (("a", "alpha beta"), ("b", "gamma delta")):
        lines = [f"{words} {name}{number} end" for number in range(30)]
        (tmp_path / f"{name}.txt").write_text("\n".join(lines))
    tiny_values["data"]["train"] = [{"path": str(tmp_path / "a.txt"), "weight": 2}, str(tmp_path / "b.txt")]
    tiny_values["tokenizer"] |= {"type": "word_level", "min_frequency": 1}
    data = load(tiny_values)
    seen = Counter(texts_of(data.train, data.tokenizer))
    assert len(seen) > 30
    assert {count for text, count in seen.items() if text.startswith("alpha")} == {2}
    assert {count for text, count in seen.items() if text.startswith("gamma")} == {1}


def test_quality_settings_apply_and_are_told(tiny_values, tmp_path, sentences):
    (tmp_path / "twice.txt").write_text("\n".join(sentences + sentences))
    tiny_values["data"]["train"] = str(tmp_path / "twice.txt")
    tiny_values["quality"] = {"drop_duplicates": True}
    said: list[str] = []
    data = load(tiny_values, said)
    assert data.train.shards.num_documents + data.validation.shards.num_documents == len(sentences)
    assert any("60 dropped: duplicate" in line for line in said)


def test_augmented_texts_lose_other_words_in_other_epochs_and_repeat_their_own(tiny_values):
    plain = load(tiny_values)
    tiny_values["augmentation"] = {"probability": 1.0, "word_dropout": 0.3}
    data = load(tiny_values)
    first, again, second = (sorted(texts_of(data.train, data.tokenizer, epoch)) for epoch in (0, 0, 1))
    whole = sorted(texts_of(plain.train, plain.tokenizer))
    assert first == again
    assert first != second
    assert len(first) == len(whole)
    assert sum(map(len, first)) < 0.9 * sum(map(len, whole))
    assert sorted(texts_of(data.validation, data.tokenizer)) == sorted(texts_of(plain.validation, plain.tokenizer))


def test_prepared_data_brings_its_tokenizer_and_its_validation_split(tiny_values, prepared, sentences):
    tiny_values["data"]["train"] = str(prepared)
    data = load(tiny_values)
    texts = texts_of(data.train, data.tokenizer) + texts_of(data.validation, data.tokenizer)
    assert len(texts) == len(sentences)
    assert data.validation.shards.num_documents > 0


def test_prepared_data_with_another_tokenizer_is_refused(tiny_values, prepared, tmp_path, sentences):
    train_tokenizer(sentences, vocab_size=100).save(tmp_path / "other")
    tiny_values["data"]["train"] = str(prepared)
    tiny_values["tokenizer"]["path"] = str(tmp_path / "other")
    with pytest.raises(InputError, match="was prepared with another tokenizer"):
        load(tiny_values)


def test_augmentation_of_prepared_data_is_refused(tiny_values, prepared):
    tiny_values["data"]["train"] = str(prepared)
    tiny_values["augmentation"] = {"probability": 0.5}
    with pytest.raises(InputError, match="augmentation works on text"):
        load(tiny_values)


def test_raw_validation_for_prepared_data_is_refused(tiny_values, prepared, corpus_file):
    tiny_values["data"] |= {"train": str(prepared), "validation": str(corpus_file)}
    with pytest.raises(InputError, match=r"data\.validation must be prepared data too"):
        load(tiny_values)


def test_the_length_of_augmented_data_is_that_of_its_batches(tiny_values):
    tiny_values["augmentation"] = {"probability": 1.0, "word_dropout": 0.5}
    data = load(tiny_values)
    assert abs(len(data.train) - len(list(data.train.epoch(1)))) <= 1


def test_a_source_of_which_nothing_is_kept_does_no_harm(tiny_values, tmp_path, corpus_file):
    (tmp_path / "short.txt").write_text("a\nb\nc\n")
    tiny_values["data"]["train"] = [str(tmp_path / "short.txt"), str(corpus_file)]
    tiny_values["quality"] = {"min_chars": 5}
    data = load(tiny_values)
    assert data.train.utilisation() > 0.5
    assert len(data.train.samples) > 10


def test_changed_texts_have_another_fingerprint(tiny_values, tmp_path, sentences):
    path = tmp_path / "texts.txt"
    tiny_values["data"]["train"] = str(path)
    fingerprints = []
    for texts in (sentences, sentences, [*sentences[:-1], "the last one is new."]):
        path.write_text("\n".join(texts))
        fingerprints.append(load(tiny_values).fingerprint)
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


def test_prepared_folders_of_different_tokenizers_are_refused(tiny_values, prepared, tmp_path, corpus_file, sentences):
    other = train_tokenizer(sentences, vocab_size=100)
    options = PrepareOptions(validation_share=0.5)
    prepare(build_sources(str(corpus_file)), other, tmp_path / "other", options, num_workers=1)
    tiny_values["data"] |= {"train": str(prepared), "validation": str(tmp_path / "other")}
    with pytest.raises(InputError, match="different tokenizers"):
        load(tiny_values)


def test_a_folder_that_is_held_out_as_a_whole_is_for_validation_only(tiny_values, prepared, tmp_path, corpus_file):
    tokenizer, options = load_tokenizer(prepared / "tokenizer"), PrepareOptions(validation_share=1.0)
    prepare(build_sources(str(corpus_file)), tokenizer, tmp_path / "held", options, num_workers=1)
    tiny_values["data"] |= {"train": str(prepared), "validation": str(tmp_path / "held")}
    data = load(tiny_values)
    assert data.validation.shards.num_documents > data.train.shards.num_documents
    tiny_values["data"] |= {"train": str(tmp_path / "held"), "validation": None}
    with pytest.raises(InputError, match=r"held holds no training documents, all are held out"):
        load(tiny_values)


def test_quality_settings_on_prepared_data_are_refused(tiny_values, prepared):
    tiny_values["data"]["train"] = str(prepared)
    tiny_values["quality"] = {"min_chars": 5}
    with pytest.raises(InputError, match="quality settings work on text"):
        load(tiny_values)


def test_the_baseline_counts_all_sources_by_their_weight(tiny_values, tmp_path):
    for name, word in (("a", "alpha"), ("b", "gamma")):
        (tmp_path / f"{name}.txt").write_text("\n".join(f"{word} {number} end" for number in range(40)))
    tiny_values["data"]["train"] = [str(tmp_path / "a.txt"), {"path": str(tmp_path / "b.txt"), "weight": 3}]
    tiny_values["tokenizer"]["type"] = "word_level"
    data = load(tiny_values)
    counts = count_tokens(data.train, data.tokenizer.vocab_size)
    first, second = (counts[data.tokenizer.encode_batch([word])[0][0]] for word in ("alpha", "gamma"))
    stores = [data.train.shards.store(shard).num_documents for shard in range(2)]
    assert (first, second) == (stores[0], 3 * stores[1])


def test_each_kind_of_input_has_its_own_remedy_for_being_slow(tiny_values, prepared):
    def advise(**sections: dict[str, Any]) -> str:
        return advise_faster(load_data(build_config(tiny_values | sections), None, pytest.fail).train)

    assert "maskwright prepare" in advise()
    assert "augmentation.probability=0" in advise(augmentation={"probability": 0.5})
    from_shards = advise(data={**tiny_values["data"], "train": str(prepared)})
    assert f"copy {prepared} to a local disk" in from_shards
    assert "maskwright prepare" not in from_shards


def batches_of(data: TrainingData) -> list[list[Any]]:
    """Everything in the batches of two epochs of training and one of evaluation."""
    epochs = [data.train.epoch(0), data.train.epoch(1), data.validation.epoch(0)]
    return [
        [None if (value := getattr(batch, field.name)) is None else value.tolist() for field in fields(batch)]
        for epoch in epochs
        for batch in epoch
    ]


_KINDS_OF_TEXTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "words": {"masking": {"strategy": "whole_word"}},
    "bytes": {"tokenizer": {"type": "byte_level_bpe", "vocab_size": 400}},
    "made-pairs": {"pairs": {"task": "nsp"}, "data": {"max_length": 64}},
    "augmented": {"augmentation": {"probability": 0.5, "word_dropout": 0.3}},
    "cleaned": {"quality": {"drop_duplicates": True, "min_chars": 20}, "masking": {"strategy": "whole_word"}},
}


@pytest.mark.parametrize(
    ("kind", "is_given"),
    [
        pytest.param(kind, is_given, marks=[] if is_given == (number % 2 == 0) else [pytest.mark.slow])
        for number, kind in enumerate(_KINDS_OF_TEXTS)
        for is_given in (False, True)
    ],
)
def test_texts_beyond_the_limit_are_in_files_and_give_the_same_batches(
    tiny_values, tmp_path, sentences, monkeypatch, kind, is_given
):
    more = [f"{text} é \ud83d 漢字" for text in sentences]
    for name, texts in (("a", sentences), ("b", more), ("c", sentences[::-1])):
        (tmp_path / f"{name}.txt").write_text("\n".join(texts), encoding="utf-8", errors="replace")
    sources = [str(tmp_path / "a.txt"), {"path": str(tmp_path / "b.txt"), "weight": 1.5}, str(tmp_path / "c.txt")]
    tiny_values["data"] |= {"train": sources, "validation": str(tmp_path / "c.txt") if is_given else None}
    for section, values in _KINDS_OF_TEXTS[kind].items():
        tiny_values[section] = tiny_values.get(section, {}) | values
    plain_said: list[str] = []
    plain = load(tiny_values, plain_said)
    limit = sum(map(len, sentences)) + sum(map(len, more)) // 2
    monkeypatch.setattr(texts_module, "SPILL_CHARS", limit)
    monkeypatch.setattr(texts_module, "_CHUNK_BYTES", 100)
    before = sorted(tmp_path.rglob("*"))
    said: list[str] = []
    spilled = load(tiny_values, said)
    assert sorted(tmp_path.rglob("*")) == before, "the files have no names"
    assert spilled.fingerprint == plain.fingerprint
    assert spilled.tokenizer.backend.to_str() == plain.tokenizer.backend.to_str()
    assert batches_of(spilled) == batches_of(plain)
    assert batches_of(spilled) == batches_of(plain), "files are read again and again"
    notice = f"the texts have more than {limit:,} characters: they and their tokens are kept in temporary files in"
    assert [line for line in said if line not in plain_said] == [line for line in said if line.startswith(notice)]
    assert str(tmp_path) in next(line for line in said if line.startswith(notice))
    for data, is_in_file in ((plain, False), (spilled, True)):
        stores = [data.train.shards.store(shard) for shard in range(3)]
        assert [isinstance(one.ids, np.memmap) for one in stores] == [
            is_in_file and one.num_tokens > 0 for one in stores
        ]


def test_a_disk_that_is_full_of_texts_is_named(tiny_values, tmp_path, monkeypatch):
    monkeypatch.setattr(texts_module, "SPILL_CHARS", 100)
    full = Path("/dev/full").open("w+b")  # noqa: SIM115 (the run closes it)
    monkeypatch.setattr(texts_module.tempfile, "TemporaryFile", lambda **_: full)
    tiny_values["run"]["out"] = str(tmp_path / "not" / "there")
    with pytest.raises(OSError, match="No space left on device") as failure:
        load(tiny_values)
    assert failure.value.filename == str(tmp_path)
