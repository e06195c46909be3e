"""Batches and logs for the tests of the broker's storage."""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.broker.config.broker import TopicConfig
from streamlog.broker.storage.disk.files import (
    Files,
    make_durable_directory,
    read_file,
    write_whole,
)
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.records.batch import LogRecord, RecordBatch, encode_batch, split_batches

DIRECTORY = "data/p-0"
SMALL = TopicConfig(segment_bytes=1024, index_interval_bytes=128)


def batch(
    count: int = 1,
    *,
    timestamp_ms: int = 1_000,
    value: bytes = b"value",
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """Return a client's batch of `count` records; `producer` is id, epoch and first sequence."""
    records = [(timestamp_ms + number, b"key", value, ()) for number in range(count)]
    producer_id, epoch, sequence = producer
    return encode_batch(
        records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )


def stamped(timestamps: Sequence[int]) -> bytes:
    """Return a client's batch with a record for each timestamp."""
    return encode_batch([(timestamp_ms, None, b"v", ()) for timestamp_ms in timestamps])


def new_log(files: Files | None = None, config: TopicConfig = SMALL) -> PartitionLog:
    """Create an empty log, in memory by default."""
    files = MemoryFiles() if files is None else files
    make_durable_directory(files, DIRECTORY)
    return PartitionLog.create(files, DIRECTORY, name="topic-0", config=config)


def reopened(
    files: Files, *, config: TopicConfig = SMALL, clean: bool = False, recovery_point: int = 0
) -> PartitionLog:
    """Open the log that `new_log` has created."""
    return PartitionLog.open(
        files,
        DIRECTORY,
        name="topic-0",
        config=config,
        clean=clean,
        recovery_point=recovery_point,
    )


def read_batches(log: PartitionLog, offset: int = 0) -> list[RecordBatch]:
    """Read every batch from `offset` to the end, and check its CRC."""
    found: list[RecordBatch] = []
    while data := log.read(offset, max_bytes=700):
        for read in split_batches(data):
            read.check_crc()
            found.append(read)
            offset = read.next_offset
    return found


def read_records(log: PartitionLog, offset: int = 0) -> list[LogRecord]:
    """Read every record from `offset` to the end."""
    records = [record for found in read_batches(log, offset) for record in found.records()]
    return [record for record in records if record.offset >= offset]


def log_files(files: Files, suffix: str = ".log") -> list[str]:
    """Return the paths of the log's files that end in `suffix`."""
    return [f"{DIRECTORY}/{name}" for name in files.list(DIRECTORY) if name.endswith(suffix)]


def contents(files: Files, suffix: str) -> dict[str, bytes]:
    """Return the contents of the log's files that end in `suffix`, by path."""
    return {path: read_file(files, path) for path in log_files(files, suffix)}


def overwrite(files: Files, path: str, data: bytes) -> None:
    """Replace a file's content, as a fault would."""
    file = files.open(path, writable=True)
    file.truncate(0)
    write_whole(file, data, 0)
    file.sync()
    file.close()


def files_of(log: PartitionLog) -> Files:
    """Return the disk of a log."""
    return log._segments._files
