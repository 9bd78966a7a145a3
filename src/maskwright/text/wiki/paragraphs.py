"""The text of a parsed page to clean paragraphs: lines joined, traces of broken and of removed markup tidied.

The walk over the parsed page leaves marks where something was: control characters, which XML 1.0 forbids, so that no
dump can hold them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set

# What files and categories are called in links: older pages of a wiki use the English names and former local ones
# ("Bild:" before "Datei:"), which dumps do not list.
_FILE_NAMES = """
file image datei bild fichier archivo imagen imagem ficheiro arquivo immagine bestand afbeelding plik
grafika файл изображение зображення картинка выява датотека слика fil billede tiedosto kuva fájl kép soubor súbor
obrázok dosya resim tập_tin hình berkas gambar ファイル 画像 파일 그림 文件 图像 档案 檔案 圖像 圖片 ملف صورة קובץ תמונה
پرونده تصویر चित्र fitxer imatge slika datoteka αρχείο εικόνα vaizdas attēls fails pilt fișier imagine dosiero
fitxategi irudi mynd fail skrá figura ფაილი ფოტო պատկեր şəkil ไฟล์ ภาพ படிமம் దస్త్రం চিত্র ചിത്രം
"""
_CATEGORY_NAMES = """
category kategorie catégorie categoría categoria categorie kategoria kategória kategori kategorija kategoreja
kategorio luokka категория категорія катэгорыя категорија κατηγορία thể_loại カテゴリ 분류 分类 分類 تصنيف קטגוריה رده
श्रेणी kategooria flokkur კატეგორია կատեգորիա kateqoriya หมวดหมู่ பகுப்பு వర్గం বিষয়শ্রেণী വർഗ്ഗം
"""
_FILE_NAMESPACE, _CATEGORY_NAMESPACE = "6", "14"


def hidden_prefixes(namespaces: Mapping[str, str]) -> frozenset[str]:
    """The normalised prefixes of links that show no text of their own: files, images and categories."""
    names = f"{_FILE_NAMES} {_CATEGORY_NAMES}".split()
    names += [namespaces.get(_FILE_NAMESPACE, ""), namespaces.get(_CATEGORY_NAMESPACE, "")]
    return frozenset(normalise_prefix(name) for name in names) - {""}


def normalise_prefix(name: str) -> str:
    return " ".join(name.replace("_", " ").split()).casefold()


ITEM = "\x01"
COMMENT = "\x02"
GAP = "\x03"
"""Something inside a line was removed here."""
LINE_BREAK = "\x04"
BREAK = "\n\n"

_LITERALS = "'[]{}|<>=_!"
_GUARD = str.maketrans({char: chr(0x0E + place) for place, char in enumerate(_LITERALS)})
_UNGUARD = str.maketrans({chr(0x0E + place): char for place, char in enumerate(_LITERALS)})
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffd]")

_COMMENT_LINE = re.compile(f"^[ \t]*{COMMENT}[{COMMENT} \t]*\n", re.MULTILINE)
_DOUBLE_LINE_BREAK = re.compile(rf"{LINE_BREAK}\s*{LINE_BREAK}")
_OPEN_COMMENT = re.compile(r"<!--.*", re.DOTALL)
_BROKEN_REF = re.compile(r"<ref\b[^<>]*/>|<ref\b[^<>]*>.*?</ref\s*>|<ref\b[^\n]*", re.DOTALL | re.IGNORECASE)
_BROKEN_TAG = re.compile(
    r"</?(p|div|blockquote|center|ul|ol|li|dl|dt|dd|table|tr|td|th|h[1-6]"
    r"|(?:span|small|big|b|i|u|s|em|strong|sub|sup|font|br|tt|abbr|cite|q|del|ins|code|ref|nowiki|gallery|noinclude"
    r"|includeonly|onlyinclude|references|math|var|kbd|samp|poem|pre|bdi|bdo|mark|time|wbr))\b[^<>\n]*>",
    re.IGNORECASE,
)
_BLOCK_NAME = re.compile(r"p|div|blockquote|center|[uod]l|li|d[td]|table|t[rdh]|h[1-6]", re.IGNORECASE)
_INNER_TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")
_OPEN_TEMPLATE = re.compile(r"\{\{[^\n]*")
_OPEN_LINK = re.compile(r"\[\[([^\[\]|:\n]*):[^\n]*")
_OPEN_LABEL = re.compile(r"\[\[[^\[\]|\n]*\|")
_BRACKETS = re.compile(r"\[\[|\]\]|\}\}")
_SWITCH = re.compile(r"__(\w+?)__")
_QUOTES = re.compile(r"'{2,}")
_VARIANTS = re.compile(r"-\{([^{}]*)\}-")
_VARIANT_NAME = re.compile(r"\s*(zh|[a-z]{2,3}(-[a-z]+)+)\s*:")
_HIDDEN_VARIANTS = frozenset({"H", "T", "-"})
_HEADING_LINE = re.compile(r"=.*=")
_MAX_TEMPLATE_DEPTH = 8

_OPENING, _CLOSING = "[(\uff08]", "[)\uff09]"
_JOINT = f"[\\s,;:·/\u2013{GAP}-]*{GAP}[\\s,;:·/\u2013{GAP}-]*"
_TIDYING = [
    (re.compile(rf"{GAP}(\s*{GAP})+"), GAP),
    (re.compile(rf" ?{_OPENING}{_JOINT}{_CLOSING}"), GAP),
    (re.compile(rf" ?{_OPENING}{_JOINT}{_CLOSING}"), GAP),
    (re.compile(rf"({_OPENING}){_JOINT}"), r"\1"),
    (re.compile(rf"{_JOINT}({_CLOSING})"), r"\1"),
    (re.compile(rf"^[\s{GAP}]*{GAP}[\s,;:.]*"), ""),
    (re.compile(rf",(\s*{GAP}\s*,)+"), ","),
    (re.compile(rf"\s*{GAP}[\s{GAP}]*([,.;:?!])"), r"\1"),
    (re.compile(GAP), ""),
]


def guard(text: str) -> str:
    """Literal text, whose brackets and quotes are no markup."""
    return without_marks(text).translate(_GUARD)


def without_marks(text: str) -> str:
    return _FORBIDDEN.sub("", text)


def split_paragraphs(text: str, hidden: Set[str]) -> list[str]:
    """Blank lines, list items and headings end a paragraph; the other lines of one are joined."""
    text = _COMMENT_LINE.sub("", text).replace(COMMENT, "")
    text = _DOUBLE_LINE_BREAK.sub(BREAK, text).replace(LINE_BREAK, " ")
    return [tidy for paragraph in _join_lines(_sweep(text, hidden)) if (tidy := _tidy(paragraph))]


def _sweep(text: str, hidden: Set[str]) -> str:
    """Remove what the parser left as text because it was never closed."""
    text = _BROKEN_REF.sub(GAP, _OPEN_COMMENT.sub("", text))
    text = _BROKEN_TAG.sub(lambda tag: BREAK if _BLOCK_NAME.fullmatch(tag[1]) else "", text)
    for _ in range(_MAX_TEMPLATE_DEPTH):
        text, num_removed = _INNER_TEMPLATE.subn(GAP, text)
        if not num_removed:
            break
    text = _OPEN_TEMPLATE.sub(GAP, text)
    text = _OPEN_LINK.sub(lambda link: GAP if normalise_prefix(link[1]) in hidden else link[0], text)
    text = _BRACKETS.sub("", _OPEN_LABEL.sub("", text))
    text = _SWITCH.sub(lambda switch: "" if switch[1] == switch[1].upper() else switch[0], text)
    return _QUOTES.sub(_resolve_quotes, _VARIANTS.sub(_first_variant, text))


def _first_variant(markup: re.Match[str]) -> str:
    """Wikis in several scripts write -{zh-hans:...; zh-hant:...}-, with flags before a bar."""
    flags, _, content = markup[1].rpartition("|")
    if flags.strip() in _HIDDEN_VARIANTS:
        return ""
    name = _VARIANT_NAME.match(content)
    return content[name.end() :].partition(";")[0].strip() if name else content


def _resolve_quotes(run: re.Match[str]) -> str:
    """Two, three or five quotes are italic, bold or both; what is over stands for itself."""
    length = len(run[0])
    return "'" if length == 4 else "'" * (length - 5)


def _join_lines(text: str) -> Iterator[str]:
    paragraph: list[str] = []
    in_table = False
    for line in text.split("\n"):
        line = line.strip()
        if line.startswith("{|"):
            in_table = True
        elif line.startswith("|}"):
            in_table = False
        if line.startswith(("|", "{|")) or (in_table and line.startswith("!")):
            continue
        starts_alone = ITEM in line or not line.strip(GAP) or _HEADING_LINE.fullmatch(line)
        if starts_alone and paragraph:
            yield " ".join(paragraph)
            paragraph = []
        if not starts_alone:
            paragraph.append(line)
        elif ITEM in line:
            yield from line.split(ITEM)
    yield " ".join(paragraph)


def _tidy(paragraph: str) -> str:
    for pattern, replacement in _TIDYING:
        paragraph = pattern.sub(replacement, paragraph)
    return " ".join(paragraph.translate(_UNGUARD).split())
