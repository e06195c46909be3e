"""ReplicaLog: what the machines of a replica know of its log, in numbers.

Where it begins and ends, how much of it is on disk, and up to where it is committed. The shell
tells of appends and syncs; decisions (truncate, append what was fetched) are noted here as they
are taken.
Rule of the file: `flushed_offset` is what the disk is known to have. A sync that began before a
truncation tells nothing about what was appended after it, so each cut begins a generation, and
only syncs of the present one count. A scenario: a sync of 10 records begins; the log is cut to 8
and gets 2 others; the sync ends, and the disk has 8 of what the log has, not 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from streamlog.broker.replication.decisions import NO_EPOCH


class Epochs(Protocol):
    """Which leader epoch wrote which offsets."""

    def at(self, offset: int) -> int:
        """The epoch that wrote `offset`."""
        ...

    def start_after(self, epoch: int) -> int | None:
        """Where the first epoch after `epoch` begins; None if there is none."""
        ...


@dataclass(slots=True, kw_only=True)
class ReplicaLog:
    """The log of one replica."""

    epochs: Epochs
    start_offset: int
    end_offset: int
    flushed_offset: int
    high_watermark: int
    strict: bool = True
    """Whether only what is on disk counts (`flush=always`)."""
    generation: int = 0

    @property
    def counted_offset(self) -> int:
        """Below this offset the replica may claim to have everything."""
        return min(self.flushed_offset, self.end_offset) if self.strict else self.end_offset

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record; `NO_EPOCH` of an empty log."""
        if self.end_offset <= self.start_offset:
            return NO_EPOCH
        return self.epochs.at(self.end_offset - 1)

    def end_of(self, epoch: int) -> tuple[int, int]:
        """The last epoch in the log that is not after `epoch`, and where it ends.

        Of one whose records were all deleted: `epoch` itself, and where the log begins. Whoever
        ends there, or before, may go on at the log's start.
        """
        start = self.start_offset
        if self.end_offset <= start or epoch < self.epochs.at(start):
            return epoch, start
        following = self.epochs.start_after(epoch)
        end_offset = self.end_offset if following is None else min(following, self.end_offset)
        return self.epochs.at(end_offset - 1), end_offset

    def cut(self, offset: int) -> None:
        """Nothing from `offset` on stays."""
        self.end_offset = offset
        self.flushed_offset = min(self.flushed_offset, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.start_offset = min(self.start_offset, offset)
        self.generation += 1

    def start_at(self, offset: int) -> None:
        """Nothing stays; the log goes on at `offset`."""
        self.start_offset = self.end_offset = self.flushed_offset = offset
        self.high_watermark = offset
        self.generation += 1
