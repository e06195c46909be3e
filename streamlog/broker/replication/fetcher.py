"""ReplicaFetcher: fetches from one leader broker what the followers here ask for, in a loop.

A request has all partitions that are ready, and its answer is awaited before the next: what it has
brought is synced meanwhile, and only then asked on from, which tells the leader that it is on this
disk. A leader that has nothing new keeps the request for a while.
Rule of the file: an answer is told to the follower that asked, or the follower is told that there
is none. A broker that can't be reached is tried again, at growing intervals, for as long as it
leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from streamlog.broker.replication.decisions import Diverging, OutstandingFetch
from streamlog.errors import CorruptData, StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.data import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from streamlog.protocol.schema import one_buffer
from streamlog.records.batch import RecordBatch

if TYPE_CHECKING:
    from streamlog.broker.replication.partition_replica import PartitionReplica
    from streamlog.clock import Clock
    from streamlog.protocol.schema import Buffer
    from streamlog.transport.connection import Transport

WAIT_MS = 500
"""For how long a leader may keep a fetch (`replica.fetch.wait.max.ms`)."""
REQUEST_TIMEOUT_MS = 30_000
"""A leader that has not answered by then is not asked on this connection any more."""
RESPONSE_BYTES = 10 * 1024 * 1024
"""Of all partitions (`replica.fetch.response.max.bytes`)."""
PARTITION_BYTES = 1024 * 1024
"""Of one partition (`replica.fetch.max.bytes`)."""
RETRY_S = 0.05
RETRY_S_MAX = 1.0

Connect = Callable[[int], Awaitable["Transport"]]
"""Opens a connection to a broker. Raises StreamlogError if it can't be reached."""

_log = logging.getLogger(__name__)


