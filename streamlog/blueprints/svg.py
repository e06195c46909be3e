"""A picture of a topology as SVG, which a browser shows without a library.

Boxes are arranged in columns by the longest path that leads to each. Rule: the layout and the
drawing are functions of the picture alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from html import escape

import msgspec

from streamlog.blueprints.picture import COLOURS, FILLS, Arrow, Box, Picture

SWEEPS = 4
"""Passes back and forth over the columns; more change nothing in pictures of this size."""


class Cell(msgspec.Struct, frozen=True):
    """The position of a box."""

    column: int
    row: int


def layout(picture: Picture) -> dict[str, Cell]:
    """Return a unique cell for each box."""
    columns = _columns(picture)
    bands = _bands(picture, columns)
    order = {box.id: number for number, box in enumerate(picture.boxes)}
    cells: dict[str, Cell] = {}
    first_row = 0
    for band in sorted(set(bands.values())):
        members = [box for box in picture.boxes if bands[box.id] == band]
        rows = _rows(members, columns, picture.arrows, order)
        cells |= {box.id: Cell(columns[box.id], first_row + rows[box.id]) for box in members}
        first_row += max(rows.values(), default=-1) + 1
    return cells


def folded(picture: Picture) -> dict[str, Cell]:
    """Return a unique cell for each box; each group begins at the left, below the one before.

    A chain of sub-topologies would otherwise be a staircase, wider than any page.
    """
    cells, bands = layout(picture), _bands(picture, _columns(picture))
    lefts: dict[int, int] = {}
    for box, band in bands.items():
        lefts[band] = min(lefts.get(band, cells[box].column), cells[box].column)
    return {box: Cell(cell.column - lefts[bands[box]], cell.row) for box, cell in cells.items()}


def _columns(picture: Picture) -> dict[str, int]:
    """Return the number of boxes on the longest path to each box, without back edges."""
    forward = _forward(picture)
    columns = {box.id: 0 for box in picture.boxes}
    # The longest path has fewer arrows than there are boxes, so this many passes are enough.
    for _ in picture.boxes:
        before = dict(columns)
        for arrow in forward:
            columns[arrow.end] = max(columns[arrow.end], columns[arrow.start] + 1)
        if columns == before:
            break
    # A first node and its topic are placed right before their target: tables next to their joins.
    begins = {box.id for box in picture.boxes} - {arrow.end for arrow in forward}
    leads = {arrow.end for arrow in forward} - {a.end for a in forward if a.start not in begins}
    for beginning in (leads, begins):
        for each in sorted(beginning):
            targets = [columns[arrow.end] for arrow in forward if arrow.start == each]
            columns[each] = min(targets, default=columns[each] + 1) - 1
    return columns


def _forward(picture: Picture) -> list[Arrow]:
    """Return the arrows without those that close a loop: sub-topologies may feed themselves."""
    following: defaultdict[str, list[Arrow]] = defaultdict(list)
    for arrow in picture.arrows:
        following[arrow.start].append(arrow)
    done: set[str] = set()
    return [arrow for box in picture.boxes for arrow in _walk(box.id, following, done)]


def _walk(first: str, following: Mapping[str, list[Arrow]], done: set[str]) -> Iterator[Arrow]:
    """Yield the arrows on the way from a box, depth first; none to a box on the current path."""
    if first in done:
        return
    trail = [(first, iter(following.get(first, ())))]
    on_the_way = {first}
    while trail:
        at, pending = trail[-1]
        found = next(pending, None)
        if found is None:
            trail.pop()
            on_the_way.discard(at)
            done.add(at)
        elif found.end not in on_the_way:
            yield found
            if found.end not in done:
                on_the_way.add(found.end)
                trail.append((found.end, iter(following.get(found.end, ()))))


def _bands(picture: Picture, columns: Mapping[str, int]) -> dict[str, int]:
    """Return a number per group, by first column; topics go with their first reader or writer."""

    def begins(group: str) -> int:
        return min((columns[box.id] for box in picture.in_group(group)), default=0)

    numbers = {group: number for number, group in enumerate(sorted(picture.groups, key=begins))}
    bands = {box.id: numbers[box.group] for box in picture.boxes if box.group}
    readers = {
        arrow.start: bands[arrow.end] for arrow in reversed(picture.arrows) if arrow.end in bands
    }
    writers = {
        arrow.end: bands[arrow.start] for arrow in reversed(picture.arrows) if arrow.start in bands
    }
    for box in picture.boxes:
        if box.id not in bands:
            bands[box.id] = readers.get(box.id, writers.get(box.id, 0))
    return bands


def _rows(
    members: list[Box],
    columns: Mapping[str, int],
    arrows: tuple[Arrow, ...],
    order: Mapping[str, int],
) -> dict[str, int]:
    """Return the rows within a band: each box near the middle of its neighbours."""
    ids = {box.id for box in members}
    neighbours: defaultdict[str, list[str]] = defaultdict(list)
    for arrow in arrows:
        if arrow.start in ids and arrow.end in ids:
            neighbours[arrow.start].append(arrow.end)
            neighbours[arrow.end].append(arrow.start)
    by_column: defaultdict[int, list[str]] = defaultdict(list)
    for box in sorted(members, key=lambda each: order[each.id]):
        by_column[columns[box.id]].append(box.id)
    rows = {each: row for column in by_column.values() for row, each in enumerate(column)}
    for sweep in range(SWEEPS):
        # Forth, then back: a box moves towards neighbours on both of its sides.
        for column in sorted(by_column, reverse=bool(sweep % 2)):
            wanted = {
                each: sum(rows[other] for other in neighbours[each]) / len(neighbours[each])
                if neighbours[each]
                else rows[each]
                for each in by_column[column]
            }
            taken = -1
            for each in sorted(by_column[column], key=lambda one: (wanted[one], order[one])):
                # At the middle of its neighbours, or on the next free row below.
                taken = rows[each] = max(taken + 1, round(wanted[each]))
    return rows


CHARACTER = 6.6
"""Width of a character in the font that is used; slightly more than on most machines."""
LINE = 15
PADDING = 10
GAP_X = 56
"""Between columns: space for arrows."""
GAP_Y = 22
MARGIN = 24
TITLE = 22
TEXT_CHARACTERS_MAX = 44
"""Longer lines are cut: the tooltip has the whole text."""

_STYLE = (
    "text{font:11px ui-monospace,Menlo,Consolas,monospace;fill:#223}"
    ".name{font-weight:bold}.group{fill:#f7f8fa;stroke:#c5cad3;stroke-dasharray:4 3}"
    ".arrow{fill:none;stroke:#667;stroke-width:1.3}.dashed{stroke-dasharray:4 3}"
)

_TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
    'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="#667"/></marker></defs>'
)


class Rect(msgspec.Struct, frozen=True):
    """Where a box or a group is drawn."""

    x: float
    y: float
    width: float
    height: float


def svg(picture: Picture) -> str:
    """Return the picture as a complete document."""
    rects = box_rects(picture, layout(picture))
    bounds = [*rects.values(), *group_rects(picture, rects).values()]
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
        *_draw_groups(picture, rects),
        *(_draw_arrow(arrow, rects) for arrow in picture.arrows),
        *(_draw_box(box, rects[box.id]) for box in picture.boxes),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def box_rects(picture: Picture, cells: Mapping[str, Cell]) -> dict[str, Rect]:
    """Return the rectangles: columns as wide as their widest box, rows as high as their highest."""
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
        rects[name] = Rect(x, y, _width(boxes[name]), _height(boxes[name]))
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


def group_rects(picture: Picture, rects: Mapping[str, Rect]) -> dict[str, Rect]:
    """Return the frames of the groups, each around its boxes with room for its title."""
    found = {}
    for group in picture.groups:
        inside = [rects[box.id] for box in picture.in_group(group)]
        if inside:
            left, top = min(r.x for r in inside) - PADDING, min(r.y for r in inside) - TITLE
            right = max(r.x + r.width for r in inside) + PADDING
            bottom = max(r.y + r.height for r in inside) + PADDING
            title = CHARACTER * len(picture.groups[group]) + 2 * PADDING
            found[group] = Rect(left, top, max(right - left, title), bottom - top)
    return found


def _draw_groups(picture: Picture, rects: Mapping[str, Rect]) -> Iterator[str]:
    for group, rect in group_rects(picture, rects).items():
        yield f'<rect class="group" {_at(rect)} rx="6"/>'
        title = escape(picture.groups[group])
        yield f'<text x="{rect.x + PADDING:.1f}" y="{rect.y + 14:.1f}">{title}</text>'


def _draw_box(box: Box, rect: Rect) -> str:
    colour, width = (COLOURS[box.mark], 3) if box.mark else ("#667", 1)
    corner = rect.height / 2 if box.shape in ("topic", "internal") else 3
    look = f'fill="{FILLS[box.shape]}" stroke="{colour}" stroke-width="{width}"'
    lines = [f'<rect {_at(rect)} rx="{corner:.1f}" {look}/>']
    for number, text in enumerate(box.lines):
        # The baseline of the text lies at about 72 % of the line.
        y = rect.y + PADDING + LINE * number + LINE * 0.72
        name = ' class="name"' if number == 0 else ""
        x = rect.x + rect.width / 2
        shown = escape(shorten(text))
        lines.append(f'<text{name} x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{shown}</text>')
    whole = escape("\n".join([*box.lines, *filter(None, [box.mark])]))
    return f"<g><title>{whole}</title>{''.join(lines)}</g>"


def _draw_arrow(arrow: Arrow, rects: Mapping[str, Rect]) -> str:
    start, end = rects[arrow.start], rects[arrow.end]
    x1, y1 = start.x + start.width, start.y + start.height / 2
    # One unit before the box, so that its border does not cover the tip.
    x2, y2 = end.x - 1, end.y + end.height / 2
    bend = max(GAP_X / 2, abs(x2 - x1) / 3)
    dashed = " dashed" if arrow.dashed else ""
    path = f"M{x1:.1f} {y1:.1f}C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    return f'<path class="arrow{dashed}" d="{path}" marker-end="url(#tip)"/>'


def _at(rect: Rect) -> str:
    return f'x="{rect.x:.1f}" y="{rect.y:.1f}" width="{rect.width:.1f}" height="{rect.height:.1f}"'


def _width(box: Box) -> float:
    return CHARACTER * max(len(shorten(line)) for line in box.lines) + 2 * PADDING + 8


def _height(box: Box) -> float:
    return LINE * len(box.lines) + 2 * PADDING - 4


def shorten(text: str) -> str:
    """Return a line as it fits into a box."""
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[: TEXT_CHARACTERS_MAX - 1]}…"
