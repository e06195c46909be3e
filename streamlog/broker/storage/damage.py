"""Damage: a place in a log file that can't be served, and what to say about it.

Rule of the file: whoever is told has to know which records are concerned, where they are, and
what can be done.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A place in a log file that can't be served."""

    partition: str
    path: str
    position: int
    end_position: int
    first_offset: int
    next_offset: int | None
    """The first offset behind it that can be served; None if it reaches to the log's end."""
    reason: str

    def covers(self, offset: int) -> bool:
        """Whether a record at `offset` would be in it."""
        return offset >= self.first_offset and (
            self.next_offset is None or offset < self.next_offset
        )

    def __str__(self) -> str:
        until = "the end" if self.next_offset is None else str(self.next_offset - 1)
        return (
            f"{self.partition}: {self.path} is damaged at position {self.position}"
            f" ({self.reason}): offsets {self.first_offset} to {until} can't be served;"
            " stop the broker and mend it with `streamlog log repair`, or restore the file from a"
            " copy"
        )
