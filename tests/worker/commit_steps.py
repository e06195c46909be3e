"""The steps of a commit, and programs whose worker is killed at one of them."""

from __future__ import annotations

import os
from pathlib import Path

IS_THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
STEPS = (
    "checkpointed",
    "begun",
    "handed over",
    "changelogs written",
    "sinks written",
    "offsets sent",
    "committed",
    "stored",
)

MORTAL = """
import asyncio
import os
import signal
from streamlog.replace import replace

from streamlog import App
from streamlog.worker.worker import Worker


def run(app: App, url: str, step: str, times: int, instance_id: str | None) -> None:
    \"\"\"A worker that is killed when it has come to a step more often than so.\"\"\"
    left = times

    def on_step(name: str) -> None:
        nonlocal left
        left -= name == step
        if name == step and left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    async def main() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
        program = replace(app.program(), on_step=on_step)
        announce = lambda _: print("up")
        worker = Worker(program, log_url=url, announce=announce, instance_id=instance_id)
        await worker.run(stop)

    asyncio.run(main())
"""


def write_program(path: Path, name: str, source: str) -> None:
    """Write a script and the module that it imports its worker from: `from mortal import run`."""
    (path / "mortal.py").write_text(MORTAL)
    (path / name).write_text(source)
