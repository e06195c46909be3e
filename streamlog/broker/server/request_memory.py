"""RequestMemory: what requests that are being received may hold, all connections together.

A small request fits into the buffer that every connection has. A larger one needs memory for all
of it before its bytes are read, or many that are half received would hold everything and none
could be finished. So it is asked for here: whoever gets it can finish, whoever does not is not
read from until it is their turn. Turns are in the order of asking, whatever the size, so nobody
waits for ever; a request larger than the bound is received alone, and if all that hold memory
wait for more, the one that holds most gets it: over the bound by one request, not at a standstill.
Rule of the file: it counts and says who may go on; reading, and hanging up on those who hold
memory that others wait for and send next to nothing (`slow`), is the server's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

RECEIVE_BYTES_PER_S_MIN: Final = 10 * 1024
"""Slower than this is too slow for who holds memory that others wait for."""
SLOW_MS: Final = 10_000
"""So long has it to be, before it is said of somebody."""


class Receiver(Protocol):
    """A connection that receives requests."""

    def go_on(self, size_bytes: int) -> None:
        """The memory that was waited for is there; called in the middle of another's work."""
        ...

    def give_back(self) -> int:
        """Let go of memory that is kept for later only; how much is held now."""
        ...

    def received_bytes(self) -> int | None:
        """How many bytes have come; None while it is not read from, for whatever reason."""
        ...


M = TypeVar("M", bound=Receiver)


class _Sample(NamedTuple):
    received_bytes: int
    at_ms: int


class RequestMemory(Generic[M]):
    """Who holds how much of it, and who waits."""

    def __init__(self, bound_bytes: Callable[[], int]) -> None:
        self._bound_bytes = bound_bytes
        self._held: dict[M, int] = {}
        self._waiting: OrderedDict[M, int] = OrderedDict()
        self._samples: dict[M, _Sample] = {}
        self.used_bytes = 0

    @property
    def is_short(self) -> bool:
        """Whether nobody should keep memory for later."""
        return bool(self._waiting) or 2 * self.used_bytes > self._bound_bytes()

    def want(self, member: M, size_bytes: int, *, wait: bool = True) -> bool:
        """Hold so much from now on, or if there is no room and with `wait`, as soon as there is.

        Whoever has to wait is told by `go_on`, which may be before this returns. Holding less
        than before is always granted.
        """
        if size_bytes <= self._held.get(member, 0):
            self._waiting.pop(member, None)
            self._hold(member, size_bytes)
            self._serve()
            return True
        if member in self._waiting:
            self._waiting[member] = size_bytes  # It keeps its turn.
            return False
        if not self._fits(member, size_bytes):
            for other in [each for each in self._held if each is not member]:
                self._hold(other, other.give_back())
            self._serve()
        if not self._waiting and self._fits(member, size_bytes):
            self._hold(member, size_bytes)
            return True
        if wait:
            self._waiting[member] = size_bytes
            self._serve()  # It may hold what the others wait for.
        return False

    def leave(self, member: M) -> None:
        """It is gone."""
        self._waiting.pop(member, None)
        self._samples.pop(member, None)
        self._hold(member, 0)
        self._serve()

    def slow(self, now_ms: int) -> list[M]:
        """Those that hold memory which others wait for, and have sent next to nothing."""
        if not self._waiting:
            self._samples.clear()
            return []
        found = []
        for member in self._held:
            received_bytes = member.received_bytes()
            sample = self._samples.get(member)
            if received_bytes is None:
                self._samples.pop(member, None)
            elif sample is None:
                self._samples[member] = _Sample(received_bytes, now_ms)
            elif now_ms - sample.at_ms >= SLOW_MS:
                least_bytes = RECEIVE_BYTES_PER_S_MIN * (now_ms - sample.at_ms) // 1000
                if received_bytes - sample.received_bytes < least_bytes:
                    found.append(member)
                self._samples[member] = _Sample(received_bytes, now_ms)
        return found

    def _fits(self, member: M, size_bytes: int) -> bool:
        others_bytes = self.used_bytes - self._held.get(member, 0)
        return others_bytes == 0 or others_bytes + size_bytes <= self._bound_bytes()

    def _hold(self, member: M, size_bytes: int) -> None:
        self.used_bytes += size_bytes - self._held.pop(member, 0)
        if size_bytes:
            self._held[member] = size_bytes

    def _serve(self) -> None:
        """Whoever can go on, in the order of asking."""
        while (member := self._next()) is not None:
            size_bytes = self._waiting.pop(member)
            self._hold(member, size_bytes)
            member.go_on(size_bytes)

    def _next(self) -> M | None:
        """Whose turn it is; None while those that hold memory have to finish first."""
        first = next(iter(self._waiting), None)
        if first is None or self._fits(first, self._waiting[first]):
            return first
        if any(holder not in self._waiting for holder in self._held):
            return None
        # Whoever holds some waits for more, so nobody would ever finish: one goes over the bound.
        return max(self._held, key=self._held.__getitem__)
