"""SocketBuffers: the sizes of a socket's send and receive buffers.

Rule of this module: -1 leaves a buffer to the operating system, which adapts it to the network. A
fixed size ends that, so it is the default nowhere.
"""

from __future__ import annotations

import socket
from typing import Final, NamedTuple, Protocol

from streamlog.errors import ConfigError

SYSTEM_BUFFER: Final = -1
"""The size of a buffer that the system tunes."""


class Socket(Protocol):
    """Port: the part of a socket that sets options."""

    def setsockopt(self, level: int, name: int, value: int, /) -> None:
        """Set an option."""
        ...


class SocketBuffers(NamedTuple):
    """Sizes in bytes; -1 for the system's."""

    send_bytes: int = SYSTEM_BUFFER
    receive_bytes: int = SYSTEM_BUFFER

    def apply(self, taken: Socket) -> None:
        """Give a socket these buffers; Linux doubles the sizes, and limits them by sysctl."""
        for option, size_bytes in (
            (socket.SO_SNDBUF, self.send_bytes),
            (socket.SO_RCVBUF, self.receive_bytes),
        ):
            if size_bytes != SYSTEM_BUFFER:
                taken.setsockopt(socket.SOL_SOCKET, option, size_bytes)


SYSTEM_BUFFERS: Final = SocketBuffers()
"""Both buffers are the system's."""


class BufferSettings(Protocol):
    """Port: settings with the sizes of both buffers."""

    @property
    def send_buffer_bytes(self) -> int:
        """The size of the send buffer."""
        ...

    @property
    def receive_buffer_bytes(self) -> int:
        """The size of the receive buffer."""
        ...


def check_buffers(settings: BufferSettings) -> None:
    """Check settings of buffers.

    Raises:
        ConfigError: a size is neither positive nor -1.
    """
    for name, size_bytes in (
        ("send_buffer_bytes", settings.send_buffer_bytes),
        ("receive_buffer_bytes", settings.receive_buffer_bytes),
    ):
        if size_bytes < 1 and size_bytes != SYSTEM_BUFFER:
            raise ConfigError(
                f"{name} is {size_bytes}: it has to be positive, or -1 for the system's"
            )


def buffers_of(settings: BufferSettings) -> SocketBuffers:
    """Return the buffers that settings ask for."""
    return SocketBuffers(settings.send_buffer_bytes, settings.receive_buffer_bytes)
