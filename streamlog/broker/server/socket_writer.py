"""SocketWriter: writes the responses of a connection to its socket.

Responses are pieces: bytes in memory, and ranges of files, which the kernel sends from its page
cache (sendfile) without a copy in this process. Pieces leave in the order of the calls. No event
loop has a call that keeps this order and works on both asyncio and uvloop, so the writer has a
duplicate of the socket's descriptor and writes to that; the transport only reads.

The caller bounds what a slow client leaves in memory: while `blocked` is true, it should write no
more. A range that waits costs no memory but its position. Measured in
docs/decisions/002-sendfile.md.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from streamlog.broker.storage.disk.file_range import FileRange
from streamlog.protocol.schema import Buffer, Piece, one_buffer

JOINED_BYTES_MAX = 16 * 1024
"""Up to this many bytes are joined for one write; a list of buffers is cheaper for more."""
PIECES_MAX = 64
"""The most pieces in one system call; Linux allows 1,024."""
TURN_BYTES_MAX = 4 * 1024 * 1024
"""After this many bytes other connections have their turn, however fast this client reads."""
# Linux: hold the head of a response back until the bytes of the file follow, for one packet.
_MORE = getattr(socket, "MSG_MORE", 0)


class SocketWriter:
    """Writes to the socket of one connection, while that is open.

    Calls `on_room` when everything has been sent after the writer was `blocked`, and `on_failure`
    when the socket fails or a file was truncated; the writer is closed then.
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
        """How much of the first piece in the queue has been sent."""
        self.blocked = False
        """Whether pieces wait until the socket has room."""
        self.unblockings = 0
        """How often the socket had room again after it was full; a sign of progress."""
        self._closed = False

    @property
    def held_bytes(self) -> int:
        """The memory, in bytes, of what the client has not taken yet."""
        return memory_bytes(self._queue)

    def write(self, pieces: Sequence[Piece]) -> None:
        """Send pieces after those of earlier calls."""
        self._queue += pieces
        if not self.blocked and not self._closed:
            self._send()

    def close(self) -> None:
        """Close the duplicate of the socket, and drop what has not been sent."""
        if self._closed:
            return
        self._closed = True
        self._queue.clear()
        # Before the close: the loop finds the callback by the descriptor's number, which a closed
        # socket no longer has.
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
        # Also after `TURN_BYTES_MAX`: the loop finds the socket writable in its next turn.
        if self._queue and not self.blocked:
            self.blocked = True
            self._loop.add_writer(self._socket, self._on_writable)

    def _send_some(self) -> int:
        """Send as much as one system call takes; return the number of bytes."""
        queue = self._queue
        first = queue[0]
        if isinstance(first, FileRange):
            taken = first.send(self._socket.fileno(), self._sent_bytes)
            if not taken:
                raise OSError("a log file was truncated while it was being sent")
            return taken
        if isinstance(first, bytes) and not self._sent_bytes:
            # The usual responses, all in memory or a head and a range: there is nothing to gather.
            if len(queue) == 1:
                return self._socket.send(first)
            if isinstance(queue[1], FileRange):
                return self._socket.send(first, _MORE)
        buffers, more = self._gathered()
        if len(buffers) == 1:
            return self._socket.send(buffers[0], more)
        return self._socket.sendmsg(buffers, (), more)

    def _gathered(self) -> tuple[list[Buffer], int]:
        """Return the pieces in memory at the front, and the flags for sending them."""
        buffers: list[Buffer] = []
        more = size_bytes = 0
        for piece in self._queue:
            if isinstance(piece, FileRange):
                more = _MORE
                break
            if len(buffers) == PIECES_MAX:
                break
            buffers.append(piece if isinstance(piece, bytes) else one_buffer(piece))
            size_bytes += len(piece)
        # The first piece is in memory, or `_send_some` would have sent a range.
        if self._sent_bytes:
            buffers[0] = memoryview(buffers[0])[self._sent_bytes :]
        if len(buffers) > 1 and size_bytes <= JOINED_BYTES_MAX:
            buffers = [b"".join(buffers)]
        return buffers, more

    def _advance(self, taken: int) -> None:
        left = self._sent_bytes + taken
        queue = self._queue
        # `>=`: a piece that is empty leaves with the one before it.
        while queue and left >= len(queue[0]):
            left -= len(queue.popleft())
        self._sent_bytes = left


def _second_socket(transport: asyncio.Transport) -> socket.socket:
    """Return a duplicate of the connection's socket; a simulated transport provides one itself."""
    given: Callable[[], socket.socket] | None = transport.get_extra_info("second_socket")
    if given is not None:
        return given()
    reading = transport.get_extra_info("socket")
    return socket.fromfd(reading.fileno(), reading.family, reading.type)


def memory_bytes(pieces: Iterable[Piece]) -> int:
    """Return the bytes of the pieces that are in memory; ranges of files are not."""
    return sum(len(piece) for piece in pieces if not isinstance(piece, FileRange))
