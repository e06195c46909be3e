"""Iceberg: writes a topic to tables of Apache Iceberg, exactly once.

The two numbers of a partition are properties of the table. A transaction of Iceberg sets them and
appends the rows, and the catalogue takes all of it or nothing.

Rule: every commit makes a snapshot, one without rows if only an epoch is raised. What a catalogue
compares is the newest snapshot: properties that were changed without one would be overwritten by a
commit that has not seen them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import ClassVar, Final

from streamlog.allowed_paths import OPTION, PathNotAllowed, is_allowed
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
from streamlog.errors import ConfigError
from streamlog.metrics.build_info import install_command
from streamlog.serdes.erased_types import UserObject

RETRIES: Final = "commit.retry.num-retries"
"""The table property that says how often a commit is repeated on a newer snapshot."""
_TRANSFORM: Final = re.compile(
    r"(?P<name>year|month|day|hour|bucket|truncate)\(\s*(?P<column>[^,()]+?)\s*"
    r"(,\s*(?P<number>[1-9]\d{0,8})\s*)?\)"
)
_COLUMN: Final = re.compile(r"[^,()\s][^,()]*")


class Iceberg(Sink[object, object], frozen=True, kw_only=True):
    """Appends the records of a topic to a table of Apache Iceberg, each once.

    The columns are the fields of the value (`value` if it has none), `_key`, `_timestamp`,
    `_offset` and `_partition`. Columns that the table lacks are added to it; a changed type is an
    error, unless the table's holds every value of it.

    Attributes:
        table: the table with its namespace, such as `shop.orders`. `{topic}` in the last part
            stands for the topic's name; without it all topics of the sink go to one table.
        catalog: the name of the catalogue. pyiceberg also looks up what its configuration file says
            of it.
        properties: settings of the catalogue and of the file store by pyiceberg's names: `type`,
            `uri`, `warehouse`, `s3.endpoint`.
        secrets: a JSON object of more such settings, which are secret: `token`, `credential`,
            `s3.secret-access-key`, a `uri` with a password.
        partition_by: how a table that the sink creates is partitioned: columns, or `year(column)`,
            `month`, `day`, `hour`, `bucket(column, 16)`, `truncate(column, 8)`.
        auto_create: whether a missing table, and its namespace, is created.
        auto_evolve: whether missing columns are added.
        flush: when a commit is made; by default at 500,000 records, 64 MiB of keys and values, or
            after a minute.
    """

    effect: ClassVar[Effect] = "transactional"
    streams: ClassVar[bool] = True

    table: str
    catalog: str = "default"
    properties: Mapping[str, str] = {}
    secrets: Secret | None = None
    partition_by: tuple[str, ...] = ()
    auto_create: bool = True
    auto_evolve: bool = True
    flush: Flush = LAKE_FLUSH

    def check(self) -> None:
        """Raise ConfigError if a setting is wrong."""
        check_lake_settings("table", self.table, self.flush)
        # The catalogue says where files are, and which classes read them.
        if not is_allowed("/"):
            raise PathNotAllowed(
                "catalog: a catalogue of Iceberg may name any file of this machine; start"
                f" `streamlog connect` with {OPTION} / to use it"
            )
        *namespace, name = self.table.split(".")
        if not all((*namespace, name)) or not namespace:
            raise ConfigError(f"table={self.table!r}: write NAMESPACE.NAME")
        # A topic's name has dots, which would be levels of a namespace.
        if any("{topic}" in each for each in namespace):
            raise ConfigError(f"table={self.table!r}: {{topic}} may stand in the last part only")
        for each in self.partition_by:
            parse_partition(each)

    def open(self, context: SinkContext) -> SinkTask[object, object]:
        """Return a task that is not connected yet; it needs the extra `iceberg`.

        Raises:
            ConfigError: pyiceberg is not installed, or a secret is no JSON object.
        """
        self.check()
        try:
            lake = IcebergLake(self, context.name)
        except ImportError as error:
            needed = f"{type(self).__name__} needs an extra ({error})"
            raise ConfigError(f"{needed}: {install_command('iceberg')}") from error
        return LakeSinkTask(
            lake, context, auto_create=self.auto_create, auto_evolve=self.auto_evolve
        )


def parse_partition(text: str) -> tuple[str, str]:
    """Return the column and the transform, as Iceberg writes it, of an entry of `partition_by`.

    Raises:
        ConfigError: it is neither a column nor a transform of one.
    """
    if _COLUMN.fullmatch(text):
        return text, "identity"
    found = _TRANSFORM.fullmatch(text)
    takes_number = found is not None and found["name"] in {"bucket", "truncate"}
    if found is None or takes_number is not bool(found["number"]):
        raise ConfigError(
            f"partition_by has {text!r}: write a column, year(column), month(column), day(column), "
            "hour(column), bucket(column, 16) or truncate(column, 8)"
        )
    number = f"[{found['number']}]" if takes_number else ""
    return found["column"], found["name"] + number


class IcebergLake:
    """`Lake` of Iceberg tables.

    Args:
        sink: the settings.
        name: the connector's name, a part of its properties' names.
    """

    def __init__(self, sink: Iceberg, name: str) -> None:
        self.errors: UserObject = import_module("pyiceberg.exceptions")
        self._pa: UserObject = import_module("pyarrow")
        self._load_catalog: UserObject = import_module("pyiceberg.catalog").load_catalog
        self._sink, self.name = sink, name
        self._properties = with_secrets(sink.properties, sink.secrets)
        self._opened: UserObject = None

    @property
    def _catalog(self) -> UserObject:
        # Not in the constructor: a REST catalogue is asked for its configuration here.
        if self._opened is None:
            try:
                self._opened = self._load_catalog(self._sink.catalog, **self._properties)
            except (ValueError, self.errors.NotInstalledError) as error:
                raise ConfigError(
                    f"catalog {self._sink.catalog!r} can't be opened: {_first_line(error)}"
                ) from None
        return self._opened

    def table_of(self, topic: str) -> str:
        """Return the name of the table for a topic."""
        return self._sink.table.replace("{topic}", topic)

    def _identifier(self, table: str) -> tuple[str, ...]:
        # Not by the dots of the whole name: those of a topic are no levels.
        namespace = self._sink.table.rpartition(".")[0]
        return (*namespace.split("."), table[len(namespace) + 1 :])

    @contextmanager
    def guarded(self, table: str) -> Iterator[None]:
        """Turn errors of the catalogue and the files into those of the runtime."""
        errors = self.errors
        passing = (
            errors.CommitStateUnknownException,
            errors.ServerError,
            errors.ServiceUnavailableError,
            *self._database_errors(),
        )
        try:
            yield
        except errors.CommitFailedException as error:
            raise CommitConflict(_first_line(error)) from error
        except (*passing, OSError) as error:
            why = f"{type(error).__name__}: {_first_line(error)}"
            # Files of a store, or a catalogue behind HTTP; no record is at fault.
            if isinstance(error, OSError) and (refused := refusal(why)):
                raise Refused(f"table {table}: {refused}") from error
            raise Retriable(f"table {table}: {why}") from error
        except (errors.ForbiddenError, errors.UnauthorizedError) as error:
            raise Refused(
                f"table {table}: the catalogue refuses: {_first_line(error)}; look at `token` and "
                "`credential` of secrets"
            ) from error
        except (errors.RESTError, errors.ValidationError, ValueError) as error:
            why = f"{type(error).__name__}: {_first_line(error)}"
            raise ConnectError(f"table {table}: {why}") from error

    @staticmethod
    def _database_errors() -> tuple[type[Exception], ...]:
        # Of a catalogue in a database: it can't be reached, is locked, or another task has just
        # made the same namespace, for which pyiceberg has no error of its own.
        try:
            found: UserObject = import_module("sqlalchemy.exc")
        except ImportError:
            return ()
        return (found.OperationalError, found.InterfaceError, found.IntegrityError)

    def load(self, table: str) -> IcebergVersion | None:
        """Return the newest version of a table, or None if there is no such table."""
        with self.guarded(table):
            try:
                found = self._catalog.load_table(self._identifier(table))
            except self.errors.NoSuchTableError:
                return None
        return IcebergVersion(self, table, found)

    def create(self, table: str, columns: UserObject) -> None:
        """Create an empty table, and its namespace if it is missing.

        Raises:
            ConfigError: `partition_by` names a column that the rows do not have.
        """
        parse_transform: UserObject = import_module("pyiceberg.transforms").parse_transform
        identifier = self._identifier(table)
        parts = [parse_partition(each) for each in self._sink.partition_by]
        missing = [column for column, _ in parts if column not in columns.names]
        if missing:
            raise ConfigError(f"partition_by names {missing[0]!r}, which the rows do not have")
        with self.guarded(table):
            self._catalog.create_namespace_if_not_exists(identifier[:-1])
            # Another task was first; if it was not, the next commit finds no table and tries again.
            with (
                suppress(self.errors.TableAlreadyExistsError, self.errors.CommitFailedException),
                # One step: a table whose partitions come later would have files without them.
                self._catalog.create_table_transaction(identifier, columns) as transaction,
                transaction.update_spec() as spec,
            ):
                for column, transform in parts:
                    spec.add_field(column, parse_transform(transform), None)

    def stored(self, kind: UserObject) -> UserObject:
        """Return the Arrow type of a stored scalar."""
        # Iceberg has integers of 32 and 64 bits alone.
        is_small = self._pa.types.is_int8(kind) or self._pa.types.is_int16(kind)
        return self._pa.int32() if is_small else kind

    def close(self) -> None:
        """Close the catalogue's connections."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()


