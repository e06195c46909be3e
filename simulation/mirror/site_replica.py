"""SiteReplica: one replica in one life of its broker: the shell of the shipped `Replica`.

As leader of a mirror it is also the shell of `MirrorReader`: what `mirror_copy`, `source_fetcher`
and `link_reader` do with sockets and files. A record is an `Entry`, in a batch of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulation.isr.disk import Disk, Entry
from streamlog.broker.quorum.metadata.mirror_topics import MirrorState
from streamlog.broker.replication.mirror_reader import (
    AskAlone,
    AskCut,
    AskEnds,
    CopiedBatches,
    KeepRecords,
    MirrorEffect,
    MirrorReader,
    RaiseEpoch,
    StopMirror,
)
from streamlog.broker.replication.replica import Replica
from streamlog.broker.replication.replica_state import (
    NO_EPOCH,
    Acknowledge,
    AdvanceHighWatermark,
    AdvanceLogStart,
    AppendBatches,
    BeginEpoch,
    Diverging,
    Effect,
    LoseLeadership,
    MirrorOf,
    OutstandingFetch,
    ProposeIsr,
    RefuseAcknowledgement,
    ReplicaError,
    ReplicaLog,
    ReplicaSettings,
    ReplicaState,
    Serve,
    StartAt,
    StopReplica,
    Truncate,
)
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.broker_registration import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    ProposedPartition,
    ProposedTopic,
)
from streamlog.protocol.messages.mirror_messages import (
    AlterableMirror,
    AlterMirrorPartitionRequest,
    AlterMirrorsRequest,
)
from streamlog.protocol.schema import Message
from streamlog.replace import replace

if TYPE_CHECKING:
    from simulation.mirror.broker import SiteBroker
    from simulation.mirror.site import Place, Site

FETCH_MS = 150
"""A fetch without an answer is given up after this time."""
LAG_MAX_MS = 400
Sourced = Diverging | ReplicaError | tuple[tuple[Entry, ...], int, int]
"""A source's answer: a divergence, an error, or records, its high watermark and its log start."""


