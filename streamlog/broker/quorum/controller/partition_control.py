"""PartitionControl and Reassignments: decisions on in-sync replicas, leaders and moves.

A leader proposes who is in sync (AlterPartition), an administrator asks for elections
(ElectLeaders) and moves (KIP-455), and the controller balances preferred leaders. A move adds the
new replicas, waits until they are in sync, and removes the old ones then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from streamlog.broker.quorum.controller.decision import ControllerContext, Decision, respond
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


class Reassignments:
    """Moves of partitions, for the active controller."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    def handlers(self) -> Mapping[Any, Any]:
        """Who decides what."""
        return {
            AlterPartitionReassignmentsRequest: self.alter,
            ListPartitionReassignmentsRequest: self.list,
        }

    def alter(self, request: AlterPartitionReassignmentsRequest, _: int, __: int) -> Decision:
        """Begin moves, or call them off."""
        records: dict[tuple[str, int], MetadataRecord] = {}
        responses = [
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[self._altered(topic.name, each, records) for each in topic.partitions],
            )
            for topic in request.topics
        ]
        response = AlterPartitionReassignmentsResponse(error_message=None, responses=responses)
        return respond(response, records.values())

    def _altered(
        self,
        name: str,
        wanted: ReassignablePartition,
        records: dict[tuple[str, int], MetadataRecord],
    ) -> ReassignablePartitionResponse:
        number = wanted.partition_index
        result = ReassignablePartitionResponse(partition_index=number, error_message=None)
        try:
            if (name, number) in records:
                raise error_for(ErrorCode.INVALID_REQUEST, f"{name}-{number} is in twice")
            for record in self._move(name, number, wanted.replicas):
                records[name, number] = record
        except LogError as error:
            result.error_code, result.error_message = error.code, str(error)
        return result

    def _move(
        self, name: str, number: int, target: Sequence[int] | None
    ) -> Iterable[MetadataRecord]:
        """The records of one move.

        Raises:
            LogError: there is no such partition, or it can't be there.
        """
        topic = self._context.metadata.topic(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        partition = topic.partitions.get(number)
        if partition is None:
            raise UnknownTopicOrPartition(
                f"{name} has {len(topic.partitions)} partitions, and no partition {number}"
            )
        place = f"{name}-{number}"
        if target is None:
            before = _cancel(partition, place)
            self._check_in_sync(topic, place, partition, before)
            return self._record(topic, number, partition, before)
        self._check(place, target)
        begun = self._begun(partition, target)
        self._check_in_sync(topic, place, partition, begun)
        done = complete_reassignment(self._context, topic.name, begun, partition.isr)
        return self._record(topic, number, partition, begun if done is None else done)

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
        place: str,
        partition: PartitionRegistration,
        after: PartitionRegistration,
    ) -> None:
        """That those who stay have what was acknowledged by as many as it takes.

        The eligible have it as well: of those in sync the last one may be dead.
        """
        complete = {*partition.isr, *partition.elr}
        left = complete & {*after.replicas}
        least = self._context.min_insync(topic.name, partition.replication_factor)
        if len(left) < min(len(complete), least):
            raise error_for(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{place} has everything on brokers {sorted(complete)}, of which this would leave"
                f" {sorted(left)}, fewer than min.insync.replicas={least}; wait until more are in"
                " sync, or move it where more of these stay",
            )

    def _check(self, place: str, target: Sequence[int]) -> None:
        brokers = self._context.metadata.brokers
        missing = [each for each in target if each not in brokers]
        if not target or len({*target}) < len(target):
            detail = "name at least one broker, and each once"
        elif missing:
            detail = f"there are brokers {sorted(brokers)}, not {missing}"
        else:
            return
        raise error_for(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{place} can't be on brokers {list(target)}: {detail}",
        )

    def _begun(
        self, partition: PartitionRegistration, target: Sequence[int]
    ) -> PartitionRegistration:
        """On the way; one that is on another way already goes this one from where it began."""
        before = [each for each in partition.replicas if each not in partition.adding]
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

    def list(self, request: ListPartitionReassignmentsRequest, _: int, __: int) -> Decision:
        """Which partitions are on their way."""
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
    """The placement after a move, if it is time; None if it is not.

    Everybody who is added has to be in sync, and of those who stay as many as acknowledged records
    are on: else the loss of one disk more would be the loss of a record.
    """
    if not partition.is_reassigning:
        return None
    wanted = [each for each in partition.replicas if each not in partition.removing]
    in_sync = {*isr} & {*wanted}
    least = min(context.min_insync(topic, partition.replication_factor), len(wanted))
    is_enough = len(in_sync) >= least
    if not is_enough or not {*partition.adding} <= in_sync:
        return None
    return _only(partition, wanted)


