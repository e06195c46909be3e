"""Standbys take snapshots of their state; a task opened while a standby is open starts from one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog import App
from streamlog.clock import SystemClock
from streamlog.log import Log
from streamlog.processing.task import TaskId
from streamlog.record import TopicPartition
from streamlog.tables.local_disk import task_directory
from streamlog.tables.local_disk.rocksdb_store import RocksBudget
from streamlog.tables.state.changelog import TaskProgress, checkpoint
from streamlog.tables.stores.store import Changes
from streamlog.worker.standbys import StandbyDeps, Standbys
from streamlog.worker.state.restore import Restorer
from streamlog.worker.topics.app_topics import ensure_topics

app = App("census")
users = app.topic("users", key=str, value=int, partitions=1)
table = app.table(users, name="users-table")
CHANGELOG = TopicPartition("census-0-changelog", 0)
TASK = TaskId(0, 0)
COMMITS, KEYS, DEADLINE_S = 6, 500, 60


async def commit(log: Log, number: int) -> None:
    """Write a checkpoint, as the owner on another machine does."""
    rows = [(b"\x0busers-table%d" % key, b"%d" % (number * KEYS + key)) for key in range(KEYS)]
    batch = checkpoint(Changes.of(rows), TaskProgress(offsets={("users", 0): number}))
    wall_ms = SystemClock().wall_ms()
    async with log.producer() as producer:
        await (
            await producer.send_batch(
                *CHANGELOG, [(wall_ms, key, value, ()) for key, value in batch], atomic=True
            )
        )


def snapshots(path: Path) -> int:
    return len([*path.glob("snapshots/*[0-9]")])


async def wait_for_snapshots(path: Path, standbys: Standbys, count: int) -> None:
    """Wait until the standby has this many snapshots and no lag."""
    async with asyncio.timeout(DEADLINE_S):
        while standbys.lags.get(TASK) != 0 or snapshots(path) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def test_a_takeover_next_to_an_open_standby_starts_from_its_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_directory, "SNAPSHOT_BYTES", 10_000)
    path, budget, clock = tmp_path / "state" / str(TASK), RocksBudget(), SystemClock()

    async def main() -> None:
        async with (
            Log.open(f"embedded:{tmp_path}/log", listen=False) as log,
            asyncio.TaskGroup() as background,
        ):
            await ensure_topics(log, app.topology(), app.topics, required=())
            deps = StandbyDeps(
                log=log,
                clock=clock,
                topology=app.topology(),
                state_path=str(tmp_path / "state"),
                budget=budget,
                background=background,
            )
            standbys = Standbys(deps)
            await standbys.follow([TASK])
            for number in range(COMMITS):
                await commit(log, number)
            await wait_for_snapshots(path, standbys, 1)
            # What a process that shares the directory finds: the standby's store is locked.
            async with log.producer() as producer:
                restorer = Restorer(
                    log,
                    producer,
                    changelog=CHANGELOG,
                    path=str(path),
                    budget=budget,
                    clock=clock,
                )
                state = await restorer.run()
                assert restorer.records <= (COMMITS - 1) * (KEYS + 1)
                assert state.front.get(b"\x0busers-table7") == b"%d" % ((COMMITS - 1) * KEYS + 7)
                state.front.close()
            await standbys.close()

    asyncio.run(main())
