"""Commands: `streamlog ...` as processes that start at once, for rounds that need many of them.

The fork server has already loaded what commands import; a process that loads it itself takes two
seconds of a core. Otherwise, a command works as in a shell: its arguments are parsed, and it is a
process that signals reach.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from streamlog.cli import main

LOOK_S: Final = 0.02
OUTPUT: Final = "output.txt"
LOADED: Final = (
    "chaos.commands",
    "streamlog.cli.operate.mirror_command",
    "streamlog.cli.worker_command",
    "streamlog.worker.worker",
)
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([*LOADED])


class Command:
    """A command that runs in a directory of its own, with what it says in `output.txt` there."""

    def __init__(self, *arguments: str, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        # It may be killed before it has said anything.
        (directory / OUTPUT).touch()
        self._directory = directory
        self._process: BaseProcess = _context.Process(target=_run, args=(arguments, str(directory)))
        self._process.start()

    @property
    def output(self) -> str:
        """What it has said so far."""
        return (self._directory / OUTPUT).read_text()

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def send(self, how: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.code is None:
            os.kill(self._process.pid or 0, how)

    async def ended(self, within_s: float) -> int | None:
        """Wait for its end; return its exit code, None if it goes on."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        while self.code is None and loop.time() < until_s:  # noqa: ASYNC110 - another process
            await asyncio.sleep(LOOK_S)
        return self.code


def _run(arguments: Sequence[str], directory: str) -> None:
    """Be the command."""
    os.chdir(directory)
    with Path(OUTPUT).open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["streamlog", *arguments]
    main()
