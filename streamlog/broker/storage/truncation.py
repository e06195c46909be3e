"""Truncation: the end of a log is cut off, because the leader's log goes on otherwise (KIP-101).

Two steps, and between them the caller makes the log's checkpoint durable: `begin` says that less
of the log is on disk than was said, `cut` takes the rest away. Cut first, the log would seem
damaged after a crash, for a checkpoint that says more.
Rule of the file: segments go from the newest on, so what a crash leaves is a beginning of the
log; and a sync that began before a cut says nothing about what was appended after it, so each
cut begins a *generation*.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from streamlog.broker.storage.syncing import SyncedEnd

if TYPE_CHECKING:
    from streamlog.broker.storage.epochs import LeaderEpochs
    from streamlog.broker.storage.log_disk import LogDisk
    from streamlog.broker.storage.log_producers import LogProducers
    from streamlog.broker.storage.lost_offsets import LostOffsets
    from streamlog.broker.storage.segments import Segments


class TruncatedLog(Protocol):
    """What is asked of the log that is cut, a `PartitionLog`."""

    synced: SyncedEnd
    epochs: LeaderEpochs
    lost: LostOffsets

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        ...

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get."""
        ...

    def check_open(self) -> None:
        """Raises LogDirectoryError if it takes nothing."""
        ...

    def set_start(self, offset: int) -> None:
        """It begins there from now on."""
        ...


class Truncation:
    """Cuts one log. After an error of the disk the log takes nothing more."""

    def __init__(
        self, log: TruncatedLog, segments: Segments, producers: LogProducers, disk: LogDisk
    ) -> None:
        self.generation = 0
        """How often the log was cut since it was opened."""
        self._log = log
        self._segments = segments
        self._producers = producers
        self._disk = disk

    def begin(self, offset: int) -> None:
        """From `offset` on nothing is on disk any more, as far as checkpoints are concerned.

        Raises:
            LogDirectoryError: the log has failed.
            CorruptData: the place is damaged.
        """
        log = self._log
        log.check_open()
        self.generation += 1
        with self._disk.errors():
            segment = self._segments.segment_of(min(offset, log.log_end_offset))
            position = segment.size_bytes
            if offset < segment.next_offset:
                position = segment.position_of(offset)
        log.synced = min(log.synced, SyncedEnd(offset, segment.base_offset, position))

    def cut(self, offset: int) -> None:
        """Take everything from the batch with `offset` in it on away, durably.

        Raises:
            LogDirectoryError: the disk refused; the log takes nothing more.
        """
        log = self._log
        try:
            self._segments.truncate(offset)
            log.epochs.truncate(log.log_end_offset)
            self._producers.restore()
            log.lost.keep_within(log.log_start_offset, log.log_end_offset)
        except OSError as error:
            raise self._disk.failed(error) from error
        active = self._segments.active
        log.synced = SyncedEnd(active.next_offset, active.base_offset, active.size_bytes)

    def begin_restart(self, offset: int) -> None:
        """Delete everything: the log will go on at `offset`, beyond its end or before it.

        It is for good once the checkpoint is durable; then comes `restart`. A crash between the
        two is one in which everything up to the log's start was lost, and `open` goes on there.
        Raises what `begin` raises.
        """
        log = self._log
        log.check_open()
        self.generation += 1
        log.synced = SyncedEnd(min(log.synced.offset, offset), offset, 0)
        log.set_start(offset)

    def restart(self, offset: int) -> None:
        """Begin again at `offset`. Raises what `cut` raises."""
        log = self._log
        try:
            self._segments.begin_again(offset)
            log.epochs.truncate(0)
            self._producers.restore(forget=True)
            log.lost.keep_within(offset, offset)
        except OSError as error:
            raise self._disk.failed(error) from error
        log.synced = SyncedEnd(offset, offset, 0)
