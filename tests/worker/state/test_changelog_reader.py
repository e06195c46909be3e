"""ChangelogReader: markers, aborted records and gaps advance its position and give no rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from streamlog.broker.storage.data_directory import partition_folder
from streamlog.client.admin import NewTopic
from streamlog.clock import SystemClock
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.record_columns import RecordColumns
from streamlog.tables.local_disk.rocksdb_store import RocksStore
from streamlog.tables.state.changelog import (
    OFFSET_KEY,
    PROGRESS_KEY,
    READ_KEY,
    changelog_offset,
    store_offset,
)
from streamlog.tables.state.store_transaction import DeferredStore
from streamlog.tables.stores.store import Change
from streamlog.worker.state import changelog_reader
from streamlog.worker.state.changelog_reader import ChangelogReader
from tests.broker.process import BrokerProcess
from tests.worker.test_cut_changelogs import back_up, restore_backup
from tests.worker.test_cut_sources import cut, sizes

CHANGELOG = TopicPartition("census-0-changelog", 0)
WAIT_MS = 5_000


class Everything:
    """An admission filter that passes every record."""

    def admit(self, records: RecordColumns) -> list[Change]:
        return [(record.key or b"", record.value) for record in records]


@asynccontextmanager
async def changelog(path: Path) -> AsyncIterator[Log]:
    async with Log.open(f"embedded:{path}/log", listen=False) as log, log.admin() as admin:
        await admin.create_topics([NewTopic(CHANGELOG.topic, 1)])
        yield log


class Abort(Exception):
    """Aborts a transaction."""


async def write(log: Log, *numbers: int, is_aborted: bool = False) -> None:
    """Write one transaction with a record for each number."""
    now_ms = SystemClock().wall_ms()  # For old records, a compaction may have removed tombstones.
    async with log.producer(transactional_id="task") as producer:
        with suppress(Abort):
            async with producer.transaction():
                records = [(now_ms, b"%d" % number, b"v%d" % number, ()) for number in numbers]
                await (await producer.send_batch(*CHANGELOG, records, atomic=True))
                if is_aborted:
                    raise Abort


class LaterClock(SystemClock):
    """A clock that is ahead of the broker's."""

    def __init__(self, ahead_ms: int) -> None:
        super().__init__()
        self._ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self._ahead_ms


@asynccontextmanager
async def open_reader(
    log: Log, path: Path, *, has_front: bool = False, later_ms: int = 0
) -> AsyncIterator[tuple[ChangelogReader, RocksStore]]:
    store = RocksStore.open(str(path / "state"))
    follower = ChangelogReader(
        log,
        store,
        changelog=CHANGELOG,
        admission=lambda _: Everything(),
        clock=LaterClock(later_ms),
        isolation="read_committed",
        front=DeferredStore(store) if has_front else None,
    )
    try:
        async with follower:
            yield follower, store
    finally:
        store.close()


def rows(store: RocksStore) -> dict[bytes, bytes]:
    return {key: value for key, value in store.range() if key not in {OFFSET_KEY, READ_KEY}}


def expected(*numbers: int) -> dict[bytes, bytes]:
    return {b"%d" % number: b"v%d" % number for number in numbers}


def test_a_reader_reaches_an_end_that_is_no_record(tmp_path: Path) -> None:
    """The log ends with a transaction's marker, and then with an aborted transaction."""

    async def main() -> None:
        async with changelog(tmp_path) as log:
            await write(log, 1, 2)
            async with open_reader(log, tmp_path) as (follower, store):
                await follower.reach(follower.end)
                assert (follower.position, follower.end, follower.records) == (3, 3, 2)
                assert rows(store) == expected(1, 2)
                await write(log, 3, 4, is_aborted=True)
                await follower.reach(6)
                assert (follower.position, follower.lag) == (6, 0)
                assert rows(store) == expected(1, 2)
                assert changelog_offset(store) == 6
                await write(log, 5)
                assert await follower.step(timeout_ms=WAIT_MS)
                assert rows(store) == expected(1, 2, 5)
            # After reopening, it continues at its position and has nothing to read.
            async with open_reader(log, tmp_path) as (follower, store):
                assert follower.position == follower.end == 8
                await follower.reach(follower.end)
                assert follower.records == 0
                assert rows(store) == expected(1, 2, 5)

    asyncio.run(main())


def test_records_of_an_open_transaction_are_not_applied(tmp_path: Path) -> None:
    async def main() -> None:
        async with changelog(tmp_path) as log:
            await write(log, 1)
            async with (
                log.producer(transactional_id="other") as producer,
                open_reader(log, tmp_path) as (follower, store),
            ):
                async with producer.transaction():
                    await (
                        await producer.send_batch(
                            *CHANGELOG, [(1_000, b"2", b"v2", ())], atomic=True
                        )
                    )
                    await follower.reach(follower.end)
                    assert (follower.position, rows(store)) == (2, expected(1))
                    assert not await follower.step(timeout_ms=0)
                await follower.reach(4)
                assert rows(store) == expected(1, 2)

    asyncio.run(main())


