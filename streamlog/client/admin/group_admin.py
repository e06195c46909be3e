"""Admin requests about groups, each sent to its coordinator."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from streamlog.client.admin.admin_area import AdminArea
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.errors import CorruptData, UnsupportedVersion
from streamlog.protocol import codec
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages import classic_groups as wire
from streamlog.protocol.messages import consumer_groups as admin
from streamlog.protocol.messages import consumer_groups as consumers
from streamlog.protocol.messages import lag_messages as lag
from streamlog.protocol.schema import Message
from streamlog.record import TopicPartition

M = TypeVar("M", bound=Message)
N = TypeVar("N", int, float)

CONSUMER = "consumer"
"""The kind of a group whose coordinator assigns (KIP-848), and the protocol type of consumers."""
CLASSIC = "classic"
DEAD = "Dead"
PASSING = frozenset(
    {
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
"""Errors that pass: the coordinator moves, or a transaction is about to commit an offset."""


class GroupListing(msgspec.Struct, frozen=True):
    """A group in the result of `list_groups`."""

    group_id: str
    kind: str
    """"classic" if a member assigns, "consumer" if the coordinator does (KIP-848)."""
    state: str
    """The group's state in Kafka's words: Stable, Empty and so on."""


class GroupMemberDescription(msgspec.Struct, frozen=True):
    """A member of a group, with its assignment."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    assignment: frozenset[TopicPartition]
    user_data: bytes = b""
    """What a consumer of a classic group has added to its subscription."""


class GroupDescription(msgspec.Struct, frozen=True):
    """A group with its members, in the result of `describe_groups`."""

    group_id: str
    kind: str
    state: str
    assignor: str
    members: tuple[GroupMemberDescription, ...]
    coordinator: int
    """The id of the broker that coordinates the group."""


