"""ReplicaFetches: handles Fetch requests of followers and reports their progress to the leader.

The offset that a follower fetches from says what is on its disk; see `replication/leader_replica`.
The request of a follower that has everything waits until something is appended, the high watermark
moves, or its time-out passes. So an append reaches the followers at once, and so does a commit.

Rule of the file: a fetch counts for the leader once, when it arrives. Its records are read when it
is answered, if this broker still leads in the epoch that the request names, with the log that it
had then.

A follower of this version opens a session (`replication/replica_sessions`, KIP-227): then a fetch
stays open until it has an answer, and a request names only new ones. Work grows with the partitions
that have changed, not with those that are followed.

While the leader's replication quota is exceeded, a response has no records of throttled replicas
for followers out of sync (KIP-73), and such a fetch waits at most until the quota has room again.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias
from weakref import WeakKeyDictionary

import msgspec

from streamlog.broker.apis.fetch import FETCH_WAIT_MS_MAX
from streamlog.broker.future_responses import PromptFuture
from streamlog.broker.replication.purgatory import DelayedRequests, Wait
from streamlog.broker.replication.replica_sessions import (
    FIRST_EPOCH,
    LAST_EPOCH,
    FollowerId,
    FollowerSession,
    FollowerSessions,
    Key,
    wait_ms_max,
)
from streamlog.broker.replication.replica_state import (
    Diverging,
    FetchAnswer,
    ReplicaError,
    ReplicaFetch,
    Serve,
)
from streamlog.broker.turn import Turn
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
    from collections.abc import Iterator

    from streamlog.broker.deadline_timer import DeadlineTimer
    from streamlog.broker.replication.partition_replica import PartitionReplica
    from streamlog.broker.replication.replicas import Replicas
    from streamlog.broker.replication.replication_quota import ReplicationQuota
    from streamlog.clock import Clock
    from streamlog.protocol.schema import Message, Piece

ANY_BYTES = 1
_UNREAD: Final[tuple[tuple[int, ...], bytes]] = (), b""
"""The bytes that a follower waits for: anything new completes its fetch."""
SOON_MS = 500
"""How long a high watermark that has risen may wait for records to go along with. A follower that
is idle allows more, see `replica_fetcher`."""
_SESSION_IDS = 2**31 - 1


def is_of_a_follower(request: FetchRequest) -> bool:
    """Whether a broker sends the request, not a consumer."""
    state = request.replica_state
    return (request.replica_id if state is None else state.replica_id) >= 0


def _asker(request: FetchRequest) -> int:
    """Return the broker that sends the request; -1 for a consumer."""
    # From version 15 on the id is in `replica_state` (KIP-903).
    state = request.replica_state
    return request.replica_id if state is None else state.replica_id


def _follower(request: FetchRequest) -> FollowerId:
    """Return the broker that sends the request, and the epoch of its registration."""
    state = request.replica_state
    if state is None:
        return request.replica_id, -1
    return state.replica_id, state.replica_epoch


def _fetch_of(follower: FollowerId, wanted: FetchPartition) -> ReplicaFetch:
    return ReplicaFetch(
        broker=follower[0],
        broker_epoch=follower[1],
        leader_epoch=wanted.current_leader_epoch,
        offset=wanted.fetch_offset,
        last_epoch=wanted.last_fetched_epoch,
        log_start=wanted.log_start_offset,
        number=wanted.fetch_number,
    )


class Names(Protocol):
    """Port: maps topic ids to names."""

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with this id; None if there is no such topic."""
        ...


class News(IntEnum):
    """What a response would tell a follower of a partition."""

    NONE = 0
    COMMIT = 1
    """Only a higher high watermark: it can go along with the next records."""
    URGENT = 2


def _ends_of(data: PartitionData) -> tuple[int, int] | None:
    """Return the high watermark and the log start offset; None for an error."""
    if data.error_code or data.diverging_epoch is not None:
        return None
    return data.high_watermark, data.log_start_offset


