from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from pathlib import Path

import pytest
import trustme

from streamlog.connectors.listeners import (
    RECEIVE_BUFFER_BYTES,
    SO_RCVBUFFORCE,
    TlsFiles,
    ask_for_room,
    parse_address,
)
from streamlog.connectors.syslog import Syslog, SyslogMessage
from streamlog.errors import ConfigError
from tests.connectors.runs import on_loop, reading
from tests.connectors.test_lines import until_listening
from tests.servers.server_process import free_port, program


async def received(source: Syslog, send: list[list[str]], count: int) -> list[SyslogMessage]:
    """Return what commands send while the source listens."""
    async with reading(source) as life:
        step = asyncio.ensure_future(life.step())
        await until_listening(source.address, source.transport)
        for command in send:
            await asyncio.to_thread(subprocess.run, command, check=True, timeout=30)
        await step
        life.commit()
        return await life.take(count)


@pytest.mark.parametrize("rfc", ["--rfc3164", "--rfc5424"])
@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_messages_of_logger(transport: str, rfc: str) -> None:
    logger = str(program("logger", "bsdutils"))
    port = free_port()
    source = Syslog(address=f":{port}", transport="udp" if transport == "udp" else "tcp")
    common = [logger, f"--{transport}", "--server", "127.0.0.1", "--port", str(port), rfc]
    counted = ["--octet-count"] if transport == "tcp" else []
    texts = ["first", "second: with a colon"]
    commands = [
        [*common, *(counted if number else []), "-t", "shop", "-p", "local3.err", "--id=17", text]
        for number, text in enumerate(texts)
    ]
    found = asyncio.run(received(source, commands, 2))
    assert [message.text for message in found] == texts
    for message in found:
        assert (message.facility, message.severity) == ("local3", "err")
        assert (message.app, message.process_id) == ("shop", "17")
        assert message.host == socket.gethostname().split(".")[0]
        assert message.timestamp is not None


@on_loop
async def test_messages_over_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    (tmp_path / "cert.pem").write_bytes(server.cert_chain_pems[0].bytes())
    (tmp_path / "key.pem").write_bytes(server.private_key_pem.bytes())
    source = Syslog(
        address=f":{free_port()}",
        transport="tcp",
        tls=TlsFiles(certificate=str(tmp_path / "cert.pem"), key=str(tmp_path / "key.pem")),
    )
    client = ssl.create_default_context()
    authority.configure_trust(client)
    async with reading(source) as life:
        step = asyncio.ensure_future(life.step())
        await until_listening(source.address, "tcp")
        _, writer = await asyncio.open_connection(*parse_address(source.address), ssl=client)
        for message in (b"<34>1 - - - x", b"<34>1 - h a - - - text!"):
            writer.write(b"%d %s" % (len(message), message))
        await writer.drain()
        writer.close()
        await step
        life.commit()
        found = await life.take(2)
    assert [(each.host, each.text) for each in found] == [(None, "1 - - - x"), ("h", "text!")]
    assert [record.key for record in life.records] == ["127.0.0.1", "h"]


class UnprivilegedSocket(socket.socket):
    def setsockopt(self, level: int, name: int, value: int) -> None:  # type: ignore[override]
        if name == SO_RCVBUFFORCE:
            raise PermissionError
        super().setsockopt(level, name, value)


@pytest.mark.parametrize("kind", [socket.socket, UnprivilegedSocket])
def test_datagrams_wait_in_all_the_room_that_the_kernel_gives(kind: type[socket.socket]) -> None:
    limit = int(Path("/proc/sys/net/core/rmem_max").read_text())
    with kind(socket.AF_INET, socket.SOCK_DGRAM) as bound:
        ask_for_room(bound)
        # Linux doubles what it gives (socket(7)).
        assert bound.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= 2 * min(
            RECEIVE_BUFFER_BYTES, limit
        )


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="tls needs transport='tcp'"):
        Syslog(address=":1", tls=TlsFiles(certificate="a", key="b")).check()
    with pytest.raises(ConfigError, match="zone='Mars' is no time zone"):
        Syslog(address=":1", zone="Mars").check()
