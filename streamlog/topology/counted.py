"""CountedAggregate: one result per key and so many of its records.

What it keeps is what is open: a window that is full goes on and is kept no longer, so the rows of
its table are those that are not full yet, as far as they have come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamlog.serdes import Serde
from streamlog.tables.store import StoreSpec
from streamlog.topology.nodes import Aggregation, Node
from streamlog.windows.counted import Counted
from streamlog.windows.emit import Emit


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedAggregate(Node):
    """One result per key and so many of its records."""

    store: StoreSpec
    """The open windows of each key."""
    due: StoreSpec
    """Those that time out, by when."""
    key: Serde[Any]
    aggregation: Aggregation
    windows: Counted
    emit: Emit
    idle_after_ms: int | None = None
    """A source read to its end and quiet for this long no longer holds stream time back."""

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """What is open."""
        return (self.store, self.due)

    @property
    def table_key(self) -> Serde[Any]:
        """Of the records."""
        return self.key

    @property
    def rows_kept_ms(self) -> int:
        """A window that is over is gone."""
        return 0

    @property
    def needs_equal_keys(self) -> bool:
        """The records of a key are counted together."""
        return True

    @property
    def feeds(self) -> tuple[str, ...]:
        """Windows that time out; those that are full belong to the record that filled them."""
        times_out = self.windows.timeout_ms is not None and self.emit == Emit.CLOSE
        return (self.name,) if times_out else ()

    @property
    def passes_on(self) -> bool:
        """Windows that are full."""
        return True

    @property
    def waits_idle_ms(self) -> int | None:
        """As given."""
        return self.idle_after_ms

    @property
    def detail(self) -> str:
        """Its windows."""
        return f"{self.windows.described}, emit {self.emit.name}"