class IcebergVersion:
    """`TableVersion` of an Iceberg table.

    Args:
        lake: its lake.
        name: the table's name, for errors.
        table: the `pyiceberg.table.Table`, which holds one version.
    """

    def __init__(self, lake: IcebergLake, name: str, table: UserObject) -> None:
        self._lake, self._name, self._table = lake, name, table
        schemas: UserObject = import_module("pyiceberg.io.pyarrow")
        self._columns = plain_columns(
            schemas.schema_to_pyarrow(table.schema(), include_field_ids=False)
        )

    @property
    def columns(self) -> UserObject:
        """The table's columns."""
        return self._columns

    def mark(self, partition: TopicPartition) -> Mark | None:
        """Return what this version knows of a partition."""
        offset_name, epoch_name = self._property_names(partition)
        epoch = self._table.properties.get(epoch_name)
        if epoch is None:
            return None
        return Mark(int(self._table.properties[offset_name]), int(epoch))

    def _property_names(self, partition: TopicPartition) -> tuple[str, str]:
        key = f"{self._lake.name}.{partition.topic}-{partition.partition}"
        return f"streamlog.offset.{key}", f"streamlog.epoch.{key}"

    def commit(
        self, rows: UserObject | None, marks: Mapping[TopicPartition, Mark], *, is_wider: bool
    ) -> None:
        """Append rows and set marks in one snapshot.

        Raises:
            CommitConflict: the table has a newer snapshot.
        """
        properties: dict[str, str] = {}
        for partition, mark in marks.items():
            names = self._property_names(partition)
            properties |= zip(names, map(str, mark), strict=True)
        given = self._columns.empty_table() if rows is None else rows
        with self._lake.guarded(self._name), self._transaction() as transaction:
            if is_wider:
                with transaction.update_schema() as schema:
                    schema.union_by_name(given.schema)
            transaction.set_properties(properties)
            # Without rows as well: see the rule of the module.
            transaction.append(given)

    def _transaction(self) -> UserObject:
        # 1. A commit is refused, since a snapshot came first. 2. pyiceberg puts its rows and
        # properties on that snapshot, and commits. 3. The same rows may be in it already. So it
        # must not repeat; only this copy of the properties says so, and other writers still may.
        table = self._table
        table.metadata = table.metadata.model_copy(
            update={"properties": {**table.metadata.properties, RETRIES: "0"}}
        )
        return table.transaction()


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
