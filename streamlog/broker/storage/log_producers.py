"""LogProducers: the producers of one log and their transactions, as files keep them.

`ProducerStates` is told by the log alone. What is here spares reading all of it: snapshots, from
which an opening goes on, and the indexes of aborted transactions, which are built anew on the
way where they can't be trusted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.broker.storage.producers import ProducerStates
from streamlog.broker.storage.snapshots import ProducerSnapshots

if TYPE_CHECKING:
    from streamlog.broker.storage.files import Files
    from streamlog.broker.storage.segments import Segments
    from streamlog.records.batch import RecordBatch

_BEGINNING = 0


class LogProducers:
    """The producers of the log in `directory`. Everything raises OSError if the system refuses."""

    def __init__(self, files: Files, directory: str, segments: Segments) -> None:
        self.states = ProducerStates()
        self._snapshots = ProducerSnapshots(files, directory)
        self._segments = segments

    def restore(self, *, forget: bool = False) -> None:
        """As of the end of the log: the newest good snapshot, and a replay.

        The replay begins further back where aborted transactions have to be found again. With
        `forget` nothing is known any more: the log is another one.
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
        """Write a snapshot as of the end of the log, unless there is one."""
        end_offset = self._segments.active.next_offset
        if (self._snapshots.newest_offset or _BEGINNING) != end_offset:
            self._snapshots.write(self.states, end_offset)

    def note(self, batch: RecordBatch, base_offset: int) -> None:
        """The batch has been appended to the active segment."""
        decided = self.states.replay(batch, base_offset)
        if decided is None:
            return
        self.states.transactions.hold(decided)
        if decided.aborted:
            self._segments.active.note_aborted(decided)
