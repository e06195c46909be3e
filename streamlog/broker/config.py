"""BrokerConfig, TopicConfig, GroupConfig: every setting with unit, default and meaning.

Rule of the file: a setting that nothing honours is not declared, and a topic setting that is
not declared is refused by name instead of being stored and forgotten. Topic settings carry
Kafka's names on the wire (`segment.bytes`) and the same words here (`segment_bytes`).
`cleanup.policy` is the one that is only kept: it tells readers of a topic that its records
are changes by key. Nothing is compacted or expired.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from streamlog.errors import ConfigError

SEGMENT_BYTES_MAX = 2**31 - 1
"""Positions inside a segment take four bytes in its index."""
SEGMENT_BYTES_MIN = 1024
MESSAGE_BYTES_MAX = 128 * 1024 * 1024
"""No `max.message.bytes` above this: a scan takes a larger batch for damage."""
INDEX_ENTRY_BYTES_MAX = 12
CLEANUP_POLICIES = ("delete", "compact", "compact,delete", "delete,compact")
PARTITIONS_MAX = 10_000
"""Of one topic: each is a directory with open files."""
DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """How the partitions of one topic are stored.

    Raises:
        ConfigError: a value is out of range.
    """

    segment_bytes: int = 1024 * 1024 * 1024
    """`segment.bytes`: a segment file that would grow beyond this is sealed first."""
    segment_ms: int = 7 * DAY_MS
    """`segment.ms`: a segment is sealed when a record comes that is this much newer than the
    segment's first batch, by record timestamps as in Kafka."""
    segment_index_bytes: int = 10 * 1024 * 1024
    """`segment.index.bytes`: a segment whose index has reached this size is sealed."""
    index_interval_bytes: int = 4096
    """`index.interval.bytes`: bytes of log from one index entry to the next, at least."""
    max_message_bytes: int = 1024 * 1024 + 12
    """`max.message.bytes`: the largest batch taken, as it stands on disk (compressed)."""
    cleanup_policy: str = "delete"
    """`cleanup.policy`: kept and shown, not acted upon."""

    def __post_init__(self) -> None:
        _within("segment.bytes", self.segment_bytes, SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX)
        _within("segment.ms", self.segment_ms, 1, 2**63 - 1)
        _within("segment.index.bytes", self.segment_index_bytes, INDEX_ENTRY_BYTES_MAX, 2**31 - 1)
        _within("index.interval.bytes", self.index_interval_bytes, 0, 2**31 - 1)
        _within("max.message.bytes", self.max_message_bytes, 0, MESSAGE_BYTES_MAX)
        if self.cleanup_policy not in CLEANUP_POLICIES:
            allowed = ", ".join(CLEANUP_POLICIES[:3])
            raise ConfigError(f"cleanup.policy={self.cleanup_policy!r}: use one of {allowed}")

    def overridden(self, configs: Mapping[str, str]) -> TopicConfig:
        """These settings with some replaced, given by Kafka's names and as text.

        Raises:
            ConfigError: a name is unknown, or a value malformed or out of range.
        """
        known = {declared.name: declared for declared in fields(self)}
        changes: dict[str, int | str] = {}
        for name, text in configs.items():
            attribute = name.replace(".", "_")
            if attribute not in known or "_" in name:
                names = ", ".join(wire_name(declared) for declared in known)
                raise ConfigError(f"unknown topic setting {name!r}; there are: {names}")
            changes[attribute] = text if attribute == "cleanup_policy" else _integer(name, text)
        return replace(self, **changes)  # type: ignore[arg-type]  # each kind was checked above

    def described(self) -> dict[str, str]:
        """Every setting by Kafka's name, as text."""
        return {
            wire_name(declared.name): str(getattr(self, declared.name)) for declared in fields(self)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Bounds and delays of consumer groups.

    Raises:
        ConfigError: a value is out of range.
    """

    initial_rebalance_delay_ms: int = 100
    """How long an empty group waits for more members after each that comes.

    Kafka waits 3 s, for fleets with state to move. 100 ms gathers what one machine starts
    together, and nobody at a terminal notices it.
    """
    session_timeout_ms_min: int = 100
    """No member may ask for less. Kafka's is 6 s, against clients that flap; whoever tests how a
    group loses a member wants less."""
    session_timeout_ms_max: int = 1_800_000
    """No member may ask for more: as long its partitions would lie idle after its death."""

    def __post_init__(self) -> None:
        _within("group.initial.rebalance.delay.ms", self.initial_rebalance_delay_ms, 0, DAY_MS)
        least = self.session_timeout_ms_min
        _within("group.min.session.timeout.ms", least, 1, 2**31 - 1)
        _within("group.max.session.timeout.ms", self.session_timeout_ms_max, least, 2**31 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of one broker.

    Raises:
        ConfigError: a value is out of range.
    """

    node_id: int = 1
    """The broker's number in its cluster; written to the data directory when it is made."""
    topic: TopicConfig = field(default_factory=TopicConfig)
    """What a topic has for settings that it does not override."""
    num_partitions: int = 4
    """Partitions of a topic that is created without a number of its own: enough for four
    consumers to share it, few enough to open at once on a small machine."""
    auto_create_topics: bool = True
    """Whether a client that asks for a topic that is not there gets it created."""
    group: GroupConfig = field(default_factory=GroupConfig)
    """Consumer groups."""

    def __post_init__(self) -> None:
        _within("node.id", self.node_id, 0, 2**31 - 1)
        _within("num.partitions", self.num_partitions, 1, PARTITIONS_MAX)


def wire_name(attribute: str) -> str:
    """Kafka's name of a setting: `segment_bytes` is `segment.bytes`."""
    return attribute.replace("_", ".")


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} is not a whole number") from None


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{name}={value}: it has to be from {least} to {most}")
