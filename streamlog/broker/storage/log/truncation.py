"""Truncation: cuts off the end of a log that differs from the leader's (KIP-101).

In steps: `begin` lowers the synced end, the caller makes that checkpoint durable, and `cut` removes
the rest. In the reverse order, the log would look damaged after a crash. Segments are removed from
the newest on, so a crash leaves a prefix of the log. A sync that began before a cut says nothing
about later appends, so each cut begins a *generation*.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from streamlog.broker.storage.log.log_writes import SyncedEnd

if TYPE_CHECKING:
    from streamlog.broker.storage.log.leader_epochs import LeaderEpochHistory
    from streamlog.broker.storage.log.log_writes import LogDisk
    from streamlog.broker.storage.log.producer_snapshots import LogProducers
    from streamlog.broker.storage.log.recovery import LostOffsets
    from streamlog.broker.storage.log.segments import Segments


class TruncatedLog(Protocol):
    """The part of `PartitionLog` that truncation needs."""

    synced: SyncedEnd
    epochs: LeaderEpochHistory
    lost: LostOffsets

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        ...

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        ...

    def check_open(self) -> None:
        """Raise LogDirectoryError if the log accepts nothing."""
        ...

    def set_start(self, offset: int) -> None:
        """Set the log start offset."""
        ...


class Truncation:
    """Truncates one log. After a disk error the log accepts nothing more."""

    def __init__(
        self, log: TruncatedLog, segments: Segments, producers: LogProducers, disk: LogDisk
    ) -> None:
        self.generation = 0
        """How many truncations the log has had since it was opened."""
        self._log = log
        self._segments = segments
        self._producers = producers
        self._disk = disk

    def begin(self, offset: int) -> None:
        """Lower the synced end to `offset`, for the checkpoint to be written before `cut`.

        Raises:
            LogDirectoryError: the log has failed.
            CorruptData: the range is damaged.
        """
        log = self._log
        log.check_open()
        self.generation += 1
        with self._disk.errors:
            segment = self._segments.segment_of(min(offset, log.log_end_offset))
            position = segment.size_bytes
            if offset < segment.next_offset:
                position = segment.position_of(offset)
        # 1. The log has offsets 0-99, all synced; the leader's log ends at 60.
        # 2. `begin(60)` lowers the synced end, and the recovery point 60 is made durable.
        # 3. `cut(60)` removes 60-99.
        # A crash after 2 finds sound batches after the recovery point, and the replica truncates
        # again. If the cut came first, a crash would find the log ending before its recovery
        # point, which means damage.
        log.synced = min(log.synced, SyncedEnd(offset, segment.base_offset, position))

    def cut(self, offset: int) -> None:
        """Durably remove everything from the batch that contains `offset` on.

        Raises:
            LogDirectoryError: the disk refused; the log accepts nothing more.
        """
        log = self._log
        try:
            self._segments.truncate(offset)
            # Epochs and producers follow the log's real end: a batch that contains `offset` is
            # removed whole, so the log may end before `offset`.
            log.epochs.truncate(log.log_end_offset)
            self._producers.restore()
            log.lost.keep_within(log.log_start_offset, log.log_end_offset)
        except OSError as error:
            raise self._disk.fail(error) from error
        active = self._segments.active
        log.synced = SyncedEnd(active.next_offset, active.base_offset, active.size_bytes)

    def begin_restart(self, offset: int) -> None:
        """Move the log start to `offset`, before its beginning or after its end, to restart there.

        Make the checkpoint durable, then call `restart`. After a crash between the two, everything
        up to the log's start is missing, and `PartitionLog.open` continues there. Raises what
        `begin` raises.
        """
        log = self._log
        log.check_open()
        self.generation += 1
        log.synced = SyncedEnd(min(log.synced.offset, offset), offset, 0)
        log.set_start(offset)

    def restart(self, offset: int) -> None:
        """Remove everything and begin again at `offset`. Raises what `cut` raises."""
        log = self._log
        try:
            self._segments.begin_again(offset)
            log.epochs.truncate(0)
            self._producers.restore(forget=True)
            log.lost.keep_within(offset, offset)
        except OSError as error:
            raise self._disk.fail(error) from error
        log.synced = SyncedEnd(offset, offset, 0)
