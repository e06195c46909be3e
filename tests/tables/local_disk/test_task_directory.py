"""Directories of a task: each owner has its own, with the newest state that is not in use."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from streamlog.errors import CorruptData, LogDirectoryError, LogDirectoryLocked
from streamlog.tables.local_disk import task_directory
from streamlog.tables.local_disk.rocksdb_store import RocksBudget, RocksStore
from streamlog.tables.local_disk.task_directory import (
    SNAPSHOTS,
    SNAPSHOTS_KEPT,
    AbandonedTasks,
    TaskDirectory,
)
from streamlog.tables.state.changelog import apply_records, changelog_offset

ROOT = Path(__file__).parents[3]
BUDGET = RocksBudget()


def opened(path: Path) -> tuple[TaskDirectory, RocksStore]:
    directory = TaskDirectory(str(path))
    return directory, directory.open(BUDGET)


def write(store: RocksStore, first: int, end: int) -> None:
    apply_records(store, [(b"%06d" % n, b"%d" % n) for n in range(first, end)], next_offset=end)


def assert_reaches(store: RocksStore, end: int) -> None:
    """Check that the store has everything written before `end`."""
    assert changelog_offset(store) == end
    for number in (0, end // 2, end - 1):
        assert store.get(b"%06d" % number) == b"%d" % number


def epochs(path: Path) -> list[int]:
    return sorted(int(each.name) for each in path.iterdir() if each.name.isdecimal())


def snapshots(path: Path) -> list[str]:
    return sorted(each.name for each in (path / SNAPSHOTS).iterdir())


def test_every_owner_has_its_own_directory_with_the_last_state(tmp_path: Path) -> None:
    path = tmp_path / "0_1"
    for epoch in range(1, 5):
        directory, store = opened(path)
        if epoch > 1:
            assert_reaches(store, 100 * (epoch - 1))
        write(store, 100 * (epoch - 1), 100 * epoch)
        directory.remove_old()
        assert epochs(path) == [epoch]
        store.close()


def test_files_are_inherited_as_hard_links(tmp_path: Path) -> None:
    _, store = opened(tmp_path)
    write(store, 0, 100)
    store.close()
    (table,) = (tmp_path / "1").glob("*.sst")
    _, store = opened(tmp_path)
    assert (tmp_path / "2" / table.name).stat().st_ino == table.stat().st_ino
    store.close()


def test_files_are_copied_on_a_file_system_without_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(_: str, __: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    for end in (100, 200):
        directory, store = opened(tmp_path)
        write(store, 0, end)
        directory.remove_old()
        store.close()
    _, store = opened(tmp_path)
    assert_reaches(store, 200)
    store.close()


def test_a_running_owner_keeps_its_directory(tmp_path: Path) -> None:
    first, old = opened(tmp_path)
    write(old, 0, 100)
    first.snapshot(old, 0)
    write(old, 100, 200)
    second = TaskDirectory(str(tmp_path))
    with pytest.raises(LogDirectoryLocked):
        second.open(BUDGET)
    store = second.open(BUDGET, skip_locked=True)
    assert_reaches(store, 100)
    second.remove_old()
    assert epochs(tmp_path) == [1, 2]
    write(store, 100, 150)
    # The two stores are independent.
    assert_reaches(old, 200)
    write(old, 200, 250)
    old.close()
    assert_reaches(store, 150)
    second.remove_old()
    assert epochs(tmp_path) == [2]
    store.close()


def test_an_owner_does_not_wait_for_a_standby(tmp_path: Path) -> None:
    """A standby keeps the newest directory open; the owner uses the next newest."""
    directory, owned = opened(tmp_path)
    write(owned, 0, 100)
    standby = TaskDirectory(str(tmp_path)).open(BUDGET, skip_locked=True, is_standby=True)
    assert not list(standby.range())
    with pytest.raises(LogDirectoryLocked):
        directory.open(BUDGET)
    owned.close()
    directory, store = opened(tmp_path)
    assert_reaches(store, 100)
    directory.remove_old()
    assert epochs(tmp_path) == [2, 3]
    store.close()
    # A closed standby's state can be used, and its new owner is not a standby.
    write(standby, 0, 200)
    standby.close()
    shutil.rmtree(tmp_path / "3")
    directory, store = opened(tmp_path)
    assert_reaches(store, 200)
    with pytest.raises(LogDirectoryLocked):
        TaskDirectory(str(tmp_path)).open(BUDGET)
    store.close()


def test_the_state_of_a_killed_owner_is_taken_over_up_to_its_checkpoint(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from tests.tables.local_disk.test_task_directory import *\n"
        "directory, store = opened(Path(sys.argv[1]))\n"
        "write(store, 0, 5_000)\n"
        "store.checkpoint(sys.argv[1] + '/elsewhere')\n"  # Flushes, as RocksDB may.
        "write(store, 5_000, 5_010)\n"
        "print('written', flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"written\n"
    directory = TaskDirectory(str(tmp_path))
    with pytest.raises(LogDirectoryLocked):
        directory.open(BUDGET)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    process.stdin.close()
    store = directory.open(BUDGET)
    assert_reaches(store, 5_000)
    store.close()


def test_only_the_newest_snapshots_are_kept(tmp_path: Path) -> None:
    directory, store = opened(tmp_path)
    for end in range(100, 600, 100):
        write(store, end - 100, end)
        directory.snapshot(store, 0)
    assert snapshots(tmp_path) == [f"1-{number}" for number in range(6 - SNAPSHOTS_KEPT, 6)]
    store.close()
    directory, store = opened(tmp_path)
    directory.remove_old()
    assert len(snapshots(tmp_path)) == SNAPSHOTS_KEPT
    directory.snapshot(store, 0)
    assert snapshots(tmp_path) == ["1-5", "2-1"]
    store.close()


def test_snapshots_are_due_by_bytes_and_by_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_directory, "SNAPSHOT_BYTES", 5_000)
    directory, store = opened(tmp_path)
    interval_ms = task_directory.SNAPSHOT_INTERVAL_MS
    assert not directory.is_snapshot_due(store, 1_000)
    assert not directory.is_snapshot_due(store, 1_000 + interval_ms), "nothing was written"
    write(store, 0, 10)
    assert not directory.is_snapshot_due(store, 999 + interval_ms)
    assert directory.is_snapshot_due(store, 1_000 + interval_ms)
    directory.snapshot(store, 1_000 + interval_ms)
    assert not directory.is_snapshot_due(store, 1_000 + 2 * interval_ms)
    write(store, 10, 20)
    assert not directory.is_snapshot_due(store, 1_001 + interval_ms)
    write(store, 20, 1_000)
    assert directory.is_snapshot_due(store, 1_001 + interval_ms)
    store.close()


def closed_with_snapshots(path: Path) -> None:
    """Make snapshots at 100 and 200, and a store at 300."""
    directory, store = opened(path)
    for end in (100, 200, 300):
        write(store, end - 100, end)
        if end < 300:
            directory.snapshot(store, 0)
    store.close()


def test_damaged_state_is_reported_and_older_state_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    closed_with_snapshots(tmp_path)
    for name, end in (("1", 200), (f"{SNAPSHOTS}/1-2", 100), (f"{SNAPSHOTS}/1-1", 0)):
        next((tmp_path / name).glob("MANIFEST-*")).write_bytes(b"garbage" * 10)
        caplog.clear()
        directory, store = opened(tmp_path)
        assert "can't be used, trying older state" in caplog.text
        if end:
            assert_reaches(store, end)
        else:
            assert not list(store.range())
        store.close()
        # The damaged directories are still there: remove the new one only.
        directory.sources()
        epoch = epochs(tmp_path)[-1]
        for file in (tmp_path / str(epoch)).iterdir():
            file.unlink()
        (tmp_path / str(epoch)).rmdir()


def test_damage_in_a_shared_file_makes_all_snapshots_unusable(tmp_path: Path) -> None:
    closed_with_snapshots(tmp_path)
    for table in (tmp_path / "1").glob("*.sst"):
        table.unlink()
    for table in (tmp_path / SNAPSHOTS / "1-2").glob("*.sst"):
        os.truncate(table, 10)
    _, store = opened(tmp_path)
    assert not list(store.range())  # Both snapshots share the damaged file.
    store.close()


def test_damage_found_while_reading_discards_all_local_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Older snapshots may share the damaged file."""
    directory, store = opened(tmp_path)
    write(store, 0, 2_000)
    directory.snapshot(store, 0)
    store.close()
    _, store = opened(tmp_path)
    for table in (tmp_path / "2").glob("*.sst"):
        data = bytearray(table.read_bytes())
        data[:1_000] = bytes(byte ^ 0xFF for byte in data[:1_000])
        table.write_bytes(data)
    with pytest.raises(CorruptData, match="restart, the changelog restores it"):
        list(store.range())
    store.close()
    directory, store = opened(tmp_path)
    assert "is damaged: the changelog restores it" in caplog.text
    assert not list(store.range())
    directory.remove_old()
    assert (epochs(tmp_path), snapshots(tmp_path)) == ([3], [])
    store.close()


