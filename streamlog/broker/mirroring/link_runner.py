"""LinkRunner: keeps the topics of one link as the source has them, on one broker of the cluster.

Every few seconds it asks the source for its topics and their settings, and the controller for what
`link_plan` says. Which broker runs a link follows from the metadata alone (`runner_of`): while two
brokers see different metadata, both may run it, which repeats requests and changes nothing.

Rules of this module: a source that can't be reached changes nothing here. What the controller
refuses is logged, once for each reason, and asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from streamlog import repeated
from streamlog.broker.config.link import LinkConfig, apps_of, patterns_of
from streamlog.broker.config.topic import TOPIC_SETTINGS
from streamlog.broker.mirroring.acl_copier import AclCopier
from streamlog.broker.mirroring.apps.link_apps import LinkApps
from streamlog.broker.mirroring.link_notices import LinkNotices, listed
from streamlog.broker.mirroring.link_plan import (
    APP_LOGS,
    KnownMirror,
    LinkRules,
    SourceTopicFacts,
    plan_link,
)
from streamlog.broker.quorum.metadata.cluster_metadata import TOPIC_RESOURCE
from streamlog.broker.quorum.metadata.mirror_topics import LogEra, MirrorLink, MirrorState
from streamlog.errors import CorruptData, StreamlogError, UnsupportedVersion
from streamlog.protocol.error_codes import describe
from streamlog.protocol.messages.mirror_messages import (
    AlterableMirror,
    AlterMirrorsRequest,
    AlterMirrorsResponse,
    CreateMirrorsRequest,
    CreateMirrorsResponse,
    DescribedMirror,
    DescribeMirrorsRequest,
    DescribeMirrorsResponse,
    MirrorResult,
)
from streamlog.protocol.messages.topics_and_configs import (
    AlterableConfig,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from streamlog.replace import replace

if TYPE_CHECKING:
    from streamlog.broker.mirroring.readable_ends import ReadableEnds
    from streamlog.broker.mirroring.source_cluster import SourceCluster
    from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata
    from streamlog.clock import Clock
    from streamlog.protocol.schema import Message

OWN_VALUE = 1
"""Kafka's number for a value that the topic itself has."""
NOT_COPIED = frozenset(
    {
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        "min.insync.replicas",
        "unclean.leader.election.enable",
    }
)
"""Settings that belong to the brokers of a cluster, not to the records of a topic."""
APP_LOG_SETTINGS = {"cleanup.policy": "compact", "min.compaction.lag.ms": "86400000"}
"""The settings of the mirrors of `APP_LOGS`, whatever the source's have. Compaction takes decisions
away that a cut of an app needs; a day is left to promote after a loss."""
SET, DELETE = 0, 1

_log = repeated.logger(__name__)

Ask = Callable[["Message"], Awaitable["Message"]]


def runner_of(link_id: bytes, brokers: Collection[int]) -> int | None:
    """Return the broker that runs a link; None if none is alive (rendezvous hashing)."""
    return max(
        brokers,
        key=lambda broker: sha256(link_id + broker.to_bytes(8, "big")).digest(),
        default=None,
    )


def rules_of(config: LinkConfig) -> LinkRules:
    """Return what a link with these settings mirrors."""
    return LinkRules(
        topics=patterns_of("topics", config.topics),
        excluded=patterns_of("topics.exclude", config.topics_exclude),
        prefix=config.prefix,
        adds_topics=config.refresh_topics_enabled,
    )


