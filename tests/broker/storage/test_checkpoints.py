"""Another thread writes checkpoints: none overwrites a newer one."""

from __future__ import annotations

import json
from threading import Event, Thread

from streamlog.broker.storage.catalog import CHECKPOINTS, Catalog
from streamlog.broker.storage.checkpoints import LogCheckpoints
from streamlog.broker.storage.disk.files import read_file
from streamlog.broker.storage.disk.memory_files import MemoryFile, MemoryFiles
from streamlog.broker.storage.log_directory import LogDirectory
from tests.broker.storage.batches import batch, new_log


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
