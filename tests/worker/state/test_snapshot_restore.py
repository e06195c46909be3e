"""Snapshots in object storage: a restore with them gives what one from the changelog gives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog import App, tumbling
from streamlog.client.admin import NewTopic
from streamlog.client.producer import Producer
from streamlog.clock import SystemClock
from streamlog.errors import CorruptData
from streamlog.log import Log
from streamlog.metrics.registry import Registry
from streamlog.processing.task import Task, TaskId
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.snapshots.object_store import ObjectFolder, ObjectStoreFailed, SnapshotSettings
from streamlog.snapshots.task_manifest import TaskManifest
from streamlog.snapshots.task_snapshots import (
    SnapshotMetrics,
    TaskSnapshots,
    Throttle,
    reserved_rows,
)
from streamlog.tables.local_disk.rocksdb_store import RocksBudget
from streamlog.tables.state.changelog import (
    PROGRESS_KEY,
    READ_KEY,
    ROWS_FROM,
    changelog_offset,
)
from streamlog.worker.commit.commit import Fenced, TaskCheckpoints
from streamlog.worker.engine import EngineThread
from streamlog.worker.state.restore import Restorer
from streamlog.worker.state.snapshot_restore import SnapshotRestore
from streamlog.worker.state.snapshot_uploads import AppSnapshots
from streamlog.worker.topics.app_topics import ensure_topics
from streamlog.worker.topics.version_log import OwnTopics

CLOCK = SystemClock()
CHANGELOG = TopicPartition("census-0-changelog", 0)
TASK = TaskId(0, 0)
STEPS = ("file begun", "file written", "manifest written", "manifest removed", "file removed")


def census(partitions: int = 1) -> App:
    app = App("census")
    visits = app.topic("visits", key=str, value=int, partitions=partitions)
    by_user = app.stream(visits).group_by_key()
    by_user.windowed(tumbling("10s", grace="60s")).count(name="visits-count")
    by_user.reduce(lambda _, n: n, name="visits-latest")
    return app


class Killed(BaseException):
    """The process ends here."""


class Owner:
    """A task with its state, as a worker holds it."""

    def __init__(self, machine: Machine, task: Task, restorer: Restorer, state: Any) -> None:
        self.restorer, self.task, self.state = restorer, task, state
        self._checkpoints = TaskCheckpoints(machine.log, machine.producer, CLOCK, machine.engine)
        self._machine = machine

    async def visit(self, records: list[tuple[str, int, int]]) -> None:
        """Process records of key, value and time, and commit."""
        at = ("visits", 0)
        first = self.task.positions.get(at, 0)
        batch = [
            LogRecord(first + n, time_ms, key.encode(), value.to_bytes(8, "big", signed=True))
            for n, (key, value, time_ms) in enumerate(records)
        ]
        self.task.process({at: batch}, 0, ends={at: first + len(batch)})
        await self._checkpoints.write(self.task, self.state)

    @property
    def content(self) -> dict[bytes, bytes]:
        """All rows of the stores, and the progress."""
        front = self.state.front
        return {**dict(front.range(ROWS_FROM)), PROGRESS_KEY: front.get(PROGRESS_KEY)}

    def snapshot(self, snapshots: TaskSnapshots) -> TaskManifest:
        """Upload the state."""
        state = self.state
        state.front.flush()
        held = state.directory.hold(state.store)
        try:
            return snapshots.upload(
                held,
                offset=changelog_offset(state.store),
                reserved=reserved_rows(
                    {key: state.store.get(key) for key in (PROGRESS_KEY, READ_KEY)}
                ),
                wall_ms=CLOCK.wall_ms(),
                throttle=Throttle(1 << 40, CLOCK),
                stop=Event(),
            ).manifest
        finally:
            state.directory.let_go(held)

    def close(self) -> None:
        self.task.close()


@dataclass
class Machine:
    """The log, the object store and the directories of owners."""

    path: Path
    log: Log
    producer: Producer
    engine: EngineThread
    ids: dict[str, bytes]
    app: App = field(default_factory=census)
    partitions: int = 1
    metrics: SnapshotMetrics = field(default_factory=lambda: SnapshotMetrics(Registry()))
    saved_min: int = 1
    opened: list[Owner] = field(default_factory=list)

    def snapshots(self, on_step: Any = None) -> TaskSnapshots:
        """Return the task's snapshots, as a new process sees them."""
        settings = SnapshotSettings(url=f"file://{self.path}/objects", interval_ms=1)
        counts = {"visits": self.partitions}
        found = AppSnapshots(
            settings,
            self.app.topology(),
            counts,
            cluster_id=self.log.cluster_id,
            own_topics=OwnTopics(ids=self.ids),
        ).of(TASK)
        if on_step is None:
            return found
        return TaskSnapshots(ObjectFolder(settings.url), found.identity, on_step=on_step)

    async def open(self, name: str, *, uses_snapshots: bool = True) -> Owner:
        """Open the task on the disk of this name."""
        snapshots = None
        if uses_snapshots:
            snapshots = SnapshotRestore(
                self.log,
                self.snapshots(),
                changelog=CHANGELOG,
                clock=CLOCK,
                metrics=self.metrics,
                saved_min=self.saved_min,
            )
        restorer = Restorer(
            self.log,
            self.producer,
            changelog=CHANGELOG,
            path=str(self.path / name),
            budget=RocksBudget(),
            clock=CLOCK,
            own_topics=OwnTopics(ids=self.ids),
            snapshots=snapshots,
        )
        state = await restorer.run()
        topology = self.app.topology()
        task = Task(topology.subtopologies[0], TASK, partitions={"visits": 1}, store=state.front)
        self.opened.append(Owner(self, task, restorer, state))
        return self.opened[-1]

    def used(self) -> int:
        """Return how many restores began with a snapshot."""
        return int(self.metrics.restores.series("used").value)

    def failed(self) -> int:
        return int(self.metrics.restores.series("failed").value)

    def objects(self) -> dict[str, Path]:
        root = self.path / "objects" / "census" / "0_0"
        return {str(p.relative_to(root)): p for p in root.rglob("*") if p.is_file()}

    async def compare(self, name: str) -> Owner:
        """Open the task on an empty disk with snapshots and without; the content is equal."""
        alone = await self.open(f"{name}-alone", uses_snapshots=False)
        expected = alone.content
        alone.close()
        found = await self.open(name)
        assert found.content == expected
        return found


