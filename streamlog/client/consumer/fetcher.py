"""Fetcher: keeps the buffers of a consumer filled, one long-polling request per broker.

While the owner works on one answer, the next is on its way. A partition is left out of a request
while its buffer is full. If that happens the request must not wait at the broker: the full one may
be emptied a moment later and would have to wait for records of the others. So such a request asks
for what is there, and if there is nothing, the next one goes out when the owner has taken
something, or after `FULL_PAUSE_MS`. Positions that are not known (new, reset, out of range) are
looked up before.
A reader that says where it stands may be sent by a leader to a replica that is nearer (KIP-392). It
reads from there for a while, and asks the leader again after that. A replica that does not answer,
or refuses, is no place to read from: the leader is asked, and for a while not told where the reader
stands, for it would send it there again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final, TypeAlias

from streamlog import repeated
from streamlog.client.background_task import Background
from streamlog.client.cluster import RETRY_BACKOFF_MS, RETRY_TIMEOUT_MS, Cluster, Lane
from streamlog.client.consumer.consumer_settings import FetchSettings
from streamlog.client.consumer.fetch_session import SESSION_OVER, FetchSession, WantedPartition
from streamlog.client.consumer.offset_reset import OffsetReset
from streamlog.client.consumer.subscription_state import (
    NO_MARK,
    PartitionState,
    PositionStart,
    SubscriptionState,
)
from streamlog.client.offset_lookup import ISOLATION_LEVELS
from streamlog.client.offset_metadata import NO_EPOCH, OffsetAndMetadata
from streamlog.client.outage import Outage
from streamlog.errors import SourceLost, StreamlogError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.produce_and_fetch import (
    DivergingEpoch,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from streamlog.protocol.schema import ZERO_UUID, id_text, one_buffer
from streamlog.record import TopicPartition
from streamlog.records.control_batches import AbortedRange

Requests: TypeAlias = dict[int, list[tuple[TopicPartition, PartitionState]]]
"""Partitions to ask for, by broker."""

FULL_PAUSE_MS: Final = 20
REQUEST_MARGIN_MS: Final = 10_000
"""How much longer than it was told to wait a broker may take to answer a fetch."""
FAREWELL_TIMEOUT_MS: Final = 500
"""A broker that does not answer by then forgets the reader by itself."""
ERROR_BACKOFF_MS: Final = 200
"""Before a partition that met an error is asked for again."""
AT_LEADER_MS: Final = 10_000
"""How long a partition is read from its leader after a nearer replica was of no use."""

log = repeated.logger(__name__)


class Fetcher:
    """Fills `positions` from the brokers. `run` is its task."""

    def __init__(
        self,
        cluster: Cluster,
        positions: SubscriptionState,
        beginnings: OffsetReset,
        settings: FetchSettings,
        background: Background,
        *,
        tell: Callable[[StreamlogError | None], None],
    ) -> None:
        """Tell the owner by `tell` that there are records (None) or what went wrong."""
        self._cluster = cluster
        self._positions = positions
        self._beginnings = beginnings
        self._settings = settings
        self._background = background
        self._tell = tell
        self._look = asyncio.Event()
        self._busy: set[int] = set()
        self._plain: set[int] = set()
        """Brokers whose last request did not say where the reader stands, for it must not."""
        self._sessions: dict[int, FetchSession] = {}
        self._troubled_since_ms: int | None = None
        self._outage: Outage[TopicPartition] = Outage()

    async def end_sessions(self) -> None:
        """Let go of what brokers remember for this reader; nothing waits for it but a moment."""
        for node_id, session in self._sessions.items():
            farewell = session.farewell()
            if farewell is None or not self._cluster.is_connected(node_id, Lane.MAIN):
                continue
            # Not behind a Fetch that the broker holds back: it would wait as long.
            with suppress(StreamlogError):
                await self._cluster.call(
                    node_id, farewell, FetchResponse, timeout_ms=FAREWELL_TIMEOUT_MS
                )

    def look(self) -> None:
        """Something has changed: assignments, positions, or room in a buffer."""
        self._look.set()

    async def run(self) -> None:
        """Fetch for ever."""
        while True:
            self._look.clear()
            pause_ms = await self._round()
            try:
                async with asyncio.timeout(None if pause_ms is None else pause_ms / 1000):
                    await self._look.wait()
            except TimeoutError:
                continue

    async def _round(self) -> int | None:
        """Send what can be sent; returns when to look again if nothing happens."""
        now_ms = self._cluster.clock.now_ms()
        try:
            await self._beginnings.find()
            requests, next_ms, some_full = await self._requests(now_ms)
        except StreamlogError as error:
            self._on_error(error, [partition for partition, _ in self._positions.items()])
            return RETRY_BACKOFF_MS
        for node_id, wanted in requests.items():
            self._busy.add(node_id)
            for _, state in wanted:
                state.in_flight = True
            self._background.start(self._fetch(node_id, wanted, some_full=some_full))
        return None if next_ms is None else max(next_ms - now_ms, 1)

    async def _requests(self, now_ms: int) -> tuple[Requests, int | None, bool]:
        """Partitions to ask for by broker, when those that wait may be, and if some are full."""
        requests: Requests = {}
        next_ms: int | None = None
        some_full = False
        for partition, state in self._positions.items():
            # A paused one as well, until its buffer is full: when it is resumed there is no wait.
            if self._is_full(state):
                some_full = True
                continue
            if state.in_flight or state.position is None or state.is_held:
                continue
            if state.not_before_ms > now_ms:
                next_ms = min(next_ms or state.not_before_ms, state.not_before_ms)
                continue
            leader = await self._leader(partition, state)
            if leader is None:
                state.not_before_ms = next_ms = now_ms + ERROR_BACKOFF_MS
                continue
            source = self._source(state, leader, now_ms)
            if source not in self._busy:
                requests.setdefault(source, []).append((partition, state))
        return self._separated(requests, now_ms), next_ms, some_full

    async def _leader(self, partition: TopicPartition, state: PartitionState) -> int | None:
        """Who leads a partition, if somebody does that can know what was read of it."""
        leader = self._cluster.leader(partition)
        if leader is None:
            await self._cluster.refresh([partition.topic])
            leader = self._cluster.leader(partition)
        if self._is_recreated(partition, state):
            if not state.is_drained:
                return None  # What was fetched of the old topic comes first.
            self._on_recreated(partition, state)
            return None
        known = self._cluster.leader_epoch(partition)
        if leader is None or known == NO_EPOCH or known >= state.fetched_epoch:
            return leader
        if self._cluster.known(partition.topic) is None:
            return leader
        log.warning(
            "%s-%d: what was read is of leader epoch %d, and brokers know of %d: waiting for one"
            " that has heard of that election; if the topic was made again, seek",
            *partition,
            state.fetched_epoch,
            known,
        )
        self._cluster.note_epoch(partition, state.fetched_epoch)
        return None

    def _is_recreated(self, partition: TopicPartition, state: PartitionState) -> bool:
        """Whether the position belongs to a topic that another one has replaced."""
        topic_id = self._cluster.topic_id(partition.topic)
        return topic_id != ZERO_UUID and state.topic_id not in (None, topic_id)

    def _on_recreated(self, partition: TopicPartition, state: PartitionState) -> None:
        """The topic was deleted and created again: the position means nothing in the new one."""
        new_id, old_id = self._cluster.topic_id(partition.topic), state.topic_id or b""
        what = (
            f"{partition.topic}-{partition.partition}: the topic was deleted and created again"
            f" (id {id_text(old_id)}, now {id_text(new_id)})"
        )
        if self._settings.auto_offset_reset == "none":
            self._lost(
                partition,
                state,
                f"{what}, and {state.position} was next; seek, or set auto_offset_reset",
                ids=(old_id, new_id),
            )
            return
        log.warning(
            "%s; reading on at its %s instead of %s",
            what,
            "beginning" if self._settings.auto_offset_reset == "earliest" else "end",
            state.position,
        )
        state.move(None, PositionStart.RESET)
        self._look.set()

    def _lost(
        self,
        partition: TopicPartition,
        state: PartitionState,
        message: str,
        *,
        ids: tuple[bytes, bytes],
        resume: tuple[int, int] = (-1, -1),
    ) -> None:
        """Tell the owner, and again as long as it does not seek."""
        state.not_before_ms = self._cluster.clock.now_ms() + ERROR_BACKOFF_MS
        self._tell(
            SourceLost(
                message,
                topic=partition.topic,
                partition=partition.partition,
                position=state.fetch_offset,
                ids=ids,
                resume=resume,
            )
        )

    def _source(self, state: PartitionState, leader: int, now_ms: int) -> int:
        """Whom to ask: the replica that the leader has named, as long as that holds, or the leader.

        Time marks are set by leaders alone.
        """
        source = state.replica
        if source is None or state.mark_after_ms != NO_MARK:
            return leader
        if now_ms < state.replica_until_ms and self._cluster.knows(source):
            return source
        state.keep_at_leader(min(state.replica_until_ms, now_ms + AT_LEADER_MS))
        return leader

    def _separated(self, requests: Requests, now_ms: int) -> Requests:
        """What is to be read from leaders, and not to be sent away, is not asked for with copies.

        Where there are both they take turns: a request says where the reader stands, or not.
        """
        if not self._settings.client_rack:
            return requests
        for node_id, wanted in requests.items():
            kept = [each for each in wanted if each[1].is_kept_at_leader(now_ms)]
            copies = [each for each in wanted if each[1].replica == node_id]
            if kept and copies:
                self._plain ^= {node_id}
                left_out = copies if node_id in self._plain else kept
                requests[node_id] = [each for each in wanted if each not in left_out]
        return requests

    def _is_full(self, state: PartitionState) -> bool:
        return state.buffered_bytes >= self._settings.max_partition_fetch_bytes

    async def _fetch(
        self,
        node_id: int,
        wanted: list[tuple[TopicPartition, PartitionState]],
        *,
        some_full: bool,
    ) -> None:
        """One request to one broker.

        Where partitions were left out because they were full, the broker must not hold it back:
        they may have room again by now, and would wait for records of others.
        """
        wait_ms = 0 if some_full else self._settings.fetch_max_wait_ms
        eras = {partition: state.era for partition, state in wanted}
        kept = 0
        session = self._sessions.setdefault(node_id, FetchSession())
        try:
            response = await self._cluster.call(
                node_id,
                self._request(session, wanted, wait_ms),
                FetchResponse,
                lane=Lane.FETCH,
                timeout_ms=wait_ms + REQUEST_MARGIN_MS,
            )
            session.on_answer(response)
            if response.error_code and response.error_code not in SESSION_OVER:
                raise error_for(response.error_code, f"fetch from broker {node_id}")
            self._troubled_since_ms = None
            if self._outage.is_on:
                self._on_answer(eras)
            for topic in response.responses:
                topic.topic = topic.topic or session.names.get(topic.topic_id, "")
            await self._look_up_lost(response.responses)
            kept = self._store(node_id, response.responses, eras)
        except StreamlogError as error:
            session.on_failure()
            self._cluster.forget({partition.topic for partition in eras})
            self._delay(wanted)
            for _, state in wanted:
                self._give_up(node_id, state)
            self._on_error(error, eras)
        finally:
            for _, state in wanted:
                state.in_flight = False
        if not kept and any(self._is_full(state) for _, state in self._positions.items()):
            await self._pause_full()
        self._busy.discard(node_id)
        self._look.set()

    async def _look_up_lost(self, topics: Collection[FetchableTopicResponse]) -> None:
        """Where a position is not in the log, look whether that is still the same topic's."""
        lost = {
            topic.topic
            for topic in topics
            for data in topic.partitions
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE or data.diverging_epoch is not None
        }
        if lost:
            await self._cluster.refresh(sorted(lost))

    async def _pause_full(self) -> None:
        """Wait until the owner takes something, or a little."""
        self._look.clear()
        try:
            async with asyncio.timeout(FULL_PAUSE_MS / 1000):
                await self._look.wait()
        except TimeoutError:
            return

    def _request(
        self,
        session: FetchSession,
        wanted: list[tuple[TopicPartition, PartitionState]],
        wait_ms: int,
    ) -> FetchRequest:
        asked = {}
        for partition, state in wanted:
            topic = self._cluster.known(partition.topic)
            if topic is not None and state.topic_id is None:
                state.topic_id = topic.topic_id
            fetch = FetchPartition(
                partition=partition.partition,
                current_leader_epoch=self._cluster.leader_epoch(partition),
                fetch_offset=state.fetch_offset,
                last_fetched_epoch=state.fetched_epoch,
                partition_max_bytes=self._settings.max_partition_fetch_bytes,
                mark_after_ms=state.mark_after_ms,
                mark_to_ms=state.mark_told.time_ms,
                mark_clock=state.mark_told.clock,
            )
            asked[partition] = WantedPartition(
                ZERO_UUID if topic is None else topic.topic_id, fetch
            )
        request = session.question(asked)
        request.max_wait_ms = wait_ms
        request.min_bytes = self._settings.fetch_min_bytes
        request.max_bytes = self._settings.fetch_max_bytes
        request.isolation_level = ISOLATION_LEVELS[self._settings.isolation_level]
        rack, now_ms = self._settings.client_rack, self._cluster.clock.now_ms()
        if rack and not any(state.is_kept_at_leader(now_ms) for _, state in wanted):
            request.rack_id = rack
        return request

    def _store(
        self,
        node_id: int,
        topics: Collection[FetchableTopicResponse],
        eras: Mapping[TopicPartition, int],
    ) -> int:
        """Put what came into the buffers; returns how many bytes."""
        kept = 0
        for topic in topics:
            for data in topic.partitions:
                partition = TopicPartition(topic.topic, data.partition_index)
                state = self._positions.get(partition)
                if state is None or state.era != eras.get(partition):
                    continue  # Revoked, or moved elsewhere meanwhile.
                is_refused = data.error_code or data.diverging_epoch is not None
                if is_refused and self._give_up(node_id, state):
                    log.debug("%s-%d: asking the leader, not broker %d", *partition, node_id)
                    self._cluster.forget([partition.topic])
                    continue
                if data.error_code:
                    self._on_partition_error(partition, state, data)
                    continue
                if data.diverging_epoch is not None:
                    self._on_cut(partition, state, data.diverging_epoch)
                    continue
                state.high_watermark = data.high_watermark
                state.stable_offset = data.last_stable_offset
                if data.preferred_read_replica >= 0:
                    self._send_to(partition, state, data.preferred_read_replica)
                records = one_buffer(data.records)
                if len(records):
                    aborted = [
                        AbortedRange(each.producer_id, each.first_offset)
                        for each in data.aborted_transactions or ()
                    ]
                    kept += self._positions.put(partition, state.era, records, aborted)
        if kept:
            self._tell(None)
        return kept

    def _send_to(self, partition: TopicPartition, state: PartitionState, replica: int) -> None:
        """The leader has named a replica that is nearer."""
        now_ms = self._cluster.clock.now_ms()
        if self._cluster.knows(replica):
            state.replica = replica
            state.replica_until_ms = now_ms + self._settings.metadata_max_age_ms
        else:
            self._cluster.forget([partition.topic])
            state.keep_at_leader(now_ms + AT_LEADER_MS)

    def _give_up(self, node_id: int, state: PartitionState) -> bool:
        """Ask the leader, if it was a nearer replica that was of no use; whether it was."""
        if state.replica != node_id:
            return False
        state.keep_at_leader(self._cluster.clock.now_ms() + AT_LEADER_MS)
        return True

    def _on_partition_error(
        self, partition: TopicPartition, state: PartitionState, data: PartitionData
    ) -> None:
        state.not_before_ms = self._cluster.clock.now_ms() + ERROR_BACKOFF_MS
        where = f"fetch of {partition.topic}-{partition.partition} at {state.fetch_offset}"
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            if self._is_recreated(partition, state):
                return  # The next round tells.
            if self._settings.auto_offset_reset == "none":
                topic_id = state.topic_id or b""
                self._lost(
                    partition,
                    state,
                    f"{where}: the log has nothing there (any more); seek to an offset between "
                    "begin_offsets and end_offsets, or set auto_offset_reset",
                    ids=(topic_id, topic_id),
                )
                return
            log.warning("%s: outside of the log; reset by policy", where)
            state.move(None, PositionStart.RESET)
            return
        self._cluster.forget([partition.topic])
        error = error_for(data.error_code, where)
        # Kafka calls CORRUPT_MESSAGE retriable, but what is damaged on disk stays so: who reads
        # has to hear of it, and may seek behind it.
        if error.retriable and data.error_code != ErrorCode.CORRUPT_MESSAGE:
            log.debug("%s", error)
        else:
            self._tell(error)

    def _on_cut(
        self, partition: TopicPartition, state: PartitionState, end: DivergingEpoch
    ) -> None:
        """The log lacks what was read (KIP-320): a crash has cut it, and others were written."""
        if self._is_recreated(partition, state):
            return  # The next round tells.
        # Records of this epoch that a later leader had replaced were never read.
        end_offset = state.epochs.end_of(end.epoch, end.end_offset)
        where = f"{partition.topic}-{partition.partition}: the log was cut at {end_offset}"
        if self._settings.auto_offset_reset == "none":
            topic_id = state.topic_id or b""
            self._lost(
                partition,
                state,
                f"{where}, and {state.fetch_offset} was read up to before that; "
                f"leader epoch {end.epoch} ends there, and epoch {state.fetched_epoch} was read; "
                "seek, or set auto_offset_reset",
                ids=(topic_id, topic_id),
                resume=(end_offset, end.epoch),
            )
            return
        log.warning("%s, reading on from there instead of %d", where, state.fetch_offset)
        state.cut(OffsetAndMetadata(end_offset, leader_epoch=end.epoch))

    def _delay(self, wanted: list[tuple[TopicPartition, PartitionState]]) -> None:
        for _, state in wanted:
            state.not_before_ms = self._cluster.clock.now_ms() + ERROR_BACKOFF_MS

    def _on_answer(self, partitions: Collection[TopicPartition]) -> None:
        """A broker answers for these partitions; log it if that ends an outage."""
        self._outage.keep([partition for partition, _ in self._positions.items()])
        lasted_s = self._outage.end(partitions, self._cluster.clock.now_ms())
        if lasted_s is not None:
            log.warning("brokers are reachable again after %.1f s: fetching continues", lasted_s)

    def _on_error(self, error: StreamlogError, partitions: Collection[TopicPartition]) -> None:
        """A broker could not be asked: go on trying, but not for ever and not in silence."""
        now_ms = self._cluster.clock.now_ms()
        if self._troubled_since_ms is None:
            self._troubled_since_ms = now_ms
            if not self._outage.is_on:
                log.warning("can't fetch, will try again: %s", error)
        self._outage.begin(partitions, now_ms)
        if not error.retriable or now_ms - self._troubled_since_ms > RETRY_TIMEOUT_MS:
            self._troubled_since_ms = None
            self._tell(error)