def test_half_made_directories_of_a_kill_are_ignored(tmp_path: Path) -> None:
    directory, store = opened(tmp_path)
    write(store, 0, 100)
    store.close()
    half = tmp_path / "2"
    half.mkdir()
    (half / "000009.sst").write_bytes(b"half")
    (tmp_path / SNAPSHOTS / "1-1.tmp").mkdir()
    directory, store = opened(tmp_path)
    assert_reaches(store, 100)
    directory.remove_old()
    directory.snapshot(store, 0)
    assert (epochs(tmp_path), snapshots(tmp_path)) == ([3], ["3-1"])
    store.close()


def test_abandoned_state_is_removed_after_a_delay(tmp_path: Path) -> None:
    abandoned = AbandonedTasks(str(tmp_path), delay_ms=1_000)
    assert abandoned.remove(0) == []
    stores = {}
    for name in ("0_0", "0_1"):
        _, stores[name] = opened(tmp_path / name)
    (tmp_path / "no task").mkdir()
    stores["0_1"].close()
    assert abandoned.remove(5_000) == []
    assert abandoned.remove(5_999) == []
    assert abandoned.remove(6_000) == ["0_1"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["0_0", "no task"]
    stores["0_0"].close()
    assert abandoned.remove(7_000) == []
    # An owner in between restarts the delay.
    _, store = opened(tmp_path / "0_0")
    assert abandoned.remove(7_500) == []
    store.close()
    assert abandoned.remove(8_000) == []
    assert abandoned.remove(8_999) == []
    assert abandoned.remove(9_000) == ["0_0"]
    assert AbandonedTasks(str(tmp_path / "nowhere"), delay_ms=0).remove(0) == []


def test_a_directory_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(LogDirectoryError, match="can't be created"):
        opened(tmp_path / "file" / "0_1")


def test_a_checkpoint_for_an_upload_stays_as_it_was_and_is_no_state_of_later_owners(
    tmp_path: Path,
) -> None:
    path = tmp_path / "0_1"
    directory, store = opened(path)
    write(store, 0, 100)
    held = directory.hold(store)
    write(store, 100, 200)
    store.close()
    copy = RocksStore.open(held)
    assert_reaches(copy, 100)
    copy.close()
    # The process was killed before it could let go of it.
    directory, store = opened(path)
    assert_reaches(store, 200)
    directory.remove_old()
    assert snapshots(path) == []
    store.close()


def test_a_fetched_database_comes_first_and_then_the_state_on_this_disk(tmp_path: Path) -> None:
    path = tmp_path / "0_1"
    directory, store = opened(path)
    write(store, 0, 100)
    shutil.copytree(directory.hold(store), tmp_path / "fetched")
    write(store, 100, 200)
    store.close()
    store = directory.open(BUDGET, first=str(tmp_path / "fetched"))
    assert_reaches(store, 100)
    store.close()
    shutil.rmtree(path)
    directory, store = opened(path)
    write(store, 0, 50)
    store.close()
    (tmp_path / "fetched" / "CURRENT").write_text("nonsense")
    store = directory.open(BUDGET, first=str(tmp_path / "fetched"))
    assert_reaches(store, 50)
    store.close()


def test_abandoned_state_is_removed_with_what_an_upload_has_left(tmp_path: Path) -> None:
    directory, store = opened(tmp_path / "0_0")
    write(store, 0, 100)
    directory.hold(store)
    store.close()
    abandoned = AbandonedTasks(str(tmp_path), delay_ms=1_000)
    abandoned.remove(0)
    assert abandoned.remove(1_000) == ["0_0"]
    assert [*tmp_path.iterdir()] == []
