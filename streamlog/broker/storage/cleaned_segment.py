"""CleanedSegment: the segment that a cleaning writes, in small steps.

Batches are collected and written by the chunk, as jobs for the thread, with a sync now and then
so that none of them takes long. Where batches are gone a batch without records spans them.
Rule of the file: what it writes has every offset of what it was made from, in the same order.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from streamlog.broker.storage.aside import Steps, aside
from streamlog.broker.storage.cleaned_batch import filler
from streamlog.errors import CorruptData
from streamlog.records.batch import RecordBatch, split_batches

if TYPE_CHECKING:
    from streamlog.broker.storage.segment import Segment

WRITE_BYTES = 256 * 1024
"""Written at a time."""
WRITE_BATCHES = 500
"""The most batches written at a time, each of which is looked at."""
SYNC_BYTES = 1024 * 1024
"""Brought to disk at a time, so that no sync takes long."""


class CleanedSegment:
    """Fills `segment`, which is none of the log's yet. Everything may raise OSError."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.changed = False
        """Whether anything in it differs from what it was made from."""
        self._parts: list[bytes | memoryview] = []
        self._parts_bytes = 0
        self._unsynced_bytes = 0
        self._gap: tuple[int, int, int] | None = None

    def create(self) -> Steps[None]:
        """Make the files."""
        yield from aside(self.segment.create)

    def add(self, batch: RecordBatch, data: bytes | memoryview | None) -> Steps[None]:
        """What is left of a batch, which follows the last one."""
        if data is None:
            self._widen_gap(batch)
        else:
            self._close_gap()
            self._append(data)
            self.changed = self.changed or not isinstance(data, memoryview)
        if self._parts_bytes >= WRITE_BYTES or len(self._parts) >= WRITE_BATCHES:
            yield from self._write()

    def finish(self, end_offset: int) -> Steps[None]:
        """All of it, up to this offset, is on disk, with its indexes.

        Raises:
            CorruptData: it is not what was to be written.
        """
        self._close_gap()
        yield from self._write()
        if self.segment.next_offset != end_offset:
            raise CorruptData(f"{self.segment.path} does not reach up to offset {end_offset}")
        yield from aside(self._finish)

    def discard(self) -> None:
        """Close and remove what still is under the names of something unfinished."""
        self.segment.remove()

    def _widen_gap(self, batch: RecordBatch) -> None:
        epoch = batch.leader_epoch
        if self._gap is not None and self._gap[2] != epoch:
            self._close_gap()
        first = batch.base_offset if self._gap is None else self._gap[0]
        self._gap = (first, batch.last_offset, epoch)
        if batch.record_count:
            self.changed = True

    def _close_gap(self) -> None:
        if self._gap is not None:
            self._append(filler(*self._gap))
            self._gap = None

    def _append(self, data: bytes | memoryview) -> None:
        self._parts.append(data)
        self._parts_bytes += len(data)

    def _write(self) -> Steps[None]:
        data = b"".join(self._parts)
        self._parts, self._parts_bytes = [], 0
        if not data:
            return
        batches = list(split_batches(data))
        if batches[0].base_offset != self.segment.next_offset:
            raise CorruptData(
                f"{self.segment.path}: the batch with base offset {batches[0].base_offset} would"
                f" follow offset {self.segment.next_offset - 1}"
            )
        yield from aside(partial(self._write_now, data, batches), len(data))

    def _write_now(self, data: bytes, batches: list[RecordBatch]) -> None:
        self.segment.append(data, batches)
        self._unsynced_bytes += len(data)
        if self._unsynced_bytes >= SYNC_BYTES:
            self.segment.sync()
            self._unsynced_bytes = 0

    def _finish(self) -> None:
        self.segment.aborted.seal()
        self.segment.trim_indexes()
        self.segment.sync()
        self.segment.close()
        self.segment.keep_indexes()
