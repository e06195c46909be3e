"""Output of a task: whole batches of its rows, by partition, in order."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_bridge.log_writer import BATCH_BYTES, TaskWriter
from streamlog.errors import ConfigError
from streamlog.records.batch import LogRecord, split_batches
from streamlog.records.compression import Compression
from streamlog.records.murmur2 import partitions_of_keys
from streamlog.records.partitioners import Partitioner, partition_by

NOW_MS = 1_700_000_000_000
PARTITIONS = 3
BEGIN = datetime(1969, 12, 31, tzinfo=UTC)


def stage(folder: Path, *batches: pa.RecordBatch) -> dict[tuple[str, int], list[LogRecord]]:
    writer = TaskWriter(folder, {"out": PARTITIONS, "more": 1}, "out", Compression.LZ4, NOW_MS)
    for batch in batches:
        writer.write(batch)
    found = {}
    for each in writer.finish():
        data = (folder / each.name).read_bytes()
        records = [record for batch in split_batches(data) for record in batch.records()]
        assert len(records) == each.record_count
        found[each.topic, each.partition] = records
    return found


def rows(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_rows_with_any_columns_become_records(tmp_path: Path) -> None:
    count = 1_000
    keys = [None if at % 7 == 0 else b"key-%d" % (at % 50) for at in range(count)]
    values = [None if at % 11 == 0 else f"é{at}" for at in range(count)]
    times = [
        None if at % 5 == 0 else BEGIN + timedelta(microseconds=at * 777) for at in range(count)
    ]
    numbers = [None if at % 3 else at % 2 for at in range(count)]
    headers = [None if at % 2 else [{"key": "n", "value": b"%d" % at}] for at in range(count)]
    header_type = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(keys, pa.binary()),
            pa.array(values, pa.string()),
            pa.array(times, pa.timestamp("us", tz="UTC")),
            pa.array(numbers, pa.int32()),
            pa.array(headers, header_type),
        ],
        names=["key", "value", "timestamp", "partition", "headers"],
    )
    found = stage(tmp_path, batch.slice(0, 300), batch.slice(300))
    begin_ms = int(BEGIN.timestamp() * 1_000)
    wanted: dict[int, list[object]] = {number: [] for number in range(PARTITIONS)}
    for at in range(count):
        batch_number = 1 if at < 300 else 2
        key, number, value = keys[at], numbers[at], values[at]
        if number is None:
            number = batch_number if key is None else partitions_of_keys([key], PARTITIONS)[0]
        time_ms = NOW_MS if times[at] is None else begin_ms + at * 777 // 1_000
        pairs = () if headers[at] is None else (("n", b"%d" % at),)
        wanted[number].append((time_ms, key, None if value is None else value.encode(), pairs))
    assert {
        number: [(r.timestamp_ms, r.key, r.value, r.headers) for r in found["out", number]]
        for number in range(PARTITIONS)
    } == wanted


def test_batches_are_bounded_and_large_rows_have_their_own(tmp_path: Path) -> None:
    sizes = [BATCH_BYTES * 2, 10, BATCH_BYTES // 2, BATCH_BYTES // 2, 10, BATCH_BYTES]
    values = [bytes(size) for size in sizes]
    writer = TaskWriter(tmp_path, {"out": 1}, "out", Compression.NONE, NOW_MS)
    writer.write(rows(value=pa.array(values, pa.binary())))
    (segment,) = writer.finish()
    batches = [*split_batches((tmp_path / segment.name).read_bytes())]
    assert [[len(r.value or b"") for r in batch.records()] for batch in batches] == [
        [BATCH_BYTES * 2],
        [10, BATCH_BYTES // 2],
        [BATCH_BYTES // 2, 10],
        [BATCH_BYTES],
    ]


def test_rows_go_to_their_named_topics(tmp_path: Path) -> None:
    batch = rows(value=["a", "b", "c"], topic=["more", None, "more"], key=[None, "k", None])
    found = stage(tmp_path, batch, batch.slice(0, 0))
    assert [record.value for record in found["more", 0]] == [b"a", b"c"]
    others = [record.value for tp, each in found.items() if tp[0] == "out" for record in each]
    assert others == [b"b"]


def test_a_partition_out_of_range_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="out-3, but the topic has partitions 0 to 2"):
        stage(tmp_path, rows(value=["a", "b"], partition=[0, 3]))


@pytest.mark.parametrize(
    "partitioner", ["murmur2", "crc32", "fnv1a", lambda key, _count: len(key) % 2]
)
def test_keys_are_partitioned_by_the_topic_s_partitioner(
    tmp_path: Path, partitioner: Partitioner
) -> None:
    lookups: list[tuple[str, int]] = []

    def partitioner_of(topic: str, count: int) -> Partitioner:
        lookups.append((topic, count))
        return partitioner

    writer = TaskWriter(
        tmp_path, {"out": PARTITIONS}, "out", Compression.NONE, NOW_MS, partitioner_of
    )
    keys = [None if at % 7 == 0 else b"k" * (at % 5) + b"%d" % at for at in range(300)]
    numbers = [1 if at % 3 == 0 else None for at in range(300)]
    writer.write(rows(value=[b"no key"] * 3))
    assert lookups == []
    writer.write(rows(key=pa.array(keys[:100], pa.binary()), value=[b""] * 100))
    writer.write(
        rows(
            key=pa.array(keys[100:], pa.binary()),
            value=[b""] * 200,
            partition=pa.array(numbers[100:], pa.int32()),
        )
    )
    assert lookups == [("out", PARTITIONS)]
    found = {
        record.key: each.partition
        for each in writer.finish()
        for batch in split_batches((tmp_path / each.name).read_bytes())
        for record in batch.records()
    }
    for at, key in enumerate(keys):
        if key is not None:
            fixed = at >= 100 and numbers[at] is not None
            assert found[key] == (1 if fixed else partition_by(partitioner, key, PARTITIONS))


def test_a_partitioner_s_result_out_of_range_is_reported_with_the_key(tmp_path: Path) -> None:
    writer = TaskWriter(
        tmp_path, {"out": 2}, "out", Compression.NONE, NOW_MS, lambda *_: lambda key, _: len(key)
    )
    with pytest.raises(ConfigError, match=r"a row with key b'abc', by the function .*is for out-3"):
        writer.write(rows(key=[b"abc"], value=[b""]))
