"""GroupCoordinator: all groups and committed offsets of one partition of `__consumer_offsets`.

It finds the group of a request, combines what the group and the offsets decide, and replays what
was appended. `Deadlines` is a heap of groups, so that a tick costs nothing for groups that are not
due; a later deadline is noted only when the earlier one has passed. A group with neither members
nor offsets is deleted, with a tombstone if the log has a record of it.

Not done here: appends and responses (`group_runtime`).
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from streamlog.broker.coordinator.group.classic_group import ClassicGroup, GroupState
from streamlog.broker.coordinator.group.committed_offsets import (
    COMMIT_VERSION,
    GroupOffsets,
    as_commit,
    commit_error,
    commit_record,
    in_transaction,
    names_no_member,
    offset_tombstone,
)
from streamlog.broker.coordinator.group.consumer_group import (
    ConsumerGroup,
    Draft,
    HeartbeatError,
    draft_response,
    heartbeat_error,
)
from streamlog.broker.coordinator.group.group_member import (
    JOINING_EPOCH,
    ConsumerChange,
    EpochChange,
    Held,
    Subscriber,
    by_topic_id,
    decode_consumer_change,
    encode_consumer_change,
    is_removal,
)
from streamlog.broker.coordinator.group.group_records import (
    GroupChange,
    OffsetChange,
    decode_change,
)
from streamlog.broker.coordinator.shard import (
    Answer,
    Caller,
    CoordinatorRecord,
    Instant,
    ShardOutcome,
    refuse,
)
from streamlog.broker.named_topics import TOPIC_IDS_VERSION, Topics, topic_key
from streamlog.broker.storage.expiry import SteadyTime
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.error_responses import by_partition, response_by_item
from streamlog.protocol.messages import consumer_groups as description
from streamlog.protocol.messages import consumer_groups as wire
from streamlog.protocol.messages.classic_groups import (
    DescribedGroup,
    DescribedGroupMember,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    MemberIdentity,
    MemberResponse,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitValue,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
    SyncGroupRequest,
    SyncGroupResponse,
)
from streamlog.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)
from streamlog.protocol.messages.transaction_messages import TxnOffsetCommitRequest
from streamlog.protocol.schema import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamlog.broker.config.coordinators import GroupConfig
    from streamlog.protocol.schema import Message


class Deadlines:
    """The earliest deadline of each group."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._deadline_of: dict[str, int] = {}

    def note(self, name: str, deadline_ms: int | None) -> None:
        """Note a deadline, unless an earlier one is known; None is no deadline."""
        known_ms = self._deadline_of.get(name)
        if deadline_ms is not None and (known_ms is None or deadline_ms < known_ms):
            self._deadline_of[name] = deadline_ms
            heapq.heappush(self._heap, (deadline_ms, name))

    def take(self, now_ms: int) -> str | None:
        """Take a group that is due, the earliest first; None if no group is due."""
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, name = heapq.heappop(self._heap)
            # A heap entry that an earlier deadline has replaced is stale: skip it.
            if self._deadline_of.get(name) == deadline_ms:
                del self._deadline_of[name]
                return name
        return None

    def next_ms(self) -> int | None:
        """When `take` may return a group; None for never."""
        return self._heap[0][0] if self._heap else None


class GroupSummary(NamedTuple):
    """A group in short."""

    group_id: str
    kind: str
    """"classic" if a member assigns, "consumer" if the coordinator does (KIP-848)."""
    state: str
    members: int
    """The number of its members."""


Group: TypeAlias = ClassicGroup | ConsumerGroup
DEAD = "Dead"
"""The state of a group that does not exist."""
CONSUMER_MEMBER = 1
"""The type of a member that uses the consumer protocol."""


def offset_topics(
    known: Mapping[tuple[str, int], OffsetCommitValue],
    wanted: Iterable[tuple[str, Iterable[int]]] | None,
) -> list[OffsetFetchResponseTopics]:
    """Return committed offsets, -1 where there is none; without `wanted`, all of them."""
    if wanted is None:
        every: dict[str, list[int]] = {}
        for topic, partition in known:
            every.setdefault(topic, []).append(partition)
        wanted = every.items()
    none = OffsetCommitValue(offset=-1, leader_epoch=-1, metadata="")
    return [
        OffsetFetchResponseTopics(
            name=topic,
            partitions=[
                _position(partition, known.get((topic, partition), none))
                for partition in partitions
            ],
        )
        for topic, partitions in wanted
    ]


