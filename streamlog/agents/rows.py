"""AgentRows: the rows that agents read and set, and those among them that are not committed.

An agent reads the committed rows and those that agents of this worker have set since. A row that it
sets takes effect when the current record is handled, and reaches the table's task with the commit
that covers the record, so both count or neither. If the record fails or its partition is revoked,
its rows are dropped.

Rule: concurrent calls set only rows of their current keys, because two values that are
set at the same time have no order. Not done here: the choice of an agent's tables
(`dsl/writable_tables`), and committing (`worker`, `testing`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from streamlog.agents.slices import RowAt, Slice, Written
from streamlog.dsl.agent import Agent
from streamlog.errors import UsageError
from streamlog.processing.table_rows import TableRows, local_key, not_local_error, serialize_value
from streamlog.processing.tables.writable_table import RowWrite
from streamlog.serdes.erased_types import UserKey, UserValue
from streamlog.tables.state.store_transaction import overlay

TablePart: TypeAlias = tuple[str, int]
"""The node that keeps a table, and a partition."""


class CommittedRowReader(Protocol):
    """Port: the committed rows of the tasks of this worker, as bytes."""

    def row(self, table: TableRows, partition: int, key: bytes) -> bytes | None:
        """Return a row; None if there is none."""

    def rows(self, table: TableRows, partition: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield all rows of a partition, in the order of their keys."""


class AgentRows:
    """The rows that all agents of a worker have set, and the tables that each may use."""

    def __init__(
        self,
        tables: Mapping[str, TableRows],
        counts: Mapping[str, int],
        worked_on: Mapping[str, Collection[str]],
        committed: CommittedRowReader,
    ) -> None:
        """Hold no uncommitted rows yet.

        Args:
            tables: the tables of the app, by name.
            counts: the number of partitions of each topic.
            worked_on: the nodes that keep the tables of each agent, by the name of the agent.
            committed: reads committed rows.
        """
        self._tables = tables
        self._counts = counts
        self._worked_on = worked_on
        self.committed = committed
        self._set: dict[TablePart, dict[bytes, Written]] = {}
        """The rows that were set for handled records and are not committed yet."""

    def worked_on(self, agent: str) -> Collection[str]:
        """Return the nodes that keep the tables of an agent."""
        return self._worked_on.get(agent, ())

    def table(self, agent: str, name: str) -> TableRows:
        """Return a table of an agent.

        Raises:
            UsageError: the agent does not use this table.
        """
        rows = self._tables.get(name)
        if rows is None or rows.owner.name not in self.worked_on(agent):
            raise not_local_error(f"agent {agent}", name)
        return rows

    def partitions(self, rows: TableRows) -> int:
        """Return the number of partitions of a table."""
        return rows.partitions(self._counts)

    def partition_of(self, rows: TableRows, key: bytes) -> int:
        """Return the partition of a key's row."""
        return rows.partition_of(key, self.partitions(rows))

    def keep(self, written: Mapping[RowAt, Written]) -> None:
        """Keep the rows of a handled record until they are committed."""
        for (table, partition, key), row in written.items():
            self._set.setdefault((table, partition), {})[key] = row

    def get(self, part: TablePart, key: bytes) -> Written | None:
        """Return the uncommitted row of this key; None if there is none."""
        return self._set.get(part, {}).get(key)

    def part(self, part: TablePart) -> Mapping[bytes, Written]:
        """Return the uncommitted rows of a partition, by key."""
        return self._set.get(part, {})

    def uncommitted(self) -> dict[TablePart, list[RowWrite]]:
        """Return the newest uncommitted row of each key, for the tasks of the next commit."""
        return {
            part: [RowWrite(key, row.data, row.timestamp_ms) for key, row in rows.items()]
            for part, rows in self._set.items()
            if rows
        }

    def committed_until(self, written: Mapping[TablePart, Sequence[RowWrite]]) -> None:
        """Drop rows that a commit has passed to the tasks, unless they were set anew since."""
        for part, rows in written.items():
            waiting = self._set.get(part, {})
            for row in rows:
                found = waiting.get(row.key)
                # Identity, not equality: an equal value that was set after the commit began has to
                # be written again, with its own timestamp.
                if found is not None and found.data is row.data:
                    del waiting[row.key]

    def forget(self, partitions: Collection[int], tables: Collection[str]) -> None:
        """Drop the rows of revoked partitions; their new owner sets them again."""
        for part in [*self._set]:
            if part[0] in tables and part[1] in partitions:
                del self._set[part]

    def clear(self) -> None:
        """Drop all uncommitted rows; their records will be read again."""
        self._set.clear()


