"""One interface for tokenizers: ours, tokenizer files, or a fast tokenizer of `transformers`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tokenizers import AddedToken, Encoding
from tokenizers import Tokenizer as Backend

from maskwright.errors import InputError
from maskwright.storage import describe_parsing_error, write_text
from maskwright.text.tokenizer.files import (
    BPE_FILES,
    FAST_FILE,
    NAMES_FILE,
    SETTINGS_FILE,
    VOCABULARY_FILE,
    describe_class,
    is_panic,
    read_tokenizer,
)
from maskwright.text.tokenizer.special_tokens import (
    MASK_SPELLINGS,
    SETTING_NAMES,
    SPECIAL_ROLES,
    assign_roles,
    read_token,
    surround,
)

CHUNK_CHARS = 4_000_000
"""Text encoded at a time; the library needs some 200 bytes a token until its answer has been read."""


_INSTEAD = {
    "tokenize": "[tokenizer.token(i) for i in tokenizer.encode(text)]",
    "convert_ids_to_tokens": "tokenizer.token(token_id)",
    "convert_tokens_to_ids": "tokenizer.backend.token_to_id(token)",
    "batch_encode_plus": "tokenizer(texts)",
    "encode_plus": "tokenizer(text)",
    "batch_decode": "tokenizer.decode(ids) for each text",
    "get_vocab": "tokenizer.backend.get_vocab()",
    "vocab": "tokenizer.backend.get_vocab()",
}
"""Names of transformers' tokenizers."""


