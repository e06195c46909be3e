"""The memory connectors: collections and data frames as sources, collected and printed sinks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from streamlog import App
from streamlog.connect import Batch, ConnectError, SinkContext, TopicPartition
from streamlog.connect.sink_rows import SinkRows
from streamlog.connectors.memory import MemoryRows, MemorySink, MemorySource, Print
from streamlog.errors import ConfigError
from streamlog.record import Record
from streamlog.records.log_record import LogRecord
from streamlog.records.record_columns import RecordColumns
from streamlog.testing import check_sink, check_source

AT = datetime(2025, 1, 31, 12, tzinfo=UTC)


@dataclass
class Hit:
    path: str
    status: int


class Outside:
    def __init__(self, values: list[Any] | None = None, rows: MemoryRows | None = None) -> None:
        self.values_put, self.into = values, rows

    async def put(self, rows: Sequence[object]) -> None:
        """All rows are there from the beginning."""

    async def rows(self) -> Sequence[object]:
        if self.into is not None:
            return [(record.key, record.value) for record in self.into.records]
        return self.values_put or []


def test_a_list_is_read_exactly_once() -> None:
    values = [f"row {number}" for number in range(200)]
    make = lambda: MemorySource[None, str](values=values, read_rows=7)  # noqa: E731
    asyncio.run(check_source(make, Outside(values), lives=10, patience="200ms"))


def test_a_table_is_read_exactly_once() -> None:
    rows = [{"number": number} for number in range(100)]
    table = pa.concat_tables([pa.Table.from_pylist(rows[:30]), pa.Table.from_pylist(rows[30:])])
    make = lambda: MemorySource[None, dict[str, int]](values=table, read_rows=7)  # noqa: E731
    asyncio.run(check_source(make, Outside(rows), lives=10, patience="200ms"))


def test_records_are_collected_exactly_once() -> None:
    rows = MemoryRows()
    asyncio.run(check_sink(lambda: MemorySink[Any, Any](into=rows), Outside(rows=rows), lives=40))


def test_the_bytes_of_records_in_the_log_are_let_go() -> None:
    at = TopicPartition("hits", 3)
    log = RecordColumns.of(
        LogRecord(offset, 1_000 + offset, b"k%d" % offset, b"v" * 100, (("h", b"1"),))
        for offset in (5, 6, 9)
    )
    rows = SinkRows(at, log, ["k5", "k6", "k9"], [Hit("/a", each) for each in range(3)])
    batch: Batch[Any, Any] = Batch.of_rows(
        rows, first_offset=5, next_offset=10, schema=None, key_schema=None
    )
    into = MemoryRows()
    owner, _ = into.take_over([at])
    into.add(owner, [batch], {at: 10})
    kept = batch.decoded()
    with pytest.raises(ConnectError, match="has no bytes, only values"):
        kept.raw()
    # A flush that is written again, or a dead letter, still has them.
    assert batch.raw() == [(b"k%d" % each, b"v" * 100) for each in (5, 6, 9)]
    assert into.records == [*kept.records] == [*batch.records]
    assert [record.offset for record in into.records] == [5, 6, 9]
    assert (kept.first_offset, kept.next_offset, len(kept)) == (5, 10, 3)


def test_a_list_of_values_and_one_of_records_reach_a_topic() -> None:
    app = App("memory")
    hits = app.topic("hits", key=str, value=Hit)
    app.source(hits, MemorySource(values=[Hit("/a", 200), Hit("/b", 500)]), name="values")
    app.source(hits, MemorySource(values=[Record("k", Hit("/c", 404), AT)]), name="records")
    with app.test() as t:
        t.source("values").run()
        t.source("records").run()
        found = t.output(hits).records
        assert [record.value.path for record in found] == ["/a", "/b", "/c"]
        assert (found[2].key, found[2].timestamp) == ("k", AT)
        assert t.source("values").offsets == {"{}": {"index": 2}}
        t.restart()
        assert len(t.output(hits).records) == 3


FRAME = pd.DataFrame({"path": ["/a", "/b"], "status": [200, 500], "at": [AT, AT]})


@pytest.mark.parametrize(
    "values",
    [FRAME, pa.Table.from_pandas(FRAME), pa.RecordBatch.from_pandas(FRAME)],
    ids=["pandas", "table", "batch"],
)
def test_rows_of_a_data_frame_have_keys_and_times(values: object) -> None:
    app = App("memory")
    rows = app.topic("rows", key=str, value=dict[str, Any])
    source = MemorySource[str, dict[str, Any]](values=values, key=("path",), timestamp="at")
    app.source(rows, source)
    with app.test() as t:
        t.source("rows").run()
        found = t.output(rows).records
        assert [(record.key, record.value["status"]) for record in found] == [
            ("/a", 200),
            ("/b", 500),
        ]
        assert found[0].timestamp == AT


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"values": iter([1])}, "not list_iterator"),
        ({"values": 7}, "not int"),
        ({"values": [1], "key": ("a",)}, "name columns of a data frame"),
        ({"values": [1], "read_rows": 0}, "read_rows is 0"),
    ],
)
def test_what_cannot_be_read_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MemorySource(**settings).check()


class Context:
    name, task = "print", 0

    async def in_thread(self, fn: Any, *args: Any) -> Any:
        return fn(*args)


def test_records_are_printed_as_lines_behind_the_commit(capsys: pytest.CaptureFixture[str]) -> None:
    async def run(context: SinkContext) -> None:
        at = TopicPartition("hits", 1)
        records: list[Record[object, object]] = [
            Record("k", Hit("/a", 200), AT, (), "hits", 1, 7),
            Record(None, b"line\nof \xff", AT, (), "hits", 1, 8),
            Record("k", None, AT, (), "hits", 1, 9),
        ]
        async with Print().open(context) as task:
            await task.begin()
            await task.write(Batch(at, records[:1], next_offset=8))
            await task.abort()
            await task.begin()
            await task.write(Batch(at, records, next_offset=10))
            assert not capsys.readouterr().out
            await task.commit({at: 10})

    context: Any = Context()
    asyncio.run(run(context))
    assert capsys.readouterr().out == (
        'hits-1@7 "k" {"path":"/a","status":200}\n'
        'hits-1@8 null "line\\nof \\\\xff"\n'
        'hits-1@9 "k" null\n'
    )
