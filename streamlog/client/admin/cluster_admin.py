"""Admin requests about brokers: replicas, their throttles, log directories, the quorum."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Final

import msgspec

from streamlog.client.admin.admin_area import ADMIN_TIMEOUT_MS, AdminArea, check, raise_refused
from streamlog.client.admin.cluster_descriptions import (
    BrokerDescription,
    ClusterDescription,
    ClusterReports,
    NodeDescription,
    PartitionDescription,
    QuorumDescription,
    QuorumReplica,
    Registration,
    ReplicaDescription,
)
from streamlog.client.admin.config_admin import TOPIC_RESOURCE, Append, Change, ConfigAdmin
from streamlog.client.cluster import Lane
from streamlog.errors import (
    ConnectionLost,
    CorruptData,
    LogError,
    NotAuthorized,
    StreamlogError,
    UnsupportedVersion,
    UsageError,
)
from streamlog.protocol.api_table import APIS
from streamlog.protocol.error_codes import error_for
from streamlog.protocol.messages.cluster_metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)
from streamlog.protocol.messages.partitions_and_replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ElectedTopicPartitions,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from streamlog.protocol.messages.quorum_messages import (
    DescribeQuorumPartition,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumTopic,
    QuorumReplicaState,
)
from streamlog.protocol.messages.topics_and_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from streamlog.record import TopicPartition

REPORT_TIMEOUT_MS = 5_000
"""How long one broker may take to answer."""


class NodeAdmin(AdminArea):
    """Collects the reports of all brokers, for `find_problems`."""

    async def describe_nodes(self) -> ClusterReports:
        """Return the report of each broker that the metadata lists, all requested concurrently.

        A broker that does not answer is in the result's `silent`, with the reason.
        """
        nodes = await self._cluster.retrying(self._cluster.nodes)
        reports: dict[int, NodeDescription] = {}
        silent: dict[int, str] = {}

        async def question(node_id: int) -> None:
            try:
                report = await self._report(node_id)
            except StreamlogError as error:
                silent[node_id] = str(error)
            else:
                if report is not None:
                    reports[node_id] = report

        async with asyncio.TaskGroup() as group:
            for node_id in nodes:
                group.create_task(question(node_id))
        return ClusterReports(reports, silent)

    async def _report(self, node_id: int) -> NodeDescription | None:
        request = DescribeLogDirsRequest(topics=None, include_report=True)
        asked_ms = self._cluster.clock.wall_ms()
        response = await self._cluster.call(
            node_id, request, DescribeLogDirsResponse, timeout_ms=REPORT_TIMEOUT_MS
        )
        answered_ms = self._cluster.clock.wall_ms()
        check(f"broker {node_id}", response.error_code)
        for each in response.results:
            check(f"directory {each.log_dir} of broker {node_id}", each.error_code)
        return _read(response, asked_ms, answered_ms)

    async def describe_api_versions(self) -> dict[int, dict[int, int]]:
        """Return broker to API key to the newest version that it and this client know.

        Brokers that can't be reached are left out.
        """
        found: dict[int, dict[int, int]] = {}
        for node_id in await self._cluster.retrying(self._cluster.nodes):
            try:
                transport = await self._cluster.transport(node_id, Lane.MAIN)
            except ConnectionLost:
                continue
            found[node_id] = versions = {}
            for key in APIS:
                with suppress(UnsupportedVersion):
                    versions[key] = transport.version(key)
        return found


def _read(
    response: DescribeLogDirsResponse, asked_ms: int, answered_ms: int
) -> NodeDescription | None:
    report = response.report
    if report is None:
        return None
    # The broker has read its clock at some moment between the request and the answer.
    middle_ms, error_ms = (asked_ms + answered_ms) // 2, (answered_ms - asked_ms + 1) // 2
    return NodeDescription(
        node_id=report.broker_id,
        epoch=report.broker_epoch,
        directory=report.directory_id,
        applied_offset=report.applied_offset,
        quorum_leader=report.quorum_leader,
        quorum_epoch=report.quorum_epoch,
        is_rejoining=report.is_rejoining,
        strays=report.strays,
        version=report.software_version or None,
        interpreted=report.interpreted_modules if report.interpreted_modules >= 0 else None,
        connections=report.connections if report.connections >= 0 else None,
        clock_ahead_ms=report.clock_ms - middle_ms if report.clock_ms >= 0 else None,
        clock_error_ms=error_ms,
        registrations={
            each.broker_id: Registration(
                epoch=each.broker_epoch,
                is_fenced=each.is_fenced,
                directories=tuple(each.log_dirs),
            )
            for each in report.registrations
        },
        replicas={
            TopicPartition(topic.name, each.partition_index): ReplicaDescription(
                leader_epoch=each.report.leader_epoch,
                in_sync=None if each.report.isr is None else tuple(each.report.isr),
                high_watermark=each.report.high_watermark,
                end_offset=each.report.log_end_offset,
            )
            for result in response.results
            for topic in result.topics
            for each in topic.partitions
            if each.report is not None
        },
    )


METADATA_TOPIC = "__cluster_metadata"


class QuorumAdmin(AdminArea):
    """Describes the metadata quorum (KIP-595)."""

    async def describe_quorum(self) -> QuorumDescription:
        """Return the metadata quorum as its leader knows it.

        Raises:
            UnsupportedVersion: the cluster has no quorum, for example since it uses ZooKeeper.
            NotAuthorized: the user may not describe the cluster.
        """
        partition = DescribeQuorumPartition(partition_index=0)
        request = DescribeQuorumRequest(
            topics=[DescribeQuorumTopic(topic_name=METADATA_TOPIC, partitions=[partition])]
        )

        def read(response: DescribeQuorumResponse) -> QuorumDescription:
            check("describe the quorum", response.error_code, response.error_message)
            found = next((each for topic in response.topics for each in topic.partitions), None)
            if found is None:
                raise CorruptData("the controller's answer to DescribeQuorum has no partition")
            check("describe the quorum", found.error_code, found.error_message)
            return QuorumDescription(
                found.leader_id,
                found.leader_epoch,
                found.high_watermark,
                _replicas(found.current_voters),
                _replicas(found.observers),
            )

        return await self._ask_controller(request, DescribeQuorumResponse, read)


def _replicas(states: Iterable[QuorumReplicaState]) -> tuple[QuorumReplica, ...]:
    return tuple(
        QuorumReplica(
            each.replica_id,
            each.log_end_offset,
            each.last_caught_up_timestamp if each.last_caught_up_timestamp >= 0 else None,
            each.last_fetch_timestamp if each.last_fetch_timestamp >= 0 else None,
            each.is_rejoining,
        )
        for each in sorted(states, key=lambda each: each.replica_id)
    )


PREFERRED, UNCLEAN = 0, 1


class FutureReplica(msgspec.Struct, frozen=True):
    """The copy of a replica that moves to another directory of its broker (KIP-113)."""

    size_bytes: int
    offset_lag: int
    """How many offsets it is behind the replica."""


class LogDir(msgspec.Struct, frozen=True):
    """A log directory of a broker."""

    node_id: int
    path: str
    sizes: Mapping[TopicPartition, int] = msgspec.field(default_factory=dict)
    """Partition to its size in bytes."""
    error: LogError | None = None
    """Why the broker can't describe the directory; None if it can."""
    total_bytes: int = -1
    """The size of its disk; -1 if it is not known."""
    usable_bytes: int = -1
    """What the broker may still write to that disk; -1 if it is not known."""
    futures: Mapping[TopicPartition, FutureReplica] = msgspec.field(default_factory=dict)
    """The partitions that move to this directory."""


