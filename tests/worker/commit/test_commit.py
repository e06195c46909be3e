from __future__ import annotations

import pytest

from streamlog import App
from streamlog.processing.task import Task, TaskId
from streamlog.records.batch import LogRecord
from streamlog.records.packed_records import PackedRecords
from streamlog.records.record_columns import FieldColumns, RecordColumns
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.worker.commit.commit import (
    CHECKPOINT_PACK_BYTES,
    PACK_BYTES,
    checkpoint,
    pack_records,
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
