"""LakeSinkTask: a task of `Delta` or `Iceberg` at work.

Rows of a flush are in memory as Arrow columns, and become one commit of each table. A commit of
either format says which version of the table it is based on, and is refused if a newer version
conflicts with it. With the rows, a commit writes two numbers for each partition of the topic:

- the next offset. Rows below the table's offset are left out, so a flush that is written again
  after a lost answer adds nothing.
- the epoch, which `recover` raises by a commit of its own. A commit of an earlier owner is then
  either based on a version from before, and the format refuses it, or it reads the new epoch, and
  its task is fenced.

A table that does not exist can't hold an epoch, so a partition of it is taken over by the first
commit. Two tasks that believe they own it add no row twice even then: each leaves out what is below
the offset of the version that its commit is based on.

Not done here: the formats (`delta`, `iceberg`), and how columns follow rows (`lake_columns`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import import_module
from types import TracebackType
from typing import Final, NamedTuple, Protocol

from streamlog.connect import (
    Batch,
    ConnectError,
    Fenced,
    Flush,
    Retriable,
    Schema,
    Secret,
    SinkContext,
    SinkTask,
    TopicPartition,
)
from streamlog.connect.arrow_columns import batch_to_arrow, plain_array
from streamlog.connectors.lakes.lake_columns import (
    fitted_rows,
    merged_columns,
    schema_of_values,
    typed_rows,
)
from streamlog.errors import ConfigError
from streamlog.serdes.erased_types import UserObject

UNKNOWN: Final = -1
"""The next offset of a partition whose offset was never committed, or is forgotten."""
ATTEMPTS: Final = 10
"""How often a commit that another writer overtook is tried at once; then the runtime waits."""
FLUSH_BYTES_LIMIT: Final = 256 * 1024 * 1024
"""The largest `flush.size_bytes`: what a flush writes is in memory until then."""
LAKE_FLUSH: Final = Flush(records=500_000, size_bytes=64 * 1024 * 1024, every="1m")
"""When a flush is committed by default. Each commit makes small files, so it is seldom."""


class Mark(NamedTuple):
    """What a table knows of a partition of the topic."""

    next_offset: int
    """The offset before which the table has every record, or UNKNOWN."""
    epoch: int
    """How often the partition was taken over."""


class CommitConflict(ConnectError):
    """Another commit came first, and this one can't stand behind it as it is."""


class TableVersion(Protocol):
    """Port: a table as it was when it was loaded; what is committed is based on it."""

    @property
    def columns(self) -> UserObject:
        """The table's columns, as a `pyarrow.Schema`."""

    def mark(self, partition: TopicPartition) -> Mark | None:
        """Return what this version knows of a partition; None if nothing."""

    def commit(
        self, rows: UserObject | None, marks: Mapping[TopicPartition, Mark], *, is_wider: bool
    ) -> None:
        """Write rows and marks as the next version, in one step.

        Args:
            rows: a `pyarrow.Table` with the table's columns; None to write marks alone.
            marks: the marks by partition.
            is_wider: whether the rows have columns that the table gets with them.

        Raises:
            CommitConflict: the table has a newer version that this commit may not follow.
        """


class Lake(Protocol):
    """Port: the tables of a sink. Its calls block."""

    def table_of(self, topic: str) -> str:
        """Return the name of the table for a topic."""

    def load(self, table: str) -> TableVersion | None:
        """Return the newest version of a table, or None if there is no such table."""

    def create(self, table: str, columns: UserObject) -> None:
        """Create an empty table; one that another task creates meanwhile is no error."""

    def stored(self, kind: UserObject) -> UserObject:
        """Return the Arrow type that a scalar has in the format."""

    def close(self) -> None:
        """Close connections; a later call opens them again."""


def check_lake_settings(name: str, template: str, flush: Flush) -> None:
    """Refuse settings that both formats have, if they are wrong.

    Args:
        name: the setting that names the table.
        template: its value.
        flush: when to commit.

    Raises:
        ConfigError: the message names the setting.
    """
    if template.replace("{topic}", "").count("{") or not template:
        raise ConfigError(f"{name}={template!r}: write a name; {{topic}} is the only placeholder")
    if flush.size_bytes > FLUSH_BYTES_LIMIT:
        raise ConfigError(
            f"flush.size_bytes={flush.size_bytes} exceeds {FLUSH_BYTES_LIMIT}: a flush is in "
            "memory until it is committed"
        )


def with_secrets(plain: Mapping[str, str], secrets: Secret | None) -> dict[str, str]:
    """Return settings of a library, those from a secret JSON object included.

    Raises:
        ConfigError: the secret is no JSON object of texts.
    """
    if secrets is None:
        return dict(plain)
    try:
        found = json.loads(secrets.reveal())
    # Without the error's text and cause: they would show the secret.
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise ConfigError('secrets must be a JSON object of texts, such as {"token": "..."}')
    return {**plain, **found}


