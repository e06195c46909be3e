"""IndexAudit: the offset and time index of a segment, compared with its log.

Entries are crossed off as their batches are met; those that are left point to nowhere. Rule of
the file: an index is read before its log is, which beside a broker may only have more by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING

from streamlog.broker.storage.files import Files, read_file
from streamlog.broker.storage.segment import INDEX_SUFFIX, TIME_INDEX_SUFFIX

if TYPE_CHECKING:
    from streamlog.broker.storage.stored import StoredSegment
    from streamlog.records.batch import RecordBatch

_OFFSET_ENTRY = Struct(">II")
_TIME_ENTRY = Struct(">qI")


class IndexAudit:
    """The entries of both indexes of a segment."""

    def __init__(self, files: Files, segment: StoredSegment) -> None:
        self._segment = segment
        self._wrong: dict[str, str] = {}
        self._positions = dict(self._read(files, INDEX_SUFFIX, _OFFSET_ENTRY))
        times = self._read(files, TIME_INDEX_SUFFIX, _TIME_ENTRY)
        self._times = {relative: timestamp_ms for timestamp_ms, relative in times}

    def meet(self, position: int, batch: RecordBatch) -> None:
        """The next sound batch of the segment, and where it stands."""
        relative = batch.base_offset - self._segment.base_offset
        if self._positions.get(relative) == position:
            del self._positions[relative]
        if self._times.get(relative) == batch.max_timestamp_ms:
            del self._times[relative]

    def findings(self) -> Iterator[tuple[str, str]]:
        """Once all batches were met: the path of an index that is wrong, and why."""
        self._leftover(INDEX_SUFFIX, self._positions)
        self._leftover(TIME_INDEX_SUFFIX, self._times)
        for suffix, why in self._wrong.items():
            yield self._segment.index_path(suffix), why

    def _leftover(self, suffix: str, entries: dict[int, int]) -> None:
        if entries and suffix not in self._wrong:
            offset = self._segment.base_offset + next(iter(entries))
            self._wrong[suffix] = (
                f"{len(entries)} of its entries disagree with the log, the first for offset"
                f" {offset}"
            )

    def _read(self, files: Files, suffix: str, layout: Struct) -> Sequence[tuple[int, int]]:
        try:
            data = read_file(files, self._segment.index_path(suffix))
        except FileNotFoundError:
            self._wrong[suffix] = "there is none"
            return []
        # What is written ahead of the entries is zeros; no entry is all zeros.
        size_bytes = len(data.rstrip(b"\0"))
        entries = -(-size_bytes // layout.size)
        if entries * layout.size > len(data) or len(data) % layout.size:
            self._wrong[suffix] = f"its {len(data)} bytes are no whole number of entries"
            return []
        found = [layout.unpack_from(data, number * layout.size) for number in range(entries)]
        if any(earlier >= later for earlier, later in pairwise(found)):
            self._wrong[suffix] = "its entries are not in order"
            return []
        return [(first, second) for first, second in found]
