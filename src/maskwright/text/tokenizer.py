"""One face for tokenizers: ours, a `tokenizer.json` from anywhere, or a fast tokenizer of `transformers`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from maskwright.errors import InputError
from maskwright.storage import read_json, write_text

SPECIAL_ROLES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_ROLE_SPELLINGS = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}


class Tokenizer:
    """Text to ids and back, with the ids of the special tokens an encoder needs."""

    def __init__(self, backend: Backend, special_tokens: dict[str, str] | None = None) -> None:
        self.backend = backend
        backend.no_padding()
        backend.no_truncation()
        self.special_tokens = special_tokens or _find_special_tokens(backend)
        self.pad_token_id = self._role_id("pad")
        self.unk_token_id = self._role_id("unk")
        self.cls_token_id = self._role_id("cls")
        self.sep_token_id = self._role_id("sep")
        self.mask_token_id = self._role_id("mask")

    @property
    def vocab_size(self) -> int:
        """All ids, added tokens included."""
        return self.backend.get_vocab_size(with_added_tokens=True)

    @property
    def mask_token(self) -> str:
        return self.special_tokens["mask"]

    @property
    def all_special_ids(self) -> list[int]:
        """Every id that is never masked and never drawn as a replacement."""
        added = self.backend.get_added_tokens_decoder()
        roles = (self._role_id(role) for role in self.special_tokens)
        return sorted({*roles, *(token_id for token_id, token in added.items() if token.special)})

    def encode(self, text: str) -> list[int]:
        """Ids with the special tokens around them."""
        return [self.cls_token_id, *self.encode_batch([text])[0], self.sep_token_id]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts, without special tokens around them."""
        return [encoding.ids for encoding in self.backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        return str(self.backend.decode([int(token_id) for token_id in ids], skip_special_tokens=skip_special_tokens))

    def token(self, token_id: int) -> str:
        return self.backend.id_to_token(int(token_id)) or f"<{int(token_id)}>"

    def save(self, folder: str | Path) -> None:
        """Write `tokenizer.json` and the two small files `transformers` reads beside it."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        names = {f"{role}_token": token for role, token in self.special_tokens.items()}
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **names}
        write_text(folder / "tokenizer.json", self.backend.to_str(pretty=True))
        write_text(folder / "tokenizer_config.json", json.dumps(settings, indent=2) + "\n")
        write_text(folder / "special_tokens_map.json", json.dumps(names, indent=2) + "\n")

    def _role_id(self, role: str) -> int:
        token_id = self.backend.token_to_id(self.special_tokens[role])
        if token_id is None:
            raise InputError(f"the tokenizer has no token '{self.special_tokens[role]}' to use as its {role} token")
        return int(token_id)


def load_tokenizer(path: str | Path) -> Tokenizer:
    """Read a `tokenizer.json`, or the one in a folder."""
    path = Path(path)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise InputError(f"no tokenizer at {file}; give a tokenizer.json or a folder that holds one")
    try:
        backend = Backend.from_str(file.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare Exception for a file it cannot read
        raise InputError(f"{file} is not a tokenizer.json: {error}") from error
    config_file = file.parent / "tokenizer_config.json"
    named = read_json(config_file) if config_file.is_file() else {}
    return Tokenizer(backend, _find_special_tokens(backend, named))


def as_tokenizer(tokenizer: Any) -> Tokenizer:
    """Accept our tokenizer, a `tokenizers.Tokenizer`, or a fast tokenizer of `transformers`."""
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    backend = tokenizer if isinstance(tokenizer, Backend) else getattr(tokenizer, "backend_tokenizer", None)
    if isinstance(backend, Backend):
        named = {f"{role}_token": getattr(tokenizer, f"{role}_token", None) for role in SPECIAL_ROLES}
        copy = Backend.from_str(backend.to_str())  # padding and truncation are switched off in ours, not in theirs
        return Tokenizer(copy, _find_special_tokens(copy, named))
    raise InputError(
        f"a {type(tokenizer).__name__} is not a tokenizer this can use; give a maskwright Tokenizer,"
        " a tokenizers.Tokenizer or a fast tokenizer of transformers"
    )


def _find_special_tokens(backend: Backend, named: dict[str, Any] | None = None) -> dict[str, str]:
    """The token of each role: as named by the tokenizer's settings, else by its usual spelling."""
    found = {}
    for role, spellings in _ROLE_SPELLINGS.items():
        name = (named or {}).get(f"{role}_token")
        name = name.get("content") if isinstance(name, dict) else name
        candidates = (name, *spellings) if isinstance(name, str) else spellings
        token = next((spelling for spelling in candidates if backend.token_to_id(spelling) is not None), None)
        if token is None:
            raise InputError(
                f"the tokenizer has no {role} token (looked for {', '.join(spellings)}); train one with"
                " maskwright or add the token to its tokenizer.json"
            )
        found[role] = token
    return found
