"""Inspection and repair: damage is found and repaired, and all sound records are served."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.storage.disk.files import read_file, write_whole
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.broker.storage.repair.findings import Finding, FindingKind, InspectionReport
from streamlog.broker.storage.repair.inspection import Inspection
from streamlog.broker.storage.repair.partition_repair import (
    ADVICE,
    QUARANTINE_SUFFIX,
    REPAIRED_KINDS,
    RepairStep,
    repair_partition,
)
from streamlog.broker.storage.repair.raw_partition import RawBatch
from streamlog.errors import LogDirectoryLost, UnknownTopicOrPartition, UsageError
from streamlog.records.batch import LogRecord, split_batches
from streamlog.records.control_batches import ABORT, COMMIT
from tests.broker.storage.batches import SMALL, batch, read_records
from tests.broker.storage.log.test_transactions import committed, end, write

CONFIG = BrokerConfig(topic=SMALL)
BATCHES = 40


def opened(files: MemoryFiles) -> LogDirectory:
    return LogDirectory.open("data", files=files, config=CONFIG)


class PowerCut(Exception):
    """The machine has lost its power."""


class Dying(MemoryFiles):
    """A disk that raises `PowerCut` after `steps_left` steps."""

    steps_left: int | None = None

    def admit(self, size_bytes: int, growth_bytes: int) -> int:
        self._step()
        return super().admit(size_bytes, growth_bytes)

    def admit_sync(self) -> None:
        self._step()
        super().admit_sync()

    def rename(self, source: str, target: str) -> None:
        self._step()
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._step()
        super().remove(path)

    def _step(self) -> None:
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                raise PowerCut


def filled(batches: int = BATCHES, *, files: MemoryFiles | None = None) -> MemoryFiles:
    """Return a closed directory with one partition of several segments."""
    files = MemoryFiles() if files is None else files
    directory = opened(files)
    directory.create_topic("t", 1)
    log = directory.log("t", 0)
    for number in range(batches):
        log.append(
            batch(
                1 + number % 3,
                timestamp_ms=1_000 * number,
                value=b"v%d" % number * 5,
                producer=(7, 0, sum(1 + n % 3 for n in range(number))),
            ),
            now_ms=number,
        )
    directory.close()
    return files


def paths(files: MemoryFiles, suffix: str) -> list[str]:
    return [
        f"data/{folder}/{name}"
        for folder in files.list("data")
        if folder.startswith("p-")
        for name in files.list(f"data/{folder}")
        if name.endswith(suffix)
    ]


def verify(files: MemoryFiles) -> InspectionReport:
    with Inspection.open("data", files=files) as inspection:
        return inspection.verify()


def repair(files: MemoryFiles) -> list[RepairStep]:
    with Inspection.open("data", files=files) as inspection:
        return repair_partition(inspection, inspection.verify())


def overwrite(files: MemoryFiles, path: str, data: bytes, position: int = 0) -> None:
    file = files.open(path, writable=True)
    write_whole(file, data, position)
    file.sync()  # So that the damage survives a power cut, too.
    file.close()


def records(files: MemoryFiles) -> list[LogRecord]:
    directory = opened(files)
    found = read_records(directory.log("t", 0))
    directory.close()
    return found


def truncate_file(files: MemoryFiles, path: str, size_bytes: int) -> None:
    file = files.open(path, writable=True)
    file.truncate(size_bytes)
    file.close()


def flip(files: MemoryFiles, path: str, position: int, mask: int) -> None:
    byte = read_file(files, path)[position]
    overwrite(files, path, bytes([byte ^ mask]), position)


def kinds(report: InspectionReport) -> set[FindingKind]:
    return {finding.kind for finding in report.findings}


def placed(files: MemoryFiles) -> Iterator[RawBatch | Finding]:
    with Inspection.open("data", files=files) as inspection:
        yield from inspection.batches(inspection.partition("t", 0))


def served(files: MemoryFiles) -> dict[int, bytes | None]:
    directory = opened(files)
    try:
        log = directory.log("t", 0)
        assert log.damage == ()
        return {record.offset: record.value for record in read_records(log)}
    finally:
        directory.close()


def test_a_sound_directory_has_no_findings() -> None:
    files = filled()
    report = verify(files)
    assert report.findings == ()
    assert report.is_sound
    assert report.counts.partitions == 1
    assert report.counts.segments == len(paths(files, ".log")) > 3
    assert report.counts.batches == BATCHES
    assert report.counts.records == len(served(files))


def test_an_inspection_changes_nothing() -> None:
    files = filled()
    before = {path: read_file(files, path) for path in paths(files, "")}
    flip(files, paths(files, ".log")[1], 100, 1)
    before[paths(files, ".log")[1]] = read_file(files, paths(files, ".log")[1])
    verify(files)
    list(placed(files))
    assert {path: read_file(files, path) for path in paths(files, "")} == before


@given(data=st.data())
def test_a_flipped_bit_is_found_and_repaired(data: st.DataObject) -> None:
    files = filled()
    before = served(files)
    path = data.draw(st.sampled_from(paths(files, ".log")))
    position = data.draw(st.integers(0, len(read_file(files, path)) - 1))
    touched = [
        each
        for each in placed(files)
        if isinstance(each, RawBatch)
        and each.path == path
        and each.position <= position < each.position + each.batch.size_bytes
    ]
    (victim,) = touched
    at = position - victim.position
    flip(files, path, position, 1 << data.draw(st.integers(0, 7)))
    if 12 <= at < 16:
        return  # The leader epoch: no checksum covers it, and no record depends on it.
    report = verify(files)
    (finding,) = report.findings
    assert finding.kind is FindingKind.DAMAGED
    assert finding.path == path
    assert finding.position == victim.position
    assert finding.first_offset == victim.batch.base_offset

    done = repair(files)
    (quarantined,) = paths(files, QUARANTINE_SUFFIX)
    assert any(quarantined in each.what for each in done)
    assert read_file(files, quarantined) == _flipped_back(victim, files, quarantined)
    assert verify(files).findings == ()
    lost = range(victim.batch.base_offset, victim.batch.next_offset)
    assert served(files) == {o: value for o, value in before.items() if o not in lost}


def _flipped_back(victim: RawBatch, files: MemoryFiles, quarantined: str) -> bytes:
    """Check that all of the batch was quarantined, and nothing else; return it."""
    kept = read_file(files, quarantined)
    sound = bytes(victim.batch.data)
    different = [n for n, (a, b) in enumerate(zip(kept, sound, strict=True)) if a != b]
    assert len(different) == 1
    return kept


@given(data=st.data())
def test_repair_serves_all_records_outside_the_damage(data: st.DataObject) -> None:
    files = filled()
    before = served(files)
    where = [each for each in placed(files) if isinstance(each, RawBatch)]
    touched: set[int] = set()
    for _ in range(data.draw(st.integers(1, 4))):
        path = data.draw(st.sampled_from(paths(files, ".log")))
        size = len(read_file(files, path))
        if not size:
            continue
        position = data.draw(st.integers(0, size - 1))
        end = min(position + data.draw(st.integers(1, 300)), size)
        if data.draw(st.booleans()):
            truncate_file(files, path, position)
            end = 1 << 30
        else:
            overwrite(files, path, bytes(end - position), position)
        touched |= {
            offset
            for each in where
            if each.path == path
            and each.position < end
            and position < each.position + each.batch.size_bytes
            for offset in range(each.batch.base_offset, each.batch.next_offset)
        }
    report = verify(files)
    repair(files)
    assert verify(files).is_sound
    now = served(files)
    untouched = {offset: value for offset, value in before.items() if offset not in touched}
    assert {offset: now.get(offset) for offset in untouched} == untouched
    # Zeros over zeros change nothing: fewer records may be lost than were touched, never more.
    assert now.items() <= before.items()
    if now != before:
        assert not report.is_sound


def test_a_repaired_log_continues_at_its_old_end() -> None:
    files = filled()
    directory = opened(files)
    end = directory.log("t", 0).log_end_offset
    directory.close()
    last = [path for path in paths(files, ".log") if read_file(files, path)][-1]
    truncate_file(files, last, 10)
    assert kinds(verify(files)) == {FindingKind.DAMAGED}
    repair(files)
    directory = opened(files)
    log = directory.log("t", 0)
    assert log.log_end_offset == end
    assert log.append(batch(), now_ms=0).base_offset == end
    directory.close()
    assert verify(files).is_sound


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_missing_segment_is_found_and_repaired(which: int) -> None:
    files = filled()
    before = served(files)
    path = [path for path in paths(files, ".log") if read_file(files, path)][which]
    for suffix in (".log", ".index", ".timeindex"):
        files.remove(path.removesuffix(".log") + suffix)
    lost = verify(files)
    assert kinds(lost) == {FindingKind.MISSING}
    (finding,) = lost.findings
    assert finding.first_offset is not None
    assert finding.next_offset is not None
    repair(files)
    assert verify(files).findings == ()
    gone = range(finding.first_offset, finding.next_offset)
    assert served(files) == {o: value for o, value in before.items() if o not in gone}


def test_a_missing_folder_is_found_and_repaired() -> None:
    files = filled()
    (folder,) = {path.rpartition("/")[0] for path in paths(files, ".log")}
    for name in files.list(folder):
        files.remove(f"{folder}/{name}")
    files.remove(folder)
    assert kinds(verify(files)) == {FindingKind.MISSING}
    repair(files)
    assert verify(files).findings == ()
    assert served(files) == {}


def test_an_unfinished_write_is_quarantined_and_not_damage() -> None:
    files = filled()
    before = served(files)
    path = [path for path in paths(files, ".log") if read_file(files, path)][-1]
    overwrite(files, path, batch()[:40], len(read_file(files, path)))
    report = verify(files)
    assert kinds(report) == {FindingKind.UNFINISHED}
    assert report.is_sound
    repair(files)
    (quarantined,) = paths(files, QUARANTINE_SUFFIX)
    assert read_file(files, quarantined) == batch()[:40]
    assert served(files) == before


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("how", ["flip", "cut", "remove"])
def test_a_damaged_index_is_found_and_rebuilt(suffix: str, how: str) -> None:
    files = filled()
    before = served(files)
    path = next(path for path in paths(files, suffix) if read_file(files, path))
    if how == "flip":
        flip(files, path, 3, 0x40)
    elif how == "cut":
        truncate_file(files, path, 3)
    else:
        files.remove(path)
    report = verify(files)
    assert [(each.kind, each.path) for each in report.findings] == [(FindingKind.INDEX, path)]
    repair(files)
    assert verify(files).findings == ()
    assert served(files) == before


def test_a_damaged_snapshot_is_found_and_quarantined() -> None:
    files = filled()
    path = paths(files, ".snapshot")[0]
    flip(files, path, 8, 1)
    (finding,) = verify(files).findings
    assert (finding.kind, finding.path) == (FindingKind.SNAPSHOT, path)
    repair(files)
    assert verify(files).findings == ()
    assert paths(files, QUARANTINE_SUFFIX) == [path + QUARANTINE_SUFFIX]


def test_a_gap_in_a_producers_sequence_is_found() -> None:
    files = filled(1)
    path = next(path for path in paths(files, ".log") if read_file(files, path))
    out_of_order = bytearray(batch(producer=(7, 0, 5)))
    out_of_order[:8] = (1).to_bytes(8, "big")
    overwrite(files, path, bytes(out_of_order), len(read_file(files, path)))
    report = verify(files)
    assert kinds(report) == {FindingKind.ORDER}
    assert "sequence number 5 instead of 1" in report.findings[0].reason
    assert not report.is_sound
    assert repair(files) == [], "the right order is unknown"


@pytest.mark.parametrize("batches", [1, 5, None])
def test_of_two_overlapping_segments_the_later_one_counts(batches: int | None) -> None:
    files = filled()
    stored = [path for path in paths(files, ".log") if read_file(files, path)]
    before = {path: read_file(files, path) for path in stored}
    held = records(files)
    earlier, later = stored[1:3]
    copied = list(split_batches(before[later]))[:batches]
    doubled = b"".join(bytes(each.data) for each in copied)
    if batches is None:
        doubled += before[stored[3]][:-30]  # and a truncated part of a third segment
    overwrite(files, earlier, doubled, len(before[earlier]))
    report = verify(files)
    assert FindingKind.OVERLAP in kinds(report) or batches is None
    repair(files)
    assert verify(files).findings == ()
    assert {path: read_file(files, path) for path in stored} == before
    (quarantined,) = paths(files, QUARANTINE_SUFFIX)
    assert read_file(files, quarantined) == doubled
    assert records(files) == held


def test_repair_keeps_an_overlap_that_only_one_segment_holds() -> None:
    files = filled()
    first, second, *others = [path for path in paths(files, ".log") if read_file(files, path)]
    whole = read_file(files, second)
    overwrite(files, first, whole, len(read_file(files, first)))
    truncate_file(files, second, next(split_batches(whole)).size_bytes)
    for path in others:
        files.remove(path)
    files.remove("data/checkpoints")
    files.remove("data/clean_shutdown")
    before = read_file(files, first)
    assert FindingKind.OVERLAP in kinds(verify(files))
    repair(files)
    assert FindingKind.OVERLAP in kinds(verify(files))
    assert read_file(files, first) == before
    assert paths(files, QUARANTINE_SUFFIX) == []


def test_every_unrepaired_finding_has_advice() -> None:
    assert set(FindingKind) - REPAIRED_KINDS <= set(ADVICE)


def test_a_directory_in_use_is_inspected_but_not_repaired() -> None:
    files = filled()
    directory = opened(files)
    with Inspection.open("data", files=files) as inspection:
        assert inspection.holder is not None
        assert "in use" in inspection.holder
        report = inspection.verify()
        assert report.findings == ()
        with pytest.raises(UsageError, match="stop it first"):
            repair_partition(inspection, report)
    directory.close()


def test_an_inspection_locks_the_directory() -> None:
    files = filled()
    with (
        Inspection.open("data", files=files),
        pytest.raises(Exception, match="in use by process"),
    ):
        opened(files)
    opened(files).close()


def test_a_folder_that_is_no_data_directory_is_refused() -> None:
    files = MemoryFiles()
    files.make_directory("data")
    with pytest.raises(LogDirectoryLost, match="not a data directory"):
        Inspection.open("data", files=files)
    assert files.list("data") == []


def test_inspecting_an_unknown_partition_raises() -> None:
    with (
        Inspection.open("data", files=filled()) as inspection,
        pytest.raises(UnknownTopicOrPartition, match="no partition 1 of 't'"),
    ):
        inspection.partition("t", 1)


@pytest.mark.parametrize("keep_bytes", [0, None])
def test_repair_survives_a_crash_at_every_step(keep_bytes: int | None) -> None:
    for steps in range(100):
        files = Dying()
        filled(12, files=files)
        before = served(files)
        victim = [each for each in placed(files) if isinstance(each, RawBatch)][4]
        flip(files, victim.path, victim.position + 30, 1)
        files.crash(keep_bytes=None)
        files.steps_left = steps
        survived = True
        try:
            repair(files)
        except PowerCut:
            survived = False
        files.steps_left = None
        files.crash(keep_bytes=keep_bytes)
        repair(files)
        assert verify(files).findings == ()
        lost = range(victim.batch.base_offset, victim.batch.next_offset)
        assert served(files) == {o: value for o, value in before.items() if o not in lost}
        directory = opened(files)
        assert directory.log("t", 0).lost.first_from(0) == lost.start
        directory.close()
        if survived:
            return
    raise AssertionError("the repair took more steps than the test tried")


# ---- transactions ----


def with_transactions() -> MemoryFiles:
    """Return a log with every third transaction aborted, and a last batch outside of one."""
    files = MemoryFiles()
    directory = opened(files)
    directory.create_topic("t", 1)
    log = directory.log("t", 0)
    for number in range(BATCHES):
        write(log, b"v%d" % number, (7, 0, number))
        end(log, 7, COMMIT if number % 3 else ABORT)
    log.append(batch(producer=(7, 0, BATCHES)), now_ms=0)
    directory.close()
    return files


def committed_values(files: MemoryFiles) -> list[bytes]:
    directory = opened(files)
    values = [value for _, value in committed(directory.log("t", 0))]
    directory.close()
    return values


def test_a_log_with_transactions_has_no_findings() -> None:
    files = with_transactions()
    assert len(paths(files, ".txnindex")) > 2
    report = verify(files)
    assert report.findings == ()


def entry(producer_id: int, first: int, last: int) -> bytes:
    return struct.pack(">hqqqq", 0, producer_id, first, last, last + 1)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "missing"),
        (b"nonsense", "not sound"),
        (entry(9, 0, 1), "without a marker"),
    ],
)
def test_a_damaged_aborted_index_is_found_and_rebuilt(content: bytes, why: str) -> None:
    files = with_transactions()
    right, before = committed_values(files), paths(files, ".txnindex")
    path = before[0]
    stored = read_file(files, path)
    truncate_file(files, path, 0)
    overwrite(files, path, content)
    (finding,) = verify(files).findings
    assert (finding.kind, finding.path) == (FindingKind.INDEX, path)
    assert why in finding.reason
    repair(files)
    assert read_file(files, path) == stored
    assert verify(files).findings == ()
    assert committed_values(files) == right
