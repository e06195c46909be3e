"""Consumer: reads partitions of a log, alone or as a member of a group.

The owner's side: everything here runs in the owner's task and only looks at what the fetcher and
the group session have prepared in theirs. That includes the callbacks of a rebalance: they are
awaited within `poll`, so they never run beside the owner's own work, and the consumer joins the
group again only after they are done. Auto-commit stores what earlier polls returned, at the next
poll: a crash repeats records rather than losing them. `read_committed` comes with transactions.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeAlias, TypedDict

from streamlog.assignors import Assignor, RangeAssignor, TopicPartition
from streamlog.client.background import Background
from streamlog.client.cluster import Cluster
from streamlog.client.fetcher import Fetcher, FetchSettings, Reset
from streamlog.client.group import GroupSession
from streamlog.client.group_metadata import GroupMetadata
from streamlog.client.membership import GroupSettings, Phase
from streamlog.client.offsets import (
    EARLIEST,
    LATEST,
    Isolation,
    OffsetAndTimestamp,
    list_offsets,
)
from streamlog.client.positions import Positions, Start
from streamlog.errors import ConfigError, StreamlogError, UsageError
from streamlog.records.batch import Record

OnRebalance: TypeAlias = Callable[[frozenset[TopicPartition]], Awaitable[None]]

AUTO_COMMIT_TIMEOUT_MS = 5_000
"""How long an auto-commit is retried: it holds up a poll or the end."""

log = logging.getLogger(__name__)


class ConsumerOptions(TypedDict, total=False):
    """`ConsumerSettings` as keywords."""

    group_id: str | None
    auto_offset_reset: Reset
    auto_commit: bool
    auto_commit_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    rebalance_timeout_ms: int
    group_instance_id: str | None
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    isolation_level: Isolation
    assignor: Assignor


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings(FetchSettings):
    """Settings of a consumer; names and meanings are Kafka's, and most defaults."""

    group_id: str | None = None
    """Whose committed offsets to use, and whose member to be after `subscribe`."""
    auto_commit: bool = False
    """Commit what earlier polls returned, every `auto_commit_interval_ms` and when closing."""
    auto_commit_interval_ms: int = 5_000
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    rebalance_timeout_ms: int = 300_000
    """How long a rebalance waits for this consumer's owner to poll."""
    group_instance_id: str | None = None
    """Makes a static member (KIP-345): one that is back under the same id within its session gets
    what it had, without a rebalance. No two consumers of a group may have the same."""
    assignor: Assignor = field(default_factory=RangeAssignor)

    def __post_init__(self) -> None:
        super(ConsumerSettings, self).__post_init__()
        if self.auto_commit and self.group_id is None:
            raise ConfigError("auto_commit stores offsets for a group: set group_id")
        if self.group_instance_id is not None and not self.group_instance_id:
            raise ConfigError("group_instance_id is empty: name the member, or leave it out")
        if not 0 < self.heartbeat_interval_ms < self.session_timeout_ms:
            raise ConfigError(
                f"heartbeat_interval_ms is {self.heartbeat_interval_ms}: it has to be positive and "
                f"less than session_timeout_ms ({self.session_timeout_ms}), best a third of it"
            )


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
        self._positions = Positions()
        self._news = asyncio.Event()
        self._failure: StreamlogError | None = None
        self._dead: Exception | None = None
        self._background = Background(self._on_death)
        self._is_open = False
        self._fetcher = Fetcher(
            cluster, self._positions, settings, self._background, tell=self._on_news
        )
        self._group = self._session()
        self._on_assigned: OnRebalance | None = None
        self._on_revoked: OnRebalance | None = None
        self._on_lost: OnRebalance | None = None
        self._commit_at_ms = 0
        self._committed: dict[TopicPartition, int] = {}

    async def __aenter__(self) -> Self:
        await self._background.open()
        self._is_open = True
        self._background.start(self._fetcher.run())
        if self._group is not None:
            self._background.start(self._group.run())
        self._commit_at_ms = self._cluster.clock.now_ms() + self._settings.auto_commit_interval_ms
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            if exc is None:
                await self._finish()
            if self._group is not None and not isinstance(exc, asyncio.CancelledError):
                await self._group.leave()
        finally:
            await self._stop()

    async def close(self) -> None:
        """Hand back what is assigned (with `on_revoked`), leave the group, hang up.

        The end of the `async with` block does the same.
        """
        await self.__aexit__(None, None, None)

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
        topics: Sequence[str],
        *,
        on_assigned: OnRebalance | None = None,
        on_revoked: OnRebalance | None = None,
        on_lost: OnRebalance | None = None,
    ) -> None:
        """Share these topics with the other members of the group.

        Args:
            topics: whole topics by name.
            on_assigned: awaited within `poll` with what this consumer may read from now on, before
                it does. With a cooperative assignor that comes to what it has; else it is all.
            on_revoked: awaited within `poll`, or when the consumer is closed, with what it is to
                give up. The group waits for it: finish, commit.
            on_lost: awaited within `poll` instead of `on_revoked` if the group has given up on this
                consumer: what it had is another's by now, and can't be committed. By default it
                is `on_revoked`.

        Raises:
            ConfigError: there is no `group_id`.
            UnknownTopicOrPartition: one of the topics does not exist.
        """
        if self._group is None:
            raise ConfigError("subscribe needs a group to share with: set group_id, or use assign")
        if isinstance(topics, str):
            raise UsageError(f"subscribe takes a list of topics: [{topics!r}]")
        await self._cluster.retrying(lambda: self._cluster.refresh(topics))
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self._on_lost = on_revoked if on_lost is None else on_lost
        if self._group.member is None:
            self._positions.assign(())
        self._group.subscribe(topics)

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
        if group is None or member is None or member.phase is Phase.LEFT:
            return False
        return bool(member.member_id) and group.may_read()

    async def poll(
        self, *, timeout_ms: int, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        """The next records, in offset order within a partition; empty if none come in time.

        Args:
            timeout_ms: how long to wait for the first record.
            max_records: at most so many, all partitions together; None: whatever is there.

        Raises:
            OffsetOutOfRange: the position is not in the log, and the reset policy is "none".
            CorruptData: a batch is damaged.
            UnknownTopicOrPartition: something that is assigned does not exist (any more).
            ConnectionLost: no broker answered for a minute; a later poll tries again.
            LogError: the group can't be joined, or auto-commit was refused.
        """
        deadline_ms = self._cluster.clock.now_ms() + timeout_ms
        await asyncio.sleep(0)  # Let the background work even if records are always there.
        while True:
            self._news.clear()
            self._raise_failure()
            await self._settle()
            await self._auto_commit()
            records = self._take(max_records) if self._may_read() else {}
            if records:
                self._fetcher.look()
                return records
            remaining_ms = deadline_ms - self._cluster.clock.now_ms()
            if remaining_ms <= 0:
                return {}
            try:
                async with asyncio.timeout(remaining_ms / 1000):
                    await self._news.wait()
            except TimeoutError:
                return {}

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Go on from `offset`; whether the log has it turns out when it is fetched."""
        if offset < 0:
            raise UsageError(f"offset {offset}: use seek_to_beginning or seek_to_end")
        self._positions.state(partition).move(offset)
        self._fetcher.look()

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go on from the first record of these, or of all that are assigned."""
        await self._seek(partitions, Start.EARLIEST)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go on after the last record of these, or of all that are assigned."""
        await self._seek(partitions, Start.LATEST)

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that `poll` returns."""
        state = self._positions.state(partition)
        if state.position is None:
            await self._fetcher.resolve()
        if state.position is None:
            raise UsageError(f"{partition} was moved or revoked while it was looked up")
        return state.position

    def positions(self) -> dict[TopicPartition, int]:
        """Positions of all assigned partitions that are known without asking."""
        return self._positions.consumed()

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

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Store where the group goes on: `offsets`, or the positions.

        Args:
            offsets: the next offset to read, per partition; by default all that was returned.

        Raises:
            RebalanceInProgress: this consumer has no partitions just now.
            UnknownMember: the group has given up on this consumer.
        """
        committed = self._positions.consumed() if offsets is None else dict(offsets)
        await self._need_group().commit(committed)
        self._committed.update(committed)

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int | None]:
        """Where the group goes on, None where nothing is stored."""
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
        settings = self._settings
        if settings.group_id is None:
            return None
        session = GroupSession(
            self._cluster,
            GroupSettings(
                group_id=settings.group_id,
                session_timeout_ms=settings.session_timeout_ms,
                heartbeat_interval_ms=settings.heartbeat_interval_ms,
                rebalance_timeout_ms=settings.rebalance_timeout_ms,
                instance_id=settings.group_instance_id,
            ),
            settings.assignor,
            tell=self._news.set,
        )
        self._fetcher.begin_at_committed(session.committed)
        return session

    def _need_group(self) -> GroupSession:
        if self._group is None:
            raise ConfigError("committed offsets belong to a group: set group_id")
        return self._group

    async def _offsets(
        self, partitions: Iterable[TopicPartition], time_ms: int
    ) -> dict[TopicPartition, int]:
        found = await self._list_offsets(dict.fromkeys(partitions, time_ms))
        return {partition: place.offset for partition, place in found.items()}

    async def _list_offsets(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        return await list_offsets(self._cluster, times, isolation=self._settings.isolation_level)

    async def _seek(self, partitions: Iterable[TopicPartition], start: Start) -> None:
        for partition in list(partitions) or self._positions.assigned():
            self._positions.state(partition).move(None, start)
        await self._fetcher.resolve()
        self._fetcher.look()

    async def _settle(self) -> None:
        """Carry out a change of the assignment, with the owner's callbacks."""
        member = self._group.member if self._group is not None else None
        if self._group is None or member is None:
            return
        revoked = member.revoking
        if revoked:
            await self._revoke(revoked, lost=member.is_lost)
            self._group.on_revoked(revoked)
        if member.offered is not None:
            added = self._group.on_assigned()
            log.info("%s", member)
            self._positions.assign(member.assignment)
            if self._on_assigned is not None:
                await self._on_assigned(added)
            self._fetcher.look()

    def _take(self, max_records: int | None) -> dict[TopicPartition, list[Record]]:
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

    async def _revoke(self, partitions: frozenset[TopicPartition], *, lost: bool = False) -> None:
        told = self._on_lost if lost else self._on_revoked
        if told is not None:
            await told(partitions)
        if self._settings.auto_commit and not lost:
            await self._commit_consumed()
        self._positions.assign(self._positions.assigned() - partitions)
        for partition in partitions:
            self._committed.pop(partition, None)

    async def _auto_commit(self) -> None:
        now_ms = self._cluster.clock.now_ms()
        if self._group is None or not self._group.may_commit():
            return  # In a cooperative rebalance; then it is done afterwards.
        if self._settings.auto_commit and now_ms >= self._commit_at_ms:
            self._commit_at_ms = now_ms + self._settings.auto_commit_interval_ms
            await self._commit_consumed()

    async def _commit_consumed(self) -> None:
        """Commit what has moved; what the group refuses, its next owner reads again."""
        moved = {
            partition: offset
            for partition, offset in self._positions.consumed().items()
            if self._committed.get(partition) != offset
        }
        if not moved:
            return
        try:
            await self._need_group().commit(moved, timeout_ms=AUTO_COMMIT_TIMEOUT_MS)
            self._committed.update(moved)
        except StreamlogError as error:
            if error.fatal:
                raise
            log.warning("auto-commit: %s", error)

    async def _finish(self) -> None:
        """Hand back in good order what is assigned."""
        member = self._group.member if self._group is not None else None
        if self._dead is not None:
            return
        if member is not None and member.assignment:
            await self._revoke(member.assignment)
        elif self._settings.auto_commit:
            await self._commit_consumed()

    async def _stop(self) -> None:
        try:
            await self._background.close()
            if self._dead is None:
                await self._fetcher.end_sessions()
        finally:
            await self._cluster.close()

    def _on_news(self, error: StreamlogError | None) -> None:
        if error is not None:
            self._failure = error
        self._news.set()

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
        if failure is not None:
            raise failure
