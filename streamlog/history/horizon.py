"""Horizon: how far the streams of an app have come, all of them: where a history up to now ends.

A history up to "the latest offsets" would end at a different time in every partition, and what a
live worker made of the rest would be something else than one run gives. So it ends where the
partition that is behind has come to. Partitions that hold nothing don't count, nor do tables, whose
topics may be quiet for as long as they like. Not done here: cutting (`record_queue`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from streamlog.durations import moment
from streamlog.history.plan import Plan
from streamlog.history.readers import LogReader
from streamlog.nodes.stream_nodes import Source
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.error_handling import DamagedInputs
from streamlog.processing.inputs.record_queue import CutInput, TimeSpan
from streamlog.record import TopicPartition
from streamlog.serdes import serde_for
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS


@dataclass(frozen=True, slots=True)
class Horizon:
    """Where all streams have come to."""

    time_ms: int
    """FAR_MS: there is nothing that ends anywhere."""
    behind: TopicPartition | None = None
    """The partition that has come no further."""

    def __str__(self) -> str:
        if self.behind is None:
            return "nothing has been written yet"
        topic, partition = self.behind
        return f"{topic}-{partition} has come to {moment(self.time_ms).isoformat()} and no further"


def horizon(plan: Plan, reader: LogReader) -> Horizon:
    """How far the streams of a plan have come, by reading them.

    Raises:
        ProcessingError: a time can't be read from a value.
        StreamlogError: the log can't be read.
    """
    streams = {node.topic.name for node in plan.topology.nodes if isinstance(node, Source)}
    found: list[tuple[int, TopicPartition]] = []
    damaged = DamagedInputs(plan.topology)
    for (topic, number), (start, end) in plan.ends.items():
        if streams and topic not in streams:
            continue
        place = TopicPartition(topic, number)
        time_ms = _come_to(reader, plan.topology.topics[topic], place, (start, end), damaged)
        if time_ms > UNKNOWN_MS:
            found.append((time_ms, place))
    return Horizon(*min(found)) if found else Horizon(FAR_MS)


def _come_to(
    reader: LogReader,
    topic: TopicSpec,
    place: TopicPartition,
    bounds: tuple[int, int],
    damaged: DamagedInputs,
) -> int:
    if topic.timestamp is None:
        # Nobody asks what is in the records.
        raw = serde_for(bytes)
        topic = replace(topic, key=raw, value=raw)
    entry = CutInput(topic, place.partition, 0, span=TimeSpan())
    for records, marks, *_ in reader.read(place, *bounds, damaged):
        entry.arrive(records, marks)
        while entry.head() is not None:
            entry.take(None, None)
    return entry.time_ms
