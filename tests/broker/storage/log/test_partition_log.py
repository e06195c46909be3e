from __future__ import annotations

import errno
import shutil
import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.config.broker import TopicConfig
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.disk.os_files import OsFiles
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.broker.storage.log.producer_states import OUT_OF_ORDER_SEQUENCE_NUMBER
from streamlog.broker.storage.validator import AppendOrigin
from streamlog.errors import (
    CorruptMessage,
    LogDirectoryFailed,
    LogDirectoryLost,
    LogError,
    MessageTooLarge,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
    UsageError,
)
from streamlog.records.batch import RecordBatch, set_offset_and_epoch, split_batches
from tests.broker.storage.batches import (
    DIRECTORY,
    SMALL,
    batch,
    contents,
    files_of,
    log_files,
    new_log,
    read_batches,
    read_records,
    reopened,
    stamped,
)

Oracle = list[int]  # timestamps by offset


def check_against(log: PartitionLog, oracle: Oracle) -> None:
    """Compare the log's reads and lookups with a list of timestamps by offset."""
    assert (log.log_start_offset, log.log_end_offset) == (0, len(oracle))
    assert [record.timestamp_ms for record in read_records(log)] == oracle
    for offset in range(0, len(oracle), 5):
        data = log.read(offset, max_bytes=300)
        batches = list(split_batches(data))
        assert batches[0].base_offset <= offset < batches[0].next_offset
        assert sum(found.size_bytes for found in batches) == len(data)
        assert len(data) <= 300 or len(batches) == 1
    assert log.read(len(oracle), max_bytes=300) == b""
    newest = max(oracle, default=None)
    assert log.max_timestamp() == (None if newest is None else (oracle.index(newest), newest))
    for timestamp_ms in range(0, 60, 7):
        found = next(
            ((at, stamp) for at, stamp in enumerate(oracle) if stamp >= timestamp_ms), None
        )
        assert log.offset_for_timestamp(timestamp_ms) == found


append = st.lists(st.integers(0, 50), min_size=1, max_size=6)
steps = st.lists(
    st.one_of(append, append, append, st.sampled_from(["clean", "kill", "flush", "cut"])),
    max_size=40,
)


@given(steps)
def test_a_log_behaves_like_a_list_of_records(history: list[list[int] | str]) -> None:
    files = MemoryFiles()
    log = new_log(files)
    oracle: Oracle = []
    for step in history:
        if step == "flush":
            log.flush()
        elif step == "clean":
            log.close()
            log = reopened(files, clean=True, recovery_point=len(oracle))
            assert log.recovery.scanned_bytes == 0
        elif step == "kill":
            files.crash(keep_bytes=None)
            log = reopened(files)
        elif step == "cut":
            log.flush()
            files.crash()
            log = reopened(files, recovery_point=len(oracle))
        else:
            result = log.append(stamped(step), now_ms=0)
            assert result[:3] == (len(oracle), len(oracle) + len(step) - 1, -1)
            assert not result.duplicate
            oracle += step
    assert log.recovery.damage == ()
    check_against(log, oracle)


def test_an_append_sets_only_the_offset_and_the_epoch() -> None:
    log = new_log()
    sent = batch(3)
    log.append(sent, now_ms=0)
    log.append(memoryview(sent), now_ms=0)
    second = next(split_batches(log.read(3, max_bytes=1)))
    assert (second.base_offset, second.leader_epoch) == (3, 0)
    assert bytes(second.data[16:]) == sent[16:]
    assert sent == batch(3)


def test_several_batches_are_appended_together_or_not_at_all() -> None:
    log = new_log()
    assert log.append(batch(2) + batch(3), now_ms=0)[:2] == (0, 4)
    damaged = bytearray(batch(2) + batch(3))
    damaged[-1] ^= 1
    with pytest.raises(CorruptMessage):
        log.append(damaged, now_ms=0)
    assert log.log_end_offset == 5
    assert [found.base_offset for found in read_batches(log)] == [0, 2]


def test_a_read_returns_the_first_batch_whole() -> None:
    log = new_log()
    for _ in range(3):
        log.append(batch(2, value=bytes(150)), now_ms=0)
    size_bytes = len(batch(2, value=bytes(150)))
    assert len(log.read(3, max_bytes=1)) == size_bytes
    assert log.read(3, max_bytes=size_bytes - 1, min_one=False) == b""
    assert len(log.read(0, max_bytes=2 * size_bytes + 1)) == 2 * size_bytes


