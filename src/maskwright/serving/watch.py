"""`board`: a folder of runs to a server that shows them."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from maskwright.serving.serve import check_packages
from maskwright.serving.settings import ServeSettings
from maskwright.suggestions import checks_arguments
from maskwright.terminal import echo


@checks_arguments
def board(
    runs: str | Path = "runs",
    *,
    host: str = ServeSettings.host,
    port: int = ServeSettings.port,
    api_key: str | None = None,
    say: Callable[[str], None] = echo,
) -> None:
    """Show the runs of a folder in a browser until SIGTERM or Ctrl-C: their curves as they grow, settings, predictions.

    Only files are read, so runs that train are not disturbed, and runs of other machines on a shared disk are shown as
    well. The key may stand in the environment as MASKWRIGHT_API_KEY.
    """
    check_packages()
    from maskwright.serving.app import build_app
    from maskwright.serving.board import add_board
    from maskwright.serving.hub import ModelHub
    from maskwright.serving.metrics import ServerMeter
    from maskwright.serving.server import name_url, open_socket, run_server
    from maskwright.serving.state import ServerState

    api_key = os.environ.get("MASKWRIGHT_API_KEY") if api_key is None else api_key
    settings = ServeSettings(host=host, port=port, api_key=api_key)
    meter = ServerMeter()
    with ThreadPoolExecutor(1) as threads:
        state = ServerState(ModelHub([], settings, threads, meter), settings, meter)
        app = build_app(state)
        add_board(app, Path(runs))
        with closing(open_socket(host, port, settings.read_timeout_s)) as listener:
            settings.warn_of_strangers()
            url = name_url(listener, host)
            say(f"{url} answers; the runs of {runs} are shown at {url}/board")
            run_server(app, state, listener)
