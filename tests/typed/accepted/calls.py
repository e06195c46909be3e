"""The example of docs/streams.md."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from streamlog import App, Windowed, agg, tumbling


@dataclass
class Call:
    id: str
    path: str
    user: str
    ms: int
    at: datetime


@dataclass
class Load:
    calls: int
    users: int
    mean: float
    p99: float
    slowest: list[str]


def path_of(_: str, call: Call) -> str:
    return call.path


app = App("calls")
calls = app.topic("calls", key=str, value=Call)
failed = app.topic("failed", key=str, value=Call)
loads = app.topic("loads", key=Windowed[str], value=Load)

once = app.stream(calls).dedupe("id", within="10m", name="once")
kinds = once.split(
    failed=lambda _, call: call.ms < 0,
    pages=lambda _, call: not call.path.startswith("/static/"),
)
kinds["failed"].with_headers(lambda record: {"path": record.value.path}).to(failed)
per_path = kinds["pages"].set_timestamp(lambda call: call.at).group_by(path_of, name="by-path")
load = per_path.windowed(tumbling("1m", grace="10s")).agg(
    Load,
    name="load",
    calls=agg.count(),
    users=agg.distinct("user"),
    mean=agg.mean("ms"),
    p99=agg.quantile("ms", 0.99),
    slowest=agg.top(3, "id", by="ms"),
)
load.changes().to(loads)


def main() -> None:
    with app.test() as t:
        t.input(calls).send(
            Call("1", "/", "x", -1, datetime.fromisoformat("2025-01-01T00:00:00+00:00")), key="x"
        )
        assert [call.id for call in t.output(failed).values] == ["1"]
