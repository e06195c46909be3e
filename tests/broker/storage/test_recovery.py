"""A log after a kill, a power cut, truncated files, missing files and flipped bytes."""

from __future__ import annotations

import logging
from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.disk import SimulatedDisk
from streamlog.broker.config.broker import TopicConfig
from streamlog.broker.storage.disk.files import write_whole
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.errors import CorruptData, LogDirectoryFailed
from streamlog.records.batch import LogRecord, split_batches
from tests.broker.storage.batches import (
    DIRECTORY,
    SMALL,
    batch,
    contents,
    log_files,
    new_log,
    overwrite,
    read_batches,
    read_records,
    reopened,
)

ONE_SEGMENT = TopicConfig(index_interval_bytes=128)


@cache
def written(config: TopicConfig = SMALL, batches: int = 46) -> dict[str, bytes]:
    """Return the files of a cleanly closed log with batches of one to three records."""
    files = MemoryFiles()
    log = new_log(files, config)
    for number in range(batches):
        log.append(batch(1 + number % 3, timestamp_ms=number, value=b"%d" % number), now_ms=0)
    log.close()
    return contents(files, "")


@cache
def right(config: TopicConfig = SMALL) -> tuple[LogRecord, ...]:
    return tuple(read_records(reopened(on_disk(written(config)), config=config)))


def on_disk(stored: dict[str, bytes]) -> MemoryFiles:
    files = MemoryFiles()
    files.make_directory(DIRECTORY)
    for path, data in stored.items():
        write_whole(files.open(path, writable=True), data, 0)
    return files


def newest(stored: dict[str, bytes]) -> str:
    return max(path for path in stored if path.endswith(".log"))


def end_of(stored: dict[str, bytes], path: str, size_bytes: int) -> int:
    """Return the end offset of the log if `path` is truncated to `size_bytes`."""
    offset = int(path.rpartition("/")[2].removesuffix(".log"))
    for found in split_batches(stored[path][:size_bytes]):
        offset = found.next_offset
    return offset


def served(log: PartitionLog) -> list[LogRecord]:
    """Return all records that reads from every offset find, without the damaged ones."""
    found: dict[int, LogRecord] = {}
    for offset in range(log.log_end_offset):
        try:
            for read in split_batches(log.read(offset, max_bytes=300)):
                read.check_crc()
                found |= {record.offset: record for record in read.records()}
        except CorruptData:
            continue
    return [found[offset] for offset in sorted(found)]


@pytest.mark.parametrize("config", [SMALL, ONE_SEGMENT], ids=["many", "one"])
def test_a_segment_truncated_at_any_byte_keeps_its_whole_batches(config: TopicConfig) -> None:
    stored = written(config)
    last = newest(stored)
    step = 1 if config is SMALL else 7
    for size_bytes in range(0, len(stored[last]) + 1, step):
        files = on_disk(stored | {last: stored[last][:size_bytes]})
        end = end_of(stored, last, size_bytes)
        log = reopened(files, config=config)
        assert log.log_end_offset == end
        assert log.recovery.damage == ()
        assert tuple(read_records(log)) == right(config)[:end]
        assert log.append(batch(2), now_ms=0).base_offset == end
        log.close()
        again = reopened(files, config=config, clean=True, recovery_point=end + 2)
        assert again.recovery.scanned_bytes == 0
        assert len(read_records(again)) == end + 2


@given(st.data())
def test_a_truncation_after_a_clean_shutdown_is_damage(data: st.DataObject) -> None:
    stored = written()
    last = newest(stored)
    size_bytes = data.draw(st.integers(0, len(stored[last])))
    end = end_of(stored, last, size_bytes)
    files = on_disk(stored | {last: stored[last][:size_bytes]})
    log = reopened(files, clean=True, recovery_point=len(right()))
    assert tuple(served(log)) == right()[:end]
    if end < len(right()):
        assert log.recovery.damage[0].next_offset is None
        with pytest.raises(CorruptData, match="can't be served"):
            log.read(log.log_end_offset, max_bytes=100)
        with pytest.raises(CorruptData, match="restore the file"):
            log.append(batch(), now_ms=0)
        assert contents(files, ".log")[last] == stored[last][:size_bytes]


