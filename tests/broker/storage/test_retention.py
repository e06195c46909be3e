"""Retention: which segments are removed, when, and what a crash between the steps leaves."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.config.broker import BrokerConfig, TopicConfig
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.broker.storage.repair.findings import FindingKind
from streamlog.broker.storage.repair.inspection import Inspection
from streamlog.broker.storage.retention import (
    FIRST_CHECK_MS,
    LOGS_AT_ONCE,
    LOOKS_AT_ONCE,
    OnCheckpoint,
    Retention,
)
from streamlog.errors import LogDirectoryFailed, OffsetOutOfRange
from tests.broker.storage.batches import batch, read_records

INTERVAL_MS = 300_000
DELAY_MS = 60_000
START_MS = 1_700_000_000_000
SMALL = BrokerConfig(topic=TopicConfig(segment_bytes=1024, index_interval_bytes=128))


def opened(files: MemoryFiles) -> LogDirectory:
    return LogDirectory.open("/data", files=files, config=SMALL)


class Time:
    """Retention rounds, driven by a test's clock."""

    def __init__(self, directory: LogDirectory) -> None:
        self.now_ms = 0
        self.high_watermarks: dict[str, int] = {}
        """High watermarks of topics with one partition; of others, the log end offset."""
        self.retention = Retention(
            directory,
            now_ms=0,
            high_watermark=lambda topic, number: self.high_watermarks.get(
                topic, directory.log(topic, number).log_end_offset
            ),
        )

    def pass_ms(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self.tick()
        while self.retention.next_deadline_ms() <= self.now_ms:
            self.tick()

    def tick(self) -> None:
        self.retention.tick(now_ms=self.now_ms, wall_ms=START_MS + self.now_ms)


def filled(directory: LogDirectory, **configs: str) -> PartitionLog:
    """Create topic `t` with several segments, whose batches are a second apart; return its log."""
    names = {name.replace("_", "."): value for name, value in configs.items()}
    directory.create_topic("t", 1, names)
    log = directory.log("t", 0)
    for number in range(60):
        log.append(batch(2, timestamp_ms=START_MS + number * 1000), now_ms=0)
    return log


def names(files: MemoryFiles, directory: LogDirectory) -> list[str]:
    topic_id = directory.topics["t"].topic_id.hex()
    return sorted(files.list(f"/data/p-{topic_id}-0"))


def logs(files: MemoryFiles, directory: LogDirectory) -> list[str]:
    return [name for name in names(files, directory) if name.endswith(".log")]


def renamed(files: MemoryFiles, directory: LogDirectory) -> list[str]:
    return [name for name in names(files, directory) if name.endswith(".deleted")]


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def test_expired_segments_are_renamed_and_later_removed(files: MemoryFiles) -> None:
    directory = opened(files)
    log = filled(directory, retention_ms="30000")
    before = len(logs(files, directory))
    time = Time(directory)
    time.pass_ms(FIRST_CHECK_MS - 1)
    assert log.log_start_offset == 0
    time.pass_ms(20_001)
    start = log.log_start_offset
    assert 0 < start <= 40, "whole segments from before second 20 have expired"
    kept = read_records(log, start)
    assert [record.offset for record in kept] == list(range(start, 120))
    assert len(logs(files, directory)) < before
    assert renamed(files, directory)
    assert time.retention.next_deadline_ms() == time.now_ms + DELAY_MS
    with pytest.raises(OffsetOutOfRange):
        log.read(start - 1, max_bytes=100)
    time.pass_ms(DELAY_MS)
    assert not renamed(files, directory)
    directory.close()
    again = opened(files)
    assert again.log("t", 0).log_start_offset == start
    assert read_records(again.log("t", 0), start) == kept
    assert not again.damage


def test_a_wholly_expired_log_continues_at_its_end(files: MemoryFiles) -> None:
    directory = opened(files)
    log = filled(directory, retention_ms="1000")
    time = Time(directory)
    time.pass_ms(INTERVAL_MS)
    assert (log.log_start_offset, log.log_end_offset) == (120, 120)
    assert logs(files, directory) == [f"{120:020d}.log"]
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp() is None
    assert log.read(120, max_bytes=100) == b""
    time.pass_ms(INTERVAL_MS)
    assert logs(files, directory) == [f"{120:020d}.log"], "an empty segment is not rolled"
    log.append(batch(), now_ms=0)
    directory.close()
    again = opened(files).log("t", 0)
    assert (again.log_start_offset, again.log_end_offset) == (120, 121)
    assert [record.offset for record in read_records(again, 120)] == [120]


def test_producer_state_survives_the_expiry_of_its_records(files: MemoryFiles) -> None:
    directory = opened(files)
    directory.create_topic("t", 1, {"retention.ms": "1000"})
    log = directory.log("t", 0)
    numbered = batch(3, timestamp_ms=START_MS, producer=(7, 0, 0))
    log.append(numbered, now_ms=0)
    Time(directory).pass_ms(INTERVAL_MS)
    assert log.log_start_offset == 3
    directory.close()
    assert opened(files).log("t", 0).append(numbered, now_ms=0).duplicate


def test_a_log_is_kept_near_retention_bytes(files: MemoryFiles) -> None:
    directory = opened(files)
    log = filled(directory, retention_bytes="2000")
    Time(directory).pass_ms(INTERVAL_MS)
    assert 2000 <= log.size_bytes < 2000 + 1024
    directory.close()


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_deleted_records_are_gone_under_every_cleanup_policy(
    files: MemoryFiles, policy: str
) -> None:
    directory = opened(files)
    log = filled(directory, cleanup_policy=policy)
    log.advance_start(61)
    directory.write_checkpoints()
    with pytest.raises(OffsetOutOfRange):
        log.read(60, max_bytes=100)
    assert read_records(log, 61)[0].offset == 61
    assert log.offset_for_timestamp(0) == (61, START_MS + 30_001)
    Time(directory).pass_ms(INTERVAL_MS)
    assert logs(files, directory)[0] <= f"{61:020d}.log" < logs(files, directory)[1]
    log.advance_start(5)
    assert log.log_start_offset == 61, "the log start never moves back"
    with pytest.raises(OffsetOutOfRange):
        log.advance_start(121)
    directory.close()


def test_max_timestamp_ignores_deleted_records(files: MemoryFiles) -> None:
    directory = opened(files)
    directory.create_topic("t", 1)
    log = directory.log("t", 0)
    for timestamp_ms in (9_000, 1_000, 3_000, 2_000):
        log.append(batch(2, timestamp_ms=timestamp_ms), now_ms=0)
    assert log.max_timestamp() == (1, 9_001)
    log.advance_start(3)
    assert log.max_timestamp() == (5, 3_001)
    assert log.offset_for_timestamp(1_000) == (3, 1_001)
    log.advance_start(8)
    assert log.max_timestamp() is None
    assert log.offset_for_timestamp(0) is None


def test_changed_settings_apply_from_the_next_round(files: MemoryFiles) -> None:
    directory = opened(files)
    log = filled(directory)
    time = Time(directory)
    time.pass_ms(INTERVAL_MS)
    assert log.log_start_offset == 0
    directory.alter_topic("t", {"retention.ms": "1000", "file.delete.delay.ms": "0"})
    time.pass_ms(INTERVAL_MS)
    assert log.log_start_offset == 120
    assert not renamed(files, directory)
    directory.close()
    assert opened(files).topics["t"].config.retention_ms == 1000


def test_deleting_a_topic_removes_its_renamed_files(files: MemoryFiles) -> None:
    directory = opened(files)
    filled(directory, retention_ms="1000")
    time = Time(directory)
    time.pass_ms(INTERVAL_MS)
    directory.delete_topic("t")
    time.pass_ms(DELAY_MS)
    directory.close()


def to_the_checkpoint(directory: LogDirectory) -> None:
    log = directory.log("t", 0)
    log.expire(high_watermark=log.log_end_offset, wall_ms=START_MS + 50_000, now_ms=0)
    directory.write_checkpoints()


def to_the_renaming(directory: LogDirectory) -> None:
    to_the_checkpoint(directory)
    directory.log("t", 0).retire()


@pytest.mark.parametrize("keep_bytes", [None, 0])
@pytest.mark.parametrize("step", [to_the_checkpoint, to_the_renaming])
def test_a_crash_between_retention_steps_leaves_no_files(
    files: MemoryFiles, step: Callable[[LogDirectory], None], keep_bytes: int | None
) -> None:
    directory = opened(files)
    log = filled(directory, retention_ms="30000")
    directory.flush()
    step(directory)
    start = log.log_start_offset
    assert start > 0
    files.crash(keep_bytes=keep_bytes)
    again = opened(files)
    recovered = again.log("t", 0)
    assert recovered.log_start_offset == start
    assert not again.damage
    assert [each.offset for each in read_records(recovered, start)] == list(range(start, 120))
    assert not renamed(files, again)
    assert int(logs(files, again)[0][:20]) <= start < int(logs(files, again)[1][:20])


def test_offsets_of_deleted_records_are_not_reused(files: MemoryFiles) -> None:
    directory = opened(files)
    log = filled(directory)
    log.advance_start(120)
    directory.write_checkpoints()
    files.crash(keep_bytes=0)
    again = opened(files)
    recovered = again.log("t", 0)
    assert (recovered.log_start_offset, recovered.log_end_offset) == (120, 120)
    assert recovered.append(batch(), now_ms=0).base_offset == 120
    assert not again.damage
    again.close()
    assert opened(files).log("t", 0).log_end_offset == 121


def test_a_read_only_log_raises_for_an_expired_offset(files: MemoryFiles) -> None:
    directory = opened(files)
    filled(directory, retention_ms="30000")
    reader = LogDirectory.open("/data", files=files, read_only=True)
    read = reader.log("t", 0)
    time = Time(directory)
    time.pass_ms(50_000)
    with pytest.raises(OffsetOutOfRange, match="was deleted while"):
        read.read(0, max_bytes=100)
    later = LogDirectory.open("/data", files=files, read_only=True).log("t", 0)
    assert later.log_start_offset == directory.log("t", 0).log_start_offset
    assert read_records(later, later.log_start_offset)[-1].offset == 119


def test_a_disk_error_stops_only_one_round(files: MemoryFiles) -> None:
    directory = opened(files)
    log = filled(directory, retention_ms="30000")
    time = Time(directory)
    files.fail_next_write(errno.EIO)
    time.pass_ms(50_000)
    assert not renamed(files, directory), "the log start could not be stored"
    time.pass_ms(INTERVAL_MS)
    assert renamed(files, directory)
    assert log.is_whole


def test_a_failed_log_does_not_stop_retention_of_others(files: MemoryFiles) -> None:
    directory = opened(files)
    log = filled(directory, retention_ms="1000")
    directory.create_topic("u", 1, {"retention.ms": "1000"})
    other = directory.log("u", 0)
    other.append(batch(timestamp_ms=START_MS), now_ms=0)
    files.fail_next_sync()
    with pytest.raises(LogDirectoryFailed):
        log.flush()
    Time(directory).pass_ms(INTERVAL_MS)
    assert (log.log_start_offset, other.log_start_offset) == (0, 1)


def test_an_expired_head_is_no_damage_to_an_inspection(files: MemoryFiles) -> None:
    directory = opened(files)
    filled(directory, retention_ms="30000")
    Time(directory).pass_ms(50_000)
    directory.close()
    with Inspection.open("/data", files=files) as inspection:
        report = inspection.verify()
    assert report.is_sound
    assert {finding.kind for finding in report.findings} == {FindingKind.LEFTOVER}


@pytest.mark.parametrize("kept_at_once", [True, False])
def test_a_retention_round_is_logged_in_one_line(
    files: MemoryFiles, caplog: pytest.LogCaptureFixture, *, kept_at_once: bool
) -> None:
    directory = opened(files)
    directory.create_topic("over", 2 * LOGS_AT_ONCE, {"retention.ms": "1000"})
    directory.create_topic("stays", 2 * LOGS_AT_ONCE)
    for log in directory.topics["over"].partitions.values():
        log.append(batch(timestamp_ms=START_MS), now_ms=0)
    later: list[OnCheckpoint] = []
    time = Time(directory)
    if not kept_at_once:
        time.retention = Retention(
            directory,
            now_ms=0,
            high_watermark=lambda topic, number: directory.log(topic, number).log_end_offset,
            keep=later.append,
        )
    with caplog.at_level("INFO"):
        time.pass_ms(INTERVAL_MS)
        assert bool(caplog.messages) == kept_at_once
        while later:
            later.pop(0)(None)
        time.pass_ms(INTERVAL_MS)
    assert caplog.messages == [
        (
            f"retention: removed expired files (files: {3 * 2 * LOGS_AT_ONCE},"
            f" partitions: {2 * LOGS_AT_ONCE})"
        )
    ]
    directory.close()


def test_logs_that_keep_everything_are_examined_in_larger_portions(files: MemoryFiles) -> None:
    directory = opened(files)
    directory.create_topic("stays", 2 * LOOKS_AT_ONCE)
    directory.create_topic("over", 1, {"retention.ms": "1000"})
    last = directory.log("over", 0)
    last.append(batch(timestamp_ms=START_MS), now_ms=0)
    time = Time(directory)
    time.now_ms = INTERVAL_MS
    for start in (0, 0, 1):
        time.tick()
        assert last.log_start_offset == start
    directory.close()


def test_logs_whose_segments_are_not_loaded_count_as_work(files: MemoryFiles) -> None:
    directory = opened(files)
    directory.create_topic("stays", 2 * LOGS_AT_ONCE, {"retention.ms": "3600000"})
    for log in directory.topics["stays"].partitions.values():
        for _ in range(60):
            log.append(batch(2, timestamp_ms=START_MS), now_ms=0)
    directory.close()
    directory = opened(files)
    every = [*directory.topics["stays"].partitions.values()]
    assert not any(log.knows_its_size for log in every)
    time = Time(directory)
    time.now_ms = INTERVAL_MS
    for loaded in (LOGS_AT_ONCE, 2 * LOGS_AT_ONCE):
        time.tick()
        examined = [log for log in every if log._segments._chain[0].loaded]
        assert len(examined) == loaded
    directory.close()


def test_a_retention_round_runs_in_portions(files: MemoryFiles) -> None:
    directory = opened(files)
    directory.create_topic("t", 2 * LOGS_AT_ONCE + 1, {"retention.ms": "1000"})
    directory.create_topic("gone", 1, {"retention.ms": "1000"})
    every = [*directory.topics["t"].partitions.values(), directory.log("gone", 0)]
    for log in every:
        log.append(batch(timestamp_ms=START_MS), now_ms=0)
    time = Time(directory)
    time.now_ms = INTERVAL_MS
    time.tick()
    assert sum(log.log_start_offset for log in every) == LOGS_AT_ONCE
    assert time.retention.next_deadline_ms() <= time.now_ms
    directory.delete_topic("gone")
    time.pass_ms(1)
    assert [log.log_start_offset for log in every] == [1] * (2 * LOGS_AT_ONCE + 1) + [0]
    time.pass_ms(DELAY_MS)
    names = [
        name
        for folder in files.list("/data")
        if folder.startswith("p-")
        for name in files.list(f"/data/{folder}")
    ]
    assert not [name for name in names if name.endswith(".deleted")]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 9)),
            st.tuples(st.just("delete"), st.integers(0, 60)),
            st.tuples(st.just("wait"), st.integers(1, 40)),
            st.tuples(st.sampled_from(["restart", "kill", "cut"]), st.just(0)),
        ),
        max_size=40,
    )
)
def test_a_log_is_always_a_suffix_of_its_history(history: list[tuple[str, int]]) -> None:
    """Compared with a list of all timestamps: no record within the retention is missing."""
    files = MemoryFiles()
    directory = opened(files)
    kept_ms = INTERVAL_MS + 20_000
    directory.create_topic("t", 1, {"retention.ms": str(kept_ms), "segment.bytes": "1024"})
    directory.flush()
    now_ms, written, start, young = 0, list[int](), 0, 0
    for what, number in history:
        log = directory.log("t", 0)
        if what == "append":
            log.append(batch(number, timestamp_ms=START_MS + now_ms), now_ms=now_ms)
            log.flush()
            written += range(START_MS + now_ms, START_MS + now_ms + number)
        elif what == "delete":
            young = start = max(start, min(number, len(written)))
            log.advance_start(min(number, len(written)))
            directory.write_checkpoints()
        elif what == "wait":
            now_ms += number * 1_000
            time = Time(directory)
            time.now_ms = now_ms
            time.pass_ms(INTERVAL_MS)
            while young < len(written) and written[young] < START_MS + time.now_ms - kept_ms:
                young += 1
        else:
            if what == "restart":
                directory.close()
            else:
                files.crash(keep_bytes=None if what == "kill" else 0)
            directory = opened(files)
        log = directory.log("t", 0)
        assert log.log_end_offset == len(written)
        first = log.log_start_offset
        assert start <= first <= young
        start = first
        assert [each.timestamp_ms for each in read_records(log, first)] == written[first:]
    assert not directory.damage


