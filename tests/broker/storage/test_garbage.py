"""Garbage in every kind of file: an error that names the file, or a repair; never silent loss."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.storage.disk.files import read_file
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.broker.storage.repair.findings import FindingKind
from streamlog.broker.storage.repair.inspection import Inspection
from streamlog.broker.storage.repair.partition_repair import repair_partition
from streamlog.errors import ConfigError, CorruptData, OffsetOutOfRange, StreamlogError
from streamlog.records.batch import split_batches
from streamlog.records.control_batches import ABORT, COMMIT
from tests.broker.storage.batches import batch, overwrite
from tests.broker.storage.compaction.test_cleaning import COMPACTED, clean, keyed
from tests.broker.storage.log.test_transactions import end, write

CONFIG = BrokerConfig(topic=COMPACTED)
BATCHES = 24
Values = dict[tuple[str, int], bytes | None]

KINDS = [
    ".index",
    ".log",
    ".snapshot",
    ".timeindex",
    ".txnindex",
    "checkpoints",
    "clean_shutdown",
    "cleaned-offset",
    "leader-epoch-checkpoint",
    "lock",
    "meta.properties",
    "topics.json",
]


def opened(files: MemoryFiles) -> LogDirectory:
    return LogDirectory.open("data", files=files, config=CONFIG)


def new_disk() -> MemoryFiles:
    """Return the disk of a data directory with a file of every kind."""
    files = MemoryFiles()
    directory = opened(files)
    directory.create_topic("plain", 1, {"cleanup.policy": "delete"})
    directory.create_topic("clean", 1)
    directory.log("plain", 0).append(batch(), now_ms=0)
    directory.log("clean", 0).append(keyed(("k", "0")), now_ms=0)
    files.crash(keep_bytes=None)
    directory = opened(files)  # in another epoch
    for number in range(BATCHES):
        directory.log("clean", 0).append(keyed((f"k{number % 5}", str(number))), now_ms=0)
        write(directory.log("plain", 0), b"v%d" % number, (7, 0, number))
        end(directory.log("plain", 0), 7, COMMIT if number % 3 else ABORT)
    for number in range(BATCHES):
        # So that a producer's sequence numbers are not in the last segment alone.
        directory.log("plain", 0).append(batch(producer=(8, 0, number)), now_ms=0)
    clean(directory.log("clean", 0))
    directory.close()
    return files


SOUND_DISK = new_disk()


def paths(kind: str) -> list[str]:
    every = [f"data/{name}" for name in SOUND_DISK.list("data")]
    for folder in [path for path in every if path.startswith("data/p-")]:
        every.remove(folder)
        every += [f"{folder}/{name}" for name in SOUND_DISK.list(folder)]
    found = [path for path in every if path.endswith(kind)]
    return [found[0], found[-1]]


def read(directory: LogDirectory, errors: list[str]) -> Values:
    """Read from every offset, as a client does; add the errors to `errors`."""
    found: Values = {}
    for topic, end_offset in (("plain", 3 * BATCHES + 1), ("clean", BATCHES + 1)):
        log = directory.log(topic, 0)
        offset = 0
        while offset < end_offset:
            try:
                data = log.read(offset, max_bytes=1)
                if not len(data):
                    break  # The end, in a read-only directory.
                (each,) = split_batches(data)
                offset = each.next_offset
                each.check_crc()
                if not each.is_control:
                    found.update({(topic, r.offset): r.value for r in each.records()})
            except CorruptData as error:
                errors.append(str(error))
                offset += 1
            except OffsetOutOfRange:
                errors += [str(each) for each in log.damage]
                break
    return found


RIGHT = read(opened(copy.deepcopy(SOUND_DISK)), [])


def garbage(data: bytes) -> Iterator[bytes | None]:
    chance = random.Random(len(data))
    yield None
    yield from (b"", data[:-1], data[: len(data) // 2], data + b"\1\2\3")
    yield from (bytes(len(data) or 64), chance.randbytes(len(data) or 64), b"\xff\xfe text")
    for _ in range(4):
        if data:
            at = chance.randrange(len(data))
            yield data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
    if data.startswith(b"{"):
        yield from (b"[]", b"{}", b"7", b"null", b"[" * 100_000, b'{"version": 1}')
        yield from changed_json(json.loads(data))


def changed_json(content: dict[str, object]) -> Iterator[bytes]:
    odd = [None, -1, "x", [], {}, float("inf"), 2**70, {"a": -1}]
    content.pop("crc32c", None)
    for key, known in content.items():
        yield json.dumps({name: value for name, value in content.items() if name != key}).encode()
        for value in odd:
            yield json.dumps({**content, key: value}).encode()
            if isinstance(known, dict) and known:
                yield json.dumps({**content, key: dict.fromkeys(known, value)}).encode()


def garbled(kind: str) -> Iterator[MemoryFiles]:
    for path in dict.fromkeys(paths(kind)):
        for content in garbage(read_file(SOUND_DISK, path)):
            files = copy.deepcopy(SOUND_DISK)
            if content is None:
                files.remove(path)
            else:
                overwrite(files, path, content)
            yield files


@contextmanager
def refusing(kind: str) -> Iterator[None]:
    """Allow errors that name the file or the setting."""
    try:
        yield
    except ConfigError:
        pass
    except StreamlogError as error:
        if kind.strip(".") not in str(error):
            raise


@pytest.mark.parametrize("kind", KINDS)
def test_opening_garbage_raises_or_serves_the_sound_records(kind: str) -> None:
    for files in garbled(kind):
        with refusing(kind):
            directory = opened(files)
            check_served(directory)
            directory.close()
            check_served(opened(files))


def check_served(directory: LogDirectory) -> None:
    errors: list[str] = []
    now = read_or_none(directory, errors)
    if now is not None:
        assert now.items() <= RIGHT.items()
        assert now == RIGHT or errors, "a reader gets an error for every loss"


def read_or_none(directory: LogDirectory, errors: list[str]) -> Values | None:
    """Return what `read` finds; None if the list of topics is valid, but another one."""
    return read(directory, errors) if directory.topics.keys() == {"plain", "clean"} else None


@pytest.mark.parametrize("kind", KINDS)
def test_inspecting_and_repairing_garbage_raises_or_succeeds(kind: str) -> None:
    for files in garbled(kind):
        with refusing(kind), Inspection.open("data", files=files) as inspection:
            repair_partition(inspection, inspection.verify())
            left = {finding.kind for finding in inspection.verify().findings}
            assert left <= {FindingKind.ORDER}, "the right order is unknown"


@pytest.mark.parametrize("kind", KINDS)
def test_a_read_only_opening_of_garbage_raises_or_reads(kind: str) -> None:
    for files in garbled(kind):
        with refusing(kind):
            directory = LogDirectory.open("data", files=files, config=CONFIG, read_only=True)
            read_or_none(directory, [])


@pytest.mark.parametrize("topic", ["plain", "clean"])
def test_a_zeroed_last_segment_is_never_truncated(topic: str) -> None:
    files = copy.deepcopy(SOUND_DISK)
    directory = opened(files)
    topic_id, end_offset = directory.topics[topic].topic_id, directory.log(topic, 0).log_end_offset
    directory.close()
    folder = f"data/p-{topic_id.hex()}-0"
    path = max(f"{folder}/{name}" for name in files.list(folder) if name.endswith(".log"))
    overwrite(files, path, bytes(len(read_file(files, path))))
    for _ in range(3):
        directory = opened(files)
        log = directory.log(topic, 0)
        with pytest.raises(CorruptData):
            log.read(end_offset - 1, max_bytes=1)
        assert log.damage
        directory.write_checkpoints()
        files.crash(keep_bytes=None)
