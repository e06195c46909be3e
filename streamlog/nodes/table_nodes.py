"""Nodes of tables: global, versioned and writable tables, joins, groupings and suppression.

Tables are joined by key, by foreign key (KIP-213) or as of a record's time. A table grouped by
another key removes from its group what a row has replaced. `Suppress` holds back changes until a
window closes, for a time, or up to a limit of rows, and emits the last change of each row. A time
to live deletes rows and tells the nodes below.

Rule: one node owns the rows of a table; what follows it is a view of its changes. Final rows have a
time source of their own, because time emits them and not a record. Not done here: stores (`tables`)
and the steps (`processing`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from streamlog.durations import duration_text
from streamlog.errors import quantity
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
from streamlog.serdes.erased_types import AnySerde, UserKey, UserValue
from streamlog.tables.stores.store import StoreSpec
from streamlog.windows.emit import FAR_MS, Emit


class Refer(Node, frozen=True, kw_only=True):
    """Turns changes of the left table into references, or outcomes if they refer to nothing.

    References have the foreign key as key, outcomes have the key of the row.
    """

    on: Callable[[UserValue], UserKey]
    fn: Callable[[UserValue, UserValue], UserValue]
    is_left: bool
    """Whether a left row without a right row is part of the result."""
    key: AnySerde
    """The key serde of the left table."""

    @property
    def needs_old_values(self) -> bool:
        """The task of the old foreign key has to remove its reference."""
        # 1. Order 7 refers to customer A: the task of A stores the reference.
        # 2. Order 7 changes, and refers to B. Only the old value of the order names A, whose task
        #    would otherwise send an outcome for order 7 at every change of customer A.
        return True


class ForeignKeyJoin(Node, frozen=True, kw_only=True):
    """Joins references with the rows that they refer to; its parents are two `TableSide`s."""

    store: StoreSpec
    """The references, by the key that they refer to."""
    rows: StoreSpec
    """The rows of the right table."""
    fn: Callable[[UserValue, UserValue], UserValue]
    is_left: bool
    """Whether a left row without a right row is part of the result."""
    key: AnySerde
    """The key serde of the right table."""
    value: AnySerde
    row_key: AnySerde
    """The key serde of the left table."""
    row_value: AnySerde

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The stores of the references and of the rows."""
        return (self.store, self.rows)

    @property
    def needs_equal_keys(self) -> bool:
        """References are in the task of the rows that they refer to."""
        return True


class ForeignKeyRows(Node, frozen=True, kw_only=True):
    """Keeps the newest outcome for each row of the left table."""

    store: StoreSpec
    gone: StoreSpec
    """Deleted rows by time, kept as long as an older outcome may still arrive."""
    key: AnySerde
    value: AnySerde

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The store of the rows, then the store of deleted rows."""
        return (self.store, self.gone)

    @property
    def needs_equal_keys(self) -> bool:
        """All outcomes of a key are in one task."""
        return True

    @property
    def table_key(self) -> AnySerde:
        """The key serde of the left table."""
        return self.key

    @property
    def old_values(self) -> OldValues:
        """The node keeps the rows that its changes replace."""
        return "kept"


Backend = Literal["memory", "rocksdb"]
"""The place of the rows in each worker: all in memory, or on disk with some of them cached."""
BACKENDS: tuple[Backend, ...] = ("memory", "rocksdb")


class GlobalTableNode(msgspec.Struct, frozen=True):
    """The latest value per key of a whole topic."""

    name: str
    topic: TopicSpec
    backend: Backend = "memory"
    """Where each worker keeps the rows."""
    on_error: ErrorPolicy | None = None
    """The policy for an unreadable batch of the topic; with None, the app ends."""


class GlobalJoin(Node, frozen=True, kw_only=True):
    """Joins each record of a stream with the row of a global table that it points to."""

    table: GlobalTableNode
    on: Callable[[UserKey, UserValue], UserKey]
    """Returns the key of the row, from key and value of the record."""
    fn: Callable[[UserValue, UserValue], UserValue]
    left: bool
    """Whether records without a row are forwarded too."""

    @property
    def detail(self) -> str:
        """Names the table."""
        return f"in {self.table.name}{' (left)' if self.left else ''}"


class Regroup(Node, frozen=True, kw_only=True):
    """Turns changes of a table into revisions of groups."""

    fn: Callable[[UserKey, UserValue], tuple[UserKey, UserValue] | None]
    """Returns group and value of a row. For None or a pair with a None, the row is in no group."""

    @property
    def needs_old_values(self) -> bool:
        """Old values have to leave their groups."""
        # 1. A row (a, 3) is in group x: its value is added there.
        # 2. It changes to (b, 3). The task of x learns from the old value that 3 has to be
        #    subtracted.
        return True


class TableAggregate(Aggregate, frozen=True, kw_only=True):
    """One running result per group; its aggregation folds revisions."""


class Suppress(Node, frozen=True, kw_only=True):
    """Holds back changes of a table and forwards the last one of each row."""

    store: StoreSpec
    """The held changes."""
    key: AnySerde
    value: AnySerde

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The held changes."""
        return (self.store,)


