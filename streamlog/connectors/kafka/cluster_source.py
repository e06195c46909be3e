"""KafkaClusterSource: records of another cluster's topics, each partition a part."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import ClassVar, Final, Literal, TypeAlias

from streamlog.client.consumer import Consumer
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.connect import (
    ConnectError,
    Json,
    Read,
    Source,
    SourceContext,
    SourceOffset,
    SourcePartition,
)
from streamlog.connectors.kafka.cluster_login import (
    ClusterLogin,
    SaslLogin,
    SecurityProtocol,
    SslFiles,
    errors_of_cluster,
)
from streamlog.durations import when_ms
from streamlog.errors import ConfigError, OffsetOutOfRange, SourceLost
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.record_columns import RecordColumns
from streamlog.repeated import logger
from streamlog.serdes.erased_types import UserKey, UserValue

OnLost: TypeAlias = Literal["fail", "earliest", "latest"]
IsolationLevel: TypeAlias = Literal["read_committed", "read_uncommitted"]

READ_BYTES: Final = 4 * 1024 * 1024
"""About what one step holds."""
FETCH_BYTES: Final = 1024 * 1024
"""What is fetched of a partition at once, as each part has a consumer of its own."""
POLL_RECORDS: Final = 10_000
POLL_MS: Final = 1_000

log = logger(__name__)


class KafkaClusterSource(Source[UserKey, UserValue], frozen=True, kw_only=True):
    """Reads topics of another Kafka cluster: keys, values, headers and times as they are.

    The connector's own name of a record's topic is that of its topic over there.

    Attributes:
        bootstrap_servers: brokers of the cluster, as "kafka-1:9092,kafka-2:9092".
        topics: topics by their names.
        topics_pattern: a regular expression that a topic's whole name has to match; topics that
            come to match are read as well.
        start: where a partition begins that was never read: "earliest", "latest", or a time, as
            "2026-01-31T12:00:00Z": with the first record that is not older.
        on_lost: what follows if records are gone that were not read, or the topic was created
            again: "fail", or a warning, and reading continues at the "earliest" or "latest" one.
        isolation_level: "read_committed" leaves out aborted transactions; "read_uncommitted".
        security_protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
        sasl: the login, for SASL.
        ssl: files of PEM, for TLS.
    """

    guarantee: ClassVar[Literal["exactly_once"]] = "exactly_once"

    bootstrap_servers: str
    topics: tuple[str, ...] = ()
    topics_pattern: str | None = None
    start: str = "earliest"
    on_lost: OnLost = "fail"
    isolation_level: IsolationLevel = "read_committed"
    security_protocol: SecurityProtocol = "PLAINTEXT"
    sasl: SaslLogin | None = None
    ssl: SslFiles | None = None

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
        if bool(self.topics) == (self.topics_pattern is not None):
            raise ConfigError("set either topics or topics_pattern")
        if self.topics_pattern is not None:
            try:
                re.compile(self.topics_pattern)
            except re.error as error:
                raise ConfigError(f"topics_pattern={self.topics_pattern!r}: {error}") from error
        if self.start not in {"earliest", "latest"}:
            _time_ms(self.start)

    def topic_names(self) -> Sequence[str]:
        """Return the topics over there; none if a pattern finds them."""
        return self.topics

    async def partitions(self, context: SourceContext) -> Sequence[SourcePartition]:
        """Return the partitions of the topics that exist now.

        Raises:
            Retriable: the cluster can't be reached.
        """
        async with errors_of_cluster(self.bootstrap_servers), self._log(context) as cluster:
            admin = cluster.admin()
            # An internal topic, such as __consumer_offsets, is read only if it is named.
            topics = await (admin.find_topics(self.topics) if self.topics else admin.list_topics())
        found = {each.name: each for each in topics}
        if self.topics_pattern is not None:
            pattern = re.compile(self.topics_pattern)
            found = {name: each for name, each in found.items() if pattern.fullmatch(name)}
        for name in self.topics:
            if name not in found:
                log.warning(
                    "source %r: %s has no topic %r; it is read once it exists",
                    context.name, self.bootstrap_servers, name,
                )  # fmt: skip
        return [
            {"topic": name, "partition": number}
            for name in sorted(found)
            for number in range(found[name].partitions)
        ]

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[UserKey, UserValue]]:
        """Yield the records of a partition.

        Raises:
            Retriable: the cluster can't answer now.
            ConnectError: records are gone that were not read, and `on_lost` is "fail".
        """
        at = TopicPartition(str(partition["topic"]), int(str(partition["partition"])))
        async with errors_of_cluster(self.bootstrap_servers), self._log(context) as cluster:
            consumer = cluster.consumer(
                auto_offset_reset="none",
                isolation_level=self.isolation_level,
                fetch_max_bytes=FETCH_BYTES,
                max_partition_fetch_bytes=FETCH_BYTES,
                max_poll_records=POLL_RECORDS,
            )
            async with consumer, aclosing(self._reads(at, offset, consumer, context)) as reads:
                async for read in reads:
                    yield read

    def _log(self, context: SourceContext) -> Log:
        return self.login.opened(f"streamlog-{context.name}-{context.task}")

    async def _reads(
        self,
        at: TopicPartition,
        offset: SourceOffset | None,
        consumer: Consumer,
        context: SourceContext,
    ) -> AsyncGenerator[Read[UserKey, UserValue], None]:
        if offset is None:
            begin = await self._begin(at, consumer, self.start)
            # Before anything else counts: "latest" is another offset after a crash, and an offset
            # without the topic's id could not tell a topic that was created again.
            yield Read([], _offset(begin))
        else:
            begin = _position(offset)
        # Both at once: a partition without a position would be looked up, and be refused.
        consumer.assign([at])
        consumer.seek(at, begin)
        reached = begin.offset
        while True:
            try:
                polled = await consumer.poll_columns(timeout_ms=POLL_MS)
            except OffsetOutOfRange as error:
                begin = await self._go_on(at, reached, error, consumer, context)
                yield Read([], _offset(begin))
                consumer.seek(at, begin)
                reached = begin.offset
                continue
            for columns in polled.values():
                for part in _slices(columns):
                    reached = part.offsets[-1] + 1
                    yield _read(part, at, consumer, context.now())
            moved = consumer.positions().get(at, reached)
            if moved > reached:
                # Markers and aborted records: if only they followed, the offset would stay behind,
                # and retention would seem to have taken records that were never there.
                reached = moved
                yield Read([], _offset(consumer.offset_and_metadata(at, reached)))

    async def _begin(self, at: TopicPartition, consumer: Consumer, start: str) -> OffsetAndMetadata:
        """Return the position of a start, with the id of the topic."""
        # The id from before the offset: if the topic is created again in between, the first fetch
        # finds that the position belongs to another topic.
        topic_id = await consumer.topic_id(at.topic)
        if start == "earliest":
            found = (await consumer.begin_offsets([at]))[at]
        elif start == "latest":
            found = (await consumer.end_offsets([at]))[at]
        else:
            timed = (await consumer.offsets_for_times({at: _time_ms(start)}))[at]
            found = (await consumer.end_offsets([at]))[at] if timed is None else timed.offset
        return OffsetAndMetadata(found, topic_id=topic_id)

    async def _go_on(
        self,
        at: TopicPartition,
        reached: int,
        error: OffsetOutOfRange,
        consumer: Consumer,
        context: SourceContext,
    ) -> OffsetAndMetadata:
        """Return where reading continues after a loss.

        Raises:
            ConnectError: `on_lost` is "fail".
        """
        where = f"{at.topic}-{at.partition} of {self.bootstrap_servers}"
        loss = await self._loss(at, reached, error, consumer)
        if self.on_lost == "fail":
            raise ConnectError(
                f"{where}: {loss}. To go on, set on_lost to 'earliest' or 'latest', or set the "
                "offset of this part"
            ) from error
        begin = await self._begin(at, consumer, self.on_lost)
        is_cut = isinstance(error, SourceLost) and not error.is_recreated and error.resume_at >= 0
        if is_cut and isinstance(error, SourceLost) and self.on_lost == "earliest":
            # What lies before is still there and was read: from there on the log is a new one.
            begin = OffsetAndMetadata(
                error.resume_at, leader_epoch=error.resume_epoch, topic_id=begin.topic_id
            )
        context.count("losses")
        log.warning("source %r: %s: %s; reading continues at offset %d",
                    context.name, where, loss, begin.offset)  # fmt: skip
        return begin

    async def _loss(
        self, at: TopicPartition, reached: int, error: OffsetOutOfRange, consumer: Consumer
    ) -> str:
        if isinstance(error, SourceLost) and error.is_recreated:
            return (
                f"the topic was deleted and created again; of the former one, what followed offset "
                f"{reached - 1} is gone"
            )
        # Retention is a SourceLost, too, if the epoch of the position is gone with the records.
        first = (await consumer.begin_offsets([at]))[at]
        if first > reached:
            return f"retention has taken offsets {reached} to {first - 1} before they were read"
        if isinstance(error, SourceLost):
            return f"the log was truncated below offset {reached}: {error}"
        end = (await consumer.end_offsets([at]))[at]
        return f"the log ends at offset {end}, and was read up to {reached}: it has lost records"


def _time_ms(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"start={text!r}: write 'earliest', 'latest', or a time, as 2026-01-31T12:00:00Z"
        ) from error
    if time.tzinfo is None:
        raise ConfigError(f"start={text!r} has no time zone: write Z or +02:00 behind it")
    return when_ms(time)


def _offset(position: OffsetAndMetadata) -> SourceOffset:
    found: dict[str, Json] = {"offset": position.offset, "topic_id": position.topic_id.hex()}
    if position.leader_epoch >= 0:
        found["leader_epoch"] = position.leader_epoch
    return found


def _position(offset: SourceOffset) -> OffsetAndMetadata:
    """Return the position of an offset, which an operator may have set without id and epoch."""
    try:
        return OffsetAndMetadata(
            int(str(offset["offset"])),
            leader_epoch=int(str(offset.get("leader_epoch", -1))),
            topic_id=bytes.fromhex(str(offset.get("topic_id", ""))) or bytes(16),
        )
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"the offset {_shown(offset)} is none of this source: it is {{'offset': 42}}"
        ) from error


def _shown(offset: Mapping[str, Json]) -> str:
    return str(dict(offset))[:200]


def _slices(columns: RecordColumns) -> Iterator[RecordColumns]:
    """Divide records so that a step has about `READ_BYTES`."""
    start, size = 0, 0
    for at, (key, value) in enumerate(zip(columns.keys, columns.values, strict=True)):
        size += len(key or b"") + len(value or b"")
        if size >= READ_BYTES:
            yield columns[start : at + 1]
            start, size = at + 1, 0
    if start < len(columns):
        yield columns[start:] if start else columns


def _read(
    columns: RecordColumns, at: TopicPartition, consumer: Consumer, now: datetime
) -> Read[UserKey, UserValue]:
    times = columns.timestamps
    # -1 is a record of an old client that had no times.
    if times and min(times) < 0:
        times = [time if time >= 0 else when_ms(now) for time in times]
    end = consumer.offset_and_metadata(at, columns.offsets[-1] + 1)
    return Read.raw(
        columns.values,
        _offset(end),
        keys=columns.keys,
        timestamps_ms=times,
        headers=columns.headers,
        topic=at.topic,
    )
