"""Producer: writes records to a log.

This module is the caller's side: it chooses a partition, waits for room in the buffer and appends
to the accumulator. The sender does the rest in the background. By default, every record is written
exactly once and in order per partition, whatever requests and answers are lost (KIP-98), as long as
the delivery timeout has not passed. With `idempotent=False`, a retry may write a record twice; to
keep the order, the producer then has only one request per partition in flight. With a
`transactional_id`, all records are written in transactions (`transaction_session`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias, TypedDict, cast

import msgspec

from streamlog import repeated
from streamlog.client.background_task import Background
from streamlog.client.cluster import RETRY_TIMEOUT_MS, Cluster, TopicMetadata
from streamlog.client.metrics.client_metrics import ClientMetrics, timed
from streamlog.client.metrics.producer_metrics import BufferState, ProducerMetrics
from streamlog.client.producer.accumulator import (
    Accumulator,
    AppendedRecord,
    BatchLimits,
    Fields,
)
from streamlog.client.producer.deliveries import DeliveryRun
from streamlog.client.producer.open_batches import (
    Headers,
    NewFields,
    OpenBatches,
    StickyPartitions,
    expect,
)
from streamlog.client.producer.refused_records import RefusedRecord
from streamlog.client.producer.sender import BulkReceipt, Receipt, RecordMetadata, Sender
from streamlog.client.producer.transaction_machine import TransactionMachine, TransactionSettings
from streamlog.client.producer.transaction_session import Transaction, TransactionSession
from streamlog.client.telemetry.telemetry_reporter import TelemetryReporter
from streamlog.errors import (
    ConfigError,
    ConnectionLost,
    StreamlogError,
    UnknownTopicOrPartition,
    UsageError,
)
from streamlog.metrics.otlp import Attributes
from streamlog.random_source import Random
from streamlog.record import TopicPartition
from streamlog.records.compression import Compression
from streamlog.records.murmur2 import partition_of_key
from streamlog.records.packed_records import PackedRecords
from streamlog.records.partitioners import DEFAULT, Partitioner, partition_by
from streamlog.records.record_columns import FieldColumns, record_bytes
from streamlog.transport.socket_buffers import check_buffers

Acks: TypeAlias = Literal["all", 0, 1]
Join: TypeAlias = Callable[[str, int | None, NewFields], "asyncio.Future[RecordMetadata] | None"]
"""`OpenBatches.join`; a `RecordDelivery` is a future by its methods."""

IN_FLIGHT_MAX: Final = 5
"""A broker remembers the sequence numbers of this many batches per producer and partition
(KIP-98)."""
RETRY_BACKOFF_MS: Final = 50
RETRY_BACKOFF_MS_MAX: Final = 1_000
BULK_SLICE_RECORDS: Final = 10_000
"""`send_batch` reserves buffer space in slices of this many records, so that one call may hold more
than the buffer."""

_ACKS: Final = {"all": -1, 1: 1, 0: 0}
_POSITIVE: Final = ("batch_bytes", "buffer_bytes", "request_timeout_ms", "transaction_timeout_ms")

log = repeated.logger(__name__)


class ProducerOptions(TypedDict, total=False):
    """`ProducerSettings` as keywords."""

    acks: Acks
    linger_ms: int
    batch_bytes: int
    buffer_bytes: int
    compression: str
    idempotent: bool | None
    delivery_timeout_ms: int
    request_timeout_ms: int
    max_in_flight: int
    transactional_id: str | None
    transaction_timeout_ms: int
    send_buffer_bytes: int
    receive_buffer_bytes: int
    seed: int | None
    enable_metrics_push: bool


class ProducerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a producer.

    Raises:
        ConfigError: a value is out of range, or two settings contradict each other.
    """

    acks: Acks = "all"
    """The replicas that must have a record before the broker acknowledges it: "all" in-sync
    replicas, 1 for the leader alone, 0 for no acknowledgement."""
    linger_ms: int = 5
    """Milliseconds that a batch waits for further records before it is sent; 0 or more."""
    batch_bytes: int = 256 * 1024
    """Size in bytes, before compression, at which a batch is sent without lingering; positive. Keep
    it below the topic's max.message.bytes."""
    buffer_bytes: int = 64 * 1024 * 1024
    """Bytes of unacknowledged records, before compression, at which `send` waits; positive."""
    compression: str = "none"
    """The codec of batches: none, gzip, snappy, lz4 or zstd."""
    idempotent: bool | None = None
    """Number the batches, so that a retry never writes a record twice (KIP-98). True needs
    `acks="all"`; None means True with `acks="all"`, else False."""
    delivery_timeout_ms: int = 120_000
    """Milliseconds after which an unacknowledged record fails with `RequestTimedOut`, retries
    included; at least `linger_ms + request_timeout_ms` (KIP-91)."""
    request_timeout_ms: int = 30_000
    """Milliseconds that the producer waits for the answer to one request; positive."""
    max_in_flight: int = IN_FLIGHT_MAX
    """Number of requests that may be in flight to one broker; 1 to 5."""
    transactional_id: str | None = None
    """The name under which the producer writes transactions. Opening a producer fences any older
    one with this name (KIP-98). None: no transactions."""
    transaction_timeout_ms: int = 60_000
    """Milliseconds after which the coordinator aborts an open transaction and fences the producer;
    positive, at most the broker's transaction.max.timeout.ms."""
    send_buffer_bytes: int = -1
    """Bytes of the send buffer of each connection (SO_SNDBUF); -1: the system tunes it."""
    receive_buffer_bytes: int = -1
    """Bytes of the receive buffer of each connection (SO_RCVBUF); -1: the system tunes it."""
    seed: int | None = None
    """Seed that draws the first partition of records without a key; None: a random one."""
    enable_metrics_push: bool = True
    """Push the metrics that the brokers ask for (KIP-714)."""

    def __post_init__(self) -> None:
        if self.acks not in _ACKS:
            raise ConfigError(f"acks is {self.acks!r}: it can be 'all', 1 or 0")
        # An acknowledgement of the leader alone can be lost with it: the next leader then lacks
        # a sequence number that the producer counts as written.
        if self.idempotent and self.acks != "all":
            raise ConfigError(f"idempotent needs acks='all', not {self.acks!r}")
        if self.transactional_id is not None and not self.transactional_id:
            raise ConfigError("transactional_id is empty: name the producer, or leave it out")
        if self.transactional_id and not self.is_idempotent:
            raise ConfigError("transactions need acks='all' and an idempotent producer")
        if not 1 <= self.max_in_flight <= IN_FLIGHT_MAX:
            raise ConfigError(
                f"max_in_flight is {self.max_in_flight}: it has to be from 1 to {IN_FLIGHT_MAX}"
            )
        if self.linger_ms < 0:
            raise ConfigError(f"linger_ms is {self.linger_ms}: it can't be negative")
        check_buffers(self)
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it has to be positive")
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise ConfigError(
                f"delivery_timeout_ms is {self.delivery_timeout_ms}: it has to be at least "
                f"linger_ms + request_timeout_ms ({self.linger_ms} + {self.request_timeout_ms})"
            )

    @property
    def is_idempotent(self) -> bool:
        """Whether batches carry sequence numbers."""
        return self.acks == "all" if self.idempotent is None else self.idempotent


