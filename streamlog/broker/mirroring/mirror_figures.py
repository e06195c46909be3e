"""Mirror figures: how far mirrors are behind their sources, and what links have copied, as metrics.

A lag is known to the leader of a partition alone, from the last answer of the source. In bytes it
is an estimate, because Kafka's protocol tells no sizes of records that were not fetched: the
records that are missing, each as large as those that are here are on average.

Topics have series of their own up to `TOPICS_MAX`; those beyond are counted together as `other`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from streamlog.metrics.registry import OTHER, Kind, Metric

if TYPE_CHECKING:
    from streamlog.broker.mirroring.mirror_copy import MirrorCopy
    from streamlog.broker.mirroring.mirrors import Mirrors
    from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata

TOPICS_MAX = 1_000
FRESH_MS = 10_000
"""How old the last answer of a source may be for a mirror without lag to count as up to date."""


class MirrorLag(msgspec.Struct, frozen=True):
    """How far a mirror partition is behind its source; -1 stands for "not known"."""

    records: int
    size_bytes: int
    ms: int
    """The time since the mirror had everything that the source had."""


def lag_of(copy: MirrorCopy, now_ms: int) -> MirrorLag:
    """Return the lag of a mirror partition.

    Args:
        copy: the partition, which this broker leads.
        now_ms: monotonic time in milliseconds.
    """
    if copy.moved_ms is None or copy.reader.source_end < 0:
        return MirrorLag(-1, -1, -1)
    log = copy.partition.log
    records = max(0, copy.reader.source_end - log.log_end_offset)
    here = log.log_end_offset - log.log_start_offset
    size_bytes = records * log.size_bytes // here if here else (-1 if records else 0)
    # A source that does not answer may have got records that no one here knows of. So the time
    # counts on, even if the mirror has all records that it has heard of.
    if not records and now_ms - copy.moved_ms <= FRESH_MS:
        return MirrorLag(0, 0, 0)
    since_ms = copy.began_ms if copy.complete_ms is None else copy.complete_ms
    return MirrorLag(records, size_bytes, now_ms - since_ms)


@dataclass(slots=True)
class _TopicFigures:
    records: int = 0
    size_bytes: int = 0
    seconds: float = 0.0


def mirror_metrics(mirrors: Mirrors, metadata: ClusterMetadata, now_ms: int) -> Iterator[Metric]:
    """Yield the lags of the mirrors that this broker leads, and the counts of its links."""
    names = {link_id: link.name for link_id, link in metadata.links.items()}
    lags: dict[tuple[str, ...], _TopicFigures] = {}
    # A link that was deleted has no name; its topics were promoted, or are about to go.
    for copy in mirrors.copies():
        link = names.get(copy.source.link_id)
        lag = lag_of(copy, now_ms)
        if link is None or lag.records < 0:
            continue
        labels = (link, copy.partition.topic)
        if labels not in lags and len(lags) >= TOPICS_MAX:
            labels = (OTHER, OTHER)
        found = lags.setdefault(labels, _TopicFigures())
        found.records += lag.records
        found.size_bytes += max(0, lag.size_bytes)
        found.seconds = max(found.seconds, lag.ms / 1000)
    by_topic = ("link", "topic")
    yield Metric(
        "streamlog_mirror_lag_records",
        "Records of the source that a mirror topic lacks in partitions that this broker leads.",
        Kind.GAUGE,
        by_topic,
        [(labels, each.records) for labels, each in lags.items()],
    )
    yield Metric(
        "streamlog_mirror_lag_bytes",
        "Bytes of these records, estimated by the mean size of those that are here.",
        Kind.GAUGE,
        by_topic,
        [(labels, each.size_bytes) for labels, each in lags.items()],
    )
    yield Metric(
        "streamlog_mirror_lag_seconds",
        "Time since the partition that lags most had all records of the source.",
        Kind.GAUGE,
        by_topic,
        [(labels, each.seconds) for labels, each in lags.items()],
    )
    yield from _link_metrics(mirrors, names)
    yield _states(metadata, names)


def _link_metrics(mirrors: Mirrors, names: Mapping[bytes, str]) -> Iterator[Metric]:
    troubles = mirrors.troubles()
    yield Metric(
        "streamlog_mirror_link_up",
        "Whether this broker reaches the source of a link that it copies from: 1 or 0.",
        Kind.GAUGE,
        ("link",),
        [
            ((names[each],), 0 if each in troubles else 1)
            for each in mirrors.links()
            if each in names
        ],
    )
    for name, text, attribute in (
        ("copied_bytes", "Bytes of batches copied from a source.", "copied_bytes"),
        ("copied_records", "Offsets copied from a source.", "copied_records"),
        ("cuts", "Mirror partitions cut because their source did not have the records.", "cuts"),
    ):
        points = [
            ((names[link_id],), getattr(counts, attribute))
            for link_id, counts in mirrors.counts.items()
            if link_id in names
        ]
        yield Metric(f"streamlog_mirror_{name}_total", text, Kind.COUNTER, ("link",), points)


def _states(metadata: ClusterMetadata, names: Mapping[bytes, str]) -> Metric:
    """Return how many mirror topics are in each state, as the metadata has it on all brokers."""
    counts: dict[tuple[str, str], int] = {}
    for mirror in metadata.mirrors.values():
        link = names.get(mirror.link_id)
        if link is not None:
            labels = (link, mirror.state.name)
            counts[labels] = counts.get(labels, 0) + 1
    return Metric(
        "streamlog_mirror_topics",
        "Mirror topics of a link by the state that was decided; equal on all brokers.",
        Kind.GAUGE,
        ("link", "state"),
        list(counts.items()),
    )
