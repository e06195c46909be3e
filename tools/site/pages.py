"""Pages in the form that the site needs: a head, links within the site, lists in four spaces."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from posixpath import normpath, relpath
from typing import Final

ADOPTED: Final = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
    "changelog.d/README.md": "changelog-fragments.md",
}
"""Pages outside docs/ that the site has, by their place there."""
DESCRIPTION_MAX: Final = 160

_FENCE = re.compile(r"^ *(```|~~~)")
_ITEM = re.compile(r"^( *)([-*]|\d+\.)( +)")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def page(path: str, text: str, titles: Mapping[str, str]) -> str:
    """Return a page of the repository as one of the site.

    Args:
        path: its place in the repository.
        text: its Markdown.
        titles: the title of each page by its place in the site.
    """
    return f"{head(text)}\n{indented(relinked(path, text, titles))}"


def place(path: str) -> str | None:
    """Return where a file of the repository is in the site, or None."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return ADOPTED.get(path)


def head(text: str) -> str:
    """Return a page's title and description: its first heading, its first paragraph."""
    body = re.sub(r"^```.*?^```\n", "", text, flags=re.DOTALL | re.MULTILINE)
    words = [part for part in re.split(r"\n{2,}", body) if re.match(r"[A-Z`\[*]", part)]
    told = {
        "title": title(text),
        "description": _shortened(_bare(words[0])) if words else "",
    }
    return "\n".join(["---", *(f"{key}: {json.dumps(told[key])}" for key in told), "---"])


def title(text: str) -> str:
    """Return a page's first heading as plain words."""
    found = re.search(r"^# (.*)$", text, re.MULTILINE)
    return _bare(found[1]) if found else "streamlog"


def _bare(text: str) -> str:
    """Return Markdown as plain words."""
    return re.sub(r"[`*]", "", _LINK.sub(r"\2", text)).replace("\n", " ").strip()


def _shortened(text: str) -> str:
    """Return the sentences at the beginning of a text that a search result can show."""
    if len(text) <= DESCRIPTION_MAX:
        return text
    whole = text[:DESCRIPTION_MAX].rpartition(". ")[0]
    return f"{whole}." if whole else f"{text[:DESCRIPTION_MAX].rpartition(' ')[0]} …"


def relinked(path: str, text: str, titles: Mapping[str, str]) -> str:
    """Return a page with its links led to pages of the site.

    A link to a file that is no page, such as a module, becomes plain text. A link that shows the
    name of a page's file shows its title instead.
    """
    here = PurePosixPath(place(path) or path).parent.as_posix()

    def led(match: re.Match[str]) -> str:
        mark, words, target = match.groups()
        file, _, anchor = target.partition("#")
        if "://" in target or not file:
            return match[0]
        found = place(normpath((PurePosixPath(path).parent / file).as_posix()))
        if found is None:
            return words
        if words.endswith(".md"):
            words = titles.get(found, words)
        return f"{mark}[{words}]({relpath(found, here)}{'#' if anchor else ''}{anchor})"

    return "".join(
        part if part.startswith("```") else _LINK.sub(led, part)
        for part in re.split(r"(^```.*?^```\n)", text, flags=re.DOTALL | re.MULTILINE)
    )


def indented(text: str) -> str:
    """Return Markdown in which what belongs to an item of a list is indented by four spaces.

    GitHub takes the width of the item's mark, two or three; the site's generator takes four.
    """
    lines: list[str] = []
    widths: list[int] = []
    is_code = False
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        item = None if is_code else _ITEM.match(line)
        while line and widths and not is_code and indent < widths[-1]:
            widths.pop()
        margin = " " * (4 * len(widths))
        lines.append(margin + line[widths[-1] if widths else 0 :] if line else "")
        if item:
            widths.append(len(item[0]))
        is_code ^= bool(_FENCE.match(line))
    return "\n".join(lines) + "\n"
