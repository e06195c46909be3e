"""KafkaMirror: topics of this log, produced anew in Apache Kafka by MirrorMaker 2's conventions.

Unlike a link, this mirror can't keep offsets: the target gives each record an offset of its own. So
each flush notes, in its own transaction, which offset became which. By these notes, positions of
groups are translated, exactly for as long as the notes reach back.

Rule: a record, the note of its offset and the mirror's position are in one transaction. What is
written periodically for others is in `mirror_upkeep`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import ClassVar, Final, Literal, Self

import msgspec

from streamlog.client.producer.sender import RecordMetadata
from streamlog.connect import Batch, Effect, Sink, SinkContext, TopicPartition
from streamlog.connectors.kafka.cluster_login import (
    ClusterLogin,
    SaslLogin,
    SecurityProtocol,
    SslFiles,
    errors_of_cluster,
)
from streamlog.connectors.kafka.mirror_conventions import MirrorNames, offset_sync
from streamlog.connectors.kafka.mirror_positions import (
    StoredBlock,
    StoredPosition,
    block_key,
    decoded,
    stored_runs,
)
from streamlog.connectors.kafka.mirror_upkeep import MirrorUpkeep, RemoteTopics
from streamlog.connectors.kafka.offset_runs import (
    OffsetRun,
    OffsetRuns,
    StoredRuns,
    runs_of,
    syncs_of,
)
from streamlog.connectors.kafka.target_topics import (
    TIMEOUT_MS_MAX,
    Codec,
    TargetSettings,
    columns_of,
    heard,
)
from streamlog.connectors.kafka.transactional_writes import PartitionWriter, TransactionalTask
from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError
from streamlog.log import Log

INTERVAL_MS_MIN: Final = 100
_ALIAS: Final = re.compile(r"[a-zA-Z0-9_-]{1,100}")


class KafkaMirror(Sink[object, object], frozen=True, kw_only=True):
    """Mirrors topics to Apache Kafka by MirrorMaker 2's conventions, exactly once.

    Attributes:
        bootstrap_servers: brokers of the target, as "kafka-1:9092,kafka-2:9092".
        source_cluster_alias: the name of this cluster in the target; topics begin with it there.
        target_cluster_alias: the name of the target, for heartbeats.
        replication_policy: "default": `orders` becomes `ALIAS.orders`; "identity": it keeps its
            name.
        replication_policy_separator: stands between the alias and the topic.
        groups: regular expressions of the groups whose positions are translated.
        groups_exclude: such groups that are left out nevertheless.
        emit_checkpoints_interval: how often groups are looked at, and heartbeats are sent.
        sync_group_offsets_enabled: whether groups that are not at work in the target get the
            translated positions there.
        sync_topic_configs_enabled: whether settings of topics that are changed here follow there.
        sync_topic_configs_interval: how often they are compared.
        transactional_id: begins the transactional ids; `streamlog-mirror-ALIAS-NAME` by default.
        transaction_timeout: after which time the target aborts a transaction that its task has
            left, 15 minutes at most.
        compression_type: "none", "gzip", "snappy", "lz4" or "zstd".
        security_protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
        sasl: the login, for SASL.
        ssl: files of PEM, for TLS.
    """

    effect: ClassVar[Effect] = "transactional"
    takes_bytes: ClassVar[bool] = True

    bootstrap_servers: str
    source_cluster_alias: str = "source"
    target_cluster_alias: str = "target"
    replication_policy: Literal["default", "identity"] = "default"
    replication_policy_separator: str = "."
    groups: tuple[str, ...] = (".*",)
    groups_exclude: tuple[str, ...] = ("console-consumer-.*", "connect-.*", "__.*")
    emit_checkpoints_interval: Dur = "5s"
    sync_group_offsets_enabled: bool = False
    sync_topic_configs_enabled: bool = True
    sync_topic_configs_interval: Dur = "1m"
    transactional_id: str | None = None
    transaction_timeout: Dur = "60s"
    compression_type: Codec = "none"
    security_protocol: SecurityProtocol = "PLAINTEXT"
    sasl: SaslLogin | None = None
    ssl: SslFiles | None = None

    @property
    def login(self) -> ClusterLogin:
        """The target, and how to log in there."""
        return ClusterLogin(
            bootstrap_servers=self.bootstrap_servers,
            security_protocol=self.security_protocol,
            sasl=self.sasl,
            ssl=self.ssl,
        )

    @property
    def names(self) -> MirrorNames:
        """The names of topics in the target."""
        return MirrorNames(
            source=self.source_cluster_alias,
            target=self.target_cluster_alias,
            separator=self.replication_policy_separator,
            keeps_names=self.replication_policy == "identity",
        )

    def id_of(self, connector: str) -> str:
        """Return the prefix of a connector's transactional ids."""
        return self.transactional_id or f"streamlog-mirror-{self.source_cluster_alias}-{connector}"

    def check(self) -> None:
        """Refuse settings that do not go together.

        Raises:
            ConfigError: the message names the setting, and what to write instead.
        """
        self.login.check()
        for name in ("source_cluster_alias", "target_cluster_alias"):
            if not _ALIAS.fullmatch(alias := getattr(self, name)):
                raise ConfigError(
                    f"{name}={alias!r}: it is 1 to 100 letters, digits, underscores and hyphens, as"
                    " names of topics begin with it"
                )
        if self.source_cluster_alias == self.target_cluster_alias:
            raise ConfigError("target_cluster_alias has to differ from source_cluster_alias")
        if self.replication_policy_separator not in {".", "_", "-"}:
            raise ConfigError(
                f"replication_policy_separator={self.replication_policy_separator!r}: it is one"
                " of . _ -"
            )
        for name in ("groups", "groups_exclude"):
            _check_patterns(name, getattr(self, name))
        for name in ("emit_checkpoints_interval", "sync_topic_configs_interval"):
            if duration_ms(getattr(self, name)) < INTERVAL_MS_MIN:
                raise ConfigError(f"{name} has to be {INTERVAL_MS_MIN} ms or more")
        if not 0 < duration_ms(self.transaction_timeout) <= TIMEOUT_MS_MAX:
            raise ConfigError(
                f"transaction_timeout={self.transaction_timeout}: it has to be more than 0 and at "
                "most 15m"
            )

    def open(self, context: SinkContext) -> MirrorTask:
        """Return a task that is not connected yet."""
        return MirrorTask(
            self, self.login.opened(f"streamlog-{context.name}-{context.task}"), context
        )


