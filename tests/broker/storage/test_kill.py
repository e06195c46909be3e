"""Killing a writing process loses no acknowledged record, while another process reads.

A kill leaves preallocated room in the indexes: no reader takes it for entries, and no restart
keeps it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from streamlog.broker.config.broker import BrokerConfig, TopicConfig
from streamlog.broker.storage.catalog import CLEAN_SHUTDOWN
from streamlog.broker.storage.log_directory import LogDirectory
from tests.broker.storage.batches import batch, read_records

CONFIG = BrokerConfig(topic=TopicConfig(segment_bytes=1_000_000, index_interval_bytes=1000))
ACKNOWLEDGED_MIN = 3000
ROOT = Path(__file__).parents[3]

WRITE = """
import sys
from streamlog.broker.storage.log_directory import LogDirectory
from tests.broker.storage.batches import batch
from tests.broker.storage.test_kill import CONFIG

directory = LogDirectory.open(sys.argv[1], config=CONFIG)
log = directory.log("a", 0)
producer_id = directory.next_producer_id()
sequence = 0
while True:
    data = batch(3, value=b"x" * 500, producer=(producer_id, 0, sequence))
    sequence += 3
    print(log.append(data, now_ms=0).last_offset, flush=True)
"""


def check(directory: LogDirectory) -> int:
    log = directory.log("a", 0)
    assert [record.offset for record in read_records(log)] == list(range(log.log_end_offset))
    return log.log_end_offset


def indexes(path: Path) -> dict[str, bytes]:
    # A kill right after a segment has begun: its index has no entries, so it needs no file.
    read = ((str(each), each.read_bytes()) for each in path.rglob("*index"))
    return {name: content for name, content in read if content}


def test_a_killed_writer_loses_no_acknowledged_record(tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    directory = LogDirectory.open(path, config=CONFIG)
    directory.create_topic("a", 1)
    directory.close()
    acknowledged = -1
    for _ in range(3):
        command = [sys.executable, "-c", WRITE, path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
            assert writer.stdout is not None
            enough = acknowledged + ACKNOWLEDGED_MIN
            while acknowledged < enough:
                acknowledged = int(writer.stdout.readline())
            reader = LogDirectory.open(path, read_only=True)
            assert check(reader) > acknowledged
            writer.kill()
            rest = writer.stdout.read().split("\n")
        # The last line may be cut off by the kill.
        acknowledged = max([acknowledged, *map(int, rest[:-1])])
        directory = LogDirectory.open(path, config=CONFIG)
        assert directory.damage == ()
        assert check(directory) > acknowledged
        acknowledged = directory.log("a", 0).append(batch(2), now_ms=0).last_offset
        directory.close()
        written = indexes(tmp_path)
        for each in tmp_path.rglob("*index"):
            each.unlink()
        (tmp_path / "data" / CLEAN_SHUTDOWN).unlink()
        directory = LogDirectory.open(path, config=CONFIG)
        check(directory)
        directory.close()
        assert indexes(tmp_path) == written
