"""Peer HTTP: one request to another worker, over a connection of its own.

Rule: an answer is bounded while it arrives. Not done here: time limits and retries, which differ by
caller, and what a request means.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import h11

from streamlog.clock import Clock
from streamlog.http_access.peer_signatures import check_signature, signed_headers

READ_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCall:
    """One request."""

    method: str = "POST"
    target: str
    """Path and query, as they are sent."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class PeerLogin:
    """How the workers of an app show each other who they are."""

    key: Callable[[], bytes] | None
    """Returns the key with which requests are signed; None: they are not."""
    tls: ssl.SSLContext | None
    """Encrypts requests; None: they are not."""
    clock: Clock

    def headers(self, method: str, target: str, body: bytes) -> dict[str, str]:
        """Return the headers that sign a request."""
        if self.key is None:
            return {}
        return signed_headers(self.key(), method, target, body, wall_ms=self.clock.wall_ms())

    def check(self, target: str, headers: Mapping[str, str], body: bytes) -> None:
        """Check the signature of a POST of another worker.

        Raises:
            BadSignature: it has none, or none that holds.
        """
        if self.key is not None:
            request = ("POST", target, body)
            check_signature([self.key()], request, headers, wall_ms=self.clock.wall_ms())


async def call_peer(
    endpoint: str, call: PeerCall, *, answer_bytes_max: int, tls: ssl.SSLContext | None = None
) -> tuple[int, bytes]:
    """Return status and body of the answer of the worker at an endpoint, HOST:PORT.

    Raises:
        OSError: it can't be reached.
        h11.RemoteProtocolError: its answer is no HTTP, ends early, or is larger than
            `answer_bytes_max`.
    """
    host, _, port = endpoint.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=tls)
    try:
        http = h11.Connection(h11.CLIENT)
        headers = {
            "host": endpoint,
            "content-length": str(len(call.body)),
            "connection": "close",
            **call.headers,
        }
        for event in (
            h11.Request(method=call.method, target=call.target, headers=[*headers.items()]),
            h11.Data(data=call.body),
            h11.EndOfMessage(),
        ):
            writer.write(http.send(event) or b"")
        await writer.drain()
        return await _response(http, reader, answer_bytes_max)
    finally:
        writer.close()


async def _response(
    http: h11.Connection, reader: asyncio.StreamReader, bytes_max: int
) -> tuple[int, bytes]:
    status = 0
    body = bytearray()
    while True:
        event = http.next_event()
        match event:
            case h11.NEED_DATA:
                http.receive_data(await reader.read(READ_BYTES))
            case h11.Response():
                status = event.status_code
            case h11.Data():
                body += event.data
                # Checked while data arrives, so that no answer fills the memory.
                if len(body) > bytes_max:
                    raise h11.RemoteProtocolError(f"its answer has more than {bytes_max} bytes")
            case h11.EndOfMessage():
                return status, bytes(body)
            case h11.ConnectionClosed():
                raise h11.RemoteProtocolError("it closed the connection before its answer")
            case _:
                pass
