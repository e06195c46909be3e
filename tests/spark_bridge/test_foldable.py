"""What goes to stages that Spark folds: columns, and what ends in the task's hands."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from spark_bridge.foldable import RECORD, SOURCE, FoldableRows
from streamlog.history.lowering import NotLowered
from streamlog.processing.outbox import SinkBatch
from streamlog.processing.provenance import MARK, PROVENANCE, Mark, identity, pack_mark, pack_record
from streamlog.serdes import serde_for
from streamlog.topology import Aggregator, WholeNumbers

OWN = identity(("in", 0))
SUM = WholeNumbers((Aggregator("sum"),), (lambda value: value,), is_row=False)


def rows(numbers: WholeNumbers = SUM) -> FoldableRows:
    value: Any = serde_for(float)
    return FoldableRows(stage=1, ranks={OWN: 0}, partitions=1, numbers=numbers, value=value)


def sent(values: list[bytes | None], *, time_ms: int = 5, turn_ms: int = 5) -> SinkBatch:
    headers = [
        ((PROVENANCE, pack_record(turn_ms, time_ms, at, 0) + OWN),) for at in range(len(values))
    ]
    keys = [b"k"] * len(values)
    return SinkBatch("by", None, [time_ms] * len(values), keys, values, headers)


def test_records_are_columns_of_whole_numbers() -> None:
    found = rows(WholeNumbers((Aggregator("count"),), (None,), is_row=False))
    found.write(sent([b"1", None, b"2"]), OWN)
    (columns,) = found.drain()
    assert {name: column.to_pylist() for name, column in columns.items()} == {
        "stage": [1, 1],
        "task": [0, 0],
        "kind": [RECORD, RECORD],
        "timestamp": [5, 5],
        "time": [5, 5],
        "key": [b"k", b"k"],
    }
    found.finish([OWN, identity(("other", 0))])
    (ends,) = found.drain()
    assert ends["kind"].to_pylist() == [SOURCE]


def test_a_mark_between_records_moves_the_time_of_those_behind_it() -> None:
    found = rows(WholeNumbers((Aggregator("count"),), (None,), is_row=False))
    header = (MARK, pack_mark(Mark(9, 9, 0), OWN))
    found.write(SinkBatch("by", 0, [9], [None], [None], [(header,)]), OWN)
    found.write(sent([b"1"]), OWN)
    (columns,) = found.drain()
    assert columns["time"] == pa.array([9])


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (sent([serde_for(float).dumps(1.5)]), "no whole number"),
        (sent([b"no number"]), "can't be read"),
        (sent([b"1"], time_ms=-1, turn_ms=-1), "before 1970"),
        (sent([b"1"], turn_ms=6), "another order"),
    ],
)
def test_what_is_not_as_planned_is_left_to_the_task(batch: SinkBatch, why: str) -> None:
    with pytest.raises(NotLowered, match=why):
        rows().write(batch, OWN)


def test_numbers_beyond_64_bits_are_left_to_the_task() -> None:
    value: Any = serde_for(int)
    numbers = WholeNumbers((Aggregator("sum"),), (lambda value: value << 2,), is_row=False)
    found = FoldableRows(stage=1, ranks={OWN: 0}, partitions=1, numbers=numbers, value=value)
    with pytest.raises(NotLowered, match="64 bits"):
        found.write(sent([value.dumps(1 << 62)]), OWN)
