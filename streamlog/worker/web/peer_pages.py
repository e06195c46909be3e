"""What other workers of the app ask this one (see `peer_client`).

Rule of the file: only what this worker has is answered, never handed on: 409 says "not here".
Nothing here is for people; they ask `/tables`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamlog.errors import StreamlogError
from streamlog.worker.access.questions import (
    Asked,
    NotHere,
    PassedAsked,
    RowAsked,
    RowHolder,
    RowsAsked,
)
from streamlog.worker.web.answers import MALFORMED, NOT_HERE, error_answer, json_answer
from streamlog.worker.web.peer_client import CONTENT_TYPE

Q = TypeVar("Q", bound=Asked)
"""A question."""

QUESTION_BYTES_MAX = 2 * 1024 * 1024
"""A key, and little else."""

_encode = msgspec.msgpack.Encoder().encode


def peer_routes(holder: RowHolder) -> list[Route]:
    """The paths that other workers ask at."""
    return [
        Route("/peer/row", _page(RowAsked, holder.row), methods=["POST"]),
        Route("/peer/rows", _page(RowsAsked, holder.rows), methods=["POST"]),
        Route("/peer/passed", _page(PassedAsked, holder.passed), methods=["POST"]),
    ]


def _page(
    kind: type[Q], answer: Callable[[Q], Awaitable[object]]
) -> Callable[[Request], Awaitable[Response]]:
    async def page(request: Request) -> Response:
        try:
            asked = msgspec.msgpack.decode(await body_of(request, QUESTION_BYTES_MAX), type=kind)
            found = await answer(asked)
        except msgspec.MsgspecError as error:
            return json_answer({"error": f"not a question: {error}"}, MALFORMED)
        except NotHere as error:
            return json_answer({"error": str(error)}, NOT_HERE)
        except StreamlogError as error:
            return error_answer(error)
        return Response(_encode(found), media_type=CONTENT_TYPE)

    return page


async def body_of(request: Request, bytes_max: int) -> bytes:
    """A request's body, if it is not too large.

    Raises:
        MsgspecError: it is.
    """
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > bytes_max:
            raise msgspec.DecodeError(f"more than {bytes_max} bytes")
    return bytes(body)
