"""Source progress: what the reader of one part has read, and how much of it counts.

A read is first *held*, then *in flight* with the transaction of a commit, and *counted* once that
transaction is committed. If the commit is undone, or its outcome is unknown, everything that does
not count is dropped, and the reader begins again at the offset that the log has.

Rule: pure. Reads leave in the order in which they came, and never without their offset. Not done
here: the generator (`connect_tasks/part_reader`), and the transaction (the worker).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from streamlog.connect.source import SourceOffset

HELD_RECORDS_MAX: Final = 50_000
"""The records that a reader holds for the next commit before it is asked for no more; as many may
be in flight."""
HELD_BYTES_MAX: Final = 8 * 1024 * 1024
"""The bytes that a reader holds for the next commit; as many may be in flight."""

R = TypeVar("R")
"""The encoded records of a read."""


@dataclass(frozen=True, slots=True)
class HeldRead(Generic[R]):
    """One `Read`, encoded for the log."""

    records: R
    count: int
    """The number of records that will be written."""
    size_bytes: int
    offset: SourceOffset | None
    """The offset behind it; None for a dead letter before the part's first offset."""
    committed: Callable[[], object] | None = None
    """Called once the read counts."""
    held_ms: int = 0
    """When it was read, monotonic time."""


class SourceProgress(Generic[R]):
    """The reads of one part, from the generator to the committed transaction."""

    def __init__(self, offset: SourceOffset | None) -> None:
        """`offset` is the one that the log has; None if the part was never read."""
        self.counted = offset
        """The offset of the last read that counts."""
        self._held: deque[HeldRead[R]] = deque()
        self._in_flight: list[HeldRead[R]] = []
        self._records = self._bytes = 0
        self._flying_records = self._flying_bytes = 0

    @property
    def last(self) -> SourceOffset | None:
        """The offset behind everything that was read, where a generator continues that failed."""
        if self._held:
            return self._held[-1].offset
        return self._in_flight[-1].offset if self._in_flight else self.counted

    @property
    def held_bytes(self) -> int:
        """The bytes of the reads that do not count yet."""
        return self._bytes

    @property
    def held_records(self) -> int:
        """The records of the reads that do not count yet."""
        return self._records

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest read came that does not count yet; None without any."""
        first = self._in_flight[0] if self._in_flight else (self._held[0] if self._held else None)
        return None if first is None else first.held_ms

    @property
    def is_full(self) -> bool:
        """Whether the reader must wait for a commit."""
        # What is in flight does not count: the next commit is read while this one is under way. It
        # is bounded as well, since it was held before.
        return (
            self._records - self._flying_records >= HELD_RECORDS_MAX
            or self._bytes - self._flying_bytes >= HELD_BYTES_MAX
        )

    @property
    def is_empty(self) -> bool:
        """Whether everything that was read counts."""
        return not self._held and not self._in_flight

    def hold(self, read: HeldRead[R]) -> None:
        """Add a read behind the others."""
        self._held.append(read)
        self._records += read.count
        self._bytes += read.size_bytes

    def take(self) -> list[HeldRead[R]]:
        """Return everything that is held, for one transaction; it is in flight from here on."""
        taken = [*self._held]
        self._held.clear()
        self._in_flight += taken
        self._flying_records, self._flying_bytes = self._records, self._bytes
        return taken

    def count(self) -> list[HeldRead[R]]:
        """Note that the transaction is committed; returns its reads, in order."""
        # All or none: the transaction had all of them, and the offset of the last one with it.
        counted, self._in_flight = self._in_flight, []
        for read in counted:
            self._records -= read.count
            self._bytes -= read.size_bytes
            self.counted = read.offset
        self._flying_records = self._flying_bytes = 0
        return counted

    def undo(self) -> int:
        """Drop everything that does not count; returns the number of its records.

        The caller reads the offset again from the log before it continues: if the outcome of the
        transaction is unknown, it may count after all.
        """
        dropped, self._records, self._bytes = self._records, 0, 0
        self._flying_records = self._flying_bytes = 0
        self._held.clear()
        self._in_flight.clear()
        return dropped
