"""Damage as disks, transfers, editors and attackers do it: a file with a few places changed, the same for a seed."""

from __future__ import annotations

import random
import re

_WORDS = (
    b"",
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\r",
    b"\n\n",
    b"\t",
    b'"',
    b"'",
    b"\\",
    b"\\ud800",
    b"\xed\xa0\x80",
    b"\x1b[31m",
    b"{}",
    b"[]",
    b"[" * 2000,
    b'{"a":' * 2000,
    b"9" * 5000,
    b"-1",
    b"0",
    b"1e999",
    b"NaN",
    b"null",
    b"true",
    b"1.5",
    b"18446744073709551616",
    b'"a"',
    b": ",
    b", ",
    b"<x>",
    b"&a [*a]",
    b"<<: *a",
    b"!!python/object:os.system",
    b"../../etc/passwd",
    "\N{SUPERSCRIPT TWO}".encode(),
)
_MARK = re.compile(rb'[:,\[\]{}\n\t "<>]')
_MOST_CHANGES = 4
_LONGEST = 64


def mutate(content: bytes, seed: int) -> bytes:
    generator = random.Random(seed)
    for _ in range(generator.randint(1, _MOST_CHANGES)):
        content = generator.choice(_CHANGES)(content, generator)
    return content


def _flip(content: bytes, generator: random.Random) -> bytes:
    if not content:
        return content
    place = generator.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << generator.randrange(8)]) + content[place + 1 :]


def _cut_off(content: bytes, generator: random.Random) -> bytes:
    return content[: generator.randint(0, len(content))]


def _take_out(content: bytes, generator: random.Random) -> bytes:
    place = generator.randint(0, len(content))
    return content[:place] + content[place + generator.randint(1, _LONGEST) :]


def _repeat(content: bytes, generator: random.Random) -> bytes:
    place = generator.randint(0, len(content))
    part = content[place : place + generator.randint(1, _LONGEST)]
    return content[:place] + part * generator.randint(2, 20) + content[place:]


def _put_in(content: bytes, generator: random.Random) -> bytes:
    place = generator.randint(0, len(content))
    return content[:place] + generator.choice(_WORDS) + content[place:]


def _put_in_place_of_a_value(content: bytes, generator: random.Random) -> bytes:
    """What stands between two marks of JSON, YAML or a table."""
    marks = [found.start() for found in _MARK.finditer(content)]
    if len(marks) < 2:
        return content
    first = generator.randrange(len(marks) - 1)
    return content[: marks[first] + 1] + generator.choice(_WORDS) + content[marks[first + 1] :]


def _put_in_noise(content: bytes, generator: random.Random) -> bytes:
    place = generator.randint(0, len(content))
    return content[:place] + generator.randbytes(generator.randint(1, _LONGEST)) + content[place + _LONGEST :]


_CHANGES = (
    _flip,
    _cut_off,
    _take_out,
    _repeat,
    _put_in,
    _put_in_place_of_a_value,
    _put_in_place_of_a_value,
    _put_in_noise,
)
