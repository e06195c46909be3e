"""Links and mirror topics, as the controller decides on them."""

from __future__ import annotations

import pytest

from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.named_topics import MIRRORED_LOGS
from streamlog.broker.quorum.metadata.mirror_topics import ERA_BITS, LogEra, MirrorState
from streamlog.broker.replication.replica_state import CutOf
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.metadata_log import LinkSetting, MarkedPartition, MirrorCut
from streamlog.protocol.messages.mirror_messages import (
    AlterableMirror,
    AlterLinkRequest,
    AlterLinkResponse,
    AlterMirrorPartitionRequest,
    AlterMirrorPartitionResponse,
    AlterMirrorsRequest,
    AlterMirrorsResponse,
    ChangedLinkSetting,
    CreatableMirror,
    CreateLinkRequest,
    CreateLinkResponse,
    CreateMirrorsRequest,
    CreateMirrorsResponse,
    DeleteLinkRequest,
    DeleteLinkResponse,
    FailBackRequest,
    FailBackResponse,
    MarkAppsRequest,
    MarkAppsResponse,
    MirrorResult,
)
from streamlog.protocol.messages.partitions_and_replicas import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from streamlog.protocol.messages.topics_and_configs import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tests.broker.quorum.deciding import CLUSTER_ID, Deciding

SOURCE_ID = b"source-topic-id1"
WALL_MS = 1_700_000_000_000


@pytest.fixture
def cluster() -> Deciding:
    deciding = Deciding()
    deciding.start(1, 2, 3)
    return deciding


def link(cluster: Deciding, name: str = "east", source: str = "other") -> CreateLinkResponse:
    settings = [
        LinkSetting(name="bootstrap.servers", value="east:9092"),
        LinkSetting(name="topics", value="t.*"),
    ]
    request = CreateLinkRequest(name=name, source_cluster_id=source, settings=settings)
    return cluster.ask(request, CreateLinkResponse)


def mirror(
    cluster: Deciding,
    link_id: bytes,
    name: str = "t",
    *,
    partitions: int = 2,
    eras: tuple[LogEra, ...] = (),
    configs: list[CreatableTopicConfig] | None = None,
    follows: str = "",
) -> MirrorResult:
    """Create a mirror, or let a topic follow the source of the link that `follows` names."""
    asked = CreatableMirror(
        name=name,
        source_topic=name,
        source_topic_id=SOURCE_ID,
        num_partitions=partitions,
        configs=configs or [],
        eras=[each.field() for each in eras],
    )
    request = CreateMirrorsRequest(link_id=link_id, wall_ms=WALL_MS, topics=[asked])
    if follows:
        back = FailBackRequest(link=follows, wall_ms=WALL_MS, topics=[asked])
        (result,) = cluster.ask(back, FailBackResponse).topics
    else:
        (result,) = cluster.ask(request, CreateMirrorsResponse).topics
    return result


def alter(cluster: Deciding, state: int, name: str = "t", reason: str = "") -> MirrorResult:
    asked = AlterableMirror(name=name, state=state, reason=reason)
    request = AlterMirrorsRequest(wall_ms=WALL_MS + 1, topics=[asked])
    (result,) = cluster.ask(request, AlterMirrorsResponse).topics
    return result


def epochs(cluster: Deciding, name: str = "t") -> list[int]:
    topic = cluster.metadata.topic(name)
    assert topic is not None
    return [partition.leader_epoch for _, partition in sorted(topic.partitions.items())]


def state(cluster: Deciding, name: str = "t") -> tuple[MirrorState, tuple[LogEra, ...]]:
    topic = cluster.metadata.topic(name)
    assert topic is not None
    found = cluster.metadata.mirrors[topic.topic_id]
    return found.state, found.eras


def test_a_link_is_created_once_altered_and_deleted(cluster: Deciding) -> None:
    assert link(cluster).error_code == 0
    assert link(cluster).error_code == ErrorCode.DUPLICATE_RESOURCE
    own = link(cluster, "own", CLUSTER_ID)
    assert own.error_message is not None
    assert "leads to this cluster itself" in own.error_message
    changes = [
        ChangedLinkSetting(name="prefix", value="eu."),
        ChangedLinkSetting(name="topics", value=None),
    ]
    altered = cluster.ask(AlterLinkRequest(name="east", settings=changes), AlterLinkResponse)
    assert altered.error_code == 0
    found = cluster.metadata.link("east")
    assert found is not None
    assert found.settings == {"bootstrap.servers": "east:9092", "prefix": "eu."}
    assert cluster.ask(DeleteLinkRequest(name="east"), DeleteLinkResponse).error_code == 0
    gone = cluster.ask(DeleteLinkRequest(name="east"), DeleteLinkResponse)
    assert gone.error_message is not None
    assert gone.error_message.startswith("there is no link 'east': there are no links")
    assert cluster.replayed().digest() == cluster.metadata.digest()


