"""ReplicaFetcher: fetches from one leader broker what the followers here ask for, in a loop.

A request has all partitions that are ready, and its answer is awaited before the next: what it has
brought is synced meanwhile, and only then asked on from, which tells the leader that it is on this
disk. A leader that has nothing new keeps the request for a while.
Rule of the file: an answer is told to the follower that asked, or the follower is told that there
is none. A broker that can't be reached is tried again, at growing intervals, for as long as it
leads. What an earlier life of it was asked is answered by nobody, and waited for no longer than
until the next is registered: who loses its power says goodbye to no connection. Replicas that are
throttled are left out of requests while their quota is exceeded (KIP-73).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

from streamlog import repeated
from streamlog.broker.replication.replica import parse_fetched_batches
from streamlog.broker.replication.replica_state import Diverging, OutstandingFetch
from streamlog.errors import ConnectionLost, StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.produce_and_fetch import (
    FetchingReplica,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from streamlog.protocol.schema import one_buffer

if TYPE_CHECKING:
    from streamlog.broker.config.cluster import ReplicationConfig
    from streamlog.broker.replication.partition_replica import PartitionReplica
    from streamlog.broker.replication.replication_quota import ReplicationQuota
    from streamlog.clock import Clock
    from streamlog.transport.client_connection import Transport

RETRY_S = 0.05
"""Before it is tried again what has failed once; twice as long after each time."""
RETRY_S_MAX = 1.0
THROTTLE_S_MAX = 1.0
"""For which a replica is held back until the quota is looked at again: it may be another one."""

Connect = Callable[[int], Awaitable["Transport"]]
"""Opens a connection to a broker. Raises StreamlogError if it can't be reached."""
_Asked: TypeAlias = "dict[tuple[bytes, int], tuple[PartitionReplica, OutstandingFetch]]"
"""Who asks for what in one request, by topic and number."""

_log = repeated.logger(__name__)


