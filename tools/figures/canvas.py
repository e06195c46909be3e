"""A picture of boxes, lines, and words, written as SVG.

Colours are roles, not values: each picture has a light and a dark set, chosen by the reader's
system, and a background of its own, so that it can be read on any page.
"""

from __future__ import annotations

from html import escape
from typing import Final, Literal

Role = Literal["plain", "key", "good", "bad", "faint"]
Anchor = Literal["start", "middle", "end"]

LIGHT: Final = {
    "page": "#ffffff",
    "ink": "#1f2933",
    "soft": "#5f6c7b",
    "line": "#7b8794",
    "plain": "#f3f5f8",
    "key": "#dbe9ff",
    "good": "#d9f2e1",
    "bad": "#fde3df",
    "faint": "#ffffff",
}
DARK: Final = {
    "page": "#16202b",
    "ink": "#e6ebf1",
    "soft": "#a3b1c0",
    "line": "#8392a3",
    "plain": "#223041",
    "key": "#1f3f6b",
    "good": "#1e4a33",
    "bad": "#5a2a2a",
    "faint": "#16202b",
}
LINE_HEIGHT: Final = 17


def _colours(of: dict[str, str]) -> str:
    return "".join(f"--{role}:{value};" for role, value in of.items())


STYLE: Final = (
    f"svg{{{_colours(LIGHT)}}}"
    f"@media(prefers-color-scheme:dark){{svg{{{_colours(DARK)}}}}}"
    "text{font:13px system-ui,sans-serif;fill:var(--ink)}"
    ".soft{fill:var(--soft)}.title{font-weight:600}"
    ".code{font:12px ui-monospace,monospace}"
    ".line{stroke:var(--line);stroke-width:1.5;fill:none}"
    ".dashed{stroke-dasharray:4 4}"
    + "".join(
        f".{role}{{fill:var(--{role});stroke:var(--line)}}"
        for role in ("plain", "key", "good", "bad", "faint")
    )
)


class Canvas:
    """A picture with a title, which readers hear who can't see it."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img"><title>{escape(title)}</title>'
            f"<style>{STYLE}</style>"
            '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="var(--line)"/>'
            '</marker></defs><rect width="100%" height="100%" rx="8" fill="var(--page)"/>'
        )
        self._parts: list[str] = []

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *lines: str,
        role: Role = "plain",
    ) -> None:
        """Draw a box with lines of text in its middle."""
        self._parts.append(
            f'<rect class="{role}" x="{x:g}" y="{y:g}" width="{width:g}" '
            f'height="{height:g}" rx="5"/>'
        )
        top = y + height / 2 - LINE_HEIGHT * (len(lines) - 1) / 2 + 4.5
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + LINE_HEIGHT * number, line, anchor="middle")

    def text(
        self, x: float, y: float, words: str, style: str = "", *, anchor: Anchor = "start"
    ) -> None:
        """Write words; `style` names classes: soft, title, code."""
        self._parts.append(
            f'<text class="{style}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">'
            f"{escape(words)}</text>"
        )

    def line(self, *points: tuple[float, float], arrow: bool = True, dashed: bool = False) -> None:
        """Draw a line through points, by default with an arrow at its end."""
        path = "L".join(f"{x:g} {y:g}" for x, y in points)
        style = "line dashed" if dashed else "line"
        end = ' marker-end="url(#end)"' if arrow else ""
        self._parts.append(f'<path class="{style}" d="M{path}"{end}/>')

    def svg(self) -> str:
        """Return the picture as a file."""
        return self._head + "\n".join(self._parts) + "</svg>\n"
