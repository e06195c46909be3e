"""ProducerSnapshots: the producer states of a log as files, so that opening it is no full replay.

`%020d.snapshot` contains the producers as of that offset. It is written when a segment is sealed
and when the log is closed. `LogProducers` loads the newest sound snapshot, replays the log from
there, and rebuilds the indexes of aborted transactions that are not trusted.

Rules of this module: a snapshot contains nothing that is not in the log. It is checked when it is
read, so it is never synced; one that is unsound, or newer than the log's end after a crash, is
removed.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from streamlog.broker.storage.disk.files import names_in, read_file, write_whole
from streamlog.broker.storage.log.producer_states import ProducerStates
from streamlog.errors import CorruptData

if TYPE_CHECKING:
    from streamlog.broker.storage.disk.files import Files
    from streamlog.broker.storage.log.segments import Segments
    from streamlog.records.batch import RecordBatch


SNAPSHOT_SUFFIX = ".snapshot"
SNAPSHOTS_KEPT = 2
"""The newest snapshot may include batches that a power cut has removed. Then the one before it is
used."""
NAME_DIGITS = 20


class ProducerSnapshots:
    """The snapshots of one log. Every method raises OSError if the system refuses."""

    def __init__(self, files: Files, directory: str) -> None:
        self.newest_offset: int | None = None
        """The offset of the newest snapshot written or loaded; None without one."""
        self._files = files
        self._directory = directory

    def write(self, producers: ProducerStates, offset: int) -> None:
        """Write a snapshot of `producers` as of `offset`; remove all but the newest two."""
        with closing(self._files.open(self._path(offset), writable=True)) as file:
            file.truncate(0)
            write_whole(file, producers.snapshot(), 0)
        self.newest_offset = offset
        for old in self._offsets()[:-SNAPSHOTS_KEPT]:
            self._files.remove(self._path(old))

    def take(self, end_offset: int) -> tuple[ProducerStates, int | None]:
        """Return the newest producers up to `end_offset`, and the offset of their snapshot."""
        for offset in reversed(self._offsets()):
            path = self._path(offset)
            if offset <= end_offset:
                try:
                    producers = ProducerStates.restore(read_file(self._files, path))
                except CorruptData:
                    self._files.remove(path)
                else:
                    self.newest_offset = offset
                    return producers, offset
            else:
                # 1. A snapshot as of 200 was written. 2. A power cut leaves the log with an end of
                #    180.
                # 3. The snapshot knows sequence numbers of lost batches: with it, the producer's
                #    retry of them would count as a duplicate, and be acknowledged without being
                #    stored.
                self._files.remove(path)
        return ProducerStates(), None

    def forget(self) -> None:
        """Remove all snapshots."""
        for offset in self._offsets():
            self._files.remove(self._path(offset))
        self.newest_offset = None

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{offset:0{NAME_DIGITS}d}{SNAPSHOT_SUFFIX}"

    def _offsets(self) -> list[int]:
        names = names_in(self._files, self._directory)
        return sorted(offset_of(name) for name in names if name.endswith(SNAPSHOT_SUFFIX))


def offset_of(name: str) -> int:
    """Return the offset in a file's name; 0 if there is none."""
    digits = name[:NAME_DIGITS]
    return int(digits) if digits.isdecimal() else 0


_BEGINNING = 0


class LogProducers:
    """The producers of one log. Every method raises OSError if the system refuses."""

    def __init__(self, files: Files, directory: str, segments: Segments) -> None:
        self.states = ProducerStates()
        self._snapshots = ProducerSnapshots(files, directory)
        self._segments = segments

    def restore(self, *, forget: bool = False) -> None:
        """Restore the producers as of the log's end, from the newest sound snapshot and a replay.

        If an index of aborted transactions must be rebuilt, the replay begins before its segment.
        With `forget`, the log restarts elsewhere and nothing is known.
        """
        if forget:
            self._snapshots.forget()
            self.states = ProducerStates()
            return
        end_offset = self._segments.active.next_offset
        distrusted = self._segments.distrusted_offset
        self.states, offset = self._snapshots.take(end_offset if distrusted is None else distrusted)
        offset = _BEGINNING if offset is None else offset
        if offset < end_offset:
            self._segments.replay(offset, self.states.replay)

    def keep(self) -> None:
        """Write a snapshot as of the log's end, unless there is one."""
        end_offset = self._segments.active.next_offset
        if (self._snapshots.newest_offset or _BEGINNING) != end_offset:
            self._snapshots.write(self.states, end_offset)

    def note(self, batch: RecordBatch, base_offset: int) -> None:
        """Note that the batch was appended to the active segment."""
        decided = self.states.replay(batch, base_offset)
        if decided is None:
            return
        self.states.transactions.hold(decided)
        # A marker decides in the log's index now, and for readers once it is committed.
        if decided.aborted:
            self._segments.active.note_aborted(decided)
