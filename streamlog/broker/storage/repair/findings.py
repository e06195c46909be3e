"""Findings: what an inspection has to say, of which place, and how much it has looked at.

Rule of the file: values and nothing else. What a broker that opens the log would finish or undo
by itself is no damage, but it is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FindingKind(StrEnum):
    """What is wrong with a place."""

    DAMAGED = "damaged"
    """Bytes that are no sound batch, and were one."""
    UNREADABLE = "unreadable"
    """A batch with the right checksum whose records can't be decoded: it was written like that."""
    MISSING = "missing"
    """Offsets that no file holds."""
    OVERLAP = "overlap"
    """Offsets that two files hold."""
    UNFINISHED = "unfinished"
    """The end of a log whose process or machine went down: a write that nobody was promised."""
    INDEX = "index"
    """An index that is missing or disagrees with its log."""
    SNAPSHOT = "snapshot"
    """A snapshot of producers that can't be read: it is never synced, and told from the log."""
    ORDER = "order"
    """A producer's batches that are not in the order in which it numbered them."""
    SWAP = "swap"
    """A compacted segment that counts, and a crash has kept it from taking its place."""
    LEFTOVER = "leftover"
    """A file that is not part of the log any more, or never was: of no use to anyone."""


LEFT_BY_CRASHES = frozenset(
    {FindingKind.UNFINISHED, FindingKind.SNAPSHOT, FindingKind.SWAP, FindingKind.LEFTOVER}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A place that is not sound."""

    kind: FindingKind
    topic: str
    partition: int
    path: str
    position: int = 0
    size_bytes: int = 0
    first_offset: int | None = None
    next_offset: int | None = None
    """The offsets concerned are those before this one; None if nobody knows where they end."""
    reason: str

    @property
    def is_damage(self) -> bool:
        """Whether something is wrong that the next start does not see to."""
        return self.kind not in LEFT_BY_CRASHES


@dataclass(slots=True)
class Counts:
    """How much was looked at."""

    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    size_bytes: int = 0

    def add(self, other: Counts) -> None:
        """Count what was counted elsewhere, too."""
        self.partitions += other.partitions
        self.segments += other.segments
        self.batches += other.batches
        self.records += other.records
        self.size_bytes += other.size_bytes


@dataclass(frozen=True, slots=True)
class InspectionReport:
    """What an inspection has found."""

    findings: tuple[Finding, ...]
    counts: Counts

    @property
    def is_sound(self) -> bool:
        """Whether nothing is damaged."""
        return not any(finding.is_damage for finding in self.findings)
