"""The life of a Fetch request of a consumer, from its message to its records.

Versions 4 to 16. The response has as much as there is room for, and at least one batch (KIP-74).
Each partition has its own answer, and the error of one disturbs no other. Record batches stay the
bytes of the log, ranges of its files (docs/decisions/002-sendfile.md): nothing here looks into a
batch, except for the codec in its header.

Not implemented: message formats before record batches (versions 0 to 3), and tiered storage.
Fetches of followers: `apis/replica_fetch`.

The steps, in the order of this file:

1. `server/connection` has checked the sender's session; ACLs are checked by the rule `fetch` of
   `security/topic_rules`, which says for each topic whether it may be read. `FetchRequests` takes
   the request up.
2. A fetch session (KIP-227) adds the partitions that the request left out (`fetch_sessions`).
3. The logs are read as they are now (`PartitionReads`). A request that repeats another
   (`protocol/fetch_patterns`) is read for by `read_repeat`, if nothing about it is special; it has
   one partition and no session.
4. A Fetch that found too little is parked with what it lacks (`replication/purgatory`). Appends
   wake it, and its deadline does; then the logs are read again. It waits as a future, not as a
   task, so that a thousand waiting consumers cost a thousand futures.
5. The session leaves out partitions without news. `server/connection` counts the records of the
   response for the client's quota.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from streamlog.broker.apis.fetch_sessions import TOPIC_IDS_VERSION, FetchSessions, Visit
from streamlog.broker.apis.list_offsets import current_leader, error_code, refuse_zstd
from streamlog.broker.config.settings import INT_MAX
from streamlog.broker.future_responses import PromptFuture
from streamlog.broker.replication.partition import NO_EPOCH
from streamlog.broker.replication.purgatory import DelayedRequests, Wait
from streamlog.broker.turn import Turn
from streamlog.durations import TIMESTAMP_MS_MAX
from streamlog.errors import LogError, StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.fetch_patterns import READ_COMMITTED, FoundRecords, PartitionEnds
from streamlog.protocol.messages.produce_and_fetch import (
    AbortedTransaction,
    DivergingEpoch,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from streamlog.protocol.schema import ZERO_UUID, Message, one_buffer
from streamlog.records.control_batches import CLOCK_BYTES_MAX, ClockTime

if TYPE_CHECKING:
    from streamlog.broker.deadline_timer import DeadlineTimer
    from streamlog.broker.replication.partition import Partition, Partitions
    from streamlog.broker.security.acl_authorizer import Readable
    from streamlog.broker.security.principals import RequestContext
    from streamlog.clock import Clock
    from streamlog.errors import ConnectionLost
    from streamlog.protocol.fetch_patterns import FetchAlike
    from streamlog.protocol.schema import Piece

FETCH_WAIT_MS_MAX = 5 * 60 * 1000
"""The maximum wait of a Fetch, whatever it asks for; every client gives up before that."""
FETCH_BYTES_MAX = 55 * 1024 * 1024
"""The maximum size of a response, except for a first batch; Kafka's `fetch.max.bytes`."""
ZSTD_VERSION = 10
"""Clients that speak an older version do not know zstd (KIP-110)."""
NO_REPLICA = -1
"""The preferred replica in a response to a reader that should stay with this broker."""

_new_tuple = tuple.__new__  # a named tuple, past its handling of keywords and defaults

PartitionKey: TypeAlias = tuple[str, int]
RepeatAnswer: TypeAlias = FoundRecords | FetchResponse
"""The answer to a Fetch that repeats another: the records found, or a response."""
WantMark = Callable[["Partition", int, ClockTime | None], None]
"""Called when a reader at the end of a partition wants a time mark: after how much quiet, in ms,
and to which event time the mark brings the readers of one clock."""

# ---- 1. a request is taken up ----


