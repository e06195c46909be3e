"""Table pages: the rows of tables over HTTP, for other workers (`/peer`) and for users (`/tables`).

Any worker answers for all tables. For users rows are JSON. A key in a path is plain text if it is
text or a number, and JSON otherwise. A scan sends one line per row while it reads.

Rule: a request's cost is bounded by its `limit` and by the pages of a scan, and no state is kept
between two pages. An error in the middle of a scan is the scan's last line. Not done here: the
choice of a worker (`access/routed_tables`), and the server (`web_server`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import h11
import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from streamlog.durations import moment, when_ms
from streamlog.errors import SerdeError, StreamlogError, UsageError
from streamlog.http_access.peer_signatures import BadSignature
from streamlog.nodes.stream_nodes import TableSource
from streamlog.nodes.window_nodes import SlidingAggregate, WindowedAggregate
from streamlog.processing.table_rows import PAGE_BYTES_MAX, PAGE_ROWS_MAX, TableRows
from streamlog.record import Windowed
from streamlog.serdes import PackedSerde, Serde, display_json, from_json, from_text, type_name
from streamlog.windows.window_assigner import Assigner
from streamlog.worker.access.questions import (
    AppliedAnswer,
    AppliedQuery,
    NotHere,
    RowAnswer,
    RowHolder,
    RowQuery,
    ScanAnswer,
    ScanQuery,
    TaskQuery,
)
from streamlog.worker.access.routed_tables import RoutedRow, RoutedTables
from streamlog.worker.web.peer_http import PeerCall, PeerLogin, call_peer
from streamlog.worker.web.web_server import (
    MALFORMED,
    NOT_FOUND,
    NOT_HERE,
    error_answer,
    json_answer,
)

A = TypeVar("A", RowAnswer, ScanAnswer, AppliedAnswer)
"""The type of an answer."""

ANSWER_MS = 5_000
"""The time-out of a query: a worker that has not answered by then is blocked or unreachable."""
ANSWER_BYTES_MAX = 64 * 1024 * 1024 + 2 * PAGE_BYTES_MAX
"""The largest answer: a page ends after the row that fills it, and a row may be as large as the
largest record."""
OK = 200
FORBIDDEN = 403
CONTENT_TYPE = "application/msgpack"

_encode = msgspec.msgpack.Encoder().encode


class PeerRows:
    """The rows of the worker at an endpoint; a `RowHolder`."""

    def __init__(
        self, endpoint: str, login: PeerLogin | None = None, *, answer_ms: int = ANSWER_MS
    ) -> None:
        self.endpoint = endpoint
        self._login = login
        self._answer_ms = answer_ms

    async def row(self, query: RowQuery) -> RowAnswer:
        """See `RowHolder`."""
        return await self._ask("/peer/row", query, RowAnswer)

    async def rows(self, query: ScanQuery) -> ScanAnswer:
        """See `RowHolder`."""
        return await self._ask("/peer/rows", query, ScanAnswer)

    async def check_applied(self, query: AppliedQuery) -> AppliedAnswer:
        """See `RowHolder`."""
        return await self._ask("/peer/passed", query, AppliedAnswer, more_ms=query.wait_ms)

    async def _ask(self, path: str, query: object, kind: type[A], *, more_ms: int = 0) -> A:
        who = f"the worker at {self.endpoint}"
        try:
            async with asyncio.timeout((self._answer_ms + more_ms) / 1000):
                asked, login = _encode(query), self._login
                signature = {} if login is None else login.headers("POST", path, asked)
                call = PeerCall(
                    target=path, headers={"content-type": CONTENT_TYPE, **signature}, body=asked
                )
                status, body = await call_peer(
                    self.endpoint,
                    call,
                    answer_bytes_max=ANSWER_BYTES_MAX,
                    tls=None if login is None else login.tls,
                )
            # Every failure counts as `NotHere`: the caller looks up the owner again and repeats the
            # query until its own time-out.
            if status != OK:
                raise NotHere(f"{who}: {body[:500].decode(errors='replace')}")
            return msgspec.msgpack.decode(body, type=kind)
        except TimeoutError:
            raise NotHere(f"{who} has not answered within {self._answer_ms + more_ms} ms") from None
        except (OSError, h11.RemoteProtocolError, msgspec.MsgspecError) as error:
            raise NotHere(f"{who} can't be asked: {error}") from error


Q = TypeVar("Q", bound=TaskQuery)
"""The type of a query."""

PEER_PATHS = ("/peer/row", "/peer/rows", "/peer/passed")
"""What only workers ask for: a row, many rows, whether a change has been applied."""
QUESTION_BYTES_MAX = 2 * 1024 * 1024
"""The largest query; it holds a key and little else."""


def peer_routes(holder: RowHolder, login: PeerLogin | None = None) -> list[Route]:
    """Return the routes for queries of other workers.

    Args:
        holder: has the rows.
        login: checks that another worker asks; None: anyone may.
    """
    pages = (
        _page(RowQuery, holder.row, login),
        _page(ScanQuery, holder.rows, login),
        _page(AppliedQuery, holder.check_applied, login),
    )
    named = zip(PEER_PATHS, pages, strict=True)
    return [Route(path, page, methods=["POST"]) for path, page in named]


def _page(
    kind: type[Q], answer: Callable[[Q], Awaitable[object]], login: PeerLogin | None
) -> Callable[[Request], Awaitable[Response]]:
    async def page(request: Request) -> Response:
        try:
            body = await body_of(request, QUESTION_BYTES_MAX)
            if login is not None:
                login.check(request.url.path, request.headers, body)
            query = msgspec.msgpack.decode(body, type=kind)
            found = await answer(query)
        except msgspec.MsgspecError as error:
            return json_answer({"error": f"the query is malformed: {error}"}, MALFORMED)
        except BadSignature as error:
            return json_answer({"error": str(error)}, FORBIDDEN)
        except NotHere as error:
            return json_answer({"error": str(error)}, NOT_HERE)
        except StreamlogError as error:
            return error_answer(error)
        return Response(_encode(found), media_type=CONTENT_TYPE)

    return page


async def body_of(request: Request, bytes_max: int) -> bytes:
    """Return the body of a request.

    Raises:
        MsgspecError: the body is larger than `bytes_max`.
    """
    body = bytearray()
    async for part in request.stream():
        body += part
        # Checked part by part: a request need not state its length.
        if len(body) > bytes_max:
            raise msgspec.DecodeError(f"the body has more than {bytes_max} bytes")
    return bytes(body)


WAIT_MS = 5_000
"""How long a page waits for a task that moves; shorter than for a program, as a user waits."""
LIMIT_DEFAULT = 1_000
LINES_TOGETHER = 200
"""The number of a scan's lines in one write: each write costs a chunk and a system call."""
VALUE_BYTES_MAX = 16 * 1024 * 1024
ROWS_TYPE = "application/x-ndjson"

