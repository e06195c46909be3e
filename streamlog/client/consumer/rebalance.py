"""What changes a consumer's assignment: a rebalance of its group, and topics that come and go.

`Rebalance` calls the listener and commits before partitions are revoked. `TopicWatch` looks for new
topics that match a pattern and for new partitions, and makes the member join again.
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
from streamlog.errors import StreamlogError
from streamlog.record import TopicPartition

OnRebalance: TypeAlias = Callable[[frozenset[TopicPartition]], Awaitable[None]]

log = repeated.logger(__name__)


class Rebalance:
    """What a consumer is given and has to give up."""

    def __init__(
        self, group: GroupSession, positions: SubscriptionState, commits: OffsetCommits
    ) -> None:
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
        """Await these from now on; without `on_lost`, `on_revoked` takes its place."""
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self._on_lost = on_revoked if on_lost is None else on_lost

    async def settle(self) -> bool:
        """Carry out what is due; returns whether there is a new part."""
        member = self._group.member
        if member is None:
            return False
        # The coordinator may ask for more while the owner finishes.
        while revoked := member.revoking:
            await self._revoke(revoked, lost=member.is_lost)
            self._group.on_revoked(revoked)
        if member.offered is None:
            return False
        added = self._group.on_assigned()
        log.info("%s", member)
        self._positions.assign(member.assignment)
        if self._on_assigned is not None:
            # The owner may know better where to begin.
            self._positions.hold(added)
            try:
                await self._on_assigned(added)
            finally:
                self._positions.let_go()
        return True

    async def finish(self) -> None:
        """Hand back in good order what is assigned."""
        member = self._group.member
        if member is not None and member.assignment:
            await self._revoke(member.assignment, lost=member.is_lost)
        else:
            await self._commits.commit_consumed()
        await self._commits.drain()

    async def _revoke(self, partitions: frozenset[TopicPartition], *, lost: bool) -> None:
        told = self._on_lost if lost else self._on_revoked
        if told is not None:
            await told(partitions)
        if not lost:
            await self._commits.commit_consumed()
        self._positions.assign(self._positions.assigned() - partitions)
        self._commits.forget(partitions)


class TopicWatch:
    """Looks at the topics of a group from time to time. `run` is a task of the consumer."""

    def __init__(self, cluster: Cluster, group: GroupSession, *, interval_ms: int) -> None:
        self.subscription = Subscription()
        """The one to look after."""
        self._cluster = cluster
        self._group = group
        self._interval_ms = interval_ms
        self._look = asyncio.Event()

    async def topics(self, subscription: Subscription) -> tuple[str, ...]:
        """What a subscription means now.

        Raises:
            UnknownTopicOrPartition: one of the names does not exist.
        """
        if subscription.pattern is None:
            await self._cluster.retrying(lambda: self._cluster.refresh(subscription.names))
            return subscription.names
        there = await self._cluster.retrying(self._cluster.survey)
        return subscription.means(name for name, topic in there.items() if not topic.is_internal)

    def look(self) -> None:
        """Look now: something was not as it was."""
        self._look.set()

    async def run(self) -> None:
        """Look for ever."""
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
                log.warning("topics were not looked up, will be later: %s", error)

    async def _see(self) -> None:
        member = self._group.member
        if member is None:
            return
        subscription = self.subscription
        if subscription.pattern is not None:
            topics = await self.topics(subscription)
            if subscription is self.subscription:
                self._group.subscribe(topics)
        read = member.read_together
        if read:
            found = await self._cluster.survey(sorted(read))
            self._group.on_counts({name: len(topic.leaders) for name, topic in found.items()})
