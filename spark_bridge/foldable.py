"""FoldableRows: what one task sends to a stage that Spark folds itself, as columns of numbers.

Of each record Spark needs the task it is for, its key, timestamp, its source's stream time and the
whole numbers that are folded; of each source, in the end, how far it has come. All is taken from
what the task gave, whole columns at a time. Rule of the file: whatever is not as it was planned
(a number that is none, or does not fit into 64 bits; a value that can't be read) ends in
`NotLowered`, and the stage is run by its tasks, which take every record and tell what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from streamlog.history.folded import SourceEnd
from streamlog.history.lowering import NotLowered
from streamlog.processing.outbox import SinkBatch
from streamlog.processing.provenance import (
    BUSY_MS,
    MARK,
    RECORD_BYTES,
    Mark,
    marked_ms_of,
    unpack_mark,
)
from streamlog.processing.serialized import loads_all
from streamlog.records.columns import has_none
from streamlog.records.murmur2 import partitions_of_keys
from streamlog.serdes import Serde
from streamlog.topology import WholeNumbers
from streamlog.windows.emit import UNKNOWN_MS

RECORD, SOURCE = 1, 4
"""Kinds of rows; see `shuffles`."""
TIME_MS_MAX = 1 << 50
"""Far beyond the year 9999: no sum of two overflows. What is beyond is for the task to refuse."""

_Names = tuple[tuple[str, str], ...]
_encode = msgspec.msgpack.Encoder().encode


def columns_of(count: int) -> list[tuple[str, str]]:
    """The columns that foldable rows have beside those of others: names, and Spark's types."""
    return [("time", "bigint"), *((f"number_{at}", "bigint") for at in range(count))]


@dataclass(slots=True)
class _Source:
    """How far one source has come in one partition; see `SourceEnd`."""

    records: int = 0
    marks: int = 0
    position: int = -1
    index: int = 0
    time_ms: int = UNKNOWN_MS
    turn_ms: int = UNKNOWN_MS
    quiet_ms: int = BUSY_MS
    marked_ms: int = UNKNOWN_MS
    nulls: int = 0

    def hear(self, mark: Mark, marked_ms: int) -> None:
        self.marks += 1
        self.turn_ms = max(self.turn_ms, mark.turn_ms)
        self.time_ms = max(self.time_ms, mark.time_ms)
        self.quiet_ms = mark.quiet_ms
        self.marked_ms = max(self.marked_ms, marked_ms)

    def end(self) -> SourceEnd:
        return SourceEnd(
            self.records,
            self.marks,
            self.position,
            self.index,
            self.time_ms,
            self.turn_ms,
            self.quiet_ms,
            self.marked_ms,
            self.nulls,
        )


