"""Mirroring: links to other clusters, the topics that they mirror, and how far those are.

Declarations only, see `schema`. These APIs are ours, like those of `publishing`. CreateMirrors and
AlterMirrorPartition are for brokers, the other ones are for clients.
"""

from __future__ import annotations

from typing import ClassVar

from streamlog.protocol.messages.metadata_log import (
    LinkSetting,
    MarkedPartition,
    MirrorCut,
    MirrorEra,
)
from streamlog.protocol.messages.topics_and_configs import CreatableTopicConfig
from streamlog.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int32_array,
    int64,
    string,
    string_array,
    uuid,
)


class CreateLinkRequest(Message, versions="0-0", flexible_from=0):
    """Create a link to another cluster."""

    __response__: ClassVar[CreateLinkResponse]
    name: str = string("0+")
    # As the cluster has given it.
    source_cluster_id: str = string("0+")
    settings: list[LinkSetting] = array(LinkSetting, "0+")
    validate_only: bool = boolean("0+")


class CreateLinkResponse(Message, versions="0-0", flexible_from=0):
    """The link that was created."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    link_id: bytes = uuid("0+")


class ChangedLinkSetting(Struct):
    """A new value of a setting; None for its default."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


class AlterLinkRequest(Message, versions="0-0", flexible_from=0):
    """Change settings of a link, all of them or none."""

    __response__: ClassVar[AlterLinkResponse]
    name: str = string("0+")
    settings: list[ChangedLinkSetting] = array(ChangedLinkSetting, "0+")


class AlterLinkResponse(Message, versions="0-0", flexible_from=0):
    """Whether the settings were changed."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class DeleteLinkRequest(Message, versions="0-0", flexible_from=0):
    """Delete a link that mirrors no topic any more."""

    __response__: ClassVar[DeleteLinkResponse]
    name: str = string("0+")


class DeleteLinkResponse(Message, versions="0-0", flexible_from=0):
    """Whether the link was deleted."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class CreatableMirror(Struct):
    """A topic that is to mirror one of the source."""

    name: str = string("0+")
    source_topic: str = string("0+")
    # All zero if the source has no topic ids.
    source_topic_id: bytes = uuid("0+")
    num_partitions: int = int32("0+")
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig, "0+")
    eras: list[MirrorEra] = array(MirrorEra, "0+")


class CreateMirrorsRequest(Message, versions="0-0", flexible_from=0):
    """Create mirror topics of a link, or add the partitions that their sources have got."""

    __response__: ClassVar[CreateMirrorsResponse]
    link_id: bytes = uuid("0+")
    # The time of the sender, in ms since 1970.
    wall_ms: int = int64("0+")
    topics: list[CreatableMirror] = array(CreatableMirror, "0+")


class MirrorResult(Struct):
    """The outcome for one topic."""

    name: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    # The number of the promotion that was begun; -1 if none was.
    attempt: int = int64("0+", default=-1)


class CreateMirrorsResponse(Message, versions="0-0", flexible_from=0):
    """The outcome for each topic."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    topics: list[MirrorResult] = array(MirrorResult, "0+")


class FailBackRequest(Message, versions="0-0", flexible_from=0):
    """Let topics of this cluster follow those of a link's source, with which they began as one."""

    __response__: ClassVar[FailBackResponse]
    link: str = string("0+")
    # The time of the sender, in ms since 1970.
    wall_ms: int = int64("0+")
    topics: list[CreatableMirror] = array(CreatableMirror, "0+")


