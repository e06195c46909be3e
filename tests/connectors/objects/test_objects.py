from __future__ import annotations

import asyncio
import csv
import io
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import obstore
import pyarrow.parquet as pq
import pytest
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
from obstore.store import from_url

from streamlog.connect import (
    BadRecords,
    Batch,
    ConnectError,
    Field,
    Flush,
    Schema,
    Secret,
    TopicPartition,
)
from streamlog.connect_tasks.sink_task import config_of
from streamlog.connectors.objects import Objects
from streamlog.errors import ConfigError
from streamlog.record import Record
from streamlog.replace import replace
from tests.connectors.runs import on_loop, writing

PLACE = TopicPartition("orders", 0)
START = datetime(2025, 1, 31, 22, tzinfo=UTC)
SCHEMA = Schema("struct", fields=(Field("land", Schema("string")), Field("count", Schema("int64"))))


def rows(first: int, count: int, place: TopicPartition = PLACE) -> Batch[Any, Any]:
    """Return a batch of orders, an hour apart from each other."""
    records = [
        Record(
            f"k{offset}",
            {"land": ("de", "fr")[offset % 2], "count": offset},
            START + timedelta(hours=offset),
            (),
            place.topic,
            place.partition,
            offset,
        )
        for offset in range(first, first + count)
    ]
    return Batch(place, records, next_offset=first + count, schema=SCHEMA)


async def flush(sink: Objects, batches: Sequence[Batch[Any, Any]]) -> None:
    async with writing(sink) as task:
        await task.begin()
        for batch in batches:
            await task.write(batch)
        await task.commit({batch.partition: batch.next_offset for batch in batches})


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@on_loop
async def test_a_flush_is_a_file_with_values_keys_times_and_offsets(tmp_path: Path) -> None:
    await flush(Objects(url=str(tmp_path)), [rows(7, 2), rows(9, 1)])
    assert files(tmp_path) == ["orders/orders+0+0000000007.parquet"]
    table = pq.read_table(tmp_path / "orders/orders+0+0000000007.parquet", partitioning=None)
    assert table.column_names == ["land", "count", "_key", "_timestamp", "_offset"]
    assert table.column("_offset").to_pylist() == [7, 8, 9]
    assert table.column("_key").to_pylist() == ["k7", "k8", "k9"]
    assert table.column("_timestamp").to_pylist()[0] == START + timedelta(hours=7)


@on_loop
async def test_records_go_to_directories_by_their_time_and_fields(tmp_path: Path) -> None:
    sink = Objects(
        url=f"file://{tmp_path}",
        format="jsonl",
        path="dt={timestamp:%Y-%m-%d}/land={value.land}/",
    )
    await flush(sink, [rows(0, 4)])
    assert files(tmp_path) == [
        "dt=2025-01-31/land=de/orders+0+0000000000.jsonl",
        "dt=2025-01-31/land=fr/orders+0+0000000001.jsonl",
        "dt=2025-02-01/land=de/orders+0+0000000002.jsonl",
        "dt=2025-02-01/land=fr/orders+0+0000000003.jsonl",
    ]
    line = json.loads((tmp_path / files(tmp_path)[1]).read_text())
    assert line["land"] == "fr"
    assert line["_offset"] == 1


@pytest.mark.parametrize("sizes", [[6], [1] * 6, [2, 4], [5, 1]])
def test_a_range_that_is_written_again_leaves_the_same_files(
    tmp_path: Path, sizes: list[int]
) -> None:
    sink = Objects(url=str(tmp_path), format="csv", path="{value.land}/")
    asyncio.run(flush(sink, [rows(10, 6)]))
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    batches, at = [], 10
    for size in sizes:
        batches.append(rows(at, size))
        at += size
    asyncio.run(flush(sink, batches))
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == before


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv"])
@on_loop
async def test_rows_without_a_schema_get_their_columns_from_the_file(
    tmp_path: Path, kind: Any
) -> None:
    values = [{"a": None}, {"a": 1, "b": "x"}, {"b": "y"}]
    records = [Record("k", value, START, (), *PLACE, at) for at, value in enumerate(values)]
    batches = [Batch(PLACE, [each], next_offset=each.offset + 1) for each in records]
    await flush(Objects(url=str(tmp_path), format=kind), batches)
    (name,) = files(tmp_path)
    if kind == "parquet":
        rows = pq.read_table(tmp_path / name, partitioning=None).to_pylist()
    elif kind == "jsonl":
        rows = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
    else:
        rows = [
            {**row, "a": int(row["a"] or 0) or None, "b": row["b"] or None}
            for row in csv.DictReader(io.StringIO((tmp_path / name).read_text()))
        ]
    assert [(row.get("a"), row.get("b")) for row in rows] == [(None, None), (1, "x"), (None, "y")]
    assert [int(row["_offset"]) for row in rows] == [0, 1, 2]


