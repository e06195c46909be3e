"""A source whose log is truncated, as by a power loss with `flush=os`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from streamlog.broker.storage.data_directory import partition_folder
from streamlog.client.admin import NewTopic
from streamlog.errors import SourceLost
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.worker.inputs.source_watch import SourceWatch
from streamlog.worker.topics.lost_sources import Present
from tests.broker.process import BrokerProcess
from tests.worker.test_recreated_sources import (
    DEADLINE_S,
    GUARANTEES,
    IS_THOROUGH,
    KEYS,
    Case,
    Guarantee,
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
    return marks


def cut(broker: BrokerProcess, marks: dict[Path, int]) -> None:
    broker.kill()
    for path, size in marks.items():
        with path.open("r+b") as file:
            file.truncate(size)
    broker.__enter__()


FEWER, MORE = 2, 60
"""Records written after the truncation: the log ends before, or behind, what was read."""
SOME_CASES: Final[list[tuple[str, Guarantee, int]]] = [
    ("map", "at_least_once", FEWER),
    ("count", "exactly_once", MORE),
    ("repartition", "exactly_once", FEWER),
    ("agent", "at_least_once", MORE),
]
ALL_CASES = list(product(["map", "count", "repartition", "agent"], GUARANTEES, [FEWER, MORE]))


@pytest.mark.parametrize(("shape", "guarantee", "more"), ALL_CASES if IS_THOROUGH else SOME_CASES)
def test_records_written_after_a_truncation_count_once(
    tmp_path: Path, shape: str, guarantee: Guarantee, more: int
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
            case.source_lost = "fail"  # The loss has been handled: the worker runs normally.
            async with worker(case) as task:
                portions.append(portion(chance, "again", 5))
                await feed(log, "source", portions[4])
                await until(rows_of(case), expected(shape, portions), task)

    with BrokerProcess(tmp_path / "data", flush="os") as broker:
        asyncio.run(main(broker))


@pytest.mark.parametrize("more", [FEWER, MORE], ids=["fewer", "more"])
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


LOOKS: Final = 2


def of_a(name: str, count: int) -> list[tuple[str, str]]:
    """Return records of one key, and so of one partition."""
    return [("a", f"{name}{number}") for number in range(count)]


LATEST_CASES = [
    (shape, guarantee)
    for shape, guarantee, more in ALL_CASES
    if more == MORE and shape != "repartition" and (IS_THOROUGH or shape == "count")
]


@pytest.mark.parametrize(("shape", "guarantee"), LATEST_CASES)
def test_latest_skips_nothing_that_is_written_after_the_loss_was_found(
    tmp_path: Path,
    shape: str,
    guarantee: Guarantee,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log grows whenever the worker looks at it, on its way from the loss to the end.

    It looks before and after the commit of what it did in the old log.
    """
    portions = [of_a("kept", 12), of_a("cut", 20)]
    look = SourceWatch.present

    async def main(broker: BrokerProcess) -> None:
        async with Log.open(f"kafka://{broker.address}") as log:
            case = Case(f"kafka://{broker.address}", log, tmp_path, shape, guarantee)
            case.source_lost = "latest"
            marks = await prepared(case, portions)
            await asyncio.to_thread(cut, broker, marks)
            await feed(log, "source", of_a("skipped", 30))

            async def growing(
                watch: SourceWatch, partitions: Collection[TopicPartition]
            ) -> dict[TopicPartition, Present]:
                if watch.losses and len(portions) < LOOKS + 2:
                    portions.append(of_a(f"after{len(portions)}-", 5))
                    await feed(log, "source", portions[-1])
                return await look(watch, partitions)

            monkeypatch.setattr(SourceWatch, "present", growing)
            async with worker(case) as task:
                async with asyncio.timeout(DEADLINE_S):
                    while len(portions) < LOOKS + 2:
                        assert not task.done() or task.result()
                        await asyncio.sleep(0.02)
                await until(rows_of(case), expected(shape, portions), task)
        lines = [each.getMessage() for each in caplog.records if "truncated" in each.getMessage()]
        assert len(lines) == 1, lines

    with BrokerProcess(tmp_path / "data", flush="os") as broker:
        asyncio.run(main(broker))


@pytest.mark.parametrize(("shape", "guarantee"), LATEST_CASES)
def test_latest_skips_nothing_that_is_written_after_the_worker_was_stopped(
    tmp_path: Path, shape: str, guarantee: Guarantee
) -> None:
    """The end at which the first worker found the loss is where the next one begins."""
    portions = [of_a("kept", 12), of_a("cut", 20)]

    async def main(broker: BrokerProcess) -> None:
        async with Log.open(f"kafka://{broker.address}") as log:
            case = Case(f"kafka://{broker.address}", log, tmp_path, shape, guarantee)
            case.source_lost = "latest"
            marks = await prepared(case, portions)
            await asyncio.to_thread(cut, broker, marks)
            await feed(log, "source", of_a("skipped", 30))
            async with worker(case) as task:
                await read_to(case, 12 + 30, task)
            portions.append(of_a("later", 5))
            await feed(log, "source", portions[-1])
            async with worker(case) as task:
                await until(rows_of(case), expected(shape, portions), task)

    with BrokerProcess(tmp_path / "data", flush="os") as broker:
        asyncio.run(main(broker))


async def read_to(case: Case, offset: int, task: asyncio.Task[None]) -> None:
    """Wait until the app's committed offset has reached this one."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            at = await case.log.admin().group_offsets("again")
            if sum(n for part, n in at.items() if part.topic == "source") >= offset:
                return
            if task.done():
                task.result()
            await asyncio.sleep(0.05)