class FailBackResponse(Message, versions="0-0", flexible_from=0):
    """The outcome for each topic."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    topics: list[MirrorResult] = array(MirrorResult, "0+")


class AlterableMirror(Struct):
    """A mirror topic, and what becomes of it."""

    name: str = string("0+")
    # See `MirrorState`.
    state: int = int8("0+")
    reason: str = string("0+")
    # That of a promotion without loss, if it is one; a new promotion gets a higher number.
    attempt: int = int64("0+", default=-1)
    # Where partitions are cut before the topic is promoted.
    cuts: list[MirrorCut] = array(MirrorCut, "0+", tag=0)


class AlterMirrorsRequest(Message, versions="0-0", flexible_from=0):
    """Pause, resume, stop or promote mirror topics."""

    __response__: ClassVar[AlterMirrorsResponse]
    # The time of the sender, in ms since 1970.
    wall_ms: int = int64("0+")
    topics: list[AlterableMirror] = array(AlterableMirror, "0+")
    # Whether all of the topics are altered or none.
    is_whole: bool = boolean("0+", tag=0)


class AlterMirrorsResponse(Message, versions="0-0", flexible_from=0):
    """The outcome for each topic."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    topics: list[MirrorResult] = array(MirrorResult, "0+")


class AlterableSeal(Struct):
    """A topic of a source, and whether it takes records."""

    name: str = string("0+")
    # All zero for the topic that has the name now.
    topic_id: bytes = uuid("0+")
    # See `SealState`.
    state: int = int8("0+")
    # The number of the promotion; -1 for an operator's word.
    attempt: int = int64("0+", default=-1)
    # Whether a topic may be opened that the other cluster has taken over.
    is_forced: bool = boolean("0+")


class AlterSealsRequest(Message, versions="0-0", flexible_from=0):
    """Seal topics for another cluster, mark them as moved there, or open them again."""

    __response__: ClassVar[AlterSealsResponse]
    # Empty for an operator's word.
    target_cluster_id: str = string("0+")
    # The time of the sender, in ms since 1970.
    wall_ms: int = int64("0+")
    topics: list[AlterableSeal] = array(AlterableSeal, "0+")


class SealResult(Struct):
    """The outcome for one topic."""

    name: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    # By the number of the partition; a leader of one of these, or of a later one, knows the state.
    leader_epochs: list[int] = int32_array("0+")


