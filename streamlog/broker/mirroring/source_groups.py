"""SourceGroups: the groups that one broker of a source coordinates, and their committed offsets.

ListGroups names the groups of the broker that answers, so that no coordinator has to be looked up.
OffsetFetch asks for many groups at once (KIP-709), for one at a time at brokers before Kafka 3.0.
Offsets in open transactions are not committed yet, and are not returned.

Rule of this module: a group whose answer has any error is missing from the answer, never empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from streamlog.broker.mirroring.group_copy import Position, Where
from streamlog.errors import CorruptData, StreamlogError
from streamlog.protocol.api_table import api_of
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.classic_groups import (
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
)
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.mirroring.source_cluster import SourceCluster
    from streamlog.transport.client_connection import Transport

REQUEST_MS = 10_000
"""How long to wait for an answer."""
MANY_GROUPS_VERSION = 8
"""The first OffsetFetch version that asks for several groups."""
WITH_OFFSETS = frozenset({"", "classic", "consumer", "streams"})
"""The types of groups that commit offsets; share groups (KIP-932) do not."""
PASSING = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
"""What a change of coordinators answers: the next round finds the group where it is then."""

M = TypeVar("M", bound=Message)
GroupPositions = Mapping[str, Mapping[Where, Position]]


class SourceGroups:
    """The groups of broker `node_id`, over a connection that only this object uses.

    Args:
        node_id: the broker.
        source: the cluster.
    """

    def __init__(self, node_id: int, source: SourceCluster) -> None:
        self._node_id = node_id
        self._source = source
        self._transport: Transport | None = None

    async def ids(self) -> list[str]:
        """Return the ids of the groups that the broker coordinates now.

        Raises:
            StreamlogError: it does not answer, or refuses.
        """
        answer = await self._ask(ListGroupsRequest(), ListGroupsResponse)
        if answer.error_code:
            raise self._refusal(answer.error_code, "does not list its groups")
        return [each.group_id for each in answer.groups if each.group_type.lower() in WITH_OFFSETS]

    async def positions(
        self, group_ids: Sequence[str], topics: Mapping[bytes, str]
    ) -> GroupPositions:
        """Return all committed offsets of groups, without groups that it can't answer for now.

        Args:
            group_ids: the groups.
            topics: names of topics by their ids, which brokers from Kafka 4.1 on answer with; other
                topics may be left out of the answer.

        Raises:
            StreamlogError: it does not answer, or refuses.
        """
        transport = await self._connected()
        if transport.version(api_of(OffsetFetchRequest).key) < MANY_GROUPS_VERSION:
            return await self._one_by_one(group_ids)
        # All topics, also those that the link does not mirror: naming every partition would make
        # requests as large as the answers, and a deletion could not be told from a missing name.
        asked = [OffsetFetchRequestGroup(group_id=each, topics=None) for each in group_ids]
        answer = await self._ask(OffsetFetchRequest(groups=asked), OffsetFetchResponse)
        found: dict[str, dict[Where, Position]] = {}
        for group in answer.groups:
            if self._is_answered(group.group_id, group.error_code):
                rows = (
                    (topic.name or topics.get(topic.topic_id, ""), topic.partitions)
                    for topic in group.topics
                )
                self._add(found, group.group_id, rows)
        return found

    async def close(self) -> None:
        """Close the connection."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        try:
            await transport.close()
        except StreamlogError:
            return  # It is lost already.

    async def _one_by_one(self, group_ids: Iterable[str]) -> GroupPositions:
        found: dict[str, dict[Where, Position]] = {}
        for group_id in group_ids:
            request = OffsetFetchRequest(group_id=group_id, topics=None)
            answer = await self._ask(request, OffsetFetchResponse)
            if self._is_answered(group_id, answer.error_code):
                rows = ((topic.name, topic.partitions) for topic in answer.topics)
                self._add(found, group_id, rows)
        return found

    def _add(
        self,
        found: dict[str, dict[Where, Position]],
        group_id: str,
        rows: Iterable[
            tuple[
                str,
                Sequence[OffsetFetchResponsePartitions] | Sequence[OffsetFetchResponsePartition],
            ]
        ],
    ) -> None:
        positions: dict[Where, Position] = {}
        for topic, partitions in rows:
            for each in partitions:
                # One partition without an answer leaves the group out: what is missing from a table
                # counts as deleted.
                if not self._is_answered(group_id, each.error_code):
                    return
                if topic and each.committed_offset >= 0:
                    positions[topic, each.partition_index] = Position(
                        each.committed_offset, each.committed_leader_epoch, each.metadata or ""
                    )
        found[group_id] = positions

    def _is_answered(self, group_id: str, code: int) -> bool:
        if code == ErrorCode.GROUP_ID_NOT_FOUND or not code:
            return True
        if code in PASSING:
            return False
        raise self._refusal(code, f"does not return the offsets of group {group_id!r}")

    def _refusal(self, code: int, what: str) -> StreamlogError:
        return error_for(code, f"broker {self._node_id} of the source {what}")

    async def _ask(self, request: Message, kind: type[M]) -> M:
        transport = await self._connected()
        try:
            answer = await transport.call(request, timeout_ms=REQUEST_MS)
        except (StreamlogError, OSError):
            # After any failure: a late answer could be taken for that of the next request.
            await self.close()
            raise
        if not isinstance(answer, kind):
            raise CorruptData(f"the source answered {type(answer).__name__} to {request!r}")
        return answer

    async def _connected(self) -> Transport:
        if self._transport is None:
            self._transport = await self._source.connect(self._node_id)
        return self._transport


def portions(counts: Mapping[str, int], most: int) -> Iterator[list[str]]:
    """Divide groups into requests whose answers have at most `most` positions.

    Args:
        counts: how many positions each group is expected to have; a larger group is asked alone.
        most: the positions of a request.
    """
    portion: list[str] = []
    total = 0
    for group_id, count in counts.items():
        if portion and total + count > most:
            yield portion
            portion, total = [], 0
        portion.append(group_id)
        total += count
    if portion:
        yield portion
