"""The bytes of windowed keys: in Kafka Streams' format, or refused if the windows are unknown."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from streamlog import (
    App,
    Emit,
    Windowed,
    Windows,
    calendar,
    count_window,
    hopping,
    session,
    sliding,
    tumbling,
)
from streamlog.durations import moment
from streamlog.errors import SerdeError, TopologyError
from streamlog.processing.outbox import SinkBatch
from streamlog.records.murmur2 import partitions_of_keys
from streamlog.serdes import WindowedSerde, serde_for

HOUR_MS = 3_600_000
BERLIN_DAYS = calendar("day", tz="Europe/Berlin")


def utc(day: int, hour: int, month: int = 1) -> datetime:
    return datetime(2025, month, day, hour, tzinfo=UTC)


def times(*at: datetime) -> bytes:
    """Encode times as Kafka does: big-endian milliseconds."""
    return struct.pack(f">{len(at)}q", *(round(each.timestamp() * 1_000) for each in at))


def test_windowed_keys_are_refused_by_a_topic_of_plain_keys_and_the_way_out_runs() -> None:
    app = App("shop")
    sales = app.topic("sales", key=str, value=int)
    plain = app.topic("plain", key=str, value=int)
    numbers = app.topic("numbers", key=int, value=int)
    counts = app.stream(sales).group_by_key().windowed(tumbling("1h")).count(name="counts")
    with pytest.raises(TopologyError, match=r"'counts' are Windowed\[str\].*rekey\(lambda window"):
        counts.changes().to(plain)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="'numbers' takes int: map them first"):
        counts.changes().to(numbers)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match=r"are str, and topic 'out' takes Windowed\[str\]"):
        app.stream(sales).to(app.topic("out", key=Windowed[str], value=int))  # type: ignore[arg-type]
    counts.changes().rekey(lambda window, _: window.key).to(plain)
    with app.test() as t:
        t.input(sales).send(1, key="A", at=utc(1, 9))
        t.input(sales).send(1, key="A", at=utc(1, 10))
        assert t.output(plain).pop().key == "A"


@pytest.mark.parametrize(
    ("windows", "suffix", "end"),
    [
        (tumbling("1h"), times(utc(1, 9)), utc(1, 10)),
        (tumbling("1h", offset="30m"), times(utc(1, 8).replace(minute=30)), None),
        (hopping("2h", "2h"), times(utc(1, 8)), utc(1, 10)),
        (sliding("1h"), times(utc(1, 8)), utc(1, 9)),
        (session("1h"), times(utc(1, 9), utc(1, 9)), utc(1, 9)),
        (BERLIN_DAYS, times(utc(31, 23, month=12).replace(year=2024)), utc(1, 23)),
        (count_window(1), times(utc(1, 9), utc(1, 9)), utc(1, 9)),
    ],
)
def test_windowed_keys_have_kafka_streams_format(
    windows: Windows, suffix: bytes, end: datetime | None
) -> None:
    app = App("shop")
    sales = app.topic("sales", key=str, value=int)
    out = app.topic("out", key=Windowed[str], value=int)
    stream = app.stream(sales).group_by_key().windowed(windows).emit(Emit.UPDATE)
    stream.count(name="counts").changes().to(out)
    with app.test() as t:
        t.input(sales).send(1, key="A", at=utc(1, 9))
        (record,) = t.output(out).records
        (raw,) = t.topic("out").partitions[0]
    assert raw.key == b"A" + suffix
    assert record.key.key == "A"
    if end is not None:
        assert record.key.end == end
    other = App("reader").topic("out", key=Windowed[str], value=int, windows=windows)
    assert other.decoded(raw, 0).key == record.key


def test_the_partition_of_a_windowed_key_ignores_the_window() -> None:
    keys = [b"A" + struct.pack(">q", at) for at in range(5)]
    batch = SinkBatch("out", None, [0] * 5, keys, [b""] * 5, None, 8)
    assert batch.partitions(1000) == partitions_of_keys([b"A"] * 5, 1000)
    assert {record.route for record in batch.records()} == {b"A"}
    without = batch._replace(keys=[None, *keys[1:]])
    routes = [record.route for record in without.records()]
    assert without.partitions(1000) == partitions_of_keys(routes, 1000)
    assert routes[0] == bytes(8)


def count_changes(app: App, windows: Windows, name: str):  # type: ignore[no-untyped-def] # noqa: ANN201
    stream = app.stream(app.topic(f"in-{name}", key=str, value=int))
    return stream.group_by_key().windowed(windows).count(name=name).changes()


def test_all_windows_of_a_key_are_in_one_partition() -> None:
    app = App("shop")
    sales = app.topic("sales", key=str, value=int, partitions=4)
    out = app.topic("out", key=Windowed[str], value=int, partitions=4)
    again = app.topic("again", key=Windowed[str], value=int, partitions=4)
    table = app.stream(sales).group_by_key().windowed(tumbling("1m")).emit(Emit.UPDATE)
    changes = table.count(name="counts").changes()
    changes.to(out)
    changes.repartition(name="r").to(again)
    with app.test() as t:
        for minute in range(20):
            t.input(sales).send(1, key="A", at=moment(minute * 60_000))
        for name in ("out", "again", "shop-r-repartition"):
            parts = [[r for r in p if r.key is not None] for p in t.topic(name).partitions]
            assert sorted(map(len, parts)) == [0, 0, 0, 20], name


def stream_from(app: App) -> None:
    app.stream(app.topic("hourly", key=Windowed[str], value=int)).filter(lambda _k, _v: True)


def global_table_from(app: App) -> None:
    app.global_table(app.topic("hourly", key=Windowed[str], value=int))


def sink_to(app: App) -> None:
    sales = app.stream(app.topic("sales", key=str, value=int))
    keyed = sales.rekey(lambda k, _: Windowed(k, moment(0), moment(1)), name="own")
    keyed.to(app.topic("hourly", key=Windowed[str], value=int))


@pytest.mark.parametrize("use", [stream_from, global_table_from, sink_to])
def test_a_windowed_topic_without_declared_windows_is_refused(use: Callable[[App], None]) -> None:
    app = App("shop")
    use(app)
    with pytest.raises(TopologyError, match=r"'hourly'.*windows=tumbling\('1h'\)"):
        app.topology()


def test_keys_of_undeclared_windows_can_not_be_encoded() -> None:
    topic = App("shop").topic("hourly", key=Windowed[str], value=int)
    with pytest.raises(SerdeError, match="where the window ends"):
        topic.encoded(Windowed("A", moment(0), moment(HOUR_MS)), 1)


def test_a_topic_has_windows_of_one_kind() -> None:
    app = App("shop")
    out = app.topic("out", key=Windowed[str], value=int)
    count_changes(app, tumbling("1h"), "hourly").to(out)
    count_changes(app, tumbling("1h"), "hourly-again").to(out)
    with pytest.raises(TopologyError, match="already has keys of other windows"):
        count_changes(app, tumbling("1d"), "daily").to(out)
    with pytest.raises(TopologyError, match="already has keys of other windows"):
        count_changes(app, sliding("1h"), "sliding").to(out)
    declared = app.topic("declared", key=Windowed[str], value=int, windows=session("1h"))
    with pytest.raises(TopologyError, match="already has keys of other windows"):
        count_changes(app, hopping("1h", "30m"), "hopping").to(declared)
    with pytest.raises(TopologyError, match=r"no key=Windowed"):
        app.topic("plain", key=str, value=int, windows=tumbling("1h"))


def test_keys_of_merged_window_kinds_store_start_and_end() -> None:
    app = App("shop")
    out = app.topic("out", key=Windowed[str], value=int)
    hours, days = (
        count_changes(app, tumbling("1h"), "hourly"),
        count_changes(app, tumbling("1d"), "daily"),
    )
    hours.merge(days).to(out)
    one_way = app.topic("one-way", key=Windowed[str], value=int)
    hours.merge(count_changes(app, tumbling("1h"), "hourly-again")).to(one_way)
    key = Windowed("A", moment(0), moment(24 * HOUR_MS))
    assert out.encoded(key, 1)[0] == b"A" + struct.pack(">qq", 0, 24 * HOUR_MS)
    with pytest.raises(SerdeError, match="not one of the declared windows of 1h"):
        one_way.encoded(key, 1)
    whole = app.topic("own", key=Windowed[str], value=int, key_serde=WindowedSerde(serde_for(str)))
    hours.to(whole)
    assert whole.encoded(key, 1)[0] == out.encoded(key, 1)[0]
