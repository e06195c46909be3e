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
from spark_bridge.lost_logs import Lost
from spark_bridge.offsets import LogMark, OffsetRange, Partition, limited
from spark_bridge.options import ByPartition as Offsets
from spark_bridge.options import ReadOptions
from spark_bridge.places import opened_log, place_of
from spark_bridge.shares import RangePartition, parts
from spark_bridge.stream_offsets import StreamOffset, lost_logs
from streamlog.assignors import TopicPartition
from streamlog.clock import SystemClock
from streamlog.errors import StreamlogError
from streamlog.records.epoch_chains import EpochChain

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
        self._warned: set[str] = set()

    @plainly()
    def initialOffset(self) -> Data:  # noqa: N802 - Spark's name
        """Where a new query starts."""
        place = place_of(self._options)
        # The ids first: a topic that is created again after this is noticed.
        ids = place.ids()
        offsets = place.starts()
        return StreamOffset(offsets, ids, epochs=self._epochs(offsets)).to_data()

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
        before, place = StreamOffset.of_data(start), place_of(self._options)
        ids = place.ids()
        stood = before.same_topics(ids)
        cuts = place.divergences(stood)
        bounds = self._bounds({at: min(o, max(cuts.get(at, o), 0)) for at, (o, _) in stood.items()})
        restarts = self._restarts(lost_logs(before, ids, bounds, cuts), bounds)
        ends: Offsets = {}
        for (topic, number), (_, end) in bounds.items():
            ends.setdefault(topic, {})[str(number)] = end
        known = _with_new(before.restarted(restarts), ends)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if not self._is_bounded and self._waits(known, ends):
            return start
        offsets = limited(known, ends, most)
        epochs = self._epochs(offsets, before, restarts)
        return StreamOffset(offsets, ids, restarts, epochs).to_data()

    def _restarts(
        self,
        found: list[tuple[Lost, int]],
        bounds: Mapping[TopicPartition, tuple[int, int]],
    ) -> Offsets:
        """Where partitions are begun with again whose log is not the one that was read."""
        restarts: Offsets = {}
        for lost, position in found:
            first, end = bounds.get(lost.place, (0, position))
            again = min(max(lost.same_until, first), end)
            if self._fails:
                raise lost.error(
                    position,
                    f"With failOnDataLoss=false the query reads on at offset {again}, the first"
                    " that it has not read; or give the query a new checkpoint",
                )
            self._warn(f"{lost.text}: reading on at offset {again}")
            restarts.setdefault(lost.place.topic, {})[str(lost.place.partition)] = again
        return restarts

    def _warn(self, text: str) -> None:
        """Once, for Spark asks again and again."""
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("%s", text)

    def _epochs(
        self, offsets: Offsets, before: StreamOffset | None = None, restarts: Offsets | None = None
    ) -> dict[str, dict[str, EpochChain]]:
        """The leader epochs before the offsets; of those that have not moved, as they were."""
        before, moved = before or StreamOffset({}), restarts or {}
        known: dict[TopicPartition, EpochChain] = {}
        found: dict[TopicPartition, EpochChain] = {}
        asked: dict[TopicPartition, int] = {}
        for topic, numbers in offsets.items():
            for number, offset in numbers.items():
                at = TopicPartition(topic, int(number))
                chain = before.chain(at) if number not in moved.get(topic, {}) else ()
                if chain and before.offsets[topic][number] == offset:
                    found[at] = chain
                elif offset > 0:
                    asked[at], known[at] = offset, chain
        if asked:
            found |= place_of(self._options).epochs(asked, known)
        epochs: dict[str, dict[str, EpochChain]] = {}
        for at, chain in found.items():
            epochs.setdefault(at.topic, {})[str(at.partition)] = chain
        return epochs

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
        planned = StreamOffset(until.offsets, until.ids, epochs=until.epochs)
        gone = lost_logs(planned, ids, {}, place.divergences(planned.same_topics(ids)))
        if gone:
            self._restarts(gone, {})
        same_until = {lost.place: lost.same_until for lost, _ in gone}
        known = _with_new(StreamOffset.of_data(start).restarted(until.restarts), until.offsets)
        ranges = []
        for topic, numbers in until.offsets.items():
            for number, planned_stop in numbers.items():
                at = TopicPartition(topic, int(number))
                stop = min(planned_stop, same_until.get(at, planned_stop))
                begin = known[topic][number]
                if begin >= stop:
                    continue
                oldest = first.get(at, 0)
                partition = Partition(topic, int(number), (min(oldest, stop), stop))
                begin = partition.within(begin, fail=self._fails)
                if begin < stop:
                    chain = tuple(entry for entry in until.chain(at) if entry[1] < stop)
                    mark = LogMark(until.ids.get(topic, ""), stop, chain)
                    ranges.append(OffsetRange(topic, int(number), begin, stop, log=mark))
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
