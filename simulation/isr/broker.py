"""SimulatedBroker: the shell of one replica: it performs what the shipped machines decide.

Its log is a `Disk`, its network and clock are the world's. What it adds of its own is small: a
producer's sequence numbers, and the answers to clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.isr.disk import Disk, Entry
from simulation.isr.messages import (
    Alter,
    Altered,
    Fetch,
    Fetched,
    Heartbeat,
    Message,
    Metadata,
    Produce,
    Produced,
    Read,
    ReadAnswer,
    Registered,
)
from streamlog.broker.replication.replica import Replica
from streamlog.broker.replication.replica_state import (
    Acknowledge,
    AdvanceHighWatermark,
    AdvanceLogStart,
    AppendBatches,
    BeginEpoch,
    Diverging,
    Effect,
    LoseLeadership,
    ProposeIsr,
    RefuseAcknowledgement,
    ReplicaError,
    ReplicaLog,
    ReplicaSettings,
    Serve,
    StartAt,
    StopReplica,
    Truncate,
)
from streamlog.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from simulation.isr.world import World

HEARTBEAT_MS = 60
FETCH_TIMEOUT_MS = 150
ALTER_TIMEOUT_MS = 200


class SimulatedBroker:
    """One broker, over all its lives."""

    replica: Replica
    log: ReplicaLog

    def __init__(self, world: World, broker_id: int, disk: Disk) -> None:
        self.id = broker_id
        self.disk = disk
        self.up = False
        self.incarnation = 0
        self.producers: dict[int, tuple[int, int]] = {}
        self._world = world
        self._plan = world.plan

    def start(self) -> None:
        """Begin a life with what the disk has."""
        disk, world = self.disk, self._world
        self.up = True
        self.incarnation += 1
        self.brokers: dict[int, int] = {}
        self.epoch = -1
        self.log = ReplicaLog(
            epochs=disk,
            start_offset=disk.base,
            end_offset=disk.end,
            flushed_offset=disk.synced,
            high_watermark=min(max(disk.high_watermark, disk.base), disk.end),
            strict=self._plan.strict,
        )
        self.replica = Replica(
            self.id,
            self.log,
            brokers=self.brokers,
            settings=ReplicaSettings(lag_max_ms=world.lag_max_ms, min_insync=world.min_insync),
            incarnation=self.incarnation,
            rules=self._plan.rules,
        )
        self.producers = disk.producers()
        self._was_clean, disk.clean = disk.clean, False
        self._registered = False
        self._metadata_offset = -1
        self._flushing = False
        self._tickets: dict[int, tuple[Produce, int, int]] = {}
        self._next_ticket = 0
        self._asked: tuple[int, int] | None = None
        world.after(self, 1, self._beat)
        world.after(self, 5, self._tick)

    # ---- timers ----

    def _beat(self) -> None:
        clean = self._was_clean and not self._registered
        self._world.send_to_controller(
            self.id, Heartbeat(self.id, self.epoch, self.incarnation, clean)
        )
        self._world.after(self, HEARTBEAT_MS, self._beat)

    def _tick(self) -> None:
        world = self._world
        if world.chance.random() < 0.05:
            self.disk.high_watermark = self.log.high_watermark
        self._perform(self.replica.on_tick(world.now_ms))
        self._fetch()
        world.after(self, world.chance.randint(10, 30), self._tick)

    def _flush(self) -> None:
        if self._flushing:
            return
        self._flushing = True
        generation, end = self.log.generation, self.log.end_offset
        delay = self._world.chance.randint(1, self._world.sync_ms)
        self._world.after(self, delay, lambda: self._on_flushed(generation, end))

    def _on_flushed(self, generation: int, end: int) -> None:
        self._flushing = False
        if generation == self.log.generation:
            self.disk.sync(min(end, self.disk.end))
        self._perform(self.replica.on_flushed(generation, end))
        if self.disk.synced < self.disk.end:
            self._flush()
        self._fetch()

    def _fetch(self) -> None:
        follower = self.replica.follower
        asked = None if follower is None else follower.next_fetch()
        if asked is None:
            if self.disk.synced < self.disk.end:
                self._flush()
            return
        self._asked = asked.fetch_id
        self._world.send(self.id, asked.leader, Fetch(asked.fetch_id, asked.fetch))
        lost = asked.fetch_id
        self._world.after(self, FETCH_TIMEOUT_MS, lambda: self._on_fetch_lost(lost))

    def _on_fetch_lost(self, fetch_id: tuple[int, int]) -> None:
        if self.replica.follower is not None:
            self.replica.follower.on_failed(fetch_id)
            self._fetch()

    # ---- messages ----

    def on(self, message: Message) -> None:
        """Something has come."""
        match message:
            case Fetch():
                self._on_fetch(message)
            case Fetched():
                self._on_fetched(message)
            case Metadata():
                self._on_metadata(message)
            case Registered(epoch, incarnation, offset):
                if incarnation == self.incarnation:
                    self.epoch, self._registered = epoch, True
                    self._perform(self.replica.on_registered(epoch, offset))
            case Altered():
                self._on_altered(message)
            case Produce():
                self._on_produce(message)
            case Read():
                self._on_read(message)
            case _:
                raise TypeError(message)

    def _on_metadata(self, metadata: Metadata) -> None:
        if metadata.offset < self._metadata_offset:
            return
        self._metadata_offset = metadata.offset
        self.brokers.clear()
        self.brokers.update(metadata.brokers)
        led = self.replica.leader
        self._perform(
            self.replica.on_metadata(
                metadata.state, metadata_offset=metadata.offset, now_ms=self._world.now_ms
            )
        )
        if self.replica.leader is not None and self.replica.leader is not led:
            if self._plan.forgets_producers:
                self.producers = {}
            self._world.checker.on_leading(self)
        self._fetch()

    def _on_fetch(self, message: Fetch) -> None:
        leader, fetch = self.replica.leader, message.fetch
        entries: tuple[Entry, ...] = ()
        if leader is None:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            answer = Fetched(message.fetch_id, ReplicaError(code, self.log.start_offset), ())
        else:
            decided, effects = leader.on_fetch(fetch, self._world.now_ms)
            if isinstance(decided, Serve):
                entries = self.disk.read(fetch.offset, fetch.offset + self._world.batch_max)
            answer = Fetched(message.fetch_id, decided, entries)
            self._perform(effects)
        self._world.send(self.id, fetch.broker, answer)

    def _on_fetched(self, message: Fetched) -> None:
        follower = self.replica.follower
        if follower is None:
            return
        match message.answer:
            case Serve(high_watermark, log_start):
                # Whose batches these are, their own offsets say: they continue our log or not.
                effects = follower.on_fetched(
                    message.fetch_id,
                    end_offset=self.log.end_offset + len(message.entries),
                    high_watermark=high_watermark,
                    log_start=log_start,
                )
                self._perform(effects, message.entries)
            case Diverging():
                self._perform(follower.on_diverging(message.fetch_id, message.answer))
            case ReplicaError(ErrorCode.OFFSET_OUT_OF_RANGE, log_start):
                self._perform(follower.on_out_of_range(message.fetch_id, log_start))
            case ReplicaError():
                return  # Asked again after the time-out: metadata is on its way.
        self._fetch()

    def _on_altered(self, message: Altered) -> None:
        if self.replica.leader is not None:
            self._perform(
                self.replica.leader.on_isr_answer(
                    message.number,
                    message.code,
                    leader_epoch=message.leader_epoch,
                    partition_epoch=message.partition_epoch,
                    isr=message.isr,
                )
            )

    def _on_produce(self, message: Produce) -> None:
        leader = self.replica.leader
        if leader is None:
            return self._answer(message, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if leader.is_under_min_isr:
            return self._answer(message, ErrorCode.NOT_ENOUGH_REPLICAS)
        last, offset = self.producers.get(message.producer, (message.sequence - 1, -1))
        duplicate = message.sequence <= last and not self._plan.appends_duplicates
        if duplicate and message.sequence < last:
            return self._answer(message, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
        if not duplicate:
            if message.sequence != last + 1 and not self._plan.appends_duplicates:
                return self._answer(message, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            offset = self.disk.end
            self._append((Entry(leader.epoch, message.producer, message.sequence),))
            self._perform(self.replica.on_appended(self.disk.end))
        self._next_ticket += 1
        self._tickets[self._next_ticket] = (message, offset, leader.epoch)
        if duplicate and self._plan.answers_duplicates_at_once:
            return self._perform([Acknowledge(self._next_ticket)])
        return self._perform(leader.wait(self._next_ticket, offset + 1))

    def _on_read(self, message: Read) -> None:
        leader = self.replica.leader
        if leader is None or leader.epoch < message.leader_epoch:
            return
        log = self.log
        outside = not log.start_offset <= message.offset <= log.end_offset
        entries = self.disk.read(message.offset, log.high_watermark)
        self._world.send_to_client(
            self.id,
            message.client,
            ReadAnswer(
                message.request, message.offset, entries, log.start_offset, outside, leader.epoch
            ),
        )

    def delete_before(self, offset: int) -> None:
        """DeleteRecords, which only a leader takes, up to its high watermark."""
        self._world.checker.on_deleted(offset)
        self.disk.delete_before(offset)
        self.log.start_offset = offset

    # ---- effects ----

    def _perform(self, effects: list[Effect], entries: tuple[Entry, ...] = ()) -> None:
        for effect in effects:
            match effect:
                case AdvanceHighWatermark():
                    self._world.checker.on_high_watermark(self)
                case Acknowledge() | RefuseAcknowledgement() | LoseLeadership():
                    self._tell_waiting(effect)
                case ProposeIsr():
                    self._propose(effect)
                case BeginEpoch():
                    self._world.count("leaderships")
                case AppendBatches():
                    self._append(entries)
                case _:
                    self._change_log(effect)

    def _tell_waiting(self, effect: Acknowledge | RefuseAcknowledgement | LoseLeadership) -> None:
        match effect:
            case Acknowledge(ticket):
                request, offset, epoch = self._tickets.pop(ticket)
                self._world.checker.on_acknowledged(self, offset, epoch)
                self._answer(request, ErrorCode.NONE)
            case RefuseAcknowledgement(ticket):
                request, *_ = self._tickets.pop(ticket)
                self._answer(request, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
            case LoseLeadership(_, tickets):
                for ticket in tickets:
                    request, *_ = self._tickets.pop(ticket)
                    self._answer(request, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _change_log(self, effect: Truncate | StartAt | AdvanceLogStart | StopReplica) -> None:
        match effect:
            case Truncate(offset):
                self._world.checker.on_truncated(self, offset)
                self.disk.truncate(offset)
                self.producers = self.disk.producers()
            case StartAt(offset):
                self.disk.start_at(offset)
                self.producers = {}
                self._world.count("restarts at the leader's start")
            case AdvanceLogStart(offset):
                self.disk.delete_before(offset)
            case StopReplica(reason):
                self._world.checker.violate("P7", f"broker {self.id}: {reason}")

    def _append(self, entries: tuple[Entry, ...]) -> None:
        self._world.checker.on_appended(self, entries)
        first = self.disk.end
        self.disk.append(entries)
        for offset, entry in enumerate(entries, first):
            self.producers[entry.producer] = (entry.sequence, offset)
        self._flush()

    def _propose(self, proposal: ProposeIsr) -> None:
        self._world.send_to_controller(self.id, Alter(self.id, self.epoch, proposal))
        self._world.after(self, ALTER_TIMEOUT_MS, lambda: self._propose_again(proposal))

    def _propose_again(self, proposal: ProposeIsr) -> None:
        leader = self.replica.leader
        if leader is not None and leader.proposal() is proposal:
            self._propose(proposal)

    def _answer(self, request: Produce, code: int) -> None:
        self._world.send_to_client(self.id, request.client, Produced(request.request, code))
