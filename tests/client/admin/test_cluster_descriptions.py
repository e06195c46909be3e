"""The evidence that a cluster is healthy, and the problems that missing evidence causes."""

from __future__ import annotations

import re

import pytest

from streamlog.client.admin.cluster_descriptions import (
    ClusterReports,
    Evidence,
    EvidenceRules,
    NodeDescription,
    PartitionDescription,
    QuorumDescription,
    QuorumReplica,
    Registration,
    ReplicaDescription,
    find_problems,
)
from streamlog.record import TopicPartition
from streamlog.replace import replace

BROKERS = (1, 2, 3)
LEADER = 1
PARTITION_0 = TopicPartition("t", 0)
PARTITION = PartitionDescription("t", 0, LEADER, 4, BROKERS, BROKERS, ())


def directory(broker: int, number: int = 0) -> bytes:
    return bytes([broker, number, *bytes(14)])


REGISTERED = {
    each: Registration(epoch=10 + each, is_fenced=False, directories=(directory(each),))
    for each in BROKERS
}


def report(broker: int) -> NodeDescription:
    """Return the description of a healthy broker."""
    leads = broker == LEADER
    replica = ReplicaDescription(
        leader_epoch=4, in_sync=BROKERS if leads else None, high_watermark=100, end_offset=120
    )
    return NodeDescription(
        node_id=broker,
        epoch=10 + broker,
        directory=directory(broker),
        applied_offset=50,
        quorum_leader=2,
        quorum_epoch=7,
        registrations=REGISTERED,
        replicas={PARTITION_0: replica},
    )


def quorum(*, fetched_ms: int) -> QuorumDescription:
    voters = tuple(QuorumReplica(each, 50, fetched_ms, fetched_ms) for each in BROKERS)
    return QuorumDescription(2, 7, 50, voters, ())


WELL = Evidence(
    first=ClusterReports({each: report(each) for each in BROKERS}),
    quorum=quorum(fetched_ms=1_000),
    partitions=[PARTITION],
    second=ClusterReports({each: report(each) for each in BROKERS}),
    quorum_after=quorum(fetched_ms=1_500),
)


def with_report(broker: int, **changed: object) -> Evidence:
    """Return healthy evidence with changes to one broker's second report."""
    other = replace(WELL.second.reports[broker], **changed)  # type: ignore[arg-type]
    return replace(WELL, second=ClusterReports({**WELL.second.reports, broker: other}))


def with_replica(broker: int, **changed: object) -> Evidence:
    replica = replace(WELL.second.reports[broker].replicas[PARTITION_0], **changed)  # type: ignore[arg-type]
    return with_report(broker, replicas={PARTITION_0: replica})


def test_a_healthy_cluster_has_no_problems() -> None:
    assert find_problems(WELL) == []


@pytest.mark.parametrize(
    ("evidence", "reason"),
    [
        (with_report(3, epoch=-1), "broker 3 runs and is not registered yet"),
        (with_report(3, epoch=12), "broker 3 runs as another process than"),
        (with_report(3, directory=directory(3, 1)), "broker 3 runs on another log directory"),
        (with_report(3, is_rejoining=True), "broker 3 is rejoining the quorum"),
        (with_report(3, strays=2), "broker 3 has set aside 2 folders"),
        (
            with_report(3, applied_offset=49),
            "broker 3 has applied the metadata log up to offset 49, but",
        ),
        (
            with_report(3, quorum_epoch=6),
            "broker 3 knows node 2 in epoch 6 as the quorum's leader",
        ),
        (with_report(3, replicas={}), "t-0: broker 3 has no replica"),
        (with_replica(3, end_offset=99), "t-0: the replica on broker 3 ends at offset 99"),
        (
            with_replica(1, in_sync=(1, 2)),
            r"t-0: its leader reports replicas on brokers \[3\] as not",
        ),
        (with_replica(1, leader_epoch=3), "t-0: broker 1 does not lead epoch 4"),
        (with_replica(1, in_sync=None), "t-0: broker 1 does not lead epoch 4"),
        (
            replace(WELL, second=ClusterReports({1: report(1), 2: report(2)}, {3: "refused"})),
            "broker 3 gave no report: refused",
        ),
        (
            replace(WELL, partitions=[replace(PARTITION, in_sync=(1, 2))]),
            r"t-0: replicas on brokers \[3\] are not in sync",
        ),
        (
            replace(WELL, partitions=[replace(PARTITION, leader=-1, in_sync=(2,))]),
            "t-0 has no leader: it waits for broker 2",
        ),
        (
            replace(WELL, partitions=[replace(PARTITION, leader=-1, in_sync=())]),
            "t-0 has no leader: the last complete replica was on a disk that was replaced",
        ),
        (
            replace(WELL, quorum_after=quorum(fetched_ms=1_000)),
            "voter 3 has not fetched since the quorum was first looked at",
        ),
        (
            replace(WELL, quorum_after=replace(quorum(fetched_ms=1_500), epoch=8)),
            "the quorum has just elected node 2",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_each_gap_in_the_evidence_is_a_problem(evidence: Evidence, reason: str) -> None:
    found = find_problems(evidence)
    assert any(re.match(reason, each) for each in found), found


def test_a_voter_behind_the_committed_offset_is_a_problem() -> None:
    voters = (QuorumReplica(1, 49, 2, 2), QuorumReplica(2, 50, 2, 2), QuorumReplica(3, 50, 2, 2))
    found = find_problems(replace(WELL, quorum_after=QuorumDescription(2, 7, 50, voters, ())))
    assert found == ["voter 1 has the metadata log up to offset 49, but it is committed up to 50"]
    rejoining = replace(voters[0], end_offset=50, is_rejoining=True)
    after = QuorumDescription(2, 7, 50, (rejoining, *voters[1:]), ())
    assert find_problems(replace(WELL, quorum_after=after)) == [
        "voter 1 is rejoining the quorum and does not vote yet"
    ]


def test_registrations_come_from_the_broker_with_the_newest_metadata() -> None:
    newer = {**REGISTERED, 3: replace(REGISTERED[3], is_fenced=True)}
    evidence = with_report(2, registrations=newer, applied_offset=51)
    assert find_problems(evidence) == ["broker 3 is fenced"]


def test_brokers_without_reports_are_described_by_the_metadata() -> None:
    silent = replace(WELL, first=ClusterReports(), second=ClusterReports())
    assert find_problems(silent) == []


def test_metadata_alone_does_not_prove_that_a_broker_is_healthy() -> None:
    before = with_report(3, epoch=-1, directory=directory(3, 1), replicas={})
    assert find_problems(before)
    assert find_problems(before, EvidenceRules(wants_reports=False)) == []