@pytest.mark.parametrize("tail", [bytes(5000), b"\xff" * 5000, b"\x02" * 3000, bytes(range(256))])
def test_garbage_behind_the_last_batch_is_truncated(
    tail: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    stored = written()
    last = newest(stored)
    files = on_disk(stored | {last: stored[last] + tail})
    with caplog.at_level(logging.WARNING):
        log = reopened(files)
    assert tuple(read_records(log)) == right()
    assert log.recovery.truncated_bytes == len(tail)
    assert f"topic-0: cut {len(tail)} bytes" in caplog.text
    assert contents(files, ".log")[last] == stored[last]


flips = st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255))


@settings(max_examples=300)
@given(st.data(), flips, st.booleans())
def test_a_flipped_byte_yields_no_wrong_record(
    data: st.DataObject, flip: tuple[float, int], clean: bool
) -> None:
    stored = written()
    path = data.draw(st.sampled_from(sorted(path for path in stored if stored[path])))
    changed = bytearray(stored[path])
    changed[int(flip[0] * len(changed))] ^= flip[1]
    log = reopened(
        on_disk(stored | {path: bytes(changed)}), clean=clean, recovery_point=len(right()) * clean
    )
    found = served(log)
    assert set(found) <= set(right())
    if not path.endswith(".log"):
        assert tuple(found) == right()
        for timestamp_ms in range(0, 52, 5):
            expected = next((r for r in right() if r.timestamp_ms >= timestamp_ms), None)
            assert log.offset_for_timestamp(timestamp_ms) == (expected and expected[:2])


@settings(max_examples=200)
@given(flips, st.integers(0, 2))
def test_a_flipped_byte_under_an_open_log_yields_no_wrong_record(
    flip: tuple[float, int], which: int
) -> None:
    files = on_disk(written())
    log = reopened(files, clean=True, recovery_point=len(right()))
    path = log_files(files)[which]
    file = files.open(path, writable=True)
    at = int(flip[0] * file.size())
    file.write(bytes([file.read(1, at)[0] ^ flip[1]]), at)
    assert set(served(log)) <= set(right())
    assert log.append(batch(), now_ms=0).base_offset == len(right())
    assert set(served(log)[:-1]) <= set(right())


@settings(max_examples=200)
@given(flips)
def test_damage_in_the_middle_costs_one_batch(flip: tuple[float, int]) -> None:
    """The damage is reported, and acknowledged batches behind it stay."""
    stored = written(ONE_SEGMENT)
    (path,) = (path for path in stored if path.endswith(".log"))
    batches = list(split_batches(stored[path]))
    hit = batches[3]
    changed = bytearray(stored[path])
    position = sum(before.size_bytes for before in batches[:3])
    changed[position + int(flip[0] * hit.size_bytes)] ^= flip[1]
    files = on_disk(stored | {path: bytes(changed)})
    log = reopened(files, config=ONE_SEGMENT)
    everything = right(ONE_SEGMENT)
    if changed[position + 12 : position + 16] != stored[path][position + 12 : position + 16]:
        assert tuple(served(log)) == everything  # the leader epoch, which no record depends on
        return
    lost = range(hit.base_offset, hit.next_offset)
    assert tuple(served(log)) == tuple(r for r in everything if r.offset not in lost)
    (found,) = log.recovery.damage
    assert (found.position, found.first_offset, found.next_offset) == (
        position,
        hit.base_offset,
        hit.next_offset,
    )
    with pytest.raises(CorruptData) as caught:
        log.read(hit.base_offset, max_bytes=1000)
    for part in ("topic-0", path, f"position {position}", f"offsets {lost[0]} to {lost[-1]}"):
        assert part in str(caught.value)
    assert contents(files, ".log")[path] == bytes(changed)
    assert log.append(batch(), now_ms=0).base_offset == len(everything)
    assert not log.is_whole


