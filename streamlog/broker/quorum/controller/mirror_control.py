"""MirrorControl: the controller's decisions on links and mirror topics.

Rules of this module:

- A topic is created as a mirror and becomes one of this cluster by promotion. Each of these changes
  begins a leader epoch of all its partitions, so that no leader acts on the state before.
- Promotion begins an era (see `metadata.mirror_topics`).
- A promotion without loss has a number. What it decides counts only while it is the last one that
  was begun and was not given up: its client has looked at both sides before, and another operator
  may have given it up, and unsealed the source, in between.
- A topic that exists here follows a source only by an operator's request (`FailBackRequest`), never
  because a pattern names it; and only if leader epochs tell where their logs part.

Not done here: what is copied (`replication.mirror_reader`), the look for new topics at the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from streamlog.broker.config.link import LinkConfig, check_references
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.named_topics import MIRRORED_LOGS
from streamlog.broker.quorum.controller.decision import (
    ControllerContext,
    Decision,
    DecisionHandlers,
    decides,
    respond,
)
from streamlog.broker.quorum.controller.seal_control import new_epochs
from streamlog.broker.quorum.controller.topic_control import TopicControl
from streamlog.broker.quorum.metadata.cluster_metadata import TopicRegistration
from streamlog.broker.quorum.metadata.metadata_records import MetadataRecord
from streamlog.broker.quorum.metadata.mirror_topics import (
    LogEra,
    MirrorLink,
    MirrorState,
    MirrorTopic,
    are_ambiguous,
    next_era_epoch,
    strays_of,
)
from streamlog.broker.quorum.metadata.topic_seals import SealState
from streamlog.errors import ConfigError, LogError, TopicExists, UnknownTopicOrPartition
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.metadata_log import (
    AppMarkRecord,
    PartitionChangeRecord,
    RemoveMirrorLinkRecord,
    RemoveTopicRecord,
)
from streamlog.protocol.messages.mirror_messages import (
    AlterableMirror,
    AlterLinkRequest,
    AlterLinkResponse,
    AlterMirrorPartitionRequest,
    AlterMirrorPartitionResponse,
    AlterMirrorsRequest,
    AlterMirrorsResponse,
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
from streamlog.protocol.messages.partitions_and_replicas import CreatePartitionsTopic
from streamlog.protocol.messages.topics_and_configs import CreatableTopic
from streamlog.protocol.schema import ZERO_UUID
from streamlog.records.epoch_chains import LEADER_EPOCH_MAX
from streamlog.replace import replace

_ID_BYTES = 16
_CHANGES = {
    MirrorState.ACTIVE: (MirrorState.PAUSED, MirrorState.STOPPED, MirrorState.PROMOTING),
    MirrorState.PAUSED: (MirrorState.ACTIVE,),
    MirrorState.STOPPED: (MirrorState.ACTIVE, MirrorState.PAUSED, MirrorState.PROMOTING),
    MirrorState.PROMOTING: (MirrorState.ACTIVE, MirrorState.PROMOTING),
    MirrorState.PROMOTED: (*MirrorState,),
}
"""For each state, those from which it can be reached; a stopped topic can be resumed."""


class MirrorControl:
    """Links and mirror topics, for the active controller."""

    def __init__(self, context: ControllerContext, topics: TopicControl) -> None:
        """`topics` creates the topics that are mirrors."""
        self._context = context
        self._topics = topics

    def handlers(self) -> DecisionHandlers:
        """Return the handler of each kind of request."""
        return dict(
            [
                decides(CreateLinkRequest, self.create_link),
                decides(AlterLinkRequest, self.alter_link),
                decides(DeleteLinkRequest, self.delete_link),
                decides(CreateMirrorsRequest, self.create_mirrors),
                decides(FailBackRequest, self.fail_back),
                decides(AlterMirrorsRequest, self.alter_mirrors),
                decides(AlterMirrorPartitionRequest, self.alter_partition),
                decides(MarkAppsRequest, self.mark_apps),
            ]
        )

    # ---- links ----

    def create_link(
        self, request: CreateLinkRequest, _: int, __: int
    ) -> Decision[CreateLinkResponse]:
        """Create a link; with `validate_only`, only check the request."""
        context = self._context
        detail = ""
        code = ErrorCode.INVALID_REQUEST
        if not request.name:
            detail = "a link needs a name"
        elif context.metadata.link(request.name) is not None:
            detail = f"link {request.name} exists already: choose another name, or delete it first"
            code = ErrorCode.DUPLICATE_RESOURCE
        elif request.source_cluster_id == context.cluster_id:
            detail = (
                f"link {request.name} leads to this cluster itself ({context.cluster_id}): give"
                " the addresses of another cluster"
            )
        settings = {each.name: each.value for each in request.settings}
        if not detail:
            code, detail = (
                ErrorCode.INVALID_CONFIG,
                _wrong_setting(settings, context.config.security),
            )
        if detail:
            return respond(CreateLinkResponse(error_code=code, error_message=detail))
        link = MirrorLink(
            link_id=context.chance.randbytes(_ID_BYTES),
            name=request.name,
            source_cluster_id=request.source_cluster_id,
            settings=settings,
        )
        records = () if request.validate_only else (link.record(),)
        return respond(CreateLinkResponse(link_id=link.link_id), records)

    def alter_link(self, request: AlterLinkRequest, _: int, __: int) -> Decision[AlterLinkResponse]:
        """Change settings of a link."""
        try:
            link = self._link(request.name)
        except LogError as error:
            return respond(AlterLinkResponse(error_code=error.code, error_message=str(error)))
        # Together, so that a link never leads to a new address with the old login.
        settings = {**link.settings}
        for change in request.settings:
            if change.value is None:
                settings.pop(change.name, None)
            else:
                settings[change.name] = change.value
        if detail := _wrong_setting(settings, self._context.config.security):
            return respond(
                AlterLinkResponse(error_code=ErrorCode.INVALID_CONFIG, error_message=detail)
            )
        return respond(AlterLinkResponse(), (replace(link, settings=settings).record(),))

    def delete_link(
        self, request: DeleteLinkRequest, _: int, __: int
    ) -> Decision[DeleteLinkResponse]:
        """Delete a link that mirrors no topic any more."""
        try:
            link = self._link(request.name)
            self._check_unused(link)
        except LogError as error:
            return respond(DeleteLinkResponse(error_code=error.code, error_message=str(error)))
        # The logs of its apps are of no use without it, and are not for users to delete.
        logs = [
            RemoveTopicRecord(topic_id=topic_id)
            for topic_id, name in self._mirrors_of(link)
            if name.startswith(MIRRORED_LOGS)
        ]
        return respond(DeleteLinkResponse(), (*logs, RemoveMirrorLinkRecord(link_id=link.link_id)))

    def mark_apps(self, request: MarkAppsRequest, _: int, __: int) -> Decision[MarkAppsResponse]:
        """Keep up to where the apps of a link were copied as a whole."""
        if request.link_id not in self._context.metadata.links:
            return respond(
                MarkAppsResponse(
                    error_code=ErrorCode.RESOURCE_NOT_FOUND,
                    error_message="the link has been deleted",
                )
            )
        mark = AppMarkRecord(link_id=request.link_id, partitions=request.partitions)
        return respond(MarkAppsResponse(), (mark,))

    def _link(self, name: str) -> MirrorLink:
        link = self._context.metadata.link(name)
        if link is None:
            names = sorted(each.name for each in self._context.metadata.links.values())
            there = f"the links are {', '.join(names)}" if names else "there are no links"
            raise error_for(ErrorCode.RESOURCE_NOT_FOUND, f"there is no link {name!r}: {there}")
        return link

    def _mirrors_of(self, link: MirrorLink) -> list[tuple[bytes, str]]:
        """Return the ids and names of the topics that a link mirrors."""
        metadata = self._context.metadata
        return [
            (each.topic_id, metadata.topics[each.topic_id].name)
            for each in metadata.mirrors.values()
            # Promoted topics keep the link's id as their history, and don't need the link.
            if each.link_id == link.link_id and each.is_mirror
        ]

    def _check_unused(self, link: MirrorLink) -> None:
        mirrors = sorted(
            name for _, name in self._mirrors_of(link) if not name.startswith(MIRRORED_LOGS)
        )
        if mirrors:
            raise error_for(
                ErrorCode.INVALID_REQUEST,
                f"link {link.name} mirrors {len(mirrors)} topics, such as {mirrors[0]}: promote or"
                " delete them first",
            )

    # ---- mirror topics ----

    def create_mirrors(
        self, request: CreateMirrorsRequest, _: int, __: int
    ) -> Decision[CreateMirrorsResponse]:
        """Create mirror topics, or add the partitions that their sources have got."""
        link = self._context.metadata.links.get(request.link_id)
        if link is None:
            return respond(
                CreateMirrorsResponse(
                    error_code=ErrorCode.RESOURCE_NOT_FOUND,
                    error_message="the link has been deleted",
                )
            )
        results, records = self._each(link, request.topics, request.wall_ms, follows=False)
        return respond(CreateMirrorsResponse(topics=results), records)

    def fail_back(self, request: FailBackRequest, _: int, __: int) -> Decision[FailBackResponse]:
        """Let topics of this cluster follow another one that has led them since."""
        try:
            link = self._link(request.link)
        except LogError as error:
            return respond(FailBackResponse(error_code=error.code, error_message=str(error)))
        results, records = self._each(link, request.topics, request.wall_ms, follows=True)
        return respond(FailBackResponse(topics=results), records)

    def _each(
        self, link: MirrorLink, topics: Iterable[CreatableMirror], wall_ms: int, *, follows: bool
    ) -> tuple[list[MirrorResult], list[MetadataRecord]]:
        """Return the outcome for each topic, and the records of those that are accepted."""
        records: list[MetadataRecord] = []
        results = []
        for asked in topics:
            result = MirrorResult(name=asked.name)
            try:
                records += self._mirrored(link, asked, wall_ms, follows=follows)
            except LogError as error:
                result.error_code, result.error_message = error.code, str(error)
            results.append(result)
        return results, records

    def _mirrored(
        self, link: MirrorLink, asked: CreatableMirror, wall_ms: int, *, follows: bool
    ) -> Iterator[MetadataRecord]:
        found = self._context.metadata.topic(asked.name)
        eras = tuple(map(LogEra.of_field, asked.eras))
        mirror = MirrorTopic(
            topic_id=b"" if found is None else found.topic_id,
            link_id=link.link_id,
            source_topic=asked.source_topic,
            source_topic_id=asked.source_topic_id,
            since_ms=wall_ms,
            eras=eras or (LogEra(link.source_cluster_id, 0, asked.source_topic_id),),
        )
        if found is None and follows:
            raise UnknownTopicOrPartition(f"there is no topic {asked.name!r}")
        if found is None:
            result, records = self._topics.created(
                CreatableTopic(
                    name=asked.name,
                    num_partitions=asked.num_partitions,
                    replication_factor=-1,
                    configs=asked.configs,
                ),
                # An app notes the ids of its topics, with its positions and in its changelogs, and
                # takes other ids for topics that were deleted and created again.
                asked.source_topic_id
                if link.settings.get("apps") and not asked.name.startswith(MIRRORED_LOGS)
                else ZERO_UUID,
            )
            yield from records
            yield replace(mirror, topic_id=result.topic_id).record()
            return
        known = self._context.metadata.mirrors.get(found.topic_id)
        if known is not None and known.is_mirror:
            yield from self._grown(found, known, mirror, asked.num_partitions)
            return
        # A pattern that happens to match is not an operator's word: following refuses the producers
        # of the topic and cuts off what only this cluster has.
        if not follows:
            raise TopicExists(
                f"{asked.name} exists already: let it follow the source by `streamlog mirror"
                f" fail-back {link.name}`, or mirror with a prefix"
            )
        ours = self._eras_of(found, known)
        self._check_follows(found, ours, mirror, asked.num_partitions)
        yield replace(mirror, strays=strays_of(ours, mirror.eras)).record()
        # Its seal ends: it takes no records as a mirror, and all of them once it is promoted.
        seal = self._context.metadata.seals.get(found.topic_id)
        if seal is not None and seal.is_closed:
            yield replace(seal, state=SealState.OPEN, since_ms=wall_ms).record()
        yield from new_epochs(found, -1)

    def _grown(
        self, topic: TopicRegistration, known: MirrorTopic, asked: MirrorTopic, partitions: int
    ) -> Iterator[MetadataRecord]:
        """Yield the records of the partitions that the source has got."""
        is_same = (known.link_id, known.source_topic, known.source_topic_id) == (
            asked.link_id,
            asked.source_topic,
            asked.source_topic_id,
        )
        if not is_same:
            raise TopicExists(f"{topic.name} is a mirror of another topic already")
        if partitions > len(topic.partitions):
            yield from self._topics.added(
                CreatePartitionsTopic(name=topic.name, count=partitions, assignments=None)
            )

    def _eras_of(self, topic: TopicRegistration, known: MirrorTopic | None) -> tuple[LogEra, ...]:
        """Return all eras of which a topic here may have records, the first one first."""
        if known is None:
            return (LogEra(self._context.cluster_id, 0, topic.topic_id),)
        return known.all_eras

    def _check_follows(
        self,
        topic: TopicRegistration,
        ours: tuple[LogEra, ...],
        mirror: MirrorTopic,
        partitions: int,
    ) -> None:
        """Check that a topic of this cluster can follow a source (fail back)."""
        # Logs that began as one topic share their first era. Without that, equal epochs would be
        # taken for equal records, and the cut would be anywhere.
        if ours[0] != mirror.eras[0]:
            raise TopicExists(
                f"{topic.name} exists already, and has another history than the source's: delete"
                " it first, or mirror with a prefix"
            )
        # Both sides drew the same epoch for different eras. One in 512, and only if both were
        # promoted: refused, since the check by epochs would take the two for one.
        if are_ambiguous(ours, mirror.eras):
            raise TopicExists(
                f"{topic.name} was promoted here and elsewhere at the same leader epoch, so that"
                " it can't be told where the logs part: delete it, and mirror it anew"
            )
        if len(topic.partitions) != partitions:
            raise error_for(
                ErrorCode.INVALID_PARTITIONS,
                f"{topic.name} has {len(topic.partitions)} partitions, and {partitions} at the"
                " source: add those that are missing first",
            )

    def alter_mirrors(
        self, request: AlterMirrorsRequest, _: int, __: int
    ) -> Decision[AlterMirrorsResponse]:
        """Pause, resume, stop or promote mirror topics, each of them alone or all as one."""
        records: dict[bytes, list[MetadataRecord]] = {}
        results = []
        for asked in request.topics:
            result = MirrorResult(name=asked.name)
            try:
                topic, mirror = self._mirror(asked)
                records[topic.topic_id] = [*self._altered(topic, mirror, asked, request.wall_ms)]
                if asked.state == MirrorState.PROMOTING:
                    result.attempt = _next_attempt(mirror, asked)
            except LogError as error:
                result.error_code, result.error_message = error.code, str(error)
            results.append(result)
        if request.is_whole and any(each.error_code for each in results):
            return respond(AlterMirrorsResponse(topics=results))
        every = [each for one in records.values() for each in one]
        return respond(AlterMirrorsResponse(topics=results), every)

    def _mirror(self, asked: AlterableMirror) -> tuple[TopicRegistration, MirrorTopic]:
        name = asked.name
        topic = self._context.metadata.topic(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        mirror = self._context.metadata.mirrors.get(topic.topic_id)
        # The answer to the promotion was lost, and the request is repeated.
        if (
            mirror is not None
            and asked.state == mirror.state == MirrorState.PROMOTED
            and asked.attempt == mirror.attempt > 0
        ):
            return topic, mirror
        if mirror is None or not mirror.is_mirror:
            what = "is not a mirror" if mirror is None else "was promoted before"
            raise error_for(ErrorCode.INVALID_REQUEST, f"{name} {what}")
        return topic, mirror

    def _altered(
        self,
        topic: TopicRegistration,
        mirror: MirrorTopic,
        asked: AlterableMirror,
        wall_ms: int,
    ) -> Iterator[MetadataRecord]:
        try:
            state = MirrorState(asked.state)
        except ValueError as error:
            raise error_for(
                ErrorCode.INVALID_REQUEST, f"{topic.name}: there is no state {asked.state}"
            ) from error
        if state is mirror.state and state is not MirrorState.PROMOTING:
            return
        if mirror.state not in _CHANGES[state]:
            raise error_for(
                ErrorCode.INVALID_REQUEST,
                f"{topic.name} is {mirror.state.name} and can't become {state.name}",
            )
        _check_attempt(topic, mirror, asked)
        after = replace(mirror, state=state, reason=asked.reason, since_ms=wall_ms)
        if state is MirrorState.PROMOTING:
            after = replace(after, attempt=_next_attempt(mirror, asked))
        after = replace(after, cuts=_cuts(topic, asked))
        if state is not MirrorState.PROMOTED:
            yield after.record()
            return
        context = self._context
        # One epoch for all partitions, so that an era is one number for the whole topic.
        # It also comes after the source's eras, even if nothing of them has been copied yet.
        newest = max(
            *(each.leader_epoch for each in topic.partitions.values()),
            *(each.leader_epoch for each in mirror.all_eras),
        )
        epoch = next_era_epoch(newest, context.chance)
        if epoch > LEADER_EPOCH_MAX:
            raise error_for(
                ErrorCode.INVALID_REQUEST,
                f"{topic.name} has been promoted too often: copy it into a new topic",
            )
        # 1. An app's topic has the id of its source; it is promoted, deleted here, mirrored anew
        #    and promoted again. 2. Both eras are this cluster's. With that id, and by chance at the
        #    same epoch, they would be taken for one, although their records differ.
        is_shared = topic.topic_id == mirror.source_topic_id
        era_id = context.chance.randbytes(_ID_BYTES) if is_shared else topic.topic_id
        era = LogEra(context.cluster_id, epoch, era_id)
        yield replace(after, eras=(*mirror.all_eras, era), strays=()).record()
        # Leaders stop copying when they hear of the epoch; a fetch that is on its way then belongs
        # to the former one, and its answer is dropped.
        for record in new_epochs(topic, epoch):
            # Only those in sync may lead: another one may have what a cut is to take away.
            record.eligible_leader_replicas = []
            # What the cut takes away is committed here, and followers have it.
            record.is_unclean = record.partition_id in after.cuts
            yield record

    # ---- partitions ----

    def alter_partition(
        self, request: AlterMirrorPartitionRequest, _: int, __: int
    ) -> Decision[AlterMirrorPartitionResponse]:
        """Begin a leader epoch that a leader needs to copy on."""
        metadata = self._context.metadata
        broker = metadata.brokers.get(request.broker_id)
        partition = metadata.partition(request.topic_id, request.partition_index)
        mirror = metadata.mirrors.get(request.topic_id)
        if broker is None or broker.epoch != request.broker_epoch:
            code = ErrorCode.STALE_BROKER_EPOCH
        elif partition is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
        elif partition.leader != request.broker_id:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif partition.leader_epoch != request.leader_epoch:
            code = ErrorCode.FENCED_LEADER_EPOCH
        # A promoted topic is never cut: the leader has not heard of the promotion yet.
        elif (
            mirror is None or not mirror.is_mirror or request.least_leader_epoch > LEADER_EPOCH_MAX
        ):
            code = ErrorCode.INVALID_REQUEST
        else:
            change = PartitionChangeRecord(
                topic_id=request.topic_id,
                partition_id=request.partition_index,
                leader=partition.leader,
                least_leader_epoch=request.least_leader_epoch,
                is_unclean=request.cuts,
                isr=[partition.leader] if request.is_alone else None,
                eligible_leader_replicas=[] if request.is_alone else None,
            )
            epoch = partition.changed(change).leader_epoch
            return respond(AlterMirrorPartitionResponse(leader_epoch=epoch), (change,))
        return respond(AlterMirrorPartitionResponse(error_code=code))


def _cuts(topic: TopicRegistration, asked: AlterableMirror) -> dict[int, int]:
    """Return where a promotion cuts the partitions of a topic.

    Raises:
        LogError: it is no promotion, or a cut is of no partition of the topic.
    """
    cuts = {each.partition: each.offset for each in asked.cuts}
    is_promoted = asked.state == MirrorState.PROMOTED
    if cuts and not (is_promoted and cuts.keys() <= topic.partitions.keys()):
        raise error_for(
            ErrorCode.INVALID_REQUEST,
            f"{topic.name}: only a promotion can cut partitions of the topic, and they are 0 to"
            f" {len(topic.partitions) - 1}: not {sorted(cuts)}",
        )
    return cuts


def _next_attempt(mirror: MirrorTopic, asked: AlterableMirror) -> int:
    """Return the number of a promotion that begins; it is higher than all that the source knows."""
    return max(mirror.attempt, asked.attempt, 0) + 1


def _check_attempt(topic: TopicRegistration, mirror: MirrorTopic, asked: AlterableMirror) -> None:
    """Check that a promotion that ends, or is given up, is the one that is under way.

    Without a number it is an operator's word: promotion at once, or a resume.
    """
    if asked.attempt < 0 or asked.state == MirrorState.PROMOTING:
        return
    if mirror.state is not MirrorState.PROMOTING or mirror.attempt != asked.attempt:
        raise error_for(
            ErrorCode.INVALID_REQUEST,
            f"{topic.name}: promotion {asked.attempt} was given up, or another operator has begun"
            f" promotion {mirror.attempt}",
        )


def _wrong_setting(settings: Mapping[str, str], security: SecurityConfig) -> str:
    """Return what is wrong with a link's settings; empty if nothing is."""
    try:
        LinkConfig.of(settings)
        check_references(settings, security)
    except ConfigError as error:
        return str(error)
    return ""
