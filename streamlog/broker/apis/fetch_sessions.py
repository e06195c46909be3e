"""FetchSessions: incremental Fetch requests of consumers (KIP-227).

A full Fetch may open a session. Later requests of the session name only the partitions that are
new, have another position, or are no longer wanted. Responses hold only partitions with news:
records, another high watermark or log start offset, an error, another broker to read from.
Each request carries the session's next epoch. Another epoch means that a request was lost or sent
twice: it is refused, and the consumer sends a full Fetch again.

Sessions cost memory, so their number is bounded. As in Kafka, a new session takes the slot of one
that was unused for `STALE_MS`, or else of a smaller one that was opened that long ago. Sessions of
followers are others (`replication/replica_sessions`), and take no slot. Unlike Kafka, which keeps a
session until its slot is needed, opening a session closes those unused for `IDLE_MS`: most
consumers that leave do not close theirs.

Rule of the file: it decides what to read and what to respond; `apis/fetch` reads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.produce_and_fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

STALE_MS: Final = 120_000
"""A session unused for this many ms gives its slot to any new session."""
IDLE_MS: Final = 600_000
"""A session unused for this many ms is closed when another one opens."""
PARTITIONS_MAX: Final = 500_000
"""The most partitions of all sessions together, at some 200 bytes each."""
EPOCH_MAX: Final = 2**31 - 1
FIRST_EPOCH: Final = 0
"""The epoch of a full Fetch that asks for a session."""
LAST_EPOCH: Final = -1
"""The epoch of a full Fetch that wants no session; it closes the session that it names."""
NO_SESSION: Final = 0
TOPIC_IDS_VERSION: Final = 13
"""The first Fetch version that names topics by id (KIP-516)."""

_UNKNOWN: Final = -1

Key: TypeAlias = tuple[str, bytes, int]
"""A topic's name and id, of which one is empty, depending on the version, and a partition."""


class _Followed:
    """A partition of a session, and the offsets that its consumer received last."""

    __slots__ = ("high_watermark", "log_start_offset", "wanted")

    def __init__(self, wanted: FetchPartition) -> None:
        self.wanted = wanted
        self.high_watermark = _UNKNOWN
        self.log_start_offset = _UNKNOWN

    def has_news(self, found: PartitionData) -> bool:
        """Whether a response has to hold the partition; `found` counts as received then."""
        news = (
            bool(found.records)
            or found.error_code != 0
            or found.diverging_epoch is not None
            or found.preferred_read_replica >= 0
            or found.high_watermark != self.high_watermark
            or found.log_start_offset != self.log_start_offset
        )
        # After an error, the next success is news even with the same high watermark: the consumer
        # has to learn that the error is gone.
        self.high_watermark = _UNKNOWN if found.error_code else found.high_watermark
        self.log_start_offset = found.log_start_offset
        return news


