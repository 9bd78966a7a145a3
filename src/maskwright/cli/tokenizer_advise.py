"""`maskwright tokenizer advise`"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskwright.terminal import echo, escape_json

if TYPE_CHECKING:
    from maskwright.text.fragmentation import Fragmentation
    from maskwright.text.tokenizer import Tokenizer
    from maskwright.text.vocabulary_advice import VocabularyAdvice

_NUM_SHOWN = 15
_MANY_UNKNOWN = 0.05


def advise(
    tokenizer: Annotated[str, typer.Argument(help="A tokenizer's file or folder, a run, a model folder or a hub id.")],
    sources: Annotated[list[str], typer.Argument(metavar="SOURCES...", help="Text of your domain.")],
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Most words to add.")] = 1000,
    min_count: Annotated[int, typer.Option("--min-count", min=1, help="Rarer words are not added.")] = 20,
    out: Annotated[
        Path | None, typer.Option("--out", help="New folder to write the tokenizer with the words to.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how a tokenizer cuts your text, and what adding the words it cuts worst would change.

    Words are chosen from nine tenths of the texts; the figures are of the other tenth.

    Example:

        maskwright tokenizer advise bert-base-uncased notes.txt --max-tokens 500 --out bert-with-my-words
    """
    from maskwright.runs.commands import advise_tokenizer
    from maskwright.runs.inputs import open_tokenizer

    advice = advise_tokenizer(tokenizer, sources, max_tokens=max_tokens, min_count=min_count, out=out)
    loaded = open_tokenizer(tokenizer)
    described = _describe(loaded, advice, _count_parameters(tokenizer, loaded, len(advice.tokens)))
    if as_json:
        echo(escape_json(json.dumps(described, ensure_ascii=False)))
    else:
        _print(described, min_count)
    if out is not None:
        echo(f"{out}: {advice.extended.vocab_size:,} tokens", err=as_json)


def _count_parameters(name: str, tokenizer: Tokenizer, num_new: int) -> int | None:
    """What the words cost in the model beside the tokenizer; None without one."""
    from maskwright.models.files.model_folder import CONFIG_FILE, read_config, resolve_folder
    from maskwright.models.resizing import count_added_parameters

    folder = Path(name).parent if Path(name).is_file() else resolve_folder(name)
    if not (folder / CONFIG_FILE).is_file():
        return None
    return count_added_parameters(read_config(folder), tokenizer.vocab_size, num_new)


def _describe(tokenizer: Tokenizer, advice: VocabularyAdvice, num_parameters: int | None) -> dict[str, Any]:
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


def _print(described: dict[str, Any], min_count: int) -> None:
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
