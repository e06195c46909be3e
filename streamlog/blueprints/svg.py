"""A picture of a topology as SVG, which a browser shows without a library.

Rule: the drawing is a function of the picture alone. Its colours follow the reader's system, light
or dark, with a background of its own, so that it can be read on any page.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from streamlog.blueprints.layout import LINE, PADDING, DrawnPicture, Rect, lay_out, shorten
from streamlog.blueprints.picture import COLOURS, FILLS, Box, Picture

LIGHT = {"group": "#f7f8fa", "page": "#ffffff"} | {str(kind): fill for kind, fill in FILLS.items()}
"""Fills by what they fill."""
DARK = {
    "topic": "#1f3f5b",
    "internal": "#22303d",
    "node": "#1d2833",
    "state": "#4a3f1c",
    "group": "#141d26",
    "page": "#0f161d",
}
"""Fills for readers whose system is dark."""

_FONT = "11px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


def _fills(of: dict[str, str]) -> str:
    return "".join(f".{kind}{{fill:{fill}}}" for kind, fill in of.items())


_STYLE = (
    f"text{{font:{_FONT};fill:#223}}.name{{font-weight:bold}}"
    ".box,.arrow{stroke:#667}.arrow{fill:none;stroke-width:1.3}"
    ".group{stroke:#c5cad3}.group,.dashed{stroke-dasharray:4 3}"
    + _fills({**LIGHT, "tip": "#667"})
    + "@media(prefers-color-scheme:dark){text{fill:#dfe6ee}.box,.arrow{stroke:#8496a9}"
    ".group{stroke:#3c4a59}"
    + _fills({**DARK, "tip": "#8496a9"})
    + "}"
    # Last, so that marks win over both sets.
    + "".join(f".{mark}{{stroke:{colour};stroke-width:3}}" for mark, colour in COLOURS.items())
)

_TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
    'markerHeight="7" orient="auto"><path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>'
)


def svg(picture: Picture) -> str:
    """Return the picture as a complete document."""
    placed = lay_out(picture)
    width, height = round(placed.width), round(placed.height)
    size = f'width="{width}" height="{height}"'
    view = f'viewBox="0 0 {width} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view} role="img">',
        f"<title>{escape(picture.title)}</title>",
        f"<style>{_STYLE}</style>",
        _TIP,
        f'<rect class="page" {size}/>',
        *_draw_groups(picture, placed),
        *_draw_arrows(picture, placed),
        *(_draw_box(box, placed.rects[box.id]) for box in picture.boxes),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _draw_groups(picture: Picture, placed: DrawnPicture) -> Iterator[str]:
    for group, rect in placed.frames.items():
        yield f'<rect class="group" {_at(rect)} rx="6"/>'
        title = escape(picture.groups[group])
        yield f'<text x="{rect.x + PADDING:.1f}" y="{rect.y + 14:.1f}">{title}</text>'


def _draw_arrows(picture: Picture, placed: DrawnPicture) -> Iterator[str]:
    for arrow, path in zip(picture.arrows, placed.paths, strict=True):
        dashed = " dashed" if arrow.dashed else ""
        yield f'<path class="arrow{dashed}" d="{path}" marker-end="url(#tip)"/>'


def _draw_box(box: Box, rect: Rect) -> str:
    corner = rect.height / 2 if box.shape in ("topic", "internal") else 3
    look = f"box {box.shape} {box.mark}".rstrip()
    lines = [f'<rect class="{look}" {_at(rect)} rx="{corner:.1f}"/>']
    for number, text in enumerate(box.lines):
        # The baseline of the text lies at about 72 % of the line.
        y = rect.y + PADDING + LINE * number + LINE * 0.72
        name = ' class="name"' if number == 0 else ""
        x = rect.x + rect.width / 2
        shown = escape(shorten(text))
        lines.append(f'<text{name} x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{shown}</text>')
    whole = escape("\n".join([*box.lines, *filter(None, [box.mark])]))
    return f"<g><title>{whole}</title>{''.join(lines)}</g>"


def _at(rect: Rect) -> str:
    return f'x="{rect.x:.1f}" y="{rect.y:.1f}" width="{rect.width:.1f}" height="{rect.height:.1f}"'
