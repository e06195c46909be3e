"""Node: a machine with a disk and a broker that is started, stopped, killed and cut off its power.

The broker is the shipped one, from its listener to its files; what it is given is this machine's:
clock, files, threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from simulation.disk import SimulatedDisk
from simulation.process import Machine, Process
from simulation.threads import QUICK_S, SimulatedThread
from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.connections import Listener
from streamlog.broker.server.socket_server import SocketServer
from streamlog.broker.storage.repair.inspection import Inspection
from streamlog.broker.storage.repair.partition_repair import repair_partition
from streamlog.errors import LogDirectoryLost, StreamlogError

if TYPE_CHECKING:
    from simulation.loop import SimulatedLoop
    from simulation.network import Network

PORT: Final = 9092
WALL_MS: Final = 1_700_000_000_000
"""When lives begin."""
DIRECTORY: Final = "data"
STOP_TIMEOUT_S: Final = 30.0


class SimulatedClock:
    """A machine's clocks, for one process: monotonic time begins anywhere with each."""

    def __init__(self, loop: SimulatedLoop, machine: Machine) -> None:
        self._loop = loop
        self._machine = machine
        self._start_ms = loop.chance.randrange(10**9, 10**10)

    def now_ms(self) -> int:
        """See `Clock`."""
        return self._start_ms + self._loop.now_ms()

    def wall_ms(self) -> int:
        """See `Clock`."""
        return WALL_MS + self._loop.now_ms() + self._machine.wall_ahead_ms


class Node:
    """One broker on its machine."""

    def __init__(self, network: Network, name: str, *, config: BrokerConfig) -> None:
        self.machine = network.machine(name)
        self.node_id = config.node_id
        self.disk = SimulatedDisk(network.loop.chance)
        self.slow_s = 0.0
        """What every job of a thread takes in addition."""
        self.counts: Counter[str] = Counter()
        self.broker: Broker | None = None
        self._network = network
        self._loop = network.loop
        self._config = config
        self._stop = asyncio.Event()

    @property
    def process(self) -> Process | None:
        """The broker's, if it is alive."""
        process = self.machine.process
        return process if process is not None and process.alive else None

    def start(self) -> None:
        """Power and a process, if they are not there."""
        self.machine.up = True
        if self.process is None:
            self._stop = asyncio.Event()
            self._loop.tell("start", self.machine.name)
            self.counts["start"] += 1
            self.machine.start(self._serve(self._stop))

    def resume(self) -> None:
        """Let a process that is paused go on."""
        process = self.process
        if process is not None and process.paused:
            process.resume()

    def kill(self, *, power: bool) -> None:
        """Kill the process, or take the machine its power."""
        self._loop.tell("cut" if power else "kill", self.machine.name)
        process = self.process
        self.broker = None
        if process is not None:
            self.counts["power cut" if power else "kill"] += 1
            process.end()
            self._network.process_gone(process, silent=power)
        if power:
            self.machine.up = False
            self.disk.cut()
        else:
            self.disk.kill()

    async def stop(self) -> None:
        """Ask the process to end, as a service manager does, who kills it if that takes long."""
        process = self.process
        if process is None or process.task is None:
            return
        self.counts["stop"] += 1
        self._stop.set()
        await asyncio.wait([process.task], timeout=STOP_TIMEOUT_S)
        self.kill(power=False)

    def repair(self) -> list[str]:
        """What an operator does while the broker is down (`streamlog log repair`): what is left.

        A power cut may leave holes in what was not synced. What was acknowledged is not in them.
        """
        try:
            with Inspection.open(DIRECTORY, files=self.disk) as inspection:
                report = inspection.verify()
                for done in repair_partition(inspection, report):
                    self.counts["repaired"] += 1
                    self._loop.tell("repaired", done)
                return [str(finding) for finding in inspection.verify().findings]
        except LogDirectoryLost:
            return []  # It was never made.
        except StreamlogError as error:
            return [str(error)]
        finally:
            self.disk.kill()

    def thread(self, _: str) -> SimulatedThread:
        """For `Broker.open`."""
        chance = self._loop.chance
        return SimulatedThread(self._loop, lambda: chance.choice(QUICK_S) + self.slow_s)

    async def _serve(self, stop: asyncio.Event) -> None:
        clock = SimulatedClock(self._loop, self.machine)
        try:
            async with Broker.open(
                DIRECTORY, config=self._config, clock=clock, files=self.disk, threads=self.thread
            ) as broker:
                self.broker = broker
                async with SocketServer(broker, [Listener(host=self.machine.name, port=PORT)]):
                    self.counts["serving"] += 1
                    await stop.wait()
        except StreamlogError as error:
            self.counts[f"broker ended: {type(error).__name__}"] += 1
            self._loop.tell("broker ended", error)
        finally:
            self._end()

    def _end(self) -> None:
        """The process is over by itself."""
        process = self.process
        if process is not None:
            process.end()
            self.broker = None
            self._network.process_gone(process, silent=False)
            self.disk.kill()


class Lines(logging.Handler):
    """What programs log becomes part of the life's story."""

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__(logging.WARNING)
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        self._loop.tell(record.levelname, record.getMessage())
