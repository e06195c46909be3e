"""Declarations of stream joins: required settings and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from streamlog import App, JoinWindow
from streamlog.errors import TopologyError


def text(left: object, right: object) -> str:
    return f"{left}-{right}"


def two_streams() -> tuple[App, Any, Any]:
    app = App("joins")
    left, right = (app.topic(name, key=str, value=str) for name in ("left", "right"))
    return app, app.stream(left), app.stream(right)


def test_a_join_of_streams_needs_within_and_a_name() -> None:
    _, left, right = two_streams()
    with pytest.raises(TopologyError, match="needs within="):
        left.join(right, text, name="pairs")
    with pytest.raises(TopologyError, match="needs within="):
        left.join(right, text, within="1m")
    with pytest.raises(TopologyError, match=r"JoinWindow\.of"):
        left.join(right, text, within="1m", grace="1s", name="pairs")
    with pytest.raises(TopologyError, match="can't be joined with 3"):
        left.join(3, text, within="1m", name="pairs")


def test_a_join_with_a_table_refuses_within_and_outer() -> None:
    app, left, _ = two_streams()
    table = app.table(app.topic("rows", key=str, value=str))
    with pytest.raises(TopologyError, match="one row per key"):
        left.join(table, text, within="1m")
    with pytest.raises(TopologyError, match="can't be joined"):
        left.outer_join(table, text, within="1m", name="pairs")


def test_a_join_of_streams_with_different_keys_is_refused() -> None:
    app, left, _ = two_streams()
    numbers = app.stream(app.topic("numbers", key=int, value=str))
    with pytest.raises(TopologyError, match="equal keys would not match"):
        left.join(numbers, text, within="1m", name="pairs")
    other = App("other")
    strange = other.stream(other.topic("strange", key=str, value=str))
    with pytest.raises(TopologyError, match="of app 'other'"):
        left.join(strange, text, within="1m", name="pairs")


def test_joined_topics_with_unequal_partition_counts_are_refused() -> None:
    app, left, right = two_streams()
    left.join(right, text, within="1m", name="pairs")
    with pytest.raises(TopologyError, match="is 2 in 'left' and 3 in 'right'"):
        app.topology().partition_counts({"left": 2, "right": 3})


def test_changed_keys_on_both_sides_are_repartitioned() -> None:
    app, left, right = two_streams()
    right.rekey(lambda _, value: value).join(
        left.rekey(lambda _, value: value), text, within="1m", name="pairs"
    )
    assert {"joins-pairs-left-repartition", "joins-pairs-right-repartition"} <= {
        *app.topology().topics
    }


def test_a_topology_describes_a_join_and_its_stores() -> None:
    app, left, right = two_streams()
    window = JoinWindow.of("1m", before="5s", grace="1s")
    left.left_join(right, text, within=window, name="pairs")
    (sub,) = app.topology().subtopologies
    assert [spec.name for spec in sub.stores] == ["pairs/left", "pairs/right", "pairs/unmatched"]
    line = "left, 5s before to 1m after, grace 1s after pairs/left, pairs/right"
    assert line in app.topology().describe()


def test_a_joiner_must_accept_none_where_a_side_may_be_missing() -> None:
    def strict(left: str, right: str) -> str:
        return left + right

    def lax(left: str, right: str | None) -> str:
        return f"{left}{right}"

    _, left, right = two_streams()
    left.join(right, strict, within="1m", name="inner")
    left.left_join(right, lax, within="1m", name="left")
    with pytest.raises(TopologyError, match="None"):
        left.left_join(right, strict, within="1m", name="wrong")
    with pytest.raises(TopologyError, match="None"):
        left.outer_join(right, lax, within="1m", name="wrong")