def _cancel(partition: PartitionRegistration, place: str) -> PartitionRegistration:
    if not partition.is_reassigning:
        raise error_for(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{place} is not being moved")
    return _only(partition, [each for each in partition.replicas if each not in partition.adding])


def _only(partition: PartitionRegistration, replicas: Sequence[int]) -> PartitionRegistration:
    known = dict(zip(partition.replicas, partition.directories, strict=False))
    return replace(
        partition,
        replicas=tuple(replicas),
        directories=tuple(known.get(each, UNKNOWN_DIRECTORY) for each in replicas),
        adding=(),
        removing=(),
    )


Place = tuple[bytes, int]
"""Topic id and number of a partition."""

PREFERRED, UNCLEAN = 0, 1
"""Types of elections, by Kafka's numbers."""
BY_ID_VERSION = 2
"""From this AlterPartition version on topics are named by id."""
WITH_EPOCHS_VERSION = 3
"""From this AlterPartition version on replicas carry the epochs of their brokers."""
NOT_KNOWN = -1
"""The epoch of a broker that the leader does not know: it is not compared."""
REBALANCED_MAX = 1000
"""Partitions that go back to their preferred leaders in one decision."""


class PartitionControl:
    """Proposals and elections, for the active controller."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    def handlers(self) -> Mapping[Any, Any]:
        """Who decides what."""
        return {AlterPartitionRequest: self.alter, ElectLeadersRequest: self.elect}

    # ---- proposals ----

    def alter(self, request: AlterPartitionRequest, version: int, _: int) -> Decision:
        """Leaders say who is in sync."""
        broker = self._context.metadata.brokers.get(request.broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            return respond(AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
        records: dict[Place, MetadataRecord] = {}
        found: list[tuple[AlteredTopic, TopicRegistration | None]] = []
        for asked in request.topics:
            topic = self._topic(asked, version)
            answer = AlteredTopic(topic_name=asked.topic_name, topic_id=asked.topic_id)
            answer.partitions = [
                self._altered(request.broker_id, topic, each, version, records)
                for each in asked.partitions
            ]
            found.append((answer, topic))
        changes = tuple(records.values())
        return Decision(changes, lambda: _unchanged(request.broker_id, found, version))

    def _topic(self, asked: ProposedTopic, version: int) -> TopicRegistration | None:
        metadata = self._context.metadata
        if version < BY_ID_VERSION:
            return metadata.topic(asked.topic_name)
        return metadata.topics.get(asked.topic_id)

    def _altered(
        self,
        leader: int,
        topic: TopicRegistration | None,
        proposed: ProposedPartition,
        version: int,
        records: dict[Place, MetadataRecord],
    ) -> AlteredPartition:
        """Adds the records of one proposal; the answer so far."""
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
        place = topic.topic_id, number
        if place in records:
            answer.error_code = ErrorCode.INVALID_UPDATE_VERSION  # It is in twice.
        if answer.error_code == ErrorCode.INELIGIBLE_REPLICA and self._context.rules.voids_refused:
            # Changes nothing but the partition epoch, as every record of a partition does.
            records[place] = PartitionChangeRecord(topic_id=topic.topic_id, partition_id=number)
        if answer.error_code:
            return answer
        wish = PartitionWish(isr=tuple(state.broker_id for state in states))
        for record in self._agreed(topic, number, partition, wish):
            records[place] = record
        return answer

    def _agreed(
        self,
        topic: TopicRegistration,
        number: int,
        partition: PartitionRegistration,
        wish: PartitionWish,
    ) -> Iterable[MetadataRecord]:
        """The record of an in-sync set, which may be what a move has waited for."""
        context = self._context
        active = context.active()
        done = complete_reassignment(context, topic.name, partition, wish.isr or ())
        after = wish if done is None else PartitionWish(isr=wish.isr, placement=done)
        terms = context.terms(topic.name, partition if done is None else done, active)
        return record_of(topic.topic_id, number, partition, after, terms)

    def _refusal(
        self,
        leader: int,
        partition: PartitionRegistration,
        proposed: ProposedPartition,
        states: list[BrokerState],
    ) -> int:
        """Why not; 0 if a proposal holds. The order is Kafka's, and leaders rely on it."""
        isr = [state.broker_id for state in states]
        members = {*isr}
        age = partition.partition_epoch - proposed.partition_epoch
        is_old = age > 0 and self._context.rules.compares_partition_epoch
        is_set = leader in members and len(members) == len(isr) and members <= {*partition.replicas}
        refusals = (
            # Somebody else has decided more than this controller knows.
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

    def elect(self, request: ElectLeadersRequest, _: int, __: int) -> Decision:
        """Elections that somebody asks for: of preferred leaders, or of whoever lives."""
        kind = request.election_type
        if kind not in (PREFERRED, UNCLEAN):
            message = (
                f"there is no election type {kind}: 0 is the preferred leader, 1 any that lives"
            )
            return respond(error_response(request, ErrorCode.INVALID_REQUEST, message))
        records: dict[tuple[str, int], MetadataRecord] = {}
        results = []
        for name, numbers in self._asked(request):
            elected = [self._elected(kind, name, number, records) for number in numbers]
            if request.topic_partitions is None:
                elected = [each for each in elected if not each.error_code]
            results.append(ReplicaElectionResult(topic=name, partition_result=elected))
        response = ElectLeadersResponse(replica_election_results=results)
        return respond(response, records.values())

    def _asked(self, request: ElectLeadersRequest) -> Iterator[tuple[str, Iterable[int]]]:
        metadata = self._context.metadata
        if request.topic_partitions is not None:
            yield from ((each.topic, each.partitions) for each in request.topic_partitions)
            return
        for name in metadata.topic_names():
            topic = metadata.topic(name)
            yield name, () if topic is None else sorted(topic.partitions)

    def _elected(
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
        """The records of one election.

        Raises:
            LogError: it is not needed, or not possible.
        """
        context = self._context
        topic = context.metadata.topic(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        partition = topic.partitions.get(number)
        if partition is None:
            raise UnknownTopicOrPartition(
                f"{name} has {len(topic.partitions)} partitions, and no partition {number}"
            )
        terms = context.terms(name, partition, context.active())
        wish = PartitionWish(prefers=kind == PREFERRED)
        preferred = partition.replicas[0]
        is_led = partition.leader == preferred if kind == PREFERRED else _has_leader(partition)
        if is_led:
            held = "" if len(partition.replicas) > 1 else ", and holds it alone"
            raise error_for(
                ErrorCode.ELECTION_NOT_NEEDED,
                f"broker {partition.leader} leads {name}-{number}{held}",
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
                f"none of brokers {list(after.replicas)} is alive to lead {name}-{number}",
            )
        return record_of(topic.topic_id, number, partition, wish, terms)

    def rebalanced(self) -> Decision | None:
        """Partitions that their preferred leader could lead, back to it; None if there are none."""
        context = self._context
        active = context.active()
        records: list[MetadataRecord] = []
        for topic, number, partition in context.metadata.partitions():
            preferred = partition.replicas[0]
            if preferred == partition.leader or preferred not in active:
                continue
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


def _unchanged(
    leader: int, found: list[tuple[AlteredTopic, TopicRegistration | None]], version: int
) -> AlterPartitionResponse:
    """The answer, with what has come of the proposals that hold."""
    for answer, topic in found:
        for each in answer.partitions:
            now = None if topic is None else topic.partitions.get(each.partition_index)
            if each.error_code or now is None:
                continue
            if now.leader != leader and version >= BY_ID_VERSION:
                each.error_code = ErrorCode.NEW_LEADER_ELECTED
                continue
            each.leader_id, each.leader_epoch = now.leader, now.leader_epoch
            each.isr, each.partition_epoch = list(now.isr), now.partition_epoch
    return AlterPartitionResponse(topics=[answer for answer, _ in found])
