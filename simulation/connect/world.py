"""World: one life of a broker, of the workers of an app of connectors, and of the outside.

Workers are the shipped ones, each a process on a machine of its own, which a supervisor starts
again when it ends. In the end everything is healed; then every row of the origin has to be in the
log and in each target, as often as the target promises.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Final, Self, TypeVar
from unittest.mock import patch

from simulation.clients import SimulatedLog
from simulation.connect.outside import Files, Lines, Origin, Outside, Table, flush_of
from simulation.faults import Fault, Plan
from simulation.load.readers import read_all
from simulation.load.room import Room
from simulation.loop import SimulatedLoop
from simulation.network import Network
from simulation.node import PORT, SimulatedClock
from simulation.process import CURRENT, ProcessEnded
from simulation.story import LATENCIES_S, Setting, ended, where
from simulation.trouble import Trouble
from streamlog import App
from streamlog.errors import ProcessingError, StreamlogError
from streamlog.processing.task import TaskId
from streamlog.replace import replace
from streamlog.worker import worker
from streamlog.worker.connect import sink_group
from streamlog.worker.engine import Work
from streamlog.worker.health import loop_watch
from streamlog.worker.program import Program
from streamlog.worker.worker import Worker

WORKERS: Final = ("w1", "w2", "w3")
OF_WORKERS: Final = ("worker kill", "worker trap", "worker pause", "worker stop", "worker cut")
"""What may befall a worker: `trap` kills it at a step of a commit or of a flush, and `pause` may
last beyond its session."""
TRAP_STEPS_MAX: Final = 60
TOPIC: Final = "rows"
NOWHERE: Final = "/proc/nowhere"
"""The directory of the workers' state: there is none, and nobody can make it."""
PARTITIONS: Final = 2
SESSION_MS: Final = 4_000
HEARTBEAT_MS: Final = 700
RESTART_S: Final = 1.0
"""How long the supervisor waits before it starts a worker that has ended again."""
COMPLETE_S: Final = 240.0
"""How long after everything is healed the last row may take."""
LOOK_S: Final = 0.25
T = TypeVar("T")


class WorkerHost:
    """A machine whose worker is always started again."""

    def __init__(self, world: ConnectWorld, name: str) -> None:
        self.machine = world.network.machine(name)
        self._world = world
        self._stop = asyncio.Event()
        self._is_wanted = True
        self._trap = 0

    @property
    def is_running(self) -> bool:
        """Whether a process is alive."""
        process = self.machine.process
        return process is not None and process.alive

    async def supervise(self) -> None:
        """Start the worker again whenever it has ended, until it is not wanted any more."""
        while self._is_wanted:
            if not self.is_running:
                self._stop = asyncio.Event()
                self._world.network.loop.tell("start", self.machine.name)
                self._world.counts["worker starts"] += 1
                self.machine.start(self._run(self._stop))
            await asyncio.sleep(RESTART_S)

    def kill(self) -> None:
        """As kill -9."""
        process = self.machine.process
        if process is not None and process.alive:
            self._world.network.loop.tell("kill", self.machine.name)
            process.end()
            self._world.network.process_gone(process, silent=False)

    def trap(self, in_steps: int) -> None:
        """Kill it at the so-manieth step from now on."""
        self._trap = in_steps

    def on_step(self) -> None:
        """Count a step of the worker.

        Raises:
            ProcessEnded: it was its last one.
        """
        if self._trap:
            self._trap -= 1
            if not self._trap:
                self.kill()
                raise ProcessEnded

    def stop(self) -> None:
        """As a service manager does."""
        self._stop.set()

    async def pause(self, lasts_s: float) -> None:
        """As SIGSTOP and SIGCONT."""
        process = self.machine.process
        if process is not None and process.alive and not process.paused:
            process.pause()
            await asyncio.sleep(lasts_s)
            process.resume()

    def resume(self) -> None:
        """Let a process that is paused go on."""
        process = self.machine.process
        if process is not None and process.paused:
            process.resume()

    async def leave(self) -> None:
        """Stop for good, orderly."""
        self._is_wanted = False
        self.stop()
        process = self.machine.process
        if process is not None and process.alive:
            await ended(process)

    async def _run(self, stop: asyncio.Event) -> None:
        world = self._world
        clock = SimulatedClock(world.network.loop, self.machine)
        made = Worker(
            world.program,
            log_url=world.log_url,
            announce=lambda _: None,
            clock=clock,
            instance_id=self.machine.name if world.is_static else None,
        )
        try:
            await made.run(stop)
        except* StreamlogError as errors:
            for error in errors.exceptions:
                if isinstance(error, ProcessingError):
                    # No record is bad here, and no topic is lost: nobody should have to look.
                    world.violations.append(f"failed: {error}")
                world.counts[f"worker ended: {type(error).__name__}"] += 1
                world.network.loop.tell("worker ended", error)
        process = self.machine.process
        if process is not None:
            process.end()
            world.network.process_gone(process, silent=False)


