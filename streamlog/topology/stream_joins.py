"""StreamJoin: two streams joined by key and time, and the sides that its records come from.

A join is three nodes: one for each side, which keeps the side's records for as long as they may
find a partner, and the join itself behind both, which the user has named. Rule of the file: names
of sides and stores hold a slash, which no name given by a user does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from streamlog.serdes import Serde
from streamlog.tables.store import StoreSpec
from streamlog.topology.nodes import Node
from streamlog.windows.joins import JoinWindow

How = Literal["inner", "left", "outer"]
"""Which sides' records go on without a partner: none, the left one's, both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSide(Node):
    """One of the streams: keeps its records for those of the other one."""

    is_left: bool
    keep_ms: int
    """For how long behind stream time a record may find a partner."""
    store: StoreSpec
    key: Serde[Any]
    value: Serde[Any]

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """Its records."""
        return (self.store,)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJoin(Node):
    """Pairs of records with equal keys; its parents are its sides, the left one first."""

    how: How
    window: JoinWindow
    key: Serde[Any]
    values: tuple[Serde[Any], Serde[Any]]
    """Of the records of the left side, and of the right one."""
    fn: Callable[[Any, Any], Any]
    unmatched: StoreSpec | None = None
    """The records that have found no partner so far and may go on alone; None for inner joins."""

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The unmatched records."""
        return () if self.unmatched is None else (self.unmatched,)

    @property
    def needs_equal_keys(self) -> bool:
        """Partners are in the same task."""
        return True

    @property
    def feeds(self) -> tuple[str, ...]:
        """What goes on alone, when its window has closed."""
        return () if self.unmatched is None else (self.name,)

    @property
    def passes_on(self) -> bool:
        """A pair belongs to the record that came last."""
        return True

    @property
    def awaits_feeds(self) -> bool:
        """What it does with a record depends on how far the others have come."""
        return True

    @property
    def detail(self) -> str:
        """Its window."""
        window = self.window
        return (
            f"{self.how}, {window.before_ms} ms before to {window.after_ms} ms after, "
            f"grace {window.grace_ms} ms"
        )
