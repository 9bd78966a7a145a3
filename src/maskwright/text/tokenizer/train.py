"""Train a tokenizer on the user's own text."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Literal, get_args

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from maskwright.errors import InputError, check_count
from maskwright.sections.data import SourceConfig
from maskwright.storage import naming
from maskwright.suggestions import suggest
from maskwright.text.in_memory import read_texts
from maskwright.text.sources import read_sources
from maskwright.text.tokenizer.special_tokens import SPECIAL_ROLES, build_special
from maskwright.text.tokenizer.tokenizer import Tokenizer, refuse_half_characters

TokenizerType = Literal["wordpiece", "byte_level_bpe", "unigram", "word_level", "character", "smiles"]
UNK = SPECIAL_ROLES["unk"]
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
_LOOK_S = 0.1
_SCORE_DECIMALS = 4
_CHARACTER_STEP = 1e-4
"""By how much the library's unigram trainer sets apart the scores of characters it saw only inside pieces."""


@dataclass(frozen=True)
class Plan:
    """What is asked of a vocabulary."""

    vocab_size: int
    lowercase: bool
    min_frequency: int
    specials: list[str]


def train_tokenizer(
    texts: str | Path | Iterable[str] | Callable[[], Iterable[str]],
    type: TokenizerType = "wordpiece",
    vocab_size: int = 30522,
    lowercase: bool = True,
    min_frequency: int = 2,
    *,
    special_tokens: Sequence[str] = (),
    column: str | None = None,
) -> Tokenizer:
    """Learn a vocabulary; the same texts and settings always give the same one.

    `wordpiece`: BERT's pieces. `byte_level_bpe`: RoBERTa's, any text goes in and comes out exactly (with `lowercase`
    off). `unigram`: SentencePiece's, chosen by likelihood, so `min_frequency` plays no part. `word_level`: whitespace
    words. `character`: single characters, for proteins and DNA. `smiles`: atoms, bonds and rings of molecules, whose
    case counts. The ids 0 to 4 are `[PAD]`, `[UNK]`, `[CLS]`, `[SEP]`, `[MASK]`; `special_tokens` of yours follow.

    A string is the path of a source, as `data.train` takes it; of records, a data frame or a dataset the `column` is
    read, and unset one with a usual name, which is said. Texts are streamed: memory grows with the different
    words, not with the corpus. `wordpiece` needs two passes; give a list, another re-iterable or a function that
    returns an iterator; a plain iterator is spooled to a temporary file.
    """
    if type not in get_args(TokenizerType):
        raise InputError(f"no tokenizer type '{type}'{suggest(type, get_args(TokenizerType))}")
    if isinstance(texts, str | Path):
        texts = partial(read_sources, SourceConfig(path=str(texts), column=column))
    elif isinstance(texts, Iterator):
        texts = read_texts(texts, column)
    elif callable(texts):
        texts = partial(_read_again, texts, column)
    else:
        texts = partial(read_texts, texts, column)
    check_case(type, lowercase)
    plan = build_plan(vocab_size, lowercase, min_frequency, special_tokens)
    if type == "wordpiece":
        with _readable_twice(texts) as read:
            backend = _train_wordpiece(read, plan)
    else:
        others = {"byte_level_bpe": _train_byte_level, "unigram": _train_unigram}
        train = others.get(type, partial(_train_word_level, type=type))
        backend = train(texts() if callable(texts) else texts, plan)
    return finish(backend, plan)


def build_plan(vocab_size: int, lowercase: bool, min_frequency: int, special_tokens: Sequence[str]) -> Plan:
    check_count("vocab_size", vocab_size)
    plan = Plan(vocab_size, lowercase, min_frequency, _join_specials(special_tokens))
    if vocab_size <= len(plan.specials):
        raise InputError(f"vocab_size is {vocab_size}; it must exceed the {len(plan.specials)} special tokens")
    return plan


def finish(backend: Backend, plan: Plan) -> Tokenizer:
    mask = SPECIAL_ROLES["mask"]
    backend.add_special_tokens([build_special(backend, "mask" if t == mask else "", t) for t in plan.specials])
    return Tokenizer(backend, SPECIAL_ROLES)


def _read_again(read: Callable[[], Iterable[str]], column: str | None) -> Iterator[str]:
    return read_texts(read(), column)


