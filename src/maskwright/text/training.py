"""Train a tokenizer on the user's own text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from maskwright.errors import InputError
from maskwright.text.tokenizer import SPECIAL_ROLES, Tokenizer

TokenizerType = Literal["wordpiece", "word_level"]


def train_tokenizer(
    texts: Iterable[str],
    type: TokenizerType = "wordpiece",
    vocab_size: int = 30522,
    lowercase: bool = True,
    min_frequency: int = 2,
) -> Tokenizer:
    """Learn a vocabulary: `wordpiece` (BERT's pieces) or `word_level` (whitespace words)."""
    specials = list(SPECIAL_ROLES.values())
    if vocab_size <= len(specials):
        raise InputError(f"vocab_size is {vocab_size}; it must exceed the {len(specials)} special tokens")
    build = _build_wordpiece if type == "wordpiece" else _build_word_level
    backend, trainer = build(specials, vocab_size, lowercase, min_frequency)
    backend.train_from_iterator(texts, trainer)
    if backend.get_vocab_size() == len(specials):
        raise InputError("the text holds no word to learn a vocabulary from; check the file")
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return Tokenizer(backend, dict(SPECIAL_ROLES))


def _build_wordpiece(
    specials: list[str], vocab_size: int, lowercase: bool, min_frequency: int
) -> tuple[Backend, trainers.Trainer]:
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend, trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=specials, show_progress=False
    )


def _build_word_level(
    specials: list[str], vocab_size: int, lowercase: bool, min_frequency: int
) -> tuple[Backend, trainers.Trainer]:
    backend = Backend(models.WordLevel(unk_token="[UNK]"))
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend, trainers.WordLevelTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=specials, show_progress=False
    )
