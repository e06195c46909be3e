"""`streamlog topics`, on its own log."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from streamlog.cli.topics_command import topics
from streamlog.errors import LogDirectoryLost, LogError, UnknownTopicOrPartition
from streamlog.log import Log
from streamlog.records.partitioners import Partitioner
from tests.cli.console import console, row


def test_partitions_are_added_to_a_topic(tmp_path: Path) -> None:
    run_topics = console(topics, tmp_path / "log")
    run_topics("create", "t", "--partitions", "2")
    assert "t has 5 partitions" in run_topics("alter", "t", "--partitions", "5")
    assert row(run_topics("list"), "t", "5")
    with pytest.raises(LogError, match="it can only grow"):
        run_topics("alter", "t", "--partitions", "5")


def test_describing_topics_creates_no_log(tmp_path: Path) -> None:
    run_topics = console(topics, tmp_path / "log")
    for arguments in (
        ("list",),
        ("describe", "t"),
        ("delete", "t"),
        ("alter", "t", "--partitions", "5"),
    ):
        with pytest.raises(LogDirectoryLost, match=r"there is no log in .*/log"):
            run_topics(*arguments)
    assert not (tmp_path / "log").exists()
    run_topics("create", "t")
    with pytest.raises(UnknownTopicOrPartition):
        run_topics("describe", "u")


def test_describe_shows_the_timestamp_bound(tmp_path: Path) -> None:
    run_topics = console(topics, tmp_path / "log")
    run_topics("create", "t", "--config", "message.timestamp.after.max.ms=3600000")
    assert "message.timestamp.after.max.ms=3600000: timestamps further ahead" in run_topics(
        "describe", "t"
    )
    run_topics("create", "plans", "--config", "message.timestamp.after.max.ms=86400000")
    assert "message.timestamp.after.max.ms=86400000: timestamps further ahead" in run_topics(
        "describe", "plans"
    )


def write_keys(log: Path, partitioner: Partitioner) -> None:
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
def test_check_reports_the_partitioner_of_the_keys(
    tmp_path: Path, partitioner: Partitioner, verdict: str
) -> None:
    run_topics = console(topics, tmp_path / "log")
    run_topics("create", "t", "--partitions", "4")
    assert "No record has a key" in run_topics("check", "t")
    write_keys(tmp_path / "log", partitioner)
    assert verdict in " ".join(run_topics("check", "t").split())
    listed, *said = run_topics("check", "t", "--json").splitlines()
    assert [each["of"] for each in json.loads(listed)] == [50, 50, 50]
    assert verdict in " ".join(said)
    run_topics("create", "one", "--partitions", "1")
    assert "every partitioner fits" in run_topics("check", "one")
