"""Layout: where the boxes, frames, and arrows of a picture are, on a page of a given width.

A band is as wide as the page at most: its columns are broken into lines, as words are. An arrow to
the right within a line bends only between columns; every other arrow runs through the gaps between
lines and along the left margin. So no box is overlapped, by a box or by an arrow. Rule: a layout is
a function of the picture and the width.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise

import msgspec

from streamlog.blueprints.picture import Arrow, Box, Picture
from streamlog.blueprints.ranks import bands, columns_of, rows_of

PAGE_WIDTH = 1_360
"""A window of 1,400 pixels shows a picture of this width as it is."""
CHARACTER = 6.65
"""Width of a character in the font that is used; slightly more than on most machines."""
LINE = 15
PADDING = 10
GAP_X = 44
"""Between columns: space for arrows."""
GAP_Y = 16
"""Between rows."""
GAP_LINES = 22
"""Between lines, in addition to the lanes of arrows."""
LANE = 7
"""Between arrows that run side by side."""
LANES_MAX = 4
"""Arrows side by side between two columns; more share lanes, for which there is no room."""
TURN = 17
"""Between a column and the first vertical piece of an arrow, so that frames have room."""
CORNER = 6
"""The radius of an arrow's corners."""
LOST = 3
"""How many arrows between lines are better than a line without a box of the group."""
MARGIN = 20
TITLE = 22
TEXT_CHARACTERS_MAX = 48
"""Longer lines are cut: the tooltip has the whole text."""

Point = tuple[float, float]


class Rect(msgspec.Struct, frozen=True):
    """Where a box or a frame is drawn."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """The right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """The lower edge."""
        return self.y + self.height

    @property
    def middle(self) -> float:
        """The height at which arrows begin and end."""
        return self.y + self.height / 2


class DrawnPicture(msgspec.Struct, frozen=True):
    """A picture on its page."""

    rects: Mapping[str, Rect]
    """By box."""
    frames: Mapping[str, Rect]
    """By group."""
    paths: tuple[str, ...]
    """The path of each arrow, in the order of the picture's arrows."""
    width: float
    height: float


class _Line(msgspec.Struct, frozen=True):
    """Columns of one band that lie beside each other."""

    columns: Mapping[str, int]
    """By box, and by bend of an arrow that passes a column."""
    rows: Mapping[str, int]
    chains: Mapping[int, Sequence[str]]
    """By number of an arrow to the right: its box, its bends, and its other box."""
    has_title: bool


def lay_out(picture: Picture, page_width: float = PAGE_WIDTH) -> DrawnPicture:
    """Return the layout of a picture on a page of this width."""
    return _Page(picture, page_width).layout()


def _lines(
    band: Sequence[Box], arrows: Sequence[tuple[int, Arrow]], width: float
) -> Iterator[_Line]:
    """Yield the lines of a band, each narrower than the width if it has more than one column."""
    names = [box.id for box in band]
    columns = columns_of(names, [arrow for _, arrow in arrows])
    used = {column: at for at, column in enumerate(sorted({*columns.values()}))}
    columns = {name: used[column] for name, column in columns.items()}
    lines = _broken(band, columns, [arrow for _, arrow in arrows], width)
    for number, chosen in enumerate(lines):
        here = {name: columns[name] - chosen[0] for name in names if columns[name] in chosen}
        chains = dict(_chains(here, arrows))
        every = dict(here)
        for chain in chains.values():
            every |= {name: here[chain[0]] + at for at, name in enumerate(chain)}
        rows = rows_of(every, [link for chain in chains.values() for link in pairwise(chain)])
        has_title = number == 0 and any(box.group for box in band)
        yield _Line(every, rows, chains, has_title)


def _broken(
    band: Sequence[Box], columns: Mapping[str, int], arrows: Sequence[Arrow], room: float
) -> list[range]:
    """Return the columns of each line: few lines, few arrows between them, of about one width."""
    widths = [0.0] * (max(columns.values()) + 1)
    for box in band:
        widths[columns[box.id]] = max(widths[columns[box.id]], box_width(box))
    of_groups = {columns[box.id] for box in band if box.group}
    ends = [sorted((columns[arrow.start], columns[arrow.end])) for arrow in arrows]
    cuts = [sum(low < at <= high for low, high in ends) for at in range(len(widths) + 1)]

    @cache
    def best(begin: int) -> tuple[int, int, float, list[range]]:
        if begin == len(widths):
            return 0, 0, 0.0, []
        found = []
        used = float(-GAP_X)
        for end in range(begin + 1, len(widths) + 1):
            used += GAP_X + widths[end - 1]
            if end > begin + 1 and used > room:
                break
            lines, cut, widest, others = best(end)
            line = range(begin, end)
            # A line of topics alone looks forgotten.
            cost = cuts[end] + (0 if of_groups.intersection(line) else LOST)
            found.append((lines + 1, cut + cost, max(widest, used), [line, *others]))
        return min(found, key=lambda each: each[:3])

    return best(0)[3]