class SuppressUntilClosed(Suppress, frozen=True, kw_only=True):
    """Forwards the last row of each window, once it is final."""

    closes_after_ms: int
    """A row is final when stream time is this far past the end of its window."""
    size_ms: int
    """The largest size of a window; 0 if it is unknown."""
    are_sessions: bool = False
    """Sessions grow in both directions, and a row has its session's end as timestamp."""
    idle_after_ms: int | None = None
    """Rows do not wait if all sources are at their end and quiet for this long."""

    united: bool = False
    """Whether all streams above have one time, so that no single source is waited for."""

    @property
    def feeds(self) -> tuple[str, ...]:
        """One time source, for the final rows."""
        return (self.name,)

    @property
    def waits_idle_ms(self) -> int | None:
        """The `idle_after` of its windows."""
        return self.idle_after_ms

    @property
    def old_values(self) -> OldValues:
        """Each row is forwarded once, so no old value is missing."""
        return "kept"

    @property
    def detail(self) -> str:
        """Says how long after their end windows close."""
        return f"until windows close, {duration_text(self.closes_after_ms)} after their end"


class SuppressWithin(Suppress, frozen=True, kw_only=True):
    """Forwards each row's last change, a time after the first or beyond a limit of rows."""

    within_ms: int | None
    records_max: int | None

    @property
    def needs_old_values(self) -> bool:
        """It must not delete a row that appears and disappears while it is held."""
        # 1. A row is added, and the change is held. 2. The row is deleted before the change is
        # forwarded. The old value of the first change is None, so nothing is forwarded at all.
        return True

    @property
    def old_values(self) -> OldValues:
        """The old value of a forwarded change is the one that the first held change replaces."""
        return "passed on"

    @property
    def detail(self) -> str:
        """Names the time and the limit."""
        within = "" if self.within_ms is None else f"for {duration_text(self.within_ms)}"
        room = "" if self.records_max is None else f"up to {quantity(self.records_max, 'row')}"
        return ", ".join(filter(None, (within, room)))


class TableSide(Node, frozen=True, kw_only=True):
    """One side of a table join: the changes of its table."""

    is_left: bool


class TableTableJoin(Keyed, frozen=True, kw_only=True):
    """Joins the rows of two tables by key; its parents are its sides, the left one first.

    `key` is the serde of the keys of both tables; for windowed tables, of the keys in the windows.
    """

    left: AnySerde
    right: AnySerde
    fn: Callable[[UserValue, UserValue], UserValue]
    kind: How
    kept_ms: int | None = None
    """How long windowed rows are kept after their window; None if keys have no windows."""
    ends_count: bool = False
    """Whether a window contains the time at which it ends."""

    @property
    def rows_kept_ms(self) -> int | None:
        """How long windowed rows are kept after their window; None if keys have no windows."""
        return self.kept_ms

    @property
    def detail(self) -> str:
        """Names the kind."""
        return self.kind

    def end_range(self, at_ms: int) -> tuple[int, int]:
        """Return the first and the last end of windows that may contain this time."""
        # [0, 100) contains 99 and not 100: the windows that contain 99 end at 100 or later. If a
        # window contains its end, [0, 100] contains 100 too.
        return at_ms + (not self.ends_count), FAR_MS

    def joined(self, left: object, right: object) -> UserValue:
        """Return the row that these two result in; None if there is none."""
        return self.fn(left, right) if self.joins(left, right) else None

    def joins(self, left: object, right: object) -> bool:
        """Return whether these two result in a row."""
        # A left row without a right one counts in left and outer joins, a right row alone only in
        # outer joins; without either row there is nothing to forward.
        if self.kind == "inner":
            return left is not None and right is not None
        return left is not None or (self.kind == "outer" and right is not None)


class StreamTable(Keyed, frozen=True, kw_only=True):
    """Keeps the latest value per key of a stream; its records are the changes."""

    value: AnySerde

    @property
    def table_value(self) -> AnySerde:
        """The value serde of the records."""
        return self.value


