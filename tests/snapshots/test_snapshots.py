"""Snapshots hold all state of tasks: rows, progress and positions; damage is reported."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from streamlog import App, Windowed, session, tumbling
from streamlog.errors import ConfigError, CorruptData, TopologyError
from streamlog.processing.outbox import SinkRecord
from streamlog.serdes import serde_for
from streamlog.snapshots import (
    Manifest,
    Snapshot,
    SnapshotStore,
    TaskEntry,
    default_snapshot_store,
    fingerprint_of,
)
from streamlog.snapshots.capture import capture, finish_snapshot
from streamlog.snapshots.manifest import MANIFEST_FILE
from streamlog.tables.local_disk.rocksdb_store import read_sorted, write_sorted
from streamlog.topology import Topology
from tests.processing.test_exactness import Cluster

COUNTS = {"words": 3, "counts": 2, "visits": 2}


def visits(app_id: str = "visits-app", *, gap: str = "5s", named: str = "visits") -> Topology:
    app = App(app_id)
    words = app.topic("words", key=str, value=int)
    counts = app.topic("counts", key=Windowed[str], value=int)
    visits = app.topic("visits", key=Windowed[str], value=int)
    stream = app.stream(words)
    stream.group_by_key().windowed(tumbling("10s")).count(name="counts").changes().to(counts)
    (
        stream.group_by(lambda key, _: key[:1], name="letters")
        .windowed(session(gap))
        .count(name=named)
        .changes()
        .to(visits)
    )
    return app.topology()


def filled_cluster(topology: Topology, records: int = 200) -> Cluster:
    cluster = Cluster(topology, dict(COUNTS), Random(1))
    rng = Random(2)
    for n in range(records):
        key = rng.choice(["ab", "ac", "b", "cd"])
        value = serde_for(int).dumps(n)
        record = SinkRecord("words", rng.randrange(3), n * 100, key.encode(), value)
        cluster.append("words", record.partition, record)
    cluster.run(crashes=0)
    return cluster


def capture_all(cluster: Cluster, snapshot_store: SnapshotStore, **settings: int) -> Snapshot:
    entries = [
        capture(task, cluster.stores[task_id], snapshot_store, **settings)
        for task_id, task in cluster.tasks.items()
    ]
    # Encoded and decoded, as between machines.
    entries = [TaskEntry.decode(entry.encode()) for entry in entries]
    return finish_snapshot(
        snapshot_store,
        entries,
        topology=cluster.topology,
        partitions=cluster.counts,
        cut_ms=20_000,
        created_ms=1_700_000_000_000,
        outputs={("counts", 0): 7},
    )


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    return capture_all(
        filled_cluster(visits()), SnapshotStore(str(tmp_path / "snapshots")) / "job-1"
    )


class RememberingFileSystem(MemoryFileSystem):
    """Keeps each listing until it is told to forget, as the file systems of object stores do."""

    protocol = ("remembering",)
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.replace("remembering://", "memory://"))

    def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
        if (path, detail) not in LISTED:
            LISTED[path, detail] = super().ls(path, detail=detail)
        return LISTED[path, detail]

    def exists(self, path: str, **_: Any) -> bool:
        parent, _, name = path.rpartition("/")
        return any(each.rpartition("/")[2] == name for each in self.ls(parent, detail=False))

    def invalidate_cache(self, path: str | None = None) -> None:
        LISTED.clear()


LISTED: dict[tuple[str, bool], Any] = {}


def test_what_another_process_adds_is_found() -> None:
    fsspec.register_implementation("remembering", RememberingFileSystem, clobber=True)
    store = SnapshotStore("remembering://kept/jobs")
    other = SnapshotStore("memory://kept/jobs")
    other.add("one/job.json", b"1")
    assert store.names() == ["one"]
    other.add("two/job.json", b"2")
    assert store.names() == ["one", "two"]
    assert not (store / "two").has("compared.json")
    other.add("two/compared.json", b"2")
    assert (store / "two").has("compared.json")
    (other / "one").remove()
    assert store.names() == ["two"]
    other.remove()
    store.remove()


@pytest.mark.parametrize("url_prefix", ["", "file://", "memory://"])
@pytest.mark.parametrize("file_bytes", [1 << 20, 200])
def test_a_snapshot_round_trips(tmp_path: Path, url_prefix: str, file_bytes: int) -> None:
    cluster = filled_cluster(visits())
    snapshot_store = SnapshotStore(f"{url_prefix}{tmp_path}/snapshots") / "job-1"
    capture_all(cluster, snapshot_store, file_bytes=file_bytes)

    snapshot = Snapshot.open(f"{url_prefix}{tmp_path}/snapshots/job-1")

    snapshot.verify()
    assert snapshot.id == "job-1"
    assert snapshot.offsets == {
        ("words", n): len(cluster.logs["words", n]) for n in range(COUNTS["words"])
    }
    assert snapshot.manifest.times == {
        ("words", n): cluster.logs["words", n][-1].timestamp_ms for n in range(COUNTS["words"])
    }
    for task_id, task in cluster.tasks.items():
        entry = snapshot.entry(task_id.subtopology, task_id.partition)
        assert entry is not None
        stored = [row for row in cluster.stores[task_id].range() if row[0][0]]
        assert list(snapshot.rows(entry)) == stored
        assert len(entry.files) >= len({file.store for file in entry.files})
        assert entry.rows == len(stored)
        assert snapshot.progress(entry) == task.progress
    assert snapshot.manifest.rows > 0
    snapshot.remove()
    assert SnapshotStore(f"{url_prefix}{tmp_path}/snapshots").names() == []


def test_an_unfinished_job_leaves_no_snapshot(tmp_path: Path) -> None:
    cluster = filled_cluster(visits())
    snapshot_store = SnapshotStore(str(tmp_path)) / "job-1"
    for task_id, task in cluster.tasks.items():
        capture(task, cluster.stores[task_id], snapshot_store)
    with pytest.raises(CorruptData, match="there is no snapshot"):
        Snapshot.open(snapshot_store.url)


def test_attempts_of_one_task_do_not_disturb_each_other(tmp_path: Path) -> None:
    cluster = filled_cluster(visits())
    snapshot_store = SnapshotStore(str(tmp_path)) / "job-1"
    first = [
        capture(t, cluster.stores[at], snapshot_store, attempt="1")
        for at, t in cluster.tasks.items()
    ]
    for at, task in cluster.tasks.items():
        capture(task, cluster.stores[at], snapshot_store, attempt="2")
    finish_snapshot(
        snapshot_store,
        first,
        topology=cluster.topology,
        partitions=cluster.counts,
        cut_ms=None,
        created_ms=0,
    ).verify()


def test_a_snapshot_needs_every_task_exactly_once(tmp_path: Path) -> None:
    cluster = filled_cluster(visits())
    snapshot_store = SnapshotStore(str(tmp_path)) / "job-1"
    entries = [capture(t, cluster.stores[at], snapshot_store) for at, t in cluster.tasks.items()]
    for wrong in (entries[1:], [*entries, entries[0]]):
        with pytest.raises(CorruptData, match=f"task {entries[0].task}"):
            finish_snapshot(
                snapshot_store,
                wrong,
                topology=cluster.topology,
                partitions=cluster.counts,
                cut_ms=None,
                created_ms=0,
            )


@pytest.mark.parametrize("damage", ["cut short", "changed", "removed"])
def test_a_damaged_file_is_named(snapshot: Snapshot, damage: str) -> None:
    part = snapshot.manifest.files[0]
    path = Path(snapshot.url, part.name)
    data = path.read_bytes()
    if damage == "cut short":
        path.write_bytes(data[:-1])
    elif damage == "changed":
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    else:
        path.unlink()
    with pytest.raises(CorruptData, match=Path(part.name).name):
        snapshot.verify()


def test_a_newer_format_is_refused(snapshot: Snapshot) -> None:
    path = Path(snapshot.url, MANIFEST_FILE)
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 2'))
    with pytest.raises(CorruptData, match="use the newer streamlog that wrote it"):
        Snapshot.open(snapshot.url)
    path.write_bytes(b"{}")
    with pytest.raises(CorruptData, match="be decoded"):
        Snapshot.open(snapshot.url)


def test_an_equal_program_may_use_a_snapshot_under_another_app_id(snapshot: Snapshot) -> None:
    snapshot.manifest.check(visits(), COUNTS)
    other = visits("other")
    assert fingerprint_of(other) == snapshot.manifest.fingerprint
    snapshot.manifest.check(other, {**COUNTS, "other-letters-repartition": 3})


def test_another_program_is_refused_with_its_differences(snapshot: Snapshot) -> None:
    with pytest.raises(TopologyError, match="was created by another program"):
        snapshot.manifest.check(visits(gap="6s"), COUNTS)
    with pytest.raises(TopologyError, match="calls"):
        snapshot.manifest.check(visits(named="calls"), COUNTS)


@pytest.mark.parametrize("app_id", ["visits-app", "other"])
def test_changed_partition_counts_are_refused(snapshot: Snapshot, app_id: str) -> None:
    with pytest.raises(TopologyError, match="'words' has 4 partitions"):
        snapshot.manifest.check(visits(app_id), {**COUNTS, "words": 4})
    topic = f"{app_id}-letters-repartition"
    with pytest.raises(TopologyError, match=f"'{topic}' has 2 partitions"):
        snapshot.manifest.check(visits(app_id), {**COUNTS, topic: 2})


def test_a_store_url_without_its_library_is_refused() -> None:
    with pytest.raises(ConfigError, match="can't be kept at nosuch://"):
        SnapshotStore("nosuch://bucket/x")


def test_snapshots_are_stored_next_to_the_log_or_the_state() -> None:
    assert (
        default_snapshot_store("embedded:./.streamlog/log", "elsewhere") == "./.streamlog/snapshots"
    )
    assert (
        default_snapshot_store("kafka://host:9092", "./.streamlog/state")
        == "./.streamlog/snapshots"
    )
    assert default_snapshot_store("embedded:log", "") == "./snapshots"


def test_sorted_files_round_trip(tmp_path: Path) -> None:
    rows = [(b"%05d" % n, os.urandom(n % 50)) for n in range(1_000)]
    path = str(tmp_path / "rows.sst")
    assert write_sorted(rows[0], iter(rows[1:]), path, file_bytes=1 << 20) == len(rows)
    assert list(read_sorted(path)) == rows
    assert Path(path).exists()


def test_a_manifest_round_trips(snapshot: Snapshot) -> None:
    assert Manifest.decode(snapshot.manifest.encode()) == snapshot.manifest
