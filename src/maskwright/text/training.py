"""Train a tokenizer on the user's own text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from maskwright.errors import InputError
from maskwright.text.tokenizer import SPECIAL_ROLES, Tokenizer

TokenizerType = Literal["wordpiece", "word_level"]
_SPECIALS = list(SPECIAL_ROLES.values())


def train_tokenizer(
    texts: Iterable[str],
    type: TokenizerType = "wordpiece",
    vocab_size: int = 30522,
    lowercase: bool = True,
    min_frequency: int = 2,
) -> Tokenizer:
    """Learn a vocabulary: `wordpiece` (BERT's pieces) or `word_level` (whitespace words).

    The same texts and settings always give the same vocabulary.
    """
    if vocab_size <= len(_SPECIALS):
        raise InputError(f"vocab_size is {vocab_size}; it must exceed the {len(_SPECIALS)} special tokens")
    train = _train_wordpiece if type == "wordpiece" else _train_word_level
    backend = train(list(texts), vocab_size, lowercase, min_frequency)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return Tokenizer(backend, dict(SPECIAL_ROLES))


def _train_wordpiece(texts: list[str], vocab_size: int, lowercase: bool, min_frequency: int) -> Backend:
    # The trainer numbers the continuation characters in the order of a randomly seeded hash map, and breaks ties
    # between merges by number. Listed among the special tokens they get their numbers first, in our order.
    alphabet = _learn_pieces(texts, 0, lowercase, 1, _SPECIALS)
    if len(alphabet) == len(_SPECIALS):
        raise _no_words()
    if vocab_size < len(alphabet):
        raise InputError(
            f"vocab_size is {vocab_size}, the characters of the text alone take {len(alphabet)} tokens; raise it"
        )
    continuations = sorted(piece for piece in alphabet if piece.startswith("##"))
    vocabulary = _learn_pieces(texts, vocab_size, lowercase, min_frequency, [*_SPECIALS, *continuations])
    backend = _build_wordpiece(models.WordPiece(vocabulary, unk_token="[UNK]"), lowercase)
    backend.add_special_tokens(_SPECIALS)
    return backend


def _learn_pieces(
    texts: list[str], vocab_size: int, lowercase: bool, min_frequency: int, first_tokens: list[str]
) -> dict[str, int]:
    backend = _build_wordpiece(models.WordPiece(unk_token="[UNK]"), lowercase)
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=first_tokens, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    return backend.get_vocab(with_added_tokens=False)


def _build_wordpiece(model: models.WordPiece, lowercase: bool) -> Backend:
    backend = Backend(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def _train_word_level(texts: list[str], vocab_size: int, lowercase: bool, min_frequency: int) -> Backend:
    backend = Backend(models.WordLevel(unk_token="[UNK]"))
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=_SPECIALS, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    if backend.get_vocab_size() == len(_SPECIALS):
        raise _no_words()
    return backend


def _no_words() -> InputError:
    return InputError("the text holds no word to learn a vocabulary from; check the file")