class Tokenizer:
    """Text to ids and back, with the ids of the special tokens an encoder needs.

    Roles that the tokenizer has no token for are filled as `assign_roles` says: `mask` and `pad` always get a token
    of their own, new at the end of the vocabulary; `cls`, `sep` and `unk` are served by the begin or end token where
    there is one. So GPT-2 keeps `<|endoftext|>` for these three and gains `<mask>` (50257) and `<pad>` (50258), and a
    model made for it needs `resize_vocabulary`.
    """

    def __init__(
        self,
        backend: Backend,
        special_tokens: Mapping[str, str] | None = None,
        added_roles: Sequence[str] = (),
        model_max_length: int | None = None,
    ) -> None:
        self.backend = backend
        backend.no_padding()
        backend.no_truncation()
        if special_tokens is None:
            special_tokens, added_roles = assign_roles(backend, {})
        self.special_tokens = dict(special_tokens)
        self.added_roles = tuple(added_roles)
        """Roles whose token was added to the tokenizer."""
        self.model_max_length = model_max_length
        """Tokens of the longest input of the model it was saved with, special tokens included; None: not known.

        Nothing here cuts a text to it. Other programs do, so `save` writes it.
        """
        self._vocab_size = 1 + max(_list_ids(backend))
        self.pad_token_id = self._role_id("pad")
        self.unk_token_id = self._role_id("unk")
        self.cls_token_id = self._role_id("cls")
        self.sep_token_id = self._role_id("sep")
        self.mask_token_id = self._role_id("mask")
        for role, token in self.special_tokens.items():
            if role != "mask" and token == self.mask_token:
                raise InputError(f"the token '{token}' is both the mask and the {role} token; name another mask token")
        surround(backend, self.special_tokens)

    @property
    def vocab_size(self) -> int:
        """One more than the largest id, added tokens included; a vocabulary may have gaps."""
        return self._vocab_size

    @property
    def mask_token(self) -> str:
        return self.special_tokens["mask"]

    @property
    def kind(self) -> str:
        """The model behind it: WordPiece, BPE, Unigram or WordLevel."""
        return type(self.backend.model).__name__

    @property
    def all_special_ids(self) -> list[int]:
        """Every id that is never masked and never drawn as a replacement."""
        roles = (self._role_id(role) for role in self.special_tokens)
        return sorted({*roles, *(token_id for token_id, token in self._added().items() if token.special)})

    def __len__(self) -> int:
        return self.vocab_size

    def __call__(
        self,
        text: str | Sequence[str],
        text_pair: str | Sequence[str] | None = None,
        *,
        add_special_tokens: bool = True,
        padding: bool | Literal["longest", "max_length"] = False,
        truncation: bool = False,
        max_length: int | None = None,
        return_tensors: Literal["pt", "np"] | None = None,
    ) -> dict[str, Any]:
        """`input_ids`, `token_type_ids` and `attention_mask` of a text or of several, as tokenizers of transformers.

        With `return_tensors` they are tensors or arrays (batch, length), which `padding` makes of one length. With
        `truncation` the longer text of a pair loses its end first.
        """
        firsts, seconds = _as_texts("text", text), None if text_pair is None else _as_texts("text_pair", text_pair)
        if seconds is not None and len(seconds) != len(firsts):
            raise InputError(f"there are {len(firsts)} texts and {len(seconds)} second ones; give as many of each")
        if max_length is None and (truncation or padding == "max_length"):
            raise InputError("truncation and padding='max_length' need a max_length, the tokens that the model takes")
        pairs = zip(firsts, [None] * len(firsts) if seconds is None else seconds, strict=True)
        room = max_length if truncation else None
        rows = [self._encode_one(first, second, room, add_special_tokens) for first, second in pairs]
        columns = {name: [row[name] for row in rows] for name in ("input_ids", "token_type_ids", "attention_mask")}
        if padding:
            longest = max_length if padding == "max_length" else max(map(len, columns["input_ids"]), default=0)
            fillers = {"input_ids": self.pad_token_id}
            columns = {
                name: [row + [fillers.get(name, 0)] * ((longest or 0) - len(row)) for row in column]
                for name, column in columns.items()
            }
        if return_tensors is not None:
            return {name: _as_array(column, return_tensors) for name, column in columns.items()}
        return {name: column[0] if isinstance(text, str) else column for name, column in columns.items()}

    def _encode_one(self, first: str, second: str | None, room: int | None, surrounds: bool) -> dict[str, list[int]]:
        """A text or a pair in at most `room` tokens, None: as many as there are."""
        parts = self.encode_spans([one for one in (first, second) if one is not None])
        if room is not None:
            num_around = self.backend.num_special_tokens_to_add(len(parts) > 1) if surrounds else 0
            if room <= num_around:
                raise InputError(f"max_length is {room}; it must be more than {num_around}, the special tokens")
            for _ in range(sum(map(len, parts)) + num_around - room):
                longest = max(parts, key=len)
                longest.truncate(len(longest) - 1)
        pair = parts[1] if len(parts) > 1 else None
        whole = self.backend.post_process(parts[0], pair, add_special_tokens=surrounds)
        return {"input_ids": whole.ids, "token_type_ids": whole.type_ids, "attention_mask": whole.attention_mask}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids with the special tokens around them."""
        if not isinstance(text, str):
            raise InputError(f"the text is a {type(text).__name__}; give one text, or several to encode_batch")
        (ids,) = self.encode_batch([text])
        return [self.cls_token_id, *ids, self.sep_token_id] if add_special_tokens else ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts, without special tokens around them."""
        if isinstance(texts, str):
            raise InputError("texts is one text; give a list of texts, or the one to encode")
        return [
            encoding.ids for chunk in group_texts(texts, CHUNK_CHARS) for encoding in self.encode_without_spans(chunk)
        ]

    def encode_without_spans(self, texts: Sequence[str]) -> list[Encoding]:
        """Tokens of texts, without special tokens around them; it hardly takes Python's lock."""
        with refusing_text(texts):
            return self.backend.encode_batch_fast(list(texts), add_special_tokens=False)

    def encode_spans(self, texts: Sequence[str]) -> list[Encoding]:
        """Tokens of texts with their places, without special tokens around them."""
        with refusing_text(texts):
            return self.backend.encode_batch(list(texts), add_special_tokens=False)

    def unify_masks(self, text: str) -> str:
        """The text with `[MASK]` or `<mask>` as this tokenizer's own mask token; one that has it already stays."""
        if self.mask_token not in text:
            for spelling in MASK_SPELLINGS:
                text = text.replace(spelling, self.mask_token)
        return text

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        return str(self.backend.decode([int(token_id) for token_id in ids], skip_special_tokens=skip_special_tokens))

    def token(self, token_id: int) -> str:
        return self.backend.id_to_token(int(token_id)) or f"<{int(token_id)}>"

    def save_pretrained(self, folder: str | Path) -> None:
        """The same as `save`."""
        self.save(folder)

    @classmethod
    def from_pretrained(cls, path: str | Path) -> Tokenizer:
        """The same as `load_tokenizer`."""
        return load_tokenizer(path)

    def __getattr__(self, name: str) -> Any:
        """Only what is missing comes here; the library's own tokenizer has more."""
        role, _, kind = name.rpartition("_")
        if kind == "token" and role in SPECIAL_ROLES:
            return self.special_tokens[role]
        advice = _INSTEAD.get(name)
        if advice is None and not name.startswith("_") and hasattr(Backend, name):
            advice = f"tokenizer.backend.{name}"
        raise AttributeError(f"a Tokenizer has no attribute '{name}'" + (f"; use {advice}" if advice else ""))

    def save(
        self,
        folder: str | Path,
        has_segments: bool | None = None,
        pads_left: bool = False,
        max_length: int | None = None,
    ) -> None:
        """Write `tokenizer.json` and the two small files `transformers` reads beside it.

        A model that `has_segments` tells the two texts of a pair apart by them, so it must be given them; any other
        refuses them. None: there is no model, and nothing is said. One that reads the last token `pads_left`.
        `max_length` counts the tokens that the model takes; a smaller `model_max_length` of the tokenizer stays.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        names: dict[str, Any] = {f"{role}_token": token for role, token in self.special_tokens.items()}
        others = [token.content for token in self._added().values() if token.special]
        others = [token for token in others if token not in self.special_tokens.values()]
        if others:
            names["additional_special_tokens"] = others
        settings = {**describe_class(self.backend), "clean_up_tokenization_spaces": False, **names}
        if has_segments is not None:
            segments = ["token_type_ids"] if has_segments else []
            settings["model_input_names"] = ["input_ids", *segments, "attention_mask"]
        if pads_left:
            settings["padding_side"] = "left"
        lengths = [length for length in (max_length, self.model_max_length) if length is not None]
        if lengths:
            settings["model_max_length"] = min(lengths)
        write_text(folder / FAST_FILE, self.backend.to_str(pretty=True))
        write_text(folder / SETTINGS_FILE, json.dumps(settings, indent=2) + "\n")
        write_text(folder / NAMES_FILE, json.dumps(names, indent=2) + "\n")

    def _added(self) -> dict[int, AddedToken]:
        return self.backend.get_added_tokens_decoder()

    def _role_id(self, role: str) -> int:
        token_id = self.backend.token_to_id(self.special_tokens[role])
        if token_id is None:
            raise InputError(f"the tokenizer has no token '{self.special_tokens[role]}' to use as its {role} token")
        return int(token_id)


@contextmanager
def refusing_text(texts: Sequence[str]) -> Iterator[None]:
    """Around the library's encoding: text that it takes for no text at all, and its own failures, in a sentence."""
    try:
        yield
    except TypeError:
        for text in texts:
            refuse_half_characters(text, "a text")
        raise
    except BaseException as error:
        if type(error) is not Exception and not is_panic(error):
            raise
        raise InputError(f"the tokenizer cannot encode a text: {describe_parsing_error(error)}; use another") from None


