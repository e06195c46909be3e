"""TableReader: polls one table or query of `SqlSource`, in calls that block.

Each page is a statement of its own, over the index of its order, so that no transaction stays open
while the log takes the rows. What a poll may see is bounded once at its start: by the database's
clock for times, by the settled number for an incrementing column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from types import NoneType
from typing import Final, TypeAlias

import sqlalchemy as sa

from streamlog.connect import Read, Schema, SourceOffset
from streamlog.connect.row_spans.json_rows import rows_within
from streamlog.connectors.sql import SqlSource
from streamlog.connectors.sql.column_values import ColumnReader, read_values, value_readers
from streamlog.connectors.sql.database import Database, open_database
from streamlog.connectors.sql.polling import (
    TIES_MAX,
    Polling,
    SettledBound,
    SettledValues,
    SqlText,
    is_at_start,
    json_of,
    run_of,
)
from streamlog.connectors.sql.table_columns import TableColumns, read_columns
from streamlog.durations import EPOCH, duration_ms, when_ms
from streamlog.errors import ConfigError
from streamlog.replace import replace
from streamlog.serdes.erased_types import UserKey
from streamlog.serdes.named_columns import NamedColumns

PAGE_CONTENT_MAX: Final = 2 * 1024 * 1024
"""How many characters and bytes a page may have: as JSON, they take up to six times as much, and a
Read has a limit of 16 MiB."""
FIRST_ROWS: Final = 100
"""The rows of the first page, after which it is known how wide rows are."""
GROWTH: Final = 8
"""By how much the next page may be longer than this one."""

_SHORT: Final = frozenset({NoneType, bool, int, float, Decimal, date, datetime, time})
"""What takes few characters."""

RowDict: TypeAlias = dict[str, object]
RowRead: TypeAlias = Read[UserKey, RowDict]


class TableReader:
    """Reads the pages of a table or query.

    Args:
        source: the settings.
        table: the table; "" for the query.
    """

    def __init__(self, source: SqlSource, table: str) -> None:
        self.source = source
        self.table = table
        self.database: Database = open_database(*source.login)
        self._settle_ms = duration_ms(source.settle)
        self._settled = SettledValues(self._settle_ms)
        self._columns: TableColumns | None = None
        self._schema: Schema | None = None
        self._readers: Mapping[str, ColumnReader] = {}
        self._bound: SettledBound | None = None
        self._is_polling = False

    def connect(self) -> None:
        """Connect, and read which columns the table has.

        Raises:
            ConfigError: the table does not exist.
        """
        with self.database.guarded():
            self.database.connect()
            self.database.commit_each()
            self._look_up()
        names = self.source.key_columns or (self._columns.primary_key if self._columns else ())
        self._key = tuple(names)
        if self.source.mode == "bulk" and not self._key:
            raise ConfigError(
                f"table {self.table} has no primary key to order its rows by in mode 'bulk': set "
                "key_columns"
            )
        source = self.source
        self._polling = Polling(
            source.mode,
            source.incrementing_column,
            source.timestamp_column,
            self._key,
            min(source.batch_rows, FIRST_ROWS),
        )
        self._sql = SqlText(self.database.quoted, self.database.mark)

    def close(self) -> None:
        """Close the connection."""
        self.database.close()

    def _look_up(self) -> None:
        if not self.table:
            return
        self._columns = read_columns(self.database, self.table, self.source.schema)
        if self._columns is None:
            raise ConfigError(f"table {self.table} does not exist")
        self._schema = self._columns.schema()
        self._readers = value_readers(self._schema)

    @property
    def _rows(self) -> str:
        if self.source.query is not None:
            query = self.source.query.strip().rstrip(";")
            return f"({self.database.verbatim(query)}) {self.database.quoted('streamlog_query')}"
        return self.database.quoted(self.source.schema or "", self.table)

    def next_read(self, offset: SourceOffset | None, now: datetime) -> tuple[RowRead, bool] | None:
        """Return the next page, and whether it ends the poll; None if there is nothing new.

        Args:
            offset: the offset behind the last page.
            now: the time of records that have none of their own.
        """
        with self.database.guarded():
            if not self._is_polling:
                self._bound = self._new_bound(now)
                self._is_polling = True
            # Without a value nothing has settled yet, not even the first row.
            if self._bound is not None and self._bound.value is None:
                rows, is_full = NamedColumns((), []), False
            else:
                rows, is_full = self._page(offset)
        # A poll keeps its bound over its pages, or rows between two pages would be skipped.
        self._is_polling = is_full
        if not rows:
            return self._end_of_run(offset)
        return self._read(rows, offset, now), not is_full and self.source.mode != "bulk"

    def _end_of_run(self, offset: SourceOffset | None) -> tuple[RowRead, bool] | None:
        if self.source.mode != "bulk" or is_at_start(offset):
            return None
        return Read([], {"run": run_of(offset) + 1, "after": None}), True

    def _page(self, offset: SourceOffset | None) -> tuple[NamedColumns, bool]:
        """Return the next rows, and whether there may be more of them in this poll."""
        page = self._polling.page(offset, self._bound, self._sql)
        found = self._fetch(page.statement(self._rows), page.values)
        rows = self._limited(found)
        count = len(rows)
        is_full = len(found) == page.limit or count < len(found)
        times = rows.column(self.source.timestamp_column)
        settled = count if times is None else self._polling.settled(times, is_full=is_full)
        if settled or not count:
            return rows if settled == count else rows[:settled], is_full
        # All rows of the page have one time: take everything of that time at once.
        tie = {"timestamp": json_of(rows[0][self.source.timestamp_column])}
        page = self._polling.page(tie, self._bound, self._sql, is_tie=True)
        rows = self._fetch(page.statement(self._rows), page.values)
        if len(rows) > TIES_MAX:
            raise ConfigError(
                f"more than {TIES_MAX} rows of {self.table or 'the query'} have the time "
                f"{tie['timestamp']}: use mode 'timestamp+incrementing'"
            )
        return rows, True

    def _limited(self, rows: NamedColumns) -> NamedColumns:
        """Return the first rows of a page, as many as one Read may have, at least one.

        The next page is as long as rows of this size allow: a database gives a page as a whole,
        and what is cut off would be read again.
        """
        count, content = rows_within(rows.rows, PAGE_CONTENT_MAX, _SHORT)
        fitting = count * PAGE_CONTENT_MAX // max(content, 1)
        limit = min(fitting, GROWTH * self._polling.limit, self.source.batch_rows)
        # A short page says nothing about the rows to come.
        if count == self._polling.limit or count < len(rows):
            self._polling = replace(self._polling, limit=max(1, limit))
        return rows if count == len(rows) else rows[:count]

    def _fetch(self, statement: str, values: Sequence[object]) -> NamedColumns:
        cursor = self.database.execute(statement, values)
        names = [each[0] for each in cursor.description or ()]
        # A column came or went: the schema of the Read has to say so.
        if self._columns is not None and tuple(names) != tuple(self._columns.types):
            self._look_up()
        return NamedColumns(names, [*cursor.fetchall()])

    def _new_bound(self, now: datetime) -> SettledBound | None:
        source = self.source
        if "timestamp" in source.mode:
            is_local = self._is_local(source.timestamp_column)
            value = self.database.now(self._settle_ms, is_local=is_local)
            column = self.database.comparable_time(self.database.quoted(source.timestamp_column))
            return SettledBound(column, "<", value)
        if source.mode != "incrementing" or not self._settle_ms:
            return None
        column = self.database.quoted(source.incrementing_column)
        statement = f"SELECT MAX({column}) FROM {self._rows}"  # noqa: S608 - quoted names
        highest = self.database.execute(statement).fetchall()[0][0]
        now_ms = int((now - EPOCH).total_seconds() * 1_000)
        return SettledBound(column, "<=", self._settled.saw(highest, now_ms))

    def _is_local(self, column: str) -> bool:
        found = None if self._columns is None else self._columns.types.get(column)
        return isinstance(found, sa.DateTime) and not found.timezone

    def _read(self, rows: NamedColumns, offset: SourceOffset | None, now: datetime) -> RowRead:
        # Before the values are read as their types: an offset is compared by the database.
        following = self._polling.offset_of(rows[-1], offset)
        rows = read_values(rows, self._readers)
        times = None
        if self.source.timestamp_column:
            column = rows.column(self.source.timestamp_column) or ()
            times = [when_ms(_time(value, now)) for value in column]
        return Read.columns(
            rows,
            following,
            keys=self._keys_of(rows),
            timestamps_ms=times,
            topic=self.table,
            schema=self._schema,
            key_schema=self._key_schema,
        )

    def _keys_of(self, rows: NamedColumns) -> Sequence[UserKey] | None:
        if not self._key:
            return None
        nothing = (None,) * len(rows)
        columns = {name: rows.column(name) or nothing for name in self._key}
        return columns[self._key[0]] if len(columns) == 1 else NamedColumns.of_columns(columns)

    @property
    def _key_schema(self) -> Schema | None:
        if self._schema is None or not self._key:
            return None
        fields = [each for name in self._key if (each := self._schema.field(name)) is not None]
        return fields[0].schema if len(self._key) == 1 else Schema("struct", fields=tuple(fields))


def _time(value: object, now: datetime) -> datetime:
    return value if isinstance(value, datetime) and value.tzinfo is not None else now
