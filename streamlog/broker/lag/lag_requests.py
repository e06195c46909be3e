"""LagRequests: answers clients about the lag of groups, and coordinators about next records.

Both may wait for disks and other brokers, so tasks of the broker answer them. A task whose client
has disconnected ends with its budget.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from streamlog.broker.future_responses import Spawn, answer_by_task
from streamlog.broker.handlers import Handlers, entry
from streamlog.broker.lag.group_lag import Ends, GroupLag, PartitionLag
from streamlog.broker.lag.lag_rounds import LoopSlices, ends_of, is_usable
from streamlog.broker.lag.next_records import NextRecord, NextRecords, Wanted
from streamlog.errors import LogError, StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.lag_messages import (
    DescribedGroupLag,
    DescribedPartitionLag,
    DescribedTopicLag,
    DescribeGroupLagRequest,
    DescribeGroupLagResponse,
    FindNextRecordsRequest,
    FindNextRecordsResponse,
    FoundNextRecord,
    PartitionNextRecords,
    PartitionPositions,
    TopicNextRecords,
)
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.lag.lag_rounds import LagRounds
    from streamlog.broker.replication.partition import Partitions

R = TypeVar("R", bound=Message)
CLIENT_BUDGET_MS = 2_000
"""How long a client's request may wait for logs and leaders."""
LEADER_BUDGET_MS = 2_000
"""How long at most another broker's request may wait for logs."""
UNKNOWN = -1


class LagRequests:
    """Answers DescribeGroupLag and FindNextRecords."""

    def __init__(
        self, rounds: LagRounds, records: NextRecords, partitions: Partitions, *, spawn: Spawn
    ) -> None:
        """`spawn` runs a task until the broker stops."""
        self._rounds = rounds
        self._records = records
        self._partitions = partitions
        self._spawn = spawn

    def handlers(self) -> Handlers:
        """Return the handler of each request type."""

        def describe(
            request: DescribeGroupLagRequest, _: object
        ) -> DescribeGroupLagResponse | asyncio.Future[DescribeGroupLagResponse]:
            if not request.groups:
                return DescribeGroupLagResponse()
            return answer_by_task(self._spawn, lambda _: self.describe(request))

        def find(
            request: FindNextRecordsRequest, _: object
        ) -> FindNextRecordsResponse | asyncio.Future[FindNextRecordsResponse]:
            if not request.topics:
                return FindNextRecordsResponse()
            return answer_by_task(self._spawn, lambda _: self.find(request))

        return dict([entry(DescribeGroupLagRequest, describe), entry(FindNextRecordsRequest, find)])

    async def describe(self, request: DescribeGroupLagRequest) -> DescribeGroupLagResponse:
        """Describe the lag of groups."""
        return DescribeGroupLagResponse(
            groups=[await self._describe(group_id) for group_id in dict.fromkeys(request.groups)]
        )

    async def _describe(self, group_id: str) -> DescribedGroupLag:
        try:
            found = await self._rounds.look_at([group_id], CLIENT_BUDGET_MS)
        except LogError as error:
            return DescribedGroupLag(
                error_code=error.code, error_message=str(error), group_id=group_id
            )
        if not found:
            return DescribedGroupLag(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=f"group {group_id!r} does not exist",
                group_id=group_id,
            )
        return _described(found[0])

    async def find(self, request: FindNextRecordsRequest) -> FindNextRecordsResponse:
        """Return ends of partitions that this broker leads, and next records in them."""
        found: dict[tuple[str, int, int], NextRecord] = {}
        searches: list[Wanted] = []
        ends_by_partition: dict[tuple[str, int], Ends | int] = {}
        pace = LoopSlices()
        for topic in request.topics:
            for each in topic.partitions:
                where = (topic.name, each.partition_index)
                ends_by_partition[where] = self._look_up(where, each, searches, found)
                await pace.step()

        def note(wanted: Wanted, record: NextRecord) -> None:
            found[wanted.position] = record

        budget_ms = min(max(request.timeout_ms, 0), LEADER_BUDGET_MS)
        with suppress(TimeoutError):
            async with asyncio.timeout(budget_ms / 1000):
                await self._records.find(searches, note)
        return FindNextRecordsResponse(
            topics=[
                TopicNextRecords(
                    name=topic.name,
                    partitions=[
                        _answer(topic.name, each, ends_by_partition, found)
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _look_up(
        self,
        where: tuple[str, int],
        asked: PartitionPositions,
        searches: list[Wanted],
        found: dict[tuple[str, int, int], NextRecord],
    ) -> Ends | int:
        """Return a partition's ends, or an error code; note what is known and what to search."""
        try:
            partition = self._partitions.get(*where)
        except StreamlogError as error:
            if isinstance(error, LogError):
                return error.code
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not is_usable(partition):
            return ErrorCode.OFFSET_NOT_AVAILABLE
        ends = ends_of(partition)
        for committed in asked.offsets:
            offset = ends.next_offset(committed)
            if offset is None:
                continue
            wanted = Wanted((*where, offset), partition, ends.end_offset)
            known = self._records.known(wanted)
            if known is None:
                searches.append(wanted)
            else:
                found[wanted.position] = known
        return ends


def _described(group: GroupLag) -> DescribedGroupLag:
    topics: dict[str, list[DescribedPartitionLag]] = {}
    for each in group.partitions:
        topics.setdefault(each.topic, []).append(_described_partition(each))
    return DescribedGroupLag(
        group_id=group.group_id,
        group_type=group.kind,
        group_state=group.state,
        member_count=group.members,
        topics=[DescribedTopicLag(name=name, partitions=each) for name, each in topics.items()],
    )


def _described_partition(lag: PartitionLag) -> DescribedPartitionLag:
    return DescribedPartitionLag(
        partition_index=lag.partition,
        committed_offset=lag.committed_offset,
        log_start_offset=UNKNOWN if lag.start_offset is None else lag.start_offset,
        high_watermark=UNKNOWN if lag.end_offset is None else lag.end_offset,
        lag=UNKNOWN if lag.lag is None else lag.lag,
        lag_ms=UNKNOWN if lag.lag_ms is None else lag.lag_ms,
        lost=UNKNOWN if lag.lost is None else lag.lost,
        consume_rate=UNKNOWN if lag.consume_rate is None else lag.consume_rate,
        produce_rate=UNKNOWN if lag.produce_rate is None else lag.produce_rate,
        catch_up_s=UNKNOWN if lag.catch_up_s is None else lag.catch_up_s,
    )


def _answer(
    topic: str,
    asked: PartitionPositions,
    ends_by_partition: dict[tuple[str, int], Ends | int],
    found: dict[tuple[str, int, int], NextRecord],
) -> PartitionNextRecords:
    index = asked.partition_index
    ends = ends_by_partition[topic, index]
    if not isinstance(ends, Ends):
        return PartitionNextRecords(partition_index=index, error_code=ends)
    records = []
    for committed in asked.offsets:
        offset = ends.next_offset(committed)
        record = None if offset is None else found.get((topic, index, offset))
        if record is not None:
            records.append(
                FoundNextRecord(
                    offset=committed,
                    record_offset=UNKNOWN if record.offset is None else record.offset,
                    timestamp=record.timestamp_ms,
                )
            )
    return PartitionNextRecords(
        partition_index=index,
        log_start_offset=ends.start_offset,
        high_watermark=ends.end_offset,
        records=records,
    )