def refuse_half_characters(text: str, name: str) -> None:
    """Python's strings, JSON and arguments of commands can hold half of a surrogate pair, which no file can."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} {text!a:.60} is not UTF-8; convert it, or write the whole of the character at {error.start}"
        ) from None


def _as_texts(name: str, given: Any) -> list[str]:
    texts = [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else [given]
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"{name} holds {text!r:.60}; expected a text or a list of texts")
    return texts


def _as_array(rows: list[list[int]], kind: str) -> Any:
    if len({len(row) for row in rows}) > 1:
        raise InputError("the texts have different numbers of tokens; tensors need padding=True")
    if kind == "np":
        return np.array(rows, dtype=np.int64)
    if kind == "pt":
        import torch

        return torch.tensor(rows, dtype=torch.long)
    raise InputError(f"return_tensors is {kind!r}; expected 'pt' for PyTorch or 'np' for NumPy")


def has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (FAST_FILE, VOCABULARY_FILE, *BPE_FILES))


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read a `tokenizer.json`, a `vocab.txt`, a `vocab.json` with `merges.txt`, or a folder with one of these."""
    if not isinstance(path, str | Path):
        raise InputError(f"a tokenizer is {path!r:.80}; expected a tokenizer.json or a folder that holds one")
    backend, settings = read_tokenizer(Path(path))
    for name in SETTING_NAMES:
        refuse_half_characters(read_token(settings.get(name)) or "", f"'{name}' of the tokenizer in {path}")
    return Tokenizer(backend, *assign_roles(backend, settings), _read_max_length(settings.get("model_max_length")))