@on_loop
async def test_what_was_aborted_leaves_nothing(tmp_path: Path) -> None:
    async with writing(Objects(url=str(tmp_path))) as task:
        await task.begin()
        await task.write(rows(0, 3))
        await task.abort()
        await task.abort()
        await task.begin()
        await task.write(rows(1, 1))
        await task.commit({PLACE: 2})
    assert files(tmp_path) == ["orders/orders+0+0000000001.parquet"]


@on_loop
async def test_a_record_without_a_path_is_found_in_its_batch(tmp_path: Path) -> None:
    sink = Objects(url=str(tmp_path), path="{value.town}/")
    async with writing(sink) as task:
        await task.begin()
        with pytest.raises(BadRecords) as raised:
            await task.write(rows(0, 2))
    assert raised.value.why == {0: "the value has no field town, which the path names"} | {
        1: "the value has no field town, which the path names"
    }


@on_loop
async def test_records_that_a_transform_has_routed_go_to_their_topics(tmp_path: Path) -> None:
    given = rows(0, 3)
    routed = [replace(each, topic=f"orders-{each.offset % 2}") for each in given.records]
    batch = Batch(PLACE, routed, next_offset=3, schema=SCHEMA)
    await flush(Objects(url=str(tmp_path)), [batch])
    assert files(tmp_path) == [
        "orders-0/orders+0+0000000000.parquet",
        "orders-1/orders+0+0000000001.parquet",
    ]


