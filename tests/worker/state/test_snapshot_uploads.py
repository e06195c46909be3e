"""Workers snapshot their tasks while they run, and go on whatever the object store does."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from streamlog import App, tumbling
from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.snapshots.object_store import ObjectFolder, ObjectStoreFailed
from streamlog.snapshots.task_manifest import StateIdentity, TaskManifest, decode_manifest
from streamlog.snapshots.task_snapshots import TaskSnapshots
from streamlog.worker.health.worker_metrics import WorkerMetrics
from streamlog.worker.state import snapshot_restore, snapshot_uploads
from streamlog.worker.state.snapshot_uploads import RETRY_MS, first_due_ms, retry_ms
from streamlog.worker.worker import Worker

DEADLINE_S = 120
COUNTS = TopicPartition("counts", 0)
IDENTITY = StateIdentity(
    app_id="a",
    task="0_0",
    cluster_id="c",
    changelog="a-0-changelog",
    changelog_id="",
    partitions=1,
    stores="",
)


def test_the_pause_after_failures_doubles_up_to_the_interval() -> None:
    pauses = [retry_ms(n, 600_000) for n in (1, 2, 3, 6, 7, 1_000)]
    assert pauses == [RETRY_MS, 2 * RETRY_MS, 4 * RETRY_MS, 32 * RETRY_MS, 600_000, 600_000]
    assert retry_ms(1, 50) == 50


def test_the_first_snapshot_of_an_opened_task_is_due_by_the_age_of_the_last_one() -> None:
    def due(created_ms: int) -> int:
        newest = TaskManifest(
            identity=IDENTITY, offset=1, created_ms=created_ms, reserved=(), files=()
        )
        return first_due_ms(newest, wall_ms=10_000, interval_ms=1_000)

    assert first_due_ms(None, wall_ms=10_000, interval_ms=1_000) == 0
    # Just made, half an interval ago, long ago, and by a clock that is an hour ahead.
    assert [due(n) for n in (10_000, 9_500, 5_000, 3_610_000)] == [1_000, 500, 0, 1_000]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_restore, "SAVED_MIN", 1)
    monkeypatch.setattr(snapshot_uploads, "RETRY_MS", 20)


class Shop:
    """An app that counts visits, its log, its disk and its object store."""

    def __init__(self, path: Path, guarantee: Any = "exactly_once") -> None:
        self.path = path
        self.url = f"embedded:{path}/log"
        self._guarantee = guarantee
        self.sent = 0
        self.metrics: list[WorkerMetrics] = []

    def app(self) -> App:
        app = App(
            "shop",
            log=self.url,
            state_dir=f"{self.path}/state",
            guarantee=self._guarantee,
            commit_interval="20ms",
            snapshots=f"file://{self.path}/objects",
            snapshot_interval="50ms",
        )
        by_user = app.stream(app.topic("visits", key=str, value=int, partitions=2)).group_by_key()
        by_user.windowed(tumbling("1h")).count(name="visits-windowed")
        counts = app.topic("counts", key=str, value=int, partitions=1)
        by_user.count(name="visits-count").changes().to(counts)
        return app

    async def create(self, log: Log) -> None:
        names = {"visits": 2, "counts": 1}
        await log.admin().create_topics([NewTopic(name, n) for name, n in names.items()])

    async def send(self, log: Log, count: int) -> None:
        async with log.producer() as producer:
            for n in range(self.sent, self.sent + count):
                key = b"user-%d" % (n % 5)
                await producer.send("visits", n.to_bytes(8, "big"), key=key, timestamp_ms=1_000 * n)
            await producer.flush()
        self.sent += count

    @property
    def expected(self) -> dict[str, int]:
        return {f"user-{n}": len(range(n, self.sent, 5)) for n in range(5) if n < self.sent}

    async def counts(self, log: Log) -> tuple[dict[str, int], int]:
        """Return the last count of each user, and the number of rows."""
        rows = await log.read_range(COUNTS, 0, await end_of(log), isolation="read_committed")
        found = {(r.key or b"").decode(): int.from_bytes(r.value or b"", "big") for r in rows}
        return found, len(rows)

    async def until_counted(self, log: Log) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while (await self.counts(log))[0] != self.expected:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.02)

    def manifests(self) -> Iterator[TaskManifest]:
        for path in self.path.glob("objects/shop/*/manifests/*"):
            try:
                yield decode_manifest(path.read_bytes(), path.name)
            except FileNotFoundError:  # Removed meanwhile.
                continue

    def held(self) -> list[Path]:
        """Return the checkpoints that wait for an upload."""
        return [*self.path.rglob("*.upload")]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not holds():  # noqa: ASYNC110 - files
                await asyncio.sleep(0.02)


async def end_of(log: Log) -> int:
    async with log.consumer(isolation_level="read_committed") as consumer:
        return (await consumer.end_offsets([COUNTS]))[COUNTS]


@asynccontextmanager
async def working(shop: Shop) -> AsyncIterator[None]:
    stop = asyncio.Event()
    worker = Worker(shop.app().program(), log_url=shop.url, announce=lambda _: None)
    running = asyncio.create_task(worker.run(stop))
    try:
        yield
    finally:
        stop.set()
        await running


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_worker_with_an_empty_disk_goes_on_from_snapshots(
    tmp_path: Path, guarantee: Any, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(tmp_path, guarantee)

    async def main() -> None:
        async with Log.open(shop.url) as log:
            await shop.create(log)
            for life in range(3):
                caplog.clear()
                with caplog.at_level("INFO"):
                    async with working(shop):
                        await shop.send(log, 40)
                        await shop.until_counted(log)
                        before = {m.name() for m in shop.manifests()}
                        await shop.send(log, 40)
                        await shop.until_counted(log)
                        await shop.until(
                            lambda: len({m.name() for m in shop.manifests()} - before) >= 2  # noqa: B023
                        )
                assert (caplog.text.count("begins with the snapshot at offset") > 0) == (life > 0)
                assert shop.held() == []
                shutil.rmtree(tmp_path / "state")
            if guarantee == "exactly_once":
                # Each record gave one row, in all lives.
                assert (await shop.counts(log))[1] == shop.sent

    asyncio.run(main())


@pytest.mark.usefixtures("small")
def test_a_store_that_fails_stops_nothing_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shop, refused, put = Shop(tmp_path), [], ObjectFolder.put

    def refuse(_store: ObjectFolder, name: str, _pieces: Any) -> None:
        refused.append(name)
        raise ObjectStoreFailed("s3://bucket does not write files/x: no route to host")

    async def main() -> None:
        async with Log.open(shop.url) as log:
            await shop.create(log)
            monkeypatch.setattr(ObjectFolder, "put", refuse)
            async with working(shop):
                for _ in range(3):
                    await shop.send(log, 20)
                    await shop.until_counted(log)
                await shop.until(lambda: len(refused) >= 3)
                assert not [*shop.manifests()]
                monkeypatch.setattr(ObjectFolder, "put", put)
                await shop.send(log, 20)
                await shop.until_counted(log)
                await shop.until(lambda: bool([*shop.manifests()]))

    asyncio.run(main())
    assert "has no new snapshot; it continues" in caplog.text
    assert "no route to host" in caplog.text


@pytest.mark.usefixtures("small")
def test_a_worker_that_stops_during_an_upload_does_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(tmp_path)
    begun, put = asyncio.Event(), ObjectFolder.put

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def slow(_store: ObjectFolder, _name: str, _pieces: Any) -> None:
            loop.call_soon_threadsafe(begun.set)
            while not stopped.is_set():
                stopped.wait(0.05)
            put(_store, _name, _pieces)

        stopped = Event()
        monkeypatch.setattr(ObjectFolder, "put", slow)
        async with Log.open(shop.url) as log:
            await shop.create(log)
            async with working(shop):
                await shop.send(log, 20)
                await asyncio.wait_for(begun.wait(), DEADLINE_S)
            # The worker has ended; the request that hung ends now.
            stopped.set()
        assert not [*shop.manifests()]

    asyncio.run(main())


@pytest.mark.usefixtures("small")
def test_only_new_files_are_uploaded_and_no_offset_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, uploads, upload = Shop(tmp_path), [], TaskSnapshots.upload

    def noted(snapshots: TaskSnapshots, directory: str, **settings: Any) -> Any:
        found = upload(snapshots, directory, **settings)
        uploads.append((snapshots.identity.task, found))
        return found

    monkeypatch.setattr(TaskSnapshots, "upload", noted)

    async def main() -> None:
        async with Log.open(shop.url) as log:
            await shop.create(log)
            async with working(shop):
                await shop.send(log, 40)
                await shop.until_counted(log)
                await shop.until(lambda: {task for task, _ in uploads} == {"0_0", "0_1"})
                before = len(uploads)
                await shop.send(log, 40)
                await shop.until_counted(log)
                await shop.until(lambda: len(uploads) >= before + 2)
        assert uploads[-1][1].reused_bytes > 0
        for task in ("0_0", "0_1"):
            # Many intervals have passed without a commit of state.
            offsets = [found.manifest.offset for each, found in uploads if each == task]
            assert offsets == sorted({*offsets})

    asyncio.run(main())
