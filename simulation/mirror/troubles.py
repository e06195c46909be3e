"""Troubles: what networks and machines do to two clusters, at rates that the seed draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.mirror.broker import SiteBroker
    from simulation.mirror.site import Site
    from simulation.mirror.world import TwoClusters

FAULTS_MS = 6_000
PAUSE_MS = (30, 400)


class Troubles:
    """Everything that fails in one life."""

    def __init__(self, world: TwoClusters) -> None:
        chance = world.chance
        self._world = world
        self._drop = chance.choice([0, 0.01, 0.08])
        self._double = chance.choice([0, 0.02, 0.1])
        self._delay_ms = chance.choice([5, 40, 300])
        self._rates = {
            self._crash: chance.choice([0.3, 1, 3]),
            self._lose_site: chance.choice([0, 0.3, 0.6]),
            self._cut_link: chance.choice([0, 0.5, 2]),
            self._isolate: chance.choice([0, 1]),
            self._mend: 1.5,
            self._delete: chance.choice([0, 0.6]),
            self._lag_and_lose: chance.choice([0, 0, 0.5, 1.5]),
        }
        self._cuts: set[tuple[str, str]] = set()

    def carry(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        """Deliver a message late, twice or never."""
        world, chance = self._world, self._world.chance
        if not world.is_healed and chance.random() < self._drop:
            return
        is_doubled = not world.is_healed and chance.random() < self._double
        for _ in range(1 + is_doubled):
            delay_ms = 1 if chance.random() < 0.7 else chance.randint(1, self._delay_ms)
            world.at(delay_ms, lambda: None if (source, target) in self._cuts else deliver())

    def strike(self) -> None:
        """Let something go wrong, or nothing; in the end everything is healed."""
        world, chance = self._world, self._world.chance
        if world.now_ms > FAULTS_MS:
            self._mend()
            world.heal()
            for site in world.sites:
                for broker in site.brokers:
                    if not broker.is_up:
                        broker.start()
            return
        (kind,) = chance.choices([*self._rates], [*self._rates.values()])
        if chance.random() < 0.7:
            kind()
        world.at(chance.randint(*PAUSE_MS), self.strike)

    def _crash(self) -> None:
        chance = self._world.chance
        broker = chance.choice(chance.choice(self._world.sites).brokers)
        self._stop(broker, chance.choice([chance.randint(1, 80), chance.randint(300, 2000)]))

    def _stop(self, broker: SiteBroker, down_ms: int) -> None:
        world, chance = self._world, self._world.chance
        if not broker.is_up:
            return
        kind = chance.choice(["kills", "power cuts", "power cuts", "stops"])
        world.count(kind)
        world.tell(f"{broker.address}: {kind}, for {down_ms} ms")
        broker.stop(power_cut=kind == "power cuts", is_clean=kind == "stops")
        world.at(down_ms, lambda: None if broker.is_up else broker.start())

    def _lose_site(self) -> None:
        world, chance = self._world, self._world.chance
        site = chance.choice(world.sites)
        world.count("lost clusters")
        down_ms = chance.randint(200, 2500)
        for broker in site.brokers:
            self._stop(broker, down_ms + chance.randint(0, 100))

    def _cut_link(self) -> None:
        world = self._world
        world.count("cut links")
        world.tell("the link is cut")
        one, other = world.sites
        kind = world.chance.choice(["both", "there", "back"])
        for here in one.brokers:
            for there in other.brokers:
                if kind != "back":
                    self._cuts.add((here.address, there.address))
                if kind != "there":
                    self._cuts.add((there.address, here.address))

    def _isolate(self) -> None:
        """Cut a broker off from everybody, in one direction or both."""
        world, chance = self._world, self._world.chance
        site = chance.choice(world.sites)
        broker = chance.choice(site.brokers)
        world.count("cut brokers")
        world.tell(f"{broker.address} is cut off")
        for other in [*self._peers(site, broker), site.controller]:
            kind = chance.random()
            if kind < 0.8:
                self._cuts.add((broker.address, other))
            if kind > 0.2:
                self._cuts.add((other, broker.address))

    @staticmethod
    def _peers(site: Site, broker: SiteBroker) -> list[str]:
        return [each.address for each in site.brokers if each is not broker]

    def _mend(self) -> None:
        self._cuts.clear()
        self._world.tell("all links are whole")

    def _delete(self) -> None:
        """Delete the head of a log, which its owner's leader does."""
        world = self._world
        for site in world.sites:
            for place, state in site.news().states.items():
                if state.mirror_of is not None or world.chance.random() < 0.5:
                    continue
                broker = site.brokers[state.leader] if state.leader >= 0 else None
                found = None if broker is None else broker.replicas.get(place)
                if broker is None or not broker.is_up or found is None:
                    continue
                start, mark = found.log.start_offset, found.log.high_watermark
                if found.replica.leader is not None and start < mark:
                    offset = world.chance.randint(start + 1, mark)
                    log = world.checker.log_of(place)
                    deleted = world.checker.deleted
                    deleted[log] = max(deleted.get(log, 0), offset)
                    found.delete_before(offset)
                    world.count("deletions")

    def _lag_and_lose(self) -> None:
        """Let a replica lag until it is out of sync, then lose the others: an unclean election."""
        world, chance = self._world, self._world.chance
        site = chance.choice(world.sites)
        broker = chance.choice(site.brokers)
        peers = self._peers(site, broker)
        if not peers:
            return
        world.tell(f"{broker.address} lags")
        for other in peers:
            self._cuts |= {(broker.address, other), (other, broker.address)}

        def lose() -> None:
            if world.is_healed:
                return
            for each in site.brokers:
                if each is not broker:
                    self._stop(each, chance.randint(1500, 3000))

        world.at(chance.randint(500, 1200), lose)
