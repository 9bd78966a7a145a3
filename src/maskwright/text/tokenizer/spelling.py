"""How a vocabulary spells whole words: pieces that continue one, spaces that belong to one, bytes as characters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import decoders

from maskwright.text.tokenizer.tokenizer import Tokenizer

METASPACE = "\u2581"


@dataclass(frozen=True)
class Spelling:
    """A word's spelling is what the pre-tokenizer hands to the model: `word`, `Ġword` or `▁word`."""

    continuation: str
    """What pieces inside a word begin with, `##` in BERT; often nothing."""
    is_byte_level: bool

    def join(self, pieces: Sequence[str]) -> str:
        """The spelling of the word that was cut into these pieces."""
        first, *others = pieces
        return first + "".join(piece.removeprefix(self.continuation) for piece in others)

    def read(self, spelling: str) -> str:
        """The text a spelling stands for, with the space before it if it carries one."""
        if self.is_byte_level:
            return str(decoders.ByteLevel().decode([spelling]))
        return spelling.replace(METASPACE, " ")


def find_spelling(tokenizer: Tokenizer) -> Spelling:
    model = json.loads(tokenizer.backend.to_str())["model"]
    return Spelling(model.get("continuing_subword_prefix") or "", "ByteLevel" in str(tokenizer.backend.pre_tokenizer))


def cut_word(tokenizer: Tokenizer, spelling: str) -> list[int]:
    """The ids of one word, given by its spelling."""
    if tokenizer.kind == "WordPiece":  # its added words are found before the model sees them
        return tokenizer.encode_batch([spelling])[0]
    return [piece.id for piece in tokenizer.backend.model.tokenize(spelling)]
