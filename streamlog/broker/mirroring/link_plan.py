"""LinkPlan: which topics of a source a link mirrors here, and what has to be created or stopped.

Pure. Rules of this module:

- A topic of the source is mirrored if the link's patterns name it, under its own name or with the
  link's prefix. Internal topics are not, but for the two that a cut of apps needs (`APP_LOGS`), and
  neither are mirrors that the source has of this cluster: they would come back, longer by a prefix
  each time.
- A topic that has gone from the source keeps its records here, and is stopped with the reason; so
  is one that was deleted and created again, whose records are those of another log.
- What an operator has stopped or promoted is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping

import msgspec

from streamlog.broker.quorum.metadata.mirror_topics import LogEra, MirrorState, MirrorTopic
from streamlog.protocol.messages.mirror_messages import AlterableMirror, CreatableMirror
from streamlog.protocol.messages.topics_and_configs import CreatableTopicConfig
from streamlog.protocol.schema import ZERO_UUID

INTERNAL_PREFIX = "__"
TRANSACTION_LOG = "__transaction_state"
POSITIONS_LOG = "__consumer_offsets"
APP_LOGS = (TRANSACTION_LOG, POSITIONS_LOG)
"""What a link with apps mirrors beside their topics."""
TOPOLOGY = "-topology"
"""How the names of the topics end in which apps keep their topologies (docs/formats.md)."""
NEW_ONE = "delete the topic here, and the link mirrors a new one of its name"


class SourceTopicFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a topic of the source."""

    name: str
    topic_id: bytes = ZERO_UUID
    partitions: int
    configs: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Its own settings, without inherited ones."""
    eras: tuple[LogEra, ...] = ()
    """Those of a topic that the source has mirrored itself; none otherwise."""
    mirrors_cluster: str = ""
    """The cluster that the source mirrors it from now; empty if it is the source's own topic."""


class LinkRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a link mirrors, and under which names."""

    topics: tuple[re.Pattern[str], ...]
    excluded: tuple[re.Pattern[str], ...] = ()
    prefix: str = ""
    of_apps: Container[str] = ()
    """Topics of mirrored apps, whatever the patterns say."""
    app_logs: str = ""
    """How the names of the mirrors of `APP_LOGS` begin; empty for none."""
    adds_topics: bool = True
    """Whether topics that are not mirrored yet become mirrors."""

    def name_of(self, source_topic: str) -> str | None:
        """Return the name here of a topic of the source; None if it is not mirrored."""
        if source_topic in APP_LOGS and self.app_logs:
            return f"{self.app_logs}{source_topic.removeprefix(INTERNAL_PREFIX)}"
        if source_topic.startswith(INTERNAL_PREFIX):
            return None
        is_named = any(each.fullmatch(source_topic) for each in self.topics)
        if not is_named and source_topic not in self.of_apps:
            return None
        # Exclusion has the last word, as in MirrorMaker 2.
        if any(each.fullmatch(source_topic) for each in self.excluded):
            return None
        return f"{self.prefix}{source_topic}"


def own_topics(apps: Collection[str], topics: Collection[str]) -> set[str]:
    """Return the topics that belong to apps by their names.

    `shop-eu-0-changelog` belongs to the app `shop-eu`, if there is one, and not to `shop`. An app
    is known by the topic of its topology.
    """
    there = {each.removesuffix(TOPOLOGY) for each in topics if each.endswith(TOPOLOGY)}
    beginnings = {f"{each}-": each in apps for each in there.union(apps)}
    found = set()
    for topic in topics:
        fitting = [each for each in beginnings if topic.startswith(each)]
        if fitting and beginnings[max(fitting, key=len)]:
            found.add(topic)
    return found


class KnownMirror(msgspec.Struct, frozen=True, kw_only=True):
    """A mirror topic of the link, as the metadata here has it."""

    name: str
    partitions: int
    mirror: MirrorTopic


class LinkPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What has to happen so that this cluster mirrors what the link says."""

    created: tuple[CreatableMirror, ...] = ()
    """New mirrors, and those whose source has more partitions."""
    stopped: tuple[AlterableMirror, ...] = ()
    taken: tuple[str, ...] = ()
    """Topics of this cluster that have the names of mirrors, and follow only on an operator's
    word: what only they have would be cut off."""


def plan_link(
    rules: LinkRules,
    source: Iterable[SourceTopicFacts],
    known: Iterable[KnownMirror],
    *,
    cluster_id: str,
    taken: Container[str] = (),
    hidden: Container[str] = (),
) -> LinkPlan:
    """Return what has to be created and stopped.

    Args:
        rules: what the link mirrors.
        source: all topics of the source.
        known: the mirror topics of this link.
        cluster_id: this cluster.
        taken: the names of all topics here.
        hidden: topics that the source does not show to the link's user, deleted or not.
    """
    there = {each.name: each for each in source}
    ours = {each.mirror.source_topic: each for each in known}
    wanted = [
        each
        for facts in there.values()
        if facts.mirrors_cluster != cluster_id
        for each in _wanted(rules, facts, ours.get(facts.name))
    ]
    stopped = [
        AlterableMirror(name=each.name, state=MirrorState.STOPPED, reason=why)
        for each in ours.values()
        if each.mirror.state is MirrorState.PAUSED or each.mirror.copies
        if each.mirror.source_topic not in hidden
        if (why := _why_stopped(each.mirror, there.get(each.mirror.source_topic)))
    ]
    created: list[CreatableMirror] = []
    held: list[CreatableMirror] = []
    for each in wanted:
        # A mirror of this link grows under a name that it has itself.
        is_free = each.name not in taken or each.source_topic in ours
        (created if is_free else held).append(each)
    return LinkPlan(
        created=tuple(created),
        stopped=tuple(stopped),
        taken=tuple(each.name for each in held),
    )


def _wanted(
    rules: LinkRules, facts: SourceTopicFacts, known: KnownMirror | None
) -> Iterator[CreatableMirror]:
    name = rules.name_of(facts.name) if known is None else known.name
    if name is None or (known is None and not rules.adds_topics):
        return
    if known is not None:
        # Only growth: Kafka can't take partitions away, so fewer mean that an answer was cut short
        # or that the topic was created again.
        grows = facts.partitions > known.partitions
        if not grows or not known.mirror.copies:
            return
        if _why_stopped(known.mirror, facts):
            return
    yield CreatableMirror(
        name=name,
        source_topic=facts.name,
        source_topic_id=facts.topic_id,
        num_partitions=facts.partitions,
        configs=[
            CreatableTopicConfig(name=key, value=value)
            for key, value in sorted(facts.configs.items())
        ],
        eras=[each.field() for each in facts.eras],
    )


def _why_stopped(mirror: MirrorTopic, facts: SourceTopicFacts | None) -> str:
    """Return why a mirror can't go on; empty if it can."""
    if facts is None:
        # A stopped mirror keeps its reason, also when the source creates the topic again later.
        return f"the source has deleted it; {NEW_ONE}"
    known = mirror.source_topic_id
    # Brokers before Kafka 2.8 tell no topic ids: without one nothing can be concluded.
    if ZERO_UUID not in (known, facts.topic_id) and known != facts.topic_id:
        return (
            "the source has deleted it and created it again: its records are another log's;"
            f" {NEW_ONE}"
        )
    return ""
