"""Time marks: written only where a reader at the end of a quiet partition waits for one."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.storage.repair.inspection import Inspection
from streamlog.protocol.messages.produce_and_fetch import (
    FetchPartition,
    FetchResponse,
    PartitionData,
)
from streamlog.protocol.schema import one_buffer
from streamlog.records.batch import encode_batch, split_batches
from streamlog.records.control_batches import ClockTime, TimeMark, time_mark_of
from tests.broker.node import Node, ask, at, batch, create, delete, fetch_request, produce
from tests.broker.test_transactions import begin_transaction

QUIET_MS = 5_000


@pytest.fixture(params=["always", "os"])
def node(request: pytest.FixtureRequest) -> Node:
    return Node(config=BrokerConfig(flush=request.param))


def mark_request(offset: int, after_ms: int) -> FetchPartition:
    wanted = at(offset)
    wanted.mark_after_ms = after_ms
    return wanted


async def ask_for_mark(broker: Broker, offset: int, after_ms: int) -> None:
    """Ask for a mark at the end of the log; the response holds no records."""
    answer = await ask(broker, fetch_request(mark_request(offset, after_ms)), FetchResponse)
    assert not answer.responses[0].partitions[0].records


async def marks(broker: Broker, offset: int) -> list[tuple[int, int]]:
    """Return offset and elapsed time of the marks from `offset` on; wait for the first record."""
    request = fetch_request(at(offset), max_wait_ms=60_000)
    response = await ask(broker, request, FetchResponse)
    return marks_of(response.responses[0].partitions[0])


def marks_of(data: PartitionData) -> list[tuple[int, int]]:
    found = map(time_mark_of, split_batches(one_buffer(data.records or b"")))
    return [(mark.offset, mark.elapsed_ms) for mark in found if mark is not None]


def end(broker: Broker) -> int:
    return broker.directory.log("t", 0).log_end_offset


def test_a_reader_at_the_end_of_a_quiet_partition_gets_a_mark(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await produce(broker, batch(b"a", b"b"))
        node.pass_time(broker, 100)
        await ask_for_mark(broker, 2, 7_000)
        node.pass_time(broker, 6_899)
        assert end(broker) == 2
        node.pass_time(broker, 1)
        assert end(broker) == 3
        assert await marks(broker, 2) == [(2, 7_000)]

    node.run(story)


def test_a_mark_comes_no_earlier_than_the_topic_s_quiet_time(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await produce(broker, batch(b"a"))
        await ask_for_mark(broker, 1, 1)
        node.pass_time(broker, QUIET_MS - 1)
        assert end(broker) == 1
        node.pass_time(broker, 1)
        assert await marks(broker, 1) == [(1, QUIET_MS)]

    node.run(story)


def test_no_mark_is_written_without_a_waiting_reader(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await produce(broker, batch(b"a"))
        await ask(broker, fetch_request(at(1)), FetchResponse)
        node.pass_time(broker, 10 * QUIET_MS)
        assert end(broker) == 1

    node.run(story)


def test_a_reader_behind_the_end_gets_no_mark(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await produce(broker, batch(b"a"))
        await ask(broker, fetch_request(mark_request(0, 1)), FetchResponse)
        node.pass_time(broker, 10 * QUIET_MS)
        assert end(broker) == 1

    node.run(story)


def test_a_request_yields_one_mark_and_the_next_counts_from_it(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await produce(broker, batch(b"a"))
        await ask_for_mark(broker, 1, 6_000)
        await ask_for_mark(broker, 1, 6_000)
        node.pass_time(broker, 100_000)
        assert await marks(broker, 1) == [(1, 100_000)]
        node.pass_time(broker, 100_000)
        assert end(broker) == 2
        await ask_for_mark(broker, 2, 130_000)
        node.pass_time(broker, 30_000)
        assert await marks(broker, 2) == [(2, 130_000)]

    node.run(story)


def test_a_new_record_restarts_the_quiet_time(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await produce(broker, batch(b"a"))
        await ask_for_mark(broker, 1, 60_000)
        node.pass_time(broker, 50_000)
        await produce(broker, batch(b"b"))
        node.pass_time(broker, 20_000)
        assert end(broker) == 2
        await ask_for_mark(broker, 2, 60_000)
        node.pass_time(broker, 40_000)
        assert await marks(broker, 2) == [(2, 60_000)]

    node.run(story)


@pytest.mark.parametrize("configs", [{"mark_quiet_ms": "-1"}, {"cleanup_policy": "compact"}])
def test_compacted_and_disabled_topics_get_no_marks(node: Node, configs: Mapping[str, str]) -> None:
    async def story(broker: Broker) -> None:
        create(broker, **configs)
        log = broker.directory.log("t", 0)
        log.append(batch(b"a") if "mark_quiet_ms" in configs else _keyed(), now_ms=0)
        await ask_for_mark(broker, 1, 1)
        node.pass_time(broker, 10 * QUIET_MS)
        assert end(broker) == 1

    node.run(story)


def test_an_empty_partition_gets_no_mark_without_a_clock(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await ask_for_mark(broker, 0, 1)
        node.pass_time(broker, 10 * QUIET_MS)
        assert end(broker) == 0

    node.run(story)


def test_an_empty_partition_is_marked_for_clocks_with_a_time(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        for clock, time_ms in (("shop:record", 700), ("till:record", 900), ("shop:record", 800)):
            wanted = mark_request(0, 0)
            wanted.mark_clock, wanted.mark_to_ms = clock, time_ms
            await ask(broker, fetch_request(wanted), FetchResponse)
        node.pass_time(broker, QUIET_MS - 1)
        assert end(broker) == 0
        node.pass_time(broker, 1)
        response = await ask(broker, fetch_request(at(0), max_wait_ms=60_000), FetchResponse)
        data = response.responses[0].partitions[0].records or b""
        (mark,) = map(time_mark_of, split_batches(one_buffer(data)))
        assert mark == TimeMark(
            0, QUIET_MS, (ClockTime("shop:record", 800), ClockTime("till:record", 900))
        )
        assert (await produce(broker, batch(b"a"))).base_offset == 1

    node.run(story)


@pytest.mark.parametrize(("clock", "time_ms"), [("", 5), ("c" * 301, 5), ("c", -1), ("c", 1 << 62)])
def test_an_invalid_clock_or_time_gets_no_mark(node: Node, clock: str, time_ms: int) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        wanted = mark_request(0, 0)
        wanted.mark_clock, wanted.mark_to_ms = clock, time_ms
        await ask(broker, fetch_request(wanted), FetchResponse)
        node.pass_time(broker, QUIET_MS)
        assert end(broker) == 0

    node.run(story)


def test_a_mark_waits_for_the_end_of_an_open_transaction(node: Node) -> None:
    async def story(broker: Broker) -> None:
        writer = await begin_transaction(broker)
        await writer.write(b"1")
        await ask_for_mark(broker, 1, 1)
        node.pass_time(broker, QUIET_MS)
        assert end(broker) == 1
        await writer.end()
        await ask_for_mark(broker, 2, 1)
        node.pass_time(broker, QUIET_MS)
        assert await marks(broker, 2) == [(2, QUIET_MS)]

    node.run(story)


def test_deleting_a_topic_drops_its_pending_marks(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await produce(broker, batch(b"a"))
        await ask_for_mark(broker, 1, 1)
        delete(broker)
        node.pass_time(broker, QUIET_MS)

    node.run(story)


def test_a_mark_survives_a_restart_which_restarts_the_quiet_time(node: Node) -> None:
    async def first(broker: Broker) -> None:
        create(broker)
        await produce(broker, batch(b"a"))
        await ask_for_mark(broker, 1, 6_000)
        node.pass_time(broker, 6_000)
        await marks(broker, 1)

    async def second(broker: Broker) -> None:
        assert await marks(broker, 1) == [(1, 6_000)]
        await ask_for_mark(broker, 2, 6_000)
        node.pass_time(broker, 6_000)
        assert await marks(broker, 2) == [(2, 6_000)]
        assert (await produce(broker, batch(b"b"))).base_offset == 3

    node.run(first)
    node.run(second)
    with Inspection.open("data", files=node.files) as inspection:
        report = inspection.verify()
    assert not report.findings
    assert report.counts.batches == 4


def test_timestamp_searches_and_retention_ignore_marks(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker, segment_bytes="1024", retention_ms="1000")
        await produce(broker, batch(b"a", timestamp_ms=1_000))
        await ask_for_mark(broker, 1, 1)
        node.pass_time(broker, QUIET_MS)
        await marks(broker, 1)
        log = broker.directory.log("t", 0)
        assert log.max_timestamp() == (0, 1_000)
        assert log.offset_for_timestamp(1_001) is None
        log.expire(high_watermark=log.log_end_offset, wall_ms=2_000, now_ms=node.clock.now_ms())
        assert log.log_start_offset == 0
        log.expire(high_watermark=log.log_end_offset, wall_ms=2_001, now_ms=node.clock.now_ms())
        assert log.log_start_offset == log.log_end_offset == 2

    node.run(story)


def test_a_mark_is_written_once_a_full_disk_has_room_again(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await produce(broker, batch(b"a"))
        await ask_for_mark(broker, 1, 1)
        node.files.capacity_bytes = 0
        node.pass_time(broker, QUIET_MS)
        assert end(broker) == 1
        node.files.capacity_bytes = None
        await ask_for_mark(broker, 1, 1)
        node.pass_time(broker, QUIET_MS)
        assert await marks(broker, 1) == [(1, QUIET_MS)]

    node.run(story)


def _keyed() -> bytes:
    return encode_batch([(1_000, b"k", b"v", ())])
