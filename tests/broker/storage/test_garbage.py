"""Garbage in every kind of file: an error that says where, or a repair; never a silent loss."""

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


def built() -> MemoryFiles:
    """A directory with a file of every kind."""
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
        # So that the last segment is not all that there is of a producer's numbers.
        directory.log("plain", 0).append(batch(producer=(8, 0, number)), now_ms=0)
    clean(directory.log("clean", 0))
    directory.close()
    return files


BUILT = built()


def paths(kind: str) -> list[str]:
    every = [f"data/{name}" for name in BUILT.list("data")]
    for folder in [path for path in every if path.startswith("data/p-")]:
        every.remove(folder)
        every += [f"{folder}/{name}" for name in BUILT.list(folder)]
    found = [path for path in every if path.endswith(kind)]
    return [found[0], found[-1]]


def read(directory: LogDirectory, told: list[str]) -> Values:
    """Everything that can be read, asking for every offset that there was, as a client does."""
    found: Values = {}
    for topic, end_offset in (("plain", 3 * BATCHES + 1), ("clean", BATCHES + 1)):
        log = directory.log(topic, 0)
        offset = 0
        while offset < end_offset:
            try:
                data = log.read(offset, max_bytes=1)
                if not len(data):
                    break  # The end, for one who reads beside.
                (each,) = split_batches(data)
                offset = each.next_offset
                each.check_crc()
                if not each.is_control:
                    found.update({(topic, r.offset): r.value for r in each.records()})
            except CorruptData as error:
                told.append(str(error))
                offset += 1
            except OffsetOutOfRange:
                told += [str(place) for place in log.damage]
                break
    return found


RIGHT = read(opened(copy.deepcopy(BUILT)), [])


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
        for content in garbage(read_file(BUILT, path)):
            files = copy.deepcopy(BUILT)
            if content is None:
                files.remove(path)
            else:
                overwrite(files, path, content)
            yield files


@contextmanager
def refusing(kind: str) -> Iterator[None]:
    """An error is fine that says which file is meant, or which setting in it."""
    try:
        yield
    except ConfigError:
        pass
    except StreamlogError as error:
        if kind.strip(".") not in str(error):
            raise


@pytest.mark.parametrize("kind", KINDS)
def test_an_opening_refuses_or_serves_what_is_sound(kind: str) -> None:
    for files in garbled(kind):
        with refusing(kind):
            directory = opened(files)
            check_served(directory)
            directory.close()
            check_served(opened(files))


def check_served(directory: LogDirectory) -> None:
    told: list[str] = []
    now = read_or_none(directory, told)
    if now is not None:
        assert now.items() <= RIGHT.items()
        assert now == RIGHT or told, "whoever reads hears of it"


def read_or_none(directory: LogDirectory, told: list[str]) -> Values | None:
    """None if the list of topics is one that a person might have written."""
    return read(directory, told) if directory.topics.keys() == {"plain", "clean"} else None


@pytest.mark.parametrize("kind", KINDS)
def test_looking_and_mending_refuse_or_finish(kind: str) -> None:
    for files in garbled(kind):
        with refusing(kind), Inspection.open("data", files=files) as inspection:
            repair_partition(inspection, inspection.verify())
            left = {finding.kind for finding in inspection.verify().findings}
            assert left <= {FindingKind.ORDER}, "nobody knows what would be right"


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_beside_refuses_or_reads(kind: str) -> None:
    for files in garbled(kind):
        with refusing(kind):
            directory = LogDirectory.open("data", files=files, config=CONFIG, read_only=True)
            read_or_none(directory, [])


@pytest.mark.parametrize("topic", ["plain", "clean"])
def test_a_last_segment_that_was_wiped_out_is_never_cut_off(topic: str) -> None:
    files = copy.deepcopy(BUILT)
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
