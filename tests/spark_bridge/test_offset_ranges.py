"""Queries and reads of truncated logs and recreated topics: reported, or read as they are now.

From files and from brokers. The tests of the source's plans and rows need no Spark.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from spark_bridge.log_sources import log_source
from spark_bridge.source_options import parse_options
from spark_bridge.stream_reader import LogStreamReader
from streamlog.client.admin import NewTopic
from streamlog.errors import SourceLost
from streamlog.log import Log
from tests.broker.process import BrokerProcess

KEPT, CUT, NEW = range(60), range(60, 100), range(1_000, 1_000 + 70)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", flush="os") as process:
        yield process


@pytest.fixture(params=["path", "broker"])
def address(
    request: pytest.FixtureRequest, broker: BrokerProcess, tmp_path: Path
) -> dict[str, str]:
    """Return the options with the log's address."""
    if request.param == "path":
        return {"path": str(tmp_path / "data")}
    return {"kafka.bootstrap.servers": broker.address}


def run_on(broker: BrokerProcess, work: Callable[[Log], Any]) -> None:
    async def main() -> None:
        async with Log.open(f"kafka://{broker.address}") as log:
            await work(log)

    asyncio.run(main())


def write(broker: BrokerProcess, numbers: range) -> None:
    async def work(log: Log) -> None:
        if not await log.admin().find_topics(["in"]):
            await log.admin().create_topics([NewTopic("in", 2)])
        async with log.producer() as producer:
            for number in numbers:
                await producer.send("in", b"%d" % number, partition=1)

    run_on(broker, work)


def recreate(broker: BrokerProcess) -> None:
    run_on(broker, lambda log: log.admin().delete_topics(["in"]))


def segments(broker: BrokerProcess) -> dict[Path, int]:
    found = broker._data.glob("p-*/*.log")
    return {path: path.stat().st_size for path in found}


def cut(broker: BrokerProcess, marks: dict[Path, int]) -> None:
    """Simulate a power cut that loses everything written since the marks."""
    broker.kill()
    for path, size in marks.items():
        with path.open("r+b") as file:
            file.truncate(size)
    broker.__enter__()


class Query:
    """A streaming query: Spark's calls of the source, with a checkpoint as JSON."""

    def __init__(self, address: dict[str, str]) -> None:
        self.address = address
        self.checkpoint = ""
        self.planned = ""
        self.rows: list[int] = []

    def reader(self, **options: str) -> LogStreamReader:
        given = {**self.address, "subscribe": "in", "startingOffsets": "earliest", **options}
        return LogStreamReader(parse_options(given, streaming=True), None)

    def run(self, most: int | None = None, **options: str) -> None:
        """Run batches of a restarted query until no new records come."""
        reader = self.reader(**options)
        self.checkpoint = self.checkpoint or json.dumps(reader.initialOffset())
        while self.batch(reader, most):
            pass

    def batch(self, reader: LogStreamReader, most: int | None = None) -> bool:
        self.plan(reader, most)
        if self.planned == self.checkpoint:
            return False
        self.perform(reader)
        return True

    def plan(self, reader: LogStreamReader, most: int | None = None) -> None:
        limit = ReadAllAvailable() if most is None else ReadMaxRows(most)
        self.planned = json.dumps(reader.latestOffset(json.loads(self.checkpoint), limit))

    def perform(self, reader: LogStreamReader) -> None:
        start, end = json.loads(self.checkpoint), json.loads(self.planned)
        for part in reader.partitions(start, end):
            for batch in reader.read(part):
                self.rows += [int(value) for value in batch.column("value").to_pylist()]
        self.checkpoint = self.planned


@pytest.mark.parametrize("new", [NEW[:10], NEW], ids=["fewer", "more"])
def test_a_truncated_log_is_reported_or_read_from_the_divergence(
    broker: BrokerProcess,
    address: dict[str, str],
    new: range,
    caplog: pytest.LogCaptureFixture,
) -> None:
    query = Query(address)
    write(broker, KEPT)
    marks = segments(broker)
    write(broker, CUT)
    query.run(most=35)
    assert query.rows == [*range(100)]
    cut(broker, marks)
    write(broker, new)
    for _ in range(2):
        with pytest.raises(
            SourceLost, match=r"in-1: the log was truncated.*60.*offset 100 was next.*offset 60,"
        ):
            query.run()
    caplog.set_level(logging.WARNING)
    query.run(most=35, failOnDataLoss="false")
    assert query.rows == [*range(100), *new]
    assert caplog.text.count("in-1: the log was truncated") == 1
    write(broker, range(5_000, 5_010))
    query.run()
    assert query.rows == [*range(100), *new, *range(5_000, 5_010)]


def test_a_batch_planned_before_a_truncation_is_not_read_after_it(
    broker: BrokerProcess, address: dict[str, str]
) -> None:
    query = Query(address)
    write(broker, KEPT)
    marks = segments(broker)
    query.run()
    write(broker, CUT)
    query.plan(query.reader())
    cut(broker, marks)
    write(broker, NEW)
    with pytest.raises(SourceLost, match=r"in-1: the log was truncated: from offset 60 on"):
        query.perform(query.reader())
    lenient = query.reader(failOnDataLoss="false")
    query.perform(lenient)
    query.run(failOnDataLoss="false")
    assert query.rows == [*KEPT, *NEW]


def test_a_task_reads_only_the_log_of_its_plan(
    broker: BrokerProcess, address: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    write(broker, KEPT)
    marks = segments(broker)
    write(broker, CUT)
    strict = log_source(parse_options({**address, "subscribe": "in"}))
    lenient = log_source(parse_options({**address, "subscribe": "in", "failOnDataLoss": "false"}))
    (planned,) = strict.plan()
    cut(broker, marks)
    write(broker, NEW)
    with pytest.raises(SourceLost, match=r"in-1: the log was truncated: from offset 60 on.*Plan"):
        [*strict.read(planned, None)]
    (rows,) = lenient.read(planned, None)
    assert rows.num_rows == 60
    (planned,) = strict.plan()
    recreate(broker)
    with pytest.raises(SourceLost, match="in-1: the topic was deleted, and offsets 0 to 129"):
        [*strict.read(planned, None)]
    write(broker, range(200))
    with pytest.raises(SourceLost, match="in-1: the topic was deleted and created again"):
        [*strict.read(planned, None)]
    assert [*lenient.read(planned, None)] == []
    assert "reading ends at offset 0" in caplog.text


@pytest.mark.parametrize("cuts", [1, 3])
def test_a_checkpoint_of_an_earlier_build_is_continued(
    broker: BrokerProcess, address: dict[str, str], cuts: int
) -> None:
    query = Query(address)
    write(broker, KEPT)
    query.run()
    earlier = json.loads(query.checkpoint)
    del earlier["in"]["epochs"]
    query.checkpoint = json.dumps(earlier)
    for _ in range(cuts):
        broker.kill_and_restart()  # Loses nothing.
        write(broker, range(1))
    query.run()
    assert query.rows == [*KEPT, *([0] * cuts)]
    assert len(json.loads(query.checkpoint)["in"]["epochs"]["1"]) == cuts + 1
