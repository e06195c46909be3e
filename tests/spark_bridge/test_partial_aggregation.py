"""What goes to stages that are lowered: pieces of windows, and what ends in the task's hands."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from spark_bridge.partial_aggregation import PIECE, SOURCE, FoldableRows, Folding
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


def sent(values: list[bytes | None], *, time_ms: int = 5, turn_ms: int = 5) -> SinkBatch:
    count = len(values)
    stamps = Stamps(OWN, [turn_ms] * count, [time_ms] * count, range(count), [0] * count)
    return SinkBatch("by", None, [time_ms] * count, [b"k"] * count, values, stamps=stamps)


def left(found: FoldableRows) -> tuple[list[dict[str, Any]], SourceEnd]:
    """The rows of all pieces, and how far the source has come."""
    found.finish([OWN, identity(("other", 0))])
    pieces: list[dict[str, Any]] = []
    *folded, ends = found.drain()
    for batch in folded:
        assert batch["kind"].to_pylist() == [PIECE]
        for data in batch["value"].to_pylist():
            pieces += Folding(COUNT).piece(data).to_pylist()
    assert ends["kind"].to_pylist() == [SOURCE]
    return pieces, SourceEnd(*msgspec.msgpack.decode(ends["value"][0].as_py()))


def test_records_are_put_into_windows_and_folded() -> None:
    found = rows(COUNT)
    found.write(sent([b"1", None, b"2"]))
    pieces, end = left(found)
    assert pieces == [{"window": 1, "key": b"k", "timestamp": 5, "count": 2}]
    assert (end.records, end.position, end.nulls, end.late) == (3, 2, 1, 0)


def test_a_mark_between_records_moves_the_time_of_those_behind_it() -> None:
    found = rows(COUNT)
    header = (MARK, pack_mark(ProvenanceMark(9, 9, 0), OWN))
    found.write(sent([b"1"]))
    found.write(SinkBatch("by", 0, [9], [None], [None], [(header,)]))
    found.write(sent([b"1"]))
    pieces, end = left(found)
    assert [row["count"] for row in pieces] == [1]
    assert (end.time_ms, end.late) == (9, 1)


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (sent([serde_for(float).dumps(1.5)]), "no whole number"),
        (sent([b"no number"]), "can't be read"),
        (sent([b"1"], time_ms=-1, turn_ms=-1), "before 1970"),
        (sent([b"1"], turn_ms=6), "not in the order"),
    ],
)
def test_what_is_not_as_planned_is_left_to_the_task(batch: SinkBatch, why: str) -> None:
    with pytest.raises(NotLowered, match=why):
        rows().write(batch)


def test_numbers_beyond_64_bits_are_left_to_the_task() -> None:
    numbers = WholeNumbers((Aggregator("sum"),), (lambda value: value << 2,), is_row=False)
    found = rows(numbers, int)
    with pytest.raises(NotLowered, match="64 bits"):
        found.write(sent([serde_for(int).dumps(1 << 62)]))
