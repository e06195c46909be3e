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
    """One Spark task's share."""

    def __init__(self, offsets: OffsetRange) -> None:
        self.offsets = offsets


def input_partitions(options: ReadOptions, ranges: Sequence[OffsetRange]) -> list[RangePartition]:
    """The shares of Spark's tasks: one per range, or per part of one."""
    found = split(
        ranges, min_partitions=options.min_partitions, records_max=options.records_per_partition_max
    )
    return [RangePartition(offsets) for offsets in found]


Ids: TypeAlias = Mapping[str, str]
"""Topic ids as text, as Kafka's tools print them, by name; empty where the log tells none."""
HEX_ID_CHARACTERS: Final = 32
"""As base64 an id has 22."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A place in all partitions that a query reads."""

    offsets: ByPartition
    ids: Ids = field(default_factory=dict)
    restarts: ByPartition = field(default_factory=dict)
    epochs: Mapping[str, Mapping[str, EpochChain]] = field(default_factory=dict)
    """By topic and partition, the last leader epochs before the offset."""

    def to_data(self) -> dict[str, Any]:
        """As plain data."""
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
        """What `to_data` gave."""
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
        """Offsets, and the epochs before them, in topics that still are the same."""
        return {
            (at := TopicPartition(topic, int(number))): (offset, self.chain(at))
            for topic, numbers in self.offsets.items()
            if not is_recreated(self.ids.get(topic, ""), ids.get(topic, ""))
            for number, offset in numbers.items()
        }

    def chain(self, at: TopicPartition) -> EpochChain:
        """The leader epochs before the offset of a partition."""
        return self.epochs.get(at.topic, {}).get(str(at.partition), ())

    def restarted(self, restarts: ByPartition) -> ByPartition:
        """The offsets, with others where partitions are begun with again."""
        return {
            topic: {**numbers, **restarts.get(topic, {})} for topic, numbers in self.offsets.items()
        }


def _id_text(text: str) -> str:
    """A topic id as it is compared: earlier builds kept it as hexadecimal text."""
    return id_text(bytes.fromhex(text)) if len(text) == HEX_ID_CHARACTERS else text


def lost_logs(
    start: StreamOffset,
    ids: Ids,
    bounds: Mapping[TopicPartition, tuple[int, int]],
    divergences: Mapping[TopicPartition, int],
) -> list[tuple[LostLog, int]]:
    """Partitions whose log is not the one that was read, each with the offset that was next.

    Args:
        start: where the query stands.
        ids: of the topics that there are.
        bounds: first offset and end of each partition, as far as they are known.
        divergences: where logs differ from those that were read; -1: nobody knows.
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
            elif at in divergences or 0 <= end < offset:
                where = divergences.get(at, UNKNOWN_OFFSET)
                found.append((truncated_log(at, where, end, then), offset))
    return found


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

    @without_traceback()
    def initialOffset(self) -> Data:  # noqa: N802 - Spark's name
        """Where a new query starts."""
        place = log_source(self._options)
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

    @without_traceback()
    def latestOffset(self, start: Data, limit: ReadLimit) -> Data:  # noqa: N802 - Spark's name
        """Where the next batch ends. That it is asked for says that those before are finished.

        Raises:
            SourceLost: a log is not the one that was read, and `failOnDataLoss` is set.
        """
        self.commit(start)
        before, place = StreamOffset.of_data(start), log_source(self._options)
        ids = place.ids()
        stood = before.same_topics(ids)
        cuts = place.divergences(stood)
        bounds = self._bounds({at: min(o, max(cuts.get(at, o), 0)) for at, (o, _) in stood.items()})
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

    @without_traceback()
    def partitions(self, start: Data, end: Data) -> Sequence[InputPartition]:
        """The ranges between two places, those deleted meanwhile told of or left out."""
        place, until = log_source(self._options), StreamOffset.of_data(end)
        first, ids = place.firsts(), place.ids()
        # A batch that was planned, or is repeated, in a log that is gone.
        planned = StreamOffset(until.offsets, until.ids, epochs=until.epochs)
        gone = lost_logs(planned, ids, {}, place.divergences(planned.same_topics(ids)))
        if gone:
            self._restarts(gone, {})
        same_until = {lost.place: lost.same_until for lost, _ in gone}
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
                    chain = tuple(entry for entry in until.chain(at) if entry[1] < stop)
                    mark = LogMark(until.ids.get(topic, ""), stop, chain)
                    ranges.append(OffsetRange(topic, int(number), begin, stop, log=mark))
        return input_partitions(self._options, place.visible(ranges))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range, in offset order."""
        if isinstance(partition, RangePartition):
            with without_traceback():
                yield from log_source(self._options).read(partition.offsets, self._value_type)

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
        """Nothing is held open between batches."""


def _add_new_partitions(start: Mapping[str, Mapping[str, int]], end: Offsets) -> Offsets:
    """The start, with partitions that are new to it at their beginning."""
    return {
        topic: {number: start.get(topic, {}).get(number, 0) for number in numbers}
        for topic, numbers in end.items()
    }