class _Session:
    __slots__ = ("by_id", "epoch", "followed", "made_ms", "session_id", "used_ms")

    def __init__(self, session_id: int, *, by_id: bool, now_ms: int) -> None:
        self.session_id = session_id
        self.by_id = by_id
        self.made_ms = self.used_ms = now_ms
        self.epoch = FIRST_EPOCH + 1
        """The epoch that the next request has to carry."""
        self.followed: OrderedDict[Key, _Followed] = OrderedDict()

    def take(self, request: FetchRequest) -> None:
        """Apply a request: add new partitions, change positions, remove forgotten ones."""
        for key, wanted in _asked(request.topics):
            known = self.followed.get(key)
            if known is None:
                self.followed[key] = _Followed(wanted)
            else:
                # In place: a new position does not change whose turn it is.
                known.wanted = wanted
        for topic in request.forgotten_topics_data:
            for number in topic.partitions:
                self.followed.pop((topic.topic, topic.topic_id, number), None)

    def topics(self) -> list[FetchTopic]:
        """Return all partitions in the order to read them in.

        A topic is in the result once per run of its partitions: their order is what counts.
        """
        topics: list[FetchTopic] = []
        last: tuple[str, bytes] | None = None
        for (name, topic_id, _), followed in self.followed.items():
            if last != (name, topic_id):
                last = name, topic_id
                topics.append(FetchTopic(topic=name, topic_id=topic_id))
            topics[-1].partitions.append(followed.wanted)
        return topics

    def note(self, found: Iterable[FetchableTopicResponse]) -> None:
        """Record what the first response holds: all that was found."""
        for topic in found:
            for each in topic.partitions:
                followed = self.followed.get((topic.topic, topic.topic_id, each.partition_index))
                if followed is not None:
                    followed.has_news(each)

    def news(self, found: Iterable[FetchableTopicResponse]) -> list[FetchableTopicResponse]:
        """Return the part of `found` that is news; partitions with records are read last next."""
        changed = []
        for topic in found:
            partitions = [each for each in topic.partitions if self._is_news(topic, each)]
            if partitions:
                topic.partitions = partitions
                changed.append(topic)
        return changed

    def _is_news(self, topic: FetchableTopicResponse, found: PartitionData) -> bool:
        key = topic.topic, topic.topic_id, found.partition_index
        followed = self.followed.get(key)
        if followed is None:
            return False  # A later request of the session has removed it.
        # A response has room for max_bytes. If the order never changed, a busy partition in front
        # would take all of it each time, and those behind it would starve.
        if found.records:
            self.followed.move_to_end(key)
        return followed.has_news(found)


class Visit:
    """One Fetch without a session: `request` is what to read, `finish` makes the response."""

    def __init__(self, request: FetchRequest) -> None:
        self.request = request

    def finish(self, response: FetchResponse, *, now_ms: int) -> FetchResponse:  # noqa: ARG002 - see below
        """Return the response for what was read; a new session is opened as of `now_ms`."""
        return response


class _FirstVisit(Visit):
    """A full Fetch that asks for a session; it gets one if there is room."""

    def __init__(self, sessions: FetchSessions, request: FetchRequest, *, by_id: bool) -> None:
        super().__init__(request)
        self._sessions = sessions
        self._by_id = by_id

    def finish(self, response: FetchResponse, *, now_ms: int) -> FetchResponse:
        """See `Visit.finish`."""
        session = self._sessions.make(self.request, by_id=self._by_id, now_ms=now_ms)
        if session is not None:
            session.note(response.responses)
            response.session_id = session.session_id
        return response


class _NextVisit(Visit):
    """A request of an open session."""

    def __init__(self, session: _Session, request: FetchRequest) -> None:
        super().__init__(request)
        self._session = session
        self._epoch = session.epoch

    def finish(self, response: FetchResponse, *, now_ms: int) -> FetchResponse:  # noqa: ARG002 - the session is open
        """See `Visit.finish`."""
        session = self._session
        if session.epoch != self._epoch:
            # 1. A request waits for records. 2. The consumer gives up and sends the session's next
            # request. 3. This response will not be read, so nothing in it may count as received.
            code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
            return FetchResponse(error_code=code, session_id=session.session_id)
        response.responses = session.news(response.responses)
        response.session_id = session.session_id
        return response


