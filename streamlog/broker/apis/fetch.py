"""Fetches: Fetch requests, of which many wait until there is enough to read.

A Fetch that finds too little is parked with what it lacks, and answered when that was appended
or its time is over. It waits as a future, and no task, so a thousand waiting consumers cost a
thousand futures. What readers with a session have left out is put in before, and what is no
news to them left out after (`fetch_sessions`). Reading itself is `data`'s.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from streamlog.broker.apis.data import FetchWait
from streamlog.broker.apis.fetch_sessions import FetchSessions, Visit
from streamlog.broker.config.settings import INT_MAX
from streamlog.broker.replication.purgatory import Purgatory
from streamlog.errors import ConnectionLost, LogError, StreamlogError
from streamlog.protocol.fetch_patterns import FoundRecords
from streamlog.protocol.messages.produce_and_fetch import FetchRequest, FetchResponse, FetchTopic
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.apis.data import FetchAttempt
    from streamlog.broker.deadline_timer import DeadlineTimer
    from streamlog.broker.security.acl_authorizer import Readable
    from streamlog.clock import Clock
    from streamlog.protocol.fetch_patterns import FetchAlike

FETCH_WAIT_MS_MAX = 5 * 60 * 1000
"""No Fetch waits longer, whatever it asks for; every client gives up on an answer before that."""


RepeatAnswer: TypeAlias = FoundRecords | FetchResponse
"""The answer to a Fetch that repeats another: what it has found, or any response."""


class Reads(Protocol):
    """Reads logs for a Fetch, as they are now; see `DataRequests`."""

    def fetch(self, request: FetchRequest, version: int) -> FetchAttempt:
        """Read for any Fetch."""
        ...

    def fetch_alike(self, alike: FetchAlike) -> FoundRecords | FetchWait | None:
        """Read for one that repeats another, if nothing is special in it."""
        ...


class VersionedFetch(Protocol):
    """The sender of a request; see `RequestContext`."""

    @property
    def version(self) -> int:
        """Of the request."""
        ...


@dataclass(frozen=True, slots=True)
class _Parked:
    """A Fetch that waits."""

    visit: Visit
    version: int
    answer: asyncio.Future[Message]
    deadline_ms: int

    def look(self, reads: Reads, now_ms: int) -> FetchWait | None:
        """Answer it, unless it has to wait on: for what is returned."""
        attempt = reads.fetch(self.visit.request, self.version)
        # The bytes that were appended may belong to a transaction that is still open.
        if attempt.missing_bytes and now_ms < self.deadline_ms:
            return attempt.wait
        self.answer.set_result(self.visit.finish(attempt.response, now_ms=now_ms))
        return None


@dataclass(frozen=True, slots=True)
class _ParkedAlike:
    """One that repeats another, and has no session."""

    alike: FetchAlike
    answer: asyncio.Future[RepeatAnswer]
    deadline_ms: int

    def look(self, reads: Reads, now_ms: int) -> FetchWait | None:
        """See `_Parked.look`."""
        found = reads.fetch_alike(self.alike)
        waits = now_ms < self.deadline_ms
        if isinstance(found, FetchWait) and waits:
            return found
        if isinstance(found, FoundRecords):
            self.answer.set_result(found)
            return None
        attempt = reads.fetch(self.alike.message(), self.alike.pattern.version)
        if attempt.missing_bytes and waits:
            return attempt.wait
        self.answer.set_result(attempt.response)
        return None


class DelayedFetch:
    """Takes Fetch requests up, and is told of appends (it is an `AppendListener`)."""

    def __init__(
        self,
        reads: Callable[[], Reads],
        *,
        slots: Callable[[], int],
        clock: Clock,
        alarm: DeadlineTimer,
    ) -> None:
        """`reads` reads the logs; `slots` is the maximum number of fetch sessions."""
        self._reads = reads
        self._clock = clock
        self._alarm = alarm
        self._sessions = FetchSessions(slots=slots, new_id=_new_session_id)
        self._waiting: Purgatory[tuple[str, int]] = Purgatory()
        self._parked: dict[int, _Parked | _ParkedAlike] = {}
        self._ready: list[int] = []
        self._tickets = itertools.count(1)

    def begin(
        self, request: FetchRequest, context: VersionedFetch, readable: Readable | None = None
    ) -> Message | asyncio.Future[Message]:
        """The answer, or where it will be; `readable` says what may be read, if that is not all."""
        now_ms = self._clock.now_ms()
        try:
            visit = self._sessions.begin(request, version=context.version, now_ms=now_ms)
        except LogError as refusal:
            return FetchResponse(error_code=refusal.code)
        if readable is not None:
            allowed, refused = readable(visit.request.topics)
            if refused:
                # Who is refused something is told at once.
                some = _at_once(visit.request, allowed)
                response = self._reads().fetch(some, context.version).response
                response.responses = [*response.responses, *refused]
                return visit.finish(response, now_ms=now_ms)
        attempt = self._reads().fetch(visit.request, context.version)
        if not attempt.missing_bytes:
            return visit.finish(attempt.response, now_ms=now_ms)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        deadline_ms = _deadline_ms(request, now_ms)
        self._park(_Parked(visit, context.version, answer, deadline_ms), attempt.wait)
        return answer

    def begin_alike(
        self, alike: FetchAlike, context: VersionedFetch
    ) -> RepeatAnswer | asyncio.Future[RepeatAnswer]:
        """Return the answer to a Fetch that repeats another, or where it will be."""
        wait = self._reads().fetch_alike(alike)
        if isinstance(wait, FoundRecords):
            return wait
        if wait is None:
            attempt = self._reads().fetch(alike.message(), context.version)
            if not attempt.missing_bytes:
                return attempt.response
            wait = attempt.wait
        answer: asyncio.Future[RepeatAnswer] = asyncio.get_running_loop().create_future()
        deadline_ms = _deadline_ms(alike.pattern.request, self._clock.now_ms())
        self._park(_ParkedAlike(alike, answer, deadline_ms), wait)
        return answer

    def on_append(self, topic: str, partition: int, size_bytes: int) -> None:
        """There is more to read. See `AppendListener`."""
        self._wake(self._waiting.on_append((topic, partition), size_bytes))

    def on_gone(self, topic: str, partition: int) -> None:
        """The partition was deleted. See `AppendListener`."""
        self._wake(self._waiting.on_gone((topic, partition)))

    def tick(self, now_ms: int) -> None:
        """Answer the requests whose timeout has passed."""
        self._ready += self._waiting.on_tick(now_ms)
        self._answer_ready()

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do at the earliest; None for never."""
        return self._waiting.next_deadline_ms()

    def stop(self, gone: ConnectionLost) -> None:
        """Tell all who wait that there will be no answer."""
        for parked in self._parked.values():
            if not parked.answer.done():
                parked.answer.set_exception(gone)
        self._parked.clear()

    def _park(self, fetch: _Parked | _ParkedAlike, wait: FetchWait) -> None:
        ticket = next(self._tickets)
        self._parked[ticket] = fetch
        self._waiting.park(
            ticket,
            wait.partitions,
            missing_bytes=wait.missing_bytes,
            deadline_ms=fetch.deadline_ms,
        )
        self._alarm.by(fetch.deadline_ms)

    def _wake(self, tickets: list[int]) -> None:
        """Answer in the next loop iteration: the appending request may have more for this Fetch."""
        if tickets:
            if not self._ready:
                asyncio.get_running_loop().call_soon(self._answer_ready)
            self._ready += tickets

    def _answer_ready(self) -> None:
        ready, self._ready = self._ready, []
        for ticket in ready:
            parked = self._parked.pop(ticket, None)
            if parked is None or parked.answer.done():
                continue  # Nobody waits for it any more.
            try:
                wait = parked.look(self._reads(), self._clock.now_ms())
            except StreamlogError as error:
                parked.answer.set_exception(error)
            else:
                if wait is not None:
                    self._park(parked, wait)


def _deadline_ms(request: FetchRequest, now_ms: int) -> int:
    return now_ms + min(request.max_wait_ms, FETCH_WAIT_MS_MAX)


def _at_once(request: FetchRequest, topics: list[FetchTopic]) -> FetchRequest:
    """The same for some of its topics, and nothing that is waited for."""
    return FetchRequest(
        replica_id=request.replica_id,
        max_bytes=request.max_bytes,
        isolation_level=request.isolation_level,
        topics=topics,
        rack_id=request.rack_id,
    )


def _new_session_id() -> int:
    return secrets.randbelow(INT_MAX) + 1
