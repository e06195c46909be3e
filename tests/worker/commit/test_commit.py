from __future__ import annotations

import asyncio
from array import array
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import App
from streamlog.client.admin import NewTopic
from streamlog.client.producer import Producer
from streamlog.errors import UnknownTopicOrPartition
from streamlog.log import Log
from streamlog.processing.outbox import SinkBatch
from streamlog.processing.task import Task, TaskId
from streamlog.record import TopicPartition
from streamlog.records.arrow_rows import ArrowRows, BinaryArray
from streamlog.records.batch import LogRecord
from streamlog.records.byte_spans import ByteSpans
from streamlog.records.packed_records import PackedRecords
from streamlog.records.record_columns import FieldColumns, RecordColumns
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.worker.commit.commit import (
    CHECKPOINT_PACK_BYTES,
    PACK_BYTES,
    SPANS_PACK_BYTES,
    HeldSinks,
    SinkWriter,
    checkpoint,
    pack_records,
    pack_rows,
)


def columns(sizes: list[int], *, first: int = 0) -> FieldColumns:
    return FieldColumns.of([(first + at, None, bytes(size), ()) for at, size in enumerate(sizes)])


def test_records_fill_one_pack_after_another() -> None:
    packs: list[PackedRecords] = []
    added = 0
    number = 0
    for count in (1, 1_000, 3, 2_500):
        added += pack_records(packs, columns([200] * count, first=number))
        number += count
    assert added == sum(pack.size_bytes() for pack in packs)
    assert len(packs) == 1 + added // PACK_BYTES
    assert all(0.9 * PACK_BYTES < pack.size_bytes() <= PACK_BYTES for pack in packs[:-1])
    assert [ms for pack in packs for ms in pack.part(0, len(pack)).timestamps] == list(
        range(number)
    )


def test_a_record_larger_than_a_pack_gets_its_own_pack() -> None:
    packs: list[PackedRecords] = []
    added = pack_records(packs, columns([5, 2 * PACK_BYTES, 2 * PACK_BYTES, 5]))
    assert [len(pack) for pack in packs] == [1, 1, 1, 1]
    assert added == sum(pack.size_bytes() for pack in packs)
    pack_records(packs, columns([7, 7]))
    assert [len(pack) for pack in packs] == [1, 1, 1, 3]


class Counts:
    """The partition counts of a producer's topics."""

    async def partitions(self, topic: str) -> int:
        return int(topic)


LINES = st.lists(st.binary(max_size=300), max_size=60)


def in_one_buffer(lines: list[bytes]) -> ByteSpans:
    ends = array("i", [0, *accumulate(map(len, lines))])
    data = b"".join(lines)
    return ByteSpans(data, BinaryArray(0, len(lines), ends, data))


async def held(batches: list[SinkBatch]) -> dict[TopicPartition, list[tuple[Any, ...]]]:
    sinks = HeldSinks(cast("Producer", Counts()))
    await sinks.write(batches)
    held_bytes = sinks.held_bytes
    packs = sinks.take()
    sizes = [pack.size_bytes() for some in packs.values() for pack in some]
    assert held_bytes == sum(sizes)
    return {
        at: [record for pack in some if len(pack) for record in pack.part(0, len(pack))]
        for at, some in packs.items()
    }


@given(st.lists(st.tuples(LINES, st.sampled_from("13"), st.booleans(), st.booleans()), max_size=5))
def test_contents_in_a_buffer_are_held_as_those_of_a_list(
    reads: list[tuple[list[bytes], str, bool, bool]],
) -> None:
    plain, mixed = [], []
    for number, (lines, topic, has_headers, in_spans) in enumerate(reads):
        times, headers = [number] * len(lines), [(("h", b"%d" % number),)] * len(lines)
        own = headers if has_headers else None
        keys: list[bytes | None] = [None] * len(lines)
        plain.append(SinkBatch(topic, None, times, keys, lines, own))
        spans = SinkBatch(
            topic, None, times, ByteSpans.nulls(len(lines)), in_one_buffer(lines), own
        )
        mixed.append(spans if in_spans else plain[-1])
    assert asyncio.run(held(mixed)) == asyncio.run(held(plain))


