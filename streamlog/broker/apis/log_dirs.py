"""DescribeLogDirs and AlterReplicaLogDirs: the directories of partitions, and moves between them.

There is one result per directory (`log.dirs`), with the space of its disk (KIP-827). A partition
that moves is in two: its copy has `is_future_key`, and lags behind by `offset_lag`. With
`include_report` the response also says what this process has: its directory, its registration, its
position in the metadata log, its release and clock, and the durable end of each replica. The
controller's metadata, in contrast, says what a broker had when it registered and what leaders have
confirmed since. `streamlog cluster status` compares the two (`client/admin/cluster_descriptions`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from streamlog import repeated
from streamlog.broker.cluster.broker_session import id_bytes
from streamlog.broker.handlers import Handlers, entry
from streamlog.broker.storage.disk.descriptors import shares, soft_limit
from streamlog.errors import LogDirectoryError, StreamlogError
from streamlog.metrics.build_info import interpreted_modules, release
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.partitions_and_replicas import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    NodeReport,
    RegistrationReport,
    ReplicaReport,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from streamlog.broker.cluster.node import ClusterNode
    from streamlog.broker.replication.log_dir_moves import LogDirMoves
    from streamlog.broker.replication.partition import Partitions
    from streamlog.broker.replication.replicas import Replicas
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.broker.storage.volumes import Volume
    from streamlog.clock import Clock

_log = repeated.logger(__name__)

UNMEASURED = -1
"""The size of a partition whose files were not looked at."""


class LogDirReports(Protocol):
    """Port: this process's report on itself and its replicas."""

    def node(self) -> NodeReport:
        """Return the process's registration, its directory, and its state in the quorum."""
        ...

    def replica(self, topic: str, partition: int) -> ReplicaReport | None:
        """Return the state of a replica; None if the metadata assigns none to this broker."""
        ...


