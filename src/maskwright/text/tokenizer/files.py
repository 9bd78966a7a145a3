"""The files tokenizers come in: `tokenizer.json`, `vocab.txt`, or `vocab.json` with `merges.txt`.

Beside them may lie `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json`.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from maskwright.errors import InputError
from maskwright.storage import describe_parsing_error, restore_folder
from maskwright.text.tokenizer.special_tokens import SETTING_NAMES, SPECIAL_ROLES, build_special, read_token
from maskwright.untrusted import ADVICE, read_json_object

FAST_FILE = "tokenizer.json"
VOCABULARY_FILE = "vocab.txt"
BPE_FILES = ("vocab.json", "merges.txt")
SETTINGS_FILE = "tokenizer_config.json"
NAMES_FILE = "special_tokens_map.json"
_ADDED_FILE = "added_tokens.json"
_SENTENCEPIECE_SUFFIX = ".model"
_MAX_BYTES = 128 * 2**20
"""Of a vocabulary; the largest published ones, of 256,000 tokens with their merges, have 35 MB."""
_PROBE = "Ein caf\N{LATIN SMALL LETTER E WITH ACUTE} \N{CJK UNIFIED IDEOGRAPH-6F22} \N{SLIGHTLY SMILING FACE} 1"


def read_tokenizer(path: Path) -> tuple[Backend, dict[str, Any]]:
    """The tokenizer of a file or folder and its settings; in a folder `tokenizer.json` takes precedence."""
    file = _find_file(path)
    settings = _read_settings(file.parent)
    if file.name == VOCABULARY_FILE or file.suffix == ".txt":
        backend = _build_wordpiece(file, settings)
        _mark_special(backend, settings)
    elif file.name in BPE_FILES:
        backend = _build_byte_level(file.parent, settings)
        _mark_special(backend, settings)
    else:
        backend = _read_fast(file)
    _add_tokens(backend, settings, file.parent)
    return backend, settings


def _find_file(path: Path) -> Path:
    restore_folder(path)
    if path.is_file():
        return path.with_name(BPE_FILES[0]) if path.name == BPE_FILES[1] else path
    for name in (FAST_FILE, VOCABULARY_FILE, BPE_FILES[0]):
        if (path / name).is_file():
            return path / name
    known = f"{FAST_FILE}, {VOCABULARY_FILE}, or {' with '.join(BPE_FILES)}"
    if not path.is_dir():
        raise InputError(f"no tokenizer at {path}; give a folder that holds a {known}")
    found = next(path.glob(f"*{_SENTENCEPIECE_SUFFIX}"), None)
    if found is not None:
        raise InputError(f"{found} is a SentencePiece model, which is not read here; {advise_conversion(path)}")
    raise InputError(f"no tokenizer at {path / FAST_FILE}; give a folder that holds a {known}")


def advise_conversion(folder: Path) -> str:
    """Advice on how to convert a folder to a fast tokenizer."""
    place = repr(str(folder))
    code = f"from transformers import AutoTokenizer; AutoTokenizer.from_pretrained({place}).save_pretrained({place})"
    return (
        f"make a {FAST_FILE} of it once with: pip install transformers sentencepiece protobuf && python -c"
        f" {shlex.quote(code)}"
    )


def _read_settings(folder: Path) -> dict[str, Any]:
    """Settings and names of special tokens; the older file of names counts for what the newer does not say."""
    files = [folder / name for name in (NAMES_FILE, SETTINGS_FILE)]
    settings: dict[str, Any] = {}
    for file in files:
        values = read_json_object(file) if file.is_file() else {}
        settings |= {name: value for name, value in values.items() if value is not None}
    return settings


def _read_text(file: Path) -> str:
    with file.open("rb") as opened:
        content = opened.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise InputError(f"{file} is larger than {_MAX_BYTES >> 20} MiB, the most that is read of it; {ADVICE}")
    return content.decode("utf-8").replace("\r\n", "\n")  # as a file opened as text


def _read_fast(file: Path) -> Backend:
    try:
        with _without_panic_report():
            backend = Backend.from_str(_read_text(file))
            with suppress(Exception):  # what it cannot encode is said where it is to be encoded
                backend.encode(_PROBE)
    except InputError:
        raise
    except BaseException as error:
        # the library raises bare Exception for a file it cannot read; some make it panic, others only when it is used
        if not (isinstance(error, Exception) or is_panic(error)):
            raise
        raise InputError(f"{file} is not a tokenizer.json: {describe_parsing_error(error)}") from None
    return backend


def is_panic(error: BaseException) -> bool:
    """Whether the library's own code failed; the class of that error is made when it happens, and is no Exception."""
    return type(error).__name__ == "PanicException"


