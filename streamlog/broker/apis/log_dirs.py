"""DescribeLogDirs, and the report that this broker process gives of itself.

All partitions lie in one directory. A request that asks for a report also gets what the process
that answers has: its directory, its registration, its position in the metadata log, and for each
replica the end of what is durable. The controller's metadata says what a broker had when it
registered and what leaders have confirmed since; `streamlog cluster status` compares the two
(`client/admin/cluster_descriptions`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from streamlog.broker.cluster.broker_session import id_bytes
from streamlog.errors import StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.partitions_and_replicas import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    NodeReport,
    RegistrationReport,
    ReplicaReport,
)
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamlog.broker.cluster.node import ClusterNode
    from streamlog.broker.replication.replicas import Replicas
    from streamlog.broker.storage.log_directory import LogDirectory


UNMEASURED = -1


class LogDirReports(Protocol):
    """Port: what this process says of itself."""

    def node(self) -> NodeReport:
        """Its registration, its directory, its part in the quorum."""
        ...

    def replica(self, topic: str, partition: int) -> ReplicaReport | None:
        """One replica; None if the metadata has not put one here."""
        ...


class PartitionRequests:
    """Answers for partitions as files of this broker."""

    def __init__(self, directory: LogDirectory, reports: LogDirReports) -> None:
        self._directory = directory
        self._reports = reports

    def handlers(self) -> dict[type[Message], Callable[..., Message]]:
        """Return the handler of each request type."""
        return {
            DescribeLogDirsRequest: lambda request, _: self.log_dirs(request),
        }

    def log_dirs(self, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        """How large partitions are on disk; those that are not there are left out, as in Kafka."""
        topics = self._directory.topics
        here = {name: sorted(state.partitions) for name, state in topics.items()}
        asked: dict[str, Sequence[int]] = {**here}
        if request.topics is not None:
            asked = {
                each.topic: [number for number in each.partitions if number in here[each.topic]]
                for each in request.topics
                if each.topic in here
            }
        try:
            result = DescribeLogDirsResult(
                log_dir=self._directory.path,
                topics=[
                    self._measured(name, numbers, reports=request.include_report)
                    for name, numbers in asked.items()
                ],
            )
        except StreamlogError:
            result = DescribeLogDirsResult(
                error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=self._directory.path
            )
        response = DescribeLogDirsResponse(results=[result])
        if request.include_report:
            response.report = self._reports.node()
        return response

    def _measured(
        self, name: str, numbers: Sequence[int], *, reports: bool
    ) -> DescribeLogDirsTopic:
        return DescribeLogDirsTopic(
            name=name,
            partitions=[
                DescribeLogDirsPartition(
                    partition_index=number,
                    # Reports are asked for again and again, and sizes are looked up in files.
                    partition_size=(
                        UNMEASURED if reports else self._directory.partition_bytes(name, number)
                    ),
                    report=self._reports.replica(name, number) if reports else None,
                )
                for number in numbers
            ],
        )


NO_LEADER = -1


class NodeReports:
    """Reports of one broker process."""

    def __init__(self, directory: LogDirectory, member: ClusterNode, replicas: Replicas) -> None:
        self._directory = directory
        self._member = member
        self._replicas = replicas

    def node(self) -> NodeReport:
        """The process: its registration, its directory, its part in the quorum."""
        member, metadata = self._member, self._member.metadata
        view = member.quorum.replicas()
        broker_id, broker_epoch = member.identity()
        return NodeReport(
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            directory_id=id_bytes(self._directory.directory_id),
            applied_offset=member.quorum.applied_offset,
            quorum_leader=NO_LEADER if view.leader_id is None else view.leader_id,
            quorum_epoch=view.epoch,
            is_rejoining=member.quorum.is_rejoining,
            strays=self._directory.count_strays(),
            registrations=[
                RegistrationReport(
                    broker_id=each.broker_id,
                    broker_epoch=each.epoch,
                    is_fenced=each.is_fenced,
                    log_dirs=list(each.directories),
                )
                for each in metadata.brokers.values()
            ],
        )

    def replica(self, topic: str, partition: int) -> ReplicaReport | None:
        """One replica; None if the metadata has not put one here."""
        replica = self._replicas.get(topic, partition)
        if replica is None:
            return None
        leader, follower = replica.machine.leader, replica.machine.follower
        facts = replica.facts
        report = ReplicaReport(
            isr=None, high_watermark=facts.high_watermark, log_end_offset=facts.counted_offset
        )
        if replica.is_alone:
            # Nobody follows: what is durable is committed, and the facts are not kept up to date.
            durable = replica.log.synced.offset
            report.high_watermark = report.log_end_offset = durable
        if leader is not None:
            report.leader_epoch, report.isr = leader.epoch, sorted(leader.isr)
        elif follower is not None:
            report.leader_epoch = follower.epoch
        return report