class ReplicaFetcher:
    """Fetches from broker `leader`; `run` is a task of the broker's."""

    def __init__(
        self,
        leader: int,
        connect: Connect,
        *,
        leader_broker_epoch: int,
        config: ReplicationConfig,
        clock: Clock,
        topic_id: Callable[[str], bytes | None],
        quota: ReplicationQuota,
    ) -> None:
        """`quota` is shared by all fetchers of this broker."""
        self.leader = leader
        self._leader_broker_epoch = leader_broker_epoch
        self._connect = connect
        self._config = config
        self._clock = clock
        self._topic_id = topic_id
        self._quota = quota
        self._candidates: set[PartitionReplica] = set()
        self._answered: list[PartitionReplica] = []
        self._pauses_s: WeakKeyDictionary[PartitionReplica, float] = WeakKeyDictionary()
        """For how long those rest that can't go on."""
        self._trouble: str | None = None
        """Why nothing was fetched the last time, as it was told; None if something was."""
        self._timers: dict[PartitionReplica, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()
        self._transport: Transport | None = None
        self._patience: asyncio.Timeout | None = None
        """With the answer that is due; it ends when nobody can give that any more."""

    def on_registered(self, leader_broker_epoch: int) -> None:
        """The leader is registered with this epoch; with a new one it is another life of it."""
        if leader_broker_epoch == self._leader_broker_epoch:
            return
        self._leader_broker_epoch = leader_broker_epoch
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())

    def add(self, replica: PartitionReplica) -> None:
        """It may have something to ask for."""
        self._candidates.add(replica)
        self._wake.set()

    def look_again(self) -> None:
        """Somebody may follow another one now, so that nobody waits for its disk here any more."""
        self._wake.set()

    async def run(self) -> None:
        """Fetch for ever."""
        pause_s = RETRY_S
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if any(each.is_syncing_for(self.leader) for each in self._answered):
                    continue  # Or they would wait for what the others are kept waiting for.
                asked = self._next()
                # Also if that is nobody: who was asked for the last time may be gone by now.
                self._answered = [replica for replica, _ in asked.values()]
                if not asked:
                    continue
                if await self._fetch(asked):
                    pause_s = RETRY_S
                    continue
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, RETRY_S_MAX)
                self._add_again(asked)
        finally:
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()
            await self._hang_up()

    def _add_again(self, asked: _Asked) -> None:
        """Not all of these were answered. A loop in `run` would keep the last one for good."""
        for replica, _ in asked.values():
            self.add(replica)

    def _add_later(self, replica: PartitionReplica) -> None:
        """It can't go on now, and the others do: the longer, the more often that was so."""
        pause_s = self._pauses_s.get(replica, RETRY_S)
        self._pauses_s[replica] = min(pause_s * 2, RETRY_S_MAX)
        self._add_in(replica, pause_s)

    def _add_in(self, replica: PartitionReplica, pause_s: float) -> None:
        known = self._timers.pop(replica, None)
        if known is not None:
            known.cancel()

        def add() -> None:
            del self._timers[replica]
            self.add(replica)

        self._timers[replica] = asyncio.get_running_loop().call_later(pause_s, add)

    def _next(self) -> _Asked:
        """What is asked for now."""
        asked: _Asked = {}
        candidates, self._candidates = self._candidates, set()
        held_s = min(self._quota.exceeded_for_ms(self._clock.now_ms()) / 1000, THROTTLE_S_MAX)
        for replica in sorted(candidates, key=_place):
            topic_id = self._topic_id(replica.topic)
            follower = replica.machine.follower
            if topic_id is None or follower is None or follower.leader != self.leader:
                continue
            if held_s and replica.is_throttled_follower:
                self._add_in(replica, held_s)
                continue
            fetch = replica.next_fetch()
            if fetch is not None:
                asked[topic_id, replica.index] = (replica, fetch)
        return asked

    async def _fetch(self, asked: _Asked) -> bool:
        """Ask, and tell the followers; whether the leader has answered all of them."""
        unanswered = dict(asked)
        try:
            for topic_id, data in await self._ask(_request(asked, self._config)):
                place = (topic_id, data.partition_index)
                if place in unanswered:
                    self._tell_one(*unanswered.pop(place), data)
        except (StreamlogError, OSError) as error:
            self._tell_of(str(error))
            await self._hang_up()
        else:
            self._tell_of(None)
        finally:
            for replica, fetch in unanswered.values():
                if replica.machine.follower is not None:
                    replica.machine.follower.on_failed(fetch.fetch_id)
        return not unanswered

    def _tell_of(self, trouble: str | None) -> None:
        """Say once why the leader can't be fetched from, and that it can be again."""
        if trouble == self._trouble:
            return
        self._trouble = trouble
        if trouble is None:
            _log.info("broker %d is fetched from again", self.leader)
        else:
            _log.info("broker %d can't be fetched from: %s", self.leader, trouble)

    def _tell_one(
        self, replica: PartitionReplica, asked: OutstandingFetch, data: PartitionData
    ) -> None:
        """Tell a follower what it got. What goes wrong with one log stops no other."""
        try:
            goes_on = self._tell(replica, asked, data)
        except StreamlogError as error:
            _log.error("%s-%d can't be followed: %s", replica.topic, replica.index, error)
            goes_on = False
        if goes_on:
            self._pauses_s.pop(replica, None)
        else:
            self._add_later(replica)

    async def _ask(self, request: FetchRequest) -> list[tuple[bytes, PartitionData]]:
        """What the leader answers, by topic; nothing if it refuses the whole."""
        if self._transport is None:
            self._transport = await self._connect(self.leader)
        timeout_ms = self._config.socket_timeout_ms
        try:
            async with asyncio.timeout(None) as self._patience:
                response = await self._transport.call(request, timeout_ms=timeout_ms)
        except TimeoutError:
            raise ConnectionLost("it was started again, and does not know the request") from None
        finally:
            self._patience = None
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
            came = parse_fetched_batches(
                one_buffer(data.records or b""), asked.fetch.offset, is_empty=replica.is_empty
            )
        except StreamlogError:
            follower.on_failed(asked.fetch_id)
            raise
        records, effects = (
            came.records,
            follower.on_fetched(
                asked.fetch_id,
                end_offset=came.end_offset,
                high_watermark=data.high_watermark,
                log_start=data.log_start_offset,
                begin_offset=came.begin_offset,
            ),
        )
        now_ms = self._clock.now_ms()
        if replica.is_throttled_follower:
            self._quota.record(len(records), now_ms)
        replica.append_fetched(effects, records, now_ms)
        return True

    async def _hang_up(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()


def _place(replica: PartitionReplica) -> tuple[str, int]:
    return replica.topic, replica.index


def _request(asked: _Asked, config: ReplicationConfig) -> FetchRequest:
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
                partition_max_bytes=config.fetch_max_bytes,
            )
        )
    return FetchRequest(
        replica_id=broker,
        replica_state=FetchingReplica(replica_id=broker, replica_epoch=broker_epoch),
        max_wait_ms=config.fetch_wait_max_ms,
        min_bytes=1,
        max_bytes=config.fetch_response_max_bytes,
        session_id=0,
        session_epoch=-1,
        topics=list(topics.values()),
    )
