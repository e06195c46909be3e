"""LeaderQuestions: asks leaders about partitions that have no usable replica on this broker.

One request names many partitions and the committed offsets in them. The leader answers with the
ends, which are asked for in every round, and with the next records that it finds in time. A record
that was found is not asked for again for `REMEMBERED_MS`: until then, compaction at the leader may
have removed it unnoticed.

Rule of this module: a leader that does not answer leaves its partitions unknown, and delays nothing
but this.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from streamlog import repeated
from streamlog.broker.lag.group_lag import Ends
from streamlog.broker.lag.next_records import NextRecord, Position
from streamlog.errors import StreamlogError
from streamlog.protocol.messages.lag_messages import (
    FindNextRecordsRequest,
    FindNextRecordsResponse,
    PartitionNextRecords,
    PartitionPositions,
    TopicPositions,
)

if TYPE_CHECKING:
    from streamlog.clock import Clock
    from streamlog.protocol.schema import Message

OFFSETS_PER_REQUEST = 250
"""Committed offsets per request, so that encoding it holds the event loop only briefly."""
REMEMBERED_MS = 30_000
"""How long the answer of a leader about a record counts."""
REMEMBERED_MAX = 50_000
"""Records that are remembered."""

Call: TypeAlias = Callable[[int, "Message", int], Awaitable["Message"]]
"""Sends a request to a broker: its id, the request, and the time-out in milliseconds."""
Asked: TypeAlias = Mapping[tuple[str, int], set[int]]
"""Committed offsets by topic and partition."""
Take: TypeAlias = Callable[[tuple[str, int], Ends, dict[int, NextRecord]], None]
"""Takes the ends of a partition, and next records by the offset from which they are searched."""

_log = repeated.logger(__name__)


class LeaderQuestions:
    """Asks, and remembers what was answered."""

    def __init__(self, call: Call, *, clock: Clock) -> None:
        self._call = call
        self._clock = clock
        self._remembered: OrderedDict[Position, tuple[int, NextRecord]] = OrderedDict()

    async def ask(self, node_id: int, asked: Asked, take: Take, *, timeout_ms: int) -> None:
        """Ask one leader; call `take` for each partition that it answers for."""
        deadline_ms = self._clock.now_ms() + timeout_ms
        missing = await self._ask(node_id, asked, take, deadline_ms)
        if missing:
            # 1. The record at offset 5 is remembered, so the request does not ask for it. 2. The
            # answer says that the log now starts at 12. 3. The record at 12 is not known yet.
            await self._ask(node_id, missing, take, deadline_ms)

    async def _ask(
        self, node_id: int, asked: Asked, take: Take, deadline_ms: int
    ) -> dict[tuple[str, int], set[int]]:
        """Ask; return committed offsets whose remembered records have been deleted."""
        missing: dict[tuple[str, int], set[int]] = {}
        for topics in _portions(asked, self._is_remembered):
            left_ms = deadline_ms - self._clock.now_ms()
            if left_ms <= 0:
                break
            request = FindNextRecordsRequest(timeout_ms=left_ms, topics=topics)
            try:
                response = await self._call(node_id, request, left_ms)
            except StreamlogError as error:
                _log.info("the lag of groups at broker %d is not known: %s", node_id, error)
                break
            if not isinstance(response, FindNextRecordsResponse) or response.error_code:
                break
            self._take_all(response, asked, take, missing)
        return missing

    def _take_all(
        self,
        response: FindNextRecordsResponse,
        asked: Asked,
        take: Take,
        missing: dict[tuple[str, int], set[int]],
    ) -> None:
        answers = [(topic.name, each) for topic in response.topics for each in topic.partitions]
        for topic, each in answers:
            where = (topic, each.partition_index)
            deleted = set() if each.error_code else self._take(where, each, asked, take)
            if deleted:
                missing[where] = deleted

    def _take(
        self, where: tuple[str, int], answer: PartitionNextRecords, asked: Asked, take: Take
    ) -> set[int]:
        """Take an answer; return committed offsets whose remembered records were deleted."""
        ends = Ends(answer.log_start_offset, answer.high_watermark)
        for each in answer.records:
            first = ends.next_offset(each.offset)
            if first is not None:
                found = each.record_offset if each.record_offset >= 0 else None
                self._remember((*where, first), NextRecord(found, each.timestamp))
        records: dict[int, NextRecord] = {}
        deleted: set[int] = set()
        for committed in asked.get(where, ()):
            first = ends.next_offset(committed)
            known = None if first is None else self._known((*where, first))
            if first is not None and known is not None:
                records[first] = known
            elif first != committed and (*where, committed) in self._remembered:
                del self._remembered[*where, committed]
                deleted.add(committed)
        take(where, ends, records)
        return deleted

    def _is_remembered(self, position: Position) -> bool:
        known = self._known(position)
        # Where there was no record, one may have been appended since.
        return known is not None and known.offset is not None

    def _known(self, position: Position) -> NextRecord | None:
        held = self._remembered.get(position)
        if held is None or held[0] < self._clock.now_ms():
            return None
        return held[1]

    def _remember(self, position: Position, record: NextRecord) -> None:
        self._remembered[position] = self._clock.now_ms() + REMEMBERED_MS, record
        self._remembered.move_to_end(position)
        while len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)


def _portions(
    asked: Asked, is_remembered: Callable[[Position], bool]
) -> Iterator[list[TopicPositions]]:
    """Divide the partitions of a leader into requests."""
    topics: dict[str, list[PartitionPositions]] = {}
    count = 0
    for (topic, partition), committed in asked.items():
        offsets = [each for each in committed if not is_remembered((topic, partition, each))]
        for begin in range(0, max(len(offsets), 1), OFFSETS_PER_REQUEST):
            part = offsets[begin : begin + OFFSETS_PER_REQUEST]
            if count and count + len(part) + 1 > OFFSETS_PER_REQUEST:
                yield _topics(topics)
                topics, count = {}, 0
            positions = PartitionPositions(partition_index=partition, offsets=part)
            topics.setdefault(topic, []).append(positions)
            count += len(part) + 1
    if topics:
        yield _topics(topics)


def _topics(partitions: Mapping[str, list[PartitionPositions]]) -> list[TopicPositions]:
    return [TopicPositions(name=name, partitions=each) for name, each in partitions.items()]
