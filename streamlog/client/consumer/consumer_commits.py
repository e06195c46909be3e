"""OffsetCommits: sends a consumer's commits, requested and automatic, one after the other.

In order, since an older commit that overtook a newer one would move the group back. An offset of a
topic that was deleted since is not committed: it belongs to another log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping

import msgspec

from streamlog import repeated
from streamlog.client.cluster import RETRY_TIMEOUT_MS, Cluster
from streamlog.client.consumer.consumer_settings import ConsumerSettings
from streamlog.client.consumer.subscription_state import SubscriptionState
from streamlog.client.group.group_session import GroupSession
from streamlog.client.offset_metadata import OffsetAndMetadata, Offsets, with_metadata
from streamlog.errors import StreamlogError, UnknownTopicOrPartition, UsageError
from streamlog.protocol.schema import ZERO_UUID
from streamlog.record import TopicPartition


async def find_outdated(
    cluster: Cluster, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> frozenset[TopicPartition]:
    """Return the partitions whose offsets belong to a topic that was deleted since.

    Raises:
        LogError: the topic ids can't be looked up now; retriable.
    """
    topic_ids = {
        part: committed.topic_id
        for part, committed in offsets.items()
        if committed.topic_id != ZERO_UUID
    }
    present = {
        topic: await _topic_id(cluster, topic) for topic in {part.topic for part in topic_ids}
    }
    # Zero comes from brokers without topic ids, which says nothing about the topic.
    return frozenset(
        part
        for part, topic_id in topic_ids.items()
        if present[part.topic] not in (topic_id, ZERO_UUID)
    )


async def _topic_id(cluster: Cluster, topic: str) -> bytes | None:
    """Return the id of a topic; None if no topic has this name."""
    try:
        return (await cluster.topic(topic)).topic_id
    except UnknownTopicOrPartition:
        return None


AUTO_COMMIT_TIMEOUT_MS = 5_000
"""How long an auto-commit is retried; short, because `poll` or `close` waits for it."""

ORDERS_MAX = 1_000
"""The largest number of commits in the queue. A caller that commits every record is faster than
any broker."""

log = repeated.logger(__name__)


class _Order(msgspec.Struct, frozen=True):
    offsets: dict[TopicPartition, OffsetAndMetadata]
    generation: int | None
    """The group's generation when the commit was requested; a later one refuses it."""
    timeout_ms: int
    done: asyncio.Future[None]
    is_awaited: bool


