"""Database: one connection to a database, with what differs between PostgreSQL, MariaDB and SQLite.

SQLAlchemy makes the connection and knows the tables; statements over rows go to the driver itself,
because a row costs less there. PostgreSQL takes rows by COPY.

Rule: everything here blocks, so it runs in the thread of a task. Names of tables and columns are
quoted; values are always parameters, never text of a statement.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import sqlalchemy
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.pool import NullPool

from streamlog.allowed_paths import check_path, is_allowed
from streamlog.connect import Refused, Retriable, Secret
from streamlog.connectors.sql.database_url import dialect_of
from streamlog.errors import ConfigError
from streamlog.serdes.erased_types import UserObject

Row: TypeAlias = tuple[object, ...]

IDLE_SECONDS = 30
"""How long a transaction may stand between two statements before PostgreSQL ends it. A writer that
was stopped there lets go of the row in the table of offsets that its successor waits for."""
LOCK_SECONDS = 60
"""How long a statement waits for a lock, twice what an idle transaction may hold it."""
FETCH_ROWS = 10_000


def one_line(error: BaseException) -> str:
    """Return what a database says; PostgreSQL adds the statement, with a mark below the place."""
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip(" ^"))


class Database(ABC):
    """A connection to a database, opened by `connect` and closed by `close`.

    Args:
        engine: SQLAlchemy's engine, without a pool.
    """

    mark: str
    """How the driver writes a parameter."""
    _column_named: re.Pattern[str]
    """Finds the column in the text of an error."""
    name_type = "VARCHAR(255)"
    """The type of a column of names, which differ if their letters do in any way."""
    can_alter = True
    """Whether the database alters the type of a column, and lets it be null."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._driver: UserObject = engine.dialect.dbapi
        self._connection: UserObject = None

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection, sound or not."""
        return self._connection is not None

    @property
    def integrity_error(self) -> type[Exception]:
        """The driver's error of a key that exists already."""
        found: type[Exception] = self._driver.IntegrityError
        return found

    def exists_already(self, error: BaseException) -> bool:
        """Whether something was not created since it is there."""
        return isinstance(error, self.integrity_error)

    @property
    def errors(self) -> type[Exception]:
        """The base of the driver's errors."""
        found: type[Exception] = self._driver.Error
        return found

    def connect(self) -> None:
        """Open the connection."""
        self._connection = self.engine.raw_connection()
        self.prepare()

    def close(self) -> None:
        """Close the connection, whatever state it is in; without one, do nothing."""
        connection, self._connection = self._connection, None
        if connection is not None:
            # `close` would roll back first, and wait for a server that does not answer.
            with contextlib.suppress(self.errors, sqlalchemy.exc.SQLAlchemyError):
                connection.invalidate()

    def prepare(self) -> None:  # noqa: B027 - some need nothing
        """Set up a new connection."""

    @property
    def connection(self) -> UserObject:
        """The driver's own connection."""
        return self._connection.driver_connection

    def begin(self) -> None:  # noqa: B027 - psycopg begins by itself
        """Start a transaction."""

    def commit(self) -> None:
        """Commit the transaction."""
        self.connection.commit()

    def rollback(self) -> None:
        """Roll the transaction back; without one, do nothing."""
        self.connection.rollback()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what the block does, or roll it back if it fails."""
        self.begin()
        try:
            yield
        except BaseException:
            with contextlib.suppress(self.errors):
                self.rollback()
            raise
        self.commit()

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn errors of the block in which no row is at fault into those of the port.

        Raises:
            Retriable: the error may pass, such as a lost connection.
            Refused: a login, a right, a table or a column is wrong or missing.
        """
        try:
            yield
        except self.errors as error:
            if self.refuses(error):
                raise Refused(self._refusal(error)) from error
            if self.may_pass(error):
                raise Retriable(f"the database: {str(error).strip()}") from error
            raise
        except sqlalchemy.exc.DBAPIError as error:
            # Of connecting, or of looking at tables: no statement with rows goes this way.
            cause = error.orig or error
            if self.may_pass(cause) and not self.refuses(cause):
                raise Retriable(f"the database: {str(cause).strip()}") from error
            raise Refused(self._refusal(cause)) from error

    def _refusal(self, error: BaseException) -> str:
        return (
            f"the database refuses: {one_line(error)}; look at url, user and password, at the "
            "user's rights, and at the tables"
        )

    def commit_each(self) -> None:  # noqa: B027 - SQLite's driver does
        """Make each statement a transaction of its own, so that a reader leaves none open."""

    @abstractmethod
    def now(self, settle_ms: int, *, is_local: bool) -> object:
        """Return the database's time some milliseconds ago, as `comparable_time` is compared with.

        Args:
            settle_ms: how many milliseconds ago.
            is_local: whether the column has no time zone; it is taken as UTC.
        """

    def comparable_time(self, column: str) -> str:
        """Return the expression by which a column of times is compared with `now`."""
        return column

    @abstractmethod
    def may_pass(self, error: BaseException) -> bool:
        """Whether the same statement may succeed later: the error is not the record's fault."""

    @abstractmethod
    def refuses(self, error: BaseException) -> bool:
        """Whether every row would meet the error until an operator changes something.

        A login, a right, a table or a column is wrong or missing. It is asked before `may_pass`.
        """

    def column_of(self, error: BaseException) -> str | None:
        """Return the column that an error names, or None."""
        found = self._column_named.search(str(error))
        return None if found is None else next(filter(None, found.groups()), None)

    def nullable_statement(self, table: str, column: str) -> str:
        """Return the statement that lets a column be null, where the database has one.

        Args:
            table: its quoted name.
            column: the column's name, not quoted.
        """
        raise ConfigError(f"column {column} of table {table} can't be altered here")

    def widening_statement(self, table: str, column: str, kind: str) -> str:
        """Return the statement that gives a column another type, where the database has one.

        Args:
            table: its quoted name.
            column: the column's name, not quoted.
            kind: the type.
        """
        raise ConfigError(f"column {column} of table {table} can't be made {kind} here")

    def execute(self, statement: str, values: Sequence[object] = ()) -> DBAPICursor:
        """Run a statement, and return its cursor; its parameters stand as `self.mark`."""
        cursor: DBAPICursor = self.connection.cursor()
        cursor.execute(statement, tuple(values))
        return cursor

    def execute_many(self, statement: str, rows: Sequence[Row]) -> None:
        """Run a statement for each row of parameters."""
        self.connection.cursor().executemany(statement, rows)

    def verbatim(self, text: str) -> str:
        """Return SQL of the user's for a statement with parameters."""
        return text if self.mark == "?" else text.replace("%", "%%")

    def quoted(self, *names: str) -> str:
        """Return a name for a statement: `quoted("public", "orders")` is "public"."orders".

        A `%` in it is doubled where the driver's parameters begin with one.
        """
        quote = self.engine.dialect.identifier_preparer.quote_identifier
        return ".".join(quote(name) for name in names if name)

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Insert rows into a table.

        Args:
            table: its quoted name.
            columns: the names of the columns, not quoted.
            rows: a value for each column, as `table_columns` has adapted it.
        """
        self.execute_many(self.insert_statement(table, columns), rows)

    @abstractmethod
    def upsert(
        self, table: str, columns: Sequence[str], keys: Sequence[str], rows: Sequence[Row]
    ) -> None:
        """Insert rows, or update the row that has the key. No two rows have one key."""

    def delete(self, table: str, keys: Sequence[str], rows: Sequence[Row]) -> None:
        """Delete the rows with these keys."""
        where = " AND ".join(f"{self.quoted(key)} = {self.mark}" for key in keys)
        self.execute_many(f"DELETE FROM {table} WHERE {where}", rows)  # noqa: S608 - quoted names

    def insert_statement(self, table: str, columns: Sequence[str]) -> str:
        """Return the statement that inserts one row."""
        names = ", ".join(self.quoted(each) for each in columns)
        marks = ", ".join([self.mark] * len(columns))
        # Not one statement of many rows: a driver packs them better than its caller.
        return f"INSERT INTO {table} ({names}) VALUES ({marks})"  # noqa: S608 - quoted names


class PostgresDatabase(Database):
    """PostgreSQL by psycopg 3: rows go by COPY, upserts through a temporary table."""

    mark = "%s"
    _PASSING: Final = ("08", "40", "53", "55", "57", "58", "25006", "25P03")
    """Classes of SQLSTATE: connection, rollback (deadlock), resources, locks, operator, system; and
    of 25, a server that is read-only, such as a standby, and a transaction that was idle too long.
    """
    _REFUSING: Final = ("0A", "28", "3D", "3F", "42")
    """Classes of SQLSTATE: what a table does not support, login, database, schema; rights and names
    of what the statement is about."""
    _EXISTING: Final = ("42P07", "42710")
    """Of a table that exists already, and of its type."""
    _OTHER_ROUTINES: Final = frozenset({"ExecWithCheckOptions", "RevalidateCachedQuery"})
    """Routines of the server that use codes of these classes for a row that its policy refuses (row
    level security), and for a statement that was prepared before its table was changed."""
    _CONNECTION_REFUSED: Final = re.compile(
        r"authentication failed|no password supplied|no pg_hba\.conf entry|pg_hba\.conf rejects"
        r'|FATAL:  (?:role|database) "[^"]*" does not exist|is not permitted to log in'
        r"|permission denied for database|no such (?:user|database)"
    )
    """Texts of a connection that is refused for good; libpq gives no SQLSTATE there. A server whose
    messages are in another language is tried again instead."""
    _column_named = re.compile(
        r'^CONTEXT:  COPY .+, line \d+, column (.+?): |^null value in column "(.+)" of relation',
        re.MULTILINE,
    )

    def prepare(self) -> None:
        """Bound how long a transaction may hold locks between two statements."""
        self._staged: dict[tuple[str, tuple[str, ...]], str] = {}
        self._filled: set[str] = set()
        """Temporary tables that have rows of this transaction."""
        self.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'")
        self.execute(f"SET lock_timeout = '{LOCK_SECONDS}s'")
        # A crash would take back commits, and with them the epoch of this task.
        self.execute(
            "SELECT set_config('synchronous_commit', 'on', false) "
            "WHERE current_setting('synchronous_commit') = 'off'"
        )
        self.connection.commit()

    def commit_each(self) -> None:
        """Switch psycopg's own transactions off."""
        self.connection.autocommit = True

    def now(self, settle_ms: int, *, is_local: bool) -> object:
        """Return the time of the server."""
        zone = " AT TIME ZONE 'UTC'" if is_local else ""
        query = f"SELECT (clock_timestamp() - interval '{settle_ms} ms'){zone}"
        return self.execute(query).fetchall()[0][0]

    def may_pass(self, error: BaseException) -> bool:
        """Decide by the SQLSTATE; an error without one is a lost connection."""
        # psycopg has one class for "too many connections" and for "the row is too large".
        if not isinstance(error, (self._driver.OperationalError, self._driver.InternalError)):
            return isinstance(error, self._driver.InterfaceError)
        state: str | None = getattr(error, "sqlstate", None)
        return state is None or state.startswith(self._PASSING)

    def refuses(self, error: BaseException) -> bool:
        """Decide by the SQLSTATE; an error without one is of the connection."""
        state: str | None = getattr(error, "sqlstate", None)
        if state is None:
            return self._CONNECTION_REFUSED.search(str(error)) is not None
        diagnosis: UserObject = getattr(error, "diag", None)
        routine = getattr(diagnosis, "source_function", None)
        return state.startswith(self._REFUSING) and routine not in self._OTHER_ROUTINES

    def exists_already(self, error: BaseException) -> bool:
        """Decide by the SQLSTATE: which it is depends on when the other session commits."""
        # Before the catalogue is looked at, between that and the row of the catalogue, or after.
        return super().exists_already(error) or getattr(error, "sqlstate", "") in self._EXISTING

    def nullable_statement(self, table: str, column: str) -> str:
        """Return the statement that lets a column be null."""
        return f"ALTER TABLE {table} ALTER COLUMN {self.quoted(column)} DROP NOT NULL"

    def widening_statement(self, table: str, column: str, kind: str) -> str:
        """Return the statement that gives a column another type."""
        return f"ALTER TABLE {table} ALTER COLUMN {self.quoted(column)} TYPE {kind}"

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Insert rows by COPY."""
        names = ", ".join(self.quoted(each) for each in columns)
        # COPY has no parameters, so a doubled `%` would stay doubled.
        statement = f"COPY {table} ({names}) FROM STDIN".replace("%%", "%")
        with self.connection.cursor().copy(statement) as copy:
            write_row = copy.write_row
            for row in rows:
                write_row(row)

    def upsert(
        self, table: str, columns: Sequence[str], keys: Sequence[str], rows: Sequence[Row]
    ) -> None:
        """Copy rows into a temporary table, and merge it into the table in one statement."""
        staged = self._stage(table, tuple(columns))
        if staged in self._filled:
            # The commit empties it, but this is a second upsert before that.
            self.execute(f"DELETE FROM {staged}")  # noqa: S608 - a name of ours
        self._filled.add(staged)
        self.insert(staged, columns, rows)
        names = ", ".join(self.quoted(each) for each in columns)
        others = [self.quoted(each) for each in columns if each not in keys]
        change = ", ".join(f"{each} = EXCLUDED.{each}" for each in others)
        action = f"UPDATE SET {change}" if others else "NOTHING"
        on = ", ".join(self.quoted(key) for key in keys)
        self.execute(
            f"INSERT INTO {table} ({names}) SELECT {names} FROM {staged} "  # noqa: S608 - quoted
            f"ON CONFLICT ({on}) DO {action}"
        )

    def _stage(self, table: str, columns: tuple[str, ...]) -> str:
        found = self._staged.get((table, columns))
        if found is None:
            found = f"streamlog_rows_{len(self._staged)}"
            names = ", ".join(self.quoted(each) for each in columns)
            # Dropped with the transaction if that rolls back, so its name is taken only if free.
            self.execute(f"DROP TABLE IF EXISTS pg_temp.{found}")
            self.execute(
                f"CREATE TEMPORARY TABLE {found} ON COMMIT DELETE ROWS "  # noqa: S608 - quoted names
                f"AS SELECT {names} FROM {table} WITH NO DATA"
            )
            self._staged[table, columns] = found
        return found

    def commit(self) -> None:
        """Commit, which empties the temporary tables."""
        super().commit()
        self._filled.clear()

    def rollback(self) -> None:
        """Roll back, and forget temporary tables that this transaction may have created."""
        self._staged.clear()
        self._filled.clear()
        super().rollback()


_NOT_NULL: Final = re.compile(r"^((?:[^']|'(?:[^']|'')*')*?) NOT NULL\b")
"""In a definition: the first NOT NULL that is not in a text, such as a value of an enum."""
_TYPE: Final = re.compile(r"^\w+(?:\([\d,]+\))?")


class MariaDatabase(Database):
    """MariaDB and MySQL by PyMySQL, which packs many rows into one INSERT."""

    mark = "%s"
    name_type = "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    _PASSING: Final = {
        *(1040, 1053, 1158, 1159, 1160, 1161, 1205, 1213, 2002, 2003, 2006, 2013),
        *(1021, 1030, 1114, 1290, 1792, 1836),
        *(1129, 1203, 1226),
    }
    """Too many connections, shutdown, network, lock wait, deadlock, server gone; disk full, storage
    engine failed, table full, server or session read-only; limits of a host or user."""
    _REFUSING: Final = frozenset({
        *(1044, 1045, 1130, 1142, 1143, 1227, 1251, 1370, 1698, 1820, 1862, 3118, 4151),
        *(1046, 1049, 1051, 1054, 1109, 1146),
        *(1288, 1347, 1348, 1356, 1449, 1471),
    })  # fmt: skip
    """Login, host, rights, locked or expired accounts; a database, table or column that is missing;
    views that take no rows."""
    _column_named = re.compile(r"[Cc]olumn '(.+?)'|Field '(.+?)'|column .*`\.`(.+?)` at row")

    def prepare(self) -> None:
        """Refuse values that do not fit, which MariaDB would cut; times are UTC."""
        self.execute("SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')")
        self.execute("SET SESSION time_zone = '+00:00'")
        self.execute(f"SET SESSION innodb_lock_wait_timeout = {LOCK_SECONDS}")
        # A change of a table waits for everyone who reads it, by default for a day.
        self.execute(f"SET SESSION lock_wait_timeout = {LOCK_SECONDS}")

    def begin(self) -> None:
        """Start a transaction, with a new view of the tables."""
        # Without it, a new transaction would read as of the last one's first query.
        self.connection.begin()

    def commit_each(self) -> None:
        """Switch PyMySQL's own transactions off."""
        self.connection.autocommit(value=True)

    def now(self, settle_ms: int, *, is_local: bool) -> object:
        """Return the time of the server in UTC, which is the zone of the session."""
        del is_local
        query = f"SELECT UTC_TIMESTAMP(6) - INTERVAL {settle_ms * 1_000} MICROSECOND"
        return self.execute(query).fetchall()[0][0]

    def may_pass(self, error: BaseException) -> bool:
        """Decide by the server's number of the error."""
        if isinstance(error, self._driver.InterfaceError):
            return True
        number = error.args[0] if error.args else None
        return isinstance(error, self._driver.OperationalError) and number in self._PASSING

    def refuses(self, error: BaseException) -> bool:
        """Decide by the server's number of the error."""
        return bool(error.args) and error.args[0] in self._REFUSING

    def nullable_statement(self, table: str, column: str) -> str:
        """Return the statement that lets a column be null."""
        return self._modified(table, column, lambda text: _NOT_NULL.sub(r"\1 NULL", text, count=1))

    def widening_statement(self, table: str, column: str, kind: str) -> str:
        """Return the statement that gives a column another type."""
        return self._modified(table, column, lambda text: _TYPE.sub(lambda _: kind, text, count=1))

    def _modified(self, table: str, column: str, change: Callable[[str], str]) -> str:
        """Return the statement that changes a column's definition.

        MODIFY takes the whole of it: a default or comment that it leaves out is gone.
        """
        name = self.engine.dialect.identifier_preparer.quote_identifier(column).replace("%%", "%")
        lines: str = self.execute(f"SHOW CREATE TABLE {table}").fetchall()[0][1]
        found = next(each for each in lines.splitlines() if each.startswith(f"  {name} "))
        definition = change(found.strip().rstrip(",").removeprefix(f"{name} "))
        return f"ALTER TABLE {table} MODIFY {self.quoted(column)} {definition.replace('%', '%%')}"

    def upsert(
        self, table: str, columns: Sequence[str], keys: Sequence[str], rows: Sequence[Row]
    ) -> None:
        """Insert rows, `ON DUPLICATE KEY UPDATE`."""
        changed = [each for each in columns if each not in keys] or [keys[0]]
        change = ", ".join(f"{self.quoted(each)} = VALUES({self.quoted(each)})" for each in changed)
        statement = self.insert_statement(table, columns)
        self.execute_many(f"{statement} ON DUPLICATE KEY UPDATE {change}", rows)


