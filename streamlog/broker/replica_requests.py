"""ReplicaRequests: ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments.

This broker is alone: it leads all partitions and holds them, so no election is needed, nothing is
ever being moved, and the one place where a partition can go is where it is. Tools of clusters
learn that here in Kafka's own words, for each partition that they name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from streamlog.broker.security.rules import not_elected
from streamlog.errors import LogError, UnknownTopicOrPartition
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    PartitionResult,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.replication.partition import Partitions

ELECTION_TYPES: Final = (0, 1)
"""The preferred replica; or one that lives, where nobody is in sync."""


class ReplicaRequests:
    """Answers who leads and who holds partitions."""

    def __init__(self, partitions: Partitions, *, node_id: int) -> None:
        self._partitions = partitions
        self._node_id = node_id

    def handlers(self) -> dict[Any, Callable[..., Message]]:
        """Who answers what."""
        return {
            ElectLeadersRequest: lambda request, _: self.elect(request),
            AlterPartitionReassignmentsRequest: lambda request, _: self.reassign(request),
            ListPartitionReassignmentsRequest: lambda _, __: ListPartitionReassignmentsResponse(
                error_message=None
            ),
        }

    def elect(self, request: ElectLeadersRequest) -> ElectLeadersResponse:
        """That no partition needs it; if all were meant, those that need none are not listed."""
        if request.election_type not in ELECTION_TYPES:
            return not_elected(
                request,
                ErrorCode.INVALID_REQUEST,
                f"there is no election type {request.election_type}: 0 is the preferred leader,"
                " 1 any that lives",
            )
        if request.topic_partitions is None:
            nothing = [ReplicaElectionResult(topic=name) for name in self._partitions.names()]
            return ElectLeadersResponse(replica_election_results=nothing)
        return ElectLeadersResponse(
            replica_election_results=[
                ReplicaElectionResult(
                    topic=asked.topic,
                    partition_result=[self._elected(asked.topic, n) for n in asked.partitions],
                )
                for asked in request.topic_partitions
            ]
        )

    def _elected(self, topic: str, number: int) -> PartitionResult:
        try:
            self._check(topic, number)
        except LogError as error:
            code, message = error.code, str(error)
        else:
            code = ErrorCode.ELECTION_NOT_NEEDED
            message = f"broker {self._node_id} leads {topic}-{number}, and holds it alone"
        return PartitionResult(partition_id=number, error_code=code, error_message=message)

    def reassign(
        self, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        """That a partition is where it shall be, or can't be there."""
        return AlterPartitionReassignmentsResponse(
            error_message=None,
            responses=[
                ReassignableTopicResponse(
                    name=topic.name,
                    partitions=[self._reassigned(topic.name, each) for each in topic.partitions],
                )
                for topic in request.topics
            ],
        )

    def _reassigned(
        self, topic: str, wanted: ReassignablePartition
    ) -> ReassignablePartitionResponse:
        number = wanted.partition_index
        result = ReassignablePartitionResponse(partition_index=number, error_message=None)
        try:
            self._check(topic, number)
            if wanted.replicas is None:
                raise error_for(
                    ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{topic}-{number} is not being moved"
                )
            if wanted.replicas != [self._node_id]:
                raise error_for(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"{topic}-{number} can't be on brokers {wanted.replicas}: there is only broker"
                    f" {self._node_id}, which has it",
                )
        except LogError as error:
            result.error_code, result.error_message = error.code, str(error)
        return result

    def _check(self, topic: str, number: int) -> None:
        count = self._partitions.partitions(topic)
        if not count:
            raise UnknownTopicOrPartition(f"there is no topic {topic!r}")
        if not 0 <= number < count:
            raise UnknownTopicOrPartition(
                f"{topic} has {count} partitions, and no partition {number}"
            )
