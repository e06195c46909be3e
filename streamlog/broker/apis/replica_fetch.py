"""ReplicaFetches: handles Fetch requests of followers and reports their progress to the leader.

The offset that a follower fetches from says what is on its disk; see `replication/leader_replica`.
The request of a follower that has everything waits until something is appended, the high watermark
moves, or its time-out passes. So an append reaches the followers at once, and so does a commit.

Rule of the file: a fetch counts for the leader once, when it arrives. Its records are read when it
is answered, if this broker still leads in the epoch that the request names.

While the leader's replication quota is exceeded, a response has no records of throttled replicas
for followers out of sync (KIP-73), and such a fetch waits at most until the quota has room again.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

import msgspec

from streamlog.broker.apis.fetch import FETCH_WAIT_MS_MAX
from streamlog.broker.future_responses import PromptFuture, Turn
from streamlog.broker.replication.purgatory import DelayedRequests, Wait
from streamlog.broker.replication.replica_state import (
    Diverging,
    FetchAnswer,
    ReplicaError,
    ReplicaFetch,
    Serve,
)
from streamlog.errors import ConnectionLost, CorruptData, LogError, StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.produce_and_fetch import (
    DivergingEpoch,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

if TYPE_CHECKING:
    from streamlog.broker.deadline_timer import DeadlineTimer
    from streamlog.broker.replication.partition_replica import PartitionReplica
    from streamlog.broker.replication.replicas import Replicas
    from streamlog.clock import Clock
    from streamlog.protocol.schema import Message

ANY_BYTES = 1
"""The bytes that a follower waits for: anything new completes its fetch."""


def is_of_a_follower(request: FetchRequest) -> bool:
    """Whether a broker sends the request, not a consumer."""
    return _asker(request) >= 0


def _asker(request: FetchRequest) -> int:
    """Return the broker that sends the request; -1 for a consumer."""
    # From version 15 on the id is in `replica_state` (KIP-903).
    state = request.replica_state
    return request.replica_id if state is None else state.replica_id


class Names(Protocol):
    """Port: maps topic ids to names."""

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with this id; None if there is no such topic."""
        ...


@dataclass(slots=True)
class _Asked:
    """One partition of a fetch, with what the leader decided when the request arrived."""

    replica: PartitionReplica | None
    wanted: FetchPartition
    answer: FetchAnswer | None
    is_throttled: bool = False
    """Whether its records count for the quota, and are left out while the quota is exceeded."""


class DelayedReplicaFetch(msgspec.Struct, frozen=True):
    """A follower's fetch that waits for news."""

    request: FetchRequest
    asked: list[list[_Asked]]
    answer: asyncio.Future[Message]
    deadline_ms: int


