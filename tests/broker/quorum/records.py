"""Random histories of the metadata log, in which each record fits the ones before it."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from streamlog.broker.quorum.metadata.cluster_metadata import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    ClusterMetadata,
    acl_record,
    credential_record,
    quota_record,
)
from streamlog.broker.quorum.metadata.metadata_records import MetadataRecord
from streamlog.broker.quorum.metadata.mirror_topics import MirrorState
from streamlog.broker.quorum.metadata.topic_seals import SealState
from streamlog.broker.security.acl_authorizer import AclRule
from streamlog.protocol.acls import Operation, Pattern, Permission, ResourceType
from streamlog.protocol.messages.metadata_log import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    LinkSetting,
    MirrorEra,
    MirrorLinkRecord,
    MirrorTopicRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveMirrorLinkRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    TopicSealRecord,
    UnregisterBrokerRecord,
    UserSecretRecord,
)
from streamlog.protocol.scram import ScramCredential, ScramMechanism

BROKERS = (1, 2, 3, 4)
NAMES = ("orders", "users", "clicks")

Draw = Callable[[st.SearchStrategy[object]], object]


@st.composite
def histories(draw: st.DrawFn) -> list[MetadataRecord]:
    """Draw a log as controllers could have written it."""
    image = ClusterMetadata()
    records: list[MetadataRecord] = []
    for _ in range(draw(st.integers(0, 40))):
        kind = draw(st.sampled_from(KINDS))
        record = kind(draw, image)
        if record is not None:
            image.replay(record, len(records))
            records.append(record)
    return records


def _some_broker(draw: st.DrawFn, image: ClusterMetadata) -> int | None:
    return draw(st.sampled_from(sorted(image.brokers))) if image.brokers else None


def _some_topic(draw: st.DrawFn, image: ClusterMetadata) -> bytes | None:
    return draw(st.sampled_from(sorted(image.topics))) if image.topics else None


def _register(draw: st.DrawFn, _: ClusterMetadata) -> MetadataRecord:
    return RegisterBrokerRecord(
        broker_id=draw(st.sampled_from(BROKERS)),
        broker_epoch=-1,
        incarnation_id=draw(st.binary(min_size=16, max_size=16)),
        end_points=[BrokerEndpoint(name="PLAINTEXT", host="b", port=draw(st.integers(0, 65535)))],
        features=[BrokerFeature(name="transaction.version", max_supported_version=2)],
        rack=draw(st.none() | st.sampled_from(("a", "b"))),
        log_dirs=[draw(st.binary(min_size=16, max_size=16))],
    )


def _unregister(draw: st.DrawFn, image: ClusterMetadata) -> MetadataRecord | None:
    broker = _some_broker(draw, image)
    if broker is None:
        return None
    return UnregisterBrokerRecord(broker_id=broker, broker_epoch=image.brokers[broker].epoch)


def _change_broker(draw: st.DrawFn, image: ClusterMetadata) -> MetadataRecord | None:
    broker = _some_broker(draw, image)
    if broker is None:
        return None
    return BrokerRegistrationChangeRecord(
        broker_id=broker,
        broker_epoch=image.brokers[broker].epoch,
        fenced=draw(st.sampled_from((-1, 0, 1))),
        in_controlled_shutdown=draw(st.sampled_from((0, 1))),
    )


def _create_topic(draw: st.DrawFn, image: ClusterMetadata) -> MetadataRecord | None:
    left = [name for name in NAMES if image.topic(name) is None]
    if not left:
        return None
    # Controllers give out no id twice, also not that of a topic that is gone.
    unique = (image.offset + 1).to_bytes(4, "big")
    topic_id = draw(st.binary(min_size=12, max_size=12)) + unique
    return TopicRecord(name=draw(st.sampled_from(left)), topic_id=topic_id)


def _remove_topic(draw: st.DrawFn, image: ClusterMetadata) -> MetadataRecord | None:
    topic = _some_topic(draw, image)
    return None if topic is None else RemoveTopicRecord(topic_id=topic)


def _replicas(draw: st.DrawFn) -> list[int]:
    return list(draw(st.lists(st.sampled_from(BROKERS), min_size=1, max_size=3, unique=True)))


def _put_partition(draw: st.DrawFn, image: ClusterMetadata) -> MetadataRecord | None:
    topic = _some_topic(draw, image)
    if topic is None:
        return None
    replicas = _replicas(draw)
    return PartitionRecord(
        partition_id=len(image.topics[topic].partitions),
        topic_id=topic,
        replicas=replicas,
        isr=replicas,
        leader=replicas[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=[bytes(16) for _ in replicas],
    )


def _change_partition(draw: st.DrawFn, image: ClusterMetadata) -> MetadataRecord | None:
    topic = _some_topic(draw, image)
    if topic is None or not image.topics[topic].partitions:
        return None
    some = st.none() | st.lists(st.sampled_from(BROKERS), max_size=3, unique=True)
    return PartitionChangeRecord(
        partition_id=draw(st.sampled_from(sorted(image.topics[topic].partitions))),
        topic_id=topic,
        isr=draw(some),
        leader=draw(st.sampled_from((-2, -1, *BROKERS))),
        replicas=draw(some),
        adding_replicas=draw(some),
        removing_replicas=draw(some),
        eligible_leader_replicas=draw(some),
        is_unclean=draw(st.booleans()),
        least_leader_epoch=draw(st.sampled_from((-1, 3, 1 << 14))),
    )


def _configure(draw: st.DrawFn, image: ClusterMetadata) -> MetadataRecord:
    topics = [(TOPIC_RESOURCE, name) for name in image.topic_names()]
    kind, resource = draw(st.sampled_from([(BROKER_RESOURCE, ""), (BROKER_RESOURCE, "1"), *topics]))
    return ConfigRecord(
        resource_type=kind,
        resource_name=resource,
        name=draw(st.sampled_from(("retention.ms", "segment.bytes"))),
        value=draw(st.none() | st.sampled_from(("1", "2"))),
    )


def _take_producer_ids(draw: st.DrawFn, image: ClusterMetadata) -> MetadataRecord:
    return ProducerIdsRecord(
        broker_id=draw(st.sampled_from(BROKERS)), next_producer_id=image.next_producer_id + 1000
    )


def _set_quota(draw: st.DrawFn, _: ClusterMetadata) -> MetadataRecord:
    name = draw(st.none() | st.sampled_from(("ann", "bob")))
    rate = draw(st.none() | st.integers(1, 2**50))
    return quota_record((("user", name),), "producer_byte_rate", rate)


def _keep_credential(draw: st.DrawFn, _: ClusterMetadata) -> MetadataRecord:
    mechanism = draw(st.sampled_from(ScramMechanism))
    key = draw(st.binary(min_size=1, max_size=4))
    credential = ScramCredential(
        mechanism=mechanism, salt=key, iterations=4096, stored_key=key, server_key=key
    )
    return credential_record(draw(st.sampled_from(("ann", "bob"))), credential)


def _forget_credential(draw: st.DrawFn, image: ClusterMetadata) -> MetadataRecord | None:
    users = image.users()
    there = [(name, mechanism) for name in users.names for mechanism in users.of(name)]
    if not there:
        return None
    name, mechanism = draw(st.sampled_from(there))
    return RemoveUserScramCredentialRecord(name=name, mechanism=mechanism)


def _add_acl(draw: st.DrawFn, _: ClusterMetadata) -> MetadataRecord:
    return acl_record(
        AclRule(
            resource_type=ResourceType.TOPIC,
            name=draw(st.sampled_from(NAMES)),
            pattern=Pattern.LITERAL,
            principal="User:ann",
            host="*",
            operation=draw(st.sampled_from((Operation.READ, Operation.WRITE))),
            permission=Permission.ALLOW,
        )
    )


def _remove_acl(draw: st.DrawFn, image: ClusterMetadata) -> MetadataRecord | None:
    ids = sorted(acl_record(acl).id for acl in image.acls().all)
    return RemoveAccessControlEntryRecord(id=draw(st.sampled_from(ids))) if ids else None


def _keep_secret(draw: st.DrawFn, _: ClusterMetadata) -> MetadataRecord:
    return UserSecretRecord(secret=draw(st.binary(min_size=1, max_size=4)))


def _put_link(draw: st.DrawFn, image: ClusterMetadata) -> MetadataRecord:
    name = draw(st.sampled_from(("east", "west")))
    known = image.link(name)
    unique = (image.offset + 1).to_bytes(16, "big")
    return MirrorLinkRecord(
        link_id=unique if known is None else known.link_id,
        name=name,
        source_cluster_id="other",
        settings=[LinkSetting(name="topics", value=draw(st.sampled_from(("a", "b"))))],
    )


def _remove_link(draw: st.DrawFn, image: ClusterMetadata) -> MetadataRecord | None:
    links = sorted(image.links)
    return RemoveMirrorLinkRecord(link_id=draw(st.sampled_from(links))) if links else None


STRAYS = st.lists(st.integers(0, 2**31 - 1), max_size=2)


def _put_mirror(draw: st.DrawFn, image: ClusterMetadata) -> MetadataRecord | None:
    topic = _some_topic(draw, image)
    if topic is None:
        return None
    return MirrorTopicRecord(
        topic_id=topic,
        link_id=draw(st.binary(min_size=16, max_size=16)),
        source_topic=draw(st.sampled_from(NAMES)),
        source_topic_id=draw(st.binary(min_size=16, max_size=16)),
        state=draw(st.sampled_from(MirrorState)),
        reason=draw(st.sampled_from(("", "deleted at the source"))),
        since_ms=draw(st.integers(0, 2**40)),
        eras=[MirrorEra(cluster_id="other", leader_epoch=0)],
        attempt=draw(st.integers(0, 2**40)),
        strays=[MirrorEra(cluster_id="here", leader_epoch=each) for each in draw(STRAYS)],
    )


def _put_seal(draw: st.DrawFn, image: ClusterMetadata) -> MetadataRecord | None:
    topic = _some_topic(draw, image)
    if topic is None:
        return None
    return TopicSealRecord(
        topic_id=topic,
        state=draw(st.sampled_from(SealState)),
        target_cluster_id=draw(st.sampled_from(("other", "third"))),
        attempt=draw(st.integers(0, 2**40)),
        since_ms=draw(st.integers(0, 2**40)),
    )


def _nothing(_: st.DrawFn, __: ClusterMetadata) -> MetadataRecord:
    return NoOpRecord()


KINDS: tuple[Callable[[st.DrawFn, ClusterMetadata], MetadataRecord | None], ...] = (
    _register,
    _unregister,
    _change_broker,
    _create_topic,
    _remove_topic,
    _put_partition,
    _change_partition,
    _configure,
    _take_producer_ids,
    _set_quota,
    _keep_credential,
    _forget_credential,
    _add_acl,
    _remove_acl,
    _keep_secret,
    _put_link,
    _remove_link,
    _put_mirror,
    _put_seal,
    _nothing,
)
