"""Tables over HTTP, for people and programs: any worker answers for all of them.

Rows are JSON as msgspec writes them, keys stand in the path as plain text where they are text or
numbers and as JSON otherwise. A scan is a line per row, sent as it is read. Rule of the file:
what a request costs is bounded by its `limit` and by pages, and nothing is kept for it between
two of them; an error that comes in the middle of a scan is its last line.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from streamlog.durations import moment, when_ms
from streamlog.errors import SerdeError, StreamlogError, UsageError
from streamlog.nodes.stream_nodes import TableSource
from streamlog.nodes.window_nodes import SlidingAggregate, WindowedAggregate
from streamlog.processing.table_rows import PAGE_ROWS_MAX, TableRows
from streamlog.record import Windowed
from streamlog.serdes import PackedSerde, Serde, display_json, from_json, from_text, type_name
from streamlog.windows.window_assigner import Assigner
from streamlog.worker.access.routed import RoutedRow, RoutedTables
from streamlog.worker.web.answers import NOT_FOUND, error_answer, json_answer
from streamlog.worker.web.peer_pages import body_of

WAIT_MS = 5_000
"""A program may wait longer for a task that moves than somebody at a browser."""
LIMIT_DEFAULT = 1_000
LINES_TOGETHER = 200
"""Of a scan, in one write: each costs a chunk and a system call."""
VALUE_BYTES_MAX = 16 * 1024 * 1024
ROWS_TYPE = "application/x-ndjson"

Page = Callable[[Request], Awaitable[Response]]


def table_routes(tables: RoutedTables) -> list[Route]:
    """The paths under /tables."""
    pages = _TablePages(tables)
    row = "/tables/{table}/{key:path}"
    return [
        Route("/tables", _told(pages.all)),
        Route("/tables/{table}", _told(pages.scan)),
        Route(row, _told(pages.row), methods=["GET"]),
        Route(row, _told(pages.put), methods=["PUT"]),
    ]


class _TablePages:
    """What is answered."""

    def __init__(self, tables: RoutedTables) -> None:
        self._tables = tables

    async def all(self, _request: Request) -> Response:
        """What tables there are."""
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
        """One row."""
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
        """Many rows, a line each."""
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
        # The first row decides whether this is an answer or an error.
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
    left = limit - 1
    try:
        while left > 0 and (found := await anext(rest, None)) is not None:
            left -= 1
            lines.append(_line(found))
            if len(lines) >= LINES_TOGETHER:
                yield b"".join(lines)
                lines.clear()
    except StreamlogError as error:
        lines.append(msgspec.json.encode({"error": str(error)}) + b"\n")
    yield b"".join(lines)


def _line(found: RoutedRow) -> bytes:
    row: dict[str, object] = {"key": found.key, "value": found.value}
    if found.age_ms is not None:
        row["age_ms"] = found.age_ms
    return display_json(row, enc_hook=_no_json) + b"\n"


def _no_json(value: object) -> object:
    raise SerdeError(f"{type_name(type(value))} has no form in JSON: map the table's values first")


def _key(rows: TableRows, request: Request) -> Any:  # noqa: ANN401 - of the table's type
    serde: Serde[Any] = rows.key_serde
    text = request.path_params["key"]
    # A key of which no type is known is most likely text.
    key = text if isinstance(serde, PackedSerde) else from_text(serde, text)
    if not rows.is_windowed:
        return key
    start = request.query_params.get("start")
    if start is None:
        raise UsageError(
            f"table {rows.name!r} is windowed: add ?start= with the beginning of the window, or "
            f"ask /tables/{rows.name}?at= for all keys at a time"
        )
    start_ms = _time_ms(start)
    return Windowed(key, moment(start_ms), moment(_end_ms(rows, request, start_ms)))


def _end_ms(rows: TableRows, request: Request, start_ms: int) -> int:
    owner, end = rows.owner, request.query_params.get("end")
    if isinstance(owner, WindowedAggregate):
        return Assigner(owner.windows).end_of(start_ms)
    if isinstance(owner, SlidingAggregate):
        return start_ms + owner.windows.size_ms
    if end is None:
        raise UsageError(
            f"the windows of table {rows.name!r} are sessions: add &end= with the time of the last "
            "record"
        )
    return _time_ms(end)


def _time_ms(text: str) -> int:
    """ISO-8601 or milliseconds."""
    return int(text) if text.lstrip("-").isdecimal() else when_ms(text)


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", str(LIMIT_DEFAULT))
    if not text.isdecimal() or not int(text):
        raise UsageError(f"limit={text} is not a number of rows")
    return int(text)


def _flag(request: Request, name: str) -> bool:
    text = request.query_params.get(name, "false")
    if text not in {"true", "false"}:
        raise UsageError(f"{name} is true or false, not {text!r}")
    return text == "true"


def _told(page: Page) -> Page:
    async def answered(request: Request) -> Response:
        try:
            return await page(request)
        except _NoTableError as error:
            return json_answer({"error": str(error)}, NOT_FOUND)
        except StreamlogError as error:
            return error_answer(error)
        except msgspec.MsgspecError as error:
            return error_answer(UsageError(f"not JSON of the table's type: {error}"))

    return answered
