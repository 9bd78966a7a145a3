from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
from pyarrow import parquet

from maskwright.errors import InputError
from maskwright.masking.tokens import Strategy
from maskwright.models.bert import BERT
from maskwright.objectives.masked_lm import CausalLanguageModel, MaskedLanguageModel
from maskwright.objectives.replaced_tokens import ReplacedTokenDetection
from maskwright.runs.create import create_mlm_dataset, create_mlm_training_model
from maskwright.runs.prepare import prepare
from maskwright.runs.prepare_tasks import PrepareOptions
from maskwright.runs.trainer import Trainer
from maskwright.sections.data import build_sources
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.text.tokenizer.train import train_tokenizer
from tiny_bert import build_tiny_bert


def test_a_packed_dataset_holds_every_sentence(corpus_file: Path, tokenizer: Tokenizer, sentences: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = create_mlm_dataset(corpus_file, tokenizer, batch_size=4, max_length=32)
    batches = list(dataset)
    assert len(dataset.samples) == len(sentences)
    assert all(batch.input_ids.shape == (4, 32) for batch in batches[:-1])
    assert sum(int((batch.input_ids == tokenizer.cls_token_id).sum()) for batch in batches) == len(sentences)


def test_a_padded_dataset_has_one_sentence_per_row(
    corpus_file: Path, tokenizer: Tokenizer, sentences: list[str]
) -> None:
    dataset = create_mlm_dataset(corpus_file, tokenizer, batch_size=7, max_length=32, packed=False)
    rows = []
    for batch in dataset:
        assert set(batch) == {"input_ids", "attention_mask", "token_type_ids"}
        for ids, attention_mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            assert ids.shape == (32,)
            assert torch.equal(attention_mask.bool(), ids != tokenizer.pad_token_id)
            rows.append(ids[attention_mask.bool()].tolist())
    assert rows != [tokenizer.encode(sentence) for sentence in sentences]
    assert sorted(rows) == sorted(tokenizer.encode(sentence) for sentence in sentences)


def test_damaged_text_is_warned_about(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"the cat sees a long road.\nthe caf\xe9 is here.\n")
    with pytest.warns(UserWarning, match="1 lines are not valid UTF-8"):
        create_mlm_dataset(path, tokenizer)


def test_a_missing_file_is_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match=r"no file at .*absent\.txt"):
        create_mlm_dataset(tmp_path / "absent.txt", tokenizer)


def test_the_training_model_learns_from_the_dataset(corpus_file: Path, tokenizer: Tokenizer) -> None:
    encoder = BERT.from_variant("tiny", vocab_size=tokenizer.vocab_size, hidden_size=32, num_attention_heads=2)
    trainer = create_mlm_training_model(
        encoder, tokenizer.vocab_size, tokenizer.mask_token_id, tokenizer.all_special_ids, learning_rate=3e-3
    )
    assert trainer.model.encoder is encoder
    history = trainer.fit(create_mlm_dataset(corpus_file, tokenizer, batch_size=8, max_length=32), epochs=5)
    losses = history.history["loss"]
    assert len(losses) == 5
    assert losses[-1] < losses[0]


def write_jsonl(folder: Path, texts: list[str]) -> Any:
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return str(folder / "a.jsonl")


def write_csv(folder: Path, texts: list[str]) -> Any:
    lines = [f'{number},"{text}"\n' for number, text in enumerate(texts)]
    (folder / "a.csv").write_text("".join(["id,body\n", *lines]), encoding="utf-8")
    return {"path": str(folder / "a.csv"), "column": "body"}


def write_gzip(folder: Path, texts: list[str]) -> Any:
    (folder / "a.txt.gz").write_bytes(gzip.compress("\n".join(texts).encode()))
    return folder / "a.txt.gz"


def write_parquet(folder: Path, texts: list[str]) -> Any:
    parquet.write_table(pyarrow.table({"text": texts}), folder / "a.parquet")
    return str(folder / "*.parquet")


