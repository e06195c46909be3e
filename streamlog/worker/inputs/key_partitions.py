"""KeyPlaces: notices when keys of a topic don't lie where its partitioner puts them.

A row is looked for, and a join looks for its partner, in the partition that the topic's
partitioner names. Producers that use another one (librdkafka's default is CRC32) put the key
elsewhere: rows are not found and joins find nothing, without an error. So the first keys of each
partition are compared, and one batch in a while after that. Rule of the file: once per batch,
and next to nothing once the first keys have been compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from streamlog import repeated
from streamlog.clock import Clock
from streamlog.record import TopicPartition
from streamlog.records.partitioners import matching_partitioners, partition_by, partitioner_name
from streamlog.serdes import window_bytes
from streamlog.topology import Topology

logger = repeated.logger(__name__)

FIRST_KEYS = 200
"""So many keys of each partition are compared at once."""
BATCHES_APART = 1_000
"""After that, some of one batch in so many."""
SOME_KEYS = 10
KEYS_KEPT = 400
"""Misplaced keys of a topic that are remembered to find out what fits."""
TELL_AFTER_KEYS = 2
"""One key may have been sent to a partition by hand."""
TELL_AGAIN_MS = 600_000


class KeyPartitionCheck:
    """Compares where keys lie with where they should."""

    def __init__(self, topology: Topology, counts: Mapping[str, int], clock: Clock) -> None:
        self._clock = clock
        self._counts = counts
        self._specs = {
            topic.name: topic
            for sub in topology.subtopologies
            if sub.stores
            for topic in sub.topics.values()
            if not topic.is_managed and counts[topic.name] > 1
        }
        self._compared: dict[TopicPartition, int] = {}
        self._batches: dict[TopicPartition, int] = {}
        self._misplaced: dict[str, dict[bytes, int]] = {}
        self._told_ms: dict[str, int] = {}

    def look(self, part: TopicPartition, keys: Sequence[bytes | None]) -> None:
        """Records of a partition have come: compare some of their keys."""
        if part.topic not in self._specs:
            return
        left = FIRST_KEYS - self._compared.get(part, 0)
        if left > 0:
            self._compared[part] = FIRST_KEYS - left + min(left, len(keys))
            self._compare(part, keys[:left])
            return
        batches = self._batches[part] = self._batches.get(part, 0) + 1
        if batches % BATCHES_APART == 0:
            self._compare(part, keys[:SOME_KEYS])

    def _compare(self, part: TopicPartition, keys: Iterable[bytes | None]) -> None:
        topic, number = part
        spec, count = self._specs[topic], self._counts[topic]
        misplaced = self._misplaced.setdefault(topic, {})
        tail_bytes = window_bytes(spec.key)
        for key in (each[: max(len(each) - tail_bytes, 0)] for each in keys if each):
            is_misplaced = partition_by(spec.partitioner, key, count) != number
            if key and is_misplaced and len(misplaced) < KEYS_KEPT:
                misplaced[key] = number
        if len(misplaced) >= TELL_AFTER_KEYS:
            self._tell(topic, misplaced)

    def _tell(self, topic: str, misplaced: Mapping[bytes, int]) -> None:
        now_ms, told_ms = self._clock.now_ms(), self._told_ms.get(topic)
        if told_ms is not None and now_ms - told_ms < TELL_AGAIN_MS:
            return
        self._told_ms[topic] = now_ms
        key, number = next(iter(misplaced.items()))
        spec, count = self._specs[topic], self._counts[topic]
        fits = matching_partitioners(misplaced.items(), count)
        fit = [name for name, each in fits.items() if each == len(misplaced)]
        fix = (
            f"declare how its producers choose: app.topic({topic!r}, ..., partitioner={fit[0]!r})"
            if fit
            else "read it through .repartition(name=...), or let its producers use that partitioner"
        )
        logger.warning(
            "topic %s: keys don't lie where partitioner %s puts them, such as %r, which is in "
            "partition %d and not in %d: rows are not found by key, and joins miss partners; %s "
            "(see: streamlog topics check %s)",
            topic,
            partitioner_name(spec.partitioner),
            key[:80],
            number,
            partition_by(spec.partitioner, key, count),
            fix,
            topic,
        )
