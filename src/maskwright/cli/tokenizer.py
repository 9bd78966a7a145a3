"""`maskwright tokenizer train`, `show` and `advise`"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskwright.cli.usage import Commands
from maskwright.terminal import echo, escape_json

if TYPE_CHECKING:
    from maskwright.text.tokenizer.domain_tokens import Fragmentation
    from maskwright.text.tokenizer.extend import VocabularyAdvice
    from maskwright.text.tokenizer.tokenizer import Tokenizer


tokenizer_app = Commands(name="tokenizer", help="Train a tokenizer on your text, or inspect one.", no_args_is_help=True)
_DEFAULT_MIN_FREQUENCY = 2


@tokenizer_app.command("train")
def train(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCES...", help="Text to train on.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write the tokenizer to.")],
    type: Annotated[
        str,
        typer.Option("--type", help="wordpiece, byte_level_bpe, unigram, word_level, character or smiles."),
    ] = "wordpiece",
    vocab_size: Annotated[int, typer.Option("--vocab-size", help="Maximum size of the vocabulary.")] = 30522,
    special_token: Annotated[
        list[str] | None, typer.Option("--special-token", help="An additional special token; may be repeated.")
    ] = None,
    cased: Annotated[bool, typer.Option("--cased", help="Keep case (and, for wordpiece, accents).")] = False,
    min_frequency: Annotated[
        int | None, typer.Option("--min-frequency", min=1, help="Ignore words and pairs that are rarer; unset: 2.")
    ] = None,
    sample: Annotated[
        float, typer.Option("--sample", metavar="SHARE", help="Share of the documents to learn from.")
    ] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Chooses the documents of a sample.")] = 0,
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="WHERE", help="processes, ray or ray://HOST:PORT count the words; unset: here."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Processes that count words; unset: one per core.", min=1)
    ] = None,
    max_words: Annotated[
        int | None,
        typer.Option("--max-words", help="Learn from so many words, the most frequent; unset: all.", min=1),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option("--alpha", help="Balance the sources, such as languages: each counts by its size to this power."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing tokenizer.")] = False,
) -> None:
    """Train a tokenizer on text.

    Examples:

        maskwright tokenizer train corpus.txt --vocab-size 8000 --out my-tokenizer

        maskwright tokenizer train corpus --sample 0.1 --on processes --out sampled-tokenizer

        maskwright tokenizer train german.txt korean.txt --alpha 0.3 --out shared-tokenizer

        maskwright tokenizer train a.txt b.txt --type byte_level_bpe --cased --special-token "[USER]" --out my-bpe
    """
    from maskwright.errors import InputError
    from maskwright.ownership import owning
    from maskwright.storage import whole_folder
    from maskwright.text.tokenizer.counted import check_sample, is_sampled
    from maskwright.text.tokenizer.train import train_tokenizer

    if type == "unigram" and min_frequency is not None:
        raise InputError("--min-frequency has no meaning for unigram, which chooses its pieces by likelihood")
    if workers is not None and on is None:
        raise InputError("--workers is for --on processes; the library that trains here takes all cores")
    check_sample(sample, seed)
    with owning(out):
        _check_output(out, overwrite)
        wanted: dict[str, Any] = {
            "type": type,
            "vocab_size": vocab_size,
            "lowercase": not cased,
            "min_frequency": _DEFAULT_MIN_FREQUENCY if min_frequency is None else min_frequency,
            "special_tokens": special_token or (),
        }
        if on is not None or max_words is not None or alpha is not None:
            from maskwright.runs.tokenizer_counts import train_by_counts
            from maskwright.sections.data import build_sources

            tokenizer = train_by_counts(
                build_sources(sources),
                **wanted,
                sample=sample,
                seed=seed,
                max_words=max_words,
                alpha=alpha,
                on=on,
                num_workers=workers,
                keep_in=out.with_name(f".{out.name}.counting"),
                say=echo,
            )
        else:
            tokenizer = train_tokenizer(
                lambda: (text for text in _read_texts(sources) if is_sampled(text, sample, seed)), **wanted
            )
        with whole_folder(out) as folder:
            tokenizer.save(folder)
    echo(f"{out}: {type}, {tokenizer.vocab_size:,} tokens")
    if tokenizer.vocab_size < vocab_size:
        echo(f"the text has no more to learn: {vocab_size:,} were asked for")


@tokenizer_app.command("show")
def show(
    tokenizer: Annotated[str, typer.Argument(help="A tokenizer's file or folder, a run, a model folder or a hub id.")],
    text: Annotated[str | None, typer.Argument(help="Text to tokenize.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a tokenizer's type, vocabulary size and special tokens, and how it splits a text.

    Example:

        maskwright tokenizer show runs/quickstart "An unbelievable story."
    """
    from maskwright.runs.inputs import open_tokenizer

    loaded = open_tokenizer(tokenizer)
    description = _describe(loaded)
    if text is not None:
        description |= _describe_text(loaded, text)
    if as_json:
        echo(escape_json(json.dumps(description, ensure_ascii=False)))
    else:
        _print(description)


