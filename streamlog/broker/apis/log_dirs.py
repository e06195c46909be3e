"""PartitionRequests: DescribeLogDirs, partitions as files of this broker, all in one directory.

A request that asks for a report is also told what this process says of itself (`node_reports`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from streamlog.errors import StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.partitions_and_replicas import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    NodeReport,
    ReplicaReport,
)
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

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

    def handlers(self) -> dict[Any, Callable[..., Message]]:
        """Who answers what."""
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
