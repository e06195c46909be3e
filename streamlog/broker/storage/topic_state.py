"""TopicState: a topic and its logs on one broker, and what may name or size a topic.

Pure: `log_directory` makes a change durable, and opens and closes the logs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from streamlog.broker.config.broker import PARTITIONS_MAX, TopicConfig
from streamlog.broker.storage.catalog import TopicEntry
from streamlog.errors import LogError
from streamlog.replace import replace

if TYPE_CHECKING:
    from streamlog.broker.storage.log.partition_log import PartitionLog

INVALID_TOPIC = 17
INVALID_PARTITIONS = 37

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    """A topic and its logs by partition number."""

    name: str
    topic_id: bytes
    """16 bytes, new whenever a topic of this name is created."""
    partitions: dict[int, PartitionLog]
    """The partitions on this broker; others may be elsewhere."""
    configs: dict[str, str]
    """The settings given for the topic, by Kafka's names."""
    config: TopicConfig
    """The effective settings."""
    directories: Mapping[int, str] = msgspec.field(default_factory=dict)
    """The ids of the directories of partitions that are not in the broker's first one."""
    futures: Mapping[int, str] = msgspec.field(default_factory=dict)
    """The ids of the directories that partitions move to."""
    leaving: Mapping[int, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """The ids of directories with copies that are not needed any more."""

    def entry(self) -> TopicEntry:
        """The entry for `topics.json`."""
        here = self.partitions
        return TopicEntry(
            name=self.name,
            topic_id=self.topic_id,
            partitions=tuple(sorted(self.partitions)),
            configs=self.configs,
            directories={n: each for n, each in self.directories.items() if n in here},
            futures={n: each for n, each in self.futures.items() if n in here},
            leaving={n: each for n, each in self.leaving.items() if n in here and each},
        )


class HostedTopic(NamedTuple):
    """The partitions of a topic that belong into this directory."""

    name: str
    topic_id: bytes
    numbers: Sequence[int]
    configs: Mapping[str, str]
    """The topic's own settings, for a topic that is not here yet."""


def check_topic_name(name: str) -> None:
    """Check the name of a topic.

    Raises:
        LogError: with Kafka's code, the name is not allowed.
    """
    if not _TOPIC_NAME.fullmatch(name) or name in {".", ".."}:
        raise LogError(
            f"{name!r} can't name a topic: use 1 to 249 letters, digits, '.', '_' and '-'",
            code=INVALID_TOPIC,
        )


def check_partition_count(name: str, partitions: int, *, least: int) -> None:
    """Check the number of partitions of a topic.

    Raises:
        LogError: with Kafka's code, the number is not allowed.
    """
    if not least <= partitions <= PARTITIONS_MAX:
        raise LogError(
            f"topic {name!r} can't have {partitions} partitions: use {least} to {PARTITIONS_MAX}",
            code=INVALID_PARTITIONS,
        )


def retargeted(topic: TopicState, moves: Mapping[int, tuple[str, str]]) -> TopicState:
    """Return a topic whose partitions are to move; `moves` has the present and the new directory.

    If they are equal, a move that has begun ends: its copy is not needed any more.
    """
    futures, leaving = dict(topic.futures), dict(topic.leaving)
    for number, (present, target) in moves.items():
        before = futures.pop(number, None)
        if before is not None and before != target:
            leaving[number] = (*leaving.get(number, ()), before)
        if target != present:
            futures[number] = target
    return replace(topic, futures=futures, leaving=leaving)


def arrived(topic: TopicState, number: int, present: str, first: str) -> TopicState:
    """Return a topic with a partition in the directory that it moved to, from `present`.

    `first` is the id of the broker's first directory, which is not listed.
    """
    target = topic.futures[number]
    directories = dict(topic.directories) | {number: target}
    if target == first:
        del directories[number]
    return replace(
        topic,
        directories=directories,
        futures={n: each for n, each in topic.futures.items() if n != number},
        leaving={**topic.leaving, number: (*topic.leaving.get(number, ()), present)},
    )


def topic_state(
    entry: TopicEntry, logs: dict[int, PartitionLog], config: TopicConfig
) -> TopicState:
    """Combine a topic's entry with its logs and effective settings."""
    return TopicState(
        name=entry.name,
        topic_id=entry.topic_id,
        partitions=logs,
        configs=dict(entry.configs),
        config=config,
        directories=dict(entry.directories),
        futures=dict(entry.futures),
        leaving=dict(entry.leaving),
    )
