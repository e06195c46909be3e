"""What indexes cost: a lookup, a clean and an unclean start of 1,000 partitions, their memory.

`python -m benchmarks.indexing [DIRECTORY]`; see docs/decisions/004. Lookups are made cold (an
offset that no reader has come to), so that every one of them goes through the index.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from streamlog.broker.config.broker import BrokerConfig, TopicConfig
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.records.batch import encode_batch

PARTITIONS = 1000
BATCHES = 24
LARGE_BYTES = 768 * 1024 * 1024
LOOKUPS = 20_000
Result = TypeVar("Result")
BATCH = encode_batch([(1_000 + number, None, bytes(200), ()) for number in range(20)])


def resident_mib() -> float:
    """What this process has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024**2


def reserved_mib(path: str, suffix: str) -> float:
    """What the disk has given to the files with this suffix."""
    blocks = (file.stat().st_blocks for file in Path(path).rglob(f"*{suffix}"))
    return sum(blocks) * 512 / 1024**2


def timed(what: Callable[[], Result]) -> tuple[float, Result]:
    """CPU seconds that it took, and what came of it."""
    begun = time.process_time()
    result = what()
    return time.process_time() - begun, result


def fill(log: PartitionLog, size_bytes: int) -> None:
    """Append batches of records with rising timestamps."""
    timestamp_ms = 1_000
    while log.size_bytes < size_bytes:
        records = [(timestamp_ms + number, None, bytes(200), ()) for number in range(20)]
        log.append(encode_batch(records), now_ms=0)
        timestamp_ms += 20


def lookup_us(what: Callable[[int], object], values: list[int]) -> float:
    """CPU microseconds a call."""
    begun = time.process_time()
    for value in values:
        what(value)  # What comes of it holds a file open, and goes.
    return (time.process_time() - begun) / len(values) * 1e6


def lookups(path: str) -> None:
    """One log with large segments, sealed and active, read from everywhere."""
    config = BrokerConfig(topic=TopicConfig(segment_bytes=512 * 1024 * 1024))
    directory = LogDirectory.open(path, config=config)
    log = directory.create_topic("large", 1).partitions[0]
    fill(log, LARGE_BYTES)
    chance = random.Random(7)  # noqa: S311 - the same places every time
    sealed = [chance.randrange(log.active_base_offset) for _ in range(LOOKUPS)]
    active = [chance.randrange(log.active_base_offset, log.log_end_offset) for _ in range(LOOKUPS)]
    for name, offsets in (("sealed", sealed), ("active", active)):
        floors = [log._segments.segment_of(each) for each in offsets[:1]]  # noqa: SLF001
        index = floors[0]._offsets  # noqa: SLF001
        relative = [each - floors[0].base_offset for each in offsets]
        print(f"{name:8} index lookup        {lookup_us(index.floor, relative):8.1f} us")
        read = lookup_us(lambda offset: log.range(offset, max_bytes=1), offsets)
        print(f"{name:8} read from an offset {read:8.1f} us")
        times = [1_000 + each for each in offsets[: LOOKUPS // 10]]
        print(f"{name:8} offset for a time   {lookup_us(log.offset_for_timestamp, times):8.1f} us")
    directory.close()


def starts(path: str) -> None:
    """1,000 partitions: filled, closed, opened; opened after a kill."""
    before = resident_mib()
    directory = LogDirectory.open(path)
    logs = list(directory.create_topic("many", PARTITIONS).partitions.values())
    print(f"made     reserved for indexes {reserved_mib(path, 'index'):8.1f} MiB")
    for log in logs:
        for _ in range(BATCHES):
            log.append(BATCH, now_ms=0)
    print(f"written  reserved for indexes {reserved_mib(path, 'index'):8.1f} MiB")
    seconds = timed(directory.close)[0]
    print(f"close               {seconds * 1e3:8.0f} ms")
    del directory, logs, log
    seconds, opened = timed(lambda: LogDirectory.open(path))
    print(f"clean start         {seconds * 1e3:8.0f} ms")
    print(f"resident since then {resident_mib() - before:8.1f} MiB")
    for log in opened.topics["many"].partitions.values():
        log.append(BATCH, now_ms=0)
        log.range(240, max_bytes=1)
    print(f"read from each      {resident_mib() - before:8.1f} MiB")
    indexes = [log._segments.active._offsets for log in opened.topics["many"].partitions.values()]  # noqa: SLF001
    turns = lookup_us(lambda number: indexes[number % PARTITIONS].floor(100), [*range(LOOKUPS)])
    print(f"index lookup in one after the other {turns:8.1f} us")
    opened._discard()  # noqa: SLF001 - as a kill does
    seconds, opened = timed(lambda: LogDirectory.open(path))
    print(f"unclean start       {seconds * 1e3:8.0f} ms")
    opened.close()


def main() -> None:
    """Print both tables."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as path:
        starts(f"{path}/starts")
        lookups(f"{path}/lookups")


if __name__ == "__main__":
    main()
