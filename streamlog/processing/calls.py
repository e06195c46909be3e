"""Calls: async functions of the user that a task wants to be awaited, and whose results go on.

A task awaits nothing. It gives calls to its runner, which gives back their results, in any
order, in some later round. `OpenCalls` holds them in between: at most so many in flight at a
time, and results go on in the order of their records, of those of each lane, or at once. Rule
of the file: pure; numbers grow in the order of the records. Not done here: awaiting and time
limits (a runner's), what survives a restart (`async_values`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from streamlog.topology import Order

T = TypeVar("T")
"""What a call was made for."""


@dataclass(frozen=True, slots=True)
class Call:
    """To be awaited by the runner."""

    node: str
    number: int
    run: Callable[[], Awaitable[Any]]
    timeout_ms: int | None = None
    """Given up after this; None: never."""
    delay_ms: int = 0
    """To be begun only then: it has failed before."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """What has come of a call."""

    node: str
    number: int
    value: Any = None
    error: Exception | None = None
    """It raised, or was given up."""


class _Entry(Generic[T]):
    """An open call."""

    __slots__ = ("is_done", "item", "lane", "number", "value")

    def __init__(self, number: int, lane: Hashable | None, item: T) -> None:
        self.number = number
        self.lane = lane
        self.item = item
        self.is_done = False
        self.value: Any = None


class OpenCalls(Generic[T]):
    """Calls whose results have not gone on yet."""

    def __init__(self, ordered: Order, in_flight_max: int) -> None:
        self._ordered = ordered
        self._in_flight_max = in_flight_max
        self._open: dict[int, _Entry[T]] = {}
        """All of them, by number; those before have gone on."""
        self._waiting: deque[_Entry[T]] = deque()
        self._in_flight = 0
        self._lanes: dict[Hashable | None, deque[_Entry[T]]] = {}
        self._ready: list[_Entry[T]] = []

    def __len__(self) -> int:
        return len(self._open)

    @property
    def oldest(self) -> T | None:
        """What the first of them was made for."""
        return next(iter(self._open.values())).item if self._open else None

    def add(self, number: int, lane: Hashable | None, item: T) -> None:
        """One more call; the numbers grow. None as a lane: it waits for nobody."""
        entry = self._open[number] = _Entry(number, lane, item)
        self._waiting.append(entry)
        if self._queued(entry):
            self._lanes.setdefault(self._lane(entry), deque()).append(entry)

    def begin(self) -> list[tuple[int, T]]:
        """Those that may be in flight from now on."""
        begun: list[tuple[int, T]] = []
        while self._waiting and self._in_flight < self._in_flight_max:
            entry = self._waiting.popleft()
            self._in_flight += 1
            begun.append((entry.number, entry.item))
        return begun

    def item(self, number: int) -> T:
        """What a call was made for.

        Raises:
            KeyError: it is not open.
        """
        return self._open[number].item

    def done(self, number: int, value: object) -> None:
        """A call that was in flight has a result."""
        entry = self._open[number]
        entry.is_done, entry.value = True, value
        self._in_flight -= 1
        if not self._queued(entry):
            self._go_on(entry)
            return
        lane = self._lane(entry)
        queue = self._lanes[lane]
        while queue and queue[0].is_done:
            self._go_on(queue.popleft())
        if not queue:
            del self._lanes[lane]

    def ready(self) -> list[tuple[T, Any]]:
        """What may go on now, with its result, by ascending number; it is no longer open."""
        ready, self._ready = self._ready, []
        ready.sort(key=lambda entry: entry.number)
        return [(entry.item, entry.value) for entry in ready]

    def _go_on(self, entry: _Entry[T]) -> None:
        del self._open[entry.number]
        self._ready.append(entry)

    def _queued(self, entry: _Entry[T]) -> bool:
        return self._ordered == "partition" or (self._ordered == "key" and entry.lane is not None)

    def _lane(self, entry: _Entry[T]) -> Hashable | None:
        return entry.lane if self._ordered == "key" else None
