"""`streamlog dlq`: dead letters are listed, replayed once, and dropped on request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from streamlog import App, Windowed, tumbling
from streamlog.cli.dlq_command import dlq
from streamlog.client.admin import NewTopic
from streamlog.errors import UnknownTopicOrPartition, UsageError
from streamlog.log import Log
from streamlog.processing.error_handling import DeadLetterRecord
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.records.partitioners import PartitionerName, partition_by
from streamlog.replace import replace
from tests.cli.console import Invoke, console, row

T = TypeVar("T")


def letter(number: int, *, internal: bool = False) -> DeadLetterRecord:
    return DeadLetterRecord(
        topic="orders",
        partition=number % 2,
        offset=100 + number,
        timestamp_ms=1_700_000_000_000 + number,
        key=b"k%d" % number,
        value=b"v%d" % number,
        headers=(("trace", b"t%d" % number),),
        node="price",
        error=ValueError(f"no price {number}"),
        attempt=3,
        is_internal=internal,
    )


def traced(number: int) -> DeadLetterRecord:
    """Return a letter whose error was raised, and has an escape in its text."""
    try:
        raise ValueError("no price \x1b[31m")  # noqa: TRY301 - for its trace
    except ValueError as error:
        return replace(letter(number), error=error)


def on_log(here: Path, story: Callable[[Log], Coroutine[object, object, T]]) -> T:
    async def main() -> T:
        async with Log.open(f"embedded:{here}/log", listen=False) as log:
            return await story(log)

    return asyncio.run(main())


async def write(log: Log, *letters: DeadLetterRecord) -> None:
    async with log.producer() as producer:
        for each in letters:
            (sink,) = each.to("shop-dlq").records()
            await producer.send(
                sink.topic,
                sink.value,
                key=sink.key,
                timestamp_ms=sink.timestamp_ms,
                headers=sink.headers,
                partition=0,
            )


def orders(here: Path) -> list[tuple[int, LogRecord]]:
    async def story(log: Log) -> list[tuple[int, LogRecord]]:
        found: list[tuple[int, LogRecord]] = []
        parts = [TopicPartition("orders", number) for number in (0, 1)]
        async with log.consumer(
            auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            consumer.assign(parts)
            ends = await consumer.end_offsets(parts)
            while any([await consumer.position(part) < end for part, end in ends.items()]):
                for part, records in (await consumer.poll(timeout_ms=200)).items():
                    found += [(part.partition, record) for record in records]
        return sorted(found, key=lambda pair: pair[1].timestamp_ms)

    return on_log(here, story)


@pytest.fixture
def run(tmp_path: Path) -> Invoke:
    async def story(log: Log) -> None:
        await log.admin().create_topics([NewTopic("shop-dlq", 1), NewTopic("orders", 2)])
        await write(log, letter(0), letter(1), letter(2, internal=True), letter(3))

    on_log(tmp_path, story)
    return console(dlq, tmp_path / "log")


def test_dead_letters_are_listed_with_their_errors(run: Invoke) -> None:
    shown = run("list", "shop-dlq")
    first = ("0:0", "2023-11-14T22:13:20.000+00:00", "orders-0:100", "price")
    assert row(shown, *first, "ValueError: no price 0", "3", "k0", "v0")
    assert "orders-0:102 (internal)" in shown
    assert "4 letters in shop-dlq" in shown
    assert "the first 2 letters in shop-dlq" in run("list", "shop-dlq", "--limit", "2")


def test_traces_are_listed_if_asked_for(run: Invoke, tmp_path: Path) -> None:
    on_log(tmp_path, lambda log: write(log, traced(4)))
    shown = run("list", "shop-dlq", "--trace")
    assert "0:0\n  no stack trace\n" in shown
    assert f"  {__name__}, line" in shown
    assert "in traced" in shown
    # What a record says does not colour the terminal.
    assert "\x1b[31m" not in shown
    rows = json.loads(run("list", "shop-dlq", "--trace", "--json"))
    assert [bool(each["trace"]) for each in rows] == [False] * 4 + [True]
    assert "trace" not in json.loads(run("list", "shop-dlq", "--json"))[0]


def test_dead_letters_are_replayed_once_to_their_source(run: Invoke, tmp_path: Path) -> None:
    assert "replayed 1 record" in run("replay", "shop-dlq", "--limit", "1")
    output = run("replay", "shop-dlq")
    assert "replayed 2 records" in output
    assert "skipped 1 record that only the app may write" in output
    assert "0:2" in output
    assert "replayed 0 records" in run("replay", "shop-dlq")
    sent = orders(tmp_path)
    assert [(partition, record.key, record.value) for partition, record in sent] == [
        (0, b"k0", b"v0"),
        (1, b"k1", b"v1"),
        (1, b"k3", b"v3"),
    ]
    assert sent[0][1].headers == (("trace", b"t0"),)
    assert sent[0][1].timestamp_ms == 1_700_000_000_000
    # A record that fails again is a new dead letter.
    on_log(tmp_path, lambda log: write(log, letter(5)))
    assert "0 letters" not in run("list", "shop-dlq")
    assert "replayed 1 record" in run("replay", "shop-dlq")


def test_a_letter_of_kafka_connect_is_replayed_without_its_headers(
    run: Invoke, tmp_path: Path
) -> None:
    """The headers are those that Kafka Connect's DeadLetterQueueReporter writes (KIP-298)."""

    async def story(log: Log) -> None:
        names = {"topic": "orders", "partition": "1", "offset": "7", "connector.name": "out"}
        names |= {"stage": "VALUE_CONVERTER", "exception.message": "no JSON"}
        headers = [(f"__connect.errors.{name}", text.encode()) for name, text in names.items()]
        async with log.producer() as producer:
            await producer.send(
                "shop-dlq", b"v", key=b"k", headers=[("trace", b"t"), *headers], partition=0
            )

    run("replay", "shop-dlq")
    on_log(tmp_path, story)
    shown = run("list", "shop-dlq", "--all")
    assert "orders-1:7" in shown
    assert "no JSON" in shown
    assert "replayed 1 record" in run("replay", "shop-dlq")
    ((partition, record),) = [each for each in orders(tmp_path) if each[1].key == b"k"]
    assert (partition, record.value, record.headers) == (1, b"v", (("trace", b"t"),))


