"""What a server is told: where it listens, and the limits of requests."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from maskwright.errors import InputError, InputWarning, check_count
from maskwright.inference.precision import Compile, check_precision_name, read_compile
from maskwright.suggestions import name_option

_MAX_PORT = 65_535


@dataclass(frozen=True)
class ServeSettings:
    """The defaults are those of the command line."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = field(default=None, repr=False)
    cors: Sequence[str] = ()
    """Origins whose pages a browser lets read the answers."""
    precision: str | None = None
    """auto, fp32, bf16, fp16, fp8 or int8; None: auto, and a model in memory keeps its dtype."""
    compile: Compile | None = None
    """True, False or auto; None: auto, and a model in memory stays as it is."""
    batch_tokens: int | None = None
    """None: chosen for the device."""
    max_wait_ms: float = 2.0
    """How long a batch that is not full waits for requests that are being read already."""
    max_body_mb: float = 8.0
    max_texts: int = 2_048
    max_request_tokens: int = 131_072
    max_queue_tokens: int = 1_048_576
    max_queue_s: float = 5.0
    """How long a request may have to wait for its first batch, as expected when it comes."""
    max_concurrent: int = 1_024
    timeout_s: float = 60.0
    """From a request's last byte to its answer."""
    read_timeout_s: float = 15.0
    """How long a client may take for a request, and for reading an answer."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name.startswith("max_") and isinstance(one.default, int):
                check_count(name_option(one.name), value)
            elif one.name in ("max_body_mb", "max_queue_s", "timeout_s", "read_timeout_s") and not value > 0:
                raise InputError(f"{name_option(one.name)} is {value}; it must be more than 0")
        if self.precision is not None:
            check_precision_name(self.precision)
        read_compile(self.compile)
        if self.batch_tokens is not None:
            check_count(name_option("batch_tokens"), self.batch_tokens)
        if not 0 <= self.max_wait_ms < float("inf"):
            raise InputError(f"{name_option('max_wait_ms')} is {self.max_wait_ms}; it must be at least 0")
        if not 0 <= self.port <= _MAX_PORT:
            raise InputError(f"{name_option('port')} is {self.port}; it must lie between 0 (any free one) and 65535")
        if self.api_key is not None and not (self.api_key and self.api_key.isascii() and self.api_key.isprintable()):
            raise InputError(f"{name_option('api_key')} must be printable ASCII characters, and at least one")

    def warn_of_strangers(self) -> None:
        if not self.is_loopback and self.api_key is None:
            warnings.warn(
                f"the server listens on {self.host} without a key: whoever reaches this machine can ask it; set"
                " MASKWRIGHT_API_KEY, or leave --host out to listen on this machine alone",
                InputWarning,
                stacklevel=2,
            )

    @property
    def max_body_bytes(self) -> int:
        return int(self.max_body_mb * 2**20)

    @property
    def is_loopback(self) -> bool:
        return self.host in ("localhost", "::1") or self.host.startswith("127.")
