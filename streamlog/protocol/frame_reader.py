"""FrameReader: splits a stream of bytes into frames, by the size in front of each.

An incomplete frame is not an error: there is no frame yet. Nothing here reads from a connection.

Rule of this module: compiled, because each read of a socket passes it. What the frames contain is
read elsewhere (`frame`), once for requests that repeat, and the compiler would win little there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from streamlog.errors import CorruptData
from streamlog.protocol.schema import Buffer

READ_BYTES: Final = 8 * 1024
"""Size of each connection's buffer while it receives small frames only."""
READ_BYTES_MAX: Final = 256 * 1024
"""Size of the buffer for a peer whose bytes fill it: fewer and larger reads."""
KEPT_BYTES_MAX: Final = 1024 * 1024 + READ_BYTES
"""A buffer up to this size, one large batch, is reused; a larger one is freed once it is empty."""

_SIZE: Final = struct.Struct(">i")
_new_tuple = tuple.__new__  # a named tuple, past its handling of keywords and defaults
_HTTP: Final = frozenset({b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"HTTP"})
"""The first bytes of requests and of answers."""


class HeldBytes(NamedTuple):
    """Bytes of a stream in their buffer, from `start` up to but not including `end`."""

    data: bytearray
    view: memoryview
    """A view of all of `data`."""
    start: int
    end: int


