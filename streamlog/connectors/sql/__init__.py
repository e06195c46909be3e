"""SQL: tables of PostgreSQL, MariaDB, MySQL and SQLite, read by polling and written exactly once.

`SqlSource` reads tables or a query by a column that rises. `SqlSink` writes a topic into a table,
rows and offsets in one transaction: a table `streamlog_offsets` has, for each partition of a topic,
the next offset and an epoch. A task that takes a partition over raises the epoch; the transaction
of an earlier owner compares it at its end, finds another, and rolls back. Both connectors take the
settings of Kafka Connect's JDBC connectors, with `_` for `.`.

Rule of the room: settings, queries and the order of changes are pure; `database` alone talks to a
driver. SQLAlchemy and the drivers (the extra `sql`) are imported when a task opens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal
from urllib.parse import urlsplit

from streamlog.allowed_paths import check_path
from streamlog.connect import (
    Effect,
    Flush,
    Read,
    Secret,
    Sink,
    SinkContext,
    SinkTask,
    Source,
    SourceContext,
    SourceOffset,
    SourcePartition,
)
from streamlog.connectors.client_tls import check_url_options
from streamlog.connectors.sql.database_url import check_names, dialect_of, plain_url, user_of
from streamlog.connectors.sql.polling import Mode
from streamlog.connectors.sql.row_changes import PkMode, RowShape
from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError
from streamlog.metrics.build_info import install_command
from streamlog.serdes.erased_types import UserKey

if TYPE_CHECKING:
    from streamlog.connectors.sql.table_reader import RowRead, TableReader

__all__ = ["SqlSink", "SqlSource"]

OFFSETS_TABLE = "streamlog_offsets"
PAGE_ROWS = 2_000
QUERY_PART = "query"


class SqlSink(Sink[object, object], frozen=True, kw_only=True):
    """Writes a topic into a table: a row for each record, or one for each key.

    A value's fields are the columns; a value without fields goes into `value`, with `_key` and
    `_timestamp` beside it.

    Attributes:
        url: the database, as `postgresql://host/name`, `mariadb://host/name`, `sqlite:///file.db`,
            or a JDBC URL; without a password.
        user: the user of the database.
        password: its password.
        table: the table's name; `{topic}` stands for the topic.
        schema: the database's schema that has the table; its default by default.
        insert_mode: "insert" adds a row for each record; "upsert" replaces the row of its key.
        pk_mode: where the key comes from: "record_key", "record_value", "kafka" (topic, partition
            and offset), or "none".
        pk_fields: the columns of the key; all fields of the record's key by default.
        delete_enabled: whether a record without a value deletes the row of its key.
        auto_create: whether a table that is missing is created.
        auto_evolve: whether columns that are missing are added.
        offsets_table: the table of offsets and epochs.
    """

    effect: ClassVar[Effect] = "transactional"

    url: str
    user: str | None = None
    password: Secret | None = None
    table: str = "{topic}"
    schema: str | None = None
    insert_mode: Literal["insert", "upsert"] = "insert"
    pk_mode: PkMode = "none"
    pk_fields: tuple[str, ...] = ()
    delete_enabled: bool = False
    auto_create: bool = False
    auto_evolve: bool = False
    offsets_table: str = OFFSETS_TABLE
    flush: Flush = Flush()

    @property
    def shape(self) -> RowShape:
        """How records become rows."""
        return RowShape(
            self.pk_mode, self.pk_fields, self.delete_enabled, self.insert_mode == "upsert"
        )

    def check(self) -> None:
        """Refuse settings that do not go together.

        Raises:
            ConfigError: the message names the settings, and what to write instead.
        """
        _check_files(plain_url(self.url))
        check_names("pk_fields", self.pk_fields)
        check_names("table", [self.table])
        check_names("offsets_table", [self.offsets_table])
        if self.insert_mode == "upsert" and self.pk_mode == "none":
            raise ConfigError(
                "insert_mode='upsert' needs a key: set pk_mode to 'record_key' or 'record_value'"
            )
        if self.delete_enabled and self.pk_mode != "record_key":
            raise ConfigError(
                "delete_enabled needs pk_mode='record_key': a record without a value has only a key"
            )
        if self.pk_mode == "record_value" and not self.pk_fields:
            raise ConfigError("pk_mode='record_value' needs pk_fields, the columns of the key")
        if self.pk_mode == "kafka" and len(self.pk_fields) not in {0, 3}:
            raise ConfigError(
                "pk_mode='kafka' takes three pk_fields, for topic, partition and offset, or none"
            )

    def table_of(self, topic: str) -> str:
        """Return the name of the table for a topic."""
        return self.table.replace("{topic}", topic)

    def open(self, context: SinkContext) -> SinkTask[object, object]:
        """Return a task that is not connected yet; it needs the extra `sql`."""
        try:
            from streamlog.connectors.sql import sql_sink_task  # noqa: PLC0415 - needs SQLAlchemy
        except ImportError as error:
            needed = f"{type(self).__name__} needs an extra ({error})"
            raise ConfigError(f"{needed}: {install_command('sql')}") from error
        self.check()
        return sql_sink_task.SqlSinkTask(self, context)

    @property
    def login(self) -> tuple[str, str | None, Secret | None]:
        """The URL as SQLAlchemy reads it, the user, and the password."""
        return plain_url(self.url), self.user or user_of(self.url), self.password


class SqlSource(Source[UserKey, dict[str, object]], frozen=True, kw_only=True):
    """Reads the rows of tables, or of a query, as they come or change, each once.

    Exactly once holds for rows that commit in the order of the column that the mode follows. Where
    transactions overlap, `settle` waits until a time or number is old enough; a transaction that
    stays open longer than that is missed, and so is every deletion.

    A value is a row as a dict. Its key is the primary key: the value of one column, or a dict of
    several. The connector's own name of the topic is the table.

    Attributes:
        url: the database, as `postgresql://host/name`, `mariadb://host/name`, `sqlite:///file.db`,
            or a JDBC URL; without a password.
        user: the user of the database.
        password: its password.
        tables: the tables to read, each a part of its own.
        query: a SELECT to read instead, without ORDER BY or LIMIT.
        schema: the database's schema that has the tables; its default by default.
        mode: how new rows are found: "incrementing", "timestamp", "timestamp+incrementing", or
            "bulk", which reads all rows at every poll.
        incrementing_column: the column that rises with new rows.
        timestamp_column: the column with the time of the last change.
        key_columns: the columns of a record's key; the table's primary key by default.
        poll: how long to wait after a poll that found nothing more.
        settle: how old a time or number has to be before it is read.
        batch_rows: how many rows a page has at most, 1 to 100,000.
    """

    url: str
    user: str | None = None
    password: Secret | None = None
    tables: tuple[str, ...] = ()
    query: str | None = None
    schema: str | None = None
    mode: Mode = "bulk"
    incrementing_column: str = ""
    timestamp_column: str = ""
    key_columns: tuple[str, ...] = ()
    poll: Dur = "5s"
    settle: Dur = "0s"
    batch_rows: int = PAGE_ROWS

    def check(self) -> None:
        """Refuse settings that do not go together.

        Raises:
            ConfigError: the message names the settings, and what to write instead.
        """
        _check_files(plain_url(self.url))
        check_names("tables", self.tables)
        check_names("key_columns", self.key_columns)
        # A query has no name that could be a table's, so the two can't share a part.
        if bool(self.tables) == (self.query is not None):
            raise ConfigError("set either tables or query")
        if self.query is not None and self.mode == "bulk" and not self.key_columns:
            raise ConfigError("mode='bulk' over a query needs key_columns, which order its rows")
        for column, name in (
            (self.incrementing_column, "incrementing"),
            (self.timestamp_column, "timestamp"),
        ):
            # The name of a mode holds the names of the columns that it follows.
            if (name in self.mode) is not bool(column):
                verb = "needs" if name in self.mode else "does not use"
                raise ConfigError(f"mode={self.mode!r} {verb} {name}_column")
        if not 1 <= self.batch_rows <= 100_000:  # noqa: PLR2004 - as documented
            raise ConfigError(f"batch_rows is {self.batch_rows}: write 1 to 100,000")
        if duration_ms(self.poll) == 0:
            raise ConfigError("poll is 0: the database would be asked without a pause")
        if self.mode == "bulk" and duration_ms(self.settle):
            raise ConfigError("mode='bulk' does not use settle")

    @property
    def login(self) -> tuple[str, str | None, Secret | None]:
        """The URL as SQLAlchemy reads it, the user, and the password."""
        return plain_url(self.url), self.user or user_of(self.url), self.password

    def topic_names(self) -> Sequence[str]:
        """Return the tables."""
        return self.tables

    async def partitions(self, context: SourceContext) -> Sequence[SourcePartition]:
        """Return a part for each table, or one for the query."""
        del context
        if self.query is not None:
            return [{QUERY_PART: "1"}]
        return [{"table": each} for each in self.tables]

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[UserKey, dict[str, object]]]:
        """Yield the rows behind an offset, page by page, and poll again at the end.

        Raises:
            Retriable: the database can't be reached.
            ConfigError: a table or column is missing.
        """
        reader = self._reader(partition)
        reading: asyncio.Task[tuple[RowRead, bool] | None] | None = None
        try:
            await context.in_thread(reader.connect)
            while True:
                reading = reading or _begin(reader, offset, context)
                found, reading = await reading, None
                if found is None:
                    await context.sleep(self.poll)
                    continue
                read, is_end = found
                offset = read.offset
                if not is_end:
                    # The database works while this page is written. The call has to reach the
                    # thread first: the loop gets its turn only when the next page is wanted.
                    reading = _begin(reader, offset, context)
                    await asyncio.sleep(0)
                yield read
                if is_end:
                    await context.sleep(self.poll)
        finally:
            if reading is not None:
                await asyncio.wait([reading])
                if not reading.cancelled():
                    reading.exception()  # Looked at: the next reader reads this page again.
            await context.in_thread(reader.close)

    def _reader(self, partition: Mapping[str, object]) -> TableReader:
        try:
            from streamlog.connectors.sql.table_reader import (  # noqa: PLC0415 - needs SQLAlchemy
                TableReader,
            )
        except ImportError as error:
            needed = f"{type(self).__name__} needs an extra ({error})"
            raise ConfigError(f"{needed}: {install_command('sql')}") from error
        self.check()
        return TableReader(self, str(partition.get("table", "")))


def _begin(
    reader: TableReader, offset: SourceOffset | None, context: SourceContext
) -> asyncio.Task[tuple[RowRead, bool] | None]:
    """Begin to read a page; of no group, as a generator can't hold one open over its yields."""
    reading = context.in_thread(reader.next_read, offset, context.now())
    return asyncio.get_running_loop().create_task(reading, name="page of rows")


def _check_files(url: str) -> None:
    """Refuse a URL that leads to files which connectors may not use, itself or by an option.

    Raises:
        PathNotAllowed: it does.
    """
    if dialect_of(url) == "sqlite":
        # Behind the slash that ends the host: sqlite:///relative, sqlite:////absolute.
        check_path("url", urlsplit(url).path[1:].removeprefix("file:") or "/")
    check_url_options(url)
