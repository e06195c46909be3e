"""Scan: walks the batches of a log file and says where they stop being sound.

A batch is sound if its header is, its CRC matches, and it begins at the offset at which the batch
before it ended. The last rule protects the fields that no CRC covers, base offset and length.
Compaction keeps to it: batches without records span the offsets that it removes.

What follows an unsound batch decides what it means: if nothing sound follows, the tail is torn; a
sound batch after it (`sound_position`) means damage in the middle. `recovery` judges.
`Headers` walks by headers alone, and leaves the CRC to the code that decodes the records.

Rule of this module: compiled, because each Fetch reads a header or two.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from streamlog.broker.config.broker import MESSAGE_BYTES_MAX
from streamlog.broker.storage.disk.files import File
from streamlog.errors import CorruptData
from streamlog.records import header as layout
from streamlog.records.batch import HEADER_BYTES, RecordBatch

CHUNK_BYTES = 1024 * 1024
"""Bytes per read of a scan of whole batches."""
PREFIX_BYTES = 12
"""Base offset and length, which the length field does not count."""
OFFSETS_MAX = 2**31
"""Offsets per segment: its index holds them relative to the base, in four bytes."""

_new_tuple = tuple.__new__  # a named tuple, past its handling of keywords and defaults
_MAGIC = b"\x02"
_MAGIC_AT = 16

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
            header = _read_header(chunk, position - chunk_at, position, next_offset)
            _check_room(header, self._end)
            yield header
            position += header.size_bytes
            next_offset = header.next_offset


def _read_header(data: bytes, at: int, position: int, next_offset: int) -> Header:
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


def _check_room(header: Header, end: int) -> None:
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
    header = _read_header(file.read(HEADER_BYTES, position), 0, position, base_offset)
    _check_room(header, end)
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


class Scan:
    """One pass over a log file, with CRCs, up to the first unsound batch.

    Afterwards, `position` and `next_offset` are where it stopped, and `reason` says why; it is
    empty if the scan reached the end.
    """

    def __init__(self, file: File, *, position: int, next_offset: int, end: int) -> None:
        self.position = position
        self.next_offset = next_offset
        self.reason = ""
        self._file = file
        self._end = end
        self._chunk = b""
        self._chunk_at = position

    def __iter__(self) -> Iterator[tuple[int, RecordBatch]]:
        while self.position < self._end:
            try:
                batch = self._batch()
            except CorruptData as error:
                self.reason = str(error)
                return
            yield self.position, batch
            self.position += batch.size_bytes
            self.next_offset = batch.next_offset

    def _batch(self) -> RecordBatch:
        self._load(HEADER_BYTES)
        at = self.position - self._chunk_at
        header = _read_header(self._chunk, at, self.position, self.next_offset)
        _check_room(header, self._end)
        self._load(header.size_bytes)
        batch = RecordBatch(self._chunk, self.position - self._chunk_at)
        batch.check_crc()
        return batch

    def _load(self, size_bytes: int) -> None:
        """Load `size_bytes` bytes from `position` on into the chunk, if the file has them."""
        if self.position - self._chunk_at + size_bytes <= len(self._chunk):
            return
        wanted = min(max(size_bytes, CHUNK_BYTES), self._end - self.position)
        self._chunk = self._file.read(wanted, self.position)
        self._chunk_at = self.position


def sound_position(
    file: File, *, position: int, end: int, offsets: range
) -> tuple[int, int] | None:
    """Find the first sound batch after `position` whose base offset is one of `offsets`.

    Returns its position and base offset; None if there is none before `end`. The search looks for
    the magic byte and checks the CRC at each hit, as no length can be trusted after damage.
    """
    chunk_at = position + 1
    while chunk_at + HEADER_BYTES <= end:
        chunk = file.read(min(CHUNK_BYTES, end - chunk_at), chunk_at)
        at = chunk.find(_MAGIC, _MAGIC_AT)
        while at >= 0:
            candidate = chunk_at + at - _MAGIC_AT
            offset = _sound_at(file, candidate, end, offsets)
            if offset is not None:
                return candidate, offset
            at = chunk.find(_MAGIC, at + 1)
        # The last bytes of a chunk may begin a header whose magic byte is in the next chunk.
        chunk_at += max(len(chunk) - _MAGIC_AT, 1)
    return None


def _sound_at(file: File, position: int, end: int, offsets: range) -> int | None:
    head = file.read(HEADER_BYTES, position)
    if len(head) < HEADER_BYTES:
        return None
    base_offset, length, _, _, _, _, delta, _, _, _, _, _, _ = layout.read_header(head, 0)
    size_bytes = length + _PREFIX_BYTES
    if (
        base_offset not in offsets
        or delta < 0
        or not _HEADER_BYTES <= size_bytes <= _BATCH_BYTES_MAX
    ):
        return None
    if size_bytes > end - position:
        return None
    try:
        RecordBatch(file.read(size_bytes, position)).check_crc()
    except CorruptData:
        return None
    return int(base_offset)


def epochs(headers: Iterator[Header]) -> Iterator[tuple[int, int]]:
    """Iterate over leader epoch and base offset of the headers up to the first unsound one."""
    with suppress(CorruptData):
        for header in headers:
            yield header.leader_epoch, header.base_offset


def first_timestamp_ms(file: File, base_offset: int) -> int:
    """Return the maximum timestamp of the first batch of a file; -1 if it is unsound."""
    headers = Headers(file, end=file.size(), chunk_bytes=HEADER_BYTES)
    try:
        return next(headers.walk(0, base_offset)).max_timestamp_ms
    except CorruptData:
        return -1
