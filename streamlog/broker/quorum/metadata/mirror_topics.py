"""MirrorLink, MirrorTopic: a link to another cluster and a mirrored topic in the metadata image.

Frozen values, as in `registrations`: a change returns a new one, and each is one record.

A topic that has been a mirror keeps its *eras*: which cluster began which leader epochs. Two
clusters that both have led a topic find by them where their logs part, although each has counted
its epochs by itself:

1. Cluster `a` leads `orders` in epochs 0 to 5, and cluster `b` mirrors it.
2. `b` is promoted: its era begins at a leader epoch far above those of `a`, such as 1,671,168.
3. `a` is cut off, still has writers, and elects leaders up to epoch 9.
4. `a` is to follow `b`. In `b`, epoch 5 ends where epoch 1,671,168 begins, and there is no 6 to 9:
   so `a` cuts its log where its epoch 5 ended, or where that of `b` did, if that is earlier.

An era begins at a random distance from the one before. Two mirrors of `a` that were both promoted
therefore count in different epochs, too, and either can follow the other. In the one case in 512 in
which they don't, `are_ambiguous` tells.

A topic that follows a source takes the source's eras. Those of its own that the source has not are
its *strays*. They tell what has to go where the source is in lower epochs, and can't tell by itself
where the logs part, as `b` in 4. if it were to follow `a`. Promoted, it has them all again: no one
knows whether each partition was cut by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Protocol, Self

import msgspec

from streamlog.broker.replication.replica_state import NO_EPOCH, CutOf, MirrorOf
from streamlog.protocol.messages.metadata_log import (
    LinkSetting,
    MirrorCut,
    MirrorEra,
    MirrorLinkRecord,
    MirrorTopicRecord,
)
from streamlog.protocol.schema import ZERO_UUID

ERA_BITS = 14
"""The leader epochs of an era: 16,384 elections, and more if the next era is further away."""
ERA_DISTANCE = 512
"""The most eras between two promotions. There are 131,072, enough for some 500 promotions."""


class EraChance(Protocol):
    """Port: where random distances come from."""

    def randrange(self, stop: int, /) -> int:
        """Return a random number from 0 to below `stop`."""
        ...


class MirrorState(IntEnum):
    """What has been decided about a mirrored topic."""

    ACTIVE = 0
    """Its leaders copy the source."""
    PAUSED = 1
    """Its leaders copy nothing until it is resumed."""
    STOPPED = 2
    """It can't be continued, for the reason that it names; it accepts no producers either."""
    PROMOTED = 3
    """It is a topic of this cluster."""
    PROMOTING = 4
    """Its leaders copy what the source, which takes no records any more, still has to give."""


class LogEra(msgspec.Struct, frozen=True):
    """The leader epochs from `leader_epoch` on, which leaders of one topic began.

    The topic's id is a part of it: a topic that was deleted and created again counts its leader
    epochs from 0 again, in the same cluster and under the same name.
    """

    cluster_id: str
    leader_epoch: int
    topic_id: bytes = ZERO_UUID

    @classmethod
    def of_field(cls, era: MirrorEra) -> Self:
        """Return the era in a record or a request."""
        return cls(era.cluster_id, era.leader_epoch, era.topic_id)

    def field(self) -> MirrorEra:
        """Return the era for a record or a request."""
        return MirrorEra(
            cluster_id=self.cluster_id, leader_epoch=self.leader_epoch, topic_id=self.topic_id
        )


class MirrorLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link: another cluster, and what is mirrored from it."""

    link_id: bytes
    name: str
    source_cluster_id: str
    settings: Mapping[str, str]
    """The settings that were given, as texts; secrets are references (`${file:...}`)."""

    def record(self) -> MirrorLinkRecord:
        """Return the link as a record."""
        return MirrorLinkRecord(
            link_id=self.link_id,
            name=self.name,
            source_cluster_id=self.source_cluster_id,
            settings=[
                LinkSetting(name=name, value=value) for name, value in sorted(self.settings.items())
            ],
        )

    @classmethod
    def of_record(cls, record: MirrorLinkRecord) -> Self:
        """Return the link in a record."""
        return cls(
            link_id=record.link_id,
            name=record.name,
            source_cluster_id=record.source_cluster_id,
            settings={each.name: each.value for each in record.settings},
        )


class MirrorTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that is a mirror, or that was one before it was promoted."""

    topic_id: bytes
    link_id: bytes
    source_topic: str
    source_topic_id: bytes
    """All zero if the source has no topic ids."""
    state: MirrorState = MirrorState.ACTIVE
    reason: str = ""
    since_ms: int = 0
    """When the state began, in ms since 1970."""
    eras: tuple[LogEra, ...] = ()
    """Those of the source; ascending, and the first one begins at epoch 0."""
    strays: tuple[LogEra, ...] = ()
    """Eras of which the log here may have records, and the source has none."""
    attempt: int = 0
    """The number of the last promotion without loss that was begun. Only that one may still end:
    requests of an earlier one may be on their way when an operator has begun anew."""
    cuts: Mapping[int, int] = msgspec.field(default_factory=dict)
    """Where the promotion of an app cuts partitions, by number: a leader cuts its log there before
    it leads in the era of the promotion. They stay here, for leaders that are elected later."""

    @property
    def is_mirror(self) -> bool:
        """Whether it belongs to its source, so that producing to it is refused."""
        return self.state is not MirrorState.PROMOTED

    @property
    def copies(self) -> bool:
        """Whether its leaders copy the source now."""
        return self.state in (MirrorState.ACTIVE, MirrorState.PROMOTING)

    @property
    def mirror_of(self) -> MirrorOf | None:
        """What its leaders copy; None if it was promoted."""
        if not self.is_mirror:
            return None
        return MirrorOf(
            link_id=self.link_id,
            topic=self.source_topic,
            topic_id=self.source_topic_id,
            floor_epoch=self.eras[-1].leader_epoch if len(self.eras) > 1 else NO_EPOCH,
            ceiling_epoch=self._ceiling_epoch,
        )

    @property
    def _ceiling_epoch(self) -> int:
        # A stray below the source's era needs no ceiling: the source is asked about a leader epoch
        # that is below its own, and tells where the logs part.
        newest = self.eras[-1].leader_epoch if self.eras else 0
        above = [each.leader_epoch for each in self.strays if each.leader_epoch > newest]
        return min(above, default=NO_EPOCH)

    @property
    def all_eras(self) -> tuple[LogEra, ...]:
        """All eras of which the log here may have records; ascending, the first one first."""
        return tuple(sorted({*self.eras, *self.strays}, key=lambda each: each.leader_epoch))

    def cut_of(self, partition: int) -> CutOf | None:
        """Where the promotion cuts a partition; None if it does not."""
        offset = None if self.is_mirror else self.cuts.get(partition)
        return None if offset is None else CutOf(offset, self.eras[-1].leader_epoch)

    def was_led_by(self, cluster_id: str) -> bool:
        """Whether a cluster has led the topic before the source does now."""
        return any(each.cluster_id == cluster_id for each in (*self.eras[:-1], *self.strays))

    def record(self) -> MirrorTopicRecord:
        """Return the topic's state as a record."""
        return MirrorTopicRecord(
            topic_id=self.topic_id,
            link_id=self.link_id,
            source_topic=self.source_topic,
            source_topic_id=self.source_topic_id,
            state=self.state,
            reason=self.reason,
            since_ms=self.since_ms,
            eras=[each.field() for each in self.eras],
            attempt=self.attempt,
            strays=[each.field() for each in self.strays],
            cuts=[MirrorCut(partition=key, offset=at) for key, at in sorted(self.cuts.items())],
        )

    @classmethod
    def of_record(cls, record: MirrorTopicRecord) -> Self:
        """Return the state in a record.

        Raises:
            ValueError: the state is not one of `MirrorState`.
        """
        return cls(
            topic_id=record.topic_id,
            link_id=record.link_id,
            source_topic=record.source_topic,
            source_topic_id=record.source_topic_id,
            state=MirrorState(record.state),
            reason=record.reason,
            since_ms=record.since_ms,
            eras=tuple(map(LogEra.of_field, record.eras)),
            attempt=record.attempt,
            strays=tuple(map(LogEra.of_field, record.strays)),
            cuts={each.partition: each.offset for each in record.cuts},
        )


def next_era_epoch(leader_epoch: int, chance: EraChance) -> int:
    """Return the first leader epoch of an era after one that has reached `leader_epoch`."""
    era = (leader_epoch >> ERA_BITS) + 1 + chance.randrange(ERA_DISTANCE)
    return era << ERA_BITS


def are_ambiguous(ours: Sequence[LogEra], source: Sequence[LogEra]) -> bool:
    """Return whether leader epochs can't tell where two histories part.

    They part at the first era that differs. From there on, an era of each that begins at the same
    leader epoch would be taken for one, although their batches differ.
    """
    shared = {*ours} & {*source}
    own = {each.leader_epoch for each in ours if each not in shared}
    return any(each.leader_epoch in own for each in source if each not in shared)


def strays_of(ours: Sequence[LogEra], source: Sequence[LogEra]) -> tuple[LogEra, ...]:
    """Return the eras of this cluster's log that the source's has not."""
    return tuple(each for each in ours if each not in source)
