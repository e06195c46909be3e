"""GroupOffsets: the committed offsets, which are the positions of groups in partitions.

A commit returns the change to append; `replay` of that change alters the state. A committed offset
is the offset of the next record to read. Offsets that no group has used for
`offsets.retention.minutes` expire (KIP-211). An offset in an open transaction is staged until the
transaction ends. If two records commit an offset of one partition, the later record counts, as in
compaction.

TxnOffsetCommit is an OffsetCommit with two exceptions: a producer that names no member (before
KIP-447) may always commit, and member epochs count as generations. OffsetFetch asks for one group
up to version 7, and for several from version 8 on (KIP-709).

Not done here: whether a member may commit (the group), and whether a partition exists
(`group_coordinator`).
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
"""The size of the metadata in a commit; Kafka's `offset.metadata.max.bytes`."""
FOR_AS_LONG_AS_ALL = -1
"""The retention time of a commit that uses the broker's setting."""


def commit_error(partition: OffsetCommitRequestPartition, *, exists: bool) -> ErrorCode:
    """Return why an offset can't be committed."""
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
    """Return the record of one committed offset."""
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
    """Return the tombstone of one committed offset."""
    key = OffsetCommitKey(group=group_id, topic=topic, partition=partition)
    return encode_change(OffsetChange(key, None))


class GroupOffsetReader(Protocol):
    """The part of `GroupCoordinator` that reads committed offsets."""

    def positions(
        self, group_id: str, wanted: Iterable[tuple[str, Iterable[int]]] | None
    ) -> list[OffsetFetchResponseTopics]:
        """Return committed offsets, -1 where there is none; without `wanted`, all of them."""
        ...

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with this id."""
        ...

    def topic_id(self, name: str) -> bytes:
        """Return the id of a topic; zero if it does not exist."""
        ...

    def is_stable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether no open transaction may change the committed offset (KIP-447)."""
        ...

    def may_fetch(self, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
        """Check that a member may fetch committed offsets."""
        ...


def fetch_group_offsets(
    request: OffsetFetchRequest, shard: GroupOffsetReader
) -> OffsetFetchResponse:
    """Return the OffsetFetch response up to version 7, for one group."""
    listed_topics = request.topics
    wanted = (
        None if listed_topics is None else [(t.name, t.partition_indexes) for t in listed_topics]
    )
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
    """Split a request for several groups into one request per group."""
    return [
        OffsetFetchRequest(groups=[asked], require_stable=request.require_stable)
        for asked in request.groups
    ]


def fetch_offsets(
    request: OffsetFetchRequest, shard: GroupOffsetReader, *, version: int
) -> OffsetFetchResponse:
    """Return the OffsetFetch response from version 8 on, for groups of this shard."""
    groups = []
    for asked in request.groups:
        name, listed_topics = asked.group_id, asked.topics
        code = shard.may_fetch(name, asked.member_id, asked.member_epoch)
        topics: list[OffsetFetchResponseTopics] = []
        if code is ErrorCode.NONE:
            wanted, unknown = _requested_topics(listed_topics, shard, version)
            topics = _positions(shard, name, wanted, stable=request.require_stable)
            for topic in topics:
                topic.topic_id = shard.topic_id(topic.name)
            topics += unknown
        groups.append(OffsetFetchResponseGroup(group_id=name, error_code=code, topics=topics))
    return OffsetFetchResponse(groups=groups)


def _requested_topics(
    listed_topics: list[OffsetFetchRequestTopics] | None, shard: GroupOffsetReader, version: int
) -> tuple[list[tuple[str, list[int]]] | None, list[OffsetFetchResponseTopics]]:
    """Return the requested topics by name, or None for all, and errors for unknown ids."""
    if listed_topics is None:
        return None, []
    names = [(topic_key(topic, shard.name_of), topic) for topic in listed_topics]
    if version < TOPIC_IDS_VERSION:
        return [(name, topic.partition_indexes) for name, topic in names], []
    wanted = [(name, topic.partition_indexes) for name, topic in names if name]
    return wanted, [
        refuse_topic(topic, ErrorCode.UNKNOWN_TOPIC_ID) for name, topic in names if not name
    ]


def join_groups(answers: Sequence[Message]) -> OffsetFetchResponse:
    """Merge the responses for single groups into one."""
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
    """Return committed offsets; with `stable`, an error where a transaction may change them.

    KIP-447: 1. A commits offset 100 in a transaction and dies before it ends. 2. B takes over the
    partition and fetches the committed offset. With the old value, 50, B would process 50-99 a
    second time once A's transaction is committed. So B gets UNSTABLE_OFFSET_COMMIT and retries.
    """
    found = shard.positions(group_id, wanted)
    if not stable:
        return found
    for name, each in [(topic.name, each) for topic in found for each in topic.partitions]:
        if not shard.is_stable(group_id, name, each.partition_index):
            each.error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
            each.committed_offset = each.committed_leader_epoch = -1
    return found


OffsetKey = tuple[str, str, int]
"""Group id, topic and partition."""


class _StagedOffset(NamedTuple):
    number: int
    change: OffsetChange


class StagedOffsets:
    """The offsets in all open transactions of one shard."""

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[OffsetKey, _StagedOffset]] = {}
        self._numbers = itertools.count()

    def __contains__(self, offset_key: object) -> bool:
        return any(offset_key in staged for staged in self._by_producer.values())

    def stage(self, producer_id: int, change: OffsetChange) -> None:
        """Stage the next record of the log, which is part of this producer's transaction."""
        staged = _StagedOffset(next(self._numbers), change)
        self._by_producer.setdefault(producer_id, {})[_key_of(change.key)] = staged

    def overtake(self, key: OffsetCommitKey) -> None:
        """Note that the next record of the log sets the offset without a transaction."""
        # Without staged offsets there is no order to keep.
        if self._by_producer:
            self._forget(_key_of(key), next(self._numbers))

    def decide(self, producer_id: int, *, committed: bool) -> list[OffsetChange]:
        """End the producer's transaction; return the offsets that count from now on."""
        staged = self._by_producer.pop(producer_id, {})
        # An aborted transaction leaves the offsets as they were before it.
        if not committed:
            return []
        for offset_key, each in staged.items():
            # The log's order decides, not the order of the markers: 1. Producer 7 stages offset 10
            # (record 1), producer 8 stages 20 (record 2). 2. 8 commits: 20. 3. 7 commits later:
            # record 1 is older than record 2, which is what compaction would keep, so 10 must not
            # replace 20.
            self._forget(offset_key, each.number)
        return [each.change for each in staged.values()]

    def _forget(self, offset_key: OffsetKey, before: int) -> None:
        for staged in self._by_producer.values():
            known = staged.get(offset_key)
            if known is not None and known.number < before:
                del staged[offset_key]


