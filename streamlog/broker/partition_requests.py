"""PartitionRequests: DescribeLogDirs, partitions as files of this broker, all in one directory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamlog.errors import StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.partitions import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamlog.broker.storage.log_directory import LogDirectory


class PartitionRequests:
    """Answers for partitions as files of this broker."""

    def __init__(self, directory: LogDirectory) -> None:
        self._directory = directory

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
                topics=[self._measured(name, numbers) for name, numbers in asked.items()],
            )
        except StreamlogError:
            result = DescribeLogDirsResult(
                error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=self._directory.path
            )
        return DescribeLogDirsResponse(results=[result])

    def _measured(self, name: str, numbers: Sequence[int]) -> DescribeLogDirsTopic:
        return DescribeLogDirsTopic(
            name=name,
            partitions=[
                DescribeLogDirsPartition(
                    partition_index=number,
                    partition_size=self._directory.partition_bytes(name, number),
                )
                for number in numbers
            ],
        )
