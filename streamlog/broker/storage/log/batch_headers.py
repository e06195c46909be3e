"""Batch headers: walks a log file by the headers of its batches.

A header is sound if its format and its length are, and its batch begins at the offset at which the
batch before it ended. That rule protects the fields that no CRC covers, base offset and length.
Compaction keeps to it: batches without records span the offsets that it removes. The CRC is left to
the code that decodes the records, or to `scan`.

Rule of this module: compiled, because each Fetch reads a header or two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from streamlog.broker.config.broker import MESSAGE_BYTES_MAX
from streamlog.broker.storage.disk.files import File
from streamlog.errors import CorruptData
from streamlog.records import header as layout
from streamlog.records.batch import HEADER_BYTES

PREFIX_BYTES = 12
"""Base offset and length, which the length field does not count."""

_new_tuple = tuple.__new__  # a named tuple, past its handling of keywords and defaults
# C integers when compiled.
_MAGIC_NUMBER = 2
_HEADER_BYTES = HEADER_BYTES
_PREFIX_BYTES = PREFIX_BYTES
_BATCH_BYTES_MAX = MESSAGE_BYTES_MAX


class Header(NamedTuple):
    """The fields of a batch header that a walk needs."""

    position: int
    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp_ms: int
    """The maximum timestamp; -1 if compaction has left the batch without records."""
    leader_epoch: int


class Headers:
    """Reads the headers of a log file and checks that each batch continues the one before.

    `position` is the current position; after an error, the position of the unsound header.
    """

    def __init__(self, file: File, *, end: int, chunk_bytes: int) -> None:
        self.position = 0
        self._file = file
        self._end = end
        self._chunk_bytes = max(chunk_bytes, HEADER_BYTES)

    def walk(self, position: int, next_offset: int) -> Iterator[Header]:
        """Iterate over headers from `position` on, where the batch of `next_offset` begins.

        Raises:
            CorruptData: a header is unsound; where the next one begins is unknown.
        """
        chunk = b""
        chunk_at = position
        while position < self._end:
            self.position = position
            if position - chunk_at + HEADER_BYTES > len(chunk):
                size_bytes = min(self._chunk_bytes, self._end - position)
                chunk, chunk_at = self._file.read(size_bytes, position), position
            header = read_header(chunk, position - chunk_at, position, next_offset)
            check_room(header, self._end)
            yield header
            position += header.size_bytes
            next_offset = header.next_offset


def read_header(data: bytes, at: int, position: int, next_offset: int) -> Header:
    """Return the header that begins at `at` of the data, and at `position` of the file.

    Raises:
        CorruptData: it is unsound, or not that of the batch of `next_offset`.
    """
    if len(data) - at < _HEADER_BYTES:
        raise CorruptData(f"{len(data) - at} bytes are left, too few for a batch header")
    base_offset, length, epoch, magic, _, _, delta, _, max_timestamp_ms, _, _, _, count = (
        layout.read_header(data, at)
    )
    # The three checks in one: this runs for every batch of a walk, and the reason is only
    # worked out for the message.
    if base_offset != next_offset or magic != _MAGIC_NUMBER or delta < 0:
        raise CorruptData(_unsound(base_offset, magic, delta, next_offset))
    size_bytes = length + _PREFIX_BYTES
    if not _HEADER_BYTES <= size_bytes <= _BATCH_BYTES_MAX:
        raise CorruptData(f"the batch claims a length of {length} bytes")
    newest_ms = max_timestamp_ms if count else -1
    # By the offset that was asked for, which is equal, and Python's: that of the header is a C
    # integer, which would overflow at its end.
    found = (position, next_offset, next_offset + delta + 1, size_bytes, newest_ms, epoch)
    return _new_tuple(Header, found)


def check_room(header: Header, end: int) -> None:
    """Check that the whole batch lies before `end`.

    Raises:
        CorruptData: it does not.
    """
    left = end - header.position
    if header.size_bytes > left:
        raise CorruptData(f"the batch claims {header.size_bytes} bytes, {left} are left")


def _unsound(base_offset: int, magic: int, delta: int, next_offset: int) -> str:
    if magic != _MAGIC_NUMBER:
        return f"the batch has format v{magic} instead of v2"
    if delta < 0:
        return f"the batch has last offset delta {delta}"
    return f"the batch has base offset {base_offset} instead of {next_offset}"


def header_at(file: File, position: int, base_offset: int, *, end: int) -> Header:
    """Return the header of the batch that begins at `position` with `base_offset`.

    Raises:
        CorruptData: there is no such batch.
    """
    return _header_at(file, position, base_offset, end)


def _header_at(file: File, position: int, base_offset: int, end: int) -> Header:
    header = read_header(file.read(HEADER_BYTES, position), 0, position, base_offset)
    check_room(header, end)
    return header


def last_whole(
    file: File, first: Header, *, end: int, log_end: int, chunk_bytes: int
) -> tuple[Header, Header | None]:
    """Return the last whole batch before `end`, and the header after it if it was read.

    The walk starts at `first`, which is the least result. Only headers are read, and each has to
    continue the one before.
    """
    last = first
    position = first.position + first.size_bytes
    if end - position < HEADER_BYTES:
        return first, None
    try:
        # Large batches lie far apart: of a chunk, only the header would be used. Mostly the next
        # batch does not fit: a reader that asks for 16 KB of batches of 16 KB needs no walk.
        if first.size_bytes >= chunk_bytes:
            chunk_bytes = HEADER_BYTES
            following = _header_at(file, position, first.next_offset, log_end)
            position += following.size_bytes
            if position > end:
                return first, following
            last = following
        headers = Headers(file, end=log_end, chunk_bytes=chunk_bytes)
        for header in headers.walk(position, last.next_offset):
            position += header.size_bytes
            if position > end:
                return last, header
            last = header
            if position == end:
                break
    except CorruptData:
        # The whole batches before it are sound; the read that begins at it reports the damage.
        return last, None
    return last, None
