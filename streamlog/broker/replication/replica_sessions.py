"""Sessions of followers' fetches (KIP-227), on both sides: `FollowerSessions`, `LeaderSession`.

A follower names a partition when it fetches from another position, and no more until then. The
leader keeps the fetch, and a response has only partitions with news. So a request costs what has
changed since the one before, however many partitions are idle.

Pure. On the leader's side, a part is what the caller keeps of one partition's fetch. It is *due*
when there may be news for it: it was named, or its partition has made progress. It is *unsettled*
while every request has to judge it anew, as if the request named it: its follower may join the
in-sync replicas.

Rules of this module:

- A leader has one session for each broker, of its present registration only. The newest replaces
  the one before.
- Each request carries the session's next epoch. Any other means that a request or a response was
  lost, and the follower begins another session.
- A fetch is open from the request that names it until a response has its partition. A partition
  that was answered, and is not named by the next request, is forgotten there: its replica failed,
  pauses, or follows another broker.
- A leader that opens no session gets full requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from streamlog.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamlog.broker.replication.replica_state import OutstandingFetch

FIRST_EPOCH: Final = 0
"""The epoch of a request that names all partitions, and asks for a session."""
LAST_EPOCH: Final = -1
"""The epoch of a request that wants no session."""
EPOCH_MAX: Final = 2**31 - 1
NO_SESSION: Final = 0
ASKS_PER_LIMIT: Final = 4
"""How often a follower asks, at least, within a time after which its silence would count."""

Key: TypeAlias = tuple[bytes, int]
"""A topic's id and a partition's number."""
TopicPartition: TypeAlias = tuple[str, int]
FollowerId: TypeAlias = tuple[int, int]
"""A broker, and the epoch of its registration."""

Part = TypeVar("Part")
Waiting = TypeVar("Waiting")
Follower = TypeVar("Follower")


def wait_ms_max(*limits_ms: int) -> int:
    """Return how long a request without news may wait, given the times in which silence counts.

    1. A follower has everything, and its request waits for as long as a follower may lag. 2. A
    record is appended just before it is answered. 3. The follower was last heard of before all of
    that time, so it would leave the in-sync replicas before it can ask for the record.
    """
    return max(min(limits_ms) // ASKS_PER_LIMIT, 1)


def _next_epoch(epoch: int) -> int:
    """Return the epoch after this one; 0 would ask for another session."""
    return 1 if epoch == EPOCH_MAX else epoch + 1


class FollowerSession(Generic[Part, Waiting]):
    """The fetches of one follower."""

    __slots__ = (
        "asked_ms",
        "due",
        "epoch",
        "follower",
        "is_woken",
        "names",
        "parts",
        "refused",
        "session_id",
        "unsettled",
        "waiting",
    )

    def __init__(self, session_id: int, follower: FollowerId, now_ms: int) -> None:
        self.session_id = session_id
        self.follower = follower
        self.epoch = 1
        """The epoch that the next request has to carry."""
        self.asked_ms = now_ms
        """The time of the last request."""
        self.parts: dict[Key, Part] = {}
        self.names: dict[Key, TopicPartition] = {}
        self.refused: dict[Key, Part] = {}
        """Fetches of the last request for partitions that are not here: the response has errors."""
        # Dicts and not sets: what is due first is answered first, so that no partition starves.
        self.due: dict[Key, None] = {}
        self.unsettled: dict[Key, None] = {}
        self.waiting: Waiting | None = None
        """The request that is not answered yet; None for none."""
        self.is_woken = False
        """Whether a look at what is due is scheduled."""


_Watching: TypeAlias = dict[int, tuple[FollowerSession[Part, Waiting], Key]]


class FollowerSessions(Generic[Part, Waiting]):
    """The sessions of all followers of one broker."""

    def __init__(self, new_id: Callable[[], int]) -> None:
        """`new_id` returns a number from 1 to 2^31-1."""
        self._new_id = new_id
        self._by_broker: dict[int, FollowerSession[Part, Waiting]] = {}
        self._watching: dict[TopicPartition, _Watching[Part, Waiting]] = {}
        """By partition and broker, the sessions that contain it, and its key there."""

    def __iter__(self) -> Iterator[FollowerSession[Part, Waiting]]:
        return iter(self._by_broker.values())

    def of(self, broker: int) -> FollowerSession[Part, Waiting] | None:
        """Return the session of a broker; None if it has none."""
        return self._by_broker.get(broker)

    def open(self, follower: FollowerId, now_ms: int) -> FollowerSession[Part, Waiting]:
        """Open a session, and close the follower's earlier one."""
        before = self._by_broker.get(follower[0])
        session_id = self._new_id()
        while before is not None and session_id == before.session_id:
            session_id = self._new_id()
        self.close(follower[0])
        session = FollowerSession[Part, Waiting](session_id, follower, now_ms)
        self._by_broker[follower[0]] = session
        return session

    def close(self, broker: int) -> None:
        """Close the session of a broker, if it has one."""
        session = self._by_broker.pop(broker, None)
        for name in () if session is None else session.names.values():
            self._unwatch(name, broker)

    def find(
        self, follower: FollowerId, session_id: int, epoch: int
    ) -> FollowerSession[Part, Waiting] | ErrorCode:
        """Return the session of a request, or an error after which the follower begins another."""
        session = self._by_broker.get(follower[0])
        if session is None or (session.session_id, session.follower) != (session_id, follower):
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        session.epoch = _next_epoch(epoch)
        return session

    def put(
        self, session: FollowerSession[Part, Waiting], key: Key, name: TopicPartition, part: Part
    ) -> None:
        """Keep the fetch of a partition that a request names; it is due."""
        if session.names.get(key) == name:  # Nearly always: the fetch before is replaced.
            session.parts[key] = part
            session.due[key] = None
            return
        before = self._watching.get(name, {}).get(session.follower[0])
        if before is not None:
            # The topic was deleted and created again: no replica fetches by the old id any more.
            self.forget(session, before[1])
        session.parts[key] = part
        session.names[key] = name
        session.due[key] = None
        self._watching.setdefault(name, {})[session.follower[0]] = session, key

    def forget(self, session: FollowerSession[Part, Waiting], key: Key) -> None:
        """Drop a partition that the follower does not fetch from this broker any more."""
        if session.parts.pop(key, None) is None:
            return
        self._unwatch(session.names.pop(key), session.follower[0])
        session.due.pop(key, None)
        session.unsettled.pop(key, None)

    def watching(
        self, name: TopicPartition
    ) -> Iterable[tuple[FollowerSession[Part, Waiting], Key]]:
        """Return the sessions that contain a partition, with its key."""
        found = self._watching.get(name)
        return () if found is None else found.values()

    def _unwatch(self, name: TopicPartition, broker: int) -> None:
        watching = self._watching[name]
        del watching[broker]
        if not watching:
            del self._watching[name]


