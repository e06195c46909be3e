"""Reassignments: partitions on their way to other brokers (KIP-455).

A move adds before it takes away: the replicas are first those wanted and those that there were,
wanted ones in front; when all that are added are in sync, what is not wanted goes. Until then it
can be called off, and then what was added goes. Nobody waits for the end: it comes with the in-sync
set that a leader proposes (`partition_control`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from streamlog.broker.quorum.decision import Decision, Realm, answered
from streamlog.broker.quorum.elections import Wish, record_of
from streamlog.broker.quorum.metadata import TopicRegistration
from streamlog.broker.quorum.metadata_records import MetadataRecord
from streamlog.broker.quorum.registrations import (
    UNASSIGNED_DIRECTORY,
    UNKNOWN_DIRECTORY,
    PartitionRegistration,
)
from streamlog.errors import LogError, UnknownTopicOrPartition
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


class Reassignments:
    """Moves of partitions, for the active controller."""

    def __init__(self, realm: Realm) -> None:
        self._realm = realm

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
        return answered(response, records.values())

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
        topic = self._realm.metadata.topic(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        partition = topic.partitions.get(number)
        if partition is None:
            raise UnknownTopicOrPartition(
                f"{name} has {len(topic.partitions)} partitions, and no partition {number}"
            )
        place = f"{name}-{number}"
        if target is None:
            before = _called_off(partition, place)
            self._check_in_sync(topic, place, partition, before)
            return self._record(topic, number, partition, before)
        self._check(place, target)
        begun = self._begun(partition, target)
        self._check_in_sync(topic, place, partition, begun)
        done = completed(self._realm, topic.name, begun, partition.isr)
        return self._record(topic, number, partition, begun if done is None else done)

    def _record(
        self,
        topic: TopicRegistration,
        number: int,
        partition: PartitionRegistration,
        placement: PartitionRegistration,
    ) -> Iterable[MetadataRecord]:
        realm = self._realm
        terms = realm.terms(topic.name, placement, realm.active())
        return record_of(topic.topic_id, number, partition, Wish(placement=placement), terms)

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
        least = self._realm.min_insync(topic.name, partition.replication_factor)
        if len(left) < min(len(complete), least):
            raise error_for(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{place} has everything on brokers {sorted(complete)}, of which this would leave"
                f" {sorted(left)}, fewer than min.insync.replicas={least}; wait until more are in"
                " sync, or move it where more of these stay",
            )

    def _check(self, place: str, target: Sequence[int]) -> None:
        brokers = self._realm.metadata.brokers
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
        for topic, number, partition in self._realm.metadata.partitions():
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
        return answered(
            ListPartitionReassignmentsResponse(error_message=None, topics=list(topics.values()))
        )


def completed(
    realm: Realm, topic: str, partition: PartitionRegistration, isr: Collection[int]
) -> PartitionRegistration | None:
    """The placement after a move, if it is time; None if it is not.

    Everybody who is added has to be in sync, and of those who stay as many as acknowledged records
    are on: else the loss of one disk more would be the loss of a record.
    """
    if not partition.is_reassigning:
        return None
    wanted = [each for each in partition.replicas if each not in partition.removing]
    in_sync = {*isr} & {*wanted}
    least = min(realm.min_insync(topic, partition.replication_factor), len(wanted))
    is_enough = len(in_sync) >= least
    if not is_enough or not {*partition.adding} <= in_sync:
        return None
    return _only(partition, wanted)


def _called_off(partition: PartitionRegistration, place: str) -> PartitionRegistration:
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
