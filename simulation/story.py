"""Story: one life of brokers and their clients, from the first start to the verdict.

The shipped brokers and clients run on the simulated loop, network and disks; what a life has come
to is judged by `checkers` from what clients were told, and by who watches the brokers from outside
(`Watch`). In the end everything is healed: then clients have to get on, and everything that was
acknowledged has to be there.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol
from unittest.mock import patch

from simulation.checkers import check
from simulation.clients import SimulatedLog
from simulation.faults import Plan, drawn, shrunk
from simulation.history import Outcome
from simulation.life import Life
from simulation.load import mix
from simulation.load.room import Room
from simulation.loop import Lived, SimulatedLoop, live
from simulation.network import Network
from simulation.node import Lines, Node
from simulation.process import Process
from simulation.trouble import Trouble
from streamlog import repeated

CLIENTS: Final = ("c1", "c2", "c3")
LATENCIES_S: Final = (0.0001, 0.0005, 0.002, 0.03)


class Living(Protocol):
    """What a life is: what happens in it, and what came of it."""

    violations: list[str]

    async def run(self) -> None:
        """From the first start to the verdict."""
        ...

    def counted(self) -> Counter[str]:
        """What has happened how often."""
        ...

    def where(self) -> str:
        """For a life that has come to no end: where its programs are."""
        ...


class Watch(Protocol):
    """Who looks at brokers from outside, in a task of the simulation's own."""

    async def run(self) -> None:
        """Look, until cancelled."""
        ...

    async def rested(self) -> list[str]:
        """Everything is healed, and no client asks for anything: what is not as it should be."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the lives of a level have in common."""

    kinds: Sequence[str]
    """Of faults."""
    nodes: Callable[[Network], list[Node]]
    watch: Callable[[Sequence[Node], SimulatedLoop], Watch] | None = None
    copies: int = 1
    """Of each partition."""
    racks: Sequence[str] = ()
    """Where readers stand."""
    trouble_s: float = 30.0
    calm_s: float = 12.0
    """After everything is healed the load goes on for so long."""
    life_s: float = 400.0
    """A life that has come to no end by then hangs."""
    begin: Callable[[SimulatedLoop, Plan, Setting], Living] | None = None
    """Makes a life; by default a `Story`, of clients that write and read."""


class Story:
    """One life."""

    def __init__(self, loop: SimulatedLoop, plan: Plan, setting: Setting) -> None:
        self.loop = loop
        self.plan = plan
        self.setting = setting
        self.network = Network(loop, latencies_s=LATENCIES_S)
        self.nodes = setting.nodes(self.network)
        self.trouble = Trouble(self.network, self.nodes)
        self.watch = None if setting.watch is None else setting.watch(self.nodes, loop)
        self.room = Room(
            log=self._log(CLIENTS[0]),
            chance=loop.chance,
            now_ms=loop.now_ms,
            pace_s=loop.chance.choice((0.1, 0.4, 1.0)),
        )
        self.clients: list[asyncio.Task[None]] = []
        self.violations: list[str] = []

    def _log(self, name: str) -> SimulatedLog:
        machine = self.network.machines.get(name) or self.network.machine(name)
        brokers = [node.machine.name for node in self.nodes]
        return SimulatedLog(self.loop, machine, brokers, self.setting.racks)

    def _begin_clients(self) -> None:
        """Each on a machine of its own."""
        for number, program in enumerate(mix.programs(self.room)):
            machine = self.network.machine(f"{CLIENTS[number % len(CLIENTS)]}-{number}")
            process = machine.start(program)
            if process.task is not None:
                self.clients.append(process.task)

    def _heal(self) -> None:
        self.trouble.heal()
        is_alone = len(self.nodes) == 1
        for node in self.nodes:
            if node.broker is not None and not is_alone:
                continue
            # What does not come up by itself is looked after by an operator.
            node.kill(power=False)
            left = node.repair()
            self.violations += [f"damage: not repaired: {finding}" for finding in left]
            node.start()

    async def run(self) -> None:
        """From the first start to the verdict."""
        for node in self.nodes:
            node.start()
        async with asyncio.TaskGroup() as watching:
            task = None if self.watch is None else watching.create_task(self.watch.run())
            await self._live()
            if task is not None:
                task.cancel()
        self.violations += map(str, check(self.room.history))

    async def _live(self) -> None:
        setting = self.setting
        creating = self.network.machines[CLIENTS[0]].start(
            mix.create(self.room, replication_factor=setting.copies)
        )
        async with asyncio.TaskGroup() as faults:
            faults.create_task(self.trouble.befall(self.plan))
            if await ended(creating, within_s=setting.trouble_s):
                self._begin_clients()
                await asyncio.sleep(setting.trouble_s)
        self._heal()
        if not self.clients:
            # A broker that is down takes no replica: its operator had to come first.
            await ended(creating)
            self._begin_clients()
        healed_ms = self.loop.now_ms()
        await asyncio.sleep(setting.calm_s)
        self.room.stopping.set()
        await asyncio.wait(self.clients)
        self.loop.tell("all clients have stopped")
        self.room.counts["bytes read of followers"] = sum(
            0 if node.broker is None else node.broker.copy_bytes_read for node in self.nodes
        )
        self._look_at_clients(healed_ms)
        await ended(self.network.machine("final").start(mix.finish(self.room)))
        if self.watch is not None:
            self.violations += await self.watch.rested()

    def counted(self) -> Counter[str]:
        """What has happened how often."""
        counts = self.trouble.counts + self.room.counts
        for node in self.nodes:
            counts += node.counts
        history = self.room.history
        counts["acknowledged"] = sum(send.outcome is Outcome.OK for send in history.sends)
        counts["read"] = sum(len(poll.records) for poll in history.polls)
        return counts

    def where(self) -> str:
        """For a life that has come to no end: where its clients are."""
        return where(self.network)

    def _look_at_clients(self, healed_ms: int) -> None:
        for client in self.clients:
            error = client.exception()
            if error is not None:
                self.violations.append(f"crashed: a client ended with {error!r}")
        self.violations += mix.standing_still(self.room, healed_ms)


