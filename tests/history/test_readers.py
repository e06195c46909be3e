"""Reads of a log's files equal reads from its broker: committed records, and time marks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog.client.admin import NewTopic
from streamlog.errors import ProcessingError
from streamlog.history.readers import LogReader
from streamlog.history.stored_log_reader import StoredReader
from streamlog.history.task_run import PartitionReader
from streamlog.log import Log
from streamlog.record import TopicPartition

TP = TopicPartition("rows", 0)


async def write(url: str) -> None:
    async with Log.open(url) as log:
        await log.admin().create_topics([NewTopic("rows", 1)])
        async with log.producer() as producer:
            for n in range(20):
                await producer.send("rows", b"%d" % n, timestamp_ms=1_000 + n)
            await producer.flush()
        for outcome in ("committed", "aborted", "committed"):
            async with log.producer(transactional_id="writer") as producer:
                try:
                    async with producer.transaction():
                        for n in range(5):
                            value = f"{outcome} {n}".encode()
                            await producer.send("rows", value, timestamp_ms=2_000)
                        await producer.flush()
                        if outcome == "aborted":
                            raise LookupError  # noqa: TRY301 - aborts the transaction
                except LookupError:
                    pass


def rows(reader: PartitionReader, start: int, end: int) -> list[tuple[int, bytes | None]]:
    found = reader.read(TP, start, end)
    return [(r.offset, r.value) for records, *_ in found for r in records]


def test_files_and_broker_give_equal_records(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'log'}"
    asyncio.run(write(url))
    with LogReader(url) as reader:
        start, end = reader.bounds([TP])[TP]
        by_broker = {span: rows(reader, *span) for span in ((start, end), (7, end - 4), (3, 4))}
    stored = StoredReader(str(tmp_path / "log"))
    assert {span: rows(stored, *span) for span in by_broker} == by_broker
    values = [value for _, value in by_broker[start, end]]
    assert b"aborted 0" not in values
    assert values.count(b"committed 4") == 2
    stored.close()


def test_files_that_end_too_early_are_reported(tmp_path: Path) -> None:
    asyncio.run(write(f"embedded:{tmp_path / 'log'}"))
    stored = StoredReader(str(tmp_path / "log"))
    with pytest.raises(ProcessingError, match="rows-0 can be read up to offset") as raised:
        rows(stored, 0, 1_000)
    assert raised.value.offset > 0
    stored.close()
