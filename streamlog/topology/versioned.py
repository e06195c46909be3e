"""Versioned tables, and streams joined with what held at a record's own time.

A versioned table keeps, beside the newest row of each key, what the rows before it were, as far
back as its history goes (KIP-889, KIP-914). Rule of the file: the newest rows lie where those of
any other table do, so whoever reads rows need not know of the history.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamlog.serdes import Serde
from streamlog.tables.store import StoreSpec
from streamlog.topology.nodes import TableJoin, TableSource


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionedTable(TableSource):
    """The latest value per key by timestamp, and those that held before."""

    versions: StoreSpec
    history_ms: int
    """How far back behind the table's stream time it is known what held."""

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The newest rows, and all versions."""
        return (self.store, self.versions)

    @property
    def detail(self) -> str:
        """Its topic and history."""
        return f"from topic {self.topic.name}, history {self.history_ms} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOfJoin(TableJoin):
    """Each record of a stream with the row that held for its key at the record's timestamp."""

    value: Serde[Any]
    """Of the stream's records."""
    grace_ms: int = 0
    """A record waits for one of the stream that is so much later, for rows that come late."""
    waiting: StoreSpec | None = None
    """The records that wait; None: none does."""

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The records that wait."""
        return () if self.waiting is None else (self.waiting,)

    @property
    def feeds(self) -> tuple[str, ...]:
        """The records that have waited."""
        return () if self.waiting is None else (self.name,)

    @property
    def passes_on(self) -> bool:
        """A record that is late does not wait."""
        return True

    @property
    def detail(self) -> str:
        """The table and the grace."""
        left = " (left)" if self.left else ""
        return f"with {self.table} as of each record{left}, grace {self.grace_ms} ms"
