"""`maskwright models list`, `maskwright models memory` and `maskwright models choose`"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskwright.cli.usage import Commands
from maskwright.terminal import echo

if TYPE_CHECKING:
    from maskwright.catalogue.choose import Choice, Wishes
    from maskwright.catalogue.table import KnownModel

models_app = Commands(
    name="models",
    help="""Published models: their scores, their memory, and which one to choose.

Examples:

    maskwright models choose --length 4096

    maskwright models memory bert-base-uncased
""",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
_AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_FLAGS = "--task, --language, --length, --fastest, --best-accuracy, --max-parameters or --domain"


@models_app.command("list")
def list_models(as_json: _AsJson = False) -> None:
    """List the known models.

    Example:

        maskwright models list
    """
    from maskwright.catalogue.choose import list_models as list_known

    models = list_known()
    if as_json:
        echo(json.dumps([_describe(model) for model in models], indent=2))
        return
    for model in models:
        echo(_format_row(model))


@models_app.command("memory")
def memory(
    model: Annotated[
        str, typer.Argument(help="A known model, a folder, a run, a checkpoint or a hub id in the cache.")
    ],
    as_json: _AsJson = False,
) -> None:
    """Show the number of parameters of a model and the memory of its weights in fp32, fp16 and int8.

    Examples:

        maskwright models memory distilbert

        maskwright models memory runs/quickstart
    """
    from maskwright.catalogue.table import format_bytes, format_parameters
    from maskwright.runs.memory import measure_memory

    measured = measure_memory(model)
    if as_json:
        echo(json.dumps(measured.to_json()))
        return
    echo(measured.name)
    _echo_pair("parameters", f"{format_parameters(measured.parameters)} ({measured.counting})")
    for precision, size in measured.bytes_by_precision.items():
        _echo_pair(precision, format_bytes(size))


@models_app.command("choose")
def choose_model(
    language: Annotated[
        str | None, typer.Option("--language", help="en, multi (several languages), or a language code such as de.")
    ] = None,
    length: Annotated[int | None, typer.Option("--length", min=1, help="Length of the longest text in tokens.")] = None,
    fastest: Annotated[bool, typer.Option("--fastest", help="Prefer speed to accuracy.")] = False,
    best_accuracy: Annotated[bool, typer.Option("--best-accuracy", help="Prefer accuracy to speed.")] = False,
    max_parameters: Annotated[
        str | None, typer.Option("--max-parameters", help="Maximum number of parameters, such as 60M or 1.5B.")
    ] = None,
    domain: Annotated[
        str | None,
        typer.Option("--domain", help="Domain of the text: scientific, biomedical, legal, financial or code."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            help="classification, multi-label, pairs, regression, ner, qa or similarity: decides which score"
            " --best-accuracy uses and which command is printed.",
        ),
    ] = None,
    as_json: _AsJson = False,
) -> None:
    """Recommend a model for your needs. Without options, ask for them one by one.

    Examples:

        maskwright models choose

        maskwright models choose --language de --max-parameters 300M

        maskwright models choose --task qa --best-accuracy
    """
    from maskwright.catalogue.choose import choose
    from maskwright.catalogue.choose import choose_model as choose_by_name
    from maskwright.errors import InputError

    if any((language, length, fastest, best_accuracy, max_parameters, domain, task)):
        choice = choose_by_name(
            language=language,
            length=length,
            fastest=fastest,
            best_accuracy=best_accuracy,
            max_parameters=max_parameters,
            domain=domain,
            task=task,
        )
    elif _is_at_terminal():
        choice = choose(_ask_wishes())
    else:
        raise InputError(f"models choose has nothing to go by; give {_FLAGS}, or run it in a terminal to be asked")
    if as_json:
        echo(json.dumps(_describe_choice(choice), indent=2))
    else:
        _print_choice(choice)


def _is_at_terminal() -> bool:
    return sys.stdin.isatty()


def _ask_wishes() -> Wishes:
    """Ask on stderr, so that the output of --json can be piped."""
    from maskwright.catalogue.choose import USUAL_CONTEXT, Wishes, parse_parameters
    from maskwright.catalogue.table import GENERAL, read_table

    def ask(question: str, default: str | int) -> Any:
        return typer.prompt(question, default=default, err=True)

    language = ask("Language (en, multi, or a code such as de)", "en").lower()
    domain = ask(f"Domain ({', '.join((GENERAL, *read_table().domains))})", GENERAL)
    length = ask("Tokens of the longest text", USUAL_CONTEXT)
    fastest = typer.confirm("Need the fastest?", default=False, err=True)
    best_accuracy = not fastest and typer.confirm("Need the best accuracy?", default=False, err=True)
    most = ask("Most parameters, such as 60M, or any", "any")
    return Wishes(
        language=language,
        domain=None if domain == GENERAL else domain,
        length=length,
        max_parameters=None if most == "any" else parse_parameters(most),
        fastest=fastest,
        best_accuracy=best_accuracy,
    )


def _describe(model: KnownModel, task: str | None = None) -> dict[str, Any]:
    from dataclasses import asdict

    from maskwright.catalogue.table import compute_memory, describe_finetuning, describe_loading

    return asdict(model) | {
        "memory": compute_memory(model).bytes_by_precision,
        "loading": describe_loading(model),
        "finetuning": describe_finetuning(model, task),
    }


def _describe_choice(choice: Choice) -> dict[str, Any]:
    return {
        "leaf": choice.leaf,
        "why": choice.why,
        "task": choice.task,
        "model": _describe(choice.model, choice.task),
        "alternatives": [_describe(model, choice.task) for model in choice.alternatives],
    }


def _print_choice(choice: Choice) -> None:
    from maskwright.catalogue.table import (
        ACCURACY,
        compute_memory,
        describe_finetuning,
        describe_loading,
        format_bytes,
        format_parameters,
    )

    model = choice.model
    sizes = compute_memory(model).bytes_by_precision
    echo(model.id)
    _echo_pair("why", choice.why)
    _echo_pair("parameters", f"{format_parameters(model.parameters)} ({model.counted:,} counted in the encoder)")
    _echo_pair("layers", f"{model.layers} of width {model.width}")
    _echo_pair("context", f"{model.context} tokens")
    _echo_pair("languages", _format_languages(model))
    first = {choice.score, *((ACCURACY, "XNLI") if choice.task is None else ())}
    for score in model.scores:
        if score.name in first:
            _echo_pair(score.name, f"{score.value} ({score.source})")
    for source in dict.fromkeys(score.source for score in model.scores if score.name not in first):
        others = [f"{one.name} {one.value}" for one in model.scores if one.source == source and one.name not in first]
        _echo_pair("also", f"{', '.join(others)} ({source})")
    _echo_pair("memory", ", ".join(f"{precision} {format_bytes(size)}" for precision, size in sizes.items()))
    if model.license:
        _echo_pair("licence", model.license)
    for purpose, words in (describe_loading(model) | describe_finetuning(model, choice.task)).items():
        _echo_pair(purpose, words)
    if choice.alternatives:
        echo("alternatives")
    for alternative in choice.alternatives:
        echo(f"  {_format_row(alternative, choice.score)}")


def _format_row(model: KnownModel, score: str | None = None) -> str:
    from maskwright.catalogue.table import ACCURACY, format_parameters

    name = score or ACCURACY
    value = model.find_score(name)
    accuracy = "" if value is None else f"{name} {value}"
    return (
        f"{model.id:<62} {format_parameters(model.parameters):>5} {model.context:>6} tokens  "
        f"{_format_languages(model):<14} {model.domain:<11} {model.loads:<7} {accuracy}"
    ).rstrip()


def _format_languages(model: KnownModel) -> str:
    from maskwright.catalogue.table import ENGLISH

    return "English" if model.languages == ENGLISH else f"{len(model.languages)} languages"


def _echo_pair(name: str, value: str) -> None:
    echo(f"{name:>12}  {value}")