class LinkRunner:
    """The runner of one link.

    Args:
        link: the link.
        config: its settings.
        source: the cluster that it leads to.
        metadata: the committed metadata here.
        cluster_id: this cluster.
        ask: sends a request to the active controller.
        ends: how far the mirrors here are.
        clock: the time.
    """

    def __init__(
        self,
        link: MirrorLink,
        config: LinkConfig,
        source: SourceCluster,
        *,
        metadata: ClusterMetadata,
        cluster_id: str,
        ask: Ask,
        ends: ReadableEnds,
        clock: Clock,
    ) -> None:
        self._link = link
        self._config = config
        self._source = source
        self._metadata = metadata
        self._cluster_id = cluster_id
        self._ask = ask
        self._clock = clock
        self.trouble: str | None = None
        """Why the last round failed; None if it did not."""
        self.notices = LinkNotices(f"link {link.name}")
        """What is not mirrored as the link says, and why."""
        self._acls = AclCopier(
            link, config, source, metadata=metadata, ask=ask, notices=self.notices
        )
        self._apps = LinkApps(
            link.link_id,
            apps_of(config),
            source,
            ends=ends,
            ask=ask,
            clock=clock,
            notices=self.notices,
        )

    async def run(self) -> None:
        """Look at the source until cancelled."""
        try:
            while True:
                try:
                    await self._round()
                    self._note_trouble(None)
                except (StreamlogError, OSError) as error:
                    # Not the end of the link: a source that is down for a day is found again.
                    self._note_trouble(str(error))
                await asyncio.sleep(self._config.refresh_topics_interval_ms / 1000)
        finally:
            await self._source.close()

    async def _round(self) -> None:
        await self._source.refresh(None)
        rules = replace(
            rules_of(self._config),
            of_apps=await self._apps.topics(),
            app_logs=self._apps.app_logs,
        )
        described = await self._described()
        known = self._known()
        # Mirrors that the patterns do not name any more go on: what was begun ends by an operator's
        # word only, not by a typing error in a pattern.
        begun = {each.mirror.source_topic for each in known}
        wanted = [
            name for name in self._source.topics if name in begun or rules.name_of(name) is not None
        ]
        configs = await self._configs(wanted)
        looked_for = begun.union(APP_LOGS if self._config.apps else ())
        hidden = await self._source.refusals(looked_for - self._source.topics.keys())
        self._note_hidden(hidden)
        plan = plan_link(
            rules,
            [self._facts(name, described.get(name), configs) for name in self._source.topics],
            known,
            cluster_id=self._cluster_id,
            taken={each.name for each in self._metadata.topics.values()},
            hidden=hidden,
        )
        self._note_taken(plan.taken)
        if plan.created:
            request = CreateMirrorsRequest(
                link_id=self._link.link_id,
                wall_ms=self._clock.wall_ms(),
                topics=list(plan.created),
            )
            answer = await self._ask(request)
            if isinstance(answer, CreateMirrorsResponse):
                self._note_results(answer.topics)
        # After the creations: a topic under another name may take over from one that has gone.
        if plan.stopped:
            await self._stop(plan.stopped)
        if self._config.sync_topic_configs_enabled:
            await self._copy_configs(known, configs)
        if self._config.sync_acls_enabled:
            await self._acls.copy()
        copied = [each for each in known if each.mirror.copies]
        await self._apps.mark({each.name: each.mirror.source_topic for each in copied})

    async def _stop(self, mirrors: Sequence[AlterableMirror]) -> None:
        """Stop mirrors that can't go on, and log why."""
        request = AlterMirrorsRequest(wall_ms=self._clock.wall_ms(), topics=list(mirrors))
        answer = await self._ask(request)
        if not isinstance(answer, AlterMirrorsResponse):
            return
        self._note_results(answer.topics)
        reasons = {each.name: each.reason for each in mirrors}
        for each in answer.topics:
            if not each.error_code:
                _log.error("%s is not mirrored any more: %s", each.name, reasons[each.name])

    def _known(self) -> list[KnownMirror]:
        metadata = self._metadata
        return [
            KnownMirror(name=topic.name, partitions=len(topic.partitions), mirror=mirror)
            for topic_id, mirror in metadata.mirrors.items()
            if mirror.link_id == self._link.link_id
            and (topic := metadata.topics.get(topic_id)) is not None
        ]

    def _facts(
        self,
        name: str,
        described: DescribedMirror | None,
        configs: Mapping[str, Mapping[str, str]],
    ) -> SourceTopicFacts:
        topic = self._source.topics[name]
        eras: tuple[LogEra, ...] = ()
        mirrors = ""
        if described is not None:
            eras = tuple(map(LogEra.of_field, described.eras))
            is_mirror = described.state != MirrorState.PROMOTED
            mirrors = eras[-1].cluster_id if is_mirror and eras else ""
        return SourceTopicFacts(
            name=name,
            topic_id=topic.topic_id,
            partitions=len(topic.leaders),
            configs=configs.get(name, {}),
            eras=eras,
            mirrors_cluster=mirrors,
        )

    async def _described(self) -> dict[str, DescribedMirror]:
        """Return what the source mirrors itself; nothing if it is Apache Kafka."""
        try:
            answer = await self._source.ask(DescribeMirrorsRequest(), DescribeMirrorsResponse)
        except UnsupportedVersion:
            # Apache Kafka has no mirrors, so there is no loop to prevent and no era to take over.
            return {}
        return {each.name: each for each in answer.topics}

    async def _configs(self, topics: Collection[str]) -> dict[str, dict[str, str]]:
        """Return the settings that topics of the source have themselves, as far as we have them."""
        found = {name: APP_LOG_SETTINGS for name in topics if name in APP_LOGS}
        topics = [name for name in topics if name not in APP_LOGS]
        if not topics:
            return found
        resources = [
            DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=None
            )
            for name in topics
        ]
        answer = await self._source.ask(
            DescribeConfigsRequest(resources=resources), DescribeConfigsResponse
        )
        return found | {
            result.resource_name: {
                each.name: each.value
                for each in result.configs
                if each.config_source == OWN_VALUE
                and each.value is not None
                # Apache Kafka has settings that this broker does not know, such as those of
                # tiered storage; the controller would refuse the whole topic because of one.
                and each.name in TOPIC_SETTINGS
                and each.name not in NOT_COPIED
            }
            for result in answer.results
            if not result.error_code
        }

    async def _copy_configs(
        self, known: Collection[KnownMirror], configs: Mapping[str, Mapping[str, str]]
    ) -> None:
        """Give mirrors the settings that their sources have, and no others."""
        resources = []
        for each in known:
            theirs = configs.get(each.mirror.source_topic)
            # None: the source did not tell them. That is no reason to remove those that are here.
            if theirs is None or not each.mirror.copies:
                continue
            ours = self._metadata.config(TOPIC_RESOURCE, each.name)
            changes = [
                AlterableConfig(name=name, config_operation=SET, value=value)
                for name, value in theirs.items()
                if ours.get(name) != value
            ] + [
                AlterableConfig(name=name, config_operation=DELETE, value=None)
                for name in ours
                if name not in theirs and name not in NOT_COPIED
            ]
            if changes:
                resources.append(
                    AlterConfigsResource(
                        resource_type=TOPIC_RESOURCE, resource_name=each.name, configs=changes
                    )
                )
        if not resources:
            return
        answer = await self._ask(IncrementalAlterConfigsRequest(resources=resources))
        if not isinstance(answer, IncrementalAlterConfigsResponse):
            raise CorruptData("the controller did not answer IncrementalAlterConfigs")
        for one in answer.responses:
            about = f"settings of {one.resource_name}"
            self.notices.note(about, f"{about}: {one.error_message}" if one.error_code else "")

    def _note_results(self, results: Collection[MirrorResult]) -> None:
        for each in results:
            about = f"topic {each.name}"
            self.notices.note(about, f"{about}: {each.error_message}" if each.error_code else "")

    def _note_hidden(self, refusals: Mapping[str, int]) -> None:
        """Tell of the topics that the source does not show to the link's user."""
        logs = [each for each in APP_LOGS if each in refusals]
        self._apps.note_hidden(logs)
        refusals = {name: code for name, code in refusals.items() if name not in logs}
        codes = ", ".join(sorted({describe(code) for code in refusals.values()}))
        self.notices.note(
            "hidden",
            f"the source does not show {listed(refusals)}: {codes}. The link's user needs READ and"
            " DESCRIBE_CONFIGS on them there; if they were deleted, delete their mirrors"
            if refusals
            else "",
        )

    def _note_taken(self, names: Collection[str]) -> None:
        """Tell of the topics that would have mirrors if their names were free."""
        self.notices.note(
            "taken",
            f"topics that this cluster has already are not mirrored: {listed(names)}. Let them"
            f" follow the source by `streamlog mirror fail-back {self._link.name}`, or mirror with"
            " a prefix"
            if names
            else "",
        )

    def _note_trouble(self, trouble: str | None) -> None:
        """Log once why rounds fail, and once that they succeed again."""
        if trouble == self.trouble:
            return
        self.trouble = trouble
        if trouble is None:
            _log.info("link %s: the source is looked at again", self._link.name)
        else:
            _log.warning("link %s: %s", self._link.name, trouble)
