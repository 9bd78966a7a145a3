"""One face for tokenizers: ours, files from anywhere, or a fast tokenizer of `transformers`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from maskwright.errors import InputError
from maskwright.storage import write_text
from maskwright.text.special_tokens import SETTING_NAMES, assign_roles, surround
from maskwright.text.tokenizer_files import (
    BPE_FILES,
    FAST_FILE,
    NAMES_FILE,
    SETTINGS_FILE,
    VOCABULARY_FILE,
    read_tokenizer,
)

CHUNK_CHARS = 4_000_000
"""Text encoded at a time; the library needs some 200 bytes a token until its answer has been read."""


class Tokenizer:
    """Text to ids and back, with the ids of the special tokens an encoder needs.

    Roles that the tokenizer has no token for are filled as `assign_roles` says: `mask` and `pad` always get a token
    of their own, new at the end of the vocabulary; `cls`, `sep` and `unk` are served by the begin or end token where
    there is one. So GPT-2 keeps `<|endoftext|>` for these three and gains `<mask>` (50257) and `<pad>` (50258), and a
    model made for it needs `resize_vocabulary`.
    """

    def __init__(
        self, backend: Backend, special_tokens: Mapping[str, str] | None = None, added_roles: Sequence[str] = ()
    ) -> None:
        self.backend = backend
        backend.no_padding()
        backend.no_truncation()
        if special_tokens is None:
            special_tokens, added_roles = assign_roles(backend, {})
        self.special_tokens = dict(special_tokens)
        self.added_roles = tuple(added_roles)
        """Roles whose token was not in the tokenizer and has been added to it."""
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

    def encode(self, text: str) -> list[int]:
        """Ids with the special tokens around them."""
        return [self.cls_token_id, *self.encode_batch([text])[0], self.sep_token_id]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts, without special tokens around them."""
        ids: list[list[int]] = []
        for chunk in group_texts(texts, CHUNK_CHARS):
            ids += [encoding.ids for encoding in self.backend.encode_batch_fast(chunk, add_special_tokens=False)]
        return ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        return str(self.backend.decode([int(token_id) for token_id in ids], skip_special_tokens=skip_special_tokens))

    def token(self, token_id: int) -> str:
        return self.backend.id_to_token(int(token_id)) or f"<{int(token_id)}>"

    def save(self, folder: str | Path, has_segments: bool | None = None, pads_left: bool = False) -> None:
        """Write `tokenizer.json` and the two small files `transformers` reads beside it.

        A model that `has_segments` tells the two texts of a pair apart by them, so it must be given them; any other
        refuses them. None: there is no model, and nothing is said. One that reads the last token `pads_left`.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        names: dict[str, Any] = {f"{role}_token": token for role, token in self.special_tokens.items()}
        others = [token.content for token in self._added().values() if token.special]
        others = [token for token in others if token not in self.special_tokens.values()]
        if others:
            names["additional_special_tokens"] = others
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **names}
        if has_segments is not None:
            segments = ["token_type_ids"] if has_segments else []
            settings["model_input_names"] = ["input_ids", *segments, "attention_mask"]
        if pads_left:
            settings["padding_side"] = "left"
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


def has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (FAST_FILE, VOCABULARY_FILE, *BPE_FILES))


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read a `tokenizer.json`, a `vocab.txt`, a `vocab.json` with `merges.txt`, or a folder with one of these."""
    backend, settings = read_tokenizer(Path(path))
    return Tokenizer(backend, *assign_roles(backend, settings))


def as_tokenizer(tokenizer: Any) -> Tokenizer:
    """Accept our tokenizer, a `tokenizers.Tokenizer`, or a fast tokenizer of `transformers`."""
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    backend = tokenizer if isinstance(tokenizer, Backend) else getattr(tokenizer, "backend_tokenizer", None)
    if isinstance(backend, Backend):
        copy = Backend.from_str(backend.to_str())  # what we switch off or add stays out of theirs
        return Tokenizer(copy, *assign_roles(copy, {name: getattr(tokenizer, name, None) for name in SETTING_NAMES}))
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


def group_texts(texts: Iterable[str], max_chars: int) -> Iterator[list[str]]:
    """Lists of texts of about `max_chars` characters together."""
    group: list[str] = []
    num_chars = 0
    for text in texts:
        group.append(text)
        num_chars += len(text)
        if num_chars >= max_chars:
            yield group
            group, num_chars = [], 0
    if group:
        yield group
