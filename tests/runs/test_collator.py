"""`MaskingCollator` beside transformers' own collator, whose place it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers
from torch.utils.data import DataLoader

import maskwright as mw
from maskwright.batch import IGNORED_LABEL
from maskwright.errors import InputError
from maskwright.masking.tokens import MAX_WORD_TOKENS
from maskwright.text.tokenizer.tokenizer import Tokenizer
from tolerances import sampling

NUM_ROWS, LENGTH = 400, 30


def as_theirs(tokenizer: Tokenizer, folder: Path) -> Any:
    tokenizer.save(folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def theirs(tokenizer: Tokenizer, tmp_path: Path) -> Any:
    return as_theirs(tokenizer, tmp_path / "tokenizer")


@pytest.fixture
def late_specials(sentences: list[str], tmp_path: Path) -> Any:
    """Special tokens behind all others, and one more of the user's among them."""
    words = dict.fromkeys(word.strip(".") for sentence in sentences for word in sentence.split())
    specials = ["<s>", "</s>", "<unk>", "<pad>", "<entity>", "<mask>"]
    backend = Backend(models.WordLevel({word: number for number, word in enumerate([*words, *specials])}, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.normalizer = normalizers.Lowercase()
    named = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
    }
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, additional_special_tokens=["<entity>"], cls_token="<s>", sep_token="</s>", **named
    )


def draw_examples(tokenizer: Any, num_rows: int = NUM_ROWS) -> list[dict[str, list[int]]]:
    """Random ordinary tokens between special ones, in rows of different lengths."""
    generator = torch.Generator().manual_seed(0)
    ordinary = torch.tensor(sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids)))
    ids = ordinary[torch.randint(len(ordinary), (num_rows, LENGTH), generator=generator)].tolist()
    return [
        {"input_ids": [tokenizer.cls_token_id, *row[number % 5 :], tokenizer.sep_token_id]}
        for number, row in enumerate(ids)
    ]


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("given", ["dictionaries", "lists", "tensors"])
def test_batches_are_shaped_as_those_of_the_original(theirs: Any, given: str, side: str) -> None:
    theirs.padding_side = side
    examples: list[Any] = draw_examples(theirs, 8)
    if given == "dictionaries":
        examples = [
            {**one, "attention_mask": [1] * len(one["input_ids"]), "token_type_ids": [0] * len(one["input_ids"])}
            for one in examples
        ]
    elif given == "lists":
        examples = [one["input_ids"] for one in examples]
    else:
        examples = [{"input_ids": torch.tensor(one["input_ids"])} for one in examples]
    options = {"mlm_probability": 0.3, "pad_to_multiple_of": 8}
    expected = transformers.DataCollatorForLanguageModeling(theirs, **options)(examples)
    found = mw.MaskingCollator(theirs, **options)(examples)
    assert expected.keys() <= found.keys() <= {*expected.keys(), "attention_mask"}
    for name in expected:
        assert found[name].shape == expected[name].shape == (8, 32)
        assert found[name].dtype == expected[name].dtype
    original = torch.where(found["labels"] == IGNORED_LABEL, found["input_ids"], found["labels"])
    their_original = torch.where(expected["labels"] == IGNORED_LABEL, expected["input_ids"], expected["labels"])
    assert torch.equal(original, their_original)
    if "attention_mask" in expected:
        assert torch.equal(found["attention_mask"], expected["attention_mask"])


@pytest.mark.parametrize("which", ["theirs", "late_specials", "ours"])
@pytest.mark.parametrize("selection", ["bernoulli", "exact"])
def test_shares_are_those_asked_for_and_special_tokens_have_no_part_in_it(
    request: pytest.FixtureRequest, tokenizer: Tokenizer, which: str, selection: Any
) -> None:
    chosen: Any = tokenizer if which == "ours" else request.getfixturevalue(which)
    examples = draw_examples(chosen)
    before = mw.MaskingCollator(chosen, mlm_probability=0.0)(examples)["input_ids"]
    batch = mw.MaskingCollator(chosen, mlm_probability=0.3, seed=1, selection=selection)(examples)
    is_special = torch.isin(before, torch.tensor(chosen.all_special_ids))
    is_asked = batch["labels"] != IGNORED_LABEL
    assert not (is_asked & is_special).any()
    assert torch.equal(batch["input_ids"][~is_asked], before[~is_asked])
    assert torch.equal(batch["labels"][is_asked], before[is_asked])
    num_ordinary, num_asked = int((~is_special).sum()), int(is_asked.sum())
    assert num_asked / num_ordinary == pytest.approx(0.3, abs=sampling(0.3, num_ordinary))
    after = batch["input_ids"][is_asked]
    is_mask, is_same = after == chosen.mask_token_id, after == before[is_asked]
    num_drawable = len(chosen) - len(set(chosen.all_special_ids))
    assert is_mask.float().mean() == pytest.approx(0.8, abs=sampling(0.8, num_asked))
    same = 0.1 + 0.1 / num_drawable
    assert is_same.float().mean() == pytest.approx(same, abs=sampling(same, num_asked))
    assert not torch.isin(after[~is_mask], torch.tensor(chosen.all_special_ids)).any()
    if selection == "exact":
        counts, totals = is_asked.sum(1), (~is_special).sum(1)
        assert ((counts - 0.3 * totals).abs() < 1).all()


