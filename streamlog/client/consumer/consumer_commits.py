"""OffsetCommits: commits of a consumer, on request and by time, one after the other.

An offset of a topic that was deleted since is not committed: it belongs to another log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
    """Those that belong to another topic than the present one of the same name, or to none.

    Raises:
        LogError: retriable: it can't be found out just now.
    """
    told = {part: place.topic_id for part, place in offsets.items() if place.topic_id != ZERO_UUID}
    present = {topic: await _topic_id(cluster, topic) for topic in {part.topic for part in told}}
    return frozenset(
        part for part, topic_id in told.items() if present[part.topic] not in (topic_id, ZERO_UUID)
    )


async def _topic_id(cluster: Cluster, topic: str) -> bytes | None:
    """The id of a topic; None if there is none of this name."""
    try:
        return (await cluster.topic(topic)).topic_id
    except UnknownTopicOrPartition:
        return None


AUTO_COMMIT_TIMEOUT_MS = 5_000
"""How long an auto-commit is retried: it holds up a poll or the end."""

ORDERS_MAX = 1_000
"""So many commits wait at most: whoever gives one a record outruns any broker."""

log = repeated.logger(__name__)


@dataclass(frozen=True, slots=True)
class _Order:
    offsets: dict[TopicPartition, OffsetAndMetadata]
    generation: int | None
    """In which it was given."""
    timeout_ms: int
    done: asyncio.Future[None]
    is_awaited: bool


class OffsetCommits:
    """The commits of one consumer in a group."""

    def __init__(
        self,
        cluster: Cluster,
        group: GroupSession,
        positions: SubscriptionState,
        settings: ConsumerSettings,
    ) -> None:
        self.is_open = False
        """Whether `run` runs, or is about to."""
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
        """Carry out orders for ever."""
        try:
            while True:
                while self._orders:
                    await self._carry_out(self._orders[0])
                    self._orders.popleft()
                self._drained.set()
                self._news.clear()
                await self._news.wait()
        finally:
            self.close()

    def close(self) -> None:
        """Nothing is carried out any more."""
        self.is_open = False
        for order in self._orders:
            _fail(order, UsageError("the consumer was closed before this was committed"))
        self._orders.clear()
        self._drained.set()

    async def commit(self, offsets: Offsets | None) -> None:
        """Store `offsets`, or the positions; see `Consumer.commit`."""
        await self.order(offsets, is_awaited=True)

    def order(
        self,
        offsets: Offsets | None,
        *,
        timeout_ms: int = RETRY_TIMEOUT_MS,
        is_awaited: bool = False,
    ) -> asyncio.Future[None]:
        """Store them after what was ordered before, without waiting for it."""
        if not self.is_open:
            raise UsageError("the consumer is not open: use it inside its `async with` block")
        if len(self._orders) >= ORDERS_MAX and not is_awaited:
            raise UsageError(
                f"{ORDERS_MAX} commits wait for the broker: commit less often, or await some"
            )
        member = self._group.member
        order = _Order(
            offsets=self._positions.places() if offsets is None else with_metadata(offsets),
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
        """Wait until what was ordered is done, or has failed."""
        await self._drained.wait()

    async def auto_commit(self) -> None:
        """What is due, if it is and the group takes it."""
        if not self._settings.auto_commit or not self._group.may_commit():
            return  # In a cooperative rebalance; then it is done afterwards.
        now_ms = self._cluster.clock.now_ms()
        if now_ms >= self._due_ms:
            self._due_ms = now_ms + self._settings.auto_commit_interval_ms
            await self.commit_consumed()

    async def commit_consumed(self) -> None:
        """With auto-commit: what has moved; what the group refuses, its next owner reads again."""
        moved = {
            partition: place
            for partition, place in self._positions.places().items()
            if self._committed.get(partition) != place.offset
        }
        if not moved or not self._settings.auto_commit:
            return
        try:
            await self.order(moved, timeout_ms=AUTO_COMMIT_TIMEOUT_MS, is_awaited=True)
        except StreamlogError as error:
            if error.fatal:
                raise
            log.warning("auto-commit: %s", error)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These are another member's now, and so is where they go on."""
        for partition in partitions:
            self._committed.pop(partition, None)

    async def _carry_out(self, order: _Order) -> None:
        async def attempt() -> None:
            if order.done.cancelled():
                return  # Who ordered it does not want it any more.
            current = await self._of_present_topics(order.offsets)
            if current or not order.offsets:
                await self._group.commit(current, order.generation)
            for partition, place in current.items():
                self._committed[partition] = place.offset

        try:
            await self._cluster.retrying(attempt, timeout_ms=order.timeout_ms)
        except StreamlogError as error:
            _fail(order, error)
        if not order.done.done():
            order.done.set_result(None)

    async def _of_present_topics(
        self, offsets: dict[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Without offsets of topics that others of the same name have replaced."""
        stale = await find_outdated(self._cluster, offsets)
        if stale:
            log.warning(
                "not committed, as the topic was deleted and created again: %s",
                ", ".join(f"{topic}-{number}" for topic, number in sorted(stale)),
            )
        return {part: place for part, place in offsets.items() if part not in stale}


def _fail(order: _Order, error: StreamlogError) -> None:
    if order.done.done():
        return
    order.done.set_exception(error)
    if not order.is_awaited:
        # Whoever ordered it may not look; asyncio's complaint about that says less.
        order.done.exception()
        log.warning("not committed: %s", error)
