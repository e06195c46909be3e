"""PartitionRequests: CreatePartitions and DescribeLogDirs.

Partitions can be added to a topic, never taken away: keys that come afterwards may go elsewhere
than before, which is for who adds them to bear. This broker holds all of them, in one directory.
A refusal of one topic is that one's answer and says what would be taken instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamlog.broker.config import PARTITIONS_MAX
from streamlog.errors import LogError, StreamlogError, UnknownTopicOrPartition
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
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

    def __init__(self, directory: LogDirectory, *, internal_topics: frozenset[str]) -> None:
        self._directory = directory
        self._internal_topics = internal_topics

    def handlers(self) -> dict[Any, Callable[..., Message]]:
        """Who answers what."""
        return {
            CreatePartitionsRequest: lambda request, _: self.create(request),
            DescribeLogDirsRequest: lambda request, _: self.log_dirs(request),
        }

    def create(self, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
        """Give topics more partitions, or with `validate_only` say what would come of it."""
        counts = Counter(topic.name for topic in request.topics)
        results = []
        for topic in request.topics:
            result = CreatePartitionsTopicResult(name=topic.name)
            try:
                if counts[topic.name] > 1:
                    raise error_for(
                        ErrorCode.INVALID_REQUEST, f"{topic.name} is {counts[topic.name]} times in"
                    )
                self._check(topic)
                if not request.validate_only:
                    self._directory.add_partitions(topic.name, topic.count)
            except LogError as error:
                result.error_code, result.error_message = error.code, str(error)
            except StreamlogError as error:
                result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                result.error_message = str(error)
            results.append(result)
        return CreatePartitionsResponse(results=results)

    def _check(self, topic: CreatePartitionsTopic) -> None:
        state = self._directory.topics.get(topic.name)
        if state is None:
            raise UnknownTopicOrPartition(f"there is no topic {topic.name!r}")
        if topic.name in self._internal_topics:
            raise error_for(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic.name} is the broker's own")
        now = len(state.partitions)
        if not now < topic.count <= PARTITIONS_MAX:
            raise error_for(
                ErrorCode.INVALID_PARTITIONS,
                f"{topic.name} has {now} partitions and can't get {topic.count}: it has to be more,"
                f" and at most {PARTITIONS_MAX}",
            )
        if topic.assignments is not None:
            self._check_assignments(topic.name, topic.count - now, topic.assignments)

    def _check_assignments(
        self, name: str, added: int, assignments: Sequence[CreatePartitionsAssignment]
    ) -> None:
        own = [self._directory.node_id]
        if len(assignments) != added or any(each.broker_ids != own for each in assignments):
            raise error_for(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{name}: {added} partitions are added, each of them can only be on broker"
                f" {own[0]}; {len(assignments)} are assigned",
            )

    def log_dirs(self, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
        """How large partitions are on disk; those that are not there are left out, as in Kafka."""
        topics = self._directory.topics
        counts = {name: len(state.partitions) for name, state in topics.items()}
        asked: dict[str, Sequence[int]] = {name: range(count) for name, count in counts.items()}
        if request.topics is not None:
            asked = {
                each.topic: [n for n in each.partitions if 0 <= n < counts[each.topic]]
                for each in request.topics
                if each.topic in counts
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
