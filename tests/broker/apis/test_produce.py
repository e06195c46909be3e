"""Produce requests whose records a thread checks: order, refusals, and other clients meanwhile."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Executor
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.broker.apis.produce import CHECKS_THREAD
from streamlog.broker.broker import Broker
from streamlog.broker.config.settings import LONG_MAX
from streamlog.broker.server.socket_server import Acceptor
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.disk.offload import os_thread
from streamlog.errors import ConnectionLost
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.cluster_metadata import ApiVersionsRequest
from streamlog.protocol.messages.produce_and_fetch import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
)
from streamlog.records.batch import HEADER_BYTES, encode_batch
from streamlog.records.compression import Compression, compress
from tests.broker.apis.test_produce_runs import answers, read, send, serve
from tests.broker.node import Node, batch, create, later, produce, produce_request
from tests.broker.replication.cluster import HeldThread
from tests.broker.server.test_socket_server import Peer, peer, until
from tests.records.slow_reader import Malformed, read_records
from tests.records.test_record_scan import ROWS, Row, damaged, sealed

MIB = 1024 * 1024


def recoded(data: bytes, codec: Compression) -> bytes:
    """Return the batch with its records section compressed, whether that is valid or not."""
    header = bytearray(data[:HEADER_BYTES])
    header[21:23] = codec.to_bytes(2)
    return sealed(header + compress(codec, data[HEADER_BYTES:]))


def bomb(size_bytes: int = 100 * MIB) -> bytes:
    """Return a batch of a few kilobytes that decompresses to one record of `size_bytes`."""
    return recoded(encode_batch([(1, None, bytes(size_bytes), ())]), Compression.ZSTD)


def is_sound(data: bytes) -> bool:
    count = int.from_bytes(data[57:61])
    try:
        read_records(data[HEADER_BYTES:], count, int.from_bytes(data[27:35], signed=True))
    except Malformed:
        return False
    return True


@given(
    requests=st.lists(
        st.tuples(ROWS, st.sampled_from(Compression), st.integers(0, 2**32), st.booleans()),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=100, deadline=None)
def test_exactly_the_readable_batches_are_appended_in_order(
    requests: list[tuple[list[Row], Compression, int, bool]],
) -> None:
    sent, expected, offset = [], [], 0
    for rows, codec, seed, is_damaged in requests:
        data = encode_batch(rows)
        data = damaged(data, Random(seed)) if is_damaged else data
        is_good = is_sound(data)
        expected.append((0, offset) if is_good else (ErrorCode.INVALID_RECORD, -1))
        offset += int.from_bytes(data[57:61]) if is_good else 0
        sent.append(recoded(data, codec))

    async def story(broker: Broker, one: Peer) -> None:
        create(broker, message_timestamp_after_max_ms=str(LONG_MAX))
        send(one, [produce_request(each) for each in sent])
        found = await answers(one, len(sent))
        assert [(each.error_code, each.base_offset) for each in found] == expected
        log = broker.directory.log("t", 0)
        assert log.log_end_offset == offset

    serve(story)


def refusal_of(data: bytes, **configs: str) -> PartitionProduceResponse:
    async def story(broker: Broker) -> PartitionProduceResponse:
        create(broker, **configs)
        answer = await produce(broker, data)
        assert broker.directory.log("t", 0).log_end_offset == 0
        return answer

    return Node().run(story)


@pytest.mark.parametrize("codec", Compression)
def test_a_refusal_lists_the_records_without_keys(codec: Compression) -> None:
    rows = [(1, key, b"v", ()) for key in (b"a", None, b"b", None)]
    answer = refusal_of(encode_batch(rows, codec=codec), cleanup_policy="compact")
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [each.batch_index for each in answer.record_errors] == [1, 3]
    assert all("has no key" in (e.batch_index_error_message or "") for e in answer.record_errors)
    assert "record 1 of a batch was refused" in (answer.error_message or "")


@pytest.mark.parametrize("codec", Compression)
def test_a_refusal_lists_the_records_outside_the_timestamp_bounds(codec: Compression) -> None:
    now_ms = Node().clock.wall_ms()
    times = [now_ms, now_ms + 10_000, now_ms - 10_000, -1]
    data = encode_batch([(time_ms, None, b"v", ()) for time_ms in times], codec=codec)
    bounds = {"message_timestamp_after_max_ms": "5000", "message_timestamp_before_max_ms": "5000"}
    answer = refusal_of(data, **bounds)
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [each.batch_index for each in answer.record_errors] == [1, 2]


@pytest.mark.parametrize("codec", Compression)
def test_the_topic_bounds_how_far_ahead_a_timestamp_may_be(codec: Compression) -> None:
    hour_ms = 60 * 60 * 1000
    now_ms = Node().clock.wall_ms()
    times = [now_ms + hour_ms, now_ms + hour_ms + 1, 10**14]
    data = encode_batch([(time_ms, None, b"v", ()) for time_ms in times], codec=codec)
    answer = refusal_of(data, message_timestamp_after_max_ms=str(hour_ms))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [each.batch_index for each in answer.record_errors] == [1, 2]
    reason = answer.record_errors[0].batch_index_error_message or ""
    assert f"timestamp {times[1]} (2023-11-14 23:13:20 UTC)" in reason
    assert f"later than {times[0]} (2023-11-14 23:13:20 UTC)" in reason
    assert "message.timestamp.after.max.ms" in reason

    async def story(broker: Broker) -> int:
        create(broker, message_timestamp_after_max_ms=str(hour_ms))
        sent = encode_batch([(times[0], None, b"v", ())], codec=codec)
        return (await produce(broker, sent)).error_code

    assert Node().run(story) == 0


def test_the_default_bound_of_future_timestamps_is_an_hour() -> None:
    ahead_ms = Node().clock.wall_ms() + 60 * 60 * 1000 + 1
    answer = refusal_of(encode_batch([(ahead_ms, None, b"v", ())]))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP


def test_without_record_validation_the_header_s_timestamp_is_checked() -> None:
    data = encode_batch([(2**42, None, b"v", ())])
    answer = refusal_of(data, validate_records="false", message_timestamp_after_max_ms="3600000")
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert "message.timestamp.after.max.ms" in (answer.error_message or "")


@pytest.mark.parametrize("codec", Compression)
def test_a_refusal_names_the_malformed_record(codec: Compression) -> None:
    data = bytearray(encode_batch([(1, b"k", b"v", ())] * 3))
    data[HEADER_BYTES + (len(data) - HEADER_BYTES) // 3 + 4] = (
        100  # the key size of the second record
    )
    answer = refusal_of(recoded(bytes(data), codec))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [each.batch_index for each in answer.record_errors] == [1]


@pytest.mark.parametrize(
    "configs",
    [
        {},
        {"cleanup_policy": "compact"},
        {"compression_type": "gzip"},
        {"message_timestamp_type": "LogAppendTime"},
        {"message_timestamp_after_max_ms": "3600000"},
    ],
)
def test_decompression_bombs_are_refused(configs: dict[str, str]) -> None:
    answer = refusal_of(bomb(), **configs)
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert "raise max.decompressed.bytes" in (answer.error_message or "")


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec])
def test_the_refusal_of_a_bomb_names_its_size_and_the_setting(codec: Compression) -> None:
    data = recoded(encode_batch([(1, None, bytes(100_000), ())]), codec)
    answer = refusal_of(data, max_decompressed_bytes="50000")
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert answer.error_message == (
        f"a batch of {len(data)} bytes ({codec.name.lower()}) was refused: its records take more"
        " than 50000 bytes decompressed; send smaller batches, or raise max.decompressed.bytes for"
        " the topic (message.max.decompressed.bytes for the broker)"
    )


def test_max_decompressed_bytes_is_a_setting_of_the_topic() -> None:
    data = recoded(encode_batch([(1, None, bytes(5_000), ())]), Compression.ZSTD)
    assert refusal_of(data, max_decompressed_bytes="5000").error_code == ErrorCode.INVALID_RECORD

    async def story(broker: Broker) -> int:
        create(broker, max_decompressed_bytes="6000")
        return (await produce(broker, data)).error_code

    assert Node().run(story) == 0


def test_without_record_validation_a_batch_of_garbage_is_appended() -> None:
    async def story(broker: Broker) -> None:
        create(broker, validate_records="false")
        garbage = sealed(bytearray(batch(b"x")[:HEADER_BYTES]) + b"\xff" * 30)
        assert (await produce(broker, garbage)).error_code == 0
        assert (await produce(broker, recoded(garbage, Compression.ZSTD))).error_code == 0

    Node().run(story)


def test_the_broker_corrects_the_max_timestamp_of_a_header() -> None:
    """Retention and searches by time use it; Kafka corrects it, too."""

    async def story(broker: Broker) -> None:
        create(broker)
        data = bytearray(encode_batch([(7, None, b"v", ()), (5, None, b"w", ())]))
        data[35:43] = (10**15).to_bytes(8)
        for sent in (sealed(data), recoded(sealed(data), Compression.GZIP)):
            assert (await produce(broker, sent)).error_code == 0
        log = broker.directory.log("t", 0)
        assert log.offset_for_timestamp(8) is None
        assert log.offset_for_timestamp(7) is not None

    Node().run(story)


def test_other_requests_are_answered_during_a_record_check() -> None:
    thread = HeldThread("streamlog-records")
    thread.held = True
    threads = {"streamlog-records": thread}

    def thread_of(name: str) -> Executor:
        return threads.get(name) or os_thread(name)

    async def main() -> None:
        async with (
            Broker.open("data", files=MemoryFiles(), threads=thread_of) as broker,
            Acceptor(broker) as server,
            peer(server) as one,
            peer(server) as other,
        ):
            create(broker)
            packed = batch(b"0", codec=Compression.ZSTD)
            send(one, [produce_request(each) for each in (packed, batch(b"1"))])
            await until(lambda: broker.checks.is_busy(1))
            other.ask(ApiVersionsRequest(), 7)
            await other.answer(ApiVersionsRequest)
            other.ask(produce_request(batch(b"first")), 8)
            _, first = await other.answer(ProduceRequest)
            assert first.responses[0].partition_responses[0].base_offset == 0  # type: ignore[attr-defined]
            thread.release()
            found = await answers(one, 2)
            assert [each.base_offset for each in found] == [1, 2]
            assert await read(one, "t") == [b"first", b"0", b"1"]

    asyncio.run(main())


def test_closing_the_broker_fails_a_produce_whose_check_is_pending() -> None:
    async def story(broker: Broker) -> asyncio.Future[object]:
        create(broker)
        return later(broker, produce_request(batch(b"0", codec=Compression.ZSTD)))

    with pytest.raises(ConnectionLost):
        Node().run(story).result()


def test_a_refused_produce_with_acks_0_closes_the_connection() -> None:
    async def story(broker: Broker, one: Peer) -> None:
        create(broker)
        good, bad = batch(b"0", codec=Compression.GZIP), bomb(70 * MIB)
        send(one, [produce_request(each, acks=0) for each in (good, bad)])
        assert await one.hung_up()
        assert broker.directory.log("t", 0).log_end_offset == 1

    serve(story)


def test_a_check_for_which_no_thread_starts_ends_its_connection_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, refusals = threading.Thread.start, ["can't start new thread"]

    def short(thread: threading.Thread) -> None:
        if thread.name == CHECKS_THREAD and refusals:
            raise RuntimeError(refusals.pop())
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", short)

    async def story(broker: Broker, one: Peer) -> None:
        create(broker)
        packed = produce_request(batch(b"0", codec=Compression.GZIP))
        send(one, [packed])
        assert await one.hung_up()
        assert not broker.checks.is_busy(1)
        again = await later(broker, packed)
        assert isinstance(again, ProduceResponse)
        assert again.responses[0].partition_responses[0].base_offset == 0

    serve(story)
    assert "thread streamlog-records does not start" in caplog.text