class PartitionRequests:
    """Handles requests about the files of partitions."""

    def __init__(
        self,
        directory: LogDirectory,
        partitions: Partitions,
        moves: LogDirMoves,
        reports: LogDirReports,
    ) -> None:
        self._directory = directory
        self._partitions = partitions
        self._moves = moves
        self._reports = reports

    def handlers(self) -> Handlers:
        """Return the handler of each request type."""
        return dict(
            [
                entry(DescribeLogDirsRequest, lambda request, _: self.log_dirs(request)),
                entry(AlterReplicaLogDirsRequest, lambda request, _: self.alter(request)),
            ]
        )

    def alter(self, request: AlterReplicaLogDirsRequest) -> AlterReplicaLogDirsResponse:
        """Move partitions to other directories; each has its own result."""
        codes: dict[str, dict[int, int]] = {}
        targets: dict[tuple[str, int], Volume] = {}
        volumes = {each.path: each for each in self._directory.volumes}
        asked = [
            (topic.name, number, volumes.get(directory.path.rstrip("/") or "/"))
            for directory in request.dirs
            for topic in directory.topics
            for number in topic.partitions
        ]
        for name, number, volume in asked:
            code = self._check_move(name, number, volume)
            # A partition that is named twice goes where it is named last.
            codes.setdefault(name, {})[number] = code
            if volume is not None and not code:
                targets[name, number] = volume
        if targets:
            try:
                self._moves.begin(targets)
            except LogDirectoryError as error:
                _log.error("partitions can't be moved between directories: %s", error)
                for name, number in targets:
                    codes[name][number] = ErrorCode.KAFKA_STORAGE_ERROR
        return AlterReplicaLogDirsResponse(
            results=[
                AlterReplicaLogDirTopicResult(
                    topic_name=name,
                    partitions=[
                        AlterReplicaLogDirPartitionResult(partition_index=number, error_code=code)
                        for number, code in of_topic.items()
                    ],
                )
                for name, of_topic in codes.items()
            ]
        )

    def _check_move(self, topic: str, number: int, volume: Volume | None) -> int:
        """Return the error of a move; 0 if there is none."""
        directory = self._directory
        if volume is None:
            return ErrorCode.LOG_DIR_NOT_FOUND
        if volume.failure is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        state = directory.topics.get(topic)
        if state is None or number not in state.partitions:
            if not self._partitions.exists(topic, number):
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            # As in Kafka: a reassignment first chooses the directory of a replica, and then the
            # broker. The error says that there is nothing to move yet.
            directory.volumes.prefer(topic, number, volume)
            return ErrorCode.REPLICA_NOT_AVAILABLE
        present = directory.volume_of(topic, number)
        if present.failure is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        # The present directory cancels a move, and may be cordoned (KIP-1066).
        is_cordoned = volume.path in directory.config.cordoned_directories
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT if is_cordoned and volume is not present else 0

    def log_dirs(self, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        """Return the sizes of partitions on disk; missing partitions are left out, as in Kafka."""
        asked: Mapping[str, Collection[int]] | None = None
        if request.topics is not None:
            asked = {each.topic: each.partitions for each in request.topics}
        here: dict[Volume, dict[str, list[int]]] = {each: {} for each in self._directory.volumes}
        for name, state in self._directory.topics.items():
            for number in sorted(state.partitions):
                if asked is None or number in asked.get(name, ()):
                    volume = self._directory.volume_of(name, number)
                    here[volume].setdefault(name, []).append(number)
        # Not in reports, which are about what the cluster relies on.
        copies = [
            each
            for each in ([] if request.include_report else self._directory.moves())
            if asked is None or each[1] in asked.get(each[0], ())
        ]
        response = DescribeLogDirsResponse(
            results=[
                self._described(volume, topics, copies, reports=request.include_report)
                for volume, topics in here.items()
            ]
        )
        if request.include_report:
            response.report = self._reports.node()
        return response

    def _described(
        self,
        volume: Volume,
        topics: Mapping[str, Sequence[int]],
        copies: Sequence[tuple[str, int, Volume]],
        *,
        reports: bool,
    ) -> DescribeLogDirsResult:
        try:
            space = volume.space()
            return DescribeLogDirsResult(
                log_dir=volume.path,
                topics=[
                    self._measured(name, numbers, reports=reports)
                    for name, numbers in topics.items()
                ]
                + [self._copied(*each) for each in copies if each[2] is volume],
                total_bytes=space.total_bytes,
                usable_bytes=space.usable_bytes,
            )
        except StreamlogError:
            return DescribeLogDirsResult(
                error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=volume.path
            )

    def _copied(self, name: str, number: int, volume: Volume) -> DescribeLogDirsTopic:
        """Describe a copy; `offset_lag` counts the records that it lacks."""
        log = self._directory.log(name, number)
        lag = log.log_end_offset - max(
            self._moves.end_offset(name, number, volume), log.log_start_offset
        )
        return DescribeLogDirsTopic(
            name=name,
            partitions=[
                DescribeLogDirsPartition(
                    partition_index=number,
                    partition_size=self._directory.copy_bytes(name, number, volume),
                    offset_lag=max(lag, 0),
                    is_future_key=True,
                )
            ],
        )

    def _measured(
        self, name: str, numbers: Sequence[int], *, reports: bool
    ) -> DescribeLogDirsTopic:
        return DescribeLogDirsTopic(
            name=name,
            partitions=[
                DescribeLogDirsPartition(
                    partition_index=number,
                    # No sizes in reports: `cluster status` polls them, and a size takes a look at
                    # every file of the partition.
                    partition_size=UNMEASURED if reports else self._size_bytes(name, number),
                    report=self._reports.replica(name, number) if reports else None,
                )
                for number in numbers
            ],
        )

    def _size_bytes(self, name: str, number: int) -> int:
        log = self._directory.log(name, number)
        # A look at the files of 10,000 partitions would hold up all requests for half a second.
        if log.knows_its_size:
            return log.size_bytes
        return self._directory.partition_bytes(name, number)


NO_LEADER = -1


class NodeReports:
    """The reports of one broker process."""

    def __init__(
        self, directory: LogDirectory, member: ClusterNode, replicas: Replicas, clock: Clock
    ) -> None:
        self._directory = directory
        self._member = member
        self._replicas = replicas
        self._clock = clock

    def node(self) -> NodeReport:
        """Return the process's registration, its directory, and its state in the quorum."""
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
            clock_ms=self._clock.wall_ms(),
            software_version=release(),
            interpreted_modules=len(interpreted_modules()),
            connections=shares(soft_limit()).connections,
        )

    def replica(self, topic: str, partition: int) -> ReplicaReport | None:
        """Return the state of a replica; None if the metadata assigns none to this broker."""
        replica = self._replicas.get(topic, partition)
        if replica is None:
            return None
        leader, follower = replica.machine.leader, replica.machine.follower
        facts = replica.facts
        report = ReplicaReport(
            isr=None, high_watermark=facts.high_watermark, log_end_offset=facts.counted_offset
        )
        if replica.is_alone:
            # Without followers, everything durable is committed, and the facts, which only the
            # replication protocol needs, are not kept up to date.
            durable = replica.log.synced.offset
            report.high_watermark = report.log_end_offset = durable
        if leader is not None:
            report.leader_epoch, report.isr = leader.epoch, sorted(leader.isr)
        elif follower is not None:
            report.leader_epoch = follower.epoch
        return report