def _position(partition: int, value: OffsetCommitValue) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
    )


def describe_group(group_id: str, group: Group | None, *, has_positions: bool) -> DescribedGroup:
    """Describe a group of the classic protocol; any other, or none, is Dead."""
    if not isinstance(group, ClassicGroup):
        empty = group is None and has_positions
        return DescribedGroup(group_id=group_id, group_state="Empty" if empty else DEAD)
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name or "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.subscription(group.protocol_name),
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )


def describe_consumer_group(
    group_id: str, group: Group | None, topics: Topics
) -> wire.DescribedConsumerGroup:
    """Describe a group of the consumer protocol; any other is not found."""
    if not isinstance(group, ConsumerGroup):
        return wire.DescribedConsumerGroup(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"consumer group {group_id!r} does not exist",
        )
    return wire.DescribedConsumerGroup(
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor,
        members=[_member(group, member, topics) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: Subscriber, topics: Topics) -> wire.DescribedMember:
    holding = group.holding(member.member_id)
    target = group.targets.get(member.member_id, frozenset())
    return wire.DescribedMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=holding.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.pattern,
        assignment=_assignment(holding.assigned, topics),
        target_assignment=_assignment(target, topics),
        member_type=CONSUMER_MEMBER,
    )


def _assignment(held: Held, topics: Topics) -> wire.DescribedAssignment:
    """Describe an assignment, without topics that are deleted."""
    return wire.DescribedAssignment(
        topic_partitions=[
            wire.DescribedTopicPartitions(topic_id=topic_id, topic_name=name, partitions=numbers)
            for topic_id, numbers in by_topic_id(held).items()
            if (name := topics.name_of(topic_id)) is not None
        ]
    )


def list_group(groups: Iterable[Group], with_positions: Iterable[str]) -> list[ListedGroup]:
    """List every group, including those that have only committed offsets."""
    lines = {
        group_id: ListedGroup(group_id=group_id, group_state="Empty", group_type=CLASSIC)
        for group_id in with_positions
    }
    for group in groups:
        is_classic = isinstance(group, ClassicGroup)
        lines[group.group_id] = ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type if isinstance(group, ClassicGroup) else "consumer",
            group_state=group.state.value if isinstance(group, ClassicGroup) else group.state,
            group_type=CLASSIC if is_classic else CONSUMER,
        )
    return list(lines.values())


CLASSIC, CONSUMER = "classic", "consumer"
"""The protocols of groups: with generations, and KIP-848."""
MANY_LEAVE_VERSION = 3
"""From this LeaveGroup version on, several members leave at once, each with its error code."""
SYNC_NAMES_PROTOCOL_VERSION = 5
"""From this SyncGroup version on, a member names its protocol and protocol type (KIP-559)."""
GROUP_ID_BYTES_MAX = 32_767
"""The longest string with a two-byte length: the record has to name the group."""
FORGOTTEN_AT_ONCE = 1_000
"""Committed offsets deleted per batch; the next tick deletes the rest."""
GONE_CHECK_MS = 10_000
"""How long after deleting offsets of deleted topics the check is repeated."""