def write_folder(folder: Path, texts: list[str]) -> Any:
    write_gzip(folder, texts[:20])
    write_jsonl(folder, texts[20:])
    return str(folder)


def write_list(folder: Path, texts: list[str]) -> Any:
    return [write_gzip(folder, texts[:20]), {"path": write_jsonl(folder, texts[20:])}]


def write_without_suffix(folder: Path, texts: list[str]) -> Any:
    (folder / "corpus").write_text("\n".join(texts), encoding="utf-8")
    return str(folder / "corpus")


def load_dataset(folder: Path, texts: list[str]) -> Any:
    return pytest.importorskip("datasets").Dataset.from_dict({"text": texts})


def load_column(folder: Path, texts: list[str]) -> Any:
    return load_dataset(folder, texts)["text"]


def stream_dataset(folder: Path, texts: list[str]) -> Any:
    return load_dataset(folder, texts).to_iterable_dataset()


def give_blanks(folder: Path, texts: list[str]) -> Any:
    return iter(["", *texts, " \n"])


def read_documents(dataset: Any, tokenizer: Tokenizer) -> list[list[int]]:
    """The ids of every document in the next epoch of a padded dataset, sorted."""
    return sorted(
        ids[attention_mask.bool()].tolist()
        for batch in dataset
        for ids, attention_mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    )


@pytest.mark.parametrize(
    "write",
    [
        write_jsonl,
        write_csv,
        write_gzip,
        write_parquet,
        write_folder,
        write_list,
        write_without_suffix,
        load_dataset,
        load_column,
        stream_dataset,
        give_blanks,
    ],
)
def test_texts_are_read_from_what_they_come_in(
    write: Callable[[Path, list[str]], Any], tmp_path: Path, tokenizer: Tokenizer, sentences: list[str]
) -> None:
    data = write(tmp_path, sentences)
    dataset = create_mlm_dataset(data, tokenizer, batch_size=7, max_length=32, packed=False)
    assert read_documents(dataset, tokenizer) == sorted(tokenizer.encode(sentence) for sentence in sentences)


def test_a_tokenizer_is_given_by_its_path_and_a_column_by_its_name(
    tmp_path: Path, tokenizer: Tokenizer, sentences: list[str]
) -> None:
    tokenizer.save(tmp_path / "tok")
    path = write_csv(tmp_path, sentences)["path"]
    dataset = create_mlm_dataset(path, str(tmp_path / "tok"), max_length=32, column="body")
    assert len(dataset.samples) == len(sentences)
    assert dataset.tokenizer.mask_token_id == tokenizer.mask_token_id


def test_shards_are_read_with_their_own_tokenizer_alone(
    tmp_path: Path, corpus_file: Path, tokenizer: Tokenizer, sentences: list[str]
) -> None:
    prepare(build_sources(corpus_file), tokenizer, tmp_path / "shards", PrepareOptions(validation_share=0.0))
    dataset = create_mlm_dataset(tmp_path / "shards", tokenizer, batch_size=4, max_length=32)
    batches = list(dataset)
    assert sum(int((batch.input_ids == tokenizer.cls_token_id).sum()) for batch in batches) == len(sentences)
    assert all(batch.word_starts is not None for batch in batches)
    other = train_tokenizer(sentences, vocab_size=120)
    with pytest.raises(InputError, match=r"prepared with another tokenizer .* give .*tokenizer, or prepare it again"):
        create_mlm_dataset(tmp_path / "shards", other)
    with pytest.raises(InputError, match="augmentation works on text"):
        create_mlm_dataset(tmp_path / "shards", tokenizer, augmentation={"probability": 0.5})


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (["a.txt", "b.jsonl.gz"], {}, "a list of strings is a list of texts, and 'a.txt' names something to read"),
        (["hf:imdb"], {}, "'hf:imdb' names something to read"),
        (["a cat", Path("a.txt")], {}, "among the texts is a .*Path"),
        (["", " "], {}, "none of the 2 texts holds anything but blanks"),
        (3, {}, r"3 \(int\) holds no texts"),
        (["a cat"], {"column": "text"}, "a list of strings has no columns"),
        (["a cat"], {"augmentation": {"probability": 2}}, "'probability' is 2"),
        (["a cat"], {"augmentation": {"probabilty": 0.1}}, "did you mean 'probability'"),
        (["Ж Ю Я"], {}, r"none of the 3 tokens of the text can be masked: .* 3 of them '\[UNK\]'"),
    ],
)
def test_data_that_cannot_be_meant_is_refused(
    data: Any, options: dict[str, Any], words: str, tokenizer: Tokenizer
) -> None:
    with pytest.raises(InputError, match=words):
        create_mlm_dataset(data, tokenizer, **options)


