"""Answers to OffsetFetch: what a group has committed, in the words of each version.

Pure: the shard that knows the group in, a response out. Up to version 7 a request is about one
group, later ones ask for several at once (KIP-709); those are answered group by group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from streamlog.broker.named_topics import TOPIC_IDS_VERSION, named, nowhere
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.coordination import (
    OffsetFetchRequest,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from streamlog.protocol.schema import Message


class Positions(Protocol):
    """Where groups go on: a `GroupCoordinator`, as far as it is asked here."""

    def positions(
        self, group_id: str, wanted: Iterable[tuple[str, Iterable[int]]] | None
    ) -> list[OffsetFetchResponseTopics]:
        """Committed offsets, -1 where there is none; `wanted` None is all that there are."""
        ...

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of the topic with this id."""
        ...

    def topic_id(self, name: str) -> bytes:
        """The id of a topic; zero if there is none."""
        ...

    def is_stable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether no transaction is open that may set the position."""
        ...

    def may_fetch(self, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether a member may be told them."""
        ...


def positions_of_one(request: OffsetFetchRequest, shard: Positions) -> OffsetFetchResponse:
    """The answer up to version 7."""
    listed = request.topics
    wanted = None if listed is None else [(t.name, t.partition_indexes) for t in listed]
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        metadata=each.metadata,
                        error_code=each.error_code,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in _positions(shard, request.group_id, wanted, stable=request.require_stable)
        ]
    )


def each_group(request: OffsetFetchRequest) -> list[OffsetFetchRequest]:
    """A request for each group of one that is about several."""
    return [
        OffsetFetchRequest(groups=[asked], require_stable=request.require_stable)
        for asked in request.groups
    ]


def positions_of_groups(
    request: OffsetFetchRequest, shard: Positions, *, version: int
) -> OffsetFetchResponse:
    """The answer from version 8 on, for groups that this shard knows."""
    groups = []
    for asked in request.groups:
        name, listed = asked.group_id, asked.topics
        code = shard.may_fetch(name, asked.member_id, asked.member_epoch)
        topics: list[OffsetFetchResponseTopics] = []
        if code is ErrorCode.NONE:
            wanted, unknown = _asked(listed, shard, version)
            topics = _positions(shard, name, wanted, stable=request.require_stable)
            for topic in topics:
                topic.topic_id = shard.topic_id(topic.name)
            topics += unknown
        groups.append(OffsetFetchResponseGroup(group_id=name, error_code=code, topics=topics))
    return OffsetFetchResponse(groups=groups)


def _asked(
    listed: list[OffsetFetchRequestTopics] | None, shard: Positions, version: int
) -> tuple[list[tuple[str, list[int]]] | None, list[OffsetFetchResponseTopics]]:
    """What is asked for by name, None for all that there is; and what is said of unknown ids."""
    if listed is None:
        return None, []
    names = [(named(topic, shard.name_of), topic) for topic in listed]
    if version < TOPIC_IDS_VERSION:
        return [(name, topic.partition_indexes) for name, topic in names], []
    wanted = [(name, topic.partition_indexes) for name, topic in names if name]
    return wanted, [nowhere(topic, ErrorCode.UNKNOWN_TOPIC_ID) for name, topic in names if not name]


def all_positions(answers: Sequence[Message]) -> OffsetFetchResponse:
    """The answers about single groups as one."""
    return OffsetFetchResponse(
        groups=[
            group
            for answer in answers
            if isinstance(answer, OffsetFetchResponse)
            for group in answer.groups
        ]
    )


def _positions(
    shard: Positions,
    group_id: str,
    wanted: list[tuple[str, list[int]]] | None,
    *,
    stable: bool,
) -> list[OffsetFetchResponseTopics]:
    """Committed offsets; with `stable` none that an open transaction may set."""
    found = shard.positions(group_id, wanted)
    if not stable:
        return found
    for name, each in [(topic.name, each) for topic in found for each in topic.partitions]:
        if not shard.is_stable(group_id, name, each.partition_index):
            each.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
            each.committed_offset = each.committed_leader_epoch = -1
    return found
