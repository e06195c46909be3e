"""What a start reads: nothing of the log after a clean shutdown, tails after a crash."""

from __future__ import annotations

from streamlog.broker.config.broker import BrokerConfig, TopicConfig
from streamlog.broker.storage.catalog import CLEAN_SHUTDOWN
from streamlog.broker.storage.disk.memory_files import MemoryFile, MemoryFiles
from streamlog.broker.storage.log.segment import LOG_SUFFIX
from streamlog.broker.storage.log_directory import LogDirectory
from tests.broker.storage.batches import batch, overwrite, read_records

PARTITIONS = 40
CONFIG = BrokerConfig(topic=TopicConfig(segment_bytes=2048, index_interval_bytes=128))


class CountingFile(MemoryFile):
    """A file that counts the bytes read from logs."""

    path = ""

    def read(self, size_bytes: int, position: int) -> bytes:
        data = super().read(size_bytes, position)
        files = self._files
        assert isinstance(files, CountingFiles)
        if self.path.endswith(LOG_SUFFIX):
            files.read_bytes += len(data)
        return data


class CountingFiles(MemoryFiles):
    """A disk that counts the bytes read from logs."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0

    def open(self, path: str, *, writable: bool = False) -> MemoryFile:
        file = CountingFile(self, self._content(path, make=writable), writable=writable)
        file.path = path
        return file


def filled() -> tuple[CountingFiles, LogDirectory]:
    files = CountingFiles()
    directory = LogDirectory.open("data", files=files, config=CONFIG)
    for log in directory.create_topic("t", PARTITIONS).partitions.values():
        for number in range(20):
            data = batch(2, timestamp_ms=number, value=bytes(100), producer=(7, 0, 2 * number))
            log.append(data, now_ms=0)
    directory.create_topic("empty", PARTITIONS)
    return files, directory


def reopened(files: CountingFiles) -> LogDirectory:
    files.read_bytes = 0
    return LogDirectory.open("data", files=files, config=CONFIG)


def test_a_clean_start_reads_no_log() -> None:
    files, directory = filled()
    ends = [log.end for log in directory.topics["t"].partitions.values()]
    directory.close()
    again = reopened(files)
    logs = list(again.topics["t"].partitions.values())
    assert files.read_bytes == 0
    assert [log.end for log in logs] == ends
    assert all(log.recovery_point == log.log_end_offset == 40 for log in logs)
    duplicate = batch(2, timestamp_ms=19, value=bytes(100), producer=(7, 0, 38))
    assert logs[0].append(duplicate, now_ms=0).duplicate
    assert logs[0].append(batch(), now_ms=0).base_offset == 40
    assert files.read_bytes == 0
    assert len(read_records(logs[0])) == 41
    assert logs[1].max_timestamp() == (39, 20)


def test_a_second_clean_start_reads_no_log() -> None:
    files, directory = filled()
    directory.close()
    reopened(files).close()
    assert files.read_bytes == 0
    assert reopened(files).log("t", 3).log_end_offset == 40
    assert files.read_bytes == 0


def test_an_unclean_start_reads_from_the_recovery_point() -> None:
    files, directory = filled()
    directory.flush()
    directory.log("t", 0).append(batch(value=bytes(50)), now_ms=0)
    size_bytes = directory.log("t", 0).end.size_bytes
    files.crash(keep_bytes=None)
    again = reopened(files)
    # A segment is scanned from its start, and batches newer than the snapshot are replayed.
    assert size_bytes <= files.read_bytes <= PARTITIONS * 2 * 2048
    assert again.log("t", 0).log_end_offset == 41


def test_a_log_changed_after_a_clean_shutdown_is_damaged() -> None:
    files, directory = filled()
    folder = f"p-{directory.topics['t'].topic_id.hex()}-5"
    directory.close()
    newest = max(name for name in files.list(f"data/{folder}") if name.endswith(LOG_SUFFIX))
    overwrite(files, f"data/{folder}/{newest}", b"cut")
    again = reopened(files)
    logs = [log for topic in again.topics.values() for log in topic.partitions.values()]
    damaged = [log for log in logs if log.damage]
    assert len(damaged) == 1


def test_an_unreadable_clean_shutdown_file_costs_a_recovery() -> None:
    files, directory = filled()
    directory.close()
    overwrite(files, f"data/{CLEAN_SHUTDOWN}", b'{"version": 1, "ends": {"p": "?"}}')
    again = reopened(files)
    assert files.read_bytes > 0
    assert again.damage == ()
    assert CLEAN_SHUTDOWN not in files.list("data")


def test_idle_partitions_keep_no_file_open() -> None:
    files, directory = filled()
    directory.close()
    logs = reopened(files).topics["t"].partitions.values()
    assert all(log._segments.active._appended.file is None for log in logs)
