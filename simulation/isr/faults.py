"""Faults: what a life's network and machines do to it, at rates that its seed draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.isr.world import World

CONTROLLER = 99
LATE_MS = (200, 1500)
"""After its sender has asked again."""
FENCED_MS = (20, 400)


class Faults:
    """Everything that fails in one life."""

    def __init__(self, world: World) -> None:
        chance = world.chance
        self._world = world
        self._drop = chance.choice([0, 0.01, 0.05, 0.15])
        self._double = chance.choice([0, 0.02, 0.1])
        self._delay_ms = chance.choice(
            [200, 1500, 4000] if world.plan.violent else [5, 30, 200, 1500]
        )
        self._crashes = chance.choice([0.2, 1, 3])
        self._partitions = chance.choice([0, 1, 3])
        self._pauses = chance.choice([0, 1])
        self._deletions = chance.choice([0, 0.3])
        self._power_cuts = chance.choice([0.3, 1.0])
        self._clean = chance.choice([0, 0.3])
        self._quick = chance.choice([0.2, 0.8])
        self._fences = chance.choice([0, 0, 4])
        self._late_proposals = chance.choice([0, 0, 0.4])
        self._cut: set[tuple[int, int]] = set()
        self._paused: dict[int, list[Callable[[], None]]] = {}

    def carry_proposal(self, source: int, deliver: Callable[[], None]) -> None:
        """As `carry`, to the controller; some hang in a connection that was given up, and come."""
        world, chance = self._world, self._world.chance
        if not world.healed and chance.random() < self._late_proposals:
            world.at(chance.randint(*LATE_MS), deliver)
        else:
            self.carry(source, CONTROLLER, deliver)

    def carry(self, source: int, target: int, deliver: Callable[[], None]) -> None:
        """A message is sent: late, twice, or never to be delivered."""
        world, chance = self._world, self._world.chance
        if not world.healed and chance.random() < self._drop:
            return
        twice = not world.healed and chance.random() < self._double
        for _ in range(1 + twice):
            delay_ms = 1 if chance.random() < 0.7 else chance.randint(1, self._delay_ms)
            world.at(delay_ms, lambda: None if (source, target) in self._cut else deliver())

    def holds(self, broker: int, happens: Callable[[], None]) -> bool:
        """Whether the broker is paused: then it happens when it goes on."""
        waiting = self._paused.get(broker)
        if waiting is None:
            return False
        waiting.append(happens)
        return True

    def strike(self) -> None:
        """Something may go wrong now; in the end everything is healed."""
        world, chance = self._world, self._world.chance
        if world.now_ms > world.plan.duration_ms:
            return self._heal()
        kinds = {
            self._crash: self._crashes,
            self._partition: self._partitions,
            self._pause: self._pauses,
            self._cut.clear: 1.5,
            self._delete: self._deletions,
            self._fence: self._fences,
            None: 3,
        }
        (kind,) = chance.choices(list(kinds), list(kinds.values()))
        if kind is not None:
            kind()
        return world.at(chance.randint(20, 400), self.strike)

    def _crash(self) -> None:
        world, chance = self._world, self._world.chance
        broker = chance.choice(world.brokers)
        if not broker.up:
            return
        broker.up = False
        self._paused.pop(broker.id, None)
        power_cut = chance.random() < self._power_cuts
        clean = chance.random() < self._clean
        world.count("stops" if clean else "power cuts" if power_cut else "kills")
        if clean:
            broker.disk.sync(broker.disk.end)
        broker.disk.crash(chance, power_cut=power_cut and not clean)
        broker.disk.clean = clean
        quick = chance.random() < self._quick
        delay_ms = chance.randint(1, 60) if quick else chance.randint(300, 3000)
        world.at(delay_ms, lambda: None if broker.up else broker.start())

    def _partition(self) -> None:
        world, chance = self._world, self._world.chance
        world.count("partitions")
        nodes = [*range(len(world.brokers)), CONTROLLER]
        kind, one = chance.random(), chance.choice(nodes)
        for other in nodes:
            if other == one:
                continue
            there, back = (one, other), (other, one)
            if kind < 0.5:
                self._cut |= {there, back}
            elif kind < 0.7 or (kind >= 0.9 and chance.random() < 0.5):
                self._cut.add(there)
            elif kind < 0.9:
                self._cut.add(back)

    def _pause(self) -> None:
        world, chance = self._world, self._world.chance
        broker = chance.choice(world.brokers)
        if broker.up and broker.id not in self._paused:
            world.count("pauses")
            self._paused[broker.id] = []
            world.at(chance.choice([50, 700, 2000]), lambda: self._resume(broker.id))

    def _resume(self, broker: int) -> None:
        for happens in self._paused.pop(broker, ()):
            happens()

    def _fence(self) -> None:
        """The controller takes a broker for dead that is well."""
        chance = self._world.chance
        self._world.count("fences")
        broker = chance.randrange(len(self._world.brokers))
        self._world.controller.overhear(broker, chance.randint(*FENCED_MS))

    def _delete(self) -> None:
        world = self._world
        for broker in world.brokers:
            if broker.up and broker.replica.leader is not None and broker.id not in self._paused:
                start, mark = broker.log.start_offset, broker.log.high_watermark
                if start < mark:
                    world.count("deletions")
                    broker.delete_before(world.chance.randint(start + 1, mark))
                return

    def _heal(self) -> None:
        self._cut.clear()
        self._world.heal()
        for broker in list(self._paused):
            self._resume(broker)
