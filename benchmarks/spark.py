"""Spark: the log as a data source, histories, what they write, and their state.

Everything in one session on two cores, warm, and histories in a session of theirs: rows of about
200 bytes in four partitions, read from the files of an embedded log. CPU is that of this process
and all below it, so of the JVM and of Python's processes, user and system; rows a second need a
machine at rest. What Spark does by itself stands beside it, with Parquet, to say something of a
machine that is slow or has other work. Of the first result the clock runs from the start of a fresh
process, the second one of two, so that files are in memory. Rows are written in two steps: tasks
stage record batches on disk, which the bar is for, and the driver has the log take them in; that
takes memory for twice as many bytes, which costs many times as much where a virtual machine has
never used it.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import get_context
from operator import itemgetter
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Reading, tree_cpu_watch
from streamlog import App, Stream, Windowed, tumbling
from streamlog.client.admin import NewTopic
from streamlog.history.lowering import Lower
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import RecordBatch
from streamlog.records.compression import Compression
from streamlog.records.record_columns import FieldColumns
from streamlog.stored_log import StoredLog
from streamlog.tables.local_disk.rocksdb_store import RocksStore, write_sorted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

PARTITIONS = 4
ROWS_MIN = 5_000_000
"""What a job of Spark costs by itself is spread over them: with 2 million rows a tenth is that."""
KEYS = 10_000
CHUNK = 2_000
START_MS = 1_700_000_040_000
SPACING_MS = 10
LATE_MS = 5_000
PADDING = b"x" * 175
RUNS = 3
DECODE_RUNS = 15
STATE_KEYS = 1_000_000
STATE_VALUE_BYTES = 96
FIRST_RESULT = (
    "from spark_bridge import session; spark = session('first', 'local[2]'); "
    "print(spark.range(1).mapInArrow(lambda rows: rows, 'id long').count())"
)
"""What a fresh process is asked for: a row that has been through Python."""
FIRST_RESULT_ALONE = (
    "import os, sys; os.environ['PYSPARK_PYTHON'] = sys.executable; "
    "from pyspark.sql import SparkSession; builder = SparkSession.builder.master('local[2]'); "
    "spark = builder.config('spark.ui.enabled', 'false').getOrCreate(); "
    "print(spark.range(1).mapInArrow(lambda rows: rows, 'id long').count())"
)
FIRST_RESULT_BAR_S = 15
DECODE_BAR_US = 0.1
READER_BAR_US = 1.0
READER_BAR = 1_500_000
MAP_BAR = 1_800_000
COUNT_BAR = 600_000
COUNT_BAR_US = 1.5
WRITE_BAR_US = 1.5
INGEST_BAR_S = 1.0
SORTED_BAR = 4.0


@dataclass(frozen=True, slots=True)
class Taken:
    """What something took."""

    wall_s: float
    cpu_s: float


def taken(
    work: Callable[[], object],
    watch: Callable[[], Callable[[], float]] = tree_cpu_watch,
    *,
    runs: int = RUNS,
    before: Callable[[], object] = lambda: None,
) -> Taken:
    """The best of some runs, after one that is not counted: of each figure by itself.

    `before` each of them something is made ready, which is not counted either.
    """
    before()
    work()
    costs = []
    for _ in range(runs):
        before()
        began_s, cpu_s = perf_counter(), watch()
        work()
        costs.append(Taken(perf_counter() - began_s, cpu_s()))
    return Taken(min(each.wall_s for each in costs), min(each.cpu_s for each in costs))


def own_cpu_watch() -> Callable[[], float]:
    """The same of this process alone, to the nanosecond."""
    began_s = process_time()
    return lambda: process_time() - began_s


async def figures(directory: Path, records: int) -> AsyncIterator[Reading]:
    """All of it."""
    warnings.simplefilter("ignore")
    rows = max(records, ROWS_MIN) // PARTITIONS * PARTITIONS
    path = directory / "log"
    await _fill(path, rows)
    fetched = await _fetched(path)
    for reading in (*_decoding(path, fetched, rows), *_state(directory)):
        yield reading
    name = "fresh process to first Python result"
    yield Reading(name, _first_result_s(FIRST_RESULT), "s", bar=FIRST_RESULT_BAR_S)
    yield Reading(f"{name}, Spark alone", _first_result_s(FIRST_RESULT_ALONE), "s")
    # A history waits for its end, so not here; Spark knows a source in the thread that named it.
    with ThreadPoolExecutor(1, "spark") as thread:
        readings = _in_spark(path, rows)
        loop = asyncio.get_running_loop()
        while found := await loop.run_in_executor(thread, lambda: list(islice(readings, 1))):
            yield found[0]
    # In processes of their own, because a history that starts Spark has a JVM of its own.
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        for lower in ("auto", "off"):
            work = partial(_histories_alone, directory, rows, lower)
            for reading in await loop.run_in_executor(processes, work):
                yield reading


def _in_spark(path: Path, rows: int) -> Iterator[Reading]:
    """What one session gives."""
    from spark_bridge import session  # noqa: PLC0415 - an extra; other benchmarks do without

    spark = session("benchmarks", "local[2]")
    try:
        yield from _source(spark, path, rows)
    finally:
        spark.stop()


def _histories_alone(directory: Path, rows: int, lower: Lower) -> list[Reading]:
    """What a session gives that runs nothing but histories, as their jobs start it."""
    from spark_bridge import session  # noqa: PLC0415 - the same

    warnings.simplefilter("ignore")
    spark = session("benchmarks", "local[2]", is_light=lower == "auto")
    try:
        mapped = _map_history(spark, directory, rows) if lower == "auto" else ()
        return [*mapped, *_count_history(spark, directory, rows, lower)]
    finally:
        spark.stop()


async def _fill(path: Path, rows: int) -> None:
    async with Log.open(f"embedded:{path}") as log:
        names = ("events", "mapped", "counts", "written")
        await log.admin().create_topics([NewTopic(name, PARTITIONS) for name in names])
        async with log.producer() as producer:
            for partition in range(PARTITIONS):
                rng = random.Random(partition)  # noqa: S311 - no secret
                for first in range(0, rows // PARTITIONS, CHUNK):
                    count = min(CHUNK, rows // PARTITIONS - first)
                    await producer.send_batch("events", partition, _chunk(rng, first, count))
            await producer.flush()


def _chunk(rng: random.Random, first: int, count: int) -> FieldColumns:
    numbers = range(first, first + count)
    times_ms = [START_MS + number * SPACING_MS - rng.randrange(LATE_MS) for number in numbers]
    keys = [b"user-%d" % rng.randrange(KEYS) for _ in numbers]
    columns = FieldColumns()
    columns.extend(times_ms, keys, [b"%019d" % number + PADDING for number in numbers], None)
    return columns


async def _fetched(path: Path) -> list[RecordBatch]:
    """The batches of all partitions, as a broker has sent them."""
    partitions = [TopicPartition("events", number) for number in range(PARTITIONS)]
    found: list[RecordBatch] = []
    async with Log.open(f"embedded:{path}") as log, log.consumer() as consumer:
        ends = await consumer.end_offsets(partitions)
        consumer.assign(partitions)
        for each in partitions:
            consumer.seek(each, 0)
        while any([await consumer.position(each) < ends[each] for each in partitions]):
            polled = await consumer.poll_batches(timeout_ms=1_000)
            found += [batch for batches in polled.values() for batch in batches]
    return found


def _decoding(path: Path, fetched: Sequence[RecordBatch], rows: int) -> Iterator[Reading]:
    """Batches to Arrow, without Spark."""
    from spark_bridge.arrow_batches import ArrowBatches  # noqa: PLC0415 - an extra
    from spark_bridge.offset_ranges import OffsetRange  # noqa: PLC0415 - the same
    from spark_bridge.source_options import parse_options  # noqa: PLC0415 - the same

    arguments = {"path": str(path), "subscribe": "events", "columns": "key,value,offset,timestamp"}
    options = parse_options({**arguments, "verifyCrc": "false"})
    whole = OffsetRange("events", 0, 0, rows)

    def decode(batches: Sequence[RecordBatch]) -> int:
        return sum(found.num_rows for found in ArrowBatches(options, whole).of_batches(batches))

    with StoredLog(str(path)) as stored:
        read = [
            batch
            for number in range(PARTITIONS)
            for batch in stored.read("events", number, 0, rows)
        ]
        for name, batches in (("files", read), ("fetch responses", fetched)):
            if decode(batches) != rows:
                raise RuntimeError(f"of {rows} records, {decode(batches)} came of {name}")
            cost = taken(partial(decode, batches), own_cpu_watch, runs=DECODE_RUNS)
            yield _micros(f"decode to Arrow, {name}", cost, rows, DECODE_BAR_US)


def _state(directory: Path) -> Iterator[Reading]:
    """A million keys: sorted files against rows put one after the other."""
    rng = random.Random(1)  # noqa: S311 - no secret
    pairs = [
        (rng.randbytes(16), (b"%08d" % (number % KEYS)).ljust(STATE_VALUE_BYTES, b"."))
        for number in range(STATE_KEYS)
    ]
    put_s = {}
    for count in (1, CHUNK):
        began_s = process_time()
        with closing(RocksStore.open(str(directory / f"put-{count}"))) as store:
            for first in range(0, STATE_KEYS, count):
                store.write(pairs[first : first + count])
        put_s[count] = process_time() - began_s
    began_s = process_time()
    pairs.sort(key=itemgetter(0))
    sort_s = process_time() - began_s
    # What a snapshot is made of comes sorted, of a store or of Spark, and is fresh in memory. After
    # the sort it lies all over it, and most of the time would be that of waiting for it.
    rows = iter([(bytes(bytearray(key)), bytes(bytearray(value))) for key, value in pairs])
    began_s = process_time()
    path = str(directory / "state.sst")
    write_sorted(next(rows), rows, path, file_bytes=1 << 40)
    written_s = process_time() - began_s
    with closing(RocksStore.open(str(directory / "ingested"))) as store:
        began_s, began_cpu_s = perf_counter(), process_time()
        store.replace([path], [])
        took_s, took_cpu_s = perf_counter() - began_s, process_time() - began_cpu_s
        if store.get(pairs[-1][0]) != pairs[-1][1]:
            raise RuntimeError("a row that was taken in is not there")
    yield Reading("1 M keys of state taken in", took_s, "s", bar=INGEST_BAR_S, digits=2)
    sorted_s = written_s + took_cpu_s
    yield Reading("1 M keys written in order and taken in: CPU", sorted_s, "s", digits=2)
    yield Reading("the same, sorted in Python first: CPU", sort_s + sorted_s, "s", digits=2)
    yield Reading("CPU of single puts, times that", put_s[1] / sorted_s, "x", least=SORTED_BAR)
    yield Reading(f"CPU of puts by {CHUNK:,}, times that", put_s[CHUNK] / sorted_s, "x")


def _first_result_s(code: str) -> float:
    took_s = 0.0
    for _ in range(2):
        began_s = perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        took_s = perf_counter() - began_s
    return took_s


def _source(spark: SparkSession, path: Path, rows: int) -> Iterator[Reading]:
    """Read as frames, and written from one."""
    frame = spark.read.format("streamlog").option("path", str(path)).option("subscribe", "events")

    def read(found: Any) -> None:  # noqa: ANN401 - Spark's, untyped
        found.write.format("noop").mode("overwrite").save()

    cost = taken(lambda: read(frame.load()))
    yield _micros("read as a frame: CPU", cost, rows, READER_BAR_US)
    yield _rate("read as a frame", cost, rows, READER_BAR)
    whole, files = (str(path.parent / f"{name}.parquet") for name in ("all", "rows"))
    frame.load().write.parquet(whole)
    frame.load().select("key", "value").write.parquet(files)
    cost = taken(lambda: read(spark.read.parquet(whole)))
    yield _micros("the same rows of Parquet: CPU", cost, rows)

    def write() -> None:
        staged = spark.read.parquet(files).write.format("streamlog").mode("append")
        staged.option("path", str(path)).option("topic", "written").save()

    staging = path.parent / "staging"
    staging.mkdir()
    stage = partial(_staged, staging)
    cost = taken(lambda: read(spark.read.parquet(files).mapInArrow(stage, "rows long")))
    yield _micros("rows of Parquet staged, on disk: CPU", cost, rows, WRITE_BAR_US)
    cost = taken(write, before=lambda: asyncio.run(_without_rows(path, "written")))
    yield _micros("staged and published in the log: CPU", cost, rows)
    again = str(path.parent / "again.parquet")
    cost = taken(lambda: spark.read.parquet(files).write.mode("overwrite").parquet(again))
    yield _micros("the same rows written as Parquet: CPU", cost, rows)


def _staged(staging: Path, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a task does with its rows before anything is published; the files go."""
    import pyarrow as pa  # noqa: PLC0415 - an extra; other benchmarks do without

    from spark_bridge.log_writer import TaskWriter  # noqa: PLC0415 - the same

    with tempfile.TemporaryDirectory(dir=staging) as folder:
        counts = {"written": PARTITIONS}
        writer = TaskWriter(Path(folder), counts, "written", Compression.NONE, START_MS)
        for batch in rows:
            writer.write(batch)
        staged = [segment.record_count for segment in writer.finish()]
    yield pa.record_batch({"rows": pa.array(staged, pa.int64())})


