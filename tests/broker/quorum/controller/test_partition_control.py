"""ISR proposals of leaders, and elections on request."""

from __future__ import annotations

import pytest

from streamlog.broker.quorum.metadata.registrations import NO_LEADER
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.broker_registration import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ProposedPartition,
    ProposedTopic,
)
from streamlog.protocol.messages.partitions_and_replicas import (
    ElectedTopicPartitions,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from tests.broker.quorum.deciding import Deciding


@pytest.fixture
def led() -> Deciding:
    """Return three brokers, and a partition that broker 2 leads."""
    cluster = Deciding()
    cluster.start(1, 2, 3)
    cluster.create(replicas=[[2, 1, 3]])
    return cluster


def test_a_leader_s_proposal_sets_the_isr(led: Deciding) -> None:
    assert led.propose([2, 3]) == 0
    assert led.partition().isr == (2, 3)
    assert (led.partition().leader_epoch, led.partition().partition_epoch) == (0, 1)
    assert led.propose([2]) == 0
    assert led.partition().elr == (3,)
    assert led.propose([2, 1]) == 0
    assert (led.partition().isr, led.partition().elr) == ((2, 1), ())


def test_proposing_the_current_isr_changes_nothing(led: Deciding) -> None:
    assert led.propose([2, 1, 3]) == 0
    assert led.partition().partition_epoch == 0


def test_stale_and_invalid_proposals_are_refused(led: Deciding) -> None:
    led.propose([2, 3])
    assert led.propose([2], partition_epoch=0) == ErrorCode.INVALID_UPDATE_VERSION
    assert led.propose([2], partition_epoch=2) == ErrorCode.NOT_CONTROLLER
    assert led.propose([2], leader_epoch=1) == ErrorCode.NOT_CONTROLLER
    assert led.propose([2], leader_epoch=-1) == ErrorCode.FENCED_LEADER_EPOCH
    assert led.propose([3], leader=3) == ErrorCode.INVALID_REQUEST
    assert led.propose([3]) == ErrorCode.INVALID_REQUEST
    assert led.propose([2, 9]) == ErrorCode.INVALID_REQUEST
    assert led.propose([2, 2]) == ErrorCode.INVALID_REQUEST
    assert led.partition().isr == (2, 3)


def test_a_replica_that_has_restarted_since_is_ineligible(led: Deciding) -> None:
    before = led.metadata.brokers[3].epoch
    led.start(3)
    assert led.partition().isr == (2, 1)
    assert led.propose([2, 1, 3], epochs={3: before}) == ErrorCode.INELIGIBLE_REPLICA
    assert led.propose([2, 1, 3], epochs={3: -1}) == 0


def test_a_fenced_or_leaving_replica_is_ineligible(led: Deciding) -> None:
    led.heartbeat(3, want_fence=True)
    assert led.propose([2, 1, 3]) == ErrorCode.INELIGIBLE_REPLICA
    led.start(3)
    led.heartbeat(3, want_shut_down=True)
    assert led.propose([2, 1, 3]) == ErrorCode.INELIGIBLE_REPLICA


def test_a_proposal_with_a_stale_broker_epoch_is_refused(led: Deciding) -> None:
    request = AlterPartitionRequest(broker_id=2, broker_epoch=0)
    answer = led.ask(request, AlterPartitionResponse, version=3)
    assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH


def ask(led: Deciding, *proposed: ProposedTopic, version: int = 3) -> list[int]:
    request = AlterPartitionRequest(
        broker_id=2, broker_epoch=led.metadata.brokers[2].epoch, topics=list(proposed)
    )
    answer = led.ask(request, AlterPartitionResponse, version=version)
    return [each.error_code for topic in answer.topics for each in topic.partitions]


def test_unknown_topics_and_partitions_are_reported_by_id_or_name(led: Deciding) -> None:
    first = ProposedPartition(partition_index=0, partition_epoch=0, new_isr=[2])
    ninth = ProposedPartition(partition_index=9)
    topic = led.metadata.topic("t")
    assert topic is not None
    assert ask(led, ProposedTopic(topic_id=bytes(16), partitions=[first])) == [
        ErrorCode.UNKNOWN_TOPIC_ID
    ]
    unknown = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert ask(led, ProposedTopic(topic_id=topic.topic_id, partitions=[ninth])) == unknown
    assert ask(led, ProposedTopic(topic_name="u", partitions=[first]), version=1) == unknown
    assert ask(led, ProposedTopic(topic_name="t", partitions=[first]), version=1) == [0]
    assert led.partition().isr == (2,)


def test_of_two_proposals_in_a_request_the_first_wins(led: Deciding) -> None:
    topic = led.metadata.topic("t")
    assert topic is not None
    twice = [ProposedPartition(partition_index=0, new_isr=[2, each]) for each in (1, 3)]
    found = ask(led, ProposedTopic(topic_id=topic.topic_id, partitions=twice), version=2)
    assert found == [0, ErrorCode.INVALID_UPDATE_VERSION]
    assert led.partition().isr == (2, 1)


def elect(led: Deciding, kind: int, name: str | None = "t") -> list[int]:
    asked = None if name is None else [ElectedTopicPartitions(topic=name, partitions=[0])]
    request = ElectLeadersRequest(election_type=kind, topic_partitions=asked)
    answer = led.ask(request, ElectLeadersResponse, version=2)
    return [
        each.error_code
        for topic in answer.replica_election_results
        for each in topic.partition_result
    ]


def test_the_preferred_leader_is_elected_on_demand(led: Deciding) -> None:
    assert elect(led, 0) == [ErrorCode.ELECTION_NOT_NEEDED]
    led.start(2)
    assert led.partition().leader == 1
    assert elect(led, 0) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
    led.propose([1, 2, 3])
    assert elect(led, 0) == [0]
    assert led.partition().leader == 2
    assert elect(led, 0, None) == []
    assert elect(led, 0, "u") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_preferred_leaders_return_automatically_after_a_while(led: Deciding) -> None:
    led.start(2)
    led.propose([1, 2, 3])
    for _ in range(301):
        led.now_ms += 1000
        for broker in (1, 2, 3):
            led.heartbeat(broker)
    led.tick()
    assert led.partition().leader == 2


def test_an_unclean_election_elects_any_live_replica(led: Deciding) -> None:
    led.heartbeat(1, want_fence=True)  # Two are left, which is enough: 1 is not eligible.
    led.silence(3)
    led.heartbeat(3, damaged={led.topic_id("t"): [0]})
    led.silence(2)
    assert (led.partition().leader, led.partition().isr) == (NO_LEADER, (2,))
    led.heartbeat(3, want_fence=True)
    assert elect(led, 1) == [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]
    led.heartbeat(3)
    assert elect(led, 1) == [0]
    assert (led.partition().leader, led.partition().isr) == (3, (3,))
    assert led.partition().last_unclean_epoch == led.partition().leader_epoch
    assert elect(led, 1) == [ErrorCode.ELECTION_NOT_NEEDED]


def test_an_unknown_election_type_is_refused(led: Deciding) -> None:
    request = ElectLeadersRequest(election_type=2)
    answer = led.ask(request, ElectLeadersResponse, version=2)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
