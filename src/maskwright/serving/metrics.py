"""Figures of a server: counted as requests are answered, for Prometheus and for the page.

A figure is changed by one thread alone: requests by the event loop, batches by the computing thread.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any

from maskwright.machine import read_process_memory

_SECONDS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_TOKEN_BOUNDS = (16, 32, 64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192, 16_384, 32_768, 65_536)
_RECENT_S = 120.0
_RATE_S = 10.0
_MAX_KEPT = 20_000
"""Of the last minutes' requests; with more a second the percentiles are those of a shorter time."""
Labels = tuple[str, ...]


class Histogram:
    def __init__(self, bounds: Iterable[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def write(self, name: str, labels: Mapping[str, str]) -> Iterable[str]:
        total = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            yield _write_sample(f"{name}_bucket", {**labels, "le": str(bound)}, total)
        yield _write_sample(f"{name}_sum", labels, self._sum)
        yield _write_sample(f"{name}_count", labels, total)


class Meter:
    """Of one model, or of the whole server."""

    def __init__(self) -> None:
        self.begun_s = time.monotonic()
        self.num_texts = Counter[str]()
        self.num_tokens = Counter[str]()
        self.batch_tokens = Histogram(_TOKEN_BOUNDS)
        self.batch_seconds = Histogram(_SECONDS_BOUNDS)
        self.num_requests = 0
        self._recent: deque[tuple[float, float]] = deque(maxlen=_MAX_KEPT)
        self._tokens: deque[tuple[float, int]] = deque(maxlen=_MAX_KEPT)

    def count_answer(self, kind: str, num_texts: int, num_tokens: int, seconds: float) -> None:
        """`seconds` from a request's body to its answer."""
        self.num_requests += 1
        self._recent.append((time.monotonic(), seconds))
        self.num_texts[kind] += num_texts
        self.num_tokens[kind] += num_tokens
        self._tokens.append((time.monotonic(), num_tokens))

    def count_batch(self, num_tokens: int, seconds: float) -> None:
        self.batch_tokens.add(num_tokens)
        self.batch_seconds.add(seconds)

    def describe(self) -> dict[str, Any]:
        """For the page: rates of the last seconds, percentiles of the last minutes (None without a request)."""
        now_s = time.monotonic()
        span_s = max(min(now_s - self.begun_s, _RATE_S), 1.0)
        recent = sorted(seconds for at_s, seconds in self._recent if now_s - at_s <= _RECENT_S)
        return {
            "uptime_s": now_s - self.begun_s,
            "requests_total": self.num_requests,
            "requests_per_s": sum(now_s - at_s <= _RATE_S for at_s, _ in self._recent) / span_s,
            "texts_total": self.num_texts.total(),
            "tokens_per_s": sum(tokens for at_s, tokens in self._tokens if now_s - at_s <= _RATE_S) / span_s,
            "p50_ms": _pick(recent, 0.5),
            "p99_ms": _pick(recent, 0.99),
        }


def _pick(ordered: list[float], share: float) -> float | None:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1e3 if ordered else None


class ServerMeter(Meter):
    """Of the whole server: requests by route and status as well."""

    def __init__(self) -> None:
        super().__init__()
        self.responses = Counter[Labels]()
        self.seconds: dict[str, Histogram] = {}
        self.num_running = 0

    def count_response(self, method: str, route: str, status: int, seconds: float) -> None:
        self.responses[(method, route, str(status))] += 1
        self.seconds.setdefault(route, Histogram(_SECONDS_BOUNDS)).add(seconds)


def write_prometheus(
    server: ServerMeter, models: Mapping[str, Meter], ready: Mapping[str, bool], waiting: tuple[int, int]
) -> str:
    """Prometheus' text format; `waiting` are samples and tokens in the queues."""
    lines: list[str] = []

    def add(name: str, kind: str, text: str, samples: Iterable[str]) -> None:
        lines.extend([f"# HELP {name} {text}", f"# TYPE {name} {kind}", *samples])

    responses = (
        _write_sample("maskwright_requests_total", {"method": method, "route": route, "status": status}, count)
        for (method, route, status), count in list(server.responses.items())
    )
    add("maskwright_requests_total", "counter", "Requests that got an answer.", responses)
    for name, text in (("texts", "Texts, or pairs of texts, answered."), ("tokens", "Tokens computed for them.")):
        samples = (
            _write_sample(f"maskwright_{name}_total", {"model": model, "kind": kind}, count)
            for model, meter in models.items()
            for kind, count in list(getattr(meter, f"num_{name}").items())
        )
        add(f"maskwright_{name}_total", "counter", text, samples)
    name = "maskwright_request_seconds"
    seconds = (line for route, one in list(server.seconds.items()) for line in one.write(name, {"route": route}))
    add(name, "histogram", "Seconds from a request's headers to its answer.", seconds)
    for name, field, text in (
        ("maskwright_batch_tokens", "batch_tokens", "Tokens of a batch."),
        ("maskwright_batch_seconds", "batch_seconds", "Seconds of a batch."),
    ):
        histograms = (
            line for model, meter in models.items() for line in getattr(meter, field).write(name, {"model": model})
        )
        add(name, "histogram", text, histograms)
    for name, value, text in (
        ("maskwright_queue_samples", waiting[0], "Texts and windows that wait to be computed."),
        ("maskwright_queue_tokens", waiting[1], "Tokens that wait to be computed."),
        ("maskwright_requests_running", server.num_running, "Requests that are being answered."),
        ("process_resident_memory_bytes", read_process_memory(), "Memory of the process."),
    ):
        add(name, "gauge", text, [_write_sample(name, {}, value)])
    name = "maskwright_model_ready"
    add(
        name,
        "gauge",
        "Whether a model answers.",
        (_write_sample(name, {"model": one}, int(ready[one])) for one in ready),
    )
    return "\n".join(lines) + "\n"


def _write_sample(name: str, labels: Mapping[str, str], value: float) -> str:
    shown = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
    return f"{name}{{{shown}}} {value}" if shown else f"{name} {value}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
