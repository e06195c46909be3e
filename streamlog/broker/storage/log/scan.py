"""Scan: walks the batches of a log file and says where they stop being sound.

A batch is sound if its header is (`batch_headers`), and its CRC matches.

What follows an unsound batch decides what it means: if nothing sound follows, the tail is torn; a
sound batch after it (`sound_position`) means damage in the middle. `recovery` judges.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from streamlog.broker.config.broker import MESSAGE_BYTES_MAX
from streamlog.broker.storage.disk.files import File
from streamlog.broker.storage.log.batch_headers import (
    PREFIX_BYTES,
    Header,
    Headers,
    check_room,
    read_header,
)
from streamlog.errors import CorruptData
from streamlog.records import header as layout
from streamlog.records.batch import HEADER_BYTES, RecordBatch

CHUNK_BYTES = 1024 * 1024
"""Bytes per read of a scan of whole batches."""
OFFSETS_MAX = 2**31
"""Offsets per segment: its index holds them relative to the base, in four bytes."""

_MAGIC = b"\x02"
_MAGIC_AT = 16


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
        header = read_header(self._chunk, at, self.position, self.next_offset)
        check_room(header, self._end)
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
