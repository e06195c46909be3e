"""Requests to an ASGI application without a socket, and to a server over HTTP."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.types import Message, Scope

DEADLINE_S = 60


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


async def request_from(
    site: Starlette, url: str, *, method: str = "GET", body: bytes = b""
) -> Answer:
    """Send one request; errors that the application also raises are ignored, as by a server."""
    path, _, query = url.partition("?")
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"test"), (b"content-length", str(len(body)).encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    answer = Answer()
    sent = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if sent:
            return sent.pop()
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {k.decode(): v.decode() for k, v in message["headers"]}
        else:
            answer.body += message.get("body", b"")

    try:
        await site(scope, receive, send)
    except Exception:
        if answer.status < 500:
            raise
    return answer


def get(
    url: str, *, method: str = "GET", body: bytes | None = None, host: str | None = None
) -> Answer:
    """Send a request to a server; blocks."""
    headers: Mapping[str, str] = {} if host is None else {"host": host}
    request = urllib.request.Request(url, data=body, method=method, headers=dict(headers))  # noqa: S310 - http to ourselves
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:  # noqa: S310 - the same
            return Answer(response.status, dict(response.headers.items()), response.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, dict(error.headers.items()), error.read())
