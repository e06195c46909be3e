"""Listening: addresses to listen on, and a server that accepts no more.

Rule: nothing here opens a socket. What listens is `http_server`, the broker, and the listeners of
connectors.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable
from typing import Final

from streamlog.errors import ConfigError

HOST_DEFAULT: Final = "127.0.0.1"
"""Local by default: a client that reaches the port needs no password."""
PORT_MAX: Final = 65_535
ACCEPT_PASSES: Final = 3
"""After these passes of the loop, no accepted socket is on its way to its connection any more."""


def parse_address(text: str, *, setting: str, example: int = 8080) -> tuple[str, int]:
    """Return host and port of "HOST:PORT", ":PORT" (127.0.0.1) or "[::1]:PORT".

    Args:
        text: the address.
        setting: the name of the setting, for the error.
        example: a port that the error shows.

    Raises:
        ConfigError: the text has none of these forms.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port[:6]) > PORT_MAX:
        raise ConfigError(
            f"{setting}={text!r} is not HOST:PORT, such as {HOST_DEFAULT}:{example} or :{example}"
        )
    return host.strip("[]") or HOST_DEFAULT, int(port)


def is_local(host: str) -> bool:
    """Return whether an address to listen on can be reached from this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def accept_no_more(servers: Iterable[asyncio.Server]) -> None:
    """Stop accepting; what was accepted is connected when this returns, and none is on its way.

    asyncio makes the protocol of an accepted socket in the next pass of the loop, and calls
    `connection_made` in the one after. A server that is closed meanwhile leaves that socket open,
    and its client waits for ever. So close a server behind this, never before.
    """
    loop = asyncio.get_running_loop()
    for server in servers:
        for listening in server.sockets:
            loop.remove_reader(listening.fileno())
    for _ in range(ACCEPT_PASSES):
        await asyncio.sleep(0)
