"""ClusterNode: a broker's part in its cluster, of one broker or of many.

It passes requests that change the cluster to the controller, applies committed metadata to this
broker, and tells the controller that the broker is alive. The broker acts on the metadata only once
that includes its own registration (rule R1): older metadata may be about an earlier process of this
broker, or outdated because this node was cut off from the cluster.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from streamlog import repeated
from streamlog.broker.cluster.broker_session import BrokerSession
from streamlog.broker.cluster.figures import (
    BrokerStatus,
    ClusterEvents,
    count_by_controller,
    count_figures,
)
from streamlog.broker.cluster.forwarding import Decide, Forwarding, Request
from streamlog.broker.cluster.metadata_publisher import (
    MetadataPublisher,
    Observers,
    damaged_replicas,
)
from streamlog.broker.cluster.peers import NodeConnections
from streamlog.broker.quorum.controller.decision import ControllerContext
from streamlog.broker.quorum.metadata.cluster_metadata import TOPIC_RESOURCE, ClusterMetadata
from streamlog.broker.quorum.quorum_member import QuorumMember
from streamlog.broker.quorum.raft.raft_state import Timeouts
from streamlog.errors import ConnectionLost, StreamlogError
from streamlog.protocol.messages.metadata_log import (
    ConfigRecord,
    PartitionRecord,
    ProducerIdsRecord,
    TopicRecord,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from concurrent.futures import Executor

    from streamlog.broker.future_responses import Answer
    from streamlog.broker.quorum.broker_lifecycle import PartitionKey
    from streamlog.broker.quorum.metadata.cluster_metadata import MetadataChange
    from streamlog.broker.quorum.metadata.metadata_records import MetadataRecord
    from streamlog.broker.replication.partition import Partitions
    from streamlog.broker.replication.replicas import Replicas
    from streamlog.broker.storage.disk.files import Files
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.clock import Clock
    from streamlog.metrics.instruments import Histogram
    from streamlog.metrics.registry import Look
    from streamlog.protocol.messages.broker_registration import RegisteredListener
    from streamlog.protocol.schema import Message
    from streamlog.transport.client_connection import PromptTransport


def recover_records(directory: LogDirectory) -> Iterator[MetadataRecord]:
    """Yield the metadata records that a directory's contents amount to; none for a new one."""
    own = [directory.node_id]
    for _, topic in sorted(directory.topics.items()):
        yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
        for key, value in sorted(topic.configs.items()):
            yield ConfigRecord(
                resource_type=TOPIC_RESOURCE, resource_name=topic.name, name=key, value=value
            )
        for number, log in sorted(topic.partitions.items()):
            yield PartitionRecord(
                partition_id=number,
                topic_id=topic.topic_id,
                replicas=own,
                isr=own,
                leader=directory.node_id,
                leader_epoch=log.epochs.current,
                partition_epoch=0,
            )
    next_producer_id = directory.next_producer_id()
    if next_producer_id:
        yield ProducerIdsRecord(broker_id=directory.node_id, next_producer_id=next_producer_id)


CONNECT_MS = 2_000
"""The time-out of a connection to another broker."""
FORSAKEN_MS = 4_000
"""How long a node that shuts down waits while no controller is known.

The quorum may be shutting down as well.
"""
LOOK_MS = 50
"""The interval of checks whether the controller has released this broker."""

_log = repeated.logger(__name__)


