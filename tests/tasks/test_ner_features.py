"""Words to tokens: each word knows its first token, whatever the tokenizer, and long sentences lose none."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from maskwright.batch import IGNORED_LABEL
from maskwright.errors import InputError
from maskwright.tasks.config import build_task_config
from maskwright.tasks.features import Features
from maskwright.tasks.loader import TaskLoader
from maskwright.tasks.ner.examples import TaggedSentence
from maskwright.tasks.ner.features import featurize_words
from maskwright.tasks.ner.tags import read_classes_as_tags
from maskwright.tasks.ner.token_classification import TokenClassification
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.text.tokenizer.train import train_tokenizer

CONFIG = build_task_config({"task": "ner", "model": "m", "train": "t", "validation": "v"})


def tag(words: str, tags: str | None = None) -> TaggedSentence:
    names = tuple(words.split(" "))
    read = read_classes_as_tags(tags.split() if tags else ["O"] * len(names))
    return TaggedSentence("a.conll", names, tuple(read), tuple(range(1, len(names) + 1)))


def build(sentences: list[TaggedSentence], tokenizer: Tokenizer, max_length: int = 32) -> Features:
    return featurize_words(sentences, tokenizer, max_length, CONFIG)


def list_first_tokens(features: Features, tokenizer: Tokenizer) -> list[list[str]]:
    offsets = features.store.offsets.tolist()
    rows = [features.store.ids[start:stop] for start, stop in itertools.pairwise(offsets)]
    return [
        [tokenizer.token(row[place - 1]) for place in example.places]
        for row, example in zip(rows, features.examples, strict=True)
    ]


@pytest.mark.parametrize("kind", ["wordpiece", "byte_level_bpe", "unigram"])
def test_each_word_is_known_by_its_first_token(sentences: list[str], kind: str) -> None:
    tokenizer = train_tokenizer(sentences, type=kind, vocab_size=400 if kind == "byte_level_bpe" else 120)
    words = "the housecats , remembers. zebra"
    features = build([tag(words)], tokenizer)
    (firsts,) = list_first_tokens(features, tokenizer)
    bare = [token.lstrip("Ġ▁") for token in firsts]
    assert len(bare) == 5
    for word, token in zip(words.split(), bare, strict=True):
        assert word.startswith(token) or token in (tokenizer.special_tokens["unk"], "")
    assert features.notes == ()


def test_targets_are_places_and_classes_with_nothing_behind_them(tokenizer: Tokenizer) -> None:
    features = build([tag("the cat sees", "O B-PER O"), tag("river", "I-PER")], tokenizer)
    task = TokenClassification(["O", "B-PER", "I-PER"])
    targets = task.encode_targets(features.examples)
    assert targets.shape == (2, 3, 2)
    assert targets[0, :, 1].tolist() == [0, 1, 0]
    assert targets[0, 0, 0] == 1  # behind the special token
    assert targets[1].tolist() == [[1, 2], [IGNORED_LABEL] * 2, [IGNORED_LABEL] * 2]


def test_a_word_without_a_token_has_no_place_and_is_counted(tokenizer: Tokenizer) -> None:
    features = build([tag("the \u200d\u200b cat", "O B-PER B-LOC"), tag("\u200b")], tokenizer)
    (example,) = features.examples
    assert example.sentence.words == ("the", "cat")
    assert [str(one) for one in example.sentence.tags] == ["O", "B-LOC"]
    assert example.sentence.lines == (1, 3)
    assert features.num_empty == 1
    assert features.notes == ("2 words have no token and are left out",)


def test_sentences_without_any_token_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match=r"no word up to a\.conll:1 has a token"):
        build([tag("\u200b")], tokenizer)


def test_a_long_sentence_is_split_between_words_outside_entities(tokenizer: Tokenizer) -> None:
    words = " ".join(["the cat"] * 10)
    tags = " ".join(["O"] * 4 + ["B-PER"] + ["I-PER"] * 4 + ["O"] * 11)
    features = build([tag(words, tags)], tokenizer, max_length=9)
    assert features.sizes.max() <= 9
    joined = [word for example in features.examples for word in example.sentence.lines]
    assert joined == list(range(1, 21))
    assert [example.sentence.lines[0] for example in features.examples][:3] == [1, 5, 12]
    assert features.notes == ("1 sentences have more than 9 tokens and are split between words",)
    for example in features.examples:
        assert example.places[0] == 1


def test_an_entity_longer_than_the_model_is_split_and_a_word_longer_than_it_is_cut(tokenizer: Tokenizer) -> None:
    long_entity = tag("the cat the cat the cat", "B-PER" + " I-PER" * 5)
    features = build([long_entity], tokenizer, max_length=6)
    assert [len(example.places) for example in features.examples] == [4, 2]
    long_word = tag("cat catcatcatcatcatcat the")
    features = build([long_word], tokenizer, max_length=6)
    assert [example.sentence.words for example in features.examples][-1][-1] == "the"
    assert sum(len(example.places) for example in features.examples) == 3
    assert "1 words have more than 4 tokens and lose their end" in features.notes
    assert features.sizes.max() <= 6


def test_sentences_are_split_at_512_tokens_unless_more_is_asked_for(tokenizer: Tokenizer) -> None:
    sentence = tag(" ".join(["the"] * 600))
    assert build([sentence], tokenizer, max_length=8192).sizes.tolist() == [512, 92]
    asked = CONFIG.model_copy(update={"max_length": 8192})
    assert featurize_words([sentence], tokenizer, 8192, asked).sizes.tolist() == [602]


def test_logits_of_words_are_found_in_packed_rows(tokenizer: Tokenizer) -> None:
    """The head is replaced by one that answers with the token itself."""
    sentences = [tag("the cat sees"), tag("every student likes a long road"), tag("remembers"), tag("a dog")]
    features = build(sentences, tokenizer)
    task = TokenClassification(["O", "B-PER"])
    loader = TaskLoader(features, task.encode_targets(features.examples), tokenizer, batch_size=4, shuffle=False)
    batch = next(iter(loader))
    targets: Any = batch.known_targets  # type: ignore[attr-defined]
    assert targets.shape[1] > 1  # several sentences share a row
    found = task.arrange(batch.input_ids[..., None].float(), batch, targets)[..., 0]
    expected = list_first_tokens(features, tokenizer)
    samples = batch.sample_ids
    for row in range(len(targets)):
        numbers = torch.unique_consecutive(samples[row][~batch.is_padding[row]]).tolist()
        for place, number in enumerate(numbers):
            tokens = [tokenizer.token(int(one)) for one in found[row, place, : len(expected[number])]]
            assert tokens == expected[number]