def test_other_replacements_and_marked_tokens(theirs: Any) -> None:
    examples = draw_examples(theirs)
    for one in examples:
        one["special_tokens_mask"] = [int(place < 10) for place in range(len(one["input_ids"]))]
    collator = mw.MaskingCollator(theirs, mlm_probability=1.0, mask_replace_prob=0.0, random_replace_prob=1.0)
    batch = collator(examples)
    assert "special_tokens_mask" not in batch
    assert (batch["labels"][:, :10] == IGNORED_LABEL).all()
    is_asked = batch["labels"] != IGNORED_LABEL
    assert int(is_asked.sum()) == sum(len(one["input_ids"]) - 11 for one in examples)  # the last token is special
    assert not (batch["input_ids"][is_asked] == theirs.mask_token_id).any()


@pytest.mark.parametrize("strategy", ["whole_word", "span"])
def test_words_are_masked_whole(sentences: list[str], tmp_path: Path, strategy: Any) -> None:
    """Here by the tokenizer's rules, and the same by the numbers of words that the library gives."""
    theirs = as_theirs(mw.train_tokenizer(sentences, vocab_size=50), tmp_path / "short")
    encoded = theirs(sentences)
    examples = [{"input_ids": ids} for ids in encoded["input_ids"]]
    numbered = [{**one, "word_ids": encoded.word_ids(place)} for place, one in enumerate(examples)]
    collators = [mw.MaskingCollator(theirs, mlm_probability=0.4, seed=3, strategy=strategy) for _ in range(2)]
    batch, again = collators[0](examples), collators[1](numbered)
    assert torch.equal(batch["labels"], again["labels"])
    num_pieces = 0
    for row, labels in enumerate(batch["labels"].tolist()):
        asked: dict[int, list[bool]] = {}
        for place, word in enumerate(encoded.word_ids(row)):
            if word is not None:
                asked.setdefault(word, []).append(labels[place] != IGNORED_LABEL)
        num_pieces += sum(len(one) > 1 for one in asked.values())
        assert all(len(set(one)) == 1 for one in asked.values() if len(one) <= MAX_WORD_TOKENS)
    assert num_pieces > 20
    assert (batch["labels"] != IGNORED_LABEL).any()
    if strategy == "whole_word":
        short = mw.MaskingCollator(theirs, mlm_probability=0.4, seed=3, whole_word_mask=True)
        assert torch.equal(short(examples)["labels"], batch["labels"])


