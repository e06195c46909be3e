from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from streamlog import App, ProcessingError, Stream, Windowed, on_error, tumbling
from streamlog.durations import when_ms
from streamlog.errors import SerdeError, UsageError

MINUTE_MS = 60_000


def words_app() -> tuple[App, Any, Any]:
    app = App("words")
    return app, app.topic("words", key=str, value=str), app.topic("out", key=str, value=str)


def test_records_come_out_with_their_coordinates() -> None:
    app, words, out = words_app()
    app.stream(words).map_values(str.upper).to(out)
    with app.test(start="2025-03-01T00:00:00Z") as t:
        t.input(words).send("hello", key="a")
        t.input(words).send("world", key="a", at="2025-03-02T00:00:00Z")
        first, second = t.output(out).records
        assert (first.key, first.value, first.topic, first.offset) == ("a", "HELLO", "out", 0)
        assert first.timestamp == datetime(2025, 3, 1, tzinfo=UTC)
        assert second.timestamp == datetime(2025, 3, 2, tzinfo=UTC)
        assert t.output(out).pop() == first
        assert t.output(out).values == ["WORLD"]
        t.output(out).pop()
        with pytest.raises(UsageError, match="no records left"):
            t.output(out).pop()


def test_wrong_types_and_topics_are_refused() -> None:
    app, words, _ = words_app()
    with app.test() as t:
        with pytest.raises(SerdeError, match="the value for 'words': str expected, got int"):
            t.input(words).send(1)
        with pytest.raises(SerdeError, match="the key for 'words'"):
            t.input(words).send("x", key=1)
        other = App("b").topic("elsewhere", key=str, value=str)
        with pytest.raises(UsageError, match="no topic 'elsewhere'"):
            t.input(other)
    with pytest.raises(UsageError, match="inside `with"):
        t.input(words).send("x")


def test_after_a_failure_the_driver_accepts_no_input() -> None:
    app, words, out = words_app()
    app.stream(words).map_values(lambda v: v[5], name="sixth").to(out)
    with app.test() as t:
        with pytest.raises(ProcessingError, match="'sixth' failed at offset 0 of words-0") as error:
            t.input(words).send("abc", key="a")
        assert isinstance(error.value.__cause__, IndexError)
        with pytest.raises(UsageError, match="has failed"):
            t.input(words).send("abcdefg", key="a")


def test_tables_are_visible_through_their_views() -> None:
    app = App("tables")
    ages = app.topic("ages", key=str, value=int, partitions=3)
    table = app.table(ages, name="ages")
    old = table.filter(lambda _, age: age > 60).map_values(lambda age: age - 60)
    with app.test() as t:
        for name, age in (("ann", 61), ("bob", 7), ("cid", 99), ("dot", 70)):
            t.input(ages).send(age, key=name)
        t.input(ages).send(None, key="dot")
        assert t.table(table) == {"ann": 61, "bob": 7, "cid": 99}
        assert t.table(old) == {"ann": 1, "cid": 39}
        t.restart()
        assert t.table(old) == {"ann": 1, "cid": 39}


def test_timers_and_crontabs_run_in_order_of_their_times() -> None:
    app, words, _ = words_app()

    @app.timer("20m")
    async def often() -> None:
        await words.send("timer", key="t")

    @app.crontab("30 * * * *", tz="Asia/Kolkata")
    async def hourly(due: datetime) -> None:
        await words.send(f"{due:%H:%M}", key="c")

    with app.test(start="2025-01-01T00:10:00Z") as t:
        t.advance("19m")
        assert t.output(words).values == []
        t.advance("1h1m")
        sent = [(f"{r.timestamp:%H:%M}", r.value) for r in t.output(words).records]
        # India is half an hour off: its half hours are full hours in UTC.
        assert sent == [
            ("00:30", "timer"), ("00:50", "timer"), ("01:00", "06:30"),
            ("01:10", "timer"), ("01:30", "timer"),
        ]  # fmt: skip


def test_a_crontab_keeps_local_time_when_the_clocks_change() -> None:
    app, words, _ = words_app()

    @app.crontab("30 12 * * *", tz="Europe/Berlin")
    async def noon(due: datetime) -> None:
        await words.send(due.isoformat(), key="c")

    with app.test(start="2025-03-29T00:00:00Z") as t:
        t.advance("48h")
        assert t.output(words).values == ["2025-03-29T12:30:00+01:00", "2025-03-30T12:30:00+02:00"]


