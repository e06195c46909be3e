"""Lost logs: partitions whose log is not the one that a read was planned in, or a query has read.

A topic that was deleted and created again under its name is another log; one that lost records
(unclean leader election, a power cut with `flush=os`, a backup that was put back) is another one
from some offset on. With `failOnDataLoss` that ends the read, else it is warned of. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from spark_bridge.offsets import LogMark, OffsetRange
from streamlog.assignors import TopicPartition
from streamlog.errors import SourceLost
from streamlog.records.epoch_chains import UNKNOWN_OFFSET


class Lost(NamedTuple):
    """What became of a log."""

    place: TopicPartition
    what: str
    same_until: int
    """The first offset that is not what it was; 0: nothing is."""

    @property
    def text(self) -> str:
        """With the partition."""
        return f"{self.place.topic}-{self.place.partition}: {self.what}"

    def error(self, position: int, remedy: str) -> SourceLost:
        """The error that ends a read; `position` was to be read next."""
        return SourceLost(
            f"{self.text}. {remedy}",
            topic=self.place.topic,
            partition=self.place.partition,
            position=position,
        )


def recreated(place: TopicPartition, before: str, now: str, then: str) -> Lost:
    """The topic has another id; `then` says what was to be read of it."""
    what = f"the topic was deleted and created again (id {before}, now {now}), and {then}"
    return Lost(place, what, 0)


def is_recreated(before: str, now: str) -> bool:
    """Whether a topic is another one than it was, as far as that is known."""
    return bool(before) and bool(now) and before != now


def truncated(place: TopicPartition, divergence: int, end: int, then: str) -> Lost:
    """The log was truncated and may have grown since; -1 stands for an unknown offset."""
    where = "" if end == UNKNOWN_OFFSET else f"it ends at {end}, "
    if divergence != UNKNOWN_OFFSET and not 0 <= end <= divergence:
        where = f"from offset {divergence} on it holds other records, {where}"
    return Lost(place, f"the log was truncated: {where}and {then}", max(divergence, 0))


def lost_of(planned: OffsetRange, topic_id: str | None, divergence: int | None) -> Lost | None:
    """What became of the log that a range was planned in; None: it still is that log.

    Args:
        planned: the range, or a part of it.
        topic_id: of the topic that there is; None: there is none.
        divergence: where the log differs from the one of the mark; None: nowhere before it.
    """
    mark: LogMark = planned.log
    then = f"offsets {planned.start} to {planned.end - 1} were planned to be read"
    if topic_id is None:
        return Lost(planned.place, f"the topic was deleted, and {then}", 0)
    if is_recreated(mark.topic_id, topic_id):
        return recreated(planned.place, mark.topic_id, topic_id, then)
    if divergence is not None and divergence < planned.end:
        return truncated(planned.place, divergence, UNKNOWN_OFFSET, then)
    return None
