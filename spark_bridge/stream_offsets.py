"""Where a streaming query stands, as its checkpoint keeps it: offsets, and the ids of the topics.

A topic that is deleted and created again under its name has another id, and offsets in it mean
nothing for the old one. Pure. As JSON, for topic `in` with two partitions:

    {"in": {"id": "b8XQ…", "offsets": {"0": 60, "1": 40}, "restarts": {"1": 0}}}

`restarts` tells where the batch that ends here begins instead of where the one before has ended, so
that a batch that is repeated has the same records.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

from spark_bridge.options import ByPartition
from streamlog.assignors import TopicPartition
from streamlog.errors import SourceLost

Ids: TypeAlias = Mapping[str, str]
"""Topic ids as text, as Kafka's tools print them, by name; empty where the log tells none."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A place in all partitions that a query reads."""

    offsets: ByPartition
    ids: Ids = field(default_factory=dict)
    restarts: ByPartition = field(default_factory=dict)

    def to_data(self) -> dict[str, Any]:
        """As plain data."""
        return {
            topic: {
                "id": self.ids.get(topic, ""),
                "offsets": numbers,
                "restarts": self.restarts.get(topic, {}),
            }
            for topic, numbers in sorted(self.offsets.items())
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        """What `to_data` gave."""
        return cls(
            {topic: each["offsets"] for topic, each in data.items()},
            {topic: each["id"] for topic, each in data.items()},
            {topic: each["restarts"] for topic, each in data.items() if each["restarts"]},
        )

    def begun(self, ids: Ids) -> dict[TopicPartition, int]:
        """The offsets in topics that still are the same."""
        return {
            TopicPartition(topic, int(number)): offset
            for topic, numbers in self.offsets.items()
            if not is_recreated(topic, self.ids, ids)
            for number, offset in numbers.items()
        }

    def restarted(self, restarts: ByPartition) -> ByPartition:
        """The offsets, with others where partitions are begun with again."""
        return {
            topic: {**numbers, **restarts.get(topic, {})} for topic, numbers in self.offsets.items()
        }


def is_recreated(topic: str, before: Ids, now: Ids) -> bool:
    """Whether a topic is another one than it was, as far as that is known."""
    old, new = before.get(topic, ""), now.get(topic, "")
    return bool(old) and bool(new) and old != new


def restarts_of(
    start: StreamOffset,
    ids: Ids,
    bounds: Mapping[TopicPartition, tuple[int, int]],
    *,
    fail: bool,
) -> ByPartition:
    """Partitions whose log is not the one that was read, and where they are begun with again.

    Raises:
        SourceLost: there is one, and `fail`.
    """
    restarts: ByPartition = {}
    for topic, numbers in start.offsets.items():
        for number, offset in numbers.items():
            place = TopicPartition(topic, int(number))
            first, end = bounds.get(place, (0, offset))
            if is_recreated(topic, start.ids, ids):
                what = (
                    f"the topic was deleted and created again (id {start.ids[topic]}, now"
                    f" {ids[topic]}), and offset {offset} of the old one was next"
                )
            elif offset > end:
                what = f"the log was truncated: it ends at {end}, and offset {offset} was next"
            else:
                continue
            text = f"{topic}-{number}: {what}"
            if fail:
                raise SourceLost(
                    f"{text}. With failOnDataLoss=false the query reads the partition from its"
                    " beginning; or give the query a new checkpoint",
                    topic=topic,
                    partition=int(number),
                    position=offset,
                )
            _log.warning("%s: reading on at its beginning, offset %d", text, first)
            restarts.setdefault(topic, {})[number] = first
    return restarts
