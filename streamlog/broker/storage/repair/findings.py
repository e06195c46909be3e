"""Finding, InspectionReport: what an inspection found, where, and how much it examined.

Rules of this module: it contains values only. Leftovers that a broker finishes or undoes when it
opens the log are not damage, but they are reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec


class FindingKind(StrEnum):
    """What is wrong."""

    DAMAGED = "damaged"
    """Bytes that are not, or no longer, a sound batch."""
    UNREADABLE = "unreadable"
    """A batch with the right checksum whose records can't be decoded: it was written like that."""
    MISSING = "missing"
    """Offsets that no file contains."""
    OVERLAP = "overlap"
    """Offsets that two files contain."""
    UNFINISHED = "unfinished"
    """The end of a log after a crash: a write that was never acknowledged."""
    INDEX = "index"
    """An index that is missing or disagrees with its log."""
    SNAPSHOT = "snapshot"
    """A producer snapshot that can't be read; it is never synced, and is rebuilt from the log."""
    ORDER = "order"
    """Batches of a producer that are not in the order of their sequence numbers."""
    SWAP = "swap"
    """A compacted segment that is in effect and whose files a crash has kept from being renamed."""
    LEFTOVER = "leftover"
    """A file that is not, or no longer, part of the log, and can be removed."""


LEFT_BY_CRASHES = frozenset(
    {FindingKind.UNFINISHED, FindingKind.SNAPSHOT, FindingKind.SWAP, FindingKind.LEFTOVER}
)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, and where."""

    kind: FindingKind
    topic: str
    partition: int
    path: str
    position: int = 0
    size_bytes: int = 0
    first_offset: int | None = None
    next_offset: int | None = None
    """The end of the affected offsets; None if it is unknown."""
    reason: str

    @property
    def is_damage(self) -> bool:
        """Whether the next start does not correct it."""
        return self.kind not in LEFT_BY_CRASHES


@dataclass(slots=True)
class Counts:
    """How much was examined."""

    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0

    def add(self, other: Counts) -> None:
        """Add the counts of another inspection."""
        self.partitions += other.partitions
        self.segments += other.segments
        self.batches += other.batches
        self.records += other.records
        self.size_bytes += other.size_bytes


class InspectionReport(msgspec.Struct, frozen=True):
    """The result of an inspection."""

    findings: tuple[Finding, ...]
    counts: Counts

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged."""
        return not any(finding.is_damage for finding in self.findings)
