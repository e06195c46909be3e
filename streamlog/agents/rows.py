"""AgentRows: rows of tables in the hands of agents, and what they have set that is not committed.

An agent reads what is committed and what agents here have set since; what it sets counts when the
record in hand is handled, and goes to the table's task with the commit that covers the record: both
count, or neither. What a record has set that fails, or that is taken away, is forgotten. Rule of
the file: between two rows that are set at the same time nobody could decide, so calls that run side
by side set only the row of the key that they have in hand. Not done here: which agent works on
which tables (`dsl/writable_tables`), and committing (`worker`, `testing`).
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
    """Port: the rows of the tasks that run here, as bytes."""

    def row(self, table: TableRows, partition: int, key: bytes) -> bytes | None:
        """One row; None if there is none."""

    def rows(self, table: TableRows, partition: int) -> Iterator[tuple[bytes, bytes]]:
        """All rows of a partition, in the order of their keys."""


class AgentRows:
    """What the agents of a worker have at hand, all together."""

    def __init__(
        self,
        tables: Mapping[str, TableRows],
        counts: Mapping[str, int],
        worked_on: Mapping[str, Collection[str]],
        committed: CommittedRowReader,
    ) -> None:
        """`worked_on` has, by the names of agents, the nodes that keep their tables' rows."""
        self._tables = tables
        self._counts = counts
        self._worked_on = worked_on
        self.committed = committed
        self._set: dict[TablePart, dict[bytes, Written]] = {}
        """By records that are handled, and not committed yet."""

    def worked_on(self, agent: str) -> Collection[str]:
        """The nodes that keep the tables that an agent works on."""
        return self._worked_on.get(agent, ())

    def table(self, agent: str, name: str) -> TableRows:
        """A table that an agent has at hand.

        Raises:
            UsageError: it does not.
        """
        rows = self._tables.get(name)
        if rows is None or rows.owner.name not in self.worked_on(agent):
            raise not_local_error(f"agent {agent}", name)
        return rows

    def partitions(self, rows: TableRows) -> int:
        """How many a table has."""
        return rows.partitions(self._counts)

    def partition_of(self, rows: TableRows, key: bytes) -> int:
        """Where the row of a key is."""
        return rows.partition_of(key, self.partitions(rows))

    def keep(self, written: Mapping[RowAt, Written]) -> None:
        """The record that has set these rows is handled."""
        for (table, partition, key), row in written.items():
            self._set.setdefault((table, partition), {})[key] = row

    def get(self, part: TablePart, key: bytes) -> Written | None:
        """What was set and is not committed; None: nothing."""
        return self._set.get(part, {}).get(key)

    def part(self, part: TablePart) -> Mapping[bytes, Written]:
        """All of it of one partition."""
        return self._set.get(part, {})

    def uncommitted(self) -> dict[TablePart, list[RowWrite]]:
        """What a commit has to bring to the tasks, of each key the last."""
        return {
            part: [RowWrite(key, row.data, row.timestamp_ms) for key, row in rows.items()]
            for part, rows in self._set.items()
            if rows
        }

    def committed_until(self, written: Mapping[TablePart, Sequence[RowWrite]]) -> None:
        """A commit has brought these to the tasks; what was set since then is still to come."""
        for part, rows in written.items():
            waiting = self._set.get(part, {})
            for row in rows:
                found = waiting.get(row.key)
                if found is not None and found.data is row.data:
                    del waiting[row.key]

    def forget(self, partitions: Collection[int], tables: Collection[str]) -> None:
        """What was set in these partitions is for others to do again."""
        for part in [*self._set]:
            if part[0] in tables and part[1] in partitions:
                del self._set[part]

    def clear(self) -> None:
        """Whoever set something that is not with the tasks will set it again."""
        self._set.clear()


class _Hand(NamedTuple):
    """What a call has in hand."""

    slice: Slice
    """Of the last record."""
    partitions: frozenset[int]
    keys: frozenset[bytes | None]


class RowsHeld(Protocol):
    """Port: a call of an agent's function."""

    def holds(self) -> list[Slice]:
        """Whose records are in hand: several of a list, the last one last; none at first.

        All records before are handled.
        """


class CallRows:
    """The rows that one call has at hand."""

    def __init__(self, agent: Agent[UserKey, UserValue], shared: AgentRows, call: RowsHeld) -> None:
        self._agent = agent
        self._shared = shared
        self._call = call

    def get(self, table: str, key: object) -> UserValue:
        """See `LocalTables`."""
        rows, hand, at = self._of(table, key)
        written = hand.slice.written.get(at) or self._shared.get(at[:2], at[2])
        data = self._shared.committed.row(rows, at[1], at[2]) if written is None else written.stored
        found = None if data is None else rows.row(at[2], data)
        return None if found is None else found[1]

    def put(self, table: str, key: object, value: object) -> None:
        """See `LocalTables`."""
        rows, hand, at = self._of(table, key)
        data = serialize_value(rows, value)
        slice_ = hand.slice
        timestamp_ms = slice_.timestamp_ms(slice_.given - 1)
        stored = None if data is None else rows.stored(data)
        slice_.write(at, Written(data, stored, timestamp_ms), keep=self._shared.keep)

    def range(self, table: str) -> Iterator[tuple[UserKey, UserValue]]:
        """See `LocalTables`."""
        rows = self._shared.table(self._agent.name, table)
        hand = self._hand(table)
        for partition in sorted(hand.partitions):
            part = (rows.owner.name, partition)
            changed = {key: row.stored for key, row in self._shared.part(part).items()}
            mine = hand.slice.written.items()
            changed |= {at[2]: row.stored for at, row in mine if at[:2] == part}
            stored = self._shared.committed.rows(rows, partition)
            yield from rows.seen(overlay(stored, iter(sorted(changed.items()))))

    def _of(self, table: str, key: object) -> tuple[TableRows, _Hand, RowAt]:
        agent, shared = self._agent, self._shared
        rows = shared.table(agent.name, table)
        hand, count = self._hand(table), shared.partitions(rows)
        who = f"agent {agent.name}"
        raw = local_key(rows, key, who, partitions=count, mine=hand.partitions)
        if agent.concurrency > 1 and agent.ordered != "partition" and raw not in hand.keys:
            raise UsageError(
                f"{who} runs {agent.concurrency} calls side by side (ordered={agent.ordered!r}), "
                f"so the row of {key!r} in table {table!r} may be in the hands of another one: "
                "work on the row of the record's own key, or say concurrency=1 or "
                "ordered='partition'"
            )
        partition = next(iter(hand.partitions)) if len(hand.partitions) == 1 else -1
        if partition < 0:
            partition = shared.partition_of(rows, raw)
        return rows, hand, (rows.owner.name, partition, raw)

    def _hand(self, table: str) -> _Hand:
        held = self._call.holds()
        if not held:
            raise UsageError(
                f"agent {self._agent.name} has no record in hand, and so no rows of {table!r}: ask "
                "for a record first"
            )
        if self._agent.concurrency > 1 and self._agent.ordered == "none":
            raise UsageError(
                f"agent {self._agent.name} handles records of one key side by side "
                f"(ordered='none'), so nobody could say what comes of the rows of {table!r}: say "
                "ordered='key' or ordered='partition'"
            )
        keys = {raw.key for slice_ in held for raw in slice_.in_hands}
        partitions = frozenset(slice_.part.partition for slice_ in held)
        return _Hand(held[-1], partitions, frozenset(keys))
