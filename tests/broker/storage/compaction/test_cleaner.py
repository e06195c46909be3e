"""The cleaner: which log it cleans when, how fast, and how it handles errors."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import weakref
from collections.abc import Callable

import pytest

from streamlog.broker.config.broker import BrokerConfig, TopicConfig
from streamlog.broker.storage.compaction.cleaner import PAUSE_MS_MIN, SLICE_MS, Cleaner
from streamlog.broker.storage.data_directory import partition_folder
from streamlog.broker.storage.disk.files import read_file
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.disk.offload import Offload
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.clock import ManualClock
from streamlog.replace import replace
from tests.broker.storage.batches import overwrite, read_records
from tests.broker.storage.compaction.test_cleaning import keyed, seen
from tests.broker.storage.test_unreadable import SPOILED, force

WALL_MS = 1_700_000_000_000
BACKOFF_MS = 15_000
CONFIG = BrokerConfig(
    topic=TopicConfig(segment_bytes=1024, index_interval_bytes=128, cleanup_policy="compact")
)
RUNS_MAX = 10_000


class SteppingClock(ManualClock):
    """A clock that advances by 1 ms at each look, so that a slice has few steps."""

    def now_ms(self) -> int:
        self.advance(1)
        return super().now_ms()


class CleanerHarness:
    """A data directory in memory with its cleaner, run by the test."""

    def __init__(self, config: BrokerConfig = CONFIG, clock: ManualClock | None = None) -> None:
        self.files = MemoryFiles()
        self.clock = ManualClock(WALL_MS) if clock is None else clock
        self.over: list[tuple[list[str], int]] = []
        self.open(config)

    def open(self, config: BrokerConfig = CONFIG) -> None:
        self.directory = LogDirectory.open("/data", files=self.files, config=config)
        self.cleaner = Cleaner(
            self.directory,
            clock=self.clock,
            stable_offset=lambda topic, number: self.log(topic, number).log_end_offset,
            on_replaced=lambda paths, in_ms: self.over.append((paths, in_ms)),
        )

    def log(self, topic: str = "t", number: int = 0) -> PartitionLog:
        return self.directory.log(topic, number)

    def topic(self, name: str = "t", **configs: str) -> PartitionLog:
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        self.directory.create_topic(name, 1, settings)
        return self.log(name)

    def path(self, topic: str, name: str) -> str:
        return f"/data/{self.folder(topic)}/{name}"

    def folder(self, topic: str) -> str:
        return partition_folder(self.directory.topics[topic].topic_id, 0)

    def names(self, topic: str = "t") -> list[str]:
        return self.files.list(f"/data/{self.folder(topic)}")

    def run_until(self, done: Callable[[], bool]) -> None:
        """Run the cleaner at its due times until the condition holds."""
        for _ in range(RUNS_MAX):
            if done():
                return
            self.run()
        raise AssertionError(f"the condition did not hold after {RUNS_MAX} runs")

    def run(self) -> None:
        due_ms = self.cleaner.next_due_ms
        assert due_ms is not None
        self.clock.advance(max(due_ms - self.clock.now_ms(), 0))
        self.cleaner.run()

    def run_for(self, ms: int) -> None:
        end_ms = self.clock.now_ms() + ms
        for _ in range(RUNS_MAX):
            due_ms = self.cleaner.next_due_ms
            assert due_ms is not None
            if due_ms >= end_ms:
                break
            self.run()
        self.clock.advance(max(end_ms - self.clock.now_ms(), 0))


def fill(
    log: PartitionLog, batches: int = 40, *, timestamp_ms: int = WALL_MS, keys: int = 5
) -> None:
    for number in range(batches):
        pairs = ((f"k{number % keys}", str(number)), ("x", "x" * 40))
        log.append(keyed(*pairs, timestamp_ms=timestamp_ms), now_ms=0)
    log.flush()


def is_clean(log: PartitionLog) -> Callable[[], bool]:
    return lambda: log.cleaned.read() > 0


def test_compaction_keeps_last_values_and_retires_old_files() -> None:
    here = CleanerHarness()
    log = here.topic(file_delete_delay_ms="5000")
    fill(log)
    values, before = seen(log), len(read_records(log))
    segments = [name for name in here.names() if name.endswith(".log")]
    here.run_until(is_clean(log))
    assert seen(log) == values
    assert len(read_records(log)) < before
    here.run_until(lambda: bool(here.over))
    ((paths, in_ms),) = here.over
    assert in_ms == 5000
    folder = f"/data/{here.folder('t')}/"
    assert {path.removeprefix(folder) for path in paths} == {
        name for name in here.names() if name.endswith(".deleted")
    }
    assert len(paths) == 3 * (len(segments) - 1)
    here.directory.remove_retired(paths)
    assert not [name for name in here.names() if name.endswith(".deleted")]
    assert seen(log) == values


def test_unreadable_batches_are_counted() -> None:
    here = CleanerHarness()
    log = here.topic()
    for data in (SPOILED["plain"], SPOILED["zstd"]):
        force(log, data)
    fill(log)
    here.run_until(is_clean(log))
    here.run()
    assert here.cleaner.unreadable_batches == 2


def test_an_idle_cleaner_checks_again_after_its_back_off() -> None:
    here = CleanerHarness()
    log = here.topic()
    here.run()
    assert here.cleaner.next_due_ms == here.clock.now_ms() + BACKOFF_MS
    fill(log)
    here.run_for(BACKOFF_MS)
    assert log.cleaned.read() == 0
    here.run()
    here.run_until(is_clean(log))


def test_the_cleaner_keeps_to_its_bytes_per_second() -> None:
    def took_ms(bytes_per_second: int) -> tuple[int, int]:
        config = replace(CONFIG, log_cleaner_io_max_bytes_per_second=bytes_per_second)
        here = CleanerHarness(config, SteppingClock(WALL_MS))
        log = here.topic()
        fill(log, 200)
        size_bytes, begun_ms = log.size_bytes, here.clock.now_ms()
        here.run_until(is_clean(log))
        return here.clock.now_ms() - begun_ms, size_bytes

    free_ms, _ = took_ms(2**63 - 1)
    for bytes_per_second in (10_000, 40_000):
        bound_ms, size_bytes = took_ms(bytes_per_second)
        # Dirty segments are read twice, and their remaining records are written.
        least_ms = 2 * size_bytes * 1000 // bytes_per_second
        assert least_ms * 0.9 < bound_ms < 2 * least_ms + free_ms


def test_the_cleaner_pauses_as_long_as_a_slice_took() -> None:
    here = CleanerHarness(clock=SteppingClock(WALL_MS))
    fill(here.topic(), 200)
    paused_ms = []
    for _ in range(50):
        begun_ms = here.clock.now_ms()
        here.cleaner.run()
        ended_ms = here.clock.now_ms()
        due_ms = here.cleaner.next_due_ms
        assert due_ms is not None
        paused_ms.append(due_ms - ended_ms)
        assert ended_ms - begun_ms <= SLICE_MS + 2
        here.clock.advance(max(due_ms - ended_ms, 0))
    assert min(paused_ms) >= PAUSE_MS_MIN
    assert max(paused_ms) >= SLICE_MS - 1


def test_the_dirtiest_log_is_cleaned_first() -> None:
    here = CleanerHarness()
    half, whole = here.topic("half"), here.topic("whole")
    fill(half)
    here.run_until(is_clean(half))
    clean_offset = half.cleaned.read()
    # All keys are new, so all records stay and the log does not become the dirtiest.
    fill(half, 60, keys=60)
    here.run_until(lambda: half.cleaned.read() > clean_offset)
    clean_offset = half.cleaned.read()
    fill(half, 5)
    here.run_for(3 * BACKOFF_MS)
    assert half.cleaned.read() == clean_offset
    fill(half, 70, keys=70)
    fill(whole)
    here.run_until(lambda: bool(whole.cleaned.read() or half.cleaned.read() > clean_offset))
    assert whole.cleaned.read() > 0
    assert half.cleaned.read() == clean_offset
    here.run_until(lambda: half.cleaned.read() > clean_offset)


def test_young_records_wait_for_their_minimum_lag() -> None:
    here = CleanerHarness()
    log = here.topic(min_compaction_lag_ms="60000")
    fill(log)
    here.run_for(50_000)
    assert log.cleaned.read() == 0
    here.run_for(30_000)
    assert log.cleaned.read() > 0


def test_old_records_are_compacted_at_any_dirty_ratio() -> None:
    here = CleanerHarness()
    log = here.topic(min_cleanable_dirty_ratio="0.9", max_compaction_lag_ms="600000")
    fill(log, 60, keys=60)
    here.run_until(is_clean(log))
    clean_offset = log.cleaned.read()
    fill(log, 10, timestamp_ms=here.clock.wall_ms())
    here.run_for(500_000)
    assert log.cleaned.read() == clean_offset
    here.run_for(150_000)
    assert log.cleaned.read() > clean_offset


def test_a_log_on_a_full_disk_is_retried_after_a_back_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    here = CleanerHarness()
    log = here.topic()
    fill(log)
    values, names = seen(log), here.names()
    here.files.fail_next_write(errno.ENOSPC)
    here.run()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No space left" in caplog.text
    assert here.names() == names
    failed_ms = here.clock.now_ms()
    here.run_for(BACKOFF_MS - 1)
    assert log.cleaned.read() == 0
    log.append(keyed(("after", "it")), now_ms=0)
    here.run_until(is_clean(log))
    assert here.clock.now_ms() >= failed_ms + BACKOFF_MS
    assert seen(log) == {**values, b"after": b"it"}
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1


def test_a_damaged_log_is_logged_once_and_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    here = CleanerHarness()
    damaged, other = here.topic("damaged"), here.topic("other")
    fill(damaged, 80)
    fill(other)
    path = here.path("damaged", sorted(n for n in here.names("damaged") if n[-4:] == ".log")[1])
    data = bytearray(read_file(here.files, path))
    data[100] ^= 1
    overwrite(here.files, path, bytes(data))
    names = here.names("damaged")
    here.run_until(is_clean(other))
    here.run_for(10 * BACKOFF_MS)
    assert damaged.cleaned.read() == 0
    assert here.names("damaged") == names
    assert read_file(here.files, path) == data
    logged = [record for record in caplog.records if "is not compacted" in record.message]
    assert [record.levelname for record in logged] == ["ERROR"]
    assert path in caplog.text


def test_disabling_the_cleaner_abandons_its_work() -> None:
    here = CleanerHarness(clock=SteppingClock(WALL_MS))
    log = here.topic()
    fill(log, 200)
    names = here.names()
    here.run_until(lambda: any(name.endswith(".cleaned") for name in here.names()))
    altered = replace(here.directory.altered, node={"log.cleaner.enable": "false"})
    here.directory.take_settings(altered)
    here.cleaner.run()
    assert here.names() == names
    here.run_for(2 * BACKOFF_MS)
    assert log.cleaned.read() == 0


def test_a_log_trimmed_during_a_cleaning_is_compacted_next_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    here = CleanerHarness(clock=SteppingClock(WALL_MS))
    log = here.topic()
    fill(log, 200)
    here.run_until(lambda: any(name.endswith(".cleaned") for name in here.names()))
    log.advance_start(150)
    for path in log.retire():
        here.files.remove(path)
    values = seen_from(log, 150)
    here.run_until(is_clean(log))
    assert log.log_start_offset == 150
    assert seen_from(log, 150) == values
    assert not [name for name in here.names() if name.endswith((".cleaned", ".swap"))]
    assert caplog.records == []


def seen_from(log: PartitionLog, offset: int) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in read_records(log, offset)}


def test_a_topic_deleted_during_a_cleaning_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    here = CleanerHarness(clock=SteppingClock(WALL_MS))
    fill(here.topic(), 200)
    other = here.topic("other", min_cleanable_dirty_ratio="0")
    fill(other, 10)
    here.run_until(lambda: any(name.endswith(".cleaned") for name in here.names()))
    here.directory.delete_topic("t")
    here.run_until(is_clean(other))
    assert caplog.records == []
    assert not [name for name in here.files.list("/data") if name.endswith(".deleted")]


def test_a_log_deleted_during_its_back_off_is_garbage_collected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL, "streamlog")  # A log line would keep the log alive.
    here = CleanerHarness()
    fill(here.topic())
    here.files.fail_next_write(errno.ENOSPC)
    here.run()
    log = weakref.ref(here.log())
    here.directory.delete_topic("t")
    gc.collect()
    assert log() is None


def test_a_swapped_segment_counts_before_it_is_renamed() -> None:
    here = CleanerHarness(clock=SteppingClock(WALL_MS))
    log = here.topic()
    fill(log, 200)
    values = seen(log)
    here.run_until(lambda: any(name.endswith(".swap") for name in here.names()))
    assert seen(log) == values
    here.cleaner.close()
    assert not [name for name in here.names() if name.endswith((".cleaned", ".swap"))]
    assert seen(log) == values
    here.files.crash(keep_bytes=None)
    here.open()
    assert seen(here.log()) == values
    assert not [name for name in here.names() if name.endswith(".deleted")]


def test_the_cleaner_waits_while_a_job_runs_in_the_thread() -> None:
    async def main() -> None:
        here = CleanerHarness()
        log = here.topic()
        fill(log, 100)
        values = seen(log)
        thread, ended = Offload(), asyncio.Event()
        cleaner = Cleaner(
            here.directory,
            clock=here.clock,
            stable_offset=lambda *_: log.log_end_offset,
            on_replaced=lambda *_: None,
            thread=thread,
            on_job_done=ended.set,
        )
        jobs = 0
        while not log.cleaned.read():
            due_ms = cleaner.next_due_ms
            if due_ms is None:
                jobs += 1
                await ended.wait()
                ended.clear()
            else:
                here.clock.advance(max(due_ms - here.clock.now_ms(), 0))
                cleaner.run()
        assert jobs > 10
        assert seen(log) == values
        thread.close()
        cleaner.close()

    asyncio.run(main())
