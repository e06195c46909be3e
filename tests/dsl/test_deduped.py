from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from streamlog import App, Stream
from streamlog.errors import ConfigError, TopologyError
from streamlog.nodes.stream_nodes import Dedupe
from streamlog.serdes import StrSerde


@dataclass
class Order:
    id: str
    total: int


def orders() -> tuple[App, Stream[str, Order]]:
    app = App("shop")
    return app, app.stream(app.topic("orders", key=str, value=Order))


def test_a_dedupe_field_is_serialized_by_its_type() -> None:
    app, stream = orders()
    stream.dedupe("id", within="10m", name="once")
    node = app.topology().subtopologies[0].by_name["once"]
    assert isinstance(node, Dedupe)
    assert isinstance(node.identity, StrSerde)
    assert (node.by(Order("a", 1)), node.within_ms) == ("a", 600_000)


def test_an_invalid_dedupe_is_refused() -> None:
    _, stream = orders()
    with pytest.raises(TopologyError, match=r"Order has no field 'idd'.*dedupe 'once'.*'id'"):
        stream.dedupe("idd", within="10m", name="once")
    with pytest.raises(TopologyError, match="longer than 0 ms"):
        stream.dedupe("id", within="0s", name="once")
    number: Any = 600
    with pytest.raises(ConfigError, match="600"):
        stream.dedupe("id", within=number, name="once")


def test_dedupe_of_a_changed_key_is_repartitioned() -> None:
    app, stream = orders()
    stream.rekey(lambda _, order: order.id).dedupe("total", within="10m", name="once")
    assert [sub.inputs for sub in app.topology().subtopologies] == [
        ("orders",),
        ("shop-once-repartition",),
    ]
