"""DescribeTopicPartitions: pages hold every partition once, in order, at any page size."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.apis import metadata
from streamlog.broker.broker import OFFSETS_TOPIC, Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.security import SecurityConfig
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.partitions_and_replicas import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from tests.broker.apis.test_security import OP, TOPIC, allow, ask_as
from tests.broker.node import Node, ask, create

UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def page_request(
    *names: str, limit: int = 2_000, cursor: tuple[str, int] | None = None
) -> DescribeTopicPartitionsRequest:
    return DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )


def contents_of(page: DescribeTopicPartitionsResponse) -> list[tuple[str | None, int, list[int]]]:
    return [
        (topic.name, topic.error_code, [each.partition_index for each in topic.partitions])
        for topic in page.topics
    ]


def cursor_of(page: DescribeTopicPartitionsResponse) -> tuple[str, int] | None:
    cursor = page.next_cursor
    return None if cursor is None else (cursor.topic_name, cursor.partition_index)


async def page_of(
    broker: Broker, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    return await ask(broker, request, DescribeTopicPartitionsResponse)


def test_a_page_describes_topics_and_partitions(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker, "b")
        create(broker, "a", 2)
        page = await page_of(broker, page_request())
        assert cursor_of(page) is None
        assert contents_of(page) == [("a", 0, [0, 1]), ("b", 0, [0])]
        topic = page.topics[0]
        assert topic.topic_id == broker.directory.topics["a"].topic_id
        assert not topic.is_internal
        assert topic.topic_authorized_operations > 0
        partition = topic.partitions[1]
        assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, [1], [1])
        assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])
        assert partition.leader_epoch == 0

    node.run(story)


def test_internal_topics_are_marked(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker, OFFSETS_TOPIC, 2)
        (topic,) = (await page_of(broker, page_request())).topics
        assert topic.is_internal

    node.run(story)


def test_named_topics_that_are_missing_or_invalid_are_reported(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker, "b")
        page = await page_of(broker, page_request("c", "b", "b", "a b"))
        invalid = ErrorCode.INVALID_TOPIC_EXCEPTION
        assert contents_of(page) == [("a b", invalid, []), ("b", 0, [0]), ("c", UNKNOWN, [])]

    node.run(story)


@given(
    topics=st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 5), max_size=5),
    limit=st.integers(-1, 7),
)
def test_pages_hold_every_partition_once(topics: Mapping[str, int], limit: int) -> None:
    async def story(broker: Broker) -> None:
        for name, partitions in topics.items():
            create(broker, name, partitions)
        for names in ([], sorted(topics)):
            seen: list[tuple[str | None, int]] = []
            cursor = None
            while True:
                page = await page_of(broker, page_request(*names, limit=limit, cursor=cursor))
                found = [
                    (name, number) for name, _, numbers in contents_of(page) for number in numbers
                ]
                assert len(found) <= max(limit, 1)
                seen += found
                cursor = cursor_of(page)
                if cursor is None:
                    break
                assert len(found) == max(limit, 1), "a page that is not full is the last one"
            assert seen == [(name, n) for name in sorted(topics) for n in range(topics[name])]

    Node().run(story)


def test_no_page_is_larger_than_the_broker_allows(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "PAGE_PARTITIONS_MAX", 3)

    async def story(broker: Broker) -> None:
        create(broker, "t", 4)
        page = await page_of(broker, page_request(limit=1_000_000))
        assert (contents_of(page), cursor_of(page)) == ([("t", 0, [0, 1, 2])], ("t", 3))

    node.run(story)


@pytest.mark.parametrize("cursor", [("b", -1), ("c", 0)])
def test_a_cursor_outside_the_named_topics_is_refused(node: Node, cursor: tuple[str, int]) -> None:
    async def story(broker: Broker) -> None:
        create(broker, "b")
        page = await page_of(broker, page_request("b", cursor=cursor))
        assert contents_of(page) == [("b", ErrorCode.INVALID_REQUEST, [])]

    node.run(story)


def test_a_cursor_at_a_deleted_topic_continues_with_the_next_one(node: Node) -> None:
    async def story(broker: Broker) -> None:
        create(broker, "a")
        create(broker, "c")
        page = await page_of(broker, page_request(cursor=("b", 3)))
        assert contents_of(page) == [("c", 0, [0])]
        page = await page_of(broker, page_request(cursor=("c", 7)))
        assert contents_of(page) == [("c", 0, [])]

    node.run(story)


def test_unauthorized_topics_take_no_room_on_a_page_or_in_a_cursor() -> None:
    guarded = Node(config=BrokerConfig(flush="os", security=SecurityConfig(authorizer="standard")))

    async def seen(
        broker: Broker, *names: str, cursor: tuple[str, int] | None = None
    ) -> DescribeTopicPartitionsResponse:
        page = await ask_as(broker, page_request(*names, limit=1, cursor=cursor))
        assert isinstance(page, DescribeTopicPartitionsResponse)
        return page

    async def story(broker: Broker) -> None:
        for name in "abcd":
            create(broker, name)
        assert contents_of(await seen(broker)) == []
        assert contents_of(await seen(broker, "a", "x")) == [("a", DENIED, []), ("x", DENIED, [])]
        await allow(broker, (TOPIC, "b", OP.DESCRIBE), (TOPIC, "d", OP.READ))
        page = await seen(broker)
        assert (contents_of(page), cursor_of(page)) == ([("b", 0, [0])], ("d", 0))
        assert page.topics[0].topic_authorized_operations == 1 << OP.DESCRIBE
        page = await seen(broker, cursor=("d", 0))
        assert (contents_of(page), cursor_of(page)) == ([("d", 0, [0])], None)
        # This reader may have lost access to the cursor's topic since the last page.
        page = await seen(broker, cursor=("c", 0))
        assert (contents_of(page), cursor_of(page)) == ([("d", 0, [0])], None)
        page = await seen(broker, "a", "b", "c", "d", cursor=("c", 0))
        assert contents_of(page) == [("d", 0, [0]), ("a", DENIED, []), ("c", DENIED, [])]

    guarded.run(story)