class SqliteDatabase(Database):
    """SQLite: one writer at a time, which waits for the other."""

    mark = "?"
    can_alter = False
    _column_named = re.compile(r"^NOT NULL constraint failed: .+\.(.+)$")

    def connect(self) -> None:
        """Open the file, if it may be used now."""
        check_path("url", (self.engine.url.database or "/").removeprefix("file:"))
        super().connect()

    def prepare(self) -> None:
        """Leave transactions to this class; the driver would begin them late."""
        self.connection.isolation_level = None
        if not is_allowed("/"):
            self.connection.set_authorizer(_stays_in_its_file)
        self.execute(f"PRAGMA busy_timeout = {LOCK_SECONDS * 1_000}")

    def begin(self) -> None:
        """Start a transaction that writes."""
        self.execute("BEGIN IMMEDIATE")

    def now(self, settle_ms: int, *, is_local: bool) -> object:
        """Return the time as a Julian day: text of times has more than one form."""
        del is_local
        query = f"SELECT julianday('now', '-{settle_ms / 1_000:.3f} seconds')"
        return self.execute(query).fetchall()[0][0]

    def comparable_time(self, column: str) -> str:
        """Return a column's Julian day."""
        return f"julianday({column})"

    _PASSING: Final = ("BUSY", "LOCKED", "FULL", "IOERR", "CANTOPEN", "READONLY")

    def may_pass(self, error: BaseException) -> bool:
        """Whether another process holds the file, or the disk or its permissions refuse it."""
        name: str = getattr(error, "sqlite_errorname", "")
        return name.removeprefix("SQLITE_").startswith(self._PASSING)

    _REFUSING: Final = ("AUTH", "CORRUPT", "NOTADB", "PERM")
    _MISSING: Final = re.compile(r"^no such (?:table|column)|^table .+ has no column")

    def refuses(self, error: BaseException) -> bool:
        """Whether the file is no database, or has no such table or column."""
        name: str = getattr(error, "sqlite_errorname", "")
        # Of the general code, a missing name alone: functions on values have it as well.
        is_missing = name == "SQLITE_ERROR" and self._MISSING.search(str(error)) is not None
        return is_missing or name.removeprefix("SQLITE_").startswith(self._REFUSING)

    def upsert(
        self, table: str, columns: Sequence[str], keys: Sequence[str], rows: Sequence[Row]
    ) -> None:
        """Insert rows, `ON CONFLICT DO UPDATE`."""
        others = [self.quoted(each) for each in columns if each not in keys]
        change = ", ".join(f"{each} = excluded.{each}" for each in others)
        action = f"UPDATE SET {change}" if others else "NOTHING"
        on = ", ".join(self.quoted(key) for key in keys)
        statement = self.insert_statement(table, columns)
        self.execute_many(f"{statement} ON CONFLICT ({on}) DO {action}", rows)


def _stays_in_its_file(action: int, *_: str | None) -> int:
    """Refuse statements that open or write another file (ATTACH, VACUUM INTO)."""
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_ATTACH else sqlite3.SQLITE_OK


_KINDS: Final = {
    "postgresql": (PostgresDatabase, "postgresql+psycopg"),
    "mysql": (MariaDatabase, "mysql+pymysql"),
    "mariadb": (MariaDatabase, "mariadb+pymysql"),
    "sqlite": (SqliteDatabase, "sqlite+pysqlite"),
}


def open_database(url: str, user: str | None, password: Secret | None) -> Database:
    """Return a database that is not connected yet.

    Args:
        url: SQLAlchemy's URL or a JDBC URL, as `database_url` reads it.
        user: the user, if the URL has none.
        password: the password.
    """
    kind, driver = _KINDS[dialect_of(url)]
    full: URL = make_url(url).set(drivername=driver)
    if user is not None:
        full = full.set(username=user)
    if password is not None:
        full = full.set(password=password.reveal())
    options = {"check_same_thread": False} if kind is SqliteDatabase else {}
    return kind(sqlalchemy.create_engine(full, poolclass=NullPool, connect_args=options))
