"""Cluster: a client's view of the brokers and of the partitions' leaders, with the connections.

Rule of the file: a leader of an older epoch never replaces one of a newer epoch, as long as the
topic keeps its id (KIP-320). `retrying` repeats a request whose error may pass. Not done here: the
meaning of requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from enum import Enum, auto
from typing import Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from streamlog import repeated
from streamlog.client.metrics.network_metrics import NetworkMetrics
from streamlog.client.offset_metadata import NO_EPOCH
from streamlog.clock import Clock
from streamlog.errors import (
    AuthenticationFailed,
    ConnectionLost,
    CorruptData,
    LogError,
    RequestTimedOut,
    StreamlogError,
    UnknownTopicOrPartition,
    UnsupportedVersion,
    UsageError,
)
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.classic_groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from streamlog.protocol.messages.cluster_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from streamlog.protocol.schema import ZERO_UUID, Message
from streamlog.record import TopicPartition
from streamlog.transport.client_connection import Transport

NO_NODE: Final = -1


class ElectedLeader(NamedTuple):
    """The leader of one epoch; `NO_NODE` if it is unknown or there is none."""

    leader: int
    epoch: int


FORMER_IDS_MAX: Final = 16
"""Former topic ids that are remembered per name. No id is used twice, so metadata with a former id
is outdated."""


class _Topic(NamedTuple):
    topic_id: bytes
    partitions: dict[int, ElectedLeader]
    former_ids: tuple[bytes, ...] = ()


class LeaderEpochs:
    """The newest known leader epoch of each partition; `Cluster.forget` does not reset it."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}

    def learn(self, answer: MetadataResponseTopic) -> tuple[dict[int, int], bool]:
        """Take in a broker's metadata of a topic.

        Returns:
            Partition to its newest known leader, and whether the broker has missed an election.
        """
        # 1. Broker 2 is elected leader of t-0 in epoch 6; this client learns that from broker 3.
        # 2. Broker 1, which is cut off from the controller, still says: broker 1 leads in epoch 5.
        # 3. Broker 1's answer is older, so broker 2 stays the leader, and broker 1 "is behind":
        #    `_reachable` prefers others for the next look-up.
        name = answer.name or ""
        known = self._topics.get(name)
        # A former topic of this name, which was deleted: the answer is older than what is known.
        if known is not None and answer.topic_id in known.former_ids:
            return {number: each.leader for number, each in known.partitions.items()}, True
        if known is None:
            known = self._topics[name] = _Topic(answer.topic_id, {})
        elif known.topic_id != answer.topic_id:
            former = (*known.former_ids, known.topic_id)[-FORMER_IDS_MAX:]
            known = self._topics[name] = _Topic(answer.topic_id, {}, former)
        is_behind = False
        for each in answer.partitions:
            newest = known.partitions.get(each.partition_index)
            if newest is not None and NO_EPOCH < each.leader_epoch < newest.epoch:
                is_behind = True
            else:
                elected = ElectedLeader(each.leader_id, each.leader_epoch)
                known.partitions[each.partition_index] = elected
        numbers = [each.partition_index for each in answer.partitions]
        return {number: known.partitions[number].leader for number in numbers}, is_behind

    def topic_id(self, name: str) -> bytes:
        """Return the newest id of a topic; zero if it is unknown, or brokers don't serve ids."""
        known = self._topics.get(name)
        return ZERO_UUID if known is None else known.topic_id

    def epoch(self, partition: TopicPartition) -> int:
        """Return the newest leader epoch of a partition; -1 if it is unknown."""
        newest = self._newest(partition)
        return NO_EPOCH if newest is None else newest.epoch

    def note(self, partition: TopicPartition, epoch: int) -> bool:
        """Note that records of leader epoch `epoch` were read; return whether that is newer."""
        newest = self._newest(partition)
        if newest is None or not NO_EPOCH < newest.epoch < epoch:
            return False
        # The leader of that epoch is unknown, but metadata of older epochs counts as outdated now.
        self._topics[partition.topic].partitions[partition.partition] = ElectedLeader(
            NO_NODE, epoch
        )
        return True

    def _newest(self, partition: TopicPartition) -> ElectedLeader | None:
        known = self._topics.get(partition.topic)
        return None if known is None else known.partitions.get(partition.partition)


