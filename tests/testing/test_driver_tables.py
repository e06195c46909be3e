"""Table rows that agents, timers and crontabs of a test read and write."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from streamlog import (
    App,
    Emit,
    Stream,
    Table,
    Windowed,
    calendar,
    count_window,
    hopping,
    session,
    sliding,
    tumbling,
)
from streamlog.errors import SerdeError, UsageError

START = datetime(2025, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@dataclass
class User:
    name: str
    age: int


def rows(table: Table[Any, Any], **options: Any) -> list[tuple[Any, Any]]:
    async def scanned() -> list[tuple[Any, Any]]:
        return [row async for row in table.scan(**options)]

    return asyncio.run(scanned())


def test_an_agent_fetches_rows_of_any_key_and_partition() -> None:
    app = App("lookups")
    users = app.topic("users", key=str, value=User, partitions=3)
    asked = app.topic("asked", key=str, value=str, partitions=2)
    table = app.table(users)
    found: list[User | None] = []

    @app.agent(asked)
    async def answer(stream: Stream[str, str]) -> None:
        async for name in stream:
            user = await table.fetch(name)
            found.append(user)

    with app.test() as t:
        for number in range(20):
            t.input(users).send(User(f"u{number}", number), key=f"u{number}")
        t.input(users).send(None, key="u7")
        for name in ("u3", "u7", "u19", "nobody"):
            t.input(asked).send(name)
    assert found == [User("u3", 3), None, User("u19", 19), None]


def test_a_timer_puts_a_row_and_sees_the_results() -> None:
    app = App("puts")
    users = app.topic("users", key=str, value=User, partitions=3)
    ages = app.topic("ages", key=str, value=int)
    table = app.table(users)
    grown = table.filter(lambda _, user: user.age >= 18).map_values(lambda user: user.age)
    grown.changes().to(ages)
    counts = app.stream(users).group_by_key().count(name="changes")
    seen: list[object] = []

    @app.timer("1m")
    async def birthday() -> None:
        user = await table.fetch("ann") or User("ann", 16)
        user.age += 1
        await table.put("ann", user)
        seen.append((await table.fetch("ann"), await grown.fetch("ann"), await counts.fetch("ann")))

    with app.test() as t:
        t.advance("2m")
        assert t.table(grown) == {"ann": 18}
        assert t.output(ages).values[-1] == 18
    assert seen == [(User("ann", 17), None, 1), (User("ann", 18), 18, 2)]


def test_putting_none_deletes_and_computed_tables_refuse_puts() -> None:
    app = App("refusals")
    words = app.topic("words", key=str, value=str)
    table = app.table(words, name="latest")
    counts = app.stream(words).group_by_key().count(name="counts")
    view = table.map_values(str.upper)
    with app.test() as t:
        t.input(words).send("x", key="a")
        asyncio.run(table.put("a", None))
        assert t.table(table) == {}
        for wrong in (counts, view):
            with pytest.raises(UsageError, match="is computed"):
                asyncio.run(wrong.put("a", "y"))  # type: ignore[arg-type]
        with pytest.raises(SerdeError, match="the key for table 'latest': str expected, got int"):
            asyncio.run(table.fetch(3))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the app is not running"):
        asyncio.run(table.fetch("a"))


def test_a_scan_returns_each_partition_in_key_order() -> None:
    app = App("scans")
    words = app.topic("words", key=str, value=str, partitions=4)
    table = app.table(words)
    view = table.filter(lambda key, _: not key.endswith("5"))
    with app.test() as t:
        for number in range(3_000):
            t.input(words).send("x", key=f"k{number:04}")
        all_rows = rows(table)
        assert sorted(all_rows) == [(f"k{number:04}", "x") for number in range(3_000)]
        breaks = sum(a > b for a, b in pairwise(all_rows))
        assert breaks == 3
        assert sorted(rows(view, prefix="k012")) == [
            (f"k{number:04}", "x") for number in range(120, 130) if number != 125
        ]
        assert rows(table, prefix="z") == []
        with pytest.raises(UsageError, match="not windowed"):
            rows(table, at=START)


@pytest.mark.parametrize("emit", [Emit.CLOSE, Emit.UPDATE])
def test_windowed_rows_are_found_by_key_and_time(emit: Emit) -> None:
    app = App("windows")
    words = app.topic("words", key=str, value=str, partitions=2)
    counts = (
        app.stream(words)
        .group_by_key()
        .windowed(tumbling("1h", grace="1d", retention="7d"))
        .emit(emit)
        .count(name="hourly")
    )
    with app.test(start=START) as t:
        for minute in range(0, 180, 10):
            t.input(words).send("x", key="ab"[minute // 10 % 2], at=START + minute * MINUTE)
        second = Windowed("a", START + 60 * MINUTE, START + 120 * MINUTE)
        assert asyncio.run(counts.fetch(second)) == 3
        assert asyncio.run(counts.fetch(Windowed("c", second.start, second.end))) is None
        assert sorted((key.key, n) for key, n in rows(counts, at=START + 60 * MINUTE)) == [
            ("a", 3),
            ("b", 3),
        ]
        assert rows(counts, at=START + 119 * MINUTE, prefix="a") == [(second, 3)]
        assert rows(counts, at=START + 180 * MINUTE) == []
        assert len(rows(counts, prefix="b")) == 3
        with pytest.raises(SerdeError, match=r"its keys are Windowed\(key, start, end\), not str"):
            asyncio.run(counts.fetch("a"))  # type: ignore[arg-type]


def test_overlapping_and_calendar_windows_are_found_by_time() -> None:
    app = App("kinds")
    words = app.topic("words", key=str, value=str)
    grouped = app.stream(words).group_by_key()
    hops = grouped.windowed(hopping("3h", "1h", retention="7d")).count(name="hops")
    days = grouped.windowed(calendar("day", tz="Europe/Berlin", retention="9d")).count(name="days")
    changed = datetime(2025, 3, 30, tzinfo=UTC)  # 23 hours, from 23:00 UTC on the day before.
    with app.test(start=changed) as t:
        for hour in range(-30, 40, 5):
            t.input(words).send("x", key="a", at=changed + hour * 60 * MINUTE)
        found = sorted(key.start for key, _ in rows(hops, at=changed + 91 * MINUTE))
        assert found == [changed - 60 * MINUTE, changed]
        found = sorted(key.start for key, _ in rows(hops, at=changed + 301 * MINUTE))
        assert found == [changed + hour * 60 * MINUTE for hour in (3, 4, 5)]
        ((day, count),) = rows(days, at=changed + 60 * MINUTE)
        assert (day.start, day.end) == (changed - 60 * MINUTE, changed + 22 * 60 * MINUTE)
        assert count == 5
        assert asyncio.run(days.fetch(day)) == 5


def test_integer_keys_have_no_prefix() -> None:
    app = App("numbers")
    numbers = app.topic("numbers", key=int, value=str)
    table = app.table(numbers)
    with app.test() as t:
        t.input(numbers).send("x", key=7)
        assert rows(table) == [(7, "x")]
        with pytest.raises(SerdeError, match="have no prefix"):
            rows(table, prefix=7)


def test_sessions_and_sliding_windows_are_found_by_time() -> None:
    app = App("record-windows")
    words = app.topic("words", key=str, value=str)
    grouped = app.stream(words).group_by_key()
    visits = grouped.windowed(session("10m", grace="1d")).count(name="visits")
    around = grouped.windowed(sliding("10m", grace="1d")).count(name="around")
    with app.test(start=START) as t:
        for minute in (0, 8, 40, 45):
            t.input(words).send("x", key="a", at=START + minute * MINUTE)
        first = Windowed("a", START, START + 8 * MINUTE)
        assert asyncio.run(visits.fetch(first)) == 2
        assert rows(visits, at=START) == rows(visits, at=START + 8 * MINUTE) == [(first, 2)]
        assert rows(visits, at=START + 9 * MINUTE) == []
        assert len(rows(visits, at=START + 42 * MINUTE)) == 1
        ends = [(key.end - START) // MINUTE for key, _ in rows(around, at=START + 8 * MINUTE)]
        assert ends == [8, 10]


def test_open_count_windows_are_visible() -> None:
    app = App("counts")
    words = app.topic("words", key=str, value=int, partitions=2)
    grouped = app.stream(words).group_by_key().windowed(count_window(3, step=2))
    sums = grouped.reduce(lambda a, b: a + b, name="sums")
    large = sums.filter(lambda _, total: total > 4)

    def window(key: str, first: int, last: int) -> Windowed[str]:
        return Windowed(key, START + first * MINUTE, START + last * MINUTE)

    with app.test() as t:
        for at, (key, value) in enumerate([("a", 1), ("b", 2), ("a", 3), ("a", 4), ("b", 3)]):
            t.input(words).send(value, key=key, at=START + at * MINUTE)
        # The first window of "a" is full and closed; its second one has the third record.
        wanted = {window("a", 3, 3): 4, window("b", 1, 4): 5}
        assert dict(rows(sums)) == t.table(sums) == wanted
        assert asyncio.run(sums.fetch(window("b", 1, 4))) == 5
        assert asyncio.run(sums.fetch(window("b", 1, 1))) is None
        assert rows(large) == [(window("b", 1, 4), 5)]
        assert asyncio.run(large.fetch(window("a", 3, 3))) is None
        assert rows(sums, prefix="a") == [(window("a", 3, 3), 4)]
        assert rows(sums, at=START + 2 * MINUTE) == [(window("b", 1, 4), 5)]
        t.restart()
        assert dict(rows(sums)) == wanted
