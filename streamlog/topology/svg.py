"""A picture of a topology as SVG: it needs nothing to be drawn but a browser.

Columns are as wide as their widest text. Rule of the file: what is text is escaped; sizes are in
pixels and named here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape

from streamlog.topology.layout import Cell, layout
from streamlog.topology.markup import COLOURS, FILLS
from streamlog.topology.picture import Arrow, Box, Picture

CHARACTER = 6.6
"""Width of one, of the font that is used; a little more than it is on most machines."""
LINE = 15
PADDING = 10
GAP_X = 56
"""Between columns: room for arrows."""
GAP_Y = 22
MARGIN = 24
TITLE = 22
TEXT_CHARACTERS_MAX = 44
"""Longer lines are cut: the whole is in the tooltip."""

_STYLE = (
    "text{font:11px ui-monospace,Menlo,Consolas,monospace;fill:#223}"
    ".name{font-weight:bold}.group{fill:#f7f8fa;stroke:#c5cad3;stroke-dasharray:4 3}"
    ".arrow{fill:none;stroke:#667;stroke-width:1.3}.dashed{stroke-dasharray:4 3}"
)

_TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
    'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="#667"/></marker></defs>'
)


@dataclass(frozen=True, slots=True)
class _Rect:
    x: float
    y: float
    width: float
    height: float


def svg(picture: Picture) -> str:
    """The picture as a whole document."""
    rects = _rects(picture, layout(picture))
    bounds = [*rects.values(), *_group_rects(picture, rects).values()]
    width = max((rect.x + rect.width for rect in bounds), default=0) + MARGIN
    height = max((rect.y + rect.height for rect in bounds), default=0) + MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">'
    )
    parts = [
        head,
        f"<title>{escape(picture.title)}</title>",
        f"<style>{_STYLE}</style>",
        _TIP,
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#fff"/>',
        *_drawn_groups(picture, rects),
        *(_drawn_arrow(arrow, rects) for arrow in picture.arrows),
        *(_drawn_box(box, rects[box.id]) for box in picture.boxes),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _rects(picture: Picture, cells: Mapping[str, Cell]) -> dict[str, _Rect]:
    """Columns as wide as their widest box, rows as high as their highest."""
    boxes = {box.id: box for box in picture.boxes}
    widths: dict[int, float] = {}
    heights: dict[int, float] = {}
    for name, cell in cells.items():
        widths[cell.column] = max(widths.get(cell.column, 0), _width(boxes[name]))
        heights[cell.row] = max(heights.get(cell.row, 0), _height(boxes[name]))
    lefts = _starts(widths, GAP_X)
    tops = _starts(heights, GAP_Y)
    first_rows = _first_rows(picture, cells)
    rects = {}
    for name, cell in cells.items():
        # A group has its title over its first row.
        titles = sum(row <= cell.row for row in first_rows)
        x = lefts[cell.column] + (widths[cell.column] - _width(boxes[name])) / 2
        y = tops[cell.row] + titles * (TITLE + PADDING)
        rects[name] = _Rect(x, y, _width(boxes[name]), _height(boxes[name]))
    return rects


def _starts(sizes: Mapping[int, float], gap: float) -> dict[int, float]:
    starts: dict[int, float] = {}
    at: float = MARGIN
    for number in range(min(sizes, default=0), max(sizes, default=-1) + 1):
        starts[number] = at
        at += sizes.get(number, 0) + gap
    return starts


def _first_rows(picture: Picture, cells: Mapping[str, Cell]) -> list[int]:
    groups = ([cells[box.id].row for box in picture.in_group(g)] for g in picture.groups)
    return [min(rows) for rows in groups if rows]


def _group_rects(picture: Picture, rects: Mapping[str, _Rect]) -> dict[str, _Rect]:
    found = {}
    for group in picture.groups:
        inside = [rects[box.id] for box in picture.in_group(group)]
        if inside:
            left, top = min(r.x for r in inside) - PADDING, min(r.y for r in inside) - TITLE
            right = max(r.x + r.width for r in inside) + PADDING
            bottom = max(r.y + r.height for r in inside) + PADDING
            title = CHARACTER * len(picture.groups[group]) + 2 * PADDING
            found[group] = _Rect(left, top, max(right - left, title), bottom - top)
    return found


def _drawn_groups(picture: Picture, rects: Mapping[str, _Rect]) -> Iterator[str]:
    for group, rect in _group_rects(picture, rects).items():
        yield f'<rect class="group" {_at(rect)} rx="6"/>'
        title = escape(picture.groups[group])
        yield f'<text x="{rect.x + PADDING:.1f}" y="{rect.y + 14:.1f}">{title}</text>'


def _drawn_box(box: Box, rect: _Rect) -> str:
    colour, width = (COLOURS[box.mark], 3) if box.mark else ("#667", 1)
    corner = rect.height / 2 if box.shape in ("topic", "internal") else 3
    look = f'fill="{FILLS[box.shape]}" stroke="{colour}" stroke-width="{width}"'
    lines = [f'<rect {_at(rect)} rx="{corner:.1f}" {look}/>']
    for number, text in enumerate(box.lines):
        y = rect.y + PADDING + LINE * number + LINE * 0.72
        name = ' class="name"' if number == 0 else ""
        x = rect.x + rect.width / 2
        shown = escape(_cut(text))
        lines.append(f'<text{name} x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{shown}</text>')
    whole = escape("\n".join([*box.lines, *filter(None, [box.mark])]))
    return f"<g><title>{whole}</title>{''.join(lines)}</g>"


def _drawn_arrow(arrow: Arrow, rects: Mapping[str, _Rect]) -> str:
    start, end = rects[arrow.start], rects[arrow.end]
    x1, y1 = start.x + start.width, start.y + start.height / 2
    x2, y2 = end.x - 1, end.y + end.height / 2
    bend = max(GAP_X / 2, abs(x2 - x1) / 3)
    dashed = " dashed" if arrow.dashed else ""
    path = f"M{x1:.1f} {y1:.1f}C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    return f'<path class="arrow{dashed}" d="{path}" marker-end="url(#tip)"/>'


def _at(rect: _Rect) -> str:
    return f'x="{rect.x:.1f}" y="{rect.y:.1f}" width="{rect.width:.1f}" height="{rect.height:.1f}"'


def _width(box: Box) -> float:
    return CHARACTER * max(len(_cut(line)) for line in box.lines) + 2 * PADDING + 8


def _height(box: Box) -> float:
    return LINE * len(box.lines) + 2 * PADDING - 4


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[: TEXT_CHARACTERS_MAX - 1]}…"