def test_retention_stops_at_the_high_watermark() -> None:
    files = MemoryFiles()
    directory = opened(files)
    log = filled(directory, retention_ms="1000")
    time = Time(directory)
    time.high_watermarks["t"] = 0
    time.pass_ms(INTERVAL_MS)
    assert log.log_start_offset == 0
    (second, *_) = [int(name[:20]) for name in names(files, directory) if name.endswith(".log")][1:]
    time.high_watermarks["t"] = second + 1
    time.pass_ms(INTERVAL_MS)
    assert log.log_start_offset == second, "whole segments below the high watermark"
    time.high_watermarks["t"] = log.log_end_offset - 1
    time.pass_ms(INTERVAL_MS)
    assert second < log.log_start_offset < log.log_end_offset
    time.high_watermarks["t"] = log.log_end_offset
    time.pass_ms(INTERVAL_MS)
    assert log.log_start_offset == log.log_end_offset
    directory.close()


def test_files_are_renamed_once_the_log_start_is_durable(files: MemoryFiles) -> None:
    directory = opened(files)
    log = filled(directory, retention_ms="30000")
    callbacks: list[OnCheckpoint] = []
    retention = Retention(
        directory, now_ms=0, high_watermark=lambda _, __: 120, keep=callbacks.append
    )
    retention.tick(now_ms=INTERVAL_MS, wall_ms=START_MS + 50_000)
    (kept,) = callbacks
    start = log.log_start_offset
    assert start > 0
    assert not renamed(files, directory)
    log.advance_start(120)  # not durable yet
    kept(None)
    assert renamed(files, directory)
    assert max(int(name[:20]) for name in renamed(files, directory)) < start
    assert int(logs(files, directory)[0][:20]) <= start


