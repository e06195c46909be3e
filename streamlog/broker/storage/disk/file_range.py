"""FileRange: bytes of a file that are sent from it, without a copy in this process."""

from __future__ import annotations

import errno
import os


class Descriptor:
    """An open file of the kernel; closed when the last reference is dropped."""

    __slots__ = ("_among", "number")

    def __init__(self, number: int, among: set[int]) -> None:
        """`among` is the set of the numbers of all open files.

        This one is in it until it closes.
        """
        self.number = number
        self._among = among
        among.add(number)

    def __del__(self) -> None:
        # Before the close: afterwards the number may belong to another file.
        self._among.discard(self.number)
        os.close(self.number)


class FileRange:
    """Bytes that stay in their file until a socket takes them.

    They don't change, because a log only grows. The range keeps the file open: if the file is
    deleted, or closed elsewhere, the bytes remain.
    """

    __slots__ = ("_descriptor", "_position", "_size_bytes")

    def __init__(self, descriptor: Descriptor, size_bytes: int, position: int) -> None:
        self._descriptor = descriptor
        self._size_bytes = size_bytes
        self._position = position

    def __len__(self) -> int:
        return self._size_bytes

    def read(self) -> bytes:
        """Return the bytes, in memory.

        Raises:
            OSError: they can't be read, or the file was cut.
        """
        data = read_at(self._descriptor.number, self._size_bytes, self._position)
        if len(data) < self._size_bytes:
            raise OSError(errno.EIO, "the file was cut while it was read")
        return data

    def part(self, start_bytes: int, size_bytes: int) -> FileRange:
        """Return a part of the range."""
        return FileRange(self._descriptor, size_bytes, self._position + start_bytes)

    def send(self, socket_descriptor: int, sent_bytes: int) -> int:
        """Send the bytes after the first `sent_bytes` to a socket with sendfile.

        Returns the number of bytes sent; 0 if the file was cut.

        Raises:
            OSError: the socket accepts nothing now (BlockingIOError), or is broken.
        """
        left_bytes = self._size_bytes - sent_bytes
        position = self._position + sent_bytes
        return os.sendfile(socket_descriptor, self._descriptor.number, position, left_bytes)


def read_at(descriptor: int, size_bytes: int, position: int) -> bytes:
    """Read from an open file; fewer bytes only at its end."""
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
