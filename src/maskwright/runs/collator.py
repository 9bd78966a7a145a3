"""Our masks in other people's loops: a collator with the call of transformers' `DataCollatorForLanguageModeling`.

B examples, S length of the longest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from maskwright.batch import IGNORED_LABEL, PackedBatch, find_changes
from maskwright.errors import InputError
from maskwright.masking.strategies import build_masker
from maskwright.masking.tokens import Masker, Selection, Strategy
from maskwright.text.tokenizer.tokenizer import as_tokenizer
from maskwright.text.tokenizer.words import WordBoundaries, build_boundaries

_FILLERS: dict[str, Any] = {
    "attention_mask": 0,
    "token_type_ids": 0,
    "special_tokens_mask": 1,
    "word_ids": -1,
    "word_starts": 0,
    "offset_mapping": (0, 0),
}
"""What stands at padding, in columns with a value for each token."""
_OF_WORDS = ("word_starts", "word_ids", "offset_mapping")
_LARGEST_SAMPLE = 1 << 62


class MaskingCollator:
    """Pads a list of examples and masks them: `input_ids`, `attention_mask`, `labels` (-100 where nothing is asked).

    It takes the place of `transformers.DataCollatorForLanguageModeling`, with its arguments, in a
    `transformers.Trainer`, a `DataLoader` or a loop of your own. Examples are dictionaries with `input_ids`, or lists
    of ids. Special tokens are never masked and never drawn as a random token, whatever their ids are, and what
    `special_tokens_mask` marks is not masked.

    `strategy` is token, whole_word (also as `whole_word_mask=True`) or span; words are found by the tokenizer's own
    rules, and for tokenizers that have none by `word_ids` or `offset_mapping` in the examples. `selection="exact"`
    masks the same share of every text, "bernoulli" decides for each token or word, as the original does. With a `seed`
    masks repeat; each worker of a `DataLoader` draws its own. Without one they follow `torch.manual_seed`.
    """

    def __init__(
        self,
        tokenizer: Any,
        mlm: bool = True,
        whole_word_mask: bool = False,
        mlm_probability: float = 0.15,
        mask_replace_prob: float = 0.8,
        random_replace_prob: float = 0.1,
        pad_to_multiple_of: int | None = None,
        return_tensors: Literal["pt", "np"] = "pt",
        seed: int | None = None,
        *,
        strategy: Strategy | None = None,
        selection: Selection = "bernoulli",
        span_p: float | None = None,
        span_max_words: int | None = None,
    ) -> None:
        for name, share in (
            ("mlm_probability", mlm_probability),
            ("mask_replace_prob", mask_replace_prob),
            ("random_replace_prob", random_replace_prob),
            ("mask_replace_prob + random_replace_prob", mask_replace_prob + random_replace_prob),
        ):
            if not 0.0 <= share <= 1.0:
                raise InputError(f"{name} is {share}; it must lie in [0, 1]")
        if return_tensors not in ("pt", "np"):
            raise InputError(f"return_tensors is {return_tensors!r}; expected 'pt' for PyTorch or 'np' for NumPy")
        if whole_word_mask and strategy not in (None, "whole_word"):
            raise InputError(f"whole_word_mask is on and strategy is '{strategy}'; give one of the two")
        if strategy in ("frequency", "adaptive"):
            raise InputError(
                f"masking by {strategy} needs what a training run knows of its text; give the collator token,"
                " whole_word or span"
            )
        self.tokenizer = tokenizer
        self.mlm = mlm
        self.mlm_probability = mlm_probability
        self.pad_to_multiple_of = pad_to_multiple_of
        self.return_tensors = return_tensors
        self.seed = seed
        self.strategy: Strategy = strategy or ("whole_word" if whole_word_mask else "token")
        self._generator: torch.Generator | None = None
        self._masker: Masker | None = None
        if mlm:
            spans: dict[str, Any] = {"span_p": span_p, "span_max_words": span_max_words}
            self._masker = build_masker(
                len(tokenizer),
                _find_mask(tokenizer),
                sorted(set(tokenizer.all_special_ids)),
                strategy=self.strategy,
                random_token_ratio=random_replace_prob,
                unchanged_ratio=1.0 - mask_replace_prob - random_replace_prob,
                selection=selection,
                **{name: value for name, value in spans.items() if value is not None},
            )
        elif self.strategy != "token":
            raise InputError(f"words are masked with mlm=True alone; leave '{self.strategy}' out, or set mlm")

    def __call__(self, features: Sequence[Any], return_tensors: str | None = None) -> dict[str, Any]:
        """The batch of some examples."""
        columns = self._pad(features)
        words = {name: columns.pop(name, None) for name in _OF_WORDS}
        is_special = columns.pop("special_tokens_mask", None)
        ids = columns["input_ids"]
        is_there = columns["attention_mask"] != 0
        if self._masker is None:
            columns["labels"] = torch.where(is_there, ids, IGNORED_LABEL)
        else:
            is_asked = is_there if is_special is None else is_there & (is_special == 0)
            batch = PackedBatch(
                ids,
                is_asked.long(),
                torch.arange(ids.shape[1]).expand(ids.shape),
                self._draw_samples(len(ids))[:, None].expand(ids.shape),
                word_starts=None if self.strategy == "token" else self._find_words(ids, words),
            )
            corrupted = self._masker.corrupt(batch, self.mlm_probability, seed=0, epoch=0)
            columns |= {"input_ids": corrupted.batch.input_ids, "labels": corrupted.labels}
        kind = return_tensors or self.return_tensors
        return {name: tensor.numpy() for name, tensor in columns.items()} if kind == "np" else columns

    def _draw_samples(self, count: int) -> Tensor:
        """A number for each example, on which its masks depend."""
        if self.seed is not None and self._generator is None:
            worker = get_worker_info()
            self._generator = torch.Generator().manual_seed(self.seed + (0 if worker is None else worker.id))
        return torch.randint(_LARGEST_SAMPLE, (count,), generator=self._generator)

    def _find_words(self, ids: Tensor, given: Mapping[str, Tensor | None]) -> Tensor:
        """(B, S) true where a word begins, as the examples say, or else the tokenizer's rules."""
        starts, numbers, offsets = (given[name] for name in _OF_WORDS)
        if starts is not None:
            return starts != 0
        if numbers is not None:
            return find_changes(numbers)
        if not self._boundaries.needs_word_ids:
            flat, num_rows, length = ids.flatten().numpy(), *ids.shape
            found = self._boundaries.find(flat, torch.arange(0, num_rows * length, length).numpy(), None)
            return torch.from_numpy(found).view(ids.shape)
        if offsets is None:
            raise InputError(
                f"the tokens of {type(self.tokenizer).__name__} do not show where words begin; give the examples"
                " 'word_ids' or 'offset_mapping', or mask by tokens"
            )
        follows = torch.zeros_like(ids, dtype=torch.bool)
        follows[:, 1:] = offsets[:, 1:, 0] == offsets[:, :-1, 1]
        return ~follows

    @cached_property
    def _boundaries(self) -> WordBoundaries:
        return build_boundaries(as_tokenizer(self.tokenizer))

    def _pad(self, features: Sequence[Any]) -> dict[str, Tensor]:
        """Columns (B, S) of the examples; other ones are as they are."""
        if not features:
            raise InputError("there is no example to make a batch of")
        examples = [one if isinstance(one, Mapping) else {"input_ids": one} for one in features]
        names = [name for name in examples[0] if name != "labels"]
        if "input_ids" not in names or any(name not in one for one in examples for name in names):
            found = ", ".join(map(str, examples[0]))
            raise InputError(f"examples have the columns {found}; each must have 'input_ids', and all the same ones")
        rows = {name: [_to_list(one[name], name) for one in examples] for name in names}
        rows.setdefault("attention_mask", [[1] * len(ids) for ids in rows["input_ids"]])
        fillers = {**_FILLERS, "input_ids": self.tokenizer.pad_token_id}
        length = max(map(len, rows["input_ids"]))
        length += -length % (self.pad_to_multiple_of or 1)
        is_ragged = any(len(ids) < length for ids in rows["input_ids"])
        if is_ragged and fillers["input_ids"] is None:
            raise InputError("the tokenizer has no padding token, and the examples differ in length; give it one")
        pads_left = getattr(self.tokenizer, "padding_side", "right") == "left"
        return {
            name: torch.tensor(
                [_fill(row, fillers[name], length, pads_left) for row in column] if name in fillers else column
            )
            for name, column in rows.items()
        }


def _find_mask(tokenizer: Any) -> int:
    mask_token_id = getattr(tokenizer, "mask_token_id", None)
    if mask_token_id is None:
        raise InputError(
            f"the {type(tokenizer).__name__} has no mask token; add one and resize the model's embeddings, or set"
            " mlm=False"
        )
    return int(mask_token_id)


def _to_list(values: Any, name: str) -> Any:
    values = values.tolist() if hasattr(values, "tolist") else values
    if name == "word_ids":
        return [-1 if one is None else one for one in values]
    if isinstance(values, str | bytes) or values is None:
        raise InputError(f"the column '{name}' holds a {type(values).__name__}; leave all but numbers out")
    return list(values) if isinstance(values, tuple) else values


def _fill(row: list[Any], filler: Any, length: int, pads_left: bool) -> list[Any]:
    padding = [filler] * (length - len(row))
    return [*padding, *row] if pads_left else [*row, *padding]