def _join_specials(extra: Sequence[str]) -> list[str]:
    specials = list(SPECIAL_ROLES.values())
    for token in extra:
        if not token.strip():
            raise InputError("a special token is empty; give a text such as [ENTITY]")
        if token in specials:
            raise InputError(f"the special token '{token}' is given twice or is one of {', '.join(specials[:5])}")
        specials.append(token)
    return specials


@contextmanager
def _readable_twice(texts: Iterable[str] | Callable[[], Iterable[str]]) -> Iterator[Callable[[], Iterable[str]]]:
    if callable(texts):
        yield texts
    elif isinstance(texts, Iterator):
        place = Path(tempfile.gettempdir())  # a full disk is said to be this one
        with tempfile.TemporaryFile("w+", encoding="utf-8") as spool:
            for text in texts:
                with naming(place):
                    spool.write(json.dumps(text) + "\n")
            with naming(place):
                spool.flush()
            yield lambda: _read_spool(spool)
    else:
        again = texts
        yield lambda: again


def _read_spool(spool: IO[str]) -> Iterator[str]:
    spool.seek(0)
    for line in spool:
        yield json.loads(line)


def learn(backend: Backend, texts: Iterable[str], trainer: trainers.Trainer) -> None:
    """Feed the trainer; an error while reading the texts comes out as it was raised.

    The library computes for minutes. It does so in a thread, since Ctrl-C waits until the main thread runs Python.
    """
    raised: list[BaseException] = []
    is_left = threading.Event()

    def watched() -> Iterator[str]:
        try:
            for text in texts:
                if is_left.is_set():
                    return
                refuse_half_characters(text, "a text")
                yield text
        except Exception as error:
            raised.append(error)

    def learn() -> None:
        try:
            backend.train_from_iterator(watched(), trainer)
        except BaseException as error:  # a panic of the library is no Exception
            raised.append(error)

    thread = threading.Thread(target=learn, name="tokenizer", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_LOOK_S)
    finally:
        is_left.set()
    if raised:
        raise raised[0]


def _train_wordpiece(read: Callable[[], Iterable[str]], plan: Plan) -> Backend:
    # The trainer numbers the continuation characters in the order of a randomly seeded hash map, and breaks ties
    # between merges by number. Listed among the special tokens they get their numbers first, in our order.
    alphabet = _learn_pieces(read(), plan, vocab_size=0, min_frequency=1, first_tokens=plan.specials)
    if len(alphabet) == len(plan.specials):
        raise describe_no_words()
    check_alphabet(plan, len(alphabet))
    continuations = sorted(piece for piece in alphabet if piece.startswith("##"))
    first_tokens = [*plan.specials, *continuations]
    vocabulary = _learn_pieces(read(), plan, plan.vocab_size, plan.min_frequency, first_tokens)
    return build_wordpiece(models.WordPiece(vocabulary, unk_token=UNK), plan.lowercase)


def _learn_pieces(
    texts: Iterable[str], plan: Plan, vocab_size: int, min_frequency: int, first_tokens: list[str]
) -> dict[str, int]:
    backend = build_wordpiece(models.WordPiece(unk_token=UNK), plan.lowercase)
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=first_tokens, show_progress=False
    )
    learn(backend, texts, trainer)
    return backend.get_vocab(with_added_tokens=False)


def build_wordpiece(model: models.WordPiece, lowercase: bool) -> Backend:
    backend = Backend(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def build_byte_level(model: models.BPE, lowercase: bool) -> Backend:
    backend = Backend(model)
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def _train_byte_level(texts: Iterable[str], plan: Plan) -> Backend:
    check_alphabet(plan, len(plan.specials) + len(BYTES), what="the 256 bytes and the special tokens")
    backend = build_byte_level(models.BPE(), plan.lowercase)
    trainer = trainers.BpeTrainer(
        vocab_size=plan.vocab_size,
        min_frequency=plan.min_frequency,
        special_tokens=plan.specials,
        initial_alphabet=BYTES,
        show_progress=False,
    )
    learn(backend, _with_words(texts), trainer)
    return backend


def _train_unigram(texts: Iterable[str], plan: Plan) -> Backend:
    backend = Backend(models.Unigram())
    fold = [normalizers.Lowercase()] if plan.lowercase else []
    spaces = normalizers.Replace(Regex(r"\s+"), " ")
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), *fold, spaces])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    # The trainer can learn a word whole only if it occurs in two surroundings, such as before a comma; so the words
    # keep their punctuation while it learns, and lose it after: a fifth more pieces make up for those that mix both.
    trainer = trainers.UnigramTrainer(
        vocab_size=plan.vocab_size * 6 // 5, special_tokens=plan.specials, unk_token=UNK, show_progress=False
    )
    learn(backend, _with_words(texts), trainer)
    punctuation = pre_tokenizers.Punctuation()
    vocabulary = [(piece, score) for piece, score in _read_scores(backend) if piece not in plan.specials]
    characters = [item for item in vocabulary if len(item[0]) == 1]
    check_alphabet(plan, len(plan.specials) + len(characters))
    longer = [item for item in vocabulary if len(item[0]) > 1 and len(punctuation.pre_tokenize_str(item[0])) == 1]
    pieces = _settle_scores(characters, longer, plan.vocab_size - len(plan.specials))
    backend.pre_tokenizer = pre_tokenizers.Sequence([backend.pre_tokenizer, punctuation])
    unk_id = plan.specials.index(UNK)
    backend.model = models.Unigram([*((token, 0.0) for token in plan.specials), *pieces], unk_id, False)
    return backend


