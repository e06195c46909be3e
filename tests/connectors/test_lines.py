from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from streamlog.connectors import listeners
from streamlog.connectors.lines import Lines
from streamlog.connectors.listeners import Inbox, Received, TlsFiles
from streamlog.connectors.message_framing import LineFramer
from streamlog.errors import ConfigError, ListenError
from tests.broker.certificates import certificates
from tests.connectors.runs import Life, RealContext, on_loop, reading
from tests.servers.server_process import free_port


@asynccontextmanager
async def served(
    lines: Lines, context: RealContext | None = None
) -> AsyncIterator[tuple[Life, asyncio.Future[Any]]]:
    """Run a reader of lines until it listens, and its first step."""
    async with reading(lines, context=context) as life:
        step = asyncio.ensure_future(life.step())
        await until_listening(lines.address, lines.transport)
        yield life, step
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)


async def until_listening(address: str, transport: str) -> None:
    """Wait until the address is taken."""
    kind = socket.SOCK_STREAM if transport == "tcp" else socket.SOCK_DGRAM
    host, port = listeners.parse_address(address)
    async with asyncio.timeout(30):
        while True:
            with socket.socket(socket.AF_INET, kind) as probe:
                try:
                    probe.bind((host, port))
                except OSError:
                    return
            await asyncio.sleep(0.001)


@on_loop
async def test_each_line_over_tcp_is_acknowledged_once_it_is_committed() -> None:
    lines = Lines(address=f":{free_port()}", acknowledge=True, peer_header="from")
    async with served(lines) as (life, step):
        reader, writer = await asyncio.open_connection(*listeners.parse_address(lines.address))
        writer.write(b"one\ntwo\r\nthr")
        await step
        answer = asyncio.ensure_future(reader.readexactly(6))
        await asyncio.sleep(0)
        assert not answer.done(), "nothing is committed yet"
        life.commit()
        await life.take(2)
        assert await answer == b"OK\nOK\n"
        writer.write_eof()
        assert await life.take(3) == [b"one", b"two", b"thr"]
        assert life.records[0].headers == (("from", b"127.0.0.1"),)
        writer.close()


@on_loop
async def test_each_datagram_is_a_record() -> None:
    lines = Lines(address=f":{free_port()}", transport="udp")
    async with served(lines) as (life, step):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for number in range(3):
                sender.sendto(b"%d" % number, listeners.parse_address(lines.address))
        await step
        life.commit()
        assert await life.take(3) == [b"0", b"1", b"2"]


@on_loop
async def test_what_the_kernel_drops_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "RECEIVE_BUFFER_BYTES", 4_096)
    context = RealContext()
    lines = Lines(address=f":{free_port()}", transport="udp")
    async with served(lines, context) as (life, step):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            to = listeners.parse_address(lines.address)
            for _ in range(200):  # The loop does not run meanwhile, so the kernel has to hold them.
                sender.sendto(b"x" * 500, to)
            await step
            life.commit()
            while not context.counts["kernel_drops"]:
                sender.sendto(b"x", to)
                await life.step()
                life.commit()
    assert len([each for each in life.values if len(each) == 500]) == (
        200 - context.counts["kernel_drops"]
    )


@on_loop
async def test_a_full_inbox_lets_its_senders_wait() -> None:
    inbox = Inbox(bytes_max=1_000)
    resumed: list[int] = []
    for number in range(10):
        inbox.put(Received(b"x" * 100, "", None))
        if inbox.is_full:
            inbox.when_room(lambda number=number: resumed.append(number))  # type: ignore[misc]
    assert inbox.is_full
    assert len(await inbox.take()) == 10
    assert not inbox.is_full
    assert resumed == [4, 5, 6, 7, 8, 9]


@on_loop
async def test_more_than_an_inbox_holds_arrives_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "TAKEN_MAX", 100)
    lines = Lines(address=f":{free_port()}")
    sent = [b"%06d" % number + b"x" * 1_000 for number in range(6_000)]
    async with served(lines) as (life, step):
        _, writer = await asyncio.open_connection(*listeners.parse_address(lines.address))
        writer.write(b"\n".join([*sent, b""]))
        await step
        life.commit()
        assert await life.take(6_000) == sent
        writer.close()


@on_loop
async def test_two_listeners_of_a_machine_share_a_port() -> None:
    lines = Lines(address=f":{free_port()}", listeners=2)
    assert await lines.partitions(RealContext()) == [{"listener": 0}, {"listener": 1}]
    async with served(lines), served(lines):
        pass


@on_loop
async def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(ListenError, match=r"192\.0\.2\.1:1 can't be listened on"):
        async with reading(Lines(address="192.0.2.1:1")) as life:
            await life.step()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"address": "5140"}, "is not HOST:PORT"),
        ({"address": ":99999"}, "is not HOST:PORT"),
        ({"address": ":1", "transport": "udp", "acknowledge": True}, "need transport='tcp'"),
        ({"address": ":1", "line_bytes_max": 0}, "line_bytes_max=0"),
        ({"address": ":1", "listeners": 0}, "listeners=0"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Lines(**settings).check()


def test_missing_files_of_tls_are_an_error() -> None:
    with pytest.raises(ConfigError, match="files of tls can't be used"):
        TlsFiles(certificate="/nowhere.pem", key="/nowhere.key").context()


@pytest.mark.parametrize("passes", range(5))
@on_loop
async def test_a_client_that_is_accepted_while_the_listener_stops_is_closed(passes: int) -> None:
    address = f":{free_port()}"
    at, loop = listeners.parse_address(address), asyncio.get_running_loop()
    with socket.socket() as client:
        async with listeners.listening_tcp(address, Inbox(), LineFramer):
            client.connect(at)
            client.setblocking(False)
            for _ in range(passes):
                await asyncio.sleep(0)
        async with asyncio.timeout(30):
            with suppress(ConnectionResetError):
                assert await loop.sock_recv(client, 1) == b""


@on_loop
async def test_a_client_whose_tls_handshake_outlasts_the_listener_is_closed() -> None:
    files = certificates()
    tls = TlsFiles(certificate=files.broker, key=files.broker).context()
    address, accepted = f":{free_port()}", asyncio.Event()

    def framer() -> LineFramer:
        accepted.set()
        return LineFramer()

    async with asyncio.timeout(30):
        async with listeners.listening_tcp(address, Inbox(), framer, tls):
            reader, writer = await asyncio.open_connection(*listeners.parse_address(address))
            await accepted.wait()
        with suppress(OSError):
            await writer.start_tls(ssl.create_default_context(cafile=files.authority))
            writer.write(b"unread\n")
            assert await reader.read() == b""
        writer.close()
