"""WebSocket against servers of the same library: what is sent, resumed, lost and refused."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from random import Random

import pytest
import trustme
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.utils import accept_key

from streamlog.connect import ConnectError, Retriable, Secret
from streamlog.connectors import websocket
from streamlog.connectors.client_tls import ClientTls
from streamlog.connectors.websocket import WebSocket
from streamlog.errors import ConfigError
from streamlog.testing import check_source
from tests.connectors.runs import on_loop, reading

Handle = Callable[[ServerConnection], Awaitable[None]]


@pytest.fixture(autouse=True)
def quick_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait shorter for a server that does not answer a close."""
    monkeypatch.setattr(websocket, "CLOSE_S", 0.1)


@asynccontextmanager
async def serving(handle: Handle, **options: object) -> AsyncIterator[str]:
    """Answer each connection by `handle`; return the URL."""
    async with serve(handle, "127.0.0.1", 0, **options) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"ws://127.0.0.1:{port}"


async def stay(connection: ServerConnection) -> None:
    """Wait until the client has gone."""
    await connection.wait_closed()


class Feed:
    """A server that numbers its messages, sends again what a client asks for, and drops clients."""

    def __init__(self, seed: int, *, inclusive: bool = False) -> None:
        self.chance, self.inclusive = Random(seed), inclusive
        self.messages: list[bytes] = []
        self.grown = asyncio.Condition()

    async def put(self, rows: Sequence[object]) -> None:
        async with self.grown:
            for row in rows:
                message = {"meta": {"n": len(self.messages)}, "row": row}
                self.messages.append(json.dumps(message).encode())
            self.grown.notify_all()

    async def rows(self) -> Sequence[object]:
        return self.messages

    async def handle(self, connection: ServerConnection) -> None:
        asked = json.loads(await connection.recv())
        await connection.send('{"type": "welcome"}')
        at = asked["after"] + (0 if self.inclusive else 1)
        sending = asyncio.ensure_future(self.send_from(max(at, 0), connection))
        await connection.wait_closed()
        sending.cancel()
        await asyncio.wait([sending])

    async def send_from(self, at: int, connection: ServerConnection) -> None:
        while True:
            async with self.grown:
                while at == len(self.messages):
                    await self.grown.wait()
            if self.chance.random() < 0.05:
                connection.transport.abort()
            elif self.chance.random() < 0.05:
                await connection.close()
            # As text or bytes, whole or in fragments: a message is a message.
            text = self.messages[at].decode()
            whole: str | bytes = text if self.chance.random() < 0.5 else text.encode()
            cut = self.chance.randrange(len(whole))
            try:
                await connection.send([whole[:cut], whole[cut:]] if cut % 2 else whole)
            except ConnectionClosed:
                return
            at += 1


@pytest.mark.parametrize("inclusive", [False, True])
@on_loop
async def test_each_message_is_read_once_if_the_server_sends_again(inclusive: bool) -> None:
    feed = Feed(int(inclusive), inclusive=inclusive)
    async with serving(feed.handle) as url:
        source = WebSocket(
            url=url,
            resume='{"after": {offset}}',
            offset_field="meta.n",
            start="-1",
            retry="1ms",
        )
        await check_source(lambda: source, feed, seed=3, lives=15)


@on_loop
async def test_messages_come_as_they_are() -> None:
    sent = ["ä", b"\xff\x00", "", "x" * 1_000_000]

    async def handle(connection: ServerConnection) -> None:
        asked = [await connection.recv(), await connection.recv()]
        assert asked == ["first", "second"]
        assert connection.request is not None
        headers = connection.request.headers
        assert (headers["X-Name"], headers["Authorization"]) == ("n", "Bearer geheim")
        for each in sent:
            await connection.send(each)
        await stay(connection)

    async with serving(handle) as url:
        source = WebSocket(
            url=url,
            subscribe=("first", "second"),
            headers={"X-Name": "n"},
            token=Secret("geheim"),
        )
        assert source.guarantee == "at_most_once"
        async with reading(source) as life:
            values = await life.take(4)
            assert values == [e.encode() if isinstance(e, str) else e for e in sent]
            assert life.offset == {}
        # Nothing is known of it: the next life subscribes again, and gets what comes from then on.
        async with reading(source, life.offset) as life:
            assert len(await life.take(4)) == 4


@on_loop
async def test_what_is_sent_before_the_first_record_is_subscribed_to_again() -> None:
    asked: list[str] = []

    async def handle(connection: ServerConnection) -> None:
        asked.append(str(await connection.recv()))
        for each in ("no JSON", '{"n": null}', '{"n": [1]}', "[1]", '{"n": "a"}', '{"n": "b"}'):
            await connection.send(each)
        await stay(connection)

    async with serving(handle) as url:
        source = WebSocket(url=url, subscribe=("all",), resume="after {offset}", offset_field="n")
        assert source.guarantee == "exactly_once"
        async with reading(source) as life:
            assert await life.take(2) == [b'{"n": "a"}', b'{"n": "b"}']
            assert life.offset == {"position": "b"}
            assert life.context.counts == {"messages_without_offset": 4}
        async with reading(source, life.offset) as life:
            await life.take(2)
        assert asked == ["all", 'after "b"']