@contextmanager
def _without_panic_report() -> Iterator[None]:
    """A panic is reported on file descriptor 2, past Python, before it can be caught and said in a sentence."""
    try:
        kept = os.dup(2)
    except OSError:  # there is none
        yield
        return
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _build_wordpiece(file: Path, settings: Mapping[str, Any]) -> Backend:
    """BERT's tokenizer; where no setting says whether case is folded, capitals in the vocabulary do."""
    try:
        lines = _read_text(file).split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text; expected one token per line") from error
    vocabulary = {token: number for number, token in enumerate(lines[:-1] if not lines[-1] else lines)}
    unk = read_token(settings.get("unk_token")) or SPECIAL_ROLES["unk"]
    if unk not in vocabulary:
        raise InputError(f"{file} has no line '{unk}'; expected a WordPiece vocabulary, one token per line")
    names = {read_token(settings.get(name)) for name in SETTING_NAMES} | set(SPECIAL_ROLES.values())
    is_cased = any(token != token.lower() for token in vocabulary if token not in names and not token.startswith("["))
    backend = Backend(models.WordPiece(vocabulary, unk_token=unk))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
        strip_accents=settings.get("strip_accents"),
        lowercase=bool(settings.get("do_lower_case", not is_cased)),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def describe_class(backend: Backend) -> dict[str, Any]:
    """The class of transformers that does the same, with its settings; the general one for what is not BERT's.

    Programs look at the class: transformers.js tells the texts of a pair apart for BERT's alone.
    """
    ours = json.loads(backend.to_str())
    normalizer = ours["normalizer"] or {}
    theirs = Backend(models.WordPiece(unk_token=ours["model"].get("unk_token") or SPECIAL_ROLES["unk"]))
    theirs.normalizer = normalizers.BertNormalizer(
        handle_chinese_chars=bool(normalizer.get("handle_chinese_chars", True)),
        strip_accents=normalizer.get("strip_accents"),
        lowercase=bool(normalizer.get("lowercase", True)),
    )
    theirs.pre_tokenizer, theirs.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    expected = json.loads(theirs.to_str())
    ours["model"]["vocab"] = {}
    is_same = all(ours[name] == expected[name] for name in ("model", "normalizer", "pre_tokenizer", "decoder"))
    if not is_same or _list_types(ours["post_processor"]) != _BERT_TYPES:
        return {"tokenizer_class": "PreTrainedTokenizerFast"}
    return {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": normalizer["lowercase"],
        "strip_accents": normalizer["strip_accents"],
        "tokenize_chinese_chars": normalizer["handle_chinese_chars"],
    }


_BERT_TYPES = [[("", 0), ("A", 0), ("", 0)], [("", 0), ("A", 0), ("", 0), ("B", 1), ("", 1)]]
"""What a text and a pair are made of, with the token types: the texts and, unnamed, the special tokens around them."""


def _list_types(template: Mapping[str, Any] | None) -> list[list[tuple[str, int]]]:
    return [
        [
            (part["id"] if kind == "Sequence" else "", part["type_id"])
            for piece in (template or {}).get(name, [])
            for kind, part in piece.items()
        ]
        for name in ("single", "pair")
    ]


def _build_byte_level(folder: Path, settings: Mapping[str, Any]) -> Backend:
    """GPT-2's and RoBERTa's tokenizer; RoBERTa's `<s>` and `</s>` go around a text where the vocabulary has them."""
    vocab_file, merges_file = (folder / name for name in BPE_FILES)
    vocabulary = read_json_object(vocab_file)
    if not vocabulary or not all(type(token_id) is int and token_id >= 0 for token_id in vocabulary.values()):
        raise InputError(f"{vocab_file} is no vocabulary; expected an object of tokens and their ids")
    if not merges_file.is_file():
        raise InputError(f"{vocab_file} needs {merges_file.name} beside it")
    try:
        model = models.BPE(vocabulary, _read_merges(merges_file))
    except Exception as error:  # the library raises bare Exception for a merge of unknown tokens
        raise InputError(f"{merges_file} does not fit {vocab_file.name}: {describe_parsing_error(error)}") from error
    backend = Backend(model)
    prefix = bool(settings.get("add_prefix_space", False))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    backend.decoder = decoders.ByteLevel()
    if {"<s>", "</s>"} <= vocabulary.keys():
        cls, sep = ("<s>", vocabulary["<s>"]), ("</s>", vocabulary["</s>"])
        backend.post_processor = processors.RobertaProcessing(sep, cls, trim_offsets=True, add_prefix_space=prefix)
    return backend


