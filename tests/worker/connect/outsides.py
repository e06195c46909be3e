"""What the pairs of connectors read from and write to: real servers and files, with their rows."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import deltalake
import psycopg
import pymysql
import redis
from pyiceberg.table import StaticTable
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

CREATE = "create table numbers (n bigint primary key)"
INSERT = "insert into numbers values (%s)"


class Origin(Protocol):
    """Where a source reads."""

    async def feed(self, numbers: Sequence[int]) -> None:
        """Have more numbers."""
        ...


class Target(Protocol):
    """Where a sink writes."""

    async def found(self) -> Counter[int]:
        """Return all numbers, each as often as it is there."""
        ...


def number_of(row: Any) -> int:
    """Return the number of a row, whatever its form."""
    if isinstance(row, dict):
        row = row.get("n", row.get("value", row.get(b"value")))
    return int(row)


class LinesOfFile:
    """A file that grows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def feed(self, numbers: Sequence[int]) -> None:
        with self.path.open("a") as file:
            file.writelines(f"{n}\n" for n in numbers)


class FilesOfDirectory:
    """A directory that gets complete files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    async def feed(self, numbers: Sequence[int]) -> None:
        draft = self.path.with_name("draft")
        draft.write_text("".join(f"{n}\n" for n in numbers))
        draft.rename(self.path / f"{numbers[0]:09}.txt")


class SqlTable:
    """A table of any database; `connect` gives a connection of Python's DB-API."""

    def __init__(
        self, connect: Callable[[], Any], *, insert: str = INSERT, column: str = "n"
    ) -> None:
        self._connect, self._insert = connect, insert
        self._select = f"select {column} from numbers"  # noqa: S608 - a name of ours

    def create(self) -> SqlTable:
        """Create the table with a key, for a source."""
        self._run(lambda cursor: cursor.execute(CREATE))
        return self

    async def feed(self, numbers: Sequence[int]) -> None:
        rows = [(n,) for n in numbers]
        self._run(lambda cursor: cursor.executemany(self._insert, rows))

    async def found(self) -> Counter[int]:
        try:
            rows = self._run(lambda cursor: cursor.execute(self._select))
        except (sqlite3.OperationalError, psycopg.errors.UndefinedTable, pymysql.ProgrammingError):
            return Counter()  # No task has made the table yet.
        return Counter(number_of(n) for (n,) in rows)

    def _run(self, work: Callable[[Any], object]) -> list[Any]:
        with closing(self._connect()) as connection:
            cursor = connection.cursor()
            work(cursor)
            rows = cursor.fetchall() if cursor.description else []
            connection.commit()
            return list(rows)


class RedisKeys:
    """A stream to read, and a stream to write."""

    def __init__(self, connect: Callable[[], redis.Redis]) -> None:
        self._connect = connect

    async def feed(self, numbers: Sequence[int]) -> None:
        with closing(self._connect()) as client:
            for n in numbers:
                client.xadd("in", {"n": n})

    async def found(self) -> Counter[int]:
        with closing(self._connect()) as client:
            entries: Any = client.xrange("out")
        return Counter(number_of(fields) for _, fields in entries)


class JsonFiles:
    """The rows of all files below a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def found(self) -> Counter[int]:
        texts = [path.read_text() for path in self.path.rglob("*.jsonl")]
        return numbers_of(line for text in texts for line in text.splitlines())


class DeltaTable:
    """A table of Delta Lake, as its own library reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def found(self) -> Counter[int]:
        try:
            table = deltalake.DeltaTable(self.path).to_pyarrow_table()
        except deltalake.exceptions.TableNotFoundError:
            return Counter()
        return Counter(map(number_of, table.to_pylist()))


class IcebergTable:
    """A table of Iceberg, whose catalogue is a database of SQLite."""

    def __init__(self, catalog: Path) -> None:
        self.catalog = catalog

    async def found(self) -> Counter[int]:
        query = "select metadata_location from iceberg_tables"
        with closing(sqlite3.connect(self.catalog)) as db:
            try:
                ((location,),) = db.execute(query)
            except (sqlite3.OperationalError, ValueError):
                return Counter()  # No task has made the table yet.
        return Counter(
            map(number_of, StaticTable.from_metadata(location).scan().to_arrow().to_pylist())
        )


class Api:
    """Rows by HTTP: all behind a cursor, or as events behind an id."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    async def feed(self, numbers: Sequence[int]) -> None:
        self.numbers += numbers

    async def respond(self, request: Request) -> Response:
        """Answer the requests of both sources."""
        if request.url.path == "/rows":
            since = int(request.query_params.get("since", -1))
            return JSONResponse([{"n": n} for n in self.numbers if n > since][:20])
        since = int(request.headers.get("Last-Event-ID", -1))

        async def events() -> AsyncIterator[bytes]:
            # The connection ends; the source asks for what follows.
            for n in self.numbers:
                if n > since:
                    yield b"id: %d\ndata: %d\n\n" % (n, n)

        return StreamingResponse(events(), media_type="text/event-stream")


def numbers_of(texts: Iterable[str]) -> Counter[int]:
    """Return the numbers of JSON rows."""
    return Counter(number_of(json.loads(text)) for text in texts)
