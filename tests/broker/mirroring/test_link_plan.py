"""What a link creates and stops, by the topics of its source."""

from __future__ import annotations

import re

from streamlog.broker.mirroring.link_plan import (
    KnownMirror,
    LinkRules,
    SourceTopicFacts,
    own_topics,
    plan_link,
)
from streamlog.broker.quorum.metadata.mirror_topics import LogEra, MirrorState, MirrorTopic

HERE = "here"
ID, OTHER_ID = b"1" * 16, b"2" * 16


def rules(*patterns: str, prefix: str = "") -> LinkRules:
    return LinkRules(topics=tuple(re.compile(each) for each in patterns), prefix=prefix)


def facts(name: str, partitions: int = 1, topic_id: bytes = ID, **more: str) -> SourceTopicFacts:
    return SourceTopicFacts(name=name, topic_id=topic_id, partitions=partitions, **more)


def known(name: str, state: MirrorState = MirrorState.ACTIVE, prefix: str = "") -> KnownMirror:
    mirror = MirrorTopic(
        topic_id=b"3" * 16,
        link_id=b"4" * 16,
        source_topic=name,
        source_topic_id=ID,
        state=state,
        eras=(LogEra("there", 0),),
    )
    return KnownMirror(name=f"{prefix}{name}", partitions=1, mirror=mirror)


def test_topics_by_pattern_get_mirrors_under_the_prefix() -> None:
    source = [facts("orders", 3), facts("users"), facts("orders-old"), facts("__consumer_offsets")]
    plan = plan_link(rules("orders", "__.*", prefix="eu."), source, [], cluster_id=HERE)
    (created,) = plan.created
    assert (created.name, created.source_topic, created.num_partitions) == (
        "eu.orders",
        "orders",
        3,
    )
    assert plan.stopped == ()


def test_mirrors_of_this_cluster_do_not_come_back() -> None:
    source = [facts("us.orders", mirrors_cluster=HERE), facts("orders")]
    plan = plan_link(rules(".*", prefix="eu."), source, [], cluster_id=HERE)
    assert [each.name for each in plan.created] == ["eu.orders"]


def test_a_mirror_grows_with_its_source_only_while_it_is_copied() -> None:
    source = [facts("a", 2)]
    for state in MirrorState:
        plan = plan_link(rules("a"), source, [known("a", state)], cluster_id=HERE)
        # Also while it is promoted without loss, which waits for all partitions.
        assert bool(plan.created) == (state in (MirrorState.ACTIVE, MirrorState.PROMOTING))
        assert not plan.stopped
    assert not plan_link(rules("a"), [facts("a")], [known("a")], cluster_id=HERE).created


def test_what_the_source_has_lost_is_stopped_with_the_reason() -> None:
    for source, why in (([], "has deleted it"), ([facts("a", 5, OTHER_ID)], "created it again")):
        plan = plan_link(rules(), source, [known("a")], cluster_id=HERE)
        (stopped,) = plan.stopped
        assert (stopped.name, stopped.state) == ("a", MirrorState.STOPPED)
        assert why in stopped.reason
        assert not plan.created
        for state in (MirrorState.STOPPED, MirrorState.PROMOTED):
            assert not plan_link(rules(), source, [known("a", state)], cluster_id=HERE).stopped


def test_a_source_without_topic_ids_is_not_taken_for_another_log() -> None:
    plan = plan_link(rules("a"), [facts("a", topic_id=bytes(16))], [known("a")], cluster_id=HERE)
    assert not plan.stopped


def test_a_topic_that_exists_here_is_told_and_left_alone() -> None:
    source = [facts("a", 2), facts("b"), facts("c")]
    # `a` is a mirror of this link already, and grows; `b` is a topic of this cluster.
    plan = plan_link(rules(".*"), source, [known("a")], cluster_id=HERE, taken={"a", "b"})
    assert [each.name for each in plan.created] == ["a", "c"]
    assert plan.taken == ("b",)


def test_a_topic_belongs_to_the_app_with_the_longest_fitting_id() -> None:
    topics = ["shop-topology", "shop-0-changelog", "shop-eu-topology", "shop-eu-0-changelog"]
    topics += ["shopping", "shop", "other-topology", "shop-eu"]
    assert own_topics(["shop"], topics) == {"shop-topology", "shop-0-changelog", "shop-eu"}
    assert own_topics(["shop-eu"], topics) == {"shop-eu-topology", "shop-eu-0-changelog"}
    # An app of another stream processor has no topology.
    assert own_topics(["b"], ["b-0-changelog", "bc", "a-b-topology"]) == {"b-0-changelog"}


def test_topics_of_apps_are_mirrored_unless_they_are_excluded() -> None:
    given = LinkRules(
        topics=(re.compile("orders"),),
        excluded=(re.compile("app-secret"),),
        of_apps={"app-topology", "app-secret", "__consumer_offsets"},
    )
    source = [facts(each) for each in ("orders", "app-topology", "app-secret", "app-other")]
    plan = plan_link(given, [*source, facts("__consumer_offsets")], [], cluster_id=HERE)
    assert [each.name for each in plan.created] == ["orders", "app-topology"]
