"""Random word dropout on text, before tokenization: for loaders that hold text, not token ids.

Whether a text changes, and which words it loses, is a function of (seed, epoch, sample, place of the word) alone.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import torch

from maskwright.randomness import Stream, compute_key, random_uint32, threshold
from maskwright.sections.data import AugmentationConfig

_WORD = re.compile(r"\S+\s*")


class SampleKey(NamedTuple):
    """What names one showing of one sample."""

    seed: int
    epoch: int
    sample: int


def augment(text: str, sample_key: SampleKey, config: AugmentationConfig) -> str:
    """`augment_text` as the configuration asks for it."""
    return augment_text(text, sample_key, config.probability, config.word_dropout)


def augment_text(text: str, sample_key: SampleKey, probability: float = 0.3, dropout: float = 0.1) -> str:
    """With a probability, the text without some of its words; each is lost at the rate `dropout`, never all of them.

    Words are what blanks separate, so text of a script without blanks stays as it is.
    """
    if not probability or not dropout:
        return text
    key = compute_key(sample_key.seed, sample_key.epoch, Stream.AUGMENTATION)
    sample = torch.tensor(sample_key.sample)
    if int(random_uint32(key, sample, torch.tensor(0))) >= threshold(probability):
        return text
    words = _WORD.findall(text)
    draws = random_uint32(key, sample, torch.arange(1, len(words) + 1))
    kept = draws >= threshold(dropout)
    if bool(kept.all()):
        return text
    if not bool(kept.any()):
        kept[int(draws.argmax())] = True
    return "".join(word for word, is_kept in zip(words, kept.tolist(), strict=True) if is_kept).strip()
