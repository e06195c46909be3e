from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, Emit, Stream, Windowed, on_error, tumbling
from streamlog.dsl.topic import Topic
from streamlog.errors import ProcessingError

NOON = datetime(2025, 1, 1, 12, tzinfo=UTC)


@dataclass
class Reading:
    sensor: str
    at: datetime | None


def app_of(**settings: Any) -> tuple[App, Topic[str, Reading], Topic[Windowed[str], int]]:
    app = App("retimed", **settings)
    readings = app.topic("readings", key=str, value=Reading)
    out = app.topic("out", key=Windowed[str], value=int)
    return app, readings, out


def at_of(reading: Reading) -> Any:
    return reading.at


def count_by_minute(stream: Stream[str, Reading], out: Topic[Windowed[str], int]) -> None:
    windowed = stream.group_by_key().windowed(tumbling("1m")).emit(Emit.CLOSE)
    windowed.count(name="per-minute").changes().to(out)


@given(st.lists(st.integers(0, 300), max_size=12), st.data())
def test_windows_use_the_new_timestamps(seconds: list[int], data: st.DataObject) -> None:
    app, readings, out = app_of()
    count_by_minute(app.stream(readings).set_timestamp(at_of), out)
    open_: dict[int, int] = {}
    wanted: list[tuple[int, int]] = []
    latest = 0
    with app.test() as t:
        for at in seconds:
            # The old times are far off and out of order.
            old = NOON + timedelta(days=data.draw(st.integers(-9, 9)))
            reading = Reading("s", NOON + timedelta(seconds=at))
            t.input(readings).send(reading, key="s", at=old)
            latest = max(latest, at)
            if at // 60 * 60 + 60 > latest:
                open_[at // 60] = open_.get(at // 60, 0) + 1
            closing = sorted(m for m in open_ if m * 60 + 60 <= latest)
            wanted += [(minute, open_.pop(minute)) for minute in closing]
            if data.draw(st.booleans()):
                t.restart()
        records = t.output(out).records
    assert [((r.key.start - NOON) // timedelta(minutes=1), r.value) for r in records] == wanted


@pytest.mark.parametrize("partitions", [1, 3])
def test_new_timestamps_pass_through_repartition_topics(partitions: int) -> None:
    app, readings, out = app_of()
    stream = app.stream(readings).set_timestamp(at_of, name="event-time")
    windowed = stream.group_by(lambda _, r: r.sensor, name="by").windowed(tumbling("1m"))
    windowed.idle_after("1s").count(name="per-minute").changes().to(out)
    with app.test(partitions=partitions) as t:
        for second in (10, 50, 20, 70):
            reading = Reading("s", NOON + timedelta(seconds=second))
            t.input(readings).send(reading, key=f"k{second}", at=NOON - timedelta(days=1))
        t.advance("2s")
        assert [(r.key.start, r.value) for r in t.output(out).records][:1] == [(NOON, 3)]


def test_set_timestamp_keeps_key_value_and_order() -> None:
    app = App("kept")
    first = app.topic("first", key=str, value=int)
    second = app.topic("second", key=str, value=int)
    out = app.topic("out", key=str, value=int)
    merged = app.stream(first, second)
    merged.set_timestamp(lambda v: v).filter(lambda _, v: v != 3).to(out)
    with app.test() as t:
        for at, topic in enumerate([first, second, first, second]):
            t.input(topic).send(4 - at, key=f"k{at}", at=at)
        found = [(r.key, r.value, r.timestamp.microsecond) for r in t.output(out).records]
    assert found == [("k0", 4, 4000), ("k2", 2, 2000), ("k3", 1, 1000)]


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (None, "is not a time"),
        (-1, "before 1970"),
        (datetime(2025, 1, 1), "time zone"),  # noqa: DTZ001 - that is what is refused
    ],
)
def test_an_invalid_time_is_the_record_s_error(at: Any, words: str) -> None:
    app, readings, _ = app_of()
    app.stream(readings).set_timestamp(lambda _: at)
    with app.test() as t, pytest.raises(ProcessingError, match=words):
        t.input(readings).send(Reading("s", NOON), key="s")


def test_a_record_without_a_time_is_skipped_by_policy() -> None:
    app, readings, out = app_of(on_error=on_error.skip())
    count_by_minute(app.stream(readings).set_timestamp(at_of), out)
    with app.test() as t:
        for at in (NOON, None, NOON + timedelta(minutes=1)):
            t.input(readings).send(Reading("s", at), key="s", at=NOON + timedelta(days=9))
        assert [(r.key.start, r.value) for r in t.output(out).records] == [(NOON, 1)]


def held_back(
    app: App, readings: Topic[str, Reading], out: Topic[Windowed[str], int]
) -> tuple[list[int], str]:
    """Return the output of records in one of four partitions, and the reported hold-ups."""
    with app.test(start=NOON, partitions=4) as t:
        for at in range(0, 100, 7):
            reading = Reading("s", NOON + timedelta(seconds=at))
            t.input(readings).send(reading, key="s", partition=1)
            t.advance("7s")
        t.advance("5m")
        text = [held.describe() for task in t._tasks.values() for held in task.holdups]
        return t.output(out).values, "\n".join(text)


@pytest.mark.parametrize("idle", [False, True])
def test_partitions_without_records_are_reported_as_holding_back(idle: bool) -> None:
    app, readings, out = app_of()
    retimed = app.stream(readings).set_timestamp(at_of, name="event-time")
    windowed = retimed.group_by(lambda _, r: r.sensor, name="by").windowed(tumbling("1m"))
    if idle:
        windowed = windowed.idle_after("30s")
    windowed.emit(Emit.CLOSE).count(name="per-minute").changes().to(out)
    rows, text = held_back(app, readings, out)
    if idle:
        assert (rows, text) == ([9, 6], "")
    else:
        assert rows == []
        assert "event-time-0 (no record yet), event-time-2" in text
        assert "a partition of readings without records has no event time" in text
        assert "declare timestamp= on the topic instead of set_timestamp, or .idle_after" in text


def test_timestamp_on_the_topic_lets_empty_partitions_advance() -> None:
    app = App("retimed")
    readings = app.topic("readings", key=str, value=Reading, timestamp=at_of)
    out = app.topic("out", key=Windowed[str], value=int)
    windowed = app.stream(readings).group_by(lambda _, r: r.sensor, name="by")
    emitted = windowed.windowed(tumbling("1m", grace="1s")).emit(Emit.CLOSE)
    emitted.count(name="per-minute").changes().to(out)
    assert held_back(app, readings, out) == ([9, 6], "")


def test_a_merged_topic_without_records_is_reported() -> None:
    app, readings, out = app_of()
    other = app.topic("other", key=str, value=Reading)
    merged = app.stream(readings).merge(app.stream(other))
    retimed = merged.set_timestamp(at_of, name="event-time")
    windowed = retimed.group_by(lambda _, r: r.sensor, name="by").windowed(tumbling("1m"))
    windowed.emit(Emit.CLOSE).count(name="per-minute").changes().to(out)
    rows, text = held_back(app, readings, out)
    assert rows == []
    assert "event-time/other-1 (no record yet) holds back 'by-repartition-sink'" in text
    assert "a partition of other, readings without records has no event time" in text
    assert "or set_timestamp before the merge and .idle_after" in text