class FoldableRows:
    """What one task writes into one repartition topic, for Spark to fold."""

    def __init__(
        self,
        *,
        stage: int,
        ranks: Mapping[bytes, int],
        partitions: int,
        numbers: WholeNumbers,
        value: Serde[Any],
    ) -> None:
        """Nothing has been written.

        Args:
            stage: that they are for.
            ranks: of the topic's sources, by identity.
            partitions: of the topic.
            numbers: what is folded.
            value: how values are written in the topic.
        """
        self._stage = stage
        self._ranks = ranks
        self._partitions = partitions
        self._value = value
        self._takes = [None if f is None else _function(f) for f in numbers.fields]
        self._sources: dict[int, list[_Source]] = {}
        self._batches: list[dict[str, Any]] = []

    def write(self, batch: SinkBatch, source: bytes) -> None:
        """Records of one source, or a mark.

        Raises:
            NotLowered: they are not what was planned.
        """
        headers = batch.headers or []
        name, data = headers[0][-1]
        if name == MARK:
            mark, _ = unpack_mark(data or b"")
            places = range(self._partitions) if batch.partition is None else [batch.partition]
            for partition in places:
                self._of(source)[partition].hear(mark, marked_ms_of(headers[0]))
        else:
            self._write(batch, source, b"".join([each[-1][1] or b"" for each in headers]))

    def tell(self, source: bytes, mark: Mark) -> None:
        """A mark into all partitions, if the topic has this source."""
        if source in self._ranks:
            for each in self._of(source):
                each.hear(mark, UNKNOWN_MS)

    def drain(self) -> Iterator[dict[str, Any]]:
        """What there is, as columns by name."""
        batches, self._batches = self._batches, []
        yield from batches

    def finish(self, sources: Sequence[bytes]) -> None:
        """All is written by these sources: how far each of them has come."""
        rows = [
            (partition, rank, _encode(tuple(each.end())))
            for source in sources
            if (rank := self._ranks.get(source)) is not None
            for partition, each in enumerate(self._of(source))
        ]
        if rows:
            tasks, ranks, ends = zip(*rows, strict=True)
            count = len(rows)
            self._batches.append(
                {
                    "stage": pa.repeat(pa.scalar(self._stage, pa.int32()), count),
                    "task": pa.array(tasks, pa.int32()),
                    "kind": pa.repeat(pa.scalar(SOURCE, pa.int32()), count),
                    "rank": pa.array(ranks, pa.int32()),
                    "key": pa.array(ends, pa.binary()),
                }
            )

    def _of(self, source: bytes) -> list[_Source]:
        rank = self._ranks[source]
        if rank not in self._sources:
            self._sources[rank] = [_Source() for _ in range(self._partitions)]
        return self._sources[rank]

    def _write(self, batch: SinkBatch, source: bytes, packed: bytes) -> None:
        count = len(batch.keys)
        stamps = np.frombuffer(packed, _stamp_type(source), count)
        times = np.array(batch.timestamps, np.int64)
        if count and (times.min() < 0 or times.max() > TIME_MS_MAX):
            raise NotLowered("a timestamp lies before 1970, or beyond the calendar")
        if not np.array_equal(stamps["turn"], stamps["time"]):
            raise NotLowered("records come in another order than that of their stream time")
        tasks = np.array(partitions_of_keys(batch.routes(), self._partitions), np.int32)
        own = self._of(source)
        heard = np.array([each.time_ms for each in own], np.int64)
        stream_times = np.maximum(stamps["time"].astype(np.int64), heard[tasks])
        self._note(own, tasks, stamps, stream_times)
        columns = {
            "stage": np.full(count, self._stage, np.int32),
            "task": tasks,
            "kind": np.full(count, RECORD, np.int32),
            "timestamp": times,
            "time": stream_times,
        }
        whole = {name: pa.array(column) for name, column in columns.items()}
        whole["key"] = pa.array(batch.keys, pa.binary())
        self._batches.append(whole | self._numbers(batch.values, own, tasks, whole))

    def _note(self, own: list[_Source], tasks: Any, stamps: Any, times: Any) -> None:  # noqa: ANN401 - NumPy's
        """How far the source has come in each partition with these records."""
        last = np.full(self._partitions, -1, np.int64)
        last[tasks] = np.arange(len(tasks))
        counts = np.bincount(tasks, minlength=self._partitions)
        for partition, at in enumerate(last.tolist()):
            if at < 0:
                continue
            each = own[partition]
            each.records += int(counts[partition])
            each.position, each.index = int(stamps["position"][at]), int(stamps["index"][at])
            each.time_ms = int(times[at])
            each.turn_ms = max(each.turn_ms, each.time_ms)
            each.quiet_ms = min(each.quiet_ms, 0)

    def _numbers(
        self,
        values: Sequence[bytes | None],
        own: list[_Source],
        tasks: Any,  # noqa: ANN401 - NumPy's
        whole: dict[str, Any],
    ) -> dict[str, Any]:
        """What is folded of each value; records without one are left out of `whole`."""
        if has_none(values):
            kept = np.array([value is not None for value in values])
            for partition in tasks[~kept].tolist():
                own[partition].nulls += 1
            for name, column in whole.items():
                whole[name] = column.filter(pa.array(kept))
            values = [value for value in values if value is not None]
        if not any(self._takes):
            return {}
        try:
            found = loads_all(self._value, values)
            taken = [None if take is None else list(map(take, found)) for take in self._takes]
        except Exception as error:
            raise NotLowered(f"a value can't be read, or has no such field: {error}") from error
        return {
            f"number_{at}": _whole(column) for at, column in enumerate(taken) if column is not None
        }


def _whole(found: list[Any]) -> Any:  # noqa: ANN401 - Arrow's, untyped
    if not {int}.issuperset(map(type, found)):
        raise NotLowered("a number that is folded is no whole number")
    try:
        return pa.array(found, pa.int64())
    except OverflowError as error:
        raise NotLowered("a number that is folded does not fit into 64 bits") from error


def _function(field: Callable[[Any], Any] | str) -> Callable[[Any], Any]:
    return attrgetter(field) if isinstance(field, str) else field


def _stamp_type(source: bytes) -> Any:  # noqa: ANN401 - NumPy's
    """What `pack_record` packs, with the source behind it."""
    size_bytes = RECORD_BYTES + len(source)
    names = ["turn", "time", "position", "index"]
    formats = [">i8", ">i8", ">i8", ">u4"]
    layout: Any = {"names": names, "formats": formats, "offsets": [0, 8, 16, 24]}
    layout["itemsize"] = size_bytes
    return np.dtype(layout)