def test_a_column_of_lines_and_a_dataset_of_splits_are_refused(corpus_file: Path, tokenizer: Tokenizer) -> None:
    datasets = pytest.importorskip("datasets")
    with pytest.raises(InputError, match=r"sentences\.txt has no columns"):
        create_mlm_dataset(corpus_file, tokenizer, column="body")
    splits = datasets.DatasetDict(train=datasets.Dataset.from_dict({"text": ["a cat"]}))
    with pytest.raises(InputError, match="holds the splits train; give one of them"):
        create_mlm_dataset(splits, tokenizer)


@pytest.mark.parametrize("packed", [True, False])
def test_a_source_of_weight_two_is_shown_twice(
    packed: bool, tmp_path: Path, tokenizer: Tokenizer, sentences: list[str]
) -> None:
    twice = {"path": write_jsonl(tmp_path, sentences[:10]), "weight": 2}
    sources = [twice, write_gzip(tmp_path, sentences[10:])]
    shown = 0
    for batch in create_mlm_dataset(sources, tokenizer, batch_size=4, max_length=32, packed=packed):
        ids = batch["input_ids"] if isinstance(batch, dict) else batch.input_ids
        shown += int((ids == tokenizer.cls_token_id).sum())
    assert shown == len(sentences) + 10


@pytest.mark.parametrize("packed", [True, False])
def test_augmentation_drops_other_words_in_every_epoch(
    packed: bool, tokenizer: Tokenizer, sentences: list[str]
) -> None:
    settings = {"probability": 1.0, "word_dropout": 0.4}

    def read_epochs() -> list[list[list[int]]]:
        dataset: Any = create_mlm_dataset(
            sentences, tokenizer, batch_size=4, max_length=32, packed=packed, augmentation=settings
        )
        if not packed:
            return [read_documents(dataset, tokenizer) for _ in range(2)]
        return [[batch.input_ids.tolist() for batch in dataset.epoch(epoch)] for epoch in range(2)]

    first, second = read_epochs()
    whole = {tuple(tokenizer.encode(sentence)) for sentence in sentences}
    assert first != second
    assert read_epochs() == [first, second]
    if not packed:
        assert len({tuple(ids) for ids in first} - whole) > len(sentences) // 2


@pytest.mark.parametrize("strategy", ["whole_word", "span"])
@pytest.mark.parametrize("packed", [True, False])
def test_words_and_spans_are_masked_whole(
    strategy: Strategy, packed: bool, tokenizer: Tokenizer, sentences: list[str]
) -> None:
    small = train_tokenizer(sentences, vocab_size=60)  # so few tokens that words have several
    model = MaskedLanguageModel(build_tiny_bert(small), tokenizer=small, strategy=strategy, mask_ratio=0.4)
    dataset: Any = create_mlm_dataset(
        sentences, small, batch_size=8, max_length=64, packed=packed, with_words=None if packed else True
    )
    num_long = 0
    for batch in dataset:
        _, _, selected = model._mask_tokens(batch, epoch=0)
        word_starts = batch["word_starts"] if isinstance(batch, dict) else batch.word_starts
        for starts, chosen in zip(word_starts.tolist(), selected.tolist(), strict=True):
            begins = [place for place, is_start in enumerate(starts) if is_start] + [len(starts)]
            for begin, end in pairwise(begins):
                assert len(set(chosen[begin : min(end, begin + 8)])) == 1
                num_long += chosen[begin] and end - begin > 1
    assert num_long > 0
    assert len(Trainer(model).fit(dataset, epochs=1, verbose=False).history["loss"]) == 1


