"""State that is restored from changelogs that a real broker compacts at that time."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from streamlog.client.producer import Producer
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.stored_log import StoredLog
from tests.worker.processes import STREAMLOG, Process, attached, read_until, running
from tests.worker.test_worker import (
    COUNTING,
    WORKER,
    Rows,
    close_windows,
    expected,
    feed,
    final_rows,
    stream_of_events,
    written,
)

TOTALS = """
sums = app.topic("sums", key=str, value=Total, partitions=1)
(
    app.stream(events)
    .group_by(lambda _, e: e.who, name="all-by-who")
    .agg(Total, name="ever", events=agg.count(), last_ms=agg.max(lambda e: e.at_ms))
    .changes()
    .to(sums)
)
"""
READY = r"this worker has 9 partitions"
CHANGELOGS = [
    TopicPartition(f"counting-{number}-changelog", partition)
    for number, partition in itertools.product((1, 2), range(3))
]
COMPACTING = {
    "segment.bytes": "4096",
    "min.compaction.lag.ms": "0",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "100",
}
PAUSE_S = 0.05
"""Leaves CPU time to the processes whose files are read."""
CHUNK = 400
CHUNKS_MAX = 200

Values = dict[TopicPartition, dict[bytes | None, bytes | None]]


def stored_records(stored: StoredLog, topic_partition: TopicPartition) -> Iterator[LogRecord]:
    """Yield every record of a partition, and check their order."""
    previous = -1
    for batch in stored.read(*topic_partition, *stored.offsets(*topic_partition)):
        batch.check_crc()
        for record in batch.records():
            assert record.offset > previous
            previous = record.offset
            if not batch.is_control:
                yield record


class Reader:
    """Reads the files of the changelogs repeatedly, while the broker runs."""

    def __init__(self, path: str) -> None:
        self.rounds = 0
        self._path = path
        self._stop = threading.Event()

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        with StoredLog(self._path) as early:
            while not self._stop.wait(PAUSE_S):
                with StoredLog(self._path) as fresh:
                    for stored in (early, fresh):
                        for topic_partition in CHANGELOGS:
                            keys = {
                                record.key for record in stored_records(stored, topic_partition)
                            }
                            assert keys or stored.offsets(*topic_partition)[1] == 0
                self.rounds += 1


def stored_values(path: str) -> tuple[Values, dict[TopicPartition, tuple[int, int]]]:
    """Return the last values, and per partition the number of records left and written."""
    values: Values = {}
    counts: dict[TopicPartition, tuple[int, int]] = {}
    with StoredLog(path) as stored:
        for topic_partition in CHANGELOGS:
            records = list(stored_records(stored, topic_partition))
            values[topic_partition] = {record.key: record.value for record in records}
            counts[topic_partition] = (len(records), stored.offsets(*topic_partition)[1])
    return values, counts


async def served_values(log: Log) -> Values:
    values: Values = {topic_partition: {} for topic_partition in CHANGELOGS}
    async with asyncio.timeout(60), log.consumer(auto_offset_reset="earliest") as consumer:
        ends = await consumer.end_offsets(CHANGELOGS)
        consumer.assign(CHANGELOGS)
        while any(
            [
                await consumer.position(topic_partition) < ends[topic_partition]
                for topic_partition in CHANGELOGS
            ]
        ):
            for topic_partition, records in (await consumer.poll(timeout_ms=200)).items():
                values[topic_partition].update({record.key: record.value for record in records})
    return values


def is_compacted(path: str) -> bool:
    """Return whether every changelog has lost records to compaction."""
    return all(left < written for left, written in stored_values(path)[1].values())


async def feed_until_compacted(
    producer: Producer, events: Iterator[tuple[int, str, int]], path: str
) -> list[tuple[int, str, int]]:
    fed: list[tuple[int, str, int]] = []
    for _ in range(CHUNKS_MAX):
        chunk = list(itertools.islice(events, CHUNK))
        await feed(producer, chunk)
        fed += chunk
        if await asyncio.to_thread(is_compacted, path):
            return fed
    raise AssertionError("no changelog was compacted")


async def last_sums(log: Log, wanted: dict[str, int]) -> dict[str, int]:
    def sums(records: list[tuple[int, LogRecord]]) -> dict[str, int]:
        values = {record.key or b"": record.value or b"" for _, record in records}
        return {key.decode(): msgspec.json.decode(v)["events"] for key, v in values.items()}

    return sums(await read_until(log, "sums", lambda records: sums(records) == wanted))


def test_state_is_restored_from_a_compacted_changelog(tmp_path: Path) -> None:
    """The worker is killed and its state removed; the rest of the changelogs is enough."""
    written(tmp_path, counting=COUNTING + TOTALS)
    data, state = tmp_path / "log", tmp_path / "state"
    events = iter(stream_of_events(CHUNK * (CHUNKS_MAX + 2), seed=7))
    listen = ("broker", "--data", str(data), "--listen", "127.0.0.1:0")
    with running(*STREAMLOG, *listen, cwd=tmp_path) as broker:
        url = "kafka://" + broker.line(r"listening on (\S+)").group(1)

        async def first(log: Log, worker: Process) -> list[tuple[int, str, int]]:
            await asyncio.to_thread(worker.line, READY)
            await log.admin().alter_configs({"log.cleaner.backoff.ms": "20"})
            for topic in sorted({topic_partition.topic for topic_partition in CHANGELOGS}):
                await log.admin().alter_configs(COMPACTING, topic=topic)
            async with log.producer(linger_ms=1) as producer, asyncio.TaskGroup() as tasks:
                reader = Reader(str(data))
                tasks.create_task(asyncio.to_thread(reader.run))
                try:
                    fed = await feed_until_compacted(producer, events, str(data))
                finally:
                    reader.stop()
            assert reader.rounds > 0
            return fed

        async def second(log: Log, fed: list[tuple[int, str, int]]) -> tuple[Rows, dict[str, int]]:
            fed += itertools.islice(events, 2 * CHUNK)
            sums = Counter(who for _, who, _ in fed)
            async with log.producer(linger_ms=1) as producer:
                await feed(producer, fed[-2 * CHUNK :])
                await close_windows(producer)
            return await final_rows(log, expected(fed)), await last_sums(log, {**sums, "end": 3})

        with running(*WORKER, cwd=tmp_path, LOG=url, STATE=str(state)) as worker:
            fed = attached(url, lambda log: first(log, worker))
            worker.kill()
        shutil.rmtree(state)
        assert is_compacted(str(data))
        with running(*WORKER, cwd=tmp_path, LOG=url, STATE=str(state)) as worker:
            rows, sums = attached(url, lambda log: second(log, fed))
            assert "restored" in worker.output
            assert worker.stop() == 0
        assert rows == expected(fed)
        assert sum(sums.values()) == len(fed) + 3
        assert attached(url, served_values) == stored_values(str(data))[0]
