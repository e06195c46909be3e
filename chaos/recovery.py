"""`python -m chaos.recovery`: how long a killed broker needs until its 10 GB are served again.

One broker, written to with acks=all until there is so much, and killed with sends under way. What
is measured is the time from its next start to the moment when the last acknowledged record of each
partition was read: by then it has recovered, listens, and answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from chaos.cluster import Cluster, running
from simulation.report import conditions
from streamlog.client.admin.topic_admin import NewTopic
from streamlog.client.producer.sender import RecordMetadata
from streamlog.clock import SystemClock
from streamlog.record import TopicPartition

TOPIC: Final = "much"
PARTITIONS: Final = 4
RECORD_BYTES: Final = 900_000
"""Little enough for a batch of the default size limit, so that one record is one batch."""
UNDER_WAY_MAX: Final = 32
RECOVERY_MS_MAX: Final = 60_000
GIVEN_UP_S: Final = 300.0
READ_MS: Final = 1_000
GIGABYTE: Final = 1_000_000_000


class Filling:
    """Writes numbered records, and knows the last one that was acknowledged in each partition."""

    def __init__(self, cluster: Cluster) -> None:
        self.last: dict[int, tuple[int, int]] = {}
        """Offset and number, by partition."""
        self._log = cluster.log
        self._waiting: set[asyncio.Future[RecordMetadata]] = set()
        self._filler = bytes(range(250)) * (RECORD_BYTES // 250)

    async def run(self, size_bytes: int, then: asyncio.Event) -> None:
        """Until so much was sent; `then` is set while the last sends are still under way."""
        async with self._log.producer(linger_ms=0) as producer:
            for number in range(size_bytes // RECORD_BYTES):
                value = number.to_bytes(8) + self._filler
                to = number % PARTITIONS
                delivery = await producer.send(TOPIC, value, partition=to)
                self._waiting.add(delivery)
                delivery.add_done_callback(partial(self._note, number, to))
                if len(self._waiting) >= UNDER_WAY_MAX:
                    await asyncio.wait(self._waiting, return_when=asyncio.FIRST_COMPLETED)
            then.set()

    def _note(self, number: int, to: int, delivery: asyncio.Future[RecordMetadata]) -> None:
        self._waiting.discard(delivery)
        offset = delivery.result().offset
        self.last[to] = max(self.last.get(to, (-1, -1)), (offset, number))


class Recovery(NamedTuple):
    """What was measured."""

    log_bytes: int
    recovery_ms: int
    wrong: list[str]


async def measure(directory: Path, size_bytes: int) -> Recovery:
    """Fill a broker's log, kill the broker, start it, and read what was acknowledged last.

    Raises:
        TimeoutError: that is not there after minutes.
    """
    clock = SystemClock()
    async with running(directory, brokers=1) as cluster:
        (broker,) = cluster.brokers.values()
        await cluster.log.admin().create_topics([NewTopic(TOPIC, PARTITIONS, 1, {})])
        filling, enough = Filling(cluster), asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(filling.run(size_bytes, enough))
            await enough.wait()
            await broker.kill()
            acknowledged = dict(filling.last)
            has = sum(each.stat().st_size for each in broker.data.glob("p-*/*.log"))
            began_ms = clock.now_ms()
            await broker.start()
            async with asyncio.timeout(GIVEN_UP_S):
                wrong = [
                    told
                    for number, (offset, wanted) in sorted(acknowledged.items())
                    for told in await _read(cluster, number, offset, wanted)
                ]
            took_ms = clock.now_ms() - began_ms
    return Recovery(has, took_ms, wrong)


async def _read(cluster: Cluster, partition: int, offset: int, wanted: int) -> list[str]:
    """What is wrong with one record."""
    place = TopicPartition(TOPIC, partition)
    async with cluster.log.consumer() as consumer:
        consumer.assign([place])
        consumer.seek(place, offset)
        while not (found := (await consumer.poll(timeout_ms=READ_MS)).get(place)):
            continue
    number = int.from_bytes((found[0].value or b"")[:8])
    if (found[0].offset, number) == (offset, wanted):
        return []
    return [f"{TOPIC}-{partition}: {wanted} was acknowledged at {offset}, where {number} is"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, tell, and return 1 if it takes longer than a minute or a record is lost."""
    parser = argparse.ArgumentParser(prog="chaos.recovery", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--report", type=Path, help="where to write the JSON report")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.ERROR)
    size_bytes = round(given.gigabytes * GIGABYTE)
    with tempfile.TemporaryDirectory(prefix="streamlog-recovery-") as directory:
        free_bytes = shutil.disk_usage(directory).free
        if free_bytes < 2 * size_bytes:
            parser.error(f"{directory} has {free_bytes} bytes free, and twice that size is needed")
        found = asyncio.run(measure(Path(directory), size_bytes))
    print(f"{found.log_bytes} bytes, killed under load: served again after {found.recovery_ms} ms")
    print(*found.wrong, sep="\n")
    if given.report is not None:
        given.report.write_text(json.dumps({**conditions({}), **found._asdict()}, indent=2) + "\n")
    return int(bool(found.wrong) or found.recovery_ms > RECOVERY_MS_MAX)


if __name__ == "__main__":
    sys.exit(main())
