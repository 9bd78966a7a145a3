"""The special tokens an encoder needs, found in any tokenizer or added to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import AddedToken, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

SPECIAL_ROLES = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_SPELLINGS = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
MASK_SPELLINGS = _SPELLINGS["mask"]
_STAND_INS = {
    "unk": ("eos", "bos"),
    "cls": ("bos", "eos"),
    "sep": ("eos", "bos"),
}
"""Named tokens that may also serve a role. Padding and the mask have none: the padding vector is never trained, and
a mask that is an ordinary or boundary token would teach the model that such tokens are to be guessed."""
_END_OF_TEXT = "<|endoftext|>"
SETTING_NAMES = tuple(f"{name}_token" for name in (*SPECIAL_ROLES, "bos", "eos"))


def assign_roles(backend: Backend, named: Mapping[str, Any]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The token of each role, and the roles whose token had to be added at the end of the vocabulary.

    A role's token is the one named by the tokenizer's settings, else its usual spelling; `cls`, `sep` and `unk` may use
    the begin or end token, as `<|endoftext|>` in GPT-2. What is still missing is added, the mask first.
    """
    names = {name: content for name in SETTING_NAMES if (content := read_token(named.get(name))) is not None}
    tokens = {role: _find_token(backend, role, names) for role in SPECIAL_ROLES}
    added = tuple(role for role in sorted(SPECIAL_ROLES, key=_addition_order) if tokens[role] is None)
    if added:
        has_angles = any(token.content.startswith("<") for token in backend.get_added_tokens_decoder().values())
        for role in added:
            tokens[role] = names.get(f"{role}_token") or _SPELLINGS[role][has_angles]
        backend.add_special_tokens([build_special(backend, role, str(tokens[role])) for role in added])
    return {role: str(token) for role, token in tokens.items()}, added


def read_token(value: Any) -> str | None:
    """The text of a token in a settings file, where it is a string or an object with `content`."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) and content else None


def build_special(backend: Backend, role: str, content: str) -> AddedToken:
    """A special token; a mask takes the space before it along where words carry their space."""
    return AddedToken(content, lstrip=role == "mask" and _carries_spaces(backend), normalized=False, special=True)


def surround(backend: Backend, tokens: Mapping[str, str]) -> None:
    """Make the tokenizer itself put `cls` and `sep` around a text, unless it does."""
    cls, sep = ((tokens[role], backend.token_to_id(tokens[role])) for role in ("cls", "sep"))
    if backend.encode("").ids == [cls[1], sep[1]]:
        return
    template = processors.TemplateProcessing(
        single=[cls[0], "$A", sep[0]],
        pair=[cls[0], "$A", sep[0], "$B:1", f"{sep[0]}:1"],
        special_tokens=list(dict.fromkeys([cls, sep])),
    )
    is_byte_level = "ByteLevel" in str(backend.pre_tokenizer)
    backend.post_processor = (
        processors.Sequence([processors.ByteLevel(trim_offsets=True), template]) if is_byte_level else template
    )


def _find_token(backend: Backend, role: str, names: Mapping[str, str]) -> str | None:
    stand_ins = [names.get(f"{name}_token") for name in _STAND_INS.get(role, ())]
    last = _END_OF_TEXT if role in _STAND_INS else None
    candidates: Iterable[str | None] = (names.get(f"{role}_token"), *_SPELLINGS[role], *stand_ins, last)
    return next((token for token in candidates if token and backend.token_to_id(token) is not None), None)


def _addition_order(role: str) -> int:
    return ["mask", "pad", "cls", "sep", "unk"].index(role)


def _carries_spaces(backend: Backend) -> bool:
    if isinstance(backend.model, models.Unigram):
        return True
    parts = str(backend.pre_tokenizer)
    return any(kind.__name__ in parts for kind in (pre_tokenizers.ByteLevel, pre_tokenizers.Metaspace))
