"""Jobs published through our own Admin, on an embedded log and over TCP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from crc32c import crc32c

from streamlog.client.admin import PublishedRange
from streamlog.errors import LogError
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode
from streamlog.record import TopicPartition
from streamlog.records.batch import encode_batch
from streamlog.records.staged_segment import StagedSegment

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
VALUES = [b"%d" % number for number in range(100)]
LARGE = bytes(700_000)


def segment_of(*values: bytes) -> bytes:
    return b"".join(encode_batch([(1_000, None, value, ())]) for value in values)


def staged_segment(data: bytes, count: int, *, name: str = "a") -> StagedSegment:
    return StagedSegment("t", 0, name, len(data), count, crc32c(data))


async def committed(log: Log, partition: TopicPartition, count: int) -> list[bytes | None]:
    async with log.consumer(
        isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([partition])
        found: list[bytes | None] = []
        while len(found) < count:
            polled = await consumer.poll(timeout_ms=5_000)
            found += [record.value for record in polled.get(partition, [])]
        return found


async def publish_twice(open_log: OpenLog) -> None:
    async with open_log(t=2) as log:
        admin = log.admin()
        assert await admin.is_streamlog()
        assert await admin.can_publish()
        data = segment_of(*VALUES, LARGE, LARGE)
        await admin.stage("job", "a", data)
        pointer = segment_of(b"pointer")
        publish = {
            "segments": [staged_segment(data, 102)],
            "records": {T1: pointer},
            "offsets": {"g": {T0: 5}},
        }
        published = await admin.publish("job", **publish)  # type: ignore[arg-type]
        assert not published.is_repeated
        assert published.ranges == {
            T0: PublishedRange(0, 101, 102),
            T1: PublishedRange(0, 0, 1),
        }
        assert await committed(log, T0, 102) == [*VALUES, LARGE, LARGE]
        assert await committed(log, T1, 1) == [b"pointer"]
        again = await admin.publish("job", **publish)  # type: ignore[arg-type]
        assert again.is_repeated
        assert again.ranges == published.ranges
        assert (await admin.group_offsets("g"))[T0] == 5


async def publish_damaged(open_log: OpenLog) -> None:
    async with open_log(t=1) as log:
        admin = log.admin()
        data = bytearray(segment_of(*VALUES))
        data[-1] ^= 1
        await admin.stage("job", "a", bytes(data))
        with pytest.raises(LogError, match="the batch at offset") as refused:
            await admin.publish("job", segments=[staged_segment(bytes(data), 100)])
        assert refused.value.code == ErrorCode.INVALID_RECORD
        await admin.drop_staged("job")
        with pytest.raises(LogError, match="has staged no file a"):
            await admin.publish("job", segments=[staged_segment(bytes(data), 100)])


def test_a_job_is_staged_and_published_once(open_log: OpenLog) -> None:
    asyncio.run(publish_twice(open_log))


def test_a_damaged_segment_is_refused_by_name(open_log: OpenLog) -> None:
    asyncio.run(publish_damaged(open_log))
