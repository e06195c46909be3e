"""Committed offsets: how far each group has read each partition.

A commit returns the change to append; `replay` of that change alters the state. An offset is the
next one to read. An offset that no group has used for `offsets.retention.minutes` expires
(KIP-211). An offset in an open transaction is staged until the transaction ends; if two records
commit one offset, the later record counts, as it does for compaction.

TxnOffsetCommit is an OffsetCommit with two exceptions: a producer that names no member (before
KIP-447) always may commit, and epochs of members are generations to it. OffsetFetch asks for one
group up to version 7, and for several from version 8 on (KIP-709).

Not done here: who may commit (the group), and whether a partition exists (`group_coordinator`).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple, Protocol

from streamlog.broker.coordinator.group.group_records import OffsetChange, encode_change
from streamlog.broker.coordinator.shard import Answer, CoordinatorRecord, Instant, ShardOutcome
from streamlog.broker.named_topics import TOPIC_IDS_VERSION, refuse_topic, topic_key
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import (
    OffsetCommitKey,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitValue,
    OffsetFetchRequest,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from streamlog.protocol.messages.transaction_messages import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from streamlog.protocol.schema import Message


METADATA_BYTES_MAX = 4096
"""Of the note that a committer may add to a position; Kafka's `offset.metadata.max.bytes`."""
FOR_AS_LONG_AS_ALL = -1
"""The retention time of a commit that asks for none of its own."""


def commit_error(partition: OffsetCommitRequestPartition, *, exists: bool) -> ErrorCode:
    """Why a position can't be kept."""
    if not exists:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if len((partition.committed_metadata or "").encode()) > METADATA_BYTES_MAX:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def commit_record(
    request: OffsetCommitRequest,
    topic: str,
    topic_id: bytes,
    partition: OffsetCommitRequestPartition,
    at: Instant,
) -> CoordinatorRecord:
    """The record of one position."""
    key = OffsetCommitKey(group=request.group_id, topic=topic, partition=partition.partition_index)
    retention_ms = request.retention_time_ms
    value = OffsetCommitValue(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp=at.wall_ms,
        expire_timestamp=-1 if retention_ms == FOR_AS_LONG_AS_ALL else at.wall_ms + retention_ms,
        topic_id=topic_id,
    )
    return encode_change(OffsetChange(key, value))


def offset_tombstone(group_id: str, topic: str, partition: int) -> CoordinatorRecord:
    """The end of one position."""
    key = OffsetCommitKey(group=group_id, topic=topic, partition=partition)
    return encode_change(OffsetChange(key, None))


class GroupOffsetReader(Protocol):
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


def fetch_group_offsets(
    request: OffsetFetchRequest, shard: GroupOffsetReader
) -> OffsetFetchResponse:
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


def split_by_group(request: OffsetFetchRequest) -> list[OffsetFetchRequest]:
    """A request for each group of one that is about several."""
    return [
        OffsetFetchRequest(groups=[asked], require_stable=request.require_stable)
        for asked in request.groups
    ]


def fetch_offsets(
    request: OffsetFetchRequest, shard: GroupOffsetReader, *, version: int
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
    listed: list[OffsetFetchRequestTopics] | None, shard: GroupOffsetReader, version: int
) -> tuple[list[tuple[str, list[int]]] | None, list[OffsetFetchResponseTopics]]:
    """What is asked for by name, None for all that there is; and what is said of unknown ids."""
    if listed is None:
        return None, []
    names = [(topic_key(topic, shard.name_of), topic) for topic in listed]
    if version < TOPIC_IDS_VERSION:
        return [(name, topic.partition_indexes) for name, topic in names], []
    wanted = [(name, topic.partition_indexes) for name, topic in names if name]
    return wanted, [
        refuse_topic(topic, ErrorCode.UNKNOWN_TOPIC_ID) for name, topic in names if not name
    ]


def join_groups(answers: Sequence[Message]) -> OffsetFetchResponse:
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
    shard: GroupOffsetReader,
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


Place = tuple[str, str, int]
"""Group, topic and partition."""


class _Staged(NamedTuple):
    number: int
    change: OffsetChange


class StagedOffsets:
    """The positions of all open transactions of one shard."""

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[Place, _Staged]] = {}
        self._numbers = itertools.count()

    def __contains__(self, place: object) -> bool:
        return any(place in staged for staged in self._by_producer.values())

    def stage(self, producer_id: int, change: OffsetChange) -> None:
        """The next record of the log is in a transaction of this producer."""
        staged = _Staged(next(self._numbers), change)
        self._by_producer.setdefault(producer_id, {})[_place(change.key)] = staged

    def overtake(self, key: OffsetCommitKey) -> None:
        """The next record of the log is about the same position, and counts at once."""
        if self._by_producer:
            self._forget(_place(key), next(self._numbers))

    def decide(self, producer_id: int, *, committed: bool) -> list[OffsetChange]:
        """The transaction has ended; returns what counts from now on."""
        staged = self._by_producer.pop(producer_id, {})
        if not committed:
            return []
        for place, each in staged.items():
            self._forget(place, each.number)
        return [each.change for each in staged.values()]

    def _forget(self, place: Place, before: int) -> None:
        for staged in self._by_producer.values():
            known = staged.get(place)
            if known is not None and known.number < before:
                del staged[place]