def test_a_mirror_topic_belongs_to_its_link_until_it_is_promoted(cluster: Deciding) -> None:
    link_id = link(cluster).link_id
    assert mirror(cluster, link_id).error_code == 0
    assert state(cluster) == (MirrorState.ACTIVE, (LogEra("other", 0, SOURCE_ID),))
    refused = cluster.ask(DeleteLinkRequest(name="east"), DeleteLinkResponse)
    assert refused.error_message is not None
    assert "mirrors 1 topics, such as t" in refused.error_message
    deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])
    (kept,) = cluster.ask(deletion, DeleteTopicsResponse).responses
    assert kept.error_code == ErrorCode.POLICY_VIOLATION
    growth = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=3)])
    (small,) = cluster.ask(growth, CreatePartitionsResponse).results
    assert small.error_code == ErrorCode.POLICY_VIOLATION

    before = epochs(cluster)
    assert alter(cluster, MirrorState.PROMOTED).error_code == 0
    promoted, eras = state(cluster)
    assert promoted is MirrorState.PROMOTED
    assert [each.cluster_id for each in eras] == ["other", CLUSTER_ID]
    # All partitions begin the era in one epoch, above all epochs of the source's era.
    assert epochs(cluster) == [eras[1].leader_epoch] * 2
    assert eras[1].leader_epoch >= 1 << ERA_BITS > max(before)
    again = alter(cluster, MirrorState.PAUSED)
    assert again.error_message is not None
    assert again.error_message.startswith("t was promoted before")
    assert cluster.ask(DeleteLinkRequest(name="east"), DeleteLinkResponse).error_code == 0
    (gone,) = cluster.ask(deletion, DeleteTopicsResponse).responses
    assert gone.error_code == 0
    assert not cluster.metadata.mirrors
    assert cluster.replayed().digest() == cluster.metadata.digest()


def test_the_partitions_of_the_source_are_followed(cluster: Deciding) -> None:
    link_id = link(cluster).link_id
    mirror(cluster, link_id)
    assert mirror(cluster, link_id, partitions=5).error_code == 0
    assert len(epochs(cluster)) == 5
    other = link(cluster, "west", "third").link_id
    assert mirror(cluster, other).error_message == "t is a mirror of another topic already"


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ((MirrorState.PAUSED, MirrorState.ACTIVE), MirrorState.ACTIVE),
        ((MirrorState.STOPPED,), MirrorState.PAUSED),
        ((), 9),
    ],
)
def test_states_change_as_far_as_they_can(
    cluster: Deciding, path: tuple[MirrorState, ...], refused: int
) -> None:
    mirror(cluster, link(cluster).link_id)
    before = epochs(cluster)
    for each in path:
        assert alter(cluster, each, reason="why").error_code == 0
        assert state(cluster)[0] is each
    # What leaders copy is not theirs to lose by a pause: the leader epoch stays.
    assert epochs(cluster) == before
    result = alter(cluster, refused)
    is_same = bool(path) and refused == path[-1]
    assert result.error_code == (0 if is_same else ErrorCode.INVALID_REQUEST)


