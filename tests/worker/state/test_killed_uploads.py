"""Workers that are killed at the steps of an upload, each time with the loss of their disk.

Every record gives one row, whatever was uploaded at the time of a kill.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from pathlib import Path

import pytest

from streamlog.log import Log
from tests.worker.commit_steps import IS_THOROUGH
from tests.worker.processes import Process
from tests.worker.state.test_snapshot_uploads import COUNTS, DEADLINE_S, Shop, end_of

STEPS = ("file begun", "file written", "manifest written", "manifest removed", "file removed")
LIVES = 3

PROGRAM = """
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from streamlog.snapshots.task_snapshots import TaskSnapshots
from streamlog.worker.state import snapshot_restore, snapshot_uploads
from streamlog.worker.worker import Worker
from tests.worker.state.test_snapshot_uploads import Shop

path, step, times = sys.argv[1:]
left = int(times)


def on_step(name):
    global left
    left -= name == step
    if name == step and left < 0:
        os.kill(os.getpid(), signal.SIGKILL)


class Mortal(TaskSnapshots):
    def __init__(self, store, identity):
        super().__init__(store, identity, on_step=on_step)


snapshot_uploads.TaskSnapshots = Mortal
logging.basicConfig(level=logging.INFO)
snapshot_restore.SAVED_MIN = 1
shop = Shop(Path(path))
worker = Worker(shop.app().program(), log_url=shop.url, announce=lambda _: print("up"))
asyncio.run(worker.run(asyncio.Event()))
"""


def start(path: Path, step: str, *, times: int) -> Process:
    """Start a worker that is killed when it has come to a step more often than `times`."""
    return Process(sys.executable, "program.py", str(path), step, str(times), cwd=path)


@pytest.mark.skipif(not IS_THOROUGH, reason="fifteen processes: STREAMLOG_PROFILE=thorough")
@pytest.mark.parametrize("step", STEPS)
def test_no_row_is_lost_or_repeated(tmp_path: Path, step: str) -> None:
    shop = Shop(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)

    async def main() -> None:
        async with Log.open(shop.url) as log:
            await shop.create(log)
            for life in range(LIVES):
                await shop.send(log, 50)
                process = start(tmp_path, step, times=2 * life)
                ended = asyncio.create_task(asyncio.to_thread(process.wait))
                while not ended.done():
                    await shop.send(log, 5)
                    await asyncio.wait([ended], timeout=0.05)
                assert ended.result() == -signal.SIGKILL, process.output
                process.kill()  # Closes its output.
                shutil.rmtree(tmp_path / "state")
            last = start(tmp_path, "never", times=0)
            try:
                await shop.until_counted(log)
                rows = await log.read_range(
                    COUNTS, 0, await end_of(log), isolation="read_committed"
                )
                assert len(rows) == shop.sent
                if step.startswith("manifest"):
                    assert "begins with the snapshot at offset" in last.output
            finally:
                last.kill()

    asyncio.run(asyncio.wait_for(main(), 10 * DEADLINE_S))