class ConnectWorld:
    """One life; a `story.Living`."""

    def __init__(self, loop: SimulatedLoop, plan: Plan, setting: Setting) -> None:
        self.network = Network(loop, latencies_s=LATENCIES_S)
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self._loop, self._plan, self._setting = loop, plan, setting
        self._nodes = setting.nodes(self.network)
        self._trouble = Trouble(self.network, self._nodes)
        chance = loop.chance
        self.outside = Outside(chance, loop.time)
        self.is_static = chance.random() < 0.5
        """Whether workers are static members of their groups (KIP-345)."""
        self.program = replace(_program(self.outside, chance), on_step=self._on_step)
        self.log_url = f"kafka://{self._nodes[0].machine.name}:{PORT}"
        self._hosts = [WorkerHost(self, name) for name in WORKERS[: chance.choice((1, 2, 3))]]

    async def run(self) -> None:
        """From the first start to the verdict."""
        with _simulated_worker():
            for node in self._nodes:
                node.start()
            async with asyncio.TaskGroup() as running:
                for host in self._hosts:
                    running.create_task(host.supervise())
                await self._befall()
                self._heal()
                await self._complete()
                for host in self._hosts:
                    await host.leave()
            self.violations += self.outside.verdict(await self._rows_of_topic())

    def counted(self) -> Counter[str]:
        """What has happened how often."""
        counts = self.counts + self._trouble.counts + self.outside.counts
        for node in self._nodes:
            counts += node.counts
        counts["lines twice"] = len(self.outside.lines) - len({*self.outside.lines})
        return counts

    def where(self) -> str:
        """For a life that has come to no end: where its programs are."""
        return where(self.network)

    def _on_step(self, name: str) -> None:
        process = CURRENT.get()
        for host in self._hosts:
            if process is not None and process is host.machine.process:
                self.counts[name] += 1
                self._loop.tell(host.machine.name, name)
                host.on_step()

    async def _befall(self) -> None:
        of_brokers = tuple(each for each in self._plan if each.kind not in OF_WORKERS)
        async with asyncio.TaskGroup() as faults:
            faults.create_task(self._trouble.befall(of_brokers))
            for fault in self._plan:
                if fault.kind in OF_WORKERS:
                    faults.create_task(self._befall_worker(fault))

    async def _befall_worker(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at_s)
        self._loop.tell("fault", fault)
        self.counts[fault.kind] += 1
        host = Random(fault.draw).choice(self._hosts)
        match fault.kind:
            case "worker kill":
                host.kill()
            case "worker trap":
                host.trap(1 + int(fault.draw * 1_000) % TRAP_STEPS_MAX)
            case "worker stop":
                host.stop()
            case "worker pause":
                await host.pause(fault.lasts_s)
            case _:
                name, broker = host.machine.name, self._nodes[0].machine.name
                self.network.block((name, broker), (broker, name))
                await asyncio.sleep(fault.lasts_s)
                self.network.heal((name, broker), (broker, name))

    def _heal(self) -> None:
        self._trouble.heal()
        self.outside.heal()
        for host in self._hosts:
            host.resume()
            host.trap(0)
        for node in self._nodes:
            node.kill(power=False)
            left = node.repair()
            self.violations += [f"damage: not repaired: {finding}" for finding in left]
            node.start()

    async def _complete(self) -> None:
        """Wait until everything has come out, and some time more for what comes twice."""
        for _ in range(round(COMPLETE_S / LOOK_S)):
            if self.outside.is_complete:
                break
            await asyncio.sleep(LOOK_S)
        else:
            outside = self.outside
            found = {
                "table": len(outside.table),
                "files": len(outside.file_rows),
                "lines": len({*outside.lines}),
            }
            self.violations.append(f"stuck: {found} of {outside.expected.total()} rows came out")
        await asyncio.sleep(2 * SESSION_MS / 1000)

    async def _rows_of_topic(self) -> list[str]:
        machine = self.network.machine("reader")
        log = SimulatedLog(self._loop, machine, [node.machine.name for node in self._nodes])
        room = Room(log=log, chance=self._loop.chance, now_ms=self._loop.now_ms)
        rows: list[str] = []

        async def read() -> None:
            places = [(TOPIC, number) for number in range(PARTITIONS)]
            for records in (await read_all(room, places, committed=True)).values():
                rows.extend(record.value for record in records)

        await ended(machine.start(read()))
        return rows


