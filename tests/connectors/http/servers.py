"""A server for tests: a function answers requests, over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from streamlog.http_server import listen, serve


@asynccontextmanager
async def answering(respond: Callable[[Request], Awaitable[Response]]) -> AsyncIterator[str]:
    """Serve every path by `respond`; return the URL."""
    methods = ["GET", "POST", "PUT"]
    app = Starlette(routes=[Route("/{path:path}", respond, methods=methods)])
    with listen("127.0.0.1:0") as listener:
        async with serve(app, listener):
            yield f"http://127.0.0.1:{listener.port}"