@on_loop
async def test_a_template_with_too_many_values_is_an_error(tmp_path: Path) -> None:
    sink = Objects(url=str(tmp_path), path="{value.count}/")
    async with writing(sink) as task:
        await task.begin()
        with pytest.raises(ConnectError, match="more than 1000 files"):
            await task.write(rows(0, 1_001))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "data"}, "url='data' is no store"),
        ({"url": "ftp://host/x"}, "is no store"),
        ({"url": "/data", "path": "../x"}, "leads out"),
        ({"url": "/data", "options": {"region": "x"}}, "has no options"),
        ({"url": "/data", "format": "csv", "compression": "zstd"}, "is Parquet's"),
        ({"url": "/data", "flush": Flush(size_bytes=2**30)}, "flush.size_bytes=1073741824 exceeds"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Objects(**settings).check()
    assert message in str(raised.value)


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Return the address of moto's server, a double of S3, with a bucket.

    All of moto's servers in a process have one state, so no other test has this bucket.
    """
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    httpx.put(f"{address}/objects", headers={"Host": f"{host}:{port}"}).raise_for_status()
    yield address
    server.stop()


def options(address: str) -> Any:
    return {
        "endpoint": address,
        "region": "us-east-1",
        "access_key_id": "test",
        "secret_access_key": "test",
    }


def cloud(address: str, url: str = "s3://objects/raw") -> Objects:
    return Objects(
        url=url,
        options={name: text for name, text in options(address).items() if "secret" not in name},
        secret=Secret("test"),
        format="jsonl",
    )


@on_loop
async def test_objects_of_s3_are_written_and_written_again(s3: str) -> None:
    for _ in range(2):
        await flush(cloud(s3), [rows(0, 3)])
    store = from_url("s3://objects", config=options(s3), client_options={"allow_http": True})
    (found,) = obstore.list(store).collect()
    assert found["path"] == "raw/orders/orders+0+0000000000.jsonl"
    lines = bytes(obstore.get(store, found["path"]).bytes()).splitlines()
    assert [json.loads(line)["_offset"] for line in lines] == [0, 1, 2]


def test_options_may_be_put_right_while_a_range_waits() -> None:
    sink = Objects(url="s3://b", options={"access_key_id": "may-read"}, secret=Secret("a"))
    right = replace(sink, options={"access_key_id": "may-write"}, secret=Secret("b"))
    assert config_of(right) == config_of(sink)
    assert config_of(replace(sink, url="s3://c")) != config_of(sink)


def test_an_option_at_which_obstore_panics_is_an_error_of_settings() -> None:
    sink = Objects(url="s3://b", options={"allow_http": "true"})
    with pytest.raises(ConfigError, match="options: "):
        sink.store(lambda fn, *args: fn(*args))


def test_secrets_are_not_shown() -> None:
    assert "hidden-key" not in repr(Objects(url="s3://b", secret=Secret("hidden-key")))


@pytest.mark.parametrize("url", ["/data", "./data", "../data", "file:///data"])
def test_a_directory_of_this_machine_is_a_store(url: str) -> None:
    Objects(url=url).check()


def untyped(values: Sequence[Any], first: int) -> Batch[Any, Any]:
    """Return rows without a schema."""
    records = [Record("k", each, START, (), *PLACE, first + at) for at, each in enumerate(values)]
    return Batch(PLACE, records, next_offset=first + len(values))


@pytest.mark.parametrize("kind", ["parquet", "csv"])
@on_loop
async def test_a_row_without_a_schema_whose_field_has_another_type_is_one_bad_record(
    tmp_path: Path, kind: Any
) -> None:
    async with writing(Objects(url=str(tmp_path), format=kind)) as task:
        await task.begin()
        await task.write(untyped([{"a": 1}, None, {"a": 2}], 0))
        with pytest.raises(BadRecords, match="'a' is text, and an integer in") as caught:
            await task.write(untyped([{"a": None}, {"a": "x"}, {"a": 3}], 3))
        assert [*caught.value.why] == [1]
        await task.abort()
        # As the runtime does: all others once more.
        await task.begin()
        await task.write(untyped([{"a": 1}, None, {"a": 2}, {"a": None}], 0))
        await task.write(untyped([{"a": 3}], 5))
        await task.commit({PLACE: 6})
    (path,) = (tmp_path / "orders").iterdir()
    if kind == "parquet":
        assert pq.read_table(path).column("a").to_pylist() == [1, None, 2, None, 3]


WITHOUT_PANDAS = """
import asyncio, sys
import msgspec
from streamlog.connect import Batch, Schema, TopicPartition
from streamlog.connect_tasks.sink_task import config_of
from streamlog.connectors.objects import Objects
from streamlog.durations import EPOCH
from streamlog.record import Record
from tests.connectors.runs import writing

class Order(msgspec.Struct):
    id: int
    note: str | None
    cents: float
    paid: bool

PLACE = TopicPartition("orders", 0)

async def write(values, schema, **settings):
    records = [
        Record(b"k", each, EPOCH, (), *PLACE, at) for at, each in enumerate(values)
    ]
    async with writing(Objects(url=sys.argv[1], **settings)) as task:
        await task.begin()
        await task.write(Batch(PLACE, records, next_offset=len(records), schema=schema))
        await task.commit({PLACE: len(records)})

for kind in ("parquet", "jsonl", "csv"):
    orders = [Order(1, "a", 2.5, True), Order(2, None, 1.0, False)]
    asyncio.run(write(orders, Schema.of(Order), format=kind, path="typed/{value.id}/"))
    asyncio.run(write([b"1", None], None, format=kind, path="bytes/"))
    asyncio.run(write([{"a": 1, "b": "x"}, {"c": 2.5}], None, format=kind, path="rows/"))
sys.exit("pandas" in sys.modules)
"""


def test_rows_of_scalars_are_written_without_pandas(tmp_path: Path) -> None:
    """pyarrow imports it where it is installed, which takes longer than a small file."""
    pytest.importorskip("pandas")
    command = (sys.executable, "-c", WITHOUT_PANDAS, str(tmp_path / "lake"))
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or "pandas was imported"
