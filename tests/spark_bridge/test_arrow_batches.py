"""Damaged batches: they end a read or are skipped, in reads of files and from brokers.

A reader that was written from the specification decides which batches are readable.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from spark_bridge.log_sources import log_source
from spark_bridge.source_options import parse_options
from spark_bridge.spark_run import SparkRun
from streamlog import on_error
from streamlog.errors import CorruptData, DamagedBatch, SerdeError
from streamlog.history.local_run import with_ends
from streamlog.history.plan import plan_history
from streamlog.history.readers import LogReader
from streamlog.history.staging import read_segment
from streamlog.history.task_run import FinishedTask
from streamlog.nodes.policies import ErrorPolicy
from streamlog.processing.inputs.cut_input import TimeSpan
from streamlog.records.batch import HEADER_BYTES
from streamlog.snapshots import SnapshotStore
from tests.history.test_damaged import app_of, batches, fill, readable_of, run_history
from tests.records.slow_reader import Malformed, read_plain_batch
from tests.spark_bridge.test_writing import one, served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEDS = range(3)
UNTIMED = {"columns": "offset,value"}
"""Without timestamps: some of them are out of Spark's range."""


@pytest.fixture(scope="module", params=SEEDS)
def log(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, Path]:
    path = tmp_path_factory.mktemp("corrupt") / "log"
    asyncio.run(fill(f"embedded:{path}", batches(request.param)))
    return request.param, path


@pytest.fixture(scope="module", params=["path", "broker"])
def address(request: pytest.FixtureRequest, log: tuple[int, Path]) -> Iterator[dict[str, str]]:
    if request.param == "path":
        yield {"path": str(log[1])}
        return
    with served(one(log[1])) as servers:
        yield {"kafka.bootstrap.servers": servers}


def read(address: dict[str, str], **options: str) -> list[tuple[int, bytes | None]]:
    source = log_source(parse_options({**address, "subscribe": "lines", **options}))
    return [
        row
        for wanted in source.plan()
        for batch in source.read(wanted, None)
        for row in zip(
            batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True
        )
    ]


@pytest.mark.parametrize("headers", ["false", "true"])
def test_readable_batches_are_read_and_damaged_ones_skipped(
    address: dict[str, str],
    log: tuple[int, Path],
    headers: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    readable, skipped = readable_of(batches(log[0]))
    rows = read(address, ignoreCorruptBatches="true", includeHeaders=headers, **UNTIMED)
    assert [value for _, value in rows] == [record.value for record in readable]
    assert caplog.text.count("the read skips it because ignoreCorruptBatches is true") == len(
        skipped
    )


def test_the_first_damaged_batch_ends_the_read_by_default(
    address: dict[str, str], log: tuple[int, Path]
) -> None:
    offset = 0
    for data, _ in batches(log[0]):
        try:
            offset += len(read_plain_batch(data))
        except Malformed:
            following = offset + int.from_bytes(data[57:61])
            break
    with pytest.raises(
        DamagedBatch, match=f"lines-0: the batch with offsets {offset} to"
    ) as caught:
        read(address)
    assert (caught.value.offset, caught.value.next_offset) == (offset, following)
    assert "With ignoreCorruptBatches=true" in str(caught.value)
    assert "seek" not in str(caught.value)


def test_a_time_that_spark_lacks_is_reported_with_its_record(
    address: dict[str, str], log: tuple[int, Path]
) -> None:
    readable, _ = readable_of(batches(log[0]))
    count = sum(abs(record.timestamp_ms) > 2**63 // 1_000 for record in readable)
    if count:
        with pytest.raises(SerdeError, match=r"the record at offset \d+ of lines-0 has timestamp"):
            read(address, ignoreCorruptBatches="true")
    else:
        read(address, ignoreCorruptBatches="true")


@pytest.mark.parametrize("at", [HEADER_BYTES + 3, 21, 22])
def test_a_batch_with_flipped_bits_is_skipped(
    log: tuple[int, Path], tmp_path: Path, at: int
) -> None:
    """Also if the flipped bit makes a batch look like a transaction marker."""
    path = tmp_path / "log"
    shutil.copytree(log[1], path)
    (segment,) = (each for each in path.glob("p-*/*.log") if each.stat().st_size)
    address = {"path": str(path)}
    before = read(address, ignoreCorruptBatches="true", **UNTIMED)
    data = bytearray(segment.read_bytes())
    first = int.from_bytes(data[23:27]) + 1
    data[at] ^= 0x20 if at == 22 else 1  # At 22, sets the control bit.
    segment.write_bytes(data)
    options = UNTIMED
    if at == 22:
        with pytest.raises(CorruptData, match="lines-0: a batch that may be a transaction marker"):
            read(address, ignoreCorruptBatches="true", **UNTIMED)
        options = {**UNTIMED, "isolationLevel": "read_uncommitted"}
    with pytest.raises(DamagedBatch, match="lines-0: the batch with offsets 0 to"):
        read(address, **options)
    after = read(address, ignoreCorruptBatches="true", **options)
    assert after == [row for row in before if row[0] >= first]


def run_in_spark(
    spark: SparkSession, url: str, policy: ErrorPolicy, path: Path
) -> list[FinishedTask]:
    app = app_of(policy)
    counts = {"lines": 1, "copies": 1, "lines-dlq": 1}
    with LogReader(url) as reader:
        plan = plan_history(app.topology(), counts, span=TimeSpan(), outputs="stage")
        plan = with_ends(plan, reader)
    return SparkRun(
        plan,
        spark,
        url=url,
        security=None,
        snapshots=SnapshotStore(str(path / "snapshots" / "one")),
        now_ms=1_735_689_600_000,
        state_memory_bytes=64 * 1024 * 1024,
    ).run()


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("policy", [on_error.skip(), on_error.dlq()], ids=["skip", "dlq"])
def test_a_spark_history_skips_what_a_local_history_skips(
    spark: SparkSession, tmp_path: Path, policy: ErrorPolicy
) -> None:
    url = f"embedded:{tmp_path / 'log'}"
    asyncio.run(fill(url, batches(7)))
    (local,) = run_history(url, app_of(policy), tmp_path / "local")
    (found,) = run_in_spark(spark, url, policy, tmp_path / "spark")
    assert (found.rows, found.drops, found.records) == (local.rows, local.drops, local.records)
    assert found.entry.offsets == local.entry.offsets
    written = [
        staged(task, tmp_path / engine) for task, engine in ((found, "spark"), (local, "local"))
    ]
    assert written[0] == written[1]


def staged(task: FinishedTask, path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return a task's rows by topic, with dead letters sorted: their order is free."""
    source = SnapshotStore(str(path / "snapshots" / "one"))
    rows: dict[str, list[tuple[object, ...]]] = {}
    for part in task.staged:
        with source.checked(part) as file:
            records = [each for batch in read_segment(file) for each in batch.records()]
        found = [(r.timestamp_ms, r.key, r.value, r.headers) for r in records]
        rows[part.topic] = sorted(found, key=repr) if part.topic == "lines-dlq" else found
    return rows
