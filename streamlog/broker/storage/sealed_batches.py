"""SealedBatches: the batches of a sealed segment for a cleaning, in small steps.

Chunks are read, and batches decompressed, as jobs for the thread; checksums and offsets are
checked on the way, some hundred batches at a time.
Rule of the file: it ends where the segment ends or with an error. What is damaged is not passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from streamlog.broker.storage.aside import Steps, aside
from streamlog.broker.storage.cleaned_batch import Unpacked, decompressed
from streamlog.broker.storage.scan import PREFIX_BYTES
from streamlog.errors import CorruptData
from streamlog.records.batch import HEADER_BYTES, RecordBatch, split_batches
from streamlog.records.compression import Compression

if TYPE_CHECKING:
    from streamlog.broker.storage.files import File
    from streamlog.broker.storage.segment import Segment

READ_BYTES = 256 * 1024
"""Read at a time, unless a batch is larger."""
BATCHES_AT_ONCE = 200
"""Checked in one step."""
AHEAD_BYTES = 1024 * 1024
"""Decompressed in one job, unless a batch is larger."""

_LENGTH_AT = slice(8, 12)


class SealedBatches:
    """Goes through `segment` from the batch with `offset` in it on; to be closed.

    Its files may be renamed or removed meanwhile.
    """

    def __init__(self, segment: Segment, offset: int) -> None:
        self._segment = segment
        self._from_offset = offset
        self._next_offset = segment.base_offset
        self._end_offset = segment.next_offset
        self._size_bytes = segment.size_bytes
        self._position = 0
        self._chunk = memoryview(b"")
        """What was read of what begins at the position."""
        self._file: File | None = None
        self._batches: list[RecordBatch] = []
        self._payloads: dict[int, bytes] = {}

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def next(self) -> Steps[list[RecordBatch]]:
        """The next batches, none at the end.

        Raises:
            CorruptData: what follows is damaged.
            OSError: it can't be read.
        """
        self._payloads = {}
        self._batches = []
        while not self._batches and self._position < self._size_bytes:
            found = self._checked()
            if not found:
                yield from self._read(READ_BYTES)
                found = self._checked()
            if not found:
                yield from self._read(self._claimed_bytes())
                found = self._checked()
            if not found:
                raise self._damaged("the file ends within a batch")
            self._batches = [batch for batch in found if batch.next_offset > self._from_offset]
            yield 0
        if not self._batches and self._next_offset != self._end_offset:
            raise self._damaged(f"it does not reach offset {self._end_offset - 1}")
        return self._batches

    def unpacked(self, batch: RecordBatch) -> Steps[Unpacked]:
        """One of the batches that were returned last, decompressed.

        Raises:
            CorruptData: it can't be.
        """
        if batch.codec is Compression.NONE:
            return Unpacked(batch, decompressed(batch))
        if batch.base_offset not in self._payloads:
            first = self._batches.index(batch)
            self._payloads = yield from aside(partial(_payloads, self._batches[first:]))
        return Unpacked(batch, self._payloads.pop(batch.base_offset))

    def _read(self, size_bytes: int) -> Steps[None]:
        wanted_bytes = min(size_bytes, self._size_bytes - self._position)
        self._chunk = memoryview((yield from aside(partial(self._read_now, wanted_bytes))))

    def _read_now(self, size_bytes: int) -> bytes:
        if self._file is None:
            self._file = self._segment.open()
        return self._file.read(size_bytes, self._position)

    def _checked(self) -> list[RecordBatch]:
        """The whole batches in the chunk, or the first of them, which it then has no more."""
        found: list[RecordBatch] = []
        taken_bytes, next_offset = 0, self._next_offset
        try:
            for batch in islice(split_batches(self._chunk), BATCHES_AT_ONCE):
                _check(batch, next_offset)
                found.append(batch)
                taken_bytes += batch.size_bytes
                next_offset = batch.next_offset
        except CorruptData as error:
            raise self._damaged(str(error)) from error
        self._chunk = self._chunk[taken_bytes:]
        self._position += taken_bytes
        self._next_offset = next_offset
        return found

    def _claimed_bytes(self) -> int:
        """How long the batch is that the chunk begins with."""
        size_bytes = int.from_bytes(self._chunk[_LENGTH_AT], "big") + PREFIX_BYTES
        left_bytes = self._size_bytes - self._position
        if not HEADER_BYTES <= size_bytes <= left_bytes:
            raise self._damaged(f"the batch claims {size_bytes} bytes, {left_bytes} are left")
        return size_bytes

    def _damaged(self, reason: str) -> CorruptData:
        return CorruptData(
            f"{self._segment.path} is damaged behind offset {self._next_offset - 1},"
            f" at position {self._position}: {reason}"
        )


def _check(batch: RecordBatch, next_offset: int) -> None:
    batch.check_crc()
    if batch.base_offset != next_offset or batch.last_offset_delta < 0:
        raise CorruptData(f"the batch has base offset {batch.base_offset}, {next_offset} is due")


def _payloads(batches: Sequence[RecordBatch]) -> dict[int, bytes]:
    """The decompressed bytes of the first of them, and of others as far as that is no more work."""
    found: dict[int, bytes] = {}
    size_bytes = 0
    for batch in batches:
        if size_bytes >= AHEAD_BYTES:
            break
        try:
            payload = decompressed(batch)
        except CorruptData:
            if not found:
                raise
            break  # It may be one that nobody asks for.
        found[batch.base_offset] = payload
        size_bytes += len(payload)
    return found
