"""Streams that look up rows of global tables, in the test driver and in simulations."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from streamlog import App, GlobalTable, ProcessingError, Topic, on_error
from streamlog.errors import TopologyError, UsageError


class Enriched:
    """Clicks with the name of the user in their value."""

    def __init__(self, *, required: bool = False, **options: Any) -> None:
        self.app = App("enriched", **options)
        self.clicks = self.app.topic("clicks", key=str, value=str, partitions=2)
        self.users: Topic[int, str] = self.app.topic("users", key=int, value=str, partitions=3)
        self.out = self.app.topic("out", key=str, value=str)
        self.table: GlobalTable[int, str] = self.app.global_table(self.users)
        lookup: Any = self.app.stream(self.clicks).lookup
        lookup(self.table, self.user_id, lambda v, u: f"{v}-{u}", required=required).to(self.out)

    @staticmethod
    def user_id(_: str, value: str) -> int | None:
        return int(value) if value.isdecimal() else None


def test_a_lookup_finds_the_row_of_the_lookup_key() -> None:
    made = Enriched()
    with made.app.test() as t:
        for number in range(6):
            t.input(made.users).send(f"u{number}", key=number)
        for number in range(7):
            t.input(made.clicks).send(str(number), key="x")
        t.input(made.users).send(cast("str", None), key=0)
        t.input(made.users).send("new", key=1)
        t.restart()
        t.input(made.clicks).send("0", key="x")
        t.input(made.clicks).send("1", key="x")
        names = [f"{number}-u{number}" for number in range(6)]
        assert t.output(made.out).values == [*names, "6-None", "0-None", "1-new"]


def test_only_a_left_lookup_joins_records_without_a_lookup_key() -> None:
    left, inner = Enriched(), Enriched(required=True)
    for made, wanted in ((left, ["nobody-None", "7-None", "none-None"]), (inner, [])):
        with made.app.test() as t:
            t.input(made.clicks).send("nobody", key="x")
            t.input(made.clicks).send("7", key="x")
            t.input(made.clicks).send("none")
            t.input(made.clicks).send(cast("str", None), key="x")
            assert t.output(made.out).values == wanted
            keyless = {} if made is left else {"null key": 2}
            drops = {reason: n for (_, reason), n in t.drops.items()}
            assert drops == {"null value": 1, **keyless}


def test_an_unreadable_row_is_an_error_of_the_record_that_looks_it_up() -> None:
    class Picky:
        def dumps(self, obj: str) -> bytes:
            return obj.encode()

        def loads(self, data: bytes) -> str:
            if data == b"bad":
                raise ValueError("no good")
            return data.decode()

    def app_with(policy: Any) -> tuple[App, Any, Any, Any]:
        app = App("picky", on_error=policy)
        clicks, out = (app.topic(name, key=str, value=str) for name in ("clicks", "out"))
        users = app.topic("users", key=str, value=str, value_serde=Picky())
        table = app.global_table(users, name="people")
        app.stream(clicks).lookup(table, lambda k, _: k, lambda v, u: f"{v}-{u}").to(out)
        return app, clicks, users, out

    app, clicks, users, out = app_with(on_error.skip())
    with app.test() as t:
        t.input(users).send("bad", key="a")
        t.input(users).send("good", key="b")
        t.input(clicks).send("1", key="a")
        t.input(clicks).send("2", key="b")
        assert t.output(out).values == ["2-good"]
    app, clicks, users, out = app_with(on_error.FAIL)
    with app.test() as t:
        t.input(users).send("bad", key="a")
        with pytest.raises(ProcessingError, match="offset 0 of clicks"):
            t.input(clicks).send("1", key="a")


def test_global_rows_can_be_fetched_while_the_app_runs() -> None:
    made = Enriched()

    async def fetched() -> tuple[str | None, str | None, list[tuple[int, str]]]:
        found = await made.table.fetch(2), await made.table.fetch(9)
        return *found, [row async for row in made.table.scan()]

    with made.app.test() as t:
        for number in (2, 1):
            t.input(made.users).send(f"u{number}", key=number)
        assert asyncio.run(fetched()) == ("u2", None, [(1, "u1"), (2, "u2")])
    with pytest.raises(UsageError, match="the app is not running"):
        asyncio.run(fetched())


def test_an_impossible_lookup_is_refused() -> None:
    made, other = Enriched(), App("other")
    with pytest.raises(TopologyError, match="taken by another global table"):
        made.app.global_table(made.users)
    clicks = other.stream(other.topic("clicks", key=str, value=str))
    with pytest.raises(TopologyError, match="belongs to app 'enriched'"):
        clicks.lookup(made.table, made.user_id, lambda v, u: f"{v}-{u}")

    def strict(value: str, name: str) -> str:
        return value + name

    stream: Any = made.app.stream(made.clicks)
    stream.lookup(made.table, made.user_id, strict, required=True)
    with pytest.raises(TopologyError, match="None"):
        stream.lookup(made.table, made.user_id, strict)


def test_a_global_table_belongs_to_no_sub_topology() -> None:
    topology = Enriched().app.topology()
    (sub,) = topology.subtopologies
    assert sub.inputs == ("clicks",)
    assert sub.changelog_topic is None
    assert [table.name for table in topology.global_tables] == ["users"]
    assert {"clicks", "users", "out"} == {*topology.topics}
    assert "in users (left)" in topology.describe()
