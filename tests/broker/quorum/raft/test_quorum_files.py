from __future__ import annotations

import errno
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.disk import SimulatedDisk
from streamlog.broker.quorum.raft.log_entries import encode_entry, encode_snapshot
from streamlog.broker.quorum.raft.quorum_files import FOLDER, QuorumFiles
from streamlog.broker.quorum.raft.raft_messages import Entry, QuorumState, RaftSnapshotId
from streamlog.broker.storage.disk.files import read_file, write_whole
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.errors import CorruptData, LogDirectoryFailed
from streamlog.replace import replace

LOG = f"data/{FOLDER}/{0:020d}.log"
STATE = QuorumState(epoch=1, voted_id=1)


def open_files(files: MemoryFiles) -> QuorumFiles:
    quorum = QuorumFiles(files, "data")
    quorum.settle()
    return quorum


def open_with_state(files: MemoryFiles) -> QuorumFiles:
    quorum = open_files(files)
    quorum.persist(STATE)
    return quorum


def entry(offset: int, *, epoch: int = 1, count: int = 1) -> Entry:
    values = [b"%d@%d" % (offset + each, epoch) for each in range(count)]
    return encode_entry(values, base_offset=offset, epoch=epoch, wall_ms=1_000)


def all_of(quorum: QuorumFiles) -> list[Entry]:
    return quorum.log.read(quorum.log.start_offset, max_bytes=1 << 30)


def flip(files: MemoryFiles, path: str, position: int) -> None:
    file = files.open(path, writable=True)
    write_whole(file, bytes([file.read(1, position)[0] ^ 1]), position)
    file.sync()
    file.close()


def test_a_new_directory_is_empty() -> None:
    quorum = open_files(MemoryFiles())
    assert quorum.is_new
    assert (quorum.state, quorum.chain().end_offset) == (QuorumState(), 0)


def test_synced_entries_survive_a_power_cut() -> None:
    files = MemoryFiles()
    quorum = open_with_state(files)
    quorum.append([entry(0), entry(1, count=3)])
    quorum.sync(4)
    quorum.append([entry(4)])
    files.crash()
    again = open_files(files)
    assert all_of(again) == [entry(0), entry(1, count=3)]
    assert again.state == STATE
    assert again.chain().end_for(1) == (1, 4)


def test_a_torn_write_is_truncated() -> None:
    files = MemoryFiles()
    quorum = open_with_state(files)
    quorum.append([entry(0)])
    quorum.sync(1)
    quorum.append([entry(1, count=5)])
    files.crash(keep_bytes=70)
    again = open_files(files)
    assert all_of(again) == [entry(0)]
    again.append([entry(1)])
    again.sync(2)
    files.crash()
    assert all_of(open_files(files)) == [entry(0), entry(1)]


def test_a_missing_synced_entry_is_corrupt_data() -> None:
    files = MemoryFiles()
    quorum = open_with_state(files)
    quorum.append([entry(0), entry(1)])
    quorum.sync(2)
    quorum.close()
    flip(files, LOG, len(entry(0).payload) + 70)
    before = read_file(files, LOG)
    damaged = QuorumFiles(files, "data")
    with pytest.raises(CorruptData, match="was on disk up to offset 2, but now ends at 1"):
        damaged.settle()
    assert read_file(files, LOG) == before, "without a rejoin the log is kept"
    damaged.rejoin(77)
    assert all_of(damaged) == [entry(0)]
    assert open_files(files).state == replace(STATE, rejoin_id=77)


@pytest.mark.parametrize("name", ["quorum-state", "flushed-end"])
def test_a_damaged_state_file_is_corrupt_data(name: str) -> None:
    files = MemoryFiles()
    quorum = open_with_state(files)
    quorum.append([entry(0)])
    quorum.sync(1)
    quorum.close()
    path = f"data/{FOLDER}/{name}"
    for position in range(0, len(read_file(files, path)), 5):
        flip(files, path, position)
    with pytest.raises(CorruptData, match=name):
        QuorumFiles(files, "data").settle()


def test_a_lost_state_file_is_corrupt_data() -> None:
    files = MemoryFiles()
    quorum = open_with_state(files)
    quorum.append([entry(0)])
    quorum.sync(1)
    quorum.close()
    files.remove(f"data/{FOLDER}/quorum-state")
    with pytest.raises(CorruptData, match="has epoch 0, and the log has epoch 1"):
        QuorumFiles(files, "data").settle()


def test_a_truncation_is_not_damage() -> None:
    files = MemoryFiles()
    quorum = open_with_state(files)
    quorum.append([entry(each) for each in range(5)])
    quorum.sync(5)
    quorum.truncate(2)
    quorum.append([entry(2, count=2)])
    files.crash()
    again = open_files(files)
    assert all_of(again) == [entry(0), entry(1)]