class ClusterNode:
    """One broker as a node of its cluster."""

    @classmethod
    def open(
        cls,
        directory: LogDirectory,
        *,
        files: Files,
        clock: Clock,
        internal_topics: Collection[str],
    ) -> Self:
        """Open the metadata log of a directory; a broker that is alone then knows all of it.

        Raises:
            CorruptData: the log is damaged.
            LogDirectoryError: the disk refused.
        """
        config = directory.config
        quorum = config.quorum
        context = ControllerContext(
            metadata=ClusterMetadata(),
            cluster_id=directory.cluster_id,
            node_id=directory.node_id,
            chance=random.SystemRandom(),
            config=config,
            cluster=config.cluster,
            internal_topics=frozenset(internal_topics),
            inherited=partial(recover_records, directory),
        )
        member = QuorumMember.open(
            files,
            directory.path,
            context,
            voters=quorum.voter_ids(directory.node_id),
            clock=clock,
            timeouts=Timeouts(
                election_ms=quorum.election_timeout_ms,
                election_backoff_ms=quorum.election_backoff_ms,
                fetch_ms=quorum.fetch_timeout_ms,
                request_ms=quorum.request_timeout_ms,
                retry_ms=quorum.retry_backoff_ms,
            ),
            snapshot_bytes=quorum.snapshot_bytes,
            snapshot_interval_ms=quorum.snapshot_interval_ms,
            # A voter that has lost only its metadata log has lost its votes as well.
            rejoins=directory.rejoins,
            has_earlier_start=directory.directory_ids.has_earlier_start,
        )
        return cls(member, directory, clock=clock)

    def __init__(self, quorum: QuorumMember, directory: LogDirectory, *, clock: Clock) -> None:
        config = directory.config
        self.quorum = quorum
        self._directory = directory
        self._clock = clock
        self._connections = (
            NodeConnections(config, quorum.metadata) if config.quorum.voters else None
        )
        self._forwarding = Forwarding(quorum, node_id=directory.node_id, clock=clock)
        self._session = BrokerSession(
            directory, quorum.metadata, self._attempt, clock=clock, on_changed=self._on_session
        )
        self._publisher: MetadataPublisher | None = None
        self._acting_epoch: int | None = None
        """The epoch of the registration that this broker acts on."""
        self._is_announced = self._connections is None
        """Whether the endpoints at which others reach this broker are known."""
        self._on_due: Callable[[], None] = lambda: None
        self._running: asyncio.Future[None] | None = None
        self._failed: asyncio.Future[None] | None = None
        self._has_left = False
        self._events = ClusterEvents(directory.node_id, directory.metrics)

    @property
    def metadata(self) -> ClusterMetadata:
        """The committed metadata, as far as this broker has it."""
        return self.quorum.metadata

    @property
    def requests(self) -> frozenset[type[Message]]:
        """The types of requests that can be submitted."""
        return self.quorum.requests

    @property
    def is_alone(self) -> bool:
        """Whether there are no other nodes, and never will be."""
        return self._connections is None

    @property
    def may_act(self) -> bool:
        """Whether the metadata includes the registration of this process (rule R1)."""
        return self.is_alone or self._session.may_act

    @property
    def elections(self) -> Histogram:
        """The times of elections that this controller has decided, in seconds."""
        return self._events.elections

    def status(self, follower_lag: Look[Mapping[int, int]]) -> Look[BrokerStatus]:
        """Return the state of this broker; `follower_lag` is the lag of its followers."""
        directory, metadata, quorum = self._directory, self.metadata, self.quorum
        configs = {name: topic.config for name, topic in directory.topics.items()}

        # Kept by the directory and not by the metadata: a disk that is away shows only here.
        def has_log(topic: str, index: int) -> bool:
            state = directory.topics.get(topic)
            return state is not None and index in state.partitions

        counts = yield from count_figures(metadata, directory.node_id, configs, has_log)
        lag = yield from follower_lag
        cluster = (yield from count_by_controller(metadata)) if quorum.is_active else None
        return BrokerStatus(
            node_id=directory.node_id,
            state=self._session.state,
            is_broker=directory.config.quorum.is_broker,
            quorum=quorum.replicas(),
            partitions=counts,
            cluster=cluster,
            follower_lag=lag,
            applied_offset=quorum.applied_offset,
            controller_times=quorum.controller_times,
            waiting_decisions=quorum.waiting_decisions,
            wall_ms=self._clock.wall_ms(),
        )

    def identity(self) -> tuple[int, int]:
        """Return the broker's id and its epoch."""
        return self._directory.node_id, self._session.epoch

    def live_brokers(self) -> frozenset[int]:
        """Return the ids of brokers that are registered and not fenced, as far as is known."""
        brokers = self.metadata.brokers.values()
        return frozenset(each.broker_id for each in brokers if not each.is_fenced)

    # Life cycle.

    def begin(self, partitions: Partitions, replicas: Replicas, observers: Observers) -> None:
        """Follow the metadata from this broker's registration on.

        A broker that is alone is registered when this returns; others register later, once they run
        and their endpoints are known. A node that is only a controller does nothing here.

        Raises:
            ConfigError: a setting of the cluster is unknown here or out of range.
            LogDirectoryError: the disk refused.
        """
        self.quorum.watch(self._on_changes)
        if not self._directory.config.quorum.is_broker:
            return
        self._publisher = MetadataPublisher(
            self.metadata, self._directory, partitions, replicas, observers
        )
        self._session.on_damage(damaged_replicas(self.metadata, self._directory))
        self._tick_session()

    def start(
        self,
        spawn: Callable[..., asyncio.Future[Any]],
        thread: Executor,
        on_due: Callable[[], None],
    ) -> None:
        """Join a cluster of several nodes.

        A spawned task fails when this node can't continue. `thread` is for syncs of the metadata
        log; `on_due` is called when the next deadline may have changed.
        """
        if self._connections is None:
            return
        self._on_due = on_due
        self._failed = asyncio.get_running_loop().create_future()
        self._forwarding.begin(self._connections.controllers, spawn)
        self._running = spawn(self.quorum.run(self._connections.quorum, thread))
        spawn(_wait_for_failure(self._failed))

    def listens_at(self, listeners: Sequence[RegisteredListener]) -> None:
        """Set the endpoints that this broker registers from now on."""
        self._session.listens_at(listeners)
        self._is_announced = True
        self._on_due()

    async def leave(self) -> None:
        """Hand leadership over to others while this node can still be reached.

        Waits until the controller releases the broker, but not for a controller that is unknown.
        """
        if self._connections is None or self._running is None or self._has_left:
            return
        self._has_left = True
        if self._directory.config.quorum.is_broker:
            self._session.stop()
            self._on_due()
            await self._wait_for_release()
        # Last: this node may be the controller itself, which the hand-over needs.
        self.quorum.stop()
        await asyncio.wait([self._running])

    async def _wait_for_release(self) -> None:
        """Wait until the broker may stop, or waiting is useless."""
        forsaken_ms = 0
        while not self._session.may_end and forsaken_ms < FORSAKEN_MS:
            await asyncio.sleep(LOOK_MS / 1000)
            # Time without a controller in one piece; it starts again when one is elected.
            forsaken_ms = forsaken_ms + LOOK_MS if self.quorum.controller_id is None else 0

    async def close_connections(self) -> None:
        """Close the connections to all other nodes, which must be idle."""
        if self._connections is not None:
            await self._connections.close()

    def close(self) -> None:
        """Stop deciding. Raises what the log's `close` raises."""
        self.quorum.close()

    # Requests to the controller and to other brokers.

    def submit(
        self, request: Request, version: int | None = None, here: Decide[Request] | None = None
    ) -> Answer:
        """Submit a request to the controller, in its newest version unless one is given.

        If this node is the controller, `here` answers the request, if it is given.
        """
        newest = type(request).__versions__.last
        return self._forwarding.submit(request, newest if version is None else version, here)

    def decide(self, request: Message, version: int) -> Answer:
        """Return this node's own decision: NOT_CONTROLLER if it is not the controller."""
        return self._forwarding.decide(request, version)

    async def ask(self, request: Message) -> Message:
        """Submit a request of this broker, and wait for the controller's decision."""
        answer = self.submit(request)
        return await answer if isinstance(answer, asyncio.Future) else answer

    async def call(self, node_id: int, request: Message, *, timeout_ms: int) -> Message:
        """Send a request to another broker, by a connection for requests of this kind.

        Raises:
            ConnectionLost: it can't be reached, or has closed the connection.
            RequestTimedOut: no response arrived in time.
        """
        if self._connections is None:
            raise ConnectionLost(f"this broker is not in a cluster and knows no broker {node_id}")
        return await self._connections.brokers.call(node_id, request, timeout_ms=timeout_ms)

    async def call_coordinator(self, node_id: int, request: Message, timeout_ms: int) -> Message:
        """Send a request as `call` does, by the connection for questions to coordinators.

        Only requests that are answered at once use it, so none waits behind a slow one.
        """
        if self._connections is None:
            raise ConnectionLost(f"this broker is not in a cluster and knows no broker {node_id}")
        return await self._connections.coordinators.call(node_id, request, timeout_ms=timeout_ms)

    async def ask_leader(self, node_id: int, request: Message, timeout_ms: int) -> Message:
        """Send a question about lag as `call` does, by a connection of its own.

        The answer may wait for a disk, and no other request may wait behind it.
        """
        if self._connections is None:
            raise ConnectionLost(f"this broker is not in a cluster and knows no broker {node_id}")
        return await self._connections.lag.call(node_id, request, timeout_ms=timeout_ms)

    async def write_to_registry(
        self, node_id: int, request: Message, *, timeout_ms: int
    ) -> Message:
        """Pass a write of the schema registry on as `call` does, by a connection of its own.

        The answer waits for the write, and no other request may wait behind it.
        """
        if self._connections is None:
            raise ConnectionLost(f"this broker is not in a cluster and knows no broker {node_id}")
        return await self._connections.registry.call(node_id, request, timeout_ms=timeout_ms)

    async def connect(self, node_id: int) -> PromptTransport:
        """Open a connection to another broker; the caller is its only user.

        Raises:
            ConnectionLost: it can't be reached.
            RequestTimedOut: it accepts connections, and does not answer.
        """
        if self._connections is None:
            raise ConnectionLost(f"this broker is not in a cluster and knows no broker {node_id}")
        return await self._connections.brokers.connect(node_id, timeout_ms=CONNECT_MS)

    def on_damage(self, partitions: Mapping[PartitionKey, int]) -> None:
        """Report replicas that lack records which they have counted as theirs."""
        self._session.on_damage(partitions)
        self._on_due()

    def on_offline(self, partitions: Iterable[PartitionKey]) -> None:
        """Report replicas whose disk has failed."""
        self._session.on_offline(partitions)
        self._on_due()

    # Time.

    def on_settings(self) -> None:
        """Use the broker's altered settings."""
        cluster = self._directory.config.cluster
        self._session.configure(cluster.heartbeat_interval_ms)
        self.quorum.configure(cluster)

    def tick(self) -> None:
        """Send heartbeats, decide, and retry what is due."""
        # Heartbeat first: after a long pause of this process, the controller in it must not find
        # the broker silent.
        self._tick_session()
        if self.is_alone:
            self.quorum.tick()
        if self._publisher is not None:
            self._publisher.tick(self._clock.now_ms())

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do; None for never."""
        deadlines: list[int | None] = []
        if self._publisher is not None:
            deadlines.append(self._publisher.next_deadline_ms())
            if self._is_announced:
                deadlines.append(self._session.next_deadline_ms())
        if self.is_alone:
            deadlines.append(self.quorum.next_deadline_ms())
        return min((each for each in deadlines if each is not None), default=None)

    def _tick_session(self) -> None:
        if self._is_announced and self._publisher is not None:
            self._session.tick()

    def _attempt(self, request: Message) -> Answer:
        """Send a request of this process once; its sender repeats it if there is no controller."""
        return self._forwarding.attempt(request, type(request).__versions__.last)

    def _on_session(self, failure: StreamlogError | None) -> None:
        """Handle the controller's response to this process: continue, or fail."""
        if failure is None:
            try:
                self._act()
            except StreamlogError as error:
                failure = error
        if failure is not None:
            # A broker that is alone registers within `begin`, whose caller gets the failure.
            if self._failed is None:
                raise failure
            if not self._failed.done():
                self._failed.set_exception(failure)
        self._on_due()

    def _on_changes(self, changes: list[MetadataChange]) -> None:
        self._events.on_changes(changes, self.quorum.deciding_ms)
        if self._publisher is not None and self._acting_epoch == self._session.epoch:
            self._publisher.apply(changes)
        else:
            self._act()

    def _act(self) -> None:
        """Begin to act on the metadata, once it includes this broker's registration."""
        applying = self._publisher
        epoch = self._session.epoch if self._session.may_act else self._epoch_before()
        # Rule R1. 1. Process A of broker 3 leads partition p and crashes. 2. Process B of broker 3
        # starts and reads metadata in which 3 still leads p. 3. If B led p now, it would serve
        # records before the controller has fenced A's epoch, perhaps beside the next leader. So it
        # waits for its own registration in the metadata.
        if applying is None or epoch is None or self._acting_epoch == epoch:
            return
        self._acting_epoch = epoch
        try:
            applying.begin(epoch)
        except StreamlogError:
            self._acting_epoch = None
            _log.critical("broker %d could not apply the cluster metadata", self._directory.node_id)
            raise

    def _epoch_before(self) -> int | None:
        """Return the epoch before this one, for a single broker with a full disk; else None.

        Its own registration can't be written yet, and as there are no other brokers, nothing has
        changed since the previous one. Partitions can be read, and written once there is space.
        """
        before = self.metadata.brokers.get(self._directory.node_id)
        if before is None or not self.is_alone or not self.quorum.is_refused:
            return None
        return before.epoch


async def _wait_for_failure(failed: asyncio.Future[None]) -> None:
    """Wait for the future that fails when the node can't continue."""
    await failed
