"""Partition: one partition as this broker serves it, and Partitions, all that it has.

A thin layer over `PartitionLog` that knows what may be shown. With one node and `flush=always`
what is on disk is committed, with `flush=os` what is in the log: there the high watermark stands.
The last stable offset lags behind it while a transaction is open, or its marker is on its way to
the disk.
Rule of the file: whatever is appended, by a producer or by a coordinator, goes through
`Partition.append` or `end_transaction`, which sees to its sync and tells the one listener when it
may be read, so that nobody who waits for bytes has to poll.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from streamlog.broker.config.broker import FLUSH_ALWAYS, FLUSH_NEVER
from streamlog.broker.replication.partition_replica import (
    Committed,
    PartitionReplica,
    ReplicaNode,
    not_leader_error,
)
from streamlog.broker.storage.validator import AppendOrigin, Prepared
from streamlog.errors import OffsetOutOfRange, StreamlogError, UnknownTopicOrPartition
from streamlog.protocol.error_codes import ErrorCode, error_for

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from streamlog.broker.named_topics import Topics
    from streamlog.broker.replication.group_flush import GroupFlush
    from streamlog.broker.storage.disk.file_range import FileRange
    from streamlog.broker.storage.log.partition_log import PartitionLog
    from streamlog.broker.storage.log.producer_states import EndedTransaction
    from streamlog.broker.storage.log.truncation import PendingSync
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.broker.storage.validator import AppendResult
    from streamlog.protocol.schema import Buffer
    from streamlog.records.control_batches import Marker, MarkTold

NO_EPOCH = -1
"""The leader epoch of a client that does not know any: it is not checked."""


HIGH_WATERMARK = -1
"""Of a deletion: up to there."""
RELEASED_BYTES = 2**31 - 1
"""A marker may release any number of bytes to those who read committed records: all are woken."""


class AppendListener(Protocol):
    """Who is told that there is more to read, or that there will be no more."""

    def on_append(self, topic: str, partition: int, size_bytes: int) -> None:
        """Bytes were appended."""
        ...

    def on_gone(self, topic: str, partition: int) -> None:
        """The partition was deleted."""
        ...


class Partition:
    """One partition, led by this broker."""

    def __init__(
        self,
        topic: str,
        index: int,
        log: PartitionLog,
        *,
        listener: AppendListener,
        flush: GroupFlush,
        mode: str,
    ) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        log.syncs_off_loop = True
        self._listener = listener
        self._flush = flush
        self._always = mode == FLUSH_ALWAYS
        self._hidden_bytes = 0
        self._syncing_bytes = 0
        self._deadline_ms: int | None = None
        self._appended_ms: int | None = None
        self.replica: PartitionReplica | None = None
        """Its part in a cluster; None where no controller has said anything of it."""
        self._alone = True
        """Whether nobody follows: what is synced is committed."""

    def replicate(self, node: ReplicaNode) -> PartitionReplica:
        """Make it a replica of this node; it does not lead until it is told to."""
        self.replica = PartitionReplica(
            (self.topic, self.index),
            self.log,
            node=node,
            flush=self._flush,
            flushed=self,
            on_committed=self._on_committed,
        )
        self._alone = False
        return self.replica

    def on_role(self) -> None:
        """Its replica leads, follows, or has other followers than before."""
        if self.replica is not None:
            self._alone = self.replica.is_alone
            self._listener.on_append(self.topic, self.index, RELEASED_BYTES)

    @property
    def is_alone(self) -> bool:
        """Whether nobody follows, so what is synced is committed."""
        return self._alone

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads it."""
        return self.replica is None or self.replica.is_leader

    def check_leader(self) -> None:
        """Whether this broker leads it.

        Raises:
            LogError: NOT_LEADER_OR_FOLLOWER.
        """
        if not self._alone and self.replica is not None and not self.replica.is_leader:
            raise self.replica.not_leader()

    def check_insync(self) -> None:
        """Whether enough replicas are in sync for acks=all.

        Raises:
            LogError: NOT_ENOUGH_REPLICAS.
        """
        if not self._alone and self.replica is not None:
            self.replica.check_insync()

    def check_end_known(self) -> None:
        """Whether it is known how far earlier leaders have committed.

        Raises:
            LogError: OFFSET_NOT_AVAILABLE; it will be, once followers have fetched.
        """
        replica = self.replica
        leader = None if replica is None or self._alone else replica.machine.leader
        if leader is not None and not leader.is_offset_known:
            raise error_for(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"{self.topic}-{self.index}: a leader was elected just now",
            )

    @property
    def high_watermark(self) -> int:
        """Records below this offset are committed: consumers may see them."""
        if not self._alone and self.replica is not None:
            return self.replica.high_watermark
        end_offset = self.log.log_end_offset
        return min(self.log.synced.offset, end_offset) if self._always else end_offset

    @property
    def last_stable_offset(self) -> int:
        """Below this offset all transactions are decided, for good."""
        high_watermark = self.high_watermark
        first = self.log.producers.transactions.first_unstable_offset
        if first is None:
            return high_watermark
        return min(high_watermark, max(first, self.log.log_start_offset))

    def may_acknowledge(self, offset: int) -> bool:
        """Whether what is below `offset` may be acknowledged to who wants it from all (acks=all).

        If not, `when_committed` tells when.
        """
        if not self._alone:
            return self.high_watermark >= offset
        return self.log.synced.offset >= offset or not self._is_due()

    def is_kept(self, offset: int) -> bool:
        """Whether what is below `offset` may be acknowledged to who wants it from us (acks=1)."""
        return self.log.synced.offset >= offset or not self._is_due()

    def when_committed(self, offset: int, then: Committed) -> None:
        """Call back once what is below `offset` is committed, or with why it may not be.

        Errors: see `PartitionReplica.when_committed`, and those of the disk.
        """
        if self._alone or self.replica is None:
            self._flush.then(then)
        else:
            self.replica.when_committed(offset, then)

    def check_epoch(self, leader_epoch: int) -> None:
        """Compare the epoch in a request with ours (KIP-320).

        Raises:
            LogError: FENCED_LEADER_EPOCH, the client has missed an election;
                UNKNOWN_LEADER_EPOCH, this broker has; NOT_LEADER_OR_FOLLOWER, it leads no more.
        """
        self.check_leader()
        self._compare_epochs(leader_epoch, self.log.epochs.current)

    def _compare_epochs(self, leader_epoch: int, current: int) -> None:
        if leader_epoch in (NO_EPOCH, current):
            return
        older = leader_epoch < current
        raise not_leader_error(
            ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"{self.topic}-{self.index}: leader epoch {leader_epoch}, the current one is {current}",
            None if self.replica is None else self.replica.current_leader,
        )

    @property
    def is_copy(self) -> bool:
        """Whether readers may read it although another broker leads it (KIP-392)."""
        return not self._alone and self.replica is not None and self.replica.is_in_touch

    def nearest(self, rack: str, offset: int) -> int | None:
        """The broker that a reader in a rack is sent to, if not to this one."""
        if self._alone or self.replica is None:
            return None
        return self.replica.nearest(rack, offset)

    def check_copy(self, offset: int, *, leader_epoch: int, last_epoch: int) -> None:
        """Whether this copy can say what a reader gets from `offset` on.

        It may lack what its leader has, and that includes where the reader's own log was cut:
        then the leader is to be asked. Records beyond the high watermark that is known here are
        waited for, as at the end of the log.

        Raises:
            LogError: FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, see `check_epoch`;
                OFFSET_NOT_AVAILABLE, only the leader can say.
        """
        current = None if self.replica is None else self.replica.machine.leader_epoch
        self._compare_epochs(leader_epoch, NO_EPOCH if current is None else current)
        is_known = offset <= self.log.log_end_offset
        if last_epoch != NO_EPOCH and self.log.log_start_offset <= offset <= self.high_watermark:
            try:
                is_known = self.diverges(last_epoch, offset) is None
            except OffsetOutOfRange:  # The epoch is not known here.
                is_known = False
        if not is_known:
            raise error_for(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"{self.topic}-{self.index}: offset {offset} is not in this copy, which ends at"
                f" {self.log.log_end_offset}, or not in the epoch {last_epoch}; ask its leader",
            )

    def diverges(self, epoch: int, offset: int) -> tuple[int, int] | None:
        """Where a reader's log, that ends at `offset` in `epoch`, has to be cut; None for nowhere.

        Raises:
            OffsetOutOfRange: what it has is before this log, or of an epoch that is not known.
        """
        if offset < self.log.log_start_offset:
            raise OffsetOutOfRange(f"{self.topic}-{self.index}: offset {offset} was deleted")
        return self.log.epochs.diverges(epoch, offset, self.epoch_end)

    @property
    def epoch_end(self) -> int:
        """Where the newest epoch ends, for who compares a log, or what it has read, with this one.

        Of a replicated log that is its end: a new leader has all that was read of the one before,
        and knows only later how far that is committed. Who went by its high watermark would go
        back behind what was read.
        """
        return self.high_watermark if self._alone else self.log.log_end_offset

    def append(
        self,
        data: Buffer,
        *,
        now_ms: int,
        wall_ms: int | None = None,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        prepared: Prepared | None = None,
    ) -> AppendResult:
        """Append batches and see to their sync. See `PartitionLog.append`, and what it raises.

        It raises NOT_LEADER_OR_FOLLOWER as well.
        """
        self.check_leader()
        rolled_at = self.log.active_base_offset
        result = self.log.append(
            data, now_ms=now_ms, wall_ms=wall_ms, origin=origin, prepared=prepared
        )
        if not result.duplicate:
            self._on_appended(result.size_bytes, rolled_at, now_ms)
        return result

    def append_each(
        self,
        pieces: Sequence[memoryview],
        *,
        now_ms: int,
        wall_ms: int,
        prepared: Sequence[Prepared | StreamlogError] = (),
    ) -> list[AppendResult | StreamlogError]:
        """Append what several requests bring. See `PartitionLog.append_each`.

        Raises:
            LogError: NOT_LEADER_OR_FOLLOWER.
        """
        self.check_leader()
        rolled_at = self.log.active_base_offset
        outcomes = self.log.append_each(pieces, now_ms=now_ms, wall_ms=wall_ms, prepared=prepared)
        size_bytes = 0
        for outcome in outcomes:
            if not isinstance(outcome, StreamlogError):
                size_bytes += outcome.size_bytes
        if size_bytes:
            self._on_appended(size_bytes, rolled_at, now_ms)
        return outcomes

    def end_transaction(
        self, producer_id: int, producer_epoch: int, marker: Marker, *, now_ms: int, wall_ms: int
    ) -> AppendResult:
        """End a producer's transaction; see `PartitionLog.end_transaction`, and what it raises.

        It raises NOT_LEADER_OR_FOLLOWER as well.
        """
        self.check_leader()
        rolled_at = self.log.active_base_offset
        result = self.log.end_transaction(
            producer_id, producer_epoch, marker, now_ms=now_ms, wall_ms=wall_ms
        )
        if not self._always:
            self.log.producers.transactions.settle(self.high_watermark)
        self._on_appended(RELEASED_BYTES, rolled_at, now_ms)
        return result

    def quiet_ms(self, now_ms: int) -> int | None:
        """For how long nothing was appended, as far as this process knows.

        None if time is not marked here, or not now: with a transaction open, what it has
        written is not there yet for those who wait, and a mark would not be either. And who was
        the leader when a mark was wanted may be none any more: only a leader appends.
        """
        if not self.is_leader:
            return None
        if self._appended_ms is None:
            self._appended_ms = now_ms
        is_open = self.log.producers.transactions.first_unstable_offset is not None
        if is_open or not self.log.config.takes_marks:
            return None
        return now_ms - self._appended_ms

    def mark_time(self, *, now_ms: int, told: Sequence[MarkTold] = ()) -> None:
        """Append a mark that says for how long nothing was. Raises what the log's raises."""
        quiet_ms = self.quiet_ms(now_ms)
        if quiet_ms is None:
            return
        rolled_at, self._appended_ms = self.log.active_base_offset, now_ms
        result = self.log.mark_time(quiet_ms, now_ms=now_ms, told=told)
        if result is not None:
            self._on_appended(result.size_bytes, rolled_at, now_ms)

    def _on_appended(self, size_bytes: int, rolled_at: int, now_ms: int) -> None:
        """See to the sync of what was appended; the active segment began at `rolled_at` before."""
        self._appended_ms = now_ms
        if not self._alone and self.replica is not None:
            self.replica.on_appended(size_bytes)
            self._flush.add(self)
            return
        if self._always:
            self._hidden_bytes += size_bytes
            self._flush.add(self)
            return
        self._listener.on_append(self.topic, self.index, size_bytes)
        if self._is_due():
            self._flush.add(self)
        elif self.log.active_base_offset != rolled_at:
            self._flush.add(self, sealed_only=True)
        if self._deadline_ms is None and self.log.config.flush_ms < FLUSH_NEVER:
            self._deadline_ms = now_ms + self.log.config.flush_ms
            self._flush.add_later(self, self._deadline_ms)

    def range(
        self, offset: int, *, max_bytes: int, min_one: bool = True, stable: bool = False
    ) -> Buffer | FileRange:
        """Find what is committed, with `stable` up to the last stable offset.

        Raises what `PartitionLog.range` raises.
        """
        end_offset = self.last_stable_offset if stable else None
        if not self._alone:
            return self.log.range(
                offset,
                max_bytes=max_bytes,
                min_one=min_one,
                before_offset=self.high_watermark if end_offset is None else end_offset,
            )
        return self.log.range(
            offset,
            max_bytes=max_bytes,
            min_one=min_one,
            synced=self._always,
            before_offset=end_offset if end_offset != self.high_watermark else None,
        )

    def aborted(self, offset: int) -> list[EndedTransaction]:
        """The aborted transactions in what `range` has just found from `offset` on, in order.

        Raises what `PartitionLog.aborted` raises.
        """
        found = self.log.aborted(offset, self.log.found_end_offset)
        return sorted(found, key=lambda decided: decided.first_offset)

    def begin_sync(self, *, sealed_only: bool) -> PendingSync | None:
        """Take up a sync. Raises what `PartitionLog.begin_sync` raises."""
        if not sealed_only:
            self._deadline_ms = None
            self._syncing_bytes, self._hidden_bytes = self._hidden_bytes, 0
        return self.log.begin_sync(sealed_only=sealed_only)

    def on_synced(self, sync: PendingSync) -> None:
        """A sync of the log has succeeded: there may be more to read."""
        self.log.end_sync(sync)
        if self.replica is not None and (not self._alone or self.replica.has_waiting_commits):
            self.replica.on_synced(sync.generation)
        if not self._alone:
            return
        self.log.producers.transactions.settle(self.high_watermark)
        size_bytes, self._syncing_bytes = self._syncing_bytes, 0
        if size_bytes:
            self._listener.on_append(self.topic, self.index, size_bytes)

    def _on_committed(self, size_bytes: int) -> None:
        """The high watermark of a replicated partition has moved, over so many bytes."""
        if not self.is_leader:
            # Who reads this copy has waited for it, however much it is.
            size_bytes = RELEASED_BYTES
        # What was on its way to the disk when the first follower came is committed with it.
        size_bytes += self._hidden_bytes + self._syncing_bytes
        self._hidden_bytes = self._syncing_bytes = 0
        self._listener.on_append(self.topic, self.index, size_bytes)

    def _is_due(self) -> bool:
        """Whether more is in the log than may stay unsynced."""
        unsynced = self.log.log_end_offset - self.log.synced.offset
        return unsynced > 0 and (self._always or unsynced >= self.log.config.flush_messages)

    def delete_before(self, offset: int) -> None:
        """Delete the records below `offset`; -1 means all that consumers may see.

        It is for good once the directory has written its checkpoints.

        Raises:
            OffsetOutOfRange: consumers can't see that far.
            LogDirectoryError: the log has failed.
        """
        if offset > self.high_watermark:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.index}: offset {offset} is beyond the high watermark"
                f" {self.high_watermark}"
            )
        self.log.advance_start(self.high_watermark if offset == HIGH_WATERMARK else offset)
        if not self._alone and self.replica is not None:
            self.replica.on_deleted()

    @property
    def low_watermark(self) -> int:
        """Before this offset no replica that lives has anything any more."""
        if self._alone or self.replica is None:
            return self.log.log_start_offset
        return self.replica.low_watermark

    def when_deleted(self, offset: int, then: Committed) -> None:
        """Call back once no replica that lives has anything before `offset`, or with why not.

        Errors: NOT_LEADER_OR_FOLLOWER, this broker leads no more, so it will not know.
        """
        if self._alone or self.replica is None:
            then(None)
        else:
            self.replica.when_deleted(offset, then)


