"""GroupCoordinator: all groups and offsets of one partition of `__consumer_offsets`.

Pure. It finds the group that a request is for, puts together what the group and the offsets
decide, and replays what was appended. Groups are due one at a time, found by a heap of
deadlines, so a tick costs nothing for the groups that sleep. A group that has neither members
nor offsets is forgotten, with a tombstone if it ever was in the log.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from streamlog.broker.coordinator.groups import ClassicGroup, GroupState
from streamlog.broker.coordinator.offsets import METADATA_BYTES_MAX, CommittedOffsets
from streamlog.broker.coordinator.records import (
    GroupChange,
    OffsetChange,
    decode_change,
    encode_change,
)
from streamlog.broker.coordinator.shard import Answer, Caller, CoordinatorRecord, Instant, Outcome
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.coordination import (
    DescribedGroup,
    DescribedGroupMember,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    MemberIdentity,
    MemberResponse,
    OffsetCommitKey,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetCommitValue,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
    SyncGroupRequest,
    SyncGroupResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from streamlog.broker.group_config import GroupConfig
    from streamlog.protocol.schema import Message

MANY_LEAVE_VERSION = 3
"""From this LeaveGroup version on several members leave at once, each with a code of its own."""
GROUP_ID_BYTES_MAX = 32_767
"""What a string of two bytes' length can hold: the record has to name the group."""


