"""RegistryAccess: what a schema registry on this broker needs of the broker.

The registry keeps its state in one partition, `_schemas`-0, and its primary is the broker that
leads that partition. So the primary appends here, to the log itself, and not through a producer: an
append names the end offset that the primary has replayed, and fails if the log ends elsewhere, or
if another broker leads. So no primary writes what it has decided from an old state:

1. Broker 1 leads, has replayed up to offset 10, and decides that a schema gets id 7.
2. Broker 2 is elected and gives id 7 to another schema, at offset 10.
3. Broker 1 is elected again, before its decision reaches the log. Its log ends at 11 now, so the
   append fails, and broker 1 replays offset 10 before it decides again.

Other brokers pass writes on by WriteToRegistry. Not done here: the registry (`streamlog/registry`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from streamlog.broker.cluster.peers import peer_listener, peer_security
from streamlog.broker.future_responses import Spawn, answer_by_task
from streamlog.broker.handlers import Handlers, entry
from streamlog.broker.quorum.controller.topic_control import DEFAULT
from streamlog.broker.quorum.metadata.cluster_metadata import TOPIC_RESOURCE
from streamlog.broker.security.acl_authorizer import Access
from streamlog.broker.subject_logs import log_decision
from streamlog.errors import ConnectionLost, StreamlogError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.registry_messages import (
    WriteToRegistryRequest,
    WriteToRegistryResponse,
)
from streamlog.protocol.messages.topics_and_configs import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from streamlog.transport.client_connection import TcpTransport, Transport

if TYPE_CHECKING:
    from streamlog.broker.apis.security import AclRequests, UserRequests
    from streamlog.broker.cluster.node import ClusterNode
    from streamlog.broker.config.broker import BrokerConfig
    from streamlog.broker.replication.partition import Partitions
    from streamlog.broker.security.users import Users
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.clock import Clock
    from streamlog.metrics.registry import Registry

PartitionKey: TypeAlias = tuple[str, int]
PerformWrite: TypeAlias = Callable[[WriteToRegistryRequest], Awaitable[WriteToRegistryResponse]]
CREATION_TIMEOUT_MS = 30_000
CONNECT_TIMEOUT_MS = 10_000


class EndMoved(StreamlogError):
    """The log does not end where the append expects; nothing was appended."""


class OutcomeUnknown(StreamlogError):
    """The batch is in this broker's log, and may be committed or lost."""


