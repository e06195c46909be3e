"""Layouts of random pictures: nothing is hidden, and nothing is wider than the page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from streamlog.blueprints.layout import DrawnPicture, Rect, box_width, lay_out
from streamlog.blueprints.picture import Arrow, Box, Picture
from streamlog.blueprints.ranks import bands, columns_of, rows_of

NAMES = [f"b{number}" for number in range(12)]
Point = tuple[float, float]


@st.composite
def pictures(draw: st.DrawFn) -> Picture:
    names = NAMES[: draw(st.integers(0, len(NAMES)))]
    groups = {"g0": "first", "g1": "second", "g2": "third"}
    boxes = []
    for name in names:
        lines = [name * draw(st.integers(1, 8)), *["line"] * draw(st.integers(0, 3))]
        boxes.append(Box(name, "node", (*lines,), draw(st.sampled_from(["", *groups]))))
    pairs = [(a, b) for a in names for b in names]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=20)) if pairs else []
    return Picture("p", groups, tuple(boxes), tuple(Arrow(a, b) for a, b in chosen))


def points_of(path: str) -> Iterator[Point]:
    """Yield points along a path, close to each other, by the definition of its commands."""
    x = y = 0.0
    for command, text in re.findall(r"([MHLCQ])([^MHLCQ]*)", path):
        given_ = [float(each) for each in text.split()]
        values = [given_[0], y] if command == "H" else given_
        knots = [(x, y), *zip(values[::2], values[1::2], strict=True)]
        if command != "M":
            yield from (curve(knots, step / 40) for step in range(41))
        x, y = knots[-1]


def curve(knots: list[Point], at: float) -> Point:
    """Return a point of a Bézier curve, by de Casteljau."""
    while len(knots) > 1:
        knots = [
            ((1 - at) * a[0] + at * b[0], (1 - at) * a[1] + at * b[1]) for a, b in pairwise(knots)
        ]
    return knots[0]


def is_inside(point: Point, rect: Rect) -> bool:
    x, y = point
    return rect.x < x < rect.right and rect.y < y < rect.bottom


def overlap(one: Rect, other: Rect) -> bool:
    is_beside = one.right <= other.x or other.right <= one.x
    return not (is_beside or one.bottom <= other.y or other.bottom <= one.y)


@given(pictures(), st.sampled_from([300, 700, 1_340]))
def test_boxes_and_frames_are_apart_and_on_the_page(picture: Picture, width: int) -> None:
    placed = lay_out(picture, width)
    assert placed.rects.keys() == {box.id for box in picture.boxes}
    for one, other in combinations(placed.rects.values(), 2):
        assert not overlap(one, other)
    for one, other in combinations(placed.frames.values(), 2):
        assert not overlap(one, other)
    for box in picture.boxes:
        for group, frame in placed.frames.items():
            rect = placed.rects[box.id]
            assert box.group in ("", group) or not overlap(rect, frame)
            assert box.group != group or (frame.y < rect.y and rect.bottom < frame.bottom)
    for rect in (*placed.rects.values(), *placed.frames.values()):
        assert rect.x > 0
        assert rect.y > 0
        assert rect.right < placed.width
        assert rect.bottom < placed.height


@given(pictures(), st.sampled_from([300, 700, 1_340]))
def test_arrows_lead_from_box_to_box_and_cross_none(picture: Picture, width: int) -> None:
    placed = lay_out(picture, width)
    for arrow, path in zip(picture.arrows, placed.paths, strict=True):
        points = [*points_of(path)]
        start, end = placed.rects[arrow.start], placed.rects[arrow.end]
        assert points[0] == (round(start.right, 1), round(start.middle, 1))
        assert points[-1] == (round(end.x - 1, 1), round(end.middle, 1))
        assert all(0 < x < placed.width and 0 < y < placed.height for x, y in points)
        crossed = {
            name
            for name, rect in placed.rects.items()
            # Coordinates are rounded to a tenth.
            if any(is_inside(at, Rect(rect.x + 0.2, rect.y, rect.width - 0.4, rect.height))
                   for at in points)
        }  # fmt: skip
        assert not crossed


@given(pictures(), st.sampled_from([700, 1_340]))
def test_a_page_is_no_wider_than_asked_unless_a_box_is(picture: Picture, width: int) -> None:
    assert max(map(box_width, picture.boxes), default=0) < 500
    # Each box that is entered by the left has a lane of its own there.
    assert lay_out(picture, width).width <= width + 7 * len(picture.boxes)


def drawn(names: str, arrows: str) -> DrawnPicture:
    boxes = tuple(Box(name, "node", ("n" * 30,)) for name in names)
    return lay_out(
        Picture("p", {}, boxes, tuple(Arrow(each[0], each[1]) for each in arrows.split()))
    )


def test_a_long_chain_is_broken_into_lines_of_about_one_width() -> None:
    placed = drawn("abcdefghi", "ab bc cd de ef fg gh hi")
    lines = Counter(rect.y for rect in placed.rects.values())
    assert [*lines.values()] == [3, 3, 3]


def test_a_cycle_is_cut_at_its_last_arrow() -> None:
    placed = drawn("abc", "ab bc ca")
    assert placed.rects["a"].x < placed.rects["b"].x < placed.rects["c"].x


def test_a_table_is_placed_next_to_its_join() -> None:
    names = ["topic", "table", "source", "a", "b", "join"]
    arrows = [("topic", "table"), ("source", "a"), ("a", "b"), ("b", "join"), ("table", "join")]
    columns = columns_of(names, [Arrow(a, b) for a, b in arrows])
    assert columns["topic"] + 1 == columns["table"] == columns["b"]


@given(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 3)), st.data())
def test_a_row_of_a_column_has_one_name(columns: dict[str, int], data: st.DataObject) -> None:
    links = [(a, b) for a in columns for b in columns if columns[a] + 1 == columns[b]]
    some = data.draw(st.lists(st.sampled_from(links))) if links else []
    rows = rows_of(columns, some)
    assert len({(columns[name], row) for name, row in rows.items()}) == len(columns)


@given(pictures())
def test_a_group_is_one_band(picture: Picture) -> None:
    found = bands(picture)
    assert sorted(box.id for band in found for box in band) == sorted(b.id for b in picture.boxes)
    for band in found:
        assert len({box.group for box in band if box.group}) <= 1
