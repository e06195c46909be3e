"""Produce, Fetch, ListOffsets and OffsetForLeaderEpoch through `Broker.handle`."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.broker.broker import Broker
from streamlog.errors import LogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import InitProducerIdRequest, InitProducerIdResponse
from streamlog.protocol.messages.cluster_metadata import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from streamlog.protocol.messages.produce_and_fetch import (
    FetchPartition,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ProduceResponse,
)
from streamlog.protocol.schema import Message
from streamlog.records.batch import encode_batch
from streamlog.records.compression import Compression
from tests.broker.node import (
    Node,
    ask,
    at,
    batch,
    context,
    create,
    delete,
    fetch,
    fetch_request,
    later,
    produce,
    produce_request,
    records,
    values,
)


def test_fetch_returns_produced_records(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        first = await produce(broker, batch(b"a", b"b"))
        second = await produce(broker, batch(b"c"))
        assert (first.base_offset, second.base_offset) == (0, 2)
        (data,) = await fetch(broker, at(0))
        assert [record.offset for record in records(data)] == [0, 1, 2]
        assert data.high_watermark == data.last_stable_offset == 3

    node.run(story)


def test_records_survive_a_restart(node: Node) -> None:
    async def before(broker: Broker) -> None:
        create(broker)
        await produce(broker, batch(b"a"))

    async def after(broker: Broker) -> None:
        assert values((await fetch(broker, at(0)))[0]) == [b"a"]
        assert (await produce(broker, batch(b"b"))).base_offset == 1

    node.run(before)
    node.run(after)


def test_an_error_in_one_partition_leaves_the_others_unaffected(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        request = produce_request(batch(b"a"))
        request.topic_data += produce_request(batch(b"a"), topic="nowhere").topic_data
        response = await ask(broker, request, ProduceResponse)
        codes = [topic.partition_responses[0].error_code for topic in response.responses]
        assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        answers = await fetch(broker, at(0), at(0, partition=9), at(99), at(-1))
        assert [data.error_code for data in answers] == [
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.OFFSET_OUT_OF_RANGE,
            ErrorCode.OFFSET_OUT_OF_RANGE,
        ]
        assert [data.high_watermark for data in answers] == [1, -1, -1, -1]

    node.run(story)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\0" * 61, ErrorCode.INVALID_RECORD),
        (batch(b"a")[:-1], ErrorCode.CORRUPT_MESSAGE),
        (batch(b"a")[:-1] + b"!", ErrorCode.CORRUPT_MESSAGE),
        (batch(b"a" * 2_000_000), ErrorCode.MESSAGE_TOO_LARGE),
    ],
    ids=["zeros", "short", "changed", "large"],
)
def test_invalid_batches_are_refused(node: Node, data: bytes, code: ErrorCode) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        answer = await produce(broker, data)
        assert (answer.error_code, answer.base_offset) == (code, -1)
        assert answer.error_message
        assert (await fetch(broker, at(0)))[0].high_watermark == 0

    node.run(story)


def test_missing_or_empty_records_are_refused(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        for data in (None, b""):
            assert (await produce(broker, data)).error_code != ErrorCode.NONE

    node.run(story)


def test_an_invalid_acks_value_is_refused(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        response = await ask(broker, produce_request(batch(b"a"), acks=2), ProduceResponse)
        answer = response.responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS

    node.run(story)


def test_a_produce_with_acks_0_gets_no_response(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        request = produce_request(batch(b"a"), acks=0)
        assert await broker.handle(request, context(request)) is None
        waiting = fetch_request(at(0), max_wait_ms=60_000)
        response = await ask(broker, waiting, FetchResponse)
        assert values(response.responses[0].partitions[0]) == [b"a"]
        refused = produce_request(batch(b"a"), acks=0, topic="nowhere")
        with pytest.raises(LogError, match="nowhere"):
            await broker.handle(refused, context(refused))

    node.run(story)


def test_a_retried_batch_is_not_appended_twice(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        got = await ask(
            broker, InitProducerIdRequest(transactional_id=None), InitProducerIdResponse
        )

        def numbered(sequence: int) -> bytes:
            return encode_batch(
                [(0, None, b"v", ())],
                producer_id=got.producer_id,
                producer_epoch=got.producer_epoch,
                base_sequence=sequence,
            )

        assert (await produce(broker, numbered(0))).base_offset == 0
        again = await produce(broker, numbered(0))
        assert (again.error_code, again.base_offset) == (ErrorCode.NONE, 0)
        gap = await produce(broker, numbered(5))
        assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await fetch(broker, at(0)))[0].high_watermark == 1

    node.run(story)


def test_clients_cannot_produce_to_internal_topics(node: Node) -> None:
    async def story(broker: Broker) -> None:
        answer = await produce(broker, batch(b"a"), topic="__consumer_offsets")
        assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION

    node.run(story)


def test_zstd_needs_produce_version_7_and_fetch_version_10(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        squeezed = batch(b"a" * 100, codec=Compression.ZSTD)
        refused = await produce(broker, squeezed, version=6)
        assert refused.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        await produce(broker, squeezed, version=7)
        old = await ask(broker, fetch_request(at(0)), FetchResponse, 9)
        code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert old.responses[0].partitions[0].error_code == code
        assert values((await fetch(broker, at(0)))[0]) == [b"a" * 100]

    node.run(story)


# ---- fetch ----


def test_fetch_returns_the_whole_batch_that_contains_the_offset(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await produce(broker, batch(b"a", b"b", b"c"))
        assert values((await fetch(broker, at(1)))[0]) == [b"a", b"b", b"c"]

    node.run(story)


def test_fetch_shares_max_bytes_and_always_returns_the_first_batch(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker, partitions=3)
        big = batch(b"x" * 1_000)
        for index in range(3):
            for _ in range(3):
                await produce(broker, big, index=index)
        every = [at(0, partition=index) for index in range(3)]
        sizes = [len(values(data)) for data in await fetch(broker, *every, max_bytes=1)]
        assert sizes == [1, 0, 0]
        four = await fetch(broker, *every, max_bytes=4 * len(big) + 10)
        assert [len(values(data)) for data in four] == [3, 1, 0]
        small = [at(0, partition=index, max_bytes=len(big)) for index in range(3)]
        assert [len(values(data)) for data in await fetch(broker, *small)] == [1, 1, 1]

    node.run(story)


def test_fetch_compares_leader_epochs(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        answers = await fetch(broker, at(0, epoch=0), at(0, epoch=1))
        codes = [data.error_code for data in answers]
        assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_LEADER_EPOCH]
        broker.directory.log("t", 0).epochs.current = 1
        (late,) = await fetch(broker, at(0, epoch=0))
        assert late.error_code == ErrorCode.FENCED_LEADER_EPOCH

    node.run(story)


def test_fetch_reports_the_end_offset_of_a_diverging_epoch(node: Node) -> None:
    """KIP-595: the response comes at once and without records."""

    def last_in(epoch: int, offset: int) -> FetchPartition:
        return FetchPartition(
            partition=0,
            fetch_offset=offset,
            partition_max_bytes=1 << 20,
            last_fetched_epoch=epoch,
        )

    async def before(broker: Broker) -> None:
        create(broker)
        await produce(broker, batch(b"a", b"b"))

    async def after(broker: Broker) -> None:
        await produce(broker, batch(b"c", b"d"))
        for epoch, offset in ((0, 2), (2, 3), (-1, 2)):
            (data,) = await fetch(broker, last_in(epoch, offset))
            assert (data.error_code, data.diverging_epoch) == (0, None)
            assert values(data)[-1] == b"d"
        request = fetch_request(last_in(0, 3), max_wait_ms=500)
        answer = await ask(broker, request, FetchResponse)
        (data,) = answer.responses[0].partitions
        assert data.diverging_epoch is not None
        assert (data.diverging_epoch.epoch, data.diverging_epoch.end_offset) == (0, 2)
        assert (data.error_code, data.high_watermark, values(data)) == (0, 4, [])
        (unknown,) = await fetch(broker, last_in(7, 3))
        assert unknown.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        broker.directory.log("t", 0).advance_start(2)
        (gone,) = await fetch(broker, last_in(0, 1))
        assert gone.error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    node.run(before)
    node.files.remove("data/clean_shutdown")
    node.run(after)


def begin_fetch(broker: Broker, **settings: int) -> asyncio.Future[Message]:
    return later(broker, fetch_request(at(0), max_wait_ms=500, **settings))


async def fetched_values(answer: asyncio.Future[Message]) -> list[bytes | None]:
    async with asyncio.timeout(60):
        response = await answer
    assert isinstance(response, FetchResponse)
    return values(response.responses[0].partitions[0])


def test_a_fetch_waits_for_the_next_append(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker, partitions=2)
        answer = begin_fetch(broker)
        await produce(broker, batch(b"elsewhere"), index=1)
        await asyncio.sleep(0)
        assert not answer.done()
        await produce(broker, batch(b"a"))
        assert await fetched_values(answer) == [b"a"]

    node.run(story)


def test_a_fetch_waits_until_min_bytes_are_available(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        size = len(batch(b"a"))
        answer = begin_fetch(broker, min_bytes=2 * size)
        await produce(broker, batch(b"a"))
        await asyncio.sleep(0)
        assert not answer.done()
        await produce(broker, batch(b"b"))
        assert await fetched_values(answer) == [b"a", b"b"]

    node.run(story)


def test_a_fetch_returns_the_available_records_after_max_wait(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        await produce(broker, batch(b"a"))
        answer = begin_fetch(broker, min_bytes=1_000)
        node.pass_time(broker, 499)
        assert not answer.done()
        node.pass_time(broker, 1)
        assert await fetched_values(answer) == [b"a"]

    node.run(story)


def test_an_append_completes_all_waiting_fetches(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        answers = [begin_fetch(broker) for _ in range(100)]
        answers[0].cancel()
        await produce(broker, batch(b"a"))
        for answer in answers[1:]:
            assert await fetched_values(answer) == [b"a"]

    node.run(story)


def test_deleting_a_topic_completes_its_waiting_fetches(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        answer = begin_fetch(broker)
        delete(broker)
        async with asyncio.timeout(60):
            response = await answer
        assert isinstance(response, FetchResponse)
        code = response.responses[0].partitions[0].error_code
        assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    node.run(story)


# ---- list offsets ----


async def look_up(
    broker: Broker, timestamp_ms: int, epoch: int = -1
) -> ListOffsetsPartitionResponse:
    partition = ListOffsetsPartition(
        partition_index=0, timestamp=timestamp_ms, current_leader_epoch=epoch
    )
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[partition])]
    )
    response = await ask(broker, request, ListOffsetsResponse)
    return response.topics[0].partitions[0]


def test_list_offsets_answers_timestamps_and_special_timestamps(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        for timestamp_ms in (1_000, 3_000, 2_000):
            await produce(broker, batch(b"a", b"b", timestamp_ms=timestamp_ms))
        asked = {-1: (6, -1), -2: (0, -1), -3: (2, 3_000), -4: (0, -1), -5: (-1, -1)}
        asked |= {0: (0, 1_000), 1_000: (0, 1_000), 1_001: (2, 3_000), 3_001: (-1, -1)}
        for timestamp_ms, expected in asked.items():
            answer = await look_up(broker, timestamp_ms)
            assert (answer.offset, answer.timestamp) == expected, timestamp_ms
            assert answer.leader_epoch == (0 if answer.offset >= 0 else -1)
        assert (await look_up(broker, -6)).error_code == ErrorCode.INVALID_REQUEST
        assert (await look_up(broker, -1, epoch=9)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH

    node.run(story)


def test_list_offsets_finds_no_timestamp_in_an_empty_partition(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker)
        assert [(await look_up(broker, t)).offset for t in (-1, -2, -3, 0)] == [0, 0, -1, -1]

    node.run(story)


def spoil(node: Node, position: int) -> None:
    """Flip one bit of the byte at `position` in the only log."""
    (folder,) = (name for name in node.files.list("data") if name.startswith("p-"))
    file = node.files.open(f"data/{folder}/{0:020d}.log", writable=True)
    file.write(bytes([file.read(1, position)[0] ^ 0x10]), position)
    file.close()


def test_a_damaged_batch_is_reported_to_readers_logged_once_and_skipped(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    async def before(broker: Broker) -> None:
        create(broker)
        for value in (b"a", b"b", b"c"):
            await produce(broker, batch(value))

    async def after(broker: Broker) -> None:
        (data,) = await fetch(broker, at(0))
        assert values(data) == [b"a"]
        for _ in range(3):
            (data,) = await fetch(broker, at(1))
            assert data.error_code == ErrorCode.CORRUPT_MESSAGE
            assert data.records == b""
        (data,) = await fetch(broker, at(2))
        assert values(data) == [b"c"]
        assert (await produce(broker, batch(b"d"))).error_code == 0

    node.run(before)
    spoil(node, len(batch(b"a")) + 30)
    node.files.remove("data/clean_shutdown")  # Makes the broker scan the log.
    node.run(after)
    reports = [line for line in caplog.messages if "is damaged at position" in line]
    assert len(reports) == 1, reports
    assert reports[0].startswith("t-0: data/p-")
    assert f"at position {len(batch(b'a'))}" in reports[0]
    assert "offsets 1 to 1" in reports[0]


@pytest.mark.parametrize("is_scanned", [True, False])
def test_a_damage_watcher_is_called_when_a_scan_or_a_read_finds_damage(
    node: Node, *, is_scanned: bool
) -> None:
    async def before(broker: Broker) -> None:
        create(broker)
        for value in (b"a", b"b", b"c"):
            await produce(broker, batch(value))

    async def after(broker: Broker) -> None:
        found: list[int] = []
        log = broker.directory.log("t", 0)
        log.watch_damage(lambda: found.append(len(log.damage)))
        assert found == ([1] if is_scanned else [])
        await fetch(broker, at(1))
        assert found == [1]

    node.run(before)
    spoil(node, len(batch(b"a")) + 16)
    if is_scanned:
        node.files.remove("data/clean_shutdown")
    node.run(after)


def test_a_damaged_log_end_refuses_appends(node: Node) -> None:
    async def before(broker: Broker) -> None:
        create(broker)
        await produce(broker, batch(b"a"))

    async def after(broker: Broker) -> None:
        answer = await produce(broker, batch(b"b"))
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        (data,) = await fetch(broker, at(0))
        assert data.error_code == ErrorCode.CORRUPT_MESSAGE

    node.run(before)
    spoil(node, 30)
    node.files.remove("data/clean_shutdown")  # Makes the broker scan the log.
    node.run(after)


def test_a_damaged_log_end_is_no_end_for_those_that_have_read_more(node: Node) -> None:
    """1. A mirror or a consumer has read offsets 0 to 2. 2. Offset 2 is damaged: the log ends there
    after a restart. 3. Told that the log ends at 2, they would cut or reset: it is an error."""
    epoch_end = OffsetForLeaderEpochRequest(
        topics=[
            OffsetForLeaderTopic(
                topic="t", partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=0)]
            )
        ]
    )

    async def before(broker: Broker) -> None:
        create(broker)
        for value in (b"a", b"b", b"c"):
            await produce(broker, batch(value))

    async def after(broker: Broker) -> None:
        for offset, code in ((0, 0), (2, 2), (3, 2), (9, 2)):
            wanted = at(offset)
            wanted.last_fetched_epoch = 0
            (data,) = await fetch(broker, wanted)
            assert (data.error_code, data.diverging_epoch) == (code, None), offset
        answer = await ask(broker, epoch_end, OffsetForLeaderEpochResponse)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.CORRUPT_MESSAGE
        assert (await look_up(broker, -1)).error_code == ErrorCode.CORRUPT_MESSAGE
        assert (await look_up(broker, -2)).offset == 0

    node.run(before)
    spoil(node, len(batch(b"a") + batch(b"b")) + 30)
    node.files.remove("data/clean_shutdown")  # Makes the broker scan the log.
    node.run(after)


def test_offset_for_leader_epoch_returns_an_epoch_s_end(node: Node) -> None:
    request = OffsetForLeaderEpochRequest(
        topics=[
            OffsetForLeaderTopic(
                topic="t",
                partitions=[
                    OffsetForLeaderPartition(partition=partition, leader_epoch=0)
                    for partition in (0, 1)
                ],
            )
        ]
    )

    async def before(broker: Broker) -> None:
        create(broker)
        await produce(broker, batch(b"a", b"b"))

    async def after(broker: Broker) -> None:
        await produce(broker, batch(b"c"))
        response = await ask(broker, request, OffsetForLeaderEpochResponse)
        found, unknown = response.topics[0].partitions
        assert (found.error_code, found.leader_epoch, found.end_offset) == (0, 0, 2)
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    node.run(before)
    node.files.remove("data/clean_shutdown")
    node.run(after)
