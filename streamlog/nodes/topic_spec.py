"""TopicSpec: a topic as an app declares it, and the names that topics can have.

Names of apps, tables and repartitions may become part of a topic's name, so one rule holds for all
of them: Kafka's. A topic may also choose what happens if its log is not the one that was read
(`source_lost`). Not done here: creating topics (`worker`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import msgspec

from streamlog.durations import When
from streamlog.errors import ConfigError, TopologyError
from streamlog.records.partitioners import DEFAULT, Partitioner
from streamlog.serdes.erased_types import AnySerde, UserValue
from streamlog.serdes.registered.topic_schema import SchemaPolicy

SourceLostPolicy: TypeAlias = Literal["fail", "earliest", "latest"]
SOURCE_LOST: Final = ("fail", "earliest", "latest")


def check_source_lost(
    source_lost: SourceLostPolicy | None, where: str = ""
) -> SourceLostPolicy | None:
    """Return the choice; None if no choice was made here.

    Raises:
        ConfigError: there is no such choice; the message begins with `where`.
    """
    if source_lost is not None and source_lost not in SOURCE_LOST:
        raise ConfigError(
            f"{where}source_lost must be one of {', '.join(SOURCE_LOST)}, not {source_lost!r}"
        )
    return source_lost


TOPIC_NAME_LENGTH_MAX = 249
"""Kafka's limit for the name of a topic."""
SHOWN_ILLEGAL = 5
"""The most illegal characters that an error names."""
_TOPIC_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def check_name(what: str, name: str) -> str:
    """Return the name, if it can be part of a topic's name.

    Raises:
        TopologyError: the name is empty, too long, or has characters that Kafka refuses.
    """
    # Each illegal character once, in the order of the name. "." and ".." consist of legal
    # characters, but a directory can't have such a name.
    illegal = [each for each in dict.fromkeys(name) if each not in _TOPIC_CHARACTERS]
    if name in {"", ".", ".."} or len(name) > TOPIC_NAME_LENGTH_MAX or illegal:
        shown = ", ".join(map(repr, illegal[:SHOWN_ILLEGAL]))
        culprits = f"{shown} is not allowed; " if illegal else ""
        raise TopologyError(
            f"{name!r} can't be the name of {what}: {culprits}use 1 to {TOPIC_NAME_LENGTH_MAX} of "
            "the characters a-z, A-Z, 0-9, '.', '_' and '-'"
        )
    return name


class TopicSpec(msgspec.Struct, frozen=True):
    """A topic as the app declares it."""

    name: str
    key: AnySerde
    value: AnySerde
    timestamp: Callable[[UserValue], When] | None = None
    """Returns the event time of a value; without it the record's own timestamp counts."""
    timestamp_ahead_max_ms: int | None = None
    """How far event time may lie ahead of the reader's clock; None: any distance."""
    source_lost: SourceLostPolicy | None = None
    """What a worker does if the log is not the one that was read; None leaves it to the app."""
    partitions: int | None = None
    """For the creation of the topic; None leaves it to the runner."""
    partitioner: Partitioner = DEFAULT
    """How the topic's producers, and this app, choose a key's partition."""
    compact: bool = False
    retention_ms: int | None = None
    """For the creation of the topic; None leaves it to the log."""
    message_bytes_max: int | None = None
    """For the creation of the topic: its `max.message.bytes`; None leaves it to the log."""
    takes_every_time: bool = False
    """Whether its records may have any timestamp, whatever the log's limits are."""
    internal: bool = False
    """A repartition topic: written and read by this app only."""
    schema_policy: SchemaPolicy = "register"
    """What a worker does with the schemas of serdes that a registry keeps."""
    is_own: bool = False
    """Whether it is the topic of rows put into a table: written and read by this app, and created
    with as many partitions as the topics that are read with it."""
    pattern: str | None = None
    """The regular expression of the topics that it stands for; None: it is one topic."""
    found_by: str | None = None
    """The regular expression by which the topic was found; None: the app names it."""

    @property
    def is_managed(self) -> bool:
        """Whether the app creates it, and is the only one to write to it."""
        return self.internal or self.is_own
