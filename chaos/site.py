"""Site: brokers on this machine that are started and looked after by the commands of a document.

The commands are those of `docs/operations.md`, as they stand there: each block below a line
`<!-- procedure: NAME -->` is run by bash. What stands for something else is given in variables of
the shell, and ports of the document become ports that are free.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

DOCUMENT: Final = Path(__file__).parent.parent / "docs" / "operations.md"
BLOCK: Final = re.compile(r"<!-- procedure: ([a-z-]+) -->\n```\n(.*?)```", re.DOTALL)
PORTS: Final = (9092, 9093, 9094, 9095)
"""In the document; each stands for one of the site's."""
CLUSTER_ID: Final = re.compile(r"^cluster\.id=(.+)$", re.MULTILINE)
LOOK_S: Final = 0.05
STEP_TIMEOUT_S: Final = 300.0
SUBREAPER: Final = 36
"""PR_SET_CHILD_SUBREAPER: what a step has started is this process's child when the step is over."""
WRAPPER: Final = """#!/bin/sh
# `streamlog`, whose brokers write down which process they are, and log into a file.
if [ "$1" = broker ]; then
    echo $$ > "$3.pid"
    exec "{python}" -m streamlog "$@" >> "$3.log" 2>&1
fi
exec "{python}" -m streamlog "$@"
"""


def procedures() -> dict[str, str]:
    """The blocks of the document, by name."""
    return dict(BLOCK.findall(DOCUMENT.read_text()))


class Site:
    """A directory in which procedures are carried out. Its brokers end with it."""

    def __init__(self, directory: Path, ports: Sequence[int], settings: Mapping[str, str]) -> None:
        """`settings` are those of every broker, beside what commands write."""
        self.directory = directory
        self.ports = dict(zip(PORTS, ports, strict=True))
        self.steps: list[str] = []
        """What was run, and what it said."""
        self._settings = "".join(f"{name}={value}\n" for name, value in settings.items())
        self._pids: dict[Path, int] = {}
        self._codes: dict[int, int] = {}
        self._procedures = procedures()
        (directory / "bin").mkdir(parents=True)
        wrapper = directory / "bin" / "streamlog"
        wrapper.write_text(WRAPPER.format(python=sys.executable))
        wrapper.chmod(0o755)
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)

    def config(self, node: int) -> Path:
        """A broker's settings file."""
        return self.directory / "log" / f"broker-{node}.properties"

    def data(self, node: int) -> Path:
        """A broker's data directory."""
        return self.directory / "log" / f"broker-{node}"

    def address(self, node: int) -> str:
        """Where a broker listens."""
        return f"127.0.0.1:{self.ports[PORTS[node - 1]]}"

    def voters(self) -> str:
        """`controller.quorum.voters` of nodes 1 to 3."""
        return ",".join(f"{node}@{self.address(node)}" for node in (1, 2, 3))

    def url(self, *nodes: int) -> str:
        """The log, by way of these brokers."""
        return "kafka://" + ",".join(map(self.address, nodes))

    def pid(self, node: int) -> int:
        """The process of a broker, running or not.

        Raises:
            RuntimeError: it was never started.
        """
        self._notice()
        pid = self._pids.get(self.config(node))
        if pid is None:
            raise RuntimeError(f"broker {node} was never started")
        return pid

    def cluster_id(self) -> str:
        """As some node has it; empty while there is none."""
        for file in self.directory.glob("log/*/meta.properties"):
            found = CLUSTER_ID.search(file.read_text())
            if found is not None:
                return found[1]
        return ""

    def stored_bytes(self, node: int) -> int:
        """The size of all records on a broker's disk."""
        return sum(each.stat().st_size for each in self.data(node).glob("p-*/*.log"))

    def configure(self, *nodes: int) -> None:
        """Give brokers the settings of this site, behind what is in their files."""
        for node in nodes:
            with self.config(node).open("a") as file:
                file.write(self._settings)

    async def carry_out(self, name: str, node: int = 1, brokers: Sequence[int] = (1, 2, 3)) -> None:
        """Run a procedure of the document, about a broker.

        Raises:
            RuntimeError: a command of it has failed.
        """
        commands = self._procedures[name]
        for theirs, ours in self.ports.items():
            commands = commands.replace(f":{theirs}", f":{ours}")
        await self.run(commands, node, brokers)

    async def run(self, commands: str, node: int = 1, brokers: Sequence[int] = (1, 2, 3)) -> None:
        """Run commands by bash, with the variables that the document names.

        Raises:
            RuntimeError: one of them has failed.
        """
        said = self.directory / f"step-{len(self.steps)}.txt"
        with said.open("wb") as out:
            step = await asyncio.create_subprocess_exec(
                *("bash", "-e", "-c", commands),
                cwd=self.directory,
                env=self._environment(node, brokers),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
            code = await self._ended(step)
        self.steps.append(f"{commands}\n{said.read_text()}")
        if code:
            raise RuntimeError(f"ended with {code}:\n{self.steps[-1]}")

    async def kill(self, node: int) -> None:
        """Broker `node` dies at once."""
        pid = self.pid(node)
        os.kill(pid, signal.SIGKILL)
        while self.code_of(pid) is None:  # noqa: ASYNC110 - the system tells of it if it is asked
            await asyncio.sleep(LOOK_S)

    def code_of(self, pid: int) -> int | None:
        """What a process has ended with; None if it has not."""
        self._notice()
        return self._codes.get(pid)

    async def close(self) -> None:
        """End all brokers."""
        self._notice()
        for pid in self._pids.values():
            if pid not in self._codes:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        while not {*self._pids.values()} <= {*self._codes}:
            await asyncio.sleep(LOOK_S)
            self._notice()
        ctypes.CDLL(None).prctl(SUBREAPER, 0, 0, 0, 0)

    def log_text(self) -> str:
        """The end of what each broker has logged."""
        logs = sorted(self.directory.glob("log/*.log"))
        return "\n".join(f"---- {each.name}\n{each.read_text()[-3_000:]}" for each in logs)

    async def _ended(self, step: asyncio.subprocess.Process) -> int:
        """The exit code of a step; brokers that end meanwhile are taken note of."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + STEP_TIMEOUT_S
        while step.returncode is None:
            if loop.time() > until_s:
                step.kill()
            await asyncio.sleep(LOOK_S)
            self._notice()
        return step.returncode

    def _notice(self) -> None:
        """Which brokers were started, and which have ended.

        A process that has ended stays, for `kill -0`, until its parent has asked how.
        """
        for file in self.directory.glob("log/*.pid"):
            text = file.read_text().strip()
            if text:
                self._pids[file.with_suffix("")] = int(text)
                self._wait_for(int(text))

    def _wait_for(self, pid: int) -> None:
        if pid in self._codes:
            return
        with suppress(ChildProcessError):  # As long as the step goes on it is the step's child.
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._codes[pid] = os.waitstatus_to_exitcode(status)

    def _environment(self, node: int, brokers: Sequence[int]) -> dict[str, str]:
        known = self._pids.get(self.config(node))
        root = str(Path(__file__).parent.parent)
        return {
            **os.environ,
            "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join((root, os.environ.get("PYTHONPATH", ""))),
            "LOG": self.url(*brokers),
            "PID": "" if known is None else str(known),
            "NODE": str(node),
            "DATA": str(self.data(node)),
            "CONFIG": str(self.config(node)),
            "LISTEN": self.address(node),
            "VOTERS": self.voters(),
            "CLUSTER_ID": self.cluster_id(),
        }
