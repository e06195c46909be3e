"""Bounds: what tasks take of what has arrived, where they are to stand still at a cut."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from streamlog.processing.inputs.record_queue import TimeSpan
from streamlog.record import TopicPartition
from streamlog.records.control_batches import TimeMark
from streamlog.records.record_columns import RecordColumns
from streamlog.topology import Topology
from streamlog.worker.topics.savepoint_messages import SavepointCut

FAR_OFFSET: Final = 2**63 - 1


class CutLimits:
    """Offsets and times at which inputs end; without a cut there are none."""

    def __init__(self, cut: SavepointCut | None, topology: Topology) -> None:
        self._cut = cut
        self._topology = topology

    def end(self, part: TopicPartition) -> int:
        """Nothing from there on is taken; repartition topics have no end but their own."""
        if self._cut is None or self._topology.topics[part.topic].internal:
            return FAR_OFFSET
        return self._cut.limit(part)

    def positions(
        self, parts: Iterable[TopicPartition], read: Mapping[TopicPartition, int]
    ) -> dict[tuple[str, int], int]:
        """How far these were read, as far as it is taken."""
        return {part: min(read[part], self.end(part)) for part in parts if part in read}

    def records(self, part: TopicPartition, columns: RecordColumns) -> RecordColumns:
        """Those before the end."""
        if self._cut is None:
            return columns
        found: RecordColumns = columns[: bisect_left(columns.offsets, self.end(part))]
        return found

    def marks(self, part: TopicPartition, marks: Sequence[TimeMark]) -> Sequence[TimeMark]:
        """Those before the end."""
        return marks if self._cut is None else [m for m in marks if m.offset < self.end(part)]

    def spans(self, topics: Iterable[str]) -> Mapping[str, TimeSpan] | None:
        """Which time of these topics is taken; None: all of it."""
        return None if self._cut is None else self._cut.spans(topics)