@dataclass(slots=True)
class _Asked:
    """One partition of a fetch, with what the leader decided when the request arrived."""

    replica: PartitionReplica | None
    wanted: FetchPartition
    answer: FetchAnswer | None
    is_throttled: bool = False
    """Whether its records count for the quota, and are left out while the quota is exceeded."""
    generation: int = 0
    """The number of cuts of the leader's log when the request arrived."""
    sent_ends: tuple[int, int] | None = None
    """In a session, the high watermark and log start offset that the follower got last."""

    def news_in(self, data: PartitionData, ends: tuple[int, int] | None) -> News:
        """Return how urgently the follower needs `data`, whose offsets are `ends`."""
        if ends is None or self.sent_ends is None or data.records:
            return News.URGENT
        if ends[1] != self.sent_ends[1]:
            return News.URGENT
        return News.NONE if ends == self.sent_ends else News.COMMIT

    def is_quiet(self) -> bool:
        """Whether a response would tell the follower of a commit at most; False if in doubt.

        Nearly every request finds its partition so: it confirms what came last, and there is no
        more. The log is not read for it, and no response is made.
        """
        replica, wanted, ends = self.replica, self.wanted, self.sent_ends
        if replica is None or ends is None or not isinstance(self.answer, Serve):
            return False
        log, leader = replica.log, replica.machine.leader
        try:
            log.check_end()
        except CorruptData:
            return False
        return (
            leader is not None
            and leader.epoch == wanted.current_leader_epoch
            and self.generation == replica.facts.generation
            and wanted.fetch_offset == log.log_end_offset
            and ends[1] == log.log_start_offset
        )

    def is_behind(self, ends: tuple[int, int] | None) -> bool:
        """Whether there may be more to say after `ends`: an error, or further records."""
        if ends is None or self.replica is None:
            return True
        return self.wanted.fetch_offset < self.replica.log.log_end_offset


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request of a session that waits for news."""

    request: FetchRequest
    answer: PromptFuture[Message]
    deadline_ms: int


_Session: TypeAlias = FollowerSession[_Asked, _Waiting]
_Found: TypeAlias = tuple[Key, _Asked, PartitionData, "tuple[int, int] | None"]
"""An answer with news, and the offsets in it."""
_Reads: TypeAlias = "dict[PartitionReplica, tuple[tuple[int, ...], bytes]]"
"""The small reads up to the ends of logs since the last append, and what they depend on: mostly,
all followers of a partition ask for the same records."""
_READS_MAX: Final = 64
"""How many are kept: after a burst over all partitions, there may be no append for hours."""


class _Reading:
    """One response: the room that is left in it, and what counts for the quota."""

    def __init__(
        self, asker: int, max_bytes: int, quota: ReplicationQuota, now_ms: int, reads: _Reads
    ) -> None:
        self.throttled_bytes = 0
        self.has_held = False
        """Whether records are left out because the quota is exceeded."""
        self.exceeded_ms = quota.exceeded_for_ms(now_ms) if quota.is_bounded else 0
        self._is_bounded = quota.is_bounded
        self._asker = asker
        self._max_bytes = self._room_bytes = max_bytes
        self._reads = reads

    def read(self, each: _Asked) -> PartitionData:
        """Return the answer for a partition, as of now."""
        is_held = False
        if self._is_bounded and each.replica is not None:
            each.is_throttled = each.replica.throttles_follower(self._asker)
            is_held = self.exceeded_ms > 0 and each.is_throttled
            self.has_held = self.has_held or is_held
        # The first partition with records gets one batch even beyond the limits (KIP-74):
        # otherwise a follower could never pass a batch larger than its max_bytes.
        is_first = self._room_bytes == self._max_bytes and not is_held
        room_bytes = 0 if is_held else self._room_bytes
        data = _data(each, room_bytes, is_first=is_first, reads=self._reads)
        size_bytes = 0 if data.records is None else len(data.records)
        self.throttled_bytes += size_bytes if each.is_throttled else 0
        self._room_bytes -= size_bytes
        return data


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
        self._sessions: FollowerSessions[_Asked, _Waiting] = FollowerSessions(
            lambda: 1 + secrets.randbelow(_SESSION_IDS)
        )
        self._has_delayed = False
        """Whether a request without a session has ever waited: no follower of this version's."""
        self._reads: _Reads = {}
        self._alarm = alarm.by
        self._wait_ms_max = min(FETCH_WAIT_MS_MAX, wait_ms_max(replicas.node.lag_max_ms))
        """How long a request waits here at most, whatever the follower's settings are: a leader
        removes the followers that it does not hear of by its own setting."""
        replicas.on_fetch_progress = self.on_progress
        self._turn = turn
        replicas.on_commit = self._on_commit
        replicas.on_applied = self._on_applied

    def begin(self, request: FetchRequest) -> Message | asyncio.Future[Message]:
        """Count a fetch; return the response, or a future if there is no news yet."""
        now_ms, follower = self._clock.now_ms(), _follower(request)
        if request.session_epoch not in (FIRST_EPOCH, LAST_EPOCH):
            return self._continue(request, follower, now_ms)
        asked = [self._judge(follower, topic, now_ms) for topic in request.topics]
        if request.session_epoch == FIRST_EPOCH and self._may_open(request):
            return self._open(request, asked, now_ms)
        response, has_news = self._response(request, asked, now_ms)
        if has_news or request.max_wait_ms <= 0:
            return response
        answer: PromptFuture[Message] = PromptFuture()
        deadline_ms = now_ms + min(request.max_wait_ms, self._wait_ms_max)
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
        self._has_delayed = True
        self._delayed.park(delayed, Wait(keys, ANY_BYTES))
        return answer

    def on_progress(self, topic: str, partition: int) -> None:
        """Answer the waiting fetches of a partition, at the end of the turn.

        Later, not now: more appends in this turn then leave in one response.
        """
        self._reads.clear()
        if self._has_delayed:
            self._delayed.on_append(topic, partition, ANY_BYTES)
        for session in self._make_due(topic, partition):
            if session.waiting is not None and not session.is_woken:
                session.is_woken = True
                self._turn.later(partial(self._look, session))

    def _on_commit(self, topic: str, partition: int) -> None:
        """Let followers learn a higher high watermark: with the next records, or in a while.

        1. A record is appended, and goes to both followers. 2. Their next fetches commit it. 3. If
        that were answered at once, each record would cost each follower two requests. Nothing here
        waits for a follower to know what is committed, except readers that are sent to it.
        """
        if self._replicas.node.sends_readers_near:
            self.on_progress(topic, partition)
            return
        if self._has_delayed:
            self._delayed.on_append(topic, partition, ANY_BYTES)
        for session in self._make_due(topic, partition):
            waiting = session.waiting
            if waiting is not None and waiting.request.max_wait_ms > SOON_MS:
                self._hasten(session)

    def _make_due(self, topic: str, partition: int) -> list[_Session]:
        """Note that there may be news of a partition; return the sessions that contain it."""
        replica, sessions = self._replicas.get(topic, partition), list[_Session]()
        for session, key in self._sessions.watching((topic, partition)):
            asked = session.parts[key]
            if replica is None or asked.replica is not replica:
                # It was dropped, and its log may go: the fetch gets an error.
                asked.replica = None
            elif key not in session.due:
                replica.on_unchanged(session.follower[0], session.asked_ms)
            session.due[key] = None
            sessions.append(session)
        return sessions

    @property
    def delayed(self) -> int:
        """How many fetches of followers wait for news."""
        return self._delayed.count_waiting() + sum(1 for _ in self._waiting())

    def tick(self, now_ms: int) -> None:
        """Answer the requests whose timeout has passed."""
        self._delayed.tick(now_ms)
        for session, waiting in list(self._waiting()):
            if waiting.deadline_ms <= now_ms:
                self._answer_session(session, waiting, now_ms)

    def next_deadline_ms(self) -> int | None:
        """Return the earliest time at which `tick` has something to do; None for never."""
        deadlines = [waiting.deadline_ms for _, waiting in self._waiting()]
        delayed_ms = self._delayed.next_deadline_ms()
        return min(deadlines if delayed_ms is None else [delayed_ms, *deadlines], default=None)

    def stop(self, gone: ConnectionLost) -> None:
        """Fail the requests that wait."""
        self._delayed.stop(gone)
        for session, waiting in list(self._waiting()):
            session.waiting = None
            waiting.answer.set_exception(gone)

    # ---- sessions ----

    def _may_open(self, request: FetchRequest) -> bool:
        """Whether the follower gets a session: it has to be a live broker's present process."""
        broker, epoch = _follower(request)
        by_id = all(any(topic.topic_id) for topic in request.topics)
        return by_id and self._replicas.node.brokers.get(broker) == epoch

    def _open(self, request: FetchRequest, asked: list[list[_Asked]], now_ms: int) -> FetchResponse:
        """Open a session for a request; the response has all partitions, with news or not."""
        response, _ = self._response(request, asked, now_ms)
        before = self._sessions.of(_asker(request))
        if before is not None:
            self._refuse_waiting(before)
        session = self._sessions.open(_follower(request), now_ms)
        response.session_id = session.session_id
        for topic, parts, answered in zip(request.topics, asked, response.responses, strict=True):
            self._keep(session, topic, parts)
            session.refused.clear()  # This response has them.
            for each, data in zip(parts, answered.partitions, strict=True):
                each.sent_ends = _ends_of(data)
        return response

    def _continue(
        self, request: FetchRequest, follower: FollowerId, now_ms: int
    ) -> FetchResponse | asyncio.Future[Message]:
        """Answer a request of a session, now or once there is news."""
        session = self._sessions.find(follower, request.session_id, request.session_epoch)
        if isinstance(session, ErrorCode):
            return FetchResponse(error_code=session, session_id=request.session_id)
        if session.waiting is not None:
            self._refuse_waiting(session)
        session.asked_ms = now_ms
        unsettled = list(session.unsettled)
        for topic in request.topics:
            if not self._renew(session, topic, now_ms):
                self._keep(session, topic, self._judge(follower, topic, now_ms))
        if request.forgotten_topics_data:
            self._forget(session, request)
        for key in unsettled:
            self._judge_again(session, key, now_ms)
        held_ms = 0
        if not self._is_quiet(session, request):
            response, held_ms = self._news(session, request, now_ms)
            if response.responses or request.max_wait_ms <= 0:
                return response
        answer: PromptFuture[Message] = PromptFuture()
        wait_ms = min(request.max_wait_ms, self._wait_ms_max, held_ms or self._wait_ms_max)
        if session.due or session.unsettled:
            wait_ms = min(wait_ms, SOON_MS)
        session.waiting = _Waiting(request, answer, now_ms + wait_ms)
        self._alarm(now_ms + wait_ms)
        return answer

    def _renew(self, session: _Session, topic: FetchTopic, now_ms: int) -> bool:
        """Judge the fetch of one partition in place of the one before; return whether it could be.

        Nearly every request names one partition, whose replica is that of the fetch before.
        """
        if len(topic.partitions) != 1:
            return False
        wanted = topic.partitions[0]
        key = (topic.topic_id, wanted.partition)
        known = session.parts.get(key)
        replica = None if known is None else known.replica
        if known is None or replica is None:
            return False
        if replica is not self._replicas.get(replica.topic, replica.index):
            return False
        known.wanted = wanted
        known.answer = replica.on_fetch(_fetch_of(session.follower, wanted), now_ms)
        known.generation = replica.facts.generation
        session.due[key] = None
        leader = replica.machine.leader
        if session.unsettled or leader is None or session.follower[0] not in leader.isr:
            self._settle(session, key, known)
        return True

    def _keep(self, session: _Session, topic: FetchTopic, parts: list[_Asked]) -> None:
        """Keep the fetches of a request in a session, in place of earlier ones."""
        for each in parts:
            key = (topic.topic_id, each.wanted.partition)
            known = session.parts.get(key)
            if each.replica is None:
                # The topic is not known here yet, or was deleted: the follower gets the error once,
                # and names the partition again after a pause.
                self._sessions.forget(session, key)
                session.refused[key] = each
                continue
            if known is not None and known.replica is each.replica:
                each.sent_ends = known.sent_ends
            name = (each.replica.topic, each.replica.index)
            self._sessions.put(session, key, name, each)
            self._settle(session, key, each)

    def _forget(self, session: _Session, request: FetchRequest) -> None:
        for topic in request.forgotten_topics_data:
            for number in topic.partitions:
                self._sessions.forget(session, (topic.topic_id, number))

    def _settle(self, session: _Session, key: Key, asked: _Asked) -> None:
        """Judge a fetch again with the next request if its follower may join the in-sync set."""
        leader = None if asked.replica is None else asked.replica.machine.leader
        if leader is not None and session.follower[0] not in leader.isr:
            session.unsettled[key] = None
        else:
            session.unsettled.pop(key, None)

    def _judge_again(self, session: _Session, key: Key, now_ms: int) -> None:
        """Judge a fetch that the request does not name, as if it did."""
        asked = session.parts.get(key)
        if asked is None or asked.replica is None:
            return
        # After a cut of this leader's log the fetch says nothing, see `_data`.
        if asked.generation == asked.replica.facts.generation:
            asked.answer = asked.replica.on_fetch(_fetch_of(session.follower, asked.wanted), now_ms)
        session.due[key] = None
        self._settle(session, key, asked)

    def _news(
        self, session: _Session, request: FetchRequest, now_ms: int, *, is_due: bool = False
    ) -> tuple[FetchResponse, int]:
        """Return a response with what is new, and how long the quota holds the rest back, in ms.

        With `is_due` it contains high watermarks even if there is nothing else.
        """
        is_due = is_due or request.max_wait_ms <= 0 or self._replicas.node.sends_readers_near
        quota = self._replicas.leader_quota
        reading = _Reading(session.follower[0], request.max_bytes, quota, now_ms, self._reads)
        found: list[_Found] = []
        for key, asked in session.refused.items():
            data = reading.read(asked)
            found.append((key, asked, data, _ends_of(data)))
        session.refused.clear()
        is_due = is_due or bool(found)
        for key in list(session.due):
            asked = session.parts[key]
            data = reading.read(asked)
            ends = _ends_of(data)
            news = asked.news_in(data, ends)
            is_due = is_due or news is News.URGENT
            if news:
                found.append((key, asked, data, ends))
            elif not asked.is_behind(ends):
                del session.due[key]
        if reading.throttled_bytes:
            quota.record(reading.throttled_bytes, now_ms)
        topics = self._send(session, found) if is_due else []
        response = FetchResponse(responses=topics, session_id=session.session_id)
        return response, reading.exceeded_ms if reading.has_held else 0

    def _is_quiet(self, session: _Session, request: FetchRequest) -> bool:
        """Whether a request that has just come has to wait, as far as that shows without a read."""
        if session.refused or request.max_wait_ms <= 0 or self._replicas.node.sends_readers_near:
            return False
        # No generator: nearly every request gets here, with one partition.
        for key in session.due:  # noqa: SIM110 - see above
            if not session.parts[key].is_quiet():
                return False
        return True

    def _send(self, session: _Session, found: list[_Found]) -> list[FetchableTopicResponse]:
        """Return the topics of a response, whose contents count as sent."""
        topics: dict[bytes, FetchableTopicResponse] = {}
        for key, asked, data, ends in found:
            asked.sent_ends = ends
            if asked.replica is None:
                self._sessions.forget(session, key)
            elif not asked.is_behind(ends):
                del session.due[key]
            topic = topics.setdefault(key[0], FetchableTopicResponse(topic_id=key[0]))
            topic.partitions.append(data)
        return list(topics.values())

    def _look(self, session: _Session) -> None:
        """Answer the request of a session if there is news for it."""
        session.is_woken = False
        waiting = session.waiting
        if waiting is None or waiting.answer.done():
            return  # It was answered meanwhile, or its follower has disconnected.
        response, _ = self._news(session, waiting.request, self._clock.now_ms())
        if response.responses:
            session.waiting = None
            waiting.answer.set_result(response)

    def _answer_session(self, session: _Session, waiting: _Waiting, now_ms: int) -> None:
        """Answer a request whose time has passed, even without news."""
        session.waiting = None
        response, _ = self._news(session, waiting.request, now_ms, is_due=True)
        waiting.answer.set_result(response)

    def _refuse_waiting(self, session: _Session) -> None:
        """Refuse the waiting request: its follower has sent another one."""
        waiting, session.waiting = session.waiting, None
        if waiting is not None and not waiting.answer.done():
            code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
            waiting.answer.set_result(FetchResponse(error_code=code, session_id=session.session_id))

    def _waiting(self) -> Iterator[tuple[_Session, _Waiting]]:
        """Yield the sessions whose request waits, with the request."""
        for session in self._sessions:
            waiting = session.waiting
            if waiting is not None and not waiting.answer.done():
                yield session, waiting

    def _on_applied(self, topic: str, partition: int) -> None:
        """Judge fetches again with the next request, because the in-sync set may have changed."""
        for session, key in self._sessions.watching((topic, partition)):
            session.unsettled[key] = None
            self._hasten(session)

    def _hasten(self, session: _Session) -> None:
        """Answer a waiting request soon: there is something to tell, or to judge anew."""
        waiting = session.waiting
        if waiting is None or waiting.request.max_wait_ms <= SOON_MS:
            return
        soon_ms = self._clock.now_ms() + SOON_MS
        if waiting.deadline_ms > soon_ms:
            waiting.deadline_ms = soon_ms
            self._alarm(soon_ms)

    # ---- fetches ----

    def _answer(self, delayed: DelayedReplicaFetch) -> None:
        """Answer a fetch with the records of now, even if there are none."""
        response, _ = self._response(delayed.request, delayed.asked, self._clock.now_ms())
        delayed.answer.set_result(response)

    def _judge(self, follower: FollowerId, topic: FetchTopic, now_ms: int) -> list[_Asked]:
        name = self._names.name_of(topic.topic_id) if any(topic.topic_id) else topic.topic
        asked = []
        for wanted in topic.partitions:
            replica = None if name is None else self._replicas.get(name, wanted.partition)
            answer: FetchAnswer | None = None
            generation = 0
            if replica is not None:
                # Even if the response waits: the leader's high watermark depends on this offset.
                answer = replica.on_fetch(_fetch_of(follower, wanted), now_ms)
                generation = replica.facts.generation
            asked.append(_Asked(replica, wanted, answer, generation=generation))
        return asked

    def _response(
        self, request: FetchRequest, asked: list[list[_Asked]], now_ms: int
    ) -> tuple[FetchResponse, bool]:
        """Return the response as of now, and whether it says anything new to the follower."""
        quota = self._replicas.leader_quota
        reading = _Reading(_asker(request), request.max_bytes, quota, now_ms, self._reads)
        has_news = False
        responses = []
        for topic, partitions in zip(request.topics, asked, strict=True):
            answers = []
            for each in partitions:
                data = reading.read(each)
                # Asked for each partition, since it records what the follower gets.
                is_known = self._is_known(request, each.replica, data)
                has_news = has_news or not is_known or bool(data.records)
                answers.append(data)
            responses.append(
                FetchableTopicResponse(
                    topic=topic.topic, topic_id=topic.topic_id, partitions=answers
                )
            )
        quota.record(reading.throttled_bytes, now_ms)
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


