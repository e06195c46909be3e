"""WAL stream: the two connections of a capture, one that streams and one that asks.

The stream is a COPY in both directions on libpq's own interface (psycopg's `pq`), because psycopg
has no higher one: frames come in on the event loop, the status goes out by the same socket. The
other connection reads chunks and unsent values, and blocks, so it runs in the task's thread.

Rule: bytes in, bytes out. What frames mean is decided in `change_stream`.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import make_conninfo

from streamlog.connect import ConnectError, Json, Retriable
from streamlog.connectors.postgres_cdc.change_stream import CapturedTable, Unfetched
from streamlog.connectors.postgres_cdc.chunked_snapshot import (
    CHUNK_BYTES,
    PREFIX,
    ChunkRequest,
    ChunkSize,
    TableChunk,
    VisibleTransactions,
    key_of,
)
from streamlog.connectors.postgres_cdc.pgoutput import (
    Relation,
    RelationColumn,
    lsn_text,
)
from streamlog.connectors.postgres_cdc.row_values import SESSION, TypeCatalogue

if TYPE_CHECKING:
    from streamlog.connectors.postgres_cdc import PostgresCdc

LOOK_AGAIN_MS = 100
"""How long a socket that has nothing to read is believed."""
READ_AHEAD_BYTES = 1_000_000
"""How much of what has arrived libpq takes at once."""
VISIBLE = "SELECT pg_current_snapshot()::text, array(SELECT transaction FROM pg_prepared_xacts)"


def connection_text(source: PostgresCdc) -> str:
    """Return libpq's connection string with the settings that both sessions share."""
    login = {} if source.user is None else {"user": source.user}
    if source.password is not None:
        login["password"] = source.password.reveal()
    options = " ".join(f"-c {name}={value}" for name, value in SESSION.items() if name.islower())
    options += " " + " ".join(
        f"-c {name}={value}" for name, value in SESSION.items() if not name.islower()
    )
    return make_conninfo(source.url, options=options.strip(), application_name="streamlog", **login)


def widen_buffer(pgconn: pq.abc.PGconn) -> None:
    """Let libpq take up to `READ_AHEAD_BYTES` at once, and not 16 KiB."""
    # Its buffer becomes as large as its largest message, and stays so. Each look at the socket
    # gives Python's lock away, and the thread that looks waits up to 5 ms until it has it again: by
    # 16 KiB, a chunk of a snapshot would take as long as the loop has other work.
    pgconn.exec_(b"SELECT repeat(' ', %d)" % READ_AHEAD_BYTES)


EMPTY_LOOKS = 2
"""How many looks at an empty socket take all that TLS has decrypted."""


class Arrivals:
    """What has arrived on a connection, and whether an empty socket means that nothing has.

    TLS decrypts a record of up to 16 KiB at once, and libpq takes at least 8 KiB of it. Before
    release 18, libpq leaves the rest with TLS, where the socket does not show it. A look at an
    empty socket takes only from that rest, so after two such looks nothing is left.

    Args:
        pgconn: the connection.
    """

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        self._pgconn = pgconn
        self._arriving = select.poll()
        self._arriving.register(pgconn.socket, select.POLLIN)
        self._left = self._most = EMPTY_LOOKS if pgconn.ssl_in_use else 0

    @property
    def is_on_socket(self) -> bool:
        """Whether what comes next will be seen on the socket."""
        return not self._left

    def look(self) -> None:
        """Take what has come, without waiting."""
        if self._most:
            # Before it is read: what comes between the two is seen by the next look.
            is_empty = not self._arriving.poll(0)
            self._left = max(self._left - 1, 0) if is_empty else self._most
        self._pgconn.consume_input()

    def wait(self, milliseconds: int) -> None:
        """Wait until the socket has something to read."""
        self._arriving.poll(milliseconds)


