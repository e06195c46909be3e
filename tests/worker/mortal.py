"""A worker that is killed at one step of its commits and flushes; programs of tests import it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from streamlog import App
from streamlog.replace import replace
from streamlog.worker.commit.commit import OnStep
from streamlog.worker.worker import Worker


def deadly(step: str, times: int) -> OnStep:
    """Return what kills this process when it has come to a step more often than `times`."""
    left = times

    def on_step(name: str) -> None:
        nonlocal left
        left -= name == step
        if name == step and left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return on_step


def run(app: App, url: str, step: str, times: int, instance_id: str | None) -> None:
    """Run a worker until SIGINT, or until it is killed."""
    run_with(app, url, deadly(step, times), instance_id)


def run_with(app: App, url: str, on_step: OnStep, instance_id: str | None) -> None:
    """Run a worker until SIGINT; `on_step` is told its steps."""

    async def main() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
        program = replace(app.program(), on_step=on_step)
        worker = Worker(
            program,
            log_url=url,
            announce=lambda _: sys.stdout.write("up\n"),
            instance_id=instance_id,
        )
        await worker.run(stop)

    asyncio.run(main())
