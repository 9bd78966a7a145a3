"""One page of wikitext to its paragraphs: the markup is parsed, then walked for the text that a reader would see.

Needs `mwparserfromhell`; only the worker processes import this module.
"""

from __future__ import annotations

import html
import re
from collections.abc import Set

import mwparserfromhell
from mwparserfromhell.nodes import ExternalLink, Heading, HTMLEntity, Node, Tag, Template, Text, Wikilink
from mwparserfromhell.wikicode import Wikicode

from maskwright.text.wiki.paragraphs import (
    BREAK,
    COMMENT,
    GAP,
    ITEM,
    LINE_BREAK,
    guard,
    normalise_prefix,
    split_paragraphs,
    without_marks,
)

_DROPPED = """
ref references math chem ce code source syntaxhighlight gallery timeline score hiero imagemap graph mapframe maplink
templatedata templatestyles categorytree inputbox pre style script indicator section includeonly img meta link
table caption tr td th h1 h2 h3 h4 h5 h6
"""
_BLOCKS = """
p div blockquote center ul ol li dl dt dd hr poem
table gallery timeline pre h1 h2 h3 h4 h5 h6
"""
_LISTINGS = frozenset({"source", "syntaxhighlight"})
"""Blocks when they have several lines, else a part of a sentence."""
_DROPPED_TAGS, _BLOCK_TAGS = frozenset(_DROPPED.split()), frozenset(_BLOCKS.split())
_LIST_MARKUP = frozenset("*#:;")
_INTERLANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]+)*|simple")
_PARENTHESES = re.compile(r"\s*\([^()]*\)$")

_TEXT_TEMPLATES = {"lang": 1, "nowrap": 0, "nobr": 0, "nowr": 0, "transl": -1, "transliteration": -1}
"""Templates that stand for one of their own arguments inside a sentence, with its place."""
_CONVERT_TEMPLATES = frozenset({"convert", "cvt"})
_CONVERT_RANGES = frozenset({"-", "\u2013", "to", "and", "x", "by"})


def page_paragraphs(text: str, hidden: Set[str]) -> list[str]:
    """`hidden`: the prefixes of links without text (`names.hidden_prefixes`)."""
    # Bold and italic stay in the text, where `split_paragraphs` resolves them as MediaWiki does, run by run.
    code = mwparserfromhell.parse(without_marks(text), skip_style_tags=True)
    return split_paragraphs(_flatten(code, hidden), hidden)


def _flatten(code: Wikicode, hidden: Set[str]) -> str:
    return "".join(_flatten_node(node, hidden) for node in code.nodes)


def _flatten_node(node: Node, hidden: Set[str]) -> str:
    match node:
        case Text():
            return node.value
        case Wikilink():
            return _flatten_link(node, hidden)
        case Tag():
            return _flatten_tag(node, hidden)
        case ExternalLink():
            return _flatten_external_link(node, hidden)
        case HTMLEntity():
            return guard(html.unescape(str(node)))
        case Template():
            return _flatten_template(node, hidden)
        case Heading():
            return BREAK
        case mwparserfromhell.nodes.Comment():
            return COMMENT
    return GAP


def _flatten_link(link: Wikilink, hidden: Set[str]) -> str:
    title = str(link.title).strip()
    prefix = normalise_prefix(title.partition(":")[0]) if ":" in title else ""
    if prefix in hidden or (prefix and link.text is None and _INTERLANGUAGE.fullmatch(prefix)):
        return GAP
    if link.text is None:
        return _flatten(link.title, hidden).strip().removeprefix(":")
    # An empty label is the "pipe trick": the title without its namespace and its parenthesis.
    return _flatten(link.text, hidden) or _PARENTHESES.sub("", title.rpartition(":")[2])


def _flatten_external_link(link: ExternalLink, hidden: Set[str]) -> str:
    if not link.brackets:
        return guard(str(link.url))
    return _flatten(link.title, hidden) if link.title is not None else GAP


def _flatten_tag(tag: Tag, hidden: Set[str]) -> str:
    name = str(tag.tag).strip().lower()
    if tag.wiki_markup in _LIST_MARKUP:
        return ITEM
    if name == "br":
        return LINE_BREAK
    if name in _DROPPED_TAGS:
        is_block = name in _BLOCK_TAGS or (name in _LISTINGS and "\n" in str(tag.contents or ""))
        return BREAK if is_block else GAP
    if name == "nowiki":
        return guard(html.unescape(str(tag.contents or "")))
    content = _flatten(tag.contents, hidden) if tag.contents is not None else ""
    return f"{BREAK}{content}{BREAK}" if name in _BLOCK_TAGS else content


def _flatten_template(template: Template, hidden: Set[str]) -> str:
    name = str(template.name).strip().lower()
    if name not in _TEXT_TEMPLATES and name not in _CONVERT_TEMPLATES:
        return GAP
    values = [_flatten(param.value, hidden).strip() for param in template.params if not param.showkey]
    if name in _CONVERT_TEMPLATES:
        num_shown = 4 if len(values) > 3 and values[1] in _CONVERT_RANGES else 2
        return " ".join(values[:num_shown]) or GAP
    place = _TEXT_TEMPLATES[name]
    return values[place] if len(values) > place and values else GAP


_FILE_NAMESPACE, _CATEGORY_NAMESPACE = "6", "14"
