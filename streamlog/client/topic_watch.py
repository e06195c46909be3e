"""TopicWatch: sees topics come, go and grow under a group that reads them.

Every member of a pattern looks for topics that match it by now; the leader, who has assigned, looks
whether the topics of all members have as many partitions as when it did. Either leads to a
rebalance. What can't be looked up now is looked up the next time: nothing depends on when.
"""

from __future__ import annotations

import asyncio

from streamlog import repeated
from streamlog.client.cluster import Cluster
from streamlog.client.group import GroupSession
from streamlog.client.subscription import Subscription
from streamlog.errors import StreamlogError

log = repeated.logger(__name__)


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
