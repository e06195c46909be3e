"""The controller: settings, quotas, users, ACLs, ids, and invariants of all decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.quorum.controller import config_control
from streamlog.broker.quorum.metadata.cluster_metadata import (
    ALL_BROKERS,
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    ClusterMetadata,
    PartitionChanged,
)
from streamlog.broker.quorum.metadata.metadata_records import decode_record
from streamlog.broker.quorum.metadata.registrations import NO_LEADER
from streamlog.errors import UsageError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.broker_registration import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    BrokerHeartbeatResponse,
)
from streamlog.protocol.messages.sasl_acls_quotas import (
    AclCreation,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DeleteAclsResponse,
    QuotaAlteration,
    QuotaEntity,
    QuotaOperation,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from streamlog.protocol.messages.topics_and_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tests.broker.quorum.deciding import Deciding

SECURED = BrokerConfig(security=SecurityConfig(authorizer="standard"))


def alter(
    cluster: Deciding, kind: int, name: str, *changes: tuple[str, int, str | None]
) -> IncrementalAlterConfigsResponse:
    configs = [
        AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource])
    return cluster.ask(request, IncrementalAlterConfigsResponse)


@pytest.fixture
def one() -> Deciding:
    cluster = Deciding(node_id=1, config=SECURED)
    cluster.start(1)
    cluster.create()
    return cluster


# ---- settings ----


def test_settings_of_topics_and_brokers_are_altered(one: Deciding) -> None:
    assert alter(one, TOPIC_RESOURCE, "t", ("retention.ms", 0, "5")).responses[0].error_code == 0
    alter(one, BROKER_RESOURCE, ALL_BROKERS, ("log.retention.ms", 0, "6"))
    alter(one, BROKER_RESOURCE, "1", ("log.segment.bytes", 0, "2048"))
    assert one.metadata.config(TOPIC_RESOURCE, "t") == {"retention.ms": "5"}
    assert one.metadata.config(BROKER_RESOURCE, ALL_BROKERS) == {"log.retention.ms": "6"}
    config = one.realm.node_config()
    assert (config.topic.retention_ms, config.topic.segment_bytes) == (6, 2048)
    alter(one, TOPIC_RESOURCE, "t", ("retention.ms", 1, None))
    assert one.metadata.config(TOPIC_RESOURCE, "t") == {}


def test_unknown_settings_are_refused_with_a_suggestion(one: Deciding) -> None:
    written = len(one.log)
    bad = alter(one, TOPIC_RESOURCE, "t", ("retention.mss", 0, "5"), ("segment.ms", 0, "5"))
    assert bad.responses[0].error_code == ErrorCode.INVALID_CONFIG
    assert "retention.ms" in (bad.responses[0].error_message or "")
    absent = alter(one, BROKER_RESOURCE, "9", ("log.retention.ms", 0, "6")).responses[0]
    assert absent.error_code == ErrorCode.INVALID_REQUEST
    missing = alter(one, TOPIC_RESOURCE, "u", ("retention.ms", 0, "6")).responses[0]
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    twice = alter(one, TOPIC_RESOURCE, "t", ("retention.ms", 0, "6"), ("retention.ms", 0, "7"))
    assert twice.responses[0].error_code == ErrorCode.INVALID_REQUEST
    assert len(one.log) == written


def test_eligible_replicas_stay_eligible_while_none_is_in_sync() -> None:
    cluster = Deciding()
    cluster.start(1, 2, 3)
    topic = cluster.create(replicas=[[1, 2, 3]])
    for broker in (1, 2, 3):
        cluster.silence(broker)
    cluster.register(3, damaged={topic: [0]})
    before = cluster.partition()
    assert (before.leader, before.isr, before.elr) == (NO_LEADER, (), (2,))
    alter(cluster, TOPIC_RESOURCE, "t", ("min.insync.replicas", 0, "1"))
    cluster.heartbeat(2)
    assert (cluster.partition().leader, cluster.partition().isr) == (2, (2,))
    assert cluster.partition().last_unclean_epoch == -1


def test_lowering_min_insync_replicas_clears_the_eligible_replicas() -> None:
    cluster = Deciding()
    cluster.start(1, 2, 3)
    cluster.create(replicas=[[1, 2, 3]])
    cluster.propose([1])
    assert cluster.partition().elr == (2, 3)
    alter(cluster, TOPIC_RESOURCE, "t", ("min.insync.replicas", 0, "1"))
    assert cluster.partition().elr == ()
    alter(cluster, BROKER_RESOURCE, ALL_BROKERS, ("min.insync.replicas", 0, "3"))
    cluster.silence(1)
    assert (cluster.partition().leader, cluster.partition().isr) == (-1, (1,))
    assert alter(cluster, TOPIC_RESOURCE, "t", ("min.insync.replicas", 1, None))
    assert cluster.realm.min_insync("t", 3) == 3
    assert cluster.realm.min_insync("t", 1) == 1


def test_a_topic_may_allow_unclean_elections() -> None:
    cluster = Deciding()
    cluster.start(1, 2)
    cluster.create(replicas=[[1, 2]], configs={"unclean.leader.election.enable": "true"})
    cluster.propose([1])
    cluster.silence(1)
    partition = cluster.partition()
    assert (partition.leader, partition.isr, partition.last_unclean_epoch) == (2, (2,), 1)


# ---- quotas, users, ACLs, producer ids ----


def quota(rate: float, name: str | None = "ann", key: str = "producer_byte_rate") -> Any:
    return QuotaAlteration(
        entity=[QuotaEntity(entity_type="user", entity_name=name)],
        ops=[QuotaOperation(key=key, value=rate, remove=rate < 0)],
    )


def test_quotas_are_set_and_removed(one: Deciding) -> None:
    entity = (("user", "ann"),)

    def ask(*entries: QuotaAlteration) -> list[int]:
        request = AlterClientQuotasRequest(entries=list(entries))
        answer = one.ask(request, AlterClientQuotasResponse)
        return [each.error_code for each in answer.entries]

    assert ask(quota(10), quota(20, None)) == [0, 0]
    assert one.metadata.quotas().of(entity) == {"producer_byte_rate": 10}
    assert ask(quota(10, key="speed"), quota(-1)) == [ErrorCode.INVALID_REQUEST] * 2
    assert ask(quota(-1)) == [0]
    assert one.metadata.quotas().of(entity) == {}
    assert len(one.metadata.quotas()) == 1


def test_a_refused_quota_does_not_count_towards_the_maximum(
    one: Deciding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_control, "QUOTAS_MAX", 1)
    request = AlterClientQuotasRequest(
        entries=[quota(10, "ann"), quota(10, "bob"), quota(-1, "zoe")]
    )
    answer = one.ask(request, AlterClientQuotasResponse)
    codes = [each.error_code for each in answer.entries]
    assert codes == [0, ErrorCode.POLICY_VIOLATION, 0]


def test_users_are_created_and_deleted(one: Deciding) -> None:
    made = ScramCredentialUpsertion(
        name="ann", mechanism=1, iterations=4096, salt=b"salt", salted_password=bytes(32)
    )
    gone = ScramCredentialDeletion(name="ann", mechanism=1)

    def ask(**changes: Any) -> list[int]:
        request = AlterUserScramCredentialsRequest(**changes)
        answer = one.ask(request, AlterUserScramCredentialsResponse)
        return [each.error_code for each in answer.results]

    assert ask(deletions=[gone]) == [ErrorCode.RESOURCE_NOT_FOUND]
    assert ask(upsertions=[made]) == [0]
    assert one.metadata.users().names == ["ann"]
    assert ask(deletions=[gone]) == [0]
    assert one.metadata.users().names == []


def test_the_secret_for_unknown_users_is_drawn_once(one: Deciding) -> None:
    secret = one.metadata.user_secret
    assert len(secret) == 32
    one.take_over()
    assert one.metadata.user_secret == secret


READ = AclCreation(
    resource_type=2,
    resource_name="t",
    principal="User:ann",
    host="*",
    operation=3,
    permission_type=3,
)


def test_acls_are_created_once_and_deleted_by_filter(one: Deciding) -> None:
    no_host = AclCreation(
        resource_type=2, resource_name="t", principal="User:ann", operation=3, permission_type=3
    )
    request = CreateAclsRequest(creations=[READ, READ, no_host])
    answer = one.ask(request, CreateAclsResponse)
    codes = [each.error_code for each in answer.results]
    assert codes == [0, 0, ErrorCode.INVALID_REQUEST]
    assert len(one.metadata.acls().all) == 1
    written = len(one.log)
    one.ask(CreateAclsRequest(creations=[READ]), CreateAclsResponse)
    assert len(one.log) == written
    wanted = DeleteAclsFilter(resource_type_filter=2, operation=1, permission_type=1)
    wanted.resource_name_filter = wanted.principal_filter = wanted.host_filter = None
    gone = one.ask(DeleteAclsRequest(filters=[wanted, wanted]), DeleteAclsResponse)
    assert [len(each.matching_acls) for each in gone.filter_results] == [1, 1]
    assert one.metadata.acls().all == frozenset()


def test_without_an_authorizer_acl_requests_are_refused() -> None:
    cluster = Deciding()
    answer = cluster.ask(CreateAclsRequest(creations=[READ]), CreateAclsResponse)
    assert answer.results[0].error_code == ErrorCode.SECURITY_DISABLED


def test_no_producer_id_is_allocated_twice(one: Deciding) -> None:
    given_out: set[int] = set()
    for _ in range(3):
        request = AllocateProducerIdsRequest(
            broker_id=1, broker_epoch=one.metadata.brokers[1].epoch
        )
        answer = one.ask(request, AllocateProducerIdsResponse)
        block = range(answer.producer_id_start, answer.producer_id_start + answer.producer_id_len)
        assert not given_out & {*block}
        given_out |= {*block}
        one.take_over()
    stale = AllocateProducerIdsRequest(broker_id=1, broker_epoch=0)
    refused = one.ask(stale, AllocateProducerIdsResponse)
    assert refused.error_code == ErrorCode.STALE_BROKER_EPOCH


def test_producer_ids_of_clusters_are_far_apart_and_positive() -> None:
    first = set()
    for number in range(200):
        cluster = Deciding(cluster_id=f"cluster {number}")
        cluster.start(1)
        request = AllocateProducerIdsRequest(
            broker_id=1, broker_epoch=cluster.metadata.brokers[1].epoch
        )
        first.add(cluster.ask(request, AllocateProducerIdsResponse).producer_id_start)
    assert len(first) == 200
    assert all(2**32 <= each <= 2**63 - 2**32 and not each % 2**32 for each in first)


def test_the_controller_rejects_messages_that_are_not_its_requests(one: Deciding) -> None:
    with pytest.raises(UsageError):
        one.controller.decide(BrokerHeartbeatResponse(), 0, 0)
    assert CreateAclsRequest in one.controller.requests


# ---- invariants of all decisions ----

BROKERS = (1, 2, 3)
KINDS = ("start", "restart", "wipe", "beat", "silence", "leave", "create", "isr", "over")
events = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.sampled_from(BROKERS),
        st.integers(0, 7),
    ),
    max_size=25,
)


def _restart(cluster: Deciding, broker: int) -> None:
    known = cluster.metadata.brokers.get(broker)
    cluster.register(broker, previous_epoch=-1 if known is None else known.epoch)


def _start(cluster: Deciding, broker: int) -> None:
    cluster.register(broker)
    cluster.heartbeat(broker)


def _create(cluster: Deciding, number: int) -> None:
    if cluster.realm.active() and cluster.metadata.topic(f"t{number}") is None:
        cluster.create(f"t{number}", partitions=2, copies=-1)


EVENTS: dict[str, Callable[[Deciding, int, int], object]] = {
    "start": lambda cluster, broker, _: _start(cluster, broker),
    "restart": lambda cluster, broker, _: _restart(cluster, broker),
    "wipe": lambda cluster, broker, number: cluster.register(broker, directory=number),
    "beat": lambda cluster, broker, _: cluster.heartbeat(broker),
    "silence": lambda cluster, broker, _: cluster.silence(broker),
    "leave": lambda cluster, broker, _: cluster.heartbeat(broker, want_shut_down=True),
    "create": lambda cluster, _, number: _create(cluster, number),
    "isr": lambda cluster, _, number: _propose(cluster, number),
    "over": lambda cluster, _, __: cluster.take_over(),
}


def _propose(cluster: Deciding, number: int) -> None:
    """Let each leader propose the replicas that the bits of `number` select."""
    for name in cluster.metadata.topic_names():
        partition = cluster.partition(name)
        if partition.leader >= 0:
            picked = [each for each in partition.replicas if number >> (each - 1) & 1]
            cluster.propose(sorted({partition.leader, *picked}), name)


@settings(max_examples=60)
@given(events)
def test_a_replay_of_the_log_restores_the_metadata(history: list[tuple[Any, ...]]) -> None:
    cluster = Deciding()
    for what, broker, number in history:
        EVENTS[what](cluster, broker, number)
        assert cluster.controller.on_tick(cluster.now_ms) is None
    cold = cluster.replayed()
    assert cold.digest() == cluster.metadata.digest()
    again = ClusterMetadata.of_snapshot(cold.snapshot(), cold.offset)
    assert again.digest() == cold.digest()


@settings(max_examples=60)
@given(events)
def test_each_epoch_has_one_live_in_sync_leader(history: list[tuple[Any, ...]]) -> None:
    cluster = Deciding()
    for what, broker, number in history:
        EVENTS[what](cluster, broker, number)
    image = ClusterMetadata()
    leaders: dict[tuple[bytes, int, int], int] = {}
    for offset, value in enumerate(cluster.log):
        change = image.replay(decode_record(value), offset)
        if not isinstance(change, PartitionChanged):
            continue
        now = change.after
        led_epoch = change.topic_id, change.partition, now.leader_epoch
        assert leaders.setdefault(led_epoch, now.leader) == now.leader
        assert now.leader < 0 or now.leader in now.isr
    active = cluster.realm.active()
    for _, _, partition in cluster.metadata.partitions():
        assert partition.leader < 0 or partition.leader in active
        assert partition.leader >= 0 or not active & {*partition.isr, *partition.elr}
        in_sync = {*partition.isr} - active
        assert len(partition.isr) <= 1 or not in_sync
