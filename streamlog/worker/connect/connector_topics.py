"""ConnectorTopics: the topics that each connector has used since they were last reset (KIP-558).

They are records of the status topic, as in Kafka Connect: a source's task notes a topic that it
writes, a sink's the topics that it carries. `topic.tracking.enable=false` of a worker turns it off,
`topic.tracking.allow.reset=false` keeps what is there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from streamlog.client.producer import Producer
from streamlog.clock import Clock
from streamlog.connect.herding.herder import Herder
from streamlog.connect.herding.herder_requests import ConnectorSlot, ConnectRefusal
from streamlog.connect.herding.statuses import UsedTopic, topic_record
from streamlog.worker.connect.compacted_topic import CompactedTopic

FORBIDDEN: Final = 403
ENABLE: Final = "topic.tracking.enable"
ALLOW_RESET: Final = "topic.tracking.allow.reset"


class ConnectorTopics:
    """The topics that connectors have used."""

    def __init__(
        self, herder: Herder, status_topic: str, clock: Clock, worker: Mapping[str, str]
    ) -> None:
        """`worker` has the worker's settings."""
        self._herder, self._topic, self._clock = herder, status_topic, clock
        self._statuses = herder.statuses
        self._is_enabled = worker.get(ENABLE, "true").lower() != "false"
        self._may_reset = worker.get(ALLOW_RESET, "true").lower() != "false"
        self._producer: Producer | None = None
        self._follower: CompactedTopic | None = None

    def write_with(self, producer: Producer, follower: CompactedTopic) -> None:
        """Take the producer that writes the records, and what reads the status topic."""
        self._producer, self._follower = producer, follower

    def of(self, connector: str) -> list[str]:
        """Return the topics of a connector.

        Raises:
            ConnectRefusal: 403, the worker does not note them.
        """
        if not self._is_enabled:
            raise ConnectRefusal(FORBIDDEN, "Topic tracking is disabled.")
        return self._statuses.topics_of(connector)

    async def note(self, slot: ConnectorSlot, topics: Collection[str]) -> None:
        """Note the topics that a task uses."""
        # The last commit of a task whose connector was deleted leaves nothing behind.
        if slot.connector not in self._herder.configs.connectors:
            return
        known = self._statuses.topics.get(slot.connector, {})
        for topic in sorted({*topics} - known.keys()) if self._is_enabled else ():
            use = UsedTopic(topic, slot.connector, slot.task, self._clock.wall_ms())
            # At once: until the record is read back, each commit would write it again.
            self._statuses.topics.setdefault(slot.connector, {})[topic] = use
            await self._write(topic_record(topic, slot.connector, use))

    async def reset(self, connector: str) -> None:
        """Forget the topics of a connector.

        Raises:
            ConnectRefusal: 403, the worker does not note topics, or keeps them.
        """
        topics = self.of(connector)
        if not self._may_reset:
            raise ConnectRefusal(FORBIDDEN, "Topic tracking reset is disabled.")
        await self._forget(connector, topics)

    async def deleted(self, connector: str) -> None:
        """Forget the topics of a connector that was deleted."""
        await self._forget(connector, self._statuses.topics_of(connector))

    async def _forget(self, connector: str, topics: Collection[str]) -> None:
        self._statuses.topics.pop(connector, None)
        for topic in topics:
            await self._write(topic_record(topic, connector, None))
        # 1. A task notes a topic, and its record is on its way. 2. The topic is forgotten here.
        # 3. The record is read, and the topic is back until the deletion is read as well.
        if self._producer is not None and self._follower is not None:
            await self._producer.flush()
            await self._follower.catch_up()

    async def _write(self, record: tuple[bytes, bytes | None]) -> None:
        if self._producer is not None:
            await send_status_record(self._producer, self._topic, record)


async def send_status_record(
    producer: Producer, topic: str, record: tuple[bytes, bytes | None]
) -> None:
    """Send a record of the status topic; nothing waits for it.

    One that is lost is written again with the next change of what it is about.
    """
    key, value = record
    sent = await producer.send(topic, value, key=key)
    sent.add_done_callback(lambda done: done.cancelled() or done.exception())