async def _without_rows(path: Path, topic: str) -> None:
    """The topic, anew: what a run before has written would take more memory with every run."""
    async with Log.open(f"embedded:{path}") as log:
        if topic in {each.name for each in await log.admin().list_topics()}:
            await log.admin().delete_topics([topic])
        await log.admin().create_topics([NewTopic(topic, PARTITIONS)])


def _map_history(spark: SparkSession, directory: Path, rows: int) -> Iterator[Reading]:
    """The stage of an app, rows dropped: nothing is left."""
    cost = taken(lambda: _mapped(directory).backfill(**_how(spark)).run())
    yield _micros("history, map: CPU", cost, rows)
    yield _rate("history, map", cost, rows, MAP_BAR)


def _count_history(
    spark: SparkSession, directory: Path, rows: int, lower: Lower
) -> Iterator[Reading]:
    """Two stages, rows dropped: what is left is state."""
    how = _how(spark) | {"lower": lower}
    cost = taken(lambda: _counted(directory).backfill(**how).run())
    is_lowered = lower == "auto"
    name = f"history, windowed count, {'lowered' if is_lowered else 'by tasks'}"
    yield _micros(f"{name}: CPU", cost, rows, COUNT_BAR_US if is_lowered else None)
    yield _rate(name, cost, rows, COUNT_BAR if is_lowered else None)


