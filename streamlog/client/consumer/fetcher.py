"""Fetcher: keeps the buffers of a consumer filled, with one long-polling request per broker.

While the caller works on one answer, the next request is in flight. A request leaves out partitions
whose buffer is full, and then it must not wait at the broker:

1. t-0 is full; the request names t-1 alone, and the broker waits 500 ms for records of t-1.
2. A moment later, the caller empties t-0.
3. t-0 waits up to 500 ms for its next fetch, although its records are there.

So such a request takes only what is there. If there is nothing, the next request is sent when the
caller has taken records, or after `FULL_PAUSE_MS`. Unknown positions (new, reset, out of range) are
looked up before the fetch.

A partition that is assigned or moved while a broker holds a request back waits for its answer,
unless that may take longer than `LONG_POLL_MS`: then it is asked for by itself, on the main
connection and without a wait, until the answer has come.

A leader that knows the reader's rack may redirect it to a nearer replica (KIP-392). The reader
fetches from there for `metadata_max_age_ms`, then asks the leader again. If the replica fails or
refuses, the reader goes back to the leader, and for `AT_LEADER_MS` does not name its rack: the
leader would redirect it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

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
from streamlog.client.metrics.consumer_metrics import ConsumerMetrics
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

Wanted: TypeAlias = list[tuple[TopicPartition, PartitionState]]
"""Partitions to fetch."""
Requests: TypeAlias = dict[int, Wanted]
"""Broker to the partitions to fetch from it."""

Eras: TypeAlias = Mapping[TopicPartition, int]
"""Each partition of a request with its era then: data of another era is dropped."""

FULL_PAUSE_MS: Final = 20
"""Wait between requests that found nothing while a buffer is full."""
REQUEST_MARGIN_MS: Final = 10_000
"""How long a broker may take to answer a fetch, beyond the time that the request lets it wait."""
FAREWELL_TIMEOUT_MS: Final = 500
"""How long `end_sessions` waits for a broker. If it does not answer, it drops the session itself
after a while."""
LONG_POLL_MS: Final = 1_000
"""The longest `fetch_max_wait_ms` for whose end a partition waits that was assigned meanwhile."""
SINGLE_PAUSE_MS: Final = 100
"""Wait between two requests for such a partition."""
ERROR_BACKOFF_MS: Final = 200
"""Wait before a partition is fetched again after an error."""
LOST_ADVICE: Final = "seek to an offset that the log has, or set auto_offset_reset"
AT_LEADER_MS: Final = 10_000
"""How long a partition is read from its leader after a nearer replica has failed."""

log = repeated.logger(__name__)


class _FetchLane(NamedTuple):
    """How a request goes to a broker."""

    session: FetchSession
    lane: Lane
    wait_ms: int
    """How long the broker may hold the answer back."""


class Fetcher:
    """Fills the buffers of `positions` from the brokers. `run` is its task."""

    def __init__(
        self,
        cluster: Cluster,
        positions: SubscriptionState,
        beginnings: OffsetReset,
        settings: FetchSettings,
        background: Background,
        *,
        metrics: ConsumerMetrics,
        tell: Callable[[StreamlogError | None], None],
    ) -> None:
        """Fetch for `positions`; call `tell` with None for new records, or with an error."""
        self._cluster = cluster
        self._positions = positions
        self._beginnings = beginnings
        self._settings = settings
        self._background = background
        self._metrics = metrics
        self._tell = tell
        self._look = asyncio.Event()
        self._busy: set[int] = set()
        self._held: set[int] = set()
        """Brokers whose request may be held back for longer than `LONG_POLL_MS`."""
        self._plain: set[int] = set()
        """Brokers whose last request left out the reader's rack, since it had to (`_separated`)."""
        self._sessions: dict[int, FetchSession] = {}
        self._troubled_since_ms: int | None = None
        self._outage: Outage[TopicPartition] = Outage()

    async def end_sessions(self) -> None:
        """Close the fetch sessions, so that brokers free them at once (KIP-227)."""
        for node_id, session in self._sessions.items():
            farewell = session.farewell()
            if farewell is None or not self._cluster.is_connected(node_id, Lane.MAIN):
                continue
            # On the main connection: on the fetch lane it would wait behind a long poll.
            with suppress(StreamlogError):
                await self._cluster.call(
                    node_id, farewell, FetchResponse, timeout_ms=FAREWELL_TIMEOUT_MS
                )

    def look(self) -> None:
        """Wake the task: the assignment, a position, or the room in a buffer has changed."""
        self._look.set()

    async def run(self) -> None:
        """Fetch until cancelled."""
        while True:
            self._look.clear()
            pause_ms = await self._round()
            try:
                async with asyncio.timeout(None if pause_ms is None else pause_ms / 1000):
                    await self._look.wait()
            except TimeoutError:
                continue

    async def _round(self) -> int | None:
        """Send the requests that are possible; return the pause in ms, None if there is none."""
        now_ms = self._cluster.clock.now_ms()
        try:
            await self._beginnings.find()
            requests, next_ms, some_full = await self._requests(now_ms)
        except StreamlogError as error:
            self._on_error(error, [partition for partition, _ in self._positions.items()])
            return RETRY_BACKOFF_MS
        for node_id, wanted in requests.items():
            eras = {partition: state.era for partition, state in wanted}
            for _, state in wanted:
                state.in_flight = state.era
            if node_id in self._busy:
                self._background.start(self._fetch_single(node_id, wanted, eras))
                continue
            self._busy.add(node_id)
            self._background.start(self._fetch(node_id, wanted, eras, some_full=some_full))
        return None if next_ms is None else max(next_ms - now_ms, 1)

    async def _requests(self, now_ms: int) -> tuple[Requests, int | None, bool]:
        """Return the partitions to fetch, when the next one may be, and whether some are full."""
        requests: Requests = {}
        next_ms: int | None = None
        some_full = False
        for partition, state in self._positions.items():
            # Paused partitions are fetched as well until their buffer is full, so that `resume`
            # has records at once.
            if self._is_full(state):
                some_full = True
                continue
            if state.in_flight == state.era or state.position is None or state.is_held:
                continue
            if state.not_before_ms > now_ms:
                next_ms = min(next_ms or state.not_before_ms, state.not_before_ms)
                continue
            leader = await self._leader(partition, state)
            if leader is None:
                state.not_before_ms = next_ms = now_ms + ERROR_BACKOFF_MS
                continue
            source = self._source(state, leader, now_ms)
            if source in self._held or (source not in self._busy and state.in_flight is None):
                requests.setdefault(source, []).append((partition, state))
        return self._separated(requests, now_ms), next_ms, some_full

    async def _leader(self, partition: TopicPartition, state: PartitionState) -> int | None:
        """Return the leader of a partition; None if there is none that is new enough."""
        leader = self._cluster.leader(partition)
        if leader is None:
            await self._cluster.refresh([partition.topic])
            leader = self._cluster.leader(partition)
        if self._is_recreated(partition, state):
            if not state.is_drained:
                return None  # First the caller takes the records of the old topic.
            self._on_recreated(partition, state)
            return None
        known = self._cluster.leader_epoch(partition)
        if leader is None or known == NO_EPOCH or known >= state.fetched_epoch:
            return leader
        if self._cluster.known(partition.topic) is None:
            return leader
        # 1. Broker 1, leader in epoch 5, is cut off; broker 2 is elected in epoch 6.
        # 2. This consumer reads records of epoch 6 from broker 2.
        # 3. Metadata from a broker that has missed the election names broker 1, in epoch 5.
        # Broker 1 lacks the records of epoch 6: its log would seem to be truncated (KIP-320). So
        # the consumer waits for metadata of epoch 6.
        log.warning(
            "%s-%d: records of leader epoch %d were read, but the brokers know only epoch %d:"
            " waiting for a broker that knows the newer leader; if the topic was created again,"
            " seek",
            *partition,
            state.fetched_epoch,
            known,
        )
        self._cluster.note_epoch(partition, state.fetched_epoch)
        return None

    def _is_recreated(self, partition: TopicPartition, state: PartitionState) -> bool:
        """Whether the position belongs to an older topic of the same name."""
        topic_id = self._cluster.topic_id(partition.topic)
        return topic_id != ZERO_UUID and state.topic_id not in (None, topic_id)

    def _on_recreated(self, partition: TopicPartition, state: PartitionState) -> None:
        """Reset the position, or report the loss: the topic was deleted and created again."""
        new_id, old_id = self._cluster.topic_id(partition.topic), state.topic_id or b""
        what = (
            f"{partition.topic}-{partition.partition}: the topic was deleted and created again"
            f" (id {id_text(old_id)}, now {id_text(new_id)})"
        )
        if self._settings.auto_offset_reset == "none":
            self._lost(
                partition,
                state,
                f"{what}; the position was {state.position}",
                ids=(old_id, new_id),
            )
            return
        log.warning(
            "%s; reading continues at its %s instead of offset %s",
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
        """Report a lost position; the fetcher repeats the report until the caller seeks."""
        state.not_before_ms = self._cluster.clock.now_ms() + ERROR_BACKOFF_MS
        self._tell(
            SourceLost(
                message,
                topic=partition.topic,
                partition=partition.partition,
                position=state.fetch_offset,
                ids=ids,
                resume=resume,
                advice=LOST_ADVICE,
            )
        )

    def _source(self, state: PartitionState, leader: int, now_ms: int) -> int:
        """Return the broker to fetch from: the nearer replica while it is valid, or the leader.

        A fetch with a time mark goes to the leader, as only leaders write marks.
        """
        source = state.replica
        if source is None or state.mark_after_ms != NO_MARK:
            return leader
        if now_ms < state.replica_until_ms and self._cluster.knows(source):
            return source
        state.keep_at_leader(min(state.replica_until_ms, now_ms + AT_LEADER_MS))
        return leader

    def _separated(self, requests: Requests, now_ms: int) -> Requests:
        """Split requests whose partitions disagree about whether to name the reader's rack.

        A broker may lead one partition, which must not be redirected (no rack), and be the nearer
        replica of another (rack). These take turns: every other request is without a rack.
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
        wanted: Wanted,
        eras: Eras,
        *,
        some_full: bool,
    ) -> None:
        """Send the request for which a broker may wait, and store the answer.

        With `some_full` the broker must not hold the answer back; see the module's head.
        """
        wait_ms = 0 if some_full else self._settings.fetch_max_wait_ms
        session = self._sessions.setdefault(node_id, FetchSession())
        if wait_ms > LONG_POLL_MS:
            self._held.add(node_id)
        lane = _FetchLane(session, Lane.FETCH, wait_ms)
        kept = await self._ask(node_id, wanted, eras, lane)
        self._held.discard(node_id)
        if not kept and any(self._is_full(state) for _, state in self._positions.items()):
            await self._pause_full()
        self._busy.discard(node_id)
        self._look.set()

    async def _fetch_single(self, node_id: int, wanted: Wanted, eras: Eras) -> None:
        """Send a request beside one that the broker holds back, and store the answer."""
        # Without a session: the one with this broker belongs to the request that it holds back.
        lane = _FetchLane(FetchSession(is_single=True), Lane.MAIN, 0)
        kept = await self._ask(node_id, wanted, eras, lane)
        if not kept:
            pause_ms = self._cluster.clock.now_ms() + SINGLE_PAUSE_MS
            for _, state in wanted:
                state.not_before_ms = max(state.not_before_ms, pause_ms)
        self._look.set()

    async def _ask(self, node_id: int, wanted: Wanted, eras: Eras, by: _FetchLane) -> int:
        """Send one request to one broker, and store the answer; return the number of bytes."""
        session = by.session
        clock = self._cluster.clock
        sent_ms = clock.now_ms()
        try:
            response = await self._cluster.call(
                node_id,
                self._request(session, wanted, by.wait_ms),
                FetchResponse,
                lane=by.lane,
                timeout_ms=by.wait_ms + REQUEST_MARGIN_MS,
            )
            latency_ms = clock.now_ms() - sent_ms
            self._metrics.on_fetched(node_id, latency_ms, response.throttle_time_ms)
            session.on_answer(response)
            if response.error_code and response.error_code not in SESSION_OVER:
                raise error_for(response.error_code, f"fetch from broker {node_id}")
            self._troubled_since_ms = None
            if self._outage.is_on:
                self._on_answer(eras)
            for topic in response.responses:
                topic.topic = topic.topic or session.names.get(topic.topic_id, "")
            await self._look_up_lost(response.responses)
            return self._store(node_id, response.responses, eras)
        except StreamlogError as error:
            session.on_failure()
            self._cluster.forget({partition.topic for partition in eras})
            self._delay(wanted)
            for _, state in wanted:
                self._give_up(node_id, state)
            self._on_error(error, eras)
            return 0
        finally:
            for partition, state in wanted:
                # It may have been moved, and asked for again, meanwhile.
                if state.in_flight == eras[partition]:
                    state.in_flight = None

    async def _look_up_lost(self, topics: Collection[FetchableTopicResponse]) -> None:
        """Refresh the metadata of topics that lack a position: they may have been created again."""
        lost = {
            topic.topic
            for topic in topics
            for data in topic.partitions
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE or data.diverging_epoch is not None
        }
        if lost:
            await self._cluster.refresh(sorted(lost))

    async def _pause_full(self) -> None:
        """Wait until the caller has taken records, up to `FULL_PAUSE_MS`."""
        self._look.clear()
        try:
            async with asyncio.timeout(FULL_PAUSE_MS / 1000):
                await self._look.wait()
        except TimeoutError:
            return

    def _request(
        self,
        session: FetchSession,
        wanted: Wanted,
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
                mark_to_ms=state.mark_clock_time.time_ms,
                mark_clock=state.mark_clock_time.clock,
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
        """Buffer the records of an answer; return the number of bytes."""
        kept = 0
        for topic in topics:
            for data in topic.partitions:
                partition = TopicPartition(topic.topic, data.partition_index)
                state = self._positions.get(partition)
                if state is None or state.era != eras.get(partition):
                    continue  # The partition was revoked, or its position moved, meanwhile.
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
                state.log_start_offset = data.log_start_offset
                if data.preferred_read_replica >= 0:
                    self._send_to(partition, state, data.preferred_read_replica)
                records = one_buffer(data.records)
                if len(records):
                    aborted = [
                        AbortedRange(each.producer_id, each.first_offset)
                        for each in data.aborted_transactions or ()
                    ]
                    size_bytes = self._positions.put(partition, state.era, records, aborted)
                    self._metrics.topic(topic.topic).bytes.record(size_bytes)
                    kept += size_bytes
        if kept:
            self._metrics.fetch_sizes.record(kept)
            self._tell(None)
        return kept

    def _send_to(self, partition: TopicPartition, state: PartitionState, replica: int) -> None:
        """Read from the nearer replica that the leader names."""
        now_ms = self._cluster.clock.now_ms()
        if self._cluster.knows(replica):
            state.replica = replica
            state.replica_until_ms = now_ms + self._settings.metadata_max_age_ms
        else:
            self._cluster.forget([partition.topic])
            state.keep_at_leader(now_ms + AT_LEADER_MS)

    def _give_up(self, node_id: int, state: PartitionState) -> bool:
        """Go back to the leader if `node_id` is the nearer replica; return whether it is."""
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
                return  # The next round reports it.
            if self._settings.auto_offset_reset == "none":
                topic_id = state.topic_id or b""
                self._lost(
                    partition,
                    state,
                    f"{where}: the log does not hold this offset",
                    ids=(topic_id, topic_id),
                )
                return
            log.warning("%s: the log does not hold this offset: auto_offset_reset applies", where)
            state.move(None, PositionStart.RESET)
            return
        self._cluster.forget([partition.topic])
        error = error_for(data.error_code, where)
        # Kafka calls CORRUPT_MESSAGE retriable, but damage on disk stays: the caller gets the
        # error, and may seek past it.
        if error.retriable and data.error_code != ErrorCode.CORRUPT_MESSAGE:
            log.debug("%s", error)
        else:
            self._tell(error)

    def _on_cut(
        self, partition: TopicPartition, state: PartitionState, end: DivergingEpoch
    ) -> None:
        """Go back to where the log diverges from what was read, or report the loss (KIP-320)."""
        if self._is_recreated(partition, state):
            return  # The next round reports it.
        # The broker's end of that epoch may lie behind what this reader has seen of it:
        # 1. The reader has read epoch 4 up to offset 80, and epoch 5 from 80 to 100.
        # 2. Epoch 5 was truncated; the broker's log has epoch 4 up to 120.
        # 3. The logs agree up to 80 only: `end_of` returns where the reader's epoch 5 began.
        end_offset = state.epochs.end_of(end.epoch, end.end_offset)
        where = f"{partition.topic}-{partition.partition}: the log was truncated at {end_offset}"
        if self._settings.auto_offset_reset == "none":
            topic_id = state.topic_id or b""
            self._lost(
                partition,
                state,
                f"{where}, and this consumer has read up to {state.fetch_offset}; "
                f"leader epoch {end.epoch} ends there, but epoch {state.fetched_epoch} was read",
                ids=(topic_id, topic_id),
                resume=(end_offset, end.epoch),
            )
            return
        log.warning("%s: reading continues there instead of at %d", where, state.fetch_offset)
        state.cut(OffsetAndMetadata(end_offset, leader_epoch=end.epoch))

    def _delay(self, wanted: Wanted) -> None:
        for _, state in wanted:
            state.not_before_ms = self._cluster.clock.now_ms() + ERROR_BACKOFF_MS

    def _on_answer(self, partitions: Collection[TopicPartition]) -> None:
        """Note that a broker has answered for partitions; log it if that ends an outage."""
        self._outage.keep([partition for partition, _ in self._positions.items()])
        lasted_s = self._outage.end(partitions, self._cluster.clock.now_ms())
        if lasted_s is not None:
            log.warning("brokers answer fetches again after %.1f s", lasted_s)

    def _on_error(self, error: StreamlogError, partitions: Collection[TopicPartition]) -> None:
        """Log an error once; report it to the caller after `RETRY_TIMEOUT_MS`."""
        now_ms = self._cluster.clock.now_ms()
        if self._troubled_since_ms is None:
            self._troubled_since_ms = now_ms
            if error.retriable and not self._outage.is_on:
                log.warning("the fetch failed and will be retried: %s", error)
        self._outage.begin(partitions, now_ms)
        if not error.retriable or now_ms - self._troubled_since_ms > RETRY_TIMEOUT_MS:
            self._troubled_since_ms = None
            self._tell(error)