class ReplicaFetches:
    """Answers the fetches of followers, at once or when there is news."""

    def __init__(
        self, replicas: Replicas, names: Names, *, clock: Clock, alarm: DeadlineTimer, turn: Turn
    ) -> None:
        self._replicas = replicas
        self._names = names
        self._clock = clock
        self._delayed: DelayedRequests[DelayedReplicaFetch] = DelayedRequests(
            self._answer,
            alarm=alarm.by,
            later=turn.later,
        )
        self._sent_ends: WeakKeyDictionary[PartitionReplica, dict[int, tuple[int, int]]] = (
            WeakKeyDictionary()
        )
        """Per replica and follower, the high watermark and log start offset that it got last.

        Weak: an entry goes with its replica, so that a new replica of the partition starts afresh.
        """
        replicas.on_fetch_progress = self.on_progress

    def begin(self, request: FetchRequest) -> Message | asyncio.Future[Message]:
        """Count a fetch; return the response, or a future if there is no news yet."""
        now_ms = self._clock.now_ms()
        asked = [self._judge(request, topic, now_ms) for topic in request.topics]
        response, has_news = self._response(request, asked, now_ms)
        if has_news or request.max_wait_ms <= 0:
            return response
        answer: PromptFuture[Message] = PromptFuture()
        deadline_ms = now_ms + min(request.max_wait_ms, FETCH_WAIT_MS_MAX)
        parts = [each for topic in asked for each in topic]
        # The request waits for the partitions that are not throttled, but only until the quota has
        # room for the others.
        held_ms = self._replicas.leader_quota.exceeded_for_ms(now_ms)
        if held_ms and any(each.is_throttled for each in parts):
            deadline_ms = min(deadline_ms, now_ms + held_ms)
        keys = tuple(
            (each.replica.topic, each.replica.index)
            for each in parts
            # Until the quota has room again, an append to a throttled replica is not sent.
            if each.replica is not None and not (held_ms and each.is_throttled)
        )
        delayed = DelayedReplicaFetch(request, asked, answer, deadline_ms)
        self._delayed.park(delayed, Wait(keys, ANY_BYTES))
        return answer

    def on_progress(self, topic: str, partition: int) -> None:
        """Answer the waiting fetches of a partition, at the end of the turn.

        Later, not now: more appends in this turn then leave in one response.
        """
        self._delayed.on_append(topic, partition, ANY_BYTES)

    @property
    def delayed(self) -> int:
        """How many fetches of followers wait for news."""
        return self._delayed.count_waiting()

    def tick(self, now_ms: int) -> None:
        """Answer the requests whose timeout has passed."""
        self._delayed.tick(now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return the earliest time at which `tick` has something to do; None for never."""
        return self._delayed.next_deadline_ms()

    def stop(self, gone: ConnectionLost) -> None:
        """Fail the requests that wait."""
        self._delayed.stop(gone)

    def _answer(self, delayed: DelayedReplicaFetch) -> None:
        """Answer a fetch with the records of now, even if there are none."""
        response, _ = self._response(delayed.request, delayed.asked, self._clock.now_ms())
        delayed.answer.set_result(response)

    def _judge(self, request: FetchRequest, topic: FetchTopic, now_ms: int) -> list[_Asked]:
        name = self._names.name_of(topic.topic_id) if any(topic.topic_id) else topic.topic
        state = request.replica_state
        asked = []
        for wanted in topic.partitions:
            replica = None if name is None else self._replicas.get(name, wanted.partition)
            answer: FetchAnswer | None = None
            if replica is not None:
                fetch = ReplicaFetch(
                    broker=_asker(request),
                    broker_epoch=-1 if state is None else state.replica_epoch,
                    leader_epoch=wanted.current_leader_epoch,
                    offset=wanted.fetch_offset,
                    last_epoch=wanted.last_fetched_epoch,
                    log_start=wanted.log_start_offset,
                    number=wanted.fetch_number,
                )
                # Even if the response waits: the leader's high watermark depends on this offset.
                answer = replica.on_fetch(fetch, now_ms)
            asked.append(_Asked(replica, wanted, answer))
        return asked

    def _response(
        self, request: FetchRequest, asked: list[list[_Asked]], now_ms: int
    ) -> tuple[FetchResponse, bool]:
        """Return the response as of now, and whether it says anything new to the follower."""
        quota, asker = self._replicas.leader_quota, _asker(request)
        is_exceeded = quota.exceeded_for_ms(now_ms) > 0
        room_bytes = request.max_bytes
        throttled_bytes = 0
        has_news = False
        responses = []
        for topic, partitions in zip(request.topics, asked, strict=True):
            answers = []
            for each in partitions:
                each.is_throttled = each.replica is not None and each.replica.throttles_follower(
                    asker
                )
                is_held = is_exceeded and each.is_throttled
                # The first partition with records gets one batch even beyond the limits (KIP-74):
                # otherwise a follower could never pass a batch larger than its max_bytes.
                is_first = room_bytes == request.max_bytes and not is_held
                data = _data(each, 0 if is_held else room_bytes, is_first=is_first)
                size_bytes = 0 if data.records is None else len(data.records)
                throttled_bytes += size_bytes if each.is_throttled else 0
                room_bytes -= size_bytes
                # Asked for each partition, since it records what the follower gets.
                is_known = self._is_known(request, each.replica, data)
                has_news = has_news or not is_known or size_bytes > 0
                answers.append(data)
            responses.append(
                FetchableTopicResponse(
                    topic=topic.topic, topic_id=topic.topic_id, partitions=answers
                )
            )
        quota.record(throttled_bytes, now_ms)
        return FetchResponse(responses=responses), has_news

    def _is_known(
        self, request: FetchRequest, replica: PartitionReplica | None, data: PartitionData
    ) -> bool:
        """Whether the follower has these offsets already; they count as sent from now on."""
        if replica is None or data.error_code or data.diverging_epoch is not None:
            return False
        broker = _asker(request)
        ends = (data.high_watermark, data.log_start_offset)
        sent_ends = self._sent_ends.setdefault(replica, {})
        known, sent_ends[broker] = sent_ends.get(broker), ends
        return known == ends


def _data(asked: _Asked, room_bytes: int, *, is_first: bool) -> PartitionData:
    replica, wanted = asked.replica, asked.wanted
    if replica is None:
        return _refused(wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    leader = replica.machine.leader
    if leader is None or leader.epoch != wanted.current_leader_epoch:
        # 1. A fetch of epoch 5 waits. 2. This broker loses the partition, and leads it again in
        # epoch 6. 3. An append completes the fetch: the follower has to check its log against
        # epoch 6 first, so it gets an error and no records.
        return _unled(replica, asked)
    match asked.answer:
        case ReplicaError(code, log_start):
            return _refused(wanted, code, log_start)
        case Diverging(epoch, end_offset):
            return _diverging(replica, wanted, DivergingEpoch(epoch=epoch, end_offset=end_offset))
        case Serve():
            return _batches(replica, wanted, room_bytes, is_first=is_first)
    return _refused(wanted, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def _unled(replica: PartitionReplica, asked: _Asked) -> PartitionData:
    """Return the error that the replica gave when the request arrived, or NOT_LEADER."""
    match asked.answer:
        case ReplicaError(code, log_start):
            return _refused(asked.wanted, code, log_start)
    return _refused(asked.wanted, ErrorCode.NOT_LEADER_OR_FOLLOWER, replica.log.log_start_offset)


def _diverging(
    replica: PartitionReplica, wanted: FetchPartition, found: DivergingEpoch
) -> PartitionData:
    try:
        replica.log.check_end()
    except StreamlogError as error:
        # The follower may have the records that are damaged here: it must not cut them.
        return _refused(wanted, _code(error), replica.log.log_start_offset)
    return PartitionData(
        partition_index=wanted.partition,
        high_watermark=replica.high_watermark,
        log_start_offset=replica.log.log_start_offset,
        diverging_epoch=found,
        records=b"",
    )


def _batches(
    replica: PartitionReplica, wanted: FetchPartition, room_bytes: int, *, is_first: bool
) -> PartitionData:
    try:
        records = replica.log.range(
            wanted.fetch_offset,
            max_bytes=max(min(wanted.partition_max_bytes, room_bytes), 0),
            min_one=is_first,
        )
    except StreamlogError as error:
        return _refused(wanted, _code(error), replica.log.log_start_offset)
    replica.traffic.replication_bytes_out += len(records)
    return PartitionData(
        partition_index=wanted.partition,
        high_watermark=replica.high_watermark,
        log_start_offset=replica.log.log_start_offset,
        records=records,
    )


def _refused(wanted: FetchPartition, code: int, log_start: int = -1) -> PartitionData:
    return PartitionData(
        partition_index=wanted.partition,
        error_code=code,
        high_watermark=-1,
        log_start_offset=log_start,
        records=b"",
    )


def _code(error: StreamlogError) -> int:
    if isinstance(error, LogError):
        return error.code
    if isinstance(error, CorruptData):
        return ErrorCode.CORRUPT_MESSAGE
    return ErrorCode.KAFKA_STORAGE_ERROR