def test_agents_handle_each_record_before_send_returns() -> None:
    app, words, out = words_app()

    @app.agent(words)
    async def shout(stream: Stream[str, str]) -> None:
        seen = 0
        async for record in stream.records():
            seen += 1
            await out.send(f"{record.value}{seen}", key=record.key, timestamp=record.timestamp)

    with app.test() as t:
        t.input(words).send("a", key="k", at=5)
        assert t.output(out).values == ["a1"]
        t.input(words).send("b", key="k")
        assert [(r.key, r.value) for r in t.output(out).records] == [("k", "a1"), ("k", "b2")]
        t.restart()  # The variables of the function are lost.
        t.input(words).send("c", key="k")
        assert t.output(out).values == ["a1", "b2", "c1"]


def test_agents_feed_the_topology_and_each_other() -> None:
    app, words, out = words_app()
    middle = app.topic("middle", key=str, value=str)

    @app.agent(words)
    async def first(stream: Stream[str, str]) -> None:
        async for key, word in stream.items():
            await middle.send(word + "!", key=key)

    app.stream(middle).map_values(str.upper).to(out)
    with app.test() as t:
        t.input(words).send("a", key="k")
        assert t.output(out).values == ["A!"]


def test_a_failing_agent_names_its_record() -> None:
    app, words, _ = words_app()

    @app.agent(words)
    async def picky(stream: Stream[str, str]) -> None:
        async for word in stream:
            assert word != "bad", "I do not like it"

    with app.test() as t:
        t.input(words).send("good")
        with pytest.raises(ProcessingError, match="'picky' failed at offset 1 of words-0") as error:
            t.input(words).send("bad")
        assert "I do not like it" in str(error.value)


def test_an_agent_must_not_return() -> None:
    app, words, _ = words_app()

    @app.agent(words)
    async def once(stream: Stream[str, str]) -> None:
        async for _ in stream:
            return

    with app.test() as t, pytest.raises(ProcessingError, match="'once' returned"):
        t.input(words).send("x")


def test_yielded_values_are_in_the_sink_before_send_returns() -> None:
    app, words, out = words_app()

    @app.agent(words, sink=out, concurrency=2)
    async def shout(stream: Stream[str, str]) -> AsyncIterator[str]:
        async for word in stream:
            yield word + "!"

    with app.test() as t:
        t.input(words).send("a", key="k", at=5)
        (record,) = t.output(out).records
        assert (record.key, record.value, when_ms(record.timestamp)) == ("k", "a!", 5)
        t.input(words).send("b")
        assert t.output(out).values == ["a!", "b!"]


def test_async_functions_finish_before_send_returns() -> None:
    app, words, out = words_app()

    async def ask(word: str) -> str:
        await asyncio.sleep(0)
        if word == "bad":
            raise ValueError("I do not like it")
        return word + "?"

    app.stream(words).amap_values(ask, timeout="1m").map_values(str.upper).to(out)
    with app.test() as t:
        for word in "ab":
            t.input(words).send(word, key="k")
        t.restart()
        t.input(words).send("c", key="k")
        assert t.output(out).values == ["A?", "B?", "C?"]
        with pytest.raises(ProcessingError, match="'ask' failed at offset 3 of words-0: Value"):
            t.input(words).send("bad")


def test_failed_async_calls_are_retried_or_skipped_in_order() -> None:
    app, words, out = words_app()
    tried: list[str] = []

    async def ask(word: str) -> str:
        tried.append(word)
        if word == "bad" or (word == "weak" and tried.count(word) < 3):
            raise ValueError("I do not like it")
        return word + "?"

    policy = on_error.retry(2, backoff="10s", then=on_error.dlq())
    upper = app.stream(words).map_values(str.lower)
    upper.amap_values(ask, ordered="partition", on_error=policy).to(out)
    with app.test() as t:
        for word in ("A", "BAD", "WEAK", "B"):
            t.input(words).send(word, key="k")
        assert t.output(out).values == ["a?", "weak?", "b?"]
        assert tried == ["a", *["bad"] * 3, *["weak"] * 3, "b"]
        (letter,) = t.dead_letters()
        assert (letter.key, letter.value) == (b"k", b"BAD")
        assert t.drops["ask", "dead letter"] == 1


