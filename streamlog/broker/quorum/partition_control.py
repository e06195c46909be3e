"""PartitionControl: who is in sync as leaders propose (AlterPartition), and elections on demand.

A leader proposes against the epochs it knows, as a compare-and-set: a proposal that was made before
something else was decided is refused, and the leader learns of that from the metadata (KIP-497).
One that is refused for what its replicas are is void for good: the partition epoch counts up, so
that a copy of it that comes late, when they may be in sync, is not taken up. The leader has given
it up by then, and commits without who was to join.
Each replica in it carries the epoch of its broker as the leader has seen it, so that a process that
has started since does not count as in sync for what the one before it had (KIP-903).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from streamlog.broker.quorum.decision import Decision, Realm, answered
from streamlog.broker.quorum.elections import Wish, change_of, record_of
from streamlog.broker.quorum.metadata import TopicRegistration
from streamlog.broker.quorum.metadata_records import MetadataRecord
from streamlog.broker.quorum.reassignments import completed
from streamlog.broker.quorum.registrations import NO_LEADER, PartitionRegistration
from streamlog.errors import LogError, UnknownTopicOrPartition
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.error_responses import error_response
from streamlog.protocol.messages.brokers import (
    AlteredPartition,
    AlteredTopic,
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    ProposedPartition,
    ProposedTopic,
)
from streamlog.protocol.messages.metadata_log import PartitionChangeRecord
from streamlog.protocol.messages.replicas import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
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

    def __init__(self, realm: Realm) -> None:
        self._realm = realm

    def handlers(self) -> Mapping[Any, Any]:
        """Who decides what."""
        return {AlterPartitionRequest: self.alter, ElectLeadersRequest: self.elect}

    # ---- proposals ----

    def alter(self, request: AlterPartitionRequest, version: int, _: int) -> Decision:
        """Leaders say who is in sync."""
        broker = self._realm.metadata.brokers.get(request.broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            return answered(AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
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
        return Decision(changes, lambda: _as_they_are(request.broker_id, found, version))

    def _topic(self, asked: ProposedTopic, version: int) -> TopicRegistration | None:
        metadata = self._realm.metadata
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
        if answer.error_code == ErrorCode.INELIGIBLE_REPLICA and self._realm.rules.voids_refused:
            # Changes nothing but the partition epoch, as every record of a partition does.
            records[place] = PartitionChangeRecord(topic_id=topic.topic_id, partition_id=number)
        if answer.error_code:
            return answer
        wish = Wish(isr=tuple(state.broker_id for state in states))
        for record in self._agreed(topic, number, partition, wish):
            records[place] = record
        return answer

    def _agreed(
        self, topic: TopicRegistration, number: int, partition: PartitionRegistration, wish: Wish
    ) -> Iterable[MetadataRecord]:
        """The record of an in-sync set, which may be what a move has waited for."""
        realm = self._realm
        active = realm.active()
        done = completed(realm, topic.name, partition, wish.isr or ())
        after = wish if done is None else Wish(isr=wish.isr, placement=done)
        terms = realm.terms(topic.name, partition if done is None else done, active)
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
        is_old = age > 0 and self._realm.rules.compares_partition_epoch
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
        broker = self._realm.metadata.brokers.get(state.broker_id)
        if broker is None or not broker.is_active:
            return False
        is_known = state.broker_epoch in (NOT_KNOWN, broker.epoch)
        return is_known or not self._realm.rules.compares_broker_epoch

    # ---- elections ----

    def elect(self, request: ElectLeadersRequest, _: int, __: int) -> Decision:
        """Elections that somebody asks for: of preferred leaders, or of whoever lives."""
        kind = request.election_type
        if kind not in (PREFERRED, UNCLEAN):
            message = (
                f"there is no election type {kind}: 0 is the preferred leader, 1 any that lives"
            )
            return answered(error_response(request, ErrorCode.INVALID_REQUEST, message))
        records: dict[tuple[str, int], MetadataRecord] = {}
        results = []
        for name, numbers in self._asked(request):
            elected = [self._elected(kind, name, number, records) for number in numbers]
            if request.topic_partitions is None:
                elected = [each for each in elected if not each.error_code]
            results.append(ReplicaElectionResult(topic=name, partition_result=elected))
        response = ElectLeadersResponse(replica_election_results=results)
        return answered(response, records.values())

    def _asked(self, request: ElectLeadersRequest) -> Iterator[tuple[str, Iterable[int]]]:
        metadata = self._realm.metadata
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
        realm = self._realm
        topic = realm.metadata.topic(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        partition = topic.partitions.get(number)
        if partition is None:
            raise UnknownTopicOrPartition(
                f"{name} has {len(topic.partitions)} partitions, and no partition {number}"
            )
        terms = realm.terms(name, partition, realm.active())
        wish = Wish(prefers=kind == PREFERRED)
        preferred = partition.replicas[0]
        is_led = partition.leader == preferred if kind == PREFERRED else _has_leader(partition)
        if is_led:
            held = "" if len(partition.replicas) > 1 else ", and holds it alone"
            raise error_for(
                ErrorCode.ELECTION_NOT_NEEDED,
                f"broker {partition.leader} leads {name}-{number}{held}",
            )
        if kind == UNCLEAN:
            terms = realm.unclean_terms(terms)
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
        realm = self._realm
        active = realm.active()
        records: list[MetadataRecord] = []
        for topic, number, partition in realm.metadata.partitions():
            preferred = partition.replicas[0]
            if preferred == partition.leader or preferred not in active:
                continue
            if preferred in partition.isr and len(records) < REBALANCED_MAX:
                terms = realm.terms(topic.name, partition, active)
                wish = Wish(prefers=True)
                records += record_of(topic.topic_id, number, partition, wish, terms)
        return Decision(tuple(records)) if records else None


def _has_leader(partition: PartitionRegistration) -> bool:
    return partition.leader != NO_LEADER


def _states(proposed: ProposedPartition, version: int) -> list[BrokerState]:
    if version >= WITH_EPOCHS_VERSION:
        return proposed.new_isr_with_epochs
    return [BrokerState(broker_id=each, broker_epoch=NOT_KNOWN) for each in proposed.new_isr]


def _as_they_are(
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
