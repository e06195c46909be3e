"""TopicState: a topic of a data directory with its logs, and what a new one may be like."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamlog.broker.config import PARTITIONS_MAX, TopicConfig
from streamlog.broker.storage.catalog import TopicEntry
from streamlog.errors import LogError

if TYPE_CHECKING:
    from streamlog.broker.storage.partition_log import PartitionLog

INVALID_TOPIC = 17
INVALID_PARTITIONS = 37

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic and its logs, by number of the partition."""

    name: str
    topic_id: bytes
    """16 bytes, new whenever a topic is made."""
    partitions: dict[int, PartitionLog]
    """Those that are here; others may be on other brokers."""
    configs: dict[str, str]
    """The settings that were given for the topic, by Kafka's names."""
    config: TopicConfig
    """All settings that hold for it."""

    def entry(self) -> TopicEntry:
        """What is written down of it."""
        return TopicEntry(
            name=self.name,
            topic_id=self.topic_id,
            partitions=tuple(sorted(self.partitions)),
            configs=self.configs,
        )


def check_topic_name(name: str) -> None:
    """Whether a topic may be called so.

    Raises:
        LogError: with Kafka's code, it may not.
    """
    if not _TOPIC_NAME.fullmatch(name) or name in {".", ".."}:
        raise LogError(
            f"{name!r} can't name a topic: use 1 to 249 letters, digits, '.', '_' and '-'",
            code=INVALID_TOPIC,
        )


def check_partition_count(name: str, partitions: int, *, least: int) -> None:
    """Whether the topic may have so many partitions.

    Raises:
        LogError: with Kafka's code, it may not.
    """
    if not least <= partitions <= PARTITIONS_MAX:
        raise LogError(
            f"topic {name!r} can't have {partitions} partitions: use {least} to {PARTITIONS_MAX}",
            code=INVALID_PARTITIONS,
        )


def topic_state(
    entry: TopicEntry, logs: dict[int, PartitionLog], config: TopicConfig
) -> TopicState:
    """The topic that was written down so, with these logs and settings."""
    return TopicState(
        name=entry.name,
        topic_id=entry.topic_id,
        partitions=logs,
        configs=dict(entry.configs),
        config=config,
    )
