"""The state of tasks that have moved away is removed; open state stays."""

from __future__ import annotations

import asyncio
from pathlib import Path

from streamlog.clock import SystemClock
from streamlog.tables.local_disk.rocksdb_store import RocksBudget
from streamlog.tables.local_disk.task_directory import TaskDirectory
from streamlog.worker.state.restore import remove_abandoned

DEADLINE_S = 60


class CountingClock(SystemClock):
    """A clock that signals its third reading, after two looks."""

    def __init__(self) -> None:
        super().__init__()
        self.readings = 0
        self.is_over = asyncio.Event()

    def now_ms(self) -> int:
        self.readings += 1
        if self.readings > 2:
            self.is_over.set()
        return super().now_ms()


def test_abandoned_state_is_removed(tmp_path: Path) -> None:
    async def main() -> None:
        budget = RocksBudget()
        kept, abandoned = [
            TaskDirectory(str(tmp_path / name)).open(budget) for name in ("0_0", "0_1")
        ]
        abandoned.close()
        clock = CountingClock()
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
            work = remove_abandoned(str(tmp_path), delay_ms=1, clock=clock)
            cleanup = group.create_task(work)
            await clock.is_over.wait()
            cleanup.cancel()
        kept.put(b"k", b"v")
        kept.close()

    asyncio.run(main())
    assert [each.name for each in tmp_path.iterdir()] == ["0_0"]
