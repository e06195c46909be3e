"""The server binds its address first, and does not wait long for clients when it stops."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from streamlog.errors import ConfigError, ListenError
from streamlog.http_server import (
    LOCAL_NAMES,
    WebListener,
    is_allowed_host,
    is_local,
    listen,
    parse_address,
    serve,
)


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


def test_addresses_are_parsed_as_host_and_port() -> None:
    assert parse_address("127.0.0.1:80") == ("127.0.0.1", 80)
    assert parse_address(":0") == ("127.0.0.1", 0)
    assert parse_address("[::1]:8080") == ("::1", 8080)
    for wrong in ("", "8080", "host", "host:", "host:x", "host:70000"):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            parse_address(wrong)


def test_the_advertised_address_can_be_reached_by_others() -> None:
    with listen("0.0.0.0:0") as listener:
        assert listener.endpoint == f"{socket.gethostname()}:{listener.port}"
    with listen("localhost:0") as listener:
        assert listener.endpoint.endswith(f":{listener.port}")


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("x", False)],  # noqa: S104
)
def test_only_loopback_addresses_are_local(host: str, *, expected: bool) -> None:
    assert is_local(host) == expected


@pytest.mark.parametrize(
    ("header", "expected"),
    [("localhost:8083", True), ("[::1]:8083", True), ("127.0.0.1", True), ("evil.example", False)],
)
def test_a_name_that_resolves_to_this_machine_is_refused(header: str, *, expected: bool) -> None:
    assert is_allowed_host(header, LOCAL_NAMES) == expected
    assert is_allowed_host(header, ("*",))
