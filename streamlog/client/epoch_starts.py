"""EpochStarts: which leader wrote the records that a reader has passed, as far as it remembers.

Pure. Leader epochs change rarely, so the offset where each begins is all that is kept. A position
is only safe together with the epoch of the record before it: by that a broker tells whether its
log still has this record (KIP-320).
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from streamlog.client.offset_metadata import NO_EPOCH

EPOCHS_MAX: Final = 128
"""Epochs remembered per partition. The epoch of an older record counts as unknown."""


class EpochStarts:
    """The leader epochs of one partition, each with its first offset."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, position: int = 0, leader_epoch: int = NO_EPOCH) -> None:
        """Start at a position whose preceding record has this epoch."""
        self._starts: list[int] = [position - 1]
        self._epochs: list[int] = [leader_epoch]

    def note(self, offset: int, leader_epoch: int) -> None:
        """A batch that begins at `offset` was written in this epoch; offsets ascend."""
        if leader_epoch == self._epochs[-1]:
            return
        self._starts.append(offset)
        self._epochs.append(leader_epoch)
        if len(self._starts) > EPOCHS_MAX:
            del self._starts[0], self._epochs[0]

    def before(self, position: int) -> int:
        """The epoch of the record before a position; -1 if it is unknown."""
        at = bisect_left(self._starts, position) - 1
        return self._epochs[at] if at >= 0 else NO_EPOCH

    def end_of(self, leader_epoch: int, end: int) -> int:
        """`end`, or where a later epoch than this is known to begin, if that comes first."""
        for start, epoch in zip(self._starts, self._epochs, strict=True):
            if epoch > leader_epoch:
                return min(max(start, 0), end)
        return end
