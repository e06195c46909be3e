"""Pictures of topologies: boxes, arrows, and marks of differences."""

from __future__ import annotations

from streamlog import App, Late, tumbling
from streamlog.blueprints.blueprint import Blueprint
from streamlog.blueprints.picture import GONE, Picture, picture_of
from streamlog.topology import Topology


def shout(value: str) -> str:
    return value.upper()


def topology(*, window: str = "1m", named: str = "per-user") -> Topology:
    app = App("shop")
    orders = app.topic("orders", key=str, value=str)
    users = app.table(app.topic("users", key=str, value=str))
    late = app.topic("late", key=str, value=Late[str])
    stream = app.stream(orders).map_values(shout).rekey(lambda _, v: v, name="by-user")
    joined = stream.join(users, lambda order, user: order + user, name="with-user")
    joined.group_by_key().windowed(tumbling(window)).late(late).count(name=named)
    return app.topology()


def lines(picture: Picture, box: str) -> tuple[str, ...]:
    return next(each.lines for each in picture.boxes if each.id == box)


def test_a_picture_shows_topics_nodes_and_state() -> None:
    picture = picture_of(topology())
    shapes = {box.id: box.shape for box in picture.boxes}
    assert shapes["topic/orders"] == "topic"
    assert shapes["topic/shop-by-user-repartition"] == "internal"
    assert shapes["users"] == shapes["per-user"] == "state"
    assert shapes["with-user"] == "node"
    assert list(picture.groups.values()) == [
        "sub-topology 0 · state in shop-0-changelog",
        "sub-topology 1",
    ]
    assert lines(picture, "per-user")[1:] == (
        "WindowedAggregate",
        "windows of 1m, grace 0s, emit CLOSE",
    )
    assert ("MapValues", "shout") in {box.lines for box in picture.boxes}


def test_arrows_of_look_ups_are_dashed() -> None:
    arrows = {(arrow.start, arrow.end): arrow.dashed for arrow in picture_of(topology()).arrows}
    assert arrows["users", "with-user"] is True
    assert arrows["with-user", "per-user"] is False
    assert arrows["topic/orders", "orders-source"] is False
    assert ("per-user", "topic/late") in arrows


def test_differences_from_an_older_version_are_marked() -> None:
    before = Blueprint.of(topology())
    marks = {box.id: box.mark for box in picture_of(topology(window="2m"), before).boxes}
    assert {name for name, mark in marks.items() if mark} == {"per-user"}
    assert marks["per-user"] == "changed"
    renamed = picture_of(topology(named="totals"), before)
    assert {(box.id, box.group, box.mark) for box in renamed.boxes if box.mark} == {
        ("totals", "sub0", "added"),
        ("gone/per-user", GONE, "removed"),
    }