def test_a_store_far_behind_is_bulk_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelog_reader, "FILLING_RECORDS_MIN", 1_000)
    monkeypatch.setattr(changelog_reader, "SLICE_RECORDS", 300)

    async def main() -> None:
        async with changelog(tmp_path) as log:
            await write(log, *range(1_500))
            await write(log, *range(500, 1_000), *range(2_000, 2_500))
            async with open_reader(log, tmp_path) as (follower, store):
                await follower.reach(follower.end)
                assert rows(store) == expected(*range(1_500), *range(2_000, 2_500))
                await write(log, 3_000)
                await follower.reach(follower.end + 2)
                assert store.get(b"3000") == b"v3000"

    asyncio.run(main())


def test_a_short_tail_stays_in_the_write_buffer_and_a_long_one_fills_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelog_reader, "FILLING_RECORDS_MIN", 1_000)
    monkeypatch.setattr(changelog_reader, "TAIL_RECORDS_MAX", 2_000)

    async def main() -> None:
        async with changelog(tmp_path) as log:
            await write(log, *range(1_500))
            async with open_reader(log, tmp_path, has_front=True) as (follower, store):
                await follower.reach(follower.end)
                assert rows(store) == expected(*range(1_500)), "a new store is filled"
            await write(log, *range(1_000, 2_600))
            async with open_reader(log, tmp_path, has_front=True) as (follower, store):
                before = changelog_offset(store)
                await follower.reach(follower.end)
                assert follower.position == follower.end
                assert rows(store) == expected(*range(1_500)), "the store has none of it yet"
                assert changelog_offset(store) == before
            await write(log, *range(2_600, 4_000))
            async with open_reader(log, tmp_path, has_front=True) as (follower, store):
                assert follower.position == before, "the write buffer has not been flushed"
                await follower.reach(follower.end)
                assert rows(store) == expected(*range(4_000)), "it was far behind"

    asyncio.run(main())


def test_a_cancelled_read_leaves_a_store_that_can_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelog_reader, "FILLING_RECORDS_MIN", 1_000)
    monkeypatch.setattr(changelog_reader, "SLICE_RECORDS", 100)

    async def cut_off(log: Log, slices: int) -> None:
        async with open_reader(log, tmp_path) as (follower, _):
            applied = follower.apply

            def apply(records: RecordColumns, *, next_offset: int) -> None:
                nonlocal slices
                applied(records, next_offset=next_offset)
                slices -= 1
                if not slices:
                    raise asyncio.CancelledError

            follower.apply = apply  # type: ignore[method-assign]
            with pytest.raises(asyncio.CancelledError):
                await follower.reach(follower.end)

    async def main() -> None:
        async with changelog(tmp_path) as log:
            await write(log, *range(3_000))
            for slices in (1, 7):
                await cut_off(log, slices)
            async with open_reader(log, tmp_path) as (follower, store):
                assert follower.position == 800
                await follower.reach(follower.end)
                assert follower.records == 2_200
                assert rows(store) == expected(*range(3_000))

    asyncio.run(main())


@pytest.mark.parametrize("more", [1, 3, 9], ids=["shorter", "as long", "longer"])
def test_a_store_ahead_of_a_truncated_changelog_is_rebuilt(
    tmp_path: Path, more: int, caplog: pytest.LogCaptureFixture
) -> None:
    """New records have replaced the ones that a standby has read."""

    async def main(broker: BrokerProcess) -> None:
        async with Log.open(f"kafka://{broker.address}") as log:
            await log.admin().create_topics([NewTopic(CHANGELOG.topic, 1)])
            await write(log, 1)
            (topic,) = await log.admin().find_topics([CHANGELOG.topic])
            folder = tmp_path / "data" / partition_folder(topic.topic_id, 0)
            marks = {
                at: size for at, size in sizes(tmp_path / "data").items() if at.parent == folder
            }
            for number in (2, 3, 4):
                await write(log, number)
            async with open_reader(log, tmp_path) as (follower, store):
                await follower.reach(follower.end)
                assert rows(store) == expected(1, 2, 3, 4)
            await asyncio.to_thread(cut, broker, marks)
            numbers = range(10, 10 + more)
            for number in numbers:
                await write(log, number)
            async with open_reader(log, tmp_path) as (follower, store):
                assert follower.rebuilt
                follower.warn_if_rebuilt("here")
                await follower.reach(follower.end)
                assert rows(store) == expected(1, *numbers)
            async with open_reader(log, tmp_path) as (follower, store):
                assert not follower.rebuilt

    with BrokerProcess(tmp_path / "data", flush="os") as broker:
        asyncio.run(main(broker))
    assert f"state in here does not match changelog {CHANGELOG.topic}-0" in caplog.text
    assert "it was truncated" in caplog.text