@asynccontextmanager
async def machine(path: Path, **settings: Any) -> AsyncIterator[Machine]:
    async with Log.open(f"embedded:{path}/log", listen=False) as log:
        app = settings.get("app") or census()
        await ensure_topics(log, app.topology(), app.topics, required=())
        engine = EngineThread(CLOCK)
        async with log.producer() as producer, log.consumer() as consumer:
            ids = {CHANGELOG.topic: await consumer.topic_id(CHANGELOG.topic)}
            found = Machine(path, log, producer, engine, ids, **settings)
            try:
                yield found
            finally:
                for owner in found.opened:
                    owner.close()
                engine.close()


VISITS = [(f"user-{n % 7}", n, 1_000 * n) for n in range(40)]


def test_a_task_on_an_empty_disk_begins_with_the_snapshot_and_reads_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with machine(tmp_path) as m:
            first = await m.open("a")
            for n in range(20):
                await first.visit(VISITS[2 * n : 2 * n + 2])
            manifest = first.snapshot(m.snapshots())
            await first.visit([("late", 1, 50_000)])
            first.close()
            with caplog.at_level("INFO"):
                second = await m.compare("b")
            assert m.used() == 1
            assert f"begins with the snapshot at offset {manifest.offset}: " in caplog.text
            # The fences of both, the rows of one window, the latest value, and the progress.
            assert second.restorer.records < 10
            assert not [*(tmp_path / "b").rglob("*.download")]
            await second.visit([("next", 1, 51_000)])
            second.close()
            await m.compare("c")

    asyncio.run(main())


def test_a_second_snapshot_shares_the_files_of_the_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with machine(tmp_path) as m:
            owner = await m.open("a")
            snapshots = m.snapshots()
            await owner.visit(VISITS)
            first = owner.snapshot(snapshots)
            before = {name: path.stat().st_mtime_ns for name, path in m.objects().items()}
            await owner.visit(VISITS[:2])
            second = owner.snapshot(snapshots)
            shared = {f.object_name for f in first.files if f.name.endswith(".sst")}
            assert shared
            assert shared <= {f.object_name for f in second.files}
            after = m.objects()
            assert all(after[name].stat().st_mtime_ns == before[name] for name in shared)

    asyncio.run(main())


def test_the_last_two_snapshots_are_kept_with_all_their_files(tmp_path: Path) -> None:
    async def main() -> None:
        async with machine(tmp_path) as m:
            owner = await m.open("a")
            snapshots = m.snapshots()
            made = []
            for n in range(5):
                await owner.visit(VISITS[4 * n : 4 * n + 4])
                made.append(owner.snapshot(snapshots))
            expected = {each.name() for each in made[-2:]}
            expected |= {f.object_name for each in made[-2:] for f in each.files}
            assert m.objects().keys() == expected

    asyncio.run(main())


