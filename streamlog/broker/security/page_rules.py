"""The rule of DescribeTopicPartitions: topics page by page, for who may DESCRIBE them.

What may not be seen takes no room on a page, and no cursor names it: so what is asked for is
narrowed before the page is made, and not the page afterwards.
"""

from __future__ import annotations

from streamlog.broker.security.access_checks import Access, Verdict, split
from streamlog.protocol.acls import Operation, ResourceType
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.partitions_and_replicas import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseTopic,
    TopicRequest,
)


def describe_topic_partitions(request: DescribeTopicPartitionsRequest, access: Access) -> Verdict:
    """DESCRIBE on topics; where all are asked for, others are not told of."""
    asked = [topic.name for topic in request.topics]
    kept, refused = split(
        asked or access.topics(), lambda name: access.topic(Operation.DESCRIBE, name)
    )
    cursor = request.cursor
    if cursor is not None and cursor.topic_name not in kept:
        if not asked or cursor.topic_name in refused:
            request.cursor = None  # The page begins with the next one that may be seen.
        kept = [name for name in kept if name >= cursor.topic_name]
    request.topics = [TopicRequest(name=name) for name in kept]
    answers = [
        DescribeTopicPartitionsResponseTopic(
            name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED
        )
        for name in (refused if asked else ())
    ]
    if not request.topics:
        return Verdict(DescribeTopicPartitionsResponse(topics=answers))

    def finish(response: DescribeTopicPartitionsResponse) -> None:
        for each in response.topics:
            if not each.error_code:
                each.topic_authorized_operations = access.operations(
                    ResourceType.TOPIC, each.name or ""
                )
        response.topics = [*response.topics, *answers]

    return Verdict(finish=finish)
