"""What new words would do for a tokenizer on texts of a domain, measured on texts they were not chosen from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from maskwright.errors import InputError
from maskwright.text.tokenizer.domain_tokens import DomainToken, Fragmentation, FragmentationMeter, choose_domain_tokens
from maskwright.text.tokenizer.extend import add_domain_tokens
from maskwright.text.tokenizer.tokenizer import CHUNK_CHARS, Tokenizer, group_texts


@dataclass(frozen=True)
class VocabularyAdvice:
    tokens: list[DomainToken]
    num_texts: int
    """Those the tokens were chosen from."""
    before: Fragmentation
    """Of the held-out texts, as are the figures after."""
    after: Fragmentation
    extended: Tokenizer

    @property
    def saved_share(self) -> float:
        return 1 - self.after.num_tokens / max(self.before.num_tokens, 1)


def advise_vocabulary(
    read: Callable[[], Iterable[str]],
    is_held_out: Callable[[str], bool],
    tokenizer: Tokenizer,
    max_tokens: int,
    min_count: int,
) -> VocabularyAdvice:
    """Choose words from the texts that are not held out and measure on those that are; `read` is called twice."""
    tokens = choose_domain_tokens((text for text in read() if not is_held_out(text)), tokenizer, max_tokens, min_count)
    extended = add_domain_tokens(tokenizer, tokens) if tokens else tokenizer
    meters = [FragmentationMeter(tokenizer), FragmentationMeter(extended)]
    num_texts = 0

    def held_out() -> Iterator[str]:
        nonlocal num_texts
        for text in read():
            if is_held_out(text):
                yield text
            else:
                num_texts += 1

    for group in group_texts(held_out(), CHUNK_CHARS):
        for meter in meters:
            meter.add(group)
    before, after = (meter.figures for meter in meters)
    if not num_texts or not before.num_texts:
        raise InputError(
            f"of {num_texts + before.num_texts} texts {before.num_texts} are held out by a hash, so there is nothing to"
            " choose from or nothing to measure on; give more texts, one document on each line"
        )
    return VocabularyAdvice(tokens, num_texts, before, after, extended)
