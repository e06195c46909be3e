"""PartitionControl and Reassignments: decisions on in-sync replicas, leaders and reassignments.

A leader proposes an in-sync set (AlterPartition, KIP-497), an administrator orders elections
(ElectLeaders, KIP-460) and reassignments (KIP-455), and the controller moves leadership back to
preferred leaders. A reassignment adds the new replicas, waits until they are in sync, and then
removes the old ones.

Not done here: the choice of a leader and the ELR (`leader_elections`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import cast

from streamlog.broker.quorum.controller.decision import (
    ControllerContext,
    Decision,
    DecisionHandlers,
    decides,
    respond,
)
from streamlog.broker.quorum.controller.leader_elections import PartitionWish, change_of, record_of
from streamlog.broker.quorum.metadata.cluster_metadata import TopicRegistration
from streamlog.broker.quorum.metadata.metadata_records import MetadataRecord
from streamlog.broker.quorum.metadata.registrations import (
    NO_LEADER,
    UNASSIGNED_DIRECTORY,
    UNKNOWN_DIRECTORY,
    PartitionRegistration,
)
from streamlog.errors import LogError, UnknownTopicOrPartition
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.error_responses import error_response
from streamlog.protocol.messages.broker_registration import (
    AlteredPartition,
    AlteredTopic,
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    ProposedPartition,
    ProposedTopic,
)
from streamlog.protocol.messages.metadata_log import PartitionChangeRecord
from streamlog.protocol.messages.partitions_and_replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    PartitionResult,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    ReplicaElectionResult,
)
from streamlog.protocol.schema import Message
from streamlog.replace import replace


class Reassignments:
    """Reassignments of partitions, for the active controller."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    def handlers(self) -> DecisionHandlers:
        """Return the handler of each kind of request."""
        return dict(
            [
                decides(AlterPartitionReassignmentsRequest, self.alter),
                decides(ListPartitionReassignmentsRequest, self.list),
            ]
        )

    def alter(
        self, request: AlterPartitionReassignmentsRequest, _: int, __: int
    ) -> Decision[AlterPartitionReassignmentsResponse]:
        """Begin reassignments, or cancel them."""
        records: dict[tuple[str, int], MetadataRecord] = {}
        responses = [
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    self._alter_one(topic.name, each, records) for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        response = AlterPartitionReassignmentsResponse(error_message=None, responses=responses)
        return respond(response, records.values())

    def _alter_one(
        self,
        name: str,
        wanted: ReassignablePartition,
        records: dict[tuple[str, int], MetadataRecord],
    ) -> ReassignablePartitionResponse:
        number = wanted.partition_index
        result = ReassignablePartitionResponse(partition_index=number, error_message=None)
        try:
            if (name, number) in records:
                raise error_for(
                    ErrorCode.INVALID_REQUEST, f"the request contains {name}-{number} twice"
                )
            for record in self._move(name, number, wanted.replicas):
                records[name, number] = record
        except LogError as error:
            result.error_code, result.error_message = error.code, str(error)
        return result

    def _move(
        self, name: str, number: int, target: Sequence[int] | None
    ) -> Iterable[MetadataRecord]:
        """Return the records of one reassignment; without a target, of its cancellation.

        Raises:
            LogError: the partition does not exist, or can't be on these brokers.
        """
        topic = self._context.metadata.topic(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        partition = topic.partitions.get(number)
        if partition is None:
            raise UnknownTopicOrPartition(
                f"{name} has partitions 0 to {len(topic.partitions) - 1}, and no partition {number}"
            )
        label = f"{name}-{number}"
        if target is None:
            before = _cancel(partition, label)
            self._check_in_sync(topic, label, partition, before)
            return self._record(topic, number, partition, before)
        self._check(label, target, partition.replicas)
        # A target whose replicas are all in sync is complete at once: one record instead of two.
        pending = self._reassignment(partition, target)
        self._check_in_sync(topic, label, partition, pending)
        done = complete_reassignment(self._context, topic.name, pending, partition.isr)
        return self._record(topic, number, partition, pending if done is None else done)

    def _record(
        self,
        topic: TopicRegistration,
        number: int,
        partition: PartitionRegistration,
        placement: PartitionRegistration,
    ) -> Iterable[MetadataRecord]:
        context = self._context
        terms = context.terms(topic.name, placement, context.active())
        return record_of(
            topic.topic_id, number, partition, PartitionWish(placement=placement), terms
        )

    def _check_in_sync(
        self,
        topic: TopicRegistration,
        label: str,
        partition: PartitionRegistration,
        after: PartitionRegistration,
    ) -> None:
        """Check that enough of the replicas that stay have all acknowledged records.

        Eligible leader replicas have them too, and count: the last replica in sync may be dead.

        Raises:
            LogError: INVALID_REPLICA_ASSIGNMENT.
        """
        complete = {*partition.isr, *partition.elr}
        left = complete & {*after.replicas}
        least = self._context.min_insync(topic.name, partition.replication_factor)
        # If fewer than `least` are complete, all of them have to stay.
        if len(left) < min(len(complete), least):
            raise error_for(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"only brokers {sorted(complete)} have all records of {label}, and the new replicas"
                f" keep only {sorted(left)} of them, fewer than min.insync.replicas={least}: wait"
                " until more replicas are in sync, or keep more of these brokers",
            )

    def _check(self, label: str, target: Sequence[int], now: Sequence[int]) -> None:
        brokers = self._context.metadata.brokers
        # A replica that a cordoned broker has may stay.
        cordoned = sorted(({*target} - {*now}) & self._context.cordoned())
        missing = [each for each in target if each not in brokers]
        if not target or len({*target}) < len(target):
            detail = "name at least one broker, and each broker once"
        elif missing:
            detail = f"the cluster has brokers {sorted(brokers)}, but not {missing}"
        elif cordoned:
            detail = f"broker {cordoned[0]} is cordoned: uncordon it, or name another"
        else:
            return
        raise error_for(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{label} can't be on brokers {list(target)}: {detail}",
        )

    def _reassignment(
        self, partition: PartitionRegistration, target: Sequence[int]
    ) -> PartitionRegistration:
        """Return the placement during a reassignment to `target`.

        If the partition is being reassigned already, the new reassignment starts from the replicas
        before the earlier one.
        """
        before = [each for each in partition.replicas if each not in partition.adding]
        # The target comes first, so that its first replica is the preferred leader already.
        replicas = [*target, *(each for each in before if each not in target)]
        placement = replace(
            partition,
            replicas=tuple(replicas),
            adding=tuple(each for each in target if each not in before),
            removing=tuple(each for each in before if each not in target),
        )
        return replace(placement, directories=self._directories(partition, replicas))

    def _directories(
        self, partition: PartitionRegistration, replicas: Iterable[int]
    ) -> tuple[bytes, ...]:
        known = dict(zip(partition.replicas, partition.directories, strict=False))
        return tuple(known.get(each, UNASSIGNED_DIRECTORY) for each in replicas)

    def list(
        self, request: ListPartitionReassignmentsRequest, _: int, __: int
    ) -> Decision[ListPartitionReassignmentsResponse]:
        """List the partitions that are being reassigned."""
        asked: Mapping[str, Collection[int]] | None = None
        if request.topics is not None:
            asked = {each.name: each.partition_indexes for each in request.topics}
        topics: dict[str, OngoingTopicReassignment] = {}
        for topic, number, partition in self._context.metadata.partitions():
            is_asked = asked is None or number in asked.get(topic.name, ())
            if partition.is_reassigning and is_asked:
                found = topics.setdefault(topic.name, OngoingTopicReassignment(name=topic.name))
                found.partitions.append(
                    OngoingPartitionReassignment(
                        partition_index=number,
                        replicas=list(partition.replicas),
                        adding_replicas=list(partition.adding),
                        removing_replicas=list(partition.removing),
                    )
                )
        return respond(
            ListPartitionReassignmentsResponse(error_message=None, topics=list(topics.values()))
        )


def complete_reassignment(
    context: ControllerContext, topic: str, partition: PartitionRegistration, isr: Collection[int]
) -> PartitionRegistration | None:
    """Return the placement after a reassignment that this in-sync set completes, or None.

    All added replicas have to be in sync, and in total as many as `min.insync.replicas` requires.
    Otherwise the loss of a single disk could lose an acknowledged record.
    """
    if not partition.is_reassigning:
        return None
    wanted = [each for each in partition.replicas if each not in partition.removing]
    in_sync = {*isr} & {*wanted}
    least = min(context.min_insync(topic, partition.replication_factor), len(wanted))
    is_enough = len(in_sync) >= least
    if not is_enough or not {*partition.adding} <= in_sync:
        return None
    return _restrict(partition, wanted)


def _cancel(partition: PartitionRegistration, label: str) -> PartitionRegistration:
    if not partition.is_reassigning:
        raise error_for(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{label} is not being reassigned")
    return _restrict(
        partition, [each for each in partition.replicas if each not in partition.adding]
    )


def _restrict(partition: PartitionRegistration, replicas: Sequence[int]) -> PartitionRegistration:
    known = dict(zip(partition.replicas, partition.directories, strict=False))
    return replace(
        partition,
        replicas=tuple(replicas),
        directories=tuple(known.get(each, UNKNOWN_DIRECTORY) for each in replicas),
        adding=(),
        removing=(),
    )


PartitionKey = tuple[bytes, int]
"""The topic id and the number of a partition."""

PREFERRED, UNCLEAN = 0, 1
"""Kafka's numbers of the election types."""
BY_ID_VERSION = 2
"""The first AlterPartition version that names topics by id."""
WITH_EPOCHS_VERSION = 3
"""The first AlterPartition version with the broker epochs of replicas (KIP-903)."""
NOT_KNOWN = -1
"""The epoch of a broker that the leader has not seen: it is not compared."""
REBALANCED_MAX = 1000
"""The most partitions that return to their preferred leaders in one decision."""


class PartitionControl:
    """In-sync sets and elections, for the active controller."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    def handlers(self) -> DecisionHandlers:
        """Return the handler of each kind of request."""
        return dict(
            [decides(AlterPartitionRequest, self.alter), decides(ElectLeadersRequest, self.elect)]
        )

    # ---- proposals ----

    def alter(
        self, request: AlterPartitionRequest, version: int, _: int
    ) -> Decision[AlterPartitionResponse]:
        """Decide on the in-sync sets that a broker proposes for the partitions it leads."""
        broker = self._context.metadata.brokers.get(request.broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            return respond(AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
        records: dict[PartitionKey, MetadataRecord] = {}
        found: list[tuple[AlteredTopic, TopicRegistration | None]] = []
        for asked in request.topics:
            topic = self._topic(asked, version)
            answer = AlteredTopic(topic_name=asked.topic_name, topic_id=asked.topic_id)
            answer.partitions = [
                self._alter_one(request.broker_id, topic, each, version, records)
                for each in asked.partitions
            ]
            found.append((answer, topic))
        changes = tuple(records.values())
        return Decision(changes, lambda: _response(request.broker_id, found, version))

    def _topic(self, asked: ProposedTopic, version: int) -> TopicRegistration | None:
        metadata = self._context.metadata
        if version < BY_ID_VERSION:
            return metadata.topic(asked.topic_name)
        return metadata.topics.get(asked.topic_id)

    def _alter_one(
        self,
        leader: int,
        topic: TopicRegistration | None,
        proposed: ProposedPartition,
        version: int,
        records: dict[PartitionKey, MetadataRecord],
    ) -> AlteredPartition:
        """Add the records of one proposal to `records`; return its answer so far."""
        number = proposed.partition_index
        answer = AlteredPartition(partition_index=number)
        partition = None if topic is None else topic.partitions.get(number)
        if topic is None or partition is None:
            answer.error_code = (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if topic is not None or version < BY_ID_VERSION
                else ErrorCode.UNKNOWN_TOPIC_ID
            )
            return answer
        states = _states(proposed, version)
        answer.error_code = self._refusal(leader, partition, proposed, states)
        key = topic.topic_id, number
        if key in records:
            answer.error_code = ErrorCode.INVALID_UPDATE_VERSION  # The request contains it twice.
        if answer.error_code == ErrorCode.INELIGIBLE_REPLICA and self._context.rules.voids_refused:
            # An empty record raises the partition epoch, which voids copies of this proposal:
            #   1. The leader proposes {1, 2}; a copy of the request is delayed.
            #   2. Broker 2 is fenced, so this is refused. The leader drops the proposal and
            #      commits without 2. 3. Broker 2 is unfenced, and the copy arrives: granted, it
            #      would put 2 in sync without the records that were committed in between.
            records[key] = PartitionChangeRecord(topic_id=topic.topic_id, partition_id=number)
        if answer.error_code:
            return answer
        wish = PartitionWish(isr=tuple(state.broker_id for state in states))
        for record in self._accept(topic, number, partition, wish):
            records[key] = record
        return answer

    def _accept(
        self,
        topic: TopicRegistration,
        number: int,
        partition: PartitionRegistration,
        wish: PartitionWish,
    ) -> Iterable[MetadataRecord]:
        """Return the record of an in-sync set, which may also complete a reassignment."""
        context = self._context
        active = context.active()
        done = complete_reassignment(context, topic.name, partition, wish.isr or ())
        after = wish if done is None else PartitionWish(isr=wish.isr, placement=done)
        # With the new placement: the number of replicas bounds `min.insync.replicas`.
        terms = context.terms(topic.name, partition if done is None else done, active)
        return record_of(topic.topic_id, number, partition, after, terms)

    def _refusal(
        self,
        leader: int,
        partition: PartitionRegistration,
        proposed: ProposedPartition,
        states: list[BrokerState],
    ) -> int:
        """Return the error of a proposal, 0 if there is none.

        The order of the checks is Kafka's, and leaders depend on it.
        """
        isr = [state.broker_id for state in states]
        members = {*isr}
        age = partition.partition_epoch - proposed.partition_epoch
        is_old = age > 0 and self._context.rules.compares_partition_epoch
        is_set = leader in members and len(members) == len(isr) and members <= {*partition.replicas}
        refusals = (
            # The leader knows epochs that this controller has not committed: another one has.
            (ErrorCode.NOT_CONTROLLER, proposed.leader_epoch > partition.leader_epoch or age < 0),
            (ErrorCode.FENCED_LEADER_EPOCH, proposed.leader_epoch < partition.leader_epoch),
            (ErrorCode.INVALID_REQUEST, leader != partition.leader),
            (ErrorCode.INVALID_UPDATE_VERSION, is_old),
            (ErrorCode.INVALID_REQUEST, not is_set),
            (ErrorCode.INELIGIBLE_REPLICA, not all(map(self._may_be_in_sync, states))),
        )
        return next((code for code, is_so in refusals if is_so), ErrorCode.NONE)

    def _may_be_in_sync(self, state: BrokerState) -> bool:
        broker = self._context.metadata.brokers.get(state.broker_id)
        if broker is None or not broker.is_active:
            return False
        is_known = state.broker_epoch in (NOT_KNOWN, broker.epoch)
        return is_known or not self._context.rules.compares_broker_epoch

    # ---- elections ----

    def elect(
        self, request: ElectLeadersRequest, _: int, __: int
    ) -> Decision[ElectLeadersResponse]:
        """Decide on elections that an administrator orders, preferred or unclean (KIP-460)."""
        kind = request.election_type
        if kind not in (PREFERRED, UNCLEAN):
            message = (
                f"there is no election type {kind}: 0 elects the preferred leader, 1 any live"
                " replica"
            )
            refused = error_response(request, ErrorCode.INVALID_REQUEST, message)
            return respond(cast("ElectLeadersResponse", refused))
        records: dict[tuple[str, int], MetadataRecord] = {}
        results = []
        for name, numbers in self._requested(request):
            elected = [self._elect_one(kind, name, number, records) for number in numbers]
            # A request for all partitions reports only those that have elected a leader.
            if request.topic_partitions is None:
                elected = [each for each in elected if not each.error_code]
            results.append(ReplicaElectionResult(topic=name, partition_result=elected))
        response = ElectLeadersResponse(replica_election_results=results)
        return respond(response, records.values())

    def _requested(self, request: ElectLeadersRequest) -> Iterator[tuple[str, Iterable[int]]]:
        metadata = self._context.metadata
        if request.topic_partitions is not None:
            yield from ((each.topic, each.partitions) for each in request.topic_partitions)
            return
        for name in metadata.topic_names():
            topic = metadata.topic(name)
            yield name, () if topic is None else sorted(topic.partitions)

    def _elect_one(
        self, kind: int, name: str, number: int, records: dict[tuple[str, int], MetadataRecord]
    ) -> PartitionResult:
        try:
            for record in self._election(kind, name, number):
                records[name, number] = record
        except LogError as error:
            return PartitionResult(
                partition_id=number, error_code=error.code, error_message=str(error)
            )
        return PartitionResult(partition_id=number, error_message=None)

    def _election(self, kind: int, name: str, number: int) -> Iterable[MetadataRecord]:
        """Return the records of one election.

        Raises:
            LogError: the election is not needed, or not possible.
        """
        context = self._context
        topic = context.metadata.topic(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        partition = topic.partitions.get(number)
        if partition is None:
            raise UnknownTopicOrPartition(
                f"{name} has partitions 0 to {len(topic.partitions) - 1}, and no partition {number}"
            )
        terms = context.terms(name, partition, context.active())
        wish = PartitionWish(prefers=kind == PREFERRED)
        preferred = partition.replicas[0]
        is_led = partition.leader == preferred if kind == PREFERRED else _has_leader(partition)
        if is_led:
            held = "" if len(partition.replicas) > 1 else ", which has no other replica"
            raise error_for(
                ErrorCode.ELECTION_NOT_NEEDED,
                f"broker {partition.leader} leads {name}-{number} already{held}",
            )
        if kind == UNCLEAN:
            terms = context.unclean_terms(terms)
        after, record = change_of(partition, wish, terms)
        leader = partition.leader if record is None else record.leader
        if kind == PREFERRED and leader != preferred:
            raise error_for(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                f"broker {preferred} is not alive, or not in sync with {name}-{number}",
            )
        if record is None or leader == NO_LEADER:
            raise error_for(
                ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                f"none of brokers {list(after.replicas)} is alive and can lead {name}-{number}",
            )
        return record_of(topic.topic_id, number, partition, wish, terms)

    def rebalance(self) -> Decision[Message] | None:
        """Move leadership back to preferred leaders that are in sync; None if all lead."""
        context = self._context
        active = context.active()
        records: list[MetadataRecord] = []
        for topic, number, partition in context.metadata.partitions():
            preferred = partition.replicas[0]
            if preferred == partition.leader or preferred not in active:
                continue
            # The rest follows at once: the controller repeats this until nothing is left to move.
            if preferred in partition.isr and len(records) < REBALANCED_MAX:
                terms = context.terms(topic.name, partition, active)
                wish = PartitionWish(prefers=True)
                records += record_of(topic.topic_id, number, partition, wish, terms)
        return Decision(tuple(records)) if records else None


def _has_leader(partition: PartitionRegistration) -> bool:
    return partition.leader != NO_LEADER


def _states(proposed: ProposedPartition, version: int) -> list[BrokerState]:
    if version >= WITH_EPOCHS_VERSION:
        return proposed.new_isr_with_epochs
    return [BrokerState(broker_id=each, broker_epoch=NOT_KNOWN) for each in proposed.new_isr]


def _response(
    leader: int, found: list[tuple[AlteredTopic, TopicRegistration | None]], version: int
) -> AlterPartitionResponse:
    """Return the response, with the state of the partitions after the records were applied."""
    for answer, topic in found:
        for each in answer.partitions:
            now = None if topic is None else topic.partitions.get(each.partition_index)
            if each.error_code or now is None:
                continue
            # The change has completed a reassignment in which the proposer lost its leadership.
            if now.leader != leader and version >= BY_ID_VERSION:
                each.error_code = ErrorCode.NEW_LEADER_ELECTED
                continue
            each.leader_id, each.leader_epoch = now.leader, now.leader_epoch
            each.isr, each.partition_epoch = list(now.isr), now.partition_epoch
    return AlterPartitionResponse(topics=[answer for answer, _ in found])
