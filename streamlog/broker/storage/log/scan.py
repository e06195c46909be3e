"""Scan: walks the batches of a log file and says where they stop being sound.

A batch is sound if its header is, its CRC matches, and it begins at the offset at which the
one before it ended. That last rule protects the fields that no CRC covers, base offset and
length; compaction keeps to it: what it takes out is spanned by batches without records.
What follows an unsound place decides what it means: nothing sound means a torn tail, a sound
batch (`sound_position`) means damage in the middle. The verdict itself is `partition_log`'s.
Walking by headers alone is `Headers`, which trusts the CRC to whoever decodes the records.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

from streamlog.broker.config.broker import MESSAGE_BYTES_MAX
from streamlog.broker.storage.disk.files import File
from streamlog.errors import CorruptData
from streamlog.records.batch import HEADER_BYTES, RecordBatch

CHUNK_BYTES = 1024 * 1024
"""Read at a time by a scan of whole batches."""
PREFIX_BYTES = 12
"""Base offset and length, which the length does not count."""
OFFSETS_MAX = 2**31
"""Offsets in one segment: its index holds them relative to the base, in four bytes."""

_MAGIC = b"\x02"
_MAGIC_AT = 16
# base offset, length, leader epoch, magic, last offset delta, maximum timestamp, count of records
_HEADER = Struct(">qiib6xi8xq14xi")


class Header(NamedTuple):
    """What a walk needs to know of a batch."""

    position: int
    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp_ms: int
    """Of its records; -1 if compaction has left it none."""
    leader_epoch: int


class Headers:
    """Reads the headers of a log file, checking that each batch continues the one before.

    `position` is where it is, and after an error where the unsound header stands.
    """

    def __init__(self, file: File, *, end: int, chunk_bytes: int) -> None:
        self.position = 0
        self._file = file
        self._end = end
        self._chunk_bytes = max(chunk_bytes, HEADER_BYTES)

    def walk(self, position: int, next_offset: int) -> Iterator[Header]:
        """Headers from `position`, where the batch with base offset `next_offset` begins.

        Raises:
            CorruptData: a header is not sound, and nothing behind it can be found.
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
    if len(data) - at < HEADER_BYTES:
        raise CorruptData(f"{len(data) - at} bytes are left, too few for a batch header")
    base_offset, length, epoch, magic, delta, max_timestamp_ms, count = _HEADER.unpack_from(
        data, at
    )
    if base_offset != next_offset or magic != _MAGIC[0] or delta < 0:
        raise CorruptData(_unsound(base_offset, magic, delta, next_offset))
    size_bytes = length + PREFIX_BYTES
    if not HEADER_BYTES <= size_bytes <= MESSAGE_BYTES_MAX:
        raise CorruptData(f"the batch claims a length of {length} bytes")
    newest_ms = max_timestamp_ms if count else -1
    return Header(position, base_offset, base_offset + delta + 1, size_bytes, newest_ms, epoch)


def _check_room(header: Header, end: int) -> None:
    left = end - header.position
    if header.size_bytes > left:
        raise CorruptData(f"the batch claims {header.size_bytes} bytes, {left} are left")


def _unsound(base_offset: int, magic: int, delta: int, next_offset: int) -> str:
    if magic != _MAGIC[0]:
        return f"what stands there has format v{magic}, not v2"
    if delta < 0:
        return f"the batch has last offset delta {delta}"
    return f"the batch has base offset {base_offset}, {next_offset} is due"


def header_at(file: File, position: int, base_offset: int, *, end: int) -> Header:
    """The header of the batch that begins at `position` with `base_offset`.

    Raises:
        CorruptData: there is no such batch.
    """
    data = file.read(HEADER_BYTES, position)
    header = _read_header(data, 0, position, base_offset)
    _check_room(header, end)
    return header


def last_whole(
    file: File, first: Header, *, end: int, log_end: int, chunk_bytes: int
) -> tuple[Header, Header | None]:
    """The last batch before `end` that is whole, and the one behind it, if it was come across.

    `first` leads to it, and is the least. Only headers are read, each of which has to continue
    the one before.
    """
    last = first
    position = first.position + first.size_bytes
    if end - position < HEADER_BYTES:
        return first, None
    # Large batches lie far apart: nothing else that is read with a header is of use then.
    chunk_bytes = chunk_bytes if first.size_bytes < chunk_bytes else HEADER_BYTES
    headers = Headers(file, end=log_end, chunk_bytes=chunk_bytes)
    try:
        for header in headers.walk(position, first.next_offset):
            position += header.size_bytes
            if position > end:
                return last, header
            last = header
            if position == end:
                break
    except CorruptData:
        # The whole batches before it are good; it is told of to whoever wants what is behind them.
        return last, None
    return last, None


class Scan:
    """One pass over a log file, CRCs included, up to the first batch that is not sound.

    After it, `position` and `next_offset` are where it stopped, `reason` why; the reason is
    empty if it came to the end.
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
        """Have that many bytes from `position` on in the chunk, if the file has them."""
        if self.position - self._chunk_at + size_bytes <= len(self._chunk):
            return
        wanted = min(max(size_bytes, CHUNK_BYTES), self._end - self.position)
        self._chunk = self._file.read(wanted, self.position)
        self._chunk_at = self.position


def sound_position(
    file: File, *, position: int, end: int, offsets: range
) -> tuple[int, int] | None:
    """The first sound batch after `position` that begins at one of `offsets`.

    Returned are its position and its base offset; None if there is no such batch before `end`.
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
        # The last bytes of a chunk may begin a header whose magic is in the next one.
        chunk_at += max(len(chunk) - _MAGIC_AT, 1)
    return None


def _sound_at(file: File, position: int, end: int, offsets: range) -> int | None:
    head = file.read(HEADER_BYTES, position)
    if len(head) < HEADER_BYTES:
        return None
    base_offset, length, _, _, delta, _, _ = _HEADER.unpack_from(head)
    size_bytes = length + PREFIX_BYTES
    if (
        base_offset not in offsets
        or delta < 0
        or not HEADER_BYTES <= size_bytes <= MESSAGE_BYTES_MAX
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
    """Leader epoch and base offset of headers, as far as they are sound."""
    with suppress(CorruptData):
        for header in headers:
            yield header.leader_epoch, header.base_offset


def first_timestamp_ms(file: File, base_offset: int) -> int:
    """The greatest timestamp of the first batch, which has `base_offset`; -1 if it is unsound."""
    headers = Headers(file, end=file.size(), chunk_bytes=HEADER_BYTES)
    try:
        return next(headers.walk(0, base_offset)).max_timestamp_ms
    except CorruptData:
        return -1