class _Engine:
    """The engine thread of a worker, as jobs of the loop: each is done at one moment."""

    busy = None

    def __init__(self, *_: object) -> None:
        """As `EngineThread`."""
        self.is_closed = False

    async def call(self, task_id: TaskId, work: Work[T]) -> T:
        """Do some work of a task."""
        return (await self.call_each([(task_id, work)]))[0]

    async def call_each(self, works: Sequence[tuple[TaskId, Work[T]]]) -> list[T]:
        """Do several pieces of work, in order."""
        await asyncio.sleep(0)
        return [work() for _, work in works]

    async def is_idle_within(self, timeout_ms: int) -> bool:
        """Nothing is ever left to do."""
        del timeout_ms
        return True

    def close(self) -> None:
        """Take no more."""
        self.is_closed = True


class _Identity:
    """The name of a machine's worker: the one slot of its directory is free after each kill."""

    def __init__(self, app_id: str, _: str) -> None:
        """As `WorkerIdentity`."""
        self.transactional_id = f"{app_id}-{_machine_name()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is locked."""


def _state_host(_: str) -> str:
    return _machine_name()


def _machine_name() -> str:
    process = CURRENT.get()
    if process is None:
        raise RuntimeError("workers are for machines: use Machine.start")
    return process.machine.name


class _NoLoopWatch:
    """Stands where a thread watches the loop: the simulated one is never blocked."""

    def __init__(self, *_: object) -> None:
        """As `LoopWatch`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing has begun."""

    def beat(self) -> None:
        """Nobody listens."""


@contextmanager
def _simulated_worker() -> Iterator[None]:
    """Workers without threads and files, whose sessions are short enough to end in a life."""
    with ExitStack() as stack:
        for room in (worker, sink_group):
            stack.enter_context(patch.object(room, "SESSION_TIMEOUT_MS", SESSION_MS))
            stack.enter_context(patch.object(room, "HEARTBEAT_INTERVAL_MS", HEARTBEAT_MS))
        stack.enter_context(patch.object(worker, "EngineThread", _Engine))
        stack.enter_context(patch.object(worker, "WorkerIdentity", _Identity))
        stack.enter_context(patch.object(worker, "state_host", _state_host))
        stack.enter_context(patch.object(loop_watch, "LoopWatch", _NoLoopWatch))
        yield


def _program(outside: Outside, chance: Random) -> Program:
    # No task has a state.
    commit_interval = chance.choice(("20ms", "200ms", "1s"))
    app = App("sim", state_dir=NOWHERE, commit_interval=commit_interval)
    rows = app.topic(TOPIC, key=str, value=str, partitions=PARTITIONS)
    app.source(
        rows,
        Origin(outside=outside),
        name="origin",
        tasks=chance.choice((1, 2, 6)),
        discover_every="2s",
    )
    app.sink(rows, Table(outside=outside, flush=flush_of(chance)), name="table", tasks=2)
    app.sink(rows, Files(outside=outside, flush=flush_of(chance)), name="files", tasks=2)
    app.sink(rows, Lines(outside=outside, flush=flush_of(chance)), name="lines")
    return app.program()
