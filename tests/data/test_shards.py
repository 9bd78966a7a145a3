"""Shards on disk: what is written is what is read, damage is named, and every rank gets its share."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskwright.data.loader import PackedLoader
from maskwright.data.shards import MANIFEST_FILE, PreparedShards, ShardWriter, choose_ids_dtype
from maskwright.errors import InputError


def write_folder(folder: Path, shards: list[list[list[int]]], dtype: str = "<u2", weights: list[float] | None = None):
    """Each shard is a list of documents and a source of its own."""
    infos = []
    for number, documents in enumerate(shards):
        with ShardWriter(folder / "train", f"{number:05d}", dtype, source=number) as writer:
            lengths = np.asarray([len(ids) for ids in documents])
            ids = np.asarray([token for ids in documents for token in ids], dtype=np.int64)
            writer.add(ids, lengths, begins_word(ids))
            infos.append(asdict(writer.close()))
    weights = weights or [1.0] * len(shards)
    write_manifest(folder, infos, weights)
    return PreparedShards(folder, "train")


def write_manifest(folder: Path, infos: list[dict], weights: list[float]) -> None:
    num_tokens = sum(info["num_tokens"] for info in infos)
    manifest = {
        "key": "these shards",
        "tokenizer_sha256": "none",
        "sources": [{"weight": weight} for weight in weights],
        "splits": {"train": infos},
        "num_tokens": num_tokens,
        "num_encoded_tokens": num_tokens,
        "num_empty_documents": 0,
        "num_unknown_tokens": 0,
    }
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))


def begins_word(ids) -> np.ndarray:
    """By ids, so that a token shows what its bit must be."""
    return np.asarray(ids) % 3 == 0


def make_documents(num_documents: int, seed: int = 0) -> list[list[int]]:
    random = np.random.default_rng(seed)
    return [random.integers(5, 900, random.integers(1, 70)).tolist() for _ in range(num_documents)]


def build_loader(shards: PreparedShards, **options) -> PackedLoader:
    defaults = {"row_length": 32, "rows_per_batch": 8, "window": 50}
    return PackedLoader(shards, cls_token_id=1, sep_token_id=2, pad_token_id=0, **(defaults | options))


def sample_counts(batches) -> Counter[int]:
    starts = (batch.sample_ids[(batch.positions == 0) & (batch.document_ids > 0)] for batch in batches)
    return Counter(sample for samples in starts for sample in samples.tolist())


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, "<u2"), (65_537, "<u4")])
def test_ids_take_the_bits_the_vocabulary_needs(tmp_path, vocab_size, dtype):
    assert choose_ids_dtype(vocab_size) == dtype
    shards = write_folder(tmp_path, [[[vocab_size - 1, 3]]], dtype)
    assert shards.store(0).ids.tolist() == [vocab_size - 1, 3]


def test_documents_are_read_back_and_files_hold_little_else(tmp_path):
    documents = make_documents(400)
    shards = write_folder(tmp_path, [documents])
    store = shards.store(0)
    read = [store.ids[a:b].tolist() for a, b in zip(store.offsets[:-1], store.offsets[1:], strict=True)]
    assert read == documents
    on_disk = sum(path.stat().st_size for path in (tmp_path / "train").iterdir())
    assert on_disk <= 1.15 * 2 * sum(map(len, documents))
    assert shards.infos[0].num_bytes == on_disk


def test_an_abandoned_shard_leaves_no_files(tmp_path):
    def fill_half() -> None:
        with ShardWriter(tmp_path, "a", "<u2", 0) as writer:
            writer.add(np.arange(10), np.asarray([10]), np.ones(10, dtype=bool))
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fill_half()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", ["ids", "lengths", "words"])
def test_a_file_edited_by_hand_fails_its_checksum(tmp_path, suffix):
    shards = write_folder(tmp_path, [make_documents(20)])
    file = tmp_path / "train" / f"00000.{suffix}"
    content = bytearray(file.read_bytes())
    content[7] ^= 1
    file.write_bytes(content)
    with pytest.raises(InputError, match=rf"00000\.{suffix} does not match its checksum"):
        shards.store(0)


@pytest.mark.parametrize("suffix", ["ids", "lengths", "words"])
def test_a_truncated_or_missing_file_is_named_when_it_is_opened(tmp_path, suffix):
    write_folder(tmp_path, [make_documents(20)])
    file = tmp_path / "train" / f"00000.{suffix}"
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(InputError, match=rf"00000\.{suffix} has .* bytes, .* are expected"):
        PreparedShards(tmp_path, "train").store(0)
    file.unlink()
    with pytest.raises(InputError, match=rf"00000\.{suffix} is missing"):
        PreparedShards(tmp_path, "train").store(0)


def test_a_folder_without_manifest_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no prepared data"):
        PreparedShards(tmp_path, "train")


def test_every_token_of_every_shard_is_in_an_epoch(tmp_path):
    parts = [make_documents(60, seed) for seed in range(3)]
    loader = build_loader(write_folder(tmp_path, parts))
    found = Counter(token for batch in loader.epoch(0) for token in batch.input_ids[batch.input_ids > 2].tolist())
    assert found == Counter(token for documents in parts for ids in documents for token in ids)


@settings(max_examples=12, deadline=None)
@given(world_sizes=st.lists(st.integers(1, 8), min_size=1, max_size=4), data=st.data())
def test_each_sample_comes_once_whatever_the_ranks_and_their_changes(tmp_path_factory, world_sizes, data):
    """An epoch gone through with other numbers of ranks from some batches on, as after restarts."""
    folder = tmp_path_factory.mktemp("shards")
    shards = write_folder(folder, [make_documents(30, seed) for seed in range(3)])
    whole = build_loader(shards)
    switches = sorted(data.draw(st.lists(st.integers(0, len(whole)), min_size=len(world_sizes) - 1, max_size=5)))
    switches = [0, *switches[: len(world_sizes) - 1], len(whole)]
    counts: Counter[int] = Counter()
    for world_size, start, stop in zip(world_sizes, switches[:-1], switches[1:], strict=True):
        for rank in range(world_size):
            loader = build_loader(shards, rank=rank, world_size=world_size)
            batches = [batch for batch, _ in zip(loader.epoch(0, start), range(stop - start), strict=False)]
            counts += sample_counts(batches)
    assert counts == sample_counts(whole.epoch(0))
    assert set(counts.values()) == {1}


def test_ranks_share_each_batch(tmp_path):
    shards = write_folder(tmp_path, [make_documents(80)])
    whole = next(build_loader(shards).epoch(0))
    parts = [next(build_loader(shards, rank=rank, world_size=4).epoch(0)) for rank in range(4)]
    assert [part.num_rows for part in parts] == [2, 2, 2, 2]
    for rank, part in enumerate(parts):
        assert part.input_ids.tolist() == whole.input_ids[rank::4].tolist()


def test_weights_keep_the_proportions_of_sources(tmp_path):
    shards = write_folder(tmp_path, [make_documents(100, 0), make_documents(100, 1)], weights=[2.0, 0.5])
    counts = sample_counts(build_loader(shards).epoch(0))
    by_sample = Counter(sample & ((1 << 58) - 1) for sample in counts)
    first = [count for sample, count in by_sample.items() if sample < 1 << 40]
    second = [count for sample, count in by_sample.items() if sample >= 1 << 40]
    assert set(first) == {2}
    assert set(counts.values()) == {1}, "the second showing of a sample has a number, and so a mask, of its own"
    assert len(first) == len(build_loader(shards).samples)
    assert 0.3 < sum(second) / 150 < 0.7


def test_row_counts_are_kept_and_not_used_for_other_shards(tmp_path):
    shards = write_folder(tmp_path, [make_documents(60)])
    assert shards.row_counts(32, 50) is None
    length = len(build_loader(shards))
    counts = shards.row_counts(32, 50)
    assert counts is not None
    assert -(-counts[0] // 8) == length
    changed = write_folder(tmp_path, [make_documents(61)])
    assert changed.row_counts(32, 50) is None


def test_a_rank_outside_the_world_is_refused(tmp_path):
    with pytest.raises(InputError, match="the rank is 2; it must lie between 0 and 1"):
        build_loader(write_folder(tmp_path, [make_documents(5)]), rank=2, world_size=2)


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.lists(st.integers(0, 20), max_size=4), min_size=1, max_size=5))
def test_words_are_read_back_however_the_shard_was_filled(tmp_path_factory, sizes):
    """Bits of several additions share bytes."""
    folder = tmp_path_factory.mktemp("words")
    random = np.random.default_rng(0)
    with ShardWriter(folder, "a", "<u2", 0) as writer:
        for lengths in sizes:
            ids = random.integers(0, 1000, sum(lengths))
            writer.add(ids, np.asarray(lengths, dtype=np.int64), begins_word(ids))
        info = writer.close()
    if info is None:
        assert not any(map(sum, sizes))
        return
    (folder / "train").mkdir()
    for path in folder.glob("a.*"):
        path.rename(folder / "train" / path.name)
    write_manifest(folder, [asdict(info)], [1.0])
    store = PreparedShards(folder, "train").store(0)
    assert (
        np.unpackbits(store.word_bits, count=store.num_tokens).astype(bool).tolist() == begins_word(store.ids).tolist()
    )


def test_batches_bring_the_words_of_their_tokens_when_asked(tmp_path):
    shards = write_folder(tmp_path, [make_documents(60, seed) for seed in range(2)])
    assert all(batch.word_starts is None for batch in build_loader(shards).epoch(0))
    for batch in build_loader(shards, with_words=True).epoch(0):
        is_text = batch.input_ids > 2
        assert is_text.any()
        assert batch.word_starts[is_text].tolist() == begins_word(batch.input_ids[is_text]).tolist()
        assert batch.word_starts[~is_text].all()


def forget_words(folder: Path) -> PreparedShards:
    """The folder as it was prepared before word boundaries were kept."""
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    for info in manifest["splits"]["train"]:
        del info["words_sha256"]
        (folder / "train" / f"{info['name']}.words").unlink()
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))
    return PreparedShards(folder, "train")


def test_a_folder_without_words_still_opens_for_tokens_and_is_refused_for_words(tmp_path):
    new = [batch.input_ids.tolist() for batch in build_loader(write_folder(tmp_path, [make_documents(30)])).epoch(0)]
    old = forget_words(tmp_path)
    assert [batch.input_ids.tolist() for batch in build_loader(old).epoch(0)] == new
    assert old.infos[0].num_bytes == sum(path.stat().st_size for path in (tmp_path / "train").glob("0*"))
    with pytest.raises(
        InputError, match=r"was prepared without word boundaries, .*; prepare the data again with --overwrite"
    ):
        build_loader(old, with_words=True)


def change_manifest(folder: Path, change) -> None:
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    change(manifest)
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))


@pytest.mark.parametrize("num_listed", [0, 1])
@pytest.mark.parametrize("with_files", [True, False])
def test_a_manifest_that_lost_shards_is_damage(tmp_path, num_listed, with_files):
    write_folder(tmp_path, [make_documents(20, seed) for seed in range(2)])
    change_manifest(
        tmp_path, lambda manifest: manifest["splits"].update(train=manifest["splits"]["train"][:num_listed])
    )
    if with_files:  # and the count of tokens lost as well
        infos = json.loads((tmp_path / MANIFEST_FILE).read_text())["splits"]["train"]
        num_tokens = sum(info["num_tokens"] for info in infos)
        change_manifest(tmp_path, lambda manifest: manifest.update(num_tokens=num_tokens))
    with pytest.raises(InputError, match=r"manifest\.json does not list all shards: it .* again with --overwrite"):
        PreparedShards(tmp_path, "train")


def test_a_manifest_that_lost_a_checksum_of_words_is_damage(tmp_path):
    write_folder(tmp_path, [make_documents(20)])
    change_manifest(tmp_path, lambda manifest: manifest["splits"]["train"][0].pop("words_sha256"))
    with pytest.raises(InputError, match=r"it has no checksum of .*00000\.words"):
        PreparedShards(tmp_path, "train")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda manifest: manifest.pop("splits"), "'splits' is missing"),
        (lambda manifest: manifest.pop("tokenizer_sha256"), "'tokenizer_sha256' is missing"),
        (lambda manifest: manifest.update(sources=[]), "source or dtype of 00000"),
        (lambda manifest: manifest.update(sources=3), "'sources' is 3"),
        (lambda manifest: manifest["splits"]["train"][0].update(num_tokens="x"), "num_tokens' is 'x'"),
        (lambda manifest: manifest["splits"]["train"][0].update(ids_dtype="O"), "source or dtype of 00000"),
        (lambda manifest: manifest["splits"]["train"][0].pop("name"), "name' is missing"),
    ],
)
def test_a_manifest_of_another_shape_is_named(tmp_path, change, words):
    write_folder(tmp_path, [make_documents(5)])
    change_manifest(tmp_path, change)
    with pytest.raises(InputError, match=rf"manifest\.json .*{words}.*prepare the data again"):
        PreparedShards(tmp_path, "train")


@pytest.mark.parametrize("counts", [[], ["x"], [0], [3, 3], None])
def test_counts_of_rows_that_cannot_be_are_counted_anew(tmp_path, counts):
    shards = write_folder(tmp_path, [make_documents(20)])
    expected = [batch.input_ids.tolist() for batch in build_loader(shards).epoch(0)]
    (file,) = (tmp_path / "train").glob("rows-*.json")
    whole = json.loads(file.read_text())
    file.write_text(json.dumps(whole | {"counts": counts}))
    assert [batch.input_ids.tolist() for batch in build_loader(PreparedShards(tmp_path, "train")).epoch(0)] == expected
    assert json.loads(file.read_text()) == whole
