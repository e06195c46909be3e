"""Partition, Partitions: one partition as this broker serves it, and all that have a log here.

A layer over `PartitionLog` that limits what clients may read. On a single broker the high watermark
is the end of what is on disk (`flush=always`), or of the log (`flush=os`). The last stable offset
is lower while a transaction is open, or while its marker is not on disk.

Rules of this module: every append, by a producer or by a coordinator, goes through `append`,
`append_each`, `end_transaction` or `mark_time`. They schedule its sync, and notify the one listener
when the records can be read, so that no waiting fetch polls.

Not done here: replication between brokers (`partition_replica`), syncs (`group_flush`).
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, NoReturn, Protocol

from streamlog.broker.config.broker import FLUSH_ALWAYS, FLUSH_NEVER
from streamlog.broker.replication.partition_replica import (
    Committed,
    PartitionReplica,
    ReplicaNode,
    not_leader_error,
)
from streamlog.broker.storage.validator import AppendOrigin, Prepared
from streamlog.broker.topic_traffic import TopicTraffic, TrafficMetrics
from streamlog.errors import OffsetOutOfRange, StreamlogError, UnknownTopicOrPartition
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.fetch_patterns import PartitionEnds

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from streamlog.broker.named_topics import Topics
    from streamlog.broker.replication.group_flush import AnyFlush, GroupFlush
    from streamlog.broker.storage.disk.file_range import FileRange
    from streamlog.broker.storage.log.log_writes import PendingSync
    from streamlog.broker.storage.log.partition_log import PartitionLog
    from streamlog.broker.storage.log.producer_states import EndedTransaction
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.broker.storage.validator import AppendResult
    from streamlog.protocol.schema import Buffer
    from streamlog.records.control_batches import ClockTime, Marker

_new_tuple = tuple.__new__  # a named tuple, past its handling of keywords and defaults

NO_EPOCH = -1
"""The leader epoch of a client that knows none: it is not checked."""


HIGH_WATERMARK = -1
"""The offset of a deletion up to the high watermark."""
RELEASED_BYTES = 2**31 - 1
"""The size to report for a transaction marker. A marker may release any number of bytes to readers
of committed records, so this size wakes all of them."""


class AppendListener(Protocol):
    """Port: what is notified of records that can be read, and of partitions that are gone."""

    def on_append(self, topic: str, partition: int, size_bytes: int) -> None:
        """Note that `size_bytes` more can be read."""
        ...

    def on_gone(self, topic: str, partition: int) -> None:
        """Note that this broker no longer serves the partition."""
        ...


class Partition:
    """One partition that has its log on this broker.

    Args:
        topic: the topic's name.
        index: the partition's number.
        log: its log.
        listener: notified of records that can be read.
        flush: syncs the log.
        mode: the broker's setting `flush`.
        traffic: counts the traffic of the topic.
    """

    def __init__(
        self,
        topic: str,
        index: int,
        log: PartitionLog,
        *,
        listener: AppendListener,
        flush: GroupFlush,
        mode: str,
        traffic: TopicTraffic,
    ) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        log.syncs_off_loop = True
        self._listener = listener
        self._flush = flush
        self._always = mode == FLUSH_ALWAYS
        self.traffic = traffic
        self._hidden_bytes = 0
        self._syncing_bytes = 0
        self._deadline_ms: int | None = None
        self._appended_ms: int | None = None
        self.replica: PartitionReplica | None = None
        """Its replica in a cluster; None before the first metadata."""
        self.is_alone = True
        """Whether it has no followers, so that synced records are committed."""
        self._is_mirror = False
        self.sealed_for = ""
        """The cluster that takes the topic over, so that producing is refused; empty for none."""

    def replicate(self, node: ReplicaNode) -> PartitionReplica:
        """Make it a replica of this node, which leads only once metadata says so."""
        self.replica = PartitionReplica(
            (self.topic, self.index),
            self.log,
            node=node,
            flush=self._flush,
            flushed=self,
            on_committed=self._on_committed,
            traffic=self.traffic,
        )
        self.is_alone = False
        return self.replica

    def replace_log(self, log: PartitionLog, flush: GroupFlush) -> None:
        """Use the log that has succeeded the present one, with the same records, all on disk."""
        # What waits for a round of the other disk is answered after it.
        self._flush.forget(self)
        self.log, self._flush = log, flush
        log.syncs_off_loop = True
        # The copy is on disk as a whole: nothing is due, and nothing is hidden from readers.
        self._deadline_ms = None
        self._hidden_bytes = self._syncing_bytes = 0
        if self.replica is not None:
            self.replica.replace_log(log, flush)
        if self.is_alone:
            log.producers.transactions.settle(self.high_watermark)
        self._listener.on_append(self.topic, self.index, RELEASED_BYTES)

    def on_role(self) -> None:
        """Adapt to a change of its replica's role or followers, and wake all waiting fetches."""
        if self.replica is not None:
            self.is_alone = self.replica.is_alone
            state = self.replica.machine.state
            self._is_mirror = state is not None and state.mirror_of is not None
            self.sealed_for = "" if state is None else state.sealed_for
            self._listener.on_append(self.topic, self.index, RELEASED_BYTES)

    def on_kept(self, offset: int, now_ms: int) -> None:
        """Cut off what a promotion leaves out, which is kept in a file, and lead.

        Raises:
            StreamlogError: the disk refused.
        """
        if self.replica is not None:
            self.replica.on_kept(offset, now_ms)
            self.on_cut()
            self.on_role()

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads the partition."""
        return self.replica is None or self.replica.is_leader

    @property
    def is_mirror(self) -> bool:
        """Whether it copies a partition of another cluster, so that producing to it is refused."""
        return self._is_mirror

    def _check_writable(self) -> None:
        """Check that the partition is neither a mirror nor sealed.

        Raises:
            LogError: POLICY_VIOLATION.
        """
        self._check_not_mirror()
        # Not a retriable error: clients would wait for their whole delivery timeout, 2 minutes,
        # while the application could continue at the other cluster at once.
        if self.sealed_for:
            raise error_for(
                ErrorCode.POLICY_VIOLATION,
                f"{self.topic} moves to cluster {self.sealed_for}: produce there. If that cluster"
                " does not take it over, `streamlog mirror unseal` opens it here again",
            )

    def _check_not_mirror(self) -> None:
        if self._is_mirror:
            raise error_for(
                ErrorCode.POLICY_VIOLATION,
                f"{self.topic} mirrors a topic of another cluster: produce to that one, or promote"
                " this one first (streamlog mirror promote)",
            )

    def check_leader(self) -> None:
        """Check that this broker leads the partition.

        Raises:
            LogError: NOT_LEADER_OR_FOLLOWER.
        """
        if not self.is_alone and self.replica is not None and not self.replica.is_leader:
            raise self.replica.not_leader()

    def check_insync(self) -> None:
        """Check that enough replicas are in sync for acks=all.

        Raises:
            LogError: NOT_ENOUGH_REPLICAS.
        """
        if not self.is_alone and self.replica is not None:
            self.replica.check_insync()

    def check_end_known(self) -> None:
        """Check that the high watermark includes what earlier leaders committed (KIP-207).

        Raises:
            LogError: OFFSET_NOT_AVAILABLE, until enough followers have fetched.
        """
        replica = self.replica
        leader = None if replica is None or self.is_alone else replica.machine.leader
        if leader is not None and not leader.is_offset_known:
            raise error_for(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"{self.topic}-{self.index}: a leader was just elected, and its followers have not"
                " confirmed the end of its log yet",
            )

    @property
    def high_watermark(self) -> int:
        """The offset below which records are committed, so that consumers may read them."""
        if not self.is_alone and self.replica is not None:
            return self.replica.high_watermark
        log = self.log
        if not self._always:
            return log.log_end_offset
        return min(log.synced.offset, log.log_end_offset)

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction is committed or aborted (KIP-98)."""
        return self.stable_offset(self.high_watermark)

    def stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset; the caller knows the high watermark already."""
        first = self.log.producers.transactions.first_unstable_offset
        if first is None:
            return high_watermark
        # The head of an open transaction may have been deleted: DeleteRecords goes up to the high
        # watermark, and does not ask for transactions.
        return min(high_watermark, max(first, self.log.log_start_offset))

    def may_acknowledge(self, offset: int) -> bool:
        """Return whether records below `offset` may be acknowledged with acks=all now.

        If not, `when_committed` calls back when they may.
        """
        if not self.is_alone:
            return self.high_watermark >= offset
        # With `flush=os`, an answer waits for a sync only where `flush.messages` demands one.
        return self.log.synced.offset >= offset or not self._is_due()

    def is_kept(self, offset: int) -> bool:
        """Return whether records below `offset` may be acknowledged with acks=1 now."""
        log = self.log
        most = 1 if self._always else log.config.flush_messages
        if most >= FLUSH_NEVER:
            return True  # Most logs leave it to the system, and are asked for each append.
        synced_offset = log.synced.offset
        return synced_offset >= offset or log.log_end_offset - synced_offset < most

    def when_committed(self, offset: int, then: Committed) -> None:
        """Call `then` once records below `offset` are committed, or with an error.

        Errors: see `PartitionReplica.when_committed`, and those of the disk.
        """
        if self.is_alone or self.replica is None:
            self._flush.then(then)
        else:
            self.replica.when_committed(offset, then)

    def check_epoch(self, leader_epoch: int) -> None:
        """Compare the leader epoch of a request with the current one (KIP-320).

        Raises:
            LogError: FENCED_LEADER_EPOCH if the client has missed an election;
                UNKNOWN_LEADER_EPOCH if this broker has; NOT_LEADER_OR_FOLLOWER if this broker does
                not lead.
        """
        if not self.is_alone:
            self.check_leader()
        mirror = None if self.replica is None else self.replica.machine.mirror
        # A mirror's log has leader epochs of its source, and clients have those of this cluster.
        current = self.log.epochs.current if mirror is None else mirror.epoch
        if leader_epoch not in (NO_EPOCH, current):
            self._refuse_epoch(leader_epoch, current)

    def _refuse_epoch(self, leader_epoch: int, current: int) -> NoReturn:
        older = leader_epoch < current
        raise not_leader_error(
            ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"{self.topic}-{self.index}: the request has leader epoch {leader_epoch}, the current"
            f" one is {current}",
            None if self.replica is None else self.replica.current_leader,
        )

    @property
    def is_copy(self) -> bool:
        """Whether it is a follower that consumers may read from (KIP-392)."""
        return not self.is_alone and self.replica is not None and self.replica.is_in_touch

    def nearest(self, rack: str, offset: int) -> int | None:
        """Return the broker that consumers in a rack should read from; None for this one."""
        if self.is_alone or self.replica is None:
            return None
        return self.replica.nearest(rack, offset)

    def check_copy(self, offset: int, *, leader_epoch: int, last_epoch: int) -> None:
        """Check that this follower can answer a consumer's fetch from `offset` on.

        A follower may lack records and leader epochs of its leader, so that it can't tell whether
        the log was cut below the consumer's position. The consumer then asks the leader. A fetch
        from above the high watermark known here waits, as at the end of a log.

        Args:
            offset: the fetch offset.
            leader_epoch: the consumer's leader epoch; -1 if it knows none.
            last_epoch: the epoch of the record before the fetch offset; -1 if unknown.

        Raises:
            LogError: FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH, see `check_epoch`;
                OFFSET_NOT_AVAILABLE if only the leader can answer.
        """
        known = None if self.replica is None else self.replica.machine.leader_epoch
        current = NO_EPOCH if known is None else known
        if leader_epoch not in (NO_EPOCH, current):
            self._refuse_epoch(leader_epoch, current)
        is_known = offset <= self.log.log_end_offset
        if last_epoch != NO_EPOCH and self.log.log_start_offset <= offset <= self.high_watermark:
            try:
                is_known = self.diverges(last_epoch, offset) is None
            except OffsetOutOfRange:  # This follower does not know the epoch.
                is_known = False
        if not is_known:
            raise error_for(
                ErrorCode.OFFSET_NOT_AVAILABLE,
                f"{self.topic}-{self.index}: this follower's log ends at"
                f" {self.log.log_end_offset} and does not contain offset {offset}, or not after"
                f" epoch {last_epoch}; fetch from the leader",
            )

    def diverges(self, epoch: int, offset: int) -> tuple[int, int] | None:
        """Return epoch and offset at which a log that ends at `offset` in `epoch` diverges.

        None if it does not diverge: it is a prefix of this one.

        Raises:
            OffsetOutOfRange: its end is before this log's start, or the epoch is not known. A
                mirror knows none above its records': those of a reader are of a lost leadership.
            CorruptData: it seems to diverge, but the end of this log is damaged.
        """
        if offset < self.log.log_start_offset:
            raise OffsetOutOfRange(f"{self.topic}-{self.index}: offset {offset} was deleted")
        newest = self.log.epochs.current
        has_records = self.log.log_end_offset > self.log.log_start_offset
        if self.is_mirror and has_records and epoch > newest:
            # 1. Cluster `b` was promoted by mistake, and cluster `c` has copied what was written
            # to it. 2. `b` follows its source again, and has cut that off. 3. `c` has an epoch that
            # is nowhere else: refused, it would ask again and again, and not learn where to cut.
            found: tuple[int, int] | None = (newest, self.epoch_end)
        else:
            found = self.log.epochs.diverges(epoch, offset, self.epoch_end)
        if found is not None:
            # 1. A mirror has copied up to 90. 2. The source's file is damaged from 50 on, and ends
            # there after a restart. 3. Told to cut at 50, the mirror would discard the only copy.
            self.log.check_end()
        return found

    @property
    def epoch_end(self) -> int:
        """The end of the newest epoch, for a comparison with another log or a position.

        For a replicated log this is its end, not its high watermark:
          1. Consumers read up to 10 from a leader, which stops.
          2. The new leader has 10, but knows only that 7 is committed until followers fetch.
          3. Compared with 7, a consumer at 10 would have to go back, although nothing is lost.
        """
        return self.high_watermark if self.is_alone else self.log.log_end_offset

    def append(
        self,
        data: Buffer,
        *,
        now_ms: int,
        wall_ms: int | None = None,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        prepared: Prepared | None = None,
    ) -> AppendResult:
        """Append batches and schedule their sync, see `PartitionLog.append`.

        Raises:
            StreamlogError: what `PartitionLog.append` raises, or NOT_LEADER_OR_FOLLOWER.
        """
        self.check_leader()
        if origin is not AppendOrigin.COPY:
            self._check_writable()
        rolled_at = self.log.active_base_offset
        result = self.log.append(
            data, now_ms=now_ms, wall_ms=wall_ms, origin=origin, prepared=prepared
        )
        if not result.duplicate:
            self.traffic.messages_in += result.last_offset + 1 - result.base_offset
            self.traffic.bytes_in += result.size_bytes
            self._on_appended(result.size_bytes, rolled_at, now_ms)
        return result

    def append_copies(self, data: Buffer, *, now_ms: int) -> None:
        """Append batches of a mirror's source unchanged, and schedule their sync.

        Raises:
            StreamlogError: what `PartitionLog.append` raises, or NOT_LEADER_OR_FOLLOWER.
        """
        self.append(data, now_ms=now_ms, origin=AppendOrigin.COPY)

    def on_cut(self) -> None:
        """Note that a mirror's log was cut: what is hidden or synced now counts anew."""
        self._hidden_bytes = self._syncing_bytes = 0
        if self.is_alone:
            self.log.producers.transactions.settle(self.high_watermark)
        self._listener.on_append(self.topic, self.index, RELEASED_BYTES)

    def append_each(
        self,
        pieces: Sequence[memoryview],
        *,
        now_ms: int,
        wall_ms: int,
        prepared: Sequence[Prepared | StreamlogError] = (),
    ) -> list[AppendResult | StreamlogError]:
        """Append the batches of several requests, see `PartitionLog.append_each`.

        Raises:
            LogError: NOT_LEADER_OR_FOLLOWER.
        """
        if not self.is_alone:
            self.check_leader()
        if self._is_mirror or self.sealed_for:
            self._check_writable()
        rolled_at = self.log.active_base_offset
        outcomes = self.log.append_each(pieces, now_ms=now_ms, wall_ms=wall_ms, prepared=prepared)
        size_bytes = messages = 0
        for outcome in outcomes:
            # A duplicate has no bytes: its messages are those of its first copy.
            if not isinstance(outcome, StreamlogError) and outcome.size_bytes:
                size_bytes += outcome.size_bytes
                messages += outcome.last_offset + 1 - outcome.base_offset
        if size_bytes:
            self.traffic.messages_in += messages
            self.traffic.bytes_in += size_bytes
            self._on_appended(size_bytes, rolled_at, now_ms)
        return outcomes

    def end_transaction(
        self, producer_id: int, producer_epoch: int, marker: Marker, *, now_ms: int, wall_ms: int
    ) -> AppendResult:
        """End a producer's transaction, see `PartitionLog.end_transaction`.

        Raises:
            StreamlogError: what `PartitionLog.end_transaction` raises, or NOT_LEADER_OR_FOLLOWER.
        """
        self.check_leader()
        # A sealed partition takes markers: open transactions end, so that its end becomes final.
        self._check_not_mirror()
        rolled_at = self.log.active_base_offset
        result = self.log.end_transaction(
            producer_id, producer_epoch, marker, now_ms=now_ms, wall_ms=wall_ms
        )
        # With `flush=always` the marker counts after its sync, see `on_synced`.
        if not self._always:
            self.log.producers.transactions.settle(self.high_watermark)
        self._on_appended(RELEASED_BYTES, rolled_at, now_ms)
        return result

    def quiet_ms(self, now_ms: int) -> int | None:
        """Return for how many milliseconds nothing was appended, as far as this process knows.

        None if no time mark may be appended: this broker does not lead, the topic has no marks, or
        a transaction is open, which hides a mark from readers of committed records.
        """
        if not self.is_leader or self.is_mirror or self.sealed_for:
            return None
        # The last append before the start of this process is not known: the quiet time begins now.
        if self._appended_ms is None:
            self._appended_ms = now_ms
        is_open = self.log.producers.transactions.first_unstable_offset is not None
        if is_open or not self.log.config.takes_marks:
            return None
        return now_ms - self._appended_ms

    def mark_time(self, *, now_ms: int, reached: Sequence[ClockTime] = ()) -> None:
        """Append a time mark with the time since the last append (decision 008).

        Raises what `PartitionLog.mark_time` raises.
        """
        quiet_ms = self.quiet_ms(now_ms)
        if quiet_ms is None:
            return
        rolled_at, self._appended_ms = self.log.active_base_offset, now_ms
        result = self.log.mark_time(quiet_ms, now_ms=now_ms, reached=reached)
        if result is not None:
            self._on_appended(result.size_bytes, rolled_at, now_ms)

    def _on_appended(self, size_bytes: int, rolled_at: int, now_ms: int) -> None:
        """Schedule the sync of an append.

        `rolled_at` is the base offset that the active segment had before the append.
        """
        self._appended_ms = now_ms
        # With followers, the high watermark decides what readers see: the replica reports it.
        if not self.is_alone and self.replica is not None:
            self.replica.on_appended(size_bytes)
            self._flush.add(self)
            return
        if self._always:
            # Consumers read the records after the sync, and are notified then.
            self._hidden_bytes += size_bytes
            self._flush.add(self)
            return
        self._listener.on_append(self.topic, self.index, size_bytes)
        if self._is_due():
            self._flush.add(self)
        # The append has sealed a segment. Sealed segments are synced with `flush=os` too.
        elif self.log.active_base_offset != rolled_at:
            self._flush.add(self, sealed_only=True)
        # `flush.ms` counts from the oldest append that is not synced: later ones do not move the
        # deadline, and the next full sync removes it.
        if self._deadline_ms is None and self.log.config.flush_ms < FLUSH_NEVER:
            self._deadline_ms = now_ms + self.log.config.flush_ms
            self._flush.add_later(self, self._deadline_ms)

    @property
    def ends(self) -> PartitionEnds:
        """The offsets at which the records end that readers may see, and begin."""
        log = self.log
        # By itself what `high_watermark` is for most partitions: each Fetch asks twice.
        is_log_end = self.is_alone and not self._always
        high_watermark = log.log_end_offset if is_log_end else self.high_watermark
        stable_offset = high_watermark
        transactions = log.producers.transactions
        if transactions.first_offsets or transactions.unsettled:
            stable_offset = self.stable_offset(high_watermark)
        return _new_tuple(PartitionEnds, (high_watermark, stable_offset, log.log_start_offset))

    def range(
        self,
        offset: int,
        ends: PartitionEnds,
        *,
        max_bytes: int,
        min_one: bool = True,
        stable: bool = False,
    ) -> Buffer | FileRange:
        """Return committed batches from `offset` on; with `stable`, below the last stable offset.

        `ends` are those of now. Raises what `PartitionLog.range` raises.
        """
        high_watermark, stable_offset, _ = ends
        end_offset = stable_offset if stable else high_watermark
        # Without followers the log finds its end by itself: no index is searched for it.
        finds_end = self.is_alone and end_offset == high_watermark
        return self.log.range(
            offset,
            max_bytes=max_bytes,
            min_one=min_one,
            synced=self.is_alone and self._always,
            before_offset=None if finds_end else end_offset,
        )

    def aborted(self, offset: int) -> list[EndedTransaction]:
        """Return the aborted transactions in what `range` last returned from `offset` on.

        Raises what `PartitionLog.aborted` raises.
        """
        found = self.log.aborted(offset, self.log.read_end_offset)
        if found:
            found.sort(key=attrgetter("first_offset"))
        return found

    def begin_sync(self, *, sealed_only: bool) -> PendingSync | None:
        """Begin a sync of what is in the log now. Raises what `PartitionLog.begin_sync` raises."""
        if not sealed_only:
            self._deadline_ms = None
            # Bytes that are appended during this sync belong to the next one. A sync that is begun
            # anew, because the first attempt lacked something, has those of both.
            self._syncing_bytes += self._hidden_bytes
            self._hidden_bytes = 0
        return self.log.begin_sync(sealed_only=sealed_only)

    def on_synced(self, sync: PendingSync) -> None:
        """Note that a sync has succeeded, so that more may be committed."""
        self.log.end_sync(sync)
        # A partition that has lost its last follower may still have requests that wait for it.
        if self.replica is not None and (not self.is_alone or self.replica.has_waiting_commits):
            self.replica.on_synced(sync.generation)
        if not self.is_alone:
            return
        transactions = self.log.producers.transactions
        if transactions.unsettled:
            transactions.settle(self.high_watermark)
        size_bytes, self._syncing_bytes = self._syncing_bytes, 0
        if size_bytes:
            self._listener.on_append(self.topic, self.index, size_bytes)

    def _on_committed(self, size_bytes: int) -> None:
        """Notify the listener that the high watermark has passed `size_bytes`."""
        replica = self.replica
        if replica is not None and replica.machine.leader is None:
            # A follower does not count its bytes: it wakes all consumers that wait at it.
            size_bytes = RELEASED_BYTES
        # Appends that were not synced when the first follower joined are committed with these.
        size_bytes += self._hidden_bytes + self._syncing_bytes
        self._hidden_bytes = self._syncing_bytes = 0
        self._listener.on_append(self.topic, self.index, size_bytes)

    def _is_due(self) -> bool:
        """Return whether the log has more unsynced records than the settings allow."""
        log = self.log
        most = 1 if self._always else log.config.flush_messages
        return most < FLUSH_NEVER and log.log_end_offset - log.synced.offset >= most

    def delete_before(self, offset: int) -> None:
        """Delete the records below `offset` (KIP-107); -1 stands for the high watermark.

        The deletion is durable once the directory has written its checkpoints.

        Raises:
            OffsetOutOfRange: the offset is above the high watermark.
            LogDirectoryError: the log has failed.
        """
        if offset > self.high_watermark:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.index}: offset {offset} is beyond the high watermark"
                f" {self.high_watermark}"
            )
        self.log.advance_start(self.high_watermark if offset == HIGH_WATERMARK else offset)
        if not self.is_alone and self.replica is not None:
            self.replica.on_deleted()

    @property
    def low_watermark(self) -> int:
        """The lowest start offset of all live replicas."""
        if self.is_alone or self.replica is None:
            return self.log.log_start_offset
        return self.replica.low_watermark

    def when_deleted(self, offset: int, then: Committed) -> None:
        """Call `then` once no live replica has records below `offset`, or with an error.

        Errors: NOT_LEADER_OR_FOLLOWER if this broker no longer leads.
        """
        if self.is_alone or self.replica is None:
            then(None)
        else:
            self.replica.when_deleted(offset, then)


