"""Changelogs and topics of global tables that were truncated while local state is ahead of them.

The rule: whatever this machine's disk holds, the table equals its definition, applied to the
records in the log. Rows are written again, so the last one of each key counts.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal, get_args

import pytest

from streamlog import App
from streamlog.client.admin import NewTopic
from streamlog.errors import SourceLost
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.broker.process import BrokerProcess
from tests.worker.test_cut_sources import cut, folders_of, sizes
from tests.worker.test_recreated_sources import (
    DEADLINE_S,
    GUARANTEES,
    IS_THOROUGH,
    KEYS,
    PARTITIONS,
    SHAPES,
    Case,
    Fed,
    Guarantee,
    create,
    expected,
    failing,
    feed,
    portion,
    rows_of,
    until,
    worker,
)

CHANGELOG: Final = "again-0-changelog"
TASKS: Final = [TopicPartition(CHANGELOG, number) for number in range(PARTITIONS)]
Lost = Literal["power", "backup"]
TRUNCATED: Final = (
    r"code 5: .*(source|again-0-changelog)-\d.* truncated|it was truncated: it ends at"
)


def last_rows(rows: list[str]) -> dict[str, int]:
    """Return the last count of each key in the rows."""
    return {key: int(count) for key, count in (row.split() for row in rows)}


async def until_last(case: Case, portions: list[list[Fed]], task: asyncio.Task[None]) -> None:
    """Wait until the table equals its definition, applied to these records."""
    wanted: dict[str, int] = {}
    for key, _ in (record for each in portions for record in each):
        wanted[key] = wanted.get(key, 0) + 1
    async with asyncio.timeout(DEADLINE_S):
        while last_rows(await case.rows()) != wanted:
            if task.done():
                task.result()
            await asyncio.sleep(0.1)


async def ends(log: Log) -> dict[TopicPartition, int]:
    async with log.consumer() as consumer:
        return await consumer.end_offsets(TASKS)


def back_up(broker: BrokerProcess, data: Path, saved: Path) -> None:
    broker.end(signal.SIGTERM)
    shutil.copytree(data, saved)
    broker.__enter__()


def restore_backup(broker: BrokerProcess, data: Path, saved: Path) -> None:
    broker.end(signal.SIGTERM)
    shutil.rmtree(data)
    saved.rename(data)
    broker.__enter__()


@asynccontextmanager
async def losing(
    case: Case, broker: BrokerProcess, how: Lost, kept: list[Fed], lost: list[Fed]
) -> AsyncIterator[dict[TopicPartition, int]]:
    """Let a worker process both portions, and return the log to its state after the first."""
    data, saved = case.path / "data", case.path / "saved"
    await create(case.log, "source", "names")
    await case.log.admin().create_topics([NewTopic("out", 1)])
    await feed(case.log, "source", kept)
    async with worker(case) as task:
        await until(rows_of(case), expected(case.shape, [kept]), task)
    folders = await folders_of(case, "source") | await folders_of(case, CHANGELOG)
    marks = {path: size for path, size in sizes(data).items() if path.parent in folders}
    if how == "backup":
        await asyncio.to_thread(back_up, broker, data, saved)
    await feed(case.log, "source", lost)
    async with worker(case) as task:
        await until(rows_of(case), expected(case.shape, [kept, lost]), task)
    reached = await ends(case.log)
    if how == "power":
        await asyncio.to_thread(cut, broker, marks)
    else:
        await asyncio.to_thread(restore_backup, broker, data, saved)
    yield reached


SOME_CASES: Final[list[tuple[Lost, Guarantee, bool]]] = [
    ("power", "exactly_once", True),
    ("power", "at_least_once", False),
    ("backup", "exactly_once", False),
    ("backup", "at_least_once", True),
]
ALL_CASES = list(product(get_args(Lost), GUARANTEES, [False, True]))


@pytest.mark.parametrize(
    ("how", "guarantee", "is_overtaken"), ALL_CASES if IS_THOROUGH else SOME_CASES
)
def test_state_ahead_of_its_changelog_is_rebuilt(
    tmp_path: Path,
    how: Lost,
    guarantee: Guarantee,
    is_overtaken: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Overtaken: others have written so much since that the changelog contains the offset again."""
    chance = random.Random(f"{how} {guarantee} {is_overtaken}")
    portions = [portion(chance, "kept", 12)]
    lost = portion(chance, "lost", 20)

    async def main(broker: BrokerProcess) -> None:
        async with Log.open(f"kafka://{broker.address}") as log:
            case = Case(f"kafka://{broker.address}", log, tmp_path, "count", guarantee)
            # After a power loss, the source ends below the group's committed offsets.
            case.source_lost = "earliest" if how == "power" else None
            async with losing(case, broker, how, portions[0], lost) as reached:
                if is_overtaken:
                    case.state = "elsewhere"
                    await overtaken(case, reached)
                case.state = "state"
                caplog.clear()
                async with worker(case) as task:
                    portions.append([(key, f"last-{key}") for key in KEYS])
                    await feed(log, "source", portions[-1])
                    await until_last(case, portions, task)

    async def overtaken(case: Case, reached: dict[TopicPartition, int]) -> None:
        """Let a worker elsewhere write until the changelogs are longer than before."""
        async with worker(case) as task:
            while any(end <= reached[part] for part, end in (await ends(case.log)).items()):
                portions.append([(key, f"new{len(portions)}-{key}") for key in KEYS])
                await feed(case.log, "source", portions[-1])
                await until_last(case, portions, task)

    with BrokerProcess(tmp_path / "data", flush="os") as broker, caplog.at_level(logging.WARNING):
        asyncio.run(main(broker))
    logged = [r.getMessage() for r in caplog.records if "is rebuilt from it" in r.getMessage()]
    assert logged, caplog.text
    for line in logged:
        assert f"does not match changelog {CHANGELOG}-" in line
        assert "it was truncated" in line
        assert "processed again, so their rows may be written twice" in line


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_backup_restored_under_a_worker_is_noticed(
    tmp_path: Path,
    guarantee: Literal["exactly_once", "at_least_once"],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The worker names the truncated partition and ends, or is fenced and rebuilds its state.

    At the end the table is right: no record is skipped.
    """
    chance = random.Random(guarantee)
    portions = [portion(chance, "kept", 12)]
    lost, new = portion(chance, "lost", 20), [(key, f"new-{key}") for key in KEYS]
    data, saved = tmp_path / "data", tmp_path / "saved"

    async def survived(case: Case, broker: BrokerProcess) -> None:
        async with failing(worker(case)) as task:
            await feed(case.log, "source", lost)
            await until(rows_of(case), expected("count", [*portions, lost]), task)
            await asyncio.to_thread(restore_backup, broker, data, saved)
            await feed(case.log, "source", new)
            await until_last(case, [*portions, new], task)

    async def main(broker: BrokerProcess) -> None:
        async with Log.open(f"kafka://{broker.address}") as log:
            case = Case(f"kafka://{broker.address}", log, tmp_path, "count", guarantee)
            await create(log, "source", "names")
            await log.admin().create_topics([NewTopic("out", 1)])
            await feed(log, "source", portions[0])
            async with worker(case) as task:
                await until(rows_of(case), expected("count", portions), task)
            await asyncio.to_thread(back_up, broker, data, saved)
            try:
                await survived(case, broker)
                logged = caplog.text
            except SourceLost as error:
                logged = f"code {error.exit_code}: {error}"
            wanted = (
                r"code 5: .*(source|again-0-changelog)-\d.* truncated|it was truncated: it ends at"
            )
            assert re.search(wanted, logged), logged
            portions.append(new)
            async with worker(case) as task:
                await until_last(case, portions, task)

    with BrokerProcess(data, flush="os") as broker:
        asyncio.run(main(broker))


def test_a_global_table_on_disk_has_only_rows_of_its_topic(tmp_path: Path) -> None:
    """Its topic was truncated, and is now longer than the position of the table."""
    first, second = [("a", "1"), ("e", "2")], [("a", "3"), ("e", "4")]

    def looked_up(_case: Case, app: App, source: Any, out: Any) -> None:
        names = app.topic("names", key=str, value=str, partitions=PARTITIONS)
        table = app.global_table(names, name="names", backend="rocksdb")
        rows = source.lookup(table, on=lambda key, _: key, fn=lambda v, name: f"{v} {name}")
        rows.to(out)

    async def main(broker: BrokerProcess) -> None:
        async with Log.open(f"kafka://{broker.address}") as log:
            case = Case(f"kafka://{broker.address}", log, tmp_path, "lookup", "at_least_once")
            await create(log, "source", "names")
            await log.admin().create_topics([NewTopic("out", 1)])
            await feed(log, "names", [("a", "old")])
            folders = await folders_of(case, "names")
            marks = {p: n for p, n in sizes(tmp_path / "data").items() if p.parent in folders}
            await feed(log, "names", [(key, "gone") for key in "abcdefgh"])
            await feed(log, "source", first)
            async with worker(case) as task:
                await until(rows_of(case), Counter(["1 gone", "2 gone"]), task)
            await asyncio.to_thread(cut, broker, marks)
            await feed(log, "names", [("a", "new"), ("b", "new"), ("c", "new"), ("d", "new")] * 8)
            await feed(log, "source", second)
            async with worker(case) as task:
                wanted = Counter(["1 gone", "2 gone", "3 new", "4 None"])
                await until(rows_of(case), wanted, task)

    SHAPES["lookup"] = looked_up
    try:
        with BrokerProcess(tmp_path / "data", flush="os") as broker:
            asyncio.run(main(broker))
    finally:
        del SHAPES["lookup"]
