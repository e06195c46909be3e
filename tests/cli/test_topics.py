"""`streamlog topics`, over a log of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog.cli.topics_command import topics
from streamlog.errors import LogDirectoryLost, LogError, UnknownTopicOrPartition
from streamlog.log import Log
from streamlog.records.partitioners import Partitioner
from tests.cli.console import console, row


def test_topics_grow(tmp_path: Path) -> None:
    told = console(topics, tmp_path / "log")
    told("create", "t", "--partitions", "2")
    assert "t has 5 partitions" in told("alter", "t", "--partitions", "5")
    assert row(told("list"), "t", "5")
    with pytest.raises(LogError, match="it has to be more"):
        told("alter", "t", "--partitions", "5")


def test_looking_makes_no_log(tmp_path: Path) -> None:
    told = console(topics, tmp_path / "log")
    for arguments in (
        ("list",),
        ("describe", "t"),
        ("delete", "t"),
        ("alter", "t", "--partitions", "5"),
    ):
        with pytest.raises(LogDirectoryLost, match=r"there is no log in .*/log"):
            told(*arguments)
    assert not (tmp_path / "log").exists()
    told("create", "t")
    with pytest.raises(UnknownTopicOrPartition):
        told("describe", "u")


def test_a_description_tells_how_far_records_may_lie_ahead(tmp_path: Path) -> None:
    told = console(topics, tmp_path / "log")
    told("create", "t", "--config", "message.timestamp.after.max.ms=3600000")
    assert "message.timestamp.after.max.ms=3600000: timestamps further ahead" in told(
        "describe", "t"
    )
    told("create", "plans", "--config", "message.timestamp.after.max.ms=86400000")
    assert "message.timestamp.after.max.ms=86400000: timestamps further ahead" in told(
        "describe", "plans"
    )


def written(log: Path, partitioner: Partitioner) -> None:
    async def main() -> None:
        async with (
            Log.open(f"embedded:{log}", listen=False) as opened,
            opened.producer() as producer,
        ):
            producer.partition_by({"t": partitioner})
            for number in range(50):
                await producer.send("t", b"v", key=b"u%d" % number)
            await producer.send("t", b"v")
            await producer.flush()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("partitioner", "verdict"),
    [
        ("murmur2", "murmur2 fits. It is the default"),
        ("crc32", "partitioner='crc32'"),
        ("fnv1a", "partitioner='fnv1a'"),
        (lambda key, count: len(key) % count, "No partitioner fits"),
    ],
)
def test_a_check_tells_how_keys_are_partitioned(
    tmp_path: Path, partitioner: Partitioner, verdict: str
) -> None:
    told = console(topics, tmp_path / "log")
    told("create", "t", "--partitions", "4")
    assert "No record has a key" in told("check", "t")
    written(tmp_path / "log", partitioner)
    assert verdict in " ".join(told("check", "t").split())
    told("create", "one", "--partitions", "1")
    assert "every partitioner fits" in told("check", "one")
