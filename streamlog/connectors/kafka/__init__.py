"""KafkaCluster: topics of another Kafka cluster, Apache's or ours, into the log and out of it.

`KafkaClusterSource` reads them with their keys, values, headers and times as they are;
`KafkaClusterSink` writes topics there, in transactions of that cluster; `KafkaMirror` does so by
the conventions of MirrorMaker 2.

Rule of the room: a position belongs to one topic, by its id and leader epoch. Where it no longer
does, the task fails or warns, and never skips a record in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import ClassVar, Literal, Self

from streamlog.client.producer import Producer
from streamlog.connect import Batch, Effect, Sink, SinkContext, SinkTask, TopicPartition
from streamlog.connectors.kafka.cluster_login import (
    ClusterLogin,
    SaslLogin,
    SecurityProtocol,
    SslFiles,
    errors_of_cluster,
)
from streamlog.connectors.kafka.cluster_source import KafkaClusterSource
from streamlog.connectors.kafka.kafka_mirror import KafkaMirror
from streamlog.connectors.kafka.target_topics import (
    TIMEOUT_MS_MAX,
    Codec,
    TargetSettings,
    TargetTopics,
)
from streamlog.connectors.kafka.transactional_writes import TransactionalTask
from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError, StreamlogError
from streamlog.log import Log

__all__ = ["KafkaClusterSink", "KafkaClusterSource", "KafkaMirror", "SaslLogin", "SslFiles"]


class KafkaClusterSink(Sink[object, object], frozen=True, kw_only=True):
    """Writes topics to another Kafka cluster: keys, values, headers and times as they are.

    Exactly once: records and the offset behind them are in one transaction of that cluster. Each
    partition has a producer with a transactional id of its own, so a task that takes the partition
    over fences an earlier one.

    Attributes:
        bootstrap_servers: brokers of the cluster, as "kafka-1:9092,kafka-2:9092".
        topic: the topic over there, of `{topic}`.
        partition: "same": a record keeps its partition; "key": murmur2 of the key, as Kafka's
            clients do.
        create_partitions: the number of partitions of a topic that is missing and gets created;
            None: a missing topic is an error.
        transactional_id: begins the transactional ids, and names the offsets over there. No other
            sink that writes to the cluster may have it.
        offsets_topic: the compacted topic of the cluster with the offsets; it is created.
        transaction_timeout: after which time the cluster aborts a transaction that its task has
            left, 15 minutes at most.
        at_least_once: write without transactions, by an idempotent producer; a flush may then be
            written twice after a crash.
        compression_type: "none", "gzip", "snappy", "lz4" or "zstd".
        security_protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
        sasl: the login, for SASL.
        ssl: files of PEM, for TLS.
    """

    incidental: ClassVar[frozenset[str]] = frozenset({"flush"})
    takes_bytes: ClassVar[bool] = True

    bootstrap_servers: str
    topic: str = "{topic}"
    partition: Literal["same", "key"] = "same"
    create_partitions: int | None = None
    transactional_id: str | None = None
    offsets_topic: str = "streamlog-sink-offsets"
    transaction_timeout: Dur = "60s"
    at_least_once: bool = False
    compression_type: Codec = "none"
    security_protocol: SecurityProtocol = "PLAINTEXT"
    sasl: SaslLogin | None = None
    ssl: SslFiles | None = None

    @property
    def effect(self) -> Effect:  # type: ignore[override] # A setting decides here.
        """What the target has when records are written twice."""
        return "appending" if self.at_least_once else "transactional"

    @property
    def login(self) -> ClusterLogin:
        """The cluster, and how to log in there."""
        return ClusterLogin(
            bootstrap_servers=self.bootstrap_servers,
            security_protocol=self.security_protocol,
            sasl=self.sasl,
            ssl=self.ssl,
        )

    def check(self) -> None:
        """Refuse settings that do not go together.

        Raises:
            ConfigError: the message names the setting, and what to write instead.
        """
        self.login.check()
        self._target().check()
        if not self.at_least_once and not self.transactional_id:
            raise ConfigError(
                "transactional_id is missing: give this sink a name that no other writer to the "
                "cluster has, or set at_least_once=True"
            )
        if self.at_least_once and self.transactional_id:
            raise ConfigError("transactional_id has no use with at_least_once=True: set one")
        if not 0 < duration_ms(self.transaction_timeout) <= TIMEOUT_MS_MAX:
            raise ConfigError(
                f"transaction_timeout={self.transaction_timeout}: it has to be more than 0 and at "
                "most 15m"
            )

    def open(self, context: SinkContext) -> SinkTask[object, object]:
        """Return a task that is not connected yet."""
        log = self.login.opened(f"streamlog-{context.name}-{context.task}")
        if self.at_least_once:
            return IdempotentTask(log, self._target(), self.compression_type)
        return TransactionalTask(
            log,
            self._target(),
            transactional_id=self.transactional_id or "",
            offsets_topic=self.offsets_topic,
            timeout_ms=duration_ms(self.transaction_timeout),
            compression=self.compression_type,
        )

    def _target(self) -> TargetSettings:
        return TargetSettings(
            where=self.bootstrap_servers,
            template=self.topic,
            keeps_partition=self.partition == "same",
            create_partitions=self.create_partitions,
        )


class IdempotentTask(SinkTask[object, object]):
    """One producer for all partitions. A flush that is repeated may be there twice."""

    def __init__(self, log: Log, target: TargetSettings, compression: str) -> None:
        """Create the task of a cluster's log, which is not open yet."""
        self._log, self._where, self._compression = log, target.where, compression
        self._topics = TargetTopics(log, target)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Connect."""
        async with errors_of_cluster(self._where):
            await self._stack.enter_async_context(self._log)
            producer = self._log.producer(compression=self._compression)
            self._producer: Producer = await self._stack.enter_async_context(producer)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Disconnect."""
        await self._stack.aclose()

    async def write(self, batch: Batch[object, object]) -> None:
        """Hand the records to the producer."""
        async with errors_of_cluster(self._where):
            await self._topics.send(self._producer, batch)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Wait until all records are acknowledged."""
        del offsets
        async with errors_of_cluster(self._where):
            await self._producer.flush()

    async def abort(self) -> None:
        """Wait for what is under way, which can't be taken back."""
        # Else its failure would be that of the next flush, whose records are all written.
        try:
            await self._producer.flush()
        except StreamlogError:
            return