def test_state_on_this_disk_stays_if_a_snapshot_saves_little(tmp_path: Path) -> None:
    async def main() -> None:
        async with machine(tmp_path, saved_min=1_000) as m:
            owner = await m.open("a")
            await owner.visit(VISITS)
            owner.snapshot(m.snapshots())
            owner.close()
            again = await m.compare("b")
            again.close()
            assert m.used() == 0
            m.saved_min = 1
            await m.open("a")
            assert m.used() == 0
            await m.open("c")
            assert m.used() == 1

    asyncio.run(main())


def test_state_on_this_disk_that_lags_is_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        async with machine(tmp_path, saved_min=20) as m:
            former = await m.open("a")
            await former.visit(VISITS[:4])
            former.close()
            owner = await m.open("b")
            for n in range(10):
                await owner.visit(VISITS[4 * n : 4 * n + 4])
            owner.snapshot(m.snapshots())
            expected = owner.content
            owner.close()
            assert (await m.open("a")).content == expected
            assert m.used() == 1

    asyncio.run(main())


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("harm", [damage, cut, Path.unlink])
@pytest.mark.parametrize("part", [".sst", "CURRENT", "MANIFEST", "manifests"])
def test_a_damaged_snapshot_is_not_used(tmp_path: Path, part: str, harm: Any) -> None:
    async def main() -> None:
        async with machine(tmp_path) as m:
            owner = await m.open("a")
            await owner.visit(VISITS)
            manifest = owner.snapshot(m.snapshots())
            owner.close()
            names = {f.name: f.object_name for f in manifest.files}
            hurt = next((at for name, at in names.items() if part in name), None) or manifest.name()
            harm(m.objects()[hurt])
            await m.compare("b")
            assert m.used() == 0

    asyncio.run(main())


def test_the_snapshot_before_a_damaged_one_is_used(tmp_path: Path) -> None:
    async def main() -> None:
        async with machine(tmp_path) as m:
            owner = await m.open("a")
            snapshots = m.snapshots()
            await owner.visit(VISITS[:20])
            first = owner.snapshot(snapshots)
            await owner.visit(VISITS[20:])
            second = owner.snapshot(snapshots)
            owner.close()
            own = {f.object_name for f in second.files} - {f.object_name for f in first.files}
            for name in own:
                damage(m.objects()[name])
            await m.compare("b")
            assert (m.used(), m.failed()) == (1, 1)

    asyncio.run(main())


def test_a_snapshot_of_a_newer_format_is_not_used_and_its_files_stay(tmp_path: Path) -> None:
    async def main() -> None:
        async with machine(tmp_path) as m:
            owner = await m.open("a")
            snapshots = m.snapshots()
            await owner.visit(VISITS)
            first = owner.snapshot(snapshots)
            newer = msgspec.structs.replace(first, format=2)
            root = m.path / "objects" / "census" / "0_0"
            (root / newer.name()).write_bytes(newer.encode())
            (root / first.name()).unlink()
            for _ in range(4):
                await owner.visit(VISITS[:3])
                owner.snapshot(m.snapshots())
            assert {f.object_name for f in newer.files} <= m.objects().keys()
            assert newer.name() in m.objects()

    asyncio.run(main())


def test_a_former_owner_hides_no_newer_snapshot_and_removes_none(tmp_path: Path) -> None:
    async def main() -> None:
        async with machine(tmp_path) as m:
            former = await m.open("a")
            await former.visit(VISITS[:10])
            owner = await m.open("b")
            await owner.visit(VISITS[10:])
            newest = owner.snapshot(m.snapshots())
            # It wakes up; its state is that of an earlier offset, which is true as well.
            for _ in range(3):
                older = former.snapshot(m.snapshots())
            with pytest.raises(Fenced):
                await former.visit([("late", 1, 99_000)])
            assert older.offset < newest.offset
            for name in (newest.name(), *(f.object_name for f in newest.files)):
                assert name in m.objects()
            expected = owner.content
            owner.close()
            again = await m.compare("c")
            assert again.content == expected
            assert m.used() == 1
            # What followed the newest one was read, the late record included, and no more.
            assert again.restorer.records <= again.state.epoch - newest.offset

    asyncio.run(main())


