"""Unreadable batches, whose checksum is right: compaction keeps them, repair removes them."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.storage.disk.files import File
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.broker.storage.repair.findings import FindingKind
from streamlog.broker.storage.repair.inspection import Inspection
from streamlog.broker.storage.repair.partition_repair import repair_partition
from streamlog.broker.storage.validator import AppendOrigin, unreadable_reason
from streamlog.errors import UsageError
from streamlog.records.batch import HEADER_BYTES, RecordBatch, encode_batch, set_offset_and_epoch
from streamlog.records.compression import Compression, compress
from tests.broker.storage.batches import new_log, read_batches
from tests.broker.storage.compaction.test_cleaning import COMPACTED, clean, keyed
from tests.records.test_record_scan import sealed

MIB = 1024 * 1024


def garbage(codec: Compression, records: bytes = b"\xff" * 40) -> bytes:
    """Return a batch whose header claims three records."""
    header = bytearray(encode_batch([(1, b"k", b"", ())] * 3))[:HEADER_BYTES]
    header[21:23] = codec.to_bytes(2)
    return sealed(header + compress(codec, records))


def false_count() -> bytes:
    """Return a batch that has one record and claims three."""
    one = encode_batch([(1, b"k", b"first of three", ())])
    return garbage(Compression.NONE, one[HEADER_BYTES:])


SPOILED = {
    "plain": garbage(Compression.NONE),
    "zstd": garbage(Compression.ZSTD),
    "no frame": sealed(bytearray(garbage(Compression.ZSTD)[:HEADER_BYTES]) + b"\xff" * 30),
    "count": false_count(),
    "bomb": garbage(Compression.ZSTD, bytes(130 * MIB)),
}


def force(log: PartitionLog, data: bytes) -> int:
    """Append a batch without validation, as an older broker did."""
    placed = bytearray(data)
    offset = log.log_end_offset
    set_offset_and_epoch(placed, offset, 0)
    log.append(placed, now_ms=0, origin=AppendOrigin.COPY)
    return offset


@pytest.mark.parametrize("data", SPOILED.values(), ids=SPOILED.keys())
def test_compaction_keeps_an_unreadable_batch(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch stays unchanged, and its readable keys hide no older record."""
    caplog.set_level(logging.ERROR)
    log = new_log(config=COMPACTED)
    log.append(keyed(("k", "older")), now_ms=0)
    at = force(log, data)
    for number in range(60):
        log.append(keyed((f"k{number % 5}", f"{number:040}")), now_ms=0)
    before = len(read_batches(log))
    result = clean(log)
    assert result is not None
    assert result.end_offset > at + 3
    assert "can't be read: it stays as it is" in caplog.text
    batches = {batch.base_offset: batch for batch in read_batches(log)}
    assert bytes(batches[at].data)[HEADER_BYTES:] == data[HEADER_BYTES:]
    assert [record.value for record in batches[0].records()] == [b"older"]
    assert len(batches) < before
    log.append(keyed(("k", "newer")), now_ms=0)


@pytest.mark.parametrize("name", SPOILED)
def test_an_unreadable_batch_is_found_and_repaired(name: str) -> None:
    files = MemoryFiles()
    directory = LogDirectory.open("data", files=files, config=BrokerConfig())
    directory.create_topic("t", 1)
    log = directory.log("t", 0)
    log.append(keyed(("a", "1")), now_ms=0)
    at = force(log, SPOILED[name])
    log.append(keyed(("b", "2")), now_ms=0)
    directory.close()
    with Inspection.open("data", files=files) as inspection:
        report = inspection.verify()
        (found,) = report.findings
        assert (found.kind, found.first_offset, found.next_offset) == (
            FindingKind.UNREADABLE,
            at,
            at + 3,
        )
        assert not report.is_sound
        done = repair_partition(inspection, report)
        assert any("bytes moved to" in each.what for each in done)
        assert inspection.verify().is_sound
    directory = LogDirectory.open("data", files=files, config=BrokerConfig())
    batches = read_batches(directory.log("t", 0))
    assert [(each.base_offset, each.record_count) for each in batches] == [(0, 1), (1, 0), (4, 1)]
    directory.close()


def test_compacted_batches_are_readable() -> None:
    log = new_log(config=COMPACTED)
    for number in range(60):
        rows = [(f"k{(number + each) % 7}", f"{number:030}") for each in range(3)]
        log.append(keyed(*rows, codec=Compression(number % 5)), now_ms=0)
    assert clean(log) is not None
    batches = read_batches(log)
    assert any(0 < batch.record_count <= batch.last_offset_delta for batch in batches)
    assert {unreadable_reason(batch) for batch in batches} == {""}


def test_a_negative_record_count_is_unreadable() -> None:
    header = bytearray(encode_batch([(1, b"k", b"", ())]))
    header[57:61] = (-1).to_bytes(4, signed=True)
    assert "claims -1 records" in unreadable_reason(RecordBatch(sealed(header)))


class ReadOnly(MemoryFiles):
    """A file system that refuses locks, as a read-only one does."""

    error = errno.EROFS

    def lock(self, path: str) -> File | None:
        raise OSError(self.error, "not writable", path)


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES])
def test_a_read_only_file_system_can_be_inspected(error: int) -> None:
    files = ReadOnly()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReadOnly, "lock", MemoryFiles.lock)
        directory = LogDirectory.open("data", files=files, config=BrokerConfig())
        directory.create_topic("t", 1)
        directory.log("t", 0).append(keyed(("a", "1")), now_ms=0)
        force(directory.log("t", 0), SPOILED["plain"])
        directory.close()
    files.error = error
    with Inspection.open("data", files=files) as inspection:
        assert (inspection.holder is None) == (error == errno.EROFS)
        report = inspection.verify()
        assert [each.kind for each in report.findings] == [FindingKind.UNREADABLE]
        with pytest.raises(UsageError, match="can't be written to"):
            repair_partition(inspection, report)


def test_read_only_files_can_be_inspected(tmp_path: Path) -> None:
    """The directory has no lock file, and none can be created."""
    path = tmp_path / "data"
    directory = LogDirectory.open(str(path), config=BrokerConfig())
    directory.create_topic("t", 1)
    directory.log("t", 0).append(keyed(("a", "1")), now_ms=0)
    directory.close()
    (path / "lock").unlink()
    for each in [*path.rglob("*"), path]:
        each.chmod(0o500 if each.is_dir() else 0o400)
    try:
        with Inspection.open(str(path)) as inspection:
            assert inspection.verify().is_sound
    finally:
        for each in [path, *path.rglob("*")]:
            each.chmod(0o700)
