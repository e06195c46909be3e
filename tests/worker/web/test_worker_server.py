"""An app's own pages: their answers, and their errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from streamlog.dsl.services import WebAndCommands
from streamlog.errors import RequestTimedOut, UsageError
from streamlog.worker.web.worker_server import app_routes
from tests.worker.web.requests import Answer, request_from


@dataclass
class Day:
    number: int


async def text() -> str:
    return "<b>ü</b>"


async def raw() -> bytes:
    return b"\x00"


async def day(number: int) -> Day:
    return Day(number)


async def own(request: Request) -> Response:
    return PlainTextResponse(request.query_params["q"], 418)


async def late() -> str:
    raise RequestTimedOut("nobody answered")


async def wrong() -> str:
    raise UsageError("no such table")


async def odd() -> object:
    return object()


def answered(path: str, fn: Callable[..., Awaitable[Any]], url: str) -> Answer:
    front = WebAndCommands()
    front.add_page(path, fn)
    site = Starlette(routes=app_routes([*front.pages.values()]))
    return asyncio.run(request_from(site, url))


@pytest.mark.parametrize(
    ("path", "fn", "url", "expected"),
    [
        ("/", text, "/", (200, "text/html; charset=utf-8", "<b>ü</b>".encode())),
        ("/raw", raw, "/raw", (200, "application/octet-stream", b"\x00")),
        ("/days/{number:int}", day, "/days/7", (200, "application/json", b'{"number":7}')),
        ("/own", own, "/own?q=a%20b", (418, "text/plain; charset=utf-8", b"a b")),
    ],
)
def test_a_page_returns_its_value_as_the_answer(
    path: str, fn: Callable[..., Awaitable[Any]], url: str, expected: tuple[int, str, bytes]
) -> None:
    found = answered(path, fn, url)
    assert (found.status, found.headers["content-type"], found.body) == expected


@pytest.mark.parametrize(
    ("fn", "status", "told"),
    [
        (late, 503, "nobody answered"),
        (wrong, 400, "no such table"),
        (odd, 500, "the page /x failed: Encoding objects of type object is unsupported"),
    ],
)
def test_a_failing_page_returns_its_error(
    fn: Callable[..., Awaitable[Any]], status: int, told: str
) -> None:
    found = answered("/x", fn, "/x")
    assert (found.status, msgspec.json.decode(found.body)) == (status, {"error": told})
