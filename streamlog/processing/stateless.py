"""Steps without state: map, filter, rekey, the ports of a cogroup, and the ends of a topology.

Rule of the module: the results of a record do not depend on earlier records. The user's functions
run in `Batch.applied`, which identifies the record if one fails. Timestamps and headers are kept,
as in Kafka Streams. A value of None passes through `map` and `filter` like any other; in a table's
change it is a deletion, which these steps do not pass to the functions. `RepartitionStep` stamps
records with their provenance and sends time marks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from streamlog.errors import TopologyError
from streamlog.nodes.stream_nodes import (
    Filter,
    FilterNot,
    FlatMap,
    FlatMapValues,
    Map,
    MapValues,
    Node,
    Peek,
    Port,
    Rekey,
    Stateless,
    TableFilter,
    TableMapValues,
    WithHeaders,
)
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.column_batch import Batch, TimeSource
from streamlog.processing.inputs.schema_headers import split_headers
from streamlog.processing.node_clock import NodeTime
from streamlog.processing.outbox import Collector, SinkBatch, sample
from streamlog.processing.provenance import (
    BUSY_MS,
    PROVENANCE,
    ProvenanceMark,
    Stamps,
    mark_headers,
)
from streamlog.processing.step import Step, view_changes
from streamlog.processing.written_headers import written_headers
from streamlog.record import GivenHeaders, Headers
from streamlog.serdes import window_bytes
from streamlog.serdes.erased_types import AnyRecord, UserFunction, UserKey, UserValue
from streamlog.windows.emit import UNKNOWN_MS


class PortStep(Step):
    """A step that adds to each value the number of its input."""

    def __init__(self, node: Port) -> None:
        super().__init__(node.name)
        self._number = node.number

    def process(self, batch: Batch) -> None:
        """Forward pairs of number and value; None stays None, so aggregations drop it."""
        number = self._number
        values = [None if value is None else (number, value) for value in batch.values]
        self.forward(batch.with_values(values))


class MapStep(Step):
    """A step that sets a new key and value."""

    def __init__(
        self, name: str, fn: Callable[[UserKey, UserValue], tuple[UserKey, UserValue]]
    ) -> None:
        super().__init__(name)
        self._fn = fn

    def process(self, batch: Batch) -> None:
        """Call the function with key and value."""
        batch, pairs = self.apply_function(batch, self._pair, batch.keys, batch.values)
        values = [value for _, value in pairs]
        self.forward(batch.with_keys([key for key, _ in pairs]).with_values(values))

    def _pair(self, key: object, value: object) -> tuple[UserKey, UserValue]:
        pair = self._fn(key, value)
        if not isinstance(pair, tuple) or len(pair) != 2:  # noqa: PLR2004 - a pair
            raise TypeError(f"map must return (key, value), not {pair!r}")
        return pair


class MapValuesStep(Step):
    """A step that sets a new value."""

    def __init__(self, name: str, fn: Callable[[UserValue], UserValue]) -> None:
        super().__init__(name)
        self._fn = fn

    def process(self, batch: Batch) -> None:
        """Call the function with the value."""
        batch, values = self.apply_function(batch, self._fn, batch.values)
        self.forward(batch.with_values(values))


class FlatMapStep(Step):
    """A step that makes any number of keys and values of a record."""

    def __init__(
        self, name: str, fn: Callable[[UserKey, UserValue], Iterable[tuple[UserKey, UserValue]]]
    ) -> None:
        super().__init__(name)
        self._fn = fn

    def process(self, batch: Batch) -> None:
        """Call the function with key and value; takes all results of a record at once."""
        batch, lists = self.apply_function(batch, self._all, batch.keys, batch.values)
        flat = _repeat_rows(batch, lists).with_values(
            [value for each in lists for _, value in each]
        )
        self.forward(flat.with_keys([key for each in lists for key, _ in each]))

    def _all(self, key: object, value: object) -> list[tuple[UserKey, UserValue]]:
        pairs = list(self._fn(key, value))
        for pair in pairs:
            if not isinstance(pair, tuple) or len(pair) != 2:  # noqa: PLR2004 - a pair
                raise TypeError(f"flat_map must return pairs (key, value), not {pair!r}")
        return pairs


class FlatMapValuesStep(Step):
    """A step that makes any number of values of a record."""

    def __init__(self, name: str, fn: Callable[[UserValue], Iterable[UserValue]]) -> None:
        super().__init__(name)
        self._fn = fn

    def process(self, batch: Batch) -> None:
        """Call the function with the value; takes all results of a record at once."""
        batch, lists = self.apply_function(batch, self._all, batch.values)
        flat = _repeat_rows(batch, lists)
        self.forward(flat.with_values([value for values in lists for value in values]))

    def _all(self, value: object) -> list[UserValue]:
        return list(self._fn(value))


def _repeat_rows(batch: Batch, lists: Sequence[Sequence[object]]) -> Batch:
    """Return each record as often as it has results."""
    ats = [at for at, made in enumerate(lists) for _ in made]
    flat = Batch(
        batch.origin,
        [batch.rows[at] for at in ats],
        [batch.keys[at] for at in ats],
        [batch.values[at] for at in ats],
        [batch.timestamps[at] for at in ats],
    )
    flat.keys_are_raw, flat.values_are_raw = batch.keys_are_raw, batch.values_are_raw
    return flat


class FilterStep(Step):
    """A step that keeps records for which the function is true."""

    def __init__(self, name: str, fn: Callable[[UserKey, UserValue], bool]) -> None:
        super().__init__(name)
        self._fn = fn

    def process(self, batch: Batch) -> None:
        """Call the function with key and value."""
        batch, kept = self.apply_function(batch, self._fn, batch.keys, batch.values)
        self.forward(batch if all(kept) else batch.where(kept))


class FilterNotStep(Step):
    """A step that keeps records for which the function is not true."""

    def __init__(self, name: str, fn: Callable[[UserKey, UserValue], bool]) -> None:
        super().__init__(name)
        self._fn = fn

    def process(self, batch: Batch) -> None:
        """Call the function with key and value."""
        batch, left = self.apply_function(batch, self._fn, batch.keys, batch.values)
        self.forward(batch.where([not each for each in left]) if any(left) else batch)


class PeekStep(Step):
    """A step that passes each record to a function."""

    def __init__(self, name: str, fn: Callable[[AnyRecord], object]) -> None:
        super().__init__(name)
        self._fn = fn

    def process(self, batch: Batch) -> None:
        """Call the function with the record; ignores its result."""
        batch, _ = self.apply_function(batch, self._fn, batch.records())
        self.forward(batch)


class WithHeadersStep(Step):
    """A step that sets new headers."""

    def __init__(self, name: str, fn: Callable[[AnyRecord], GivenHeaders]) -> None:
        super().__init__(name)
        self._fn = fn

    def process(self, batch: Batch) -> None:
        """Call the function with the record, and forward it with the headers of the result."""
        batch, headers = self.apply_function(batch, self._headers, batch.records())
        self.forward(batch.with_headers(headers))

    def _headers(self, record: AnyRecord) -> Headers:
        return written_headers(self._fn(record))


class RekeyStep(Step):
    """A step that sets a new key."""

    def __init__(self, name: str, fn: Callable[[UserKey, UserValue], UserValue]) -> None:
        super().__init__(name)
        self._fn = fn

    def process(self, batch: Batch) -> None:
        """Call the function with key and value."""
        batch, keys = self.apply_function(batch, self._fn, batch.keys, batch.values)
        self.forward(batch.with_keys(keys))


class ViewStep(Step):
    """A step that shows a table through a function."""

    sends_old_values = True
    """Whether a step downstream needs the values that changes replace."""

    def __init__(self, name: str, fn: UserFunction) -> None:
        super().__init__(name)
        self.fn = fn


class TableMapValuesStep(ViewStep):
    """A step that sets a new value in each change that is not a deletion."""

    def process(self, batch: Batch) -> None:
        """Call the function with the value, if there is one."""
        fn = self.fn
        if batch.old_values is not None:
            sends_old = self.sends_old_values
            self.forward(view_changes(self, batch, lambda _, v: fn(v), sends_old_values=sends_old))
            return
        batch, values = self.apply_function(
            batch, lambda v: None if v is None else fn(v), batch.values
        )
        self.forward(batch.with_values(values))


class TableFilterStep(ViewStep):
    """A step that keeps rows that pass; deletes a row that passed before and no longer does.

    If the table above does not know what it replaces (early rows of open windows), every row that
    does not pass is deleted, because it may have passed before.
    """

    def process(self, batch: Batch) -> None:
        """Call the function with key and value, if there is a value."""
        fn, sends_old = self.fn, self.sends_old_values
        if batch.old_values is not None:
            seen = view_changes(
                self, batch, lambda k, v: v if fn(k, v) else None, sends_old_values=sends_old
            )
            self.forward(seen)
            return
        batch, values = self.apply_function(
            batch,
            lambda k, v: v if v is not None and fn(k, v) else None,
            batch.keys,
            batch.values,
        )
        self.forward(batch.with_values(values))


_STEPS: dict[type[Node], Callable[[str, UserFunction], Step]] = {
    Map: MapStep,
    MapValues: MapValuesStep,
    FlatMap: FlatMapStep,
    FlatMapValues: FlatMapValuesStep,
    Filter: FilterStep,
    FilterNot: FilterNotStep,
    Peek: PeekStep,
    WithHeaders: WithHeadersStep,
    Rekey: RekeyStep,
    TableMapValues: TableMapValuesStep,
    TableFilter: TableFilterStep,
}


def stateless_step(node: Node) -> Step:
    """Return the step of a node that consists of a function.

    Raises:
        TopologyError: the node is of another kind.
    """
    if not isinstance(node, Stateless):
        raise TopologyError(
            f"{node.name!r} is of type {type(node).__name__}, which no task can run"
        )
    return _STEPS[type(node)](node.name, node.fn)


class SinkStep(Step):
    """A step that writes to a topic."""

    def __init__(self, name: str, topic: TopicSpec, collector: Collector) -> None:
        super().__init__(name)
        self._topic = topic
        self._collector = collector

    def process(self, batch: Batch) -> None:
        """Add the records as bytes to the outbox; their keys decide the partitions."""
        batch, keys, values = self.serialize_for(batch, self._topic)
        times = batch.origin.log_times
        headers = None if batch.origin.headers is None else batch.of_origin(batch.origin.headers)
        keys, values, headers = split_headers(self._topic, keys, values, headers)
        self._collector.send(
            SinkBatch(
                self._topic.name,
                None,
                batch.timestamps,
                keys,
                values,
                headers,
                window_bytes(self._topic.key),
                partitioner=self._topic.partitioner,
                log_times=() if times is None else [times[row] for row in sample(batch.rows)],
            )
        )


PASSING_MS = 5_000
"""While no records come, downstream tasks receive marks in multiples of this interval. The first
interval is as short as the log allows; later ones are a quarter of the quiet time so far."""
PASSING_MAX_MS = 600_000


class RepartitionStep(Step):
    """A step that writes to a repartition topic, with provenance, and sends it time marks."""

    def __init__(
        self,
        name: str,
        topic: TopicSpec,
        collector: Collector,
        *,
        partitions: int,
        feeds: list[TimeSource],
        idle_marks_ms: tuple[int, ...],
        other_writer: RepartitionStep | None = None,
        is_timed: bool = False,
    ) -> None:
        """`other_writer` is another step of the task that writes to this topic.

        `is_timed`: a node after the topic waits for time to advance.
        """
        super().__init__(name)
        self._topic = topic
        self._is_timed = is_timed
        self._collector = collector
        self._partitions = partitions
        self._idle_marks_ms = idle_marks_ms
        self.node_time = NodeTime(feeds)
        self._marked: dict[TimeSource, ProvenanceMark] = {
            feed: ProvenanceMark(feed.turn_ms, feed.time_ms, BUSY_MS)
            for feed in self.node_time.feeds
        }
        self._sent_marked_ms: dict[TimeSource, int] = {}
        self.last: dict[bytes, tuple[int, int]] = {} if other_writer is None else other_writer.last
        """By the identity of each time source: the position of the last record, and the number of
        results it has. They tell results apart in the topic, whichever step of the task wrote them.
        """

    def process(self, batch: Batch) -> None:
        """Add the records as bytes to the outbox.

        Records without a key are dropped and counted: they have no partition.
        """
        if batch.has_null_keys:
            kept = [key is not None for key in batch.keys]
            self._collector.drop(self.name, "null key", kept.count(False))
            batch = batch.where(kept)
        batch, keys, values = self.serialize_for(batch, self._topic)
        batch = self.node_time.of(batch)
        stamps = self._stamps(batch)
        is_stamped = self._topic.name in self._collector.stamped
        self._collector.send(
            SinkBatch(
                self._topic.name,
                None,
                batch.timestamps,
                keys,
                values,
                None if is_stamped else self._headers(batch, stamps),
                window_bytes(self._topic.key),
                stamps if is_stamped else None,
            )
        )

    def waits_for(self) -> Iterable[tuple[TimeSource, int]]:
        """Return when to send the next time mark while no records come.

        Downstream nodes may wait for this source before they close windows that others have filled.
        The longer it is quiet, the longer the intervals.
        """
        if not self._is_timed:
            return
        for feed in self._marked:
            # Quiet for 1 min: a mark each 15 s of event time; for 1 h: each 10 min. The first marks
            # come at once, because windows downstream may be about to close.
            if feed.time_ms > UNKNOWN_MS:
                steps = min(feed.quiet_ms // 4, PASSING_MAX_MS) // PASSING_MS
                yield feed, feed.time_ms + max(steps * PASSING_MS, 1)

    def follows(self) -> Iterable[tuple[TimeSource, int]]:
        """Return when to follow other partitions, for which downstream nodes may wait."""
        if not self._is_timed or self._idle_marks_ms:
            return
        for feed in self._marked:
            yield feed, 0 if feed.time_ms == UNKNOWN_MS else feed.time_ms + PASSING_MS

    def settle(self, now_ms: int | None) -> bool:  # noqa: ARG002 - marks tell stream time
        """Send every partition a time mark for each source whose time or end has changed."""
        for feed, before in self._marked.items():
            quiet_ms = max((ms for ms in self._idle_marks_ms if ms <= feed.quiet_ms), default=0)
            # Source `a` has sent records to partition 0 only (decisions 006 and 008).
            # 1. It advances from 10:00 to 10:05: partition 1 gets a mark, or its windows would wait
            #    for `a` for good.
            # 2. It is read to its end: the mark says so (`quiet_ms` >= 0), and other sources pass
            #    it.
            # 3. It stays quiet past one of `idle_marks_ms`: another mark, so that nodes downstream
            #    that declare `idle_after` leave it out. Between these, nothing changes: no mark.
            turn_ms = max(feed.turn_ms, feed.time_ms)
            mark = ProvenanceMark(turn_ms, feed.time_ms, quiet_ms if feed.at_end else BUSY_MS)
            # Marks can't have brought it further than what was taken of it.
            marked_ms = min(feed.marked_ms, feed.time_ms)
            if mark == before and marked_ms == self._sent_marked_ms.get(feed, UNKNOWN_MS):
                continue
            self._marked[feed], self._sent_marked_ms[feed] = mark, marked_ms
            headers = mark_headers(mark, feed.identity, marked_ms)
            timestamp_ms = max(mark.time_ms, 0)
            for partition in range(self._partitions):
                self._collector.send(
                    SinkBatch(
                        self._topic.name, partition, [timestamp_ms], [None], [None], [headers]
                    )
                )
        return False

    def _headers(self, batch: Batch, stamps: Stamps) -> list[Headers]:
        before = batch.origin.headers
        if before is None:
            return [((PROVENANCE, data),) for data in stamps.pack()]
        return [
            (*before[row], (PROVENANCE, data))
            for row, data in zip(batch.rows, stamps.pack(), strict=True)
        ]

    def _stamps(self, batch: Batch) -> Stamps:
        origin = batch.origin
        positions = batch.of_origin(origin.positions)
        last, index = self.last.get(origin.feed.identity, (-1, 0))
        if positions and isinstance(positions, range):
            indexes = [0] * len(positions)
            if positions[0] == last:
                indexes[0] = index + 1
        else:
            # One record (position 7) makes three results, the next one (8) makes one:
            # positions 7 7 7 8 have indexes 0 1 2 0. The pair identifies a result downstream, so
            # it must continue over batches: a batch that begins with 7 again continues with 3.
            indexes = []
            for position in positions:
                index = index + 1 if position == last else 0
                last = position
                indexes.append(index)
        if indexes:
            self.last[origin.feed.identity] = (positions[-1], indexes[-1])
        turns, times = batch.of_origin(origin.turns), batch.of_origin(origin.watermarks)
        return Stamps(origin.feed.provenance, turns, times, positions, indexes)
