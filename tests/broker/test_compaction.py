"""A real broker is killed while it compacts: what was acknowledged last is what is read."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path

from streamlog.assignors import TopicPartition
from streamlog.client.admin import NewTopic
from streamlog.log import Log, StoredLog
from tests.broker.process import BrokerProcess

TOPIC = {
    "cleanup.policy": "compact",
    "segment.bytes": "200000",
    "min.cleanable.dirty.ratio": "0.01",
}
BROKER = {
    "log.cleaner.backoff.ms": "20",
    # Slow enough to be met at work.
    "log.cleaner.io.max.bytes.per.second": "2000000",
}
PLACE = TopicPartition("t", 0)
KEYS = 100
SENT = 200
LIVES = 11 if os.environ.get("STREAMLOG_PROFILE") == "thorough" else 4
LIVES_ALIKE = 4
ROUNDS_MAX = 2_000

Values = dict[bytes | None, int]


def is_compacting(data: Path) -> bool:
    return any(data.glob("p-*/*.cleaned"))


async def write_until_it_compacts(
    broker: BrokerProcess,
    data: Path,
    written: Values,
    numbers: itertools.count[int],
    *,
    patience: int,
) -> None:
    """Ever larger numbers to the keys, until more cleaned segments were seen than `patience`."""
    async with Log.open(f"kafka://{broker.address}") as log, log.producer() as producer:
        for _ in range(ROUNDS_MAX):
            sent = []
            for number in itertools.islice(numbers, SENT):
                key = b"key-%d" % (number % KEYS)
                value = b"%09d" % number + b"." * 200
                sent.append((key, number, await producer.send("t", value, key=key)))
            for key, number, acknowledged in sent:
                await acknowledged
                written[key] = number
            patience -= is_compacting(data)
            if patience < 0:
                broker.kill()
                return
    raise AssertionError("nothing is compacted")


async def read_all(broker: BrokerProcess) -> tuple[Values, int]:
    """The last number of each key, and how many records it took to see them."""
    values, count = Values(), 0
    async with (
        Log.open(f"kafka://{broker.address}") as log,
        log.consumer(auto_offset_reset="none") as consumer,
    ):
        end = (await consumer.end_offsets([PLACE]))[PLACE]
        consumer.assign([PLACE])
        consumer.seek(PLACE, 0)
        while await consumer.position(PLACE) < end:
            for record in (await consumer.poll(timeout_ms=100)).get(PLACE, ()):
                values[record.key] = int((record.value or b"")[:9])
                count += 1
    return values, count


async def set_up(broker: BrokerProcess) -> None:
    async with Log.open(f"kafka://{broker.address}") as log:
        await log.admin().create_topics([NewTopic("t", 1, configs=TOPIC)])
        await log.admin().alter_configs(BROKER)


def test_kills_while_a_topic_is_compacted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    written: Values = {}
    numbers = itertools.count()
    for life in range(LIVES):
        with BrokerProcess(data) as broker:
            if life == 0:
                asyncio.run(set_up(broker))
            else:
                values, _ = asyncio.run(read_all(broker))
                # What was sent and not acknowledged may be there, too.
                assert values.keys() == written.keys()
                assert all(values[key] >= number for key, number in written.items())
            patience = 7 * (life % LIVES_ALIKE)
            asyncio.run(write_until_it_compacts(broker, data, written, numbers, patience=patience))
    with BrokerProcess(data) as broker:
        for _ in range(ROUNDS_MAX):
            values, count = asyncio.run(read_all(broker))
            assert all(values[key] >= number for key, number in written.items())
            if any(data.glob("p-*/cleaned-offset")):
                break
    with StoredLog(str(data)) as stored:
        start, end = stored.offsets("t", 0)
        batches = stored.read("t", 0, start, end)
        found = [record.offset for batch in batches for record in batch.records()]
    # Another cleaning may have ended since.
    assert len(found) <= count
    assert len(found) < end
    assert found == sorted(found)