def _how(spark: SparkSession) -> dict[str, Any]:
    return {"engine": "spark", "spark": spark, "until": "2100-01-01", "progress": False}


def _app(directory: Path) -> tuple[App, Stream[bytes, bytes]]:
    app = App("bench", log=f"embedded:{directory / 'log'}", state_dir=str(directory / "state"))
    return app, app.stream(app.topic("events", key=bytes, value=bytes, partitions=PARTITIONS))


def _mapped(directory: Path) -> App:
    app, events = _app(directory)
    mapped = app.topic("mapped", key=bytes, value=bytes, partitions=PARTITIONS)
    events.map_values(lambda value: value[:8], name="cut").to(mapped)
    return app


def _counted(directory: Path) -> App:
    app, events = _app(directory)
    by_user = events.group_by(lambda key, _: key, name="by-user")
    counts = app.topic("counts", key=Windowed[bytes], value=int, partitions=PARTITIONS)
    by_user.windowed(tumbling("1m", grace="10s")).count(name="per-minute").changes().to(counts)
    return app


def _micros(name: str, cost: Taken, rows: int, bar: float | None = None) -> Reading:
    return Reading(name, cost.cpu_s / rows * 1_000_000, "µs/row", bar=bar, digits=3)


def _rate(name: str, cost: Taken, rows: int, least: float | None) -> Reading:
    return Reading(name, rows / cost.wall_s, "rows/s", least=least, digits=0)
