"""What files and categories are called in links, beyond the name that a dump states for its own wiki.

Older pages of a wiki use the English names and former local ones ("Bild:" before "Datei:"), which dumps do not list.
"""

from __future__ import annotations

from collections.abc import Mapping

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
