"""EpochList: leader epochs and their start offsets, as a replica's state machines read them."""

from __future__ import annotations


class EpochList:
    """The epochs of a log, as pairs of epoch and start offset in ascending order."""

    def __init__(self, starts: tuple[tuple[int, int], ...]) -> None:
        self.starts = starts

    def at(self, offset: int) -> int:
        """Return the epoch that wrote `offset`; -1 if there is none."""
        return max((epoch for epoch, start in self.starts if start <= offset), default=-1)

    def start_after(self, epoch: int) -> int | None:
        """Return the start offset of the first epoch after `epoch`; None if there is none."""
        return min((start for each, start in self.starts if each > epoch), default=None)
