"""NodeReports: what this broker process says of itself and of its own replicas.

The controller's metadata says what a broker *had* when it registered and what its leaders have
confirmed since. A report says what the process that answers *has*: which directory, under which
registration, how much of the metadata log, and for each replica the end of what is durable.
`streamlog cluster status` compares the two (`client/admin/cluster_descriptions`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.broker.cluster.broker_session import id_bytes
from streamlog.protocol.messages.partitions_and_replicas import (
    NodeReport,
    RegistrationReport,
    ReplicaReport,
)

if TYPE_CHECKING:
    from streamlog.broker.cluster.node import ClusterNode
    from streamlog.broker.replication.replicas import Replicas
    from streamlog.broker.storage.log_directory import LogDirectory

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
