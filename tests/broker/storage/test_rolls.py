"""Rolls: no append waits for the disk, and only a few of many logs roll at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.config.broker import BrokerConfig, TopicConfig
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.log.log_writes import UNSYNCED_MAX
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.broker.storage.log.segments import ROLLS_AT_ONCE
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.replace import replace
from tests.broker.storage.batches import batch, log_files, new_log, read_records, reopened

PARTITIONS = 3 * ROLLS_AT_ONCE + 1
LATE_MS = 10_000


class Counting(MemoryFiles):
    """A disk that counts its syncs."""

    syncs = 0

    def admit_sync(self) -> None:
        self.syncs += 1
        super().admit_sync()


def rolled(files: MemoryFiles, segments: int) -> PartitionLog:
    """Return a log with nothing on disk but its first segment's name."""
    log = new_log(files)
    log.syncs_off_loop = True
    while len(log_files(files)) < segments:
        log.append(batch(3), now_ms=0)
    return log


@pytest.mark.parametrize("sealed_only", [False, True])
def test_a_roll_waits_for_no_sync_and_the_next_sync_covers_it(*, sealed_only: bool) -> None:
    files = Counting()
    new_log(files).close()
    before = files.syncs
    log = reopened(files)
    before = files.syncs
    log.syncs_off_loop = True
    while len(log_files(files)) < UNSYNCED_MAX:
        log.append(batch(3), now_ms=0)
    assert files.syncs == before
    assert log.recovery_point == 0
    pending = log.begin_sync(sealed_only=sealed_only)
    assert pending is not None
    pending.run()
    log.end_sync(pending)
    synced, right = log.synced.offset, read_records(log)
    assert synced == (log.active_base_offset if sealed_only else log.log_end_offset)
    assert log.recovery_point == synced
    assert log.begin_sync(sealed_only=True) is None
    files.crash(keep_bytes=0)
    again = reopened(files, recovery_point=synced)
    assert not again.damage
    assert [record for record in right if record.offset < synced] == read_records(again)


@given(
    first_ms=st.integers(0, 2_000),
    times_ms=st.lists(st.integers(0, 4_000), min_size=1, max_size=6),
    segment_ms=st.integers(1, 2_000),
    lag_ms=st.integers(1, 2_000),
    policy=st.sampled_from(["delete", "compact", "compact,delete"]),
)
def test_a_segment_ends_before_the_first_record_that_is_too_much_newer(
    first_ms: int, times_ms: list[int], segment_ms: int, lag_ms: int, policy: str
) -> None:
    """Kafka's segment.ms and, only where keys are compacted, max.compaction.lag.ms (KIP-354)."""
    config = TopicConfig().override(
        {
            "segment.ms": str(segment_ms),
            "max.compaction.lag.ms": str(lag_ms),
            "cleanup.policy": policy,
        }
    )
    files = MemoryFiles()
    log = new_log(files, config)
    begins, begun_ms = [0], first_ms
    for number, time_ms in enumerate([first_ms, *times_ms]):
        log.append_each([memoryview(bytearray(batch(timestamp_ms=time_ms)))], now_ms=0, wall_ms=0)
        if time_ms - begun_ms > segment_ms or ("compact" in policy and time_ms - begun_ms > lag_ms):
            begins.append(number)
            begun_ms = time_ms
    found = [int(path.rpartition("/")[2].removesuffix(".log")) for path in log_files(files)]
    assert sorted(found) == begins


def test_too_many_unsynced_segments_force_a_sync() -> None:
    files = Counting()
    log = rolled(files, UNSYNCED_MAX + 1)
    before = files.syncs
    while len(log_files(files)) < UNSYNCED_MAX + 2:
        log.append(batch(3), now_ms=0)
    assert files.syncs > before
    files.crash(keep_bytes=0)
    again = reopened(files)
    assert not again.damage
    assert again.log_end_offset > 0


