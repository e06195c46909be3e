"""Outlet: what a connection is answered with, on its way into the socket.

Answers are pieces: bytes in memory, and ranges of files, which the kernel takes from its page
cache (sendfile) without a copy in this process. They leave in the order in which they were
given. Event loops have no such thing that works on asyncio's and uvloop's alike and keeps that
order, so the outlet writes by itself, to a descriptor of its own for the same socket; the
transport goes on reading.

What a slow reader leaves is bounded by whoever gives: `blocked` says to give no more. Of a range
that waits only its place is held. Measured in docs/decisions/002-sendfile.md.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from streamlog.broker.storage.disk.file_range import FileRange
from streamlog.protocol.schema import Buffer, Piece, one_buffer

JOINED_BYTES_MAX = 16 * 1024
"""So many bytes are joined for one write; copying more costs more than a list of buffers."""
PIECES_MAX = 64
"""In one system call, which takes 1,024 at most."""
TURN_BYTES_MAX = 4 * 1024 * 1024
"""Then other connections have their turn, however fast this client reads."""
# Linux: hold the head of an answer back until the file's bytes follow, for one packet.
_MORE = getattr(socket, "MSG_MORE", 0)


class SocketWriter:
    """One connection's way out. Made while it is open, closed with it.

    `on_room` is called when everything has left after it was `blocked`, `on_failure` when the
    socket is dead or a file is not what it was: nothing more will leave then.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        *,
        on_room: Callable[[], None],
        on_failure: Callable[[OSError], None],
    ) -> None:
        self._socket = _second_socket(transport)
        self._socket.settimeout(0)
        self._loop = asyncio.get_running_loop()
        self._on_room = on_room
        self._on_failure = on_failure
        self._queue: deque[Piece] = deque()
        self._sent_bytes = 0
        """Of the first in the queue."""
        self.blocked = False
        """Whether the client has to read before more can leave."""
        self.unblockings = 0
        """How often a client that had to read has read something."""
        self._closed = False

    @property
    def held_bytes(self) -> int:
        """Memory that waits for the client."""
        return memory_bytes(self._queue)

    def write(self, pieces: Sequence[Piece]) -> None:
        """Send pieces after those that were given before."""
        self._queue += pieces
        if not self.blocked and not self._closed:
            self._send()

    def close(self) -> None:
        """Drop what has not left."""
        if self._closed:
            return
        self._closed = True
        self._queue.clear()
        if self.blocked:
            self._loop.remove_writer(self._socket)
        self._socket.close()

    def _on_writable(self) -> None:
        self.unblockings += 1
        self._send()
        if not self._queue and not self._closed:
            self._loop.remove_writer(self._socket)
            self.blocked = False
            self._on_room()

    def _send(self) -> None:
        turn_bytes = 0
        try:
            while self._queue and turn_bytes < TURN_BYTES_MAX:
                taken = self._send_some()
                self._advance(taken)
                turn_bytes += taken
        except BlockingIOError:
            pass
        except OSError as error:
            self.close()
            self._on_failure(error)
            return
        if self._queue and not self.blocked:
            self.blocked = True
            self._loop.add_writer(self._socket, self._on_writable)

    def _send_some(self) -> int:
        """One system call."""
        first = self._queue[0]
        if isinstance(first, FileRange):
            taken = first.send(self._socket.fileno(), self._sent_bytes)
            if not taken:
                raise OSError("a log file was truncated while it was being sent")
            return taken
        buffers, more = self._gathered()
        if len(buffers) == 1:
            return self._socket.send(buffers[0], more)
        return self._socket.sendmsg(buffers, (), more)

    def _gathered(self) -> tuple[list[Buffer], int]:
        """The pieces in memory at the front, and whether a file's are behind them."""
        buffers: list[Buffer] = []
        more = size_bytes = 0
        for piece in self._queue:
            if isinstance(piece, FileRange):
                more = _MORE
                break
            if len(buffers) == PIECES_MAX:
                break
            buffers.append(one_buffer(piece))
            size_bytes += len(piece)
        if self._sent_bytes:
            buffers[0] = memoryview(buffers[0])[self._sent_bytes :]
        if len(buffers) > 1 and size_bytes <= JOINED_BYTES_MAX:
            buffers = [b"".join(buffers)]
        return buffers, more

    def _advance(self, taken: int) -> None:
        left = self._sent_bytes + taken
        queue = self._queue
        while queue and left >= len(queue[0]):
            left -= len(queue.popleft())
        self._sent_bytes = left


def _second_socket(transport: asyncio.Transport) -> socket.socket:
    """A second socket for the connection; one that is not the kernel's gives its own."""
    given: Callable[[], socket.socket] | None = transport.get_extra_info("second_socket")
    if given is not None:
        return given()
    reading = transport.get_extra_info("socket")
    return socket.fromfd(reading.fileno(), reading.family, reading.type)


def memory_bytes(pieces: Iterable[Piece]) -> int:
    """How much memory pieces hold; ranges of files hold none."""
    return sum(len(piece) for piece in pieces if not isinstance(piece, FileRange))
