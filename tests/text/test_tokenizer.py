from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, normalizers, pre_tokenizers, processors

from maskwright.errors import InputError
from maskwright.text.tokenizer.tokenizer import Tokenizer, as_tokenizer, load_tokenizer
from maskwright.text.tokenizer.train import TokenizerType, train_tokenizer

_SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_TYPES: list[TokenizerType] = ["wordpiece", "byte_level_bpe", "unigram", "word_level"]
_VOCAB_SIZE = 300


@pytest.mark.parametrize("kind", _TYPES)
def test_special_tokens_come_first_and_stay_whole_in_text(sentences: list[str], kind: TokenizerType) -> None:
    tokenizer = train_tokenizer(sentences, kind, vocab_size=_VOCAB_SIZE)
    assert [tokenizer.token(token_id) for token_id in range(5)] == _SPECIALS
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.cls_token_id) == (0, 1, 2)
    assert (tokenizer.sep_token_id, tokenizer.mask_token_id, tokenizer.mask_token) == (3, 4, "[MASK]")
    assert tokenizer.all_special_ids == [0, 1, 2, 3, 4]
    tokens = [tokenizer.token(token_id) for token_id in tokenizer.encode("the [MASK] sees")]
    assert tokens.count("[MASK]") == 1
    assert tokens[tokens.index("[MASK]") - 1] not in ("Ġ", "▁")  # the mask takes the space before it along
    assert (tokens[0], tokens[-1]) == ("[CLS]", "[SEP]")


@pytest.mark.parametrize("kind", _TYPES)
def test_saved_and_loaded_tokenizers_are_the_same(tmp_path: Path, sentences: list[str], kind: TokenizerType) -> None:
    tokenizer = train_tokenizer(sentences, kind, vocab_size=_VOCAB_SIZE)
    tokenizer.save(tmp_path)
    for loaded in (load_tokenizer(tmp_path), load_tokenizer(tmp_path / "tokenizer.json")):
        assert loaded.backend.to_str() == tokenizer.backend.to_str()
        assert loaded.special_tokens == tokenizer.special_tokens


@given(text=st.text(max_size=60))
def test_any_text_is_encoded_between_cls_and_sep_within_the_vocabulary(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no tokenizer at .*tokenizer\.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", [b"{not json", b'{"model": 3}', b"\xff\xfe\x00"])
def test_a_damaged_tokenizer_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(InputError, match=r"tokenizer\.json is not a tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_damaged_settings_beside_the_tokenizer_are_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(InputError, match=r"tokenizer_config\.json is not valid JSON"):
        load_tokenizer(tmp_path)


def test_a_mask_token_is_added_where_there_is_none(tmp_path: Path, tokenizer: Tokenizer) -> None:
    text = tokenizer.backend.to_str().replace("[MASK]", "[OTHER]")
    (tmp_path / "tokenizer.json").write_text(text)
    larger = load_tokenizer(tmp_path)
    assert larger.added_roles == ("mask",)
    assert (larger.mask_token, larger.mask_token_id) == ("[MASK]", tokenizer.vocab_size)
    assert larger.vocab_size == tokenizer.vocab_size + 1
    larger.save(tmp_path)
    assert load_tokenizer(tmp_path).added_roles == ()
    assert load_tokenizer(tmp_path).mask_token_id == larger.mask_token_id


def test_a_mask_token_that_the_settings_name_is_added_by_that_name(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizer.backend.to_str().replace("[MASK]", "[OTHER]"))
    (tmp_path / "tokenizer_config.json").write_text('{"mask_token": "<blank>"}')
    assert load_tokenizer(tmp_path).mask_token == "<blank>"


def test_a_mask_token_with_another_role_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizer.backend.to_str())
    (tmp_path / "tokenizer_config.json").write_text('{"mask_token": "[PAD]"}')
    with pytest.raises(InputError, match=r"'\[PAD\]' is both the mask and the pad token"):
        load_tokenizer(tmp_path)


def test_special_tokens_named_by_the_settings_win_over_the_usual_spelling(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "mask_token": {"content": "the"}}))
    assert load_tokenizer(tmp_path).mask_token_id == tokenizer.backend.token_to_id("the")


