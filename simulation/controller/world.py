"""World: the quorum, the network and the clock of one life, and what goes wrong in it."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from copy import deepcopy
from itertools import count
from random import Random

from simulation.controller.broker import Disk, SimulatedBroker
from simulation.controller.operator import Operator
from simulation.controller.oracle import Holder, Oracle, Violation
from simulation.controller.orders import TOPICS, order
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.cluster import ClusterConfig
from streamlog.broker.config.security import AUTHORIZER_STANDARD, SecurityConfig
from streamlog.broker.quorum.controller.cluster_controller import Controller
from streamlog.broker.quorum.controller.decision import ControllerContext, Decision
from streamlog.broker.quorum.controller.leader_elections import CORRECT, ElectionRules
from streamlog.broker.quorum.metadata.cluster_metadata import TOPIC_RESOURCE, ClusterMetadata
from streamlog.broker.quorum.metadata.metadata_records import (
    MetadataRecord,
    decode_record,
    encode_record,
)
from streamlog.client.admin.cluster_descriptions import CORRECT as STATUS_CORRECT
from streamlog.client.admin.cluster_descriptions import EvidenceRules as StatusRules
from streamlog.protocol.messages.broker_registration import (
    AlterPartitionRequest,
    UnregisterBrokerRequest,
)
from streamlog.protocol.messages.partitions_and_replicas import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    ElectLeadersRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from streamlog.protocol.messages.topics_and_configs import (
    AlterableConfig,
    AlterConfigsResource,
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    IncrementalAlterConfigsRequest,
)
from streamlog.protocol.schema import Message

FAULTS_MS = 10_000
CALM_MS = 12_000
"""How long everything has to be well again after the faults (L1)."""
STEP_MS = (10, 30)
REPLICAS = 3
OPERATED = 8
"""One of so many lives has an operator who replaces disks; it is one in which disks are lost."""
NEWEST = 99
ALTER_VERSION = 3
SECURED = BrokerConfig(security=SecurityConfig(authorizer=AUTHORIZER_STANDARD))

Heard = Callable[[Message | None], None]


class World:
    """One life, of three to five brokers.

    `status_rules` are those of the status that an operator waits for.
    """

    def __init__(
        self, seed: int, rules: ElectionRules = CORRECT, status_rules: StatusRules = STATUS_CORRECT
    ) -> None:
        self.rng = Random(seed)
        self.now_ms = 0
        self.events = 0
        self.counts: Counter[str] = Counter()
        self.story: list[str] = []
        self.log: list[bytes] = []
        self._ends: set[int] = set()
        """Offsets of the last records of batches."""
        self.loses_disks = bool(seed % 2)
        """Whether disks are lost; else settings change that say how many losses are borne."""
        self._is_operated = seed % OPERATED == OPERATED - 1
        """Whether an operator replaces disks, and puts old ones back."""
        self.has_racks = bool(seed % 3)
        self.rules = rules
        self._status_rules = status_rules
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._serial, self._numbers = count(), count(1)
        ids = range(1, self.rng.randint(3, 5) + 1)
        self.disks = {each: Disk(self.rng.randbytes(16)) for each in ids}
        holders: dict[int, Holder] = {**self.disks}
        self.oracle = Oracle(holders, self.counts)
        self._holders = holders
        self._processes: dict[int, SimulatedBroker] = {}
        self._incarnation = count(1)
        self._cuts: set[frozenset[int]] = set()
        self._lost: int | None = None
        """Whose disk was lost, and has not everything again."""
        self._operator: Operator | None = None
        """Who replaces disks, one after the other."""
        self._backups: dict[int, Disk] = {}
        self._is_calm = False
        self._term = 0
        self._controller: Controller | None = None
        self._image = ClusterMetadata()
        self._asked: list[tuple[Message, int, Heard]] = []
        self._under_way: tuple[Decision[Message], Heard | None] | None = None
        self._arrived_ms: dict[int, int] = {}

    # ---- time ----

    def at(self, delay_ms: int, what: Callable[[], None]) -> None:
        """Let something happen in a while."""
        heapq.heappush(self._queue, (self.now_ms + delay_ms, next(self._serial), what))

    def rack(self, broker_id: int) -> str | None:
        """Where a broker stands, in lives with racks."""
        return f"rack {broker_id % 2}" if self.has_racks else None

    def number(self) -> int:
        """One that nobody has had."""
        return next(self._numbers)

    def run(self) -> None:
        """Live.

        Raises:
            Violation: what must not happen has happened.
        """
        self._take_over(self._term)
        for broker_id in self.disks:
            self._start(broker_id)
        self.at(50, self._tick)
        self.at(400, self._make)
        self.at(450, self._make)
        self.at(500, self._trouble)
        self.at(500, self._administer)
        self._until(FAULTS_MS)
        self._heal()
        self._until(FAULTS_MS + CALM_MS)
        self._check_well()

    def _until(self, end_ms: int) -> None:
        while self._queue and self._queue[0][0] <= end_ms:
            self.now_ms, _, what = heapq.heappop(self._queue)
            self.events += 1
            what()
        self.now_ms = end_ms

    def _tell(self, what: str) -> None:
        self.story.append(f"{self.now_ms:6} {what}")

    # ---- the quorum ----

    def ask(self, sender: SimulatedBroker | None, request: Message, heard: Heard) -> None:
        """Send a request to the controller; requests of one sender arrive in order, or do not."""
        place = 0 if sender is None else sender.id
        is_late = not self._is_calm and self.rng.random() < 0.03
        delay = self.rng.randint(100, 1500) if is_late else self.rng.randint(1, 15)
        arrival = max(self.now_ms + delay, self._arrived_ms.get(place, 0))
        self._arrived_ms[place] = arrival

        def arrive() -> None:
            is_lost = self._is_cut(place, 0) or self.rng.random() < self._loss()
            if is_lost or self._controller is None:
                self._answer(place, heard, None)
                return
            version = ALTER_VERSION if isinstance(request, AlterPartitionRequest) else NEWEST

            def answer(response: Message | None) -> None:
                self._answer(place, heard, response)

            self._asked.append((request, version, answer))
            self._decide()

        self.at(arrival - self.now_ms, arrive)
        if isinstance(request, AlterPartitionRequest) and self.rng.random() < 3 * self._loss():
            self.counts["late copies"] += 1
            self.at(self.rng.randint(100, 1500), lambda: self._arrive_late(request))

    def _arrive_late(self, request: Message) -> None:
        """A copy comes out of a connection that its sender has given up; nobody waits for it."""
        if self._controller is not None:
            self._asked.append((request, ALTER_VERSION, lambda _: None))
            self._decide()

    def _answer(self, place: int, heard: Heard, response: Message | None) -> None:
        if self._is_cut(place, 0) or self.rng.random() < self._loss():
            return
        asked = self._processes.get(place)

        def deliver() -> None:
            if asked is None or not asked.is_dead:
                heard(response)

        self.at(self.rng.randint(1, 15), deliver)

    def _decide(self) -> None:
        while self._controller is not None and self._under_way is None and self._asked:
            request, version, answer = self._asked.pop(0)
            self._carry_out(self._controller.decide(request, version, self.now_ms), answer)

    def _carry_out(self, decision: Decision[Message], answer: Heard | None) -> None:
        if not decision.records:
            if answer is not None and decision.answer is not None:
                answer(decision.answer())
            return
        self._under_way = decision, answer
        term = self._term
        self.at(self.rng.randint(1, 20), lambda: self._commit(term))

    def _commit(self, term: int) -> None:
        if term != self._term or self._under_way is None:
            return
        (decision, answer), self._under_way = self._under_way, None
        for value in self._append(decision.records):
            self._image.replay(decode_record(value), self._image.offset + 1)
        if answer is not None and decision.answer is not None:
            answer(decision.answer())
        self._decide()

    def _append(self, records: tuple[MetadataRecord, ...]) -> list[bytes]:
        values = [encode_record(record) for record in records]
        for value in values:
            self.log.append(value)
            self.oracle.on_record(value, len(self.log) - 1)
            self._tell(f"{len(self.log) - 1}: {decode_record(value)!r}")
        self._ends.add(len(self.log) - 1)
        return values

    def _take_over(self, term: int) -> None:
        """Another controller, with metadata that it has read anew."""
        if term != self._term:
            return  # It has failed before it came to that.
        start = self.rng.randint(-1, len(self.log) - 1)
        before = ClusterMetadata()
        for offset in range(start + 1):
            before.replay(decode_record(self.log[offset]), offset)
        image = ClusterMetadata.of_snapshot(before.snapshot(), start)
        for offset in range(start + 1, len(self.log)):
            image.replay(decode_record(self.log[offset]), offset)
        self.oracle.check_image(image)
        realm = ControllerContext(
            metadata=image,
            cluster_id="c",
            node_id=100,
            chance=self.rng,
            config=SECURED,
            cluster=ClusterConfig(session_timeout_ms=1500, imbalance_check_interval_s=3),
            rules=self.rules,
        )
        self._image, self._controller = image, Controller(realm)
        first = self._controller.on_active(self.now_ms)
        if first is not None:
            self._carry_out(first, None)

    def _fail_over(self) -> None:
        self._tell("the controller fails")
        self._term += 1
        self._controller = None
        self._asked.clear()
        if self._under_way is not None and self.rng.random() < 0.5:
            self.counts["committed, not answered"] += 1
            self._append(self._under_way[0].records)
        self._under_way = None
        term = self._term
        self.at(self.rng.randint(10, 800), lambda: self._take_over(term))

    def _tick(self) -> None:
        is_free = self._controller is not None and self._under_way is None
        deadline = None if self._controller is None else self._controller.next_deadline_ms()
        if is_free and self._controller is not None and (deadline or 0) <= self.now_ms:
            decision = self._controller.on_tick(self.now_ms)
            if decision is not None:
                self._carry_out(decision, None)
        self.at(50, self._tick)

    # ---- brokers and the network ----

    def _loss(self) -> float:
        return 0 if self._is_calm else 0.03

    def _is_cut(self, one: int, other: int) -> bool:
        return frozenset({one, other}) in self._cuts

    def reached(self, sender: SimulatedBroker, broker_id: int) -> SimulatedBroker | None:
        """The process of another broker, if a request comes through to it."""
        process = self._processes.get(broker_id)
        if process is None or process.is_dead or process.paused_until_ms > self.now_ms:
            return None
        is_lost = self._is_cut(sender.id, broker_id) or self.rng.random() < self._loss()
        return None if is_lost else process

    def _start(self, broker_id: int) -> None:
        now = self._processes.get(broker_id)
        if now is not None and not now.is_dead:
            return
        self._tell(f"broker {broker_id} starts")
        process = SimulatedBroker(self, broker_id, self.disks[broker_id], next(self._incarnation))
        self._processes[broker_id] = process
        self._live(process)

    def _live(self, process: SimulatedBroker) -> None:
        """One step after the other, until it ends."""
        if process.is_dead:
            return
        if process.paused_until_ms <= self.now_ms:
            if not self._is_cut(process.id, 0):
                self._inform(process)
            process.step()
        self.at(self.rng.randint(*STEP_MS), lambda: self._live(process))

    def _inform(self, process: SimulatedBroker) -> None:
        """What a process has missed of the metadata log, some batches at a time, each as a whole.

        One that knew of its own registration, and not of what else was decided with it, would lead
        what it has lost.
        """
        for offset in range(process.image.offset + 1, len(self.log)):
            process.apply(self.log[offset], offset)
            if offset in self._ends and self.rng.random() < 0.1:
                break

    def on_stopped(self, process: SimulatedBroker) -> None:
        """It has ended in order."""
        self._tell(f"broker {process.id} has stopped in order")
        self.counts["stops in order"] += 1
        process.is_dead = True
        self.at(self.rng.randint(1, 2000), lambda: self._start(process.id))

    def _administer(self) -> None:
        if not self._is_calm:
            self._order(order(self.rng, self.oracle.image, sorted(self.disks)))
            self.at(self.rng.randint(20, 300), self._administer)

    # ---- what goes wrong, and what is asked for ----

    def _trouble(self) -> None:
        if self._is_calm:
            return
        troubles: tuple[Callable[[], object], ...] = (
            self._kill,
            self._kill,
            self._stop,
            self._pause,
            self._cut,
            self._fail_over,
            self._lose if self.loses_disks else self._alter_settings,
            self._damage if self.loses_disks else self._alter_settings,
            self._make,
            self._delete,
            self._grow,
            self._move,
            self._move,
            self._elect,
            self._unregister,
            *(self._operations() if self._is_operated else ()),
        )
        what = self.rng.choice(troubles)
        self.counts[what.__name__.strip("_")] += 1
        what()
        self.at(self.rng.randint(20, 500), self._trouble)

    def _operations(self) -> Iterable[Callable[[], None]]:
        """What an operator does to disks."""
        replaces = (self._replace_disks,) * 3
        return *replaces, self._back_up, self._back_up, *(self._put_back,) * 4

    def _some(self) -> int:
        return self.rng.choice(sorted(self.disks))

    def _kill(self, broker_id: int | None = None) -> int:
        victim = self._some() if broker_id is None else broker_id
        self._tell(f"broker {victim} is killed")
        if victim in self._processes:
            self._processes[victim].is_dead = True
        delay = self.rng.choice((1, 50, 500, 3000))
        self.at(delay, lambda: self._start(victim))
        return victim

    def _stop(self) -> None:
        process = self._processes[self._some()]
        process.lifecycle.on_stop(self.now_ms)

    def _pause(self) -> None:
        process = self._processes[self._some()]
        process.paused_until_ms = self.now_ms + self.rng.randint(50, 4000)

    def _cut(self) -> None:
        pair = frozenset(self.rng.sample([0, *self.disks], 2))
        self._cuts.add(pair)
        self.at(self.rng.randint(50, 4000), lambda: self._cuts.discard(pair))

    def _may_lose(self) -> bool:
        """Whether the disk that was lost last is whole again: one at a time is borne."""
        if self._operator is not None:
            return False
        if self._lost is not None and self.oracle.is_whole(self._lost):
            self._lost = None
        return self._lost is None

    def _lose(self) -> None:
        """A process dies with its disk, and comes back with an empty one."""
        if not self._may_lose():
            return
        self._lost = self._lose_disk(self._kill())

    def _lose_disk(self, victim: int) -> int:
        self._tell(f"the disk of broker {victim} is lost")
        self.counts["disks lost"] += 1
        self._change_disk(victim, Disk(self.rng.randbytes(16)))
        return victim

    def _change_disk(self, victim: int, disk: Disk) -> None:
        self.disks[victim] = self._holders[victim] = disk

    def _replace_disks(self) -> None:
        """An operator replaces the disks of some brokers, or of all, and goes by the status."""
        if not self._may_lose():
            return
        brokers = self.rng.sample(sorted(self.disks), self.rng.randint(2, len(self.disks)))
        self._tell(f"an operator replaces the disks of {brokers}")
        self._operator = Operator(
            brokers,
            processes=self._processes,
            chance=self.rng,
            at=self.at,
            committed=lambda: len(self.log),
            replace=self._replace_disk,
            on_done=self._end_of_procedure,
            rules=self._status_rules,
        )
        self._operator.begin()

    def _replace_disk(self, victim: int, is_after_another: bool) -> None:  # noqa: FBT001 - as `Operator` has it
        self.counts["disks replaced"] += 1
        self.counts["replaced after another"] += is_after_another
        self._lost = self._lose_disk(self._kill(victim))

    def _end_of_procedure(self) -> None:
        self._operator = None

    def _back_up(self) -> None:
        """A copy of a broker's disk is made; while it runs, or not."""
        victim = self._some()
        self._backups[victim] = deepcopy(self.disks[victim])

    def _put_back(self) -> None:
        """A disk is lost, and a copy of it from an earlier life put in its place.

        A copy from within the last life can't be told from the disk itself.
        """
        victim = self._some()
        backup, broker = self._backups.get(victim), self.oracle.image.brokers.get(victim)
        if backup is None or broker is None or broker.life in backup.lives or not self._may_lose():
            return
        self.counts["backups put back"] += 1
        self._lost = self._kill(victim)
        self._tell(f"a backup of broker {victim} is put back")
        self._change_disk(victim, deepcopy(backup))

    def _damage(self) -> None:
        victim = self._processes[self._some()]
        logs = sorted(place for place, log in victim.disk.logs.items() if log)
        if victim.is_dead or not logs or not self._may_lose():
            return
        place = self.rng.choice(logs)
        self._lost = victim.id
        self._tell(f"broker {victim.id} finds damage in {place}")
        self.counts["damage"] += 1
        victim.damage(place, self.rng.randrange(len(victim.disk.log(place))))

    def _order(self, request: Message) -> None:
        self.ask(None, request, lambda _: None)

    def _make(self) -> None:
        topic = CreatableTopic(
            name=self.rng.choice(TOPICS), num_partitions=2, replication_factor=REPLICAS
        )
        self._order(CreateTopicsRequest(topics=[topic]))

    def _delete(self) -> None:
        if self.rng.random() < 0.3:
            state = DeleteTopicState(name=self.rng.choice(TOPICS))
            self._order(DeleteTopicsRequest(topics=[state]))

    def _grow(self) -> None:
        topic = CreatePartitionsTopic(name=self.rng.choice(TOPICS), count=3, assignments=None)
        self._order(CreatePartitionsRequest(topics=[topic]))

    def _move(self) -> None:
        target: list[int] | None = self.rng.sample(sorted(self.disks), REPLICAS)
        if self.rng.random() < 0.2:
            target = None
        wanted = ReassignablePartition(partition_index=self.rng.randint(0, 2), replicas=target)
        topic = ReassignableTopic(name=self.rng.choice(TOPICS), partitions=[wanted])
        self._order(AlterPartitionReassignmentsRequest(topics=[topic]))

    def _elect(self) -> None:
        self._order(ElectLeadersRequest(election_type=0, topic_partitions=None))

    def _unregister(self) -> None:
        if self.rng.random() < 0.2:
            victim = self._kill()
            self._order(UnregisterBrokerRequest(broker_id=victim))

    def _alter_settings(self) -> None:
        name, values = self.rng.choice(
            (
                ("min.insync.replicas", ("1", "2", "3")),
                ("unclean.leader.election.enable", ("true", "false")),
            )
        )
        config = AlterableConfig(name=name, value=self.rng.choice(values))
        resource = AlterConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=self.rng.choice(TOPICS), configs=[config]
        )
        self._order(IncrementalAlterConfigsRequest(resources=[resource]))

    # ---- the end ----

    def _heal(self) -> None:
        self._tell("everything is healed")
        self._is_calm = True
        if self._operator is not None:
            self._operator.is_stopped = True
        self._cuts.clear()
        for process in self._processes.values():
            process.paused_until_ms = 0
        for broker_id in self.disks:
            self._start(broker_id)

    def _check_well(self) -> None:
        """L1: everybody is in sync with everything, and knows the same.

        Raises:
            Violation: not so.
        """
        for topic, number, partition in self.oracle.image.partitions():
            is_well = partition.leader >= 0 and {*partition.isr} == {*partition.replicas}
            if not is_well or partition.is_reassigning:
                raise Violation(f"L1: {topic.name}-{number} is not well: {partition}")
        for process in self._processes.values():
            if process.image.offset != self.oracle.image.offset:
                raise Violation(f"L1: broker {process.id} knows {process.image.offset}")
            self.oracle.check_image(process.image)