def _check_patterns(name: str, patterns: Collection[str]) -> None:
    for each in patterns:
        try:
            re.compile(each)
        except re.error as error:
            raise ConfigError(f"{name}={each!r} is no regular expression: {error}") from error


@dataclass(slots=True)
class _Sent:
    """Records of one partition in the open transaction."""

    offsets: list[int]
    """Their offsets here."""
    first: asyncio.Future[RecordMetadata]
    last: asyncio.Future[RecordMetadata]


@dataclass(slots=True)
class _Partition:
    """What is known of a partition."""

    runs: OffsetRuns = field(default_factory=OffsetRuns)
    """What is committed."""
    stored: StoredRuns = field(default_factory=StoredRuns)
    """How it is stored in the target."""
    sent: list[_Sent] = field(default_factory=list)
    added: list[OffsetRun] = field(default_factory=list)
    """The runs of the transaction that is about to commit."""


class MirrorTask(TransactionalTask):
    """One task: writes records in transactions, and runs the upkeep beside them."""

    def __init__(self, sink: KafkaMirror, log: Log, context: SinkContext) -> None:
        """Create the task of a target's log, which is not open yet."""
        self._names = sink.names
        target = TargetSettings(
            where=sink.bootstrap_servers,
            template="{topic}",
            keeps_partition=True,
            create_partitions=None,
        )
        super().__init__(
            log,
            target,
            transactional_id=sink.id_of(context.name),
            offsets_topic=self._names.positions,
            timeout_ms=duration_ms(sink.transaction_timeout),
            compression=sink.compression_type,
        )
        self._context = context
        self._known: dict[TopicPartition, _Partition] = {}
        self._remote = RemoteTopics(log, context.own_log, self._names)
        self._upkeep = MirrorUpkeep(
            log,
            context,
            self._names,
            self._remote,
            groups=(sink.groups, sink.groups_exclude),
            interval_ms=duration_ms(sink.emit_checkpoints_interval),
            syncs_groups=sink.sync_group_offsets_enabled,
            configs_ms=duration_ms(sink.sync_topic_configs_interval)
            if sink.sync_topic_configs_enabled
            else None,
            runs=self.committed_runs,
        )
        self._upkeep_stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Connect, create the topics of the conventions, and begin the upkeep."""
        await super().__aenter__()
        names = self._names
        try:
            async with errors_of_cluster(self._where):
                for topic in (names.offset_syncs, names.checkpoints):
                    await self._topics.create(topic, compacted=True)
                await self._upkeep_stack.enter_async_context(self._upkeep)
        except BaseException as error:
            await super().__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the upkeep, and close the producers."""
        await self._upkeep_stack.aclose()
        await super().__aexit__(kind, error, trace)

    async def recover(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Create the topics that are missing, fence earlier owners, and read the positions."""
        async with errors_of_cluster(self._where):
            await self._remote.ensure(partitions)
        # Before the positions are read, which bring what is known of each partition.
        for at in partitions:
            self._known[at] = _Partition()
        found = await super().recover(partitions)
        async with errors_of_cluster(self._where):
            await self._read_runs(partitions)
        return found

    async def write(self, batch: Batch[object, object]) -> None:
        """Hand the records to the producer of their partition, in its transaction."""
        if not len(batch):
            return
        columns = columns_of(batch)
        at, topic = batch.partition, self._names.remote(batch.partition.topic)
        async with errors_of_cluster(self._where):
            producer = (await self._begun(at)).producer
            # By itself, as only the place of the last record of a call is known: if the two do not
            # lie as far apart as they should, others have written between them.
            first = last = await producer.send_batch(topic, at.partition, columns.part(0, 1))
            first.add_done_callback(heard)
            if len(columns) > 1:
                rest = columns.part(1, len(columns))
                last = await producer.send_batch(topic, at.partition, rest)
                last.add_done_callback(heard)
        self._partition(at).sent.append(_Sent([*batch.offsets], first, last))

    async def _commit_one(self, at: TopicPartition, offset: int) -> None:
        """Commit the transaction of a partition, with the notes of its offsets."""
        part = self._partition(at)
        writer = await self._begun(at)
        # Only now it is known which offsets the records have there.
        await writer.producer.flush()
        part.added = [
            run
            for sent in part.sent
            for run in runs_of(sent.offsets, sent.first.result().offset, sent.last.result().offset)
        ]
        syncs = syncs_of(part.added)
        await self._send_syncs(writer, at, syncs)
        stored, blocks = part.stored.with_more(part.added)
        for number, runs in blocks.items():
            topic, key = self._names.positions, block_key(self._id, at, number)
            value = msgspec.json.encode(StoredBlock(number, runs))
            sent = await writer.producer.send(topic, value, key=key, partition=0)
            sent.add_done_callback(heard)
        await super()._commit_one(at, offset)
        part.runs, part.stored = part.runs.with_more(part.added), stored
        part.sent, part.added = [], []
        self._context.count("mirror_offset_syncs", len(syncs))

    async def _send_syncs(
        self, writer: PartitionWriter, at: TopicPartition, syncs: list[tuple[int, int]]
    ) -> None:
        for upstream, downstream in syncs:
            key, value = offset_sync(at, upstream, downstream)
            topic = self._names.offset_syncs
            sent = await writer.producer.send(topic, value, key=key, partition=0)
            sent.add_done_callback(heard)

    def _position(self, at: TopicPartition, offset: int) -> bytes:
        """Return the position with the runs that are in no block yet."""
        part = self._partition(at)
        stored, _ = part.stored.with_more(part.added)
        return msgspec.json.encode(StoredPosition(offset, stored))

    def _read_position(self, at: TopicPartition, data: bytes) -> int:
        """Return the next offset, and keep how the runs before it are stored."""
        position = decoded(data, StoredPosition, self._offsets_at.topic)
        self._partition(at).stored = position.stored
        return position.next_offset

    async def _read_runs(self, partitions: Collection[TopicPartition]) -> None:
        """Read what is known of the offsets before the positions."""
        stored = {at: self._partition(at).stored for at in partitions}
        found = await stored_runs(self._log, self._offsets_at, self._id, stored)
        for at, runs in found.items():
            self._partition(at).runs = runs

    async def abort(self) -> None:
        """Abort the transactions that are open."""
        for part in self._known.values():
            part.sent, part.added = [], []
        await super().abort()

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Let go of partitions that another task gets."""
        for at in partitions:
            self._known.pop(at, None)
        await super().revoked(partitions)

    def _partition(self, at: TopicPartition) -> _Partition:
        return self._known.setdefault(at, _Partition())

    def committed_runs(self) -> Mapping[TopicPartition, OffsetRuns]:
        """Return what is known of the offsets of each partition."""
        return {at: part.runs for at, part in self._known.items()}
