"""BrokerControl: the registered brokers, live or fenced (KIP-631, KIP-841, KIP-966).

A broker registers when its process starts, and is fenced: it leads nothing, and is in no in-sync
set with other brokers. It is unfenced once it has applied the metadata log up to its registration,
and fenced again when its heartbeats stop.

Rules of this module:

- A registration and the changes of the broker's partitions are one decision, so that no node sees
  one without the other.
- With flush=os, a process that follows one that was killed may lack its newest records: its
  replicas are not eligible until they have caught up. A process with another log directory
  (KIP-858) lacks all records, and one whose directory was restored from an older copy lacks some:
  its replicas are neither in sync nor eligible, even if they were the last.
- The times of heartbeats are in memory only, and start again with each active controller. Otherwise
  a new controller would fence all brokers at once.

Not done here: the broker's side (`broker_lifecycle`), the choice of leaders (`leader_elections`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from streamlog.broker.config.broker import FLUSH_OS
from streamlog.broker.quorum.controller.decision import (
    ControllerContext,
    Decision,
    DecisionHandlers,
    decides,
    respond,
)
from streamlog.broker.quorum.controller.leader_elections import NOTHING, PartitionWish, record_of
from streamlog.broker.quorum.metadata.metadata_records import MetadataRecord
from streamlog.broker.quorum.metadata.registrations import (
    OFFLINE_DIRECTORY,
    OFFSET_OF_RECORD,
    UNASSIGNED_DIRECTORY,
    UNKNOWN_DIRECTORY,
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
from streamlog.protocol.schema import ZERO_UUID, Message
from streamlog.replace import replace

PartitionKey = tuple[bytes, int]
"""The topic id and the number of a partition."""

Wish = Callable[[PartitionKey, PartitionRegistration], PartitionWish]
"""Returns the change that is wanted of a partition."""

_YES, _NO = 1, -1


class BrokerControl:
    """The brokers of a cluster, for its active controller."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._heard_ms: dict[int, int] = {}
        """When each registered broker last sent a registration or a heartbeat."""
        self._applied: dict[int, int] = {}
        """The metadata offset that each broker has applied."""
        self._leaving: dict[int, int] = {}
        """Per broker that shuts down: the metadata offset that the others have to apply first."""

    def handlers(self) -> DecisionHandlers:
        """Return the handler of each kind of request."""
        return dict(
            [
                decides(BrokerRegistrationRequest, self.register),
                decides(BrokerHeartbeatRequest, self.heartbeat),
                decides(UnregisterBrokerRequest, self.unregister),
            ]
        )

    def on_active(self, now_ms: int) -> None:
        """Start as the active controller: every broker counts as heard at `now_ms`."""
        self._heard_ms = dict.fromkeys(self._context.metadata.brokers, now_ms)
        self._applied.clear()
        self._leaving.clear()

    # ---- registering ----

    def register(
        self, request: BrokerRegistrationRequest, _: int, now_ms: int
    ) -> Decision[BrokerRegistrationResponse]:
        """Register a process of a broker, and change its partitions accordingly."""
        context, broker_id = self._context, request.broker_id
        known = context.metadata.brokers.get(broker_id)
        try:
            self._check(request, known, now_ms)
        except LogError as error:
            return respond(BrokerRegistrationResponse(error_code=error.code))
        damaged = _damage_epochs(request.damaged)
        if known is not None and known.incarnation_id == request.incarnation_id:
            return self._register_again(known, damaged, _damage_epochs(request.offline))
        self._heard_ms[broker_id] = now_ms
        self._applied.pop(broker_id, None)
        self._leaving.pop(broker_id, None)
        is_clean = known is not None and known.epoch == request.previous_broker_epoch
        is_older = self._is_older(request, known)

        offline = _damage_epochs(request.offline)

        def wish(key: PartitionKey, partition: PartitionRegistration) -> PartitionWish:
            is_moved = self._is_moved(request, known, partition)
            is_lost = key in damaged or is_moved or is_older
            found = self._restart_wish(broker_id, partition, is_lost=is_lost, is_clean=is_clean)
            if key in offline:
                return _offline_wish(broker_id, partition)
            if not partition.is_offline(broker_id):
                return found
            # The disk works again, or it was replaced: an empty one must not pass for full.
            own = request.log_dirs[0] if request.log_dirs else UNKNOWN_DIRECTORY
            directory = UNASSIGNED_DIRECTORY if is_lost else own
            return replace(found, placement=partition.placed(broker_id, directory))

        # The broker is fenced by this record, so it can't lead: leaders it had get a new epoch.
        able = context.active() - {broker_id}
        if not context.rules.raises_leader_epoch:
            able = context.active()
        records = (_registration(request), *self._changes(broker_id, wish, able))
        return Decision(records, lambda: self._registration_response(broker_id))

    def _register_again(
        self,
        known: BrokerRegistration,
        damaged: Collection[PartitionKey],
        offline: Collection[PartitionKey],
    ) -> Decision[BrokerRegistrationResponse]:
        """Answer a repeated registration of a process, which may report more than before.

        From an unfenced broker it is a late copy, and its damage report is old: the broker has had
        its answer, and sends damage with heartbeats.
        """
        records: Iterable[MetadataRecord] = ()
        if known.is_fenced and self._context.rules.hears_damage_again:
            lost = PartitionWish(lost=frozenset({known.broker_id}))

            def wish(key: PartitionKey, partition: PartitionRegistration) -> PartitionWish:
                if key in offline:
                    return _offline_wish(known.broker_id, partition)
                return lost if key in damaged else NOTHING

            records = self._changes(known.broker_id, wish, self._context.active())
        return Decision(tuple(records), lambda: self._registration_response(known.broker_id))

    def _check(
        self, request: BrokerRegistrationRequest, known: BrokerRegistration | None, now_ms: int
    ) -> None:
        context, broker_id = self._context, request.broker_id
        if request.cluster_id != context.cluster_id:
            raise error_for(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"broker {broker_id} belongs to cluster {request.cluster_id}, and this is cluster"
                f" {context.cluster_id}",
            )
        if known is None or known.incarnation_id == request.incarnation_id:
            return
        # A process locks its log directories. So the earlier process is dead if this one has one of
        # them, or runs in this controller's process. Otherwise two brokers may have one id.
        is_same = broker_id == context.node_id or bool(
            set(known.directories) & set(request.log_dirs)
        )
        if not is_same and known.is_active and not self._is_silent(broker_id, now_ms):
            raise error_for(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"broker {broker_id} is alive with another log directory: give each broker its own"
                " node.id",
            )

    def _is_moved(
        self,
        request: BrokerRegistrationRequest,
        known: BrokerRegistration | None,
        partition: PartitionRegistration,
    ) -> bool:
        """Return whether the replica was last in sync in another log directory (KIP-858).

        If the partition names no directory, the directory of the earlier registration counts.
        """
        directory = partition.directory(request.broker_id)
        if partition.is_offline(request.broker_id):
            directory = None
        before = () if known is None else known.directories
        counted = before if directory is None else (directory,)
        is_other = bool(counted and request.log_dirs) and not {*counted} & {*request.log_dirs}
        return is_other and self._context.rules.loses_with_directory

    def _is_older(
        self, request: BrokerRegistrationRequest, known: BrokerRegistration | None
    ) -> bool:
        """Return whether the log directory is a copy from before its last registration.

        Each start writes a new id into the directory, in addition to the ids of earlier starts that
        may have been the last to register:
          1. Start A registers; the directory is copied. 2. Start B registers, and confirms records.
          3. The copy is restored, and start C registers with the ids A and C, without B.
        """
        if known is None or not any(known.life) or not request.directory_lives:
            return False
        is_known = known.life in request.directory_lives
        return not is_known and self._context.rules.compares_lives

    def _restart_wish(
        self, broker_id: int, partition: PartitionRegistration, *, is_lost: bool, is_clean: bool
    ) -> PartitionWish:
        """Return the change of a partition after the start of a new process of a broker."""
        own, rules = frozenset({broker_id}), self._context.rules
        if is_lost:
            # A new leader epoch: fetches from the lost disk that arrive late do not count.
            was_counted = broker_id in (*partition.isr, *partition.elr)
            return PartitionWish(lost=own, renews=was_counted)
        # With flush=always, records are synced before they count, so that a process that was
        # killed has lost nothing that it confirmed. With flush=os they count earlier.
        is_early = self._context.config.flush == FLUSH_OS
        may_lack = not is_clean and is_early and rules.suspects_killed
        return PartitionWish(gone=own, doubtful=own if may_lack else frozenset())

    def _registration_response(self, broker_id: int) -> BrokerRegistrationResponse:
        registered = self._context.metadata.brokers[broker_id]
        return BrokerRegistrationResponse(broker_epoch=registered.epoch)

    # ---- heartbeats ----

    def heartbeat(
        self, request: BrokerHeartbeatRequest, _: int, now_ms: int
    ) -> Decision[BrokerHeartbeatResponse]:
        """Note that a broker is alive; fence it, unfence it or let it end as it requests."""
        broker_id = request.broker_id
        broker = self._context.metadata.brokers.get(broker_id)
        if broker is None:
            return _refuse_heartbeat(ErrorCode.BROKER_ID_NOT_REGISTERED)
        if broker.epoch != request.broker_epoch:
            return _refuse_heartbeat(ErrorCode.STALE_BROKER_EPOCH)
        self._heard_ms[broker_id] = now_ms
        self._applied[broker_id] = request.current_metadata_offset
        is_caught_up = request.current_metadata_offset >= broker.epoch
        report = self._report_wish(
            broker_id, _damage_epochs(request.damaged), _damage_epochs(request.offline)
        )
        records: Iterable[MetadataRecord] = ()
        if request.want_shut_down and not (broker.is_fenced or broker.is_shutting_down):
            records = self._with_changes(broker, report, is_shutting_down=True)
        elif request.want_fence and not broker.is_fenced:
            records = self._with_changes(broker, report, is_fenced=True)
        elif (
            broker.is_fenced and is_caught_up and not (request.want_fence or request.want_shut_down)
        ):
            records = self._with_changes(broker, report, is_fenced=False)
        elif request.damaged or request.offline:
            records = self._changes(broker_id, report, self._context.active())
        return Decision(
            tuple(records), lambda: self._heartbeat_response(request, is_caught_up=is_caught_up)
        )

    def _with_changes(
        self,
        broker: BrokerRegistration,
        report: Wish,
        *,
        is_fenced: bool | None = None,
        is_shutting_down: bool = False,
    ) -> Iterator[MetadataRecord]:
        """Iterate over the records that change a broker and its partitions."""
        broker_id = broker.broker_id
        yield BrokerRegistrationChangeRecord(
            broker_id=broker_id,
            broker_epoch=broker.epoch,
            fenced=0 if is_fenced is None else (_YES if is_fenced else _NO),
            in_controlled_shutdown=int(is_shutting_down),
        )
        if is_fenced is False:
            # Partitions without a leader may elect this broker; the others do not change.
            yield from self._changes(broker_id, report, self._context.active() | {broker_id})
            return
        own = frozenset({broker_id})

        def wish(key: PartitionKey, partition: PartitionRegistration) -> PartitionWish:
            found = report(key, partition)
            return found if found is not NOTHING else PartitionWish(gone=own)

        yield from self._changes(broker_id, wish, self._context.active() - own)

    def _heartbeat_response(
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
        """Return whether a broker that shuts down leads nothing, and the others know that.

        If it ended before the others have applied the new leaders, their clients would still be
        sent to it.
        """
        if broker.is_fenced:
            return True
        broker_id, metadata = broker.broker_id, self._context.metadata
        leads = any(partition.leader == broker_id for _, _, partition in metadata.partitions())
        if leads:
            return False
        known = self._leaving.setdefault(broker_id, metadata.offset)
        others = self._context.active() - {broker_id}
        return all(self._applied.get(other, -1) >= known for other in others)

    def on_tick(self, now_ms: int) -> Decision[Message] | None:
        """Fence the broker without heartbeats for the longest time, if it exceeds the session."""
        silent = [
            (heard_ms, broker_id)
            for broker_id, heard_ms in self._heard_ms.items()
            if self._is_silent(broker_id, now_ms) and self._is_unfenced(broker_id)
        ]
        if not silent:
            return None
        # One broker per decision, so that the next decision sees who leads after this one.
        broker = self._context.metadata.brokers[min(silent)[1]]
        return Decision(tuple(self._with_changes(broker, lambda _, __: NOTHING, is_fenced=True)))

    def next_deadline_ms(self) -> int | None:
        """Return when the next broker's session ends; None if no broker is unfenced."""
        heard = [
            heard_ms
            for broker_id, heard_ms in self._heard_ms.items()
            if self._is_unfenced(broker_id)
        ]
        # One more millisecond: the session ends when the silence exceeds the time-out.
        return min(heard) + self._context.cluster.session_timeout_ms + 1 if heard else None

    def _is_silent(self, broker_id: int, now_ms: int) -> bool:
        heard_ms = self._heard_ms.get(broker_id)
        return heard_ms is None or now_ms - heard_ms > self._context.cluster.session_timeout_ms

    def _is_unfenced(self, broker_id: int) -> bool:
        broker = self._context.metadata.brokers.get(broker_id)
        return broker is not None and not broker.is_fenced

    # ---- unregistering ----

    def unregister(
        self, request: UnregisterBrokerRequest, _: int, __: int
    ) -> Decision[UnregisterBrokerResponse]:
        """Remove a broker for good; its replicas stay assigned to it until they are reassigned."""
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

    def _report_wish(
        self,
        broker_id: int,
        damaged: Mapping[PartitionKey, int],
        offline: Collection[PartitionKey],
    ) -> Wish:
        """Return the change of a partition after a running broker's report.

        The report names partitions that have lost records, or whose disk has failed.

        The leader begins a new epoch: an earlier fetch of the same process would confirm the lost
        records. A report for an older leader epoch is ignored:
          1. Broker 2 reports damage in epoch 4; the answer is lost. 2. It leaves the in-sync set,
             epoch 5 begins, it fetches the records again and joins. 3. It repeats the report for
             epoch 4: by now its replica is complete. If it finds damage again, it names epoch 5.
        """
        rules = self._context.rules
        lost = PartitionWish(lost=frozenset({broker_id}), renews=rules.forgets_damaged)

        def wish(key: PartitionKey, partition: PartitionRegistration) -> PartitionWish:
            if key in offline:
                return _offline_wish(broker_id, partition)
            if key not in damaged:
                return NOTHING
            is_old = damaged[key] != partition.leader_epoch
            return NOTHING if is_old and rules.compares_damage_epoch else lost

        return wish

    def _changes(
        self,
        broker_id: int,
        wish: Wish,
        able: frozenset[int],
    ) -> Iterator[MetadataRecord]:
        """Iterate over the changes of a broker's partitions, if the brokers `able` can lead."""
        context = self._context
        for topic, number, partition in context.metadata.partitions():
            if broker_id not in partition.replicas:
                continue
            key = topic.topic_id, number
            terms = context.terms(topic.name, partition, able)
            yield from record_of(*key, partition, wish(key, partition), terms)


def _damage_epochs(damaged: Iterable[DamagedTopic]) -> Mapping[PartitionKey, int]:
    """Return the reported leader epoch of each damaged partition."""
    return {
        (topic.topic_id, each.partition_index): each.leader_epoch
        for topic in damaged
        for each in topic.partitions
    }


def _offline_wish(broker_id: int, partition: PartitionRegistration) -> PartitionWish:
    """Return the change of a partition whose disk has failed on a broker.

    The replica keeps its place in the in-sync set only if it is the last: the disk may return.
    """
    return PartitionWish(
        gone=frozenset({broker_id}), placement=partition.placed(broker_id, OFFLINE_DIRECTORY)
    )


def _refuse_heartbeat(code: int) -> Decision[BrokerHeartbeatResponse]:
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
