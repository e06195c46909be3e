"""RocksStore: its directory, its lock, bulk filling, and its errors."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from streamlog.errors import (
    CorruptData,
    LogDirectoryError,
    LogDirectoryLocked,
    StreamlogError,
)
from streamlog.tables.local_disk.rocksdb_store import RocksBudget, RocksStore, write_sorted
from streamlog.tables.state.store_transaction import MEMORY_BYTES, StoreTransaction
from streamlog.tables.stores.memory_store import MemoryStore

ROOT = Path(__file__).parents[3]


def test_written_rows_are_found_after_closing_and_reopening(tmp_path: Path) -> None:
    path = str(tmp_path / "deep" / "0_3")
    store = RocksStore.open(path)
    store.write([(b"a", b"1"), (b"b", b"2"), (b"a", None)])
    store.close()
    again = RocksStore.open(path)
    assert list(again.range()) == [(b"b", b"2")]
    again.close()


def test_persisted_rows_survive_a_kill(tmp_path: Path) -> None:
    program = (
        "import os, sys, time; from streamlog.tables.local_disk.rocksdb_store import RocksStore\n"
        "store = RocksStore.open(sys.argv[1])\n"
        "store.write([(b'a', b'1')])\n"
        "store.persist()\n"
        "files = 'rocksdb.num-files-at-level0'\n"
        "while store._database.property_value(files) == '0': time.sleep(0.01)\n"
        "store.write([(b'b', b'2')])\n"
        "os.kill(os.getpid(), 9)"
    )
    path = str(tmp_path / "0_3")
    subprocess.run([sys.executable, "-c", program, path], cwd=ROOT, check=False, timeout=60)
    again = RocksStore.open(path)
    assert list(again.range()) == [(b"a", b"1")]
    again.close()


def test_a_directory_in_use_is_refused_in_any_process(tmp_path: Path) -> None:
    path = str(tmp_path / "0_3")
    store = RocksStore.open(path)
    with pytest.raises(LogDirectoryLocked, match="0_3 is in use by another worker or task: stop"):
        RocksStore.open(path)
    program = (
        "import sys\nfrom streamlog.errors import LogDirectoryLocked\n"
        "from streamlog.tables.local_disk.rocksdb_store import RocksStore\n"
        "try: RocksStore.open(sys.argv[1])\nexcept LogDirectoryLocked: sys.exit(42)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path], cwd=ROOT, check=False)
    assert done.returncode == 42
    store.close()
    RocksStore.open(path).close()


def test_a_bulk_filled_store_works_as_usual_afterwards(tmp_path: Path) -> None:
    path = str(tmp_path / "0_3")
    store = RocksStore.open(path, write_buffer_bytes=64 * 1024)
    store.write([(b"%04d" % number, b"old") for number in range(100)])
    store.begin_filling()
    for first in range(0, 5_000, 500):
        store.write([(b"%04d" % number, bytes(40)) for number in range(first, first + 500)])
        store.write([(b"%04d" % first, None)])
        with pytest.raises(LogDirectoryLocked):
            RocksStore.open(path)
    store.end_filling()
    with pytest.raises(LogDirectoryLocked):
        RocksStore.open(path)
    expected = [(b"%04d" % number, bytes(40)) for number in range(5_000) if number % 500]
    assert list(store.range()) == expected
    store.put(b"9999", b"new")
    store.close()
    again = RocksStore.open(path)
    assert list(again.range()) == [*expected, (b"9999", b"new")]
    again.begin_filling()
    again.write([(b"9999", None)])
    again.close()
    assert read_everything(path) == expected


def test_an_old_directory_uses_the_shared_cache_and_filters(tmp_path: Path) -> None:
    """rocksdict uses the options stored in the directory, unless they are overridden."""
    path = tmp_path / "0_3"
    RocksStore.open(str(path)).close()
    budget = RocksBudget()
    store = RocksStore.open(str(path), budget=budget)
    store.write([(b"%05d" % number, bytes(100)) for number in range(10_000)])
    store.close()
    store = RocksStore.open(str(path), budget=budget)
    before = budget.cache.get_usage()
    assert store.get(b"05000") == bytes(100)
    assert budget.cache.get_usage() > before
    store.close()
    newest = max(path.glob("OPTIONS-*"))
    assert "filter_policy=bloomfilter" in newest.read_text()


def test_rocksdb_gives_back_what_a_task_may_cache(tmp_path: Path) -> None:
    memory_bytes = 16 << 20
    budget = RocksBudget(memory_bytes)
    store = RocksStore.open(str(tmp_path / "0_3"), budget=budget)
    value = random.Random(7).randbytes(1_000)
    store.write([(b"%05d" % number, value[number % 900 :] + value) for number in range(15_000)])
    store.close()
    store = RocksStore.open(str(tmp_path / "0_3"), budget=budget)

    def read_all() -> int:
        store.get_all([b"%05d" % number for number in range(15_000)])
        return budget.cache.get_usage()

    slack_bytes = 1 << 20
    alone_bytes = read_all()
    assert memory_bytes // 2 < alone_bytes < memory_bytes * 3 // 4 + slack_bytes
    task = StoreTransaction(MemoryStore(), budget=budget.caches)
    assert read_all() < memory_bytes // 2 + slack_bytes
    task.close()
    assert read_all() > memory_bytes // 2
    store.close()


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the kernel counts no reads here")
def test_a_look_up_reads_single_blocks_of_a_table_of_any_size(tmp_path: Path) -> None:
    """A filter as one block exceeds what a part of the cache holds: each look-up would read it."""
    keys, look_ups, block_bytes = 500_000, 100, 4_096
    rows = ((b"%012d" % number, b"v") for number in range(keys))
    write_sorted(next(rows), rows, str(tmp_path / "table.sst"), file_bytes=1 << 40)
    store = RocksStore.open(str(tmp_path / "0_3"), budget=RocksBudget(MEMORY_BYTES // 12))
    store.replace([str(tmp_path / "table.sst")], [])
    before = _read_bytes()
    found = [store.get(b"%012d" % number) for number in range(0, keys, keys // look_ups)]
    absent = [store.get(b"%012dx" % number) for number in range(0, keys, keys // look_ups)]
    read_bytes = _read_bytes() - before
    assert (found, absent) == ([b"v"] * look_ups, [None] * look_ups)
    # The row, a part of the filter, and one of the index; a whole filter has 625,000 bytes.
    assert read_bytes < 2 * look_ups * 3 * block_bytes
    store.close()


def _read_bytes() -> int:
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counters["rchar"])


def test_closing_ends_open_scans_and_releases_the_directory(tmp_path: Path) -> None:
    path = str(tmp_path / "0_3")
    store = RocksStore.open(path)
    store.write([(b"a", b"1"), (b"b", b"2")])
    started_scan, fresh_scan = store.range(), store.range()
    next(started_scan)
    store.close()
    assert list(started_scan) == list(fresh_scan) == []
    RocksStore.open(path).close()


def manifest(path: Path) -> Path:
    return next(path.glob("MANIFEST-*"))


def table(path: Path) -> Path:
    return next(path.glob("*.sst"))


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[: len(data) // 2] = bytes(byte ^ 0xFF for byte in data[: len(data) // 2])
    file.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: manifest(path).write_bytes(b"garbage" * 10),
        lambda path: manifest(path).unlink(),
        lambda path: os.truncate(manifest(path), 40),
        lambda path: (path / "CURRENT").write_bytes(b"garbage"),
        lambda path: (path / "CURRENT").unlink(),
        lambda path: table(path).unlink(),
        lambda path: os.truncate(table(path), 100),
        lambda path: flip(table(path)),
    ],
)
def test_damaged_state_is_reported_with_its_remedy(
    damage: Callable[[Path], object], tmp_path: Path
) -> None:
    path = tmp_path / "0_3"
    store = RocksStore.open(str(path))
    store.write([(bytes([number]), bytes(50)) for number in range(100)])
    store.close()
    damage(path)
    with pytest.raises(CorruptData, match="0_3 is damaged: restart"):
        read_everything(str(path))
    shutil.rmtree(path)
    assert read_everything(str(path)) == []


def test_a_scan_over_damage_fails(tmp_path: Path) -> None:
    """It does not end there as if the store had no more rows."""
    path = tmp_path / "0_3"
    store = RocksStore.open(str(path))
    store.write([(b"%05d" % number, b"%d" % number) for number in range(20_000)])
    store.close()
    data = bytearray(table(path).read_bytes())
    data[30_000:31_000] = bytes(byte ^ 0xFF for byte in data[30_000:31_000])
    table(path).write_bytes(data)
    store = RocksStore.open(str(path))
    with pytest.raises(CorruptData, match="is damaged: restart"):
        list(store.range())
    assert len(list(store.range(b"00000", b"00100"))) == 100
    for low in range(0, 20_000, 100):
        try:
            rows = list(store.range(b"%05d" % low, b"%05d" % (low + 100)))
        except CorruptData:
            break
        assert len(rows) == 100
    else:
        pytest.fail("the damaged block was never read")
    store.close()


def read_everything(path: str) -> list[tuple[bytes, bytes]]:
    store = RocksStore.open(path)
    try:
        store.get(b"\x05")
        return list(store.range())
    finally:
        store.close()


def test_a_directory_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(LogDirectoryError, match="can't be created"):
        RocksStore.open(str(tmp_path / "file" / "0_3"))
    with pytest.raises(LogDirectoryError, match="can't be created"):
        RocksStore.open(str(tmp_path / "file"))


def test_every_use_of_a_closed_store_raises_a_streamlog_error(tmp_path: Path) -> None:
    store = RocksStore.open(str(tmp_path / "0_3"))
    store.close()
    uses: list[Callable[[], object]] = [
        lambda: store.get(b"a"),
        lambda: store.put(b"a", b"1"),
        lambda: store.delete(b"a"),
        lambda: store.delete_range(b"a", b"b"),
        lambda: store.write([]),
        store.range,
    ]
    for use in uses:
        with pytest.raises(StreamlogError, match="is closed"):
            use()


def test_a_scan_keeps_the_memory_of_its_bound_alive(tmp_path: Path) -> None:
    """RocksDB reads the bound from the caller's memory, which Python reuses at once."""
    store = RocksStore.open(str(tmp_path / "store"))
    store.write([(b"p%04d" % number, b"value") for number in range(600)])
    for low in range(0, 300, 10):
        found, taken = 0, []
        for key, _ in store.range(b"p%04d" % low, b"p%04d" % (low + 300)):
            found += 1
            taken.append(b"a" + key[1:])  # Reuses memory of the bound's size.
        assert found == 300
    store.close()