def test_files_stay_when_storing_the_log_start_fails(files: MemoryFiles) -> None:
    directory = opened(files)
    filled(directory, retention_ms="30000")
    callbacks: list[OnCheckpoint] = []
    retention = Retention(
        directory, now_ms=0, high_watermark=lambda _, __: 120, keep=callbacks.append
    )
    retention.tick(now_ms=INTERVAL_MS, wall_ms=START_MS + 50_000)
    callbacks[0](LogDirectoryFailed("full"))
    assert not renamed(files, directory)


def test_a_retention_round_expires_silent_producers(files: MemoryFiles) -> None:
    directory = opened(files)
    directory.create_topic("t", 1, {})
    log = directory.log("t", 0)
    time = Time(directory)
    day_ms = directory.config.transaction.producer_id_expiration_ms
    log.append(batch(producer=(1, 0, 0)), now_ms=0)
    for _ in range(2):
        time.pass_ms(day_ms // 2)
        log.append(batch(producer=(2, 0, log.log_end_offset - 1)), now_ms=time.now_ms)
    assert set(dict(log.producers)) == {1, 2}
    time.pass_ms(INTERVAL_MS)
    time.pass_ms(day_ms // 2)
    assert set(dict(log.producers)) == {2}
    time.pass_ms(2 * day_ms)
    assert len(log.producers) == 0
