"""BrokerProcess: a broker as a user starts it, and what can be done to it from outside."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

LISTENING = re.compile(r"listening on [^ ]+:(\d+)")
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
SOURCE = Path(__file__).with_name("shim.c")


def build_shim(directory: Path) -> Path:
    """The library, compiled.

    Raises:
        RuntimeError: there is no C compiler, or it has refused.
    """
    target = directory / "shim.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(target), str(SOURCE), "-ldl"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise RuntimeError(f"faults of disks and clocks need gcc: {error}") from error
    if done.returncode:
        raise RuntimeError(f"the shim was not compiled: {done.stderr}")
    return target


class BrokerProcess:
    """`streamlog broker` over a directory of its own, at one port for all its lives."""

    def __init__(self, directory: Path, shim: Path) -> None:
        self.port = 0
        self.starts = 0
        self._data = directory / "data"
        self._log = directory / "broker.log"
        self._knobs = directory / "knobs"
        self._shim = shim
        self._generation = 0
        self._process: asyncio.subprocess.Process | None = None
        self._knobs.write_text("")

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    @property
    def log_text(self) -> str:
        """What it has logged, in all its lives."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def turn(self, knobs: Mapping[str, int]) -> None:
        """Set the faults of its disk and clock; those that are not named are off."""
        self._generation += 1
        text = " ".join(f"{name}={value}" for name, value in knobs.items())
        whole = self._knobs.with_suffix(".new")
        whole.write_text(f"{text} generation={self._generation}\n")
        whole.replace(self._knobs)

    async def start(self) -> None:
        """Return when it listens; nothing is done while it runs.

        Raises:
            RuntimeError: it has not come to that.
        """
        if self._process is not None and self._process.returncode is None:
            return
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "streamlog", "broker", "--data", str(self._data)),
                *("--listen", f"127.0.0.1:{self.port}"),
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment(),
            )
        self.starts += 1
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                self.port = await self._listens(self._process)
        except TimeoutError:
            raise RuntimeError(f"it does not listen after {START_TIMEOUT_S} s") from None

    async def kill(self) -> None:
        """No chance to write anything."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        """As a service manager does; its exit code. Killed if that takes long."""
        return await self._end(signal.SIGTERM)

    def send(self, which: signal.Signals) -> None:
        """Pause it (SIGSTOP) or let it go on (SIGCONT)."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(which)

    async def _listens(self, process: asyncio.subprocess.Process) -> int:
        if process.stdout is None:
            raise RuntimeError("the broker has no output")
        said = ""
        while line := (await process.stdout.readline()).decode():
            said += line
            found = LISTENING.search(line)
            if found is not None:
                return int(found[1])
        raise RuntimeError(f"the broker has ended with {await process.wait()}: {said}")

    async def _end(self, how: signal.Signals) -> int:
        process = self._process
        if process is None or process.returncode is not None:
            return 0
        process.send_signal(signal.SIGCONT)
        process.send_signal(how)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                return await process.wait()
        except TimeoutError:
            process.kill()
            return await process.wait()

    def _environment(self) -> dict[str, str]:
        given = {
            "LD_PRELOAD": str(self._shim),
            "CHAOS_KNOBS": str(self._knobs),
            "CHAOS_DIRECTORY": str(self._data.resolve()),
        }
        return {**os.environ, **given}