class FetchRequests:
    """Answers the Fetch requests of consumers."""

    def __init__(
        self,
        partitions: Callable[[], Partitions],
        *,
        slots: Callable[[], int],
        clock: Clock,
        alarm: DeadlineTimer,
        want_mark: WantMark,
        turn: Turn,
    ) -> None:
        """`partitions` returns the broker's partitions; `slots` the maximum number of sessions."""
        self._reads = PartitionReads(partitions, want_mark)
        self._clock = clock
        self._sessions = FetchSessions(slots=slots, new_id=_new_session_id)
        self.delayed: DelayedRequests[_Delayed] = DelayedRequests(
            lambda each: each.look(self._reads, self._clock.now_ms()),
            alarm=alarm.by,
            later=turn.later,
        )
        """The requests that wait. As an `AppendListener`, it looks at them after appends."""

    def begin(
        self, request: FetchRequest, context: RequestContext, readable: Readable | None = None
    ) -> Message | asyncio.Future[Message]:
        """Return the response, or where it will be.

        `readable` splits topics into those that the principal may read, and refusals for the
        others; None if the principal may read all.
        """
        now_ms = self._clock.now_ms()
        try:
            visit = self._sessions.begin(request, version=context.version, now_ms=now_ms)
        except LogError as refusal:
            return FetchResponse(error_code=refusal.code)
        if readable is not None:
            # 1. A session was begun with topic t. 2. READ on t is revoked. 3. The next request of
            # the session names no topic, and means t. So what the session adds is judged, too.
            allowed, refused = readable(visit.request.topics)
            if refused:
                # A refusal does not wait for records of the other topics.
                rest = _without_wait(visit.request, allowed)
                response = self._reads.read(rest, context.version).response
                response.responses = [*response.responses, *refused]
                return visit.finish(response, now_ms=now_ms)
        attempt = self._reads.read(visit.request, context.version)
        if not attempt.missing_bytes:
            return visit.finish(attempt.response, now_ms=now_ms)
        answer: PromptFuture[Message] = PromptFuture()
        deadline_ms = _deadline_ms(request, now_ms)
        delayed = DelayedFetch(visit, context.version, answer, deadline_ms)
        self.delayed.park(delayed, attempt.wait)
        return answer

    def begin_repeat(
        self, alike: FetchAlike, context: RequestContext
    ) -> RepeatAnswer | asyncio.Future[RepeatAnswer]:
        """Return the answer to a Fetch that repeats another, or where it will be."""
        wait = self._reads.read_repeat(alike)
        if isinstance(wait, FoundRecords):
            return wait
        if wait is None:
            attempt = self._reads.read(alike.message(), context.version)
            if not attempt.missing_bytes:
                return attempt.response
            wait = attempt.wait
        answer: PromptFuture[RepeatAnswer] = PromptFuture()
        deadline_ms = _deadline_ms(alike.pattern.request, self._clock.now_ms())
        self.delayed.park(DelayedRepeat(alike, answer, deadline_ms), wait)
        return answer

    def tick(self, now_ms: int) -> None:
        """Answer the requests whose timeout has passed."""
        self.delayed.tick(now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return the earliest time at which `tick` has something to do; None for never."""
        return self.delayed.next_deadline_ms()

    def stop(self, gone: ConnectionLost) -> None:
        """Fail the requests that wait."""
        self.delayed.stop(gone)


def _deadline_ms(request: FetchRequest, now_ms: int) -> int:
    return now_ms + min(request.max_wait_ms, FETCH_WAIT_MS_MAX)


def _without_wait(request: FetchRequest, topics: list[FetchTopic]) -> FetchRequest:
    """Return a request for some topics of another one, which does not wait."""
    return FetchRequest(
        replica_id=request.replica_id,
        max_bytes=request.max_bytes,
        isolation_level=request.isolation_level,
        topics=topics,
        rack_id=request.rack_id,
    )


def _new_session_id() -> int:
    return secrets.randbelow(INT_MAX) + 1


# ---- 3. the logs are read ----


class FetchAttempt(NamedTuple):
    """The response to a Fetch as of now, and how much it lacks to be sent without a wait."""

    response: FetchResponse
    partitions: tuple[PartitionKey, ...] = ()
    """Where more bytes could come from."""
    missing_bytes: int = 0
    """How many bytes are missing; 0 if the response should go out as it is."""

    @property
    def wait(self) -> Wait[PartitionKey]:
        """What the request waits for, if bytes are missing."""
        return Wait(self.partitions, self.missing_bytes)


class PartitionReads:
    """Reads the partitions of this broker, as they are now."""

    def __init__(self, partitions: Callable[[], Partitions], want_mark: WantMark) -> None:
        self._partitions = partitions
        self._want_mark = want_mark

    def read(self, request: FetchRequest, version: int) -> FetchAttempt:
        """Read up to the request's limits; the first batch found may exceed them (KIP-74)."""
        partitions = self._partitions()
        reading = _Reading(partitions, request, version, self._want_mark)
        response = FetchResponse(responses=[reading.topic(each) for each in request.topics])
        missing_bytes = request.min_bytes - reading.found_bytes
        if reading.failed or missing_bytes <= 0 or request.max_wait_ms <= 0:
            # Only for reads that are answered: a Fetch that waits is read for again.
            partitions.copy_bytes_read += reading.copy_bytes
            for partition, size_bytes in reading.served:
                partition.traffic.bytes_out += size_bytes
            return FetchAttempt(response)
        return FetchAttempt(response, tuple(reading.keys), missing_bytes)

    def read_repeat(self, alike: FetchAlike) -> FoundRecords | Wait[PartitionKey] | None:
        """Return what a Fetch that repeats another one has found, or what it has to wait for.

        None if it takes `read`, because it may be refused, has aborted transactions to report, or
        may be sent to another broker.
        """
        request = alike.pattern.request
        topic = request.topics[0]
        asked = topic.partitions[0]
        partitions = self._partitions()
        name = topic.topic or partitions.name_of(topic.topic_id)
        if name is None or request.rack_id:
            return None
        try:
            partition = partitions.get(name, asked.partition)
            if asked.current_leader_epoch != NO_EPOCH or not partition.is_alone:
                partition.check_epoch(asked.current_leader_epoch)
            epoch = asked.last_fetched_epoch
            # The full way reports the divergence to the reader (KIP-595).
            if epoch != NO_EPOCH and partition.diverges(epoch, alike.offset) is not None:
                return None
            ends = partition.ends
            if alike.offset >= ends.high_watermark:
                return _wait_at_end(alike, partition, ends.high_watermark)
            committed = request.isolation_level == READ_COMMITTED
            room_bytes = min(asked.partition_max_bytes, request.max_bytes, FETCH_BYTES_MAX)
            records = partition.range(
                alike.offset, ends, max_bytes=max(room_bytes, 0), stable=committed
            )
            size_bytes = len(records)
            is_too_little = size_bytes < max(request.min_bytes, 1)
            if is_too_little or (committed and partition.aborted(alike.offset)):
                return None
        except StreamlogError:
            return None  # `read` raises it again, and makes it the answer.
        partition.traffic.bytes_out += size_bytes
        return _new_tuple(FoundRecords, (ends, records))


class _Reading:
    """The reading for one Fetch: counts the bytes found, and notes failures of partitions."""

    def __init__(
        self, partitions: Partitions, request: FetchRequest, version: int, want_mark: WantMark
    ) -> None:
        self._partitions = partitions
        self._want_mark = want_mark
        self._room_bytes = min(request.max_bytes, FETCH_BYTES_MAX)
        self._version = version
        self._committed = request.isolation_level == READ_COMMITTED
        self._rack = request.rack_id
        self.found_bytes = 0
        self.copy_bytes = 0
        """How many of the found bytes are from partitions that other brokers lead."""
        self.served: list[tuple[Partition, int]] = []
        """The partitions in which bytes were found, with their number."""
        self.failed = False
        self.keys: list[PartitionKey] = []
        """The partitions that were read, by name."""

    def topic(self, asked: FetchTopic) -> FetchableTopicResponse:
        """Read the partitions of one topic, given by name or by id."""
        name: str | None = asked.topic
        # A client in this process may give both: then the id tells a topic from a later one of
        # the same name.
        if asked.topic_id != ZERO_UUID or (not name and self._version >= TOPIC_IDS_VERSION):
            name = self._partitions.name_of(asked.topic_id)
        if name is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
            partitions = [self._unreadable(each, code) for each in asked.partitions]
        else:
            partitions = [self._partition(name, each) for each in asked.partitions]
        return FetchableTopicResponse(
            topic=asked.topic, topic_id=asked.topic_id, partitions=partitions
        )

    def _unreadable(
        self, wanted: FetchPartition, code: int, error: StreamlogError | None = None
    ) -> PartitionData:
        self.failed = True
        return PartitionData(
            partition_index=wanted.partition,
            error_code=code,
            high_watermark=-1,
            current_leader=current_leader(error),
            records=b"",
        )

    def _partition(self, topic: str, wanted: FetchPartition) -> PartitionData:
        self.keys.append((topic, wanted.partition))
        try:
            partition = self._find(topic, wanted)
            diverging = _diverging(partition, wanted) if partition.is_leader else None
            elsewhere = None if diverging else self._elsewhere(partition, wanted)
            if diverging is None and elsewhere is None:
                found = self._read(partition, wanted)
            else:
                self.failed = True  # The reader has to act on this now, and nothing is waited for.
                found = _Found(b"", partition.ends, [] if self._committed else None)
        except StreamlogError as error:
            return self._unreadable(wanted, error_code(error), error)
        if size_bytes := len(found.records):
            self.found_bytes += size_bytes
            self.served.append((partition, size_bytes))
        if not partition.is_leader:
            self.copy_bytes += len(found.records)
        if wanted.mark_after_ms >= 0 and wanted.fetch_offset == found.ends.high_watermark:
            self._want_mark(partition, wanted.mark_after_ms, _wanted_clock_time(wanted))
        return PartitionData(
            partition_index=wanted.partition,
            high_watermark=found.ends.high_watermark,
            last_stable_offset=found.ends.last_stable_offset,
            log_start_offset=found.ends.log_start_offset,
            diverging_epoch=diverging,
            aborted_transactions=found.aborted,
            preferred_read_replica=NO_REPLICA if elsewhere is None else elsewhere,
            records=found.records,
        )

    def _find(self, topic: str, wanted: FetchPartition) -> Partition:
        """Return a partition led here, or for a reader with a rack a copy (KIP-392)."""
        find = self._partitions.readable if self._rack else self._partitions.get
        partition = find(topic, wanted.partition)
        if not self._rack or partition.is_leader:
            partition.check_epoch(wanted.current_leader_epoch)
        else:
            partition.check_copy(
                wanted.fetch_offset,
                leader_epoch=wanted.current_leader_epoch,
                last_epoch=wanted.last_fetched_epoch,
            )
        return partition

    def _elsewhere(self, partition: Partition, wanted: FetchPartition) -> int | None:
        """Return the broker to which this reader is nearer; None if it reads here.

        A reader that wants time marks reads from the leader, which alone appends them.
        """
        if not self._rack or wanted.mark_after_ms >= 0:
            return None
        return partition.nearest(self._rack, wanted.fetch_offset)

    def _read(self, partition: Partition, wanted: FetchPartition) -> _Found:
        is_first = self.found_bytes == 0
        room_bytes = min(wanted.partition_max_bytes, self._room_bytes - self.found_bytes)
        found = _read(
            partition,
            wanted.fetch_offset,
            room_bytes,
            min_one=is_first,
            committed=self._committed,
        )
        if self._version < ZSTD_VERSION:
            where = f"{partition.topic}-{partition.index}: Fetch version {self._version}"
            refuse_zstd(one_buffer(found.records), where)
        return found


class _Found(NamedTuple):
    """The part of a response for one partition."""

    records: Piece
    ends: PartitionEnds
    aborted: list[AbortedTransaction] | None
    """The aborted transactions, whose records readers of committed records skip."""


def _read(
    partition: Partition, offset: int, room_bytes: int, *, min_one: bool, committed: bool
) -> _Found:
    """Read from `offset` on. Raises what `Partition.range` raises."""
    ends = partition.ends
    records = partition.range(
        offset, ends, max_bytes=max(room_bytes, 0), min_one=min_one, stable=committed
    )
    if not committed:
        return _Found(records, ends, None)
    aborted = [
        AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
        for each in (partition.aborted(offset) if len(records) else ())
    ]
    return _Found(records, ends, aborted)


def _wait_at_end(
    alike: FetchAlike, partition: Partition, high_watermark: int
) -> Wait[PartitionKey] | None:
    """Return what a reader at the end of its partition waits for; None if it does not wait."""
    request = alike.pattern.request
    waits = request.max_wait_ms > 0 and request.min_bytes > 0
    # Beyond the high watermark, `read` decides whether the offset is an error.
    if not waits or alike.offset != high_watermark:
        return None
    return _new_tuple(Wait, (((partition.topic, partition.index),), request.min_bytes))


def _wanted_clock_time(wanted: FetchPartition) -> ClockTime | None:
    """Return the clock and event time that a reader wants in a mark; None if none or invalid."""
    clock, time_ms = wanted.mark_clock, wanted.mark_to_ms
    is_sound = clock and len(clock.encode()) <= CLOCK_BYTES_MAX and 0 <= time_ms <= TIMESTAMP_MS_MAX
    return ClockTime(clock, time_ms) if is_sound else None


def _diverging(partition: Partition, wanted: FetchPartition) -> DivergingEpoch | None:
    """Return where a reader that sends the epoch of its last batch has left this log (KIP-595)."""
    if wanted.last_fetched_epoch == NO_EPOCH:
        return None
    found = partition.diverges(wanted.last_fetched_epoch, wanted.fetch_offset)
    return None if found is None else DivergingEpoch(epoch=found[0], end_offset=found[1])


# ---- 4. a request waits ----


class DelayedFetch(msgspec.Struct, frozen=True):
    """A Fetch that waits."""

    visit: Visit
    version: int
    answer: asyncio.Future[Message]
    deadline_ms: int

    def look(self, reads: PartitionReads, now_ms: int) -> Wait[PartitionKey] | None:
        """Answer the request, or return what it still has to wait for."""
        attempt = reads.read(self.visit.request, self.version)
        # 1. A reader of committed records waits for 1 byte. 2. A producer appends 100 bytes in a
        # transaction and wakes it. 3. The transaction is open, so nothing is readable: it waits on.
        if attempt.missing_bytes and now_ms < self.deadline_ms:
            return attempt.wait
        self.answer.set_result(self.visit.finish(attempt.response, now_ms=now_ms))
        return None


class DelayedRepeat(msgspec.Struct, frozen=True):
    """A Fetch that waits, repeats another, and has no session."""

    alike: FetchAlike
    answer: asyncio.Future[RepeatAnswer]
    deadline_ms: int

    def look(self, reads: PartitionReads, now_ms: int) -> Wait[PartitionKey] | None:
        """Answer the request, or return what it still has to wait for."""
        found = reads.read_repeat(self.alike)
        waits = now_ms < self.deadline_ms
        if isinstance(found, Wait) and waits:
            return found
        if isinstance(found, FoundRecords):
            self.answer.set_result(found)
            return None
        attempt = reads.read(self.alike.message(), self.alike.pattern.version)
        if attempt.missing_bytes and waits:
            return attempt.wait
        self.answer.set_result(attempt.response)
        return None


_Delayed: TypeAlias = DelayedFetch | DelayedRepeat