def test_rows_fill_one_pack_after_another() -> None:
    packs: list[PackedRecords] = []
    sizes = [SPANS_PACK_BYTES // 3, 5, 2 * SPANS_PACK_BYTES, 7, *[200] * 5_000]
    spans = in_one_buffer([bytes(size) for size in sizes])
    rows = ArrowRows(None, spans.array, array("q", range(len(sizes))))
    added = pack_rows(packs, rows, 0, 10) + pack_rows(packs, rows, 10, len(sizes))
    assert added == sum(pack.size_bytes() for pack in packs)
    assert [len(pack) for pack in packs[:2]] == [2, 1]
    assert all(pack.size_bytes() > 0.9 * SPANS_PACK_BYTES for pack in packs[1:-1])
    ends = [pack.last_timestamp_ms for pack in packs]
    assert ends == [at - 1 for at in accumulate(map(len, packs))]


def counted(users: int) -> Task:
    """Return a task that has counted a record of each of `users` users."""
    app = App("counts")
    words = app.topic("words", key=str, value=str)
    app.stream(words).group_by_key().count(name="n")
    (sub,) = app.topology().subtopologies
    task = Task(sub, TaskId(0, 0), partitions={"words": 1}, store=MemoryStore())
    task.start_at({("words", 0): 0})
    records = [LogRecord(at, at, b"user-%d" % at, b"x") for at in range(users)]
    task.process({("words", 0): RecordColumns.of(records)}, 1, ends={("words", 0): users})
    return task


@pytest.mark.parametrize("epoch", [None, 3])
def test_a_large_checkpoint_is_divided_without_a_transaction(epoch: int | None) -> None:
    found = checkpoint(counted(30_000), 7, epoch=epoch)
    assert found is not None
    assert (len(found.packs) == 1) == (epoch is not None)
    if epoch is None:
        assert all(pack.size_bytes() >= CHECKPOINT_PACK_BYTES for pack in found.packs[:-1])
        assert all(pack.size_bytes() < 2 * CHECKPOINT_PACK_BYTES for pack in found.packs)
    parts = [pack.part(0, len(pack)) for pack in found.packs]
    assert [key for part in parts for key in part.keys] == found.changes.row_keys
    assert [value for part in parts for value in part.values] == found.changes.row_values
    assert {ms for part in parts for ms in part.timestamps} == {7}


def test_an_unchanged_task_writes_no_checkpoint() -> None:
    task = counted(0)
    task.committed(task.checkpoint(), next_offset=1)
    assert checkpoint(task, 7, epoch=None) is None


def test_rows_that_are_written_again_do_not_fail_for_those_before(tmp_path: Path) -> None:
    """A topic is deleted under an open writer, and created again once tasks have begun anew."""

    def rows(value: bytes) -> list[SinkBatch]:
        return [SinkBatch("out", 0, [1], [b"k"], [value])]

    async def written_for_ever(writer: SinkWriter, batches: list[SinkBatch]) -> None:
        while True:
            await writer.write(batches)
            await asyncio.sleep(0)

    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}") as log, log.producer(linger_ms=0) as producer:
            writer = SinkWriter(producer)
            await log.admin().create_topics([NewTopic("out", 1)])
            await writer.write(rows(b"old"))
            await writer.flush()
            await log.admin().delete_topics(["out"])
            # Handed over, as the producer does not know yet: it fails after a later write has.
            await writer.write(rows(b"lost"))
            with pytest.raises(UnknownTopicOrPartition):
                await written_for_ever(writer, rows(b"lost, too"))
            await writer.forget()
            await log.admin().create_topics([NewTopic("out", 1)])
            await writer.write(rows(b"new"))
            await writer.flush()
            found = await log.read_range(TopicPartition("out", 0))
            assert [record.value for record in found] == [b"new"]

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await main()

    asyncio.run(bounded())