def test_a_snapshot_below_the_changelogs_start_is_not_used(tmp_path: Path) -> None:
    async def main() -> None:
        async with machine(tmp_path) as m:
            owner = await m.open("a")
            await owner.visit(VISITS[:10])
            owner.snapshot(m.snapshots())
            for n in range(10):
                await owner.visit(VISITS[3 * n : 3 * n + 4])
            admin = m.log.admin()
            await admin.alter_configs({"cleanup.policy": "delete"}, topic=CHANGELOG.topic)
            await admin.delete_records({CHANGELOG: owner.state.next_offset - 1})
            owner.close()
            await m.compare("b")
            assert m.used() == 0

    asyncio.run(main())


def test_a_snapshot_of_a_changelog_that_was_made_anew_is_not_used(tmp_path: Path) -> None:
    async def main() -> None:
        async with machine(tmp_path) as m:
            owner = await m.open("a")
            await owner.visit(VISITS[:10])
            old = owner.snapshot(m.snapshots())
            owner.close()
            admin = m.log.admin()
            await admin.delete_topics([CHANGELOG.topic])
            await admin.create_topics([NewTopic(CHANGELOG.topic, 1)])
            async with m.log.consumer() as consumer:
                m.ids = {CHANGELOG.topic: await consumer.topic_id(CHANGELOG.topic)}
            again = await m.open("b")
            for n in range(10):
                await again.visit(VISITS[3 * n : 3 * n + 4])
            assert again.state.next_offset > old.offset
            new = again.snapshot(m.snapshots())
            again.close()
            # That of the former changelog stays for a while, and hides nothing.
            assert {old.name(), new.name()} <= m.objects().keys()
            await m.compare("c")
            assert m.used() == 1

    asyncio.run(main())


def test_a_snapshot_of_a_changelog_that_was_truncated_is_not_used(tmp_path: Path) -> None:
    """Its offset is the largest, and the changelog has reached it again by other records."""

    async def main() -> None:
        async with machine(tmp_path) as m:
            owner = await m.open("a")
            await owner.visit(VISITS[:10])
            true = owner.snapshot(m.snapshots())
            false = msgspec.structs.replace(
                true,
                offset=true.offset + 3,
                reserved=tuple(
                    (key, b"{}" if key == PROGRESS_KEY else value) for key, value in true.reserved
                ),
            )
            root = m.path / "objects" / "census" / "0_0"
            (root / false.name()).write_bytes(false.encode())
            await owner.visit(VISITS[10:])
            owner.close()
            found = await m.compare("b")
            assert m.used() == 1
            assert found.restorer.records > 0

    asyncio.run(main())


def test_snapshots_of_another_topology_cluster_or_partition_count_are_not_used(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with machine(tmp_path) as m:
            owner = await m.open("a")
            await owner.visit(VISITS)
            mine = m.snapshots().identity
            for other in (
                {"stores": "0" * 64},
                {"partitions": 2},
                {"cluster_id": "elsewhere"},
                {"changelog_id": "00" * 16},
                {"changelog": "census-1-changelog"},
            ):
                identity = msgspec.structs.replace(mine, **other)
                url = f"file://{tmp_path}/objects"
                owner.snapshot(TaskSnapshots(ObjectFolder(url), identity))
            assert len(m.snapshots().find()) == 5
            owner.close()
            await m.compare("b")
            assert m.used() == 0

    asyncio.run(main())


def test_the_identity_changes_with_the_partitions_and_not_with_operators() -> None:
    def identity(app: App, partitions: int) -> Any:
        settings = SnapshotSettings(url="file:///tmp/streamlog-none", interval_ms=1)
        counts = {"visits": partitions}
        found = AppSnapshots(
            settings, app.topology(), counts, cluster_id="c", own_topics=OwnTopics()
        )
        return found.of(TASK).identity

    changed = App("census")
    visits = changed.topic("visits", key=str, value=int, partitions=1)
    by_user = changed.stream(visits).filter(lambda _, n: n > 3).group_by_key()
    by_user.windowed(tumbling("10s", grace="60s")).count(name="visits-count")
    by_user.reduce(lambda _, n: n, name="visits-latest").changes().to(
        changed.topic("latest", key=str, value=int)
    )
    assert identity(changed, 1) == identity(census(), 1)
    assert identity(census(2), 2) != identity(census(), 1)
    wider = App("census")
    by_user = wider.stream(wider.topic("visits", key=str, value=int, partitions=1)).group_by_key()
    by_user.windowed(tumbling("20s", grace="60s")).count(name="visits-count")
    by_user.reduce(lambda _, n: n, name="visits-latest")
    assert identity(wider, 1).stores != identity(census(), 1).stores


def test_a_task_is_restored_while_the_object_store_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_store: ObjectFolder, _prefix: str) -> Any:
        raise ObjectStoreFailed("s3://bucket does not list census/0_0: no route to host")

    async def main() -> None:
        async with machine(tmp_path) as m:
            owner = await m.open("a")
            await owner.visit(VISITS)
            owner.snapshot(m.snapshots())
            owner.close()
            monkeypatch.setattr(ObjectFolder, "objects", refuse)
            await m.compare("b")
            assert "task 0_0 is restored without snapshots: s3://bucket does not" in caplog.text

    asyncio.run(main())


