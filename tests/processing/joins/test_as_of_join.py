"""Versioned tables and as-of joins: rules one by one, and random input against nested loops."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App
from streamlog.durations import when_ms
from streamlog.errors import TopologyError
from streamlog.processing.outbox import SinkRecord
from tests.processing.test_exactness import Cluster

HISTORY_MS = 12
GRACE_MS = 4


def text(click: str, user: str | None) -> str:
    return f"{click}-{user}"


class Enriched:
    """Clicks with the users' rows as of their time, and the changes of the users."""

    def __init__(self, grace: str | None = None, history: str = f"{HISTORY_MS}ms") -> None:
        self.app = App("enriched")
        self.clicks = self.app.topic("clicks", key=str, value=str)
        self.users = self.app.topic("users", key=str, value=str)
        self.out = self.app.topic("out", key=str, value=str)
        self.changes = self.app.topic("changes", key=str, value=str)
        self.table = self.app.table(self.users, history=history)
        stream = self.app.stream(self.clicks)
        stream.left_join(self.table, text, as_of=True, grace=grace, name="enrich").to(self.out)
        self.table.changes().to(self.changes)


def test_a_row_takes_effect_at_its_timestamp_even_if_it_arrives_late() -> None:
    made = Enriched()
    with made.app.test() as t:
        t.input(made.users).send("Ann", key="a", at=10)
        t.input(made.users).send("Cat", key="a", at=20)
        t.restart()
        t.input(made.users).send("Bob", key="a", at=15)
        for at in (9, 10, 14, 15, 19, 20, 99):
            t.input(made.clicks).send(str(at), key="a", at=at)
        assert t.output(made.out).values == [
            "9-None", "10-Ann", "14-Ann", "15-Bob", "19-Bob", "20-Cat", "99-Cat"
        ]  # fmt: skip
        assert t.output(made.changes).values == ["Ann", "Cat"]
        assert dict(t.table(made.table)) == {"a": "Cat"}


def test_a_deletion_takes_effect_at_its_timestamp() -> None:
    made = Enriched()
    with made.app.test() as t:
        t.input(made.users).send("Ann", key="a", at=10)
        t.input(made.users).send(cast("str", None), key="a", at=15)
        t.input(made.users).send("Bob", key="a", at=12)
        assert dict(t.table(made.table)) == {}
        t.input(made.users).send("Cat", key="a", at=15)
        for at in (11, 14, 15):
            t.input(made.clicks).send(str(at), key="a", at=at)
        assert t.output(made.out).values == ["11-Ann", "14-Bob", "15-Cat"]
        assert t.output(made.changes).values == ["Ann", None, "Cat"]


def test_a_row_older_than_the_history_is_late() -> None:
    made = Enriched()
    with made.app.test() as t:
        t.input(made.users).send("Ann", key="a", at=100)
        t.restart()
        t.input(made.users).send("Old", key="b", at=100 - HISTORY_MS - 1)
        t.input(made.users).send("Bob", key="b", at=100 - HISTORY_MS)
        assert t.drops == {("users", "late"): 1}
        assert dict(t.table(made.table)) == {"a": "Ann", "b": "Bob"}
        t.input(made.users).send("null key", at=100)
        assert t.drops["users", "null key"] == 1


def test_with_grace_a_record_waits_for_late_rows() -> None:
    made = Enriched(grace="5ms")
    with made.app.test() as t:
        t.input(made.users).send("Ann", key="a", at=10)
        t.input(made.clicks).send("1", key="a", at=12)
        t.input(made.clicks).send("2", key="a", at=11)
        t.restart()
        t.input(made.users).send("Bob", key="a", at=12)
        t.input(made.clicks).send("3", key="a", at=16)
        t.input(made.clicks).send("no key", at=16)
        assert t.output(made.out).values == ["2-Ann", "no key-None"]
        t.input(made.clicks).send("4", key="a", at=17)
        t.input(made.clicks).send("late", key="a", at=11)
        assert t.output(made.out).values == ["2-Ann", "no key-None", "1-Bob", "late-Ann"]
        assert [when_ms(r.timestamp) for r in t.output(made.out).records] == [11, 16, 12, 11]


def test_an_as_of_join_sees_rows_through_views() -> None:
    app = App("views")
    clicks, users = (app.topic(name, key=str, value=str) for name in ("clicks", "users"))
    out = app.topic("out", key=str, value=str)
    seen = app.table(users, history="1d").filter(lambda _, u: u != "Eve").map_values(str.upper)
    app.stream(clicks).join(seen, lambda c, u: f"{c}-{u}", as_of=True).to(out)
    with app.test() as t:
        t.input(users).send("Ann", key="a", at=1)
        t.input(users).send("Eve", key="a", at=2)
        for at in (1, 2):
            t.input(clicks).send(str(at), key="a", at=at)
        assert t.output(out).values == ["1-ANN"]


