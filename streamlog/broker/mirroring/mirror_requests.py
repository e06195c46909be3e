"""MirrorRequests: answers DescribeMirrors: links and mirror topics, and how far the copies are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.broker.handlers import Handlers, entry
from streamlog.broker.mirroring.mirror_figures import lag_of
from streamlog.protocol.messages.metadata_log import LinkSetting, MarkedPartition
from streamlog.protocol.messages.mirror_messages import (
    DescribedLink,
    DescribedMirror,
    DescribedMirrorPartition,
    DescribedSeal,
    DescribedSealPartition,
    DescribeMirrorsRequest,
    DescribeMirrorsResponse,
)

if TYPE_CHECKING:
    from streamlog.broker.mirroring.mirror_copy import MirrorCopy
    from streamlog.broker.mirroring.mirrors import Mirrors
    from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata
    from streamlog.broker.replication.partition import Partition, Partitions
    from streamlog.clock import Clock


class MirrorRequests:
    """The requests about mirrors that this broker answers itself."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        mirrors: Mirrors,
        partitions: Partitions,
        *,
        cluster_id: str,
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._mirrors = mirrors
        self._partitions = partitions
        self._cluster_id = cluster_id
        self._clock = clock

    def handlers(self) -> Handlers:
        """Return the handler of each request type."""
        return dict([entry(DescribeMirrorsRequest, lambda _, __: self.describe())])

    def describe(self) -> DescribeMirrorsResponse:
        """Describe links and mirror topics, as this broker knows them."""
        metadata = self._metadata
        copies: dict[str, list[MirrorCopy]] = {}
        for copy in self._mirrors.copies():
            copies.setdefault(copy.partition.topic, []).append(copy)
        topics = []
        # Partitions only of mirrors that this broker leads: a client asks all brokers, because only
        # a leader knows how far it has read.
        for topic_id, mirror in metadata.mirrors.items():
            name = metadata.topics[topic_id].name
            partitions = metadata.topics[topic_id].partitions
            record = mirror.record()
            topics.append(
                DescribedMirror(
                    name=name,
                    topic_id=topic_id,
                    link_id=mirror.link_id,
                    source_topic=mirror.source_topic,
                    source_topic_id=mirror.source_topic_id,
                    state=mirror.state,
                    reason=mirror.reason,
                    since_ms=mirror.since_ms,
                    eras=record.eras,
                    num_partitions=len(partitions),
                    partitions=[self._partition(each) for each in copies.get(name, ())],
                    attempt=mirror.attempt,
                    cuts=record.cuts,
                )
            )
        topics.sort(key=lambda each: each.name)
        return DescribeMirrorsResponse(
            cluster_id=self._cluster_id,
            links=self._links(),
            topics=topics,
            metadata_offset=metadata.offset,
            seals=self._seals(),
        )

    def _links(self) -> list[DescribedLink]:
        troubles, notices = self._mirrors.troubles(), self._mirrors.notices()
        groups_ms = self._mirrors.groups_ms()
        return [
            DescribedLink(
                name=link.name,
                link_id=link.link_id,
                source_cluster_id=link.source_cluster_id,
                settings=[
                    LinkSetting(name=name, value=value)
                    for name, value in sorted(link.settings.items())
                ],
                trouble=troubles.get(link.link_id, ""),
                notices=notices.get(link.link_id, []),
                groups_ms=groups_ms.get(link.link_id, -1),
                app_mark=self._mark_of(link.link_id),
            )
            for link in sorted(self._metadata.links.values(), key=lambda each: each.name)
        ]

    def _mark_of(self, link_id: bytes) -> list[MarkedPartition]:
        mark = self._metadata.app_marks.get(link_id)
        return [] if mark is None else mark.partitions

    def _seals(self) -> list[DescribedSeal]:
        """Describe the topics that other clusters take over, or were to take over."""
        found = []
        for topic_id, seal in self._metadata.seals.items():
            topic = self._metadata.topics[topic_id]
            # Only those that are sealed in the epoch that this broker leads in: an earlier leader
            # still takes records, and its end is not the last one.
            sealed = [
                _sealed_partition(partition)
                for number in sorted(topic.partitions)
                if (partition := self._partitions.hosted(topic.name, number)) is not None
                and partition.is_leader
                and partition.sealed_for
            ]
            found.append(
                DescribedSeal(
                    name=topic.name,
                    topic_id=topic_id,
                    state=seal.state,
                    target_cluster_id=seal.target_cluster_id,
                    attempt=seal.attempt,
                    since_ms=seal.since_ms,
                    num_partitions=len(topic.partitions),
                    partitions=sealed,
                )
            )
        return sorted(found, key=lambda each: each.name)

    def _partition(self, copy: MirrorCopy) -> DescribedMirrorPartition:
        log, now_ms = copy.partition.log, self._clock.now_ms()
        moved_ms, lag = copy.moved_ms, lag_of(copy, now_ms)
        return DescribedMirrorPartition(
            partition_index=copy.partition.index,
            leader_epoch=copy.reader.epoch,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            source_end_offset=copy.reader.source_end,
            silent_ms=-1 if moved_ms is None else now_ms - moved_ms,
            lag_bytes=lag.size_bytes,
            lag_ms=lag.ms,
            trouble=copy.reader.stopped or "",
            high_watermark=_replicated_end(copy.partition),
            last_epoch=_last_epoch(copy.partition),
            refusal=copy.refusal,
        )


def _sealed_partition(partition: Partition) -> DescribedSealPartition:
    epoch = None if partition.replica is None else partition.replica.machine.leader_epoch
    return DescribedSealPartition(
        partition_index=partition.index,
        leader_epoch=-1 if epoch is None else epoch,
        log_start_offset=partition.log.log_start_offset,
        log_end_offset=partition.log.log_end_offset,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        last_epoch=_last_epoch(partition),
    )


def _replicated_end(partition: Partition) -> int:
    replica = partition.replica
    leader = None if replica is None or partition.is_alone else replica.machine.leader
    end = partition.high_watermark
    return end if leader is None else min(end, leader.replicated_end)


def _last_epoch(partition: Partition) -> int:
    """Return the leader epoch of the last record; -1 of an empty log."""
    log = partition.log
    is_empty = log.log_end_offset <= log.log_start_offset
    return -1 if is_empty else log.epochs.at(log.log_end_offset - 1)
