"""Aggregations over windows: what all have in common, and those whose windows the clock makes.

A window belongs to a key; where it lies in the store, and which there are, is the matter of each
kind (`record_windows` has those that records make for themselves). Rule of the file: rows that go
on when a window closes are a source of their own, those of updates belong to their records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streamlog.tables.store import StoreSpec
from streamlog.topology.nodes import Aggregation, Keyed, OldValues
from streamlog.topology.topics import TopicSpec
from streamlog.windows.definitions import Windows
from streamlog.windows.emit import Emit


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedRows(Keyed):
    """One result per key and window."""

    aggregation: Aggregation
    emit: Emit
    early: StoreSpec | None = None
    """Of the rows that wait for the end of an interval, with `Emit.early`."""
    late: TopicSpec | Callable[[Any], object] | None = None
    """Where late records go: a topic (as `Late`), a function, or only into the count."""
    idle_after_ms: int | None = None
    """A source read to its end and quiet for this long no longer holds windows back."""
    united: bool = False
    """It is of several streams, which have one time."""

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """Its rows, and which of them wait."""
        return (self.store,) if self.early is None else (self.store, self.early)

    @property
    def feeds(self) -> tuple[str, ...]:
        """Its rows, unless every update goes on.

        On close, rows come in (end, start, key) order whatever the interleaving of the inputs
        was: their number is their identity. At commits, it is that of the record that changed the
        row last, counted here. On update, they belong to the record behind them.
        """
        if self.emit == Emit.UPDATE:
            return ()
        return (self.name,) if self.early is None else (self.early_feed, self.name)

    @property
    def early_feed(self) -> str:
        """The source that early rows are, beside the final ones."""
        return f"{self.name}/@early"

    @property
    def waits_idle_ms(self) -> int | None:
        """As given."""
        return self.idle_after_ms

    @property
    def writes(self) -> tuple[TopicSpec, ...]:
        """Where late records go."""
        return (self.late,) if isinstance(self.late, TopicSpec) else ()

    @property
    def old_values(self) -> OldValues:
        """Its rows; but not which of them have gone on early."""
        return "kept" if self.early is None else "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedAggregate(WindowedRows):
    """Tumbling, hopping and calendar windows."""

    windows: Windows

    @property
    def rows_kept_ms(self) -> int:
        """Its retention, which counts from a window's beginning."""
        return self.windows.retention_ms

    @property
    def detail(self) -> str:
        """Its windows."""
        windows = self.windows
        return f"{windows.described}, grace {windows.grace_ms} ms, emit {self.emit.name}"
