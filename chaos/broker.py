"""BrokerProcess: a broker as a user starts it, and what can be done to it from outside."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from chaos.power import Disk
from streamlog.broker.storage.data_directory import format_directory

LISTENING = re.compile(r"listening on [^ ]+:(\d+)")
IN_OBJECTS = re.compile(r"bytes in allocated blocks\s*=\s*([\d,]+)")
IN_MALLOC = re.compile(r"^malloc (\d+)$", re.MULTILINE)
ACCOUNT_TIMEOUT_S = 30.0
LOOK_S = 0.05
LOCALHOST = "127.0.0.1"
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
    """`streamlog broker` over a directory of its own, at one port for all its lives.

    Args:
        directory: for its data, its log and its settings.
        shim: what `build_shim` has made.
        node_id: its number in the cluster.
        host, port: where it listens; port 0: the one it gets first.
        settings: by the broker's names.
        command: what runs it, such as `ip netns exec NAME`.
        lossy: whether the disk keeps only what was synced, when the power goes.
        cluster_id: of which cluster its directory is made; None: it makes one of its own.
    """

    def __init__(
        self,
        directory: Path,
        shim: Path,
        *,
        node_id: int = 1,
        host: str = LOCALHOST,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
        command: Sequence[str] = (),
        lossy: bool = False,
        cluster_id: str | None = None,
        module: str = "streamlog",
        second_disk: bool = False,
    ) -> None:
        """`module` has the command line: the shipped one, or that of `loaded`.

        With a second disk, the faults are those of that one.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.node_id = node_id
        self.host = host
        self.port = port
        self.starts = 0
        self.data = directory / "data"
        self._faulty = directory / "second" if second_disk else self.data
        self.disk = Disk(self.data, directory / "disk") if lossy else None
        self._log = directory / "broker.log"
        self._knobs = directory / "knobs"
        self._memory = directory / "memory"
        self._settings = directory / "broker.properties"
        self._shim = shim
        self._command = command
        self._module = module
        self._cluster_id = cluster_id
        self._generation = 0
        self._process: asyncio.subprocess.Process | None = None
        self._knobs.write_text("")
        lines = (f"{name}={value}\n" for name, value in (settings or {}).items())
        self._settings.write_text("".join(lines))
        self._make_data(rejoins=False)

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{self.host}:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether its process is there, be it paused."""
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """Of its process.

        Raises:
            RuntimeError: it has none.
        """
        if self._process is None:
            raise RuntimeError(f"broker {self.node_id} was never started")
        return self._process.pid

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
        if self.is_running:
            return
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(*self._command, sys.executable, "-m", self._module, "broker"),
                *(
                    part
                    for each in dict.fromkeys((self.data, self._faulty))
                    for part in ("--data", str(each))
                ),
                *("--listen", self.address),
                *("--config", str(self._settings)),
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

    async def cut_power(self, chance: Random) -> None:
        """Kill it, and leave of its data what was synced and any part of the rest.

        Raises:
            RuntimeError: its disk is not lossy.
        """
        if self.disk is None:
            raise RuntimeError(f"the disk of broker {self.node_id} keeps everything: lossy=True")
        await self.kill()
        await asyncio.to_thread(self.disk.cut, chance)

    async def stop(self) -> int:
        """As a service manager does; its exit code. Killed if that takes long."""
        return await self._end(signal.SIGTERM)

    async def ended(self, within_s: float) -> int | None:
        """Wait for its end, which nobody has asked for; its exit code, None if it goes on."""
        if self._process is None:
            return None
        try:
            async with asyncio.timeout(within_s):
                return await self._process.wait()
        except TimeoutError:
            return None

    def replace_disk(self) -> None:
        """An empty one, as of a node that was there before; it is not running."""
        shutil.rmtree(self.data)
        self._make_data(rejoins=True)

    async def stand_still(self, lasts_s: float) -> None:
        """Pause it, and let it go on as if no time had passed."""
        self.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(lasts_s)
        finally:
            self.send(signal.SIGCONT)

    def send(self, which: signal.Signals) -> None:
        """Pause it (SIGSTOP) or let it go on (SIGCONT)."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(which)

    async def used_bytes(self) -> int:
        """The memory that it uses, of all that it has: what is free in between is left out.

        Raises:
            RuntimeError: it has not told.
        """
        self._memory.unlink(missing_ok=True)
        self.send(signal.SIGUSR2)
        try:
            async with asyncio.timeout(ACCOUNT_TIMEOUT_S):
                while not self._memory.exists():  # noqa: ASYNC110 - nobody tells of files
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise RuntimeError(f"broker {self.node_id} does not tell what it uses") from None
        account = self._memory.read_text()
        objects, others = IN_OBJECTS.search(account), IN_MALLOC.search(account)
        if objects is None or others is None:
            raise RuntimeError(f"broker {self.node_id} tells less than it uses: {account[-500:]}")
        return int(objects[1].replace(",", "")) + int(others[1])

    async def _listens(self, process: asyncio.subprocess.Process) -> int:
        if process.stdout is None:
            raise RuntimeError("the broker has no output")
        said = ""
        while line := (await process.stdout.readline()).decode():
            said += line
            found = LISTENING.search(line)
            if found is not None:
                return int(found[1])
        code = await process.wait()
        raise RuntimeError(
            f"broker {self.node_id} has ended with {code}: {said}{self.log_text[-2_000:]}"
        )

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

    def _make_data(self, *, rejoins: bool) -> None:
        if self._cluster_id is not None:
            format_directory(
                str(self.data),
                node_id=self.node_id,
                cluster_id=self._cluster_id,
                rejoins=rejoins,
            )
        if self.disk is not None:
            self.disk.begin()

    def _environment(self) -> dict[str, str]:
        given = {
            "LD_PRELOAD": str(self._shim),
            # What a thread has freed, and keeps for its next allocations, counts as used there.
            "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
            "CHAOS_KNOBS": str(self._knobs),
            "CHAOS_MEMORY": str(self._memory.resolve()),
            "CHAOS_DIRECTORY": str(self._faulty.resolve()),
        }
        if self.disk is not None:
            given["CHAOS_DISK"] = str(self.disk.place.resolve())
        return {**os.environ, **given}
