"""`maskwright serve` and `maskwright board`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all of this machine.")]
Port = Annotated[int, typer.Option(help="Port to listen on; 0: any free one.")]
ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="MASKWRIGHT_API_KEY",
        help="Key that requests must send; others can see it here, not in the variable.",
    ),
]


def serve(
    context: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL...]", help="Runs, checkpoints, model folders or hub ids; nothing: runs/quickstart."
        ),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; unset: a GPU if there is one.")] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="auto, fp32, bf16, fp16, fp8 (GPUs) or int8 (CPUs); unset: auto, fast and near fp32."),
    ] = None,
    compile: Annotated[
        str | None, typer.Option(help="Compile layers on a GPU: auto (large jobs), true or false; unset: auto.")
    ] = None,
    api_key: ApiKey = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Origin whose pages may read the answers; may be given several times."),
    ] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Tokens per batch; unset: chosen for the device.")] = None,
    max_wait_ms: Annotated[
        float, typer.Option(help="How long a batch with room waits for requests that are being read.")
    ] = 2.0,
    max_body_mb: Annotated[float, typer.Option(help="Largest body of a request in MB, else 413.")] = 8.0,
    max_texts: Annotated[int, typer.Option(help="Most texts of a request, else 422.")] = 2048,
    max_request_tokens: Annotated[int, typer.Option(help="Most tokens of a request, else 422.")] = 131072,
    max_queue_tokens: Annotated[int, typer.Option(help="Most tokens that wait, else 429.")] = 1048576,
    max_queue_s: Annotated[
        float, typer.Option(help="Longest expected wait for a first batch in seconds, else 429.")
    ] = 5.0,
    max_concurrent: Annotated[int, typer.Option(help="Most requests at a time, else 429.")] = 1024,
    timeout_s: Annotated[float, typer.Option(help="Longest time to an answer in seconds, else 503.")] = 60.0,
    read_timeout_s: Annotated[
        float, typer.Option(help="Longest time for a client to send a request, or to read, in seconds.")
    ] = 15.0,
    index: Annotated[
        list[Path] | None,
        typer.Option(metavar="INDEX", help="Index that /search searches, with its model; may be given several times."),
    ] = None,
    board: Annotated[Path | None, typer.Option(metavar="RUNS", help="Folder whose runs are shown at /board.")] = None,
) -> None:
    """Answer over HTTP with one or several models, each with every kind it can do.

    Routes: OpenAI's /v1/embeddings, those of text-embeddings-inference, /fill-mask, /ner, /classify, /qa, /zero-shot,
    /metrics for Prometheus; /docs lists them. SIGTERM or Ctrl-C ends it when what was accepted is answered.

    Examples:

        maskwright serve

        maskwright serve runs/mine runs/mine-ner --port 8080

        maskwright serve runs/mine --host 0.0.0.0 --max-concurrent 64

        maskwright serve --index idx
    """
    from maskwright.serving.serve import serve as run

    options = {name: value for name, value in context.params.items() if name != "models" and value is not None}
    run(models or [], **options)


def board(
    runs: Annotated[Path, typer.Argument(help="The folder of runs; those in folders below it are shown too.")] = Path(
        "runs"
    ),
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key: ApiKey = None,
) -> None:
    """Show all runs of a folder in a browser, as they train: curves, settings, held-out predictions.

    It reads the files of the runs and asks nothing of a process that trains.

    Examples:

        maskwright board

        maskwright board runs/ --port 8080
    """
    from maskwright.serving.watch import board as run

    run(runs, host=host, port=port, api_key=api_key)