Address: TypeAlias = tuple[str, int]
Bootstrap: TypeAlias = Callable[[], Sequence[Address]]
"""Returns the bootstrap addresses, as of the moment of the call."""
Connect: TypeAlias = Callable[[str, int], Awaitable[Transport]]

REQUEST_TIMEOUT_MS = 30_000
RETRY_TIMEOUT_MS = 60_000
"""How long a caller's operation is retried before its error is raised."""
GROUP = 0
"""The key type of a group in FindCoordinator."""
RETRY_BACKOFF_MS = 50
RETRY_BACKOFF_MS_MAX = 1_000
METADATA_AGE_MS_MAX = 300_000
"""Age at which a topic's metadata is looked up again without an error: the topic may have grown."""
UNKNOWN_TOPIC_TIMEOUT_MS = 1_000
"""How long a look-up retries an unknown topic: it may have just been created, and not every broker
knows it yet."""
FORMING_TIMEOUT_MS = 15_000
"""How long brokers that answer may take to find their cluster: they elect a controller first."""
FORMING_POLL_MS = 100
CLOSED = "this client was closed: open another one"

log = repeated.logger(__name__)
M = TypeVar("M", bound=Message)
R = TypeVar("R")


class _Forming(ConnectionLost):
    """A broker answers, but has not found its cluster yet."""


class Lane(Enum):
    """The connection to a broker that a request uses.

    Brokers answer the requests of a connection in order, so a request behind a long poll waits.
    """

    MAIN = auto()
    """Requests that are answered at once: produce, metadata, offsets."""
    FETCH = auto()
    """Fetches, which the broker holds back until there are records."""
    GROUP = auto()
    """Joins and syncs, which the coordinator holds back until all members have joined."""


class TopicMetadata(msgspec.Struct, frozen=True):
    """A topic's metadata, as brokers have sent it."""

    name: str
    topic_id: bytes
    is_internal: bool
    leaders: dict[int, int]
    """Partition to the id of its leader; -1 while it has none."""
    replicas: dict[int, tuple[int, ...]]
    """Partition to the ids of the brokers with a replica."""
    learnt_ms: int
    """Monotonic time in ms at which the metadata was received."""


