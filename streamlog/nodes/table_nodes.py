"""Nodes of tables: global, versioned and writable tables, joins, groupings and suppression.

Tables are joined by key, by foreign key (KIP-213) or as of a record's time. A table grouped by
another key takes back what a row has replaced. `Suppress` holds changes back until a window closes,
for a time, or while there is room, and emits the last change of each row. A time to live deletes
rows and tells the nodes below.

Rule: one node owns the rows of a table; what follows it is a view of its changes. Final rows are a
source of their own, because time emits them and not a record. Not done here: stores (`tables`) and
the steps (`processing`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from streamlog.nodes.policies import ErrorPolicy
from streamlog.nodes.stream_nodes import (
    Aggregate,
    How,
    Keyed,
    Node,
    OldValues,
    TableJoin,
    TableSource,
)
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.serdes import Serde
from streamlog.tables.stores.store import StoreSpec
from streamlog.windows.emit import FAR_MS, Emit


@dataclass(frozen=True, slots=True, kw_only=True)
class Refer(Node):
    """Changes of the left table as references, and as outcomes where there is nothing to refer to.

    References have the foreign key for a key, outcomes that of the row.
    """

    on: Callable[[Any], Any]
    fn: Callable[[Any, Any], Any]
    is_left: bool
    """Rows without one on the other side are there too."""
    key: Serde[Any]
    """Of the left table."""

    @property
    def needs_old_values(self) -> bool:
        """What they referred to hears of it."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKeyJoin(Node):
    """References and the rows that they point to; its parents are two `TableSide`s."""

    store: StoreSpec
    """The references, by what they point to."""
    rows: StoreSpec
    """What the right table has told."""
    fn: Callable[[Any, Any], Any]
    is_left: bool
    key: Serde[Any]
    """Of the right table."""
    value: Serde[Any]
    row_key: Serde[Any]
    """Of the left one."""
    row_value: Serde[Any]

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """References, and rows."""
        return (self.store, self.rows)

    @property
    def needs_equal_keys(self) -> bool:
        """References are where their rows are."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKeyRows(Node):
    """The newest outcome for each row of the left table."""

    store: StoreSpec
    gone: StoreSpec
    """Rows that were deleted, until nothing old can come any more, by time."""
    key: Serde[Any]
    value: Serde[Any]

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The rows first."""
        return (self.store, self.gone)

    @property
    def needs_equal_keys(self) -> bool:
        """One row per key."""
        return True

    @property
    def table_key(self) -> Serde[Any]:
        """That of the left table."""
        return self.key

    @property
    def old_values(self) -> OldValues:
        """Its rows."""
        return "kept"


Backend = Literal["memory", "rocksdb"]
"""Of rows that are all in each worker: in memory, or on disk with a part of them in memory."""
BACKENDS: tuple[Backend, ...] = ("memory", "rocksdb")


@dataclass(frozen=True, slots=True)
class GlobalTableNode:
    """The latest value per key of a whole topic."""

    name: str
    topic: TopicSpec
    backend: Backend = "memory"
    """Where each worker keeps the rows."""
    on_error: ErrorPolicy | None = None
    """For a batch of the topic that can't be read; None: the app ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalJoin(Node):
    """Each record of a stream with the row of a global table that it points to."""

    table: GlobalTableNode
    on: Callable[[Any, Any], Any]
    """The key of the row, from key and value of the record."""
    fn: Callable[[Any, Any], Any]
    left: bool
    """Records without a row go on too."""

    @property
    def detail(self) -> str:
        """The table."""
        return f"in {self.table.name}{' (left)' if self.left else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Regroup(Node):
    """Changes of a table as revisions of groups."""

    fn: Callable[[Any, Any], tuple[Any, Any] | None]
    """Group and value of a row; None, or a None in it: the row is in no group."""

    @property
    def needs_old_values(self) -> bool:
        """They leave their groups."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAggregate(Aggregate):
    """One running result per group; its aggregation folds revisions."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSide(Node):
    """Changes of one of the tables of a join."""

    is_left: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TableTableJoin(Keyed):
    """The rows of two tables by key; its parents are its sides, the left one first.

    Its keys are those of both tables, or of keys within windows.
    """

    left: Serde[Any]
    right: Serde[Any]
    fn: Callable[[Any, Any], Any]
    kind: How
    kept_ms: int | None = None
    """Of windowed rows: for how long after their window; None: keys have no windows."""
    ends_count: bool = False
    """A time at which a window ends is in it."""

    @property
    def rows_kept_ms(self) -> int | None:
        """As given."""
        return self.kept_ms

    @property
    def detail(self) -> str:
        """Its kind."""
        return self.kind

    def end_range(self, at_ms: int) -> tuple[int, int]:
        """The first and the last end that a window with this time in it may have."""
        return at_ms + (not self.ends_count), FAR_MS

    def joined(self, left: object, right: object) -> Any:  # noqa: ANN401 - the user's
        """The row that comes of these two; None if there is none."""
        return self.fn(left, right) if self.joins(left, right) else None

    def joins(self, left: object, right: object) -> bool:
        """Whether a row comes of these two."""
        if self.kind == "inner":
            return left is not None and right is not None
        return left is not None or (self.kind == "outer" and right is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTable(Keyed):
    """The latest value per key of a stream; its records are the changes."""

    value: Serde[Any]

    @property
    def table_value(self) -> Serde[Any]:
        """Of the records."""
        return self.value


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
    def lookup_nodes(self) -> tuple[str, ...]:
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
