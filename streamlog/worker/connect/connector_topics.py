"""ConnectorTopics: the topics that each connector has used since they were last reset (KIP-558).

They are records of the status topic, as in Kafka Connect: a source's task notes a topic that it
writes, a sink's the topics that it carries. `topic.tracking.enable=false` of a worker turns it off,
`topic.tracking.allow.reset=false` keeps what is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from functools import partial
from typing import Final

from streamlog import repeated
from streamlog.client.producer import Producer
from streamlog.clock import Clock
from streamlog.connect.herding.herder import Herder
from streamlog.connect.herding.herder_requests import ConnectorSlot, ConnectRefusal
from streamlog.connect.herding.statuses import UsedTopic, topic_record
from streamlog.worker.connect.compacted_topic import CompactedTopic
from streamlog.worker.connect.status_writer import Delivery, send_status_record

logger = repeated.logger(__name__)

FORBIDDEN: Final = 403
SERVER_ERROR: Final = 500
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
            await self._write(use)

    async def reset(self, connector: str) -> None:
        """Forget the topics of a connector.

        Raises:
            ConnectRefusal: 403, the worker does not note topics, or keeps them; 500, a record was
                not written.
        """
        topics = self.of(connector)
        if not self._may_reset:
            raise ConnectRefusal(FORBIDDEN, "Topic tracking reset is disabled.")
        await self._forget(connector, topics)

    async def deleted(self, connector: str) -> None:
        """Forget the topics of a connector that was deleted."""
        try:
            await self._forget(connector, self._statuses.topics_of(connector))
        except ConnectRefusal as refusal:
            # The connector is deleted nevertheless, and that is what its client waits for.
            logger.warning("connector %s is deleted, but: %s", connector, refusal)

    async def _forget(self, connector: str, topics: Collection[str]) -> None:
        known = self._statuses.topics.pop(connector, {})
        producer, follower = self._producer, self._follower
        if producer is None or follower is None:
            return
        records = [topic_record(topic, connector, None) for topic in topics]
        sent = [await send_status_record(producer, self._topic, each) for each in records]
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        # 1. A task notes a topic, and its record is on its way. 2. The topic is forgotten here.
        # 3. The record is read, and the topic is back until the deletion is read as well.
        await follower.catch_up()
        failed = {
            topic: each
            for topic, each in zip(topics, outcomes, strict=True)
            if isinstance(each, BaseException)
        }
        if not failed:
            return
        # They are in the status topic, so they are shown, and can be reset again.
        kept = {topic: known[topic] for topic in failed if topic in known}
        self._statuses.topics.setdefault(connector, {}).update(kept)
        topic, error = next(iter(failed.items()))
        raise ConnectRefusal(
            SERVER_ERROR,
            f"{len(failed)} of the {len(topics)} topics of connector {connector} are not forgotten "
            f"in {self._topic}, {topic} among them: {error}",
        )

    async def _write(self, use: UsedTopic) -> None:
        if self._producer is not None:
            record = topic_record(use.name, use.connector, use)
            sent = await send_status_record(self._producer, self._topic, record)
            sent.add_done_callback(partial(self._noted, use))

    def _noted(self, use: UsedTopic, sent: Delivery) -> None:
        error = None if sent.cancelled() else sent.exception()
        if error is None:
            return
        logger.warning(
            "that connector %s uses topic %s is not in %s; a later commit writes it again: %s",
            *(use.connector, use.name, self._topic, error),
        )
        known = self._statuses.topics.get(use.connector, {})
        if known.get(use.name) is use:
            del known[use.name]
            if not known:
                del self._statuses.topics[use.connector]
