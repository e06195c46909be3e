"""EpochChain: which epochs a log is made of, and where each of them begins (KIP-101, 279, 630).

Two logs that agree in the epoch and offset of an entry agree in all before it. So a leader finds
out by two numbers whether a follower's log is the beginning of its own, and if not, where they
part. What stands before the log's start is known by the epoch of its last entry alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamlog.broker.quorum.raft_messages import EMPTY, Entry, SnapshotId


class EpochChain:
    """The epochs of a log that begins at `start`, in order, and its end."""

    def __init__(self, start: SnapshotId = EMPTY) -> None:
        self.start = start
        self.end_offset = start.end_offset
        self._firsts: list[tuple[int, int]] = []
        """Epoch and offset of the first entry of each epoch that is in the log."""

    @property
    def last_epoch(self) -> int:
        """Of the last entry; of the snapshot if there is none."""
        return self._firsts[-1][0] if self._firsts else self.start.epoch

    def append(self, entry: Entry) -> None:
        """Take note of an entry at the end.

        Raises:
            ValueError: it does not follow the last one.
        """
        if entry.base_offset != self.end_offset or entry.epoch < self.last_epoch or entry.count < 1:
            raise ValueError(
                f"entry {entry.base_offset}+{entry.count} of epoch {entry.epoch} does not follow"
                f" offset {self.end_offset} of epoch {self.last_epoch}"
            )
        if not self._firsts or entry.epoch > self._firsts[-1][0]:
            self._firsts.append((entry.epoch, entry.base_offset))
        self.end_offset = entry.next_offset

    def extend(self, entries: Iterable[Entry]) -> None:
        """Take note of several. Raises ValueError as `append` does."""
        for entry in entries:
            self.append(entry)

    def end_for(self, epoch: int) -> tuple[int, int]:
        """The last epoch here that is not after `epoch`, and where it ends.

        An epoch of -1 says that all of them are later.
        """
        found, end = -1, self.start.end_offset
        if epoch >= self.start.epoch:
            found = self.start.epoch
            end = self._firsts[0][1] if self._firsts else self.end_offset
        for index, (each, _) in enumerate(self._firsts):
            if each <= epoch:
                found = each
                end = self._end_of(index)
        return found, end

    def epoch_at(self, offset: int) -> int:
        """Of the last entry before `offset`."""
        epoch = self.start.epoch
        for each, first in self._firsts:
            if first < offset:
                epoch = each
        return epoch

    def truncate(self, end_offset: int) -> None:
        """Forget what is behind `end_offset`, which is not before the log's start."""
        self._firsts = [each for each in self._firsts if each[1] < end_offset]
        self.end_offset = end_offset

    def trim(self, start: SnapshotId) -> None:
        """Let the log begin later."""
        rest = [(epoch, max(first, start.end_offset)) for epoch, first in self._firsts]
        last: dict[int, tuple[int, int]] = {}
        for epoch, first in rest:
            last[first] = (epoch, first)
        self._firsts = sorted(each for each in last.values() if each[1] < self.end_offset)
        self.start = start

    def restart(self, start: SnapshotId) -> None:
        """Begin anew behind a snapshot."""
        self.start = start
        self.end_offset = start.end_offset
        self._firsts.clear()

    def _end_of(self, index: int) -> int:
        following = index + 1
        return self._firsts[following][1] if following < len(self._firsts) else self.end_offset
