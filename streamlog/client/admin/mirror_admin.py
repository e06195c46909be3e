"""MirrorAdmin: links to other clusters, and the topics that they mirror.

The metadata says which links and mirror topics there are, and what was decided about them; how far
a mirror is, only the leader of each partition knows. So a description asks all brokers and joins
their answers. A partition whose leader does not answer is left out of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from streamlog.client.admin.admin_area import AdminArea, check, raise_refused
from streamlog.client.admin.log_comparison import (
    ComparedRange,
    LogSide,
    compare_logs,
    stored_batches,
)
from streamlog.client.admin.lossless_promotion import (
    LOOK_S,
    LosslessPromotion,
    PromotionOutcome,
    PromotionPatience,
)
from streamlog.client.admin.mirror_answers import (
    LeaderReports,
    freshest,
    is_app_log,
    leader_reports,
    mirror_answers,
    seal_reports,
)
from streamlog.client.admin.topic_admin import TopicAdmin
from streamlog.client.offset_lookup import EARLIEST, LATEST, NEWEST, list_offsets
from streamlog.errors import LogError, StreamlogError, UnsupportedVersion, some_of
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.metadata_log import LinkSetting, MarkedPartition, MirrorCut
from streamlog.protocol.messages.mirror_messages import (
    AlterableMirror,
    AlterableSeal,
    AlterLinkRequest,
    AlterLinkResponse,
    AlterMirrorsRequest,
    AlterMirrorsResponse,
    AlterSealsRequest,
    AlterSealsResponse,
    ChangedLinkSetting,
    CreatableMirror,
    CreateLinkRequest,
    CreateLinkResponse,
    DeleteLinkRequest,
    DeleteLinkResponse,
    DescribedMirror,
    DescribedMirrorPartition,
    DescribeMirrorsResponse,
    FailBackRequest,
    FailBackResponse,
)
from streamlog.record import TopicPartition
from streamlog.records.batch import RecordBatch

SILENT_MS: Final = 10_000
"""A source that has not answered for this long counts as unavailable."""
LAGGING_MS: Final = 10_000
"""A mirror that has not had everything for this long is lagging."""
PAUSED_S: Final = 20
"""How long brokers have to get to know that mirrors are paused."""
_ACTIVE, _PAUSED, _STOPPED, _PROMOTED, _PROMOTING = range(5)
"""What was decided about a mirror topic, by the protocol's numbers."""


class MirrorStatus(StrEnum):
    """The state of a mirror topic: what was decided, and otherwise what its leaders see."""

    INITIAL = "INITIAL"
    """The source has not answered for all of its partitions yet."""
    ACTIVE = "ACTIVE"
    """It has everything, or had so a moment ago."""
    PAUSED = "PAUSED"
    """It copies nothing until it is resumed."""
    LAGGING = "LAGGING"
    """It copies, and has been behind for longer than `LAGGING_MS`."""
    SOURCE_UNAVAILABLE = "SOURCE_UNAVAILABLE"
    """The source of a partition has not answered for longer than `SILENT_MS`."""
    DIVERGED = "DIVERGED"
    """The source contradicts what may not be cut here, so a partition is not copied any more."""
    STOPPED = "STOPPED"
    """It can't be continued, for the reason that it names."""
    PROMOTING = "PROMOTING"
    """It copies the rest of its source, which is sealed, and is promoted then."""
    PROMOTED = "PROMOTED"
    """It is a topic of this cluster."""


class LinkDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A link to another cluster."""

    name: str
    source_cluster_id: str
    settings: Mapping[str, str]
    """The settings that were given; secrets are references."""
    troubles: Mapping[int, str]
    """Why brokers can't use the link or reach its source, by broker."""
    notices: Mapping[int, tuple[str, ...]]
    """What brokers leave out, such as topics that exist already and groups in use, by broker."""
    mirrors: int
    """The topics that it mirrors, without promoted ones."""


class MirrorPartitionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of a mirror topic, as its leader knows it."""

    partition: int
    leader: int
    log_start_offset: int
    log_end_offset: int
    source_end_offset: int | None
    """The end of the committed records at the source, by its last answer; None before one."""
    lag_records: int | None
    lag_bytes: int | None
    """An estimate by the mean size of the records that are here."""
    lag_ms: int | None
    """The time since the mirror had everything that the source had."""
    silent_ms: int | None
    """The time since the last answer of the source."""
    trouble: str
    """Why it is not copied any more; empty if it is."""
    refusal: str
    """Why the source has refused the last fetch; empty if it has not."""


class MirrorDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that is a mirror, or was one before it was promoted."""

    name: str
    topic_id: bytes
    link: str
    """Empty if the link was deleted, which is possible after the promotion."""
    source_topic: str
    status: MirrorStatus
    reason: str
    """Why it is in this state; empty if there is nothing to say."""
    since_ms: int
    """When the state began, in ms since 1970."""
    num_partitions: int
    partitions: tuple[MirrorPartitionDescription, ...]
    """Those whose leaders have answered and copy; ascending."""

    @property
    def lag_records(self) -> int | None:
        """Records that it lacks; None if no partition tells."""
        return _total(each.lag_records for each in self.partitions)

    @property
    def lag_bytes(self) -> int | None:
        """Bytes that it lacks, estimated; None if no partition tells."""
        return _total(each.lag_bytes for each in self.partitions)

    @property
    def lag_ms(self) -> int | None:
        """The time since the partition that lags most had everything; None if none tells."""
        return max((p.lag_ms for p in self.partitions if p.lag_ms is not None), default=None)


class SealStatus(StrEnum):
    """Whether a topic takes records that another cluster takes over, or was to take over."""

    OPEN = "OPEN"
    """It does: the other cluster has given up, or an operator has unsealed it."""
    SEALED = "SEALED"
    """It does not, until the other cluster has taken it over or has given up."""
    MOVED = "MOVED"
    """It does not, since the other cluster leads it."""


class SealDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that was sealed, so that another cluster can take it over without loss."""

    topic: str
    status: SealStatus
    target_cluster_id: str
    """The cluster that takes it over."""
    attempt: int
    """The number of the promotion there."""
    since_ms: int
    """When the state began, in ms since 1970."""
    num_partitions: int
    sealed_partitions: int
    """Those whose leaders are known to take no records."""


class MirrorsDescription(msgspec.Struct, frozen=True, kw_only=True):
    """All links and mirror topics of a cluster, and the topics that others take over."""

    cluster_id: str
    links: tuple[LinkDescription, ...]
    mirrors: tuple[MirrorDescription, ...]
    seals: tuple[SealDescription, ...]
    """Without those that take records again."""
    silent: Mapping[int, str]
    """Why brokers have not answered, by broker: partitions that they lead are not described."""


class PossibleLoss(msgspec.Struct, frozen=True, kw_only=True):
    """What a mirror partition may lack if it is promoted now; None stands for "not known"."""

    topic: str
    partition: int
    log_end_offset: int | None
    """Where it ends here; None if its leader does not answer."""
    source_end_offset: int | None
    """The end of the committed records at the source, by its last answer."""
    missing_records: int | None
    """The records up to that end that are not here. The source may have got more since."""
    silent_ms: int | None
    """The time since the last answer of the source."""
    newest_ms: int | None
    """The greatest timestamp of the records here, in ms since 1970."""


class AppLogs(msgspec.Struct, frozen=True):
    """What a link has beside the topics of its apps, so that they can be cut."""

    mirrors: Mapping[str, tuple[str, int]]
    """The mirrors of the source's internal topics and their numbers of partitions, by source."""
    mark: tuple[MarkedPartition, ...]
    """Up to where apps were copied as a whole; empty if they never were."""