class FrameReader:
    """Splits a stream of bytes into frames, and strips their sizes.

    `room` and `took` receive bytes from a socket straight into one buffer, and frames are views of
    it. No byte is copied, except the start of a frame that must move to where all of it has room.
    So a frame is valid until more bytes arrive; a caller that keeps it must copy it. A caller that
    takes all frames after every read needs memory for one frame and one read.
    """

    def __init__(self, *, size_bytes_max: int) -> None:
        self.size_bytes_max = size_bytes_max
        """The largest frame. It may be changed, which affects frames that have not started."""
        self._bytes = bytearray(READ_BYTES)
        self._buffer = memoryview(self._bytes)
        self._start = 0
        self._end = 0
        self._wanted_bytes = _SIZE.size
        self._filled = False
        """Whether the last read filled the buffer."""
        self._is_lent = False
        """Whether frames that were taken out of the buffer stay in it."""

    def room(self) -> memoryview:
        """Return the buffer for the next bytes, never empty; frames taken before become invalid."""
        # All frames were taken, so the next bytes can begin at the front, and nothing is copied.
        if self._start == self._end:
            self._start = self._end = 0
            if len(self._buffer) > KEPT_BYTES_MAX:
                self._take_buffer(READ_BYTES)
                self._filled = False
        # At least one byte, because asyncio requires a buffer that is not empty.
        end_bytes = max(self._start + self._wanted_bytes, self._end + 1)
        if end_bytes > len(self._buffer) or (self._filled and self._grown()):
            self._move()
        return self._buffer[self._end :]

    @property
    def due_bytes(self) -> int:
        """The bytes of memory beyond `READ_BYTES`, now or after the next `room`."""
        size_bytes = len(self._buffer)
        needed_bytes = self._wanted_bytes
        if self._filled:
            needed_bytes = max(needed_bytes, self._grown())
        if needed_bytes > size_bytes:
            size_bytes = max(needed_bytes, 2 * (self._end - self._start))
        return size_bytes - READ_BYTES

    @property
    def is_empty(self) -> bool:
        """Whether all bytes that were received have been taken."""
        return self._start == self._end

    @property
    def is_cramped(self) -> bool:
        """Whether the frame that is being received does not fit into the buffer."""
        return self._wanted_bytes > len(self._buffer)

    def lend(self) -> bool:
        """Keep the frames that were taken valid, if the buffer is large; return whether they are.

        A large buffer is not used again in any case, so its frames may have it. To copy a frame of
        a megabyte takes longer than all else that happens to it.
        """
        self._is_lent = len(self._buffer) > KEPT_BYTES_MAX
        return self._is_lent

    def stay_small(self) -> None:
        """Do not grow the buffer for a fast peer."""
        self._filled = False

    def trim(self, *, kept_bytes: int = KEPT_BYTES_MAX) -> None:
        """Free an empty buffer that is larger than `kept_bytes`; its frames become invalid."""
        if self._start == self._end and len(self._buffer) > kept_bytes:
            self._take_buffer(READ_BYTES)
            self._start = self._end = 0
            self._filled = False

    def took(self, size_bytes: int) -> bool:
        """Note that `size_bytes` were read into `room`; return whether `next_frame` may have news.

        False if the frame is still incomplete, and the buffer has room for the rest of it.
        """
        self._end += size_bytes
        # A full buffer means that the socket may have more: `room` then grows it.
        self._filled = self._end == len(self._buffer)
        return self._filled or self._end - self._start >= self._wanted_bytes

    def feed(self, data: Buffer) -> None:
        """Copy bytes from another buffer into the stream."""
        rest = memoryview(data)
        while rest:
            room = self.room()
            size_bytes = min(len(room), len(rest))
            room[:size_bytes] = rest[:size_bytes]
            self.took(size_bytes)
            rest = rest[size_bytes:]

    def frames(self) -> Iterator[memoryview]:
        """Yield the frames that are complete.

        Raises:
            CorruptData: a size is negative or too large; the stream can't be read any further.
        """
        while (frame := self.next_frame()) is not None:
            yield frame

    def next_frame(self) -> memoryview | None:
        """Return the next frame; None if it is not complete.

        Raises:
            CorruptData: its size is negative or too large; the stream can't be read any further.
        """
        held_bytes = self._end - self._start
        if held_bytes < _SIZE.size:
            return None
        size_bytes = _SIZE.unpack_from(self._buffer, self._start)[0]
        if not 0 <= size_bytes <= self.size_bytes_max:
            raise CorruptData(
                f"a frame claims {size_bytes} bytes, and 0 to {self.size_bytes_max} are allowed: "
                f"{what_speaks(size_bytes)}"
            )
        # Until then, `took` reports no news, and `room` keeps enough space for the whole frame.
        if held_bytes - _SIZE.size < size_bytes:
            self._wanted_bytes = _SIZE.size + size_bytes
            return None
        first = self._start + _SIZE.size
        self.skip(_SIZE.size + size_bytes)
        return self._buffer[first : self._start]

    def held(self) -> HeldBytes:
        """Return the bytes that are not taken: frames with sizes, the last one maybe incomplete."""
        return _new_tuple(HeldBytes, (self._bytes, self._buffer, self._start, self._end))

    def skip(self, size_bytes: int) -> None:
        """Drop whole frames at the front, which the caller has read from `held`."""
        self._wanted_bytes = _SIZE.size
        self._start += size_bytes

    def _grown(self) -> int:
        """Return the size to grow to for a fast peer; 0 if the buffer is large enough."""
        twice = 2 * len(self._buffer)
        return twice if twice <= READ_BYTES_MAX else 0

    def _take_buffer(self, size_bytes: int) -> None:
        self._bytes = bytearray(size_bytes)
        self._buffer = memoryview(self._bytes)
        self._is_lent = False

    def _move(self) -> None:
        """Move the held bytes to the front, of a larger buffer if the frame needs one."""
        held = self._buffer[self._start : self._end]
        needed_bytes = max(self._wanted_bytes, len(held) + 1)
        if self._filled:
            needed_bytes = max(needed_bytes, self._grown())
            self._filled = False
        if needed_bytes > len(self._buffer) or self._is_lent:
            # At least twice the held bytes, so that it rarely grows again while whole frames wait.
            self._take_buffer(max(needed_bytes, 2 * len(held)))
        self._buffer[: len(held)] = held
        self._start, self._end = 0, len(held)


def what_speaks(size_bytes: int) -> str:
    """Return what kind of peer sends bytes that give this impossible frame size."""
    head = size_bytes.to_bytes(_SIZE.size, "big", signed=True)
    if head in _HTTP:
        return "the peer speaks HTTP, and this is Kafka's protocol: each has a port of its own"
    if head[:2] in (b"\x16\x03", b"\x15\x03"):  # A record of a handshake, or an alert.
        return "the peer speaks TLS, and this end does not; both need the same security.protocol"
    return "the peer does not speak Kafka's protocol, or sends more than it may"
