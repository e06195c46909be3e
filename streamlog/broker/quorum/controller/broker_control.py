"""BrokerControl: which brokers are there, alive, and allowed to lead (KIP-631, KIP-841, KIP-966).

A broker registers when its process starts, and is fenced: it leads nothing and is in no in-sync set
with others. It lives as long as its heartbeats come, is unfenced once it has applied the metadata
log up to its own registration, and is fenced when they stay out. With flush=os a process that
starts after one that was not shut down in order may lack its newest records. A process with another
log directory lacks all of them, and one whose directory was put back from an older copy lacks some:
its replicas are neither in sync nor eligible, not even where they were the last, until they have
caught up. What follows for its partitions is in the same decision as the registration, so that no
node sees the one without the other.

When a broker was last heard of is in memory alone, and begins anew with each active controller:
otherwise the first one to take over would fence everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from streamlog.broker.config.broker import FLUSH_OS
from streamlog.broker.quorum.controller.decision import ControllerContext, Decision, respond
from streamlog.broker.quorum.controller.leader_elections import NOTHING, PartitionWish, record_of
from streamlog.broker.quorum.metadata.metadata_records import MetadataRecord
from streamlog.broker.quorum.metadata.registrations import (
    OFFSET_OF_RECORD,
    BrokerRegistration,
    PartitionRegistration,
)
from streamlog.errors import LogError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.broker_registration import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    DamagedTopic,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from streamlog.protocol.messages.metadata_log import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from streamlog.protocol.schema import ZERO_UUID

Place = tuple[bytes, int]
"""Topic id and number of a partition."""

_YES, _NO = 1, -1


class BrokerControl:
    """The brokers of a cluster, for its active controller."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._heard_ms: dict[int, int] = {}
        """When each registered broker was last heard of."""
        self._applied: dict[int, int] = {}
        """Up to where each has applied the metadata log."""
        self._leaving: dict[int, int] = {}
        """For each that shuts down, the offset that the others have to know before it goes."""

    def handlers(self) -> Mapping[Any, Callable[..., Decision]]:
        """Who decides what."""
        return {
            BrokerRegistrationRequest: self.register,
            BrokerHeartbeatRequest: self.heartbeat,
            UnregisterBrokerRequest: self.unregister,
        }

    def on_active(self, now_ms: int) -> None:
        """This controller decides from now on: everybody has just been heard of."""
        self._heard_ms = dict.fromkeys(self._context.metadata.brokers, now_ms)
        self._applied.clear()
        self._leaving.clear()

    # ---- registering ----

    def register(self, request: BrokerRegistrationRequest, _: int, now_ms: int) -> Decision:
        """A process of a broker has started."""
        context, broker_id = self._context, request.broker_id
        known = context.metadata.brokers.get(broker_id)
        try:
            self._check(request, known, now_ms)
        except LogError as error:
            return respond(BrokerRegistrationResponse(error_code=error.code))
        damaged = _places(request.damaged)
        if known is not None and known.incarnation_id == request.incarnation_id:
            return self._register_again(known, damaged)
        self._heard_ms[broker_id] = now_ms
        self._applied.pop(broker_id, None)
        self._leaving.pop(broker_id, None)
        is_clean = known is not None and known.epoch == request.previous_broker_epoch
        is_older = self._is_older(request, known)

        def wish(place: Place, partition: PartitionRegistration) -> PartitionWish:
            is_moved = self._is_moved(request, known, partition)
            is_lost = place in damaged or is_moved or is_older
            return self._restarted(broker_id, partition, is_lost=is_lost, is_clean=is_clean)

        able = context.active() - {broker_id}
        if not context.rules.raises_leader_epoch:
            able = context.active()
        records = (_registration(request), *self._changes(broker_id, wish, able))
        return Decision(records, lambda: self._registered(broker_id))

    def _register_again(self, known: BrokerRegistration, damaged: Collection[Place]) -> Decision:
        """A process that has not heard that it is registered; it may have found damage meanwhile.

        One that is unfenced has heard it, and this is a late copy.
        """
        records: Iterable[MetadataRecord] = ()
        if known.is_fenced and self._context.rules.hears_damage_again:
            lost = PartitionWish(lost=frozenset({known.broker_id}))
            records = self._changes(
                known.broker_id,
                lambda place, _: lost if place in damaged else NOTHING,
                self._context.active(),
            )
        return Decision(tuple(records), lambda: self._registered(known.broker_id))

    def _check(
        self, request: BrokerRegistrationRequest, known: BrokerRegistration | None, now_ms: int
    ) -> None:
        context, broker_id = self._context, request.broker_id
        if request.cluster_id != context.cluster_id:
            raise error_for(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"broker {broker_id} is of cluster {request.cluster_id}, this is"
                f" {context.cluster_id}",
            )
        if known is None or known.incarnation_id == request.incarnation_id:
            return
        # A log directory is locked by the process that has it: with the same one, or beside this
        # controller, the process before is dead. With another one it may be somebody else's id.
        is_same = broker_id == context.node_id or (
            bool(known.directories) and set(known.directories) <= set(request.log_dirs)
        )
        if not is_same and known.is_active and not self._is_silent(broker_id, now_ms):
            raise error_for(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"broker {broker_id} is alive with another log directory",
            )

    def _is_moved(
        self,
        request: BrokerRegistrationRequest,
        known: BrokerRegistration | None,
        partition: PartitionRegistration,
    ) -> bool:
        """Whether the replica was last in sync in another log directory.

        Where the partition does not say in which one, it is the one of the registration before.
        """
        directory = partition.directory(request.broker_id)
        before = () if known is None else known.directories
        counted = before if directory is None else (directory,)
        is_other = bool(counted and request.log_dirs) and not {*counted} & {*request.log_dirs}
        return is_other and self._context.rules.loses_with_directory

    def _is_older(
        self, request: BrokerRegistrationRequest, known: BrokerRegistration | None
    ) -> bool:
        """Whether the log directory is a copy from before its last registration.

        A directory gets an id at each start, and keeps the ids of those that may have been the last
        to register.
        """
        if known is None or not any(known.life) or not request.directory_lives:
            return False
        is_known = known.life in request.directory_lives
        return not is_known and self._context.rules.compares_lives

    def _restarted(
        self, broker_id: int, partition: PartitionRegistration, *, is_lost: bool, is_clean: bool
    ) -> PartitionWish:
        """What a new process of a broker means for a partition."""
        own, rules = frozenset({broker_id}), self._context.rules
        if is_lost:
            # The leader begins a new epoch: what the old disk had fetched counts no longer.
            was_counted = broker_id in (*partition.isr, *partition.elr)
            return PartitionWish(lost=own, renews=was_counted)
        # What counts is on disk, if it is brought there before it counts: then a process that was
        # killed has lost nothing that others rely on.
        is_early = self._context.config.flush == FLUSH_OS
        may_lack = not is_clean and is_early and rules.doubts_killed
        return PartitionWish(gone=own, doubtful=own if may_lack else frozenset())

    def _registered(self, broker_id: int) -> BrokerRegistrationResponse:
        registered = self._context.metadata.brokers[broker_id]
        return BrokerRegistrationResponse(broker_epoch=registered.epoch)

    # ---- living ----

    def heartbeat(self, request: BrokerHeartbeatRequest, _: int, now_ms: int) -> Decision:
        """A broker lives; whether it is to lead follows from what it says."""
        broker_id = request.broker_id
        broker = self._context.metadata.brokers.get(broker_id)
        if broker is None:
            return _unheard(ErrorCode.BROKER_ID_NOT_REGISTERED)
        if broker.epoch != request.broker_epoch:
            return _unheard(ErrorCode.STALE_BROKER_EPOCH)
        self._heard_ms[broker_id] = now_ms
        self._applied[broker_id] = request.current_metadata_offset
        is_caught_up = request.current_metadata_offset >= broker.epoch
        damaged = _places(request.damaged)
        records: Iterable[MetadataRecord] = ()
        if request.want_shut_down and not (broker.is_fenced or broker.is_shutting_down):
            records = self._with_changes(broker, damaged, is_shutting_down=True)
        elif request.want_fence and not broker.is_fenced:
            records = self._with_changes(broker, damaged, is_fenced=True)
        elif (
            broker.is_fenced and is_caught_up and not (request.want_fence or request.want_shut_down)
        ):
            records = self._with_changes(broker, damaged, is_fenced=False)
        elif damaged:
            damage = self._damage(broker_id, damaged)
            records = self._changes(broker_id, damage, self._context.active())
        return Decision(tuple(records), lambda: self._heard(request, is_caught_up=is_caught_up))

    def _with_changes(
        self,
        broker: BrokerRegistration,
        damaged: Mapping[Place, int],
        *,
        is_fenced: bool | None = None,
        is_shutting_down: bool = False,
    ) -> Iterator[MetadataRecord]:
        """The change of a broker and of its partitions."""
        broker_id = broker.broker_id
        yield BrokerRegistrationChangeRecord(
            broker_id=broker_id,
            broker_epoch=broker.epoch,
            fenced=0 if is_fenced is None else (_YES if is_fenced else _NO),
            in_controlled_shutdown=int(is_shutting_down),
        )
        damage = self._damage(broker_id, damaged)
        if is_fenced is False:
            # Those without a leader may have one now; the others stay as they are.
            yield from self._changes(broker_id, damage, self._context.active() | {broker_id})
            return
        own = frozenset({broker_id})

        def wish(place: Place, partition: PartitionRegistration) -> PartitionWish:
            found = damage(place, partition)
            return found if found.lost else PartitionWish(gone=own)

        yield from self._changes(broker_id, wish, self._context.active() - own)

    def _heard(
        self, request: BrokerHeartbeatRequest, *, is_caught_up: bool
    ) -> BrokerHeartbeatResponse:
        metadata = self._context.metadata
        broker = metadata.brokers[request.broker_id]
        return BrokerHeartbeatResponse(
            is_caught_up=is_caught_up,
            is_fenced=broker.is_fenced,
            should_shut_down=request.want_shut_down and self._may_go(broker),
        )

    def _may_go(self, broker: BrokerRegistration) -> bool:
        """Whether a broker that shuts down leads nothing, and the others know."""
        if broker.is_fenced:
            return True
        broker_id, metadata = broker.broker_id, self._context.metadata
        leads = any(partition.leader == broker_id for _, _, partition in metadata.partitions())
        if leads:
            return False
        known = self._leaving.setdefault(broker_id, metadata.offset)
        others = self._context.active() - {broker_id}
        return all(self._applied.get(other, -1) >= known for other in others)

    def on_tick(self, now_ms: int) -> Decision | None:
        """Fence the broker that was silent for longest, if it was for too long."""
        silent = [
            (heard_ms, broker_id)
            for broker_id, heard_ms in self._heard_ms.items()
            if self._is_silent(broker_id, now_ms) and self._is_unfenced(broker_id)
        ]
        if not silent:
            return None
        broker = self._context.metadata.brokers[min(silent)[1]]
        return Decision(tuple(self._with_changes(broker, {}, is_fenced=True)))

    def next_deadline_ms(self) -> int | None:
        """When the next broker has been silent for too long; None if there is none."""
        heard = [
            heard_ms
            for broker_id, heard_ms in self._heard_ms.items()
            if self._is_unfenced(broker_id)
        ]
        return min(heard) + self._context.cluster.session_timeout_ms + 1 if heard else None

    def _is_silent(self, broker_id: int, now_ms: int) -> bool:
        heard_ms = self._heard_ms.get(broker_id)
        return heard_ms is None or now_ms - heard_ms > self._context.cluster.session_timeout_ms

    def _is_unfenced(self, broker_id: int) -> bool:
        broker = self._context.metadata.brokers.get(broker_id)
        return broker is not None and not broker.is_fenced

    # ---- leaving ----

    def unregister(self, request: UnregisterBrokerRequest, _: int, __: int) -> Decision:
        """A broker is gone for good; its replicas stay assigned to it until they are moved."""
        broker = self._context.metadata.brokers.get(request.broker_id)
        if broker is None:
            return respond(
                UnregisterBrokerResponse(
                    error_code=ErrorCode.BROKER_ID_NOT_REGISTERED,
                    error_message=f"there is no broker {request.broker_id}",
                )
            )
        self._heard_ms.pop(broker.broker_id, None)
        own = frozenset({broker.broker_id})
        records = (
            *self._changes(
                broker.broker_id,
                lambda _, __: PartitionWish(gone=own),
                self._context.active() - own,
            ),
            UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.epoch),
        )
        return respond(UnregisterBrokerResponse(error_message=None), records)

    # ---- its partitions ----

    def _damage(
        self, broker_id: int, damaged: Mapping[Place, int]
    ) -> Callable[[Place, PartitionRegistration], PartitionWish]:
        """That a broker has lost records of some partitions, in the middle of its life.

        The leaders go on in another epoch: what the same process has asked for before, or asks
        before it hears of this, would tell them that it has everything. In a later epoch than it
        was said for, it has been heard, and the replica may be whole again by now; or the broker
        says it again when it knows of that epoch.
        """
        rules = self._context.rules
        lost = PartitionWish(lost=frozenset({broker_id}), renews=rules.forgets_damaged)

        def wish(place: Place, partition: PartitionRegistration) -> PartitionWish:
            if place not in damaged:
                return NOTHING
            is_old = damaged[place] != partition.leader_epoch
            return NOTHING if is_old and rules.compares_damage_epoch else lost

        return wish

    def _changes(
        self,
        broker_id: int,
        wish: Callable[[Place, PartitionRegistration], PartitionWish],
        able: frozenset[int],
    ) -> Iterator[MetadataRecord]:
        """The records of a broker's partitions, when those who are `able` can lead."""
        context = self._context
        for topic, number, partition in context.metadata.partitions():
            if broker_id not in partition.replicas:
                continue
            place = topic.topic_id, number
            terms = context.terms(topic.name, partition, able)
            yield from record_of(*place, partition, wish(place, partition), terms)


def _places(damaged: Iterable[DamagedTopic]) -> Mapping[Place, int]:
    """What is damaged in which leader epoch."""
    return {
        (topic.topic_id, each.partition_index): each.leader_epoch
        for topic in damaged
        for each in topic.partitions
    }


def _unheard(code: int) -> Decision:
    return respond(BrokerHeartbeatResponse(error_code=code))


def _registration(request: BrokerRegistrationRequest) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=request.broker_id,
        broker_epoch=OFFSET_OF_RECORD,
        incarnation_id=request.incarnation_id,
        end_points=[
            BrokerEndpoint(
                name=each.name,
                host=each.host,
                port=each.port,
                security_protocol=each.security_protocol,
            )
            for each in request.listeners
        ],
        features=[
            BrokerFeature(
                name=each.name,
                min_supported_version=each.min_supported_version,
                max_supported_version=each.max_supported_version,
            )
            for each in request.features
        ],
        rack=request.rack,
        log_dirs=list(request.log_dirs),
        directory_life=request.directory_lives[-1] if request.directory_lives else ZERO_UUID,
    )