class LakeSinkTask(SinkTask[object, object]):
    """Commits rows and offsets together; see the module for what keeps other tasks out.

    Args:
        lake: the tables.
        context: the runtime.
        auto_create: whether a missing table is created.
        auto_evolve: whether missing columns are added.
    """

    def __init__(
        self, lake: Lake, context: SinkContext, *, auto_create: bool, auto_evolve: bool
    ) -> None:
        self._lake, self._context = lake, context
        self._auto_create, self._auto_evolve = auto_create, auto_evolve
        self._epochs: dict[TopicPartition, int | None] = {}
        """The epoch of each partition of this task; None: its table did not exist yet."""
        self._rows: dict[TopicPartition, list[UserObject]] = {}
        """The `pyarrow.Table`s of this flush."""
        self._columns: dict[str, UserObject] = {}
        """The columns of each table, with those that this flush will add."""

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Forget the rows, and close connections."""
        self._forget()
        await self._context.in_thread(self._lake.close)

    def _forget(self) -> None:
        self._rows.clear()
        self._columns.clear()

    async def recover(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the offsets in the tables, and raise the epochs, which fences earlier owners."""
        return await self._context.in_thread(self._recover, partitions)

    def _recover(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for table, of_table in self._by_table(partitions).items():
            taken = self._take(table, of_table, {})
            for partition in of_table:
                # Only what is committed is owned.
                self._epochs[partition] = taken[partition].epoch if partition in taken else None
            found |= {partition: mark.next_offset for partition, mark in taken.items()}
        return {partition: offset for partition, offset in found.items() if offset != UNKNOWN}

    def _by_table(self, partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
        tables: dict[str, list[TopicPartition]] = {}
        for partition in sorted(partitions):
            tables.setdefault(self._lake.table_of(partition.topic), []).append(partition)
        return tables

    def _take(
        self,
        table: str,
        partitions: Collection[TopicPartition],
        offsets: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, Mark]:
        """Raise epochs, and return the marks as they are then; empty if there is no table.

        Args:
            table: the table.
            partitions: the partitions.
            offsets: offsets to set; by default they stay.
        """
        for _ in range(ATTEMPTS):
            version = self._lake.load(table)
            if version is None:
                return {}
            marks: dict[TopicPartition, Mark] = {}
            for partition in partitions:
                known = version.mark(partition) or Mark(UNKNOWN, 0)
                marks[partition] = Mark(offsets.get(partition, known.next_offset), known.epoch + 1)
            try:
                version.commit(None, marks, is_wider=False)
            except CommitConflict:
                continue
            return marks
        raise _overtaken(table)

    async def begin(self) -> None:
        """Start without rows."""
        self._forget()

    async def write(self, batch: Batch[object, object]) -> None:
        """Turn records into rows.

        Raises:
            BadRecords: some records do not fit their schema.
            ConfigError: the table can't take the rows.
        """
        if len(batch):
            await self._context.in_thread(self._write, batch)

    def _write(self, batch: Batch[object, object]) -> None:
        table = self._lake.table_of(batch.partition.topic)
        if table not in self._columns:
            version = self._lake.load(table)
            self._columns[table] = None if version is None else version.columns
        rows = self._to_arrow(batch, self._columns[table])
        # Before the commit, so that an error comes with the records that cause it.
        self._columns[table] = merged_columns(
            self._columns[table], rows.schema, self._lake.stored, table
        )
        self._rows.setdefault(batch.partition, []).append(rows)

    def _to_arrow(self, batch: Batch[object, object], columns: UserObject | None) -> UserObject:
        """Return a batch as a `pyarrow.Table`, with a column for the partition."""
        pa: UserObject = import_module("pyarrow")
        values, schema = batch.values, batch.schema
        if schema is None and (rows := _plain_rows(values)) is not None:
            known = Schema("struct") if columns is None else Schema.of_arrow(columns)
            values, schema = typed_rows(rows, known)
        key_schema = batch.key_schema or schema_of_values(batch.keys)
        as_columns = batch_to_arrow(
            values,
            schema,
            keys=batch.keys,
            key_schema=key_schema,
            times=batch.times,
            offsets=batch.offsets,
        )
        found = pa.Table.from_batches([as_columns])
        if key_schema is None:
            # All keys are null, and whether later ones are text or bytes is not known yet.
            at = found.schema.get_field_index("_key")
            found = found.set_column(at, "_key", pa.nulls(len(found)))
        numbers = plain_array(pa, [batch.partition.partition] * len(found), Schema("int32"))
        return found.append_column("_partition", numbers)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit each table with its rows and next offsets.

        Raises:
            Fenced: another task has taken over a partition.
            Retriable: other writers overtook the commit again and again.
        """
        await self._context.in_thread(self._commit, offsets)
        self._forget()

    def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        # 1. The first of two tables is committed. 2. The second fails, and the flush is aborted.
        # 3. All of it is written again: of the first table's rows none is left then.
        for table, partitions in self._by_table(offsets).items():
            if not any(self._commit_table(table, partitions, offsets) for _ in range(ATTEMPTS)):
                raise _overtaken(table)

    def _commit_table(
        self,
        table: str,
        partitions: Collection[TopicPartition],
        offsets: Mapping[TopicPartition, int],
    ) -> bool:
        """Try a commit; returns False if it has to be tried again on a newer version."""
        version = self._lake.load(table)
        marks: dict[TopicPartition, Mark] = {}
        parts: list[UserObject] = []
        for partition in partitions:
            known = self._owned_mark(version, partition)
            marks[partition] = known._replace(
                next_offset=max(offsets[partition], known.next_offset)
            )
            parts += [_new_rows(each, known.next_offset) for each in self._rows.get(partition, ())]
        parts = [each for each in parts if len(each)]
        if not parts:
            # Offsets of records that were left out go along with the next rows.
            return True
        columns = merged_columns(
            None if version is None else version.columns, _joined(parts), self._lake.stored, table
        )
        if version is None:
            self._create(table, columns)
            return False
        is_wider = not columns.equals(version.columns)
        self._check_may_evolve(table, columns, version.columns, is_wider=is_wider)
        rows = _one_table([fitted_rows(each, columns, table) for each in parts])
        try:
            version.commit(rows, marks, is_wider=is_wider)
        except CommitConflict:
            return False
        self._epochs |= {partition: mark.epoch for partition, mark in marks.items()}
        self._context.count("rows", len(rows))
        return True

    def _owned_mark(self, version: TableVersion | None, partition: TopicPartition) -> Mark:
        """Return a partition's mark in a version, with the epoch of this task.

        Raises:
            Fenced: the version has an epoch of another task.
        """
        known = (None if version is None else version.mark(partition)) or Mark(UNKNOWN, 0)
        owned = self._epochs.get(partition, UNKNOWN)
        if owned is None:
            return known._replace(epoch=known.epoch + 1)
        if known.epoch != owned:
            raise Fenced(f"{self._context.name}: another task has taken over {partition}")
        return known

    def _create(self, table: str, columns: UserObject) -> None:
        if not self._auto_create:
            raise ConfigError(f"table {table} does not exist: create it, or set auto_create=True")
        self._lake.create(table, columns)

    def _check_may_evolve(
        self, table: str, columns: UserObject, known: UserObject, *, is_wider: bool
    ) -> None:
        if is_wider and not self._auto_evolve:
            names = [each.name for each in columns if known.get_field_index(each.name) < 0]
            what = f"columns {', '.join(names)}" if names else "fields within a column"
            raise ConfigError(
                f"table {table} lacks {what} of the rows: add them, or set auto_evolve=True"
            )

    async def abort(self) -> None:
        """Forget the rows."""
        self._forget()

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Forget the epochs of partitions."""
        for partition in partitions:
            self._epochs.pop(partition, None)

    async def reset(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        """Set the offsets in the tables."""
        await self._context.in_thread(self._reset, offsets)

    def _reset(self, offsets: Mapping[TopicPartition, int | None]) -> None:
        plain = {
            partition: UNKNOWN if each is None else each for partition, each in offsets.items()
        }
        for table, partitions in self._by_table(plain).items():
            self._take(table, partitions, plain)


def _plain_rows(values: Sequence[object]) -> list[Mapping[str, object] | None] | None:
    """Return values that are dicts or null as rows; None if there are others, or nulls alone."""
    rows = [each for each in values if each is None or isinstance(each, Mapping)]
    return rows if len(rows) == len(values) and any(each is not None for each in rows) else None


def _overtaken(table: str) -> Retriable:
    return Retriable(f"table {table}: other writers overtook {ATTEMPTS} attempts to commit")


def _new_rows(rows: UserObject, next_offset: int) -> UserObject:
    """Return the rows that a table does not have yet."""
    pc: UserObject = import_module("pyarrow.compute")
    offsets = rows.column("_offset")
    if not len(rows) or offsets[0].as_py() >= next_offset:
        return rows
    return rows.filter(pc.greater_equal(offsets, next_offset))


def _joined(parts: Collection[UserObject]) -> UserObject:
    """Return the columns of all parts, which `_write` has found to agree."""
    pa: UserObject = import_module("pyarrow")
    return pa.unify_schemas([each.schema for each in parts], promote_options="permissive")


def _one_table(parts: Collection[UserObject]) -> UserObject:
    pa: UserObject = import_module("pyarrow")
    return pa.concat_tables(parts)
