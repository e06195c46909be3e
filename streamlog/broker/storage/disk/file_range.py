"""FileRange: bytes of a file that are sent from there, without a copy in this process."""

from __future__ import annotations

import errno
import os


class Descriptor:
    """An open file of the kernel; closed when nobody refers to it any more."""

    __slots__ = ("_among", "number")

    def __init__(self, number: int, among: set[int]) -> None:
        """`among` are the numbers of all open files; this one is in it until it is closed."""
        self.number = number
        self._among = among
        among.add(number)

    def __del__(self) -> None:
        # The number may belong to another file as soon as this one is closed.
        self._among.discard(self.number)
        os.close(self.number)


class FileRange:
    """Bytes that stay in their file until a socket takes them; never changed, for a log only grows.

    It keeps the file open: deleted or closed by others, the bytes are still there.
    """

    __slots__ = ("_descriptor", "_position", "_size_bytes")

    def __init__(self, descriptor: Descriptor, size_bytes: int, position: int) -> None:
        self._descriptor = descriptor
        self._size_bytes = size_bytes
        self._position = position

    def __len__(self) -> int:
        return self._size_bytes

    def read(self) -> bytes:
        """The bytes, in memory.

        Raises:
            OSError: they can't be read, or the file has been cut off.
        """
        data = read_at(self._descriptor.number, self._size_bytes, self._position)
        if len(data) < self._size_bytes:
            raise OSError(errno.EIO, "the file has been cut off under a reader")
        return data

    def part(self, start_bytes: int, size_bytes: int) -> FileRange:
        """Some of the bytes."""
        return FileRange(self._descriptor, size_bytes, self._position + start_bytes)

    def send(self, socket_descriptor: int, sent_bytes: int) -> int:
        """Hand what follows the first `sent_bytes` to a socket, past this process's memory.

        Returned is how many bytes it took; 0 if the file has been cut off.

        Raises:
            OSError: the socket takes nothing now (BlockingIOError), or never will.
        """
        left_bytes = self._size_bytes - sent_bytes
        position = self._position + sent_bytes
        return os.sendfile(socket_descriptor, self._descriptor.number, position, left_bytes)


def read_at(descriptor: int, size_bytes: int, position: int) -> bytes:
    """Bytes of an open file; fewer only at its end."""
    data = os.pread(descriptor, size_bytes, position)
    if len(data) == size_bytes or not data:
        return data
    parts = [data]
    got = len(data)
    while data and got < size_bytes:
        data = os.pread(descriptor, size_bytes - got, position + got)
        parts.append(data)
        got += len(data)
    return b"".join(parts)
