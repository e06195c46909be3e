"""TopicPages: DescribeTopicPartitions (KIP-966), topics and their partitions page by page.

Topics come by name. A page ends after so many partitions, in the middle of a topic if need be, and
says where the next one begins. Topics that are not there take no room on it, and where all are
asked for they are left out: one may have been deleted since the page before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from streamlog.broker.admin import TOPIC_OPERATIONS, offline
from streamlog.broker.quorum.registrations import NO_LEADER
from streamlog.broker.quorum.topic_control import check_name
from streamlog.errors import LogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.quorum.metadata import ClusterMetadata, TopicRegistration
    from streamlog.broker.quorum.registrations import PartitionRegistration

PAGE_PARTITIONS_MAX: Final = 2_000
"""On one page, whatever is asked for; Kafka's `max.request.partition.size.limit`."""


class TopicPages:
    """Shows topics page by page."""

    def __init__(self, metadata: ClusterMetadata, *, internal_topics: frozenset[str]) -> None:
        self._metadata = metadata
        self._internal_topics = internal_topics

    def handlers(self) -> dict[Any, Callable[..., Message]]:
        """Who answers what."""
        return {DescribeTopicPartitionsRequest: lambda request, _: self.describe(request)}

    def describe(self, request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
        """The page that begins at the cursor."""
        cursor = request.cursor or Cursor()
        asked = {topic.name for topic in request.topics}
        if request.cursor is not None and (
            cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)
        ):
            return DescribeTopicPartitionsResponse(
                topics=[_missing(name, ErrorCode.INVALID_REQUEST) for name in sorted(asked)]
            )
        names = sorted(
            name for name in asked or self._metadata.topic_names() if name >= cursor.topic_name
        )
        limit = max(min(request.response_partition_limit, PAGE_PARTITIONS_MAX), 1)
        return self._page(names, cursor, limit, with_missing=bool(asked))

    def _page(
        self, names: Iterable[str], cursor: Cursor, room: int, *, with_missing: bool
    ) -> DescribeTopicPartitionsResponse:
        page = DescribeTopicPartitionsResponse()
        for name in names:
            if not room:
                page.next_cursor = Cursor(topic_name=name, partition_index=0)
                break
            state = self._metadata.topic(name)
            if state is None:
                if with_missing:
                    page.topics.append(_missing(name, _why_missing(name)))
                continue
            first = cursor.partition_index if name == cursor.topic_name else 0
            numbers = range(len(state.partitions))[first : first + room]
            page.topics.append(self._described(state, numbers))
            room -= len(numbers)
            if numbers and numbers[-1] + 1 < len(state.partitions):
                page.next_cursor = Cursor(topic_name=name, partition_index=numbers[-1] + 1)
                break
        return page

    def _described(
        self, state: TopicRegistration, numbers: Sequence[int]
    ) -> DescribeTopicPartitionsResponseTopic:
        return DescribeTopicPartitionsResponseTopic(
            name=state.name,
            topic_id=state.topic_id,
            is_internal=state.name in self._internal_topics,
            partitions=[self._partition(number, state.partitions[number]) for number in numbers],
            topic_authorized_operations=TOPIC_OPERATIONS,
        )

    def _partition(
        self, number: int, partition: PartitionRegistration
    ) -> DescribeTopicPartitionsResponsePartition:
        has_leader = partition.leader != NO_LEADER
        return DescribeTopicPartitionsResponsePartition(
            error_code=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=number,
            leader_id=partition.leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=list(partition.replicas),
            isr_nodes=list(partition.isr),
            eligible_leader_replicas=list(partition.elr),
            last_known_elr=[],
            offline_replicas=offline(self._metadata, partition),
        )


def _missing(name: str, code: int) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(name=name, error_code=code)


def _why_missing(name: str) -> int:
    try:
        check_name(name)
    except LogError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