def test_the_log_starts_after_a_snapshot() -> None:
    files = MemoryFiles()
    quorum = open_with_state(files)
    quorum.append([entry(each) for each in range(3)])
    quorum.sync(3)
    snapshot = RaftSnapshotId(3, 1)
    quorum.snapshots.write(snapshot, encode_snapshot([b"all"], epoch=1, wall_ms=0))
    quorum.log.roll()
    quorum.append([entry(3)])
    quorum.sync(4)
    quorum.trim(snapshot)
    assert all_of(quorum) == [entry(3)]
    files.crash()
    again = open_files(files)
    assert (again.snapshot, again.values) == (snapshot, [b"all"])
    assert all_of(again) == [entry(3)]
    assert again.chain().end_for(1) == (1, 4)


def test_a_damaged_snapshot_is_ignored_while_the_log_is_complete() -> None:
    files = MemoryFiles()
    quorum = open_with_state(files)
    quorum.append([entry(0)])
    quorum.sync(1)
    quorum.snapshots.write(RaftSnapshotId(1, 1), encode_snapshot([b"all"], epoch=1, wall_ms=0))
    quorum.close()
    flip(files, f"data/{FOLDER}/{1:020d}-{1:010d}.checkpoint", 90)
    again = open_files(files)
    assert again.values == []
    assert all_of(again) == [entry(0)]


def test_a_received_snapshot_replaces_the_log() -> None:
    files = MemoryFiles()
    quorum = open_with_state(files)
    quorum.append([entry(0)])
    quorum.sync(1)
    snapshot = RaftSnapshotId(9, 4)
    data = b"".join(encode_snapshot([b"x", b"y"], epoch=4, wall_ms=0))
    quorum.persist(replace(STATE, epoch=4))
    for position in range(0, len(data), 50):
        quorum.snapshots.receive(snapshot, position, data[position : position + 50])
    assert quorum.install(snapshot) == [b"x", b"y"]
    quorum.append([entry(9, epoch=4)])
    quorum.sync(10)
    files.crash()
    again = open_files(files)
    assert again.values == [b"x", b"y"]
    assert all_of(again) == [entry(9, epoch=4)]


def test_a_disk_error_is_raised_as_a_failed_log_directory() -> None:
    files = MemoryFiles()
    quorum = open_with_state(files)
    quorum.append([entry(0)])
    files.fail_next_sync(errno.EIO)
    with pytest.raises(LogDirectoryFailed):
        quorum.sync(1)


def test_a_restart_after_a_failed_sync_writes_the_found_entries_to_disk() -> None:
    disk = SimulatedDisk(Random(1))
    quorum = QuorumFiles(disk, "data")
    quorum.settle()
    quorum.persist(STATE)
    quorum.append([entry(0)])
    quorum.sync(1)
    quorum.append([entry(1)])
    disk.refuse_syncs()
    with pytest.raises(LogDirectoryFailed):
        quorum.sync(2)
    # The process ends, and the next one finds the contents of the page cache.
    disk.kill()
    again = QuorumFiles(disk, "data")
    again.settle()
    assert all_of(again) == [entry(0), entry(1)]
    disk.cut()
    last = QuorumFiles(disk, "data")
    last.settle()
    assert all_of(last) == [entry(0), entry(1)]


Step = st.sampled_from(["append", "append", "sync", "truncate", "roll", "crash", "snapshot"])


@given(st.lists(st.tuples(Step, st.integers(0, 6), st.integers(0, 300)), max_size=25))
def test_random_power_cuts_lose_no_synced_entry(steps: list[tuple[str, int, int]]) -> None:
    files = MemoryFiles()
    quorum = open_with_state(files)
    model: list[Entry] = []
    synced = 0
    start = 0
    for what, number, size_bytes in steps:
        end = quorum.log.end_offset
        match what:
            case "append":
                new = entry(end, count=number + 1)
                quorum.append([new])
                model.append(new)
            case "sync":
                quorum.sync(end)
                synced = end
            case "truncate":
                kept = [each for each in model if each.next_offset <= end - number]
                to = max([start, *(each.next_offset for each in kept)])
                quorum.truncate(to)
                model = [each for each in model if each.next_offset <= to]
                synced = min(synced, to)
            case "roll":
                quorum.log.roll()
            case "snapshot" if synced > start:
                values = encode_snapshot([b"%d" % synced], epoch=1, wall_ms=0)
                quorum.snapshots.write(RaftSnapshotId(synced, 1), values)
                quorum.log.roll()
                if number % 2:
                    start = synced
                    quorum.trim(RaftSnapshotId(start, 1))
            case "crash":
                files.crash(keep_bytes=size_bytes)
                quorum = open_files(files)
                start = quorum.log.start_offset
                found = all_of(quorum)
                model = [each for each in model if each.base_offset >= start]
                assert found == model[: len(found)]
                assert quorum.log.end_offset >= synced
                model, synced = found, quorum.log.end_offset
        assert quorum.log.size_bytes == sum(len(each.payload) for each in all_of(quorum))
    assert all_of(quorum) == [each for each in model if each.base_offset >= start]