def test_an_offset_outside_the_log_is_out_of_range() -> None:
    log = new_log()
    log.append(batch(2), now_ms=0)
    assert log.read(2, max_bytes=100) == b""
    for offset in (-1, 3):
        with pytest.raises(OffsetOutOfRange, match=f"topic-0: offset {offset} is not in the log"):
            log.read(offset, max_bytes=100)


def test_a_batch_above_max_message_bytes_is_refused() -> None:
    log = new_log(config=TopicConfig(max_message_bytes=200))
    with pytest.raises(MessageTooLarge):
        log.append(batch(value=bytes(200)), now_ms=0)
    assert log.log_end_offset == 0


def bases(files: MemoryFiles) -> list[int]:
    return [int(Path(path).stem) for path in log_files(files)]


def test_a_segment_is_sealed_at_segment_bytes() -> None:
    files = MemoryFiles()
    log = new_log(files, TopicConfig(segment_bytes=1024))
    sent = batch(4, value=bytes(60))
    for _ in range(5):
        log.append(sent, now_ms=0)
    per_segment = 1024 // len(sent)
    assert bases(files) == list(range(0, 20, 4 * per_segment))
    assert all(len(data) <= 1024 for data in contents(files, ".log").values())
    log.append(batch(value=bytes(5000)), now_ms=0)
    assert bases(files)[-1] == 20


def test_a_record_newer_by_segment_ms_seals_the_segment() -> None:
    files = MemoryFiles()
    log = new_log(files, TopicConfig(segment_ms=100))
    for timestamp_ms in (1000, 1100, 900, 1050):
        log.append(stamped([timestamp_ms]), now_ms=timestamp_ms * 1000)
    assert bases(files) == [0]
    log.append(stamped([1101]), now_ms=0)
    assert bases(files) == [0, 4]
    log.close()
    log = reopened(files, clean=True, config=TopicConfig(segment_ms=100))
    log.append(stamped([100_000]), now_ms=0)
    assert bases(files) == [0, 4, 5]


def test_a_segment_without_timestamps_is_sealed_by_the_clock() -> None:
    files = MemoryFiles()
    log = new_log(files, TopicConfig(segment_ms=100))
    for now_ms in (5000, 5100):
        log.append(stamped([-1]), now_ms=now_ms)
    assert bases(files) == [0]
    log.append(stamped([-1]), now_ms=5101)
    assert bases(files) == [0, 2]
    assert log.max_timestamp() is None


def test_a_segment_is_sealed_when_its_index_is_full() -> None:
    files = MemoryFiles()
    log = new_log(files, TopicConfig(index_interval_bytes=1, segment_index_bytes=48))
    for number in range(10):
        log.append(stamped([number]), now_ms=0)
    log.close()
    assert bases(files) == [0, 5]
    assert all(len(data) <= 48 for data in contents(files, "index").values())


def test_a_segment_is_sealed_before_relative_offsets_overflow() -> None:
    files = MemoryFiles()
    log = new_log(files)
    data = bytearray(batch())
    struct.pack_into(">i", data, 23, 2**31 - 2)
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    log.append(data, now_ms=0, origin=AppendOrigin.COPY)
    log.append(batch(1), now_ms=0)
    assert bases(files) == [0]
    log.append(batch(1), now_ms=0)
    assert bases(files) == [0, 2**31]
    assert [found.base_offset for found in read_batches(log)] == [0, 2**31 - 1, 2**31]


def test_replicated_batches_keep_their_offsets_and_epochs() -> None:
    log = new_log()
    copy = bytearray(batch(2, producer=(1, 0, 5)))
    set_offset_and_epoch(copy, 0, 7)
    assert log.append(copy, now_ms=0, origin=AppendOrigin.COPY)[:2] == (0, 1)
    assert RecordBatch(bytes(log.read(0, max_bytes=1))).leader_epoch == 7
    with pytest.raises(CorruptMessage):
        log.append(copy, now_ms=0, origin=AppendOrigin.COPY)