def where(network: Network) -> str:
    """Where the programs of all machines are."""
    lines = []
    for machine in network.machines.values():
        task = None if machine.process is None else machine.process.task
        if task is not None and not task.done():
            lines.append(f"{machine.name} is {' < '.join(_awaited(task))}")
    return "; ".join(lines)


async def ended(process: Process, *, within_s: float | None = None) -> bool:
    """Whether a program has come to its end; who does not wait any more leaves it alone."""
    if process.task is None:
        return True
    await asyncio.wait([process.task], timeout=within_s)
    if process.task.done():
        process.task.result()
    return process.task.done()


def _awaited(task: asyncio.Task[None]) -> Iterator[str]:
    """What a task is in, from the inside."""
    coroutine: Any = task.get_coro()
    frames: list[str] = []
    while coroutine is not None and getattr(coroutine, "cr_frame", None) is not None:
        frames.append(f"{coroutine.cr_code.co_qualname}:{coroutine.cr_frame.f_lineno}")
        coroutine = coroutine.cr_await
    yield from reversed(frames)


def lived(seed: int, plan: Plan, setting: Setting) -> tuple[Lived[Living] | None, list[str]]:
    """A life with these faults, and what was violated in it."""
    logger = logging.getLogger("streamlog")
    stories: list[Living] = []
    places_left: list[str] = []

    async def story(loop: SimulatedLoop) -> Living:
        lines = Lines(loop)
        logger.addHandler(lines)
        stories.append((setting.begin or Story)(loop, plan, setting))
        try:
            await stories[0].run()
        except asyncio.CancelledError:
            places_left.append(stories[0].where())
            raise
        finally:
            logger.removeHandler(lines)
        return stories[0]

    propagates, logger.propagate = logger.propagate, False
    silence = logging.NullHandler()
    logger.addHandler(silence)  # What killed programs say while they are cleared away.
    repeated.forget()  # Else the life would not tell what an earlier one has told.
    try:
        # The interval is of the real clock.
        with patch.object(repeated, "INTERVAL_S", math.inf):
            life = live(story, seed, until_s=setting.life_s)
    except TimeoutError:
        return None, [*stories[0].violations, f"stuck: {''.join(places_left)}"]
    finally:
        logger.propagate = propagates
        logger.removeHandler(silence)
    crashed = [f"crashed: {error}" for error in life.errors]
    return life, [*life.result.violations, *crashed]


def simulate(seed: int, setting: Setting) -> Life:
    """One life, and if something is violated, the shortest plan of faults that shows it."""
    plan = drawn(seed, setting.kinds, until_s=setting.trouble_s)
    life, violations = lived(seed, plan, setting)
    told = _least(seed, plan, setting, violations[0]) if violations else ()
    if life is None:
        return Life(seed=seed, events=0, counts={}, violations=tuple(violations), story=told)
    return Life(
        seed=seed,
        events=life.turns,
        counts=life.result.counted(),
        violations=tuple(violations),
        trace=life.trace,
        story=told,
    )


def _least(seed: int, plan: Plan, setting: Setting, violation: str) -> tuple[str, ...]:
    """The shortest plan that shows such a violation, and how it goes then."""
    kind = violation.partition(":")[0]

    def fails(shorter: Plan) -> bool:
        return any(each.startswith(kind) for each in lived(seed, shorter, setting)[1])

    least = shrunk(plan, fails)
    life, violations = lived(seed, least, setting)
    return (*map(str, least), *violations[:3], *(() if life is None else life.story))