def _read_scores(backend: Backend) -> list[tuple[str, float]]:
    return [(piece, score) for piece, score in json.loads(backend.to_str())["model"]["vocab"]]


def _settle_scores(
    characters: list[tuple[str, float]], longer: list[tuple[str, float]], size: int
) -> list[tuple[str, float]]:
    """All characters and the best longer pieces, best first, with nothing left of a randomly seeded hash map.

    The trainer adds its sums up in the map's order, which shows in the last digits, and gives characters that it
    dropped and needs again scores just above the lowest, in the map's order too: those get the lowest.
    """
    lowest = min(score for _, score in [*characters, *longer])
    bound = lowest + _CHARACTER_STEP * (len(characters) + 1)
    characters = [(piece, round(lowest if score < bound else score, _SCORE_DECIMALS)) for piece, score in characters]
    longer = sorted(((piece, round(score, _SCORE_DECIMALS)) for piece, score in longer), key=_best_first)
    return sorted([*characters, *longer[: size - len(characters)]], key=_best_first)


def _best_first(item: tuple[str, float]) -> tuple[float, str]:
    return -item[1], item[0]


_UNITS = {"character": r"[\s\S]", "smiles": r"\[[^\]]*\]|Br|Cl|>>|%\d\d|[\s\S]"}
"""What is one token, other than a word. In SMILES: an atom in brackets or of two letters, the arrow of a reaction, the
number of a ring from 10 on, or one character (the units of Schwaller et al. 2019).
"""


def check_case(type: str, lowercase: bool) -> None:
    if type == "smiles" and lowercase:
        raise InputError(
            "SMILES tells aromatic atoms by their case; keep it (--cased, tokenizer.lowercase=false, lowercase=False)"
        )


def build_word_level(model: models.WordLevel, lowercase: bool, type: str = "word_level") -> Backend:
    """A tokenizer of whole words, or of the units of another type, which are joined without spaces."""
    backend = Backend(model)
    if lowercase:
        backend.normalizer = normalizers.Lowercase()
    if type in _UNITS:
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(_UNITS[type]), "isolated")
        backend.decoder = decoders.Fuse()
    else:
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def _train_word_level(texts: Iterable[str], plan: Plan, type: str) -> Backend:
    backend = build_word_level(models.WordLevel(unk_token=UNK), plan.lowercase, type)
    trainer = trainers.WordLevelTrainer(
        vocab_size=plan.vocab_size,
        min_frequency=plan.min_frequency,
        special_tokens=plan.specials,
        show_progress=False,
    )
    learn(backend, _with_words(texts), trainer)
    if backend.get_vocab_size() == len(plan.specials):
        raise describe_rare_words(plan)
    return backend


def describe_rare_words(plan: Plan) -> InputError:
    return InputError(f"no word of the text occurs {plan.min_frequency} times; lower min_frequency")


def _with_words(texts: Iterable[str]) -> Iterator[str]:
    """The texts that are more than blanks, of which there must be one."""
    is_empty = True
    for text in texts:
        if text.strip():
            is_empty = False
            yield text
    if is_empty:
        raise describe_no_words()


def check_alphabet(plan: Plan, num_needed: int, what: str = "the characters of the text alone") -> None:
    if plan.vocab_size < num_needed:
        raise InputError(f"vocab_size is {plan.vocab_size}, {what} take {num_needed} tokens; raise it")


def describe_no_words() -> InputError:
    return InputError("the text holds no word to learn a vocabulary from; check the file")