def test_a_store_of_a_recreated_changelog_is_rebuilt(tmp_path: Path) -> None:
    async def main() -> None:
        async with changelog(tmp_path) as log:
            await write(log, 1, 2)
            async with open_reader(log, tmp_path) as (follower, store):
                await follower.reach(follower.end)
                assert rows(store) == expected(1, 2)
            await log.admin().delete_topics([CHANGELOG.topic])
            await log.admin().create_topics([NewTopic(CHANGELOG.topic, 1)])
            await write(log, 3, 4, 5)
            async with open_reader(log, tmp_path) as (follower, store):
                assert follower.rebuilt
                await follower.reach(follower.end)
                assert rows(store) == expected(3, 4, 5)

    asyncio.run(main())


def test_a_store_whose_last_checkpoint_was_compacted_away_is_kept(tmp_path: Path) -> None:
    """Its task continued under later leader epochs, and other tasks after it."""

    async def checkpoint(log: Log, number: int, size_bytes: int = 1) -> tuple[bytes, int]:
        progress = b"p%d" % number
        async with log.producer() as producer:
            now_ms = SystemClock().wall_ms()
            written = [(b"%d" % number, b"v" * size_bytes), (PROGRESS_KEY, progress)]
            records = [(now_ms, key, value, ()) for key, value in written]
            return progress, (
                await (await producer.send_batch(*CHANGELOG, records, atomic=True))
            ).offset + 1

    async def is_compacted(log: Log, offset: int) -> bool:
        async with log.consumer() as consumer:
            consumer.assign([CHANGELOG])
            consumer.seek(CHANGELOG, offset)
            polled = await consumer.poll(timeout_ms=100)
            return bool(polled) and polled[CHANGELOG][0].offset > offset

    async def main(broker: BrokerProcess) -> None:
        async with Log.open(f"kafka://{broker.address}") as log:
            configs = {
                "cleanup.policy": "compact",
                "segment.bytes": "4096",
                "min.compaction.lag.ms": "0",
                "min.cleanable.dirty.ratio": "0.01",
            }
            await log.admin().create_topics([NewTopic(CHANGELOG.topic, 1, configs=configs)])
            await write(log, 1)
            async with open_reader(log, tmp_path) as (follower, store):
                await follower.reach(follower.end)
                await asyncio.to_thread(broker.kill_and_restart)
                progress, next_offset = await checkpoint(log, 2)
                store.write([(b"2", b"v"), (PROGRESS_KEY, progress), store_offset(next_offset)])
            async with asyncio.timeout(WAIT_MS / 1000 * 6):
                number = 3
                while not await is_compacted(log, next_offset - 1):
                    await checkpoint(log, number, 3000)
                    number += 1
            async with open_reader(log, tmp_path) as (follower, _):
                follower.warn_if_rebuilt("here")
                assert not follower.rebuilt

    with BrokerProcess(tmp_path / "data") as broker:
        asyncio.run(main(broker))


def test_a_store_is_rebuilt_after_its_changelog_is_restored_from_a_backup(tmp_path: Path) -> None:
    """The records written since have equal leader epochs and offsets."""
    data, saved = tmp_path / "data", tmp_path / "saved"

    async def main(broker: BrokerProcess) -> None:
        async with Log.open(f"kafka://{broker.address}") as log:
            await log.admin().create_topics([NewTopic(CHANGELOG.topic, 1)])
            await write(log, 1)
            await asyncio.to_thread(back_up, broker, data, saved)
            await write(log, 2, 3, 4)
            async with open_reader(log, tmp_path) as (follower, store):
                await follower.reach(follower.end)
            await asyncio.to_thread(restore_backup, broker, data, saved)
            await write(log, *range(10, 19))
            for is_rebuilt in (True, False):
                async with open_reader(log, tmp_path) as (follower, store):
                    assert follower.rebuilt is is_rebuilt
                    await follower.reach(follower.end)
                    assert rows(store) == expected(1, *range(10, 19))

    with BrokerProcess(data) as broker:
        asyncio.run(main(broker))


def test_a_store_that_was_idle_for_a_day_continues_before_the_marker_of_its_last_commit(
    tmp_path: Path,
) -> None:
    """A task notes the offset behind its own records, and the marker follows them."""
    day_ms = 24 * 60 * 60 * 1000

    async def main() -> None:
        async with changelog(tmp_path) as log:
            await write(log, 1, 2)
            async with open_reader(log, tmp_path) as (follower, store):
                await follower.reach(follower.end)
                store.write([store_offset(2)])
            async with open_reader(log, tmp_path, later_ms=day_ms) as (follower, _):
                assert (follower.position, follower.end) == (2, 3)
                assert not follower.rebuilt
            # An aborted transaction is none that the store lacks.
            await write(log, 7, is_aborted=True)
            async with open_reader(log, tmp_path, later_ms=day_ms) as (follower, _):
                assert not follower.rebuilt
            # Deletions among these may be compacted away.
            await write(log, 3, 4)
            async with open_reader(log, tmp_path, later_ms=day_ms) as (follower, _):
                assert follower.rebuilt

    asyncio.run(main())
