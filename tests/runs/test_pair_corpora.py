"""Runs on sources with a second column: what is packed, held out, cleaned and refused, and that they resume exactly."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from maskwright.config import build_config
from maskwright.data.loader import PackedLoader
from maskwright.errors import InputError
from maskwright.runs import inputs as pair_texts
from maskwright.runs import texts
from maskwright.runs.callbacks import PeriodicCheckpoints
from maskwright.runs.doctor.text import check_documents
from maskwright.runs.folder import RunFolder
from maskwright.runs.inputs import TrainingData, count_tokens, load_data
from maskwright.runs.prepare import prepare
from maskwright.runs.pretrain import pretrain
from maskwright.sections.data import build_sources
from maskwright.text.tokenizer.tokenizer import Tokenizer

Pair = tuple[str, str]


def write_pairs(path: Path, pairs: list[Pair]) -> dict[str, Any]:
    lines = [json.dumps({"premise": first, "hypothesis": second}) for first, second in pairs]
    path.write_text("\n".join(lines) + "\n")
    return {"path": str(path), "column": "premise", "second_column": "hypothesis"}


@pytest.fixture
def pairs(sentences: list[str]) -> list[Pair]:
    """Every premise has two hypotheses, of words that premises do not have."""
    return [
        (text, f"someone {what} item{number % 9}") for number, text in enumerate(sentences) for what in ("saw", "met")
    ]


@pytest.fixture
def values(tiny_values: dict[str, Any], tmp_path: Path, pairs: list[Pair]) -> dict[str, Any]:
    tiny_values["data"]["train"] = write_pairs(tmp_path / "pairs.jsonl", pairs)
    tiny_values["tokenizer"] = {"type": "word_level", "min_frequency": 1, "vocab_size": 300}
    tiny_values["training"]["precision"] = "fp32"
    return tiny_values


def load(values: dict[str, Any], said: list[str] | None = None) -> TrainingData:
    return load_data(build_config(values), None, pytest.fail if said is None else said.append)


def pairs_of(loader: PackedLoader, tokenizer: Tokenizer, epoch: int = 0) -> list[Pair]:
    """The texts between the special tokens, told apart by token types."""
    found = []
    for batch in loader.epoch(epoch):
        assert batch.token_type_ids is not None
        for row in range(batch.num_rows):
            for document in range(1, int(batch.document_ids[row].max()) + 1):
                place = batch.document_ids[row] == document
                ids, types = batch.input_ids[row][place], batch.token_type_ids[row][place]
                assert (ids == tokenizer.sep_token_id).sum() == 2
                found.append(tuple(tokenizer.decode(ids[types == kind].tolist()) for kind in (0, 1)))
    return found


def test_every_pair_is_packed_as_a_pair_and_a_share_of_them_is_held_out(values, pairs):
    data = load(values)
    train, held_out = pairs_of(data.train, data.tokenizer), pairs_of(data.validation, data.tokenizer)
    assert sorted(train + held_out) == sorted(pairs)
    assert 8 < len(held_out) < 44
    shared = {first for first, _ in train} & {first for first, _ in held_out}
    assert shared, "the pair decides, not one of its texts"


def test_what_is_held_out_does_not_depend_on_the_order(values, pairs, tmp_path):
    held_out = sorted(pairs_of(load(values).validation, load(values).tokenizer))
    write_pairs(tmp_path / "pairs.jsonl", pairs[::-1])
    data = load(values)
    assert sorted(pairs_of(data.validation, data.tokenizer)) == held_out


def test_a_tokenizer_learns_from_both_texts(values):
    tokens = load(values).tokenizer.backend.get_vocab()
    assert {"someone", "met", "cat"} <= set(tokens)


def test_the_fingerprint_covers_both_texts(values, pairs, tmp_path):
    fingerprints = []
    for changed in (pairs, pairs, [*pairs[:-1], (pairs[-1][0], "other")], [*pairs[:-1], ("other", pairs[-1][1])]):
        write_pairs(tmp_path / "pairs.jsonl", changed)
        fingerprints.append(load(values).fingerprint)
    assert fingerprints[0] == fingerprints[1]
    assert len(set(fingerprints)) == 3


def test_the_fingerprint_of_single_texts_is_what_it_was(tiny_values, sentences):
    """Runs begun before there were pairs go on."""
    tiny_values["data"]["validation"] = tiny_values["data"]["train"]
    data = load(tiny_values)
    content = data.tokenizer.backend.to_str() + "".join(f"{text}\0" for text in sentences + sentences)
    assert data.fingerprint == hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def test_pairs_longer_than_a_row_are_cut_and_said(values, pairs, tmp_path):
    long = [("word " * 40, "end " * 3), ("word " * 30, "end " * 30)]
    write_pairs(tmp_path / "pairs.jsonl", [*pairs, *long])
    said: list[str] = []
    data = load(values, said)
    (warning,) = said
    assert warning.startswith("2 of 122 pairs have more tokens than a row of 32 has room for; the longer text")
    found = pairs_of(data.train, data.tokenizer) + pairs_of(data.validation, data.tokenizer)
    counts = {tuple(len(text.split()) for text in pair) for pair in found if pair[0].startswith("word")}
    assert counts == {(26, 3), (15, 14)}
    assert "are pairs longer than a row of 32 and lost an end" in check_documents(data.train).text


def test_pairs_beyond_the_limit_are_in_files_and_give_the_same_batches(values, pairs, tmp_path, monkeypatch):
    write_pairs(tmp_path / "pairs.jsonl", [*pairs, ("word " * 40, "end " * 3), ("fine", "\x01")])
    values["tokenizer"] = {"vocab_size": 300}
    monkeypatch.setattr(pair_texts, "CHUNK_CHARS", 500)
    plain_said: list[str] = []
    plain = load(values, plain_said)
    monkeypatch.setattr(texts, "SPILL_CHARS", 1000)
    said: list[str] = []
    spilled = load(values, said)
    assert spilled.fingerprint == plain.fingerprint
    assert said[0].startswith("the texts have more than 1,000 characters")
    assert said[1:] == plain_said
    assert len(plain_said) == 2
    for loader in ("train", "validation"):
        stores = [getattr(data, loader).shards.store(0) for data in (plain, spilled)]
        assert isinstance(stores[1].ids, np.memmap)
        for name in ("ids", "offsets", "word_bits", "first_lengths"):
            assert np.array_equal(getattr(stores[0], name), getattr(stores[1], name))
        assert pairs_of(getattr(plain, loader), plain.tokenizer) == pairs_of(getattr(spilled, loader), plain.tokenizer)


def test_pairs_without_tokens_are_left_out_and_said(values, pairs, tmp_path):
    write_pairs(tmp_path / "pairs.jsonl", [*pairs, ("fine", "\x01")])
    values["tokenizer"] = {"vocab_size": 160}
    said: list[str] = []
    load(values, said)
    assert [line.startswith("1 of 121 pairs were left out") for line in said] == [True]


def test_half_pairs_are_said_like_other_broken_records(values, tmp_path):
    with (tmp_path / "pairs.jsonl").open("a") as file:
        file.write('{"premise": "alone"}\n')
    said: list[str] = []
    load(values, said)
    assert [line for line in said if "1 broken records were skipped" in line and "'hypothesis' is missing" in line]


def test_quality_settings_judge_both_texts(values, pairs, tmp_path):
    write_pairs(tmp_path / "pairs.jsonl", [*pairs, pairs[0], ("a", "long enough"), ("long enough", "b")])
    values["quality"] = {"min_chars": 3, "drop_duplicates": True}
    said: list[str] = []
    data = load(values, said)
    assert data.train.shards.num_documents + data.validation.shards.num_documents == len(pairs)
    assert said[0].startswith("123 documents, 120 kept")
    assert {line.strip() for line in said[1:]} == {"2 dropped: under 3 characters", "1 dropped: duplicate"}


def test_words_are_masked_whole_in_both_texts(values):
    values["tokenizer"] = {"vocab_size": 100}
    values["data"]["max_length"] = 64
    values["masking"] = {"strategy": "whole_word"}
    data = load(values)
    num_inside = Counter()
    for batch in data.train.epoch(0):
        assert batch.word_starts is not None
        assert batch.token_type_ids is not None
        pieces = [data.tokenizer.backend.id_to_token(token) for token in batch.input_ids.flatten().tolist()]
        goes_on = torch.tensor([piece.startswith("##") for piece in pieces]).view(batch.input_ids.shape)
        assert torch.equal(batch.word_starts, ~goes_on)
        for kind in (0, 1):
            num_inside[kind] += int((goes_on & (batch.token_type_ids == kind)).sum())
    assert min(num_inside[0], num_inside[1]) > 50


def test_augmented_pairs_stay_pairs_and_lose_words_of_both_texts(values):
    plain = load(values)
    values["augmentation"] = {"probability": 1.0, "word_dropout": 0.3}
    data = load(values)
    whole, first, again, second = (
        pairs_of(loader, data.tokenizer, epoch)
        for loader, epoch in ((plain.train, 0), (data.train, 0), (data.train, 0), (data.train, 1))
    )
    assert first == again
    assert sorted(first) != sorted(second)
    assert len(first) == len(whole)
    for side in (0, 1):
        sizes = [sum(len(pair[side].split()) for pair in some) for some in (whole, first)]
        assert 0.55 < sizes[1] / sizes[0] < 0.9
    assert {word for pair in first for word in pair[1].split()} <= {word for pair in whole for word in pair[1].split()}


def test_sources_of_pairs_have_weights_and_the_baseline_counts_them(values, tmp_path):
    values["data"]["train"] = [
        write_pairs(tmp_path / "a.jsonl", [(f"alpha {number}", "beta") for number in range(30)]) | {"weight": 2},
        write_pairs(tmp_path / "b.jsonl", [(f"gamma {number}", "delta") for number in range(30)]),
    ]
    data = load(values)
    seen = Counter(pairs_of(data.train, data.tokenizer))
    assert {count for pair, count in seen.items() if pair[1] == "beta"} == {2}
    assert {count for pair, count in seen.items() if pair[1] == "delta"} == {1}
    vocabulary, counts = data.tokenizer.backend.get_vocab(), count_tokens(data.train, data.tokenizer.vocab_size)
    assert counts[vocabulary["alpha"]] == counts[vocabulary["beta"]] == 2 * data.train.shards.store(0).num_documents


def test_held_out_pairs_may_be_given(values, tmp_path):
    values["data"]["validation"] = write_pairs(tmp_path / "held-out.jsonl", [("the cat", "someone saw")])
    data = load(values)
    assert pairs_of(data.validation, data.tokenizer) == [("the cat", "someone saw")]
    assert data.train.shards.num_documents == 120


@pytest.mark.parametrize("key", ["train", "validation"])
def test_single_texts_among_pairs_are_refused(values, corpus_file, key):
    values["data"][key] = [values["data"]["train"], str(corpus_file)] if key == "train" else str(corpus_file)
    with pytest.raises(InputError, match=r"has a second_column and .*sentences\.txt has none"):
        load(values)


@pytest.mark.parametrize("task", ["nsp", "sop"])
def test_given_pairs_are_not_asked_about_their_order(values, task):
    values["pairs"] = {"task": task}
    with pytest.raises(InputError, match=rf"pairs\.task={task} makes pairs .* unset one of the two"):
        load(values)


def test_shards_of_pairs_are_refused_before_anything_is_written(values, tmp_path, tokenizer):
    with pytest.raises(InputError, match="shards hold single texts, the sources give pairs"):
        prepare(build_sources(values["data"]["train"]), tokenizer, tmp_path / "shards")
    assert not list(tmp_path.glob("*shards*"))


@pytest.mark.parametrize("mode", ["mlm", "clm", "hybrid", "rtd"])
def test_every_objective_learns_from_pairs(values, mode):
    values["training"] |= {"mode": mode, "max_steps": 2}
    figures = pretrain(build_config(values), console=Console(quiet=True)).figures
    assert figures["steps"] == 2
    assert np.isfinite([figures["loss"], figures["unigram_loss"]]).all()


def test_a_family_without_token_types_learns_from_pairs(values):
    values["model"]["family"] = "modernbert"
    values["training"]["max_steps"] = 2
    assert np.isfinite(pretrain(build_config(values), console=Console(quiet=True)).figures["loss"])


class KilledError(BaseException):
    """As final as a kill: no handler of ours catches it."""


def run(values: dict[str, Any], name: str) -> RunFolder:
    config = build_config(values | {"run": values["run"] | {"name": name}})
    return pretrain(config, console=Console(quiet=True)).folder


def test_an_interrupted_run_on_pairs_ends_as_an_unbroken_one(values, monkeypatch):
    values["training"] |= {"batch_tokens": 160, "max_steps": 30, "checkpoint_every_steps": 4}
    values["masking"] = {"strategy": "whole_word"}
    unbroken = run(values, "unbroken")
    original = PeriodicCheckpoints.on_step_end

    def dying(self: PeriodicCheckpoints, step: int) -> None:
        original(self, step)
        if step == 18:
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(PeriodicCheckpoints, "on_step_end", dying)
        with pytest.raises(KilledError):
            run(values, "broken")
    broken = run(values, "broken")
    losses = [
        [(line["step"], line["loss"]) for line in folder.read_metrics() if "loss" in line]
        for folder in (unbroken, broken)
    ]
    assert losses[0] == losses[1]
    assert any(line.get("epoch_end") for line in broken.read_metrics() if line["step"] < 30), "more than one epoch"
    weights = [(folder.model / "model.safetensors").read_bytes() for folder in (unbroken, broken)]
    assert weights[0] == weights[1]
    finals = [json.loads(folder.final_file.read_text()) for folder in (unbroken, broken)]
    assert finals[0]["loss"] == finals[1]["loss"]


def test_the_command_line_trains_on_pairs_and_evaluates_them(tiny_command, tmp_path, pairs, command, corpus_file):
    write_pairs(tmp_path / "nli.jsonl", pairs)
    source = f"{{path: {tmp_path / 'nli.jsonl'}, column: premise, second_column: hypothesis}}"
    assert command(*tiny_command, f"data.train={source}", "training.max_steps=3").code == 0
    model = tmp_path / "runs" / "tiny"
    result = command("eval", model, "mlm", source, "--max-length", 32, "--json")
    assert json.loads(result.out)["documents"] == 120
    alone = command(
        "eval", model, "mlm", source.replace(", second_column: hypothesis", ""), "--max-length", 32, "--json"
    )
    assert json.loads(alone.out)["questions"] < json.loads(result.out)["questions"]
    command("eval", model, "mlm", source, corpus_file, "--max-length", 32).assert_refused("give one kind at a time")