class _Current(NamedTuple):
    """The current records of a call."""

    slice: Slice
    """The slice of the last record."""
    partitions: frozenset[int]
    keys: frozenset[bytes | None]


class RowsHeld(Protocol):
    """Port: a call of an agent's function, by its current records."""

    def holds(self) -> list[Slice]:
        """Return the slices of the current records, in order; before the first record, none.

        A list may span several slices. All records before them are handled.
        """


class CallRows:
    """The rows of an agent's tables, as one call reads and sets them."""

    def __init__(self, agent: Agent[UserKey, UserValue], shared: AgentRows, call: RowsHeld) -> None:
        self._agent = agent
        self._shared = shared
        self._call = call

    def get(self, table: str, key: object) -> UserValue:
        """See `LocalTables`."""
        rows, current, at = self._of(table, key)
        # Newest first: what this record has set, then uncommitted rows, then the committed row.
        written = current.slice.written.get(at) or self._shared.get(at[:2], at[2])
        data = self._shared.committed.row(rows, at[1], at[2]) if written is None else written.stored
        found = None if data is None else rows.row(at[2], data)
        return None if found is None else found[1]

    def put(self, table: str, key: object, value: object) -> None:
        """See `LocalTables`."""
        rows, current, at = self._of(table, key)
        data = serialize_value(rows, value)
        slice_ = current.slice
        timestamp_ms = slice_.timestamp_ms(slice_.given - 1)
        stored = None if data is None else rows.stored(data)
        slice_.write(at, Written(data, stored, timestamp_ms), keep=self._shared.keep)

    def range(self, table: str) -> Iterator[tuple[UserKey, UserValue]]:
        """See `LocalTables`."""
        rows = self._shared.table(self._agent.name, table)
        current = self._current(table)
        for partition in sorted(current.partitions):
            part = (rows.owner.name, partition)
            # In this order: rows of the current record replace rows of handled records.
            changed = {key: row.stored for key, row in self._shared.part(part).items()}
            mine = current.slice.written.items()
            changed |= {at[2]: row.stored for at, row in mine if at[:2] == part}
            stored = self._shared.committed.rows(rows, partition)
            yield from rows.seen(overlay(stored, iter(sorted(changed.items()))))

    def _of(self, table: str, key: object) -> tuple[TableRows, _Current, RowAt]:
        agent, shared = self._agent, self._shared
        rows = shared.table(agent.name, table)
        current, count = self._current(table), shared.partitions(rows)
        who = f"agent {agent.name}"
        raw = local_key(rows, key, who, partitions=count, mine=current.partitions)
        if agent.concurrency > 1 and agent.ordered != "partition" and raw not in current.keys:
            raise UsageError(
                f"{who} runs {agent.concurrency} calls side by side (ordered={agent.ordered!r}), "
                f"so another call may use the row of {key!r} in table {table!r}: "
                "use the row of the record's own key, or pass concurrency=1 or "
                "ordered='partition'"
            )
        # `local_key` has checked that the row is in a current partition. If a list spans several of
        # them, the key decides which one.
        partition = next(iter(current.partitions)) if len(current.partitions) == 1 else -1
        if partition < 0:
            partition = shared.partition_of(rows, raw)
        return rows, current, (rows.owner.name, partition, raw)

    def _current(self, table: str) -> _Current:
        held = self._call.holds()
        if not held:
            raise UsageError(
                f"agent {self._agent.name} has no current record, and so no rows of {table!r}: ask "
                "for a record first"
            )
        if self._agent.concurrency > 1 and self._agent.ordered == "none":
            raise UsageError(
                f"agent {self._agent.name} handles records of one key side by side "
                f"(ordered='none'), so the rows of {table!r} would depend on the timing: pass "
                "ordered='key' or ordered='partition'"
            )
        keys = {raw.key for slice_ in held for raw in slice_.all_current}
        partitions = frozenset(slice_.part.partition for slice_ in held)
        return _Current(held[-1], partitions, frozenset(keys))