def test_an_impossible_as_of_join_is_refused() -> None:
    app = App("refused")
    clicks, users = (app.topic(name, key=str, value=str) for name in ("clicks", "users"))
    plain, stream = app.table(users, name="plain"), app.stream(clicks)
    versioned = app.table(users, name="versioned", history="1h")
    with pytest.raises(TopologyError, match="'plain' has none"):
        stream.join(plain, text, as_of=True)
    with pytest.raises(TopologyError, match="needs as_of=True"):
        stream.join(versioned, text, grace="1s", name="x")
    with pytest.raises(TopologyError, match="longer than the history"):
        stream.join(versioned, text, as_of=True, grace="2h", name="x")
    with pytest.raises(TopologyError, match="pass name="):
        stream.join(versioned, text, as_of=True, grace="1m")


Input = list[tuple[str, int, str, int]]
"""Topic, partition, key, timestamp."""


def oracle(inputs: Input, partition: int, grace_ms: int) -> Counter[Any]:
    """Rows of the join by nested loops."""
    entries: list[tuple[int, int, int, str, int]] = []
    for rank, topic in enumerate(("users", "clicks")):
        time_ms = -1
        mine = [each for each in inputs if each[:2] == (topic, partition)]
        for number, (_, _, key, at) in enumerate(mine):
            time_ms = max(time_ms, at)
            entries.append((time_ms, rank, number, key, at))
    users: list[tuple[str, int, int]] = []
    waiting: list[tuple[str, int, int]] = []
    rows: Counter[Any] = Counter()

    def join(key: str, at: int, number: int, table_ms: int) -> None:
        held = [(own_at, user) for own, own_at, user in users if own == key and own_at <= at]
        name = max(held)[1] if held else None
        if at < table_ms - HISTORY_MS:  # Beyond the history: only the current row is known.
            newest = max(
                ((own_at, user) for own, own_at, user in users if own == key), default=None
            )
            name = newest[1] if newest and newest[0] <= at else None
        rows[key, text(str(number), None if name is None else f"u{name}"), at] += 1

    table_ms = -1
    for now_ms, rank, number, key, at in sorted(entries):
        if rank == 0:
            table_ms = max(table_ms, now_ms)
            if at >= table_ms - HISTORY_MS:
                users = [each for each in users if each[:2] != (key, at)]
                users.append((key, at, number))
            continue
        for each in [each for each in waiting if each[1] <= now_ms - grace_ms]:
            waiting.remove(each)
            join(*each, table_ms)
        if at <= now_ms - grace_ms:
            join(key, at, number, table_ms)
        else:
            waiting.append((key, at, number))
    return rows


histories = st.lists(
    st.tuples(
        st.sampled_from(["users", "clicks"]),
        st.integers(0, 1),
        st.sampled_from(["a", "b"]),
        st.integers(0, 60),
    ),
    max_size=40,
)


@given(histories, st.sampled_from([0, GRACE_MS]), st.integers(0, 10_000))
def test_an_as_of_join_matches_a_nested_loop_join(inputs: Input, grace_ms: int, seed: int) -> None:
    inputs = [*inputs, *(("clicks", partition, "end", 1_000) for partition in (0, 1))]
    wanted = oracle(inputs, 0, grace_ms) + oracle(inputs, 1, grace_ms)
    wanted = Counter({row: count for row, count in wanted.items() if row[0] != "end"})
    for crashes in (0, 8):
        topology = Enriched(grace=f"{grace_ms}ms").app.topology()
        names = ("clicks", "users", "out", "changes")
        cluster = Cluster(topology, dict.fromkeys(names, 2), Random(seed))
        numbers: Counter[tuple[str, int]] = Counter()
        for topic, partition, key, at in inputs:
            number = numbers[topic, partition]
            numbers[topic, partition] += 1
            value = f"{'u' if topic == 'users' else ''}{number}".encode()
            cluster.append(topic, partition, SinkRecord(topic, partition, at, key.encode(), value))
        cluster.run(crashes=crashes)
        found = Counter(
            ((record.key or b"").decode(), (record.value or b"").decode(), record.timestamp_ms)
            for partition in (0, 1)
            for record in cluster.logs["out", partition]
            if record.key != b"end"
        )
        # Sinks may repeat a row after a crash (no transactions), but never with another value.
        assert (Counter(set(found)), set(found)) == (Counter(set(wanted)), set(wanted))
        assert crashes or found == wanted
