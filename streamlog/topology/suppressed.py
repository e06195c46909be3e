"""Suppress: changes of a table held back, so that only some of them go on.

Until the window of a row has closed, for a time, or while there is room. What goes on is the last
change of a row. Rule of the file: final rows are a source of their own, as they come when time has
passed and not with a record; others belong to the record that has released them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamlog.serdes import Serde
from streamlog.tables.store import StoreSpec
from streamlog.topology.nodes import Node, OldValues


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppress(Node):
    """Changes of a table, the last one of each row, later."""

    store: StoreSpec
    """Those that are held back."""
    key: Serde[Any]
    value: Serde[Any]

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """Its buffer."""
        return (self.store,)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuppressUntilClosed(Suppress):
    """The last row of each window, once it is final."""

    closes_after_ms: int
    """A row is final when stream time has come so far beyond the end of its window."""
    size_ms: int
    """Windows are no longer than this; 0: that is not known."""
    are_sessions: bool = False
    """They grow in both directions, and a row has its session's end for a timestamp."""
    idle_after_ms: int | None = None
    """Rows do not wait when all sources are read to their end and quiet for so long."""

    united: bool = False
    """Its windows have one time for all streams behind them: no source is waited for."""

    @property
    def feeds(self) -> tuple[str, ...]:
        """The final rows."""
        return (self.name,)

    @property
    def waits_idle_ms(self) -> int | None:
        """As its windows."""
        return self.idle_after_ms

    @property
    def old_values(self) -> OldValues:
        """There are none, as each row goes on once."""
        return "kept"

    @property
    def detail(self) -> str:
        """How long."""
        return f"until windows close, {self.closes_after_ms} ms after their end"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuppressWithin(Suppress):
    """The last change of each row, some time after the first one or when there is no more room."""

    within_ms: int | None
    records_max: int | None

    @property
    def needs_old_values(self) -> bool:
        """A row that comes and goes while it is held back is not deleted."""
        return True

    @property
    def old_values(self) -> OldValues:
        """What the first change that was held back replaces."""
        return "passed on"

    @property
    def detail(self) -> str:
        """How long, and how many."""
        within = "" if self.within_ms is None else f"for {self.within_ms} ms"
        room = "" if self.records_max is None else f"up to {self.records_max} rows"
        return ", ".join(filter(None, (within, room)))
