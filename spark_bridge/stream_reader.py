"""`spark.readStream.format("streamlog")`: micro-batches of the log, with bounds for each.

The position of a query is in Spark's checkpoint. What it has finished is also committed to the
group `kafka.group.id` (`spark-streamlog-<topics>` by default), for tools to read and never to start
from. New partitions are read from their beginning. `Trigger.AvailableNow` ends where the log ended
when the query started. A checkpoint names the log of each offset, by topic id and leader epochs;
as JSON, for topic `in` with two partitions:

    {"in": {"id": "b8XQ…", "offsets": {"0": 60, "1": 40}, "restarts": {"1": 0},
            "epochs": {"0": [[0, 0], [3, 25]], "1": [[0, 0]]}}}

Offsets 0 to 24 of partition 0 have leader epoch 0, those up to 59 epoch 3. `restarts` holds the
start of the batch that ends here where it is not the end of the batch before, so that a repeated
batch has equal records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_bridge.log_sources import connect_log, log_source
from spark_bridge.offset_ranges import (
    LogMark,
    LostLog,
    OffsetRange,
    PlannedPartition,
    is_recreated,
    limit_end,
    recreated_log,
    split,
    truncated_log,
)
from spark_bridge.python_failures import without_traceback
from spark_bridge.source_options import ByPartition, ReadOptions
from spark_bridge.source_options import ByPartition as Offsets
from streamlog.clock import SystemClock
from streamlog.errors import StreamlogError
from streamlog.protocol.schema import id_text
from streamlog.record import TopicPartition
from streamlog.records.epoch_chains import UNKNOWN_OFFSET, EpochChain

if TYPE_CHECKING:
    import pyarrow as pa


class RangePartition(InputPartition):
    """The input of one Spark task: a range of offsets."""

    def __init__(self, offsets: OffsetRange) -> None:
        self.offsets = offsets


def input_partitions(options: ReadOptions, ranges: Sequence[OffsetRange]) -> list[RangePartition]:
    """Return the inputs of Spark's tasks: one per range, or per part of a range."""
    found = split(
        ranges, min_partitions=options.min_partitions, records_max=options.records_per_partition_max
    )
    return [RangePartition(offsets) for offsets in found]


