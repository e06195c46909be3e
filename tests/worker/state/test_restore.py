"""Ownership of a changelog: late writes of former owners are noticed and never applied."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from streamlog import App
from streamlog.client.producer import Producer
from streamlog.clock import SystemClock
from streamlog.errors import CorruptData, LogDirectoryLost
from streamlog.log import Log
from streamlog.processing.task import Task, TaskId
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.stored_log import StoredLog
from streamlog.tables.local_disk.rocksdb_store import RocksBudget, RocksStore
from streamlog.tables.state.changelog import Restoration, changelog_offset
from streamlog.worker.commit.commit import Fenced, TaskCheckpoints, checkpoint
from streamlog.worker.engine import EngineThread
from streamlog.worker.state import restore
from streamlog.worker.state.restore import OWNER_KEY, Fences, Restorer, TaskState, epoch_headers
from streamlog.worker.topics.app_topics import ensure_topics

app = App("census")
users = app.topic("users", key=str, value=int, partitions=1)
table = app.table(users, name="users-table")
CHANGELOG = TopicPartition("census-0-changelog", 0)


Opening = Callable[..., Awaitable["Owner"]]


class Owner:
    """A task with its state, as a worker holds it."""

    def __init__(
        self, log: Log, producer: Producer, state: TaskState, engine: EngineThread
    ) -> None:
        topology = app.topology()
        counts = {"users": 1}
        self.task = Task(
            topology.subtopologies[0], TaskId(0, 0), partitions=counts, store=state.front
        )
        self.task.write_again(state.late)
        self.state = state
        self._producer = producer
        self._checkpoints = TaskCheckpoints(log, producer, SystemClock(), engine)
        self._offset = self.task.positions.get(("users", 0), 0)

    async def count(self, name: str, number: int) -> None:
        """Process one record and commit."""
        value = number.to_bytes(8, "big")
        record = LogRecord(self._offset, 1_000, name.encode(), value)
        self._offset += 1
        topic_partition = ("users", 0)
        self.task.process({topic_partition: [record]}, 0, ends={topic_partition: self._offset})
        await self._checkpoints.write(self.task, self.state)

    async def transact(self) -> None:
        """Commit as an exactly-once worker does, without the transaction."""
        committed_state = checkpoint(self.task, 0, epoch=None)
        assert committed_state is not None
        for pack in committed_state.packs:
            await (await self._producer.send_batch(*CHANGELOG, pack))

    @property
    def rows(self) -> dict[str, int]:
        return dict(self.task.table("users-table"))


@asynccontextmanager
async def census(path: Path, log_name: str = "log") -> AsyncIterator[Opening]:
    async with Log.open(f"embedded:{path}/{log_name}", listen=False) as log:
        await ensure_topics(log, app.topology(), app.topics, required=())
        engine = EngineThread(SystemClock())
        async with log.producer() as producer:
            owners = []

            async def open_owner(name: str, *, in_transactions: bool = False) -> Owner:
                restorer = Restorer(
                    log,
                    producer,
                    changelog=CHANGELOG,
                    path=str(path / name),
                    budget=RocksBudget(),
                    clock=SystemClock(),
                    in_transactions=in_transactions,
                )
                owners.append(Owner(log, producer, await restorer.run(), engine))
                owners[-1].restorer = restorer
                return owners[-1]

            try:
                yield open_owner
            finally:
                for owner in owners:
                    owner.task.close()
                engine.close()


def test_the_next_owner_restores_the_committed_rows(tmp_path: Path) -> None:
    async def main() -> None:
        async with census(tmp_path) as open_owner:
            first = await open_owner("a")
            await first.count("ada", 1)
            await first.count("bob", 2)
            second = await open_owner("b")
            assert second.rows == {"ada": 1, "bob": 2}
            assert second.task.positions == {("users", 0): 2}

    asyncio.run(main())


def test_a_restore_reports_its_position(tmp_path: Path) -> None:
    """The position lets the watchdog distinguish a long restore from a stalled one."""

    async def main() -> None:
        async with census(tmp_path) as open_owner:
            first = await open_owner("a")
            assert first.restorer.position == first.state.next_offset
            await first.count("ada", 1)
            before = first.state.next_offset
            second = await open_owner("b")
            assert second.restorer.position == second.state.next_offset > before

    asyncio.run(main())


def test_a_former_owner_is_fenced_and_its_late_write_is_ignored(tmp_path: Path) -> None:
    async def main() -> None:
        async with census(tmp_path) as open_owner:
            former_owner = await open_owner("a")
            await former_owner.count("ada", 1)
            owner = await open_owner("b")
            await owner.count("ada", 2)
            with pytest.raises(Fenced):
                await former_owner.count("ada", 99)
            # The owner finds a foreign batch between its own, and continues.
            await owner.count("bob", 3)
            await owner.count("bob", 4)
            former_owner.task.close()
            for directory in ("c", "a"):
                again = await open_owner(directory)
                assert again.rows == {"ada": 2, "bob": 4}
                assert again.task.positions == {("users", 0): 4}
                again.task.close()

    asyncio.run(main())


def test_a_locked_state_directory_does_not_block_the_next_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "LOCK_WAIT_MS", 200)

    async def main() -> None:
        async with census(tmp_path) as open_owner:
            former_owner = await open_owner("a")
            await former_owner.count("ada", 1)
            owner = await open_owner("a")
            assert owner.rows == {"ada": 1}
            await owner.count("bob", 2)
            with pytest.raises(Fenced):
                await former_owner.count("ada", 99)
            former_owner.task.close()
            owner.task.close()
            assert (await open_owner("a")).rows == {"ada": 1, "bob": 2}

    asyncio.run(main())


def test_a_late_write_after_the_owners_last_one_is_ignored(tmp_path: Path) -> None:
    """Only the fence shows who wrote the records after the owner's last one."""

    async def main() -> None:
        async with census(tmp_path) as open_owner:
            former_owner = await open_owner("a")
            owner = await open_owner("b")
            await owner.count("ada", 2)
            owner.task.close()
            with pytest.raises(Fenced):
                await former_owner.count("ada", 99)
            assert (await open_owner("b")).rows == {"ada": 2}

    asyncio.run(main())


