"""Notes about a history: how it proceeds, and what comparisons of its rows have found.

Pure values. Not done here: keeping them (`noted_jobs`).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

JobState: TypeAlias = Literal["running", "done", "failed"]


class PartitionNote(msgspec.Struct, frozen=True):
    """How far a partition was read."""

    topic: str
    partition: int
    read: int
    total: int
    """Its offsets in the range of the job: at least its records."""


class JobNote(msgspec.Struct, frozen=True, kw_only=True):
    """A history, as its process has last noted it."""

    id: str
    app_id: str
    engine: str
    outputs: str
    plan: str
    """`BackfillJob.explain`."""
    state: JobState
    began_ms: int
    at_ms: int
    """When this was noted: a job that was killed notes nothing more."""
    total: int
    """The offsets that it reads from the log."""
    partitions: tuple[PartitionNote, ...] = ()
    rows: dict[str, int] = {}
    """The rows that it has written, by topic; known at its end."""
    dropped: int = 0
    error: str = ""
    """Why it failed; empty if it has not."""

    @property
    def read(self) -> int:
        """How many records were read."""
        return sum(each.read for each in self.partitions)


class ComparisonNote(msgspec.Struct, frozen=True):
    """The newest comparison of a topic with the log."""

    topic: str
    at_ms: int
    is_equal: bool
    report: str
