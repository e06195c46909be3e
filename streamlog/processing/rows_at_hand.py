"""TaskRows: rows of tables in the hands of a processor, in the task that has both.

What is read is what the task has made so far, and what is set is seen at once, by all nodes of the
task; it is committed with everything else of it. Rule of the file: a key of another partition is
refused, whatever this one has for it: its row is with another task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from streamlog.errors import SerdeError, StreamlogError, UsageError
from streamlog.processing.joins import Lookup, viewed
from streamlog.processing.rows import TableRows
from streamlog.processing.writable_tables import Mark, RowWrite, WritableTableStep
from streamlog.tables.store import KeyValueStore
from streamlog.topology import WritableTable


def owned_key(
    rows: TableRows, key: object, who: str, *, partitions: int, mine: frozenset[int]
) -> bytes:
    """The bytes of a key whose row is in one of these partitions.

    Raises:
        UsageError: it is in another one, so its row is with another task.
        SerdeError: it is not of the table's type.
    """
    raw = rows.own_key(key)
    partition = rows.partition_of(raw, partitions) if partitions > 1 else 0
    if partition not in mine:
        here = ", ".join(map(str, sorted(mine)))
        raise UsageError(
            f"{who!r} has partition {here} of table {rows.name!r} in hand, and key {key!r} is in "
            f"partition {partition}: ask with `await table.fetch(key)`, write with `await "
            "table.put(key, value)`, or let the records have the table's key (rekey before it)"
        )
    return raw


def not_at_hand(who: str, table: str) -> UsageError:
    """What those hear who ask for rows of a table that is not with them."""
    return UsageError(
        f"{who!r} has no rows of table {table!r} at hand, as its code was not seen to name it: "
        "declare the table first, or say tables=[...] where the agent or processor is declared"
    )


def written_value(rows: TableRows, value: object) -> bytes | None:
    """A value of a table as bytes; None deletes a row.

    Raises:
        UsageError: the rows of the table are not for the program to set.
        SerdeError: it is not of the table's type.
    """
    owner = rows.owner
    if rows.views or not isinstance(owner, WritableTable):
        raise UsageError(
            f"the rows of table {rows.name!r} can't be set here, they are computed or come from a "
            'topic: a table that the program writes is declared by app.table("name", key=, value=)'
        )
    if value is None:
        return None
    try:
        return owner.table_value.dumps(value)
    except StreamlogError as error:
        raise SerdeError(f"the value for table {rows.name!r}: {error}") from error


class TaskRows:
    """The rows that a processor has at hand."""

    def __init__(
        self,
        who: str,
        tables: Mapping[str, TableRows],
        steps: Mapping[str, Lookup],
        partition: int,
        counts: Mapping[str, int],
    ) -> None:
        """`steps` keep the rows, by the names of the nodes; `counts` has the topics' partitions."""
        self._who = who
        self._tables = tables
        self._steps = steps
        self._counts = counts
        self._mine = frozenset((partition,))
        self._written_ms: Callable[[], int] = _no_time
        self._store: KeyValueStore | None = None
        self._marks: dict[str, Mark] = {}

    def bind(self, written_ms: Callable[[], int], store: KeyValueStore) -> None:
        """Write at this time, through this view of the task's store."""
        self._written_ms, self._store = written_ms, store

    def get(self, table: str, key: object) -> Any:  # noqa: ANN401 - of the user's type
        """See `RowsAtHand`."""
        rows, raw = self._of(table, key)
        found = self._steps[rows.owner.name].lookup(raw)
        for view in rows.views:
            if found is None:
                break
            found = viewed(view, key, found)
        return found

    def put(self, table: str, key: object, value: object) -> None:
        """See `RowsAtHand`."""
        rows, raw = self._of(table, key)
        data = written_value(rows, value)
        step = self._steps[rows.owner.name]
        if self._store is None or not isinstance(step, WritableTableStep):
            raise UsageError(f"{self._who!r} can't set rows before its task has begun")
        step.set(RowWrite(raw, data, self._written_ms()), self._store)

    def range(self, table: str) -> Iterator[tuple[Any, Any]]:
        """See `RowsAtHand`."""
        rows = self._named(table)
        for key, value in self._steps[rows.owner.name].table():
            seen = value
            for view in rows.views:
                seen = None if seen is None else viewed(view, key, seen)
            if seen is not None:
                yield key, seen

    def begin(self) -> None:
        """What has been set until now stays."""
        self._marks = {name: step.mark() for name, step in self._written}

    def undo(self) -> None:
        """What has been set since `begin` was taken back in the store."""
        for name, step in self._written:
            step.go_back(self._marks[name])

    def hand_on(self) -> None:
        """Tell those below the tables what has been set."""
        for _, step in self._written:
            step.hand_on()

    @property
    def _written(self) -> list[tuple[str, WritableTableStep]]:
        return [(n, each) for n, each in self._steps.items() if isinstance(each, WritableTableStep)]

    def _of(self, table: str, key: object) -> tuple[TableRows, bytes]:
        rows = self._named(table)
        count = rows.partitions(self._counts)
        return rows, owned_key(rows, key, self._who, partitions=count, mine=self._mine)

    def _named(self, table: str) -> TableRows:
        rows = self._tables.get(table)
        if rows is None:
            raise not_at_hand(self._who, table)
        return rows


def _no_time() -> int:
    return 0
