"""Write the pages of the site and llms.txt to build/pages, of which `mkdocs build` makes build/docs."""

from __future__ import annotations

from website.pages import ROOT, write_pages

if __name__ == "__main__":
    pages = write_pages(ROOT / "build" / "pages")
    print(f"{len(pages)} pages in build/pages")