class LeaderSession(Generic[Follower]):
    """The session with one leader; none before its first response."""

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = FIRST_EPOCH
        """The epoch of the next request."""
        self._open: dict[Key, tuple[Follower, OutstandingFetch]] = {}
        self._answered: dict[Key, None] = {}
        self.has_gone = False
        """Whether the leader still has to forget a replica that has left."""
        self._keys: WeakKeyDictionary[Follower, Key] = WeakKeyDictionary()
        """The key under which a replica was last named. Weak, because it may end meanwhile."""

    @property
    def has_open_fetches(self) -> bool:
        """Whether the leader remembers a fetch that it has not answered."""
        return bool(self._open)

    def name(self, named: dict[Key, tuple[Follower, OutstandingFetch]]) -> list[Key]:
        """Add the fetches of the next request; return the partitions that it has to forget."""
        # Mostly, what was answered is asked for again.
        is_same = self._answered.keys() <= named.keys()
        gone = [] if is_same else [key for key in self._answered if key not in named]
        self._answered.clear()
        self.has_gone = False
        self._open.update(named)
        for key, (replica, _) in named.items():
            self._keys[replica] = key
        return gone if self.session_id != NO_SESSION else []

    def on_response(self, session_id: int) -> bool:
        """Note a response without an error; return whether the session continues.

        If not, all fetches that the response does not answer are lost.
        """
        if self.session_id == NO_SESSION:
            self.session_id = session_id
        elif session_id != self.session_id:
            return False
        if session_id == NO_SESSION:
            return False
        self.epoch = _next_epoch(self.epoch)
        return True

    def take(self, key: Key) -> tuple[Follower, OutstandingFetch] | None:
        """Return the open fetch that a response answers, which is then closed."""
        found = self._open.pop(key, None)
        if found is not None:
            self._answered[key] = None
        return found

    def forget(self, replica: Follower) -> None:
        """Let the leader forget a replica that does not follow it any more."""
        key = self._keys.get(replica)
        open_fetch = None if key is None else self._open.get(key)
        if key is not None and open_fetch is not None and open_fetch[0] is replica:
            del self._open[key]
            self._answered[key] = None
        # Even if nothing else is fetched: 1. A follower's disk fails while it appends. 2. It leaves
        # the in-sync set. 3. Its leader, which knows a fetch of it, would take it back.
        self.has_gone = self.has_gone or key in self._answered

    def end(self) -> dict[Key, tuple[Follower, OutstandingFetch]]:
        """End the session; return the fetches that were open."""
        lost, self._open = self._open, {}
        self._answered.clear()
        self.has_gone = False
        self._keys.clear()
        self.session_id, self.epoch = NO_SESSION, FIRST_EPOCH
        return lost
