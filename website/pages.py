"""The pages of the site: those of docs/, files beside README, notebooks, references made of the code, and llms.txt."""

from __future__ import annotations

import json
import posixpath
import re
import shutil
from pathlib import Path
from typing import Any

import yaml

from website.reference import API_PAGES, write_api_page, write_commands, write_settings

ROOT = Path(__file__).resolve().parents[1]
PROJECT_PAGES = {
    name: f"project/{name.removesuffix('.md').lower()}.md"
    for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
}
"""Files beside README, and where the site has them."""
_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>(?!https?://|#|mailto:)[^)\s#]+)(?P<anchor>(?:#[^)\s]*)?)\)")
_FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)


def write_pages(folder: Path) -> dict[str, str]:
    """The text of each page by its path in the folder, which is replaced; pictures and linked files come along."""
    shutil.rmtree(folder, ignore_errors=True)
    sources = list_sources()
    settings = read_site_settings()
    titles = {place: title for title, place in list_navigation(settings["nav"])}
    pages = {place: point_inside(source, place, titles) for place, source in sources.items()} | write_references()
    notebooks = {find_place(f"notebooks/{path.name}"): path for path in list_notebooks()}
    pages |= {place: write_notebook(path) for place, path in notebooks.items()}
    for place, text in pages.items():
        write(folder / place, text)
    for path in sorted({path for source in sources.values() for path in list_linked_files(source)}):
        write(folder / find_place(path), (ROOT / path).read_bytes())
    for path in notebooks.values():
        write(folder / "files" / "notebooks" / path.name, path.read_bytes())
    for place, text in pages.items():
        if place in sources or place in notebooks:
            write(folder / "text" / Path(place).with_suffix(".txt"), text)
    write(folder / "llms.txt", write_llms_text(settings, pages))
    write(folder / "style.css", (ROOT / "website" / "style.css").read_bytes())
    return pages


def write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def list_sources() -> dict[str, Path]:
    """Pages that are files of the repository, by their place on the site."""
    documents = {path.name: path for path in sorted((ROOT / "docs").glob("*.md"))}
    return documents | {place: ROOT / name for name, place in PROJECT_PAGES.items()}


def write_references() -> dict[str, str]:
    written = {"reference/commands.md": write_commands(), "reference/settings.md": write_settings()}
    return written | {f"reference/api/{name}.md": write_api_page(name) for name in API_PAGES}


def list_notebooks() -> list[Path]:
    return sorted((ROOT / "notebooks").glob("*.ipynb"))


def write_notebook(path: Path) -> str:
    """A page with its prose and its code, and a link to the notebook itself after the title."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    texts = [
        text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
        for cell, text in zip(cells, texts, strict=True)
    ]
    title, _, rest = texts[0].partition("\n\n")
    link = f"[This page as a notebook](../files/notebooks/{path.name}), to run it yourself."
    return "\n\n".join([title, rest, link, *texts[1:], ""])


def point_inside(source: Path, place: str, titles: dict[str, str]) -> str:
    """The text of a page with the links of the site, where files have other places and pages have titles."""

    def rewrite(link: re.Match[str]) -> str:
        target = find_place(find_target(source, link["target"]))
        is_named_by_file = re.fullmatch(r"(docs/)?[\w-]+\.md", link["text"]) is not None
        text = begin_small(titles.get(target, link["text"])) if is_named_by_file else link["text"]
        return f"[{text}]({posixpath.relpath(target, posixpath.dirname(place) or '.')}{link['anchor']})"

    parts = re.split(rf"({_FENCE.pattern})", source.read_text(encoding="utf-8"), flags=_FENCE.flags)
    return "".join(part if number % 2 else _LINK.sub(rewrite, part) for number, part in enumerate(parts))


def begin_small(title: str) -> str:
    """As it stands inside a sentence; abbreviations stay."""
    return title if title[:2].isupper() else title[0].lower() + title[1:]


def find_target(source: Path, link: str) -> str:
    """The file of the repository that a link leads to."""
    return posixpath.normpath(posixpath.join(source.parent.relative_to(ROOT).as_posix(), link))


def find_place(path: str) -> str:
    """Where the site has a file of the repository; of a folder its README's page."""
    if path in PROJECT_PAGES:
        return PROJECT_PAGES[path]
    if path == "README.md":
        return "index.md"
    if path.endswith(".ipynb"):
        return path.removesuffix(".ipynb") + ".md"
    inside = path.removeprefix("docs/")
    return inside if inside != path else f"files/{path}"


def list_linked_files(source: Path) -> set[str]:
    """Files that a page leads to and that are no pages themselves: pictures, recipes, examples."""
    text = _FENCE.sub("", source.read_text(encoding="utf-8"))
    targets = {find_target(source, link["target"]) for link in _LINK.finditer(text)}
    return {path for path in targets if not find_place(path).endswith(".md")}


def read_site_settings() -> dict[str, Any]:
    """mkdocs.yml without its tags, which only MkDocs knows."""
    text = re.sub(r"!(ENV|!python/\S+)", "", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    settings: dict[str, Any] = yaml.safe_load(text)
    return settings


def list_navigation(entries: list[Any] | str, title: str = "") -> list[tuple[str, str]]:
    """Titles and pages, in order."""
    if isinstance(entries, str):
        return [(title, entries)]
    return [one for entry in entries for name, inside in entry.items() for one in list_navigation(inside, name)]


def write_llms_text(settings: dict[str, Any], pages: dict[str, str]) -> str:
    """By the convention of llmstxt.org: the pages, what each is about, and their plain text."""
    lines = [f"# {settings['site_name']}", "", f"> {settings['site_description']}"]
    for section in settings["nav"]:
        [(title, entries)] = section.items()
        lines += ["", f"## {title}", ""]
        for name, place in list_navigation(entries, title):
            is_made = place.startswith("reference/")
            address = place.replace(".md", ".html") if is_made else f"text/{Path(place).with_suffix('.txt')}"
            lines.append(f"- [{name}]({address}): {summarize(pages[place])}")
    return "\n".join([*lines, ""])


def summarize(text: str) -> str:
    """The first sentence of the text, without its links."""
    paragraph = next(one for one in text.split("\n\n") if not one.startswith("#"))
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"\s+", " ", paragraph))
    return re.split(r"(?<=[.?]) ", plain)[0].rstrip()
