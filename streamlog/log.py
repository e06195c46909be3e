"""Log: the entry to a log by its URL.

`embedded:DIR` is a log in this process. The first process that opens the directory runs a broker
over it, which also listens, so that other processes (and any Kafka client) can use the log. A
process that finds the directory locked connects to that broker, and runs the broker itself once
that process has ended. The lock decides, not the file with the broker's address: a killed process
leaves that file behind.

`kafka://` is a broker in another process, streamlog's or Kafka's; `kafka+ssl://` is one with TLS.

Rule: code above `Log` behaves alike on all three. Not done here: the client (`client/`) and the
broker (`broker/`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self, Unpack

from streamlog import repeated
from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.server.embedded import EmbeddedTransport
from streamlog.broker.server.socket_server import Acceptor
from streamlog.broker.storage.catalog import (
    META,
    TOPICS,
    Catalog,
    read_listener,
    read_registry_url,
)
from streamlog.broker.storage.disk.files import directory_error
from streamlog.broker.storage.disk.os_files import OsFiles
from streamlog.client.admin import Admin
from streamlog.client.background_task import Background
from streamlog.client.cluster import FORMING_TIMEOUT_MS, Address, Cluster, Connect
from streamlog.client.consumer import Consumer
from streamlog.client.consumer.consumer_settings import ConsumerOptions, ConsumerSettings, Reset
from streamlog.client.offset_lookup import Isolation
from streamlog.client.producer import Producer, ProducerOptions, ProducerSettings
from streamlog.client.producer.transactional_publish import Published, publish_in_transaction
from streamlog.client.range_reader import STALL_MS, RangeReader, read_to_end
from streamlog.clock import Clock, SystemClock
from streamlog.errors import (
    ConfigError,
    ConnectionLost,
    ListenError,
    LogDirectoryLocked,
    LogDirectoryLost,
    RequestTimedOut,
    StreamlogError,
    UsageError,
)
from streamlog.record import TopicPartition
from streamlog.records.compression import Compression
from streamlog.records.record_columns import RecordColumns
from streamlog.records.staged_segment import StagedSegment
from streamlog.registry.inner_cluster import cluster_within
from streamlog.registry.running_registry import serve_if_configured
from streamlog.replace import replace
from streamlog.transport.client_connection import TcpTransport, Transport
from streamlog.transport.security import SSL, Security
from streamlog.transport.socket_buffers import SYSTEM_BUFFERS, SocketBuffers, buffers_of

EMBEDDED: Final = "embedded:"
KAFKA: Final = "kafka://"
KAFKA_TLS: Final = "kafka+ssl://"
LOCALHOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 9092
CONNECT_TIMEOUT_MS: Final = 10_000
HOLDER_TIMEOUT_MS: Final = 5_000
"""How long to wait until a process that holds the directory listens; it recovers the log first."""
HOLDER_POLL_MS: Final = 50
TAKE_OVER_POLL_S: Final = 1.0
"""How often a process that uses the broker of another one tries whether that has ended."""
JOB_TRANSACTION_MS: Final = 15 * 60 * 1_000
"""The transaction time-out of a job: the largest that brokers allow by default."""

log = repeated.logger(__name__)


class Log:
    """A log to read and write. `open` or `attach` creates it; it is an async context manager.

    Example:
        async with Log.open("embedded:./data") as log, log.producer() as producer:
            await producer.send("greetings", b"hello")
    """

    def __init__(
        self,
        *,
        directory: str | None,
        addresses: Sequence[Address],
        client_id: str,
        listen: bool,
        patience_ms: int | None,
        security: Security,
        create: bool = True,
        config: BrokerConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Not for direct use: call `open` or `attach`; only `attach` sets `patience_ms`."""
        self._directory = directory
        self._addresses = addresses
        self._client_id = client_id
        self._listen = listen
        self._patience_ms = patience_ms
        self._security = security
        self._create = create
        self._config = config
        self._clock = clock or SystemClock()
        self._stack = AsyncExitStack()
        self._broker: Broker | None = None
        self._host: Broker | None = None
        self._registry_url: str | None = None
        self._own: Cluster | None = None

    @classmethod
    def open(
        cls,
        url: str,
        *,
        client_id: str = "streamlog",
        listen: bool = True,
        create: bool = True,
        security: Security | None = None,
        config: BrokerConfig | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Return the log with a URL; `async with` opens it.

        Args:
            url: `embedded:DIR`, `kafka://host:port[,host:port]`, or `kafka+ssl://` for TLS.
            client_id: the name of this client in the brokers' logs.
            listen: whether other processes can connect to an embedded log, at a port of 127.0.0.1.
            create: whether to create an embedded log if the directory has none.
            security: the TLS and SASL settings of connections to brokers; see docs/security.md.
            config: the settings of the embedded broker, if this process runs it.
            clock: the time of clients and of an embedded broker; by default the system's.

        Raises:
            ConfigError: the URL has none of these forms, or `security` contradicts it.
        """
        directory, addresses = _parse(url)
        return cls(
            directory=directory,
            addresses=addresses,
            client_id=client_id,
            listen=listen,
            patience_ms=None,
            security=_secure(url, security),
            create=create,
            config=config,
            clock=clock,
        )

    @classmethod
    def attach(
        cls,
        url: str,
        *,
        timeout_ms: int,
        client_id: str = "streamlog",
        security: Security | None = None,
    ) -> Self:
        """Return a log that another process has open, or opens within `timeout_ms`.

        Unlike with `open`, this process never runs the broker of an embedded log.

        Args:
            url: as for `open`.
            timeout_ms: how long `async with` waits for a broker, in milliseconds.
            client_id: the name of this client in the brokers' logs.
            security: the TLS and SASL settings of connections to brokers.

        Raises:
            ConfigError: as for `open`.
        """
        directory, addresses = _parse(url)
        return cls(
            directory=directory,
            addresses=addresses,
            client_id=client_id,
            listen=False,
            patience_ms=timeout_ms,
            security=_secure(url, security),
        )

    @classmethod
    def within(cls, broker: Broker, *, client_id: str = "streamlog") -> Self:
        """Return the log that a broker of this process belongs to; closing it leaves the broker.

        It acts as the broker itself, with all rights.

        Args:
            broker: an open broker, alone or of a cluster.
            client_id: the name of this client in the brokers' logs.
        """
        found = cls(
            directory=None,
            addresses=(),
            client_id=client_id,
            listen=False,
            patience_ms=None,
            security=Security(),
            clock=broker.clock,
        )
        found._host = broker
        return found

    async def __aenter__(self) -> Self:
        """Open the log.

        Raises:
            LogDirectoryLost: the directory holds no log, and `create` is false.
            ConnectionLost: no broker answers at the address, or the brokers that answer have no
                controller after some seconds.
            LogDirectoryLocked: another process has locked the directory and does not listen.
            LogDirectoryError, CorruptData: the directory can't be used.
        """
        try:
            if self._patience_ms is not None:
                await self._attach(self._patience_ms)
            elif self._directory is not None:
                await self._take_or_join(self._directory)
            else:
                await self._join()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def cluster_id(self) -> str:
        """The id of the log's cluster; it never changes.

        Raises:
            UsageError: the log is not open.
        """
        return self._opened().cluster_id or ""

    @property
    def is_embedded(self) -> bool:
        """Whether the broker runs in this process."""
        return self._broker is not None

    @property
    def address(self) -> Address | None:
        """The address for other clients; None if the log does not listen."""
        if self._broker is not None:
            return self._broker.advertised if self._listen else None
        if self._directory is not None:
            return read_listener(self._directory)
        return next(iter(self._addresses), None)

    @property
    def registry_url(self) -> str | None:
        """The URL of the schema registry of an embedded log; None if it serves none.

        The process that runs its broker serves one at `schema.registry.listener` of its settings.
        """
        if self._broker is None and self._directory is not None:
            return read_registry_url(self._directory)
        return self._registry_url

    def check(self) -> None:
        """Check that the directory of an embedded log of this process still exists.

        Raises:
            LogDirectoryLost: the directory was deleted.
        """
        if self._broker is not None:
            self._broker.directory.check()

    def producer(self, **options: Unpack[ProducerOptions]) -> Producer:
        """Return a producer; `ProducerSettings` describes the options."""
        self._opened()
        settings = ProducerSettings(**options)
        return Producer(self._cluster(buffers_of(settings)), settings)

    def consumer(self, **options: Unpack[ConsumerOptions]) -> Consumer:
        """Return a consumer; `ConsumerSettings` describes the options."""
        self._opened()
        settings = ConsumerSettings(**options)
        return Consumer(self._cluster(buffers_of(settings)), settings)

    def range_reader(
        self, consumer: Consumer, ends: Mapping[TopicPartition, int], *, stall_ms: int = STALL_MS
    ) -> RangeReader:
        """Return a reader that tells when an open consumer has reached these ends."""
        return RangeReader(consumer, ends, self._clock, stall_ms=stall_ms)

    async def read_range(
        self,
        partition: TopicPartition,
        start: int | None = None,
        end: int | None = None,
        *,
        isolation: Isolation = "read_committed",
        stall_ms: int = STALL_MS,
    ) -> RecordColumns:
        """Return the records of a partition from `start` to before `end`.

        Args:
            partition: the partition to read; all its records in the range are kept in memory.
            start: the first offset; None: the first that the log holds.
            end: the offset after the last; None: the end of the log when the read begins, which
                with `read_committed` is the last stable offset.
            isolation: `read_committed` leaves out open and aborted transactions.
            stall_ms: how long the read may make no progress, in milliseconds.

        Raises:
            RequestTimedOut: the read has stalled; names the partition, the offset and the end.
            OffsetOutOfRange: the log does not hold `start`, or no longer holds it.
            DamagedBatch: a batch can't be read.
            UnknownTopicOrPartition: there is no such partition.
        """
        # An empty range needs no connection.
        if start is not None and end is not None and start >= end:
            return RecordColumns()
        # With `none`, a start that the log does not hold raises, instead of moving.
        reset: Reset = "earliest" if start is None else "none"
        async with self.consumer(auto_offset_reset=reset, isolation_level=isolation) as consumer:
            consumer.assign([partition])
            if start is not None:
                consumer.seek(partition, start)
            if end is None:
                end = (await consumer.end_offsets([partition]))[partition]
            return await read_to_end(consumer, partition, end, self._clock, stall_ms=stall_ms)

    def admin(self) -> Admin:
        """Return the administration of topics, groups and brokers; it needs no closing."""
        return Admin(self._opened())

    async def publish(
        self,
        job_id: str,
        segments: Sequence[StagedSegment],
        *,
        staged_by: str = "",
        read: Callable[[str], bytes | memoryview] | None = None,
        compression: Compression = Compression.NONE,
    ) -> Published:
        """Make the staged segments of a job visible, all at once and exactly once.

        A single broker of streamlog takes segments that were staged in its directory. Other logs
        (several brokers, or Kafka) get the records in one transaction; see
        `client.transactional_publish` for its limits.

        Args:
            job_id: names the job. A second publication under this name changes nothing.
            segments: the staged segments.
            staged_by: the name under which they were staged.
            read: returns the content of a segment by its name; for other logs.
            compression: the compression of the transaction's batches.

        Raises:
            LogError: the log refused; no record is visible.
            UsageError: the log takes no staged segments and `read` is None, or `job_id` is the name
                of a consumer group.
        """
        admin = self.admin()
        if await admin.can_publish():
            done = await admin.publish(job_id, staged_by=staged_by, segments=segments)
            # A last offset of -1 means that the job has no record in the partition.
            ends = {at: found.last_offset + 1 for at, found in done.ranges.items()}
            return Published(
                is_repeated=done.is_repeated,
                ends={at: end for at, end in ends.items() if end},
            )
        if read is None:
            raise UsageError(
                f"job {job_id}: only a single broker of streamlog accepts staged segments; for"
                " other logs, pass `read`, so that a producer writes the records"
            )
        async with self.producer(
            transactional_id=job_id,
            transaction_timeout_ms=JOB_TRANSACTION_MS,
            compression=compression.name.lower(),
        ) as producer:
            return await publish_in_transaction(admin, producer, job_id, segments, read)

    async def close(self) -> None:
        """Close the log; an embedded broker flushes its files and stops listening."""
        self._own = None
        await self._stack.aclose()

    def _opened(self) -> Cluster:
        if self._own is None:
            raise UsageError("the log is not open: use it inside its `async with` block")
        return self._own

    def _cluster(self, buffers: SocketBuffers = SYSTEM_BUFFERS) -> Cluster:
        if self._host is not None:
            return cluster_within(self._host, client_id=self._client_id)
        broker = self._broker
        if broker is None:
            connect: Connect = partial(
                TcpTransport.connect,
                client_id=self._client_id,
                timeout_ms=CONNECT_TIMEOUT_MS,
                security=self._security,
                buffers=buffers,
            )
            cluster_id = None if self._directory is None else _identity(self._directory)
            return Cluster(
                self._bootstrap,
                connect,
                self._clock,
                cluster_id=cluster_id,
                client_id=self._client_id,
            )

        async def enter(host: str, port: int) -> Transport:  # noqa: ARG001 - there is one broker
            # Without a socket: requests go to the broker of this process.
            return EmbeddedTransport(broker, client_id=self._client_id)

        return Cluster(lambda: [broker.advertised], enter, self._clock, client_id=self._client_id)

    def _bootstrap(self) -> Sequence[Address]:
        if self._directory is None:
            return self._addresses
        # Read each time: another process may run the broker by now, at another port.
        listener = read_listener(self._directory)
        if listener is None:
            raise ConnectionLost(
                f"no process has the log in {self._directory} open: start a worker there, or"
                f" `streamlog broker --data {self._directory}`"
            )
        return [listener]

    async def _join(self, patience_ms: int = FORMING_TIMEOUT_MS) -> None:
        """Connect to a running broker; wait up to `patience_ms` for it to have a controller."""
        cluster = self._cluster()
        try:
            # Connects, so that a wrong address is an error of `open`, and not of the first request.
            await cluster.find(timeout_ms=min(patience_ms, FORMING_TIMEOUT_MS))
        except BaseException:
            await cluster.close()
            raise
        self._stack.push_async_callback(cluster.close)
        self._own = cluster

    async def _attach(self, patience_ms: int) -> None:
        deadline_ms = self._clock.now_ms() + patience_ms
        while True:
            try:
                await self._join(patience_ms)
            except StreamlogError as error:
                # Not reachable yet, or without a controller: both may pass.
                if not error.retriable or self._clock.now_ms() >= deadline_ms:
                    raise
                await asyncio.sleep(HOLDER_POLL_MS / 1000)
            else:
                return

    async def _take_or_join(self, directory: str) -> None:
        """Run a broker over the directory, or connect to the process that does.

        1. Process A holds the lock and recovers the log; it does not listen yet.
        2. This process finds the directory locked and can't connect: it retries.
        3. A listens: this process connects. Or A was killed: the lock is free, and this process
           runs the broker.
        """
        if not self._create and _identity(directory) is None:
            if (Path(directory) / TOPICS).exists():
                raise LogDirectoryLost(
                    f"{directory} has topics and no {META}: restore that file from a copy"
                )
            raise LogDirectoryLost(
                f"there is no log in {directory}: check the path; `streamlog broker --data"
                f" {directory}`, a worker or `streamlog topics create` creates one"
            )
        deadline_ms = self._clock.now_ms() + HOLDER_TIMEOUT_MS
        while not await self._try_to_enter(directory, deadline_ms):  # noqa: ASYNC110 - the other process sets no event of ours
            await asyncio.sleep(HOLDER_POLL_MS / 1000)

    async def _try_to_enter(self, directory: str, deadline_ms: int) -> bool:
        try:
            await self._serve(directory)
        except LogDirectoryLocked as locked:
            try:
                await self._join(HOLDER_TIMEOUT_MS)
            except (ConnectionLost, RequestTimedOut):
                # The other process does not listen yet, or died and has left the lock free.
                if self._clock.now_ms() >= deadline_ms:
                    raise locked from None
                return False
            if self._listen:
                await self._stand_by(directory)
        return True

    async def _serve(self, directory: str) -> None:
        # Entered first, so closed last: the client of this process needs it until then.
        self._broker, self._registry_url = await self._start_broker(directory, self._stack)
        await self._join()

    async def _start_broker(
        self, directory: str, stack: AsyncExitStack
    ) -> tuple[Broker, str | None]:
        """Run a broker over the directory until `stack` is closed; return its registry's URL, too.

        Raises:
            LogDirectoryLocked: another process does.
            LogDirectoryError, CorruptData: the directory can't be used.
        """
        previous = read_listener(directory)  # Opening removes it.
        broker = Broker.open(directory, config=self._config, clock=self._clock)
        await stack.enter_async_context(broker)
        registry_url = await stack.enter_async_context(serve_if_configured(broker))
        if self._listen:
            server = await _start_server(broker, previous, stack)
            # After both listen: a process that finds the addresses can connect.
            broker.directory.write_listener(server.host, server.port)
        return broker, registry_url

    async def _stand_by(self, directory: str) -> None:
        """Run the broker, until this log is closed, once the process that runs it has ended."""
        background = Background(partial(log.error, "the log can't be taken over: %s"))
        await background.open()
        self._stack.push_async_callback(background.close)
        background.start(self._take_over(directory))

    async def _take_over(self, directory: str) -> None:
        # Clients of this process connect to this broker as they did to the one before: each time,
        # they read where it listens.
        while True:
            await asyncio.sleep(TAKE_OVER_POLL_S)
            try:
                async with AsyncExitStack() as stack:
                    await self._start_broker(directory, stack)
                    log.info("the process that ran %s has ended; it runs here now", directory)
                    await asyncio.Event().wait()
            except LogDirectoryLocked:
                continue
            except StreamlogError as error:
                log.error("the log in %s can't be taken over: %s", directory, error)  # noqa: TRY400 - it is tried again


async def _start_server(
    broker: Broker, previous: Address | None, stack: AsyncExitStack
) -> Acceptor:
    """Listen on the previous port if it is free, so that clients can reconnect."""
    if previous is not None:
        try:
            return await stack.enter_async_context(Acceptor(broker, LOCALHOST, previous[1]))
        except ListenError as taken:
            log.info("%s; listening on another port", taken)
    return await stack.enter_async_context(Acceptor(broker, LOCALHOST, 0))


def _identity(directory: str) -> str | None:
    """Return the cluster id of the log in a directory, or None if there is no log.

    A client compares it with the broker's: a port in a left-over address file may belong to another
    log by now.
    """
    try:
        identity = Catalog(OsFiles(), directory).identity()
    except OSError as error:
        raise directory_error(error, directory) from error
    return None if identity is None else identity.cluster_id


def _parse(url: str) -> tuple[str | None, list[Address]]:
    """Return the directory of an embedded log, or None and the addresses of brokers."""
    if url.startswith(EMBEDDED) and url != EMBEDDED:
        return url.removeprefix(EMBEDDED), []
    for scheme in (KAFKA, KAFKA_TLS):
        if url.startswith(scheme) and url != scheme:
            addresses = url.removeprefix(scheme).rstrip("/").split(",")
            return None, [_address(address.strip(), url) for address in addresses]
    raise ConfigError(
        f"{url!r} is not the URL of a log: use 'embedded:DIR' for a directory of this machine, or "
        "'kafka://host:port' for a broker ('kafka+ssl://host:port' with TLS)"
    )


def _secure(url: str, given: Security | None) -> Security:
    """Return the settings with TLS if the URL is `kafka+ssl`, so that nothing is sent in clear."""
    security = given or Security()
    if not url.startswith(KAFKA_TLS) or security.has_tls:
        return security.loaded()
    if security.has_sasl:
        raise ConfigError(
            f"{KAFKA_TLS} needs TLS, but security.protocol is {security.protocol}: use SASL_SSL"
        )
    return replace(security, protocol=SSL).loaded()


def _address(text: str, url: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = text, str(DEFAULT_PORT)
    if not host or not port.isdecimal() or not 0 < int(port) <= 0xFFFF:  # noqa: PLR2004 - the highest port there is
        raise ConfigError(f"{text!r} in {url!r} is not an address: use host:port")
    # An IPv6 address stands in brackets, as its colons would look like the one of the port.
    return host.strip("[]"), int(port)