class MirrorAdmin(AdminArea):
    """Creates and describes links, and alters mirror topics."""

    async def create_link(
        self,
        name: str,
        settings: Mapping[str, str],
        *,
        source_cluster_id: str,
        validate_only: bool = False,
    ) -> None:
        """Create a link; brokers then mirror the topics that its patterns name.

        Args:
            name: its name.
            settings: by name; docs/configuration.md lists them.
            source_cluster_id: the cluster that the addresses lead to. A link copies nothing when
                they lead to another one.
            validate_only: check the request, and create nothing.

        Raises:
            LogError: a link of this name exists, it leads to this cluster itself, or a setting is
                wrong.
        """
        request = CreateLinkRequest(
            name=name,
            source_cluster_id=source_cluster_id,
            settings=[LinkSetting(name=each, value=value) for each, value in settings.items()],
            validate_only=validate_only,
        )

        def read(answer: CreateLinkResponse) -> None:
            check(f"create link {name!r}", answer.error_code, answer.error_message)

        await self._ask_controller(request, CreateLinkResponse, read)

    async def alter_link(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Change settings of a link, all of them or none; None restores a default.

        Raises:
            LogError: there is no such link, or a setting is wrong.
        """
        request = AlterLinkRequest(
            name=name,
            settings=[
                ChangedLinkSetting(name=each, value=value) for each, value in changes.items()
            ],
        )

        def read(answer: AlterLinkResponse) -> None:
            check(f"alter link {name!r}", answer.error_code, answer.error_message)

        await self._ask_controller(request, AlterLinkResponse, read)

    async def delete_link(self, name: str) -> None:
        """Delete a link that mirrors no topic any more.

        Raises:
            LogError: there is no such link, or it still mirrors topics.
        """

        def read(answer: DeleteLinkResponse) -> None:
            check(f"delete link {name!r}", answer.error_code, answer.error_message)

        await self._ask_controller(DeleteLinkRequest(name=name), DeleteLinkResponse, read)

    async def pause_mirrors(self, topics: Collection[str]) -> None:
        """Let mirror topics copy nothing until they are resumed.

        It returns once all brokers that answer have paused them. From then on, no copy of a group's
        positions overwrites one that is committed here.

        Raises:
            LogError: a topic is no mirror, or is stopped; the other ones are paused. Or a broker
                has not paused them within 20 s.
        """
        await self._alter_mirrors("pause", topics, _PAUSED)
        await self._until_copied_nowhere({*topics})

    async def _until_copied_nowhere(self, topics: Collection[str]) -> None:
        copying: list[int] = []
        try:
            async with asyncio.timeout(PAUSED_S):
                while copying := await self._copying(topics):  # noqa: ASYNC110 - no broker tells
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            names = some_of([str(node) for node in copying])
            raise LogError(
                f"brokers {names} still copy {some_of(sorted(topics))} {PAUSED_S} s after they were"
                " paused: look whether they reach the controller (streamlog cluster status), or"
                " whether another command has resumed the topics"
            ) from None

    async def _copying(self, topics: Collection[str]) -> list[int]:
        """Return the brokers that take one of these topics for one that copies its source."""
        # One that does not answer coordinates no group that can be changed here.
        answers, _ = await mirror_answers(self._cluster)
        return [
            node
            for node, answer in answers.items()
            if any(each.name in topics and each.state == _ACTIVE for each in answer.topics)
        ]

    async def resume_mirrors(self, topics: Collection[str]) -> None:
        """Let mirror topics that are paused or stopped copy again.

        Raises:
            LogError: a topic is no mirror; the other ones are resumed.
        """
        await self._alter_mirrors("resume", topics, _ACTIVE)

    async def promote_mirrors_now(self, topics: Collection[str]) -> None:
        """Let mirror topics become topics of this cluster, with the records that are here.

        What the source has beyond them is not copied any more, see `possible_losses`.

        Raises:
            LogError: a topic is no mirror, or was promoted before; the other ones are promoted.
        """
        await self._alter_mirrors("promote", topics, _PROMOTED)

    async def promote_mirrors(
        self,
        source: MirrorAdmin,
        mirrors: Collection[MirrorDescription],
        *,
        copies_groups: bool,
        app: str = "",
        patience: PromotionPatience | None = None,
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> PromotionOutcome:
        """Let mirrors of one link become topics of this cluster, with all records of their source.

        The source's topics take no records from now on. If the promotion is given up, they do so
        again.

        Args:
            source: the source cluster.
            mirrors: the mirrors; of those that were promoted before, the source is notified.
            copies_groups: whether the link copies groups: they are copied once more before.
            app: an app that moves with them; it may have no workers in either cluster.
            patience: how long to wait for what.
            on_wait: called with what is waited for, whenever that changes.

        Raises:
            PromotionGivenUp: nothing has changed, or the message says what to do.
        """
        promotion = LosslessPromotion(
            self._cluster,
            source._cluster,
            patience=patience or PromotionPatience(),
            on_wait=on_wait,
        )
        names = [each.name for each in mirrors]
        return await promotion.run(names, copies_groups=copies_groups, app=app)

    async def unseal_topics(self, topics: Collection[str], *, force: bool = False) -> None:
        """Let topics take records again that another cluster was to take over.

        Args:
            topics: their names.
            force: also those that the other cluster has taken over. Both take records then.

        Raises:
            LogError: a topic is not sealed, or has moved; the other ones are opened.
        """
        request = AlterSealsRequest(
            target_cluster_id="",
            wall_ms=self._cluster.clock.wall_ms(),
            topics=[AlterableSeal(name=each, is_forced=force) for each in topics],
        )

        def read(answer: AlterSealsResponse) -> None:
            check("unseal topics", answer.error_code, answer.error_message)
            outcomes = [(each.name, each.error_code, each.error_message) for each in answer.topics]
            raise_refused("unseal", outcomes)

        await self._ask_controller(request, AlterSealsResponse, read)

    async def possible_losses(self, mirrors: Collection[MirrorDescription]) -> list[PossibleLoss]:
        """Return what each partition of mirrors may lack, as the source was last heard of."""
        known = {
            TopicPartition(mirror.name, part.partition): part
            for mirror in mirrors
            for part in mirror.partitions
        }
        try:
            newest = await list_offsets(self._cluster, dict.fromkeys(known, NEWEST))
        except StreamlogError:
            # A broker that has failed since is no reason to tell nothing about the other numbers.
            newest = {}
        found = []
        for mirror in mirrors:
            for number in range(mirror.num_partitions):
                where = TopicPartition(mirror.name, number)
                part, record = known.get(where), newest.get(where)
                found.append(
                    PossibleLoss(
                        topic=mirror.name,
                        partition=number,
                        log_end_offset=None if part is None else part.log_end_offset,
                        source_end_offset=None if part is None else part.source_end_offset,
                        missing_records=None if part is None else part.lag_records,
                        silent_ms=None if part is None else part.silent_ms,
                        newest_ms=None if record is None else _known(record.timestamp_ms),
                    )
                )
        return found

    async def fail_back(self, link: str, source: MirrorAdmin, topics: Mapping[str, str]) -> None:
        """Let topics of this cluster follow those of a link's source, with which they began as one.

        Their logs are cut where the two part. Leaders keep what is cut off in `lost-and-found`.

        Args:
            link: the link to the source.
            source: the source cluster.
            topics: the topic there, by the topic here.

        Raises:
            LogError: a topic has another history than that of the source, or its source mirrors
                this cluster; the other ones follow.
            UnknownTopicOrPartition: the source does not have a topic.
        """
        cluster_id = freshest((await mirror_answers(self._cluster))[0]).cluster_id
        eras = await source._histories()
        there = await TopicAdmin(source._cluster).describe_topics([*topics.values()])
        by_name = {each.name: each for each in there}
        asked = []
        for name, source_topic in topics.items():
            mirror, topic = eras.get(source_topic), by_name[source_topic]
            if mirror is not None and _mirrors_cluster(mirror, cluster_id):
                # Each would wait for the other one, and neither would take records.
                raise error_for(
                    ErrorCode.INVALID_REQUEST,
                    f"{source_topic} of the source mirrors this cluster: promote it there first",
                )
            asked.append(
                CreatableMirror(
                    name=name,
                    source_topic=source_topic,
                    source_topic_id=topic.topic_id,
                    num_partitions=topic.partitions,
                    eras=[] if mirror is None else mirror.eras,
                )
            )
        request = FailBackRequest(link=link, wall_ms=self._cluster.clock.wall_ms(), topics=asked)

        def read(answer: FailBackResponse) -> None:
            check(f"fail back over link {link!r}", answer.error_code, answer.error_message)
            outcomes = [(each.name, each.error_code, each.error_message) for each in answer.topics]
            raise_refused("fail back", outcomes)

        await self._ask_controller(request, FailBackResponse, read)

    async def _histories(self) -> dict[str, DescribedMirror]:
        """Return the topics that are or were mirrors; nothing from brokers that have none."""
        try:
            answers, _ = await mirror_answers(self._cluster)
        except UnsupportedVersion:
            return {}
        return {each.name: each for each in freshest(answers).topics}

    async def _alter_mirrors(self, what: str, topics: Collection[str], state: int) -> None:
        request = AlterMirrorsRequest(
            wall_ms=self._cluster.clock.wall_ms(),
            topics=[AlterableMirror(name=each, state=state) for each in topics],
        )

        def read(answer: AlterMirrorsResponse) -> None:
            check(f"{what} mirrors", answer.error_code, answer.error_message)
            outcomes = [(each.name, each.error_code, each.error_message) for each in answer.topics]
            raise_refused(what, outcomes)

        await self._ask_controller(request, AlterMirrorsResponse, read)

    async def compare_mirror(
        self,
        mirror: TopicPartition,
        source: MirrorAdmin,
        source_topic: str,
        *,
        is_compacted: bool,
        on_progress: Callable[[int], None],
    ) -> ComparedRange:
        """Compare a partition of a mirror with its source, byte for byte.

        Args:
            mirror: the partition here.
            source: the source cluster.
            source_topic: the topic there.
            is_compacted: whether the topic is compacted, by each side for itself: then records are
                compared one by one, and only where both sides have one.
            on_progress: called with the offset that the comparison has reached.

        Raises:
            UnknownTopicOrPartition: a side does not have the partition.
            LogError: a side refuses, or records were deleted while they were compared.
        """
        there = TopicPartition(source_topic, mirror.partition)
        return await compare_logs(
            LogSide(self._cluster, mirror),
            LogSide(source._cluster, there),
            is_compacted=is_compacted,
            on_progress=on_progress,
        )

    async def app_logs(self, link: str) -> AppLogs:
        """Return what a link has for a cut of its apps.

        Raises:
            LogError: the user may not describe the cluster.
            ConnectionLost: no broker answers.
        """
        newest = freshest((await mirror_answers(self._cluster))[0])
        found = [each for each in newest.links if each.name == link]
        ids = {each.link_id for each in found}
        return AppLogs(
            mirrors={
                each.source_topic: (each.name, each.num_partitions)
                for each in newest.topics
                if each.link_id in ids and is_app_log(each)
            },
            mark=tuple(mark for each in found for mark in each.app_mark),
        )

    async def ends_of(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where partitions end, once they all have leaders.

        Raises:
            UnknownTopicOrPartition: a partition does not exist.
        """
        found = await list_offsets(self._cluster, dict.fromkeys(partitions, LATEST))
        return {partition: each.offset for partition, each in found.items()}

    async def stored_batches(
        self, partition: TopicPartition, start: int, end: int
    ) -> AsyncIterator[RecordBatch]:
        """Yield the batches of a partition from an offset to another one, as they are stored.

        Those without records, which stand for what compaction has removed, are left out. Memory
        holds one fetch.

        Raises:
            LogError: the user may not read the topic, or its leader does not answer.
        """
        side = LogSide(self._cluster, partition)
        first = await list_offsets(self._cluster, {partition: EARLIEST})
        async for batch in stored_batches(side, max(start, first[partition].offset), end):
            yield batch

    async def promote_app_now(self, cuts: Mapping[str, Mapping[int, int]]) -> None:
        """Let mirror topics become topics of this cluster, cut, in one decision.

        A partition has no leader until its records above the cut are in `lost-and-found`.

        Args:
            cuts: by topic, where its partitions are cut; those without a cut stay as they are.

        Raises:
            LogError: a topic is no mirror, or was promoted before: then none is promoted.
        """
        request = AlterMirrorsRequest(
            wall_ms=self._cluster.clock.wall_ms(),
            is_whole=True,
            topics=[
                AlterableMirror(
                    name=name,
                    state=_PROMOTED,
                    cuts=[MirrorCut(partition=key, offset=at) for key, at in sorted(each.items())],
                )
                for name, each in cuts.items()
            ],
        )

        def read(answer: AlterMirrorsResponse) -> None:
            check("promote mirrors", answer.error_code, answer.error_message)
            outcomes = [(each.name, each.error_code, each.error_message) for each in answer.topics]
            raise_refused("promote", outcomes)

        await self._ask_controller(request, AlterMirrorsResponse, read)

    async def describe_mirrors(self) -> MirrorsDescription:
        """Return all links and mirror topics, with what the leaders of their partitions know.

        Raises:
            UnsupportedVersion: the brokers are not streamlog's.
            LogError: the user may not describe the cluster.
            ConnectionLost: no broker answers.
        """
        answers, failures = await mirror_answers(self._cluster)
        silent = {node_id: str(error) for node_id, error in sorted(failures.items())}
        return join_answers(answers, silent, self._cluster.clock.wall_ms())


def _mirrors_cluster(mirror: DescribedMirror, cluster_id: str) -> bool:
    """Return whether a topic copies records that come from a cluster."""
    newest = mirror.eras[-1].cluster_id if mirror.eras else ""
    return mirror.state != _PROMOTED and newest == cluster_id


def join_answers(
    answers: Mapping[int, DescribeMirrorsResponse], silent: Mapping[int, str], wall_ms: int
) -> MirrorsDescription:
    """Join the answers of brokers, at least one, into one description. Pure.

    Args:
        answers: by broker.
        silent: why the other brokers have not answered.
        wall_ms: now, in ms since 1970.
    """
    newest = freshest(answers)
    reports = leader_reports(answers)
    names = {each.link_id: each.name for each in newest.links}
    # Each broker connects by itself, so that one may be cut off from the source and others not.
    troubles: dict[bytes, dict[int, str]] = {}
    notices: dict[bytes, dict[int, tuple[str, ...]]] = {}
    for node_id, answer in sorted(answers.items()):
        for link in answer.links:
            if link.trouble:
                troubles.setdefault(link.link_id, {})[node_id] = link.trouble
            if link.notices:
                notices.setdefault(link.link_id, {})[node_id] = tuple(link.notices)
    mirrors = tuple(
        _mirror(
            each,
            names.get(each.link_id, ""),
            reports.get(each.topic_id, {}),
            (next(iter(troubles.get(each.link_id, {}).values()), ""), wall_ms),
        )
        for each in newest.topics
        if not is_app_log(each)
    )
    links = tuple(
        LinkDescription(
            name=each.name,
            source_cluster_id=each.source_cluster_id,
            settings={setting.name: setting.value for setting in each.settings},
            troubles=troubles.get(each.link_id, {}),
            notices=notices.get(each.link_id, {}),
            mirrors=sum(
                mirror.link_id == each.link_id
                and mirror.state != _PROMOTED
                and not is_app_log(mirror)
                for mirror in newest.topics
            ),
        )
        for each in newest.links
    )
    return MirrorsDescription(
        cluster_id=newest.cluster_id,
        links=links,
        mirrors=mirrors,
        seals=_seals(answers),
        silent=silent,
    )


def _seals(answers: Mapping[int, DescribeMirrorsResponse]) -> tuple[SealDescription, ...]:
    reports = seal_reports(answers)
    return tuple(
        SealDescription(
            topic=each.name,
            status=(SealStatus.OPEN, SealStatus.SEALED, SealStatus.MOVED)[each.state],
            target_cluster_id=each.target_cluster_id,
            attempt=each.attempt,
            since_ms=each.since_ms,
            num_partitions=each.num_partitions,
            sealed_partitions=len(reports.get(each.topic_id, {})),
        )
        for each in freshest(answers).seals
        if each.state
    )


def _mirror(
    topic: DescribedMirror,
    link: str,
    reports: LeaderReports,
    situation: tuple[str, int],
) -> MirrorDescription:
    """Describe a mirror; `situation` is the trouble of its link, if any, and the time."""
    partitions = tuple(_partition(*reports[number]) for number in sorted(reports))
    # Its leaders copy nothing any more, and one that has not heard of it yet would show a lag.
    if topic.state == _PROMOTED:
        partitions = ()
    status, reason, since_ms = _status(topic, partitions, *situation)
    return MirrorDescription(
        name=topic.name,
        topic_id=topic.topic_id,
        link=link,
        source_topic=topic.source_topic,
        status=status,
        reason=reason,
        since_ms=since_ms,
        num_partitions=topic.num_partitions,
        partitions=partitions,
    )


def _partition(leader: int, part: DescribedMirrorPartition) -> MirrorPartitionDescription:
    end = _known(part.source_end_offset)
    return MirrorPartitionDescription(
        partition=part.partition_index,
        leader=leader,
        log_start_offset=part.log_start_offset,
        log_end_offset=part.log_end_offset,
        source_end_offset=end,
        lag_records=None if end is None else max(0, end - part.log_end_offset),
        lag_bytes=_known(part.lag_bytes),
        lag_ms=_known(part.lag_ms),
        silent_ms=_known(part.silent_ms),
        trouble=part.trouble,
        refusal=part.refusal,
    )


def _status(
    topic: DescribedMirror,
    partitions: Collection[MirrorPartitionDescription],
    trouble: str,
    wall_ms: int,
) -> tuple[MirrorStatus, str, int]:
    """Return a mirror's state, why, and since when."""
    decided = {
        _PAUSED: MirrorStatus.PAUSED,
        _STOPPED: MirrorStatus.STOPPED,
        _PROMOTED: MirrorStatus.PROMOTED,
        _PROMOTING: MirrorStatus.PROMOTING,
    }.get(topic.state)
    if decided is not None:
        reason = topic.reason
        if decided is MirrorStatus.PROMOTING and not reason:
            reason = (
                f"promotion {topic.attempt} has begun; if its command is gone, run it again, or"
                " resume here and unseal at the source"
            )
        return decided, reason, topic.since_ms
    return _seen(topic, partitions, trouble, wall_ms)


def _seen(
    topic: DescribedMirror,
    partitions: Collection[MirrorPartitionDescription],
    trouble: str,
    wall_ms: int,
) -> tuple[MirrorStatus, str, int]:
    """Return the state of a mirror that is to copy."""
    # The worst comes first: a mirror that has diverged does not move, whether it is reached or not.
    for each in partitions:
        if each.trouble:
            return MirrorStatus.DIVERGED, f"{topic.name}-{each.partition}: {each.trouble}", wall_ms
    # Before the missing ones: one silent partition is enough to say that the source is away.
    heard = [each for each in partitions if each.silent_ms is not None]
    silent_ms = max((each.silent_ms or 0 for each in heard), default=0)
    # A source that can't be reached at all comes before what it has answered last.
    trouble = trouble or _refusal(topic, partitions)
    if silent_ms > SILENT_MS:
        reason = f"the source has sent nothing for {silent_ms // 1000} s"
        reason += f": {trouble}" if trouble else ""
        return MirrorStatus.SOURCE_UNAVAILABLE, reason, wall_ms - silent_ms
    if len(heard) < topic.num_partitions:
        # A source that was never reached: no partition is silent yet, and the link says why.
        status = MirrorStatus.SOURCE_UNAVAILABLE if trouble else MirrorStatus.INITIAL
        missing = f"{topic.num_partitions - len(heard)} partitions are not read yet"
        return status, trouble or missing, topic.since_ms
    # By time and not by records: a fast topic is always some records behind.
    lag_ms = max((each.lag_ms or 0 for each in partitions), default=0)
    if lag_ms > LAGGING_MS:
        return MirrorStatus.LAGGING, "", wall_ms - lag_ms
    return MirrorStatus.ACTIVE, "", topic.since_ms


def _refusal(topic: DescribedMirror, partitions: Collection[MirrorPartitionDescription]) -> str:
    refused = (each for each in partitions if each.refusal)
    first = next(refused, None)
    return (
        f"the source refuses {topic.source_topic}-{first.partition}: {first.refusal}"
        if first
        else ""
    )


def _known(value: int) -> int | None:
    """Return a number of the protocol, in which -1 stands for "not known"."""
    return None if value < 0 else value


def _total(values: Iterable[int | None]) -> int | None:
    known = [each for each in values if each is not None]
    return sum(known) if known else None
