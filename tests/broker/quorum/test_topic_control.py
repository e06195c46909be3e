"""Topics are created, deleted and given more partitions."""

from __future__ import annotations

import pytest

from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.cluster import ClusterConfig
from streamlog.broker.config.settings import SettingSource
from streamlog.broker.quorum.metadata.cluster_metadata import TOPIC_RESOURCE
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.partitions_and_replicas import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from streamlog.protocol.messages.topics_and_configs import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from streamlog.protocol.schema import ZERO_UUID
from tests.broker.quorum.deciding import INTERNAL, Deciding


@pytest.fixture
def three() -> Deciding:
    cluster = Deciding()
    cluster.start(1, 2, 3)
    return cluster


def create(
    cluster: Deciding, *topics: CreatableTopic, validate_only: bool = False
) -> CreateTopicsResponse:
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    return cluster.ask(request, CreateTopicsResponse)


def topic(name: str = "t", count: int = -1, copies: int = -1, **configs: str) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=count,
        replication_factor=copies,
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


def test_partitions_and_leaders_are_spread_over_the_brokers(three: Deciding) -> None:
    three.create(partitions=6)
    partitions = [three.partition("t", number) for number in range(6)]
    assert all(sorted(each.replicas) == [1, 2, 3] for each in partitions)
    assert sorted(each.leader for each in partitions) == [1, 1, 2, 2, 3, 3]
    assert all(each.isr == each.replicas for each in partitions)
    assert all(each.directory(1) == three.realm.directory(1) for each in partitions)


def test_the_replication_factor_is_the_requested_or_the_default_one(three: Deciding) -> None:
    answer = create(three, topic("a", copies=2), topic("b"))
    assert [each.replication_factor for each in answer.topics] == [2, 3]
    assert answer.topics[1].num_partitions == three.realm.config.num_partitions
    alone = Deciding()
    alone.start(1)
    assert create(alone, topic()).topics[0].replication_factor == 1
    set_up = Deciding(cluster=ClusterConfig(replication_factor=2))
    set_up.start(1, 2, 3)
    assert create(set_up, topic()).topics[0].replication_factor == 2


def test_fenced_brokers_hold_partitions_only_if_needed(three: Deciding) -> None:
    three.heartbeat(2, want_fence=True)
    create(three, topic("a", 3, 2), topic("b", 1, 3))
    assert all(2 not in three.partition("a", number).replicas for number in range(3))
    partition = three.partition("b")
    assert sorted(partition.replicas) == [1, 2, 3]
    assert 2 not in partition.isr
    assert partition.leader in (1, 3)


def test_absent_brokers_count_for_the_default_replication_factor(three: Deciding) -> None:
    three.heartbeat(2, want_fence=True)
    assert create(three, topic("a")).topics[0].replication_factor == 3
    three.heartbeat(2)
    three.heartbeat(3, want_shut_down=True)
    assert create(three, topic("b")).topics[0].replication_factor == 3


