"""What an aggregation without windows may be told beside its name: a time to live, and commits.

A row that is over is deleted, and those below are told so. At commits, of each row only the newest
value goes on. Rule of the file: the table is the aggregation; what goes on at commits is another
view of its changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.serdes import Serde
from streamlog.tables.store import StoreSpec
from streamlog.topology.nodes import Aggregate, Node, OldValues
from streamlog.windows.emit import Emit


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiringAggregate(Aggregate):
    """One running result per key, as long as records of the key come."""

    ttl_ms: int
    """A row is over when stream time is so far beyond its newest record."""
    dues: StoreSpec
    """When rows may be over."""

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """Its rows, and when they may be over."""
        return (self.store, self.dues)

    @property
    def feeds(self) -> tuple[str, ...]:
        """The deletions; all other changes belong to the records behind them."""
        return (self.name,)

    @property
    def passes_on(self) -> bool:
        """Changes by records."""
        return True

    @property
    def detail(self) -> str:
        """How long rows live."""
        return f"for {self.ttl_ms} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class AtCommits(Node):
    """Changes of a table, of each row the newest, at every commit."""

    key: Serde[object]
    emit: Emit = Emit.COMMIT
    deletes: bool = False
    """Rows of the table are over some time."""

    @property
    def feeds(self) -> tuple[str, ...]:
        """All of it: it comes later than what it was made from."""
        return (self.name,)

    @property
    def needs_old_values(self) -> bool:
        """A row that comes and goes between two commits is not deleted."""
        return self.deletes

    @property
    def old_values(self) -> OldValues:
        """What the first change since the last commit replaced."""
        return "passed on"
