"""Words of a domain: chosen by what they save, and measured on texts they were not chosen from."""

from __future__ import annotations

import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from domain_examples import DOMAIN, KINDS, SPELLED, choose, cut, extend_all, train_all

from maskwright.errors import InputError
from maskwright.text.tokenizer import domain_tokens
from maskwright.text.tokenizer.domain_tokens import DomainToken, FragmentationMeter, choose_domain_tokens, forget_rare
from maskwright.text.tokenizer.extend import add_domain_tokens, advise_vocabulary
from maskwright.text.tokenizer.tokenizer import Tokenizer, load_tokenizer

DATA = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.fixture(scope="module")
def trained() -> dict[str, Tokenizer]:
    return train_all()


@pytest.fixture(scope="module")
def extended() -> dict[str, Tokenizer]:
    return extend_all()


@pytest.mark.parametrize("kind", KINDS)
def test_frequent_badly_cut_words_are_chosen_by_what_they_save(trained: dict[str, Tokenizer], kind: str) -> None:
    chosen = choose(trained[kind])
    counts = {token.word: token.count for token in chosen}
    assert counts["angiogenesis"] == 12
    assert counts["zygote"] == 9
    savings = [token.tokens_saved for token in chosen]
    assert savings == sorted(savings, reverse=True)
    for token in chosen:
        assert token.spelling == SPELLED[kind].format(token.word)
        assert token.tokens_saved == token.count * (len(token.pieces) - 1)
        assert list(token.pieces) == cut(trained[kind], f" {token.word}")
        assert len(token.pieces) >= 3
    assert choose(trained[kind], max_tokens=2) == chosen[:2]
    assert {token.word for token in choose(trained[kind], min_count=10)} <= {"angiogenesis", "remembers"}
    longest = max(len(token.pieces) for token in chosen)
    assert all(len(token.pieces) == longest for token in choose(trained[kind], min_pieces=longest))


def test_words_that_save_the_same_come_by_the_alphabet_whatever_the_order(trained: dict[str, Tokenizer]) -> None:
    texts = ["qzx qzw qzv"] * 3
    chosen = choose(trained["wordpiece"], texts)
    assert [token.word for token in chosen] == ["qzv", "qzw", "qzx"]
    assert choose(trained["wordpiece"], ["qzw qzx", "qzv"] * 3) == chosen


@pytest.mark.parametrize("kind", KINDS)
def test_only_words_of_letters_are_chosen(trained: dict[str, Tokenizer], kind: str) -> None:
    texts = ["qzx 739182 q7z8x9 --;;--;; https://qwz.org/qzwv www.qzv.com me@qvx.net ☃☃☃☃"] * 5
    assert [token.word for token in choose(trained[kind], texts)] == ["qzx"]


def test_case_and_accents_count_as_the_normalizer_has_them(trained: dict[str, Tokenizer]) -> None:
    (token,) = choose(trained["wordpiece"], ["Qzéx QZEX qzex"])
    assert (token.word, token.count) == ("qzex", 3)


def test_words_with_unknown_characters_are_left_out(trained: dict[str, Tokenizer]) -> None:
    assert choose(trained["unigram"], ["qzжx"] * 5) == choose(trained["wordpiece"], ["qzжx"] * 5) == []


def test_unigram_words_without_a_space_before_them_are_left_out(trained: dict[str, Tokenizer]) -> None:
    """Pieces for them would match inside other words."""
    assert choose(trained["unigram"], ["(qzx)"] * 5) == []
    assert [token.word for token in choose(trained["byte_level_bpe"], ["(qzx)"] * 5)] == ["qzx"]


def test_a_word_level_tokenizer_has_nothing_to_choose_or_add(trained: dict[str, Tokenizer]) -> None:
    assert choose(trained["word_level"]) == []
    with pytest.raises(InputError, match="a word-level tokenizer never cuts a word"):
        add_domain_tokens(trained["word_level"], [DomainToken("qzx", "qzx", 3, ("q", "z", "x"))])


@pytest.mark.parametrize("option", [{"max_tokens": 0}, {"min_count": 0}, {"min_pieces": 1}])
def test_senseless_limits_are_refused(trained: dict[str, Tokenizer], option: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="it must be at least"):
        choose(trained["wordpiece"], **option)


def test_rare_words_are_forgotten_when_there_are_too_many() -> None:
    counts = Counter({b"a": 9, b"b": 4, b"c": 1, b"d": 1, b"e": 1})
    forget_rare(counts, 5)
    assert len(counts) == 5
    forget_rare(counts, 4)
    assert counts == {b"a": 9, b"b": 4}