def test_a_topic_follows_the_cluster_that_was_promoted(cluster: Deciding) -> None:
    cluster.create(partitions=2)
    before = epochs(cluster)
    link_id = link(cluster).link_id
    foreign = mirror(cluster, link_id, follows="east")
    assert foreign.error_message is not None
    assert "another history" in foreign.error_message
    own = cluster.metadata.topic("t")
    assert own is not None
    # Created again after the other cluster had mirrored it: equal epochs, other records.
    again = (LogEra(CLUSTER_ID, 0, b"another topic id"), LogEra("other", 5 << ERA_BITS))
    recreated = mirror(cluster, link_id, eras=again, follows="east")
    assert recreated.error_message is not None
    assert "another history" in recreated.error_message
    eras = (LogEra(CLUSTER_ID, 0, own.topic_id), LogEra("other", 5 << ERA_BITS))
    few = mirror(cluster, link_id, eras=eras, partitions=3, follows="east")
    assert few.error_code == ErrorCode.INVALID_PARTITIONS
    # A pattern that matches its name is not enough: producers would be refused by accident.
    refused = mirror(cluster, link_id, eras=eras)
    assert refused.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert "`streamlog mirror fail-back east`" in (refused.error_message or "")
    assert epochs(cluster) == before
    assert mirror(cluster, link_id, "none", follows="east").error_code == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert mirror(cluster, link_id, eras=eras, follows="east").error_code == 0
    # The request is repeated when its answer was lost.
    assert mirror(cluster, link_id, eras=eras, follows="east").error_code == 0
    assert state(cluster) == (MirrorState.ACTIVE, eras)
    # Leaders that serve producers must not go on: each begins a new epoch.
    assert epochs(cluster) == [each + 1 for each in before]
    assert alter(cluster, MirrorState.PROMOTED).error_code == 0
    assert epochs(cluster)[0] > 5 << ERA_BITS


def test_only_replicas_in_sync_may_lead_a_promoted_topic(cluster: Deciding) -> None:
    """Life 1003 of the simulation: a mirror that began anew was taken over by a shorter log."""
    configs = [CreatableTopicConfig(name="min.insync.replicas", value="2")]
    mirror(cluster, link(cluster).link_id, partitions=1, configs=configs)
    leader = cluster.partition().leader
    cluster.propose([leader])
    assert len(cluster.partition().elr) > 0
    assert alter(cluster, MirrorState.PROMOTED).error_code == 0
    assert (cluster.partition().isr, cluster.partition().elr) == ((leader,), ())


def test_partitions_that_a_promoted_topic_gets_begin_in_its_era(cluster: Deciding) -> None:
    """Life 1052 of the simulation: both clusters added one, and gave it records in epoch 0."""
    mirror(cluster, link(cluster).link_id, partitions=1)
    assert alter(cluster, MirrorState.PROMOTED).error_code == 0
    asked = CreatePartitionsTopic(name="t", count=2, assignments=None)
    growth = CreatePartitionsRequest(topics=[asked])
    (grown,) = cluster.ask(growth, CreatePartitionsResponse).results
    assert grown.error_code == 0
    _, eras = state(cluster)
    assert epochs(cluster) == [eras[-1].leader_epoch, eras[-1].leader_epoch]


def test_an_era_begins_after_those_of_a_source_of_which_nothing_is_copied(
    cluster: Deciding,
) -> None:
    """Else a history would name eras that do not ascend, and a later comparison takes the wrong."""
    eras = (LogEra("other", 0, SOURCE_ID), LogEra("third", 5000 << ERA_BITS))
    mirror(cluster, link(cluster).link_id, eras=eras)
    assert max(epochs(cluster)) == 0
    assert alter(cluster, MirrorState.PROMOTED).error_code == 0
    found = state(cluster)[1]
    assert [each.leader_epoch for each in found] == sorted(each.leader_epoch for each in found)
    assert found[-1].leader_epoch == epochs(cluster)[0] > 5000 << ERA_BITS


def test_histories_that_epochs_cannot_tell_apart_are_refused(cluster: Deciding) -> None:
    link_id = link(cluster).link_id
    mirror(cluster, link_id)
    alter(cluster, MirrorState.PROMOTED)
    (_, own) = state(cluster)[1]
    sibling = link(cluster, "west", "third").link_id
    first = LogEra("other", 0, SOURCE_ID)
    same = (first, LogEra("third", own.leader_epoch))
    refused = mirror(cluster, sibling, eras=same, follows="west")
    assert refused.error_message is not None
    assert "at the same leader epoch" in refused.error_message
    # Also if only a later promotion has drawn it: its batches would be taken for those here.
    below = LogEra("third", own.leader_epoch - 1)
    two = (first, below, LogEra("fourth", own.leader_epoch))
    assert "at the same leader epoch" in (
        mirror(cluster, sibling, eras=two, follows="west").error_message or ""
    )
    later = (first, LogEra("third", own.leader_epoch + (1 << ERA_BITS)))
    assert mirror(cluster, sibling, eras=later, follows="west").error_code == 0