def test_every_added_special_token_is_special(tokenizer: Tokenizer) -> None:
    backend = Backend.from_str(tokenizer.backend.to_str())
    backend.add_special_tokens(["[ENTITY]"])
    backend.add_tokens(["ordinary"])
    larger = as_tokenizer(backend)
    assert larger.all_special_ids == [0, 1, 2, 3, 4, backend.token_to_id("[ENTITY]")]
    assert larger.vocab_size == tokenizer.vocab_size + 2


def test_a_fast_tokenizer_of_transformers_is_accepted(tokenizer: Tokenizer) -> None:
    transformers = pytest.importorskip("transformers")
    names = {f"{role}_token": token for role, token in tokenizer.special_tokens.items()}
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Backend.from_str(tokenizer.backend.to_str()), **names
    )
    ours = as_tokenizer(theirs)
    assert ours.encode("the cat sees") == theirs("the cat sees")["input_ids"]
    assert ours.mask_token_id == theirs.mask_token_id
    assert as_tokenizer(ours) is ours


def test_a_tokenizer_that_pads_and_truncates_is_used_without_and_left_as_it_was(tokenizer: Tokenizer) -> None:
    backend = Backend.from_str(tokenizer.backend.to_str())
    backend.enable_padding(length=9)
    backend.enable_truncation(2)
    assert as_tokenizer(backend).encode("the cat sees") == tokenizer.encode("the cat sees")
    assert backend.padding["length"] == 9
    assert backend.truncation["max_length"] == 2


def test_something_else_is_no_tokenizer() -> None:
    with pytest.raises(InputError, match="a dict is not a tokenizer this can use"):
        as_tokenizer({})


@pytest.mark.parametrize("kind", _TYPES)
def test_transformers_reads_a_saved_tokenizer(tmp_path: Path, sentences: list[str], kind: TokenizerType) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = train_tokenizer(sentences, kind, vocab_size=_VOCAB_SIZE, special_tokens=["[USER]"])
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(theirs) == tokenizer.vocab_size
    assert theirs.mask_token == "[MASK]"
    assert theirs.mask_token_id == tokenizer.mask_token_id
    assert sorted(theirs.all_special_ids) == tokenizer.all_special_ids
    for text in [*sentences[:10], "An unseen Word, [MASK]!", "one [MASK]  two [USER] 你好 🙂", ""]:
        ids = tokenizer.encode(text)
        assert theirs(text)["input_ids"] == ids
        assert theirs.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids)


@pytest.mark.parametrize("lowercase", [True, False])
def test_transformers_reads_berts_tokenizer_as_its_own_class(tmp_path: Path, lowercase: bool) -> None:
    transformers = pytest.importorskip("transformers")
    text = "Crème brûlée at the CAFÉ-bar, 你好"
    tokenizer = train_tokenizer([text] * 20, vocab_size=200, lowercase=lowercase)
    tokenizer.backend.add_tokens(["brûlée"])
    tokenizer.save(tmp_path, has_segments=True)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(theirs) is transformers.BertTokenizer
    assert theirs.do_lower_case == lowercase
    assert dict(theirs(text, "the bar")) == tokenizer(text, "the bar")
    assert 1 in tokenizer(text, "the bar")["token_type_ids"]


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("normalizer", normalizers.NFC()),
        ("normalizer", normalizers.BertNormalizer(clean_text=False)),
        ("pre_tokenizer", pre_tokenizers.Whitespace()),
        ("decoder", decoders.ByteLevel()),
        ("post_processor", processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])),
    ],
)
def test_what_differs_from_berts_tokenizer_is_not_called_so(
    tmp_path: Path, tokenizer: Tokenizer, part: str, value: Any
) -> None:
    other = Backend.from_str(tokenizer.backend.to_str())
    setattr(other, part, value)
    Tokenizer(other).save(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"
