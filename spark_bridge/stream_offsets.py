"""Where a streaming query stands, as its checkpoint keeps it: offsets, and in which logs they are.

A topic that is deleted and created again under its name has another id, and offsets in it mean
nothing for the old one; a log that was cut and has grown again has other leader epochs before the
offset. Pure. As JSON, for topic `in` with two partitions:

    {"in": {"id": "b8XQ…", "offsets": {"0": 60, "1": 40}, "restarts": {"1": 0},
            "epochs": {"0": [[0, 0], [3, 25]], "1": [[0, 0]]}}}

Offset 0 to 24 of partition 0 are of leader epoch 0, those up to 59 of epoch 3.
`restarts` tells where the batch that ends here begins instead of where the one before has ended, so
that a batch that is repeated has the same records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeAlias

from spark_bridge.lost_logs import Lost, is_recreated, recreated, truncated
from spark_bridge.options import ByPartition
from streamlog.assignors import TopicPartition
from streamlog.protocol.topic_ids import id_text
from streamlog.records.epoch_chains import UNKNOWN_OFFSET, EpochChain

Ids: TypeAlias = Mapping[str, str]
"""Topic ids as text, as Kafka's tools print them, by name; empty where the log tells none."""
HEX_ID_CHARACTERS: Final = 32
"""As base64 an id has 22."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A place in all partitions that a query reads."""

    offsets: ByPartition
    ids: Ids = field(default_factory=dict)
    restarts: ByPartition = field(default_factory=dict)
    epochs: Mapping[str, Mapping[str, EpochChain]] = field(default_factory=dict)
    """By topic and partition, the last leader epochs before the offset."""

    def to_data(self) -> dict[str, Any]:
        """As plain data."""
        return {
            topic: {
                "id": self.ids.get(topic, ""),
                "offsets": numbers,
                "restarts": self.restarts.get(topic, {}),
                "epochs": {
                    number: [list(entry) for entry in chain]
                    for number, chain in sorted(self.epochs.get(topic, {}).items())
                    if chain
                },
            }
            for topic, numbers in sorted(self.offsets.items())
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        """What `to_data` gave."""
        return cls(
            {topic: each["offsets"] for topic, each in data.items()},
            {topic: _id_text(each["id"]) for topic, each in data.items()},
            {topic: each["restarts"] for topic, each in data.items() if each["restarts"]},
            {
                topic: {
                    number: tuple((epoch, first) for epoch, first in chain)
                    for number, chain in each["epochs"].items()
                }
                for topic, each in data.items()
                if each.get("epochs")  # Earlier builds kept none.
            },
        )

    def same_topics(self, ids: Ids) -> dict[TopicPartition, tuple[int, EpochChain]]:
        """Offsets, and the epochs before them, in topics that still are the same."""
        return {
            (at := TopicPartition(topic, int(number))): (offset, self.chain(at))
            for topic, numbers in self.offsets.items()
            if not is_recreated(self.ids.get(topic, ""), ids.get(topic, ""))
            for number, offset in numbers.items()
        }

    def chain(self, at: TopicPartition) -> EpochChain:
        """The leader epochs before the offset of a partition."""
        return self.epochs.get(at.topic, {}).get(str(at.partition), ())

    def restarted(self, restarts: ByPartition) -> ByPartition:
        """The offsets, with others where partitions are begun with again."""
        return {
            topic: {**numbers, **restarts.get(topic, {})} for topic, numbers in self.offsets.items()
        }


def _id_text(text: str) -> str:
    """A topic id as it is compared: earlier builds kept it as hexadecimal text."""
    return id_text(bytes.fromhex(text)) if len(text) == HEX_ID_CHARACTERS else text


def lost_logs(
    start: StreamOffset,
    ids: Ids,
    bounds: Mapping[TopicPartition, tuple[int, int]],
    divergences: Mapping[TopicPartition, int],
) -> list[tuple[Lost, int]]:
    """Partitions whose log is not the one that was read, each with the offset that was next.

    Args:
        start: where the query stands.
        ids: of the topics that there are.
        bounds: first offset and end of each partition, as far as they are known.
        divergences: where logs differ from those that were read; -1: nobody knows.
    """
    found: list[tuple[Lost, int]] = []
    for topic, numbers in start.offsets.items():
        before, now = start.ids.get(topic, ""), ids.get(topic, "")
        for number, offset in numbers.items():
            at = TopicPartition(topic, int(number))
            _, end = bounds.get(at, (0, UNKNOWN_OFFSET))
            then = f"offset {offset} was next"
            if is_recreated(before, now):
                found.append(
                    (recreated(at, before, now, f"offset {offset} of the old one was next"), offset)
                )
            elif at in divergences or 0 <= end < offset:
                where = divergences.get(at, UNKNOWN_OFFSET)
                found.append((truncated(at, where, end, then), offset))
    return found