class SiteReplica:
    """The replica of one partition."""

    def __init__(self, broker: SiteBroker, place: Place, disk: Disk) -> None:
        self.broker = broker
        self.place = place
        self.disk = disk
        self.log = ReplicaLog(
            epochs=disk,
            start_offset=disk.base,
            end_offset=disk.end,
            flushed_offset=disk.synced,
            high_watermark=min(max(disk.high_watermark, disk.base), disk.end),
        )
        self.replica = Replica(
            broker.id,
            self.log,
            brokers=broker.alive,
            settings=ReplicaSettings(lag_max_ms=LAG_MAX_MS, min_insync=broker.site.min_insync),
            incarnation=broker.incarnation,
            keeps_cut=not broker.world.plan.cuts_without_file,
        )
        self.acked_end = 0
        """The source's high watermark as of the reader's last answer."""
        self._world = broker.world
        self._checker = broker.world.checker
        self._is_flushing = False
        self._tickets: dict[int, tuple[int, Entry]] = {}
        self._ticket = 0
        self._wanted: RaiseEpoch | AskCut | AskAlone | KeepRecords | AskEnds | StopMirror | None = (
            None
        )
        self._reader: MirrorReader | None = None

    @property
    def site(self) -> Site:
        """The cluster."""
        return self.broker.site

    @property
    def is_current(self) -> bool:
        """Whether this is the replica of a living process."""
        return self.broker.is_up and self.broker.replicas.get(self.place) is self

    # ---- events ----

    def on_registered(self, epoch: int) -> None:
        """The broker is registered, by the record at offset `epoch`."""
        self._perform(self.replica.on_registered(epoch, epoch))

    def on_state(self, state: ReplicaState, offset: int) -> None:
        """The controller has committed a state."""
        plan, source = self._world.plan, state.mirror_of
        if source is not None and plan.cuts_below_era:
            state = replace(state, mirror_of=replace(source, floor_epoch=NO_EPOCH))
        if source is not None and plan.cuts_in_own_epoch:
            state = replace(state, last_unclean_epoch=state.leader_epoch)
        now_ms = self.site.now_ms
        self._perform(self.replica.on_metadata(state, metadata_offset=offset, now_ms=now_ms))
        if self.replica.leader is not None and plan.begins_anew_in_company:
            self.replica.leader.is_alone = True
        self._go_on()

    def tick(self) -> None:
        """Do what time demands."""
        if self._world.chance.random() < 0.1:
            self.disk.high_watermark = self.log.high_watermark
        self._perform(self.replica.on_tick(self.site.now_ms))
        self._go_on()
        self._ask_wanted()

    def produce(self, entry_of: Callable[[int], Entry]) -> None:
        """Take a record of a producer, unless it is a mirror, sealed, or too few are in sync."""
        leader, state = self.replica.leader, self.replica.state
        if leader is None or self.replica.mirror is not None or leader.is_under_min_isr:
            return
        if state is not None and state.sealed_for:
            return
        entry, offset = entry_of(leader.epoch), self.disk.end
        self._checker.on_produced(self, entry)
        self._append((entry,))
        self._perform(self.replica.on_appended(self.disk.end))
        self._ticket += 1
        self._tickets[self._ticket] = offset, entry
        self._perform(leader.wait(self._ticket, offset + 1))

    def delete_before(self, offset: int) -> None:
        """Delete the head, as a leader may, up to its high watermark."""
        self.disk.delete_before(offset)
        self.log.start_offset = offset

    # ---- following ----

    def _go_on(self) -> None:
        """Fetch what is due."""
        if self.disk.synced < self.disk.end:
            self._flush()
        follower = self.replica.follower
        asked = None if follower is None else follower.next_fetch()
        if asked is not None:
            self._fetch(asked)
        self._fetch_from_source()

    def _fetch(self, asked: OutstandingFetch) -> None:
        world, own = self._world, self.broker
        leader = own.site.brokers[asked.leader]

        def arrive() -> None:
            found = leader.replicas.get(self.place) if leader.is_up else None
            if found is not None:
                answer, entries = found.serve(asked)
                world.carry(leader.address, own.address, lambda: back(answer, entries))

        def back(answer: Serve | Diverging | ReplicaError, entries: tuple[Entry, ...]) -> None:
            if self.is_current:
                self._on_fetched(asked.fetch_id, answer, entries)

        world.carry(own.address, leader.address, arrive)
        own.after(FETCH_MS, lambda: self._give_up(asked.fetch_id))

    def _give_up(self, fetch_id: tuple[int, int]) -> None:
        if self.replica.follower is not None:
            self.replica.follower.on_failed(fetch_id)

    def serve(
        self, asked: OutstandingFetch
    ) -> tuple[Serve | Diverging | ReplicaError, tuple[Entry, ...]]:
        """Answer a follower."""
        leader = self.replica.leader
        if leader is None:
            return ReplicaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, self.log.start_offset), ()
        answer, effects = leader.on_fetch(asked.fetch, self.site.now_ms)
        offset = asked.fetch.offset
        isr_read = isinstance(answer, Serve)
        entries = self.disk.read(offset, offset + self._world.batch_max) if isr_read else ()
        self._perform(effects)
        return answer, entries

    def _on_fetched(
        self,
        fetch_id: tuple[int, int],
        answer: Serve | Diverging | ReplicaError,
        entries: tuple[Entry, ...],
    ) -> None:
        follower = self.replica.follower
        if follower is None:
            return
        match answer:
            case Serve(high_watermark, log_start):
                effects = follower.on_fetched(
                    fetch_id,
                    end_offset=self.log.end_offset + len(entries),
                    high_watermark=high_watermark,
                    log_start=log_start,
                )
                self._perform(effects, entries)
            case Diverging():
                self._perform(follower.on_diverging(fetch_id, answer))
            case ReplicaError(ErrorCode.OFFSET_OUT_OF_RANGE, log_start):
                self._perform(follower.on_out_of_range(fetch_id, log_start))
            case _:
                return
        self._go_on()

    # ---- the source ----

    def _fetch_from_source(self) -> None:
        reader, state = self.replica.mirror, self.replica.state
        source = None if state is None else state.mirror_of
        if reader is not self._reader:
            self._reader, self._wanted = reader, None
        if reader is None or source is None or self._wanted is not None:
            return
        if self.place[0] not in self.broker.copied:
            return
        leader = self._source_leader(source)
        fetch = None if leader is None else reader.next_fetch()
        if leader is None or fetch is None:
            return
        world, own = self._world, self.broker
        place = self._source_place(leader.site, source)

        def arrive() -> None:
            found = leader.replicas.get(place) if leader.is_up else None
            answer = None if found is None else found.serve_reader(fetch.offset, fetch.last_epoch)
            if answer is not None:
                world.carry(leader.address, own.address, lambda: back(answer))

        def back(answer: Sourced) -> None:
            if self.is_current:
                self._on_sourced(reader, fetch.number, answer)

        world.carry(own.address, leader.address, arrive)
        own.after(FETCH_MS, lambda: reader.on_failed(fetch.number))

    def _source_place(self, site: Site, source: MirrorOf) -> Place:
        topic = site.metadata.topic(source.topic)
        if self._world.plan.ignores_topic_ids and topic is not None:
            return topic.topic_id, self.place[1]
        return source.topic_id, self.place[1]

    def _source_leader(self, source: MirrorOf) -> SiteBroker | None:
        """Return who leads the partition there, or somebody, if the metadata here is old."""
        site = self._world.source_of(self.site, source.link_id)
        topic = site.metadata.topic(source.topic)
        if topic is None:
            return None
        if topic.topic_id != source.topic_id and not self._world.plan.ignores_topic_ids:
            self._wanted = StopMirror("created again")
            return None
        partition = topic.partitions.get(self.place[1])
        if partition is None or partition.leader < 0:
            return None
        is_old = self._world.chance.random() < 0.05
        return self._world.chance.choice(site.brokers) if is_old else site.brokers[partition.leader]

    def serve_reader(self, offset: int, last_epoch: int) -> Sourced | None:
        """Answer the reader of another cluster, as a consumer's fetch; None if not the leader."""
        log = self.log
        if self.replica.leader is None:
            return None
        if offset < log.start_offset:
            return ReplicaError(ErrorCode.OFFSET_OUT_OF_RANGE, log.start_offset)
        newest = log.last_epoch if self.replica.mirror is not None else self.replica.leader.epoch
        if last_epoch > newest:
            # An epoch that it does not know: so answer `LeaderEpochHistory` and Kafka's brokers.
            return ReplicaError(ErrorCode.OFFSET_OUT_OF_RANGE, log.start_offset)
        if last_epoch != NO_EPOCH:
            epoch, end_offset = log.end_of(last_epoch)
            if epoch < last_epoch or end_offset < offset:
                return Diverging(epoch, end_offset)
        if offset > log.end_offset:
            return ReplicaError(ErrorCode.OFFSET_OUT_OF_RANGE, log.start_offset)
        uncommitted = self._world.plan.serves_uncommitted
        end_offset = log.end_offset if uncommitted else log.high_watermark
        entries = self.disk.read(offset, min(end_offset, offset + self._world.batch_max))
        return entries, log.high_watermark, log.start_offset

    def _on_sourced(self, reader: MirrorReader, number: int, answer: Sourced) -> None:
        if self.replica.mirror is not reader:
            if self._world.plan.appends_after_promotion and isinstance(answer, tuple):
                self._append_late(answer[0])
            return
        match answer:
            case Diverging():
                leader = self.replica.leader
                before = {} if leader is None else {**leader.followers}
                kept = {number: (e.end_offset, e.leader_end_offset) for number, e in before.items()}
                self._perform_source(reader.on_diverging(number, answer))
                if self._world.plan.keeps_progress_at_cut:
                    for broker, each in before.items():
                        each.end_offset, each.leader_end_offset = kept[broker]
            case ReplicaError():
                self._perform_source(reader.on_out_of_range(number))
            case entries, high_watermark, log_start:
                self._on_records(reader, number, entries, high_watermark, log_start)
        reader.on_failed(number)
        self._go_on()

    def _on_records(
        self,
        reader: MirrorReader,
        number: int,
        entries: tuple[Entry, ...],
        high_watermark: int,
        log_start: int,
    ) -> None:
        last_epoch = max((each.epoch for each in entries), default=NO_EPOCH)
        came = CopiedBatches(
            records=b"",
            end_offset=self.log.end_offset + len(entries),
            last_epoch=NO_EPOCH if self._world.plan.raises_no_epoch else last_epoch,
        )
        effects = reader.on_fetched(
            number, came, high_watermark=high_watermark, log_start=log_start
        )
        self._perform_source(effects, entries)
        if self._world.plan.takes_source_mark:
            self.log.high_watermark = min(high_watermark, self.log.end_offset)
            self._checker.on_high_watermark(self)

    def _append_late(self, entries: tuple[Entry, ...]) -> None:
        if self.replica.leader is not None:
            self._copy(entries)

    def _perform_source(self, effects: list[MirrorEffect], entries: tuple[Entry, ...] = ()) -> None:
        for effect in effects:
            match effect:
                case AppendBatches():
                    self._copy(entries)
                case Truncate() | StartAt():
                    self._checker.on_reader_cut(self, effect.offset)
                    self._change_log(effect)
                case AdvanceLogStart(offset):
                    self.disk.delete_before(min(offset, self.disk.end))
                case _:
                    self._wanted = effect
                    self._ask_wanted()

    def _copy(self, entries: tuple[Entry, ...]) -> None:
        self._checker.on_copied(self, entries)
        self._append(entries)
        self._perform(self.replica.on_appended(self.disk.end))

    def _ask_wanted(self) -> None:
        """Ask what the reader wants to know; until it is answered, again with each tick."""
        reader, wanted, state = self.replica.mirror, self._wanted, self.replica.state
        if reader is None or reader is not self._reader or state is None:
            return
        topic = self.site.metadata.topics.get(self.place[0])
        match wanted:
            case RaiseEpoch() | AskCut() | AskAlone():
                self._begin_epoch(reader, wanted)
            case KeepRecords():
                self._keep(reader, wanted)
            case AskEnds() if state.mirror_of is not None:
                self._ask_ends(reader, state.mirror_of)
            case StopMirror(reason) if topic is not None:
                stop = AlterableMirror(name=topic.name, state=MirrorState.STOPPED, reason=reason)
                self._world.count("asked stops")
                self.broker.ask(AlterMirrorsRequest(topics=[stop]), lambda _: None)

    def _begin_epoch(self, reader: MirrorReader, wanted: RaiseEpoch | AskCut | AskAlone) -> None:
        self._world.count("asked cuts", isinstance(wanted, AskCut))
        self._world.count("asked to lead alone", isinstance(wanted, AskAlone))
        request = AlterMirrorPartitionRequest(
            broker_id=self.broker.id,
            broker_epoch=self.broker.epoch,
            topic_id=self.place[0],
            partition_index=self.place[1],
            leader_epoch=reader.epoch,
            least_leader_epoch=wanted.epoch if isinstance(wanted, RaiseEpoch) else -1,
            cuts=isinstance(wanted, AskCut),
            is_alone=isinstance(wanted, AskAlone),
        )
        self.broker.ask(request, lambda _: None)

    def _keep(self, reader: MirrorReader, wanted: KeepRecords) -> None:
        """Write what will be cut to a file, unless it was only ever copied; see `mirrors`."""
        mirror = self.site.metadata.mirrors.get(self.place[0])
        is_own = mirror is not None and mirror.was_led_by(self.site.name)
        if is_own or not wanted.is_deleted:
            self._world.count("kept in files")
            self._checker.on_kept(self, wanted.offset)
        self._wanted = None
        reader.on_kept(wanted.offset)

    def _ask_ends(self, reader: MirrorReader, source: MirrorOf) -> None:
        world, own, leader = self._world, self.broker, self._source_leader(source)
        if leader is None:
            return

        def arrive() -> None:
            found = leader.replicas.get((source.topic_id, self.place[1])) if leader.is_up else None
            if found is not None and found.replica.leader is not None:
                start, end = found.log.start_offset, found.log.high_watermark
                world.carry(leader.address, own.address, lambda: back(start, end))

        def back(start: int, end: int) -> None:
            if self.is_current and self.replica.mirror is reader and self._wanted is not None:
                self._wanted = None
                self._perform_source(reader.on_ends(start, end))
                self._go_on()

        world.carry(own.address, leader.address, arrive)

    # ---- effects ----

    def _perform(self, effects: list[Effect], entries: tuple[Entry, ...] = ()) -> None:
        for effect in effects:
            match effect:
                case AdvanceHighWatermark():
                    self._checker.on_high_watermark(self)
                case Acknowledge(ticket):
                    self._checker.on_acknowledged(self, *self._tickets.pop(ticket))
                case RefuseAcknowledgement(ticket):
                    self._tickets.pop(ticket)
                case LoseLeadership(_, tickets):
                    for ticket in tickets:
                        self._tickets.pop(ticket)
                case ProposeIsr():
                    self._propose(effect)
                case AppendBatches():
                    self._checker.on_followed(self, entries)
                    self._append(entries)
                case BeginEpoch():
                    self._world.count("leaderships")
                case _:
                    self._change_log(effect)

    def _change_log(self, effect: Truncate | StartAt | AdvanceLogStart | StopReplica) -> None:
        match effect:
            case Truncate(offset):
                self._world.count("truncations")
                # The checkpoint records a cut before it happens, see `partition_replica`.
                self.disk.high_watermark = min(self.disk.high_watermark, offset)
                self.disk.truncate(offset)
            case StartAt(offset):
                self._world.count("restarts at the leader's start")
                self.disk.start_at(offset)
            case AdvanceLogStart(offset):
                self.disk.delete_before(offset)
            case StopReplica(reason):
                self._checker.violate("M2", f"{self.broker.address}: {reason}")

    def _append(self, entries: tuple[Entry, ...]) -> None:
        self.disk.append(entries)
        self._flush()

    def _flush(self) -> None:
        if self._is_flushing:
            return
        self._is_flushing = True
        generation, end = self.log.generation, self.log.end_offset
        delay_ms = self._world.chance.randint(1, self._world.sync_ms)
        self.broker.after(delay_ms, lambda: self._on_flushed(generation, end))

    def _on_flushed(self, generation: int, end: int) -> None:
        self._is_flushing = False
        if not self.is_current:
            return
        if generation == self.log.generation:
            self.disk.sync(min(end, self.disk.end))
        self._perform(self.replica.on_flushed(generation, end))
        self._go_on()

    def _propose(self, proposal: ProposeIsr) -> None:
        proposed = ProposedPartition(
            partition_index=self.place[1],
            leader_epoch=proposal.leader_epoch,
            partition_epoch=proposal.partition_epoch,
            new_isr_with_epochs=[
                BrokerState(broker_id=broker, broker_epoch=epoch) for broker, epoch in proposal.isr
            ],
        )
        request = AlterPartitionRequest(
            broker_id=self.broker.id,
            broker_epoch=self.broker.epoch,
            topics=[ProposedTopic(topic_id=self.place[0], partitions=[proposed])],
        )
        self.broker.ask(request, lambda response: self._on_altered(proposal.number, response))
        self.broker.after(200, lambda: self._propose_again(proposal))

    def _propose_again(self, proposal: ProposeIsr) -> None:
        leader = self.replica.leader
        if self.is_current and leader is not None and leader.proposal() is proposal:
            self._propose(proposal)

    def _on_altered(self, number: int, response: Message | None) -> None:
        leader = self.replica.leader
        if not self.is_current or leader is None:
            return
        if not isinstance(response, AlterPartitionResponse):
            return
        for topic in response.topics:
            for each in topic.partitions:
                effects = leader.on_isr_answer(
                    number,
                    each.error_code,
                    leader_epoch=each.leader_epoch,
                    partition_epoch=each.partition_epoch,
                    isr=frozenset(each.isr),
                )
                self._perform(effects)
