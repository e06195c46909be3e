"""Checkpoints are kept by another thread: none takes the place of a newer one."""

from __future__ import annotations

import json
from threading import Event, Thread

from streamlog.broker.storage.catalog import CHECKPOINTS, Catalog
from streamlog.broker.storage.disk.files import read_file
from streamlog.broker.storage.disk.memory_files import MemoryFile, MemoryFiles
from streamlog.broker.storage.log_directory import LogCheckpoints, LogDirectory
from tests.broker.storage.batches import batch, new_log


class SlowFiles(MemoryFiles):
    """A disk on which the next sync of the checkpoints takes until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = Event()
        self.go_on = Event()
        self.go_on.set()

    def open(self, path: str, *, writable: bool = False) -> MemoryFile:
        content = self._content(path, make=writable)
        kind = SlowFile if path.endswith(f"{CHECKPOINTS}.tmp") else MemoryFile
        return kind(self, content, writable=writable)


class SlowFile(MemoryFile):
    def sync(self) -> None:
        files = self._files
        assert isinstance(files, SlowFiles)
        files.reached.set()
        assert files.go_on.wait(60)
        super().sync()


def starts(files: MemoryFiles) -> list[int]:
    content = json.loads(read_file(files, f"data/{CHECKPOINTS}"))
    return list(content["log_start_offsets"].values())


def test_what_was_taken_later_stays() -> None:
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


def test_a_thread_that_is_slow_is_waited_for_and_does_not_undo() -> None:
    files = SlowFiles()
    directory = LogDirectory.open("data", files=files)
    (log,) = directory.create_topic("t", 1).partitions.values()
    log.append(batch(10), now_ms=0)
    log.advance_start(3)
    slow = directory.begin_checkpoints()
    assert slow is not None
    files.reached.clear()
    files.go_on.clear()
    thread = Thread(target=slow.result)
    thread.start()
    assert files.reached.wait(60)
    log.advance_start(7)
    newer = directory.begin_checkpoints()
    assert newer is not None
    other = Thread(target=newer.result)
    other.start()
    files.go_on.set()
    for each in (thread, other):
        each.join(60)
    assert starts(files) == [7]
    assert directory.begin_checkpoints(if_changed=True) is None
    directory.close()