class Producer:
    """Writes records to topics. Use it in an `async with` block; leaving the block flushes.

    Entering the block raises `ProducerFenced` or another `LogError` if the transactional id can't
    be opened. If an error leaves the block, records that are not yet acknowledged are given up.

    Example:
        async with log.producer() as producer:
            delivery = await producer.send("orders", b"...", key=b"42")
            print((await delivery).offset)
    """

    def __init__(self, cluster: Cluster, settings: ProducerSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._accumulator: Accumulator[Receipt] = Accumulator(_limits(settings))
        self._metrics = ProducerMetrics(cluster.network)
        self._telemetry = TelemetryReporter(cluster, self.metrics, lambda: _resource(settings))
        self._background = Background(self._on_death)
        transactions = _transactions(settings)
        self._session: TransactionSession | None = None
        self._sender = Sender(
            cluster,
            self._accumulator,
            self._background,
            acks=_ACKS[settings.acks],
            in_flight_max=settings.max_in_flight,
            request_timeout_ms=settings.request_timeout_ms,
            metrics=self._metrics,
            transactions=transactions,
            tell=self._on_transaction,
        )
        if transactions is not None:
            self._session = TransactionSession(
                cluster,
                transactions,
                self._accumulator,
                tell=self._sender.look,
                times=self._metrics.txn_times,
            )
        self._sticky = StickyPartitions(Random(settings.seed))
        self._open_batches = OpenBatches(
            self._accumulator.used,
            self._sticky,
            cluster.topics,
            batch_bytes=settings.batch_bytes,
            buffer_bytes=settings.buffer_bytes,
            new_run=self._new_run,
            wall_ms=cluster.clock.wall_ms,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._join = cast("Join", self._open_batches.join)
        self._partitioners: dict[str, Partitioner] = {}
        self._room = asyncio.Lock()
        self._owes_turn = False
        """Whether a batch has filled, and the sender had no turn since."""
        self._dead: Exception | None = None
        self._is_open = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await self._background.open()
        self._background.start(self._sender.run())
        self._is_open = self._open_batches.is_open = True
        if self._settings.enable_metrics_push:
            self._background.start(self._telemetry.run())
        if self._session is not None:
            self._background.start(self._session.run())
            try:
                await self._session.opened()
            except BaseException:
                await self._stop()
                raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is None:
            await self.close()
        else:
            await self._stop()

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        timestamp_ms: int | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Hand over one record; wait only for room in the buffer.

        Args:
            topic: the topic to write to.
            value: the content; None deletes the key in a compacted topic (a tombstone).
            key: records with the same key go to the same partition, in order.
            timestamp_ms: milliseconds since 1970; by default the present time.
            headers: pairs of name and value, in order.
            partition: the partition, from 0. By default, the key decides (murmur2, as in Kafka's
                clients, or `partition_by`). Records without a key fill one batch in a partition,
                then the next partition's (KIP-480).

        Returns:
            A future of the record's partition, offset and timestamp. It fails with the error for
            which the record was not written.

        Raises:
            UnknownTopicOrPartition: the topic or the partition does not exist.
            UsageError: the producer is not open, or it is transactional and no transaction is.
        """
        # Nearly every record joins an open batch; what has to be decided takes the long way.
        record = (timestamp_ms, key, value, headers)
        if self._session is None or self._session.is_open:
            delivery = self._join(topic, partition, record)
            if delivery is not None:
                return delivery
        return await self._append(topic, partition, record)

    async def _append(
        self, topic: str, partition: int | None, record: NewFields
    ) -> asyncio.Future[RecordMetadata]:
        """Hand over a record that has to wait, or begins or fills a batch."""
        self._check_open()
        clock, accumulator = self._cluster.clock, self._accumulator
        timestamp_ms, key, value, headers = record
        timestamp_ms = clock.wall_ms() if timestamp_ms is None else timestamp_ms
        metadata = await self._metadata(topic, reaching=partition or 0)
        count = len(metadata.leaders)
        size_bytes = record_bytes(key, value, headers)
        if not self._may_pass(size_bytes):
            await self._make_room(size_bytes)
        # Meanwhile the producer may have been closed, or the transaction have failed.
        self._check_open()
        if self._session is not None:
            self._session.check_open()
        chosen = self._chosen(topic, partition, key, count)
        target = TopicPartition(topic, chosen)
        appended = accumulator.append(
            target,
            (timestamp_ms, key, value, headers),
            None,
            size_bytes=size_bytes,
            now_ms=clock.now_ms(),
        )
        waiting = accumulator.waiting(target)
        delivery = expect(waiting[-1], self._new_run)
        if appended is not AppendedRecord.JOINED:
            self._sender.look()
            if key is None and partition is None:
                self._stick(target, count, appended)
        self._owes_turn = self._owes_turn or appended is AppendedRecord.FILLED
        self._open_batches.admit(topic, metadata, count, chosen, waiting)
        return cast("asyncio.Future[RecordMetadata]", delivery)

    def _new_run(self, times: list[int], start: int) -> DeliveryRun:
        return DeliveryRun(self._loop or asyncio.get_running_loop(), times, start)

    def _chosen(self, topic: str, partition: int | None, key: bytes | None, count: int) -> int:
        """Return the partition of a record."""
        if partition is not None:
            self._check_partition(topic, partition, count)
            return partition
        if key is None:
            return self._sticky.choose(topic, count)
        own = self._partitioners.get(topic)
        if own is None:
            return partition_of_key(key, count)
        chosen = partition_by(own, key, count)
        self._check_partition(topic, chosen, count)
        return chosen

    def _stick(self, target: TopicPartition, count: int, appended: AppendedRecord) -> None:
        """Choose the partition of the next records without a key, after a batch began or filled."""
        if appended is AppendedRecord.FILLED:
            self._sticky.turn(target.topic, target.partition, count)
        else:
            self._sticky.begin(target.topic, self._accumulator.waiting(target)[-1])

    def partition_by(self, partitioners: Mapping[str, Partitioner]) -> None:
        """Choose the partitions of keys with other functions than the default, per topic.

        Args:
            partitioners: topic to partitioner, for topics whose other producers don't use murmur2.
                Topics that are not named keep the partitioner that they have.
        """
        chosen = {**self._partitioners, **partitioners}
        self._partitioners = {topic: each for topic, each in chosen.items() if each != DEFAULT}
        self._open_batches.own_partitioners = frozenset(self._partitioners)

    async def send_batch(
        self,
        topic: str,
        partition: int,
        records: Sequence[Fields] | FieldColumns | PackedRecords,
        *,
        atomic: bool = False,
        refusals: list[RefusedRecord] | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Hand over many records of one partition, in order; wait only for room in the buffer.

        Args:
            topic: the topic to write to.
            partition: the partition to write to, from 0.
            records: a sequence of (timestamp_ms, key, value, headers); the same as columns, which
                needs the least CPU; or packed records, which become a batch of their own that takes
                no other records.
            atomic: write all records in one batch, so that after a crash either all of them are in
                the log or none. By default, they fill as many batches as they need.
            refusals: where to append the records that the broker refuses for their content. These
                do not fail the future.

        Returns:
            A future of the place of the last record. It fails if any of the records is not
            written; with `atomic`, it fails with `MessageTooLarge` if they do not fit into one
            batch of the topic.

        Raises:
            UsageError: there are no records, the producer is not open, or no transaction is.
            UnknownTopicOrPartition: the topic or the partition does not exist.
        """
        if not isinstance(records, FieldColumns | PackedRecords):
            records = FieldColumns.of(records)
        if not len(records):
            raise UsageError("send_batch needs at least one record")
        self._check_open()
        metadata = await self._metadata(topic, reaching=partition)
        self._check_partition(topic, partition, len(metadata.leaders))
        target = TopicPartition(topic, partition)
        receipt = BulkReceipt(asyncio.get_running_loop().create_future(), refusals)
        # One more than there are batches until the last slice is handed over: else a first slice
        # that is acknowledged while the second waits for room would complete the future.
        receipt.outstanding = 1
        for piece in (records,) if atomic else _slices(records):
            await self._make_room(piece.size_bytes())
            self._check_open()
            if self._session is not None:
                self._session.check_open()
            receipt.outstanding += self._accumulator.append_batch(
                target, piece, receipt, atomic=atomic, now_ms=self._cluster.clock.now_ms()
            )
            self._sender.look()
        receipt.handed_over()
        return receipt.future

    async def flush(self) -> None:
        """Send without lingering, and wait until each record handed over so far has an outcome.

        Raises:
            StreamlogError: a record was not written; the first such error since the last flush.
            TransactionAborted: the open transaction has lost a record.
        """
        mark = self._accumulator.close_open()
        self._sender.look()
        with timed(self._metrics.flushes, self._cluster.clock):
            while not self._sender.has_ended and not self._accumulator.is_done(mark):
                self._sender.progress.clear()
                await self._sender.progress.wait()
        if self._session is not None:
            self._session.check_whole()
        failure, self._sender.failure = self._sender.failure, None
        if failure is not None:
            raise failure

    def transaction(self) -> Transaction:
        """Return a transaction for an `async with` block: all that the block writes, or nothing.

        Consumers with `isolation_level="read_committed"` see the records once the block has ended,
        and none of them if an error leaves the block. A producer has one open transaction at a
        time (KIP-98, KIP-447, KIP-890).

        Example:
            async with log.producer(transactional_id="billing-1") as producer:
                async with producer.transaction() as transaction:
                    await producer.send("bills", b"...")
                    await transaction.send_offsets({orders: 43}, consumer.group_metadata())

        Raises:
            UsageError: the producer has no `transactional_id`, or it is not open.
        """
        if self._session is None:
            raise UsageError("transaction() needs a named producer: set transactional_id")
        self._check_open()
        return Transaction(self._session)

    def metrics(self) -> ClientMetrics:
        """Return the metrics of this producer, under the names of Kafka's producers.

        They are the groups `producer-metrics`, `producer-topic-metrics` and
        `producer-node-metrics`; docs/client-metrics.md lists them. Times are in ms unless the name
        says otherwise, sizes in bytes.
        """
        cluster = self._cluster
        state = BufferState(
            total_bytes=self._settings.buffer_bytes,
            used_bytes=self._accumulator.used_bytes,
            waiting_callers=self._open_batches.waiting_callers,
            requests_in_flight=self._sender.requests_in_flight,
            metadata_age_ms=cluster.metadata_age_ms,
        )
        now_ms = cluster.clock.now_ms()
        return ClientMetrics.of(cluster.client_id, self._metrics.read(state, now_ms))

    async def partitions(self, topic: str) -> int:
        """Return the number of partitions of a topic.

        Raises:
            UnknownTopicOrPartition: the topic does not exist.
        """
        return len((await self._metadata(topic)).leaders)

    async def close(self) -> None:
        """Flush, abort an open transaction, and disconnect.

        Errors of records that were not written are logged; the records' futures raise them.
        """
        if not self._is_open:
            return
        try:
            if self._session is None:
                await self.flush()
            else:
                await self._session.abort()  # A transaction may still be open.
            await self._telemetry.close()
        except StreamlogError as error:
            log.error("the producer closed with undelivered records: %s", error)  # noqa: TRY400 - the futures carry the error itself
        finally:
            await self._stop()

    async def _stop(self) -> None:
        if not self._is_open:
            return
        self._is_open = self._open_batches.is_open = False
        try:
            await self._background.close()
        finally:
            closed = ConnectionLost("the producer was closed before this record was acknowledged")
            self._fail_all(closed)
            await self._cluster.close()

    async def _metadata(self, topic: str, *, reaching: int = 0) -> TopicMetadata:
        """Return what is known of a topic; look it up if partition `reaching` is not known."""
        known = self._cluster.known(topic)
        if known is None or len(known.leaders) <= reaching:
            self._cluster.forget([topic])  # The topic may have grown since the last look-up.
            with timed(self._metrics.metadata_waits, self._cluster.clock):
                known = await self._cluster.retrying(lambda: self._cluster.topic(topic))
        return known

    def _check_partition(self, topic: str, partition: int, count: int) -> None:
        if not 0 <= partition < count:
            raise UnknownTopicOrPartition(
                f"topic {topic!r} has no partition {partition}; its number of partitions is"
                f" {count}",
                retriable=False,
            )

    def _check_open(self) -> None:
        if self._dead is not None:
            raise self._dead
        if not self._is_open:
            raise UsageError("the producer is not open: use it inside its `async with` block")

    def _may_pass(self, size_bytes: int) -> bool:
        """Whether a caller need not wait, neither for room nor for others."""
        waits = self._owes_turn or self._open_batches.waiting_callers
        return not waits and self._has_room(size_bytes)

    async def _make_room(self, size_bytes: int) -> None:
        """Wait until `size_bytes` fit into the buffer, or the buffer is empty; first come first."""
        if self._may_pass(size_bytes):
            return
        # The lock is a queue. Without it a large record could wait for ever:
        # 1. 60 of 64 MB are in use; a record of 8 MB waits.
        # 2. A batch of 1 MB is acknowledged, and a small `send` takes that room at once.
        # 3. This repeats: there are never 8 MB free.
        # So a small record waits behind the large one, although it would fit.
        with self._waiting(size_bytes):
            async with self._room:
                await self._give_turn()
                self._check_open()
                while not self._has_room(size_bytes):
                    self._check_open()
                    self._accumulator.close_open()
                    self._sender.look()
                    self._sender.progress.clear()
                    await self._sender.progress.wait()

    async def _give_turn(self) -> None:
        """Let the sender run if a batch has filled.

        A caller that only sends never waits while there is room: without this, the first batch
        would be sent when the buffer is full, and the brokers would have nothing to do until then.
        """
        if self._owes_turn:
            self._owes_turn = False
            await asyncio.sleep(0)

    @contextmanager
    def _waiting(self, size_bytes: int) -> Iterator[None]:
        """Count a caller that waits, and measure how long if it is for the buffer."""
        is_first = not self._open_batches.waiting_callers
        self._open_batches.waiting_callers += 1
        try:
            if is_first and self._has_room(size_bytes):
                yield
            else:
                with timed(self._metrics.buffer_waits, self._cluster.clock):
                    yield
        finally:
            self._open_batches.waiting_callers -= 1

    def _has_room(self, size_bytes: int) -> bool:
        # An empty buffer takes anything: a record larger than the buffer would else wait for ever.
        used = self._accumulator.used_bytes
        return used == 0 or used + size_bytes <= self._settings.buffer_bytes

    def _on_death(self, error: Exception) -> None:
        """Fail all records: a background task has ended with `error`."""
        self._dead = self._dead or error
        self._open_batches.is_open = False
        reason = error if isinstance(error, StreamlogError) else ConnectionLost(repr(error))
        self._fail_all(reason)

    def _fail_all(self, reason: StreamlogError) -> None:
        if self._session is not None:
            self._session.end(reason)
        self._sender.fail_all(reason)

    def _on_transaction(self) -> None:
        """Wake the session: the sender has a request for the transaction's coordinator."""
        if self._session is not None:
            self._session.look()


def _slices(records: FieldColumns | PackedRecords) -> Iterable[FieldColumns | PackedRecords]:
    """Divide columns so that each slice fits into the buffer; packed records stay whole."""
    if isinstance(records, PackedRecords) or len(records) <= BULK_SLICE_RECORDS:
        return (records,)
    starts = range(0, len(records), BULK_SLICE_RECORDS)
    return (records.part(start, start + BULK_SLICE_RECORDS) for start in starts)


def _limits(settings: ProducerSettings) -> BatchLimits:
    return BatchLimits(
        linger_ms=settings.linger_ms,
        batch_bytes=settings.batch_bytes,
        delivery_timeout_ms=settings.delivery_timeout_ms,
        retry_backoff_ms=RETRY_BACKOFF_MS,
        retry_backoff_ms_max=RETRY_BACKOFF_MS_MAX,
        in_flight_max=settings.max_in_flight,
        codec=Compression.parse(settings.compression),
        idempotent=settings.is_idempotent,
        transactional=settings.transactional_id is not None,
    )


def _resource(settings: ProducerSettings) -> Attributes:
    """Return what describes a producer in telemetry (KIP-714)."""
    name = settings.transactional_id
    return () if name is None else (("transactional_id", name),)


def _transactions(settings: ProducerSettings) -> TransactionMachine | None:
    if settings.transactional_id is None:
        return None
    return TransactionMachine(
        TransactionSettings(
            transactional_id=settings.transactional_id,
            timeout_ms=settings.transaction_timeout_ms,
            patience_ms=RETRY_TIMEOUT_MS,
        )
    )