def _chains(
    columns: Mapping[str, int], arrows: Sequence[tuple[int, Arrow]]
) -> Iterator[tuple[int, list[str]]]:
    """Yield the arrows to the right with both ends in a line; no box's id begins with a slash."""
    for number, arrow in arrows:
        begin, end = columns.get(arrow.start), columns.get(arrow.end)
        if begin is not None and end is not None and begin < end:
            bends = [f"/{number}/{column}" for column in range(begin + 1, end)]
            yield number, [arrow.start, *bends, arrow.end]


class _Page:
    """The page while it is laid out: what is known of its lines, columns, and lanes."""

    def __init__(self, picture: Picture, width: float) -> None:
        self._picture = picture
        self._boxes = {box.id: box for box in picture.boxes}
        room = width - 3 * MARGIN
        numbered = [*enumerate(picture.arrows)]
        self._lines: list[_Line] = []
        for band in bands(picture):
            ids = {box.id for box in band}
            inner = [(n, each) for n, each in numbered if {each.start, each.end} <= ids]
            self._lines += _lines(band, inner, room)
        self._line_of = {name: at for at, line in enumerate(self._lines) for name in line.columns}
        drawn = {number for line in self._lines for number in line.chains}
        # They take turns in lanes; arrows to one box share theirs, as they come together anyway.
        self._routed = [(n, each) for n, each in numbered if n not in drawn]
        self._gap_lanes, self._left_lanes = self._lanes()
        self._rects: dict[str, Rect] = {}
        self._edges: list[dict[int, tuple[float, float]]] = []
        """By line: the left and right edge of each column."""
        self._gaps: list[float] = []
        """The height at which the lanes above each line begin, and that below the last one."""
        self._height = self._set_positions()

    def layout(self) -> DrawnPicture:
        """Return what has been placed."""
        frames = self._frames()
        paths = {n: self._chain_path(line, chain) for line in self._lines
                 for n, chain in line.chains.items()}  # fmt: skip
        paths |= {number: self._routed_path(arrow) for number, arrow in self._routed}
        rects = {box.id: self._rects[box.id] for box in self._picture.boxes}
        exits = [self._exit(arrow.start) for _, arrow in self._routed]
        every = [each.right for each in (*rects.values(), *frames.values())]
        width = max([*every, *exits], default=0) + MARGIN
        ordered = tuple(paths[number] for number in range(len(self._picture.arrows)))
        return DrawnPicture(rects, frames, ordered, width, self._height)

    # ---- lanes ----

    def _lanes(self) -> tuple[dict[tuple[int, str], int], dict[str, int]]:
        gap_lanes: dict[tuple[int, str], int] = {}
        left_lanes: dict[str, int] = {}
        used: defaultdict[int, int] = defaultdict(int)
        for _, arrow in self._routed:
            for gap in self._gaps_of(arrow):
                if (gap, arrow.end) not in gap_lanes:
                    gap_lanes[gap, arrow.end] = used[gap]
                    used[gap] += 1
            if self._is_by_the_left(arrow):
                left_lanes.setdefault(arrow.end, len(left_lanes))
        return gap_lanes, left_lanes

    def _gaps_of(self, arrow: Arrow) -> list[int]:
        """Return the gaps that an arrow runs through: gap n is above line n."""
        start, end = self._line_of[arrow.start], self._line_of[arrow.end]
        below = start + 1
        if self._column_of(arrow.end) == 0 or end in (start, below):
            return [below]
        return [below, end]

    def _is_by_the_left(self, arrow: Arrow) -> bool:
        start, end = self._line_of[arrow.start], self._line_of[arrow.end]
        return self._column_of(arrow.end) == 0 or end not in (start, start + 1)

    def _column_of(self, name: str) -> int:
        return self._lines[self._line_of[name]].columns[name]

    # ---- positions ----

    def _set_positions(self) -> float:
        left = 2 * MARGIN + LANE * len(self._left_lanes)
        top = float(MARGIN)
        for number, line in enumerate(self._lines):
            top = self._leave_gap(number, top)
            top += TITLE if line.has_title else 0
            self._set_columns(line, left)
            top = self._set_rows(line, number, top)
            # A frame may end here, and its border is no place for arrows.
            top += PADDING
        bottom = self._leave_gap(len(self._lines), top)
        return (bottom if bottom > top + GAP_LINES else top) + MARGIN

    def _leave_gap(self, number: int, top: float) -> float:
        lanes = sum(gap == number for gap, _ in self._gap_lanes)
        above = 0 if number == 0 else GAP_LINES
        self._gaps.append(top + above / 2)
        return top + above + LANE * lanes

    def _set_columns(self, line: _Line, left: float) -> None:
        edges: dict[int, tuple[float, float]] = {}
        for column in range(max(line.columns.values()) + 1):
            names = [name for name, at in line.columns.items() if at == column]
            width = max(box_width(self._boxes[n]) for n in names if n in self._boxes)
            edges[column] = (left, left + width)
            left += width + GAP_X
        self._edges.append(edges)

    def _set_rows(self, line: _Line, number: int, top: float) -> float:
        heights: defaultdict[int, float] = defaultdict(float)
        for name, row in line.rows.items():
            box = self._boxes.get(name)
            heights[row] = max(heights[row], LANE if box is None else box_height(box))
        tops: dict[int, float] = {}
        for row in sorted(heights):
            tops[row] = top
            top += heights[row] + GAP_Y
        for name, row in line.rows.items():
            begin, end = self._edges[number][line.columns[name]]
            box = self._boxes.get(name)
            width = end - begin if box is None else box_width(box)
            height = LANE if box is None else box_height(box)
            y = tops[row] + (heights[row] - height) / 2
            self._rects[name] = Rect(begin + (end - begin - width) / 2, y, width, height)
        return top - GAP_Y

    def _frames(self) -> dict[str, Rect]:
        """Return the frames of the groups, each around its boxes with room for its title."""
        frames = {}
        for group, title in self._picture.groups.items():
            inside = [self._rects[name] for name in self._inside(group)]
            if inside:
                left, top = min(r.x for r in inside) - PADDING, min(r.y for r in inside) - TITLE
                right = max(r.right for r in inside) + PADDING
                bottom = max(r.bottom for r in inside) + PADDING
                width = max(right - left, CHARACTER * len(title) + 2 * PADDING)
                frames[group] = Rect(left, top, width, bottom - top)
        return frames

    def _inside(self, group: str) -> Iterator[str]:
        """Yield the boxes of a group, and the bends of arrows between them."""
        for line in self._lines:
            for chain in line.chains.values():
                if self._boxes[chain[0]].group == self._boxes[chain[-1]].group == group:
                    yield from chain
        yield from (box.id for box in self._picture.in_group(group))

    # ---- arrows ----

    def _chain_path(self, line: _Line, chain: Sequence[str]) -> str:
        edges = self._edges[self._line_of[chain[0]]]
        begin = self._rects[chain[0]]
        parts = [f"M{begin.right:.1f} {begin.middle:.1f}"]
        for one, other in pairwise(chain):
            x1, y1 = edges[line.columns[one]][1], self._rects[one].middle
            x2, y2 = edges[line.columns[other]][0], self._rects[other].middle
            half = (x1 + x2) / 2
            bend = f"C{half:.1f} {y1:.1f} {half:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
            parts.append(f"H{x1:.1f}{bend if y1 != y2 else ''}")
        # One unit before the box, so that its border does not cover the tip.
        return "".join([*parts, f"H{self._rects[chain[-1]].x - 1:.1f}"])

    def _exit(self, name: str) -> float:
        """Return where an arrow turns off that leaves a box to the right."""
        line = self._line_of[name]
        row = self._lines[line].rows[name]
        return self._edges[line][self._column_of(name)][1] + TURN + LANE * (row % LANES_MAX)

    def _routed_path(self, arrow: Arrow) -> str:
        start, end = self._rects[arrow.start], self._rects[arrow.end]
        x = self._exit(arrow.start)
        points: list[Point] = [(start.right, start.middle), (x, start.middle)]
        left = MARGIN + LANE * self._left_lanes.get(arrow.end, 0)
        column = self._column_of(arrow.end)
        row = self._lines[self._line_of[arrow.end]].rows[arrow.end]
        entry = self._edges[self._line_of[arrow.end]][column][0] - TURN
        entry = left if column == 0 else entry - LANE * (row % LANES_MAX)
        gaps = self._gaps_of(arrow)
        for gap in gaps:
            y = self._gaps[gap] + LANE * self._gap_lanes[gap, arrow.end]
            turn = left if gap is not gaps[-1] else entry
            points += [(points[-1][0], y), (turn, y)]
        points += [(entry, end.middle), (end.x - 1, end.middle)]
        return _rounded(points)