def test_rebuilt_indexes_equal_the_written_ones() -> None:
    files = MemoryFiles()
    log = new_log(files)
    for number in range(100):
        log.append(stamped([number * 37 % 90, number]), now_ms=0)
    log.close()
    written = contents(files, "index")
    assert sum(map(len, written.values())) > 300
    for path in written:
        files.remove(path)
    log = reopened(files)
    check_against(log, [stamp for number in range(100) for stamp in (number * 37 % 90, number)])
    log.close()
    assert contents(files, "index") == written


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("rolls", [True, False])
def test_producer_state_survives_a_restart(clean: bool, rolls: bool) -> None:
    files = MemoryFiles()
    config = SMALL if rolls else TopicConfig()
    log = new_log(files, config)
    sent = [batch(2, producer=(9, 1, number * 2)) for number in range(30)]
    for data in sent:
        log.append(data, now_ms=0)
    if clean:
        log.close()
    else:
        files.crash(keep_bytes=None)
    log = reopened(files, config=config, clean=clean)
    assert log.append(sent[-1], now_ms=0) == (58, 59, -1, 0)
    assert log.append(sent[-5], now_ms=0) == (50, 51, -1, 0)
    with pytest.raises(LogError) as caught:
        log.append(batch(1, producer=(9, 1, 61)), now_ms=0)
    assert caught.value.code == OUT_OF_ORDER_SEQUENCE_NUMBER
    newer = batch(1, producer=(9, 1, 60))
    assert log.append(newer, now_ms=0) == (60, 60, -1, len(newer))
    assert log.log_end_offset == 61


def test_batches_lost_in_a_crash_may_be_sent_again() -> None:
    files = MemoryFiles()
    log = new_log(files)
    sent = [batch(2, value=bytes(100), producer=(9, 1, number * 2)) for number in range(30)]
    log.append(sent[0], now_ms=0)
    log.flush()
    for data in sent[1:5]:
        log.append(data, now_ms=0)
    files.crash()
    log = reopened(files, recovery_point=2)
    assert log.log_end_offset == 2
    assert log.append(sent[0], now_ms=0).duplicate
    for data in sent[1:]:
        assert not log.append(data, now_ms=0).duplicate
    assert log.append(sent[-1], now_ms=0).duplicate
    assert [record.offset for record in read_records(log)] == list(range(60))


@pytest.mark.parametrize("damage", ["cut", "gone", "changed"])
def test_a_damaged_snapshot_is_replaced_by_a_replay(damage: str) -> None:
    files = MemoryFiles()
    log = new_log(files)
    sent = [batch(2, producer=(9, 1, number * 2)) for number in range(30)]
    for data in sent:
        log.append(data, now_ms=0)
    log.close()
    snapshots = log_files(files, ".snapshot")
    assert len(snapshots) == 2
    for path in snapshots:
        if damage == "gone":
            files.remove(path)
        elif damage == "cut":
            files.open(path, writable=True).truncate(9)
        else:
            files.open(path, writable=True).write(b"!", 12)
    log = reopened(files, clean=True)
    assert log.recovery.scanned_bytes == 0
    assert log.append(sent[-4], now_ms=0) == (52, 53, -1, 0)


def test_a_full_disk_refuses_an_append_and_keeps_the_log() -> None:
    files = MemoryFiles()
    log = new_log(files, TopicConfig())
    log.append(batch(3), now_ms=0)
    before = contents(files, ".log")
    files.capacity_bytes = files.used_bytes() + 20
    for _ in range(2):
        with pytest.raises(LogDirectoryFailed, match="free some space"):
            log.append(batch(3), now_ms=0)
        assert contents(files, ".log") == before
    assert len(read_records(log)) == 3
    files.capacity_bytes = None
    assert log.append(batch(3), now_ms=0)[:2] == (3, 5)
    files.crash(keep_bytes=None)
    assert len(read_records(reopened(files))) == 6


@given(st.integers(0, 400), st.integers(1, 30))
def test_a_full_disk_loses_no_acknowledged_record(room: int, count: int) -> None:
    files = MemoryFiles()
    log = new_log(files)
    acknowledged = 0
    for number in range(60):
        if number == count:
            files.capacity_bytes = files.used_bytes() + room
        if number == count + 5:
            files.capacity_bytes = None
        try:
            acknowledged = log.append(batch(2), now_ms=0).last_offset + 1
        except LogDirectoryFailed:
            assert number >= count
    assert log.log_end_offset == acknowledged
    assert [record.offset for record in read_records(log)] == list(range(acknowledged))
    log.close()
    log = reopened(files, clean=True, recovery_point=acknowledged)
    assert [record.offset for record in read_records(log)] == list(range(acknowledged))


def test_short_writes_are_continued() -> None:
    files = MemoryFiles()
    log = new_log(files)
    for size_bytes in (1, 60, 61, 62):
        files.short_next_write(size_bytes)
        log.append(batch(2), now_ms=0)
    assert len(read_records(log)) == 8


