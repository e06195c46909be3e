"""What a built site must hold: every link has a target, and nothing comes from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

LOADED: Final = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
"""Attributes whose address a browser loads by itself."""
NOT_LOADED: Final = {"canonical", "alternate", "prev", "next", "edit"}


class Page(HTMLParser):
    """The addresses and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.description = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the start of an element refers to."""
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag == "meta" and found.get("name") == "description":
            self.description = found.get("content", "")
        if tag in LOADED and LOADED[tag] in found and found.get("rel") not in NOT_LOADED:
            self.loaded.append(found[LOADED[tag]])


def faults(site: Path) -> Iterator[str]:
    """Return what is wrong with a site, each as a line."""
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        where = path.relative_to(site)
        if path.name != "404.html" and not page.description:
            yield f"{where}: no description"
        for address in page.loaded:
            if urlsplit(address).netloc:
                yield f"{where}: loads {address} from elsewhere"
        if path.name != "404.html":
            yield from (f"{where}: {each}" for each in _broken(path, page, pages))


def _broken(path: Path, page: Page, pages: dict[Path, Page]) -> Iterator[str]:
    for link in sorted({*page.links, *page.loaded}):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if target.is_dir():
            target /= "index.html"
        if not target.exists():
            yield f"{link} has no target"
        elif (
            parts.fragment
            and target in pages
            and unquote(parts.fragment) not in pages[target].anchors
        ):
            yield f"{link} has no such place"