Ids: TypeAlias = Mapping[str, str]
"""Topic IDs by name, as Kafka's tools print them; empty if the log has none."""
HEX_ID_CHARACTERS: Final = 32
"""Length of a topic ID as hexadecimal text; base64 has 22."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The positions of a query in all partitions, as its checkpoint holds them."""

    offsets: ByPartition
    ids: Ids = field(default_factory=dict)
    restarts: ByPartition = field(default_factory=dict)
    epochs: Mapping[str, Mapping[str, EpochChain]] = field(default_factory=dict)
    """The last leader epochs before the offset, by topic and partition."""

    def to_data(self) -> dict[str, Any]:
        """Return the offset as plain data for Spark's checkpoint."""
        return {
            topic: {
                "id": self.ids.get(topic, ""),
                "offsets": numbers,
                "restarts": self.restarts.get(topic, {}),
                "epochs": {
                    number: [list(entry) for entry in chain]
                    for number, chain in sorted(self.epochs.get(topic, {}).items())
                    if chain
                },
            }
            for topic, numbers in sorted(self.offsets.items())
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        """Decode what `to_data` returned."""
        return cls(
            {topic: each["offsets"] for topic, each in data.items()},
            {topic: _id_text(each["id"]) for topic, each in data.items()},
            {topic: each["restarts"] for topic, each in data.items() if each["restarts"]},
            {
                topic: {
                    number: tuple((epoch, first) for epoch, first in chain)
                    for number, chain in each["epochs"].items()
                }
                for topic, each in data.items()
                if each.get("epochs")  # Earlier builds kept none.
            },
        )

    def same_topics(self, ids: Ids) -> dict[TopicPartition, tuple[int, EpochChain]]:
        """Return the offsets and epochs of the topics that were not created again."""
        return {
            (at := TopicPartition(topic, int(number))): (offset, self.chain(at))
            for topic, numbers in self.offsets.items()
            if not is_recreated(self.ids.get(topic, ""), ids.get(topic, ""))
            for number, offset in numbers.items()
        }

    def chain(self, at: TopicPartition) -> EpochChain:
        """Return the leader epochs before the offset of a partition."""
        return self.epochs.get(at.topic, {}).get(str(at.partition), ())

    def restarted(self, restarts: ByPartition) -> ByPartition:
        """Return the offsets, replaced where partitions restart."""
        return {
            topic: {**numbers, **restarts.get(topic, {})} for topic, numbers in self.offsets.items()
        }


def _id_text(text: str) -> str:
    """Return a topic ID in the compared form: earlier builds stored hexadecimal text."""
    return id_text(bytes.fromhex(text)) if len(text) == HEX_ID_CHARACTERS else text


def lost_logs(
    start: StreamOffset,
    ids: Ids,
    bounds: Mapping[TopicPartition, tuple[int, int]],
    divergences: Mapping[TopicPartition, int],
) -> list[tuple[LostLog, int]]:
    """Return the partitions whose log has changed, each with the query's next offset.

    Args:
        start: the positions of the query.
        ids: current topic IDs.
        bounds: first offset and end of partitions, as far as they are known.
        divergences: offsets from which logs differ from those that were read; -1: unknown offset.
    """
    found: list[tuple[LostLog, int]] = []
    for topic, numbers in start.offsets.items():
        before, now = start.ids.get(topic, ""), ids.get(topic, "")
        for number, offset in numbers.items():
            at = TopicPartition(topic, int(number))
            _, end = bounds.get(at, (0, UNKNOWN_OFFSET))
            then = f"offset {offset} was next"
            if is_recreated(before, now):
                found.append(
                    (
                        recreated_log(at, before, now, f"offset {offset} of the old one was next"),
                        offset,
                    )
                )
            # An end before the query's position proves that the log was truncated, also where no
            # epochs are known. An unknown end (-1) proves nothing.
            elif at in divergences or 0 <= end < offset:
                where = divergences.get(at, UNKNOWN_OFFSET)
                found.append((truncated_log(at, where, end, then), offset))
    return found


Data: TypeAlias = dict[str, Any]
"""A `StreamOffset` as plain data."""

_log = logging.getLogger(__name__)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches, and reads the ranges of one in tasks."""

    def __init__(self, options: ReadOptions, value_type: Any) -> None:  # noqa: ANN401 - Arrow's, untyped
        self._options = options
        self._value_type = value_type
        self._target: Mapping[TopicPartition, tuple[int, int]] | None = None
        self._is_bounded = False
        self._waiting_since_ms: int | None = None
        self._committed: Data | None = None
        self._warned: set[str] = set()

    @without_traceback()
    def initialOffset(self) -> Data:  # noqa: N802 - Spark's name
        """Return the start of a new query."""
        source = log_source(self._options)
        # IDs first: a topic that is created again after this line is noticed.
        ids = source.ids()
        offsets = source.starts()
        return StreamOffset(offsets, ids, epochs=self._epochs(offsets)).to_data()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of the option `maxOffsetsPerTrigger`."""
        most = self._options.offsets_per_trigger_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the end of the query at its first look-up."""
        self._is_bounded = True

    @without_traceback()
    def latestOffset(self, start: Data, limit: ReadLimit) -> Data:  # noqa: N802 - Spark's name
        """Return the end of the next batch; the call implies that earlier batches are finished.

        Raises:
            SourceLost: a log has changed, and `failOnDataLoss` is set.
        """
        # Spark asks for the end of a batch only after all earlier batches have finished.
        self.commit(start)
        before, source = StreamOffset.of_data(start), log_source(self._options)
        ids = source.ids()
        same = before.same_topics(ids)
        cuts = source.divergences(same)
        # Committed records are looked for from the query's offset on, or from where the log
        # differs; from 0 if that offset is unknown (-1).
        bounds = self._bounds({at: min(o, max(cuts.get(at, o), 0)) for at, (o, _) in same.items()})
        restarts = self._restarts(lost_logs(before, ids, bounds, cuts), bounds)
        ends: Offsets = {}
        for (topic, number), (_, end) in bounds.items():
            ends.setdefault(topic, {})[str(number)] = end
        known = _add_new_partitions(before.restarted(restarts), ends)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if not self._is_bounded and self._waits(known, ends):
            return start
        offsets = limit_end(known, ends, most)
        epochs = self._epochs(offsets, before, restarts)
        return StreamOffset(offsets, ids, restarts, epochs).to_data()

    def _restarts(
        self,
        found: list[tuple[LostLog, int]],
        bounds: Mapping[TopicPartition, tuple[int, int]],
    ) -> Offsets:
        """Return the offsets at which partitions restart whose log has changed."""
        restarts: Offsets = {}
        for lost, position in found:
            first, end = bounds.get(lost.topic_partition, (0, position))
            # 1. The query has read up to 100; the log was truncated at 60 and has grown to 130.
            # 2. Offsets 60 to 99 are other records now, which it has not read: it continues at 60.
            # 3. If retention has removed those below 80, it continues at 80.
            again = min(max(lost.same_until, first), end)
            if self._fails:
                raise lost.error(
                    position,
                    f"With failOnDataLoss=false the query continues at offset {again}, the first"
                    " one that it has not read; or start the query with a new checkpoint",
                )
            self._warn(f"{lost.text}: continuing at offset {again}")
            topic, partition = lost.topic_partition
            restarts.setdefault(topic, {})[str(partition)] = again
        return restarts

    def _warn(self, text: str) -> None:
        """Log a warning once, though Spark asks for each batch."""
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("%s", text)

    def _epochs(
        self, offsets: Offsets, before: StreamOffset | None = None, restarts: Offsets | None = None
    ) -> dict[str, dict[str, EpochChain]]:
        """Return the leader epochs before the offsets; asks the log only for moved offsets."""
        before, moved = before or StreamOffset({}), restarts or {}
        known: dict[TopicPartition, EpochChain] = {}
        found: dict[TopicPartition, EpochChain] = {}
        asked: dict[TopicPartition, int] = {}
        for topic, numbers in offsets.items():
            for number, offset in numbers.items():
                at = TopicPartition(topic, int(number))
                chain = before.chain(at) if number not in moved.get(topic, {}) else ()
                # A partition without new records keeps its epochs, without a request.
                if chain and before.offsets[topic][number] == offset:
                    found[at] = chain
                elif offset > 0:
                    asked[at], known[at] = offset, chain
        if asked:
            found |= log_source(self._options).epochs(asked, known)
        epochs: dict[str, dict[str, EpochChain]] = {}
        for at, chain in found.items():
            epochs.setdefault(at.topic, {})[str(at.partition)] = chain
        return epochs

    def _bounds(
        self, begun: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        if self._target is not None:
            return self._target
        bounds = log_source(self._options).bounds(begun)
        # `Trigger.AvailableNow`: all batches of the query share the end of the first look-up.
        if self._is_bounded:
            self._target = bounds
        return bounds

    def _waits(self, start: Offsets, ends: Offsets) -> bool:
        """Return whether the batch is smaller than `minOffsetsPerTrigger` and may still wait."""
        least = self._options.offsets_per_trigger_min
        there = sum(
            max(end - start[topic][number], 0)
            for topic, numbers in ends.items()
            for number, end in numbers.items()
        )
        now_ms = SystemClock().now_ms()
        since_ms = self._waiting_since_ms if self._waiting_since_ms is not None else now_ms
        if least is None or there >= least or now_ms - since_ms >= self._options.trigger_delay_ms:
            self._waiting_since_ms = now_ms
            return False
        self._waiting_since_ms = since_ms
        return True

    @without_traceback()
    def partitions(self, start: Data, end: Data) -> Sequence[InputPartition]:
        """Return the inputs of a batch; deleted offsets fail the query or are skipped."""
        source, until = log_source(self._options), StreamOffset.of_data(end)
        first, ids = source.firsts(), source.ids()
        # The log may have changed since the batch was planned, or before it is repeated.
        # 1. Offsets 40 to 59 are planned; the checkpoint has them.
        # 2. The driver crashes. Meanwhile the log is truncated at 50 and grows again.
        # 3. Spark repeats the batch: 50 to 59 are other records now. The query fails, or reads 40
        #    to 49; the next batch restarts at 50.
        planned = StreamOffset(until.offsets, until.ids, epochs=until.epochs)
        gone = lost_logs(planned, ids, {}, source.divergences(planned.same_topics(ids)))
        if gone:
            self._restarts(gone, {})
        same_until = {lost.topic_partition: lost.same_until for lost, _ in gone}
        known = _add_new_partitions(
            StreamOffset.of_data(start).restarted(until.restarts), until.offsets
        )
        ranges = []
        for topic, numbers in until.offsets.items():
            for number, planned_stop in numbers.items():
                at = TopicPartition(topic, int(number))
                stop = min(planned_stop, same_until.get(at, planned_stop))
                begin = known[topic][number]
                if begin >= stop:
                    continue
                oldest = first.get(at, 0)
                partition = PlannedPartition(topic, int(number), (min(oldest, stop), stop))
                begin = partition.within(begin, fail=self._fails)
                if begin < stop:
                    # Epochs that begin at the cut or later belong to records that are not read.
                    chain = tuple(entry for entry in until.chain(at) if entry[1] < stop)
                    mark = LogMark(until.ids.get(topic, ""), stop, chain)
                    ranges.append(OffsetRange(topic, int(number), begin, stop, log=mark))
        return input_partitions(self._options, source.visible(ranges))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range, in offset order."""
        if isinstance(partition, RangePartition):
            with without_traceback():
                yield from log_source(self._options).read(partition.offsets, self._value_type)

    @property
    def _fails(self) -> bool:
        return self._options.fail_on_data_loss

    def commit(self, end: Data) -> None:
        """Commit the query's offsets to its group; a failure is only logged."""
        if end == self._committed:
            return
        try:
            asyncio.run(self._commit(StreamOffset.of_data(end).offsets))
            self._committed = end
        except StreamlogError as error:
            _log.warning(
                "the offsets of group %s can't be committed: %s", self._options.group_id, error
            )

    async def _commit(self, end: Offsets) -> None:
        async with connect_log(self._options) as log:
            await log.admin().alter_group_offsets(
                self._options.group_id,
                {
                    TopicPartition(topic, int(number)): offset
                    for topic, numbers in end.items()
                    for number, offset in numbers.items()
                },
            )

    def stop(self) -> None:
        """Do nothing: no connection is open between batches."""


def _add_new_partitions(start: Mapping[str, Mapping[str, int]], end: Offsets) -> Offsets:
    """Return the start, with new partitions at offset 0."""
    # 0, and not the first offset that is left: records of a new partition that are deleted before
    # the query reads them count as lost.
    return {
        topic: {number: start.get(topic, {}).get(number, 0) for number in numbers}
        for topic, numbers in end.items()
    }
