"""Read an exported folder back: bit for bit with Maskwright, and with others on real text. B texts, S length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from maskwright.errors import InputError, RunError
from maskwright.models.any_encoder import find_max_length
from maskwright.text.tokenizer.tokenizer import Tokenizer

OWN_READER = "maskwright's own reader"
_LARGEST_DIFFERENCE = 1e-3
_NUM_TEXTS = 8
_LONGEST = 256
"""Maximum tokens of a compared text: more than a local attention window, and fast on a CPU."""


@dataclass(frozen=True)
class Comparison:
    """The difference between another library's outputs and the model's own."""

    reader: str
    largest_difference: float
    num_texts: int
    num_tokens: int

    def describe(self, what: str) -> str:
        return (
            f"{self.reader}: {what} of {self.num_texts:,} texts ({self.num_tokens:,} tokens) differ by at most"
            f" {self.largest_difference:.2g}"
        )


@dataclass(frozen=True)
class Sample:
    """Texts of various lengths and their ids, cut to `max_length` tokens."""

    texts: list[str]
    rows: list[list[int]]
    max_length: int
    pad_token_id: int

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.rows))

    def pad(self, pads_left: bool = False) -> dict[str, Tensor]:
        """`input_ids` and `attention_mask`, (B, S)."""

        def stack(rows: list[Tensor], value: int) -> Tensor:
            side = "left" if pads_left else "right"
            return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value, padding_side=side)

        rows = [torch.tensor(row) for row in self.rows]
        is_real = stack([torch.ones_like(row) for row in rows], 0)
        return {"input_ids": stack(rows, self.pad_token_id), "attention_mask": is_real}


def choose_sample(texts: Sequence[str], tokenizer: Tokenizer, encoder: nn.Module, longest: int = _LONGEST) -> Sample:
    """A few texts, from the shortest to the longest, cut to `longest` tokens."""
    by_length = sorted((text for text in texts if text.strip()), key=len)
    if not by_length:
        raise InputError("there is no text to compare the exported model on; give files with text as --text")
    last = len(by_length) - 1
    places = sorted({round(number * last / (_NUM_TEXTS - 1)) for number in range(_NUM_TEXTS)})
    chosen = [by_length[place] for place in places]
    max_length = min(find_max_length(encoder) or _LONGEST, _LONGEST, longest)
    rows = [_cut(tokenizer.encode(text), max_length) for text in chosen]
    return Sample(chosen, rows, max_length, tokenizer.pad_token_id)


def _cut(ids: list[int], max_length: int) -> list[int]:
    return ids if len(ids) <= max_length else [*ids[: max_length - 1], ids[-1]]


def check_equal(expected: nn.Module, found: nn.Module, folder: Path) -> int:
    """The number of tensors, all of them read back bit for bit."""
    tensors = found.state_dict()
    wanted = expected.state_dict()
    for name, tensor in tensors.items():
        if not torch.equal(tensor.cpu(), wanted[name].cpu()):
            raise RunError(f"'{name}' was read back from {folder.name} with other values; the export was given up")
    return len(tensors)


def check_tokenizer(sample: Sample, folder: Path) -> None:
    """Check that `AutoTokenizer` gives the same ids for the sample."""
    theirs = import_module("transformers").AutoTokenizer.from_pretrained(str(folder))
    for text, row in zip(sample.texts, sample.rows, strict=True):
        found = theirs(text, truncation=True, max_length=sample.max_length)["input_ids"]
        if found != row:
            raise RunError(
                f"transformers reads {len(found)} other token ids than our {len(row)} from the text '{text[:40]}';"
                " the export was given up"
            )


def compare(reader: str, expected: Sequence[Tensor], found: Sequence[Tensor], sample: Sample) -> Comparison:
    """Compare one tensor per text on each side; a difference that is too large or NaN is an error."""
    differences = [float((a.float() - b.float()).abs().max()) for a, b in zip(expected, found, strict=True)]
    # max() would let a NaN in any place but the first go unseen
    largest = next((value for value in differences if value != value), max(differences))
    if not largest <= _LARGEST_DIFFERENCE:
        raise RunError(
            f"{reader} answers differently by {largest:.1e}, more than {_LARGEST_DIFFERENCE:.0e}; the export was"
            " given up"
        )
    return Comparison(reader, largest, len(sample.rows), sample.num_tokens)


def split_rows(output: Tensor, sample: Sample) -> list[Tensor]:
    """Split (B, S, ...) into one tensor per text, without padding."""
    return [row[: len(ids)].cpu() for row, ids in zip(output, sample.rows, strict=True)]


def find_reader(package: str) -> str | None:
    """The name and version of a library, if it is installed."""
    if find_spec(package) is None:
        return None
    return f"{package.replace('_', '-')} {import_module(package).__version__}"