class GroupCoordinator:
    """The `Shard` of groups."""

    def __init__(
        self,
        config: GroupConfig,
        *,
        topics: Topics,
        overrides: Callable[[str], Mapping[str, str]] = lambda _: {},
    ) -> None:
        """`overrides` returns the settings of a single group."""
        self._config = config
        self._overrides = overrides
        self._topics = topics
        self._groups: dict[str, Group] = {}
        self._offsets = GroupOffsets()
        self._deadlines = Deadlines()
        self.rebalances: Counter[str] = Counter()
        """The rebalances of this shard since it was loaded, by the group's protocol."""
        self._steady = SteadyTime()
        self._expiry_ms: int | None = None
        """When offsets and groups are next checked for expiry; None while there are none."""
        self._deletion_check_ms: int | None = None
        """When offsets are next checked for deleted topics; None if no check is needed."""

    def configure(self, config: GroupConfig) -> None:
        """Use other settings."""
        self._config = config
        for group in self._groups.values():
            group.config = config

    # Shard.

    def handle(self, request: Message, caller: Caller, at: Instant) -> ShardOutcome:
        """Decide on a request to one group."""
        match request:
            case JoinGroupRequest():
                outcome, group_id = self._join(request, caller, at), request.group_id
            case SyncGroupRequest():
                outcome, group_id = self._sync(request, caller, at), request.group_id
            case HeartbeatRequest():
                return self._heartbeat(request, caller, at)
            case LeaveGroupRequest():
                outcome, group_id = self._leave(request, caller, at), request.group_id
            case ConsumerGroupHeartbeatRequest():
                outcome = self._consumer(request, caller, at)
                self._schedule(request.group_id)
                return outcome
            case OffsetCommitRequest() | TxnOffsetCommitRequest():
                return self._commit(request, caller, at)
            case OffsetDeleteRequest():
                return self._delete_positions(request, caller)
            case DeleteGroupsRequest():
                return self._delete_groups(request, caller)
            case _:
                raise TypeError(f"not a request to a group: {request!r}")
        self._schedule(group_id)
        self._drop_unrecorded(group_id)
        return outcome

    def replay(self, record: CoordinatorRecord, *, now_ms: int) -> None:
        """See `Shard.replay`."""
        change = decode_change(record) or decode_consumer_change(record)
        match change:
            case None:
                return
            case OffsetChange():
                self._offsets.replay(change)
                self._expire_later(now_ms)
            case GroupChange(group_id=group_id, value=None):
                if isinstance(self._groups.get(group_id), ClassicGroup):
                    del self._groups[group_id]
            case GroupChange(group_id=group_id, value=value) if value is not None:
                group = self._classic(group_id)
                # Only a rebalance of this process was in this state; one from the log never is.
                if group.state is GroupState.COMPLETING_REBALANCE:
                    self.rebalances[CLASSIC] += 1
                group.replay(value, now_ms)
                self._schedule(group_id)
                self._expire_later(now_ms)
            case GroupChange():
                return
            case _:
                self._replay_consumers(change, now_ms)

    def stage(self, record: CoordinatorRecord, producer_id: int, *, now_ms: int) -> None:
        """Add a record that is part of this producer's open transaction."""
        change = decode_change(record)
        if isinstance(change, OffsetChange):
            self._offsets.stage(producer_id, change)
            self._expire_later(now_ms)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Apply a transaction marker of this producer."""
        self._offsets.decide(producer_id, committed=committed)

    def _replay_consumers(self, change: ConsumerChange, now_ms: int) -> None:
        group_id = change.group_id
        group = self._groups.get(group_id)
        is_end = isinstance(change, EpochChange) and change.epoch is None
        if isinstance(group, ConsumerGroup) and is_end:
            del self._groups[group_id]
            return
        # Compaction may leave a removal without the group that it was for: it needs no new group.
        if not isinstance(group, ConsumerGroup):
            if is_removal(change):
                return
            group = self._groups[group_id] = ConsumerGroup(group_id, self._config)
        self.rebalances[CONSUMER] += isinstance(change, EpochChange)
        group.replay(change, now_ms)
        self._schedule(group_id)
        self._expire_later(now_ms)

    def on_tick(self, at: Instant) -> ShardOutcome:
        """See `Shard.on_tick`."""
        outcome = ShardOutcome()
        while (group_id := self._deadlines.take(at.now_ms)) is not None:
            group = self._groups.get(group_id)
            if group is not None:
                outcome += group.on_tick(at)
                self._schedule(group_id)
                self._drop_unrecorded(group_id)
        outcome += self._expire(at)
        if self._deletion_check_ms is not None and at.now_ms >= self._deletion_check_ms:
            outcome += self._delete_stale_offsets(at)
        return outcome

    def next_deadline_ms(self) -> int | None:
        """See `Shard.next_deadline_ms`."""
        deadlines = (self._deadlines.next_ms(), self._expiry_ms, self._deletion_check_ms)
        return min((each for each in deadlines if each is not None), default=None)

    # Reads.

    def positions(
        self, group_id: str, wanted: Iterable[tuple[str, Iterable[int]]] | None
    ) -> list[OffsetFetchResponseTopics]:
        """Return committed offsets, -1 where there is none; without `wanted`, all of them."""
        known = {
            (topic, partition): value
            for (topic, partition), value in self._offsets.of(group_id).items()
            if self._is_current(topic, value)
        }
        return offset_topics(known, wanted)

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with this id."""
        return self._topics.name_of(topic_id)

    def topic_id(self, name: str) -> bytes:
        """Return the id of a topic; zero if it does not exist."""
        return self._topics.topic_id(name) or ZERO_UUID

    def is_stable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether no open transaction may change the committed offset (KIP-447)."""
        return self._offsets.is_stable(group_id, topic, partition)

    def may_fetch(self, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
        """Check that a member may fetch committed offsets."""
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group.may_fetch(member_id, epoch)
        return ErrorCode.NONE

    def describe(self, group_id: str) -> DescribedGroup:
        """Describe a group of the classic protocol; a group that does not exist is Dead."""
        has_positions = group_id in self._offsets.groups()
        return describe_group(group_id, self._groups.get(group_id), has_positions=has_positions)

    def describe_consumers(self, group_id: str) -> description.DescribedConsumerGroup:
        """Describe a group of the consumer protocol (KIP-848)."""
        return describe_consumer_group(group_id, self._groups.get(group_id), self._topics)

    def states(self) -> Iterator[tuple[str, str]]:
        """Iterate over all groups: protocol and state of each, as `list_groups` names them.

        Groups may be added and removed meanwhile.
        """
        for group in [*self._groups.values()]:
            if isinstance(group, ClassicGroup):
                yield CLASSIC, group.state.value
            else:
                yield CONSUMER, group.state
        for group_id in [*self._offsets.groups()]:
            if group_id not in self._groups:
                yield CLASSIC, GroupState.EMPTY.value

    def count_offsets(self) -> int:
        """Count the committed offsets."""
        return sum(len(self._offsets.of(each)) for each in self._offsets.groups())

    def list_groups(self) -> list[ListedGroup]:
        """List every group."""
        return list_group(self._groups.values(), self._offsets.groups())

    def group_ids(self) -> list[str]:
        """Return the ids of all groups, including those that have only committed offsets."""
        return [*dict.fromkeys((*self._groups, *self._offsets.groups()))]

    def summary(self, group_id: str) -> GroupSummary | None:
        """Return one group in short; None if there is no such group."""
        group = self._groups.get(group_id)
        if group is None and group_id not in self._offsets.groups():
            return None
        (listed,) = list_group([] if group is None else [group], [group_id])
        members = 0 if group is None else len(group.members)
        return GroupSummary(group_id, listed.group_type, listed.group_state, members)

    def committed(self, group_id: str) -> Mapping[tuple[str, int], OffsetCommitValue]:
        """Return a copy of a group's committed offsets, those of deleted topics included."""
        return dict(self._offsets.of(group_id))

    def is_current(self, topic: str, position: OffsetCommitValue) -> bool:
        """Whether the topic is the one that an offset was committed for."""
        return self._is_current(topic, position)

    def on_deletion(self, now_ms: int) -> None:
        """Note that a topic was deleted: its committed offsets must be deleted too."""
        if self._offsets.groups():
            self._deletion_check_ms = now_ms

    # Requests.

    def _join(self, request: JoinGroupRequest, caller: Caller, at: Instant) -> ShardOutcome:
        group, outcome = self._groups.get(request.group_id), ShardOutcome()
        code = ErrorCode.NONE
        if not 0 < len(request.group_id.encode()) <= GROUP_ID_BYTES_MAX:
            code = ErrorCode.INVALID_GROUP_ID
        elif isinstance(group, ConsumerGroup) and not group.is_empty:
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        # A member id of a group that does not exist: the coordinator has lost it, or the group was
        # deleted. The client must join as a new member.
        elif request.member_id and not isinstance(group, ClassicGroup):
            code = ErrorCode.UNKNOWN_MEMBER_ID
        if code is not ErrorCode.NONE:
            return self._answer(caller, refuse(request, caller.version, code))
        # An empty consumer group makes way for a classic one: its tombstones precede the join.
        if isinstance(group, ConsumerGroup):
            outcome = ShardOutcome(group.group_tombstones())
        return outcome + self._classic(request.group_id).join(request, caller, at)

    def _sync(self, request: SyncGroupRequest, caller: Caller, at: Instant) -> ShardOutcome:
        protocol = (request.protocol_type, request.protocol_name)
        if caller.version >= SYNC_NAMES_PROTOCOL_VERSION and None in protocol:
            response = SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            return self._answer(caller, response)
        group = self._groups.get(request.group_id)
        if not isinstance(group, ClassicGroup):
            response = SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
            return self._answer(caller, response)
        return group.sync(request, caller, at)

    def _heartbeat(self, request: HeartbeatRequest, caller: Caller, at: Instant) -> ShardOutcome:
        group, code = self._groups.get(request.group_id), ErrorCode.UNKNOWN_MEMBER_ID
        if isinstance(group, ClassicGroup):
            code = group.heartbeat(request, at)
        return self._answer(caller, HeartbeatResponse(error_code=code))

    def _consumer(
        self, request: ConsumerGroupHeartbeatRequest, caller: Caller, at: Instant
    ) -> ShardOutcome:
        """Handle a heartbeat of the consumer protocol; the first one of a group creates it."""
        refusal = heartbeat_error(request, caller.version)
        group, outcome = self._groups.get(request.group_id), ShardOutcome()
        joins = request.member_epoch == JOINING_EPOCH
        if refusal is None and len(request.group_id.encode()) > GROUP_ID_BYTES_MAX:
            refusal = HeartbeatError(ErrorCode.INVALID_GROUP_ID, "the group id is too long")
        # An empty classic group makes way for a consumer group: its tombstones come first.
        if joins and isinstance(group, ClassicGroup) and group.is_empty:
            outcome, group = ShardOutcome(group.group_tombstones()), None
        if group is None and joins:
            group = ConsumerGroup(request.group_id, self._config)
        if isinstance(group, ConsumerGroup):
            group.config = self._config.for_group(self._overrides(request.group_id))
        if refusal is None and not isinstance(group, ConsumerGroup):
            refusal = _group_error(group, request.group_id)
        if refusal is not None or not isinstance(group, ConsumerGroup):
            return self._answer(caller, _error_response(refusal))
        draft = Draft(group, self._topics, request, caller)
        response = draft_response(draft, request)
        if isinstance(response, HeartbeatError):
            return self._answer(caller, _error_response(response))
        # A group that exists only because of this heartbeat is kept from here on, so that its
        # session is timed; the records are appended, and replayed into it, by the runtime.
        self._groups[request.group_id] = group
        if request.member_epoch >= JOINING_EPOCH:
            group.renew_session(draft.member_id, at)
        outcome += ShardOutcome(tuple(map(encode_consumer_change, draft.changes)))
        return outcome + self._answer(caller, response)

    def _leave(self, request: LeaveGroupRequest, caller: Caller, at: Instant) -> ShardOutcome:
        group = self._groups.get(request.group_id)
        many = caller.version >= MANY_LEAVE_VERSION
        leaving = request.members if many else [MemberIdentity(member_id=request.member_id)]
        outcome, members = ShardOutcome(), []
        for identity in leaving:
            instance_id, code = identity.group_instance_id, ErrorCode.UNKNOWN_MEMBER_ID
            if isinstance(group, ClassicGroup):
                code, gone = group.leave(identity.member_id, instance_id, at)
                outcome += gone
            members.append(
                MemberResponse(
                    member_id=identity.member_id, group_instance_id=instance_id, error_code=code
                )
            )
        response = LeaveGroupResponse(
            error_code=0 if many else members[0].error_code, members=members
        )
        return outcome + self._answer(caller, response)

    def _commit(
        self, request: OffsetCommitRequest | TxnOffsetCommitRequest, caller: Caller, at: Instant
    ) -> ShardOutcome:
        if isinstance(request, OffsetCommitRequest):
            refused = self._may_commit(request, caller.version, at)
            return self._commit_unless(refused, request, caller, at)
        commit, refused = as_commit(request), ErrorCode.NONE
        if not names_no_member(request):
            refused = self._may_commit(commit, COMMIT_VERSION, at)
        return in_transaction(self._commit_unless(refused, commit, caller, at), request)

    def _may_commit(self, request: OffsetCommitRequest, version: int, at: Instant) -> ErrorCode:
        group = self._groups.get(request.group_id)
        generation = request.generation_id_or_member_epoch
        if isinstance(group, ConsumerGroup):
            return group.may_commit(request.member_id, generation, version)
        if group is not None:
            return group.may_commit(request.member_id, request.group_instance_id, generation, at)
        return ErrorCode.ILLEGAL_GENERATION if generation >= 0 else ErrorCode.NONE

    def _commit_unless(
        self, refused: ErrorCode, request: OffsetCommitRequest, caller: Caller, at: Instant
    ) -> ShardOutcome:
        if len(request.group_id.encode()) > GROUP_ID_BYTES_MAX:
            refused = refused or ErrorCode.INVALID_GROUP_ID
        records = []

        def keep(topic: OffsetCommitRequestTopic, partition: OffsetCommitRequestPartition) -> int:
            name = topic_key(topic, self._topics.name_of)
            if not name and caller.version >= TOPIC_IDS_VERSION:
                return ErrorCode.UNKNOWN_TOPIC_ID
            exists = self._exists(name, partition.partition_index)
            code = refused or commit_error(partition, exists=exists)
            if code is ErrorCode.NONE:
                topic_id = self._topics.topic_id(name) or ZERO_UUID
                records.append(commit_record(request, name, topic_id, partition, at))
            return code

        response = response_by_item(request, OffsetCommitResponse, keep)
        return ShardOutcome(tuple(records)) + self._answer(caller, response)

    # Deletion.

    def _delete_positions(self, request: OffsetDeleteRequest, caller: Caller) -> ShardOutcome:
        group_id = request.group_id
        group, known = self._groups.get(group_id), self._offsets.of(group_id)
        code = ErrorCode.NONE
        if group is None and not known:
            code = ErrorCode.GROUP_ID_NOT_FOUND
        # KIP-496: offsets of a group with members may be deleted if their subscriptions are known.
        # For any other protocol type it is unknown which topics they use.
        elif group is not None and group.members and not group.is_of_consumers:
            code = ErrorCode.NON_EMPTY_GROUP
        if code is not ErrorCode.NONE:
            return self._answer(caller, refuse(request, caller.version, code))
        records = []

        def drop(topic: str, partition: int) -> int:
            if not self._exists(topic, partition):
                return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if group is not None and group.subscribes(topic):
                return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            if (topic, partition) in known:
                records.append(offset_tombstone(group_id, topic, partition))
            return ErrorCode.NONE

        response = response_by_item(request, OffsetDeleteResponse, by_partition(drop))
        return ShardOutcome(tuple(records)) + self._answer(caller, response)

    def _delete_groups(self, request: DeleteGroupsRequest, caller: Caller) -> ShardOutcome:
        records: list[CoordinatorRecord] = []
        results = []
        for group_id in dict.fromkeys(request.groups_names):
            code = self._deletion_refusal(group_id)
            results.append(DeletableGroupResult(group_id=group_id, error_code=code))
            if code is ErrorCode.NONE:
                records += (
                    offset_tombstone(group_id, *where) for where in self._offsets.of(group_id)
                )
                if group_id in self._groups:
                    records += self._groups[group_id].group_tombstones()
        return ShardOutcome(tuple(records)) + self._answer(
            caller, DeleteGroupsResponse(results=results)
        )

    def _deletion_refusal(self, group_id: str) -> ErrorCode:
        group = self._groups.get(group_id)
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        if group is None and group_id not in self._offsets.groups():
            return ErrorCode.GROUP_ID_NOT_FOUND
        busy = group is not None and not group.is_empty
        return ErrorCode.NON_EMPTY_GROUP if busy else ErrorCode.NONE

    def _expire(self, at: Instant) -> ShardOutcome:
        """Expire committed offsets (KIP-211), and delete groups that have none left."""
        if self._expiry_ms is None or at.now_ms < self._expiry_ms:
            return ShardOutcome()
        unused = self._offsets.expired(
            self._unused_since_ms,
            wall_ms=self._steady.wall_ms(now_ms=at.now_ms, wall_ms=at.wall_ms),
            retention_ms=self._config.offsets_retention_minutes * 60_000,
        )
        over = list(itertools.islice(unused, FORGOTTEN_AT_ONCE))
        if len(over) < FORGOTTEN_AT_ONCE:
            interval_ms = self._config.offsets_retention_check_interval_ms
            something = self._offsets.groups() or self._groups
            self._expiry_ms = at.now_ms + interval_ms if something else None
        # After the last portion, check for deleted topics too: a deletion that was missed while
        # another broker led this shard is found here.
        self._deletion_check_ms = at.now_ms
        outcome = ShardOutcome(
            tuple(offset_tombstone(key.group, key.topic, key.partition) for key in over)
        )
        for group_id, gone in Counter(key.group for key in over).items():
            outcome += self._delete_group(group_id, gone=gone)
        # Groups without a committed offset were not counted above.
        holding = self._offsets.groups()
        for group_id in [name for name in self._groups if name not in holding]:
            outcome += self._delete_group(group_id)
        return outcome

    def _delete_stale_offsets(self, at: Instant) -> ShardOutcome:
        """Delete committed offsets of deleted topics.

        The tombstones may be lost with the leader of this shard, before or after the append. So the
        check is repeated until it finds nothing, and also after the shard was loaded.
        """
        gone = list(
            itertools.islice(self._offsets.of_deleted_topics(self._is_current), FORGOTTEN_AT_ONCE)
        )
        wait_ms = 0 if len(gone) == FORGOTTEN_AT_ONCE else GONE_CHECK_MS
        self._deletion_check_ms = at.now_ms + wait_ms if gone else None
        return ShardOutcome(
            tuple(offset_tombstone(key.group, key.topic, key.partition) for key in gone)
        )

    def _expire_later(self, now_ms: int) -> None:
        """Schedule expiry, because there is now something that can expire."""
        if self._expiry_ms is None:
            self._expiry_ms = now_ms + self._config.offsets_retention_check_interval_ms
            self._deletion_check_ms = now_ms

    def _unused_since_ms(self, group_id: str, topic: str, committed_ms: int) -> int | None:
        group = self._groups.get(group_id)
        return committed_ms if group is None else group.unused_since_ms(topic, committed_ms)

    # Groups.

    def _is_current(self, topic: str, position: OffsetCommitValue) -> bool:
        """Whether the topic is the one that the offset was committed for.

        1. Offset 500 is committed for topic `a`. 2. `a` is deleted and created again: another topic
        id. 3. With the old offset, a consumer of the new `a` would skip its first 500 records.
        """
        topic_id = self._topics.topic_id(topic)
        return topic_id is not None and position.topic_id in (ZERO_UUID, topic_id)

    def _exists(self, topic: str, partition: int) -> bool:
        return 0 <= partition < self._topics.partitions(topic)

    def _classic(self, group_id: str) -> ClassicGroup:
        """Return the classic group of this name; it replaces an empty group of the other kind."""
        group = self._groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            group = self._groups[group_id] = ClassicGroup(group_id, self._config)
        return group

    def _schedule(self, group_id: str) -> None:
        """Note the group's next deadline."""
        group = self._groups.get(group_id)
        self._deadlines.note(group_id, None if group is None else group.next_deadline_ms())

    def _drop_unrecorded(self, group_id: str) -> None:
        """Drop an empty group that the log has no record of."""
        group = self._groups.get(group_id)
        if group is not None and group.is_empty and not group.is_recorded:
            del self._groups[group_id]

    def _delete_group(self, group_id: str, *, gone: int = 0) -> ShardOutcome:
        """Delete an empty group whose only offsets are the `gone` that are being deleted.

        As in Kafka, this is part of the regular clean-up: until then, an empty group can be
        described and deleted.
        """
        self._drop_unrecorded(group_id)
        group = self._groups.get(group_id)
        if group is None or not group.is_empty:
            return ShardOutcome()
        if len(self._offsets.of(group_id)) > gone:
            return ShardOutcome()
        return ShardOutcome(group.group_tombstones())

    def _answer(self, caller: Caller, response: Message) -> ShardOutcome:
        return ShardOutcome(answers=(Answer(caller.ticket, response),))


def _error_response(refusal: HeartbeatError | None) -> ConsumerGroupHeartbeatResponse:
    code, message = refusal or HeartbeatError(ErrorCode.UNKNOWN_SERVER_ERROR, "")
    return ConsumerGroupHeartbeatResponse(error_code=code, error_message=message)


def _group_error(group: Group | None, group_id: str) -> HeartbeatError:
    """Return the error for a heartbeat to a group that is gone, or of the classic protocol."""
    if group is None:
        return HeartbeatError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group_id!r} has no members")
    return HeartbeatError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"group {group_id!r} has members that use the classic protocol",
    )
