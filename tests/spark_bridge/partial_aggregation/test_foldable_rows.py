"""Input of lowered stages: partial windows, and records that fall back to tasks."""

from __future__ import annotations

from operator import itemgetter
from random import Random
from typing import Any

import msgspec
import pytest

from spark_bridge.partial_aggregation.column_folding import Folding
from spark_bridge.partial_aggregation.foldable_rows import PIECE, SOURCE, FoldableRows
from streamlog import tumbling
from streamlog.history.lowering import NotLowered
from streamlog.history.stage_task import SourceEnd
from streamlog.nodes.stream_nodes import Aggregator, WholeNumbers
from streamlog.processing.outbox import SinkBatch
from streamlog.processing.provenance import MARK, ProvenanceMark, Stamps, identity, pack_mark
from streamlog.serdes import serde_for

OWN = identity(("in", 0))
SUM = WholeNumbers((Aggregator("sum"),), (lambda value: value,), is_row=False)
COUNT = WholeNumbers((Aggregator("count"),), (None,), is_row=False)


def rows(numbers: WholeNumbers = SUM, value: type = float) -> FoldableRows:
    serde: Any = serde_for(value)
    return FoldableRows(
        stage=1, ranks={OWN: 0}, partitions=1, numbers=numbers, value=serde, windows=tumbling("4ms")
    )


def sink_batch(values: list[bytes | None], *, time_ms: int = 5, turn_ms: int = 5) -> SinkBatch:
    count = len(values)
    stamps = Stamps(OWN, [turn_ms] * count, [time_ms] * count, range(count), [0] * count)
    return SinkBatch("by", None, [time_ms] * count, [b"k"] * count, values, stamps=stamps)


def written(found: FoldableRows, batch: SinkBatch) -> None:
    """Write a batch and all that follows from it."""
    found.write(batch)
    found.finish([OWN])


def left(found: FoldableRows) -> tuple[list[dict[str, Any]], SourceEnd]:
    """Return the rows of all pieces, and the end of the source."""
    found.finish([OWN, identity(("other", 0))])
    pieces: list[dict[str, Any]] = []
    *folded, ends = found.drain()
    for batch in folded:
        assert batch["kind"].to_pylist() == [PIECE]
        for data in batch["value"].to_pylist():
            pieces += Folding(COUNT).piece(data).to_pylist()
    assert ends["kind"].to_pylist() == [SOURCE]
    return pieces, SourceEnd(*msgspec.msgpack.decode(ends["value"][0].as_py()))


def test_records_are_aggregated_into_windows() -> None:
    found = rows(COUNT)
    found.write(sink_batch([b"1", None, b"2"]))
    pieces, end = left(found)
    assert pieces == [{"window": 1, "key": b"k", "timestamp": 5, "count": 2}]
    assert (end.records, end.position, end.nulls, end.late) == (3, 2, 1, 0)


def test_a_mark_advances_the_time_of_later_records() -> None:
    found = rows(COUNT)
    header = (MARK, pack_mark(ProvenanceMark(9, 9, 0), OWN))
    found.write(sink_batch([b"1"]))
    found.write(SinkBatch("by", 0, [9], [None], [None], [(header,)]))
    found.write(sink_batch([b"1"]))
    pieces, end = left(found)
    assert [row["count"] for row in pieces] == [1]
    assert (end.time_ms, end.late) == (9, 1)


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (sink_batch([serde_for(float).dumps(1.5)]), "not a whole number"),
        (sink_batch([b"no number"]), "can't be read"),
        (sink_batch([b"1"], time_ms=-1, turn_ms=-1), "before 1970"),
        (sink_batch([b"1"], turn_ms=6), "not in the order"),
    ],
)
def test_unsupported_records_fall_back_to_the_task(batch: SinkBatch, why: str) -> None:
    found = rows()
    with pytest.raises(NotLowered, match=why):
        written(found, batch)


def test_numbers_beyond_64_bits_fall_back_to_the_task() -> None:
    numbers = WholeNumbers((Aggregator("sum"),), (lambda value: value << 2,), is_row=False)
    found = rows(numbers, int)
    with pytest.raises(NotLowered, match="64 bits"):
        written(found, sink_batch([serde_for(int).dumps(1 << 62)]))


def test_batches_of_sources_and_marks_count_as_if_each_record_came_alone() -> None:
    """Records are taken together between marks: how they are cut into batches changes nothing."""
    rng = Random(1)
    times = sorted(rng.randrange(40) for _ in range(60))
    header = (MARK, pack_mark(ProvenanceMark(45, 45, 0), OWN))
    mark = SinkBatch("by", 0, [45], [None], [None], [(header,)])
    found = []
    for size in (1, 7, 60):
        folded = rows(COUNT)
        for start in range(0, 60, size):
            part = times[start : start + size]
            stamps = Stamps(OWN, part, part, range(start, start + len(part)), [0] * len(part))
            keys = [b"%d" % (at % 5) for at in range(start, start + len(part))]
            values = [None if at % 11 == 0 else b"1" for at in range(start, start + len(part))]
            folded.write(SinkBatch("by", None, part, keys, values, stamps=stamps))
        folded.write(mark)
        late = Stamps(OWN, [41], [41], [60], [0])
        folded.write(SinkBatch("by", None, [41], [b"late"], [b"1"], stamps=late))
        pieces, end = left(folded)
        found.append((sorted(pieces, key=itemgetter("window", "key")), end))
    assert found[0] == found[1] == found[2]
    pieces, end = found[0]
    assert sum(row["count"] for row in pieces) == 60 - 6
    assert (end.records, end.nulls, end.late, end.position) == (61, 6, 1, 60)
