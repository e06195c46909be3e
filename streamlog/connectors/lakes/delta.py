"""Delta: writes a topic to tables of Delta Lake, exactly once.

The two numbers of a partition are transaction identifiers of the Delta protocol (`txn`), each with
an application id of its own: the version of one is the next offset, that of the other the epoch. A
commit that has an application id is refused if another commit with that id came first, so a commit
with both is a compare-and-set, while writers of other partitions and OPTIMIZE pass each other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import ClassVar, Final
from urllib.parse import urlsplit

from streamlog.allowed_paths import check_path, check_paths_in
from streamlog.connect import (
    ConnectError,
    Effect,
    Flush,
    Refused,
    Retriable,
    Secret,
    Sink,
    SinkContext,
    SinkTask,
    TopicPartition,
)
from streamlog.connectors.lakes.lake_columns import plain_columns
from streamlog.connectors.lakes.lake_sink_task import (
    LAKE_FLUSH,
    CommitConflict,
    LakeSinkTask,
    Mark,
    check_lake_settings,
    with_secrets,
)
from streamlog.connectors.store_refusals import refusal
from streamlog.errors import ConfigError, StreamlogError
from streamlog.metrics.build_info import install_command
from streamlog.serdes.erased_types import UserObject

EXPIRY: Final = "delta.setTransactionRetentionDuration"
"""The table property after whose time transaction identifiers are forgotten."""
UNSAFE_OPTIONS: Final = frozenset({"aws_s3_allow_unsafe_rename", "allow_unsafe_rename"})
"""Options that let two commits make the same version, in lower case."""
_NOT_IN_NAMES: Final = frozenset(" ,;{}()\n\t=")
"""Characters that a column's name may not have, as Parquet's readers in Spark refuse them."""

_STORE_ERROR: Final = re.compile(r"\bGeneric \w+ error\b")
"""How the crate `object_store` begins errors of a store that name no other cause, such as a path
that does not exist or a login that is refused."""
_CAUSE: Final = re.compile(r"\s*(?:\x1b\[\d*m)*↳(?:\x1b\[\d*m)*\s*|\s*\n\s*")


class Delta(Sink[object, object], frozen=True, kw_only=True):
    """Appends the records of a topic to a table of Delta Lake, each once.

    The columns are the fields of the value (`value` if it has none), `_key`, `_timestamp`,
    `_offset` and `_partition`. Columns that the table lacks are added to it; a changed type is an
    error, unless the table's holds every value of it.

    Attributes:
        url: where the table is: a directory, or `s3://`, `gs://`, `az://`. `{topic}` stands for
            the topic's name; without it all topics of the sink go to one table.
        partition_by: the columns by which the files of a table that the sink creates are divided.
        auto_create: whether a missing table is created.
        auto_evolve: whether missing columns are added.
        options: settings of the store by deltalake's names, such as `AWS_REGION`.
        secrets: a JSON object of more such settings, which are secret.
        flush: when a commit is made; by default at 500,000 records, 64 MiB of keys and values, or
            after a minute.
    """

    effect: ClassVar[Effect] = "transactional"
    streams: ClassVar[bool] = True

    url: str
    partition_by: tuple[str, ...] = ()
    auto_create: bool = True
    auto_evolve: bool = True
    options: Mapping[str, str] = {}
    secrets: Secret | None = None
    flush: Flush = LAKE_FLUSH

    def check(self) -> None:
        """Raise ConfigError if a setting is wrong, or would give up the guarantee."""
        check_lake_settings("url", self.url, self.flush)
        if urlsplit(self.url).scheme in {"", "file"}:
            check_path("url", urlsplit(self.url).path.partition("{")[0])
        check_paths_in("options", self.options)
        unsafe = [name for name in self.options if name.lower() in UNSAFE_OPTIONS]
        if unsafe:
            raise ConfigError(
                f"options has {unsafe[0]}: two writers could make one version of the table, and "
                "records would be lost; leave it out, stores compare and set by themselves"
            )

    def open(self, context: SinkContext) -> SinkTask[object, object]:
        """Return a task that is not connected yet; it needs the extra `delta`.

        Raises:
            ConfigError: deltalake is not installed, or a secret is no JSON object.
        """
        self.check()
        try:
            lake = DeltaLake(self, context.name)
        except ImportError as error:
            needed = f"{type(self).__name__} needs an extra ({error})"
            raise ConfigError(f"{needed}: {install_command('delta')}") from error
        return LakeSinkTask(
            lake, context, auto_create=self.auto_create, auto_evolve=self.auto_evolve
        )


class DeltaLake:
    """`Lake` of Delta tables.

    Args:
        sink: the settings.
        name: the connector's name, a part of its application ids.
    """

    def __init__(self, sink: Delta, name: str) -> None:
        self.deltalake: UserObject = import_module("deltalake")
        self.errors: UserObject = import_module("deltalake.exceptions")
        self._pa: UserObject = import_module("pyarrow")
        self._sink, self.name = sink, name
        self._options = with_secrets(sink.options, sink.secrets)
        self._known: dict[str, UserObject] = {}
        """The tables that were loaded, which read on from their version."""

    def table_of(self, topic: str) -> str:
        """Return the URL of the table for a topic."""
        return self._sink.url.replace("{topic}", topic)

    def load(self, table: str) -> DeltaVersion | None:
        """Return the newest version of a table, or None if there is no such table.

        Raises:
            ConfigError: the table forgets transaction identifiers.
        """
        # Kept only when it was read without an error: a table may be deleted and made anew.
        found = self._known.pop(table, None)
        try:
            if found is None:
                found = self.deltalake.DeltaTable(table, storage_options=self._options)
            else:
                found.update_incremental()
        except self.errors.TableNotFoundError:
            return None
        except (OSError, self.errors.DeltaError) as error:
            raise _failure(table, "read", error) from error
        if EXPIRY in found.metadata().configuration:
            raise ConfigError(
                f"table {table} has the property {EXPIRY}: it would forget the sink's offsets; "
                "unset it"
            )
        self._known[table] = found
        return DeltaVersion(self, found)

    def create(self, table: str, columns: UserObject) -> None:
        """Create an empty table.

        Raises:
            ConfigError: `partition_by` names a column that the rows do not have, or a column has a
                name that Delta does not allow.
        """
        missing = [each for each in self._sink.partition_by if each not in columns.names]
        if missing:
            raise ConfigError(f"partition_by names {missing[0]!r}, which the rows do not have")
        check_names(table, columns)
        try:
            self.deltalake.DeltaTable.create(
                table,
                self.deltalake.Schema.from_arrow(columns),
                partition_by=[*self._sink.partition_by],
                storage_options=self._options,
            )
        except (OSError, self.errors.DeltaError) as error:
            # That another task was first has no class of its own; the table says it.
            if self.load(table) is None:
                raise _failure(table, "made", error) from error

    def stored(self, kind: UserObject) -> UserObject:
        """Return the Arrow type of a stored scalar."""
        # Delta has no times of the day. As ISO 8601 they sort as the times do.
        return self._pa.string() if self._pa.types.is_time(kind) else kind

    def close(self) -> None:
        """Forget the tables; deltalake keeps no connection."""
        self._known.clear()


class DeltaVersion:
    """`TableVersion` of a Delta table.

    Args:
        lake: its lake.
        table: the `DeltaTable`, which holds one version.
    """

    def __init__(self, lake: DeltaLake, table: UserObject) -> None:
        self._lake, self._table = lake, table
        pa: UserObject = import_module("pyarrow")
        self._columns = plain_columns(pa.schema(table.schema().to_arrow()))

    @property
    def columns(self) -> UserObject:
        """The table's columns."""
        return self._columns

    def mark(self, partition: TopicPartition) -> Mark | None:
        """Return what this version knows of a partition."""
        offset_id, epoch_id = self._app_ids(partition)
        epoch = self._table.transaction_version(epoch_id)
        if epoch is None:
            return None
        return Mark(self._table.transaction_version(offset_id), epoch)

    def _app_ids(self, partition: TopicPartition) -> tuple[str, str]:
        key = f"{self._lake.name}:{partition.topic}-{partition.partition}"
        return f"streamlog:{key}", f"streamlog-epoch:{key}"

    def commit(
        self, rows: UserObject | None, marks: Mapping[TopicPartition, Mark], *, is_wider: bool
    ) -> None:
        """Write rows and marks as the next version.

        Raises:
            CommitConflict: another commit has changed a mark, or the columns.
        """
        properties = self._properties(marks)
        if is_wider and rows is not None:
            check_names(self._table.table_uri, rows.schema)
        try:
            if rows is None:
                # `write_deltalake` makes no commit of an empty table.
                self._table.create_write_transaction(
                    [], "append", self._table.schema(), commit_properties=properties
                )
                return
            self._lake.deltalake.write_deltalake(
                self._table,
                rows,
                mode="append",
                schema_mode="merge" if is_wider else None,
                commit_properties=properties,
            )
        except self._lake.errors.CommitFailedError as error:
            raise CommitConflict(_reason(error)) from error
        except (OSError, self._lake.errors.DeltaError) as error:
            raise _failure(self._table.table_uri, "written", error) from error

    def _properties(self, marks: Mapping[TopicPartition, Mark]) -> UserObject:
        transaction = self._lake.deltalake.Transaction
        numbers: list[UserObject] = []
        for partition, mark in marks.items():
            for app_id, number in zip(self._app_ids(partition), mark, strict=True):
                # Without a time of its last update it never expires.
                numbers.append(transaction(app_id, number))
        return self._lake.deltalake.CommitProperties(app_transactions=numbers)


def check_names(table: str, columns: UserObject) -> None:
    """Refuse names of columns that Delta does not allow.

    Raises:
        ConfigError: a name has such a character.
    """
    for name in columns.names:
        if _NOT_IN_NAMES & set(name):
            raise ConfigError(
                f"table {table}: Delta allows no space and none of ,;{{}}()= in a column's name, "
                f"as in {name!r}; rename the field before the sink"
            )


def _failure(table: str, done: str, error: Exception) -> StreamlogError:
    why = _reason(error)
    # While it writes Parquet, deltalake raises its own error for a store that is away and for a
    # disk that is full; the text alone says that the store has refused, and not the table.
    if not (isinstance(error, OSError) or _STORE_ERROR.search(why)):
        return ConnectError(f"table {table} can't be {done}: {why}")
    # No record is at fault, so no policy of records may decide.
    if refused := refusal(why):
        return Refused(f"table {table} can't be {done}: {refused}")
    return Retriable(f"table {table} can't be {done}: {why}")


def _reason(error: Exception) -> str:
    """Return the causes that deltalake prints below each other, in one line."""
    return _CAUSE.sub(": ", str(error)).strip(": ") or type(error).__name__
