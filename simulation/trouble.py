"""Trouble: what goes wrong with the brokers of a life, their machines and the network between.

Each fault is a value that says what, when and for how long (`faults.Fault`); whom it befalls comes
of its `draw`, so that a plan that is made less of still does the same.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import combinations
from typing import Final

from simulation.faults import Fault, Plan
from simulation.network import Link, Network
from simulation.node import Node

OF_ONE: Final = (
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
"""What may befall a broker that is alone."""
OF_MANY: Final = (
    *OF_ONE,
    "kill all",
    "power all",
    "roll",
    "isolate",
    "isolate one way",
    "part",
    "slow peers",
)
"""And one among others: `isolate` is from the other brokers, `part` between two of them."""
CLOCK_JUMPS_MS: Final = (-31_536_000_000, -3_600_000, -5_000, 5_000, 3_600_000, 31_536_000_000)


class Trouble:
    """Of one life."""

    def __init__(self, network: Network, nodes: Sequence[Node]) -> None:
        self.counts: Counter[str] = Counter()
        self._network = network
        self._nodes = nodes

    async def befall(self, plan: Plan) -> None:
        """All of it, to its end."""
        async with asyncio.TaskGroup() as faults:
            for fault in plan:
                faults.create_task(self._befall(fault))

    def heal(self) -> None:
        """Everything works again, from here on.

        Who has had a full disk or a failed one is looked after by an operator.
        """
        self._network.heal()
        self._network.slow_s.clear()
        for node in self._nodes:
            node.resume()
            node.disk.release()
            node.disk.short_writes, node.disk.capacity_bytes, node.slow_s = 0.0, None, 0.0
            node.disk.refuse_syncs(0)

    async def _befall(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at_s)
        self._network.loop.tell("fault", fault)
        self.counts[fault.kind] += 1
        chance = random.Random(fault.draw)
        node = chance.choice(self._nodes)
        match fault.kind:
            case "kill" | "power" | "trap" | "stop" | "refused sync":
                await self._end(node, fault)
            case "kill all" | "power all" | "roll":
                await self._end_all(fault)
            case "pause":
                await _pause(node, fault)
            case "slow disk" | "short writes" | "full disk":
                await _disturb_disk(node, fault)
            case "clock":
                node.machine.wall_ahead_ms += chance.choice(CLOCK_JUMPS_MS)
            case _:
                await self._disturb_network(node.machine.name, fault, chance)

    # ---- processes ----

    async def _end(self, node: Node, fault: Fault) -> None:
        match fault.kind:
            case "trap":
                if not node.disk.is_trapped:
                    steps = 1 + int(fault.draw * 1_000) % 60
                    node.disk.trap(steps, partial(node.kill, power=fault.draw < 0.5))
                await asyncio.sleep(fault.lasts_s)
            case "refused sync":
                node.disk.refuse_syncs()
                await asyncio.sleep(fault.lasts_s)
                node.kill(power=fault.draw < 0.5)
            case "stop":
                await node.stop()
                await asyncio.sleep(fault.lasts_s)
            case _:
                node.kill(power=fault.kind == "power")
                await asyncio.sleep(fault.lasts_s)
        node.start()

    async def _end_all(self, fault: Fault) -> None:
        if fault.kind == "roll":
            for node in self._nodes:
                await node.stop()
                node.start()
                await asyncio.sleep(fault.lasts_s)
            return
        for node in self._nodes:
            node.kill(power=fault.kind == "power all")
        await asyncio.sleep(fault.lasts_s)
        for node in self._nodes:
            node.start()

    # ---- the network ----

    async def _disturb_network(self, name: str, fault: Fault, chance: random.Random) -> None:
        if fault.kind == "part":
            one, other = chance.choice(list(combinations(self._brokers(), 2)))
            there, back = [(one, other)], [(other, one)]
        elif fault.kind in {"isolate", "isolate one way", "slow peers"}:
            others = [each for each in self._brokers() if each != name]
            there, back = _links(name, others)
        else:
            others = [each for each in self._network.machines if each != name]
            there, back = _links(
                name, chance.sample(others, k=1 + int(fault.draw * len(others)) // 2)
            )
        if fault.kind == "reset":
            for _, other in there:
                self._network.reset(other, name)
            return
        if fault.kind in {"slow network", "slow peers"}:
            self._network.slow_s |= dict.fromkeys(there + back, fault.draw * 2)
        elif fault.kind.endswith("one way"):
            self._network.block(*(there if chance.random() < 0.5 else back))
        else:
            self._network.block(*there, *back)
        await asyncio.sleep(fault.lasts_s)
        for link in there + back:
            self._network.slow_s.pop(link, None)
        self._network.heal(*there, *back)

    def _brokers(self) -> list[str]:
        return [node.machine.name for node in self._nodes]


def _links(name: str, others: Sequence[str]) -> tuple[list[Link], list[Link]]:
    """There and back."""
    return [(name, each) for each in others], [(each, name) for each in others]


async def _pause(node: Node, fault: Fault) -> None:
    process = node.process
    if process is not None and not process.paused:
        process.pause()
        await asyncio.sleep(fault.lasts_s)
        process.resume()


async def _disturb_disk(node: Node, fault: Fault) -> None:
    match fault.kind:
        case "slow disk":
            node.slow_s = fault.draw * 2
        case "short writes":
            node.disk.short_writes = fault.draw / 4
        case _:
            node.disk.capacity_bytes = node.disk.used_bytes() + int(fault.draw * 3_000)
    await asyncio.sleep(fault.lasts_s)
    node.slow_s, node.disk.short_writes, node.disk.capacity_bytes = 0.0, 0.0, None