class FetchSessions:
    """The fetch sessions of one broker. Times are monotonic, in ms."""

    def __init__(self, *, slots: Callable[[], int], new_id: Callable[[], int]) -> None:
        """`slots` returns the maximum number; `new_id` returns a number from 1 to 2^31-1."""
        self._slots = slots
        self._new_id = new_id
        self._sessions: OrderedDict[int, _Session] = OrderedDict()
        """In the order of their last use, the longest unused first."""
        self.partitions = 0
        """The number of partitions of all sessions together."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: FetchRequest, *, version: int, now_ms: int) -> Visit:
        """Return the visit for a request: what to read, and how to respond.

        Raises:
            LogError: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or
                FETCH_SESSION_TOPIC_ID_ERROR; the consumer has to send a full Fetch.
        """
        by_id = version >= TOPIC_IDS_VERSION
        if request.session_epoch in (FIRST_EPOCH, LAST_EPOCH):
            if request.session_id != NO_SESSION:
                self._end(request.session_id)
            if request.session_epoch == LAST_EPOCH:
                return Visit(request)
            return _FirstVisit(self, request, by_id=by_id)
        session = self._due(request, by_id=by_id)
        self.partitions -= len(session.followed)
        session.take(request)
        self.partitions += len(session.followed)
        whole = FetchRequest(
            replica_id=request.replica_id,
            max_wait_ms=request.max_wait_ms,
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
            isolation_level=request.isolation_level,
            topics=session.topics(),
            rack_id=request.rack_id,
        )
        if not whole.topics:
            self._end(session.session_id)
            return Visit(whole)
        if self.partitions > PARTITIONS_MAX:
            self._end(session.session_id)
            raise error_for(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                f"fetch session {session.session_id} was closed: all sessions together may"
                f" have at most {PARTITIONS_MAX} partitions",
            )
        # Epoch 0 would ask for a new session, so the largest is followed by 1.
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        session.used_ms = now_ms
        self._sessions.move_to_end(session.session_id)
        return _NextVisit(session, whole)

    def make(self, request: FetchRequest, *, by_id: bool, now_ms: int) -> _Session | None:
        """Open a session for a full Fetch; None if there is no room."""
        followed = {key: _Followed(wanted) for key, wanted in _asked(request.topics)}
        if not followed or not self._make_room(len(followed), now_ms):
            return None
        session_id = self._new_id()
        while session_id in self._sessions:
            session_id = self._new_id()
        session = _Session(session_id, by_id=by_id, now_ms=now_ms)
        session.followed.update(followed)
        self._sessions[session_id] = session
        self.partitions += len(followed)
        return session

    def _due(self, request: FetchRequest, *, by_id: bool) -> _Session:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise error_for(
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                f"unknown fetch session {request.session_id}: it was closed or never existed",
            )
        if request.session_epoch != session.epoch:
            raise error_for(
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
                f"fetch session {request.session_id}: got epoch {request.session_epoch},"
                f" expected {session.epoch}",
            )
        if session.by_id != by_id:
            raise error_for(
                ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
                f"fetch session {request.session_id} was begun with topics"
                f" {'by id' if session.by_id else 'by name'}",
            )
        return session

    def _make_room(self, size: int, now_ms: int) -> bool:
        """Whether a session of `size` partitions may open; close an older one if that is needed."""
        # The setting may have become smaller: then close more than the one in the way.
        slots = self._slots()
        while self._sessions:
            longest_unused = next(iter(self._sessions.values()))
            is_idle = now_ms - longest_unused.used_ms > IDLE_MS
            if not is_idle and len(self._sessions) <= slots:
                break
            self._end(longest_unused.session_id)
        if len(self._sessions) == slots:
            gone = self._least(size, now_ms)
            if gone is None:
                return False
            self._end(gone.session_id)
        return self.partitions + size <= PARTITIONS_MAX

    def _least(self, size: int, now_ms: int) -> _Session | None:
        """Return the session that a new one of `size` partitions replaces; None if none may go."""
        longest_unused = next(iter(self._sessions.values()), None)
        if longest_unused is None or now_ms - longest_unused.used_ms > STALE_MS:
            return longest_unused
        # Only a larger session replaces a smaller one, and none that is younger than `STALE_MS`:
        # otherwise two consumers could take the slot from each other with every request.
        settled = (each for each in self._sessions.values() if now_ms - each.made_ms > STALE_MS)
        smallest = min(
            settled, key=lambda each: (len(each.followed), each.session_id), default=None
        )
        return smallest if smallest is not None and len(smallest.followed) < size else None

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partitions -= len(session.followed)


def _asked(topics: Iterable[FetchTopic]) -> Iterator[tuple[Key, FetchPartition]]:
    for topic in topics:
        for wanted in topic.partitions:
            yield (topic.topic, topic.topic_id, wanted.partition), wanted