def test_a_promotion_is_taken_back_and_what_was_written_since_is_a_stray(
    cluster: Deciding,
) -> None:
    """The source counts in lower epochs: it can't tell where this log parts from its own."""
    mirror(cluster, link(cluster).link_id)
    alter(cluster, MirrorState.PROMOTED)
    first, own = state(cluster)[1]
    assert mirror(cluster, b"", eras=(first,), follows="east").error_code == 0
    (found,) = cluster.metadata.mirrors.values()
    assert (found.eras, found.strays) == ((first,), (own,))
    assert found.mirror_of is not None
    assert found.mirror_of.ceiling_epoch == own.leader_epoch
    # What is cut may be this cluster's own, which is kept in a file then.
    assert found.was_led_by(CLUSTER_ID)
    # Whether each partition was cut by then is not known.
    alter(cluster, MirrorState.PROMOTED)
    assert state(cluster)[1][:-1] == (first, own)
    assert epochs(cluster)[0] > own.leader_epoch
    # The stray is below the source's era, which therefore tells where the logs part.
    later = (first, LogEra("other", epochs(cluster)[0] + (1 << ERA_BITS)))
    assert mirror(cluster, b"", eras=later, follows="east").error_code == 0
    (found,) = cluster.metadata.mirrors.values()
    assert len(found.strays) == 2
    assert found.mirror_of is not None
    assert found.mirror_of.ceiling_epoch == -1


