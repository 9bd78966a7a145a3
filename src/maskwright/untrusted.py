"""JSON and YAML from people we do not know: read as data, within bounds, or refused in one sentence."""

from __future__ import annotations

import codecs
import json
import math
import reprlib
from pathlib import Path
from typing import Any, NoReturn

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from maskwright.errors import InputError

ADVICE = "fetch or export the model again"
MAX_FILE_BYTES = 16 * 2**20
MAX_DEPTH = 64
"""Far above any real file, far below where Python's own recursion ends."""
MAX_SEPARATORS = 1_000_000
"""Each costs up to ~70 bytes once parsed; 100,000 tensors have as many."""
MAX_YAML_BYTES = 2 * 2**20
MAX_YAML_VALUES = 200_000
"""As many as the settings of 10,000 sources; an alias counts as all that it stands for."""
_MAX_NUMBER_CHARS = 4300
"""Python's own limit; YAML's numbers to the base of 60 would come around it."""

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80


def shorten(value: object) -> str:
    """A value for an error message: escaped, and never longer than a line or two."""
    return _short.repr(value)


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in a small JSON file; never more than `MAX_FILE_BYTES` of it are read."""
    with path.open("rb") as file:
        text = file.read(MAX_FILE_BYTES + 1)
    if len(text) > MAX_FILE_BYTES:
        raise InputError(f"{path} is larger than {MAX_FILE_BYTES} bytes, the most that is read of it; {ADVICE}")
    return parse_json_object(text, str(path))


def parse_json_object(text: bytes, source: str) -> dict[str, Any]:
    """An object without duplicate keys, NaN, infinities or deep nesting; `source` names it in refusals."""
    # counted before anything is parsed: `[],[],[],` takes 20 times its size in memory as Python lists
    if sum(map(text.count, (b"[", b"{", b","))) > MAX_SEPARATORS:
        raise InputError(f"{source} has more than {MAX_SEPARATORS:,} JSON values, the most that is read; {ADVICE}")
    try:
        value = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_make_object,
            parse_constant=_refuse_constant,
            parse_float=_parse_finite,
        )
    except RecursionError:
        raise _deep_nesting(source) from None
    except ValueError as error:
        # Python's refusal of integers of thousands of digits goes on with advice for programmers
        reason = str(error).split(";")[0]
        raise InputError(f"{source} is not valid JSON: {reason}; {ADVICE}") from error
    if not isinstance(value, dict):
        raise InputError(f"{source} holds a {type(value).__name__}, expected a JSON object; {ADVICE}")
    if _is_deeper(value, MAX_DEPTH):
        raise _deep_nesting(source)
    return value


def _deep_nesting(source: str) -> InputError:
    return InputError(f"{source} is nested more than {MAX_DEPTH} levels deep, the most that is read; {ADVICE}")


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {shorten(key)} occurs twice")
        result[key] = value
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _parse_finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError("a number is too large for a float")
    return number


def _is_deeper(value: object, levels: int) -> bool:
    level: list[object] = [value]
    for _ in range(levels + 1):
        containers = [node for node in level if isinstance(node, dict | list)]
        level = [child for node in containers for child in (node.values() if isinstance(node, dict) else node)]
        if not level:
            return False
    return True


def read_yaml(path: Path) -> Any:
    """What a small YAML file holds; duplicate keys, deep nesting and aliases of aliases without end are refused."""
    with path.open("rb") as file:
        content = file.read(MAX_YAML_BYTES + 1)
    if len(content) > MAX_YAML_BYTES:
        raise InputError(f"{path} is larger than {MAX_YAML_BYTES:,} bytes, the most that is read of a YAML file")
    try:
        encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
        return parse_yaml(content.decode(encoding), str(path))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error


def parse_yaml(text: str, source: str) -> Any:
    """As `read_yaml`; text that is no YAML at all raises `yaml.YAMLError`."""
    loader = _BoundedLoader(text, source)
    try:
        return loader.get_single_data()
    except RecursionError:
        raise InputError(f"{source} is nested too deeply; write it flatter") from None
    except InputError:
        raise
    except ValueError as error:  # a date or a number that is none
        raise yaml.YAMLError(str(error).split(";")[0]) from error


class _BoundedLoader(Composer, SafeConstructor, Resolver):
    """PyYAML's safe loader that counts what it composes, over the parser in C, which is several times faster."""

    def __init__(self, text: str, source: str) -> None:
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._events = yaml.parse(text, Loader=yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader)
        self._event: yaml.Event | None = None
        self._source = source
        self._depth = 0
        self._sizes: dict[yaml.Node, int] = {}

    def peek_event(self) -> Any:
        if self._event is None:
            self._event = next(self._events, None)
        return self._event

    def get_event(self) -> Any:
        event, self._event = self.peek_event(), None
        return event

    def check_event(self, *kinds: type[yaml.Event]) -> bool:
        return isinstance(self.peek_event(), kinds)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        is_alias, line = self.check_event(yaml.AliasEvent), self.peek_event().start_mark.line + 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refuse(line, f"is nested more than {MAX_DEPTH} levels deep, the most that is read")
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None and not is_alias:
            self._sizes[node] = self._measure(node, line)
        elif node not in self._sizes:
            raise self._refuse(line, "refers to what it is a part of")
        return node

    def _measure(self, node: yaml.Node, line: int) -> int:
        """How many values a node stands for, those behind aliases included."""
        if isinstance(node, yaml.ScalarNode):
            if len(node.value) > _MAX_NUMBER_CHARS and node.tag != "tag:yaml.org,2002:str":
                raise self._refuse(line, f"has a number of more than {_MAX_NUMBER_CHARS} digits")
            return 1
        children = node.value
        if isinstance(node, yaml.MappingNode):
            self._check_keys(node)
            children = [child for pair in node.value for child in pair]
        size = 1 + sum(self._sizes[child] for child in children)
        if size > MAX_YAML_VALUES:
            raise self._refuse(line, f"stands for more than {MAX_YAML_VALUES:,} values, the most that is read")
        return size

    def _check_keys(self, node: yaml.MappingNode) -> None:
        keys = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in keys:
                    raise self._refuse(
                        key.start_mark.line + 1, f"gives the key {shorten(key.value)} a second time; keep one of them"
                    )
                keys.add((key.tag, key.value))

    def _refuse(self, line: int, reason: str) -> InputError:
        return InputError(f"{self._source}, line {line}: {reason}")