def _read_texts(sources: list[str]) -> Iterator[str]:
    from maskwright.text.sources import read_sources

    return read_sources(sources)


def _check_output(out: Path, overwrite: bool) -> None:
    """Reject an existing tokenizer without --overwrite, and any folder that holds other files."""
    from maskwright.errors import InputError
    from maskwright.storage import restore_folder
    from maskwright.text.tokenizer.files import FAST_FILE, NAMES_FILE, SETTINGS_FILE

    restore_folder(out)
    if not out.exists():
        return
    if not out.is_dir():
        raise InputError(f"{out} is a file; give a folder to write to as --out")
    others = sorted(path.name for path in out.iterdir() if path.name not in (FAST_FILE, SETTINGS_FILE, NAMES_FILE))
    if others:
        raise InputError(f"{out} holds other files, such as {others[0]}; give a folder of its own as --out")
    if (out / FAST_FILE).exists() and not overwrite:
        raise InputError(f"{out} holds a tokenizer; give another --out, or --overwrite to replace it")


def _describe(tokenizer: Tokenizer) -> dict[str, Any]:
    backend = tokenizer.backend
    special = {tokenizer.token(token_id): token_id for token_id in tokenizer.all_special_ids}
    return {
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "special_tokens": special,
        "roles": tokenizer.special_tokens,
        "added_roles": list(tokenizer.added_roles),
        "normalizer": None if backend.normalizer is None else str(backend.normalizer),
        "pre_tokenizer": None if backend.pre_tokenizer is None else str(backend.pre_tokenizer),
    }


def _describe_text(tokenizer: Tokenizer, text: str) -> dict[str, Any]:
    (encoding,) = tokenizer.encode_spans([text])
    tokens = [
        {"token": token, "id": token_id, "start": start, "end": end}
        for token, token_id, (start, end) in zip(encoding.tokens, encoding.ids, encoding.offsets, strict=True)
    ]
    num_words = len(text.split())
    return {"tokens": tokens, "tokens_per_word": len(tokens) / num_words if num_words else None}


def _print(description: dict[str, Any]) -> None:
    echo(f"{'kind':>15}  {description['kind']}, {description['vocab_size']:,} tokens")
    for token, token_id in description["special_tokens"].items():
        roles = [role for role, name in description["roles"].items() if name == token]
        added = " (added: not in the tokenizer's files)" if set(roles) & set(description["added_roles"]) else ""
        echo(f"{', '.join(roles) or 'special':>15}  {token} {token_id}{added}")
    for name in ("normalizer", "pre_tokenizer"):
        echo(f"{name.replace('_', '-'):>15}  {description[name] or 'none'}")
    for token in description.get("tokens", ()):
        echo(f"{token['id']:>15}  {token['token']}  {token['start']}-{token['end']}")
    if description.get("tokens_per_word") is not None:
        echo(f"{'tokens per word':>15}  {description['tokens_per_word']:.2f}")


_NUM_SHOWN = 15
_MANY_UNKNOWN = 0.05


