"""The server binds its address first, and does not wait long for clients when it stops."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from streamlog import http_server
from streamlog.errors import ListenError
from streamlog.http_server import (
    LOCAL_NAMES,
    WebListener,
    is_allowed_host,
    listen,
    serve,
)

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


def site(answer: Callable[[], Awaitable[str]]) -> Starlette:
    async def page(_request: Request) -> PlainTextResponse:
        return PlainTextResponse(await answer())

    return Starlette(routes=[Route("/", page)])


async def say_hello() -> str:
    return "hello"


async def ask(listener: WebListener, *, keep: bool = False) -> bytes:
    reader, writer = await asyncio.open_connection(listener.host, listener.port)
    try:
        connection = "keep-alive" if keep else "close"
        writer.write(f"GET / HTTP/1.1\r\nhost: x\r\nconnection: {connection}\r\n\r\n".encode())
        return await reader.readuntil(b"hello") if keep else await reader.read()
    finally:
        writer.close()


def test_the_server_answers_and_releases_its_address() -> None:
    async def main() -> None:
        with listen("127.0.0.1:0") as listener:
            address = listener.endpoint
            async with serve(site(say_hello), listener):
                answers = await asyncio.gather(*(ask(listener) for _ in range(20)))
                assert all(b"200 OK" in answer for answer in answers)
                assert await ask(listener, keep=True)
        with listen(address) as again:
            assert again.endpoint == address

    asyncio.run(main())


def test_the_server_leaves_signal_handlers_unchanged() -> None:
    def mine(_number: int, _frame: object) -> None: ...

    async def main() -> None:
        with listen(":0") as listener:
            async with serve(site(say_hello), listener):
                await ask(listener)
                assert signal.getsignal(signal.SIGTERM) is mine

    before = signal.signal(signal.SIGTERM, mine)
    try:
        asyncio.run(main())
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_address_in_use_is_reported() -> None:
    with listen("127.0.0.1:0") as listener:
        with pytest.raises(ListenError, match="the port is taken"), listen(listener.endpoint):
            pass
        assert listener.host == "127.0.0.1"
    with pytest.raises(ListenError, match=r"can't listen on 192\.0\.2\.1:0"):
        listen("192.0.2.1:0").__enter__()


@pytest.mark.parametrize("cancelled", [False, True])
def test_an_endless_request_does_not_delay_the_stop(
    monkeypatch: pytest.MonkeyPatch, *, cancelled: bool
) -> None:
    monkeypatch.setattr("streamlog.http_server.GRACE_S", 0)

    async def main() -> None:
        began = asyncio.Event()
        ended = asyncio.Event()

        async def forever() -> str:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return ""

        async def block(listener: WebListener) -> None:
            async with serve(site(forever), listener):
                await began.wait()
                if cancelled:
                    await asyncio.Event().wait()

        with listen(":0") as listener:
            async with asyncio.TaskGroup() as group:
                asked = group.create_task(ask(listener))
                block_task = group.create_task(block(listener))
                await began.wait()
                if cancelled:
                    block_task.cancel()
                await asyncio.wait([block_task])
                assert block_task.cancelled() == cancelled
                assert ended.is_set()
                with suppress(ConnectionError):  # Or the end of the stream, without an answer.
                    assert b"200" not in await asked

    asyncio.run(main())


def test_the_advertised_address_can_be_reached_by_others() -> None:
    with listen("0.0.0.0:0") as listener:
        assert listener.endpoint == f"{socket.gethostname()}:{listener.port}"
    with listen("localhost:0") as listener:
        assert listener.endpoint.endswith(f":{listener.port}")


@pytest.mark.parametrize(
    ("header", "expected"),
    [("localhost:8083", True), ("[::1]:8083", True), ("127.0.0.1", True), ("evil.example", False)],
)
def test_a_name_that_resolves_to_this_machine_is_refused(header: str, *, expected: bool) -> None:
    assert is_allowed_host(header, LOCAL_NAMES) == expected
    assert is_allowed_host(header, ("*",))


class Slow:
    """A client that sends a request in pieces."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, piece: bytes) -> None:
        self._writer.write(piece)

    async def is_cut_off(self) -> None:
        with suppress(ConnectionResetError):
            assert await self._reader.read() == b""

    async def answer(self) -> bytes:
        return await self._reader.readuntil(b"hello")

    def close(self) -> None:
        self._writer.close()


HEAD, BODY = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n", b"{}"


def test_a_head_that_takes_too_long_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    # Long enough for the heads that do arrive, also on a machine that is busy.
    monkeypatch.setattr(http_server, "HEAD_S", 1)

    async def hello(request: Request) -> PlainTextResponse:
        await request.body()
        return PlainTextResponse("hello")

    async def main() -> None:
        async with asyncio.timeout(30):
            with listen("127.0.0.1:0") as listener:
                app = Starlette(routes=[Route("/", hello, methods=["POST"])])
                async with serve(app, listener):
                    await _times_out(listener)

    async def _times_out(listener: WebListener) -> None:
        async def client() -> Slow:
            return Slow(*await asyncio.open_connection(listener.host, listener.port))

        # Once its head is there, the body may take as long as the application lets it.
        patient = await client()
        patient.send(HEAD)
        silent, endless, second = [await client() for _ in range(3)]
        endless.send(HEAD[:-2])
        second.send(HEAD + BODY + HEAD[:1])
        assert await second.answer()
        second.send(HEAD[1:-2])
        for each in (silent, endless, second):
            await each.is_cut_off()
        patient.send(BODY + HEAD + BODY)
        assert await patient.answer()
        assert await patient.answer()
        for each in (patient, silent, endless, second):
            each.close()

    asyncio.run(main())


def test_a_client_that_stops_reading_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "WRITE_S", 0.2)

    async def main() -> None:
        gone = asyncio.Event()

        async def endless(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})

            async def write() -> None:
                while True:
                    body = bytes(1024 * 1024)
                    await send({"type": "http.response.body", "body": body, "more_body": True})

            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(write())
                while (await receive())["type"] != "http.disconnect":
                    pass
                writing.cancel()
            gone.set()

        with listen("127.0.0.1:0") as listener:
            async with serve(endless, listener):
                with socket.create_connection((listener.host, listener.port)) as client:
                    client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                    # It never reads. Without the deadline, this would wait for ever.
                    await gone.wait()

    asyncio.run(main())
