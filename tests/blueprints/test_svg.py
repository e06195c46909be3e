"""Layout of boxes: each in its own cell, with arrows to the right."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.blueprints.picture import Arrow, Box, Picture
from streamlog.blueprints.svg import Cell, layout

NAMES = [f"b{number}" for number in range(12)]


@st.composite
def pictures(draw: st.DrawFn, *, rings: bool) -> Picture:
    names = NAMES[: draw(st.integers(0, len(NAMES)))]
    groups = {"": "", "g0": "first", "g1": "second"}
    boxes = [Box(name, "node", (name,), draw(st.sampled_from([*groups]))) for name in names]
    pairs = [(a, b) for a in names for b in names if rings or names.index(a) < names.index(b)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=30)) if pairs else []
    del groups[""]
    return Picture("p", groups, tuple(boxes), tuple(Arrow(a, b) for a, b in chosen))


@given(pictures(rings=True))
def test_every_box_has_its_own_cell(picture: Picture) -> None:
    cells = layout(picture)
    assert cells.keys() == {box.id for box in picture.boxes}
    assert len({*cells.values()}) == len(cells)
    assert layout(picture) == cells


@given(pictures(rings=False))
def test_arrows_without_cycles_point_to_the_right(picture: Picture) -> None:
    cells = layout(picture)
    for arrow in picture.arrows:
        assert cells[arrow.start].column < cells[arrow.end].column


def test_a_cycle_is_cut_at_its_last_arrow() -> None:
    boxes = tuple(Box(name, "node", (name,)) for name in "abc")
    ring = (Arrow("a", "b"), Arrow("b", "c"), Arrow("c", "a"))
    assert [layout(Picture("p", {}, boxes, ring))[n].column for n in "abc"] == [0, 1, 2]


def test_a_table_is_placed_next_to_its_join() -> None:
    names = ["topic", "table", "source", "a", "b", "join"]
    boxes = tuple(Box(name, "node", (name,), "" if name == "topic" else "g") for name in names)
    arrows = [("topic", "table"), ("source", "a"), ("a", "b"), ("b", "join"), ("table", "join")]
    cells = layout(Picture("p", {"g": ""}, boxes, tuple(Arrow(a, b) for a, b in arrows)))
    assert cells["topic"].column + 1 == cells["table"].column == cells["b"].column
    assert isinstance(cells["b"], Cell)
