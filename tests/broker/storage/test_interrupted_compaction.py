"""A compaction killed at every step: an inspection finds it, and a repair finishes it."""

from __future__ import annotations

import copy

import pytest

from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.storage.disk.files import read_file
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.broker.storage.repair.findings import Finding, FindingKind, InspectionReport
from streamlog.broker.storage.repair.inspection import Inspection
from streamlog.broker.storage.repair.partition_repair import repair_partition
from streamlog.broker.storage.repair.raw_partition import RawBatch
from tests.broker.storage.batches import read_records
from tests.broker.storage.compaction.test_cleaning import COMPACTED, clean, keyed, seen
from tests.broker.storage.log.test_swap import Killed, MortalFiles

CONFIG = BrokerConfig(topic=COMPACTED)
BATCHES = 18
LEFT = {FindingKind.SWAP, FindingKind.LEFTOVER, FindingKind.UNFINISHED, FindingKind.SNAPSHOT}
Values = dict[bytes | None, bytes]


def opened(files: MemoryFiles | MortalFiles) -> LogDirectory:
    return LogDirectory.open("data", files=files, config=CONFIG)


def dirty_disk() -> MemoryFiles:
    files = MemoryFiles()
    directory = opened(files)
    directory.create_topic("t", 1)
    log = directory.log("t", 0)
    for number in range(BATCHES):
        log.append(keyed((f"k{number % 5}", str(number)), (f"u{number}", "x" * 40)), now_ms=0)
    directory.flush()
    directory.close()
    files.sync_directory("data")
    return files


def verify(files: MemoryFiles) -> InspectionReport:
    with Inspection.open("data", files=files) as inspection:
        return inspection.verify()


def repair(files: MemoryFiles | MortalFiles) -> list[str]:
    with Inspection.open("data", files=files) as inspection:
        return [done.path for done in repair_partition(inspection, inspection.verify())]


def values(files: MemoryFiles) -> Values:
    """Return the last value of each key, after an opening."""
    directory = opened(files)
    try:
        return seen(directory.log("t", 0))
    finally:
        directory.close()


def stored(files: MemoryFiles) -> dict[str, bytes]:
    """Return the partition's files but indexes, snapshots and quarantined ones, by name."""
    (folder,) = [name for name in files.list("data") if name.startswith("p-")]
    return {
        name: read_file(files, f"data/{folder}/{name}")
        for name in files.list(f"data/{folder}")
        if not name.endswith(("index", ".snapshot", ".quarantine"))
    }


def dumped(files: MemoryFiles) -> list[int]:
    """Return the offsets of all records that an inspection reads."""
    with Inspection.open("data", files=files) as inspection:
        placed = list(inspection.batches(inspection.partition("t", 0)))
    assert not any(isinstance(each, Finding) and each.is_damage for each in placed)
    batches = [each.batch for each in placed if isinstance(each, RawBatch)]
    return [record.offset for batch in batches for record in batch.records()]


def killed_after(left: int, keep_bytes: int | None) -> MemoryFiles | None:
    """Return a disk with a compaction killed after `left` operations; None if it finished."""
    files = dirty_disk()
    mortal = MortalFiles(files, 1 << 30)
    log = opened(mortal).log("t", 0)
    mortal.left = left
    try:
        clean(log)
    except Killed:
        files.crash(keep_bytes=keep_bytes)
        return files
    return None


@pytest.mark.parametrize("keep_bytes", [None, 0, 50], ids=["kill", "power cut", "torn"])
def test_a_killed_compaction_is_found_and_repaired(keep_bytes: int | None) -> None:
    right = values(dirty_disk())
    found_kinds: set[FindingKind] = set()
    crashes = 0
    while files := killed_after(crashes, keep_bytes):
        crashes += 1
        report = verify(files)
        assert report.is_sound, report.findings
        kinds = {finding.kind for finding in report.findings}
        assert kinds <= LEFT
        found_kinds |= kinds
        by_opening = copy.deepcopy(files)
        before = dumped(files)
        repair(files)
        assert verify(files).findings == ()
        opened(by_opening).close()
        assert stored(files) == stored(by_opening)
        assert dumped(files) == before
        assert values(files) == right
    assert crashes > 20
    assert {FindingKind.SWAP, FindingKind.LEFTOVER} <= found_kinds


@pytest.mark.parametrize("keep_bytes", [None, 0], ids=["kill", "power cut"])
def test_a_killed_repair_is_finished_by_the_next(keep_bytes: int | None) -> None:
    right = values(dirty_disk())
    crashes = 0
    while files := killed_after(crashes, keep_bytes):
        crashes += 7
        left = 0
        while True:
            again = copy.deepcopy(files)
            mortal = MortalFiles(again, left)
            try:
                repair(mortal)
            except Killed:
                left += 1
                again.crash(keep_bytes=keep_bytes)
                assert verify(again).is_sound
                repair(again)
                assert verify(again).findings == ()
                assert values(again) == right
            else:
                break
    assert crashes > 20


def test_damage_in_an_unswapped_segment_is_found_and_repaired() -> None:
    files = unswapped_disk()
    (finding,) = [each for each in verify(files).findings if each.kind is FindingKind.SWAP]
    kept = dumped(files)
    with Inspection.open("data", files=files) as inspection:
        first = next(
            each
            for each in inspection.batches(inspection.partition("t", 0))
            if isinstance(each, RawBatch) and each.batch.record_count
        )
    assert first.path == finding.path
    file = files.open(finding.path, writable=True)
    at = first.position + 30
    file.write(bytes([file.read(1, at)[0] ^ 1]), at)
    file.close()
    report = verify(files)
    assert not report.is_sound
    assert {FindingKind.SWAP, FindingKind.DAMAGED} <= {each.kind for each in report.findings}
    repair(files)
    assert verify(files).findings == ()
    lost = {record.offset for record in first.batch.records()}
    assert dumped(files) == [offset for offset in kept if offset not in lost]


def unswapped_disk() -> MemoryFiles:
    """Return a disk on which a compacted segment has not replaced its source yet."""
    for left in range(1000):
        files = killed_after(left, None)
        assert files is not None
        names = [name for name in stored(files) if name.endswith(".swap")]
        if names and not any(name.endswith("0.log") for name in stored(files)):
            return files
    raise AssertionError("no compaction was ever interrupted there")


def test_an_unfinished_swap_of_a_running_broker_is_no_finding() -> None:
    files = unswapped_disk()
    before = dumped(files)
    lock = files.lock("data/lock")
    assert lock is not None
    with Inspection.open("data", files=files) as inspection:
        assert inspection.holder is not None
        assert inspection.verify().findings == ()
    assert dumped(files) == before


def test_deleted_segments_are_removed_and_not_damage() -> None:
    files = dirty_disk()
    (folder,) = [name for name in files.list("data") if name.startswith("p-")]
    path = f"data/{folder}/{0:020d}.log.deleted"
    files.open(path, writable=True).close()
    (finding,) = verify(files).findings
    assert (finding.kind, finding.path) == (FindingKind.LEFTOVER, path)
    assert "clean_shutdown" in files.list("data")
    assert repair(files) == [path]
    assert verify(files).findings == ()
    assert "clean_shutdown" in files.list("data"), "the log itself was not changed"
    directory = opened(files)
    assert len(read_records(directory.log("t", 0))) == 2 * BATCHES
    directory.close()
