"""Answers as JSON, and which status an error of ours has."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from streamlog.errors import (
    ConfigError,
    ConnectionLost,
    RequestTimedOut,
    StreamlogError,
    UsageError,
)

OK = 200
MALFORMED = 400
NOT_FOUND = 404
NOT_HERE = 409
BROKEN = 500
UNAVAILABLE = 503


def json_answer(
    content: object, status: int = OK, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer as JSON, which nobody is to keep."""
    return Response(
        msgspec.json.encode(content),
        status,
        headers={"cache-control": "no-store", **(headers or {})},
        media_type="application/json",
    )


def error_answer(error: StreamlogError) -> Response:
    """What went wrong, and whether to come again."""
    status = status_of(error)
    headers = {"retry-after": "1"} if status == UNAVAILABLE else None
    return json_answer({"error": str(error)}, status, headers)


def status_of(error: StreamlogError) -> int:
    """The status that says whose fault an error is."""
    match error:
        case ConfigError() | RequestTimedOut() | ConnectionLost():
            return UNAVAILABLE
        case UsageError():
            return MALFORMED
        case _:
            return UNAVAILABLE if error.retriable else BROKEN