class RegistryAccess:
    """The broker, as its schema registry sees it."""

    def __init__(
        self,
        directory: LogDirectory,
        member: ClusterNode,
        partitions: Partitions,
        *,
        security: tuple[UserRequests, AclRequests],
        clock: Clock,
        spawn: Spawn,
    ) -> None:
        """`spawn` runs a task until the broker stops."""
        self._directory = directory
        self._member = member
        self._partitions = partitions
        self._users, self._acls = security
        self._clock = clock
        self._spawn = spawn
        self._perform: PerformWrite | None = None
        self._changed = asyncio.Event()
        member.quorum.watch(self._on_metadata)

    @property
    def node_id(self) -> int:
        """The id of this broker."""
        return self._directory.node_id

    @property
    def config(self) -> BrokerConfig:
        """The settings of this broker."""
        return self._directory.config

    @property
    def metrics(self) -> Registry:
        """The metrics of this broker."""
        return self._directory.metrics

    @property
    def clock(self) -> Clock:
        """The clock."""
        return self._clock

    @property
    def is_alone(self) -> bool:
        """Whether this broker is the whole cluster, and always will be."""
        return self._member.is_alone

    @property
    def is_current(self) -> bool:
        """Whether the metadata here is as new as this process: a missing topic does not exist."""
        return self._member.may_act

    @property
    def users(self) -> Users:
        """The users with a SCRAM credential."""
        return self._users.users

    # ---- the topic ----

    def topic_id(self, topic: str) -> bytes | None:
        """Return the topic's id; None if there is no such topic."""
        return self._partitions.topic_id(topic)

    async def when_metadata_changes(self) -> None:
        """Wait for the next change of the metadata that this broker knows."""
        await self._changed.wait()

    def _on_metadata(self, _changes: object) -> None:
        # A new event for those who begin to wait now.
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def partition_count(self, topic: str) -> int:
        """Return the number of the topic's partitions; 0 if there is no such topic."""
        return self._partitions.partitions(topic)

    def leader(self, key: PartitionKey) -> int | None:
        """Return the broker that leads a partition, as far as is known; None if none does."""
        found = self._partitions.leader(*key)
        return None if found is None or found[0] < 0 else found[0]

    def setting(self, topic: str, name: str) -> str | None:
        """Return a setting that the topic itself has; None if it has the default."""
        return self._member.metadata.config(TOPIC_RESOURCE, topic).get(name)

    async def create_topic(self, topic: str, configs: Mapping[str, str]) -> None:
        """Create a topic with one partition and the usual replicas; do nothing if it exists.

        Raises:
            LogError: the controller has refused.
            ConnectionLost, RequestTimedOut: there is no controller at present.
        """
        creation = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=topic,
                    num_partitions=1,
                    replication_factor=DEFAULT,
                    configs=[
                        CreatableTopicConfig(name=name, value=value)
                        for name, value in configs.items()
                    ],
                )
            ],
            timeout_ms=CREATION_TIMEOUT_MS,
        )
        answer = await self._member.ask(creation)
        if not isinstance(answer, CreateTopicsResponse):
            raise ConnectionLost("the controller did not answer CreateTopics")
        for each in answer.topics:
            if each.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise error_for(each.error_code, f"topic {topic}", each.error_message)

    # ---- the partition, while this broker leads it ----

    def led_end(self, key: PartitionKey) -> int:
        """Return the end of the log of a partition that this broker leads, committed or not.

        Raises:
            UnknownTopicOrPartition: there is no such partition.
            NotLeader: another broker leads it, or none does.
            LogDirectoryError: its disk has failed.
        """
        partition = self._partitions.get(*key)
        partition.check_leader()
        return partition.log.log_end_offset

    async def append(
        self, key: PartitionKey, batch: bytes, *, expected_end: int, timeout_ms: int
    ) -> int:
        """Append a batch where the log ends; return the end offset once the batch is committed.

        Raises:
            EndMoved: the log does not end at `expected_end`; nothing was appended.
            NotLeader: this broker does not lead the partition; nothing was appended.
            OutcomeUnknown: the batch is appended, and was not committed in time, or this broker has
                lost its leadership since.
            LogError, LogDirectoryError: it is refused, or the disk has failed.
        """
        partition = self._partitions.get(*key)
        partition.check_leader()
        partition.check_insync()
        # No await between this check and the append: nothing else can append in between.
        if partition.log.log_end_offset != expected_end:
            raise EndMoved(
                f"{key[0]}-{key[1]} ends at {partition.log.log_end_offset}, not at {expected_end}"
            )
        # A replayed end is a committed one, so a log that ends there has nothing that may be lost.
        result = partition.append(batch, now_ms=self._clock.now_ms(), wall_ms=self._clock.wall_ms())
        end = result.last_offset + 1
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if partition.may_acknowledge(end):
            return end
        partition.when_committed(end, partial(_settle, committed))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await committed
        except TimeoutError:
            raise OutcomeUnknown(
                f"{key[0]}-{key[1]}: the records from {result.base_offset} on were not committed"
                f" within {timeout_ms} ms"
            ) from None
        except StreamlogError as error:
            raise OutcomeUnknown(
                f"{key[0]}-{key[1]}: the records from {result.base_offset} on may not be"
                f" committed: {error}"
            ) from error
        return end

    # ---- other brokers ----

    @contextmanager
    def serving(self, perform: PerformWrite) -> Iterator[None]:
        """Answer writes that other brokers pass on, by `perform`, in the block."""
        self._perform = perform
        try:
            yield
        finally:
            self._perform = None

    def handlers(self) -> Handlers:
        """Return the handler of each request type."""

        def write(
            request: WriteToRegistryRequest, _: object
        ) -> WriteToRegistryResponse | asyncio.Future[WriteToRegistryResponse]:
            perform = self._perform
            if perform is None:
                return WriteToRegistryResponse(
                    error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
                    error_message=f"broker {self.node_id} runs no schema registry: set"
                    " schema.registry.listener on every broker",
                )

            async def answer(_: object) -> WriteToRegistryResponse:
                return await perform(request)

            return answer_by_task(self._spawn, answer)

        return dict([entry(WriteToRegistryRequest, write)])

    async def forward(
        self, node_id: int, request: WriteToRegistryRequest, *, timeout_ms: int
    ) -> WriteToRegistryResponse:
        """Pass a write on to the primary.

        Raises:
            ConnectionLost, RequestTimedOut: it did not answer; the write may have happened.
            LogError: it has refused.
        """
        answer = await self._member.write_to_registry(node_id, request, timeout_ms=timeout_ms)
        if not isinstance(answer, WriteToRegistryResponse):
            raise ConnectionLost(f"broker {node_id} did not answer WriteToRegistry")
        return answer

    def addresses(self) -> Sequence[tuple[str, int]]:
        """Return the addresses at which this broker's clients reach the brokers of the cluster."""
        name = peer_listener(self.config).name
        found = (each.endpoint(name) for each in self._member.metadata.brokers.values())
        return [(each.host, each.port) for each in found if each is not None]

    async def connect(self, host: str, port: int, *, client_id: str) -> Transport:
        """Open a connection to a broker of the cluster, by the listener between brokers.

        Raises:
            ConnectionLost, RequestTimedOut: it can't be reached.
            LogError: it refuses this broker.
        """
        listener = peer_listener(self.config)
        return await TcpTransport.connect(
            host,
            port,
            client_id=client_id,
            timeout_ms=CONNECT_TIMEOUT_MS,
            security=peer_security(self.config, listener),
        )

    # ---- clients of the registry ----

    def access(self, principal: str, host: str) -> Access | None:
        """Return what a principal on a host may do; None if that is everything."""
        authorizer = self._acls.authorizer
        if authorizer is None:
            return None
        return Access(
            authorizer=authorizer,
            principal=principal,
            host=host,
            version=0,
            exists=lambda name: self._partitions.topic_id(name) is not None,
            name_of=self._partitions.name_of,
            topics=self._partitions.names,
            log=log_decision,
        )


def _settle(committed: asyncio.Future[None], failure: StreamlogError | None) -> None:
    if committed.done():
        return
    if failure is None:
        committed.set_result(None)
    else:
        committed.set_exception(failure)