Page = Callable[[Request], Awaitable[Response]]


def table_routes(tables: RoutedTables) -> list[Route]:
    """Return the routes under /tables."""
    pages = _TablePages(tables)
    row = "/tables/{table}/{key:path}"
    return [
        Route("/tables", _answer_errors(pages.all)),
        Route("/tables/{table}", _answer_errors(pages.scan)),
        Route(row, _answer_errors(pages.row), methods=["GET"]),
        Route(row, _answer_errors(pages.put), methods=["PUT"]),
    ]


class _TablePages:
    """The handlers of /tables."""

    def __init__(self, tables: RoutedTables) -> None:
        self._tables = tables

    async def all(self, _request: Request) -> Response:
        """List the tables."""
        return json_answer(
            [
                {
                    "name": rows.name,
                    "partitions": self._tables.partitions(rows),
                    "windowed": rows.is_windowed,
                    "writable": isinstance(rows.owner, TableSource) and not rows.views,
                }
                for _, rows in sorted(self._tables.tables.items())
            ]
        )

    async def row(self, request: Request) -> Response:
        """Return one row."""
        rows = self._table(request)
        found = await self._tables.find(
            rows.name, _key(rows, request), stale_ok=_flag(request, "stale_ok"), wait_ms=WAIT_MS
        )
        if found is None:
            text = f"table {rows.name!r} has no row for this key"
            return json_answer({"error": text}, NOT_FOUND)
        age = {} if found.age_ms is None else {"age": str(found.age_ms // 1000)}
        headers = {"cache-control": "no-store", **age}
        return Response(_line(found), headers=headers, media_type="application/json")

    async def put(self, request: Request) -> Response:
        """Write one row."""
        rows = self._table(request)
        body = await body_of(request, VALUE_BYTES_MAX)
        # `null` deletes the row, whatever the value's type.
        is_null = body.strip() == b"null"
        value = None if is_null else from_json(rows.source.value, body)
        written = await self._tables.write(rows.name, _key(rows, request), value, wait_ms=WAIT_MS)
        return json_answer(
            {
                "topic": written.topic,
                "partition": written.partition,
                "offset": written.offset,
                "applied": written.applied,
            }
        )

    async def scan(self, request: Request) -> Response:
        """Return the rows of a table, one line each."""
        rows, limit = self._table(request), _limit(request)
        prefix, at = request.query_params.get("prefix"), request.query_params.get("at")
        found = self._tables.walk(
            rows.name,
            prefix=None if prefix is None else from_text(rows.key_serde, prefix),
            at_ms=None if at is None else _time_ms(at),
            stale_ok=_flag(request, "stale_ok"),
            page_rows=min(limit, PAGE_ROWS_MAX),
            wait_ms=WAIT_MS,
        )
        # Read before the answer begins: an error so far can still have a status of its own.
        first = await anext(found, None)
        return StreamingResponse(
            _lines(first, found, limit), media_type=ROWS_TYPE, headers={"cache-control": "no-store"}
        )

    def _table(self, request: Request) -> TableRows:
        name = request.path_params["table"]
        found = self._tables.tables.get(name)
        if found is None:
            raise _NoTableError(f"there is no table {name!r}; see /tables")
        return found


class _NoTableError(UsageError):
    """The path names no table."""


async def _lines(
    first: RoutedRow | None, rest: AsyncIterator[RoutedRow], limit: int
) -> AsyncIterator[bytes]:
    lines = [] if first is None else [_line(first)]
    # `first` was read before the answer began.
    left = limit - 1
    try:
        while left > 0 and (found := await anext(rest, None)) is not None:
            left -= 1
            lines.append(_line(found))
            if len(lines) >= LINES_TOGETHER:
                yield b"".join(lines)
                lines.clear()
    except StreamlogError as error:
        # The status was sent with the first line, so the error becomes the last one.
        lines.append(msgspec.json.encode({"error": str(error)}) + b"\n")
    yield b"".join(lines)


def _line(found: RoutedRow) -> bytes:
    row: dict[str, object] = {"key": found.key, "value": found.value}
    if found.age_ms is not None:
        row["age_ms"] = found.age_ms
    return display_json(row, enc_hook=_no_json) + b"\n"


def _no_json(value: object) -> object:
    raise SerdeError(
        f"{type_name(type(value))} can't be written as JSON: map the table's values to another type"
    )


def _key(rows: TableRows, request: Request) -> object:
    serde: Serde[Any] = rows.key_serde
    text = request.path_params["key"]
    # A key without a declared type is most likely text.
    key = text if isinstance(serde, PackedSerde) else from_text(serde, text)
    if not rows.is_windowed:
        return key
    start = request.query_params.get("start")
    if start is None:
        raise UsageError(
            f"table {rows.name!r} is windowed: add ?start= with the start of the window, or read "
            f"/tables/{rows.name}?at= for all keys at one time"
        )
    start_ms = _time_ms(start)
    return Windowed(key, moment(start_ms), moment(_end_ms(rows, request, start_ms)))


def _end_ms(rows: TableRows, request: Request, start_ms: int) -> int:
    owner, end = rows.owner, request.query_params.get("end")
    if isinstance(owner, WindowedAggregate):
        return Assigner(owner.windows).end_of(start_ms)
    if isinstance(owner, SlidingAggregate):
        return start_ms + owner.windows.size_ms
    # A session's end follows from its records, and not from its start.
    if end is None:
        raise UsageError(
            f"the windows of table {rows.name!r} are sessions: add &end= with the time of the last "
            "record"
        )
    return _time_ms(end)


def _time_ms(text: str) -> int:
    """Return a time in milliseconds; `text` is ISO 8601, or milliseconds since 1970."""
    # Times before 1970 are negative.
    return int(text) if text.lstrip("-").isdecimal() else when_ms(text)


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", str(LIMIT_DEFAULT))
    if not text.isdecimal() or not int(text):
        raise UsageError(f"limit={text} is not a number of rows: use 1 or more")
    return int(text)


def _flag(request: Request, name: str) -> bool:
    text = request.query_params.get(name, "false")
    if text not in {"true", "false"}:
        raise UsageError(f"{name}={text} is neither true nor false")
    return text == "true"


def _answer_errors(page: Page) -> Page:
    async def answer(request: Request) -> Response:
        try:
            return await page(request)
        except _NoTableError as error:
            return json_answer({"error": str(error)}, NOT_FOUND)
        except StreamlogError as error:
            return error_answer(error)
        except msgspec.MsgspecError as error:
            return error_answer(
                UsageError(f"the body is not JSON of the table's value type: {error}")
            )

    return answer