class Cluster:
    """The brokers behind the bootstrap addresses, as one client knows them."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        connect: Connect,
        clock: Clock,
        *,
        cluster_id: str | None = None,
        request_timeout_ms: int = REQUEST_TIMEOUT_MS,
        client_id: str = "",
    ) -> None:
        """Connect on demand.

        Args:
            bootstrap: returns the addresses to connect to first.
            connect: opens a connection to a host and port.
            clock: monotonic time.
            cluster_id: the id of the cluster; None accepts the first cluster that answers.
            request_timeout_ms: how long one request waits for its answer.
            client_id: the name of the client in its metrics; `connect` tells it to the brokers.
        """
        self.cluster_id = cluster_id
        self.client_id = client_id
        self.network = NetworkMetrics(clock.now_ms())
        """What the client exchanges with the brokers."""
        self.clock = clock
        self.request_timeout_ms = request_timeout_ms
        self._bootstrap = bootstrap
        self._connect = connect
        self._controller_id = -1
        self._learnt_ms: int | None = None
        """When brokers and leaders were last looked up."""
        self._brokers: dict[int, Address] = {}
        self.topics: dict[str, TopicMetadata] = {}
        """What is known of topics at present, however old it is: `known` looks at the age, too."""
        self._elected = LeaderEpochs()
        self._behind: set[int] = set()
        """Brokers whose last metadata had missed an election."""
        self._transports: dict[tuple[int, Lane], Transport] = {}
        self._connecting: dict[tuple[int, Lane], asyncio.Lock] = {}
        self._is_closed = False

    def leader(self, partition: TopicPartition) -> int | None:
        """Return the leader of a partition; None if it must be looked up."""
        topic = self.known(partition.topic)
        if topic is None:
            return None
        leader = topic.leaders.get(partition.partition, NO_NODE)
        return leader if leader in self._brokers else None

    def leader_epoch(self, partition: TopicPartition) -> int:
        """Return the newest known leader epoch, even if its leader is unknown; -1 if none is."""
        return self._elected.epoch(partition)

    def topic_id(self, topic: str) -> bytes:
        """Return the newest known id of a topic; zero if it is unknown."""
        return self._elected.topic_id(topic)

    def note_epoch(self, partition: TopicPartition, leader_epoch: int) -> None:
        """Note that records of this leader epoch were read; older metadata is forgotten."""
        if self._elected.note(partition, leader_epoch):
            self.forget([partition.topic])

    def knows(self, node_id: int) -> bool:
        """Whether the address of a broker is known."""
        return node_id in self._brokers

    def forget(self, topics: Collection[str]) -> None:
        """Drop the metadata of topics, so that it is looked up again."""
        for topic in topics:
            self.topics.pop(topic, None)

    async def topic(self, name: str) -> TopicMetadata:
        """Return a topic's metadata; look it up if it is unknown or too old.

        Raises:
            UnknownTopicOrPartition: the topic does not exist.
        """
        known = self.known(name)
        if known is None:
            await self.refresh([name])
            known = self.topics[name]
        return known

    def known(self, name: str) -> TopicMetadata | None:
        """Return a topic's metadata; None if it must be looked up."""
        known = self.topics.get(name)
        if known is None:
            return None
        return None if self.clock.now_ms() - known.learnt_ms > METADATA_AGE_MS_MAX else known

    async def refresh(self, topics: Collection[str]) -> None:
        """Look up the metadata of topics, and the brokers.

        Raises:
            UnknownTopicOrPartition: a topic does not exist.
            ConnectionLost: no broker can be reached.
        """
        deadline_ms = self.clock.now_ms() + UNKNOWN_TOPIC_TIMEOUT_MS
        while missing := [name for name in topics if not await self._look_up(name)]:
            if self.clock.now_ms() >= deadline_ms:
                raise UnknownTopicOrPartition(
                    f"the log has no topic {missing[0]!r}: check its name, or create it first",
                    retriable=False,  # This loop has already retried.
                )
            await asyncio.sleep(RETRY_BACKOFF_MS / 1000)

    async def find(self, *, timeout_ms: int = FORMING_TIMEOUT_MS) -> None:
        """Look up the brokers; those that answer have `timeout_ms` to find their cluster.

        Raises:
            ConnectionLost: no broker can be reached, or none has found its cluster in that time.
        """
        deadline_ms = self.clock.now_ms() + timeout_ms
        while True:
            try:
                await self.describe([])
            except _Forming as error:
                if self.clock.now_ms() >= deadline_ms:
                    raise ConnectionLost(f"after {timeout_ms / 1000:g} s {error}") from None
            else:
                return
            await asyncio.sleep(FORMING_POLL_MS / 1000)

    async def describe(self, topics: Collection[str] | None = None) -> list[TopicMetadata]:
        """Look up the metadata of these topics, or of all.

        Raises:
            UnknownTopicOrPartition: a topic of `topics` does not exist.
        """
        asked = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        response = await self._metadata(asked)
        for topic in response.topics:
            if topic.error_code:
                raise error_for(topic.error_code, f"topic {topic.name!r}")
        return [self.topics[topic.name or ""] for topic in response.topics]

    async def survey(
        self, topics: Collection[str] | None = None, *, hidden: set[str] | None = None
    ) -> dict[str, TopicMetadata]:
        """Look up which of these topics, or of all, exist; return name to metadata.

        `hidden` gets the topics that this client may not describe. Whether they exist is unknown.

        Raises:
            LogError: a broker can't answer for some topic at present; retriable.
        """
        asked = (
            None if topics is None else [MetadataRequestTopic(name=name) for name in sorted(topics)]
        )
        response = await self._metadata(asked)
        found: dict[str, TopicMetadata] = {}
        for topic in response.topics:
            if not topic.error_code:
                found[topic.name or ""] = self.topics[topic.name or ""]
                continue
            error = error_for(topic.error_code, f"topic {topic.name!r}")
            if error.retriable and topic.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise error
            if hidden is not None and topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                hidden.add(topic.name or "")
        return found

    async def call(
        self,
        node_id: int,
        request: Message,
        answer: type[M],
        *,
        lane: Lane = Lane.MAIN,
        timeout_ms: int | None = None,
        version_max: int | None = None,
    ) -> M:
        """Send a request to one broker and return the answer.

        Args:
            node_id: the broker.
            request: the request.
            answer: the type of the answer.
            lane: the connection to use.
            timeout_ms: how long to wait for the answer; None for the client's default.
            version_max: the newest version to use; None for the newest that both sides know.

        Raises:
            ConnectionLost, RequestTimedOut: as `Transport.call`; the next call reconnects.
        """
        transport = await self.transport(node_id, lane)
        self.network.windows.advance(self.clock.now_ms())
        try:
            response = await transport.call(
                request,
                timeout_ms=timeout_ms or self.request_timeout_ms,
                version_max=version_max,
            )
        except (ConnectionLost, RequestTimedOut, CorruptData):
            await self._drop(node_id, lane, transport)
            raise
        return _expect(response, answer)

    async def send(self, node_id: int, request: Message, *, version_max: int | None = None) -> None:
        """Send a request that the broker does not answer (Produce with acks=0).

        Raises:
            ConnectionLost: as `Transport.send`.
        """
        transport = await self.transport(node_id, Lane.MAIN)
        try:
            await transport.send(request, version_max=version_max)
        except ConnectionLost:
            await self._drop(node_id, Lane.MAIN, transport)
            raise

    async def call_any(self, request: Message, answer: type[M]) -> M:
        """Send a request to any broker that can be reached.

        Raises:
            ConnectionLost: no broker can be reached.
        """
        node_id = await self._reachable()
        return await self.call(node_id, request, answer)

    async def call_controller(self, request: Message, answer: type[M]) -> M:
        """Send a request to the controller, which creates and deletes topics."""
        return await self.call(await self.controller(), request, answer)

    async def controller(self) -> int:
        """Return the broker that acts as the controller; while there is none, any broker."""
        # Looked up for each call, because the controller may have moved.
        await self._metadata([])
        if self._controller_id in self._brokers:
            return self._controller_id
        return await self._reachable()

    async def nodes(self) -> list[int]:
        """Return the ids of all brokers, sorted."""
        await self._metadata([])
        return sorted(self._brokers)

    async def coordinator(self, key: str, *, key_type: int = GROUP) -> int:
        """Return the broker that coordinates a group, or a transactional id (`key_type` 1).

        Raises:
            LogError: there is no coordinator now; retriable.
        """
        # Version 4 of the request has a list of keys (KIP-699), older versions have one key.
        request = FindCoordinatorRequest(key=key, key_type=key_type, coordinator_keys=[key])
        response = await self.call_any(request, FindCoordinatorResponse)
        found = response.coordinators[0] if response.coordinators else response
        if found.error_code:
            raise error_for(found.error_code, f"coordinator of {key!r}")
        await self._learn_broker(found.node_id, (found.host, found.port))
        return found.node_id

    async def speaks(self, node_id: int, api_key: int, version: int) -> bool:
        """Return whether a broker serves this version of an API, or a newer one.

        The answer is False, and no error, if the broker does not serve the API at all, such as
        streamlog's own APIs on Kafka's brokers.

        Raises:
            ConnectionLost: the broker can't be reached.
        """
        transport = await self.transport(node_id, Lane.MAIN)
        try:
            return transport.version(api_key) >= version
        except UnsupportedVersion:
            return False

    async def feature(self, node_id: int, name: str) -> int:
        """Return the level of a feature in the cluster, as a broker knows it; 0 without it.

        Raises:
            ConnectionLost: the broker can't be reached.
        """
        return (await self.transport(node_id, Lane.MAIN)).feature(name)

    @property
    def metadata_age_ms(self) -> int | None:
        """Milliseconds since brokers and leaders were looked up; None if they never were."""
        return None if self._learnt_ms is None else self.clock.now_ms() - self._learnt_ms

    def is_connected(self, node_id: int, lane: Lane) -> bool:
        """Whether the connection is open, so that a call writes its request at once."""
        return (node_id, lane) in self._transports

    async def transport(self, node_id: int, lane: Lane) -> Transport:
        """Return the connection to a broker; open it if it is not.

        Raises:
            ConnectionLost: the broker can't be reached, or its address is unknown.
        """
        key = node_id, lane
        if key in self._transports:
            return self._transports[key]
        async with self._connecting.setdefault(key, asyncio.Lock()):
            # Another task may have connected while this one waited for the lock.
            if key in self._transports:
                return self._transports[key]
            address = self._brokers.get(node_id)
            if address is None:
                raise ConnectionLost(
                    f"broker {node_id} is not part of the cluster any more: `streamlog cluster"
                    " status` lists its brokers"
                )
            try:
                transport = await self._opened(*address)
            except StreamlogError:
                self._brokers.pop(node_id, None)  # Its address may have changed: look it up again.
                raise
            self.network.adopt(node_id, transport)
            # `_begin_at` may have kept its bootstrap connection under this key meanwhile.
            other = self._transports.setdefault(key, transport)
            if other is not transport:
                await self._close(transport)
            return other

    async def retrying(
        self, attempt: Callable[[], Awaitable[R]], *, timeout_ms: int = RETRY_TIMEOUT_MS
    ) -> R:
        """Await `attempt()`; repeat it with backoff while its error is retriable.

        Args:
            attempt: makes one attempt.
            timeout_ms: no attempt starts after this time.

        Raises:
            StreamlogError: the last attempt's error.
        """
        deadline_ms = self.clock.now_ms() + timeout_ms
        backoff_ms = RETRY_BACKOFF_MS
        while True:
            try:
                return await attempt()
            except StreamlogError as error:
                if not error.retriable or self.clock.now_ms() + backoff_ms > deadline_ms:
                    raise
                log.debug("retrying in %d ms: %s", backoff_ms, error)
            await asyncio.sleep(backoff_ms / 1000)
            backoff_ms = min(2 * backoff_ms, RETRY_BACKOFF_MS_MAX)

    async def close(self) -> None:
        """Close all connections; later calls raise `UsageError`."""
        self._is_closed = True
        await self._hang_up()

    async def _hang_up(self) -> None:
        """Close all connections, even if the task is cancelled in between."""
        transports, self._transports = self._transports, {}
        async with AsyncExitStack() as stack:
            for transport in transports.values():
                stack.push_async_callback(self._close, transport)

    async def _look_up(self, name: str) -> bool:
        """Look up one topic; return False if the broker does not know it."""
        response = await self._metadata([MetadataRequestTopic(name=name)])
        for topic in response.topics:
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return False
            if topic.error_code:
                raise error_for(topic.error_code, f"topic {name!r}")
        return name in self.topics

    async def _metadata(self, topics: list[MetadataRequestTopic] | None) -> MetadataResponse:
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        node_id = await self._reachable()
        response = await self.call(node_id, request, MetadataResponse)
        if response.error_code:
            raise error_for(response.error_code, "metadata")
        if self.cluster_id is not None and response.cluster_id != self.cluster_id:
            await self._hang_up()
            self._brokers.clear()
            raise ConnectionLost(
                f"the broker belongs to cluster {response.cluster_id}, not {self.cluster_id}: "
                "another log answers at this address"
            )
        self.cluster_id = response.cluster_id
        self._controller_id = response.controller_id
        self._learnt_ms = self.clock.now_ms()
        for broker in response.brokers:
            await self._learn_broker(broker.node_id, (broker.host, broker.port))
        for gone in self._brokers.keys() - {broker.node_id for broker in response.brokers}:
            del self._brokers[gone]
        self._learn(node_id, response.topics)
        return response

    def _learn(self, node_id: int, topics: Collection[MetadataResponseTopic]) -> None:
        """Take in a broker's metadata of topics; newer leaders that are known stay."""
        self._behind.discard(node_id)
        for topic in topics:
            if topic.error_code:
                continue
            leaders, is_behind = self._elected.learn(topic)
            if is_behind:
                log.debug("broker %d has missed an election of topic %r", node_id, topic.name)
                self._behind.add(node_id)
            name, parts = topic.name or "", topic.partitions
            self.topics[name] = TopicMetadata(
                name=name,
                topic_id=self._elected.topic_id(name),
                is_internal=topic.is_internal,
                leaders=leaders,
                replicas={each.partition_index: tuple(each.replica_nodes) for each in parts},
                learnt_ms=self.clock.now_ms(),
            )

    async def _learn_broker(self, node_id: int, address: Address) -> None:
        # A broker that has moved: its open connections lead to the old address.
        if self._brokers.get(node_id, address) != address:
            for lane in Lane:
                await self._drop(node_id, lane, self._transports.get((node_id, lane)))
        self._brokers[node_id] = address

    async def _reachable(self) -> int:
        """Return a broker with an open connection; prefer brokers that know the last elections."""
        connected = [node_id for node_id, lane in self._transports if lane is Lane.MAIN]
        candidates = [each for each in connected if each in self._brokers]
        candidates += [each for each in self._brokers if each not in candidates]
        # The sort is stable: connected brokers stay first, and brokers that are behind move back.
        for node_id in sorted(candidates, key=self._behind.__contains__):
            try:
                await self.transport(node_id, Lane.MAIN)
            except StreamlogError as error:
                log.debug("can't connect to broker %d: %s", node_id, error)
            else:
                return node_id
        return await self._begin()

    async def _begin(self) -> int:
        """Learn the brokers from a bootstrap address; return one that can be reached."""
        if self._is_closed:
            raise UsageError(CLOSED)
        problems: list[StreamlogError] = []
        for host, port in self._bootstrap():
            try:
                return await self._begin_at(host, port)
            except StreamlogError as problem:
                problems.append(problem)
        if len(problems) == 1:
            raise problems[0]
        refusal = next((each for each in problems if each.fatal), None)
        if refusal is not None:  # For example a wrong password, which no other broker accepts.
            raise refusal
        is_forming = any(isinstance(each, _Forming) for each in problems)
        raise (_Forming if is_forming else ConnectionLost)(
            "; ".join(map(str, problems)) or "no broker runs: no process has this log open"
        )

    async def _opened(self, host: str, port: int) -> Transport:
        """Open a connection; raise if `close` is called before or meanwhile."""
        # Checked again after the wait: a connection that opens after `close` would stay open.
        if not self._is_closed:
            try:
                transport = await self._connect(host, port)
            except AuthenticationFailed:
                self.network.refused.record(1)
                raise
            self.network.opened.record(1)
            if not self._is_closed:
                return transport
            await self._close(transport)
        raise UsageError(CLOSED)

    async def _close(self, transport: Transport) -> None:
        self.network.closed.record(1)
        await transport.close()

    async def _begin_at(self, host: str, port: int) -> int:
        transport = await self._opened(host, port)
        request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
        try:
            answer = await transport.call(request, timeout_ms=self.request_timeout_ms)
            response = _expect(answer, MetadataResponse)
        except BaseException:
            await self._close(transport)
            raise
        if self._is_closed:
            await self._close(transport)
            raise UsageError(CLOSED)
        if not response.brokers:
            await self._close(transport)
            raise _Forming(
                f"the broker at {host}:{port} has not found its cluster yet: a majority of the"
                " controllers must run and be reachable; see controller.quorum.voters and the"
                " broker's log"
            )
        known = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        self._brokers.update(known)
        # The bootstrap connection is kept if the address is a broker's own. A load balancer's
        # address belongs to no broker, so its connection is closed.
        here = next((node for node, address in known.items() if address == (host, port)), None)
        if here is None or self.is_connected(here, Lane.MAIN):
            await self._close(transport)
            here = next(iter(known)) if here is None else here
            await self.transport(here, Lane.MAIN)
        else:
            self._transports[here, Lane.MAIN] = transport
            self.network.adopt(here, transport)
        return here

    async def _drop(self, node_id: int, lane: Lane, transport: Transport | None) -> None:
        if transport is None:
            return
        if self._transports.get((node_id, lane)) is transport:
            del self._transports[node_id, lane]
            await self._close(transport)
        else:  # Another task has dropped it.
            await transport.close()


def _expect(response: Message, answer: type[M]) -> M:
    if not isinstance(response, answer):
        raise LogError(f"expected {answer.__name__}, got {type(response).__name__}")
    return response
