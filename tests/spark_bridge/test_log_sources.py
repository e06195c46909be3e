"""Reads of partitions with gaps, markers and deleted records, from files and brokers.

Other Spark sources have hung at a partition that ends with a marker, reported gaps as lost data, or
shown aborted records: a table of these cases. The tests need no Spark.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from spark_bridge.log_sources import log_source
from spark_bridge.source_options import parse_options
from streamlog.broker.config.broker import BrokerConfig, TopicConfig
from streamlog.broker.storage.compaction.cleaning import Cleaning
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.client.admin import NewTopic
from streamlog.errors import ConfigError, CorruptData
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.broker.storage.compaction.test_cleaning import MEMORY_BYTES, flushed_dirtiness, keyed
from tests.spark_bridge.test_writing import one, served

COMPACTED = BrokerConfig(
    topic=TopicConfig(segment_bytes=1024, index_interval_bytes=128, cleanup_policy="compact")
)
KEYS = 7
KEYED = 60


async def fill(url: str) -> None:
    async with Log.open(url) as log:
        admin = log.admin()
        names = ("plain", "marked", "aborted", "cut", "emptied", "empty", "compacted")
        await admin.create_topics([NewTopic(name, 1) for name in names])
        async with log.producer() as producer:
            for name in ("plain", "cut", "emptied"):
                for number in range(10):
                    await producer.send(name, b"%d" % number, partition=0)
        for name, is_aborted in (("marked", False), ("aborted", False), ("aborted", True)):
            async with log.producer(transactional_id=f"{name}-{is_aborted}") as producer:
                with suppress(ZeroDivisionError):
                    async with producer.transaction():
                        for number in range(3):
                            await producer.send(name, b"%d" % number, partition=0)
                        await producer.flush()
                        if is_aborted:
                            raise ZeroDivisionError
        await admin.delete_records({TopicPartition("cut", 0): 4, TopicPartition("emptied", 0): 10})


def compact(path: Path) -> None:
    """Write and compact a topic, so that most of its records are removed."""
    directory = LogDirectory.open(str(path), config=COMPACTED)
    try:
        log = directory.log("compacted", 0)
        for number in range(KEYED):
            log.append(keyed((f"k{number % KEYS}", f"{number:040}"), ("x", "x" * 40)), now_ms=0)
        cleaning = Cleaning(log, flushed_dirtiness(log), memory_bytes=MEMORY_BYTES, wall_ms=0)
        for _ in cleaning.steps():
            pass
    finally:
        directory.close()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("places") / "log"
    asyncio.run(fill(f"embedded:{path}"))
    compact(path)
    return path


@pytest.fixture(scope="module", params=["path", "broker"])
def address(request: pytest.FixtureRequest, directory: Path) -> Iterator[dict[str, str]]:
    """Yield the options with the log's address."""
    if request.param == "path":
        yield {"path": str(directory)}
        return
    with served(one(directory)) as servers:
        yield {"kafka.bootstrap.servers": servers}


def offsets(address: dict[str, str], topic: str, **options: str) -> list[int]:
    source = log_source(parse_options({**address, "subscribe": topic, **options}))
    return [
        offset
        for range_ in source.plan()
        for batch in source.read(range_, None)
        for offset in batch.column("offset").to_pylist()
    ]


@pytest.mark.parametrize(
    ("topic", "options", "expected"),
    [
        ("plain", {}, [*range(10)]),
        ("plain", {"startingOffsets": '{"plain": {"0": 3}}'}, [*range(3, 10)]),
        ("plain", {"endingOffsets": '{"plain": {"0": 3}}'}, [0, 1, 2]),
        ("marked", {}, [0, 1, 2]),
        ("marked", {"startingOffsets": '{"marked": {"0": 3}}'}, []),
        ("marked", {"isolationLevel": "read_uncommitted"}, [0, 1, 2]),
        ("aborted", {}, [0, 1, 2]),
        ("aborted", {"isolationLevel": "read_uncommitted"}, [0, 1, 2, 4, 5, 6]),
        ("cut", {}, [*range(4, 10)]),
        ("cut", {"startingOffsets": '{"cut": {"0": -2}}'}, [*range(4, 10)]),
        (
            "cut",
            {"startingOffsets": '{"cut": {"0": 1}}', "failOnDataLoss": "false"},
            [*range(4, 10)],
        ),
        ("emptied", {}, []),
        ("empty", {}, []),
    ],
)
def test_a_read_gives_the_visible_records(
    address: dict[str, str], topic: str, options: dict[str, str], expected: list[int]
) -> None:
    assert offsets(address, topic, **options) == expected


def test_a_start_at_a_deleted_offset_is_an_error(address: dict[str, str]) -> None:
    with pytest.raises(
        ConfigError, match=r"offset 1 of cut-0 is outside.*begins at 4 and ends at 10"
    ):
        offsets(address, "cut", startingOffsets='{"cut": {"0": 1}}')


def test_gaps_of_compaction_are_not_data_loss(address: dict[str, str]) -> None:
    found = offsets(address, "compacted")
    assert KEYS < len(found) < 2 * KEYED
    assert found == sorted({*found})
    assert found[-1] == 2 * KEYED - 1
    middle = found[0] + 1
    assert middle not in found
    starting = f'{{"compacted": {{"0": {middle}}}}}'
    assert offsets(address, "compacted", startingOffsets=starting) == found[1:]


async def add(url: str, topic: str, value: bytes) -> None:
    async with Log.open(url) as log, log.producer() as producer:
        await producer.send(topic, value, partition=0)


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_damaged_end_of_a_log_is_reported(
    directory: Path, tmp_path: Path, *, is_closed: bool
) -> None:
    path = tmp_path / "log"
    shutil.copytree(directory, path)
    asyncio.run(add(f"embedded:{path}", "plain", b"one more"))
    if not is_closed:
        (path / "clean_shutdown").unlink()  # As after a kill of its broker.
    (segment,) = (each for each in path.glob("p-*/*.log") if b"one more" in each.read_bytes())
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    address = {"path": str(path)}
    with pytest.raises(CorruptData, match=r"plain-0 can be read up to offset 10, but 11 .* verify"):
        offsets(address, "plain")
    with pytest.raises(CorruptData, match="plain-0 can be read up to offset 10"):
        log_source(parse_options({**address, "subscribe": "plain"})).bounds()
    assert offsets(address, "plain", failOnDataLoss="false") == [*range(10)]
    assert offsets(address, "plain", endingOffsets='{"plain": {"0": 3}}') == [0, 1, 2]
    assert offsets(address, "marked") == [0, 1, 2]
