"""The commands as Python functions with the names of their options; several have a file of their own.

Functions import their modules when they run, so that mistakes in arguments are reported at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from maskwright.config import Config, Settings, list_settings, open_config
from maskwright.errors import InputError
from maskwright.sections.data import BUILTIN_CORPUS, SourceLike, build_sources
from maskwright.suggestions import OUT, checks_arguments, name_option, refuse_below

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from maskwright.runs.adapt import Adapted
    from maskwright.runs.doctor.findings import CheckUp
    from maskwright.runs.given import GivenModel
    from maskwright.runs.pretrain import FinishedRun
    from maskwright.text.tokenizer.extend import VocabularyAdvice
    from maskwright.text.tokenizer.tokenizer import Tokenizer

_HELD_OUT_SHARE = 0.1


@checks_arguments
def train(
    config: Config | Mapping[str, Any] | str | Path | None = None,
    settings: Settings = (),
    *,
    overwrite: bool = False,
    console: Console | None = None,
) -> FinishedRun:
    """Pre-train a model: a recipe by name, a YAML file, values or a `Config`; without one, the quickstart.

    `settings` go on top, as `{"training.max_steps": 100}` or `["training.max_steps=100"]`. The same call on an
    unfinished run resumes it. Progress goes to `console`; `Console(quiet=True)` is silent.
    """
    settled = open_config(config, settings)
    from maskwright.runs.pretrain import pretrain

    return pretrain(settled, overwrite, console)


@checks_arguments
def doctor(
    config: Config | Mapping[str, Any] | str | Path | None = None, settings: Settings = (), *, nodes: bool = False
) -> CheckUp:
    """Check a run before it is started, by a few real steps; nothing is written. It takes what `train` takes.

    With `nodes`, which torchrun starts on every machine of a job, compare the machines instead.
    """
    settled = open_config(config, settings)
    if nodes:
        from maskwright.runs.doctor.nodes import examine_nodes

        return examine_nodes(settled)
    from maskwright.runs.doctor.examine import examine

    return examine(settled)


@checks_arguments
def prepare(
    sources: SourceLike | Sequence[SourceLike],
    *,
    tokenizer: str | Path | Tokenizer,
    out: str | Path,
    validation_share: float = 0.01,
    max_length: int = 128,
    workers: int | None = None,
    on: str | None = None,
    memory: float | None = None,
    overwrite: bool = False,
    settings: Settings = (),
    console: Console | None = None,
) -> dict[str, Any]:
    """Turn sources into shards that training maps into memory; the manifest of the folder.

    `on` says what does the work: "processes" of this machine, "ray" or "ray://HOST:PORT", else threads of this process.
    Duplicates are searched with `memory` GB in each worker; unset, 1 GB, and in this process all it takes.
    `settings` are those of `quality`. Rows of `max_length` are counted, so that runs of that length start at once.
    """
    words = list_settings(settings)
    for word in words:
        if not word.startswith("quality."):
            raise InputError(f"'{word}' has no effect on preparation; settings are quality.KEY")
    refuse_below(1, workers=workers, max_length=max_length)
    quality = open_config(None, words).quality
    from maskwright.runs.given import take_tokenizer
    from maskwright.runs.prepare import describe_prepared
    from maskwright.runs.prepare import prepare as run
    from maskwright.runs.prepare_tasks import PrepareOptions
    from maskwright.terminal import CleanConsole, say

    shown = console or CleanConsole()
    options = PrepareOptions(validation_share=validation_share, quality=quality)
    chosen = take_tokenizer(tokenizer)
    manifest = run(
        build_sources(sources),
        chosen,
        out,
        options,
        num_workers=workers,
        on=on,
        memory_bytes=None if memory is None else int(memory * 1e9),
        overwrite=overwrite,
        say=lambda text: say(shown, text),
    )
    for line in describe_prepared(Path(out), max_length):
        say(shown, line)
    return manifest


@checks_arguments
def adapt(
    model: GivenModel,
    text: Any,
    *,
    out: str | Path | None = None,
    general: Any = BUILTIN_CORPUS,
    max_forgetting: float = 0.1,
    new_tokens: int = 0,
    head_steps: int = 300,
    purpose: Literal["retrieval"] | None = None,
    pairs: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    overwrite: bool = False,
    push_to_hub: str | None = None,
    private: bool = False,
    settings: Settings = (),
    tokenizer: Any = None,
    console: Console | None = None,
) -> Adapted:
    """Adapt an encoder to texts of a domain, watch what it forgets of general ones, and export it.

    For the `purpose` retrieval it learns to find the texts instead, by `pairs` made of them ("crops", "titles",
    "twins"; unset: all), each text cut anew in every one of `epochs` (1), in batches of `batch_size` (64). The figures
    have the scores before, as `mrr@10_before`.

    Texts are sources as `data.train` takes them, or records in memory (dictionaries, a data frame, a dataset) with a
    column `text`. A model in memory needs its `tokenizer`; it and such records are kept beside the run. The export goes
    to the repository `push_to_hub`, a new one may be `private`; if that fails, a `PushError` has the `result`.
    """
    from maskwright.runs.adapt import AdaptOptions
    from maskwright.runs.adapt import adapt as run
    from maskwright.runs.given import keep_model, name_folder, name_sources
    from maskwright.terminal import CleanConsole, say

    check_push(push_to_hub, private)
    refuse_below(0, new_tokens=new_tokens)
    refuse_below(1, head_steps=head_steps, epochs=epochs)
    refuse_below(2, batch_size=batch_size)
    _check_purpose(purpose, locals())
    folder = Path(out) if out is not None else Path("runs") / f"{name_folder(model)}-{purpose or 'adapted'}"
    inputs = folder.with_name(f"{folder.name}-inputs")
    texts, others = (name_sources(one, inputs, are_texts=True) for one in (text, general))
    if not texts:
        raise InputError(f"no text to adapt to is given; give {name_option('text')}")
    shown = console or CleanConsole()
    named = keep_model(model, tokenizer, inputs)
    if purpose is not None:
        from maskwright.runs.adapt_retriever import RetrieverOptions, adapt_retriever

        asked = RetrieverOptions(
            texts, folder, pairs, epochs or 1, batch_size or 64, list_settings(settings), overwrite
        )
        return adapt_retriever(named.place, asked, shown, lambda line: say(shown, line), push_to_hub, private)
    options = AdaptOptions(
        texts, folder, others, max_forgetting, new_tokens, head_steps, list_settings(settings), overwrite
    )
    adapted = run(named.place, options, shown, lambda line: say(shown, line))
    if push_to_hub is not None:
        from maskwright.runs.hub import push_adapted

        push_adapted(adapted, push_to_hub, private, lambda line: say(shown, line))
    return adapted


@checks_arguments
def export(
    model: GivenModel,
    to: str = "hf",
    *,
    out: str | Path | None = None,
    int8: bool = False,
    fp16: bool = False,
    purpose: str | None = None,
    text: Any = (),
    language: str | None = None,
    license: str | None = None,
    overwrite: bool = False,
    push_to_hub: str | None = None,
    private: bool = False,
    transformers_js: str | Path | None = None,
    tokenizer: Any = None,
    console: Console | None = None,
) -> Path:
    """Write a model for other people's tools, `to` hf, sentence-transformers, onnx, web or gguf; the folder it wrote.

    The `purpose` of an ONNX graph is embed or fill-mask; unset, what the model was trained for. `text` to compare on is
    sources, or records in memory with a column `text`. A model in memory needs its `tokenizer` and an `out`. The folder
    goes to the repository `push_to_hub` too, a new one may be `private`; if that fails, a `PushError` has the `result`.
    """
    import tempfile

    from maskwright.export.card import CardOptions
    from maskwright.runs.export import export_model
    from maskwright.runs.export_options import ExportOptions
    from maskwright.runs.given import name_model, name_sources
    from maskwright.terminal import CleanConsole, say

    check_push(push_to_hub, private)
    if out is None and not isinstance(model, str | Path):
        raise InputError("a model in memory lies in no folder to write beside; give the folder to write as out=")
    shown, folder = console or CleanConsole(), None if out is None else Path(out)
    with tempfile.TemporaryDirectory() as place, name_model(model, tokenizer) as named:
        texts = tuple(name_sources(text, Path(place), are_texts=True))
        card = CardOptions(language, license)
        library = None if transformers_js is None else Path(transformers_js)
        options = ExportOptions(to, folder, int8, fp16, purpose, texts, card, overwrite, library)
        written = export_model(named.place, options, lambda line: say(shown, line))
    if push_to_hub is not None:
        from maskwright.runs.hub import push_folder

        push_folder(written, push_to_hub, private, lambda line: say(shown, line), written)
    return written


@checks_arguments
def advise_tokenizer(
    tokenizer: str | Path | Tokenizer,
    sources: SourceLike | Sequence[SourceLike],
    *,
    max_tokens: int = 1000,
    min_count: int = 20,
    out: str | Path | None = None,
) -> VocabularyAdvice:
    """How a tokenizer cuts texts, and what adding the words that it cuts worst would change.

    Words are chosen from nine tenths of the texts, and measured on the other tenth. `out` is a new folder for the
    tokenizer with the words.
    """
    from contextlib import nullcontext
    from functools import partial

    from maskwright.ownership import owning
    from maskwright.runs.given import take_tokenizer
    from maskwright.runs.texts import is_held_out
    from maskwright.storage import restore_folder, whole_folder
    from maskwright.text.sources import read_sources
    from maskwright.text.tokenizer.extend import advise_vocabulary

    refuse_below(1, max_tokens=max_tokens, min_count=min_count)
    with nullcontext() if out is None else owning(Path(out)):
        if out is not None:
            restore_folder(Path(out))
            if Path(out).exists():
                raise InputError(f"{out} exists already; give a new folder as {OUT}")
        held_out = partial(is_held_out, share=_HELD_OUT_SHARE)
        advice = advise_vocabulary(
            lambda: read_sources(sources), held_out, take_tokenizer(tokenizer), max_tokens, min_count
        )
        if out is not None:
            if not advice.tokens:
                raise InputError(
                    f"there is no word to add, so nothing is written to {out}; lower {name_option('min_count')}"
                )
            with whole_folder(Path(out)) as folder:
                advice.extended.save(folder)
    return advice


_ONLY_MASKING = {"general": BUILTIN_CORPUS, "max_forgetting": 0.1, "new_tokens": 0, "head_steps": 300}
_ONLY_RETRIEVAL = {"pairs": None, "epochs": None, "batch_size": None}
"""Arguments of `adapt` for one purpose, with their defaults."""


def _check_purpose(purpose: str | None, given: Mapping[str, Any]) -> None:
    if purpose not in (None, "retrieval"):
        raise InputError(f"the purpose of an adaptation is '{purpose}'; known is retrieval, or leave it out")
    unused, reason = (
        (_ONLY_RETRIEVAL, "is for --for retrieval (purpose= in Python)")
        if purpose is None
        else (_ONLY_MASKING, "is for adaptation by masked tokens, not for retrieval")
    )
    for name, default in unused.items():
        if given[name] != default:
            raise InputError(f"{name_option(name)} {reason}; leave it out")


def check_push(repo: str | None, private: bool) -> None:
    """Before any work is done."""
    if repo is not None:
        from maskwright.runs.hub import check_login

        check_login(repo)
    elif private:
        raise InputError(f"private is for {name_option('push_to_hub')}; give both, or leave it out")
