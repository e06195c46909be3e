"""AbortedAudit: what the indexes of aborted transactions should hold, told from the log itself.

An entry that is missing lets a reader of committed records see what was aborted; one without a
marker hides what was committed. Entries beyond those that the log tells of are fine as long as
they have a marker: compaction has removed the data. Rule of the file: what follows damage is not
judged, for nobody knows which transactions began there; nor is the end of a log, whose entries
may not have been written when a process went down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from streamlog.broker.storage.aborted import ABORTED_SUFFIX, AbortedIndex, decode_entries
from streamlog.broker.storage.files import Files, read_file
from streamlog.broker.storage.transactions import Decided, Transactions
from streamlog.errors import CorruptData
from streamlog.records.control import ABORT, marker_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamlog.records.batch import RecordBatch


class AbortedAudit:
    """The indexes of some segments of a partition: their paths, by where the segments begin."""

    def __init__(self, files: Files, paths: Mapping[int, str]) -> None:
        self._entries = {base: _read(files, path) for base, path in paths.items()}
        self._told: dict[int, set[tuple[int, int]]] = {}
        self._markers: dict[int, set[tuple[int, int]]] = {}
        self._transactions = Transactions()
        self._is_damaged = False

    def meet(self, base: int, batch: RecordBatch) -> None:
        """The next sound batch of the log, in the segment that begins at `base`."""
        if batch.producer_id < 0 or self._is_damaged:
            return
        place = (batch.producer_id, batch.base_offset)
        try:
            decided = self._transactions.take(batch, batch.base_offset)
            marker = marker_of(batch) if batch.is_control else None
        except CorruptData:
            self._is_damaged = True
            return
        if marker is not None and marker.kind == ABORT:
            self._markers.setdefault(base, set()).add(place)
        if decided is not None and decided.aborted:
            self._told.setdefault(base, set()).add(place)

    def note_damage(self) -> None:
        """Something is missing here; nothing is judged from here on."""
        self._is_damaged = True

    def findings(self, *, complete_before: int) -> Iterator[tuple[int, str]]:
        """The first offset of a segment whose index is wrong, and why.

        Segments from `complete_before` on may lack entries.
        """
        for base, entries in self._entries.items():
            if entries is None:
                yield base, "its entries are not sound"
            elif not self._is_damaged:
                found = {(entry.producer_id, entry.last_offset) for entry in entries}
                stray = found - self._markers.get(base, set())
                lost = self._told.get(base, set()) - found
                if stray:
                    yield base, f"{len(stray)} of its entries have no marker in the log"
                elif lost and base < complete_before:
                    yield base, f"{len(lost)} aborted transactions are missing in it"


def build_anew(
    files: Files, batches: Iterator[tuple[int, RecordBatch]], path_of: Callable[[int, str], str]
) -> None:
    """Write the indexes of segments from all the batches of a log, given with their segments.

    Raises:
        OSError: they can't be written.
        CorruptData: a marker is malformed.
    """
    transactions = Transactions()
    aborted: dict[int, list[Decided]] = {}
    for base, batch in batches:
        entries = aborted.setdefault(base, [])
        decided = transactions.take(batch, batch.base_offset)
        if decided is not None and decided.aborted:
            entries.append(decided)
    for base, entries in aborted.items():
        index = AbortedIndex(files, path_of(base, ABORTED_SUFFIX), in_memory=False)
        index.rebuild(entries)
        index.flush(durable=True)


def _read(files: Files, path: str) -> list[Decided] | None:
    try:
        return decode_entries(read_file(files, path))
    except FileNotFoundError:
        return []
