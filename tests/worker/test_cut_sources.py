"""A source whose log is truncated, as by a power loss with `flush=os`."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Literal

import pytest

from streamlog.broker.storage.data_directory import partition_folder
from streamlog.client.admin import NewTopic
from streamlog.errors import SourceLost
from streamlog.log import Log
from tests.broker.process import BrokerProcess
from tests.worker.test_recreated_sources import (
    KEYS,
    Case,
    create,
    ended,
    expected,
    feed,
    portion,
    rows_of,
    until,
    worker,
)


def sizes(data: Path) -> dict[Path, int]:
    """Return the segments of the source with their sizes."""
    return {path: path.stat().st_size for path in data.glob("p-*/*.log")}


async def folders_of(case: Case, topic: str) -> set[Path]:
    """Return the folders of a topic's partitions."""
    (found,) = await case.log.admin().find_topics([topic])
    data = case.path / "data"
    return {data / partition_folder(found.topic_id, n) for n in range(found.partitions)}


async def prepared(case: Case, old: list[list[tuple[str, str]]]) -> dict[Path, int]:
    """Write and process two portions, and return the segment sizes before the second."""
    await create(case.log, "source", "names")
    await case.log.admin().create_topics([NewTopic("out", 1)])
    await feed(case.log, "names", [(key, f"name-{key}") for key in KEYS])
    await feed(case.log, "source", old[0])
    folders = await folders_of(case, "source")
    marks = {
        path: size for path, size in sizes(case.path / "data").items() if path.parent in folders
    }
    await feed(case.log, "source", old[1])
    async with worker(case) as task:
        await until(rows_of(case), expected(case.shape, old), task)
        await asyncio.sleep(0.5)  # The offsets of the written output are committed.
    return marks


def cut(broker: BrokerProcess, marks: dict[Path, int]) -> None:
    broker.kill()
    for path, size in marks.items():
        with path.open("r+b") as file:
            file.truncate(size)
    broker.__enter__()


@pytest.mark.parametrize("more", [2, 60], ids=["fewer", "more"])
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("shape", ["map", "count", "repartition", "agent"])
def test_records_written_after_a_truncation_count_once(
    tmp_path: Path, shape: str, guarantee: Literal["exactly_once", "at_least_once"], more: int
) -> None:
    chance = random.Random(f"{shape} {guarantee} {more}")
    portions = [portion(chance, "kept", 12), portion(chance, "cut", 20)]

    async def main(broker: BrokerProcess) -> None:
        async with Log.open(f"kafka://{broker.address}") as log:
            case = Case(f"kafka://{broker.address}", log, tmp_path, shape, guarantee)
            case.source_lost = "earliest"
            marks = await prepared(case, portions)
            await asyncio.to_thread(cut, broker, marks)
            portions.append(portion(chance, "new", more))
            await feed(log, "source", portions[2])
            async with worker(case) as task:
                await until(rows_of(case), expected(shape, portions), task)
                portions.append(portion(chance, "last", 5))
                await feed(log, "source", portions[3])
                await until(rows_of(case), expected(shape, portions), task)
                await asyncio.sleep(0.5)
            case.source_lost = "fail"  # The loss has been handled: the worker runs normally.
            async with worker(case) as task:
                portions.append(portion(chance, "again", 5))
                await feed(log, "source", portions[4])
                await until(rows_of(case), expected(shape, portions), task)

    with BrokerProcess(tmp_path / "data", flush="os") as broker:
        asyncio.run(main(broker))


@pytest.mark.parametrize("more", [2, 60], ids=["fewer", "more"])
def test_a_worker_with_state_fails_and_names_the_truncation(tmp_path: Path, more: int) -> None:
    chance = random.Random(more)
    old = [portion(chance, "kept", 12), portion(chance, "cut", 20)]

    async def main(broker: BrokerProcess) -> None:
        async with Log.open(f"kafka://{broker.address}") as log:
            case = Case(f"kafka://{broker.address}", log, tmp_path, "count", "exactly_once")
            marks = await prepared(case, old)
            await asyncio.to_thread(cut, broker, marks)
            await feed(log, "source", portion(chance, "new", more))
            with pytest.raises(SourceLost, match=r"source-\d: the log was truncated") as caught:
                await ended(case, [], None)
            assert caught.value.exit_code == 5
            assert not caught.value.is_recreated
            kept = sum(1 for _ in old[0])
            assert 0 <= caught.value.resume_at <= kept

    with BrokerProcess(tmp_path / "data", flush="os") as broker:
        asyncio.run(main(broker))