@on_loop
async def test_many_messages_make_few_steps() -> None:
    async def handle(connection: ServerConnection) -> None:
        for number in range(5_000):
            await connection.send(b"%d" % number)
        await stay(connection)

    async with serving(handle) as url, reading(WebSocket(url=url)) as life:
        steps = 0
        while len(life.records) < 5_000:
            await life.step()
            life.commit()
            steps += 1
        assert life.values == [b"%d" % number for number in range(5_000)]
        assert steps < 2_500


@on_loop
async def test_a_slow_log_slows_the_server_down() -> None:
    sent = 0

    async def handle(connection: ServerConnection) -> None:
        nonlocal sent
        for _ in range(400):
            await connection.send(b"x" * 100_000)
            sent += 1
        await stay(connection)

    async with serving(handle, compression=None) as url, reading(WebSocket(url=url)) as life:
        await life.step()
        before = -1
        # Until no more goes out: sockets of the kernel hold some megabytes.
        while before < sent:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 400
        assert len(await life.take(400)) == 400


@on_loop
async def test_a_silent_server_is_noticed() -> None:
    stopped = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The opening handshake by hand, and nothing after it, not even a pong.
        request = await reader.readuntil(b"\r\n\r\n")
        key = re.search(rb"Sec-WebSocket-Key: (\S+)", request)
        assert key is not None
        headers = Headers(Upgrade="websocket", Connection="Upgrade")
        headers["Sec-WebSocket-Accept"] = accept_key(key[1].decode())
        writer.write(Response(101, "Switching Protocols", headers).serialize())
        await stopped.wait()
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(Retriable, match=r"connection lost.*ping timeout"):
            async with reading(WebSocket(url=f"ws://127.0.0.1:{port}", ping="100ms")) as life:
                await life.step()
        stopped.set()


@on_loop
async def test_what_the_server_says_decides() -> None:
    status = HTTPStatus.OK
    code = 1011

    def respond(connection: ServerConnection, request: Request) -> Response | None:
        del request
        if status is HTTPStatus.OK:
            return None
        answer = connection.respond(status, "")
        answer.headers["Location"] = "ws://127.0.0.1:1/"
        return answer

    async def handle(connection: ServerConnection) -> None:
        await connection.close(code, "why")

    async def caught(url: str) -> ConnectError:
        with pytest.raises(ConnectError) as error:
            async with reading(WebSocket(url=url)) as life:
                await life.step()
        return error.value

    async with serving(handle, process_request=respond) as url:
        error = await caught(url)
        assert isinstance(error, Retriable)
        assert "connection lost: received 1011 (internal error) why" in str(error)
        for status, is_retriable in (
            (HTTPStatus.UNAUTHORIZED, False),
            (HTTPStatus.NOT_FOUND, False),
            # Followed, it would bring the token to another server.
            (HTTPStatus.TEMPORARY_REDIRECT, False),
            (HTTPStatus.TOO_MANY_REQUESTS, True),
            (HTTPStatus.SERVICE_UNAVAILABLE, True),
        ):
            error = await caught(url)
            assert f"was answered with {status.value}" in str(error)
            assert isinstance(error, Retriable) is is_retriable
    assert isinstance(await caught(url), Retriable)


@on_loop
async def test_the_largest_message() -> None:
    async def handle(connection: ServerConnection) -> None:
        await connection.send(b"x" * 1_000)
        await connection.send(b"x" * 1_001)
        await stay(connection)

    async with serving(handle) as url:
        async with reading(WebSocket(url=url, message_bytes_max=1_000)) as life:
            await life.take(1)
            with pytest.raises(ConnectError, match="larger than message_bytes_max") as caught:
                await life.step()
        assert not isinstance(caught.value, Retriable)


@on_loop
async def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate = authority.issue_cert("127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    certificate.configure_cert(context)

    async def handle(connection: ServerConnection) -> None:
        await connection.send("x")
        await stay(connection)

    async with serving(handle, ssl=context) as plain:
        url = plain.replace("ws:", "wss:")
        async with reading(WebSocket(url=url, tls=ClientTls(ca=str(tmp_path / "ca.pem")))) as life:
            assert await life.take(1) == [b"x"]
        with pytest.raises(Retriable, match="CERTIFICATE_VERIFY_FAILED"):
            async with reading(WebSocket(url=url)) as life:
                await life.step()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "http://h"}, "is not ws://HOST:PORT or wss://HOST:PORT"),
        ({"url": "ws://u:geheim@h"}, "set token or headers"),
        ({"tls": ClientTls()}, "begins with wss://"),
        ({"resume": "{offset}"}, "go together"),
        ({"offset_field": "n"}, "go together"),
        ({"resume": "r", "offset_field": "n"}, "has no {offset}"),
        ({"resume": "{offset}", "offset_field": "a..b"}, "has an empty name"),
        ({"start": "1"}, "start needs resume"),
        ({"resume": "{offset}", "offset_field": "n", "start": "x"}, "a string in quotes"),
        ({"ping": "0s"}, "ping is 0"),
        ({"timeout": "0s"}, "timeout is 0"),
        ({"message_bytes_max": 0}, "from 1 to"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        WebSocket(**{"url": "ws://h", **settings}).check()
    assert "geheim" not in str(caught.value)
