"""Partitions are added to a source topic while a worker runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog import App
from streamlog.errors import TopologyError
from streamlog.log import Log
from streamlog.worker.assignment.streams_assignor import StreamsAssignor
from streamlog.worker.program import WorkerStart
from streamlog.worker.worker import Worker


def test_a_worker_stops_when_partitions_are_added_to_its_source(
    tmp_path: Path,
) -> None:
    app = App("grown", log=f"embedded:{tmp_path}/log", state_dir=f"{tmp_path}/state")
    events = app.topic("events", key=str, value=str, partitions=2)
    app.stream(events).group_by(lambda _, word: word, name="by-word").count(name="words")
    program = app.program()

    async def main() -> None:
        started: asyncio.Future[Log] = asyncio.get_running_loop().create_future()

        def announce(start: WorkerStart) -> None:
            started.set_result(start.log)

        async def grow() -> None:
            log = await started
            await log.admin().create_partitions("events", 3)
            options = {
                "group_id": "grown",
                "assignor": StreamsAssignor(program.placement, process="other"),
            }
            async with log.consumer(**options) as other:  # type: ignore[arg-type]
                await other.subscribe(program.sources)
                while not other.assignment():
                    await other.poll(timeout_ms=100)
            # Now the worker is assigned everything.

        async with asyncio.timeout(60), asyncio.TaskGroup() as work:
            work.create_task(grow())
            worker = Worker(program, log_url=f"embedded:{tmp_path}/log", announce=announce)
            await worker.run(asyncio.Event())

    with pytest.raises(BaseExceptionGroup) as raised:
        asyncio.run(main())
    refused = raised.value.subgroup(TopologyError)
    assert refused is not None
    while isinstance(refused, BaseExceptionGroup):
        refused = refused.exceptions[0]
    assert "'events' had 2 partitions" in str(refused)