class Reassignment(msgspec.Struct, frozen=True):
    """A partition's reassignment in progress (KIP-455)."""

    replicas: tuple[int, ...]
    """All brokers with a replica now: the old and the new ones."""
    adding: tuple[int, ...]
    """Brokers that are getting a replica."""
    removing: tuple[int, ...]
    """Brokers that will lose theirs."""


class ReplicaAdmin(AdminArea):
    """Describes brokers and replicas, elects leaders and moves partitions."""

    async def describe_cluster(self) -> ClusterDescription:
        """Return the live brokers, the controller and the cluster id."""

        def read(response: DescribeClusterResponse) -> ClusterDescription:
            check("describe the cluster", response.error_code, response.error_message)
            brokers = (
                BrokerDescription(each.broker_id, each.host, each.port, each.rack)
                for each in response.brokers
            )
            return _cluster(response.cluster_id, response.controller_id, brokers)

        try:
            return await self._ask_controller(
                DescribeClusterRequest(), DescribeClusterResponse, read
            )
        except UnsupportedVersion:
            return await self._described_by_metadata()

    async def _described_by_metadata(self) -> ClusterDescription:
        """Describe the cluster by Metadata, for brokers before Kafka 2.8."""

        def read(response: MetadataResponse) -> ClusterDescription:
            brokers = (
                BrokerDescription(each.node_id, each.host, each.port, each.rack)
                for each in response.brokers
            )
            return _cluster(response.cluster_id, response.controller_id, brokers)

        request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
        return await self._ask_controller(request, MetadataResponse, read)

    async def describe_partitions(self) -> list[PartitionDescription]:
        """Return all partitions, including internal topics', sorted by topic and number."""

        def read(response: MetadataResponse) -> list[PartitionDescription]:
            return sorted(
                (
                    PartitionDescription(
                        topic.name or "",
                        each.partition_index,
                        each.leader_id,
                        each.leader_epoch,
                        tuple(each.replica_nodes),
                        tuple(each.isr_nodes),
                        tuple(each.offline_replicas),
                    )
                    for topic in response.topics
                    for each in topic.partitions
                ),
                key=lambda each: (each.topic, each.partition),
            )

        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        return await self._ask_controller(request, MetadataResponse, read)

    async def describe_log_dirs(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> list[LogDir]:
        """Return the log directories of all brokers, with the sizes of these partitions or all.

        Raises:
            NotAuthorized: the user may not describe the cluster.
        """
        topics = None if partitions is None else _by_topic(partitions)
        request = DescribeLogDirsRequest(
            topics=None
            if topics is None
            else [DescribableLogDirTopic(topic=t, partitions=ns) for t, ns in topics.items()]
        )

        async def attempt() -> list[LogDir]:
            found: list[LogDir] = []
            for node_id in await self._cluster.nodes():
                response = await self._cluster.call(node_id, request, DescribeLogDirsResponse)
                check(f"directories of broker {node_id}", response.error_code)
                found += _log_dirs(node_id, response)
            return found

        return await self._cluster.retrying(attempt)

    async def alter_replica_log_dirs(
        self, directories: Mapping[TopicPartition, str], *, broker: int
    ) -> dict[TopicPartition, LogError | None]:
        """Move replicas to other log directories of a broker (KIP-113).

        The broker copies them while it serves them; `LogDir.futures` shows how far it is.

        Args:
            directories: partition to the path of a directory, as `describe_log_dirs` returns it.
                The directory in which a replica is ends its move.
            broker: the id of the broker.

        Returns:
            Partition to its error, None if its move has begun. LOG_DIR_NOT_FOUND: the broker has no
            such directory. KAFKA_STORAGE_ERROR: the disk of one of the two has failed.
            INVALID_REPLICA_ASSIGNMENT: the directory is cordoned. REPLICA_NOT_AVAILABLE: the broker
            has no replica; if it gets one, it is created in this directory.

        Raises:
            NotAuthorized: the user may not alter the cluster.
        """
        by_path: dict[str, list[TopicPartition]] = {}
        for partition, path in directories.items():
            by_path.setdefault(path, []).append(partition)
        request = AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path=path,
                    topics=[
                        AlterReplicaLogDirTopic(name=topic, partitions=numbers)
                        for topic, numbers in _by_topic(partitions).items()
                    ],
                )
                for path, partitions in by_path.items()
            ]
        )

        async def attempt() -> dict[TopicPartition, LogError | None]:
            response = await self._cluster.call(broker, request, AlterReplicaLogDirsResponse)
            found: dict[TopicPartition, LogError | None] = {}
            for topic in response.results:
                for each in topic.partitions:
                    partition = TopicPartition(topic.topic_name, each.partition_index)
                    what = f"move {topic.topic_name}-{each.partition_index} on broker {broker}"
                    found[partition] = error = _error(what, each.error_code, None)
                    if isinstance(error, NotAuthorized):
                        raise error  # The response has no code for all.
            return found

        return await self._cluster.retrying(attempt)

    async def elect_leaders(
        self, partitions: Collection[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, LogError | None]:
        """Elect the preferred replicas as leaders (KIP-460).

        Args:
            partitions: the partitions, None for all.
            unclean: elect any live replica of a partition without a leader. Records that this
                replica lacks are lost.

        Returns:
            Partition to its error, None if a leader was elected. ELECTION_NOT_NEEDED means that the
            leader already is the right one. With `partitions=None`, partitions that need no
            election are left out.

        Raises:
            NotAuthorized: the user may not alter the cluster.
        """
        topics = None if partitions is None else _by_topic(partitions)

        def read(response: ElectLeadersResponse) -> dict[TopicPartition, LogError | None]:
            check("elect leaders", response.error_code)
            return {
                TopicPartition(topic.topic, each.partition_id): _error(
                    f"elect a leader of {topic.topic}-{each.partition_id}",
                    each.error_code,
                    each.error_message,
                )
                for topic in response.replica_election_results
                for each in topic.partition_result
            }

        request = ElectLeadersRequest(
            election_type=UNCLEAN if unclean else PREFERRED,
            topic_partitions=None
            if topics is None
            else [ElectedTopicPartitions(topic=t, partitions=ns) for t, ns in topics.items()],
            timeout_ms=ADMIN_TIMEOUT_MS,
        )
        return await self._ask_controller(request, ElectLeadersResponse, read)

    async def alter_partition_reassignments(
        self, replicas: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, LogError | None]:
        """Start to move partitions to other brokers, or cancel moves (KIP-455).

        Args:
            replicas: partition to the ids of its brokers, the preferred leader first; None cancels
                the partition's move.

        Returns:
            Partition to its error; None if the controller has accepted the move.

        Raises:
            NotAuthorized: the user may not alter the cluster.
        """

        def read(
            response: AlterPartitionReassignmentsResponse,
        ) -> dict[TopicPartition, LogError | None]:
            check("move partitions", response.error_code, response.error_message)
            return {
                TopicPartition(topic.name, each.partition_index): _error(
                    f"move {topic.name}-{each.partition_index}",
                    each.error_code,
                    each.error_message,
                )
                for topic in response.responses
                for each in topic.partitions
            }

        topics = [
            ReassignableTopic(
                name=topic,
                partitions=[
                    ReassignablePartition(partition_index=number, replicas=_listed(wanted))
                    for number in numbers
                    for wanted in [replicas[TopicPartition(topic, number)]]
                ],
            )
            for topic, numbers in _by_topic(replicas).items()
        ]
        request = AlterPartitionReassignmentsRequest(timeout_ms=ADMIN_TIMEOUT_MS, topics=topics)
        return await self._ask_controller(request, AlterPartitionReassignmentsResponse, read)

    async def list_partition_reassignments(
        self, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """Return the reassignments in progress, of these partitions or of all."""
        topics = None if partitions is None else _by_topic(partitions)

        def read(
            response: ListPartitionReassignmentsResponse,
        ) -> dict[TopicPartition, Reassignment]:
            check("list reassignments", response.error_code, response.error_message)
            return {
                TopicPartition(topic.name, each.partition_index): Reassignment(
                    tuple(each.replicas), tuple(each.adding_replicas), tuple(each.removing_replicas)
                )
                for topic in response.topics
                for each in topic.partitions
            }

        request = ListPartitionReassignmentsRequest(
            timeout_ms=ADMIN_TIMEOUT_MS,
            topics=None
            if topics is None
            else [
                ListPartitionReassignmentsTopics(name=topic, partition_indexes=numbers)
                for topic, numbers in topics.items()
            ],
        )
        return await self._ask_controller(request, ListPartitionReassignmentsResponse, read)


def _cluster(
    cluster_id: str | None, controller: int, brokers: Iterable[BrokerDescription]
) -> ClusterDescription:
    by_id = tuple(sorted(brokers, key=lambda each: each.node_id))
    return ClusterDescription(cluster_id or "", controller, by_id)


def _log_dirs(node_id: int, response: DescribeLogDirsResponse) -> Iterable[LogDir]:
    for each in response.results:
        found = [
            (TopicPartition(topic.name, one.partition_index), one)
            for topic in each.topics
            for one in topic.partitions
        ]
        sizes = {where: one.partition_size for where, one in found if not one.is_future_key}
        futures = {
            where: FutureReplica(one.partition_size, one.offset_lag)
            for where, one in found
            if one.is_future_key
        }
        error = _error(f"directory {each.log_dir} of broker {node_id}", each.error_code, None)
        yield LogDir(
            node_id, each.log_dir, sizes, error, each.total_bytes, each.usable_bytes, futures
        )


def _error(what: str, error_code: int, message: str | None) -> LogError | None:
    if not error_code:
        return None
    return error_for(error_code, what, message)


def _listed(replicas: Sequence[int] | None) -> list[int] | None:
    return None if replicas is None else list(replicas)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        numbers.setdefault(topic, []).append(partition)
    return numbers


LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
EVERY: Final = "*"
NOTHING: Final[Mapping[TopicPartition, Sequence[int] | None]] = MappingProxyType({})


class ThrottleAdmin(ConfigAdmin, ReplicaAdmin):
    """Limits the bandwidth of partition moves (KIP-73)."""

    async def throttle_moves(
        self,
        bytes_per_s: int,
        moves: Mapping[TopicPartition, Sequence[int] | None] = NOTHING,
    ) -> list[int]:
        """Limit the rate at which each broker sends and fetches the records of moves.

        Call it before the moves start, and again to change the rate. The rate must exceed the rate
        of writes to the moving partitions, or the moves never complete.

        Args:
            bytes_per_s: the limit of each broker in bytes per second; positive.
            moves: moves that are about to start, as in `alter_partition_reassignments`. Moves in
                progress are always included.

        Returns:
            The ids of the brokers that have the limit; empty if no move copies records.

        Raises:
            NotAuthorized: the user may not alter settings.
            UsageError: the rate is not positive.
        """
        if bytes_per_s <= 0:
            raise UsageError(f"the rate is {bytes_per_s} bytes per second: it has to be positive")
        partitions = await self.describe_partitions()
        copies = copied(partitions, await self.list_partition_reassignments(), moves)
        set_before = await self._throttled({each.topic for each in copies})
        for topic, lists in listed(copies).items():
            before = set_before.get(topic, {})
            # `*` already covers every replica of the topic.
            changes: dict[str, Change] = {
                name: Append(",".join(replicas))
                for name, replicas in lists.items()
                if before.get(name) != EVERY
            }
            if changes:
                await self.alter_configs(changes, topic=topic)
        brokers = sorted({each for pair in copies.values() for side in pair for each in side})
        rate = str(bytes_per_s)
        for broker in brokers:
            await self.alter_configs({LEADER_RATE: rate, FOLLOWER_RATE: rate}, broker=broker)
        return brokers

    async def remove_throttles(self) -> list[str]:
        """Remove the limits that `throttle_moves` has set.

        Call it when all moves have completed. A topic whose list is `*` was not throttled by
        `throttle_moves`: that list stays, and all rates stay with it.

        Returns:
            The names of the topics whose limits were removed.

        Raises:
            NotAuthorized: the user may not alter settings.
        """
        topics = {each.topic for each in await self.describe_partitions()}
        throttled = await self._throttled(topics)
        ours = {
            topic: [name for name, replicas in lists.items() if replicas != EVERY]
            for topic, lists in throttled.items()
        }
        if not any(EVERY in lists.values() for lists in throttled.values()) and any(ours.values()):
            # The rates go before the lists. If this call fails in between, the next one still
            # finds the lists, and removes both; without lists it would leave the rates for ever.
            for broker in (await self.describe_cluster()).brokers:
                await self.alter_configs(
                    {LEADER_RATE: None, FOLLOWER_RATE: None}, broker=broker.node_id
                )
        freed = sorted(topic for topic, names in ours.items() if names)
        for topic in freed:
            await self.alter_configs(dict.fromkeys(ours[topic]), topic=topic)
        return freed

    async def _throttled(self, topics: Collection[str]) -> dict[str, dict[str, str]]:
        """Return topic to its lists of throttled replicas, by the setting's name."""
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=TOPIC_RESOURCE,
                    resource_name=topic,
                    configuration_keys=[LEADER_REPLICAS, FOLLOWER_REPLICAS],
                )
                for topic in sorted(topics)
            ]
        )

        def read(response: DescribeConfigsResponse) -> dict[str, dict[str, str]]:
            raise_refused(
                "describe settings of",
                [
                    (each.resource_name, each.error_code, each.error_message)
                    for each in response.results
                ],
            )
            return {
                result.resource_name: {
                    each.name: each.value for each in result.configs if each.value
                }
                for result in response.results
            }

        if not topics:
            return {}
        return await self._ask_controller(request, DescribeConfigsResponse, read)


