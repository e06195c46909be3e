"""Files of a topic whose schema changes in the middle: every row once, as it was, read by others.

A random stream of rows under random schemas is written, cut into batches and flushes at random.
pyarrow and DuckDB read the files; what they have to return follows from the rows alone.
"""

from __future__ import annotations

import asyncio
import csv
import json
import os
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from streamlog.connect import Batch, Field, Schema, TopicPartition
from streamlog.connect.row_schema import decimal_schema
from streamlog.connect.schema_record import SchemaRecord
from streamlog.connect.sink_rows import SinkRow, SinkRows, schema_runs
from streamlog.connectors.objects import Objects
from streamlog.durations import EPOCH
from streamlog.replace import replace
from tests.connectors.runs import writing
from tests.connectors.schema_changes import (
    PART,
    WIDER_PART,
    row_at_random,
    schema_at_random,
    without_nulls,
)

AT = TopicPartition("t", 0)
is_thorough = os.environ.get("STREAMLOG_PROFILE") == "thorough"
TOGETHER = [
    {Schema("int32"), Schema("int64")},
    {Schema("int32"), Schema("float64")},
    {Schema("float32"), Schema("float64")},
    {decimal_schema(6, 2), decimal_schema(12, 4)},
    {PART, WIDER_PART},
    {Schema("array", items=Schema("int32")), Schema("array", items=Schema("int64", optional=True))},
]
"""The types whose rows may be in one file."""


def stream(chance: random.Random) -> list[SchemaRecord[Any, Any]]:
    """Return records under a few schemas, which come again."""
    schemas = [schema_at_random(chance) for _ in range(chance.randint(1, 4))]
    found = list[SchemaRecord[Any, Any]]()
    while len(found) < 40:
        schema = chance.choice(schemas)
        for _ in range(chance.randint(1, 6)):
            key = None if chance.random() < 0.5 else "k"
            value = row_at_random(chance, schema)
            shape = None if value is None else schema
            offset = len(found)
            found.append(SchemaRecord(key, value, EPOCH, (), *AT, offset, value_schema=shape))
    return found


def batches(records: Sequence[SchemaRecord[Any, Any]], cuts: Sequence[int]) -> list[Any]:
    """Return the batches that the runtime makes of polls that end at `cuts`."""
    found = []
    for begin, end in pairwise([0, *cuts, len(records)]):
        polled = [SinkRow(each, None, None, 0) for each in records[begin:end]]
        for rows, (keys, values) in schema_runs(SinkRows.of(AT, polled), (None, None)):
            found.append(
                Batch.of_rows(
                    rows,
                    first_offset=rows.offsets[0],
                    next_offset=rows.offsets[-1] + 1,
                    schema=values,
                    key_schema=keys,
                )
            )
    return found


def write(root: Path, kind: Any, given: Sequence[Any]) -> dict[str, Path]:
    """Write batches in one flush; returns the files by name."""

    async def flush() -> None:
        async with writing(Objects(url=str(root), format=kind, path="")) as task:
            await task.begin()
            for batch in given:
                await task.write(batch)
            await task.commit({AT: given[-1].next_offset})

    asyncio.run(flush())
    return {path.name: path for path in sorted(root.iterdir())}


def cuts_at_random(chance: random.Random, count: int) -> list[int]:
    return sorted(chance.sample(range(1, count), chance.randint(0, 8)))


def rows_by_offset(rows: Sequence[dict[str, Any]]) -> dict[int, Any]:
    found = {row["_offset"]: without_nulls(row) for row in rows}
    assert len(found) == len(rows), "a row is there twice"
    return found


def may_share(one: Schema | None, other: Schema | None) -> bool:
    """Return whether rows of two schemas belong in one file, by the table of types."""
    if one is None or other is None:
        return one is other
    for each in one.fields:
        counterpart = other.field(each.name)
        if counterpart is not None:
            kinds = {replace(kind, optional=False) for kind in (each.schema, counterpart.schema)}
            if len(kinds) > 1 and kinds not in TOGETHER:
                return False
    return True


@pytest.mark.parametrize("seed", range(300 if is_thorough else 4))
def test_rows_under_changing_schemas_are_there_once_as_they_were(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    records = stream(chance)
    given = batches(records, cuts_at_random(chance, len(records)))
    files = write(tmp_path / "once", "parquet", given)
    expected = {
        each.offset: without_nulls({**(each.value or {}), "_key": each.key, "_timestamp": EPOCH})
        | {"_offset": each.offset}
        for each in records
    }
    tables = {name: pq.read_table(path, partitioning=None) for name, path in files.items()}
    rows = [row for table in tables.values() for row in table.to_pylist()]
    assert rows_by_offset(rows) == expected

    # Another reader, file by file: each is a table that it can read.
    read = list[dict[str, Any]]()
    with duckdb.connect() as duck:
        duck.execute("SET TimeZone='UTC'")
        for path in files.values():
            found = duck.execute("SELECT * FROM read_parquet(?)", [str(path)])
            names = [each[0] for each in found.description or ()]
            read += [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    assert rows_by_offset(read) == expected

    # Which rows share a file follows from their types.
    by_offset = {each.offset: each for each in records}
    for name, table in tables.items():
        offsets = table.column("_offset").to_pylist()
        assert offsets == sorted(offsets)
        assert name == f"t+0+{offsets[0]:010}.parquet"
        typed = [by_offset[at].value_schema for at in offsets if by_offset[at].value is not None]
        assert all(may_share(one, other) for one in typed for other in typed)
    shapes = [each.value_schema for each in records if each.value is not None]
    if all(may_share(one, other) for one in shapes for other in shapes):
        assert len(files) == 1

    # However the rows come again, the same files have the same rows.
    other = batches(records, cuts_at_random(chance, len(records)))
    again = write(tmp_path / "again", "parquet", other)
    assert [*again] == [*files]
    for name, path in again.items():
        assert pq.read_table(path, partitioning=None).equals(tables[name])


@pytest.mark.parametrize("key", ["k", b"k", None])
def test_keys_that_come_late_have_their_type(tmp_path: Path, key: Any) -> None:
    schema = Schema("struct", fields=(Field("a", Schema("int64")),))
    first = SchemaRecord(None, {"a": 1}, EPOCH, (), *AT, 0, value_schema=schema)
    tombstone = SchemaRecord(key, None, EPOCH, (), *AT, 1)
    (path,) = write(tmp_path, "parquet", batches([first, tombstone], [1])).values()
    assert pq.read_table(path).column("_key").to_pylist() == [None, key]


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_text_formats_have_the_files_of_parquet(tmp_path: Path, kind: Any) -> None:
    records = stream(random.Random(3))
    given = batches(records, [7, 20])
    files = write(tmp_path / kind, kind, given)
    parquet = write(tmp_path / "parquet", "parquet", given)
    assert [Path(name).stem for name in files] == [Path(name).stem for name in parquet]
    for name, path in files.items():
        rows = pq.read_metadata(parquet[Path(name).stem + ".parquet"]).num_rows
        with path.open(newline="") as text:
            lines = (
                [*csv.reader(text)][1:] if kind == "csv" else [json.loads(each) for each in text]
            )
        assert len(lines) == rows
