"""`maskwright export`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maskwright.terminal import echo


def export(
    model: Annotated[str, typer.Argument(help="A run, a checkpoint or a model folder, also by URL, or a hub id.")],
    to: Annotated[str, typer.Option(help="The format: hf, sentence-transformers, onnx, web or gguf.")] = "hf",
    out: Annotated[
        Path | None, typer.Option(help="The folder to write; unset: MODEL-FORMAT, such as runs/mine-hf.")
    ] = None,
    int8: Annotated[bool, typer.Option("--int8", help="onnx, gguf: write a quantized model as well.")] = False,
    fp16: Annotated[bool, typer.Option("--fp16", help="onnx, gguf: write a model in half precision as well.")] = False,
    purpose: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="onnx, web: embed (vectors of texts) or fill-mask (logits); unset: what the model was trained for.",
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="Text to compare outputs on; may be given several times; unset: the built-in corpus."),
    ] = None,
    language: Annotated[str | None, typer.Option(help="Language for the model card, such as en.")] = None,
    license: Annotated[str | None, typer.Option(help="Licence for the model card, such as apache-2.0.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing export.")] = False,
    push_to_hub: Annotated[
        str | None, typer.Option(metavar="REPO", help="Push the model to the Hugging Face hub, as USER/NAME.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="With --push-to-hub: make a private repository.")] = False,
    transformers_js: Annotated[
        Path | None,
        typer.Option(help="web: a folder in which npm installed @huggingface/transformers; unset: it comes from npm."),
    ] = None,
) -> None:
    """Export a model to Hugging Face, sentence-transformers, ONNX, a web page or GGUF (llama.cpp).

    The result is read back and its outputs are compared with the model's before the folder appears. A model that the
    format cannot represent is rejected with the reason.

    Examples:

        maskwright export runs/mine --to hf

        maskwright export runs/mine --to sentence-transformers --out vectors --language en

        maskwright export runs/mine --to onnx --int8 --text held-out.txt

        maskwright export runs/mine --to onnx --for embed

        maskwright export runs/mine --to web

        maskwright export runs/mine --to gguf --fp16

        maskwright export runs/mine --to hf --push-to-hub me/mine --private
    """
    from maskwright.runs.commands import export as run

    folder = run(
        model,
        to,
        out=out,
        int8=int8,
        fp16=fp16,
        purpose=purpose,
        text=text or (),
        language=language,
        license=license,
        overwrite=overwrite,
        push_to_hub=push_to_hub,
        private=private,
        transformers_js=transformers_js,
    )
    echo(f"{folder} is ready")
