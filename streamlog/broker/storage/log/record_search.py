"""RecordSearch: finds the first record at or after an offset, in any thread.

The event loop makes a search from what it has in memory (`PartitionLog.search`); `run` does the
I/O. It uses its own file handles, and nothing that the loop changes meanwhile.

Rules of this module: the log may be rewritten, cut or deleted while a search runs. Every header has
to continue the one before, so that a search in a file that has changed fails instead of finding
another record. One search reads a bounded number of batches: where only markers or remainders of
compaction follow, its result says how far it came.
"""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

import msgspec

from streamlog.broker.storage.disk.files import File, Files
from streamlog.broker.storage.log.batch_headers import Headers
from streamlog.broker.storage.log.index import floor_in_file
from streamlog.errors import CorruptData
from streamlog.records.batch import RecordBatch

BATCHES_MAX = 1_000
"""Batches without a record that one search passes."""


class FoundRecord(NamedTuple):
    """The result of a search."""

    offset: int | None
    """The offset of the record; None if there is no record before `searched_to`."""
    timestamp_ms: int
    """The record's timestamp; -1 if it has none, or if there is no record."""
    searched_to: int
    """The offset from which on nothing was searched."""


class RecordSearch(msgspec.Struct, frozen=True, kw_only=True):
    """A search in one segment for the first record from `offset` to before `end_offset`.

    Records of control batches, such as transaction markers, don't count.
    """

    files: Files
    partition: str
    path: str
    index_path: str
    index_entries: int | None
    """The entries in the index file; None: as many as the file has."""
    base_offset: int
    begin: tuple[int, int] | None
    """Relative offset and position of a batch at or before `offset`; None: the file knows."""
    size_bytes: int | None
    """The size of the log file when the search was made; None: as it is when the search runs."""
    chunk_bytes: int
    offset: int
    end_offset: int

    def run(self) -> FoundRecord:
        """Search.

        Raises:
            CorruptData: the file is damaged, or it has changed since the search was made.
            OSError: it can't be read; it may be gone.
        """
        relative, position = self.begin or self._floor()
        with closing(self.files.open(self.path)) as file:
            return self._walk(file, position, self.base_offset + relative)

    def _floor(self) -> tuple[int, int]:
        if self.index_entries == 0:
            return 0, 0
        with closing(self.files.open(self.index_path)) as index:
            return floor_in_file(index, self.index_entries, self.offset - self.base_offset)

    def _walk(self, file: File, position: int, base_offset: int) -> FoundRecord:
        end = file.size() if self.size_bytes is None else self.size_bytes
        headers = Headers(file, end=end, chunk_bytes=self.chunk_bytes)
        passed, searched_to = 0, self.offset
        for header in headers.walk(position, base_offset):
            if header.base_offset >= self.end_offset:
                break
            if header.next_offset <= self.offset:
                continue
            batch = RecordBatch(file.read(header.size_bytes, header.position))
            found = None
            if batch.record_count and not batch.is_control:
                batch.check_crc()
                found = batch.first_from(self.offset)
            if found is not None:
                if found[0] < self.end_offset:
                    return FoundRecord(*found, found[0])
                break
            passed, searched_to = passed + 1, header.next_offset
            if passed == BATCHES_MAX:
                return FoundRecord(None, -1, searched_to)
        else:
            if searched_to < self.end_offset:
                raise CorruptData(
                    f"{self.partition}: {self.path} ends at offset {searched_to}, before"
                    f" {self.end_offset}"
                )
        return FoundRecord(None, -1, self.end_offset)