def copied(
    partitions: Iterable[PartitionDescription],
    under_way: Mapping[TopicPartition, Reassignment],
    moves: Mapping[TopicPartition, Sequence[int] | None],
) -> dict[TopicPartition, tuple[list[int], list[int]]]:
    """Return the brokers that each moving partition is copied from, and those it is copied to.

    Args:
        partitions: all partitions.
        under_way: moves in progress.
        moves: moves that are about to start.
    """
    copies: dict[TopicPartition, tuple[list[int], list[int]]] = {}
    for description in partitions:
        partition = TopicPartition(description.topic, description.partition)
        move = under_way.get(partition)
        coming = () if move is None else move.adding
        sources = [each for each in description.replicas if each not in coming]
        # A new move replaces the move in progress; None cancels it, so nothing is copied.
        wanted = moves.get(partition, coming)
        targets = [each for each in wanted or () if each not in sources]
        if targets:
            copies[partition] = sources, targets
    return copies


def listed(
    copies: Mapping[TopicPartition, tuple[Sequence[int], Sequence[int]]],
) -> dict[str, dict[str, list[str]]]:
    """Return topic to its lists of throttled replicas, as `partition:broker` entries."""
    lists: dict[str, dict[str, list[str]]] = {}
    for (topic, number), (sources, targets) in sorted(copies.items()):
        of_topic = lists.setdefault(topic, {LEADER_REPLICAS: [], FOLLOWER_REPLICAS: []})
        of_topic[LEADER_REPLICAS] += (f"{number}:{broker}" for broker in sources)
        of_topic[FOLLOWER_REPLICAS] += (f"{number}:{broker}" for broker in targets)
    return lists