def unplaced_letter(number: int, key: bytes | None = None) -> DeadLetterRecord:
    """Return a dead letter of a sink topic that the app was not allowed to write to."""
    key = b"k%d" % number if key is None else key
    return replace(letter(number), topic="users", partition=-1, offset=-1, key=key, headers=())


def partitions_of_keys(here: Path, topic: str, count: int) -> dict[bytes | None, int]:
    async def story(log: Log) -> dict[bytes | None, int]:
        parts = [TopicPartition(topic, number) for number in range(count)]
        found: dict[bytes | None, int] = {}
        async with log.consumer(auto_offset_reset="earliest") as consumer:
            consumer.assign(parts)
            ends = await consumer.end_offsets(parts)
            while any([await consumer.position(part) < end for part, end in ends.items()]):
                for part, records in (await consumer.poll(timeout_ms=200)).items():
                    found |= {record.key: part.partition for record in records}
        return found

    return on_log(here, story)


@pytest.mark.parametrize("partitioner", ["murmur2", "crc32", "fnv1a"])
@pytest.mark.parametrize("windowed", [False, True])
def test_records_without_a_partition_are_placed_by_their_topics_partitioner(
    tmp_path: Path, partitioner: PartitionerName, windowed: bool
) -> None:
    app = App("shop")
    kind: Any = Windowed[bytes] if windowed else bytes
    windows = tumbling("1m") if windowed else None
    topic = app.topic("users", key=kind, value=bytes, partitioner=partitioner, windows=windows)
    keys = [b"k%d" % number for number in range(12)]
    start = datetime(2025, 1, 1, tzinfo=UTC)
    raws = [
        topic.spec.key.dumps(Windowed(k, start, start + timedelta(minutes=1)) if windowed else k)
        for k in keys
    ]

    async def story(log: Log) -> None:
        await log.admin().create_topics([NewTopic("shop-dlq", 1), NewTopic("users", 4)])
        await write(log, *(unplaced_letter(at, raw) for at, raw in enumerate(raws)))

    on_log(tmp_path, story)
    with pytest.raises(UsageError, match=r"nothing was sent: 12 of 12 .* users .* 0:0\), .* -A"):
        console(dlq, tmp_path / "log")("replay", "shop-dlq")
    assert "replayed 12 records" in console(dlq, tmp_path / "log", app)("replay")
    wanted = {raw: partition_by(partitioner, key, 4) for raw, key in zip(raws, keys, strict=True)}
    assert partitions_of_keys(tmp_path, "users", 4) == wanted


def test_replayed_letters_stay_until_they_are_dropped(run: Invoke) -> None:
    run("replay", "shop-dlq", "--limit", "2")
    assert "2 letters" in run("list", "shop-dlq")
    assert "4 letters" in run("list", "shop-dlq", "--all")
    assert "removed 2 offsets" in run("drop", "shop-dlq", "--replayed")
    assert "2 letters" in run("list", "shop-dlq", "--all")
    assert "removed 1 offset " in run("drop", "shop-dlq", "--until", "0:3")
    assert "removed 1 offset " in run("drop", "shop-dlq", "--all")
    assert "0 letters" in run("list", "shop-dlq", "--all")
    assert "replayed 0 records" in run("replay", "shop-dlq")


@pytest.mark.parametrize(
    "options", [(), ("--all", "--replayed"), ("--until", "x"), ("--until", "a:1")]
)
def test_drop_requires_a_selection(run: Invoke, options: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        run("drop", "shop-dlq", *options)
    assert "4 letters" in run("list", "shop-dlq")


def test_the_dlq_command_needs_a_topic_or_an_app(run: Invoke) -> None:
    with pytest.raises(UsageError, match="this command needs an app"):
        run("list")
    with pytest.raises(UnknownTopicOrPartition):
        run("list", "nowhere")