def test_a_task_that_is_given_up_during_its_download_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = Event(), Event()
    pieces = ObjectFolder.pieces

    def slow(store: ObjectFolder, name: str) -> Any:
        if "/files/" in name:
            begun.set()
            go_on.wait(30)
        yield from pieces(store, name)

    async def main() -> None:
        async with machine(tmp_path) as m:
            owner = await m.open("a")
            await owner.visit(VISITS)
            owner.snapshot(m.snapshots())
            owner.close()
            monkeypatch.setattr(ObjectFolder, "pieces", slow)
            opening = asyncio.create_task(m.open("b"))
            await asyncio.to_thread(begun.wait, 30)
            opening.cancel()
            await asyncio.sleep(0)
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await opening
            assert not [*(tmp_path / "b").rglob("*.download")]
            monkeypatch.setattr(ObjectFolder, "pieces", pieces)
            await m.open("b")
            assert m.used() == 1

    asyncio.run(main())


@dataclass(frozen=True)
class Commit:
    records: list[tuple[str, int, int]]


@dataclass(frozen=True)
class Snapshot:
    kill_at: str | None
    """The step at which the uploading process is killed; None: it is not."""
    times: int


@dataclass(frozen=True)
class Move:
    """The task moves to an empty disk."""

    has_former: bool
    """Whether its former owner stays open, and uploads once more."""


records = st.tuples(st.sampled_from("abcdefgh"), st.integers(-9, 9), st.integers(0, 200_000))
commits = st.builds(Commit, st.lists(records, min_size=1, max_size=12))
uploads = st.builds(Snapshot, st.none() | st.sampled_from(STEPS), st.integers(0, 3))
histories = st.lists(commits | uploads | commits | st.builds(Move, st.booleans()), max_size=14)


async def live(m: Machine, history: list[Commit | Snapshot | Move]) -> None:
    """Run a history; every move compares the two ways of restoring."""
    owner, number = await m.open("first"), 0
    former: Owner | None = None
    snapshots = m.snapshots()
    for event in [*history, Move(has_former=False)]:
        match event:
            case Commit(found):
                await owner.visit(found)
            case Snapshot(None):
                owner.snapshot(snapshots)
            case Snapshot(kill_at, times):
                upload_killed(m, owner, kill_at or "", times)
            case Move(has_former):
                number += 1
                if former is not None:
                    former.snapshot(m.snapshots())
                former, left = (owner, former) if has_former else (None, owner)
                if left is not None:
                    left.close()
                owner = await m.compare(f"disk-{number}")
                snapshots = m.snapshots()
    for manifest in m.snapshots().find():
        assert {f.object_name for f in manifest.files} <= m.objects().keys()


def upload_killed(m: Machine, owner: Owner, step: str, times: int) -> None:
    """Upload in a process that is killed when it has come to a step more often than `times`."""
    left = times

    def on_step(name: str) -> None:
        nonlocal left
        left -= name == step
        if name == step and left < 0:
            raise Killed

    with suppress(Killed):
        owner.snapshot(m.snapshots(on_step))


@settings(max_examples=settings().max_examples // 5)
@given(history=histories)
def test_random_histories_are_restored_alike(history: list[Commit | Snapshot | Move]) -> None:
    async def main(path: Path) -> None:
        async with machine(path) as m:
            await live(m, history)

    with TemporaryDirectory() as path:
        asyncio.run(main(Path(path)))


def test_reading_refuses_what_is_not_a_manifest(tmp_path: Path) -> None:
    store = ObjectFolder(f"file://{tmp_path}")
    store.put("census/0_0/files/x", [b"y"])
    with pytest.raises(CorruptData, match="larger than 0 bytes"):
        store.read("census/0_0/files/x", bytes_max=0)
