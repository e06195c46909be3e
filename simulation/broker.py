"""The level `broker`: one whole broker under a load of our own clients, and all that goes wrong.

The shipped broker and client run on the simulated loop, network and disk; what a life has come to
is judged by `checkers` from what clients were told alone. In the end everything is healed: then
clients have to get on, and everything acknowledged has to be there.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from simulation.checkers import check
from simulation.clients import SimulatedLog
from simulation.faults import Fault, Plan, drawn, shrunk
from simulation.history import Outcome
from simulation.life import Life
from simulation.load import mix
from simulation.load.room import Room
from simulation.loop import Lived, SimulatedLoop, live
from simulation.network import Network
from simulation.node import Lines, Node
from simulation.process import Process
from streamlog.broker.config import BrokerConfig, TopicConfig
from streamlog.broker.group_config import GroupConfig

TROUBLE_S: Final = 30.0
CALM_S: Final = 12.0
"""After everything is healed the load goes on for so long."""
LIFE_S: Final = 400.0
"""A life that has come to no end by then hangs."""
BROKER: Final = "b1"
CLIENTS: Final = ("c1", "c2", "c3")
LATENCIES_S: Final = (0.0001, 0.0005, 0.002, 0.03)
KINDS: Final = (
    "kill",
    "power",
    "trap",
    "stop",
    "pause",
    "cut",
    "cut one way",
    "reset",
    "slow network",
    "slow disk",
    "short writes",
    "full disk",
    "refused sync",
    "clock",
)
CLOCK_JUMPS_MS: Final = (-31_536_000_000, -3_600_000, -5_000, 5_000, 3_600_000, 31_536_000_000)


class _Story:
    """One life."""

    def __init__(self, loop: SimulatedLoop, plan: Plan) -> None:
        self.loop = loop
        self.plan = plan
        self.network = Network(loop, latencies_s=LATENCIES_S)
        self.node = Node(self.network, BROKER, config=_config(loop.chance))
        self.room = Room(
            log=self._log(CLIENTS[0]),
            chance=loop.chance,
            now_ms=loop.now_ms,
            pace_s=loop.chance.choice((0.1, 0.4, 1.0)),
        )
        self.counts: Counter[str] = Counter()
        self.clients: list[asyncio.Task[None]] = []
        self.violations: list[str] = []

    def _log(self, name: str) -> SimulatedLog:
        machine = self.network.machines.get(name) or self.network.machine(name)
        return SimulatedLog(self.loop, machine, [BROKER])

    # ---- the load ----

    def _client(self, number: int, program: mix.Program) -> None:
        """On a machine of its own."""
        machine = self.network.machine(f"{CLIENTS[number % len(CLIENTS)]}-{len(self.clients)}")
        process = machine.start(program)
        if process.task is not None:
            self.clients.append(process.task)

    def _begin_load(self) -> None:
        for number, program in enumerate(mix.programs(self.room)):
            self._client(number, program)

    # ---- trouble ----

    async def _trouble(self) -> None:
        async with asyncio.TaskGroup() as faults:
            for fault in self.plan:
                faults.create_task(self._befall(fault))

    async def _befall(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at_s)
        self.loop.tell("fault", fault)
        self.counts[fault.kind] += 1
        match fault.kind:
            case "kill" | "power" | "trap" | "stop" | "refused sync":
                await self._end_broker(fault)
            case "pause":
                await self._pause(fault)
            case "cut" | "cut one way" | "reset" | "slow network":
                await self._disturb_network(fault)
            case "slow disk" | "short writes" | "full disk":
                await self._disturb_disk(fault)
            case "clock":
                jump = int(fault.draw * len(CLOCK_JUMPS_MS))
                self.node.machine.wall_ahead_ms += CLOCK_JUMPS_MS[jump]

    async def _end_broker(self, fault: Fault) -> None:
        node, power = self.node, fault.draw < 0.5
        match fault.kind:
            case "trap":
                if not node.disk.is_trapped:
                    steps = 1 + int(fault.draw * 1_000) % 60
                    node.disk.trap(steps, partial(node.kill, power=power))
                await asyncio.sleep(fault.lasts_s)
            case "refused sync":
                node.disk.refuse_syncs()
                await asyncio.sleep(fault.lasts_s)
                node.kill(power=power)
            case "stop":
                await node.stop()
                await asyncio.sleep(fault.lasts_s)
            case _:
                node.kill(power=fault.kind == "power")
                await asyncio.sleep(fault.lasts_s)
        node.start()

    async def _pause(self, fault: Fault) -> None:
        process = self.node.process
        if process is not None and not process.paused:
            process.pause()
            await asyncio.sleep(fault.lasts_s)
            process.resume()

    async def _disturb_network(self, fault: Fault) -> None:
        hosts = [name for name in self.network.machines if name != BROKER]
        some = random.Random(fault.draw).sample(hosts, k=1 + int(fault.draw * len(hosts)) // 2)
        there = [(BROKER, name) for name in some]
        back = [(name, BROKER) for name in some]
        if fault.kind == "reset":
            for name in some:
                self.network.reset(name, BROKER)
            return
        if fault.kind == "slow network":
            for link in there + back:
                self.network.slow_s[link] = fault.draw * 2
        else:
            one = there if fault.draw < 0.5 else back
            self.network.block(*(there + back if fault.kind == "cut" else one))
        await asyncio.sleep(fault.lasts_s)
        for link in there + back:
            self.network.slow_s.pop(link, None)
        self.network.heal(*there, *back)

    async def _disturb_disk(self, fault: Fault) -> None:
        node = self.node
        match fault.kind:
            case "slow disk":
                node.slow_s = fault.draw * 2
            case "short writes":
                node.disk.short_writes = fault.draw / 4
            case "full disk":
                node.disk.capacity_bytes = node.disk.used_bytes() + int(fault.draw * 3_000)
        await asyncio.sleep(fault.lasts_s)
        node.slow_s, node.disk.short_writes, node.disk.capacity_bytes = 0.0, 0.0, None

    def _heal(self) -> None:
        self.network.heal()
        self.network.slow_s.clear()
        process = self.node.process
        if process is not None and process.paused:
            process.resume()
        self.node.disk.release()
        # Who has had a full disk or a failed one is looked after by an operator.
        self.node.kill(power=False)
        left = self.node.repair()
        self.violations += [f"damage: not repaired: {finding}" for finding in left]
        self.node.start()

    # ---- the whole ----

    async def run(self) -> None:
        """From the first start to the verdict."""
        self.node.start()
        creating = self.network.machines[CLIENTS[0]].start(mix.create(self.room))
        trouble = asyncio.ensure_future(self._trouble())  # noqa: TID251 - awaited below
        await _ended(creating)
        self._begin_load()
        await asyncio.sleep(TROUBLE_S)
        await trouble
        self._heal()
        healed_ms = self.loop.now_ms()
        await asyncio.sleep(CALM_S)
        self.room.stopping.set()
        await asyncio.wait(self.clients)
        self.loop.tell("all clients have stopped")
        self._look_at_clients(healed_ms)
        await _ended(self.network.machine("final").start(mix.finish(self.room)))
        self.violations += map(str, check(self.room.history))

    def counted(self) -> Counter[str]:
        """What has happened how often."""
        counts = self.counts + self.node.counts + self.room.counts
        history = self.room.history
        counts["acknowledged"] = sum(send.outcome is Outcome.OK for send in history.sends)
        counts["read"] = sum(len(poll.records) for poll in history.polls)
        return counts

    def where(self) -> str:
        """For a life that has come to no end: where its clients are."""
        lines = []
        for machine in self.network.machines.values():
            task = None if machine.process is None else machine.process.task
            if task is not None and not task.done():
                lines.append(f"{machine.name} is {' < '.join(_awaited(task))}")
        return "; ".join(lines)

    def _look_at_clients(self, healed_ms: int) -> None:
        for client in self.clients:
            error = client.exception()
            if error is not None:
                self.violations.append(f"crashed: a client ended with {error!r}")
        self.violations += mix.standing_still(self.room, healed_ms)


async def _ended(process: Process) -> None:
    """Wait for the end of a program; who does not want to wait any more leaves it alone."""
    if process.task is not None:
        await asyncio.wait([process.task])
        process.task.result()


def _awaited(task: asyncio.Task[None]) -> Iterator[str]:
    """What a task is in, from the inside."""
    coroutine: Any = task.get_coro()
    frames: list[str] = []
    while coroutine is not None and getattr(coroutine, "cr_frame", None) is not None:
        frames.append(f"{coroutine.cr_code.co_qualname}:{coroutine.cr_frame.f_lineno}")
        coroutine = coroutine.cr_await
    yield from reversed(frames)


def _config(chance: random.Random) -> BrokerConfig:
    return BrokerConfig(
        topic=TopicConfig(
            segment_bytes=chance.choice((2_000, 100_000)),
            index_interval_bytes=chance.choice((64, 4_096)),
        ),
        group=GroupConfig(initial_rebalance_delay_ms=chance.choice((0, 100))),
    )


def lived(seed: int, plan: Plan) -> tuple[Lived[_Story] | None, list[str]]:
    """A life with these faults, and what was violated in it."""
    logger = logging.getLogger("streamlog")
    stories: list[_Story] = []
    places_left: list[str] = []

    async def story(loop: SimulatedLoop) -> _Story:
        lines = Lines(loop)
        logger.addHandler(lines)
        stories.append(_Story(loop, plan))
        try:
            await stories[0].run()
        except asyncio.CancelledError:
            places_left.append(stories[0].where())
            raise
        finally:
            logger.removeHandler(lines)
        return stories[0]

    propagates, logger.propagate = logger.propagate, False
    try:
        life = live(story, seed, until_s=LIFE_S)
    except TimeoutError:
        return None, [*stories[0].violations, f"stuck: {''.join(places_left)}"]
    finally:
        logger.propagate = propagates
    crashed = [f"crashed: {error}" for error in life.errors]
    return life, [*life.result.violations, *crashed]


def simulate(seed: int) -> Life:
    """One life, and if something is violated, the shortest plan of faults that shows it."""
    plan = drawn(seed, KINDS, until_s=TROUBLE_S)
    life, violations = lived(seed, plan)
    told = _least(seed, plan, violations[0]) if violations else ()
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


def _least(seed: int, plan: Plan, violation: str) -> tuple[str, ...]:
    """The shortest plan that shows such a violation, and how it goes then."""
    kind = violation.partition(":")[0]

    def fails(shorter: Plan) -> bool:
        return any(each.startswith(kind) for each in lived(seed, shorter)[1])

    least = shrunk(plan, fails)
    life, violations = lived(seed, least)
    return (*map(str, least), *violations[:3], *(() if life is None else life.story))