def _data(asked: _Asked, room_bytes: int, *, is_first: bool, reads: _Reads) -> PartitionData:
    replica, wanted = asked.replica, asked.wanted
    if replica is None:
        return _refused(wanted, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    leader = replica.machine.leader
    # 1. A fetch of epoch 5 waits. 2. This broker loses the partition, and leads it again in epoch
    # 6. 3. An append completes the fetch: the follower has to check its log against epoch 6 first,
    # so it gets an error and no records.
    is_other = leader is None or leader.epoch != wanted.current_leader_epoch
    # 1. A follower of a mirror ends at 100, and its fetch waits. 2. This log is cut at 60, as the
    # source has lost the rest, and gets other records up to 120. 3. Those from 100 on do not follow
    # what the follower has: it has to fetch again, so that both logs are compared.
    if is_other or asked.generation != replica.facts.generation:
        return _unled(replica, asked)
    match asked.answer:
        case ReplicaError(code, log_start):
            return _refused(wanted, code, log_start)
        case Diverging(epoch, end_offset):
            return _diverging(replica, wanted, DivergingEpoch(epoch=epoch, end_offset=end_offset))
        case Serve():
            return _batches(replica, wanted, room_bytes, is_first=is_first, reads=reads)
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
    replica: PartitionReplica,
    wanted: FetchPartition,
    room_bytes: int,
    *,
    is_first: bool,
    reads: _Reads,
) -> PartitionData:
    log, offset = replica.log, wanted.fetch_offset
    max_bytes = max(min(wanted.partition_max_bytes, room_bytes), 0)
    state = offset, log.log_start_offset, log.log_end_offset, replica.facts.generation
    known, data = reads.get(replica, _UNREAD)
    records: Piece = data
    if known != state or len(data) > max_bytes:
        try:
            records = log.range(offset, max_bytes=max_bytes, min_one=is_first)
        except StreamlogError as error:
            return _refused(wanted, _code(error), log.log_start_offset)
        if records and isinstance(records, bytes) and log.read_end_offset == state[2]:
            if len(reads) >= _READS_MAX:
                reads.clear()
            reads[replica] = state, records
    replica.traffic.replication_bytes_out += len(records)
    return PartitionData(
        partition_index=wanted.partition,
        high_watermark=replica.high_watermark,
        log_start_offset=log.log_start_offset,
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
