"""Tables that the program itself writes, row by row, and the agents that do.

The rows of an aggregation are computed and those of a topic's table are read; these are set, by
agents and processors that own the key, and by whoever puts one from elsewhere. A put travels
through a topic of the table's own to the task that has the row. Rule of the file: there is one
writer, the table's task; what an agent has written reaches it with the commit that covers the
agent's records.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.serdes import Serde
from streamlog.tables.store import StoreSpec
from streamlog.topology.nodes import Node, OldValues
from streamlog.topology.topics import TopicSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class WritableTable(Node):
    """Rows that the program sets; its records are the changes."""

    puts: TopicSpec
    """What is put from anywhere comes in here, through the node above."""
    store: StoreSpec
    ttl_ms: int | None = None
    """A row is over when the table's time is so far beyond the one it was written at."""

    @property
    def dues(self) -> StoreSpec:
        """When each row is over, if rows are at all."""
        return StoreSpec(f"{self.name}/dues")

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """Its rows, and when they are over."""
        return (self.store,) if self.ttl_ms is None else (self.store, self.dues)

    @property
    def feeds(self) -> tuple[str, ...]:
        """Its changes, which are a source of their own: most belong to no record of the task."""
        return (self.name,)

    @property
    def table_key(self) -> Serde[object]:
        """As declared."""
        return self.puts.key

    @property
    def table_value(self) -> Serde[object]:
        """As declared."""
        return self.puts.value

    @property
    def old_values(self) -> OldValues:
        """Its rows."""
        return "kept"

    @property
    def detail(self) -> str:
        """How long rows live."""
        return "" if self.ttl_ms is None else f"for {self.ttl_ms} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTables(Node):
    """An agent that works on rows: its topic is read where they are. Nothing goes on from here."""

    agent: str
    """Its name."""
    tables: tuple[str, ...]
    """Those whose rows it works on."""

    @property
    def looks_into(self) -> tuple[str, ...]:
        """The tables."""
        return self.tables

    @property
    def needs_equal_keys(self) -> bool:
        """The rows of a record's key are where the record is."""
        return True

    @property
    def detail(self) -> str:
        """The tables."""
        return f"with {', '.join(self.tables)}"
