"""EpochList: leader epochs and where they began, as a replica's machines ask for them."""

from __future__ import annotations


class EpochList:
    """Of a log that begins with the first one."""

    def __init__(self, starts: tuple[tuple[int, int], ...]) -> None:
        self.starts = starts

    def at(self, offset: int) -> int:
        """The epoch that wrote `offset`."""
        return max((epoch for epoch, start in self.starts if start <= offset), default=-1)

    def start_after(self, epoch: int) -> int | None:
        """Where the first epoch after `epoch` begins."""
        return min((start for each, start in self.starts if each > epoch), default=None)