class OffsetCommits:
    """The commits of one consumer in a group. `run` is a task of the consumer."""

    def __init__(
        self,
        cluster: Cluster,
        group: GroupSession,
        positions: SubscriptionState,
        settings: ConsumerSettings,
    ) -> None:
        self.is_open = False
        """Whether commits are accepted: `run` runs, or is about to start."""
        self._group = group
        self._positions = positions
        self._settings = settings
        self._cluster = cluster
        self._due_ms = cluster.clock.now_ms() + settings.auto_commit_interval_ms
        self._committed: dict[TopicPartition, int] = {}
        self._orders: deque[_Order] = deque()
        self._news = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()

    async def run(self) -> None:
        """Send commits until cancelled."""
        try:
            while True:
                while self._orders:
                    # Removed only afterwards: if the task is cancelled, `close` fails this one too.
                    await self._carry_out(self._orders[0])
                    self._orders.popleft()
                self._drained.set()
                self._news.clear()
                await self._news.wait()
        finally:
            self.close()

    def close(self) -> None:
        """Fail all queued commits, and accept no others."""
        self.is_open = False
        for order in self._orders:
            _fail(order, UsageError("the consumer was closed before this was committed"))
        self._orders.clear()
        self._drained.set()

    async def commit(self, offsets: Offsets | None) -> None:
        """Commit `offsets`, or the positions, and wait; see `Consumer.commit`."""
        await self.order(offsets, is_awaited=True)

    def order(
        self,
        offsets: Offsets | None,
        *,
        timeout_ms: int = RETRY_TIMEOUT_MS,
        is_awaited: bool = False,
    ) -> asyncio.Future[None]:
        """Queue a commit of `offsets`, or of the positions, behind the earlier ones.

        Args:
            offsets: partition to offset; None for the positions.
            timeout_ms: how long the commit is retried.
            is_awaited: whether the caller awaits the future, so that a failure is not logged.

        Raises:
            UsageError: the consumer is not open, or `ORDERS_MAX` commits wait already.
        """
        if not self.is_open:
            raise UsageError("the consumer is not open: use it inside its `async with` block")
        if len(self._orders) >= ORDERS_MAX and not is_awaited:
            raise UsageError(
                f"{ORDERS_MAX} commits already wait for the broker: commit less often, or await"
                " the futures"
            )
        member = self._group.member
        order = _Order(
            offsets=self._positions.offsets_and_metadata()
            if offsets is None
            else with_metadata(offsets),
            generation=None if member is None else member.generation_id,
            timeout_ms=timeout_ms,
            done=asyncio.get_running_loop().create_future(),
            is_awaited=is_awaited,
        )
        self._orders.append(order)
        self._drained.clear()
        self._news.set()
        return order.done

    async def drain(self) -> None:
        """Wait until every queued commit has succeeded or failed."""
        await self._drained.wait()

    async def auto_commit(self) -> None:
        """Commit the positions if the interval has passed and the group accepts commits."""
        if not self._settings.auto_commit or not self._group.may_commit():
            return  # During a cooperative rebalance; a later poll commits.
        now_ms = self._cluster.clock.now_ms()
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + self._settings.auto_commit_interval_ms
            await self.commit_consumed()

    async def commit_consumed(self) -> None:
        """Commit the positions that have moved, if auto-commit is on.

        A retriable failure is only logged: a later commit covers these positions, or the next owner
        reads their records again.

        Raises:
            StreamlogError: a fatal error.
        """
        moved = {
            partition: committed
            for partition, committed in self._positions.offsets_and_metadata().items()
            if self._committed.get(partition) != committed.offset
        }
        if not moved or not self._settings.auto_commit:
            return
        try:
            await self.order(moved, timeout_ms=AUTO_COMMIT_TIMEOUT_MS, is_awaited=True)
        except StreamlogError as error:
            if error.fatal:
                raise
            log.warning("the auto-commit failed: %s", error)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget the committed offsets of partitions that were revoked: others commit them now."""
        for partition in partitions:
            self._committed.pop(partition, None)

    async def _carry_out(self, order: _Order) -> None:
        async def attempt() -> None:
            if order.done.cancelled():
                return  # The caller has cancelled the future.
            current = await self._of_present_topics(order.offsets)
            if current or not order.offsets:
                await self._group.commit(current, order.generation)
            for partition, committed in current.items():
                self._committed[partition] = committed.offset

        try:
            await self._cluster.retrying(attempt, timeout_ms=order.timeout_ms)
        except StreamlogError as error:
            _fail(order, error)
        if not order.done.done():
            order.done.set_result(None)

    async def _of_present_topics(
        self, offsets: dict[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Leave out the offsets of topics that were deleted since."""
        stale = await find_outdated(self._cluster, offsets)
        if stale:
            log.warning(
                "offsets were not committed, since the topic was deleted and created again: %s",
                ", ".join(f"{topic}-{number}" for topic, number in sorted(stale)),
            )
        return {part: committed for part, committed in offsets.items() if part not in stale}


def _fail(order: _Order, error: StreamlogError) -> None:
    if order.done.done():
        return
    order.done.set_exception(error)
    if not order.is_awaited:
        # The caller may ignore the future. Marked as retrieved, asyncio does not log it; this
        # message says more.
        order.done.exception()
        log.warning("the commit failed: %s", error)
