"""SqlSinkTask: a task of `SqlSink` at work, on one connection and in one thread.

Two races decide the order of its statements:

1. A zombie. Task A is stopped behind its last row; task B takes the partition over. B raises the
   epoch in a transaction of its own, and reads the next offset in it. A's transaction still has to
   compare the epoch: `UPDATE ... WHERE epoch = A's`. If A did so before B, B's UPDATE waits for A's
   end and then reads A's offset; if B was first, A's UPDATE finds no row, and A rolls back.
2. A commit without an answer. The connection breaks while the server commits. The runtime gives the
   same records again. On the new connection the task first reads which offset the database has,
   under a lock that waits for the old transaction, and leaves out the records below it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from streamlog.connect import (
    BadRecord,
    Batch,
    ConnectError,
    Fenced,
    Retriable,
    SinkContext,
    SinkTask,
    TopicPartition,
)
from streamlog.connectors.sql import SqlSink
from streamlog.connectors.sql.column_adapters import fitting_rows
from streamlog.connectors.sql.database import Database, open_database
from streamlog.connectors.sql.row_changes import Run, plan_runs, plan_uniform
from streamlog.connectors.sql.table_changes import SinkTables
from streamlog.errors import ConfigError

UNKNOWN = -1
"""The next offset of a partition that the database has no offset of."""


@dataclass(slots=True)
class Owned:
    """A partition of this task.

    Attributes:
        epoch: the epoch that it has raised the partition to.
        next_offset: the offset that the database has, or UNKNOWN.
    """

    epoch: int
    next_offset: int


class SqlSinkTask(SinkTask[object, object]):
    """Writes records and their offsets in one transaction; see the module for the races.

    Args:
        sink: the settings.
        context: the runtime.
    """

    def __init__(self, sink: SqlSink, context: SinkContext) -> None:
        self._context = context
        self._writer = SqlWriter(sink, context.name, open_database(*sink.login))

    async def __aenter__(self) -> Self:
        """Connect, and create the table of offsets if it is missing."""
        await self._context.in_thread(self._writer.connect)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connection."""
        await self._context.in_thread(self._writer.close)

    async def recover(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the offsets in the database, and fence earlier owners."""
        return await self._context.in_thread(self._writer.recover, partitions)

    async def begin(self) -> None:
        """Start a transaction."""
        await self._context.in_thread(self._writer.begin)

    async def write(self, batch: Batch[object, object]) -> None:
        """Write rows."""
        await self._context.in_thread(self._writer.write, batch)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write the offsets and commit."""
        await self._context.in_thread(self._writer.commit, offsets)

    async def abort(self) -> None:
        """Roll back."""
        await self._context.in_thread(self._writer.abort)

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Forget the epochs of partitions."""
        self._writer.forget(partitions)

    async def reset(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Set the offsets in the database."""
        await self._context.in_thread(self._writer.reset, offsets)


class SqlWriter:
    """What the task does, in calls that block.

    Args:
        sink: the settings.
        name: the connector's name, under which its offsets are.
        database: the database, not connected.
    """

    def __init__(self, sink: SqlSink, name: str, database: Database) -> None:
        self.sink = sink
        self.name = name
        self.database = database
        self._owned: dict[TopicPartition, Owned] = {}
        self._tables = SinkTables(database, sink)
        self._written: list[Batch[object, object]] = []
        self._is_confirmed = True
        """Whether the epochs and offsets of `_owned` are what the database has."""

    def connect(self) -> None:
        """Connect, and create the table of offsets if it is missing.

        Raises:
            Retriable: the database can't be reached.
            ConfigError: it refuses the login, or the user may not create the table.
        """
        with self._or_closed(), self.database.guarded():
            self.database.connect()
            try:
                self._create_offsets()
            except self.database.errors as error:
                if not self.database.exists_already(error):
                    raise
                # PostgreSQL's IF NOT EXISTS does not see a table that another session has not
                # committed yet: 1. Tasks a and b find none. 2. a creates it. 3. b is refused.
                raise Retriable(f"another task creates {self._offsets} just now") from error

    def _create_offsets(self) -> None:
        with self.database.transaction():
            # Five columns of types that every database has under these names.
            self.database.execute(
                f"CREATE TABLE IF NOT EXISTS {self._offsets} ("
                f"sink {self.database.name_type} NOT NULL, "
                f"topic {self.database.name_type} NOT NULL, part INTEGER NOT NULL, "
                "next_offset BIGINT NOT NULL, epoch BIGINT NOT NULL, "
                "PRIMARY KEY (sink, topic, part))"
            )

    def close(self) -> None:
        """Close the connection."""
        self.database.close()

    def recover(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Raise the epoch of partitions, and return the next offsets that the database has."""
        taken: dict[TopicPartition, Owned] = {}
        self._reconnect()
        with self._or_closed(), self.database.guarded(), self.database.transaction():
            # All tasks take rows in one order, so none waits for another in a circle.
            for partition in sorted(partitions):
                taken[partition] = self._take(partition)
        # Only what is committed is owned: a failed attempt must not leave an epoch here.
        self._owned |= taken
        known = {partition: owned.next_offset for partition, owned in taken.items()}
        return {partition: offset for partition, offset in known.items() if offset != UNKNOWN}

    def _take(self, partition: TopicPartition) -> Owned:
        if not self._raise_epoch(partition, 1):
            m = self.database.mark
            try:
                self.database.execute(
                    f"INSERT INTO {self._offsets} (sink, topic, part, next_offset, epoch) "  # noqa: S608 - a quoted name
                    f"VALUES ({m}, {m}, {m}, {UNKNOWN}, 1)",
                    (self.name, *partition),
                )
            except self.database.integrity_error as error:
                raise Retriable(f"another task takes {partition} just now") from error
        return self._look(partition)

    def _raise_epoch(self, partition: TopicPartition, by: int) -> bool:
        """Lock the row of a partition, and return whether there is one."""
        cursor = self.database.execute(
            f"UPDATE {self._offsets} SET epoch = epoch + {by} WHERE {self._here}",  # noqa: S608 - a quoted name
            (self.name, *partition),
        )
        return cursor.rowcount > 0

    def _look(self, partition: TopicPartition) -> Owned:
        row = self.database.execute(
            f"SELECT epoch, next_offset FROM {self._offsets} WHERE {self._here}",  # noqa: S608 - a quoted name
            (self.name, *partition),
        ).fetchone()
        epoch, next_offset = row or (UNKNOWN, UNKNOWN)
        return Owned(int(epoch), int(next_offset))

    @property
    def _offsets(self) -> str:
        return self.database.quoted(self.sink.schema or "", self.sink.offsets_table)

    @property
    def _here(self) -> str:
        m = self.database.mark
        return f"sink = {m} AND topic = {m} AND part = {m}"

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Forget partitions that another task gets."""
        for partition in partitions:
            self._owned.pop(partition, None)

    def begin(self) -> None:
        """Start a transaction, on a new connection if the last one is lost or in doubt.

        Raises:
            Fenced: another task has taken over a partition since the last connection.
        """
        self._written.clear()
        self._reconnect()
        with self._or_closed():
            if not self._is_confirmed:
                self._confirm()
            with self.database.guarded():
                self.database.begin()

    @contextmanager
    def _or_closed(self) -> Iterator[None]:
        """Close the connection if the block fails, so that the next call makes another.

        `abort` does it for what follows `begin`. 1. The database restarts between two flushes.
        2. `begin` fails, and nothing has begun that could be aborted. 3. It would fail for ever.
        """
        try:
            yield
        except Exception:
            self._is_confirmed = False
            self.database.close()
            raise

    def _reconnect(self) -> None:
        if not self.database.is_connected:
            self.connect()

    def _confirm(self) -> None:
        """Read the offsets that the database has by now; see the second race of the module."""
        with self.database.guarded(), self.database.transaction():
            for partition, owned in sorted(self._owned.items()):
                # Adding nothing still locks the row, so a commit that is under way ends first.
                self._raise_epoch(partition, 0)
                found = self._look(partition)
                if found.epoch != owned.epoch:
                    raise Fenced(f"{self.name}: another task has taken over {partition}")
                owned.next_offset = found.next_offset
        self._is_confirmed = True

    def write(self, batch: Batch[object, object]) -> None:
        """Write the rows of a batch.

        Raises:
            BadRecords: some records have no row.
            ConfigError: the table lacks what the records need, and must not be changed; or the
                database refuses the user.
        """
        with self.database.guarded():
            self._write(batch)
        self._written.append(batch)

    def _write(self, batch: Batch[object, object]) -> None:
        table = self.sink.table_of(batch.partition.topic)
        first = self._first_new(batch)
        runs = plan_uniform(batch, first, self.sink.shape)
        if runs is None:
            runs = plan_runs(batch.records[first:], self.sink.shape)
        for run in runs:
            # Before any row of the batch: a change of the table ends the transaction.
            self._fit_table(batch, table, run)
        for run in runs:
            self._write_run(table, run)

    def _first_new(self, batch: Batch[object, object]) -> int:
        """Return the index of the first record that the database does not have."""
        owned = self._owned.get(batch.partition)
        return 0 if owned is None else bisect_left(batch.offsets, owned.next_offset)

    def _write_run(self, table: str, run: Run) -> None:
        columns = self._tables[table]
        try:
            rows = fitting_rows(run.rows, run.columns, columns, self.database.engine.dialect)
        except BadRecord as error:
            # Which record it comes from is not known here; the runtime finds it by halves.
            raise ConnectError(f"table {table}, {error}") from error
        quoted = self.database.quoted(self.sink.schema or "", table)
        if self.sink.insert_mode == "upsert" and frozenset(run.keys) not in columns.unique:
            raise ConfigError(
                f"table {table} has no primary key or unique index on ({', '.join(run.keys)}), "
                "by which an upsert finds a row: create one, or set pk_fields"
            )
        try:
            if run.is_deletion:
                self.database.delete(quoted, run.columns, rows)
            elif self.sink.insert_mode == "upsert":
                self.database.upsert(quoted, run.columns, run.keys, rows)
            else:
                self.database.insert(quoted, run.columns, rows)
        except self.database.errors as error:
            if self.database.may_pass(error) or self.database.refuses(error):
                raise
            raise ConnectError(f"table {table}{self._where(error, table)}: {error}") from error
        except OverflowError as error:
            # Python's driver of SQLite refuses integers of more than 64 bits so.
            raise ConnectError(f"table {table}: {error}") from error

    def _where(self, error: Exception, table: str) -> str:
        """Return the column that an error is about, with its type, if the database tells it."""
        name = self.database.column_of(error)
        found = self._tables[table].types.get(name or "")
        if found is None:
            return ""
        return f", column {name} ({found.compile(dialect=self.database.engine.dialect)})"

    def _fit_table(self, batch: Batch[object, object], table: str, run: Run) -> None:
        """Change the table between two transactions, and write again what was rolled back.

        MariaDB commits at a change of a table, and a second connection would wait for the locks of
        this transaction. So the transaction ends here, and its batches are written once more.
        """
        if not self._tables.needed(batch, table, run):
            return
        self.database.rollback()
        self._tables.change(batch, table, run)
        self.database.begin()
        for each in self._written:
            self._write(each)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Write the next offsets and commit.

        Raises:
            Fenced: another task has taken over a partition.
        """
        m = self.database.mark
        with self.database.guarded():
            for partition, offset in sorted(offsets.items()):
                owned = self._owned.get(partition)
                cursor = self.database.execute(
                    f"UPDATE {self._offsets} SET next_offset = {m} "  # noqa: S608 - a quoted name
                    f"WHERE {self._here} AND epoch = {m}",
                    (offset, self.name, *partition, UNKNOWN if owned is None else owned.epoch),
                )
                # No row has this epoch: a successor has raised it.
                if cursor.rowcount <= 0:
                    raise Fenced(f"{self.name}: another task has taken over {partition}")
            self._is_confirmed = False
            self.database.commit()
        self._is_confirmed = True
        for partition, offset in offsets.items():
            self._owned[partition].next_offset = offset
        self._written.clear()

    def abort(self) -> None:
        """Roll back; close a connection that is broken or in doubt; `begin` makes another."""
        self._written.clear()
        try:
            if self.database.is_connected and self._is_confirmed:
                self.database.rollback()
                return
        except self.database.errors:
            # The server rolls back what a lost connection has begun.
            self._is_confirmed = False
        self.database.close()

    def reset(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Set the offsets in the database, or forget them where None."""
        m = self.database.mark
        self._reconnect()
        with self._or_closed(), self.database.guarded(), self.database.transaction():
            for partition, offset in sorted(offsets.items()):
                self._take(partition)
                self.database.execute(
                    f"UPDATE {self._offsets} SET next_offset = {m} WHERE {self._here}",  # noqa: S608 - a quoted name
                    (UNKNOWN if offset is None else offset, self.name, *partition),
                )
