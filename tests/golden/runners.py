"""Runs of cases on the test driver, and on a worker over a log.

Both take a case's inputs one at a time, and the next one when the last is completely processed.
For a worker, that is when its group has committed all offsets, repartition topics included, and no
transaction is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from streamlog import App
from streamlog.client.admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.durations import when_ms
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord as RawRecord
from streamlog.worker.worker import Worker
from tests.golden.adapter import Adapter, windowed_key
from tests.golden.compare import Case, Row
from tests.worker.processes import still

PATIENCE_S = 60
"""An input that takes longer is an error."""
POLL_MS = 2


def run_on_driver(case: Case) -> list[Row]:
    """Return the rows that the test driver writes."""
    adapter, rows = Adapter(case), []
    with adapter.app.test() as t:
        for after, fed in enumerate(case["inputs"]):
            if "control" in fed:
                if fed["control"] == "restart":
                    t.restart()
                continue
            t.input(adapter.topics[fed["topic"]]).send(fed["value"], key=fed["key"], at=fed["ts"])
            for name in adapter.outputs:
                output = t.output(adapter.topics[name])
                rows += [row_of(name, output.pop(), after) for _ in output.records]
    return rows


def row_of(name: str, record: Any, after: int | None) -> Row:
    """Convert a record to a row of a case."""
    key, window = windowed_key(record.key)
    span = None if window is None else (when_ms(window[0]), when_ms(window[1]))
    return Row(name, key, span, record.value, when_ms(record.timestamp), after)


class WorkerRun:
    """A case on a worker in this process, over a log."""

    def __init__(self, case: Case, log: Log, log_url: str, directory: Path) -> None:
        self._case = case
        self._log = log
        self._log_url = log_url
        self._directory = directory
        self._adapter = self._make_adapter()
        """A new one for each run, because an app belongs to one program."""
        self._rows: list[Row] = []
        self._read: dict[TopicPartition, int] = {}
        """The offset after the last record read of each partition."""
        self._sources: list[TopicPartition] = []
        self._parts: list[TopicPartition] = []

    def _make_adapter(self) -> Adapter:
        name = f"golden-{self._case['id']}"
        app = App(name, state_dir=str(self._directory), commit_interval="1ms", log=self._log_url)
        return Adapter(self._case, app, prefix=f"{name}-")

    async def rows(self) -> list[Row]:
        """Run the case and return all rows that the worker writes."""
        names = [topic.name for topic in self._adapter.topics.values()]
        # In a case, only records advance time.
        configs = await still(self._log)
        await self._log.admin().create_topics([NewTopic(n, 1, configs=configs) for n in names])
        async with (
            self._log.consumer(
                isolation_level="read_committed", auto_offset_reset="earliest"
            ) as consumer,
            self._log.consumer(isolation_level="read_uncommitted") as self._uncommitted,
            self._log.producer(linger_ms=0) as self._producer,
        ):
            for run in self._runs():
                self._adapter = self._make_adapter()
                async with self._working():
                    await self._feed(consumer, run)
        return self._rows

    def _runs(self) -> list[list[tuple[int, Case]]]:
        """Return the inputs with their numbers, split at restarts."""
        runs: list[list[tuple[int, Case]]] = [[]]
        for after, fed in enumerate(self._case["inputs"]):
            if "control" not in fed:
                runs[-1].append((after, fed))
            elif fed["control"] == "restart":
                runs.append([])
        return runs

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        stop, started = asyncio.Event(), asyncio.Event()
        worker = Worker(
            self._adapter.app.program(),
            log_url=self._log_url,
            announce=lambda _start: started.set(),
        )
        async with asyncio.TaskGroup() as group:
            running = group.create_task(worker.run(stop))
            ready = group.create_task(started.wait())
            await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
            try:
                yield
            finally:
                stop.set()

    async def _feed(self, consumer: Consumer, run: Sequence[tuple[int, Case]]) -> None:
        outputs = {self._adapter.topics[name].name for name in self._adapter.outputs}
        self._sources = [TopicPartition(name, 0) for name in self._adapter.app.program().sources]
        self._parts = sorted({*self._sources, *(TopicPartition(name, 0) for name in outputs)})
        consumer.assign(self._parts)
        for tp in self._parts:
            consumer.seek(tp, self._read.get(tp, 0))
        for after, fed in run:
            topic = self._adapter.topics[fed["topic"]]
            key, value = topic.encoded(fed["key"], fed["value"])
            sent = await self._producer.send(
                topic.name, value, key=key, timestamp_ms=fed["ts"], partition=0
            )
            await sent
            async with asyncio.timeout(PATIENCE_S):
                while not (
                    await self._is_done(consumer, after) and self._is_known(topic, key, value)
                ):
                    pass

    def _is_known(self, topic: Any, key: bytes | None, value: bytes | None) -> bool:
        """Whether the worker's global tables of the topic hold this row."""
        app = self._adapter.app
        wanted = [each for each in app.topology().global_tables if each.topic is topic.spec]
        access = app.runtime.global_tables
        return (
            not wanted
            or key is None
            or (
                access is not None
                and all(access.rows_of(each.name).get(key) == value for each in wanted)
            )
        )

    async def _is_done(self, consumer: Consumer, after: int) -> bool:
        """Whether the worker is done, and all its rows have been read."""
        await asyncio.sleep(POLL_MS / 1000)
        ends = await consumer.end_offsets(self._parts)
        await self._read_to(consumer, ends, after)
        committed = await self._log.admin().group_offsets(self._adapter.app.id)
        for tp in self._sources:
            if committed.get(tp, 0) < self._read.get(tp, 0):
                return False
        # Markers of a transaction come after its offsets: an open transaction holds back the
        # end of committed records.
        latest = await consumer.end_offsets(self._parts)
        return latest == ends == await self._uncommitted.end_offsets(self._parts)

    async def _read_to(
        self, consumer: Consumer, ends: dict[TopicPartition, int], after: int
    ) -> None:
        names = {topic.name: name for name, topic in self._adapter.topics.items()}
        while any(consumer.positions().get(tp, 0) < end for tp, end in ends.items()):
            for tp, records in (await consumer.poll(timeout_ms=20)).items():
                self._read[tp] = records[-1].offset + 1
                name = names.get(tp.topic)
                if name in self._adapter.outputs:
                    self._rows += [self._decoded(name, record, after) for record in records]

    def _decoded(self, name: str, record: RawRecord, after: int) -> Row:
        return row_of(name, self._adapter.topics[name].decoded(record, 0), after)
