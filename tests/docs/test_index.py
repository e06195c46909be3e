"""docs/index.md lists every page, and every link between documents has a target."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *DOCS.glob("**/*.md"), *ROOT.glob("changelog.d/*.md")])
BLOCK = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def bare(text: str) -> str:
    """Return the text without code blocks and inline code."""
    return re.sub(r"`[^`\n]*`", "", BLOCK.sub("", text))


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub names them."""
    titles = re.findall(r"^#+ (.*)$", BLOCK.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_listed() -> None:
    listed = {(DOCS / link).resolve() for link in LINK.findall((DOCS / "index.md").read_text())}
    assert {*DOCS.glob("**/*.md")} - {DOCS / "index.md"} <= listed


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_has_a_target(document: Path) -> None:
    for link in LINK.findall(bare(document.read_text())):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_table_has_a_head(document: Path) -> None:
    """Rows behind a blank line are a paragraph of their own, not a part of the table above."""
    lines = BLOCK.sub("", document.read_text()).splitlines()
    for above, row, below in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
        if row.startswith("|") and not above.startswith("|"):
            assert re.fullmatch(r"\|[\s:|-]+\|", below), row