class Partitions:
    """The partitions of this broker, found by topic and number: those it leads, and the others."""

    def __init__(
        self,
        directory: LogDirectory,
        *,
        topics: Topics,
        listener: AppendListener,
        flush: GroupFlush,
        mode: str,
    ) -> None:
        """`topics` knows which topics there are in the cluster."""
        self._directory = directory
        self._listener = listener
        self._flush = flush
        self._mode = mode
        self._topics = topics
        self._here: dict[tuple[str, int], Partition] = {}
        self.copy_bytes_read = 0
        """What readers were given of copies here that other brokers lead."""
        self._led: dict[tuple[str, int], Partition] = {}

    def get(self, topic: str, index: int) -> Partition:
        """The partition.

        Raises:
            UnknownTopicOrPartition: it is not there.
            NotLeader: another broker leads it, or none does.
        """
        partition = self._led.get((topic, index))
        if partition is not None:
            return partition
        count = self._topics.partitions(topic)
        if not count:
            raise UnknownTopicOrPartition(f"there is no topic {topic!r}")
        if not 0 <= index < count:
            raise UnknownTopicOrPartition(
                f"topic {topic!r} has partitions 0 to {count - 1}, not {index}"
            )
        raise not_leader_error(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"{topic}-{index} is not led by this broker",
            self._topics.leader(topic, index),
        )

    def readable(self, topic: str, index: int) -> Partition:
        """The same, or a copy of it that is kept up to date. Raises what `get` raises."""
        partition = self._here.get((topic, index))
        if partition is not None and partition.is_copy:
            return partition
        return self.get(topic, index)

    def host(self, topic: str, index: int) -> Partition:
        """A partition that has a replica here, led or not.

        Raises:
            UnknownTopicOrPartition: its log is not on this broker.
        """
        partition = self._here.get((topic, index))
        if partition is None:
            log = self._directory.log(topic, index)
            partition = self._here[topic, index] = Partition(
                topic, index, log, listener=self._listener, flush=self._flush, mode=self._mode
            )
        return partition

    def hosted(self, topic: str, index: int) -> Partition | None:
        """The same if it was hosted before; None if it is not here."""
        return self._here.get((topic, index))

    def lead(self, topic: str, index: int) -> bool:
        """This broker leads a partition that it hosts from now on; whether it did not before.

        Raises:
            UnknownTopicOrPartition: its log is not on this broker.
        """
        before = self._led.get((topic, index))
        self._led[topic, index] = partition = self.host(topic, index)
        return before is not partition

    def resign(self, topic: str, index: int) -> bool:
        """This broker leads it no longer, if it did: whoever waits there is told."""
        if self._led.pop((topic, index), None) is None:
            return False
        self._listener.on_gone(topic, index)
        return True

    def drop(self, topic: str, index: int) -> None:
        """It is on this broker no longer, and was led no longer before: who waits is told."""
        self._here.pop((topic, index), None)
        self._listener.on_gone(topic, index)

    def high_watermark(self, topic: str, index: int) -> int:
        """The high watermark of a partition, as far as this broker knows it.

        0 of one that it has a log of, and has not been told yet to lead or follow.
        """
        partition = self._here.get((topic, index))
        return 0 if partition is None else partition.high_watermark

    def last_stable_offset(self, topic: str, index: int) -> int:
        """The last stable offset of a partition. See `high_watermark`."""
        partition = self._here.get((topic, index))
        return 0 if partition is None else partition.last_stable_offset

    def exists(self, topic: str, index: int) -> bool:
        """Whether there is such a partition in the cluster."""
        return 0 <= index < self._topics.partitions(topic)

    def names(self) -> Collection[str]:
        """Every topic."""
        return self._topics.names()

    def topic_id(self, name: str) -> bytes | None:
        """The topic's identity; None if there is none of this name."""
        return self._topics.topic_id(name)

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of the topic with this identity; None if there is none."""
        return self._topics.name_of(topic_id)

    def leader(self, name: str, partition: int) -> tuple[int, int] | None:
        """Who leads a partition, and in which leader epoch; None if nobody does."""
        return self._topics.leader(name, partition)

    def partitions(self, name: str) -> int:
        """How many partitions a topic has; 0 if there is none of this name."""
        return self._topics.partitions(name)

    def is_behind(self, topic: str, index: int) -> bool:
        """Whether something was appended to the partition that may not be shown yet."""
        partition = self._led.get((topic, index))
        return partition is not None and partition.high_watermark < partition.log.log_end_offset