def test_an_internal_topic_waits_for_the_brokers_of_all_voters() -> None:
    voters = {"controller.quorum.voters": "1@a:1,2@b:1,3@c:1"}
    cluster = Deciding(config=BrokerConfig().override(voters), node_id=1)
    cluster.start(1, 2)
    answer = create(cluster, topic(INTERNAL), topic("mine")).topics
    assert answer[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert answer[1].replication_factor == 2
    cluster.start(3)
    assert create(cluster, topic(INTERNAL)).topics[0].replication_factor == 3


def test_no_topic_is_created_without_an_active_broker() -> None:
    cluster = Deciding()
    assert create(cluster, topic()).topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    cluster.register(1)
    assert create(cluster, topic()).topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR


REFUSED = {
    "a name": (topic("no name"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "too many replicas": (topic(copies=4), ErrorCode.INVALID_REPLICATION_FACTOR),
    "no replica": (topic(copies=0), ErrorCode.INVALID_REPLICATION_FACTOR),
    "no partition": (topic(count=0), ErrorCode.INVALID_PARTITIONS),
    "too many partitions": (topic(count=10_001), ErrorCode.INVALID_PARTITIONS),
    "a setting": (topic(retention_mss="1"), ErrorCode.INVALID_CONFIG),
}


@pytest.mark.parametrize(("asked", "code"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_topic_is_refused(three: Deciding, asked: CreatableTopic, code: int) -> None:
    written = len(three.log)
    refused, made = create(three, asked, topic("good")).topics
    assert refused.error_code == code
    assert refused.error_message
    assert made.error_code == 0
    assert len(three.log) > written
    assert three.metadata.topic_names() == ["good"]


def test_a_topic_is_created_only_once(three: Deciding) -> None:
    twice = create(three, topic(), topic()).topics
    assert [each.error_code for each in twice] == [ErrorCode.INVALID_REQUEST] * 2
    three.create()
    assert create(three, topic()).topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_validate_only_creates_nothing(three: Deciding) -> None:
    written = len(three.log)
    found = create(three, topic(count=2), validate_only=True).topics[0]
    assert (found.error_code, found.num_partitions, found.topic_id) == (0, 2, ZERO_UUID)
    assert len(three.log) == written


def test_a_created_topic_reports_settings_and_their_sources(three: Deciding) -> None:
    answer = create(three, topic(retention_ms="7")).topics[0]
    assert three.metadata.config(TOPIC_RESOURCE, "t") == {"retention.ms": "7"}
    shown = {each.name: (each.value, each.config_source) for each in answer.configs or ()}
    assert shown["retention.ms"] == ("7", SettingSource.TOPIC)
    assert shown["segment.bytes"][1] == SettingSource.DEFAULT


ASSIGNED = {
    "a broker that is not there": [[1, 9]],
    "a broker twice": [[1, 1]],
    "no broker": [[]],
    "several numbers of replicas": [[1], [2, 3]],
}


@pytest.mark.parametrize("replicas", ASSIGNED.values(), ids=ASSIGNED)
def test_an_invalid_replica_assignment_is_refused(
    three: Deciding, replicas: list[list[int]]
) -> None:
    asked = topic()
    asked.assignments = [
        CreatableReplicaAssignment(partition_index=number, broker_ids=each)
        for number, each in enumerate(replicas)
    ]
    answer = create(three, asked).topics[0]
    assert answer.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_topic_is_deleted_by_name_or_by_id(three: Deciding) -> None:
    three.create("a")
    topic_id = three.create("b")
    three.create(INTERNAL)
    states = [DeleteTopicState(name="a"), DeleteTopicState(topic_id=topic_id)]
    others = [
        DeleteTopicState(name="a"),
        DeleteTopicState(name="c"),
        DeleteTopicState(topic_id=bytes(15) + b"\x09"),
        DeleteTopicState(name=INTERNAL),
        DeleteTopicState(name="a", topic_id=topic_id),
        DeleteTopicState(),
    ]
    answer = three.ask(DeleteTopicsRequest(topics=states + others), DeleteTopicsResponse, version=6)
    codes = [each.error_code for each in answer.responses]
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    unknown, internal = ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INVALID_TOPIC_EXCEPTION
    invalid = ErrorCode.INVALID_REQUEST
    assert codes == [0, 0, missing, missing, unknown, internal, invalid, invalid]
    assert answer.responses[1].name == "b"
    assert three.metadata.topic_names() == [INTERNAL]
    again = three.create("b")
    assert again != topic_id
    older = three.ask(DeleteTopicsRequest(topic_names=["b"]), DeleteTopicsResponse, version=5)
    assert older.responses[0].error_code == 0


def more(three: Deciding, count: int, *assigned: list[int], name: str = "t") -> int:
    wanted = CreatePartitionsTopic(name=name, count=count)
    if assigned:
        wanted.assignments = [CreatePartitionsAssignment(broker_ids=each) for each in assigned]
    else:
        wanted.assignments = None
    request = CreatePartitionsRequest(topics=[wanted])
    return three.ask(request, CreatePartitionsResponse).results[0].error_code


def test_added_partitions_continue_the_spread_of_the_topic(three: Deciding) -> None:
    three.create(partitions=2, copies=2)
    assert more(three, 6) == 0
    leaders = [three.partition("t", number).leader for number in range(6)]
    assert [(leader - leaders[0]) % 3 for leader in leaders] == [0, 1, 2, 0, 1, 2]
    assert all(len(three.partition("t", number).replicas) == 2 for number in range(6))


def test_invalid_partition_additions_are_refused(three: Deciding) -> None:
    three.create(partitions=2, copies=2)
    three.create(INTERNAL)
    assert more(three, 2) == ErrorCode.INVALID_PARTITIONS
    assert more(three, 10_001) == ErrorCode.INVALID_PARTITIONS
    assert more(three, 3, name="u") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert more(three, 99, name=INTERNAL) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert more(three, 3, [1], [2]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert more(three, 3, [1]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert more(three, 3, [1, 3]) == 0
    assert three.partition("t", 2).replicas == (1, 3)
