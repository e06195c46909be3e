"""Another thread writes checkpoints: none overwrites a newer one."""

from __future__ import annotations

import json
from contextlib import closing
from threading import Event, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.storage.catalog import (
    CHECKPOINTS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    Catalog,
)
from streamlog.broker.storage.checkpoints import LogCheckpoints
from streamlog.broker.storage.data_directory import partition_folder
from streamlog.broker.storage.disk.files import read_file
from streamlog.broker.storage.disk.memory_files import MemoryFile, MemoryFiles
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.errors import CorruptData
from tests.broker.storage.batches import SMALL, batch, new_log


class SlowFiles(MemoryFiles):
    """A disk on which a sync of the checkpoints waits for `proceed`."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = Event()
        self.proceed = Event()
        self.proceed.set()

    def open(self, path: str, *, writable: bool = False) -> MemoryFile:
        content = self._content(path, make=writable)
        kind = SlowFile if path.endswith(f"{CHECKPOINTS}.tmp") else MemoryFile
        return kind(self, content, writable=writable)


class SlowFile(MemoryFile):
    def sync(self) -> None:
        files = self._files
        assert isinstance(files, SlowFiles)
        files.reached.set()
        assert files.proceed.wait(60)
        super().sync()


def starts(files: MemoryFiles) -> list[int]:
    content = json.loads(read_file(files, f"data/{CHECKPOINTS}"))
    return list(content["log_start_offsets"].values())


def test_an_older_checkpoint_does_not_overwrite_a_newer_one() -> None:
    files = MemoryFiles()
    log = new_log(files)
    log.append(batch(10), now_ms=0)
    checkpoints = LogCheckpoints(Catalog(files, "data"))
    taken = []
    for offset in (3, 5, 7):
        log.advance_start(offset)
        taken.append(checkpoints.take({"p": log}))
    assert not checkpoints.is_kept(taken[1])
    for which, kept in ((1, 5), (0, 5), (2, 7), (1, 7)):
        checkpoints.keep(taken[which])
        assert starts(files) == [kept]
    assert checkpoints.is_kept(taken[2])
    assert checkpoints.is_kept(checkpoints.take({"p": log}))


def test_a_slow_checkpoint_does_not_undo_a_newer_one() -> None:
    files = SlowFiles()
    directory = LogDirectory.open("data", files=files)
    (log,) = directory.create_topic("t", 1).partitions.values()
    log.append(batch(10), now_ms=0)
    log.advance_start(3)
    slow = directory.begin_checkpoints()
    assert slow is not None
    files.reached.clear()
    files.proceed.clear()
    thread = Thread(target=slow.result)
    thread.start()
    assert files.reached.wait(60)
    log.advance_start(7)
    newer = directory.begin_checkpoints()
    assert newer is not None
    other = Thread(target=newer.result)
    other.start()
    files.proceed.set()
    for each in (thread, other):
        each.join(60)
    assert starts(files) == [7]
    assert directory.begin_checkpoints(if_changed=True) is None
    directory.close()


def stored(files: MemoryFiles) -> list[dict[str, int]]:
    content = json.loads(read_file(files, f"data/{CHECKPOINTS}"))
    return [content[kind] for kind in (RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS)]


def looked_at(directory: LogDirectory) -> list[dict[str, int]]:
    """Return what checkpoints should contain, by a look at every log."""
    logs = {
        partition_folder(topic.topic_id, number): log
        for topic in directory.topics.values()
        for number, log in topic.partitions.items()
    }
    return [
        {folder: log.recovery_point for folder, log in logs.items()},
        {folder: log.log_start_offset for folder, log in logs.items() if log.log_start_offset},
        {folder: log.high_watermark for folder, log in logs.items() if log.high_watermark},
    ]


def change(log: PartitionLog, what: str, number: int) -> None:
    """Change a log; `number` is a size or an offset."""
    offset = min(max(number, log.log_start_offset), log.log_end_offset)
    match what:
        case "append":
            log.append(batch(number + 1), now_ms=0)
        case "flush":
            log.flush()
        case "sync":
            sync = log.begin_sync(sealed_only=number % 2 == 0)
            if sync is not None:
                sync.run()
                log.end_sync(sync)
        case "start":
            log.advance_start(offset)
        case "expire":
            log.expire(high_watermark=log.log_end_offset, wall_ms=2**50, now_ms=0)
        case "mark":
            log.high_watermark = offset
        case "cut":
            log.truncation.begin(offset)
            log.truncation.cut(offset)
        case "restart":
            log.truncation.begin_restart(number)
            log.truncation.restart(number)


CHANGES = ("append", "flush", "sync", "start", "expire", "mark", "cut", "restart", "grow", "delete")
STEPS = st.tuples(st.sampled_from(CHANGES), st.integers(0, 2), st.integers(0, 25))


@given(st.lists(STEPS, max_size=25), st.booleans())
def test_skipped_checkpoints_are_those_of_a_look_at_every_log(
    steps: list[tuple[str, int, int]],
    syncs_off_loop: bool,
) -> None:
    files = MemoryFiles()
    directory = LogDirectory.open("data", files=files, config=BrokerConfig(topic=SMALL))
    directory.create_topic("t", 2)
    for what, which, number in steps:
        if what == "grow":
            directory.create_topic(f"grown-{len(directory.topics)}", number + 1)
        elif what == "delete" and len(directory.topics) > 1:
            directory.delete_topic([*directory.topics][1])
        else:
            log = directory.log("t", which % 2)
            log.syncs_off_loop = syncs_off_loop
            change(log, what, number)
        directory.write_checkpoints(if_changed=True)
        assert stored(files) == looked_at(directory)
        for topic in directory.topics.values():
            for log in topic.partitions.values():
                log.retire()
        directory.write_checkpoints(if_changed=True)
        assert stored(files) == looked_at(directory)
    directory.close()


def test_logs_that_are_not_touched_are_not_looked_at() -> None:
    directory = LogDirectory.open("data", files=MemoryFiles())
    (log,) = directory.create_topic("t", 1).partitions.values()
    directory.write_checkpoints(if_changed=True)
    assert not log.is_touched
    # Touched, and what is kept of it is unchanged: the next look is needed, those after it are not.
    log.high_watermark = 0
    assert log.is_touched
    assert directory.begin_checkpoints(if_changed=True) is None
    assert directory._checkpoints.are_current([log], {})
    directory.close()


def test_damage_that_a_read_finds_holds_the_recovery_point_back() -> None:
    files = MemoryFiles()
    directory = LogDirectory.open("data", files=files)
    topic = directory.create_topic("t", 1)
    (log,) = topic.partitions.values()
    for _ in range(3):
        log.append(batch(), now_ms=0)
    log.flush()
    directory.write_checkpoints(if_changed=True)
    folder = partition_folder(topic.topic_id, 0)
    assert stored(files)[0] == {folder: 3}
    size_bytes = len(batch())
    with closing(files.open(f"data/{folder}/{0:020d}.log", writable=True)) as file:
        file.write(b"?", size_bytes + 16)  # The magic byte of the second batch.
    with pytest.raises(CorruptData):
        log.read(1, max_bytes=100)
    directory.write_checkpoints(if_changed=True)
    assert stored(files)[0] == {folder: 1}
    directory.close()