def test_a_leader_gets_an_epoch_for_higher_batches_or_for_a_cut(cluster: Deciding) -> None:
    mirror(cluster, link(cluster).link_id)
    topic = cluster.metadata.topic("t")
    assert topic is not None
    before = topic.partitions[0]

    def ask(
        leader_epoch: int,
        *,
        leader: int = before.leader,
        cuts: bool = False,
        is_alone: bool = False,
    ) -> int:
        request = AlterMirrorPartitionRequest(
            broker_id=leader,
            broker_epoch=cluster.metadata.brokers[leader].epoch,
            topic_id=topic.topic_id,
            partition_index=0,
            leader_epoch=leader_epoch,
            least_leader_epoch=-1 if cuts or is_alone else 7,
            cuts=cuts,
            is_alone=is_alone,
        )
        answer = cluster.ask(request, AlterMirrorPartitionResponse)
        return answer.error_code or answer.leader_epoch

    assert ask(0, leader=before.leader % 3 + 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ask(0) == 7
    assert ask(0) == ErrorCode.FENCED_LEADER_EPOCH
    assert topic.partitions[0].last_unclean_epoch == -1
    assert ask(7, cuts=True) == 8
    assert topic.partitions[0].last_unclean_epoch == 8
    assert topic.partitions[0].leader == before.leader
    assert topic.partitions[0].isr == before.isr
    assert ask(8, is_alone=True) == 9
    # It is no election that loses something: no flag, and no alert.
    assert topic.partitions[0].last_unclean_epoch == 8
    assert (topic.partitions[0].isr, topic.partitions[0].elr) == ((before.leader,), ())
    alter(cluster, MirrorState.PROMOTED)
    assert ask(topic.partitions[0].leader_epoch, cuts=True) == ErrorCode.INVALID_REQUEST


def test_a_link_with_a_wrong_setting_is_neither_created_nor_altered(cluster: Deciding) -> None:
    wrong = LinkSetting(name="topik", value="t.*")
    request = CreateLinkRequest(name="east", source_cluster_id="other", settings=[wrong])
    refused = cluster.ask(request, CreateLinkResponse)
    assert refused.error_code == ErrorCode.INVALID_CONFIG
    assert "did you mean 'topics'" in (refused.error_message or "")
    assert cluster.metadata.link("east") is None
    link(cluster)
    before = cluster.metadata.link("east")
    for name, value in (("topics", "["), ("bootstrap.servers", None), ("prefix", "a b")):
        change = ChangedLinkSetting(name=name, value=value)
        answer = cluster.ask(AlterLinkRequest(name="east", settings=[change]), AlterLinkResponse)
        assert answer.error_code == ErrorCode.INVALID_CONFIG
        assert answer.error_message
    assert cluster.metadata.link("east") == before


def test_a_link_whose_login_refers_to_what_is_not_allowed_is_refused(cluster: Deciding) -> None:
    stolen = [
        LinkSetting(name="bootstrap.servers", value="mallory:9092"),
        LinkSetting(name="sasl.password", value="${file:/etc/shadow}"),
    ]
    request = CreateLinkRequest(name="theft", source_cluster_id="other", settings=stolen)
    refused = cluster.ask(request, CreateLinkResponse)
    assert refused.error_code == ErrorCode.INVALID_CONFIG
    assert "mirror.allowed.paths" in (refused.error_message or "")
    assert cluster.metadata.link("theft") is None

    config = BrokerConfig(security=SecurityConfig(mirror_paths="/run/mirror"))
    allowing = Deciding(config=config)
    allowing.start(1)
    link(allowing)
    before = allowing.metadata.link("east")
    for value in ("${file:/run/mirror/../shadow}", "${env:PATH}"):
        change = ChangedLinkSetting(name="sasl.username", value=value)
        answer = allowing.ask(AlterLinkRequest(name="east", settings=[change]), AlterLinkResponse)
        assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert allowing.metadata.link("east") == before
    change = ChangedLinkSetting(name="sasl.password", value="${file:/run/mirror/east}")
    assert not allowing.ask(
        AlterLinkRequest(name="east", settings=[change]), AlterLinkResponse
    ).error_code


def promote_cut(
    cluster: Deciding, cuts: dict[str, dict[int, int]], state: int = MirrorState.PROMOTED
) -> list[MirrorResult]:
    """Promote topics in one decision, cut."""
    asked = [
        AlterableMirror(
            name=name,
            state=state,
            cuts=[MirrorCut(partition=key, offset=at) for key, at in each.items()],
        )
        for name, each in cuts.items()
    ]
    request = AlterMirrorsRequest(wall_ms=WALL_MS + 1, topics=asked, is_whole=True)
    return cluster.ask(request, AlterMirrorsResponse).topics


def test_an_app_is_cut_and_promoted_in_one_decision_or_not_at_all(cluster: Deciding) -> None:
    link_id = link(cluster).link_id
    for name in ("t", "u"):
        assert mirror(cluster, link_id, name).error_code == 0
    before = cluster.metadata.digest()
    refused = promote_cut(cluster, {"t": {0: 5}, "u": {2: 5}})
    assert [bool(each.error_code) for each in refused] == [False, True]
    assert "they are 0 to 1: not [2]" in (refused[1].error_message or "")
    refused = promote_cut(cluster, {"t": {0: 5}}, MirrorState.PAUSED)
    assert refused[0].error_code == ErrorCode.INVALID_REQUEST
    assert cluster.metadata.digest() == before

    assert not any(each.error_code for each in promote_cut(cluster, {"t": {0: 5}, "u": {}}))
    topic = cluster.metadata.topic("t")
    assert topic is not None
    found = cluster.metadata.mirrors[topic.topic_id]
    epoch = found.eras[-1].leader_epoch
    # For each leader of the era, also one that is elected later; followers may cut what is
    # committed in this epoch.
    assert found.cut_of(0) == CutOf(5, epoch)
    assert found.cut_of(1) is None
    assert topic.partitions[0].last_unclean_epoch == topic.partitions[0].leader_epoch == epoch
    assert topic.partitions[1].last_unclean_epoch < epoch
    assert cluster.replayed().digest() == cluster.metadata.digest()


def test_a_link_keeps_its_last_mark_until_it_is_deleted(cluster: Deciding) -> None:
    link_id = link(cluster).link_id
    for end in (5, 9):
        part = MarkedPartition(topic="t", partition=0, scan_from=end - 1, whole_below=end)
        request = MarkAppsRequest(link_id=link_id, partitions=[part])
        assert not cluster.ask(request, MarkAppsResponse).error_code
    assert cluster.metadata.app_marks[link_id].partitions == [part]
    assert cluster.replayed().app_marks[link_id].partitions == [part]
    log = f"{MIRRORED_LOGS}x.transaction_state"
    assert mirror(cluster, link_id, log).error_code == 0
    # The mirrors of the source's logs hold the link up for no one, and go with it.
    assert not cluster.ask(DeleteLinkRequest(name="east"), DeleteLinkResponse).error_code
    assert cluster.metadata.topic(log) is None
    assert cluster.metadata.app_marks == {}
    assert cluster.ask(request, MarkAppsResponse).error_code == ErrorCode.RESOURCE_NOT_FOUND
    assert cluster.replayed().digest() == cluster.metadata.digest()


def test_names_of_mirrored_logs_are_reserved(cluster: Deciding) -> None:
    topic = CreatableTopic(name=f"{MIRRORED_LOGS}x", num_partitions=1, replication_factor=1)
    (found,) = cluster.ask(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse).topics
    assert found.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
