"""Purgatory: requests that wait until enough bytes are appended, or until a deadline.

Pure. `Purgatory` is the state machine: a ticket is parked with the bytes that it lacks, appends and
time are reported, and the tickets to try again come back. `DelayedRequests` keeps the requests of
consumers and of followers behind such tickets and tries them again; a request that still lacks
something is parked once more. Nothing polls.

A wait counts down: it begins with the bytes that the request lacks over all its partitions, and
every append to one of these partitions is subtracted. The count is exact because nothing is
appended between a look at the logs and the parking: both happen in one step of the event loop.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from streamlog.errors import StreamlogError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

Key = TypeVar("Key", bound="Hashable")
"""The key of a wait: a partition."""

STALE_DEADLINES_MAX = 1_000
"""The number of obsolete deadlines in the heap, beyond one per parked ticket, that forces a
rebuild of the heap."""


@dataclass(slots=True)
class _Wait(Generic[Key]):
    keys: tuple[Key, ...]
    missing_bytes: int
    deadline_ms: int


class Purgatory(Generic[Key]):
    """Parked tickets, by key and by deadline."""

    def __init__(self) -> None:
        self._waits: dict[int, _Wait[Key]] = {}
        self._by_key: dict[Key, dict[int, None]] = {}
        self._deadlines: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._waits)

    def park(
        self, ticket: int, keys: Iterable[Key], *, missing_bytes: int, deadline_ms: int
    ) -> None:
        """Hold `ticket` until `missing_bytes` have been appended to `keys`, or until the deadline.

        Without keys, only the deadline ends the wait.
        """
        wait = _Wait(tuple(keys), missing_bytes, deadline_ms)
        self._waits[ticket] = wait
        for key in wait.keys:
            self._by_key.setdefault(key, {})[ticket] = None
        heapq.heappush(self._deadlines, (deadline_ms, ticket))
        if len(self._deadlines) > 2 * len(self._waits) + STALE_DEADLINES_MAX:
            # Most waits end before their deadline and leave it in the heap: remove these.
            self._deadlines = [(w.deadline_ms, t) for t, w in self._waits.items()]
            heapq.heapify(self._deadlines)

    def on_append(self, key: Key, size_bytes: int) -> list[int]:
        """Note an append; return the tickets that now have enough bytes, oldest first."""
        watching = self._by_key.get(key)
        if not watching:
            return []
        ready = []
        for ticket in watching:
            wait = self._waits[ticket]
            wait.missing_bytes -= size_bytes
            if wait.missing_bytes <= 0:
                ready.append(ticket)
        # Not in the loop above: `cancel` changes the dict.
        for ticket in ready:
            self.cancel(ticket)
        return ready

    def on_gone(self, key: Key) -> list[int]:
        """End the waits for a key that is gone; return their tickets, oldest first."""
        ready = list(self._by_key.get(key, ()))
        for ticket in ready:
            self.cancel(ticket)
        return ready

    def on_tick(self, now_ms: int) -> list[int]:
        """Return the tickets whose deadline has passed, earliest deadline first."""
        due = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, ticket = heapq.heappop(self._deadlines)
            # A wait that has ended leaves its deadline in the heap.
            if ticket in self._waits:
                self.cancel(ticket)
                due.append(ticket)
        return due

    def cancel(self, ticket: int) -> None:
        """End a wait without a result; an unknown ticket is ignored."""
        wait = self._waits.pop(ticket, None)
        if wait is None:
            return
        for key in wait.keys:
            watching = self._by_key[key]
            del watching[ticket]
            if not watching:
                del self._by_key[key]

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline of a parked ticket; None if none is parked."""
        while self._deadlines and self._deadlines[0][1] not in self._waits:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None


# ---- requests behind the tickets ----


class Wait(NamedTuple, Generic[Key]):
    """What a request that has not found enough waits for."""

    keys: tuple[Key, ...]
    missing_bytes: int


class PendingAnswer(Protocol):
    """The part of a future that is used here."""

    def done(self) -> bool:
        """Return whether there is an answer, or the client has disconnected."""
        ...

    def set_exception(self, exception: BaseException, /) -> None:
        """End it with an error."""
        ...


class DelayedRequest(Protocol):
    """A request that waits."""

    @property
    def answer(self) -> PendingAnswer:
        """Where its answer will be."""
        ...

    @property
    def deadline_ms(self) -> int:
        """When it is answered with what there is, in ms of the monotonic clock."""
        ...


D = TypeVar("D", bound=DelayedRequest)


class DelayedRequests(Generic[D]):
    """The requests that wait for appends to partitions. It is an `AppendListener`."""

    def __init__(
        self,
        look: Callable[[D], Wait[tuple[str, int]] | None],
        *,
        alarm: Callable[[int], object],
        later: Callable[[Callable[[], None]], object],
    ) -> None:
        """`look` answers a request, or returns what it has to wait for.

        `alarm` sees to it that `tick` is called by a time; `later` calls a function once the
        present event has been handled.
        """
        self._look = look
        self._alarm = alarm
        self._later = later
        self._purgatory: Purgatory[tuple[str, int]] = Purgatory()
        self._parked: dict[int, D] = {}
        self._ready: list[int] = []
        self._tickets = itertools.count(1)

    def __len__(self) -> int:
        return len(self._parked)

    def count_waiting(self) -> int:
        """Count the requests whose clients still wait; one that has left stays for a while."""
        return sum(not request.answer.done() for request in self._parked.values())

    def park(self, request: D, wait: Wait[tuple[str, int]]) -> None:
        """Hold a request until what it waits for was appended, or until its deadline."""
        ticket = next(self._tickets)
        self._parked[ticket] = request
        self._purgatory.park(
            ticket,
            wait.keys,
            missing_bytes=wait.missing_bytes,
            deadline_ms=request.deadline_ms,
        )
        self._alarm(request.deadline_ms)

    def on_append(self, topic: str, partition: int, size_bytes: int) -> None:
        """Look again at the requests that have enough; see `AppendListener`."""
        if self._parked:
            self._wake(self._purgatory.on_append((topic, partition), size_bytes))

    def on_gone(self, topic: str, partition: int) -> None:
        """Look again at the requests for a deleted partition; see `AppendListener`."""
        self._wake(self._purgatory.on_gone((topic, partition)))

    def tick(self, now_ms: int) -> None:
        """Answer the requests whose deadline has passed."""
        self._ready += self._purgatory.on_tick(now_ms)
        self._look_at_ready()

    def next_deadline_ms(self) -> int | None:
        """Return the earliest time at which `tick` has something to do; None for never."""
        return self._purgatory.next_deadline_ms()

    def stop(self, gone: StreamlogError) -> None:
        """Fail every request that waits."""
        for request in self._parked.values():
            if not request.answer.done():
                request.answer.set_exception(gone)
        self._parked.clear()

    def _wake(self, tickets: list[int]) -> None:
        # At the end of the turn, not at once: after a Produce to several partitions, a Fetch of
        # these partitions is then answered once, with the records of all.
        if tickets:
            if not self._ready:
                self._later(self._look_at_ready)
            self._ready += tickets

    def _look_at_ready(self) -> None:
        ready, self._ready = self._ready, []
        for ticket in ready:
            request = self._parked.pop(ticket, None)
            if request is None or request.answer.done():
                continue  # It was answered meanwhile, or its client has disconnected.
            try:
                wait = self._look(request)
            except StreamlogError as error:
                request.answer.set_exception(error)
            else:
                if wait is not None:
                    self.park(request, wait)
