"""Consumer: reads partitions of a log, alone or as a member of a group.

The owner's side: everything here runs in the owner's task and only looks at what the fetcher and
the group session have prepared in theirs. That includes the callbacks of a rebalance: they are
awaited within `poll` (`rebalance`), as auto-commit is (`commits`).
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
from streamlog.client.cluster import Cluster
from streamlog.client.consumer.consumer_commits import OffsetCommits, find_outdated
from streamlog.client.consumer.consumer_settings import ConsumerSettings
from streamlog.client.consumer.fetcher import Fetcher
from streamlog.client.consumer.offset_reset import OffsetReset
from streamlog.client.consumer.rebalance import OnRebalance, Rebalance, TopicWatch
from streamlog.client.consumer.subscription_state import (
    NO_MARK,
    NOT_TOLD,
    PositionStart,
    Subscription,
    SubscriptionState,
    Topics,
    known_id,
)
from streamlog.client.group.classic_protocol import MemberPhase
from streamlog.client.group.group_session import GroupSession
from streamlog.client.offset_lookup import (
    EARLIEST,
    LATEST,
    OffsetAndTimestamp,
    find_truncated,
    list_offsets,
)
from streamlog.client.offset_metadata import GroupMetadata, OffsetAndMetadata, Offsets
from streamlog.errors import (
    ConfigError,
    SourceLost,
    StreamlogError,
    UnknownTopicOrPartition,
    UsageError,
)
from streamlog.protocol.schema import ZERO_UUID
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord, RecordBatch
from streamlog.records.control_batches import MarkTold, TimeMark
from streamlog.records.record_columns import RecordColumns

R = TypeVar("R", list[LogRecord], RecordColumns, list[RecordBatch])
"""Records of one partition, in any form."""

log = repeated.logger(__name__)


class Consumer:
    """Reads records. Use it in an `async with` block; use it from one task.

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
        self._positions = SubscriptionState(keeps_marks=settings.time_marks)
        self._news = asyncio.Event()
        self._failure: StreamlogError | None = None
        self._dead: Exception | None = None
        self._background = Background(self._on_death)
        self._is_open = False
        self._woken = False
        self._beginnings = OffsetReset(cluster, self._positions, settings)
        self._fetcher = Fetcher(
            cluster,
            self._positions,
            self._beginnings,
            settings,
            self._background,
            tell=self._on_news,
        )
        self._group = self._session()
        self._commits: OffsetCommits | None = None
        self._rebalance: Rebalance | None = None
        self._watch: TopicWatch | None = None
        if self._group is not None:
            self._commits = OffsetCommits(cluster, self._group, self._positions, settings)
            self._rebalance = Rebalance(self._group, self._positions, self._commits)
            interval_ms = settings.metadata_max_age_ms
            self._watch = TopicWatch(cluster, self._group, interval_ms=interval_ms)

    async def __aenter__(self) -> Self:
        await self._background.open()
        self._is_open = True
        self._background.start(self._fetcher.run())
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
        is_open, self._is_open = self._is_open, False
        try:
            if is_open and self._group is not None and not isinstance(exc, asyncio.CancelledError):
                await self._group.leave()
        finally:
            if is_open:
                await self._stop()

    async def close(self, *, timeout_ms: int | None = None, leave_group: bool = False) -> None:
        """Hand back what is assigned (with `on_revoked`), leave the group, hang up.

        The end of the `async with` block does the same. Call it from the task that opened it.

        Args:
            timeout_ms: how long the callback and the commits may take; what is not done by then
                is given up, and tried by whoever gets the partitions. None: as long as they do.
            leave_group: a static member leaves as well, so that others take over at once; by
                default its place is kept for a session, as it will be back (KIP-1092).
        """
        if not self._is_open:
            return
        self._is_open = False
        try:
            await self._finish(timeout_ms)
            if self._group is not None:
                await self._group.leave(for_good=leave_group)
        finally:
            await self._stop()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these; those that were assigned before keep their position.

        Raises:
            UsageError: the group assigns (`subscribe` was called).
        """
        if self._group is not None and self._group.member is not None:
            raise UsageError("this consumer has subscribed: its group assigns its partitions")
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
        """Share these topics with the other members of the group.

        Args:
            topics: whole topics by name; or a pattern, such as `re.compile("orders-.*")`: all
                whose whole name matches, those included that come later (they are looked for every
                `metadata_max_age_ms`), but none of the log's own.
            on_assigned: awaited within `poll` with what this consumer may read from now on, before
                it does. With a cooperative assignor that comes to what it has; else it is all.
            on_revoked: awaited within `poll`, or when the consumer is closed, with what it is to
                give up. The group waits for it: finish, commit.
            on_lost: awaited within `poll` instead of `on_revoked` if the group has given up on this
                consumer: what it had is another's by now, and can't be committed. By default it
                is `on_revoked`.

        Raises:
            ConfigError: there is no `group_id`.
            UnknownTopicOrPartition: one of the names does not exist.
        """
        if self._group is None or self._rebalance is None or self._watch is None:
            raise ConfigError("subscribe needs a group to share with: set group_id, or use assign")
        subscription = Subscription.of(topics)
        found = await self._watch.topics(subscription)
        self._watch.subscription = subscription
        self._rebalance.listen(on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost)
        if self._group.member is None:
            self._positions.assign(())
        self._group.subscribe(found)
        self._group.on_poll(waits=False)

    async def unsubscribe(self) -> None:
        """Hand back what is assigned (with `on_revoked`), and leave the group.

        After that partitions can be assigned, or topics subscribed to, anew.
        """
        if self._rebalance is not None and self._group is not None and self._watch is not None:
            await self._rebalance.finish()
            await self._group.unsubscribe()
            self._watch.subscription = Subscription()
        self._positions.assign(())

    def subscription(self) -> set[str]:
        """The topics that this consumer shares with its group: of a pattern those found so far."""
        member = self._group.member if self._group is not None else None
        return set() if member is None else set(member.topics)

    def enforce_rebalance(self) -> None:
        """Ask the group for another round, in which it is assigned anew (KIP-568).

        With `group_protocol="consumer"` there are no rounds, and nothing happens.

        Raises:
            ConfigError: there is no `group_id`.
        """
        self._need_group().on_request()

    def staying(self) -> AbstractContextManager[bool]:
        """Do something that takes several requests within one generation of the group.

        For transactions: while the block runs, a cooperative member does not join the next
        round, which waits for it as long as for a poll. Whether the group takes commits just
        now is the value of the block; if not, the member is between two generations.

        Raises:
            ConfigError: there is no `group_id`.
        """
        return self._need_group().staying()

    def assignment(self) -> set[TopicPartition]:
        """What this consumer reads now."""
        return self._positions.assigned()

    @property
    def is_leader(self) -> bool:
        """Whether this member assigns for its group."""
        member = self._group.member if self._group is not None else None
        return member is not None and member.is_leader

    @property
    def is_member(self) -> bool:
        """Whether the group surely counts on this consumer.

        If not, its partitions may be another's by now, and the group refuses its commits.
        """
        group = self._group
        member = group.member if group is not None else None
        if group is None or member is None or member.phase is MemberPhase.LEFT:
            return False
        return member.is_known and group.may_read()

    async def poll(
        self, *, timeout_ms: int, max_records: int | None = None
    ) -> dict[TopicPartition, list[LogRecord]]:
        """The next records, in offset order within a partition; empty if none come in time.

        Args:
            timeout_ms: how long to wait for the first record.
            max_records: at most so many, all partitions together; None: `max_poll_records`.

        Raises:
            OffsetOutOfRange: the position is not in the log, and the reset policy is "none".
            SourceLost: the topic was created again or its log was truncated, and the policy is
                "none".
            DamagedBatch: a batch can't be read; `seek` to its `next_offset` goes on behind it.
            UnknownTopicOrPartition: something that is assigned does not exist (any more).
            ConnectionLost: no broker answered for a minute; a later poll tries again.
            LogError: the group can't be joined, or auto-commit was refused.
        """
        return await self._polled(timeout_ms, max_records, self._take)

    async def poll_columns(
        self, *, timeout_ms: int, max_records: int | None = None
    ) -> dict[TopicPartition, RecordColumns]:
        """As `poll`, but whole columns: for who goes over thousands of records at once."""
        return await self._polled(timeout_ms, max_records, self._positions.take_columns)

    async def poll_batches(self, *, timeout_ms: int) -> dict[TopicPartition, list[RecordBatch]]:
        """As `poll`, but whole batches as they came: for who decodes them in another way.

        The first may begin before the position, as brokers send whole ones. Not beside `poll`.
        """
        return await self._polled(timeout_ms, None, lambda _: self._positions.take_batches())

    async def _polled(
        self,
        timeout_ms: int,
        max_records: int | None,
        take: Callable[[int | None], dict[TopicPartition, R]],
    ) -> dict[TopicPartition, R]:
        deadline_ms = self._cluster.clock.now_ms() + timeout_ms
        if max_records is None:
            max_records = self._settings.max_poll_records
        await asyncio.sleep(0)  # Let the background work even if records are always there.
        while True:
            self._news.clear()
            self._owner_polls(waits=False)
            self._raise_failure()
            if self._woken:
                self._woken = False
                return {}
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
        """The time marks that polls have passed since the last call, in offset order.

        None without the setting `idle_marks`. They stand in the log between the records: a
        mark belongs before every record with a larger offset.
        """
        return self._positions.take_marks()

    def want_mark(
        self, partition: TopicPartition, after_ms: int | None, told: MarkTold | None = None
    ) -> None:
        """Ask for a time mark at the end of a partition once nothing was appended for so long.

        It holds from the next fetch on and until it is changed; None: no more. The log appends
        none before the topic's `mark.quiet.ms`, in compacted topics, and where it is a Kafka.
        `told` is the event time to which the mark brings the readers of one clock.
        """
        state = self._positions.state(partition)
        state.mark_after_ms = NO_MARK if after_ms is None else max(after_ms, 0)
        state.mark_told = NOT_TOLD if told is None else told

    def wakeup(self) -> None:
        """Make the poll that another task waits in return at once, with nothing; else the next.

        From another thread: `loop.call_soon_threadsafe(consumer.wakeup)`.
        """
        self._woken = True
        self._news.set()

    def seek(
        self, partition: TopicPartition, offset: int | OffsetAndMetadata, *, topic_id: bytes = b""
    ) -> None:
        """Go on from `offset`; whether the log has it turns out when it is fetched.

        `topic_id` is of the topic that a plain offset belongs to, if that is known.

        Whoever keeps offsets elsewhere calls this from `on_assigned`: nothing is looked up or
        fetched before that is done.
        """
        place = (
            offset
            if isinstance(offset, OffsetAndMetadata)
            else OffsetAndMetadata(offset, topic_id=topic_id or ZERO_UUID)
        )
        if place.offset < 0:
            raise UsageError(f"offset {place.offset}: use seek_to_beginning or seek_to_end")
        self._positions.state(partition).move(
            place.offset, leader_epoch=place.leader_epoch, topic_id=known_id(place.topic_id)
        )
        self._fetcher.look()

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go on from the first record of these, or of all that are assigned."""
        await self._seek(partitions, PositionStart.EARLIEST)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go on after the last record of these, or of all that are assigned."""
        await self._seek(partitions, PositionStart.LATEST)

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that `poll` returns."""
        state = self._positions.state(partition)
        if state.position is None:
            await self._beginnings.find([partition])
        if state.position is None:
            raise UsageError(f"{partition} was moved or revoked while it was looked up")
        return state.position

    def positions(self) -> dict[TopicPartition, int]:
        """Positions of all assigned partitions that are known without asking."""
        return self._positions.consumed()

    def place(self, partition: TopicPartition, offset: int) -> OffsetAndMetadata:
        """An offset that this consumer has passed, with the topic id and the leader epoch there.

        A consumer that seeks to it later notices if the topic was created again or its log was
        truncated meanwhile.
        """
        return self._positions.state(partition).place(offset)

    async def outdated(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> frozenset[TopicPartition]:
        """Those of these offsets that belong to topics that were deleted since, as far as known.

        `commit` leaves them out; for a transaction that is to be done by its owner.
        """
        return await self._cluster.retrying(lambda: find_outdated(self._cluster, offsets))

    async def truncated(
        self, places: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> frozenset[TopicPartition]:
        """Those of these positions, as `place` gives them, whose log was truncated below them.

        Raises:
            UnknownTopicOrPartition: a partition does not exist.
            UnsupportedVersion: the brokers can't tell.
        """
        return await find_truncated(self._cluster, places)

    async def topic_id(self, topic: str) -> bytes:
        """The id of a topic, asked anew; zero if brokers tell none.

        Raises:
            UnknownTopicOrPartition: there is no such topic.
        """
        await self._cluster.retrying(lambda: self._cluster.refresh([topic]))
        return self._cluster.topic_id(topic)

    def pause(self, *partitions: TopicPartition) -> None:
        """Return nothing from these until `resume`; what their buffers hold is kept."""
        for partition in partitions:
            self._positions.state(partition).paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records from these again."""
        for partition in partitions:
            self._positions.state(partition).paused = False
        self._fetcher.look()

    def paused(self) -> set[TopicPartition]:
        """Which partitions are paused."""
        return {partition for partition, state in self._positions.items() if state.paused}

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """The end of the partition when it was last fetched, None before that."""
        return self._positions.state(partition).high_watermark

    def lag(self, partition: TopicPartition) -> int | None:
        """How many offsets are between the position and the end of what this consumer may read.

        As of the last fetch; None before that. Marks of transactions count like records.
        """
        state = self._positions.state(partition)
        committed_only = self._settings.isolation_level == "read_committed"
        end = state.stable_offset if committed_only else state.high_watermark
        if end is None or state.position is None:
            return None
        return max(end - state.position, 0)

    async def commit(self, offsets: Offsets | None = None) -> None:
        """Store where the group goes on: `offsets`, or the positions.

        Args:
            offsets: the next offset to read, per partition, with metadata if there is any; by
                default after all that was returned.

        Raises:
            RebalanceInProgress: this consumer has no partitions just now.
            UnknownMember: the group has given up on this consumer.
        """
        await self._need_commits().commit(offsets)

    def commit_soon(self, offsets: Offsets | None = None) -> asyncio.Future[None]:
        """As `commit`, in the background: go on at once, and await the result or do not.

        Commits are carried out in the order of their calls, these and those that are awaited. What
        fails is also logged. `close` waits for what is under way.

        Raises:
            UsageError: 1,000 commits wait for the broker already.
        """
        return self._need_commits().order(offsets)

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int | None]:
        """Where the group goes on, None where nothing is stored."""
        found = await self.committed_metadata(partitions)
        return {
            partition: None if place is None else place.offset for partition, place in found.items()
        }

    async def committed_metadata(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The same, with what was committed beside the offset."""
        return await self._need_group().committed(list(partitions))

    def group_metadata(self) -> GroupMetadata:
        """Who this consumer is to its group, for `Transaction.send_offsets`.

        Take it when the offsets are sent, not earlier: it changes with every rebalance.

        Raises:
            ConfigError: there is no `group_id`.
            UnknownMember: it has subscribed, and the group does not count on it now: what it
                has read may be another's. Abort, and read on.
        """
        return self._need_group().metadata()

    async def begin_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The first offset that is still there."""
        return await self._offsets(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset that the next record will have."""
        return await self._offsets(partitions, LATEST)

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record whose timestamp is not before the given one, per partition.

        Args:
            times: ms since the epoch.
        """
        found = await self._list_offsets(times)
        return {
            partition: place if place.offset >= 0 else None for partition, place in found.items()
        }

    async def partitions(self, topic: str) -> int:
        """How many partitions a topic has.

        Raises:
            UnknownTopicOrPartition: there is no such topic.
        """
        found = await self._cluster.retrying(lambda: self._cluster.topic(topic))
        return len(found.leaders)

    def _session(self) -> GroupSession | None:
        group = self._settings.group
        if group is None:
            return None
        session = GroupSession(self._cluster, group, self._settings.assignor, tell=self._news.set)
        self._beginnings.begin_at_committed(session.committed)
        return session

    async def _has_news(self, timeout_ms: int) -> bool:
        """Wait until something is to be done; False if the time is over before."""
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
        return self._group

    def _need_commits(self) -> OffsetCommits:
        if self._commits is None:
            raise ConfigError("offsets are committed for a group: set group_id")
        return self._commits

    async def _offsets(
        self, partitions: Iterable[TopicPartition], time_ms: int
    ) -> dict[TopicPartition, int]:
        found = await self._list_offsets(dict.fromkeys(partitions, time_ms))
        return {partition: place.offset for partition, place in found.items()}

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
        """Decode what is buffered, with the garbage collector at rest.

        Thousands of records are made at once and none of them is in a cycle, but the collector
        would walk them after every few hundred: a third of the time of reading (measured).
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
                raise  # It is the callback's own.
            log.warning("closing took longer than %d ms: not all is handed back", timeout_ms)

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
            log.debug("it is not read any more: %s", error)
        elif error is not None:
            self._failure = error
        self._news.set()

    def _by_pattern(self) -> bool:
        """Whether topics may go; then it is looked which are left."""
        if self._watch is None or self._watch.subscription.pattern is None:
            return False
        self._watch.look()
        return True

    def _on_death(self, error: Exception) -> None:
        """A background task has ended: nothing works any more."""
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
        """Whether the owner has moved on from a lost position since the fetcher told of it."""
        if not isinstance(failure, SourceLost):
            return False
        state = self._positions.get(TopicPartition(failure.topic, failure.partition))
        return (
            state is None
            or state.fetch_offset != failure.position
            or (state.topic_id or b"") != failure.old_id
        )