def test_a_failed_sync_refuses_all_later_appends() -> None:
    files = MemoryFiles()
    log = new_log(files)
    log.append(batch(), now_ms=0)
    files.fail_next_sync(errno.EIO)
    with pytest.raises(LogDirectoryFailed):
        log.flush()
    for _ in range(2):
        with pytest.raises(LogDirectoryFailed, match="check the disk"):
            log.append(batch(), now_ms=0)
    assert not log.is_whole
    assert len(read_records(log)) == 1
    log.close()


def append_until_it_rolls(log: PartitionLog) -> None:
    for _ in range(20):
        log.append(batch(value=bytes(200)), now_ms=0)


@pytest.mark.parametrize("moved", [True, False])
def test_a_removed_or_moved_directory_is_detected(tmp_path: Path, *, moved: bool) -> None:
    path = tmp_path / "p-0"
    log = PartitionLog.create(OsFiles(), str(path), name="topic-0", config=SMALL)
    log.append(batch(), now_ms=0)
    if moved:
        path.rename(tmp_path / "elsewhere")
    else:
        shutil.rmtree(path)
    with pytest.raises(LogDirectoryLost, match=r"p-0.* has .*while it was in use"):
        append_until_it_rolls(log)  # a moved one is detected when the next file is created
    with pytest.raises(LogDirectoryLost):
        log.append(batch(), now_ms=0)
    log.close()


def test_closed_and_read_only_logs_refuse_appends() -> None:
    files = MemoryFiles()
    log = new_log(files)
    log.append(batch(2), now_ms=0)
    reader = PartitionLog.open(files, DIRECTORY, name="topic-0", config=SMALL, read_only=True)
    with pytest.raises(UsageError):
        reader.append(batch(), now_ms=0)
    log.close()
    log.close()
    with pytest.raises(UnknownTopicOrPartition):
        log.append(batch(), now_ms=0)


@given(steps)
def test_a_read_only_log_sees_all_of_the_writers_records(history: list[list[int] | str]) -> None:
    files = MemoryFiles()
    log = new_log(files)
    oracle: Oracle = []
    for step in history:
        if isinstance(step, list):
            log.append(stamped(step), now_ms=0)
            oracle += step
        before = contents(files, "")
        reader = PartitionLog.open(files, DIRECTORY, name="topic-0", config=SMALL, read_only=True)
        assert reader.log_end_offset == len(oracle)
    reader = PartitionLog.open(files, DIRECTORY, name="topic-0", config=SMALL, read_only=True)
    check_against(reader, oracle)
    reader.close()
    if history:
        assert contents(files, "") == before


def test_a_clean_open_and_close_writes_nothing() -> None:
    files = MemoryFiles()
    log = new_log(files)
    for _ in range(30):
        log.append(batch(2), now_ms=0)
    log.close()
    before = contents(files, "")
    log = reopened(files, clean=True, recovery_point=60)
    log.close()
    assert contents(files, "") == before


def test_coordinator_records_may_have_any_timestamp() -> None:
    """Their timestamps come from a broker's clock, which may be set back."""
    log = new_log(config=TopicConfig(message_timestamp_after_max_ms=0))
    with pytest.raises(LogError, match=r"message\.timestamp\.after\.max\.ms"):
        log.append(batch(timestamp_ms=5_001), now_ms=0, wall_ms=5_000)
    log.append(batch(timestamp_ms=10**15), now_ms=0, origin=AppendOrigin.COORDINATOR)
    assert log.log_end_offset == 1


def test_a_topic_may_use_log_append_time() -> None:
    log = new_log(config=TopicConfig(message_timestamp_type="LogAppendTime", segment_ms=100))
    appended = log.append(batch(2, timestamp_ms=10**15), now_ms=0, wall_ms=5_000)
    assert appended.log_append_time_ms == 5_000
    assert [record.timestamp_ms for record in read_records(log)] == [5_000, 5_000]
    assert log.offset_for_timestamp(4_000) == (0, 5_000)
    log.append(batch(), now_ms=0, wall_ms=5_101)
    assert len(log_files(files_of(log))) == 2
    log.configure(TopicConfig(message_timestamp_before_max_ms=100))
    assert log.append(batch(timestamp_ms=9_950), now_ms=0, wall_ms=10_000).log_append_time_ms == -1
    with pytest.raises(LogError) as caught:
        log.append(batch(timestamp_ms=9_899), now_ms=0, wall_ms=10_000)
    assert caught.value.code == 32
    assert log.log_end_offset == 4
