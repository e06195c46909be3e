"""`spark.readStream.format("streamlog")`: micro-batches of the log, with bounds for each.

Where a query stands is in its checkpoint, which is Spark's; what it has finished is told to the
group `kafka.group.id` (`spark-streamlog-<topics>` by default), for tools to look at, never to
start from. Partitions that are added are read from their beginning. With `Trigger.AvailableNow`
the end is where it was when the query was started.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_bridge.failures import plainly
from spark_bridge.offsets import OffsetRange, Partition, limited
from spark_bridge.options import ByPartition as Offsets
from spark_bridge.options import ReadOptions
from spark_bridge.places import opened_log, place_of
from spark_bridge.shares import RangePartition, parts
from spark_bridge.stream_offsets import StreamOffset, restarts_of
from streamlog.assignors import TopicPartition
from streamlog.clock import SystemClock
from streamlog.errors import StreamlogError

if TYPE_CHECKING:
    import pyarrow as pa

Data: TypeAlias = dict[str, Any]
"""A `StreamOffset` as Spark keeps it."""

_log = logging.getLogger(__name__)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches, and reads the ranges of one in tasks."""

    def __init__(self, options: ReadOptions, value_type: Any) -> None:  # noqa: ANN401 - Arrow's, untyped
        self._options = options
        self._value_type = value_type
        self._target: Mapping[TopicPartition, tuple[int, int]] | None = None
        self._is_bounded = False
        self._waiting_since_ms: int | None = None
        self._told: Data | None = None

    @plainly()
    def initialOffset(self) -> Data:  # noqa: N802 - Spark's name
        """Where a new query starts."""
        place = place_of(self._options)
        # The ids first: a topic that is created again after this is noticed.
        ids = place.ids()
        return StreamOffset(place.starts(), ids).to_data()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """`maxOffsetsPerTrigger`."""
        most = self._options.offsets_per_trigger_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """From now on the end stays where it is when it is looked up first."""
        self._is_bounded = True

    @plainly()
    def latestOffset(self, start: Data, limit: ReadLimit) -> Data:  # noqa: N802 - Spark's name
        """Where the next batch ends. That it is asked for says that those before are finished.

        Raises:
            SourceLost: a log is not the one that was read, and `failOnDataLoss` is set.
        """
        self.commit(start)
        before, ids = StreamOffset.of_data(start), place_of(self._options).ids()
        bounds = self._bounds(before.begun(ids))
        restarts = restarts_of(before, ids, bounds, fail=self._fails)
        ends: Offsets = {}
        for (topic, number), (_, end) in bounds.items():
            ends.setdefault(topic, {})[str(number)] = end
        known = _with_new(before.restarted(restarts), ends)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if not self._is_bounded and self._waits(known, ends):
            return start
        return StreamOffset(limited(known, ends, most), ids, restarts).to_data()

    def _bounds(
        self, begun: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        if self._target is not None:
            return self._target
        bounds = place_of(self._options).bounds(begun)
        if self._is_bounded:
            self._target = bounds
        return bounds

    def _waits(self, start: Offsets, ends: Offsets) -> bool:
        """Whether there is less than `minOffsetsPerTrigger`, and not for `maxTriggerDelay` yet."""
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

    @plainly()
    def partitions(self, start: Data, end: Data) -> Sequence[InputPartition]:
        """The ranges between two places, those deleted meanwhile told of or left out."""
        place, until = place_of(self._options), StreamOffset.of_data(end)
        first, ids = place.firsts(), place.ids()
        # A batch that was planned, or is repeated, in a log that is gone.
        gone = restarts_of(StreamOffset(until.offsets, until.ids), ids, {}, fail=self._fails)
        known = _with_new(StreamOffset.of_data(start).restarted(until.restarts), until.offsets)
        ranges = []
        for topic, numbers in until.offsets.items():
            for number, stop in numbers.items():
                if number in gone.get(topic, {}):
                    continue
                oldest = first.get(TopicPartition(topic, int(number)), 0)
                partition = Partition(topic, int(number), (min(oldest, stop), stop))
                begin = partition.within(known[topic][number], fail=self._fails)
                if begin < stop:
                    ranges.append(OffsetRange(topic, int(number), begin, stop))
        return parts(self._options, place.visible(ranges))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range, in offset order."""
        if isinstance(partition, RangePartition):
            with plainly():
                yield from place_of(self._options).read(partition.offsets, self._value_type)

    @property
    def _fails(self) -> bool:
        return self._options.fail_on_data_loss

    def commit(self, end: Data) -> None:
        """Tell the group how far the query is; that nobody is there to be told ends nothing."""
        if end == self._told:
            return
        try:
            asyncio.run(self._tell(StreamOffset.of_data(end).offsets))
            self._told = end
        except StreamlogError as error:
            _log.warning("group %s is not told of %s: %s", self._options.group_id, end, error)

    async def _tell(self, end: Offsets) -> None:
        async with opened_log(self._options) as log:
            await log.admin().alter_group_offsets(
                self._options.group_id,
                {
                    TopicPartition(topic, int(number)): offset
                    for topic, numbers in end.items()
                    for number, offset in numbers.items()
                },
            )

    def stop(self) -> None:
        """Nothing is held open between batches."""


def _with_new(start: Mapping[str, Mapping[str, int]], end: Offsets) -> Offsets:
    """The start, with partitions that are new to it at their beginning."""
    return {
        topic: {number: start.get(topic, {}).get(number, 0) for number in numbers}
        for topic, numbers in end.items()
    }