def test_a_tokenizer_without_rules_for_words_needs_them_in_the_examples() -> None:
    backend = Backend(models.BPE({"a": 0, "b": 1, "<unk>": 2, "<mask>": 3, "<pad>": 4}, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", pad_token="<pad>", mask_token="<mask>"
    )
    encoded = tokenizer("ab ba ab b", return_offsets_mapping=True)
    collator = mw.MaskingCollator(tokenizer, mlm_probability=0.5, seed=0, strategy="whole_word")
    with pytest.raises(InputError, match="give the examples 'word_ids' or 'offset_mapping'"):
        collator([{"input_ids": encoded["input_ids"]}] * 20)
    given = {"input_ids": encoded["input_ids"], "offset_mapping": encoded["offset_mapping"]}
    labels = collator([given] * 20)["labels"] != IGNORED_LABEL
    assert torch.equal(labels[:, [0, 2, 4]], labels[:, [1, 3, 5]])
    assert 0 < int(labels.sum()) < labels.numel()


def test_a_seed_repeats_masks_and_every_worker_draws_its_own(theirs: Any) -> None:
    examples = draw_examples(theirs, 8)
    first, second, other = (mw.MaskingCollator(theirs, seed=seed) for seed in (5, 5, 6))
    batches = [[one(examples)["labels"] for _ in range(2)] for one in (first, second, other)]
    assert torch.equal(batches[0][0], batches[1][0])
    assert torch.equal(batches[0][1], batches[1][1])
    assert not torch.equal(batches[0][0], batches[0][1])
    assert not torch.equal(batches[0][0], batches[2][0])
    torch.manual_seed(1)
    unseeded = mw.MaskingCollator(theirs)(examples)["labels"]
    torch.manual_seed(1)
    assert torch.equal(mw.MaskingCollator(theirs)(examples)["labels"], unseeded)
    loader = DataLoader(
        examples[:1] * 2,
        batch_size=1,
        num_workers=2,
        collate_fn=mw.MaskingCollator(theirs, seed=5, mlm_probability=0.5),
    )
    of_workers = [batch["labels"] for batch in loader]
    assert not torch.equal(*of_workers)
    assert all(torch.equal(*pair) for pair in zip(of_workers, (batch["labels"] for batch in loader), strict=True))


def test_without_masks_and_as_arrays(theirs: Any) -> None:
    examples = [{"input_ids": one["input_ids"]} for one in draw_examples(theirs, 6)]
    expected = transformers.DataCollatorForLanguageModeling(theirs, mlm=False)(examples)
    found = mw.MaskingCollator(theirs, mlm=False)(examples)
    assert torch.equal(found["labels"], expected["labels"])
    arrays = mw.MaskingCollator(theirs, return_tensors="np", seed=0)(examples)
    assert all(isinstance(value, np.ndarray) for value in arrays.values())
    assert np.array_equal(arrays["labels"], mw.MaskingCollator(theirs, seed=0)(examples)["labels"].numpy())


def test_the_trainer_of_transformers_takes_it(theirs: Any, sentences: list[str], tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=len(theirs), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=6, per_device_train_batch_size=8, report_to=[], use_cpu=True
    )
    trainer = transformers.Trainer(
        transformers.BertForMaskedLM(config),
        arguments,
        data_collator=mw.MaskingCollator(theirs, mlm_probability=0.3, strategy="span", seed=0),
        train_dataset=[{"input_ids": ids} for ids in theirs(sentences)["input_ids"]],
    )
    result = trainer.train()
    assert result.global_step == 6
    assert 0 < result.training_loss < 2 * np.log(len(theirs))


@pytest.mark.parametrize(
    ("options", "examples", "message"),
    [
        ({"mlm_probability": 1.5}, [], "mlm_probability is 1.5"),
        (
            {"mask_replace_prob": 0.8, "random_replace_prob": 0.3},
            [],
            "mask_replace_prob [+] random_replace_prob is 1.1",
        ),
        ({"strategy": "words"}, [], "no masking strategy 'words'"),
        ({"whole_word_mask": True, "strategy": "span"}, [], "give one of the two"),
        ({"mlm": False, "strategy": "span"}, [], "with mlm=True alone"),
        ({"return_tensors": "tf"}, [], "return_tensors is 'tf'"),
        ({}, [], "there is no example"),
        ({}, [{"text": "the cat"}], "columns text; each must have 'input_ids'"),
        ({}, [{"input_ids": [5], "text": "the cat"}], "the column 'text' holds a str"),
        ({}, [{"input_ids": [5], "x": [1]}, {"input_ids": [5]}], "and all the same ones"),
    ],
)
def test_wrong_input_is_one_sentence(theirs: Any, options: dict[str, Any], examples: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        mw.MaskingCollator(theirs, **options)(examples)


def test_a_tokenizer_without_a_mask_is_refused() -> None:
    backend = Backend(models.WordLevel({"a": 0, "<unk>": 1}, "<unk>"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    with pytest.raises(InputError, match="has no mask token; add one and resize"):
        mw.MaskingCollator(tokenizer)
    batch = mw.MaskingCollator(tokenizer, mlm=False)([[0, 0], [0, 1]])
    assert batch["labels"].tolist() == [[0, 0], [0, 1]]
    with pytest.raises(InputError, match="no padding token"):
        mw.MaskingCollator(tokenizer, mlm=False)([[0, 0], [0]])
