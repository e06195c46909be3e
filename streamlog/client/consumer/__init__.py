"""Consumer: reads partitions of a log, alone or as a member of a group.

This module is the caller's side: it runs in the caller's task and takes what the fetcher and the
group session have prepared in theirs. `poll` awaits the callbacks of a rebalance (`rebalance`) and
auto-commit (`consumer_commits`), so these run in the caller's task, too.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self, TypeVar

from streamlog import repeated
from streamlog.client.background_task import Background
from streamlog.client.cluster import NO_NODE, Cluster
from streamlog.client.consumer.consumer_commits import OffsetCommits, find_outdated
from streamlog.client.consumer.consumer_settings import ConsumerSettings
from streamlog.client.consumer.fetcher import Fetcher
from streamlog.client.consumer.offset_reset import OffsetReset
from streamlog.client.consumer.rebalance import OnRebalance, Rebalance, TopicWatch
from streamlog.client.consumer.subscription_state import (
    NO_CLOCK_TIME,
    NO_MARK,
    PartitionState,
    PositionStart,
    Subscription,
    SubscriptionState,
    Topics,
    known_id,
)
from streamlog.client.group.classic_protocol import MemberPhase
from streamlog.client.group.group_session import GroupSession
from streamlog.client.metrics.client_metrics import ClientMetrics, timed
from streamlog.client.metrics.consumer_metrics import ConsumerMetrics, PartitionFigures
from streamlog.client.offset_lookup import (
    EARLIEST,
    LATEST,
    OffsetAndTimestamp,
    find_truncated,
    list_offsets,
)
from streamlog.client.offset_metadata import GroupMetadata, OffsetAndMetadata, Offsets
from streamlog.client.telemetry.telemetry_reporter import TelemetryReporter
from streamlog.errors import (
    ConfigError,
    SourceLost,
    StreamlogError,
    UnknownTopicOrPartition,
    UsageError,
)
from streamlog.metrics.otlp import Attributes
from streamlog.protocol.schema import ZERO_UUID
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord, RecordBatch
from streamlog.records.control_batches import ClockTime, TimeMark
from streamlog.records.record_columns import RecordColumns

R = TypeVar("R", list[LogRecord], RecordColumns, list[RecordBatch])
"""Records of one partition: as records, columns or batches."""

log = repeated.logger(__name__)


class Consumer:
    """Reads records from topics. Use it in an `async with` block, and from one task only.

    With a `group_id` and `subscribe`, the members of a group share the partitions of topics; with
    `assign`, the caller names the partitions. Entering the block connects to nothing yet: errors of
    the log or the group are raised by `poll`.

    Example:
        async with log.consumer(group_id="billing", auto_commit=True) as consumer:
            await consumer.subscribe(["orders"])
            while True:
                for partition, records in (await consumer.poll(timeout_ms=1_000)).items():
                    ...
    """

    def __init__(self, cluster: Cluster, settings: ConsumerSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._metrics = ConsumerMetrics(cluster.network)
        self._positions = SubscriptionState(keeps_marks=settings.time_marks)
        self._news = asyncio.Event()
        self._failure: StreamlogError | None = None
        self._dead: Exception | None = None
        self._background = Background(self._on_death)
        self._telemetry = TelemetryReporter(cluster, self.metrics, self._resource)
        self._is_open = False
        self._woken = False
        self._beginnings = OffsetReset(cluster, self._positions, settings)
        self._fetcher = Fetcher(
            cluster,
            self._positions,
            self._beginnings,
            settings,
            self._background,
            metrics=self._metrics,
            tell=self._on_news,
        )
        self._group = self._session()
        self._commits: OffsetCommits | None = None
        self._rebalance: Rebalance | None = None
        self._watch: TopicWatch | None = None
        if self._group is not None:
            self._commits = OffsetCommits(cluster, self._group, self._positions, settings)
            self._rebalance = Rebalance(
                self._group, self._positions, self._commits, self._metrics.group, cluster.clock
            )
            interval_ms = settings.metadata_max_age_ms
            self._watch = TopicWatch(cluster, self._group, interval_ms=interval_ms)

    async def __aenter__(self) -> Self:
        await self._background.open()
        self._is_open = True
        self._background.start(self._fetcher.run())
        if self._settings.enable_metrics_push:
            self._background.start(self._telemetry.run())
        if self._group is not None and self._watch is not None and self._commits is not None:
            self._commits.is_open = True
            self._background.start(self._commits.run())
            self._background.start(self._group.run())
            self._background.start(self._watch.run())
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is None:
            await self.close()
            return
        # After a cancellation, the consumer does not wait for the coordinator: the session timeout
        # removes the member.
        is_open, self._is_open = self._is_open, False
        try:
            if is_open and self._group is not None and not isinstance(exc, asyncio.CancelledError):
                await self._group.leave()
        finally:
            if is_open:
                await self._stop()

    async def close(self, *, timeout_ms: int | None = None, leave_group: bool = False) -> None:
        """Revoke the assignment (awaits `on_revoked`), leave the group, and disconnect.

        The end of the `async with` block does this, too. Call it from the task that opened the
        consumer.

        Args:
            timeout_ms: milliseconds that the callback and the commits may take. What is not
                committed by then is read again by the partitions' next owner. None: no limit.
            leave_group: whether a static member leaves the group as well, so that others take over
                at once. By default the group keeps its assignment for `session_timeout_ms`, as a
                static member is expected back (KIP-345, KIP-1092).
        """
        if not self._is_open:
            return
        self._is_open = False
        try:
            await self._finish(timeout_ms)
            if self._group is not None:
                await self._group.leave(for_good=leave_group)
            if self._dead is None:
                await self._telemetry.close()
        finally:
            await self._stop()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions; those that were assigned before keep their position.

        Raises:
            UsageError: `subscribe` was called, so the group assigns the partitions.
        """
        if self._group is not None and self._group.member is not None:
            raise UsageError(
                "assign() after subscribe(): the group assigns the partitions; unsubscribe first"
            )
        self._positions.assign(partitions)
        self._fetcher.look()

    async def subscribe(
        self,
        topics: Topics,
        *,
        on_assigned: OnRebalance | None = None,
        on_revoked: OnRebalance | None = None,
        on_lost: OnRebalance | None = None,
    ) -> None:
        """Share the partitions of topics with the other members of the group.

        Args:
            topics: names of topics; or a pattern, such as `re.compile("orders-.*")`, for all topics
                whose whole name matches. New topics that match are found within
                `metadata_max_age_ms`. A pattern never matches internal topics.
            on_assigned: awaited within `poll` with the partitions that are assigned, before any of
                their records are returned. With a cooperative assignor these are only the added
                partitions (KIP-429), else the whole assignment.
            on_revoked: awaited within `poll` or `close` with the partitions to give up. The group
                waits until it returns: finish and commit the work on these partitions.
            on_lost: awaited within `poll` instead of `on_revoked` if the group has removed this
                consumer. Other members may own its partitions by now, so it can't commit. By
                default `on_revoked` is awaited.

        Raises:
            ConfigError: there is no `group_id`.
            UnknownTopicOrPartition: one of the names does not exist.
        """
        if self._group is None or self._rebalance is None or self._watch is None:
            raise ConfigError("subscribe() needs a group: set group_id, or use assign()")
        subscription = Subscription.of(topics)
        found = await self._watch.topics(subscription)
        self._watch.subscription = subscription
        self._rebalance.listen(on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost)
        # Partitions of an earlier `assign` are not the group's.
        if self._group.member is None:
            self._positions.assign(())
        self._group.subscribe(found)
        self._group.on_poll(waits=False)

    async def unsubscribe(self) -> None:
        """Revoke the assignment (awaits `on_revoked`), and leave the group.

        After that, `assign` or `subscribe` may be called again.
        """
        if self._rebalance is not None and self._group is not None and self._watch is not None:
            await self._rebalance.finish()
            await self._group.unsubscribe()
            self._watch.subscription = Subscription()
        self._positions.assign(())

    def subscription(self) -> set[str]:
        """Return the subscribed topics; for a pattern, the matching topics found so far."""
        member = self._group.member if self._group is not None else None
        return set() if member is None else set(member.topics)

    def enforce_rebalance(self) -> None:
        """Make the group rebalance: its leader computes a new assignment (KIP-568).

        With `group_protocol="consumer"` the coordinator assigns, and this does nothing.

        Raises:
            ConfigError: there is no `group_id`.
        """
        self._need_group().on_request()

    def staying(self) -> AbstractContextManager[bool]:
        """Stay in the present generation of the group for the length of a `with` block.

        Use it for transactions, which take several requests. While the block runs, a cooperative
        member does not join the next rebalance, which waits for it as it waits for a poll. The
        block's value is whether the group accepts commits now; False means that the member is
        between two generations. Blocks of several tasks may overlap.

        Raises:
            ConfigError: there is no `group_id`.
        """
        return self._need_group().staying()

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that this consumer reads now."""
        return self._positions.assigned()

    @property
    def is_leader(self) -> bool:
        """Whether this member is the leader, which computes its group's assignment."""
        member = self._group.member if self._group is not None else None
        return member is not None and member.is_leader

    @property
    def is_member(self) -> bool:
        """Whether the consumer is certainly a member of its group.

        If not, other members may own its partitions by now, and the group refuses its commits.
        """
        group = self._group
        member = group.member if group is not None else None
        if group is None or member is None or member.phase is MemberPhase.LEFT:
            return False
        return member.is_known and group.may_read()

    async def poll(
        self, *, timeout_ms: int, max_records: int | None = None
    ) -> dict[TopicPartition, list[LogRecord]]:
        """Return the next records, in offset order within a partition.

        Call it at least every `max_poll_interval_ms`: it also joins the group and commits.

        Args:
            timeout_ms: milliseconds to wait for the first record; 0 takes what is buffered.
            max_records: the largest number of records in all partitions together; None means
                `max_poll_records`.

        Returns:
            Partition to its records; empty if none arrive in time, or after `wakeup`.

        Raises:
            OffsetOutOfRange: the log does not hold the position, and `auto_offset_reset` is "none".
            SourceLost: the topic was created again, or its log was truncated below the position
                (KIP-320), and `auto_offset_reset` is "none".
            DamagedBatch: a batch can't be read; `seek` to its `next_offset` to skip it.
            UnknownTopicOrPartition: an assigned partition does not exist.
            ConnectionLost: no broker answered for a minute; a later poll tries again.
            LogError: the group can't be joined, or the group refused an auto-commit.
            UsageError: the consumer is not open.
        """
        return await self._polled(timeout_ms, max_records, self._take, len)

    async def poll_columns(
        self, *, timeout_ms: int, max_records: int | None = None
    ) -> dict[TopicPartition, RecordColumns]:
        """Poll, and return records as columns, which cost less than records one by one.

        Takes the arguments of `poll`, and raises the same errors.
        """
        return await self._polled(timeout_ms, max_records, self._positions.take_columns, len)

    async def poll_batches(self, *, timeout_ms: int) -> dict[TopicPartition, list[RecordBatch]]:
        """Poll, and return whole record batches as the broker sent them, for callers that decode.

        The first batch may begin before the position, because brokers send whole batches. Do not
        mix with `poll` and `poll_columns` on one consumer. Raises the same errors as `poll`.
        """
        return await self._polled(
            timeout_ms,
            None,
            lambda _: self._positions.take_batches(),
            lambda batches: sum(each.record_count for each in batches),
        )

    async def _polled(
        self,
        timeout_ms: int,
        max_records: int | None,
        take: Callable[[int | None], dict[TopicPartition, R]],
        count: Callable[[R], int],
    ) -> dict[TopicPartition, R]:
        now_ms = self._cluster.clock.now_ms()
        self._metrics.on_poll(now_ms)
        try:
            found = await self._awaited(now_ms + timeout_ms, max_records, take)
        finally:
            self._metrics.on_polled(self._cluster.clock.now_ms())
        for partition, records in found.items():
            self._metrics.on_records(self._figures(partition), count(records))
        return found

    async def _awaited(
        self,
        deadline_ms: int,
        max_records: int | None,
        take: Callable[[int | None], dict[TopicPartition, R]],
    ) -> dict[TopicPartition, R]:
        if max_records is None:
            max_records = self._settings.max_poll_records
        await asyncio.sleep(0)  # Let the fetcher run even if every poll finds records buffered.
        while True:
            # Clear before looking: news that come while this loop looks set the event again, and
            # the wait below returns at once. Cleared after, such news would be lost.
            self._news.clear()
            self._owner_polls(waits=False)
            self._raise_failure()
            if self._woken:
                self._woken = False
                return {}
            # Revoke before auto-commit and before taking records: none of the records that this
            # poll returns may belong to a partition that another member reads from now on.
            if self._rebalance is not None and await self._rebalance.settle():
                self._fetcher.look()
            if self._commits is not None:
                await self._commits.auto_commit()
            records = take(max_records) if self._may_read() else {}
            if records:
                self._fetcher.look()
                return records
            if self._positions.has_marks:
                self._fetcher.look()
                return {}
            remaining_ms = deadline_ms - self._cluster.clock.now_ms()
            if remaining_ms <= 0:
                return {}
            if not await self._has_news(remaining_ms):
                return {}

    def time_marks(self) -> dict[TopicPartition, list[TimeMark]]:
        """Return the time marks that polls have passed since the last call, in offset order.

        Empty without the setting `time_marks`. Marks have offsets between those of the records: a
        mark comes before every record with a larger offset.
        """
        return self._positions.take_marks()

    def want_mark(
        self, partition: TopicPartition, after_ms: int | None, reached: ClockTime | None = None
    ) -> None:
        """Request a time mark at the end of a partition while nothing is appended to it.

        The request holds from the next fetch until it is changed. The log appends no mark before
        the topic's `mark.quiet.ms` has passed, and none in compacted topics; Kafka's brokers ignore
        the request.

        Args:
            partition: an assigned partition.
            after_ms: milliseconds without an append after which the log writes the mark; None ends
                the request.
            reached: the event time to which the mark brings the readers of one clock.
        """
        state = self._positions.state(partition)
        state.mark_after_ms = NO_MARK if after_ms is None else max(after_ms, 0)
        state.mark_clock_time = NO_CLOCK_TIME if reached is None else reached

    def wakeup(self) -> None:
        """Make the poll that another task awaits, or else the next one, return no records at once.

        From another thread, use `loop.call_soon_threadsafe(consumer.wakeup)`.
        """
        self._woken = True
        self._news.set()

    def seek(
        self, partition: TopicPartition, offset: int | OffsetAndMetadata, *, topic_id: bytes = b""
    ) -> None:
        """Set the position of a partition; the next fetch finds out whether the log has it.

        A program that stores its offsets elsewhere calls this from `on_assigned`: the consumer
        neither looks up nor fetches a position of these partitions before the callback returns.

        Args:
            partition: an assigned partition.
            offset: the offset of the next record; with metadata, its leader epoch and topic id
                detect a log that was truncated or created again (KIP-320).
            topic_id: the id of the topic to which a plain offset belongs, if known.

        Raises:
            UsageError: the offset is negative, or the partition is not assigned.
        """
        committed = (
            offset
            if isinstance(offset, OffsetAndMetadata)
            else OffsetAndMetadata(offset, topic_id=topic_id or ZERO_UUID)
        )
        if committed.offset < 0:
            raise UsageError(
                f"can't seek to offset {committed.offset}: use seek_to_beginning or seek_to_end"
            )
        self._positions.state(partition).move(
            committed.offset,
            leader_epoch=committed.leader_epoch,
            topic_id=known_id(committed.topic_id),
        )
        self._fetcher.look()

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Set the position to the first record of these partitions, or of all assigned ones."""
        await self._seek(partitions, PositionStart.EARLIEST)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Set the position behind the last record of these partitions, or of all assigned ones."""
        await self._seek(partitions, PositionStart.LATEST)

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that `poll` returns; look it up if it is unknown.

        Raises:
            UsageError: the partition is not assigned, or was moved or revoked meanwhile.
            OffsetOutOfRange: there is no committed offset, and `auto_offset_reset` is "none".
        """
        state = self._positions.state(partition)
        if state.position is None:
            await self._beginnings.find([partition])
        if state.position is None:
            where = f"{partition.topic}-{partition.partition}"
            raise UsageError(f"{where} was moved or revoked while its position was looked up")
        return state.position

    def positions(self) -> dict[TopicPartition, int]:
        """Return the positions of the assigned partitions, as far as they are known."""
        return self._positions.consumed()

    def offset_and_metadata(self, partition: TopicPartition, offset: int) -> OffsetAndMetadata:
        """Return an offset that this consumer has passed, with its topic id and leader epoch.

        A consumer that seeks to the result later detects whether the topic was created again, or
        its log truncated, in between (KIP-320).
        """
        return self._positions.state(partition).offset_and_metadata(offset)

    async def outdated(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> frozenset[TopicPartition]:
        """Return the partitions whose offsets belong to a topic that was deleted since.

        `commit` leaves such offsets out; for `Transaction.send_offsets`, the caller must.
        """
        return await self._cluster.retrying(lambda: find_outdated(self._cluster, offsets))

    async def truncated(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> frozenset[TopicPartition]:
        """Return the partitions whose log was truncated below these positions (KIP-320).

        Args:
            offsets: positions with leader epochs, as `offset_and_metadata` returns them.

        Raises:
            UnknownTopicOrPartition: a partition does not exist.
            UnsupportedVersion: the brokers don't serve OffsetForLeaderEpoch.
        """
        return await find_truncated(self._cluster, offsets)

    async def topic_id(self, topic: str) -> bytes:
        """Look up the id of a topic; zero if the brokers don't serve topic ids (KIP-516).

        Raises:
            UnknownTopicOrPartition: the topic does not exist.
        """
        await self._cluster.retrying(lambda: self._cluster.refresh([topic]))
        return self._cluster.topic_id(topic)

    def pause(self, *partitions: TopicPartition) -> None:
        """Make `poll` skip these partitions until `resume`; buffered records are kept."""
        for partition in partitions:
            self._positions.state(partition).paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Make `poll` return records of these partitions again."""
        for partition in partitions:
            self._positions.state(partition).paused = False
        self._fetcher.look()

    def paused(self) -> set[TopicPartition]:
        """Return the partitions that are paused."""
        return {partition for partition, state in self._positions.items() if state.paused}

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """Return the high watermark as of the last fetch; None before the first one."""
        return self._positions.state(partition).high_watermark

    def lag(self, partition: TopicPartition) -> int | None:
        """Return the number of offsets from the position to the end of the readable log.

        The end is the high watermark, with "read_committed" the last stable offset, as of the last
        fetch; None before the first one. Transaction markers count like records.
        """
        state = self._positions.state(partition)
        end = self._end(state)
        if end is None or state.position is None:
            return None
        return max(end - state.position, 0)

    def metrics(self) -> ClientMetrics:
        """Return the metrics of this consumer, under the names of Kafka's consumers.

        They are the groups `consumer-metrics`, `consumer-fetch-manager-metrics`,
        `consumer-coordinator-metrics` and `consumer-node-metrics`; docs/client-metrics.md lists
        them. Times are in ms unless the name says otherwise, sizes in bytes.
        """
        figures = [self._figures(each) for each in sorted(self._positions.assigned())]
        now_ms = self._cluster.clock.now_ms()
        return ClientMetrics.of(self._cluster.client_id, self._metrics.read(figures, now_ms))

    def _resource(self) -> Attributes:
        """Return what describes this consumer in telemetry (KIP-714)."""
        settings = self._settings
        member = self._group.member if self._group is not None else None
        named = {
            "group_id": settings.group_id,
            "group_instance_id": settings.group_instance_id,
            "group_member_id": None if member is None else member.member_id,
            "client_rack": settings.client_rack,
        }
        return tuple((name, text) for name, text in named.items() if text)

    def _figures(self, partition: TopicPartition) -> PartitionFigures:
        state = self._positions.get(partition)
        if state is None:
            return PartitionFigures(partition, None, None, NO_NODE)
        end = self._end(state)
        at, start = state.position, state.log_start_offset
        return PartitionFigures(
            partition,
            lag=None if end is None or at is None else max(end - at, 0),
            lead=None if start < 0 or at is None else max(at - start, 0),
            replica=NO_NODE if state.replica is None else state.replica,
        )

    def _end(self, state: PartitionState) -> int | None:
        """Return the end of the readable log as of the last fetch."""
        committed_only = self._settings.isolation_level == "read_committed"
        return state.stable_offset if committed_only else state.high_watermark

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Commit offsets: the positions from which the group continues.

        Args:
            offsets: partition to the offset of the next record to read, with metadata if wanted;
                by default, the position behind all records that polls have returned.

        Raises:
            RebalanceInProgress: the group rebalances; poll, then commit again.
            UnknownMember: the group has removed this consumer; other members own its partitions.
            ConfigError: there is no `group_id`.
        """
        commits = self._need_commits()
        with timed(self._metrics.commits_awaited, self._cluster.clock):
            await commits.commit(offsets)

    def commit_soon(self, offsets: Offsets | None = None) -> asyncio.Future[None]:
        """Commit in the background; the caller may await the future, or ignore it.

        Commits are sent in the order of the calls, together with those of `commit`. Failures are
        also logged. `close` waits for commits that are not yet acknowledged.

        Raises:
            UsageError: 1,000 commits already wait for the broker.
            ConfigError: there is no `group_id`.
        """
        return self._need_commits().order(offsets)

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int | None]:
        """Return the group's committed offset of each partition; None where there is none."""
        found = await self.committed_metadata(partitions)
        return {
            partition: None if committed is None else committed.offset
            for partition, committed in found.items()
        }

    async def committed_metadata(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets with leader epoch, topic id and metadata."""
        group = self._need_group()
        with timed(self._metrics.committed_looked_up, self._cluster.clock):
            return await group.committed(list(partitions))

    def group_metadata(self) -> GroupMetadata:
        """Return the member id and generation for `Transaction.send_offsets` (KIP-447).

        Call it right before the offsets are sent: it changes with every rebalance.

        Raises:
            ConfigError: there is no `group_id`.
            UnknownMember: the consumer has subscribed and is no member now: other members may own
                what it has read. Abort the transaction, and poll.
        """
        return self._need_group().metadata()

    async def begin_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition."""
        return await self._offsets(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of each partition: the high watermark, or the last stable offset.

        It is the last stable offset with `isolation_level="read_committed"`.
        """
        return await self._offsets(partitions, LATEST)

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record with at least the given timestamp, per partition.

        Args:
            times: partition to milliseconds since 1970.

        Returns:
            Partition to offset and timestamp; None if all records are older.
        """
        found = await self._list_offsets(times)
        return {
            partition: committed if committed.offset >= 0 else None
            for partition, committed in found.items()
        }

    async def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic.

        Raises:
            UnknownTopicOrPartition: the topic does not exist.
        """
        found = await self._cluster.retrying(lambda: self._cluster.topic(topic))
        return len(found.leaders)

    def _session(self) -> GroupSession | None:
        group = self._settings.group
        if group is None:
            return None
        session = GroupSession(
            self._cluster,
            group,
            self._settings.assignor,
            metrics=self._metrics.group,
            tell=self._news.set,
        )
        self._beginnings.begin_at_committed(session.committed)
        return session

    async def _has_news(self, timeout_ms: int) -> bool:
        """Wait for news of the background tasks; False if `timeout_ms` pass without any."""
        self._owner_polls(waits=True)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self._news.wait()
        except TimeoutError:
            return False
        finally:
            self._owner_polls(waits=False)

    def _owner_polls(self, *, waits: bool) -> None:
        if self._group is not None:
            self._group.on_poll(waits=waits)

    def _need_group(self) -> GroupSession:
        if self._group is None:
            raise ConfigError("committed offsets belong to a group: set group_id")
        # `assign` with a group_id works: commits then go to a group without members.
        return self._group

    def _need_commits(self) -> OffsetCommits:
        if self._commits is None:
            raise ConfigError("offsets are committed for a group: set group_id")
        return self._commits

    async def _offsets(
        self, partitions: Iterable[TopicPartition], time_ms: int
    ) -> dict[TopicPartition, int]:
        found = await self._list_offsets(dict.fromkeys(partitions, time_ms))
        return {partition: committed.offset for partition, committed in found.items()}

    async def _list_offsets(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        return await list_offsets(self._cluster, times, isolation=self._settings.isolation_level)

    async def _seek(self, partitions: Iterable[TopicPartition], start: PositionStart) -> None:
        moved = list(partitions) or self._positions.assigned()
        for partition in moved:
            self._positions.state(partition).move(None, start)
        await self._beginnings.find(moved)
        self._fetcher.look()

    def _take(self, max_records: int | None) -> dict[TopicPartition, list[LogRecord]]:
        """Decode buffered records with the garbage collector disabled.

        This makes thousands of objects, none of them in a cycle, and the collector would walk them
        after every few hundred: a third of the time of reading (measured).
        """
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return self._positions.take(max_records)
        finally:
            if was_enabled:
                gc.enable()

    def _may_read(self) -> bool:
        return self._group is None or self._group.may_read()

    async def _finish(self, timeout_ms: int | None) -> None:
        if self._rebalance is None or self._dead is not None:
            return
        limit = asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000)
        try:
            async with limit:
                await self._rebalance.finish()
        except TimeoutError:
            if not limit.expired():
                raise  # The callback raised it.
            log.warning(
                "close() took longer than %d ms: not all partitions were revoked and committed",
                timeout_ms,
            )

    async def _stop(self) -> None:
        try:
            await self._background.close()
            if self._commits is not None:
                self._commits.close()
            if self._dead is None:
                await self._fetcher.end_sessions()
        finally:
            await self._cluster.close()

    def _on_news(self, error: StreamlogError | None) -> None:
        if isinstance(error, UnknownTopicOrPartition) and self._by_pattern():
            log.debug("a topic of the pattern was deleted: %s", error)
        elif error is not None:
            self._failure = error
        self._news.set()

    def _by_pattern(self) -> bool:
        """Whether topics are subscribed by pattern; if so, look up which of them still exist."""
        if self._watch is None or self._watch.subscription.pattern is None:
            return False
        self._watch.look()
        return True

    def _on_death(self, error: Exception) -> None:
        """Make `poll` raise `error`, with which a background task has ended."""
        self._dead = error
        self._news.set()

    def _raise_failure(self) -> None:
        if not self._is_open:
            raise UsageError("the consumer is not open: use it inside its `async with` block")
        if self._dead is not None:
            raise self._dead
        failure, self._failure = self._failure, None
        if failure is not None and not self._is_settled(failure):
            raise failure

    def _is_settled(self, failure: StreamlogError) -> bool:
        """Whether the caller has moved away from the lost position that the fetcher reported."""
        # 1. The fetcher finds that t-0 was truncated below offset 90, and sets the failure.
        # 2. Before the next poll the caller seeks to 0.
        # 3. The failure is about a position that nothing reads any more: poll must not raise it.
        if not isinstance(failure, SourceLost):
            return False
        state = self._positions.get(TopicPartition(failure.topic, failure.partition))
        return (
            state is None
            or state.fetch_offset != failure.position
            or (state.topic_id or b"") != failure.old_id
        )
