"""State under kill -9 at file operations: slices of a commit, snapshots, take-overs.

Run as a program, this file is a small task that counts inputs, commits to a changelog file and
to its store, and kills itself at the nth of those steps. The next process starts with the files
that it finds and replays the changelog.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from streamlog.tables.local_disk.rocksdb_store import RocksBudget, RocksStore
from streamlog.tables.local_disk.task_directory import TaskDirectory
from streamlog.tables.state import store_transaction
from streamlog.tables.state.changelog import OFFSET_KEY, Restoration, TaskProgress, checkpoint
from streamlog.tables.state.store_transaction import DeferredStore, StoreTransaction
from streamlog.tables.stores.store import NamedStore, StoreSpec
from tests.tables.test_restore_after_kill import ROOT, encoded, records_of

IS_THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
NUMBERS = range(1, 80) if IS_THOROUGH else (1, 2, 5, 9, 14, 23, 38)
STEPS: tuple[tuple[Any, str], ...] = (
    (RocksStore, "write"),
    (RocksStore, "checkpoint"),
    (os, "link"),
    (os, "rename"),
    (shutil, "copyfile"),
)
"""Writes of a slice, a snapshot's files and name, and files that are taken over."""


def kill_at(number: int) -> None:
    """End the process after the nth step."""
    left = [number]

    def count_steps(function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            result = function(*arguments, **named)
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return step

    write = RocksStore.write

    def write_and_flush(store: RocksStore, changes: Any) -> None:
        write(store, changes)
        # RocksDB flushes when a buffer is full; here, after each slice.
        store._database.flush()

    RocksStore.write = write_and_flush  # type: ignore[method-assign, assignment]
    for owner, name in STEPS:
        setattr(owner, name, count_steps(getattr(owner, name)))


def work(log: Path, path: str, number: int) -> None:
    store_transaction.REPLAY_RECORDS_MAX = 60
    store_transaction.WRITE_KEYS_MAX = 7  # type: ignore[attr-defined]
    kill_at(number)
    rng, records = Random(number), records_of(log)
    directory = TaskDirectory(path)
    store = directory.open(RocksBudget())
    front = DeferredStore(store)
    restoration = Restoration(front, start_offset=0, end_offset=len(records))
    restoration.apply(records[restoration.position :], next_offset=len(records))
    directory.remove_old()
    progress = restoration.progress() or TaskProgress(offsets={("input", 0): 0})
    offset, end = progress.offsets["input", 0], len(records)
    transaction = StoreTransaction(front)
    counts = NamedStore(transaction, StoreSpec("counts"))
    with log.open("ab") as file:
        for commit in range(1_000):
            for _ in range(rng.choice([1, 5, 30])):
                key = b"%d" % rng.randrange(200)
                counts.put(key, b"%d" % (int(counts.get(key) or 0) + 1))
                offset += 1
            batch = checkpoint(transaction.changes(), TaskProgress(offsets={("input", 0): offset}))
            file.write(encoded(batch))
            file.flush()
            end += len(batch)
            transaction.commit(batch, next_offset=end)
            if commit % 4 == 3:
                directory.snapshot(store, commit)


def assert_restored(log: Path, path: Path) -> int:
    """Check that the state equals the changelog; return the number of counted inputs."""
    records = records_of(log)
    store = TaskDirectory(str(path)).open(RocksBudget())
    restoration = Restoration(store, start_offset=0, end_offset=len(records))
    assert not restoration.rebuilt
    if not restoration.done:
        restoration.apply(records[restoration.position :], next_offset=len(records))
    expected = {key: value for key, value in dict(records).items() if value is not None}
    assert {key: value for key, value in store.range() if key != OFFSET_KEY} == expected
    total = sum(int(value) for key, value in expected.items() if key.startswith(b"\x06counts"))
    progress = restoration.progress()
    assert (progress.offsets["input", 0] if progress else 0) == total
    store.close()
    return total


@pytest.mark.parametrize("turn", range(2))
def test_a_kill_at_any_file_operation_loses_and_doubles_nothing(tmp_path: Path, turn: int) -> None:
    log, path = tmp_path / "changelog", tmp_path / "0_3"
    total = 0
    for number in NUMBERS[turn::2]:
        command = [sys.executable, __file__, str(log), str(path), str(number)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
        assert done.returncode == -signal.SIGKILL
        now = assert_restored(log, path)
        assert now >= total
        total = now
    assert total


if __name__ == "__main__":
    work(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