class GroupCoordinator:
    """The `Shard` of groups."""

    def __init__(
        self, config: GroupConfig, *, partition_exists: Callable[[str, int], bool]
    ) -> None:
        self._config = config
        self._partition_exists = partition_exists
        self._groups: dict[str, ClassicGroup] = {}
        self._offsets = CommittedOffsets()
        self._due: list[tuple[int, str]] = []
        self._scheduled: dict[str, int] = {}

    def configure(self, config: GroupConfig) -> None:
        """Go on with other settings."""
        self._config = config
        for group in self._groups.values():
            group.config = config

    # ---- Shard ----

    def handle(self, request: Message, caller: Caller, at: Instant) -> Outcome:
        """Decide on a request for one group."""
        match request:
            case JoinGroupRequest():
                outcome, group_id = self._join(request, caller, at), request.group_id
            case SyncGroupRequest():
                outcome, group_id = self._sync(request, caller, at), request.group_id
            case HeartbeatRequest():
                return self._heartbeat(request, caller, at)
            case LeaveGroupRequest():
                outcome, group_id = self._leave(request, caller, at), request.group_id
            case OffsetCommitRequest():
                return self._commit(request, caller, at)
            case _:
                raise TypeError(f"no request to a group: {request!r}")
        self._schedule(group_id)
        return outcome + self._bury(group_id)

    def replay(self, record: CoordinatorRecord, *, now_ms: int) -> None:
        """See `Shard.replay`."""
        change = decode_change(record)
        match change:
            case OffsetChange():
                self._offsets.replay(change)
            case GroupChange(group_id=group_id, value=None):
                self._groups.pop(group_id, None)
            case GroupChange(group_id=group_id, value=value) if value is not None:
                self._group(group_id).replay(value, now_ms)
                self._schedule(group_id)

    def on_tick(self, at: Instant) -> Outcome:
        """See `Shard.on_tick`."""
        outcome = Outcome()
        while self._due and self._due[0][0] <= at.now_ms:
            deadline_ms, group_id = heapq.heappop(self._due)
            if self._scheduled.get(group_id) != deadline_ms:
                continue
            del self._scheduled[group_id]
            group = self._groups.get(group_id)
            if group is not None:
                outcome += group.on_tick(at)
                self._schedule(group_id)
                outcome += self._bury(group_id)
        return outcome

    def next_deadline_ms(self) -> int | None:
        """See `Shard.next_deadline_ms`."""
        return self._due[0][0] if self._due else None

    def refuse(self, request: Message, version: int, code: int) -> Message:
        """See `Shard.refuse`."""
        match request:
            case JoinGroupRequest():
                return JoinGroupResponse(
                    error_code=code, protocol_name="", member_id=request.member_id
                )
            case SyncGroupRequest():
                return SyncGroupResponse(error_code=code)
            case HeartbeatRequest():
                return HeartbeatResponse(error_code=code)
            case LeaveGroupRequest():
                return LeaveGroupResponse(error_code=code)
            case OffsetCommitRequest():
                return _commit_response(request, lambda _topic, _partition: code)
            case _:
                raise TypeError(f"no request to a group: {request!r}, version {version}")

    # ---- reading ----

    def positions(
        self, group_id: str, wanted: Iterable[tuple[str, Iterable[int]]] | None
    ) -> list[OffsetFetchResponseTopics]:
        """Committed offsets, -1 where there is none; `wanted` None is all that there are."""
        known = self._offsets.of(group_id)
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

    def describe(self, group_id: str) -> DescribedGroup:
        """A group with its members; one that is not there is Dead."""
        group = self._groups.get(group_id)
        if group is None:
            state = "Empty" if group_id in self._offsets.groups() else "Dead"
            return DescribedGroup(group_id=group_id, group_state=state)
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

    def listed(self) -> list[ListedGroup]:
        """A line about each group."""
        lines = [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state.value,
                group_type="classic",
            )
            for group in self._groups.values()
        ]
        lines += (
            ListedGroup(group_id=group_id, group_state="Empty", group_type="classic")
            for group_id in self._offsets.groups()
            if group_id not in self._groups
        )
        return lines

    def forget_topic(self, name: str) -> Outcome:
        """A topic is gone, and with it all positions in it."""
        return Outcome(tuple(encode_change(c) for c in self._offsets.forget_topic(name)))

    # ---- requests ----

    def _join(self, request: JoinGroupRequest, caller: Caller, at: Instant) -> Outcome:
        code = ErrorCode.NONE
        if not 0 < len(request.group_id.encode()) <= GROUP_ID_BYTES_MAX:
            code = ErrorCode.INVALID_GROUP_ID
        elif request.member_id and request.group_id not in self._groups:
            code = ErrorCode.UNKNOWN_MEMBER_ID
        if code is not ErrorCode.NONE:
            return self._answer(caller, self.refuse(request, caller.version, code))
        return self._group(request.group_id).join(request, caller, at)

    def _sync(self, request: SyncGroupRequest, caller: Caller, at: Instant) -> Outcome:
        group = self._groups.get(request.group_id)
        if group is None:
            response = SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
            return self._answer(caller, response)
        return group.sync(request, caller, at)

    def _heartbeat(self, request: HeartbeatRequest, caller: Caller, at: Instant) -> Outcome:
        group = self._groups.get(request.group_id)
        code = ErrorCode.UNKNOWN_MEMBER_ID if group is None else group.heartbeat(request, at)
        return self._answer(caller, HeartbeatResponse(error_code=code))

    def _leave(self, request: LeaveGroupRequest, caller: Caller, at: Instant) -> Outcome:
        group = self._groups.get(request.group_id)
        many = caller.version >= MANY_LEAVE_VERSION
        leaving = request.members if many else [MemberIdentity(member_id=request.member_id)]
        outcome, told = Outcome(), []
        for identity in leaving:
            instance_id, code = identity.group_instance_id, ErrorCode.UNKNOWN_MEMBER_ID
            if group is not None:
                code, gone = group.leave(identity.member_id, instance_id, at)
                outcome += gone
            told.append(
                MemberResponse(
                    member_id=identity.member_id, group_instance_id=instance_id, error_code=code
                )
            )
        response = LeaveGroupResponse(error_code=0 if many else told[0].error_code, members=told)
        return outcome + self._answer(caller, response)

    def _commit(self, request: OffsetCommitRequest, caller: Caller, at: Instant) -> Outcome:
        group = self._groups.get(request.group_id)
        generation = request.generation_id_or_member_epoch
        refused = ErrorCode.NONE
        if group is not None:
            refused = group.may_commit(request.member_id, request.group_instance_id, generation, at)
        elif generation >= 0:
            refused = ErrorCode.ILLEGAL_GENERATION
        elif len(request.group_id.encode()) > GROUP_ID_BYTES_MAX:
            refused = ErrorCode.INVALID_GROUP_ID
        records = []

        def keep(topic: str, partition: OffsetCommitRequestPartition) -> int:
            code = refused or self._commit_refusal(topic, partition)
            if code is ErrorCode.NONE:
                records.append(_commit_record(request.group_id, topic, partition, at))
            return code

        response = _commit_response(request, keep)
        return Outcome(tuple(records)) + self._answer(caller, response)

    def _commit_refusal(self, topic: str, partition: OffsetCommitRequestPartition) -> ErrorCode:
        if not self._partition_exists(topic, partition.partition_index):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if len((partition.committed_metadata or "").encode()) > METADATA_BYTES_MAX:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE

    # ---- groups ----

    def _group(self, group_id: str) -> ClassicGroup:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = ClassicGroup(group_id, self._config)
        return group

    def _schedule(self, group_id: str) -> None:
        """See to it that the group's next deadline is in the heap."""
        group = self._groups.get(group_id)
        deadline_ms = None if group is None else group.next_deadline_ms()
        known_ms = self._scheduled.get(group_id)
        if deadline_ms is not None and (known_ms is None or deadline_ms < known_ms):
            self._scheduled[group_id] = deadline_ms
            heapq.heappush(self._due, (deadline_ms, group_id))

    def _bury(self, group_id: str) -> Outcome:
        """Forget a group that holds nothing. One that was never in the log leaves no trace."""
        group = self._groups.get(group_id)
        if group is None or group.state is not GroupState.EMPTY or group.announced:
            return Outcome()
        if group.generation == 0:
            del self._groups[group_id]
            return Outcome()
        if group_id in self._offsets.groups():
            return Outcome()
        return Outcome((encode_change(GroupChange(group_id, None)),))

    def _answer(self, caller: Caller, response: Message) -> Outcome:
        return Outcome(answers=(Answer(caller.ticket, response),))


def _position(partition: int, value: OffsetCommitValue) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=partition,
        committed_offset=value.offset,
        committed_leader_epoch=value.leader_epoch,
        metadata=value.metadata,
    )


def _commit_record(
    group_id: str, topic: str, partition: OffsetCommitRequestPartition, at: Instant
) -> CoordinatorRecord:
    key = OffsetCommitKey(group=group_id, topic=topic, partition=partition.partition_index)
    value = OffsetCommitValue(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp=at.wall_ms,
    )
    return encode_change(OffsetChange(key, value))


def _commit_response(
    request: OffsetCommitRequest, code_of: Callable[[str, OffsetCommitRequestPartition], int]
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=code_of(topic.name, partition),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