def _rounded(points: Sequence[Point]) -> str:
    """Return the path along horizontal and vertical pieces, with round corners."""
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for before, at, after in zip(points, points[1:], points[2:], strict=False):
        into, out = _towards(at, before), _towards(at, after)
        parts.append(f"L{into[0]:.1f} {into[1]:.1f}")
        parts.append(f"Q{at[0]:.1f} {at[1]:.1f} {out[0]:.1f} {out[1]:.1f}")
    return "".join([*parts, f"L{points[-1][0]:.1f} {points[-1][1]:.1f}"])


def _towards(corner: Point, other: Point) -> Point:
    length = abs(other[0] - corner[0]) + abs(other[1] - corner[1])
    share = min(CORNER, length / 2) / (length or 1)
    x, y = ((1 - share) * a + share * b for a, b in zip(corner, other, strict=True))
    return x, y


def box_width(box: Box) -> float:
    """Return the width that the lines of a box need."""
    return CHARACTER * max(len(shorten(line)) for line in box.lines) + 2 * PADDING + 8


def box_height(box: Box) -> float:
    """Return the height that the lines of a box need."""
    return LINE * len(box.lines) + 2 * PADDING - 4


def shorten(text: str) -> str:
    """Return a line as it fits into a box."""
    return text if len(text) <= TEXT_CHARACTERS_MAX else f"{text[: TEXT_CHARACTERS_MAX - 1]}…"
