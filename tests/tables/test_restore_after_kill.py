"""State on disk and its changelog under kill -9, at any moment.

Run as a program, this file is a small task: it counts inputs and commits to a changelog
file and to RocksDB until it is killed. The last batch in the file may be torn; `records_of`
truncates it, as the recovery of a real log does.
"""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from streamlog.tables.local_disk.rocksdb_store import RocksStore
from streamlog.tables.state.changelog import (
    OFFSET_KEY,
    Restoration,
    TaskProgress,
    checkpoint,
    stored_progress,
)
from streamlog.tables.state.store_transaction import StoreTransaction
from streamlog.tables.stores.store import Change, NamedStore, StoreSpec

ROOT = Path(__file__).parent.parent.parent
_SIZES = struct.Struct(">ii")


def encoded(records: Collection[Change]) -> bytes:
    body = b"".join(
        _SIZES.pack(len(key), -1 if value is None else len(value)) + key + (value or b"")
        for key, value in records
    )
    return _SIZES.pack(len(body), len(records)) + body


def records_of(path: Path) -> list[Change]:
    """Return all records of whole batches, and truncate a torn batch."""
    data = path.read_bytes() if path.exists() else b""
    records: list[Change] = []
    at = 0
    while at + _SIZES.size <= len(data):
        body_bytes, count = _SIZES.unpack_from(data, at)
        if at + _SIZES.size + body_bytes > len(data):
            break
        at += _SIZES.size
        for _ in range(count):
            key_bytes, value_bytes = _SIZES.unpack_from(data, at)
            at += _SIZES.size
            key, at = data[at : at + key_bytes], at + key_bytes
            value = None if value_bytes < 0 else data[at : at + value_bytes]
            at += max(value_bytes, 0)
            records.append((key, value))
    if at < len(data):
        # Truncated in place: a kill in the middle of a rewrite would lose the whole file.
        os.truncate(path, at)
    return records


def write_until_killed(log: Path, path: str, seed: int, *, is_filling: bool) -> None:
    rng = random.Random(seed)
    records = records_of(log)
    # Buffers this small are flushed every few commits, so that kills find various states.
    store = RocksStore.open(path, write_buffer_bytes=64 * 1024)
    restoration = Restoration(store, start_offset=0, end_offset=len(records))
    restoration.apply(records[restoration.position :], next_offset=len(records))
    progress = restoration.progress() or TaskProgress(offsets={("input", 0): 0})
    offset = progress.offsets["input", 0]
    end = len(records)
    transaction = StoreTransaction(store, cache_bytes=10_000_000 if is_filling else 50_000)
    counts = NamedStore(transaction, StoreSpec("counts"))
    seen = NamedStore(transaction, StoreSpec("seen"))
    if is_filling:
        for number in range(5_000):
            counts.get(b"%d" % number)  # Bulk filling makes reads slow.
        store.begin_filling()
    with log.open("ab") as file:
        while True:
            for _ in range(rng.choice([1, 30, 1_500])):
                key = b"%d" % rng.randrange(5_000)
                counts.put(key, b"%d" % (int(counts.get(key) or 0) + 1))
                offset += 1
                seen.put(offset.to_bytes(8), bytes(30))
            if rng.random() < 0.5:
                seen.delete_range(b"", max(offset - 100, 0).to_bytes(8))
            batch = checkpoint(transaction.changes(), TaskProgress(offsets={("input", 0): offset}))
            file.write(encoded(batch))
            file.flush()
            end += len(batch)
            transaction.commit(batch, next_offset=end)
            sys.stdout.write("committed\n")
            sys.stdout.flush()


@pytest.mark.parametrize(("seed", "mode"), [*((n, "plain") for n in range(4)), (4, "filling")])
def test_the_changelog_restores_the_state_after_a_kill_at_any_moment(
    seed: int, mode: str, tmp_path: Path
) -> None:
    """Write, kill -9, restore and compare; three times, each from the state before."""
    rng = random.Random(seed)
    log, path = tmp_path / "changelog", tmp_path / "0_3"
    for _ in range(3):
        commits = rng.randrange(1, 60)
        writer = subprocess.Popen(
            [sys.executable, __file__, str(log), str(path), str(rng.randrange(1 << 30)), mode],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
        )
        assert writer.stdout is not None
        for _ in range(commits):
            assert writer.stdout.readline() == b"committed\n"
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        assert_restored(log, path)


def assert_restored(log: Path, path: Path) -> None:
    records = records_of(log)
    store = RocksStore.open(str(path))
    restoration = Restoration(store, start_offset=0, end_offset=len(records))
    assert not restoration.rebuilt
    while not restoration.done:
        at = restoration.position
        restoration.apply(records[at : at + 700], next_offset=min(at + 700, len(records)))
    expected = {key: value for key, value in dict(records).items() if value is not None}
    assert {key: value for key, value in store.range() if key != OFFSET_KEY} == expected
    progress = stored_progress(store)
    assert progress is not None
    total = sum(int(value) for key, value in expected.items() if key.startswith(b"\x06counts"))
    assert progress.offsets == {("input", 0): total}
    store.close()


if __name__ == "__main__":
    write_until_killed(
        Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), is_filling=sys.argv[4] == "filling"
    )
