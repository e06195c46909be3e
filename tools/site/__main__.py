"""`python -m tools.site`: the Markdown of the site, in build/docs; `check`: what was built.

The navigation is in zensical.toml.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.site.check import faults
from tools.site.pages import ADOPTED, page, place, title
from tools.site.reference import api_pages, command_page, error_page

ROOT = Path(__file__).parent.parent.parent


def pages() -> Iterator[tuple[str, str]]:
    """Return each page of the site with its text."""
    sources = dict(_sources())
    titles = {place(path) or path: title(text) for path, text in sources.items()}
    for path, text in sources.items():
        yield place(path) or path, page(path, text, titles)


def _sources() -> Iterator[tuple[str, str]]:
    """Return pages by their place in the repository; those made from the code are in docs/api."""
    written = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md"))
    for path in (*written, *ADOPTED):
        yield path, (ROOT / path).read_text()
    yield from ((f"docs/{path}", text) for path, text in api_pages())
    yield "docs/api/commands.md", command_page()
    yield "docs/api/errors.md", error_page()


def prepare(directory: Path) -> None:
    """Write the pages and pictures of the site into an empty directory."""
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(ROOT / "docs/images", directory / "images")
    shutil.copy(ROOT / "tools/site/site.css", directory)
    for path, text in pages():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)


def main() -> None:
    """Prepare the pages, or check the site that was built from them."""
    if sys.argv[1:] == ["check"]:
        found = list(faults(ROOT / "build/site"))
        print("\n".join(found) or "the site is sound")
        sys.exit(bool(found))
    prepare(ROOT / "build/docs")


if __name__ == "__main__":
    main()