class ExpiringAggregate(Aggregate, frozen=True, kw_only=True):
    """One running result per key, which expires when no more records of the key come."""

    ttl_ms: int
    """A row expires when stream time is this far past its newest record."""
    dues: StoreSpec
    """The times at which rows may expire."""

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The store of the rows, then the store of the times at which they may expire."""
        return (self.store, self.dues)

    @property
    def feeds(self) -> tuple[str, ...]:
        """One time source, for deletions; other changes belong to the records that caused them."""
        return (self.name,)

    @property
    def passes_on(self) -> bool:
        """A change that a record causes belongs to the record."""
        return True

    @property
    def detail(self) -> str:
        """Names the time to live."""
        return f"for {duration_text(self.ttl_ms)}"


class AtCommits(Node, frozen=True, kw_only=True):
    """Forwards the newest change of each row of a table, at every commit."""

    key: Serde[object]
    emit: Emit = Emit.COMMIT
    deletes: bool = False
    """Whether rows of the table expire."""

    @property
    def feeds(self) -> tuple[str, ...]:
        """One time source, for all changes: they come later than the records that caused them."""
        return (self.name,)

    @property
    def needs_old_values(self) -> bool:
        """It must not delete a row that appears and disappears between two commits."""
        # 1. A row appears after a commit: its change is held until the next one.
        # 2. The row expires before that. Only the old value of the first change, None, shows that
        #    readers below have never seen the row, so no deletion is forwarded.
        return self.deletes

    @property
    def old_values(self) -> OldValues:
        """The old value is the one that the first change since the last commit replaced."""
        return "passed on"


class VersionedTable(TableSource, frozen=True, kw_only=True):
    """Keeps the latest value per key by timestamp, and earlier versions."""

    versions: StoreSpec
    history_ms: int
    """How far behind the table's stream time its versions are known."""

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The store of the newest rows, then the store of all versions."""
        return (self.store, self.versions)

    @property
    def detail(self) -> str:
        """Names the topic and the history."""
        return f"from topic {self.topic.name}, history {duration_text(self.history_ms)}"


class AsOfJoin(TableJoin, frozen=True, kw_only=True):
    """Joins each record of a stream with the row that its key had at the record's timestamp."""

    value: AnySerde
    """The value serde of the stream's records."""
    grace_ms: int = 0
    """A record waits until the stream is this much later, for rows that arrive late."""
    waiting: StoreSpec | None = None
    """The records that wait; None if records do not wait."""

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The store of the records that wait; none without a grace."""
        return () if self.waiting is None else (self.waiting,)

    @property
    def feeds(self) -> tuple[str, ...]:
        """One time source, for records that have waited."""
        # A record that has waited is forwarded while a later record is processed.
        return () if self.waiting is None else (self.name,)

    @property
    def passes_on(self) -> bool:
        """A late record does not wait, and its result belongs to it."""
        return True

    @property
    def detail(self) -> str:
        """Names the table and the grace."""
        left = " (left)" if self.left else ""
        return f"with {self.table} as of each record{left}, grace {duration_text(self.grace_ms)}"


class WritableTable(Node, frozen=True, kw_only=True):
    """Keeps rows that the program sets; its records are the changes."""

    puts: TopicSpec
    """The topic for rows that are put from anywhere; the node above reads it."""
    store: StoreSpec
    ttl_ms: int | None = None
    """A row expires when the table's time is this far past the time at which it was written."""

    @property
    def due_times(self) -> StoreSpec:
        """The store of the expiry times, if rows expire."""
        return StoreSpec(f"{self.name}/dues")

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The store of the rows, then the store of their expiry times, if rows expire."""
        return (self.store,) if self.ttl_ms is None else (self.store, self.due_times)

    @property
    def feeds(self) -> tuple[str, ...]:
        """Its changes have a time source of their own: most belong to no record of the task."""
        return (self.name,)

    @property
    def table_key(self) -> Serde[object]:
        """The declared key serde."""
        return self.puts.key

    @property
    def table_value(self) -> Serde[object]:
        """The declared value serde."""
        return self.puts.value

    @property
    def old_values(self) -> OldValues:
        """The node keeps the rows that its changes replace."""
        return "kept"

    @property
    def detail(self) -> str:
        """Names the time to live."""
        return "" if self.ttl_ms is None else f"for {duration_text(self.ttl_ms)}"


class AgentTables(Node, frozen=True, kw_only=True):
    """An agent that uses tables: its topic is read in their tasks. It forwards nothing."""

    agent: str
    """The name of the agent."""
    tables: tuple[str, ...]
    """The tables whose rows it uses."""

    @property
    def lookup_nodes(self) -> tuple[str, ...]:
        """The nodes that own the rows of the tables."""
        return self.tables

    @property
    def needs_equal_keys(self) -> bool:
        """The rows of a record's key are in the record's task."""
        return True

    @property
    def detail(self) -> str:
        """Names the tables."""
        return f"with {', '.join(self.tables)}"
