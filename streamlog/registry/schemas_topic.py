"""SchemasTopic: this broker's replay of `_schemas`, from the topic's first record on.

Every broker reads the topic as a consumer does, from the leader, up to what is committed; so no
replay contains a record that is lost later. A topic that was deleted, or created anew, begins an
empty state. Rule: the state changes only here, record by record, in the event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from streamlog import repeated
from streamlog.client.cluster import Cluster
from streamlog.client.consumer import Consumer
from streamlog.client.consumer.consumer_settings import ConsumerSettings
from streamlog.client.offset_lookup import LATEST, list_offsets
from streamlog.errors import RequestTimedOut, StreamlogError
from streamlog.record import TopicPartition
from streamlog.registry.inner_cluster import cluster_within
from streamlog.registry.registry_state import RegistryState
from streamlog.registry.topic_records import TOPIC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamlog.broker.broker import Broker
    from streamlog.schemas.compatibility import CompatibilityLevel

PARTITION: Final = TopicPartition(TOPIC, 0)
CLIENT_ID: Final = "streamlog-registry"
LOOK_MS: Final = 50
"""The interval of looks whether the metadata is as new as this process."""
POLL_MS: Final = 500
BACKOFF_MS: Final = 200
"""The pause after a failed read."""
FETCH_BYTES: Final = 1024 * 1024

_log = repeated.logger(__name__)


class SchemasTopic:
    """The replay of the topic on one broker."""

    def __init__(self, broker: Broker, default_level: CompatibilityLevel) -> None:
        self.state = RegistryState(default_level)
        self.position = 0
        """The offset up to which records are in the state."""
        self._broker = broker
        self._access = broker.registry_access
        self._default_level = default_level
        self._topic_id: bytes | None = None
        self._moved = asyncio.Event()
        self._is_ready = asyncio.Event()
        self._cluster: Cluster | None = None
        self._looking = asyncio.Lock()
        self._looks = 0
        self._seen_end = 0

    @property
    def is_ready(self) -> bool:
        """Whether the replay has reached the end that the topic had when it began."""
        return self._is_ready.is_set()

    async def run(self) -> None:
        """Read the topic until cancelled."""
        cluster = self._cluster = cluster_within(self._broker, client_id=CLIENT_ID)
        try:
            while True:
                await self._follow_once(cluster)
        finally:
            self._cluster = None
            await cluster.close()

    async def _follow_once(self, cluster: Cluster) -> None:
        """Read the topic until it is another one, or can't be read at present."""
        topic_id = self._access.topic_id(TOPIC)
        if topic_id != self._topic_id:
            self._begin(topic_id)
        if topic_id is None:
            # Old metadata may lack a topic that exists: a restarted broker that answered from it
            # would deny every schema. Metadata that includes the registration of this
            # process is new enough: what was acknowledged before it is in there.
            if self._access.is_current:
                self._is_ready.set()
                await self._access.when_metadata_changes()
            else:
                # It may become current by an answer of the controller, without a change.
                await asyncio.sleep(LOOK_MS / 1000)
            return
        try:
            await self._follow(cluster, topic_id)
        except StreamlogError as error:
            # The position stays: the next attempt continues there, from another leader if need be.
            _log.warning("can't read %s: %s", TOPIC, error)
            await asyncio.sleep(BACKOFF_MS / 1000)

    async def wait_until_ready(self, timeout_ms: int) -> None:
        """Wait until the replay has caught up for the first time.

        Raises:
            RequestTimedOut: it has not in time.
        """
        if self._is_ready.is_set():
            return
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._is_ready.wait()
        except TimeoutError:
            raise RequestTimedOut(
                f"this broker has not read {TOPIC} to its end within {timeout_ms} ms"
            ) from None

    async def wait_for(self, offset: int, timeout_ms: int) -> None:
        """Wait until the state includes every record before `offset`.

        Raises:
            RequestTimedOut: it does not in time.
        """
        if self.position >= offset:
            return
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self.position < offset:
                    await self._moved.wait()
        except TimeoutError:
            raise RequestTimedOut(
                f"this broker has read {TOPIC} up to {self.position}, not to {offset}, within"
                f" {timeout_ms} ms"
            ) from None

    async def wait_for_end(self, timeout_ms: int) -> bool:
        """Wait until the state includes what is committed now; return whether it has moved.

        Raises:
            RequestTimedOut: the leader does not answer, or the replay takes too long.
            ConnectionLost: there is no leader.
        """
        before = self.position
        if self._access.topic_id(TOPIC) is None or self._cluster is None:
            return False
        looks = self._looks
        try:
            async with asyncio.timeout(timeout_ms / 1000), self._looking:
                # However many requests miss something, two looks are enough for all of them: one
                # that has begun after a request came tells that request what it has to know.
                if self._looks == looks:
                    self._looks += 1
                    found = await list_offsets(self._cluster, {PARTITION: LATEST})
                    self._seen_end = found[PARTITION].offset
        except TimeoutError:
            raise RequestTimedOut(f"the leader of {TOPIC} does not answer") from None
        await self.wait_for(self._seen_end, timeout_ms)
        return self.position != before

    def _begin(self, topic_id: bytes | None) -> None:
        if self._topic_id is not None:
            _log.warning("topic %s was deleted: the registry begins anew", TOPIC)
        self._topic_id = topic_id
        self.state = RegistryState(self._default_level)
        self.position = 0

    async def _follow(self, cluster: Cluster, topic_id: bytes) -> None:
        settings = ConsumerSettings(
            auto_offset_reset="earliest", max_partition_fetch_bytes=FETCH_BYTES
        )
        async with Consumer(cluster, settings) as consumer:
            consumer.assign([PARTITION])
            if self.position:
                consumer.seek(PARTITION, self.position)
            else:
                await consumer.seek_to_beginning(PARTITION)
            # Ready at the end of this moment: what comes later was not promised to anyone yet.
            ready_at = 0
            if not self._is_ready.is_set():
                ready_at = (await consumer.end_offsets([PARTITION]))[PARTITION]
            while self._access.topic_id(TOPIC) == topic_id:
                polled = await consumer.poll_columns(timeout_ms=POLL_MS)
                for columns in polled.values():
                    self._apply(columns.offsets, columns.keys, columns.values)
                # Not the offset after the last record: compaction leaves gaps, also at the end, and
                # a write waits until this is the end of the log.
                position = await consumer.position(PARTITION)
                if position != self.position:
                    self.position = position
                    self._wake()
                if position >= ready_at:
                    self._is_ready.set()

    def _apply(
        self,
        offsets: Sequence[int],
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
    ) -> None:
        for offset, key, value in zip(offsets, keys, values, strict=True):
            skipped = self.state.apply(key, value)
            if skipped is not None:
                _log.warning("skipped the record at %s-0, offset %d: %s", TOPIC, offset, skipped)

    def _wake(self) -> None:
        # A new event for those who begin to wait now; those who have waited see the position.
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
