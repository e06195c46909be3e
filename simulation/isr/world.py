"""World: three brokers, their controller, clients, and what goes wrong, in virtual time.

Everything is drawn from the seed, the kinds and rates of faults among it, so that lives differ
(swarm testing). At the end all faults stop: then everything has to come to rest (L1, L2).
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from zlib import crc32

from simulation.isr.broker import SimulatedBroker
from simulation.isr.checker import PartitionChecker, Violation
from simulation.isr.clients import SimulatedConsumer, SimulatedProducer
from simulation.isr.controller import IdealController
from simulation.isr.disk import Disk
from simulation.isr.faults import Faults
from simulation.isr.messages import Alter, Heartbeat, Message
from simulation.isr.plan import Plan

REPLICAS = (0, 1, 2)
CONTROLLER = 99
FIRST_PRODUCER = 100
CONSUMER = 110
REST_MS_MAX = 40_000
"""Once nothing fails any more, it has to come to rest within this time."""


class World:
    """One life."""

    def __init__(self, seed: int, plan: Plan) -> None:
        chance = self.chance = random.Random(seed)
        self.plan = plan
        self.now_ms = 0
        self.events = 0
        self.counts: Counter[str] = Counter()
        self.healed = False
        self.goal = 0
        self.min_insync = 2
        self.lag_max_ms, self.session_ms = (120, 200) if plan.violent else (400, 600)
        self.sync_ms = chance.choice([2, 10, 80])
        self.batch_max = chance.choice([1, 2, 5, 50])
        self.faults = Faults(self)
        self.trace = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.checker = PartitionChecker(self)
        self.disks = [Disk() for _ in REPLICAS]
        self.brokers = [SimulatedBroker(self, i, disk) for i, disk in enumerate(self.disks)]
        self.controller = IdealController(self, REPLICAS, plan)
        self.producers = [SimulatedProducer(self, FIRST_PRODUCER + n) for n in range(2)]
        self._clients = {FIRST_PRODUCER + n: each for n, each in enumerate(self.producers)}
        self._consumer = SimulatedConsumer(self, CONSUMER)
        for broker in self.brokers:
            broker.start()
        for producer in self.producers:
            self.at(50, producer.go)
        self.at(60, self._consumer.go)
        self.at(20, self._tick_controller)
        self.at(100, self.faults.strike)

    # ---- time ----

    def at(self, delay_ms: int, happens: Callable[[], None]) -> None:
        """Let something happen later."""
        heapq.heappush(self._queue, (self.now_ms + delay_ms, next(self._numbers), happens))

    def after(self, broker: SimulatedBroker, delay_ms: int, happens: Callable[[], None]) -> None:
        """A timer of a broker: it ends with the broker's life, and waits while it is paused."""
        incarnation = broker.incarnation

        def fire() -> None:
            if not broker.up or broker.incarnation != incarnation:
                return
            if not self.faults.holds(broker.id, fire):
                happens()

        self.at(delay_ms, fire)

    def run(self) -> None:
        """Live to the end. Raises `Violation`."""
        end_ms = self.plan.duration_ms + REST_MS_MAX
        while self._queue:
            self.now_ms, number, happens = heapq.heappop(self._queue)
            self.events += 1
            self.trace = crc32(b"%d %d" % (self.now_ms, number), self.trace)
            happens()
            if self.healed and self._rests():
                break
            if self.now_ms > end_ms:
                raise Violation(f"L1: no rest after everything was healed: {self._describe()}")
        for disk in self.disks:
            self.trace = crc32(repr(disk.entries).encode(), self.trace)
        self.checker.at_end(self.brokers[self.controller.state.leader])

    def count(self, what: str) -> None:
        """Something has happened that reports tell the number of."""
        self.counts[what] += 1

    # ---- network ----

    def send(self, source: int, target: int, message: Message) -> None:
        """From broker to broker."""
        self.faults.carry(source, target, lambda: self._deliver(target, message))

    def send_to_broker(self, target: int, message: Message) -> None:
        """From the controller."""
        self.faults.carry(CONTROLLER, target, lambda: self._deliver(target, message))

    def send_from_client(self, client: int, target: int, message: Message) -> None:
        """From a client."""
        self.faults.carry(client, target, lambda: self._deliver(target, message))

    def send_to_client(self, source: int, client: int, message: Message) -> None:
        """From a broker."""
        receiver = self._clients.get(client, self._consumer)
        self.faults.carry(source, client, lambda: receiver.on(message))

    def send_to_controller(self, source: int, message: Heartbeat | Alter) -> None:
        """From a broker."""
        match message:
            case Heartbeat():
                self.faults.carry(source, CONTROLLER, lambda: self.controller.on_heartbeat(message))
            case Alter():
                self.faults.carry_proposal(source, lambda: self.controller.on_alter(message))

    def any_broker(self) -> int:
        """Whom a client asks that does not know better."""
        return self.chance.randrange(len(REPLICAS))

    def _deliver(self, target: int, message: Message) -> None:
        broker = self.brokers[target]
        if not broker.up:
            return
        if not self.faults.holds(target, lambda: self._deliver(target, message)):
            broker.on(message)

    # ---- what is committed ----

    def on_committed(self, *, elected: bool) -> None:
        """The controller has changed its mind: everybody is told."""
        state = self.controller.state
        if elected:
            self.count("elections")
        if len(state.isr) == 1:
            self.count("one in sync")
        if state.leader < 0:
            self.count("leaderless")
        self.checker.on_committed(state, elected=elected)
        self.tell_brokers()

    def tell_brokers(self) -> None:
        """What is committed is on its way to everybody."""
        for broker in REPLICAS:
            self.send_to_broker(broker, self.controller.metadata())

    def _tick_controller(self) -> None:
        self.controller.on_tick(self.session_ms)
        self.at(50, self._tick_controller)

    # ---- the end ----

    def heal(self) -> None:
        """From here on nothing fails."""
        self.healed = True
        self.goal = max(producer.sequence for producer in self.producers) + 5

    def _rests(self) -> bool:
        if not all(producer.done for producer in self.producers):
            return False
        if len(self.controller.state.isr) != len(REPLICAS):
            return False
        first = self.brokers[0]
        return all(
            broker.up
            and broker.log.high_watermark == broker.log.end_offset == first.log.end_offset
            and self._equal(broker.disk, first.disk)
            for broker in self.brokers
        )

    @staticmethod
    def _equal(one: Disk, other: Disk) -> bool:
        start = max(one.base, other.base)
        return one.read(start, one.end) == other.read(start, other.end)

    def _describe(self) -> str:
        logs = [(broker.log.high_watermark, broker.log.end_offset) for broker in self.brokers]
        return f"{self.controller.state}, high watermarks and ends {logs}"
