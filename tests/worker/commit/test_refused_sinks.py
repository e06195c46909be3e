"""Sink records that the broker refuses: all others are written, and the error policies apply."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, on_error
from streamlog.client.admin import NewTopic
from streamlog.client.producer.refused_records import RefusedRecord
from streamlog.errors import LogError, MessageTooLarge, NotAuthorized, ProcessingError
from streamlog.log import Log
from streamlog.nodes.policies import ErrorPolicy
from streamlog.processing import error_handling
from streamlog.protocol.acls import Operation, ResourceType
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.records.packed_records import PackedRecords
from streamlog.records.record_columns import FieldColumns
from streamlog.worker.commit.refused_sinks import RefusedSinks
from streamlog.worker.topics.app_topics import EVERY_TIMESTAMP
from streamlog.worker.worker import Worker
from tests.servers.secured_broker import access, allowed, secured_broker
from tests.worker.processes import read_until
from tests.worker.test_secured import ALLOWED, SHOP

LIMIT_BYTES = 20_000
GUARANTEES = ("exactly_once", "at_least_once")
LONG_0 = TopicPartition("long", 0)
FAR_MS = 4_000_000_000_000
NEAR = {"message.timestamp.after.max.ms": "3600000"}


def shop(path: Path, guarantee: str, policy: ErrorPolicy) -> App:
    """Build an app that repeats lines; too large, keyless and far-future rows are refused."""
    app = App(
        "shop",
        log=f"embedded:{path / 'log'}",
        state_dir=str(path / "state"),
        guarantee=guarantee,  # type: ignore[arg-type]
        commit_interval="20ms",
        on_error=policy,
    )
    lines = app.topic("lines", key=str, value=int, partitions=1)
    stream = app.stream(lines)
    counts = stream.filter(lambda key, _: key is not None).group_by_key().count(name="counts")
    counts.changes().to(app.topic("counts", key=str, value=int, partitions=1))
    long = app.topic("long", key=str, value=str, partitions=1)
    stream.map_values(lambda n: "x" * n, name="repeat").to(long)
    latest = app.topic("latest", key=str, value=int, partitions=1, compact=True)
    stream.filter(lambda _, n: n < 9).to(latest)
    timely = app.topic("timely", key=str, value=int, partitions=1)
    stream.filter(lambda _, n: n < 9).to(timely)
    return app


async def feed(log: Log, rows: list[tuple[bytes | None, int, int]]) -> None:
    small = {"max.message.bytes": str(LIMIT_BYTES), **EVERY_TIMESTAMP}
    latest = {"cleanup.policy": "compact", **EVERY_TIMESTAMP}
    topics = [NewTopic(name, 1, configs=EVERY_TIMESTAMP) for name in ("lines", "counts")]
    topics += [NewTopic("long", 1, configs=small), NewTopic("latest", 1, configs=latest)]
    await log.admin().create_topics([*topics, NewTopic("timely", 1, configs=NEAR)])
    async with log.producer() as producer:
        for key, number, timestamp_ms in rows:
            sent = producer.send("lines", number.to_bytes(8), key=key, timestamp_ms=timestamp_ms)
            await sent


def rows_of() -> list[tuple[bytes | None, int, int]]:
    """Return good rows and bad ones: two too large, two without a key, one of the far future."""
    rows: list[tuple[bytes | None, int, int]] = [
        (b"k%d" % (number % 5), number % 7, 1_000 + number) for number in range(60)
    ]
    rows[7] = (b"huge", LIMIT_BYTES + 1, 1_007)
    rows[20] = (b"larger", LIMIT_BYTES * 2, 1_020)
    rows[11] = (None, 1, 1_011)
    rows[12] = (None, 2, 1_012)
    rows[33] = (b"far", 3, FAR_MS)
    return rows


async def run(app: App, log: Log, until: Mapping[str, int]) -> dict[str, list[LogRecord]]:
    """Run a worker until the topics hold these numbers of records."""
    stop = asyncio.Event()

    async def read() -> dict[str, list[LogRecord]]:
        found: dict[str, list[LogRecord]] = {}
        for topic, count in until.items():
            read = await read_until(log, topic, lambda rows, count=count: len(rows) >= count)
            found[topic] = [record for _, record in read]
        stop.set()
        return found

    worker = Worker(app.program(), log_url=app.log or "", announce=lambda _start: None)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read())
        await worker.run(stop)
        reading.cancel()
    return reading.result()


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_refused_records_are_dead_letters_and_all_others_are_written(
    tmp_path: Path, guarantee: str
) -> None:
    app = shop(tmp_path, guarantee, on_error.dlq())
    rows = rows_of()

    async def main() -> dict[str, list[LogRecord]]:
        async with Log.open(app.log or "") as log:
            await feed(log, rows)
            until = {"counts": 58, "long": 58, "latest": 56, "timely": 57, "shop-dlq": 5}
            return await run(app, log, until)

    found = asyncio.run(main())
    assert {topic: len(records) for topic, records in found.items()} == {
        "counts": 58,
        "long": 58,
        "latest": 56,
        "timely": 57,
        "shop-dlq": 5,
    }
    written = [(each.key, len(each.value or b"")) for each in found["long"]]
    good = [(key, n) for key, n, _ in rows if n <= LIMIT_BYTES]
    # At least once, a record that is retried alone may follow records sent in the meantime.
    assert Counter(written) == Counter(good)
    assert written == good or guarantee == "at_least_once"
    letters = {(each.key, header(each, error_handling.TOPIC)) for each in found["shop-dlq"]}
    assert letters == {
        (b"huge", "long"),
        (b"larger", "long"),
        (None, "latest"),
        (b"far", "timely"),
    }
    assert all(header(each, error_handling.NODE).startswith("sink-") for each in found["shop-dlq"])
    huge = next(each for each in found["shop-dlq"] if each.key == b"huge")
    assert huge.value == b"x" * (LIMIT_BYTES + 1)
    assert header(huge, error_handling.EXCEPTION).endswith("MessageTooLarge")


def header(record: LogRecord, name: str) -> str:
    return (dict(record.headers)[name] or b"").decode()


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_by_default_a_refused_record_stops_the_worker_and_is_named(
    tmp_path: Path, guarantee: str
) -> None:
    app = shop(tmp_path, guarantee, on_error.FAIL)

    async def main() -> None:
        async with Log.open(app.log or "") as log:
            await feed(log, [(b"small", 3, 1_000), (b"huge", LIMIT_BYTES + 1, 1_001)])
            await run(app, log, {"long": 2})

    with pytest.raises(BaseExceptionGroup) as raised:
        asyncio.run(main())
    failures = leaves(raised.value)
    (error,) = [each for each in failures if isinstance(each, ProcessingError)]
    assert error.exit_code == 7
    assert (error.topic, error.partition) == ("long", 0)
    assert "long-0 refuses the record with key b'huge' and 20001 bytes" in str(error)
    assert "max.message.bytes" in str(error)
    assert error.node.startswith("sink-")


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_refused_future_timestamp_is_named_with_its_remedy(
    tmp_path: Path, guarantee: str
) -> None:
    app = App(
        "shop",
        log=f"embedded:{tmp_path / 'log'}",
        state_dir=str(tmp_path / "state"),
        guarantee=guarantee,  # type: ignore[arg-type]
        commit_interval="20ms",
    )
    # The record itself is current: its event time comes from its value.
    orders = app.topic("orders", key=str, value=int, partitions=1, timestamp=lambda due_ms: due_ms)
    due = app.topic("due", key=str, value=int, partitions=1)
    # Repartition topics and changelogs accept any timestamp.
    counts = app.stream(orders).group_by(lambda _, __: "all", name="by-all").count(name="counts")
    counts.changes().to(due)

    async def main() -> None:
        async with Log.open(app.log or "") as log:
            topics = [NewTopic("orders", 1), NewTopic("due", 1, configs=NEAR)]
            await log.admin().create_topics(topics)
            async with log.producer() as producer:
                for due_ms in (1_000, FAR_MS):
                    await (await producer.send("orders", due_ms.to_bytes(8), key=b"k"))
            await run(app, log, {"due": 2})

    with pytest.raises(BaseExceptionGroup) as raised:
        asyncio.run(main())
    (error,) = [each for each in leaves(raised.value) if isinstance(each, ProcessingError)]
    assert (error.exit_code, error.topic, error.partition) == (7, "due", 0)
    logged = str(error)
    assert "due-0 refuses the record with key b'all' and 8 bytes" in logged
    assert f"whose timestamp is {FAR_MS}" in logged
    assert f"timestamp {FAR_MS} (2096-10-02 07:06:40 UTC) is later than" in logged
    assert "--topic due --set message.timestamp.after.max.ms=" in logged


def leaves(error: BaseException) -> list[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for each in error.exceptions for leaf in leaves(each)]


def sinks(policy: ErrorPolicy) -> RefusedSinks:
    app = App("shop", on_error=policy)
    lines = app.topic("lines", key=str, value=str, partitions=1)
    app.stream(lines).to(app.topic("long", key=str, value=str, partitions=1))
    return RefusedSinks(app.topology())


def packed(numbers: list[int]) -> PackedRecords:
    pack = PackedRecords()
    pack.extend(columns(numbers))
    return pack


def columns(numbers: list[int]) -> FieldColumns:
    return FieldColumns.of([(n, b"%d" % n, b"v", ()) for n in numbers])


def numbers_in(packs: Mapping[TopicPartition, Any]) -> list[list[int]]:
    return [pack.part(0, len(pack)).timestamps for pack in packs.get(LONG_0, [])]


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=4),
    st.sets(st.integers(0, 9)),
)
def test_a_repeated_commit_contains_all_but_the_refused_records(
    batches: list[list[int]], bad: set[int]
) -> None:
    refused, dropped = sinks(on_error.skip()), 0
    packs = {LONG_0: [packed(numbers) for numbers in batches]}
    error = LogError("bad", code=87)
    for _ in range(100):
        # A broker that names only single records as bad.
        blamed = [p for p in packs.get(LONG_0, []) if bad & {*p.part(0, len(p)).timestamps}][:2]
        if not blamed:
            break
        refusals = [
            RefusedRecord(LONG_0, error, p.part(0, len(p)), (0,) if len(p) == 1 else ())
            for p in blamed
        ]
        settlement = refused.settle(refusals)
        dropped += sum(drop.count for drop in settlement.drops)
        packs = settlement.without_dropped(packs)  # type: ignore[assignment]
    everything = [number for numbers in batches for number in numbers]
    left = [number for numbers in numbers_in(packs) for number in numbers]
    assert left == [number for number in everything if number not in bad]
    assert dropped == len(everything) - len(left)


def test_records_of_a_refused_batch_are_retried_alone_without_a_culprit() -> None:
    refused, error = sinks(on_error.skip()), LogError("bad", code=87)
    named = refused.settle([RefusedRecord(LONG_0, error, columns([1, 2, 3, 4]), (1,))])
    assert numbers_in(named.rest) == [[1, 3, 4]]
    unnamed = refused.settle([RefusedRecord(LONG_0, error, columns([1, 2, 3]), ())])
    assert numbers_in(unnamed.rest) == [[1], [2], [3]]
    assert not unnamed.drops


def test_a_dead_letter_that_is_too_large_loses_its_value() -> None:
    refused, topic_partition = sinks(on_error.dlq()), TopicPartition("shop-dlq", 0)
    error = MessageTooLarge("the record needs 99 bytes")
    letter = FieldColumns.of([(5, b"k", b"v" * 99, (("a", b"b"),))])
    (batch,) = refused.settle([RefusedRecord(topic_partition, error, letter, (0,))]).letters
    (record,) = batch.records()
    assert (record.topic, record.key, record.value) == ("shop-dlq", b"k", None)
    own = ((error_handling.SIZE, b"99"), (error_handling.INTERNAL, b"1"))
    assert record.headers == (("a", b"b"), *own)
    again = FieldColumns.of([(5, b"k", None, record.headers)])
    with pytest.raises(ProcessingError, match="shop-dlq-0 refuses"):
        refused.settle([RefusedRecord(topic_partition, error, again, (0,))])


def test_an_unauthorized_topic_is_named_without_a_partition() -> None:
    topic_partition = TopicPartition("long", -1)
    refusal = RefusedRecord(topic_partition, NotAuthorized("not allowed"), columns([1]), (0,))
    (letter,) = sinks(on_error.dlq()).settle([refusal]).letters
    (record,) = letter.records()
    assert dict(record.headers)[error_handling.PARTITION] == b"-1"
    with pytest.raises(ProcessingError, match="long refuses the record with key b'1'"):
        sinks(on_error.FAIL).settle([refusal])


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_records_for_an_unauthorized_topic_are_skipped(tmp_path: Path, guarantee: str) -> None:
    app = App(
        "counting",
        state_dir=f"{tmp_path}/state",
        guarantee=guarantee,  # type: ignore[arg-type]
        security=SHOP,
    )
    words = app.stream(app.topic("words", key=str, value=str, partitions=1))
    words.to(app.topic("counts", key=str, value=str, partitions=1))
    audit = app.topic("audit", key=str, value=str, partitions=1)
    words.to(audit, on_error=on_error.skip())

    async def main() -> list[LogRecord]:
        async with (
            asyncio.timeout(120),
            secured_broker(tmp_path / "data") as url,
            Log.open(url, security=access("root")) as log,
        ):
            program, security = app.program(), app.security
            worker = Worker(program, log_url=url, announce=lambda _: None, security=security)
            topics = [NewTopic(name, 1) for name in ("words", "counts", "audit")]
            await log.admin().create_topics(topics)
            audited = allowed(ResourceType.TOPIC, "audit", Operation.READ)
            await log.admin().create_acls([*ALLOWED, audited])
            async with log.producer() as producer:
                for number in range(3):
                    await (await producer.send("words", b"w%d" % number, key=b"k"))
            stop = asyncio.Event()
            async with asyncio.TaskGroup() as work:
                work.create_task(worker.run(stop))
                found = await read_until(log, "counts", lambda rows: len(rows) >= 3)
                ends = await end_of(log, "audit")
                stop.set()
        assert ends == 0
        return [record for _, record in found]

    found = asyncio.run(main())
    assert [each.value for each in found] == [b"w0", b"w1", b"w2"]


async def end_of(log: Log, topic: str) -> int:
    topic_partition = TopicPartition(topic, 0)
    async with log.consumer() as consumer:
        return (await consumer.end_offsets([topic_partition]))[topic_partition]