class AlterSealsResponse(Message, versions="0-0", flexible_from=0):
    """The outcome for each topic."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    topics: list[SealResult] = array(SealResult, "0+")


class AlterMirrorPartitionRequest(Message, versions="0-0", flexible_from=0):
    """Begin a new leader epoch of a mirror partition, for its leader."""

    __response__: ClassVar[AlterMirrorPartitionResponse]
    broker_id: int = int32("0+")
    broker_epoch: int = int64("0+")
    topic_id: bytes = uuid("0+")
    partition_index: int = int32("0+")
    # That of the asking leader.
    leader_epoch: int = int32("0+")
    least_leader_epoch: int = int32("0+")
    # Whether committed records may be cut in the new epoch.
    cuts: bool = boolean("0+")
    # Whether the leader alone is in sync in it, and no other replica eligible.
    is_alone: bool = boolean("0+", tag=0)


class AlterMirrorPartitionResponse(Message, versions="0-0", flexible_from=0):
    """The leader epoch after the request."""

    error_code: int = int16("0+")
    leader_epoch: int = int32("0+", default=-1)


class MarkAppsRequest(Message, versions="0-0", flexible_from=0):
    """Note up to where the apps of a link were copied as a whole."""

    __response__: ClassVar[MarkAppsResponse]
    link_id: bytes = uuid("0+")
    partitions: list[MarkedPartition] = array(MarkedPartition, "0+")


class MarkAppsResponse(Message, versions="0-0", flexible_from=0):
    """Whether it was noted."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class LinkAclChange(Struct):
    """An ACL that a link adds or removes; other fields as in CreateAcls."""

    adds: bool = boolean("0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    resource_pattern_type: int = int8("0+")
    principal: str = string("0+")
    host: str = string("0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class AlterLinkAclsRequest(Message, versions="0-0", flexible_from=0):
    """Change the copies that a link has of its source's ACLs, all of them or none."""

    __response__: ClassVar[AlterLinkAclsResponse]
    link_id: bytes = uuid("0+")
    changes: list[LinkAclChange] = array(LinkAclChange, "0+")


class AlterLinkAclsResponse(Message, versions="0-0", flexible_from=0):
    """Whether the copies were changed."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class DescribeMirrorsRequest(Message, versions="0-0", flexible_from=0):
    """Describe links and mirror topics, as one broker knows them."""

    __response__: ClassVar[DescribeMirrorsResponse]


class DescribedLink(Struct):
    """A link."""

    name: str = string("0+")
    link_id: bytes = uuid("0+")
    source_cluster_id: str = string("0+")
    settings: list[LinkSetting] = array(LinkSetting, "0+")
    # Why this broker can't reach the source; empty if it can, or does not have to.
    trouble: str = string("0+")
    # What it leaves out of a link that works, and why.
    notices: list[str] = string_array("0+")
    # The time since the last but one whole round of copying groups began here; -1 before that.
    groups_ms: int = int64("0+", default=-1)
    # Up to where its apps were copied as a whole, see `app_marks`; empty if they never were.
    app_mark: list[MarkedPartition] = array(MarkedPartition, "0+", tag=0)


class DescribedMirrorPartition(Struct):
    """A mirror partition that the answering broker leads; -1 stands for "not known"."""

    partition_index: int = int32("0+")
    leader_epoch: int = int32("0+")
    log_start_offset: int = int64("0+", default=-1)
    log_end_offset: int = int64("0+", default=-1)
    source_end_offset: int = int64("0+", default=-1)
    # For how long no answer of the source has come.
    silent_ms: int = int64("0+", default=-1)
    # An estimate: the protocol does not tell the sizes of records that were not fetched.
    lag_bytes: int = int64("0+", default=-1)
    # The time since the mirror had everything that the source had.
    lag_ms: int = int64("0+", default=-1)
    # Why the partition is not copied; empty if it is.
    trouble: str = string("0+")
    high_watermark: int = int64("0+", default=-1)
    # That of the last record; -1 of an empty log.
    last_epoch: int = int32("0+", default=-1)
    # Why the source has refused the last fetch; empty if it has not.
    refusal: str = string("0+")


class DescribedMirror(Struct):
    """A topic that is a mirror, or was one before it was promoted."""

    name: str = string("0+")
    topic_id: bytes = uuid("0+")
    link_id: bytes = uuid("0+")
    source_topic: str = string("0+")
    source_topic_id: bytes = uuid("0+")
    # See `MirrorState`.
    state: int = int8("0+")
    reason: str = string("0+")
    since_ms: int = int64("0+")
    eras: list[MirrorEra] = array(MirrorEra, "0+")
    num_partitions: int = int32("0+")
    partitions: list[DescribedMirrorPartition] = array(DescribedMirrorPartition, "0+")
    # The number of the last promotion without loss that was begun.
    attempt: int = int64("0+", default=0)
    # Where its promotion has cut it, if that was one of an app.
    cuts: list[MirrorCut] = array(MirrorCut, "0+", tag=0)


class DescribedSealPartition(Struct):
    """A partition that takes no records, as its leader knows it."""

    partition_index: int = int32("0+")
    leader_epoch: int = int32("0+")
    log_start_offset: int = int64("0+")
    log_end_offset: int = int64("0+")
    high_watermark: int = int64("0+")
    last_stable_offset: int = int64("0+")
    # That of the last record; -1 of an empty log.
    last_epoch: int = int32("0+")


class DescribedSeal(Struct):
    """A topic that another cluster takes over, has taken over, or was to take over."""

    name: str = string("0+")
    topic_id: bytes = uuid("0+")
    # See `SealState`.
    state: int = int8("0+")
    target_cluster_id: str = string("0+")
    attempt: int = int64("0+")
    since_ms: int = int64("0+")
    num_partitions: int = int32("0+")
    # Those that the broker leads and takes no records for.
    partitions: list[DescribedSealPartition] = array(DescribedSealPartition, "0+")


class DescribeMirrorsResponse(Message, versions="0-0", flexible_from=0):
    """All links and mirror topics; partitions only of those that the broker leads."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    cluster_id: str = string("0+")
    links: list[DescribedLink] = array(DescribedLink, "0+")
    topics: list[DescribedMirror] = array(DescribedMirror, "0+")
    # Of the metadata that the broker has answered from: of two brokers, the higher one is newer.
    metadata_offset: int = int64("0+", default=-1)
    seals: list[DescribedSeal] = array(DescribedSeal, "0+")
