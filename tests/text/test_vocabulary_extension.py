"""Words added to a vocabulary: they alone are cut anew, and everybody who reads the tokenizer agrees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from domain_examples import DOMAIN, GENERAL, KINDS, SPELLED, choose, choose_terms, cut, extend_all, train_all
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from maskwright.errors import InputError
from maskwright.text.tokenizer.domain_tokens import DomainToken
from maskwright.text.tokenizer.encode import encode_texts
from maskwright.text.tokenizer.extend import add_domain_tokens
from maskwright.text.tokenizer.tokenizer import Tokenizer, load_tokenizer
from maskwright.text.words import build_boundaries


@pytest.fixture(scope="module")
def trained() -> dict[str, Tokenizer]:
    return train_all()


@pytest.fixture(scope="module")
def extended() -> dict[str, Tokenizer]:
    return extend_all()


def find_cuts(tokenizer: Tokenizer, text: str) -> set[tuple[int, int]]:
    return set(tokenizer.backend.encode(text, add_special_tokens=False).offsets)


@pytest.mark.parametrize("kind", KINDS)
def test_the_words_become_single_tokens_behind_the_old_ones(
    trained: dict[str, Tokenizer], extended: dict[str, Tokenizer], kind: str
) -> None:
    old, new, chosen = trained[kind], extended[kind], choose_terms(trained[kind])
    assert new.vocab_size == old.vocab_size + len(chosen)
    vocabulary = new.backend.get_vocab()
    assert old.backend.get_vocab().items() <= vocabulary.items()
    assert [vocabulary[token.spelling] for token in chosen] == list(range(old.vocab_size, new.vocab_size))
    assert new.special_tokens == old.special_tokens
    assert new.all_special_ids == old.all_special_ids
    for token in chosen:
        assert cut(new, f"a {token.word}, it")[1] == token.spelling
    assert old.vocab_size == trained[kind].backend.get_vocab_size(), "the old one is not touched"
    assert len(cut(old, " angiogenesis")) > 2


@pytest.mark.parametrize("kind", KINDS)
def test_only_whole_words_match(trained: dict[str, Tokenizer], extended: dict[str, Tokenizer], kind: str) -> None:
    texts = ["the preangiogenesis", "a zyg", "angio genesis", "aangiogenesisa rains", "the cat likes angiogenesi"]
    texts += GENERAL[:2]
    assert extended[kind].encode_batch(texts) == trained[kind].encode_batch(texts)


@pytest.mark.parametrize("kind", ["wordpiece", "byte_level_bpe"])
def test_longer_words_that_begin_with_a_new_one_stay_as_they_were(
    trained: dict[str, Tokenizer], extended: dict[str, Tokenizer], kind: str
) -> None:
    texts = ["the zygotes", "some zygotematerial", "a zygote7"]
    if kind == "byte_level_bpe":
        texts.pop()  # its pre-tokenizer sets letters and digits apart, so the word is whole
    assert extended[kind].encode_batch(texts) == trained[kind].encode_batch(texts)


def test_unigram_joins_the_pieces_of_a_word_and_moves_no_other_cut(
    trained: dict[str, Tokenizer], extended: dict[str, Tokenizer]
) -> None:
    text = "the zygotes, zygotematerial and proangiogenesis of an angiogenesis (zygote) likes"
    before, after = trained["unigram"], extended["unigram"]
    assert {begin for begin, _ in find_cuts(after, text)} < {begin for begin, _ in find_cuts(before, text)}
    assert {end for _, end in find_cuts(after, text)} < {end for _, end in find_cuts(before, text)}
    assert {"▁zygote", "▁angiogenesis"} < set(cut(after, text))


@pytest.mark.parametrize("kind", KINDS)
def test_text_offsets_and_special_tokens_survive(
    trained: dict[str, Tokenizer], extended: dict[str, Tokenizer], kind: str
) -> None:
    old, new = trained[kind], extended[kind]
    text = "the zygote, a [MASK] and (zygote) angiogenesis; zygote"
    assert new.decode(new.encode(text)) == old.decode(old.encode(text))
    assert new.encode(text)[0] == new.cls_token_id
    assert new.encode(text).count(new.mask_token_id) == 1
    encoding = new.backend.encode(text, add_special_tokens=False)
    places = dict(zip(encoding.offsets, encoding.tokens, strict=True))
    found = [text[slice(*place)].strip() for place, token in places.items() if token.endswith(("zygote", "genesis"))]
    assert found[0] == "zygote"
    assert found[-2:] == ["angiogenesis", "zygote"]


@settings(max_examples=60, deadline=None)
@given(
    words=st.lists(
        st.sampled_from(["zygote", "Zygote", "angiogenesis", "zygotes", "cat", ",", "(", "[MASK]", "  ", "7", "\n"]),
        max_size=12,
    ),
    joint=st.sampled_from([" ", ""]),
)
def test_any_text_is_the_same_after_and_its_words_are_the_librarys(
    trained: dict[str, Tokenizer], extended: dict[str, Tokenizer], words: list[str], joint: str
) -> None:
    text = joint.join(words)
    for kind in KINDS:
        old, new = trained[kind], extended[kind]
        ids = new.encode_batch([text])[0]
        assert new.decode(ids, skip_special_tokens=False) == old.decode(
            old.encode_batch([text])[0], skip_special_tokens=False
        ), kind
        assert len(ids) <= len(old.encode_batch([text])[0])
        found = encode_texts([text], new, build_boundaries(new)).word_starts.tolist()
        numbers = new.backend.encode(text, add_special_tokens=False).word_ids
        is_known = [token_id != new.unk_token_id for token_id in ids]
        for place in range(1, len(ids)):
            if is_known[place] and is_known[place - 1]:
                assert found[place] == (numbers[place] != numbers[place - 1]), (kind, text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model_type", [None, "bert", "roberta"])
def test_a_saved_tokenizer_is_the_same_here_and_in_transformers(
    extended: dict[str, Tokenizer], tmp_path: Path, kind: str, model_type: str | None
) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = extended[kind]
    tokenizer.save(tmp_path)
    if model_type is not None:  # transformers looks there for the class of a model's tokenizer
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    again, theirs = load_tokenizer(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(theirs) == tokenizer.vocab_size == again.vocab_size
    for text in [*DOMAIN[-4:], "a Zygote [MASK], zygotes (angiogenesis)zygote preangiogenesis"]:
        assert theirs(text)["input_ids"] == tokenizer.encode(text) == again.encode(text)
    ids = tokenizer.encode("the zygote, a cat")
    assert theirs.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_an_extended_tokenizer_can_be_extended_again(extended: dict[str, Tokenizer], kind: str) -> None:
    first = extended[kind]
    chosen = choose(first, ["a qzx and a zygote"] * 3)
    assert "zygote" not in {token.word for token in chosen}
    second = add_domain_tokens(first, chosen)
    assert cut(second, "a zygote qzx")[1:] == [SPELLED[kind].format(word) for word in ("zygote", "qzx")]
    assert first.backend.get_vocab().items() <= second.backend.get_vocab().items()


def build_bpe(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Backend:
    backend = Backend(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


@pytest.mark.parametrize("kind", KINDS)
def test_new_ids_lie_behind_special_tokens_that_lie_behind_the_vocabulary(
    trained: dict[str, Tokenizer], kind: str
) -> None:
    """As with GPT-2, which has no mask of its own."""
    backend = Backend.from_str(trained[kind].backend.to_str())
    backend.add_special_tokens(["[A]", "[B]"])
    old = Tokenizer(backend, trained[kind].special_tokens)
    size = trained[kind].vocab_size
    new = add_domain_tokens(old, choose(old))
    assert [new.backend.token_to_id(token) for token in ("[A]", "[B]")] == [size, size + 1]
    assert new.encode_batch(["[A] zygote[B]"])[0][0] == size
    assert new.encode_batch(["[A] zygote[B]"])[0][-1] == size + 1
    assert new.backend.token_to_id(choose(old)[0].spelling) == size + 2
    assert set(old.all_special_ids) == set(new.all_special_ids) >= {size, size + 1}


def test_words_before_punctuation_count_where_the_pre_tokenizer_leaves_it_on(trained: dict[str, Tokenizer]) -> None:
    """XLM-R's and ALBERT's words are what stands between spaces."""
    backend = Backend.from_str(trained["unigram"].backend.to_str())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    old = Tokenizer(backend, trained["unigram"].special_tokens)
    texts = ["a zygote, a zygote; zygote", "(zygote) zygotelike"]
    (token,) = [token for token in choose(old, texts) if token.word == "zygote"]
    assert token.count == 3
    new = add_domain_tokens(old, [token])
    assert cut(new, texts[0]).count("▁zygote") == 3
    assert new.decode(new.encode(texts[0])) == texts[0]


def test_words_the_vocabulary_has_and_words_given_twice_are_refused(trained: dict[str, Tokenizer]) -> None:
    token = choose(trained["wordpiece"])[0]
    with pytest.raises(InputError, match="in the vocabulary already, or given twice"):
        add_domain_tokens(trained["wordpiece"], [token, token])
    with pytest.raises(InputError, match="in the vocabulary already, or given twice"):
        add_domain_tokens(add_domain_tokens(trained["wordpiece"], [token]), [token])


def test_words_chosen_with_another_tokenizer_are_refused(trained: dict[str, Tokenizer]) -> None:
    with pytest.raises(InputError, match="choose words with the tokenizer they are added to"):
        add_domain_tokens(trained["wordpiece"], choose(trained["byte_level_bpe"]))


def test_a_vocabulary_with_gaps_keeps_its_ids_or_is_refused() -> None:
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "q": 5, "##z": 9, "##x": 11}
    backend = Backend(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    with pytest.raises(InputError, match="number the vocabulary without gaps"):
        add_domain_tokens(Tokenizer(backend), [DomainToken("qzx", "qzx", 3, ("q", "##z", "##x"))])


def test_merges_that_see_whole_texts_are_refused() -> None:
    backend = Backend(models.BPE({"<unk>": 0, "▁": 1, "a": 2, "b": 3}, [], unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    with pytest.raises(InputError, match="hands whole texts to its merges"):
        add_domain_tokens(Tokenizer(backend), [DomainToken("▁ab", "ab", 3, ("▁", "a", "b"))])


def test_a_vocabulary_with_tokens_that_would_newly_appear_is_refused() -> None:
    alphabet = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokens = [DomainToken("Ġzyx", "zyx", 3, ("Ġ", "z", "y", "x"))]
    with pytest.raises(InputError, match="never make its token 'ab'"):
        add_domain_tokens(Tokenizer(build_bpe({**alphabet, "ab": 256}, [])), tokens)
    # '=ab' is more than one word, so nobody can meet it
    assert add_domain_tokens(Tokenizer(build_bpe({**alphabet, "=ab": 256}, [])), tokens).kind == "BPE"