class PartitionLagDescription(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group is behind in one partition; None stands for "not known"."""

    offset: int
    """The committed offset."""
    start_offset: int | None
    """The log start offset."""
    end_offset: int | None
    """The high watermark."""
    lag: int | None
    """Offsets from the committed one to the high watermark."""
    lag_ms: int | None
    """The age of the first record at or after the committed offset, in milliseconds."""
    lost: int | None
    """Offsets that were deleted before the group read them."""
    consume_rate: float | None
    """Offsets per second that the group commits."""
    produce_rate: float | None
    """Offsets per second that are written."""
    catch_up_s: float | None
    """Seconds until the group has caught up, at these rates; infinite if it never does."""


class GroupAdmin(AdminArea):
    """Lists, describes and deletes groups, and changes their offsets."""

    async def list_groups(self, *, states: Collection[str] = ()) -> list[GroupListing]:
        """Return all groups, or those in one of these states (case-insensitive), sorted by id."""

        async def attempt() -> list[GroupListing]:
            # A broker lists only the groups that it coordinates.
            found: list[GroupListing] = []
            for node_id in await self._cluster.nodes():
                request = wire.ListGroupsRequest(states_filter=list(states))
                response = await self._cluster.call(node_id, request, wire.ListGroupsResponse)
                if response.error_code:
                    raise error_for(response.error_code, f"groups of broker {node_id}")
                found += (
                    GroupListing(each.group_id, each.group_type or CLASSIC, each.group_state)
                    for each in response.groups
                )
            return sorted(found, key=lambda each: each.group_id)

        return await self._cluster.retrying(attempt)

    async def describe_groups(self, group_ids: Iterable[str]) -> list[GroupDescription]:
        """Return these groups with their members.

        Raises:
            LogError: a group does not exist (GROUP_ID_NOT_FOUND).
        """
        return [await self._describe(group_id) for group_id in group_ids]

    async def describe_group_lag(
        self, group_id: str
    ) -> dict[TopicPartition, PartitionLagDescription]:
        """Return the lag of a group in each partition for which it has committed an offset.

        Rates, and with them the time to catch up, are known once the brokers have been asked
        before, by this method or by a scrape of their metrics.

        Raises:
            UnsupportedVersion: the brokers are not streamlog's, or older than this request.
            LogError: the group does not exist (GROUP_ID_NOT_FOUND).
        """
        response = await self._ask(
            group_id,
            lag.DescribeGroupLagRequest(groups=[group_id]),
            lag.DescribeGroupLagResponse,
            lambda said: (each.error_code for each in said.groups),
        )
        (found,) = response.groups
        if found.error_code:
            raise error_for(found.error_code, f"lag of group {group_id!r}")
        return {
            TopicPartition(topic.name, each.partition_index): _lag_description(each)
            for topic in found.topics
            for each in topic.partitions
        }

    async def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups with their committed offsets.

        Raises:
            LogError: a group does not exist, or has members (NON_EMPTY_GROUP). The groups before it
                are deleted.
        """
        for group_id in group_ids:
            response = await self._ask(
                group_id,
                admin.DeleteGroupsRequest(groups_names=[group_id]),
                admin.DeleteGroupsResponse,
                lambda said: (result.error_code for result in said.results),
            )
            for result in response.results:
                if result.error_code:
                    raise error_for(result.error_code, f"delete group {group_id!r}")

    async def group_offsets(
        self, group_id: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]:
        """Return a group's committed offsets, of these partitions or of all.

        Partitions without a committed offset are left out; for an unknown group, all are.
        """
        found = await self.group_offsets_and_metadata(group_id, partitions)
        return {at: each.offset for at, each in found.items()}

    async def group_offsets_and_metadata(
        self,
        group_id: str,
        partitions: Collection[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return a group's committed offsets with metadata and leader epoch.

        Args:
            group_id: the group.
            partitions: the partitions, None for all.
            require_stable: wait for open transactions that commit an offset of the named
                partitions (KIP-447).
        """
        numbers = None if partitions is None else _by_topic(partitions).items()
        request = wire.OffsetFetchRequest(
            group_id=group_id,
            require_stable=require_stable,
            topics=None
            if numbers is None
            else [wire.OffsetFetchRequestTopic(name=n, partition_indexes=i) for n, i in numbers],
            groups=[
                wire.OffsetFetchRequestGroup(
                    group_id=group_id,
                    topics=None
                    if numbers is None
                    else [
                        wire.OffsetFetchRequestTopics(name=n, partition_indexes=i)
                        for n, i in numbers
                    ],
                )
            ],
        )
        response = await self._ask(group_id, request, wire.OffsetFetchResponse, _fetch_codes)
        found = response.groups[0] if response.groups else response
        if found.error_code:
            raise error_for(found.error_code, f"offsets of group {group_id!r}")
        return {
            TopicPartition(topic.name, each.partition_index): OffsetAndMetadata(
                each.committed_offset, each.metadata or "", each.committed_leader_epoch
            )
            for topic in found.topics
            for each in topic.partitions
            if each.committed_offset >= 0
        }

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> None:
        """Commit offsets for a group without members.

        Raises:
            LogError: the group has members (NON_EMPTY_GROUP), which commit their own offsets.
            UnknownTopicOrPartition: a partition does not exist.
        """
        positions = {
            partition: OffsetAndMetadata(each) if isinstance(each, int) else each
            for partition, each in offsets.items()
        }
        request = wire.OffsetCommitRequest(
            group_id=group_id,
            topics=[
                wire.OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        wire.OffsetCommitRequestPartition(
                            partition_index=number,
                            committed_offset=position.offset,
                            committed_leader_epoch=position.leader_epoch,
                            committed_metadata=position.metadata,
                        )
                        for number in numbers
                        if (position := positions[TopicPartition(topic, number)])
                    ],
                )
                for topic, numbers in _by_topic(offsets).items()
            ],
        )
        response = await self._ask(
            group_id,
            request,
            wire.OffsetCommitResponse,
            lambda said: (each.error_code for topic in said.topics for each in topic.partitions),
        )
        for topic in response.topics:
            for each in topic.partitions:
                # The request names no member, which a group with members answers like this.
                code = each.error_code
                if code == ErrorCode.UNKNOWN_MEMBER_ID:
                    code = ErrorCode.NON_EMPTY_GROUP
                if code:
                    where = f"{topic.name}-{each.partition_index}"
                    raise error_for(code, f"offset of group {group_id!r} in {where}")

    async def delete_group_offsets(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> None:
        """Delete a group's committed offsets of these partitions.

        Raises:
            LogError: the group does not exist, or a member is subscribed to the topic.
            UnknownTopicOrPartition: a partition does not exist.
        """
        request = admin.OffsetDeleteRequest(
            group_id=group_id,
            topics=[
                admin.OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[
                        admin.OffsetDeleteRequestPartition(partition_index=number)
                        for number in numbers
                    ],
                )
                for topic, numbers in _by_topic(partitions).items()
            ],
        )
        response = await self._ask(
            group_id, request, admin.OffsetDeleteResponse, lambda said: [said.error_code]
        )
        if response.error_code:
            raise error_for(response.error_code, f"delete offsets of group {group_id!r}")
        for topic in response.topics:
            for each in topic.partitions:
                if each.error_code:
                    where = f"{topic.name}-{each.partition_index}"
                    raise error_for(each.error_code, f"offset of group {group_id!r} in {where}")

    async def _describe(self, group_id: str) -> GroupDescription:
        request = wire.DescribeGroupsRequest(groups=[group_id])
        response = await self._ask(
            group_id,
            request,
            wire.DescribeGroupsResponse,
            lambda said: (each.error_code for each in said.groups),
        )
        coordinator = await self._cluster.coordinator(group_id)
        (found,) = response.groups
        # DescribeGroups answers "Dead", without an error, for groups that it does not know: the
        # group may be one of KIP-848, which has a request of its own.
        if found.group_state == DEAD or found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            return await self._describe_consumers(group_id, coordinator)
        if found.error_code:
            raise error_for(found.error_code, f"group {group_id!r}")
        return GroupDescription(
            group_id=group_id,
            kind=CLASSIC,
            state=found.group_state,
            assignor=found.protocol_data,
            members=tuple(_member(each, found.protocol_type) for each in found.members),
            coordinator=coordinator,
        )

    async def _describe_consumers(self, group_id: str, coordinator: int) -> GroupDescription:
        request = consumers.ConsumerGroupDescribeRequest(group_ids=[group_id])
        try:
            response = await self._ask(
                group_id,
                request,
                consumers.ConsumerGroupDescribeResponse,
                lambda said: (each.error_code for each in said.groups),
            )
        except UnsupportedVersion:
            raise error_for(ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id!r}") from None
        (found,) = response.groups
        if found.error_code:
            raise error_for(found.error_code, f"group {group_id!r}")
        return GroupDescription(
            group_id=group_id,
            kind=CONSUMER,
            state=found.group_state,
            assignor=found.assignor_name,
            members=tuple(
                GroupMemberDescription(
                    member_id=each.member_id,
                    instance_id=each.instance_id,
                    client_id=each.client_id,
                    client_host=each.client_host,
                    assignment=frozenset(
                        TopicPartition(topic.topic_name, number)
                        for topic in each.assignment.topic_partitions
                        for number in topic.partitions
                    ),
                )
                for each in found.members
            ),
            coordinator=coordinator,
        )

    async def _ask(
        self,
        group_id: str,
        request: Message,
        answer: type[M],
        codes: Callable[[M], Iterable[int]],
    ) -> M:
        """Send a request to the group's coordinator; retry if one of the `codes` may pass."""

        async def attempt() -> M:
            # Looked up in each attempt: some errors mean that the coordinator has moved.
            node_id = await self._cluster.coordinator(group_id)
            response = await self._cluster.call(node_id, request, answer)
            for code in codes(response):
                if code in PASSING:
                    raise error_for(code, f"group {group_id!r}")
            return response

        return await self._cluster.retrying(attempt)


def _lag_description(found: lag.DescribedPartitionLag) -> PartitionLagDescription:
    return PartitionLagDescription(
        offset=found.committed_offset,
        start_offset=_known(found.log_start_offset),
        end_offset=_known(found.high_watermark),
        lag=_known(found.lag),
        lag_ms=_known(found.lag_ms),
        lost=_known(found.lost),
        consume_rate=_known(found.consume_rate),
        produce_rate=_known(found.produce_rate),
        catch_up_s=_known(found.catch_up_s),
    )


def _known(number: N) -> N | None:
    return number if number >= 0 else None


def _fetch_codes(response: wire.OffsetFetchResponse) -> Iterator[int]:
    found = response.groups[0] if response.groups else response
    yield found.error_code
    for topic in found.topics:
        yield from (each.error_code for each in topic.partitions)


def _member(member: wire.DescribedGroupMember, protocol_type: str) -> GroupMemberDescription:
    """Describe a member; only the assignment of consumers can be decoded, others are opaque."""
    assigned: frozenset[TopicPartition] = frozenset()
    if protocol_type == CONSUMER and member.member_assignment:
        try:
            read = codec.decode_versioned(wire.ConsumerProtocolAssignment, member.member_assignment)
        except CorruptData as corrupt:
            raise CorruptData(
                f"the assignment of member {member.member_id}: {corrupt}"
            ) from corrupt
        assigned = frozenset(
            TopicPartition(topic.topic, number)
            for topic in read.assigned_partitions
            for number in topic.partitions
        )
    return GroupMemberDescription(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        assignment=assigned,
        user_data=_user_data(member.member_metadata) if protocol_type == CONSUMER else b"",
    )


def _user_data(subscription: bytes) -> bytes:
    if not subscription:
        return b""
    try:
        said = codec.decode_versioned(wire.ConsumerProtocolSubscription, subscription)
    # The broker passes on what a client has sent; the group can be described without it.
    except CorruptData:
        return b""
    return bytes(said.user_data or b"")


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        numbers.setdefault(topic, []).append(partition)
    return numbers
