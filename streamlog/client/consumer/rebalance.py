"""Changes of a consumer's assignment: rebalances of its group, and changes of its topics.

`Rebalance` awaits the caller's callbacks, and commits before partitions are revoked. `TopicWatch`
looks for new topics that match a pattern and for new partitions, and makes the member rejoin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from streamlog import repeated
from streamlog.client.cluster import Cluster
from streamlog.client.consumer.consumer_commits import OffsetCommits
from streamlog.client.consumer.subscription_state import Subscription, SubscriptionState
from streamlog.client.group.group_session import GroupSession
from streamlog.client.metrics.client_metrics import timed
from streamlog.client.metrics.consumer_metrics import GroupMetrics
from streamlog.clock import Clock
from streamlog.errors import StreamlogError
from streamlog.record import TopicPartition

OnRebalance: TypeAlias = Callable[[frozenset[TopicPartition]], Awaitable[None]]

log = repeated.logger(__name__)


class Rebalance:
    """Carries out the assignments and revocations of a member, within the caller's `poll`."""

    def __init__(
        self,
        group: GroupSession,
        positions: SubscriptionState,
        commits: OffsetCommits,
        metrics: GroupMetrics,
        clock: Clock,
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._group = group
        self._positions = positions
        self._commits = commits
        self._on_assigned: OnRebalance | None = None
        self._on_revoked: OnRebalance | None = None
        self._on_lost: OnRebalance | None = None

    def listen(
        self,
        *,
        on_assigned: OnRebalance | None,
        on_revoked: OnRebalance | None,
        on_lost: OnRebalance | None,
    ) -> None:
        """Set the callbacks; without `on_lost`, `on_revoked` is awaited instead."""
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self._on_lost = on_revoked if on_lost is None else on_lost

    async def settle(self) -> bool:
        """Carry out pending revocations and a new assignment; return whether there was one."""
        member = self._group.member
        if member is None:
            return False
        # A loop: while `on_revoked` runs, the coordinator may revoke further partitions (KIP-848).
        while revoked := member.revoking:
            await self._revoke(revoked, lost=member.is_lost)
            self._group.on_revoked(revoked)
        if member.offered is None:
            return False
        added = self._group.on_assigned()
        log.info("%s", member)
        self._positions.assign(member.assignment)
        if self._on_assigned is not None:
            # Held, so that no position is looked up or fetched before the callback has had the
            # chance to seek.
            self._positions.hold(added)
            try:
                with timed(self._metrics.assigned, self._clock):
                    await self._on_assigned(added)
            finally:
                self._positions.let_go()
        return True

    async def finish(self) -> None:
        """Revoke the whole assignment, with the callback and a commit, and drain the commits."""
        member = self._group.member
        if member is not None and member.assignment:
            await self._revoke(member.assignment, lost=member.is_lost)
        else:
            await self._commits.commit_consumed()
        await self._commits.drain()

    async def _revoke(self, partitions: frozenset[TopicPartition], *, lost: bool) -> None:
        callback = self._on_lost if lost else self._on_revoked
        if callback is not None:
            with timed(self._metrics.lost if lost else self._metrics.revoked, self._clock):
                await callback(partitions)
        # The order matters: the callback may still process or seek, so its work is in the positions
        # that are committed; and the commit needs the positions that `assign` drops. Lost
        # partitions are not committed: their new owner may have committed already.
        if not lost:
            await self._commits.commit_consumed()
        self._positions.assign(self._positions.assigned() - partitions)
        self._commits.forget(partitions)


class TopicWatch:
    """Looks up the subscribed topics every `interval_ms`. `run` is a task of the consumer."""

    def __init__(self, cluster: Cluster, group: GroupSession, *, interval_ms: int) -> None:
        self.subscription = Subscription()
        """The subscription whose topics are watched."""
        self._cluster = cluster
        self._group = group
        self._interval_ms = interval_ms
        self._look = asyncio.Event()

    async def topics(self, subscription: Subscription) -> tuple[str, ...]:
        """Return the topics of a subscription, as the cluster has them now.

        Raises:
            UnknownTopicOrPartition: a name does not exist.
        """
        if subscription.pattern is None:
            await self._cluster.retrying(lambda: self._cluster.refresh(subscription.names))
            return subscription.names
        there = await self._cluster.retrying(self._cluster.survey)
        return subscription.means(name for name, topic in there.items() if not topic.is_internal)

    def look(self) -> None:
        """Wake the task: a topic was deleted."""
        self._look.set()

    async def run(self) -> None:
        """Look up the topics until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._interval_ms / 1000):
                    await self._look.wait()
            except TimeoutError:
                pass
            self._look.clear()
            try:
                await self._see()
            except StreamlogError as error:
                log.warning(
                    "the look-up of subscribed topics failed and will be retried: %s", error
                )

    async def _see(self) -> None:
        member = self._group.member
        if member is None:
            return
        subscription = self.subscription
        if subscription.pattern is not None:
            topics = await self.topics(subscription)
            # The caller may have subscribed to other topics during the look-up.
            if subscription is self.subscription:
                self._group.subscribe(topics)
        read = member.read_together
        if read:
            found = await self._cluster.survey(sorted(read))
            self._group.on_counts({name: len(topic.leaders) for name, topic in found.items()})