def test_damage_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    stored = written(ONE_SEGMENT)
    (path,) = (path for path in stored if path.endswith(".log"))
    with caplog.at_level(logging.ERROR):
        reopened(on_disk(stored | {path: b"!" + stored[path][1:]}), config=ONE_SEGMENT)
    assert "is damaged at position 0" in caplog.text


def test_a_read_only_open_reads_around_damage() -> None:
    stored = written(ONE_SEGMENT)
    (path,) = (path for path in stored if path.endswith(".log"))
    changed = bytearray(stored[path])
    changed[400] ^= 1
    files = on_disk(stored | {path: bytes(changed)})
    log = PartitionLog.open(files, DIRECTORY, name="topic-0", config=ONE_SEGMENT, read_only=True)
    assert log.log_end_offset == len(right(ONE_SEGMENT))
    found = served(log)
    assert set(found) < set(right(ONE_SEGMENT))
    assert len(right(ONE_SEGMENT)) - 3 <= len(found)
    assert contents(files, ".log")[path] == bytes(changed)


def test_a_missing_segment_is_damage_and_all_others_are_served() -> None:
    stored = written()
    paths = sorted(path for path in stored if path.endswith(".log"))
    for missing in paths:
        left = {path: data for path, data in stored.items() if path != missing}
        log = reopened(on_disk(left), clean=True, recovery_point=len(right()))
        begin, end = end_of(stored, missing, 0), end_of(stored, missing, 10**9)
        expected = tuple(r for r in right() if not begin <= r.offset < end)
        assert tuple(served(log)) == expected
        if missing != paths[-1]:
            with pytest.raises(CorruptData, match=f"offset {begin}|offsets {begin}|before {end}"):
                log.read(begin, max_bytes=100)
        else:
            assert log.recovery.damage != ()


def test_all_files_missing_is_damage() -> None:
    log = reopened(on_disk({}), recovery_point=5)
    assert log.log_end_offset == 0
    with pytest.raises(CorruptData, match="offsets 0 to the end can't be served"):
        log.append(batch(), now_ms=0)


def test_segments_behind_a_torn_tail_are_removed() -> None:
    """The log rolled, and the power went before the sealed segment was synced."""
    files = MemoryFiles()
    log = new_log(files)
    while len(log_files(files)) < 3:
        log.append(batch(2, value=bytes(80)), now_ms=0)
    sealed = log_files(files)[1]
    overwrite(files, sealed, contents(files, ".log")[sealed][:-10])
    overwrite(files, log_files(files)[2], bytes(70))
    end = end_of(contents(files, ".log"), sealed, 10**9)
    log = reopened(files)
    assert log.log_end_offset == end
    assert log.recovery.damage == ()
    assert log_files(files)[-1] == sealed
    assert log.append(batch(2), now_ms=0).base_offset == end
    assert [found.base_offset for found in read_batches(log)][-1] == end


@settings(max_examples=100)
@given(st.lists(st.integers(1, 4), max_size=60), st.integers(0, 300), st.data())
def test_a_power_cut_keeps_all_flushed_records(
    counts: list[int], keep_bytes: int, data: st.DataObject
) -> None:
    files = MemoryFiles()
    log = new_log(files)
    flushed = 0
    for count in counts:
        log.append(batch(count, value=bytes(20)), now_ms=0)
        if data.draw(st.integers(0, 9)) == 0:
            log.flush()
            flushed = log.log_end_offset
    appended, point = log.log_end_offset, log.recovery_point
    files.crash(keep_bytes=keep_bytes)
    log = reopened(files, recovery_point=flushed)
    found = served(log)
    assert [record.offset for record in found][:flushed] == list(range(flushed))
    assert max(flushed, point) <= log.log_end_offset <= appended
    if log.is_whole:
        assert len(found) == log.log_end_offset
        assert log.append(batch(), now_ms=0).base_offset == len(found)