def test_a_list_is_handled_when_its_time_has_passed() -> None:
    app, words, out = words_app()

    @app.agent(words, sink=out)
    async def join(stream: Stream[str, str]) -> AsyncIterator[str]:
        async for records in stream.take(3, "10s"):
            yield "".join(record.value for record in records)

    with app.test() as t:
        for word in "abcd":
            t.input(words).send(word)
        assert t.output(out).values == ["abc"]
        t.advance("9s")
        t.restart()  # No agent has handled "d", so it comes again.
        assert t.output(out).values == ["abc"]
        t.advance("9s")
        t.input(words).send("e")
        assert t.output(out).values == ["abc"]
        t.advance("1s")
        assert t.output(out).values == ["abc", "de"]


def test_dropped_records_are_counted() -> None:
    app, words, _ = words_app()
    app.stream(words).group_by_key().windowed(tumbling("10ms")).count(name="counts")
    with app.test() as t:
        t.input(words).send("x")
        t.input(words).send(None, key="k")
        t.input(words).send("x", key="k", at=100)
        t.input(words).send("x", key="k", at=5)
        assert t.drops == {
            ("counts", "null key"): 1, ("counts", "null value"): 1, ("counts", "late"): 1
        }  # fmt: skip


def test_advancing_time_makes_quiet_sources_idle() -> None:
    app = App("idle")
    words = app.topic("words", key=str, value=str, partitions=2)
    out = app.topic("out", key=Windowed[str], value=int)
    (
        app.stream(words)
        .group_by(lambda _, word: word, name="by-word")
        .windowed(tumbling("10m"))
        .idle_after("30s")
        .count(name="counts")
        .changes()
        .to(out)
    )
    with app.test() as t:
        t.input(words).send("a", key="k", at=5 * MINUTE_MS, partition=0)
        t.input(words).send("a", key="k", at=15 * MINUTE_MS, partition=0)
        t.advance("29s")
        assert t.output(out).values == []  # Partition 1 could still bring something.
        t.advance("1s")
        assert [(r.key.key, r.value) for r in t.output(out).records] == [("a", 1)]
        t.restart()
        t.input(words).send("a", key="k", at=6 * MINUTE_MS, partition=1)
        assert t.drops["counts", "late"] == 1
        t.input(words).send("a", key="k", at=16 * MINUTE_MS, partition=1)
        t.input(words).send("a", key="k", at=30 * MINUTE_MS, partition=0)
        assert len(t.output(out).values) == 1  # Partition 1 is active again, and is at 16 minutes.
        t.input(words).send("a", key="k", at=31 * MINUTE_MS, partition=1)
        assert t.output(out).values == [1, 2]


def test_windows_of_a_quiet_stream_close_and_stay_closed() -> None:
    app = App("quiet")
    words = app.topic("words", key=str, value=str, partitions=1)
    out = app.topic("out", key=Windowed[str], value=int)
    counted = app.stream(words).group_by_key().windowed(tumbling("10m", grace="1m"))
    counted.count(name="counts").changes().to(out)
    with app.test() as t:
        t.input(words).send("a", key="k", at=3 * MINUTE_MS)
        t.input(words).send("a", key="k", at=4 * MINUTE_MS)
        t.advance("3m")
        t.restart()
        t.input(words).send("a", key="k", at=4 * MINUTE_MS)  # This restarts the quiet period.
        t.advance("7m")
        assert t.output(out).values == [3]
        t.restart()
        t.input(words).send("a", key="k", at=5 * MINUTE_MS)
        t.advance("1h")
        assert t.output(out).values == [3]
        assert t.drops["counts", "late"] == 1


def test_time_passes_a_repartition_in_steps() -> None:
    app = App("steps")
    words = app.topic("words", key=str, value=str, partitions=2)
    out = app.topic("out", key=Windowed[str], value=int)
    counted = app.stream(words).group_by(lambda _, word: word, name="by-word")
    counted.windowed(tumbling("10m")).count(name="counts").changes().to(out)
    with app.test() as t:
        t.input(words).send("a", at=4 * MINUTE_MS, partition=0)
        t.input(words).send("a", at=5 * MINUTE_MS, partition=1)
        t.advance("5m")
        assert t.output(out).values == []
        t.advance("5m")
        assert t.output(out).values == [2]


def test_an_endless_loop_is_detected() -> None:
    app, words, _ = words_app()
    app.stream(words).to(words)
    with app.test() as t, pytest.raises(UsageError, match="come to rest"):
        t.input(words).send("x", key="k")


def test_dead_letters_without_a_dlq_policy_are_refused() -> None:
    app, _, _ = words_app()
    with app.test() as t, pytest.raises(UsageError, match=r"words-dlq.*on_error=on_error\.dlq"):
        t.dead_letters()