def compacted(path: Path) -> list[LogRecord]:
    """Return the records that a compaction of the whole changelog would keep."""
    with StoredLog(str(path)) as log:
        start, end = log.offsets(*CHANGELOG)
        records = [r for batch in log.read(*CHANGELOG, start, end) for r in batch.records()]
    return sorted({record.key: record for record in records}.values())


@pytest.mark.parametrize("by", ["owner", "restorer", "transaction"])
def test_late_writes_of_a_former_owner_are_overwritten(tmp_path: Path, by: str) -> None:
    """Compaction keeps the newest record of a key, whichever owner wrote it."""

    async def main() -> None:
        async with census(tmp_path) as open_owner:
            former_owner = await open_owner("a")
            await former_owner.count("ada", 1)
            await former_owner.count("eve", 1)
            owner = await open_owner("b")
            await owner.count("ada", 2)
            with pytest.raises(Fenced):
                await former_owner.count("eve", 99)
            if by == "owner":
                await owner.count("bob", 3)
                await owner.count("bob", 4)
            rows = owner.rows
            owner.task.close()
            if by == "restorer":
                again = await open_owner("c")
                assert again.rows == rows
                again.task.close()
            if by == "transaction":
                # The worker has switched to exactly once, and is killed before its first commit.
                (await open_owner("c", in_transactions=True)).task.close()
                again = await open_owner("c", in_transactions=True)
                assert again.rows == rows
                await again.transact()
                again.task.close()

    asyncio.run(main())
    kept = dict(Fences().admit(compacted(tmp_path / "log")))
    value = next(value for key, value in kept.items() if b"eve" in key)
    assert value is not None
    assert value.endswith((1).to_bytes(8, "big"))


def test_a_store_that_may_have_missed_a_deletion_is_rebuilt(tmp_path: Path) -> None:
    async def main() -> None:
        async with census(tmp_path) as open_owner:
            first = await open_owner("a")
            await first.count("ada", 1)
            first.task.close()
            store = RocksStore.open(str(tmp_path / "a" / "1"))
            position = changelog_offset(store)
            assert Restoration(store, start_offset=0, end_offset=9).position == position
            again = Restoration(store, start_offset=0, end_offset=9, complete_offset=position)
            assert (again.rebuilt, again.position) == (False, position)
            late = Restoration(store, start_offset=0, end_offset=9, complete_offset=position + 1)
            assert (late.rebuilt, late.position) == (True, 0)
            store.close()
            assert (await open_owner("a")).rows == {"ada": 1}

    asyncio.run(main())


def test_state_of_another_log_is_refused_before_any_write(tmp_path: Path) -> None:
    async def main() -> None:
        async with census(tmp_path) as open_owner:
            await (await open_owner("a")).count("ada", 1)
        async with census(tmp_path, "other") as open_owner:
            with pytest.raises(LogDirectoryLost, match="belongs to log"):
                await open_owner("a")

    asyncio.run(main())


def test_fences_admit_only_the_owners_records() -> None:
    def change(offset: int, epoch: int | None) -> LogRecord:
        headers = () if epoch is None else epoch_headers(epoch)
        return LogRecord(offset, 0, b"k", b"%d" % offset, headers)

    def fence(offset: int) -> LogRecord:
        return LogRecord(offset, 0, OWNER_KEY, b"")

    fences = Fences()
    records = [
        change(0, None),
        fence(1),
        change(2, 1),
        fence(3),
        change(4, 1),
        change(5, 3),
        change(6, 1),
    ]
    admitted = fences.admit(records)
    assert [value for key, value in admitted if key == b"k"] == [b"0", b"2", b"5"]
    assert fences.owner == 3


def test_a_store_keeps_the_last_fence(tmp_path: Path) -> None:
    store = RocksStore.open(str(tmp_path / "store"))
    assert Fences.stored(store).owner == -1
    fences = Fences()
    store.write(fences.admit([LogRecord(7, 0, OWNER_KEY, b"")]))
    assert Fences.stored(store).owner == 7
    store.put(OWNER_KEY, b"?")
    with pytest.raises(CorruptData):
        Fences.stored(store)
    store.close()
