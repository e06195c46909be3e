"""A broker process is killed during compaction: the last acknowledged values are read."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Iterable
from pathlib import Path

from streamlog.client.admin import NewTopic
from streamlog.client.producer import Producer
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.stored_log import StoredLog
from tests.broker.process import BrokerProcess

TOPIC = {
    "cleanup.policy": "compact",
    "segment.bytes": "200000",
    "min.cleanable.dirty.ratio": "0.01",
}
BROKER = {
    "log.cleaner.backoff.ms": "20",
    # Slow enough for the test to observe a cleaning.
    "log.cleaner.io.max.bytes.per.second": "2000000",
}
PARTITION = TopicPartition("t", 0)
KEYS = 100
SENT = 200
LIVES = 11 if os.environ.get("STREAMLOG_PROFILE") == "thorough" else 4
PATIENCE_STEPS = 4
LOG_BYTES_MAX = 2_000_000
"""Above this size the writer waits for the cleaner, whose map of keys would take ever longer."""
COMPACTED_WITHIN_S = 120.0

Values = dict[bytes | None, int]


def is_compacting(data: Path) -> bool:
    return any(data.glob("p-*/*.cleaned"))


def log_bytes(data: Path) -> int:
    """Return the size of all segments; the broker may delete one meanwhile."""
    total = 0
    for path in data.glob("p-*/*.log"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


async def write_until_it_compacts(
    broker: BrokerProcess,
    data: Path,
    written: Values,
    numbers: itertools.count[int],
    *,
    patience: int,
) -> None:
    """Write increasing numbers until more than `patience` cleanings were seen; then kill the
    broker."""
    async with (
        asyncio.timeout(COMPACTED_WITHIN_S),
        Log.open(f"kafka://{broker.address}") as log,
        log.producer() as producer,
    ):
        while patience >= 0:
            if log_bytes(data) < LOG_BYTES_MAX:
                await write(producer, written, itertools.islice(numbers, SENT))
            else:
                await asyncio.sleep(0.005)
            patience -= is_compacting(data)
        broker.kill()


async def write(producer: Producer, written: Values, numbers: Iterable[int]) -> None:
    sent = []
    for number in numbers:
        key = b"key-%d" % (number % KEYS)
        value = b"%09d" % number + b"." * 200
        sent.append((key, number, await producer.send("t", value, key=key)))
    for key, number, acknowledged in sent:
        await acknowledged
        written[key] = number


async def read_all(broker: BrokerProcess) -> tuple[Values, int]:
    """Return the last number of each key, and the number of records read."""
    values, count = Values(), 0
    async with (
        Log.open(f"kafka://{broker.address}") as log,
        log.consumer(auto_offset_reset="none") as consumer,
    ):
        end = (await consumer.end_offsets([PARTITION]))[PARTITION]
        consumer.assign([PARTITION])
        consumer.seek(PARTITION, 0)
        while await consumer.position(PARTITION) < end:
            for record in (await consumer.poll(timeout_ms=100)).get(PARTITION, ()):
                values[record.key] = int((record.value or b"")[:9])
                count += 1
    return values, count


async def set_up(broker: BrokerProcess) -> None:
    async with Log.open(f"kafka://{broker.address}") as log:
        await log.admin().create_topics([NewTopic("t", 1, configs=TOPIC)])
        await log.admin().alter_configs(BROKER)


def test_kills_during_compaction_lose_no_acknowledged_value(tmp_path: Path) -> None:
    data = tmp_path / "data"
    written: Values = {}
    numbers = itertools.count()
    for life in range(LIVES):
        with BrokerProcess(data) as broker:
            if life == 0:
                asyncio.run(set_up(broker))
            else:
                values, _ = asyncio.run(read_all(broker))
                # Values that were sent but not acknowledged may be there, too.
                assert values.keys() == written.keys()
                assert all(values[key] >= number for key, number in written.items())
            patience = 7 * (life % PATIENCE_STEPS)
            asyncio.run(write_until_it_compacts(broker, data, written, numbers, patience=patience))
    with BrokerProcess(data) as broker:
        give_up = time.monotonic() + COMPACTED_WITHIN_S
        while True:
            values, count = asyncio.run(read_all(broker))
            assert all(values[key] >= number for key, number in written.items())
            if any(data.glob("p-*/cleaned-offset")):
                break
            assert time.monotonic() < give_up, "nothing was compacted in time"
    with StoredLog(str(data)) as stored:
        start, end = stored.offsets("t", 0)
        batches = stored.read("t", 0, start, end)
        found = [record.offset for batch in batches for record in batch.records()]
    # Another cleaning may have ended since.
    assert len(found) <= count
    assert len(found) < end
    assert found == sorted(found)