def test_a_model_of_other_ids_than_its_data_is_refused(tokenizer: Tokenizer, sentences: list[str]) -> None:
    size, mask = tokenizer.vocab_size, tokenizer.mask_token_id
    right = create_mlm_dataset(sentences, tokenizer, max_length=32)
    larger = train_tokenizer([*sentences, *("abcdefghij klmnop " * 9).split()], vocab_size=size + 30, min_frequency=1)
    assert larger.vocab_size > size
    refusals = [
        ({"mask_token_id": 50, "special_token_ids": range(5)}, right, f"mask_token_id is 50, .* '\\[MASK\\]', {mask}"),
        (
            {"mask_token_id": mask},
            right,
            r"would mask '\[CLS\]' \(2\) and '\[SEP\]' \(3\).*special_token_ids=\[0, 1, 2, 3, 4\]",
        ),
        (
            {"mask_token_id": mask, "special_token_ids": range(5)},
            create_mlm_dataset(sentences, larger, max_length=32, packed=False),
            f"the tokenizer has {larger.vocab_size} tokens, the model's vocab_size is {size}",
        ),
    ]
    for ids, dataset, words in refusals:
        trainer = Trainer(MaskedLanguageModel(build_tiny_bert(tokenizer), size, **ids))
        for data in ((dataset, None), (list(right), dataset)):
            with pytest.raises(InputError, match=words):
                trainer.fit(*data, epochs=1, verbose=False)
            assert trainer.state.step == 0
    detector = ReplacedTokenDetection(build_tiny_bert(tokenizer), size, mask_token_id=50)
    with pytest.raises(InputError, match="mask_token_id is 50"):
        Trainer(detector).fit(right, epochs=1, verbose=False)
    causal = CausalLanguageModel(build_tiny_bert(tokenizer), size, mask_token_id=50)  # which masks nothing
    assert Trainer(causal).fit(right, epochs=1, verbose=False).history["loss"]


def test_a_model_takes_its_ids_from_the_tokenizer(tmp_path: Path, tokenizer: Tokenizer, sentences: list[str]) -> None:
    tokenizer.save(tmp_path)
    for given in (tokenizer, str(tmp_path), tokenizer.backend):
        model = MaskedLanguageModel(build_tiny_bert(tokenizer), tokenizer=given, special_token_ids=[20])
        assert (model.vocab_size, model.mask_token_id) == (tokenizer.vocab_size, tokenizer.mask_token_id)
        assert model.special_token_ids == (*tokenizer.all_special_ids, 20)
    spare = BERT.from_variant("tiny", vocab_size=tokenizer.vocab_size + 6, hidden_size=32, num_attention_heads=2)
    assert MaskedLanguageModel(spare, tokenizer=tokenizer).is_tied
    detector = ReplacedTokenDetection(build_tiny_bert(tokenizer), tokenizer=tokenizer)
    assert detector.special_token_ids == tuple(tokenizer.all_special_ids)
    trainer = create_mlm_training_model(build_tiny_bert(tokenizer), tokenizer=tokenizer, learning_rate=1e-3)
    trainer.fit(create_mlm_dataset(sentences, tokenizer, max_length=32), epochs=1, verbose=False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mask_token_id": 50}, "mask_token_id is 50, .*mask_token_id=4"),
        ({"vocab_size": 40}, "the model's vocab_size is 40"),
        ({"tokenizer": None}, "vocab_size is missing"),
        ({"tokenizer": 3}, "a int is not a tokenizer"),
    ],
)
def test_arguments_that_contradict_the_tokenizer_are_refused(
    arguments: dict[str, Any], words: str, tokenizer: Tokenizer
) -> None:
    with pytest.raises(InputError, match=words):
        MaskedLanguageModel(build_tiny_bert(tokenizer), **{"tokenizer": tokenizer, **arguments})