@tokenizer_app.command("advise")
def advise(
    tokenizer: Annotated[str, typer.Argument(help="A tokenizer's file or folder, a run, a model folder or a hub id.")],
    sources: Annotated[list[str], typer.Argument(metavar="SOURCES...", help="Text of your domain.")],
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Maximum number of words to add.")] = 1000,
    min_count: Annotated[
        int, typer.Option("--min-count", min=1, help="Add only words that occur at least this often.")
    ] = 20,
    out: Annotated[
        Path | None, typer.Option("--out", help="New folder for the tokenizer with the added words.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how a tokenizer splits your text, and what adding the most fragmented words would change.

    Words are chosen from nine tenths of the texts; the figures are measured on the other tenth.

    Example:

        maskwright tokenizer advise bert-base-uncased notes.txt --max-tokens 500 --out bert-with-my-words
    """
    from maskwright.runs.commands import advise_tokenizer
    from maskwright.runs.inputs import open_tokenizer

    advice = advise_tokenizer(tokenizer, sources, max_tokens=max_tokens, min_count=min_count, out=out)
    loaded = open_tokenizer(tokenizer)
    described = _describe_advice(loaded, advice, _count_parameters(tokenizer, loaded, len(advice.tokens)))
    if as_json:
        echo(escape_json(json.dumps(described, ensure_ascii=False)))
    else:
        _print_advice(described, min_count)
    if out is not None:
        echo(f"{out}: {advice.extended.vocab_size:,} tokens", err=as_json)


def _count_parameters(name: str, tokenizer: Tokenizer, num_new: int) -> int | None:
    """Parameters that the words add to the model beside the tokenizer; None without a model."""
    from maskwright.models.files.model_folder import CONFIG_FILE, read_config, resolve_folder
    from maskwright.objectives.resizing import count_added_parameters

    folder = Path(name).parent if Path(name).is_file() else resolve_folder(name)
    if not (folder / CONFIG_FILE).is_file():
        return None
    return count_added_parameters(read_config(folder), tokenizer.vocab_size, num_new)


def _describe_advice(tokenizer: Tokenizer, advice: VocabularyAdvice, num_parameters: int | None) -> dict[str, Any]:
    return {
        "kind": tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "num_texts_chosen_from": advice.num_texts,
        "num_texts_held_out": advice.before.num_texts,
        "before": _describe_figures(advice.before),
        "after": _describe_figures(advice.after),
        "saved_share": advice.saved_share,
        "num_added_parameters": num_parameters,
        "tokens": [asdict(token) | {"tokens_saved": token.tokens_saved} for token in advice.tokens],
    }


def _describe_figures(figures: Fragmentation) -> dict[str, Any]:
    shares = {"tokens_per_word": figures.tokens_per_word, "fragmented_share": figures.fragmented_share}
    return asdict(figures) | shares


def _print_advice(described: dict[str, Any], min_count: int) -> None:
    before, after, tokens = described["before"], described["after"], described["tokens"]
    echo(f"{'tokenizer':>18}  {described['kind']}, {described['vocab_size']:,} tokens")
    echo(f"{'words chosen from':>18}  {described['num_texts_chosen_from']:,} texts")
    echo(f"{'measured on':>18}  {described['num_texts_held_out']:,} other texts, {before['num_words']:,} words\n")
    echo(f"{'':>18}  {'now':>11}  {f'+{len(tokens):,} words':>13}")
    for label, name, pattern in (
        ("tokens", "num_tokens", "{:,}"),
        ("tokens per word", "tokens_per_word", "{:.3f}"),
        ("words in 3+ pieces", "fragmented_share", "{:.1%}"),
        ("unknown tokens", "num_unknown", "{:,}"),
    ):
        echo(f"{label:>18}  {pattern.format(before[name]):>11}  {pattern.format(after[name]):>13}")
    echo(f"{'tokens saved':>18}  {described['saved_share']:.1%}")
    if described["num_added_parameters"] is not None:
        echo(f"{'cost':>18}  {described['num_added_parameters']:,} parameters")
    echo()
    if described["kind"] == "WordLevel":
        echo("a word-level tokenizer never cuts a word, so none can be added; for unknown words train a larger one")
    elif before["num_unknown"] > _MANY_UNKNOWN * before["num_tokens"]:
        share = before["num_unknown"] / before["num_tokens"]
        echo(f"{share:.1%} of the tokens are unknown: this tokenizer was made for other text, train or take another")
    elif not tokens:
        echo(f"no word occurs {min_count:,} times in 3 pieces or more: the vocabulary fits")
    for token in tokens[:_NUM_SHOWN]:
        echo(f"{token['count']:>18,}  {token['word']}: {' '.join(token['pieces'])}")
    if len(tokens) > _NUM_SHOWN:
        echo(f"{'':>18}  and {len(tokens) - _NUM_SHOWN:,} more")
