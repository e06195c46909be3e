"""Writing: a producer that writes one number after the other, and when each was acknowledged."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

from chaos.cluster import Cluster
from streamlog.client.admin.topic_admin import NewTopic
from streamlog.client.offset_lookup import Isolation
from streamlog.client.producer.sender import RecordMetadata
from streamlog.clock import SystemClock
from streamlog.errors import StreamlogError
from streamlog.log import Log
from streamlog.record import TopicPartition

PACE_S: Final = 0.01
UNDER_WAY_MAX: Final = 500
DELIVERY_TIMEOUT_MS: Final = 60_000
REQUEST_TIMEOUT_MS: Final = 3_000
READ_MS: Final = 1_000


class Acknowledged(NamedTuple):
    """A number that was written."""

    number: int
    offset: int
    sent_ms: int
    acknowledged_ms: int


class Writing:
    """Writes to one partition until it is told to stop; its own clock, in milliseconds.

    The numbers begin with `first`.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        partition: int = 0,
        *,
        first: int = 0,
        timeout_ms: int = DELIVERY_TIMEOUT_MS,
    ) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.refused: list[str] = []
        """What was told instead of an acknowledgement."""
        self._log = log
        self._topic = topic
        self._partition = partition
        self._first = first
        self._timeout_ms = timeout_ms
        self._clock = SystemClock()
        self._stopping = asyncio.Event()
        self._waiting: set[asyncio.Future[RecordMetadata]] = set()

    def now_ms(self) -> int:
        """By its clock."""
        return self._clock.now_ms()

    def stop(self) -> None:
        """Write nothing more; `run` ends when everything is known."""
        self._stopping.set()

    async def run(self) -> None:
        """Write, as fast as `PACE_S` says and as far as acknowledgements let it."""
        async with self._log.producer(
            linger_ms=0,
            delivery_timeout_ms=self._timeout_ms,
            request_timeout_ms=min(REQUEST_TIMEOUT_MS, self._timeout_ms),
        ) as producer:
            number = self._first
            while not self._stopping.is_set():
                sent_ms, value = self.now_ms(), b"%d" % number
                try:
                    delivery = await producer.send(self._topic, value, partition=self._partition)
                except StreamlogError as error:
                    self.refused.append(f"{number}: {error}")
                else:
                    self._waiting.add(delivery)
                    delivery.add_done_callback(partial(self._note, number, sent_ms))
                number += 1
                await asyncio.sleep(PACE_S)
                while len(self._waiting) > UNDER_WAY_MAX:
                    await asyncio.wait(self._waiting, return_when=asyncio.FIRST_COMPLETED)

    async def gets_on(self, since_ms: int) -> int:
        """Wait until something that was sent later is acknowledged; how long that has taken."""
        while True:
            later = [a.acknowledged_ms for a in self.acknowledged if a.sent_ms >= since_ms]
            if later:
                return min(later) - since_ms
            await asyncio.sleep(PACE_S)

    def longest_gap_ms(self) -> int:
        """Between two acknowledgements."""
        times = sorted(each.acknowledged_ms for each in self.acknowledged)
        return max((b - a for a, b in pairwise(times)), default=0)

    def _note(self, number: int, sent_ms: int, delivery: asyncio.Future[RecordMetadata]) -> None:
        """What has become of one."""
        self._waiting.discard(delivery)
        error = delivery.exception()
        if error is not None:
            self.refused.append(f"{number}: {error}")
            return
        told = Acknowledged(number, delivery.result().offset, sent_ms, self.now_ms())
        self.acknowledged.append(told)


async def create(cluster: Cluster, topic: str, *, replicas: int, least: int) -> None:
    """A topic of one partition, and wait until it is led and whole."""
    configs = {"min.insync.replicas": str(least)}
    await cluster.log.admin().create_topics([NewTopic(topic, 1, replicas, configs)])
    await cluster.all_in_sync(60)


async def values(
    log: Log, topic: str, partition: int = 0, *, is_committed: bool = False
) -> dict[int, bytes]:
    """All that is there, by offset; or what is committed of it."""
    place, found = TopicPartition(topic, partition), dict[int, bytes]()
    isolation: Isolation = "read_committed" if is_committed else "read_uncommitted"
    reading = log.consumer(auto_offset_reset="earliest", isolation_level=isolation)
    async with reading as consumer:
        consumer.assign([place])
        end = (await consumer.end_offsets([place]))[place]
        while await consumer.position(place) < end:
            polled = await consumer.poll(timeout_ms=READ_MS)
            found |= {each.offset: each.value or b"" for each in polled.get(place, [])}
    return found


def verdict(acknowledged: list[Acknowledged], found: dict[int, bytes]) -> list[str]:
    """What was acknowledged and is not there, is twice, or in another order."""
    told = [
        f"{each.number} was acknowledged at {each.offset}, where {found.get(each.offset)!r} is"
        for each in acknowledged
        if found.get(each.offset) != b"%d" % each.number
    ]
    numbers = [int(found[offset]) for offset in sorted(found)]
    if len(numbers) != len(set(numbers)):
        told.append(f"{len(numbers) - len(set(numbers))} records are there twice")
    if numbers != sorted(numbers):
        told.append("records are in another order than they were sent in")
    return told