class ReplicaFetcher:
    """Fetches from broker `leader`; `run` is a task of the broker's."""

    def __init__(
        self,
        leader: int,
        connect: Connect,
        *,
        clock: Clock,
        topic_id: Callable[[str], bytes | None],
    ) -> None:
        self.leader = leader
        self._connect = connect
        self._clock = clock
        self._topic_id = topic_id
        self._candidates: set[PartitionReplica] = set()
        self._answered: list[PartitionReplica] = []
        self._wake = asyncio.Event()
        self._transport: Transport | None = None

    def add(self, replica: PartitionReplica) -> None:
        """It may have something to ask for."""
        self._candidates.add(replica)
        self._wake.set()

    async def run(self) -> None:
        """Fetch for ever."""
        pause_s = RETRY_S
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if any(each.is_syncing for each in self._answered):
                    continue  # Or they would wait for what the others are kept waiting for.
                asked = self._next()
                if not asked:
                    continue
                self._answered = [replica for replica, _ in asked.values()]
                if await self._fetch(asked):
                    pause_s = RETRY_S
                    continue
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, RETRY_S_MAX)
                for replica, _ in asked.values():
                    self.add(replica)
        finally:
            await self._hang_up()

    def _next(self) -> dict[tuple[bytes, int], tuple[PartitionReplica, OutstandingFetch]]:
        """What is asked for now, by topic and number."""
        asked: dict[tuple[bytes, int], tuple[PartitionReplica, OutstandingFetch]] = {}
        candidates, self._candidates = self._candidates, set()
        for replica in sorted(candidates, key=_place):
            topic_id = self._topic_id(replica.topic)
            follower = replica.machine.follower
            if topic_id is None or follower is None or follower.leader != self.leader:
                continue
            fetch = replica.next_fetch()
            if fetch is not None:
                asked[topic_id, replica.index] = (replica, fetch)
        return asked

    async def _fetch(
        self, asked: dict[tuple[bytes, int], tuple[PartitionReplica, OutstandingFetch]]
    ) -> bool:
        """Ask, and tell the followers; whether the leader has answered all of them well."""
        unanswered = dict(asked)
        good = True
        try:
            for topic_id, data in await self._ask(_request(asked)):
                place = (topic_id, data.partition_index)
                if place in unanswered:
                    good = self._tell(*unanswered.pop(place), data) and good
        except (StreamlogError, OSError) as error:
            _log.info("fetching from broker %d: %s", self.leader, error)
            await self._hang_up()
            good = False
        finally:
            for replica, fetch in unanswered.values():
                if replica.machine.follower is not None:
                    replica.machine.follower.on_failed(fetch.fetch_id)
        return good and not unanswered

    async def _ask(self, request: FetchRequest) -> list[tuple[bytes, PartitionData]]:
        """What the leader answers, by topic; nothing if it refuses the whole."""
        if self._transport is None:
            self._transport = await self._connect(self.leader)
        response = await self._transport.call(request, timeout_ms=REQUEST_TIMEOUT_MS)
        if not isinstance(response, FetchResponse) or response.error_code:
            return []
        return [(topic.topic_id, data) for topic in response.responses for data in topic.partitions]

    def _tell(
        self, replica: PartitionReplica, asked: OutstandingFetch, data: PartitionData
    ) -> bool:
        """Tell a follower what it got; whether it may ask on at once."""
        follower = replica.machine.follower
        if follower is None:
            return True
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            effects = follower.on_out_of_range(asked.fetch_id, data.log_start_offset)
            replica.append_fetched(effects, b"", self._clock.now_ms())
            return bool(effects)
        if data.error_code:
            follower.on_failed(asked.fetch_id)
            return False
        diverging = data.diverging_epoch
        if diverging is not None and diverging.end_offset >= 0:
            found = Diverging(diverging.epoch, diverging.end_offset)
            effects = follower.on_diverging(asked.fetch_id, found)
            replica.append_fetched(effects, b"", self._clock.now_ms())
            return True
        return self._append(replica, asked, data)

    def _append(
        self, replica: PartitionReplica, asked: OutstandingFetch, data: PartitionData
    ) -> bool:
        follower = replica.machine.follower
        if follower is None:
            return True
        try:
            records, end_offset = _whole(one_buffer(data.records or b""), asked.fetch.offset)
        except StreamlogError as error:
            _log.error("%s-%d: what came is no good: %s", replica.topic, replica.index, error)
            follower.on_failed(asked.fetch_id)
            return False
        effects = follower.on_fetched(
            asked.fetch_id,
            end_offset=end_offset,
            high_watermark=data.high_watermark,
            log_start=data.log_start_offset,
        )
        replica.append_fetched(effects, records, self._clock.now_ms())
        return True

    async def _hang_up(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()


def _place(replica: PartitionReplica) -> tuple[str, int]:
    return replica.topic, replica.index


def _request(
    asked: dict[tuple[bytes, int], tuple[PartitionReplica, OutstandingFetch]],
) -> FetchRequest:
    topics: dict[bytes, FetchTopic] = {}
    broker = broker_epoch = -1
    for (topic_id, index), (replica, outstanding) in asked.items():
        fetch = outstanding.fetch
        broker, broker_epoch = fetch.broker, fetch.broker_epoch
        topic = topics.setdefault(
            topic_id, FetchTopic(topic=replica.topic, topic_id=topic_id, partitions=[])
        )
        topic.partitions.append(
            FetchPartition(
                partition=index,
                current_leader_epoch=fetch.leader_epoch,
                fetch_offset=fetch.offset,
                last_fetched_epoch=fetch.last_epoch,
                log_start_offset=fetch.log_start,
                partition_max_bytes=PARTITION_BYTES,
            )
        )
    return FetchRequest(
        replica_id=broker,
        replica_state=ReplicaState(replica_id=broker, replica_epoch=broker_epoch),
        max_wait_ms=WAIT_MS,
        min_bytes=1,
        max_bytes=RESPONSE_BYTES,
        session_id=0,
        session_epoch=-1,
        topics=list(topics.values()),
    )


def _whole(data: Buffer, offset: int) -> tuple[Buffer, int]:
    """The whole batches in `data`, which continue a log at `offset`, and where they end.

    Raises:
        CorruptData: a batch is damaged, or does not follow the one before it.
    """
    position = 0
    while position < len(data):
        batch = RecordBatch(data, position)
        batch.check_crc()
        if batch.base_offset != offset:
            raise CorruptData(f"a batch begins at offset {batch.base_offset}, {offset} is due")
        offset = batch.next_offset
        position += batch.size_bytes
    return data, offset