_NO_LIMIT = 2**31
"""From here on a `model_max_length` is a way to say that there is none; transformers writes 10**30."""


def _read_max_length(value: Any) -> int | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and 1 <= value < _NO_LIMIT else None


def as_tokenizer(tokenizer: Any) -> Tokenizer:
    """Accept our tokenizer, its file or folder, a `tokenizers.Tokenizer`, or a fast tokenizer of `transformers`."""
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if isinstance(tokenizer, str | Path):
        return load_tokenizer(tokenizer)
    backend = tokenizer if isinstance(tokenizer, Backend) else getattr(tokenizer, "backend_tokenizer", None)
    if isinstance(backend, Backend):
        copy = Backend.from_str(backend.to_str())  # what we switch off or add stays out of theirs
        roles = assign_roles(copy, {name: getattr(tokenizer, name, None) for name in SETTING_NAMES})
        return Tokenizer(copy, *roles, _read_max_length(getattr(tokenizer, "model_max_length", None)))
    raise InputError(
        f"a {type(tokenizer).__name__} is not a tokenizer this can use; give a maskwright Tokenizer,"
        " a tokenizers.Tokenizer or a fast tokenizer of transformers"
    )


def _list_ids(backend: Backend) -> set[int]:
    """All ids; the library numbers added tokens by count, which in a vocabulary with gaps may hit a taken id."""
    vocabulary = backend.get_vocab(with_added_tokens=True)
    ids = set(vocabulary.values())
    if len(ids) < len(vocabulary):
        seen: dict[int, str] = {}
        first, second = next((seen[i], t) for t, i in sorted(vocabulary.items()) if seen.setdefault(i, t) != t)
        raise InputError(
            f"the tokens '{first}' and '{second}' share the id {vocabulary[first]}; number the vocabulary without gaps"
            " before tokens are added to it"
        )
    return ids


def group_texts(texts: Iterable[str], max_chars: int, multiple: int = 1) -> Iterator[list[str]]:
    """Lists of texts of about `max_chars` characters together, but for the last a `multiple` of texts each."""
    group: list[str] = []
    num_chars = 0
    for text in texts:
        group.append(text)
        num_chars += len(text)
        if num_chars >= max_chars and not len(group) % multiple:
            yield group
            group, num_chars = [], 0
    if group:
        yield group
