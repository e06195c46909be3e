"""Time marks in our consumer; other projects' logs have none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog.client.admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.control_batches import TimeMark
from tests.client.conftest import OpenLog

T0 = TopicPartition("t", 0)
PATIENCE_MS = 60_000


async def marks(consumer: Consumer) -> list[TimeMark]:
    """Return the time marks of the next poll that passes any."""
    async with asyncio.timeout(PATIENCE_MS / 1000):
        while not (found := consumer.time_marks()):
            assert await consumer.poll_columns(timeout_ms=PATIENCE_MS) == {}
    return found[T0]


@pytest.mark.parametrize("target", ["embedded", "tcp"])
def test_requested_time_marks_arrive_between_the_records(target: str, tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        quiet = NewTopic("t", 1, configs={"mark.quiet.ms": "20"})
        await log.admin().create_topics([quiet])
        async with (
            log.producer() as producer,
            log.consumer(auto_offset_reset="earliest", time_marks=True) as consumer,
        ):
            await (await producer.send("t", b"1", partition=0, timestamp_ms=1_000))
            consumer.assign([T0])
            polled = await consumer.poll_columns(timeout_ms=PATIENCE_MS)
            assert [record.value for record in polled[T0]] == [b"1"]
            consumer.want_mark(T0, 30)
            (first,) = await marks(consumer)
            assert first.offset == 1
            assert first.elapsed_ms >= 30
            assert await consumer.position(T0) == 2
            consumer.want_mark(T0, None)
            await (await producer.send("t", b"2", partition=0, timestamp_ms=2_000))
        async with log.consumer(auto_offset_reset="earliest", time_marks=True) as again:
            again.assign([T0])
            seen = []
            while len(seen) < 2:
                polled = await again.poll_columns(timeout_ms=PATIENCE_MS, max_records=1)
                seen += [record.offset for columns in polled.values() for record in columns]
            assert seen == [0, 2]
            assert again.time_marks() == {T0: [first]}
            assert again.time_marks() == {}
            again.seek(T0, 2)
            assert [r.offset for r in (await again.poll(timeout_ms=PATIENCE_MS))[T0]] == [2]
            assert again.time_marks() == {}

    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path / 'data'}") as served:
            if target == "embedded":
                await story(served)
                return
            assert served.address is not None
            host, port = served.address
            async with Log.open(f"kafka://{host}:{port}") as remote:
                await story(remote)

    asyncio.run(main())


def test_time_marks_do_not_wake_a_consumer_without_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            Log.open(f"embedded:{tmp_path / 'data'}", listen=False) as log,
            log.producer() as producer,
            log.consumer(auto_offset_reset="earliest", time_marks=True) as wants,
            log.consumer(auto_offset_reset="earliest") as reads,
        ):
            await log.admin().create_topics([NewTopic("t", 1, configs={"mark.quiet.ms": "20"})])
            await (await producer.send("t", b"1", partition=0, timestamp_ms=1_000))
            for each in (wants, reads):
                each.assign([T0])
                await each.poll(timeout_ms=PATIENCE_MS)
            wants.want_mark(T0, 0)
            polled = asyncio.create_task(reads.poll(timeout_ms=PATIENCE_MS))
            await marks(wants)
            await (await producer.send("t", b"2", partition=0, timestamp_ms=2_000))
            assert [record.value for record in (await polled)[T0]] == [b"2"]
            assert reads.time_marks() == {}

    asyncio.run(main())


def test_a_log_without_time_marks_is_read_normally(open_log: OpenLog) -> None:
    async def main() -> None:
        async with (
            open_log(t=1) as log,
            log.producer() as producer,
            log.consumer(auto_offset_reset="earliest", time_marks=True) as consumer,
        ):
            consumer.assign([T0])
            consumer.want_mark(T0, 1_000_000)
            for number in range(3):
                await (await producer.send("t", b"%d" % number, partition=0))
                (record,) = (await consumer.poll(timeout_ms=PATIENCE_MS))[T0]
                assert record.value == b"%d" % number

    asyncio.run(main())
