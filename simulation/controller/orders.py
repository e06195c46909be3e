"""Orders: what administrators and brokers ask of the controller in between, drawn by chance.

Some can't be meant: what is refused has to leave no trace. What the others change, every node has
to come to alike (Q7).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from streamlog.broker.quorum.metadata.cluster_metadata import (
    ALL_BROKERS,
    BROKER_RESOURCE,
    ClusterMetadata,
)
from streamlog.protocol.messages.broker_registration import (
    AllocateProducerIdsRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    UnregisterBrokerRequest,
)
from streamlog.protocol.messages.partitions_and_replicas import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    ElectedTopicPartitions,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
    ReassignablePartition,
    ReassignableTopic,
)
from streamlog.protocol.messages.sasl_acls_quotas import (
    AclCreation,
    AlterClientQuotasRequest,
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    QuotaAlteration,
    QuotaEntity,
    QuotaOperation,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from streamlog.protocol.messages.topics_and_configs import (
    AlterableConfig,
    AlterConfigsResource,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    IncrementalAlterConfigsRequest,
)
from streamlog.protocol.schema import Message

DIGEST_BYTES = {1: 32, 2: 64}
"""Of each SCRAM mechanism."""
TOPICS = ("a", "b")
OTHER = "c"
"""A topic whose replicas are where somebody wants them."""
USERS = ("ann", "bob", "")


def order(rng: Random, image: ClusterMetadata, brokers: list[int]) -> Message:
    """A request to a controller whose cluster looks like this."""
    return rng.choice(_ORDERS)(rng, image, brokers)


def _assigned(rng: Random, _: ClusterMetadata, brokers: list[int]) -> Message:
    assignments = [
        CreatableReplicaAssignment(partition_index=number, broker_ids=rng.sample([*brokers, 99], 3))
        for number in range(rng.choice((1, 2)))
    ]
    topic = CreatableTopic(
        name=OTHER,
        num_partitions=rng.choice((-1, -1, 3)),
        replication_factor=-1,
        assignments=assignments,
        configs=[CreatableTopicConfig(name="retention.ms", value=rng.choice(("1", "x", None)))],
    )
    return CreateTopicsRequest(topics=[topic], validate_only=rng.random() < 0.2)


def _refused(rng: Random, _: ClusterMetadata, __: list[int]) -> Message:
    topics = [
        CreatableTopic(name=name, num_partitions=count, replication_factor=copies)
        for name, count, copies in rng.sample(
            ((" ", 1, 1), ("d", 0, 1), ("d", -1, 9), ("d", 1, 0), ("a", 1, 3)), 3
        )
    ]
    return CreateTopicsRequest(topics=topics)


def _deleted(rng: Random, image: ClusterMetadata, _: list[int]) -> Message:
    topic = image.topic(OTHER)
    if topic is None or rng.random() < 0.3:
        return DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=rng.randbytes(16))])
    return DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=topic.topic_id)] * 2)


def _more(rng: Random, image: ClusterMetadata, brokers: list[int]) -> Message:
    topic = image.topic(OTHER)
    count = rng.randint(1, 4) if topic is None else len(topic.partitions) + 1
    assignments = [
        CreatePartitionsAssignment(broker_ids=rng.sample(brokers, 3))
        for _ in range(rng.choice((1, 1, 2)))
    ]
    wanted = CreatePartitionsTopic(name=OTHER, count=count, assignments=assignments)
    return CreatePartitionsRequest(topics=[wanted])


def _moved_where_it_cannot_be(rng: Random, _: ClusterMetadata, brokers: list[int]) -> Message:
    target = rng.choice(([], [99], [brokers[0]] * 2, brokers[:3]))
    partitions = [
        ReassignablePartition(partition_index=each, replicas=target)
        for each in rng.choice(((0, 0), (0, 7)))
    ]
    name = rng.choice((*TOPICS, "nowhere"))
    return AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=name, partitions=partitions)]
    )


def _listed(rng: Random, _: ClusterMetadata, __: list[int]) -> Message:
    asked = [ListPartitionReassignmentsTopics(name=rng.choice(TOPICS), partition_indexes=[0, 1])]
    return ListPartitionReassignmentsRequest(topics=rng.choice((None, asked)))


def _elected(rng: Random, _: ClusterMetadata, __: list[int]) -> Message:
    wanted = [
        ElectedTopicPartitions(topic=name, partitions=[0, 1, 9]) for name in (*TOPICS, "nowhere")
    ]
    # Nobody orders an election that may lose records: those are in the lives whose settings do.
    return ElectLeadersRequest(election_type=rng.choice((0, 0, 2)), topic_partitions=wanted)


def _quota(rng: Random, _: ClusterMetadata, __: list[int]) -> Message:
    entity = [QuotaEntity(entity_type="user", entity_name=rng.choice((*USERS, None)))]
    key = rng.choice(("producer_byte_rate", "consumer_byte_rate", "speed"))
    operation = QuotaOperation(key=key, value=rng.randint(0, 3), remove=rng.random() < 0.4)
    return AlterClientQuotasRequest(entries=[QuotaAlteration(entity=entity, ops=[operation])])


def _user(rng: Random, _: ClusterMetadata, __: list[int]) -> Message:
    name, mechanism = rng.choice(USERS), rng.randint(1, 3)
    if rng.random() < 0.4:
        gone = ScramCredentialDeletion(name=name, mechanism=mechanism)
        return AlterUserScramCredentialsRequest(deletions=[gone])
    salt, salted = rng.randbytes(4), rng.randbytes(rng.choice((32, 64)))
    is_empty = len(salted) != DIGEST_BYTES.get(mechanism)
    made = ScramCredentialUpsertion(
        name=name,
        mechanism=mechanism,
        iterations=4096,
        salt=salt,
        salted_password=b"" if is_empty else salted,  # An empty one is refused.
    )
    return AlterUserScramCredentialsRequest(upsertions=[made])


def _acl(rng: Random, _: ClusterMetadata, __: list[int]) -> Message:
    creation = AclCreation(
        resource_type=rng.choice((2, 9)),
        resource_name=rng.choice(TOPICS),
        principal="User:ann",
        host=rng.choice(("*", "*", "")),
        operation=rng.choice((3, 4)),
        permission_type=3,
    )
    return CreateAclsRequest(creations=[creation])


def _no_acl(rng: Random, _: ClusterMetadata, __: list[int]) -> Message:
    wanted = DeleteAclsFilter(
        resource_type_filter=rng.choice((2, 9)), operation=rng.choice((1, 3)), permission_type=1
    )
    wanted.resource_name_filter = rng.choice((*TOPICS, None))
    wanted.principal_filter = wanted.host_filter = None
    return DeleteAclsRequest(filters=[wanted])


def _setting(rng: Random, _: ClusterMetadata, brokers: list[int]) -> Message:
    name = rng.choice(("log.retention.ms", "log.segment.bytes", "log.speed"))
    config = AlterableConfig(
        name=name, config_operation=rng.choice((0, 1, 7)), value=rng.choice(("2000", "x"))
    )
    resource = AlterConfigsResource(
        resource_type=rng.choice((BROKER_RESOURCE, 9)),
        resource_name=rng.choice((ALL_BROKERS, str(brokers[0]))),
        configs=[config],
    )
    return IncrementalAlterConfigsRequest(resources=[resource])


def _producer_ids(rng: Random, image: ClusterMetadata, brokers: list[int]) -> Message:
    broker = image.brokers.get(rng.choice(brokers))
    if broker is None or rng.random() < 0.2:
        return AllocateProducerIdsRequest(broker_id=brokers[0], broker_epoch=0)
    return AllocateProducerIdsRequest(broker_id=broker.broker_id, broker_epoch=broker.epoch)


def _strangers(rng: Random, _: ClusterMetadata, brokers: list[int]) -> Message:
    """Brokers that are of another cluster, not who they say, or not there."""
    return rng.choice(
        (
            BrokerRegistrationRequest(broker_id=brokers[0], cluster_id="other"),
            BrokerHeartbeatRequest(broker_id=99),
            BrokerHeartbeatRequest(broker_id=brokers[0], broker_epoch=0),
            UnregisterBrokerRequest(broker_id=99),
        )
    )


_ORDERS: tuple[Callable[[Random, ClusterMetadata, list[int]], Message], ...] = (
    _assigned,
    _assigned,
    _refused,
    _deleted,
    _more,
    _moved_where_it_cannot_be,
    _listed,
    _elected,
    _quota,
    _quota,
    _user,
    _user,
    _acl,
    _no_acl,
    _setting,
    _producer_ids,
    _strangers,
)