def test_frequent_words_survive_a_bounded_count(trained: dict[str, Tokenizer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domain_tokens, "_MAX_COUNTED", 8)
    monkeypatch.setattr(domain_tokens, "CHUNK_CHARS", 60)
    letters = "qzxvwkj"
    rare = [f"{a}{b}{c}q" for a in letters for b in letters for c in letters]
    texts = (f"angiogenesis angiogenesis angiogenesis {word}" for word in rare)
    chosen = choose_domain_tokens(texts, trained["wordpiece"], min_count=100)
    assert [token.word for token in chosen] == ["angiogenesis"]
    assert chosen[0].count == 3 * len(rare)


def test_figures_count_words_pieces_and_unknown_tokens(trained: dict[str, Tokenizer]) -> None:
    tokenizer = trained["wordpiece"]
    meter = FragmentationMeter(tokenizer)
    meter.add(["the qzx, ж the", "", "qz."])
    meter.add(["..."])
    figures = meter.figures
    assert (figures.num_texts, figures.num_words, figures.num_unknown) == (4, 5, 1)
    assert figures.num_word_tokens == 1 + 3 + 1 + 1 + 2
    assert figures.num_tokens == figures.num_word_tokens + 5
    assert figures.num_fragmented == 1
    assert figures.tokens_per_word == 8 / 5


@pytest.mark.parametrize("kind", KINDS)
def test_adding_words_changes_the_number_of_tokens_and_not_of_words(
    trained: dict[str, Tokenizer], extended: dict[str, Tokenizer], kind: str
) -> None:
    meters = [FragmentationMeter(trained[kind]), FragmentationMeter(extended[kind])]
    for meter in meters:
        meter.add(DOMAIN)
    before, after = (meter.figures for meter in meters)
    assert after.num_words == before.num_words
    assert after.num_tokens < before.num_tokens
    assert after.num_fragmented < before.num_fragmented


def test_advice_is_measured_on_texts_it_was_not_chosen_from(trained: dict[str, Tokenizer]) -> None:
    texts = ["a zygote"] * 5 + ["a qzx"] * 3
    advice = advise_vocabulary(lambda: texts, lambda text: "qzx" in text, trained["wordpiece"], 10, 1)
    assert [token.word for token in advice.tokens] == ["zygote"]
    assert (advice.num_texts, advice.before.num_texts) == (5, 3)
    assert advice.saved_share == 0.0
    turned = advise_vocabulary(lambda: texts, lambda text: text == texts[0], trained["wordpiece"], 10, 1)
    assert turned.saved_share == 0.0
    both = advise_vocabulary(lambda: [*texts, "zygote, zygote"], lambda text: "," in text, trained["wordpiece"], 10, 1)
    assert both.after.tokens_per_word == 1.0


@pytest.mark.parametrize("answer", [True, False])
def test_advice_needs_texts_on_both_sides(trained: dict[str, Tokenizer], answer: bool) -> None:
    with pytest.raises(InputError, match="nothing to choose from or nothing to measure on; give more texts"):
        advise_vocabulary(lambda: DOMAIN, lambda text: answer, trained["wordpiece"], 10, 1)


@pytest.mark.parametrize(
    "name",
    [
        "bert-base-cased",
        pytest.param("roberta-base", marks=pytest.mark.slow),
        pytest.param("bert-base-uncased", marks=pytest.mark.slow),
        pytest.param("gpt2", marks=pytest.mark.slow),
    ],
)
def test_published_tokenizers_read_biomedical_text_in_fewer_tokens(tmp_path: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    archive, texts = DATA / "tokenizers.tar.xz", DATA / "text" / "biomed" / "valid.jsonl.zst"
    if not archive.is_file() or not texts.is_file():
        pytest.skip(f"no published tokenizers and biomedical texts at {DATA}")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    from maskwright.text.sources import read_sources

    documents = list(read_sources(str(texts)))
    old = load_tokenizer(tmp_path / name)
    new = add_domain_tokens(old, choose_domain_tokens(documents[::2], old, max_tokens=200, min_count=3))
    meters = [FragmentationMeter(old), FragmentationMeter(new)]
    for meter in meters:
        meter.add(documents[1::2])
    before, after = (meter.figures for meter in meters)
    assert after.num_tokens < 0.995 * before.num_tokens
    assert after.num_words == before.num_words
    decoded = [tokenizer.decode(tokenizer.encode(documents[1])) for tokenizer in (old, new)]
    assert decoded[0] == decoded[1]
    new.save(tmp_path / "new")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    assert theirs(documents[1])["input_ids"] == new.encode(documents[1])
