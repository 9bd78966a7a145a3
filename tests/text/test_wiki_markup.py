"""Each kind of markup, with the text that a reader would see."""

from __future__ import annotations

import pytest

pytest.importorskip("mwparserfromhell", reason="the `wiki` extra is not installed")

from maskwright.text.wiki.markup import page_paragraphs
from maskwright.text.wiki.paragraphs import hidden_prefixes

GERMAN = {"6": "Datei", "14": "Kategorie"}
INLINE = {
    "plain": ("one two", "one two"),
    "template": ("one {{cite|x=1}} two", "one two"),
    "nested template": ("one {{a|{{b|[[c]]|{{d}}}}|e={{f}}}} two", "one two"),
    "template before punctuation": ("one {{a}}, two {{b}}.", "one, two."),
    "template alone in parentheses": ("one ({{lang-de|eins}}; {{IPA|x}}) two", "one two"),
    "template first in parentheses": ("one ({{lang-de|eins}}; 1834) two", "one (1834) two"),
    "template with text": ("one {{lang|fr|deux}} {{nowrap|three four}}", "one deux three four"),
    "converted measure": (
        "{{convert|10|km|mi}} or {{convert|5|to|6|kg}}",
        "10 km or 5 to 6 kg",
    ),
    "parser function": ("one {{#if: x | y | z }} two", "one two"),
    "magic variable": ("one {{PAGENAME}} two", "one two"),
    "argument": ("one {{{1|x}}} two", "one two"),
    "reference": ("one<ref name=a>{{cite|[[x]]}} y</ref> two", "one two"),
    "empty reference": ('one<ref name="a" /> two<ref name=b/>.', "one two."),
    "open reference": ("one<ref>two\n\nthree", "one|three"),
    "link": ("[[one]] two", "one two"),
    "link with label": ("[[one (number)|one]]s two", "ones two"),
    "link with marked label": ("[[one|''one'' {{x}}two]]", "one two"),
    "link with pipe trick": ("[[Help:one (number)|]] two", "one two"),
    "link to a file's page": ("[[:File:x.png]] two", "File:x.png two"),
    "file": ("[[File:x.png|thumb|a [[b|c]] [[Image:d.png|e [[f]]]] g]]one", "one"),
    "file in the dump's language": ("[[Datei:x.png|mini|a [[b]]]]one", "one"),
    "file in a former name": ("[[Bild:x.png|a]]one", "one"),
    "file in another language": ("[[Fichier:x.png|a]] [[файл: x.png]] one", "one"),
    "open file": ("one\n[[File:x.png|thumb|two [[three]]\n\nfour", "one|four"),
    "category": ("one [[Category:x]][[Kategorie:y|z]]", "one"),
    "interlanguage": ("one [[de:Eins]] [[zh-min-nan:x]]", "one"),
    "external link": ("[http://x.org/a one ''two''] three", "one two three"),
    "external link without label": ("one [http://x.org] two", "one two"),
    "bare address": ("see http://x.org/a__B__c now", "see http://x.org/a__B__c now"),
    "bold and italic": ("'''one''' ''two'' '''''three''''' '''''four''' five''", "one two three four five"),
    "bold after an apostrophe": ("l''''amour''' d''art''", "l'amour dart"),
    "HTML": ('<span style="a">one</span> <small>two</small><br/>three <sub>4</sub>', "one two three 4"),
    "HTML blocks": ("<div>one</div><p>two</p><blockquote>three</blockquote>", "one|two|three"),
    "open HTML": ("one <span>two <p>three", "one two|three"),
    "math": ("one <math>x^2 < y</math> two", "one two"),
    "code": ("one <code>x = [[1]]</code> two", "one two"),
    "source": ('one\n<source lang="c">int x;\n\nint y;</source>\ntwo', "one|two"),
    "syntaxhighlight": ("<syntaxhighlight>x</syntaxhighlight>one", "one"),
    "gallery": ("<gallery>\nFile:x.png|cap [[a]]\n</gallery>one", "one"),
    "timeline": ("<timeline>\nImageSize = width:9\n</timeline>\none", "one"),
    "nowiki": ("<nowiki>''[[x]] {{y}} &amp; <b></nowiki> one", "''[[x]] {{y}} & <b> one"),
    "comment": ("one <!-- [[x]] {{ -->two", "one two"),
    "comment on its own line": ("one\n<!-- x -->\ntwo", "one two"),
    "open comment": ("one <!-- two\n\nthree", "one"),
    "entities": ("a&nbsp;b &amp; &lt;ref&gt; &#8212; &#x41;", "a b & <ref> — A"),
    "entities of no character": ("one &#55296;&#1; two", "one two"),
    "switches": ("__TOC__ __NOTOC__ one __init__", "one __init__"),
    "heading": ("one\n== two ==\nthree\n=== four === <!-- x -->\nfive", "one|three|five"),
    "bullets": ("* one\n** two\n# three\n:; four\n", "one|two|three|four"),
    "definition": ("; one : two", "one|two"),
    "rule": ("one\n----\ntwo", "one|two"),
    "table": ('one\n{| class="x"\n|+ cap\n! head\n|-\n| a || b\n|}\ntwo', "one|two"),
    "nested table": ("one\n{|\n| a\n{|\n| b\n|}\n|}\ntwo", "one|two"),
    "open table": ("one\n{|\n! a\n|-\n| [[b]]\n\ntwo", "one|two"),
    "HTML table": ("one<table><tr><td>x</td></tr></table>two", "one|two"),
    "lines of a paragraph": ("one\ntwo\n\n\nthree \t  four", "one two|three four"),
    "unclosed template": ("one\n\n{{Infobox\n| a = b\n| c = [[d]]\n\ntwo", "one|two"),
    "stray brackets": ("one [[two|three\n\nfour]] }}five", "one three|four five"),
    "one-line listing in a sentence": ("one <source lang=c inline>x</source> two", "one two"),
    "script variants": ("一-{zh-hans:电脑; zh-hant:電腦}-二-{三}--{H|zh-cn:a;zh-tw:b}-", "一电脑二三"),
    "Chinese parentheses": ("一\uff08{{lang|en}}\uff09二", "一二"),
}


@pytest.mark.parametrize(("wikitext", "expected"), INLINE.values(), ids=INLINE.keys())
def test_markup_becomes_the_text_a_reader_sees(wikitext: str, expected: str) -> None:
    """The paragraphs of the expected text are parted by bars here."""
    assert page_paragraphs(wikitext, hidden_prefixes(GERMAN)) == expected.split("|")


@pytest.mark.parametrize("wikitext", ["", "\n \n", "{{x}}", "[[Category:x]]", "<!-- x -->", "== x =="])
def test_markup_alone_leaves_no_paragraph(wikitext: str) -> None:
    assert page_paragraphs(wikitext, hidden_prefixes({})) == []


def test_an_unknown_namespace_is_an_ordinary_link() -> None:
    assert page_paragraphs("[[Fails:x.png|one]] two", hidden_prefixes({"6": "Datei"}) - {"fails"}) == ["one two"]
    assert page_paragraphs("[[Fails:x.png|one]] two", hidden_prefixes({"6": "Fails"})) == ["two"]