def many_segments() -> dict[str, bytes]:
    stored = written(SMALL, 120)
    assert len([path for path in stored if path.endswith(".log")]) > 8
    return stored


@cache
def everything() -> tuple[LogRecord, ...]:
    return tuple(read_records(reopened(on_disk(many_segments()))))


@given(st.data(), flips)
def test_an_old_hole_is_found_when_the_log_is_opened(
    data: st.DataObject, flip: tuple[float, int]
) -> None:
    """A power cut left the hole, and the log has grown since; no read is needed to find it."""
    stored = many_segments()
    paths = sorted(path for path in stored if path.endswith(".log"))
    path = data.draw(st.sampled_from(paths[:-1]))
    changed = bytearray(stored[path])
    at = 16 + int(flip[0] * (len(changed) - 16))
    changed[at] ^= flip[1]
    files = on_disk(stored | {path: bytes(changed)})
    log = reopened(files, recovery_point=int(path[-24:-4]) + data.draw(st.integers(0, 3)))
    if log.is_whole:  # a field that no checksum covers, and no record depends on
        assert tuple(read_records(log)) == everything()
    else:
        assert {each.path for each in log.damage} == {path}
    for other in paths:
        if other != path:
            index = other.replace(".log", ".index")
            assert contents(files, "index")[index] == stored[index]


def test_segments_before_the_recovery_point_are_not_scanned() -> None:
    stored = many_segments()
    paths = sorted(path for path in stored if path.endswith(".log"))
    bases = [int(path[-24:-4]) for path in paths]
    for number, base in enumerate(bases):
        log = reopened(on_disk(stored), recovery_point=base)
        assert log.recovery.scanned_segments == len(paths) - number
        assert log.recovery.scanned_bytes == sum(len(stored[path]) for path in paths[number:])


def test_a_scan_does_not_rewrite_correct_indexes() -> None:
    class Counted(MemoryFiles):
        written_bytes = 0

        def admit(self, size_bytes: int, growth_bytes: int) -> int:
            assert not growth_bytes
            self.written_bytes += size_bytes
            return super().admit(size_bytes, growth_bytes)

    files = Counted()
    files.make_directory(DIRECTORY)
    for path, content in many_segments().items():
        held = files.open(path, writable=True)
        held._content.data += content
    log = reopened(files)
    assert log.recovery.scanned_segments == len(log_files(files))
    assert tuple(read_records(log)) == everything()
    assert contents(files, "index") == {p: d for p, d in many_segments().items() if "index" in p}
    # The scan rewrites the log files once, and no index.
    assert files.written_bytes == sum(map(len, contents(files, ".log").values()))


def test_a_changed_synced_end_is_damage_and_not_torn() -> None:
    stored = written()
    last = newest(stored)
    changed = bytearray(stored[last])
    changed[-1] ^= 1
    files = on_disk(stored | {last: bytes(changed)})
    log = reopened(files, recovery_point=len(right()))
    assert log.recovery.truncated_bytes == 0
    assert contents(files, ".log")[last] == bytes(changed)
    torn = reopened(files)
    assert torn.recovery.truncated_bytes > 0


def test_a_restart_after_a_failed_sync_makes_the_records_durable() -> None:
    """After a failed sync the kernel marks the pages clean, so a later sync skips them.

    1. A sync fails; the process ends, and the machine stays up.
    2. The next process finds the batch in the page cache, and acknowledges its repetition as a
       duplicate.
    3. The power goes: the batch must be on disk.
    """
    for seed in range(20):
        disk = SimulatedDisk(Random(seed))
        log = new_log(disk)
        log.append(batch(value=b"one"), now_ms=1)
        log.flush()
        log.append(batch(value=b"two"), now_ms=1)
        disk.refuse_syncs()
        with pytest.raises(LogDirectoryFailed):
            log.flush()
        disk.kill()
        assert reopened(disk, recovery_point=1).log_end_offset == 2
        disk.cut()
        found = read_records(reopened(disk, recovery_point=2))
        assert [each.value for each in found] == [b"one", b"two"]
