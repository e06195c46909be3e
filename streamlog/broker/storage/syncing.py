"""Syncing: bytes of a log on their way from the page cache to the disk.

A sync takes milliseconds on some disks, so it is made in three steps: the log says what there
is (`PartitionLog.begin_sync`), any thread runs it (`PendingSync.run`), and the log takes note of
what has become of it (`PartitionLog.end_sync`). In between the log may grow, roll or be deleted:
the work has files of its own, opened before it was handed over.
Rule of the file: a sync that failed is never repeated. The kernel may have dropped the pages
that it could not write, and a second sync would succeed and lie (fsyncgate).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from streamlog.broker.storage.files import File
    from streamlog.broker.storage.segment import Segment


class SyncedEnd(NamedTuple):
    """Up to where a log is known to be on disk."""

    offset: int
    """The first offset that may not be."""
    base_offset: int
    """Of the segment in which that one is, or will be."""
    position: int
    """Bytes of that segment that are on disk."""


@dataclass(frozen=True, slots=True)
class PendingSync:
    """What a log had when a sync of it was begun."""

    end: SyncedEnd
    """Up to where the log is on disk once this has run."""
    sealed: tuple[Segment, ...]
    files: tuple[File, ...]
    names: Callable[[], None] | None = None
    """Brings the names of segments that were begun to disk, if any were."""
    generation: int = 0
    """Which it was of the log, that is, how often it had been cut."""

    def run(self) -> None:
        """Bring the bytes to disk; callable from any thread, once.

        Raises:
            OSError: the disk refused. What it has now is unknown.
        """
        try:
            for file in self.files:
                file.sync()
            if self.names is not None:
                with suppress(FileNotFoundError):  # The topic has been deleted meanwhile.
                    self.names()
        finally:
            self.close()

    def close(self) -> None:
        """Give the files back."""
        for file in self.files:
            file.close()
