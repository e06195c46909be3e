"""StoredLog: a reader of the files of a broker that compacts them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from streamlog.broker.config.broker import BrokerConfig, TopicConfig
from streamlog.broker.storage.compaction.cleaning import Cleaning
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.errors import CorruptData
from streamlog.records.batch import LogRecord, RecordBatch
from streamlog.stored_log import StoredLog
from tests.broker.storage.compaction.test_cleaning import MEMORY_BYTES, flushed_dirtiness, keyed

CONFIG = BrokerConfig(
    topic=TopicConfig(segment_bytes=1024, index_interval_bytes=128, cleanup_policy="compact")
)
KEYS = 7
Values = dict[bytes | None, bytes | None]


def fill(log: PartitionLog, numbers: Iterable[int]) -> None:
    for number in numbers:
        log.append(keyed((f"k{number % KEYS}", f"{number:040}"), ("x", f"{number:040}")), now_ms=0)


def whole(stored: StoredLog) -> Iterator[RecordBatch]:
    return stored.read("t", 0, *stored.offsets("t", 0))


def checked(batches: Iterable[RecordBatch]) -> Iterator[LogRecord]:
    """Yield the records; check CRCs and the order of offsets."""
    previous = -1
    for batch in batches:
        batch.check_crc()
        for record in batch.records():
            assert record.offset > previous
            previous = record.offset
            yield record


def last_values(records: Iterable[LogRecord]) -> Values:
    return {record.key: record.value for record in records}


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[LogDirectory]:
    directory = LogDirectory.open(str(tmp_path), config=CONFIG)
    directory.create_topic("t", 1)
    yield directory
    directory.close()


def test_the_last_values_are_read_at_every_step_of_a_compaction(directory: LogDirectory) -> None:
    log = directory.log("t", 0)
    fill(log, range(60))
    with ExitStack() as stack:
        early = stack.enter_context(StoredLog(directory.path))
        slow, slowly = checked(whole(early)), list[LogRecord]()
        for rounds in range(2):
            with StoredLog(directory.path) as fresh:
                values = last_values(checked(whole(fresh)))
            cleaning = Cleaning(log, flushed_dirtiness(log), memory_bytes=MEMORY_BYTES, wall_ms=0)
            for _ in cleaning.steps():
                # In the second round the end that it knows lies before the newest values.
                seen = last_values(checked(whole(early)))
                assert seen == values if rounds == 0 else len(seen) <= len(values)
                with StoredLog(directory.path) as late:
                    assert last_values(checked(whole(late))) == values
                slowly += [record for record in [next(slow, None)] if record is not None]
            assert cleaning.result is not None
            if rounds == 0:
                assert last_values([*slowly, *slow]) == values
                slow, slowly = checked(whole(early)), []
                fill(log, range(60, 120))


def test_damage_is_raised_to_the_reader(directory: LogDirectory) -> None:
    log = directory.log("t", 0)
    fill(log, range(60))
    log.flush()
    path = sorted(Path(directory.path).glob("p-*/*.log"))[1]
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with StoredLog(directory.path) as stored, pytest.raises(CorruptData, match="CRC"):
        list(checked(whole(stored)))
    del data[300:]
    path.write_bytes(data)
    with StoredLog(directory.path) as stored, pytest.raises(CorruptData, match="damaged"):
        list(checked(whole(stored)))
