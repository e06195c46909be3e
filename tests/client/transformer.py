"""A worker to be killed: copies `in` to `out` in transactions, with a mark on each value.

`python -m tests.client.transformer ADDRESS NAME` is a static member of the group and a producer
with that name. It prints its steps, so that its killer can choose the moment.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence

from streamlog.client.consumer import Consumer
from streamlog.client.producer import Producer
from streamlog.errors import StreamlogError
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord

GROUP = "transformers"
RECORDS_MAX = 20
ATTACH_TIMEOUT_MS = 60_000
"""The broker may be starting, too."""
MARK = "made of "
STEPS = ("begun", "written", "sent", "committed")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def transform(
    consumer: Consumer, producer: Producer, polled: Mapping[TopicPartition, Sequence[LogRecord]]
) -> None:
    """Write the results and commit the offsets of the input in one transaction."""
    async with producer.transaction() as transaction:
        say("begun")
        for topic_partition, records in polled.items():
            for record in records:
                value = MARK.encode() + (record.value or b"")
                await producer.send("out", value, partition=topic_partition.partition)
        await producer.flush()
        say("written")
        ends = {
            topic_partition: records[-1].offset + 1 for topic_partition, records in polled.items()
        }
        await transaction.send_offsets(ends, consumer.group_metadata())
        say("sent")
    say("committed")


async def go_back(consumer: Consumer) -> None:
    """Return to the end of the last committed transaction."""
    for topic_partition, offset in (await consumer.committed(consumer.assignment())).items():
        consumer.seek(topic_partition, offset or 0)


async def work(address: str, name: str) -> None:
    async with (
        Log.attach(f"kafka://{address}", timeout_ms=ATTACH_TIMEOUT_MS) as log,
        log.producer(transactional_id=name) as producer,
        log.consumer(
            group_id=GROUP,
            group_instance_id=name,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            heartbeat_interval_ms=300,
        ) as consumer,
    ):
        await consumer.subscribe(["in"])
        while True:
            polled = await consumer.poll(timeout_ms=500, max_records=RECORDS_MAX)
            try:
                if polled:
                    await transform(consumer, producer, polled)
            except StreamlogError as error:
                if error.fatal:
                    raise
                say(f"again: {error}")
                await go_back(consumer)


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2]))
