"""ReplicaAdmin: where partitions are, who leads them, and how they are moved.

The part of `Admin` that is about brokers and what they hold: DescribeCluster (KIP-700),
DescribeLogDirs (KIP-113), ElectLeaders (KIP-460), reassignments (KIP-455). What is done to
several partitions is told partition by partition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from streamlog.assignors import TopicPartition
from streamlog.client.admin_room import ADMIN_TIMEOUT_MS, AdminRoom, check
from streamlog.client.cluster_descriptions import (
    BrokerDescription,
    ClusterDescription,
    PartitionDescription,
)
from streamlog.errors import LogError, UnsupportedVersion
from streamlog.protocol.error_codes import error_for
from streamlog.protocol.messages.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)
from streamlog.protocol.messages.partitions import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from streamlog.protocol.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
    TopicPartitions,
)

PREFERRED, UNCLEAN = 0, 1


@dataclass(frozen=True, slots=True)
class LogDir:
    """A directory in which a broker has partitions."""

    node_id: int
    path: str
    sizes: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Bytes of each partition."""
    error: LogError | None = None
    """Why the broker can't say."""


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition on its way: the brokers that hold it, and those that come and go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class ReplicaAdmin(AdminRoom):
    """Looks after brokers and what they hold."""

    async def describe_cluster(self) -> ClusterDescription:
        """The brokers there are, and which of them manages topics."""

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
        """As brokers before Kafka 2.8 tell it."""

        def read(response: MetadataResponse) -> ClusterDescription:
            brokers = (
                BrokerDescription(each.node_id, each.host, each.port, each.rack)
                for each in response.brokers
            )
            return _cluster(response.cluster_id, response.controller_id, brokers)

        request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
        return await self._ask_controller(request, MetadataResponse, read)

    async def describe_partitions(self) -> list[PartitionDescription]:
        """All partitions of all topics, internal ones too, by topic and number."""

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
        """The directories of all brokers, with these partitions in them, or with all.

        Raises:
            NotAuthorized: this is not for everybody to know.
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

    async def elect_leaders(
        self, partitions: Collection[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, LogError | None]:
        """Have the preferred replicas lead these partitions, or all of them.

        Returned is what became of each partition that was named, or of those where something was
        to be done: an error of code ELECTION_NOT_NEEDED says that the leader is the right one
        already. With `unclean` it is any replica that lives, where nobody leads: records that it
        does not have are lost.

        Raises:
            NotAuthorized: this is not for everybody to do.
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
            else [TopicPartitions(topic=t, partitions=ns) for t, ns in topics.items()],
            timeout_ms=ADMIN_TIMEOUT_MS,
        )
        return await self._ask_controller(request, ElectLeadersResponse, read)

    async def alter_partition_reassignments(
        self, replicas: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, LogError | None]:
        """Begin to move partitions to these brokers, or with None give it up; told for each.

        Raises:
            NotAuthorized: this is not for everybody to do.
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
        """Those of these partitions, or of all, that are being moved."""
        topics = None if partitions is None else _by_topic(partitions)

        def read(
            response: ListPartitionReassignmentsResponse,
        ) -> dict[TopicPartition, Reassignment]:
            check("partitions that are moved", response.error_code, response.error_message)
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
        sizes = {
            TopicPartition(topic.name, partition.partition_index): partition.partition_size
            for topic in each.topics
            for partition in topic.partitions
        }
        error = _error(f"directory {each.log_dir} of broker {node_id}", each.error_code, None)
        yield LogDir(node_id, each.log_dir, sizes, error)


def _error(what: str, error_code: int, message: str | None) -> LogError | None:
    if not error_code:
        return None
    return error_for(error_code, what + (f": {message}" if message else ""))


def _listed(replicas: Sequence[int] | None) -> list[int] | None:
    return None if replicas is None else list(replicas)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        numbers.setdefault(topic, []).append(partition)
    return numbers
