"""`serve`: models by name to a server that answers."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from maskwright.errors import InputError, InputWarning
from maskwright.inference.loading import Source
from maskwright.inference.precision import Compile
from maskwright.models.files.model_folder import resolve_folder
from maskwright.serving.settings import ServeSettings
from maskwright.suggestions import checks_arguments
from maskwright.terminal import echo

if TYPE_CHECKING:
    from maskwright.serving.search import AskedIndex

QUICKSTART = Path("runs/quickstart")
_PACKAGES = ("fastapi", "httptools", "orjson", "uvicorn")
_MAX_THREADS = 8
_SWITCH_S = 0.000_5
"""Threads hand over more often than Python has them do, so that a request is read while others are tokenized."""


def check_packages(packages: Sequence[str] = _PACKAGES) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise InputError(f"a server needs {' and '.join(missing)}: pip install 'maskwright[serve]'")


@checks_arguments
def serve(
    models: Source | Sequence[Source] = (),
    *,
    tokenizer: Any = None,
    host: str = ServeSettings.host,
    port: int = ServeSettings.port,
    device: str | None = None,
    precision: str | None = None,
    compile: Compile | None = None,
    api_key: str | None = None,
    cors: str | Sequence[str] = (),
    batch_tokens: int | None = None,
    max_wait_ms: float = ServeSettings.max_wait_ms,
    max_body_mb: float = ServeSettings.max_body_mb,
    max_texts: int = ServeSettings.max_texts,
    max_request_tokens: int = ServeSettings.max_request_tokens,
    max_queue_tokens: int = ServeSettings.max_queue_tokens,
    max_queue_s: float = ServeSettings.max_queue_s,
    max_concurrent: int = ServeSettings.max_concurrent,
    timeout_s: float = ServeSettings.timeout_s,
    read_timeout_s: float = ServeSettings.read_timeout_s,
    index: str | Path | Sequence[str | Path] = (),
    board: str | Path | None = None,
    say: Callable[[str], None] = echo,
) -> None:
    """Answer over HTTP with one or several models until SIGTERM or Ctrl-C; without one, with the quickstart's run.

    A model is a run, a checkpoint, a model folder or a hub id, or a model in memory with its `tokenizer`. The key may
    stand in the environment as MASKWRIGHT_API_KEY. `index` names indexes, which /search searches; the models they were
    made with are served too. The runs of the folder `board` are shown at /board. `say` gets a
    line for each model and the address.
    """
    check_packages()
    settings = ServeSettings(
        host=host,
        port=port,
        api_key=os.environ.get("MASKWRIGHT_API_KEY") if api_key is None else api_key,
        cors=(cors,) if isinstance(cors, str) else tuple(cors),
        precision=precision,
        compile=compile,
        batch_tokens=batch_tokens,
        max_wait_ms=max_wait_ms,
        max_body_mb=max_body_mb,
        max_texts=max_texts,
        max_request_tokens=max_request_tokens,
        max_queue_tokens=max_queue_tokens,
        max_queue_s=max_queue_s,
        max_concurrent=max_concurrent,
        timeout_s=timeout_s,
        read_timeout_s=read_timeout_s,
    )
    from maskwright.serving.search import plan_indexes

    folders = [index] if isinstance(index, str | Path) else list(index)
    indexes, sources = plan_indexes(folders, _read_sources(models, may_be_none=bool(folders)))
    _serve(sources, settings, indexes, device, tokenizer, None if board is None else Path(board), say)


def _read_sources(models: Source | Sequence[Source], may_be_none: bool) -> list[Source]:
    """Those that are names are there, or an `InputError` says which is not."""
    sources = [models] if isinstance(models, str | Path | nn.Module) else list(models)
    if not sources and not may_be_none:
        if not QUICKSTART.exists():
            raise InputError(
                f"there is no model to serve: give a run, a model folder or a hub id, or make {QUICKSTART} with"
                " maskwright train"
            )
        sources = [QUICKSTART]
    for source in sources:
        if not isinstance(source, nn.Module):
            resolve_folder(source)
    return sources


def _serve(
    sources: Sequence[Source],
    settings: ServeSettings,
    indexes: Sequence[AskedIndex],
    device: str | None,
    tokenizer: Any,
    board: Path | None,
    say: Callable[[str], None],
) -> None:
    from maskwright.serving.app import build_app
    from maskwright.serving.board import add_board
    from maskwright.serving.hub import ModelHub
    from maskwright.serving.metrics import ServerMeter
    from maskwright.serving.server import name_url, open_socket, run_server
    from maskwright.serving.state import ServerState

    listener = open_socket(settings.host, settings.port, settings.read_timeout_s)
    settings.warn_of_strangers()
    url = name_url(listener, settings.host)
    before = sys.getswitchinterval(), torch.get_num_threads()
    threads = ThreadPoolExecutor(min(os.cpu_count() or 1, _MAX_THREADS), "requests")
    meter = ServerMeter()
    hub = ModelHub(sources, settings, threads, meter, device, tokenizer, indexes)

    def load(stop: Callable[[], None]) -> None:
        hub.load_all(say)
        if not hub.is_loaded:
            stop()
            return
        warnings.simplefilter("ignore", InputWarning)  # from here on they are about requests, and may quote them
        gc.collect()
        gc.freeze()  # what is loaded stays, and is not looked through again between requests
        say(f"{url} answers; the page is {url}/ and the routes are in {url}/docs")

    try:
        sys.setswitchinterval(_SWITCH_S)
        with warnings.catch_warnings(), threads:
            state = ServerState(hub, settings, meter)
            app = build_app(state)
            if board is not None:
                add_board(app, board)
            run_server(app, state, listener, load)
            hub.close()
    finally:
        sys.setswitchinterval(before[0])
        torch.set_num_threads(before[1])  # some libraries keep one number for all threads
        gc.unfreeze()
        listener.close()
    errors = list(hub.errors.values())
    if not hub.is_loaded and errors:
        raise InputError(f"nothing could be loaded: {errors[0]}")
