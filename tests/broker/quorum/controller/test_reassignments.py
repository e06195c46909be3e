"""Reassignments of partitions to other brokers."""

from __future__ import annotations

import pytest

from streamlog.broker.quorum.metadata.registrations import UNASSIGNED_DIRECTORY
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.partitions_and_replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.broker.quorum.deciding import Deciding


@pytest.fixture
def moving() -> Deciding:
    cluster = Deciding()
    cluster.start(1, 2, 3, 4, 5, 6)
    cluster.create(replicas=[[1, 2, 3]])
    return cluster


def move(cluster: Deciding, target: list[int] | None, name: str = "t", number: int = 0) -> int:
    wanted = ReassignablePartition(partition_index=number, replicas=target)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=name, partitions=[wanted])]
    )
    answer = cluster.ask(request, AlterPartitionReassignmentsResponse)
    return answer.responses[0].partitions[0].error_code


def test_a_reassignment_adds_replicas_before_it_removes_any(moving: Deciding) -> None:
    assert move(moving, [4, 5, 3]) == 0
    partition = moving.partition()
    assert partition.replicas == (4, 5, 3, 1, 2)
    assert (partition.adding, partition.removing) == ((4, 5), (1, 2))
    assert (partition.leader, partition.leader_epoch) == (1, 0)
    assert partition.replication_factor == 3
    assert partition.directory(4) == UNASSIGNED_DIRECTORY, "it has never been in sync"
    moving.propose([1, 2, 3, 4])
    assert moving.partition().is_reassigning
    # This completes the move: another broker leads, and the response says so.
    assert moving.propose([1, 2, 3, 4, 5]) == ErrorCode.NEW_LEADER_ELECTED
    partition = moving.partition()
    assert (partition.replicas, partition.adding, partition.removing) == ((4, 5, 3), (), ())
    assert (partition.isr, partition.leader, partition.leader_epoch) == ((3, 4, 5), 4, 1)
    assert partition.directory(4) == moving.realm.directory(4)


def test_a_new_replica_order_takes_effect_at_once(moving: Deciding) -> None:
    assert move(moving, [3, 2, 1]) == 0
    assert moving.partition().replicas == (3, 2, 1)
    assert not moving.partition().is_reassigning
    assert moving.partition().leader == 1


def test_removing_replicas_takes_effect_at_once(moving: Deciding) -> None:
    assert move(moving, [2]) == 0
    partition = moving.partition()
    assert (partition.replicas, partition.isr, partition.leader) == ((2,), (2,), 2)


def test_removing_a_replica_raises_the_leader_epoch(moving: Deciding) -> None:
    assert move(moving, [1, 2, 4]) == 0
    assert moving.partition().leader_epoch == 0
    # What 3 has fetched in epoch 0 does not count for an empty 3 that joins in epoch 1.
    assert moving.propose([1, 2, 3, 4]) == 0
    partition = moving.partition()
    assert (partition.replicas, partition.leader) == ((1, 2, 4), 1)
    assert partition.leader_epoch == 1
    assert move(moving, [1, 2, 3]) == 0
    assert moving.partition().leader_epoch == 1


def test_a_reassignment_waits_for_enough_in_sync_target_replicas(moving: Deciding) -> None:
    moving.propose([1, 2])
    move(moving, [3, 2])
    moving.propose([1, 2])
    assert moving.partition().is_reassigning
    moving.propose([1, 2, 3])
    assert moving.partition().replicas == (3, 2)


def test_a_reassignment_can_be_cancelled(moving: Deciding) -> None:
    assert move(moving, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    move(moving, [4, 5, 6])
    moving.propose([1, 2, 3, 4])
    assert move(moving, None) == 0
    partition = moving.partition()
    assert (partition.replicas, partition.isr) == ((1, 2, 3), (1, 2, 3))
    assert not partition.is_reassigning


def test_a_cancellation_that_leaves_too_few_in_sync_is_refused(moving: Deciding) -> None:
    move(moving, [4, 5, 6])
    moving.propose([1, 4])
    assert move(moving, None) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert moving.partition().is_reassigning


@pytest.mark.parametrize("target", [None, [1, 2, 6]])
def test_an_eligible_replica_is_not_removed_while_out_of_sync(
    moving: Deciding, target: list[int] | None
) -> None:
    move(moving, [4, 5, 6])
    moving.propose([1, 4])
    moving.silence(4)
    assert (moving.partition().isr, moving.partition().elr) == ((1,), (4,))
    # 1 may have lost its disk by now.
    assert move(moving, target) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert 4 in moving.partition().replicas


def test_a_reassignment_can_be_redirected(moving: Deciding) -> None:
    move(moving, [4, 5, 6])
    move(moving, [1, 2, 6])
    partition = moving.partition()
    assert partition.replicas == (1, 2, 6, 3)
    assert (partition.adding, partition.removing) == ((6,), (3,))


@pytest.mark.parametrize("target", [[], [1, 1], [1, 9]])
def test_an_invalid_target_is_refused(moving: Deciding, target: list[int]) -> None:
    assert move(moving, target) == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_an_unknown_partition_cannot_be_reassigned(moving: Deciding) -> None:
    assert move(moving, [1], "u") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert move(moving, [1], "t", 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_ongoing_reassignments_are_listed(moving: Deciding) -> None:
    moving.create("u", replicas=[[1], [2]])
    move(moving, [4, 5, 6])
    move(moving, [3], "u", 1)

    def listed(asked: list[ListPartitionReassignmentsTopics] | None) -> list[tuple[str, int]]:
        request = ListPartitionReassignmentsRequest(topics=asked)
        answer = moving.ask(request, ListPartitionReassignmentsResponse)
        found = [(t.name, p.partition_index) for t in answer.topics for p in t.partitions]
        return sorted(found)

    assert listed(None) == [("t", 0), ("u", 1)]
    assert listed([ListPartitionReassignmentsTopics(name="u", partition_indexes=[0, 1])]) == [
        ("u", 1)
    ]


def test_a_partition_listed_twice_is_reassigned_once(moving: Deciding) -> None:
    wanted = [ReassignablePartition(partition_index=0, replicas=[each]) for each in (4, 5)]
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name="t", partitions=wanted)]
    )
    answer = moving.ask(request, AlterPartitionReassignmentsResponse)
    codes = [each.error_code for each in answer.responses[0].partitions]
    assert codes == [0, ErrorCode.INVALID_REQUEST]