def _read_merges(file: Path) -> list[tuple[str, str]]:
    try:
        lines = _read_text(file).split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 text; expected a pair of tokens per line") from error
    merges = []
    for number, line in enumerate(lines, start=1):
        if line.startswith("#version") or not line.strip():
            continue
        pair = line.split(" ")
        if len(pair) != 2:
            raise InputError(f"{file}, line {number}: '{line[:80]}' is no pair of tokens")
        merges.append((pair[0], pair[1]))
    return merges


def _mark_special(backend: Backend, settings: Mapping[str, Any]) -> None:
    """Tokens of the plain vocabulary that are special by name: they stay whole in a text."""
    usual = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "<s>", "</s>", "<pad>", "<unk>"}
    if backend.token_to_id("<s>") is None:  # RoBERTa's vocabulary inherits GPT-2's end of text, unused
        usual.add("<|endoftext|>")
    named = {token for name in SETTING_NAMES if (token := read_token(settings.get(name)))}
    masks = {"[MASK]", "<mask>", read_token(settings.get("mask_token"))}
    present = sorted(token for token in usual | named | masks if token and backend.token_to_id(token) is not None)
    backend.add_special_tokens([build_special(backend, "mask" if t in masks else "", t) for t in present])


def _add_tokens(backend: Backend, settings: Mapping[str, Any], folder: Path) -> None:
    """Tokens that the settings or `added_tokens.json` put behind the vocabulary, checked to get the ids given there."""
    special = _list_special(settings)
    source, tokens = _read_added(settings, special, folder)
    for token_id, token in sorted(tokens.items(), key=lambda item: item[0]):
        add = backend.add_special_tokens if token.special else backend.add_tokens
        add([token])
        found = backend.token_to_id(token.content)
        if found != token_id:
            raise InputError(
                f"{source} gives '{token.content}' the id {token_id}, but behind this vocabulary it is {found}"
            )
    roles = {read_token(settings.get(f"{role}_token")) for role in SPECIAL_ROLES}  # these are added with the roles
    backend.add_special_tokens([t for t in special if t not in roles and backend.token_to_id(t) is None])


def _list_special(settings: Mapping[str, Any]) -> list[str]:
    """The special tokens that the settings name, in order."""
    values = [settings.get(name) for name in SETTING_NAMES]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        values += settings[key] if isinstance(settings.get(key), list) else []
    return list(dict.fromkeys(token for value in values if (token := read_token(value))))


def _read_added(settings: Mapping[str, Any], special: list[str], folder: Path) -> tuple[Path, dict[int, AddedToken]]:
    source = folder / SETTINGS_FILE
    listed = settings.get("added_tokens_decoder")
    if isinstance(listed, dict):
        return source, {_read_id(number, source): _build_added(token, source) for number, token in listed.items()}
    source = folder / _ADDED_FILE
    ids = read_json_object(source) if source.is_file() else {}
    return source, {
        _read_id(number, source): AddedToken(token, normalized=token not in special, special=token in special)
        for token, number in ids.items()
    }


def _read_id(value: Any, source: Path) -> int:
    if isinstance(value, int) or str(value).isdecimal():
        return int(value)
    raise InputError(f"{source}: {json.dumps(value)} is no token id")


def _build_added(value: Any, source: Path) -> AddedToken:
    content = read_token(value)
    if content is None or not isinstance(value, dict):
        raise InputError(f"{source}: {json.dumps(value)[:80]} is no token; expected an object with its 'content'")
    names = ("lstrip", "rstrip", "single_word", "normalized", "special")
    return AddedToken(content, **{name: bool(value[name]) for name in names if name in value})