def _key_of(key: OffsetCommitKey) -> OffsetKey:
    return key.group, key.topic, key.partition


class GroupOffsets:
    """The committed offsets of all groups of one shard."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[tuple[str, int], OffsetCommitValue]] = {}
        self._staged = StagedOffsets()

    def of(self, group_id: str) -> Mapping[tuple[str, int], OffsetCommitValue]:
        """Return all committed offsets of a group, by topic and partition."""
        return self._groups.get(group_id, {})

    def groups(self) -> Collection[str]:
        """Return the groups that have a committed offset."""
        return self._groups.keys()

    def expired(
        self, since_ms: Callable[[str, str, int], int | None], *, wall_ms: int, retention_ms: int
    ) -> Iterator[OffsetCommitKey]:
        """Iterate over expired offsets.

        Args:
            since_ms: returns the time since which an offset is unused, None while it is used. Its
                arguments are the group, the topic and the time of the commit.
            wall_ms: the current time.
            retention_ms: how long unused offsets are kept, unless the commit has set its own time.
        """
        for group_id, positions in self._groups.items():
            for (topic, partition), value in positions.items():
                unused_ms = since_ms(group_id, topic, value.commit_timestamp)
                if unused_ms is None or (group_id, topic, partition) in self._staged:
                    continue
                asked_ms = value.expire_timestamp
                # A commit up to version 4 could set its own retention time, which then replaces
                # the broker's.
                if wall_ms >= (unused_ms + retention_ms if asked_ms < 0 else asked_ms):
                    yield OffsetCommitKey(group=group_id, topic=topic, partition=partition)

    def of_deleted_topics(
        self, exists: Callable[[str, OffsetCommitValue], bool]
    ) -> Iterator[OffsetCommitKey]:
        """Iterate over offsets of deleted topics, without those that a transaction may set."""
        for group_id, positions in self._groups.items():
            for (topic, partition), value in positions.items():
                if exists(topic, value) or (group_id, topic, partition) in self._staged:
                    continue
                yield OffsetCommitKey(group=group_id, topic=topic, partition=partition)

    def is_stable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether no open transaction may change the committed offset (KIP-447)."""
        return (group_id, topic, partition) not in self._staged

    def replay(self, change: OffsetChange) -> None:
        """Replay one change."""
        self._staged.overtake(change.key)
        self._set(change)

    def stage(self, producer_id: int, change: OffsetChange) -> None:
        """Stage one change, which is part of this producer's transaction."""
        self._staged.stage(producer_id, change)

    def decide(self, producer_id: int, *, committed: bool) -> None:
        """End the producer's transaction."""
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
"""The OffsetCommit version as which a TxnOffsetCommit is handled: the newest has member epochs."""


def names_no_member(request: TxnOffsetCommitRequest) -> bool:
    """Whether the request names no member of the group."""
    return request.generation_id < 0 and not request.member_id and request.group_instance_id is None


def as_commit(request: TxnOffsetCommitRequest) -> OffsetCommitRequest:
    """Return a TxnOffsetCommit as an OffsetCommit."""
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
    """Return the outcome of a commit as part of the producer's transaction."""
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