class ReplicationStream:
    """A stream of one slot.

    Args:
        text: the connection string.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._connection: psycopg.Connection | None = None
        self._arrivals: Arrivals | None = None
        self._has_frames = False
        """Whether libpq has frames that were not taken yet."""
        self._readable = asyncio.Event()
        self._watched: int | None = None
        """The socket that `wait` looks at."""
        self._closed: Exception | None = None

    def connect(self, slot: str, publication: str, lsn: int) -> None:
        """Connect, and start the stream; blocks.

        Args:
            slot: the slot.
            publication: the publication.
            lsn: transactions that committed before are not sent.

        Raises:
            Retriable: the server can't be reached.
            ConnectError: the server refuses; its message says why.
        """
        try:
            self._connection = psycopg.connect(self._text, replication="database", autocommit=True)
            widen_buffer(self._connection.pgconn)
        except psycopg.OperationalError as error:
            raise Retriable(f"the database: {str(error).strip()}") from error
        # Both names were checked: letters, digits and _.
        command = (
            f"START_REPLICATION SLOT {slot} LOGICAL {lsn_text(lsn)} "
            f"(proto_version '1', publication_names '{publication}', messages 'true')"
        )
        pgconn = self._connection.pgconn
        result = pgconn.exec_(command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            message = result.error_message.decode(errors="replace").strip()
            if result.error_field(pq.DiagnosticField.SQLSTATE) == b"55006":
                # The walsender of an earlier life may still be there.
                raise Retriable(message)
            raise ConnectError(message)
        pgconn.nonblocking = 1
        self._arrivals = Arrivals(pgconn)

    def close(self, why: Exception | None = None) -> None:
        """Close the connection; the slot stays.

        Args:
            why: what the reader gets when it uses the stream again.
        """
        self._closed = self._closed or why or Retriable("the replication stream is closed")
        self._unwatch()
        self._readable.set()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _unwatch(self) -> None:
        watched, self._watched = self._watched, None
        if watched is not None:
            asyncio.get_running_loop().remove_reader(watched)

    @property
    def _pgconn(self) -> pq.abc.PGconn:
        # Also of a connection that was made while the stream was closed.
        if self._closed is not None:
            raise self._closed
        if self._connection is None:
            raise Retriable("the replication stream is not connected")
        return self._connection.pgconn

    def frames(self, most: int, most_bytes: int) -> list[bytes]:
        """Return the frames that have come, without waiting.

        Args:
            most: how many at most.
            most_bytes: after how many bytes to stop; the frame that reaches them is the last.

        Raises:
            Retriable: the server has ended the stream, or the connection is lost.
        """
        pgconn, arrivals = self._pgconn, self._arrivals
        found: list[bytes] = []
        total_bytes = 0
        try:
            # Only then: libpq would get more than is taken of it, without a limit.
            if arrivals is not None and not self._has_frames:
                arrivals.look()
            self._has_frames = True
            while len(found) < most and total_bytes < most_bytes:
                size, data = pgconn.get_copy_data(1)
                if size > 0:
                    found.append(bytes(data))
                    total_bytes += size
                elif size == 0:
                    self._has_frames = False
                    break
                else:
                    return self._ended(found)
        except psycopg.OperationalError as error:
            raise Retriable(f"the replication stream: {str(error).strip()}") from error
        return found

    def _ended(self, found: list[bytes]) -> list[bytes]:
        if found:
            return found
        result = self._pgconn.get_result()
        message = b"" if result is None else result.error_message
        text = message.decode(errors="replace").strip() or "the server has ended it"
        raise Retriable(f"the replication stream: {text}")

    def send(self, status: bytes) -> None:
        """Send a status.

        Raises:
            Retriable: the connection is lost.
        """
        try:
            self._pgconn.put_copy_data(status)
            self._pgconn.flush()
        except psycopg.OperationalError as error:
            raise Retriable(f"the replication stream: {str(error).strip()}") from error

    def wake(self) -> None:
        """End a wait."""
        self._readable.set()

    async def wait(self, seconds: float) -> None:
        """Wait for frames, for `seconds` at most."""
        loop = asyncio.get_running_loop()
        socket = self._pgconn.socket
        if self._arrivals is not None and not self._arrivals.is_on_socket:
            await asyncio.sleep(0)
            return
        self._watched = socket
        self._readable.clear()
        # What libpq has read already was taken by `frames`, so the socket says what is new.
        loop.add_reader(self._watched, self._readable.set)
        try:
            async with asyncio.timeout(seconds):
                await self._readable.wait()
        except TimeoutError:
            return
        finally:
            self._unwatch()


class TableQueries:
    """The connection that asks: chunks of a snapshot, and values that the stream has not.

    Args:
        text: the connection string.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._connection: psycopg.Connection | None = None
        self._table: CapturedTable | None = None
        """The table of the latest chunk."""
        self._size = ChunkSize(0)

    def connect(self) -> None:
        """Connect.

        Raises:
            Retriable: the server can't be reached.
        """
        try:
            self._connection = psycopg.connect(self._text, autocommit=True)
            widen_buffer(self._connection.pgconn)
        except psycopg.OperationalError as error:
            raise Retriable(f"the database: {str(error).strip()}") from error

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @property
    def connection(self) -> psycopg.Connection:
        """The connection."""
        if self._connection is None:
            raise Retriable("the connection is closed")
        return self._connection

    def draw_transaction(self) -> int:
        """Return a new transaction number, above all that were drawn before."""
        row = self.connection.execute("SELECT pg_current_xact_id()::text").fetchone()
        return int(row[0]) if row else 0

    def read_chunk(self, request: ChunkRequest, table: CapturedTable) -> TableChunk:
        """Write the low mark, read the rows of a chunk, write the high mark.

        Raises:
            Retriable: the connection is lost.
        """
        try:
            return self._read_chunk(request, table)
        except psycopg.OperationalError as error:
            raise Retriable(f"the database: {str(error).strip()}") from error

    def _read_chunk(self, request: ChunkRequest, table: CapturedTable) -> TableChunk:
        connection = self.connection
        if self._table != table:
            known = connection.execute(_columns_of(table)).description or ()
            # A name, its quotes, a colon and a comma; a number is no longer as JSON.
            self._size = ChunkSize(sum(len(each.name) + 4 for each in known))
            self._table = table
        asked = self._size.rows
        self._mark(request.mark("low"))
        order = sql.SQL(", ").join(map(sql.Identifier, table.key))
        where: sql.Composable = sql.SQL("")
        values = [*(request.after or ())]
        if values:
            # Texts without a type: the server takes them as the columns' own. COPY takes no
            # parameters, so they are quoted here.
            marks = sql.SQL(", ").join(map(sql.Literal, values))
            where = sql.SQL("WHERE ({}) > ({}) ").format(order, marks)
        named = sql.Identifier(*table.name.split(".", 1))
        query = sql.SQL("COPY (SELECT * FROM {} {}ORDER BY {} LIMIT {}) TO STDOUT").format(
            named, where, order, asked
        )
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            text, prepared = connection.execute(VISIBLE).fetchone() or ("1:1:", [])
            # COPY does not tell the types.
            result = connection.execute(_columns_of(table)).pgresult
            came, lines = self._copied(query)
        # Behind the end of the transaction: a mark inside it would wait for its commit.
        self._mark(request.mark("high"))
        if result is None:
            raise Retriable("the database gave no rows")
        relation = _relation(table, result)
        visible = VisibleTransactions.parse(text, map(int, prepared))
        names = [each.name for each in relation.columns]
        key_at = tuple(names.index(each) for each in table.key)
        count, end = self._size.kept(lines)
        last: tuple[Json, ...] | None = None
        if count:
            start = lines.rfind(b"\n", 0, end - 1) + 1
            last = tuple((each or b"").decode() for each in key_of(lines[start:end], key_at))
        is_last = came < asked and count == came
        return TableChunk(request, relation, lines[:end], key_at, last, is_last, visible)

    def _copied(self, query: sql.Composed) -> tuple[int, bytes]:
        """Return how many rows came, and those that a chunk may have, as COPY writes them."""
        pgconn = self.connection.pgconn
        result = pgconn.exec_(query.as_bytes(self.connection))
        if result.status != pq.ExecStatus.COPY_OUT:
            raise psycopg.OperationalError(result.error_message.decode(errors="replace"))
        lines = BytesIO()
        arrivals = Arrivals(pgconn)
        held_bytes = 0
        # By libpq itself: a row costs a third of what it costs by a cursor's `copy`.
        while True:
            # Without waiting, which would stop the whole worker: libpq keeps Python's lock.
            size, line = pgconn.get_copy_data(1)
            if not size:
                if arrivals.is_on_socket:
                    arrivals.wait(LOOK_AGAIN_MS)
                arrivals.look()
                continue
            if size < 0:
                break
            # Rows behind a chunk of this size are asked for again, so they need no memory.
            if held_bytes <= CHUNK_BYTES:
                lines.write(line)
                held_bytes += size
        ended = pgconn.get_result()
        if ended is None or ended.status != pq.ExecStatus.COMMAND_OK:
            message = "" if ended is None else ended.error_message.decode(errors="replace")
            raise psycopg.OperationalError(message or "the server has ended a COPY")
        pgconn.get_result()
        return ended.command_tuples or 0, lines.getvalue()

    def _mark(self, content: bytes) -> None:
        """Write a mark; the transaction's number makes its commit flush the WAL at once."""
        self.connection.execute(
            "SELECT pg_logical_emit_message(false, %s, %s), pg_current_xact_id()",
            (PREFIX, content.decode()),
        )

    def fetch(self, unfetched: Sequence[Unfetched], catalogue: TypeCatalogue) -> None:
        """Fill in values that the stream did not send, as the tables have them now.

        A row that is gone by now keeps its marks: its deletion follows in the stream.

        Raises:
            Retriable: the connection is lost.
        """
        try:
            for each in unfetched:
                self._fetch(each, catalogue)
        except psycopg.OperationalError as error:
            raise Retriable(f"the database: {str(error).strip()}") from error

    def _fetch(self, each: Unfetched, catalogue: TypeCatalogue) -> None:
        where = sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(sql.Identifier(name), sql.Placeholder()) for name in each.key
        )
        query = sql.SQL("SELECT {} FROM {} WHERE {}").format(
            sql.SQL(", ").join(map(sql.Identifier, each.columns)),
            sql.Identifier(*each.table.split(".", 1)),
            where,
        )
        values = [part.decode() if isinstance(part, bytes) else None for part in each.key.values()]
        result = self.connection.execute(query, values).pgresult
        if result is None or not result.ntuples:
            return
        for at, name in enumerate(each.columns):
            raw = _raw(result.get_value(0, at))
            each.row[name] = None if raw is None else catalogue.decoder(result.ftype(at))(raw)


def _columns_of(table: CapturedTable) -> sql.Composed:
    """Return a query that has a table's columns, and no rows."""
    named = sql.Identifier(*table.name.split(".", 1))
    return sql.SQL("SELECT * FROM {} LIMIT 0").format(named)


def _raw(value: object) -> bytes | None:
    return None if value is None else bytes(value)  # type: ignore[call-overload]


def _relation(table: CapturedTable, result: pq.abc.PGresult) -> Relation:
    columns = []
    for at in range(result.nfields):
        name = (result.fname(at) or b"").decode()
        columns.append(RelationColumn(name, name in table.key, result.ftype(at), result.fmod(at)))
    namespace, _, name = table.name.partition(".")
    return Relation(0, namespace, name, "d", tuple(columns))