def _place(key: OffsetCommitKey) -> Place:
    return key.group, key.topic, key.partition


class GroupOffsets:
    """The positions of all groups of one shard."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[tuple[str, int], OffsetCommitValue]] = {}
        self._staged = StagedOffsets()

    def of(self, group_id: str) -> Mapping[tuple[str, int], OffsetCommitValue]:
        """All positions of a group, by topic and partition."""
        return self._groups.get(group_id, {})

    def groups(self) -> Collection[str]:
        """Groups that have a position somewhere."""
        return self._groups.keys()

    def unused(
        self, since_ms: Callable[[str, str, int], int | None], *, wall_ms: int, retention_ms: int
    ) -> Iterator[OffsetCommitKey]:
        """Positions that are over.

        Args:
            since_ms: since when the position of a group in a topic, committed then, has served
                nobody; None while it does.
            wall_ms: now.
            retention_ms: how long they are kept then, unless the commit has said otherwise.
        """
        for group_id, positions in self._groups.items():
            for (topic, partition), value in positions.items():
                unused_ms = since_ms(group_id, topic, value.commit_timestamp)
                if unused_ms is None or (group_id, topic, partition) in self._staged:
                    continue
                asked_ms = value.expire_timestamp
                if wall_ms >= (unused_ms + retention_ms if asked_ms < 0 else asked_ms):
                    yield OffsetCommitKey(group=group_id, topic=topic, partition=partition)

    def gone(self, is_there: Callable[[str, OffsetCommitValue], bool]) -> Iterator[OffsetCommitKey]:
        """Positions in topics that are no more, but for those that a transaction may set."""
        for group_id, positions in self._groups.items():
            for (topic, partition), value in positions.items():
                if is_there(topic, value) or (group_id, topic, partition) in self._staged:
                    continue
                yield OffsetCommitKey(group=group_id, topic=topic, partition=partition)

    def is_stable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether no transaction is open that may set the position."""
        return (group_id, topic, partition) not in self._staged

    def replay(self, change: OffsetChange) -> None:
        """Take one change into account."""
        self._staged.overtake(change.key)
        self._set(change)

    def stage(self, producer_id: int, change: OffsetChange) -> None:
        """Take one change into account that is in a transaction of this producer."""
        self._staged.stage(producer_id, change)

    def decide(self, producer_id: int, *, committed: bool) -> None:
        """The producer's transaction has ended."""
        for change in self._staged.decide(producer_id, committed=committed):
            self._set(change)

    def _set(self, change: OffsetChange) -> None:
        key = change.key
        if change.value is not None:
            positions = self._groups.setdefault(key.group, {})
            positions[key.topic, key.partition] = change.value
            return
        positions = self._groups.get(key.group, {})
        positions.pop((key.topic, key.partition), None)
        if not positions:
            self._groups.pop(key.group, None)


COMMIT_VERSION = 9
"""Of the commit that it is taken for: the newest, in which members have epochs."""


def names_no_member(request: TxnOffsetCommitRequest) -> bool:
    """Whether it says nothing of a member of the group."""
    return request.generation_id < 0 and not request.member_id and request.group_instance_id is None


def as_commit(request: TxnOffsetCommitRequest) -> OffsetCommitRequest:
    """The same commit without a transaction."""
    return OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        retention_time_ms=-1,
        topics=[
            OffsetCommitRequestTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        committed_metadata=each.committed_metadata,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def in_transaction(outcome: ShardOutcome, request: TxnOffsetCommitRequest) -> ShardOutcome:
    """What a commit leads to, as part of the producer's transaction."""
    answers = tuple(Answer(each.ticket, _response(each.response)) for each in outcome.answers)
    return ShardOutcome(outcome.records, answers, (request.producer_id, request.producer_epoch))


def _response(response: Message) -> Message:
    if not isinstance(response, OffsetCommitResponse):
        return response
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=_code(each.error_code)
                    )
                    for each in topic.partitions
                ],
            )
            for topic in response.topics
        ]
    )


def _code(code: int) -> int:
    return ErrorCode.ILLEGAL_GENERATION if code == ErrorCode.STALE_MEMBER_EPOCH else code
