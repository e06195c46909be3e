"""Aggregations over windows that records make for themselves: sessions and sliding windows.

Unlike windows of the clock these are found by key: which there are, and what of them a record
changes, follows from the records of its key before. So beside the rows, in the order in which
windows close, each keeps a store by key. Rule of the file: its name has a slash and an at, which
no node and no attribute has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamlog.serdes import Serde
from streamlog.tables.store import StoreSpec
from streamlog.topology.windowed import WindowedRows
from streamlog.windows.emit import FAR_MS, Emit
from streamlog.windows.sessions import Sessions
from streamlog.windows.sliding import Sliding


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordWindowsAggregate(WindowedRows):
    """What both have in common."""

    by_key: StoreSpec
    """What there is of each key."""
    windows: Sessions | Sliding

    @property
    def late_after_ms(self) -> int:
        """A window is closed to records of a source that has passed its end by more than this."""
        return self.windows.grace_ms

    @property
    def closes_after_ms(self) -> int:
        """It is closed for good when stream time has passed its end by more than this."""
        return self.late_after_ms

    def ends_around(self, at_ms: int) -> tuple[int, int]:
        """The first and the last end that a window with this time in it may have."""
        return at_ms, at_ms + self.windows.size_ms

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The rows, by (end, start, key), come first."""
        own = (self.store, self.by_key)
        return own if self.early is None else (*own, self.early)

    @property
    def rows_kept_ms(self) -> int:
        """Its retention; at least until it has closed."""
        return max(self.windows.retention_ms, self.closes_after_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAggregate(RecordWindowsAggregate):
    """One result per key and session."""

    windows: Sessions

    @property
    def late_after_ms(self) -> int:
        """A record that joins nothing is late when its session would be closed."""
        return self.windows.gap_ms + self.windows.grace_ms

    @property
    def closes_after_ms(self) -> int:
        """On update a gap more: a record that is not late may still come so close to it.

        What was emitted as final stays as it is.
        """
        return self.late_after_ms + (self.windows.gap_ms if self.emit == Emit.UPDATE else 0)

    def ends_around(self, at_ms: int) -> tuple[int, int]:
        """There is no last one."""
        return at_ms, FAR_MS

    @property
    def detail(self) -> str:
        """Its sessions."""
        windows, limit = self.windows, ""
        if windows.max_length_ms is not None:
            limit = f"up to {windows.max_length_ms} ms long, "
        return (
            f"sessions with gaps of {windows.gap_ms} ms, {limit}grace {windows.grace_ms} ms, "
            f"emit {self.emit.name}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingAggregate(RecordWindowsAggregate):
    """One result per key and sliding window."""

    windows: Sliding
    value: Serde[Any]
    """Of the records, which are kept as long as they may be in a new window."""

    @property
    def detail(self) -> str:
        """Its windows."""
        windows = self.windows
        return (
            f"sliding windows of {windows.size_ms} ms, grace {windows.grace_ms} ms, "
            f"emit {self.emit.name}"
        )
