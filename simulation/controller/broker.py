"""SimulatedBroker: a process of a broker, its disk, and the least of replication that is correct.

A follower's fetch is one exchange with its leader; a log is a list that is on disk at once. What
it takes from the shipped code is `BrokerLifecycle` and the image of the metadata.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulation.controller.oracle import Entry, Place, Violation, agreed
from streamlog.broker.quorum.broker_lifecycle import BrokerLifecycle, SendRegistration, State
from streamlog.broker.quorum.controller.decision import ControllerContext
from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata, PartitionChanged
from streamlog.broker.quorum.metadata.metadata_records import decode_record
from streamlog.broker.quorum.metadata.registrations import PartitionRegistration
from streamlog.client.admin.cluster_descriptions import (
    NodeDescription,
    Registration,
    ReplicaDescription,
)
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.broker_registration import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    BrokerState,
    Feature,
    ProposedPartition,
    ProposedTopic,
    RegisteredListener,
)
from streamlog.protocol.schema import Message
from streamlog.record import TopicPartition

if TYPE_CHECKING:
    from simulation.controller.world import World

HEARTBEAT_MS = 300
REQUEST_MS = 400
LAG_MS = 600
"""How long a follower may lag behind and stay in sync."""
VERSION = 3


@dataclass(slots=True)
class Disk:
    """What outlives a process."""

    directory: bytes
    logs: dict[Place, list[Entry]] = field(default_factory=dict)
    clean_epoch: int = -1
    """Of the process before, if it was stopped in order."""
    lives: list[bytes] = field(default_factory=list)
    """Starts that may have been the last to register."""
    broken: dict[Place, int] = field(default_factory=dict)
    """Found damaged in which leader epoch: neither led, nor counted, nor followed with."""

    def log(self, place: Place) -> list[Entry]:
        """The replica of a partition."""
        return self.logs.setdefault(place, [])


@dataclass(slots=True)
class Leading:
    """A partition that this process leads."""

    epoch: int
    start: int
    ends: dict[int, int] = field(default_factory=dict)
    """How far each follower has asked, and so has on disk what is before."""
    epochs: dict[int, int] = field(default_factory=dict)
    """Of the brokers of followers, as they asked."""
    caught_up_ms: dict[int, int] = field(default_factory=dict)
    pending: tuple[int, ...] | None = None
    sent_ms: int = 0


class SimulatedBroker:
    """One process."""

    def __init__(self, world: World, broker_id: int, disk: Disk, incarnation: int) -> None:
        self.id, self.disk = broker_id, disk
        self.is_dead = False
        self.paused_until_ms = 0
        self.image = ClusterMetadata()
        self.leading: dict[Place, Leading] = {}
        self._world = world
        self._realm = ControllerContext(
            metadata=self.image, cluster_id="c", node_id=broker_id, chance=world.rng
        )
        self._high: dict[Place, int] = {}
        life = incarnation.to_bytes(16)
        self.lifecycle = BrokerLifecycle(
            registration=BrokerRegistrationRequest(
                broker_id=broker_id,
                cluster_id="c",
                incarnation_id=bytes([broker_id, *incarnation.to_bytes(4), *bytes(11)]),
                listeners=[RegisteredListener(name="PLAINTEXT", host=f"b{broker_id}", port=9092)],
                features=[Feature(name="transaction.version", max_supported_version=2)],
                rack=world.rack(broker_id),
                log_dirs=[disk.directory],
                previous_broker_epoch=disk.clean_epoch,
                directory_lives=[*disk.lives, life],
            ),
            heartbeat_interval_ms=HEARTBEAT_MS,
            request_timeout_ms=REQUEST_MS,
        )
        disk.lives.append(life)
        disk.clean_epoch = -1
        disk.broken = dict.fromkeys(disk.broken, -1)
        self.lifecycle.on_damage(disk.broken)
        self._told: dict[Place, int] = {}

    def step(self) -> None:
        """A moment of its life."""
        world = self._world
        send = self.lifecycle.on_tick(world.now_ms, self.image.offset)
        if send is not None:
            self._send(send)
        if self.lifecycle.state is State.NOT_RUNNING:
            self.disk.clean_epoch = self.lifecycle.epoch
            world.on_stopped(self)
            return
        if not self.lifecycle.may_act(self.image.offset):
            self.leading.clear()
            return
        for place in list(self.disk.logs):
            partition = self.image.partition(*place)
            if partition is None or self.id not in partition.replicas:
                self._drop(place)
        for topic, number, partition in list(self.image.partitions()):
            place = topic.topic_id, number
            if place in self.disk.broken:
                self._mend(place, partition)
            elif partition.leader == self.id:
                self._lead(place, topic.name, partition)
            else:
                self.leading.pop(place, None)
                if self.id in partition.replicas and partition.leader >= 0:
                    self._follow(place, partition)

    # ---- metadata ----

    def apply(self, value: bytes, offset: int) -> None:
        """The next record of the metadata log."""
        change = self.image.replay(decode_record(value), offset)
        if isinstance(change, PartitionChanged):
            led = self.leading.get((change.topic_id, change.partition))
            if led is not None:
                led.pending = None

    def _drop(self, place: Place) -> None:
        self.disk.logs.pop(place, None)
        self.disk.broken.pop(place, None)
        self.leading.pop(place, None)
        self._high.pop(place, None)

    def _send(self, send: SendRegistration) -> None:
        def heard(response: Message | None) -> None:
            now_ms = self._world.now_ms
            if isinstance(response, BrokerRegistrationResponse):
                self.lifecycle.on_registered(response, send.number, now_ms)
                if not response.error_code:
                    self.disk.lives = self.disk.lives[-1:]
                    self.disk.broken = dict.fromkeys(self.disk.broken, -1)
            elif isinstance(response, BrokerHeartbeatResponse):
                self.lifecycle.on_heard(response, send.number, now_ms)
            else:
                self.lifecycle.on_lost(send.number, now_ms)

        self._world.ask(self, send.request, heard)

    # ---- what it says of itself ----

    def report(self, quorum_epoch: int) -> NodeDescription:
        """As a broker answers `streamlog cluster status`; the quorum is ideal."""
        return NodeDescription(
            node_id=self.id,
            epoch=self.lifecycle.epoch,
            directory=self.disk.directory,
            applied_offset=self.image.offset + 1,
            quorum_leader=0,
            quorum_epoch=quorum_epoch,
            registrations={
                each.broker_id: Registration(
                    epoch=each.epoch, is_fenced=each.is_fenced, directories=each.directories
                )
                for each in self.image.brokers.values()
            },
            replicas={
                TopicPartition(topic.name, number): self._replica((topic.topic_id, number), one)
                for topic, number, one in self.image.partitions()
                if self.id in one.replicas and (topic.topic_id, number) in self.disk.logs
            },
        )

    def _replica(self, place: Place, partition: PartitionRegistration) -> ReplicaDescription:
        led = self.leading.get(place)
        return ReplicaDescription(
            leader_epoch=partition.leader_epoch if led is None else led.epoch,
            in_sync=None if led is None else partition.isr,
            high_watermark=self._high.get(place, 0),
            end_offset=len(self.disk.log(place)),
        )

    # ---- leading ----

    def _lead(self, place: Place, topic: str, partition: PartitionRegistration) -> None:
        own = self.disk.log(place)
        led = self.leading.get(place)
        if led is None or led.epoch != partition.leader_epoch:
            led = self.leading[place] = Leading(partition.leader_epoch, len(own))
            led.caught_up_ms = dict.fromkeys(partition.isr, self._world.now_ms)
        if self._world.rng.random() < 0.5:
            own.append((led.epoch, self._world.number()))
        self._advance(place, topic, partition, led)
        self._propose(place, partition, led)

    def _advance(
        self, place: Place, topic: str, partition: PartitionRegistration, led: Leading
    ) -> None:
        """Rules R9 and R11: everybody in sync, and who may be soon, has what counts."""
        least = self._realm.min_insync(topic, partition.replication_factor)
        if len(partition.isr) < least:
            return
        waited_for = {*partition.isr, *(led.pending or ())} - {self.id}
        end = min([len(self.disk.log(place)), *(led.ends.get(each, -1) for each in waited_for)])
        if end > self._high.get(place, 0):
            self._high[place] = end
            self._world.oracle.on_committed(place, led.epoch, self.disk.log(place), end)

    def _propose(self, place: Place, partition: PartitionRegistration, led: Leading) -> None:
        world = self._world
        if led.pending is not None:
            if world.now_ms - led.sent_ms > REQUEST_MS:
                self._alter(place, partition, led, led.pending)
            return
        isr = [each for each in partition.isr if not self._lags(each, place, led)]
        high = max(self._high.get(place, 0), led.start)
        for each in partition.replicas:
            broker = self.image.brokers.get(each)
            has_joined = led.ends.get(each, -1) >= high and not self._lags(each, place, led)
            if each not in isr and has_joined and broker is not None and broker.is_active:
                isr.append(each)
        if {*isr} != {*partition.isr}:
            self._alter(place, partition, led, tuple(sorted(isr)))

    def _lags(self, follower: int, place: Place, led: Leading) -> bool:
        if follower == self.id or led.ends.get(follower) == len(self.disk.log(place)):
            return False
        return self._world.now_ms - led.caught_up_ms.get(follower, -LAG_MS) >= LAG_MS

    def _alter(
        self, place: Place, partition: PartitionRegistration, led: Leading, isr: tuple[int, ...]
    ) -> None:
        led.pending, led.sent_ms = isr, self._world.now_ms
        known = {each: broker.epoch for each, broker in self.image.brokers.items()}
        known |= {**led.epochs, self.id: self.lifecycle.epoch}
        proposed = ProposedPartition(
            partition_index=place[1],
            leader_epoch=led.epoch,
            partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=[
                BrokerState(broker_id=each, broker_epoch=known.get(each, -1)) for each in isr
            ],
        )
        request = AlterPartitionRequest(
            broker_id=self.id,
            broker_epoch=self.lifecycle.epoch,
            topics=[ProposedTopic(topic_id=place[0], partitions=[proposed])],
        )

        def heard(response: Message | None) -> None:
            now = self.leading.get(place)
            if now is not led or not isinstance(response, AlterPartitionResponse):
                return
            codes = [each.error_code for topic in response.topics for each in topic.partitions]
            # What else was refused is known better from the metadata (rule R12).
            if codes == [ErrorCode.INELIGIBLE_REPLICA]:
                led.pending = None

        self._world.ask(self, request, heard)

    # ---- following ----

    def _follow(self, place: Place, partition: PartitionRegistration) -> None:
        leader = self._world.reached(self, partition.leader)
        if leader is not None:
            leader.serve(self, place, partition.leader_epoch)

    def serve(self, follower: SimulatedBroker, place: Place, epoch: int) -> None:
        """A fetch: the follower cuts off what this log has not, and takes some of the rest."""
        led = self.leading.get(place)
        if led is None or led.epoch != epoch:
            return
        known = self.image.brokers.get(follower.id)
        if known is not None and follower.lifecycle.epoch < known.epoch:
            return
        own, theirs = self.disk.log(place), follower.disk.log(place)
        follower.cut(place, own)
        led.ends[follower.id] = len(theirs)
        led.epochs[follower.id] = follower.lifecycle.epoch
        if len(theirs) == len(own):
            led.caught_up_ms[follower.id] = self._world.now_ms
        theirs += own[len(theirs) : len(theirs) + self._world.rng.randint(1, 30)]
        follower.learn(place, min(self._high.get(place, 0), len(theirs)))

    def cut(self, place: Place, leaders: list[Entry]) -> None:
        """Cut off what a leader's log has not."""
        own = self.disk.log(place)
        same = agreed(own, leaders)
        partition = self.image.partition(*place)
        is_clean = partition is not None and partition.last_unclean_epoch < 0
        if same < self._high.get(place, 0) and is_clean:
            raise Violation(f"P7: broker {self.id} cuts {place[1]} at {same}, which was committed")
        del own[same:]
        self._high[place] = min(self._high.get(place, 0), same)

    def learn(self, place: Place, high: int) -> None:
        """What is committed, as the leader says."""
        self._high[place] = max(self._high.get(place, 0), high)

    def damage(self, place: Place, end: int) -> None:
        """It turns out that records are not there any more."""
        del self.disk.log(place)[end:]
        self._high.pop(place, None)
        self.leading.pop(place, None)
        partition = self.image.partition(*place)
        self.disk.broken[place] = -1 if partition is None else partition.leader_epoch
        if partition is not None:
            self._tell_damage(place, partition)

    def _tell_damage(self, place: Place, partition: PartitionRegistration) -> None:
        if self._told.get(place) != partition.leader_epoch:
            self._told[place] = partition.leader_epoch
            self.lifecycle.on_damage({place: partition.leader_epoch})

    def _mend(self, place: Place, partition: PartitionRegistration) -> None:
        """Damage has been heard of when nobody counts on the replica any more."""
        is_heard = partition.leader_epoch != self.disk.broken[place]
        if not self._world.rules.forgets_damaged:
            is_heard = True
        if self.id in (*partition.isr, *partition.elr) or not is_heard:
            self._tell_damage(place, partition)
        else:
            del self.disk.broken[place]