@pytest.mark.parametrize("keep_bytes", [0, 100, None])
def test_a_power_cut_loses_only_unsynced_records(keep_bytes: int | None) -> None:
    files = MemoryFiles()
    log = rolled(files, 3)
    pending = log.begin_sync()
    assert pending is not None
    pending.run()
    log.end_sync(pending)
    synced = read_records(log)
    while len(log_files(files)) < 6:
        log.append(batch(3), now_ms=0)
    files.crash(keep_bytes=keep_bytes)
    again = reopened(files, recovery_point=log.recovery_point)
    assert not again.damage
    assert read_records(again)[: len(synced)] == synced
    result = again.append(batch(1), now_ms=0)
    assert result.base_offset == again.log_end_offset - 1


def test_a_segment_found_after_a_kill_survives_a_power_cut() -> None:
    files = MemoryFiles()
    log = rolled(files, 2)
    files.crash(keep_bytes=None)  # The process was killed: unsynced file names are still visible.
    log = reopened(files)
    log.syncs_off_loop = True
    result = log.append(batch(2), now_ms=0)
    pending = log.begin_sync()
    assert pending is not None
    pending.run()
    log.end_sync(pending)
    files.crash(keep_bytes=0)
    again = reopened(files, recovery_point=result.last_offset + 1)
    assert not again.damage
    assert again.log_end_offset == result.last_offset + 1


def test_closing_a_log_syncs_an_empty_new_segment() -> None:
    files = MemoryFiles()
    log = new_log(files)
    log.syncs_off_loop = True
    log.append(batch(1, timestamp_ms=0), now_ms=0)
    log.append(batch(1, timestamp_ms=log.config.segment_ms), now_ms=0)
    log.flush()
    log.configure(replace(log.config, segment_ms=1))
    log.roll_late(now_ms=0)
    assert log.active_base_offset == 2
    log.close()
    files.crash(keep_bytes=0)
    assert reopened(files, clean=True).active_base_offset == 2


def test_deleting_a_topic_during_a_sync_fails_no_disk() -> None:
    files = MemoryFiles()
    directory = LogDirectory.open("data", files=files)
    directory.create_topic("t", 1, {"segment.bytes": "1024"})
    log = directory.log("t", 0)
    log.syncs_off_loop = True
    start = log.active_base_offset
    while log.active_base_offset == start:
        log.append(batch(3), now_ms=0)
    pending = log.begin_sync()
    assert pending is not None
    directory.delete_topic("t")
    pending.run()
    directory.check()


def test_many_due_logs_roll_a_few_at_a_time() -> None:
    directory = LogDirectory.open("data", files=MemoryFiles(), config=BrokerConfig())
    directory.create_topic("t", PARTITIONS, {"segment.ms": "1000"})
    logs = list(directory.topics["t"].partitions.values())

    def segments() -> int:
        return sum(log.active_base_offset > 0 for log in logs)

    for log in logs:
        log.append(batch(1, timestamp_ms=0), now_ms=1)
    for log in logs:
        log.append(batch(1, timestamp_ms=LATE_MS), now_ms=2)
    assert segments() == ROLLS_AT_ONCE
    logs[-1].append(batch(1, timestamp_ms=LATE_MS), now_ms=3)  # a single log may roll
    assert segments() == ROLLS_AT_ONCE + 1
    rounds = 0
    while directory.rolls.is_due:
        before = segments()
        for log in directory.rolls.due():
            log.roll_late(now_ms=4)
        assert segments() - before <= ROLLS_AT_ONCE
        rounds += 1
    assert segments() == PARTITIONS
    assert rounds == 3
    assert [log.active_base_offset for log in logs[ROLLS_AT_ONCE:-1]] == [2] * 2 * ROLLS_AT_ONCE
    assert logs[-1].active_base_offset == 2, "its last record is not in the next segment's time"
    assert [log.log_end_offset for log in logs] == [2] * (PARTITIONS - 1) + [3]
    directory.close()
