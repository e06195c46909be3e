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

from streamlog.broker.fetch_sessions import FetchSessions, Visit
from streamlog.broker.replication.waiting import WaitingRequests
from streamlog.broker.settings import INT_MAX
from streamlog.errors import ConnectionLost, LogError, StreamlogError
from streamlog.protocol.messages.data import FetchRequest, FetchResponse
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.alarm import Alarm
    from streamlog.broker.data import FetchAttempt
    from streamlog.clock import Clock

FETCH_WAIT_MS_MAX = 5 * 60 * 1000
"""No Fetch waits longer, whatever it asks for; every client gives up on an answer before that."""

Read: TypeAlias = "Callable[[FetchRequest, int], FetchAttempt]"
"""Reads what a Fetch of a version asks for, as the logs are now."""


class Versioned(Protocol):
    """Who asks; see `RequestContext`."""

    @property
    def version(self) -> int:
        """Of the request."""
        ...


@dataclass(frozen=True, slots=True)
class _Parked:
    visit: Visit
    version: int
    answer: asyncio.Future[Message]
    deadline_ms: int


class Fetches:
    """Takes Fetch requests up, and is told of appends (it is an `AppendListener`)."""

    def __init__(self, read: Read, *, slots: Callable[[], int], clock: Clock, alarm: Alarm) -> None:
        """`slots` tells how many sessions of readers there may be."""
        self._read = read
        self._clock = clock
        self._alarm = alarm
        self._sessions = FetchSessions(slots=slots, new_id=_new_session_id)
        self._waiting: WaitingRequests[tuple[str, int]] = WaitingRequests()
        self._parked: dict[int, _Parked] = {}
        self._ready: list[int] = []
        self._tickets = itertools.count(1)

    def begin(self, request: FetchRequest, context: Versioned) -> Message | asyncio.Future[Message]:
        """The answer, or where it will be."""
        now_ms = self._clock.now_ms()
        try:
            visit = self._sessions.begin(request, version=context.version, now_ms=now_ms)
        except LogError as refusal:
            return FetchResponse(error_code=refusal.code)
        attempt = self._read(visit.request, context.version)
        if not attempt.missing_bytes:
            return visit.finish(attempt.response, now_ms=now_ms)
        deadline_ms = now_ms + min(request.max_wait_ms, FETCH_WAIT_MS_MAX)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._park(_Parked(visit, context.version, answer, deadline_ms), attempt)
        return answer

    def on_append(self, topic: str, partition: int, size_bytes: int) -> None:
        """There is more to read. See `AppendListener`."""
        self._wake(self._waiting.on_append((topic, partition), size_bytes))

    def on_gone(self, topic: str, partition: int) -> None:
        """The partition was deleted. See `AppendListener`."""
        self._wake(self._waiting.on_gone((topic, partition)))

    def tick(self, now_ms: int) -> None:
        """Answer those whose time is over."""
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

    def _park(self, fetch: _Parked, attempt: FetchAttempt) -> None:
        ticket = next(self._tickets)
        self._parked[ticket] = fetch
        self._waiting.park(
            ticket,
            attempt.partitions,
            missing_bytes=attempt.missing_bytes,
            deadline_ms=fetch.deadline_ms,
        )
        self._alarm.by(fetch.deadline_ms)

    def _wake(self, tickets: list[int]) -> None:
        """Answer soon, not now: the request that appends may have more for the same Fetch."""
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
                attempt = self._read(parked.visit.request, parked.version)
            except StreamlogError as error:
                parked.answer.set_exception(error)
            else:
                now_ms = self._clock.now_ms()
                # The bytes that were appended may belong to a transaction that is still open.
                if attempt.missing_bytes and now_ms < parked.deadline_ms:
                    self._park(parked, attempt)
                else:
                    parked.answer.set_result(parked.visit.finish(attempt.response, now_ms=now_ms))


def _new_session_id() -> int:
    return secrets.randbelow(INT_MAX) + 1
