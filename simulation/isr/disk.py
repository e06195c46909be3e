"""Disk: the log of one replica as it survives: what was synced is certain, what was not may be.

A record is an entry; files, batches and bytes are left to the simulation of whole brokers.
Rule of the file: a truncation that no later sync has confirmed may be undone by a power cut.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from typing import NamedTuple

from streamlog.broker.replication.replica_state import NO_EPOCH


class Entry(NamedTuple):
    """One record."""

    epoch: int
    producer: int
    sequence: int


class Disk:
    """What one broker keeps of the partition. It is the `Epochs` of its replica as well."""

    def __init__(self) -> None:
        self.base = 0
        self.entries: list[Entry] = []
        self.synced = 0
        self.high_watermark = 0
        self.clean = False
        """Whether the broker was stopped in order."""
        self._deleted_producers: dict[int, tuple[int, int]] = {}
        self._starts: list[tuple[int, int]] = []
        self._cut_off: tuple[int, list[Entry]] | None = None

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.base + len(self.entries)

    def get(self, offset: int) -> Entry | None:
        """The record at `offset`; None if it is not there."""
        if not self.base <= offset < self.end:
            return None
        return self.entries[offset - self.base]

    def read(self, start: int, end: int) -> tuple[Entry, ...]:
        """The records from `start` to before `end`."""
        return tuple(self.entries[max(start - self.base, 0) : max(end - self.base, 0)])

    def append(self, entries: tuple[Entry, ...]) -> None:
        """Add records; they are not synced."""
        for offset, entry in enumerate(entries, self.end):
            if not self._starts or self._starts[-1][0] < entry.epoch:
                self._starts.append((entry.epoch, offset))
        self.entries += entries

    def truncate(self, offset: int) -> None:
        """Cut the log."""
        self._cut_off = (offset, self.entries[offset - self.base :])
        del self.entries[offset - self.base :]
        self.synced = min(self.synced, offset)
        self._starts = [each for each in self._starts if each[1] < offset]

    def start_at(self, offset: int) -> None:
        """Empty the log, which goes on at `offset`."""
        self.entries, self._starts, self._cut_off = [], [], None
        self._deleted_producers = {}
        self.base = self.synced = offset

    def delete_before(self, offset: int) -> None:
        """Remove the head; what its producers did is in a snapshot."""
        for place, entry in enumerate(self.entries[: offset - self.base], self.base):
            self._deleted_producers[entry.producer] = (entry.sequence, place)
        del self.entries[: offset - self.base]
        self.base = offset
        self.synced = max(self.synced, offset)
        kept = [each for each in self._starts if each[1] > offset]
        before = [each for each in self._starts if each[1] <= offset]
        self._starts = [(before[-1][0], offset), *kept] if before else kept
        if self._cut_off is not None and self._cut_off[0] < offset:
            self._cut_off = None

    def sync(self, end: int) -> None:
        """Everything below `end` is on disk now."""
        if end > self.synced:
            self.synced = end
            self._cut_off = None

    def crash(self, chance: random.Random, *, power_cut: bool) -> None:
        """The process has ended; with a power cut, any part of what was not synced is gone."""
        if power_cut:
            keep = chance.randint(self.synced, self.end)
            del self.entries[keep - self.base :]
            if self._cut_off is not None and keep <= self._cut_off[0] == self.end:
                self.entries += self._cut_off[1][: chance.randint(0, len(self._cut_off[1]))]
        self._cut_off = None
        self.synced = self.end
        self._starts = []
        entries, self.entries = self.entries, []
        self.append(tuple(entries))

    def at(self, offset: int) -> int:
        """See `Epochs`."""
        entry = self.get(offset)
        if entry is not None:
            return entry.epoch
        return self._starts[0][0] if self._starts and offset < self.base else NO_EPOCH

    def start_after(self, epoch: int) -> int | None:
        """See `Epochs`."""
        place = bisect_right(self._starts, (epoch, 2**62))
        return self._starts[place][1] if place < len(self._starts) else None

    def producers(self) -> dict[int, tuple[int, int]]:
        """The last sequence and offset of each producer, as the log and its snapshots tell."""
        return self._deleted_producers | {
            entry.producer: (entry.sequence, offset)
            for offset, entry in enumerate(self.entries, self.base)
        }