class Partitions:
    """The partitions with a log on this broker, led or not, by topic and number."""

    def __init__(
        self,
        directory: LogDirectory,
        *,
        topics: Topics,
        listener: AppendListener,
        flush: AnyFlush,
        mode: str,
    ) -> None:
        """`topics` are the topics of the cluster; see `Partition` for the other arguments."""
        self._directory = directory
        self._listener = listener
        self._flush = flush
        self._mode = mode
        self._topics = topics
        self._traffic = TrafficMetrics(directory.metrics)
        self._hosted: dict[tuple[str, int], Partition] = {}
        self.copy_bytes_read = 0
        """Bytes that consumers have read from followers on this broker."""
        self._led: dict[tuple[str, int], Partition] = {}

    def get(self, topic: str, index: int) -> Partition:
        """Return a partition that this broker leads.

        Raises:
            UnknownTopicOrPartition: the cluster has no such partition.
            NotLeader: another broker leads it, or none does.
            LogDirectoryError: this broker should lead it, and its disk has failed.
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
        leader = self._topics.leader(topic, index)
        if leader is None or leader[0] == self._directory.node_id:
            self._directory.check_online(topic, index)
        raise not_leader_error(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"this broker does not lead {topic}-{index}",
            leader,
        )

    def readable(self, topic: str, index: int) -> Partition:
        """Return a partition that this broker leads, or follows in touch with its leader.

        Raises what `get` raises.
        """
        partition = self._hosted.get((topic, index))
        if partition is not None and partition.is_copy:
            return partition
        return self.get(topic, index)

    def host(self, topic: str, index: int) -> Partition:
        """Return a partition with a log on this broker, led or not; make it if necessary.

        Raises:
            UnknownTopicOrPartition: its log is not on this broker.
            LogDirectoryError: its disk has failed.
        """
        partition = self._hosted.get((topic, index))
        if partition is None:
            log = self._directory.log(topic, index)
            self._directory.check_online(topic, index)
            partition = self._hosted[topic, index] = Partition(
                topic,
                index,
                log,
                listener=self._listener,
                flush=self._flush.of(self._directory.volume_of(topic, index)),
                mode=self._mode,
                traffic=self._traffic.topic(topic),
            )
        return partition

    def replace_log(self, topic: str, index: int, log: PartitionLog) -> None:
        """Serve a partition from the log that has succeeded its present one."""
        partition = self._hosted.get((topic, index))
        if partition is not None:
            volume = self._directory.volume_of(topic, index)
            partition.replace_log(log, self._flush.of(volume))

    def hosted(self, topic: str, index: int) -> Partition | None:
        """Return a partition that `host` has returned before; None if there is none."""
        return self._hosted.get((topic, index))

    def led(self) -> list[Partition]:
        """Return the partitions that this broker serves as their leader."""
        return [*self._led.values()]

    def lead(self, topic: str, index: int) -> bool:
        """Serve a partition as its leader; return False if it was served as such before.

        Raises:
            UnknownTopicOrPartition: its log is not on this broker.
        """
        before = self._led.get((topic, index))
        self._led[topic, index] = partition = self.host(topic, index)
        return before is not partition

    def resign(self, topic: str, index: int) -> bool:
        """Stop serving a partition as its leader; return whether it was served.

        Waiting requests are answered.
        """
        if self._led.pop((topic, index), None) is None:
            return False
        self._listener.on_gone(topic, index)
        return True

    def drop(self, topic: str, index: int) -> None:
        """Forget a partition whose log is no longer on this broker. Call `resign` first."""
        self._hosted.pop((topic, index), None)
        self._listener.on_gone(topic, index)
        if not self._topics.partitions(topic):
            self._traffic.forget(topic)

    def high_watermark(self, topic: str, index: int) -> int:
        """Return a partition's high watermark, as far as this broker knows it.

        It is 0 until metadata has given this broker's replica a role.
        """
        partition = self._hosted.get((topic, index))
        return 0 if partition is None else partition.high_watermark

    def last_stable_offset(self, topic: str, index: int) -> int:
        """Return a partition's last stable offset, see `high_watermark`."""
        partition = self._hosted.get((topic, index))
        return 0 if partition is None else partition.last_stable_offset

    def exists(self, topic: str, index: int) -> bool:
        """Return whether the cluster has this partition."""
        return 0 <= index < self._topics.partitions(topic)

    def names(self) -> Collection[str]:
        """Return the names of all topics of the cluster."""
        return self._topics.names()

    def topic_id(self, name: str) -> bytes | None:
        """Return a topic's id; None if there is no topic of this name."""
        return self._topics.topic_id(name)

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with this id; None if there is none."""
        return self._topics.name_of(topic_id)

    def leader(self, name: str, partition: int) -> tuple[int, int] | None:
        """Return a partition's leader and leader epoch; None if it has no leader."""
        return self._topics.leader(name, partition)

    def partitions(self, name: str) -> int:
        """Return the number of a topic's partitions; 0 if there is no such topic."""
        return self._topics.partitions(name)

    def is_behind(self, topic: str, index: int) -> bool:
        """Return whether the partition has records above its high watermark."""
        partition = self._led.get((topic, index))
        return partition is not None and partition.high_watermark < partition.log.log_end_offset
