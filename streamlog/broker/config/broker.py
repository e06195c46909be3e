"""BrokerConfig: the table of settings of a broker, parts of which are `topic` and others.

Rule of the file: a setting that nothing honours is not declared, and one that is not declared is
refused by name instead of being stored and forgotten. Settings carry Kafka's names on the wire
(`segment.bytes`) and the same words here (`segment_bytes`); what a field of a table can be is
`settings`'. A topic's setting has a second name, the broker's: what is set there holds for every
topic that does not say otherwise. docs/configuration.md lists them, and a test compares.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from streamlog.broker.config.cluster import (
    ClusterConfig,
    PeerConfig,
    QuorumConfig,
    ReplicationConfig,
)
from streamlog.broker.config.connections import ConnectionConfig
from streamlog.broker.config.coordinators import GroupConfig, TransactionConfig
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.config.settings import (
    INT_MAX,
    LONG_MAX,
    IgnoredConfig,
    NamedSetting,
    Setting,
    check_table,
    choice,
    declared_settings,
    replace_settings,
    text,
    texts_of,
    truth,
    unknown_setting,
    whole,
)
from streamlog.broker.config.topic import (
    AS_PRODUCED,
    CREATE_TIME,
    FLUSH_NEVER,
    LOG_APPEND_TIME,
    MESSAGE_BYTES_MAX,
    TOPIC_SETTINGS,
    UNCOMPRESSED,
    TopicConfig,
)
from streamlog.errors import ConfigError

__all__ = [
    "AS_PRODUCED",
    "BROKER_SETTINGS",
    "CREATE_TIME",
    "FLUSH_ALWAYS",
    "FLUSH_NEVER",
    "FLUSH_OS",
    "LOG_APPEND_TIME",
    "MESSAGE_BYTES_MAX",
    "PARTITIONS_MAX",
    "TOPIC_SETTINGS",
    "UNCOMPRESSED",
    "BrokerConfig",
    "ConnectionConfig",
    "TopicConfig",
]

PARTITIONS_MAX = 10_000
"""Of one topic: each is a directory with open files."""
FLUSH_ALWAYS = "always"
FLUSH_OS = "os"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of one broker.

    Raises:
        ConfigError: a value is out of range.
    """

    node_id: int = whole(
        1,
        NamedSetting(
            "node.id",
            "The broker's number in its cluster; written to the data directory when it is made.",
            is_dynamic=False,
        ),
        most=INT_MAX,
    )
    log_dirs: str = text(
        "",
        NamedSetting(
            "log.dirs",
            "The broker's data directory, unless the command says it. One, and no list as in"
            " Kafka.",
            is_dynamic=False,
        ),
    )
    rack: str = text(
        "",
        NamedSetting(
            "broker.rack",
            "Where the broker stands; replicas of a partition are put into different racks.",
            is_dynamic=False,
        ),
    )
    web: str = text(
        "",
        NamedSetting(
            "web.listener",
            "HOST:PORT at which the broker answers /live, /ready and /metrics; empty: nowhere."
            " Needs the extra streamlog[web].",
            is_dynamic=False,
        ),
    )
    # Enough for four consumers to share a topic, few enough to open at once on a small machine.
    num_partitions: int = whole(
        4,
        NamedSetting(
            "num.partitions", "Partitions of a topic that is created without a number of its own."
        ),
        least=1,
        most=PARTITIONS_MAX,
    )
    auto_create_topics: bool = truth(
        NamedSetting(
            "auto.create.topics.enable",
            "Whether a client that asks for a topic that is not there gets it created.",
        ),
        default=True,
    )
    retention_check_interval_ms: int = whole(
        300_000,
        NamedSetting(
            "log.retention.check.interval.ms",
            "How often the broker looks for segments whose time is over.",
            "ms",
        ),
        least=1,
    )
    flush: str = choice(
        FLUSH_ALWAYS,
        NamedSetting(
            "flush",
            "When a record is acknowledged and shown to consumers: when it is on disk, so that it"
            " outlives a power cut (always), or when the operating system has it, so that it"
            " outlives the process (os).",
            is_dynamic=False,
        ),
        (FLUSH_ALWAYS, FLUSH_OS),
    )
    log_cleaner_enable: bool = truth(
        NamedSetting(
            "log.cleaner.enable",
            "Whether topics with cleanup.policy 'compact' are compacted by this broker.",
        ),
        default=True,
    )
    log_cleaner_backoff_ms: int = whole(
        15_000,
        NamedSetting(
            "log.cleaner.backoff.ms",
            "How long to wait before looking again when there was nothing to compact.",
            "ms",
        ),
        least=1,
    )
    log_cleaner_dedupe_buffer_size: int = whole(
        128 * 1024 * 1024,
        NamedSetting(
            "log.cleaner.dedupe.buffer.size",
            "Memory for the keys of one compaction, 32 bytes each; a partition with more keys in"
            " what has not been compacted takes several.",
            "bytes",
        ),
        least=1024,
    )
    log_cleaner_io_max_bytes_per_second: int = whole(
        LONG_MAX,
        NamedSetting(
            "log.cleaner.io.max.bytes.per.second",
            "Compaction reads and writes no more than this, in sum.",
            "bytes",
        ),
        least=1024,
    )
    group: GroupConfig = field(default_factory=GroupConfig)
    """Consumer groups."""
    transaction: TransactionConfig = field(default_factory=TransactionConfig)
    """Transactions."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    """Brokers that are several."""
    quorum: QuorumConfig = field(default_factory=QuorumConfig)
    """Who decides for them."""
    peers: PeerConfig = field(default_factory=PeerConfig)
    """How they come to each other."""
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)
    """Replicas of partitions."""
    connections: ConnectionConfig = field(default_factory=ConnectionConfig)
    """Clients."""
    security: SecurityConfig = field(default_factory=SecurityConfig)
    """Who may come in, and what they may do."""
    ignored: object = field(default_factory=IgnoredConfig)
    """What Kafka knows and has no effect here."""
    topic: TopicConfig = field(default_factory=TopicConfig)
    """What a topic has for settings that it does not override."""

    def __post_init__(self) -> None:
        check_table(self)
        self.quorum.check(self.node_id)
        if "," in self.log_dirs:
            raise ConfigError(
                f"log.dirs={self.log_dirs}: a broker has one data directory; join the disks, or run"
                " a broker for each"
            )

    def overridden(self, configs: Mapping[str, str]) -> BrokerConfig:
        """These settings with some replaced, given by the broker's names and as text.

        Raises:
            ConfigError: a name is unknown, or a value malformed or out of range.
        """
        sections: dict[str, dict[str, str]] = {name: {} for name in ("", *_SECTIONS, "topic")}
        bounds: list[str] = []
        for name, value in configs.items():
            listener = _LISTENER_BOUND.fullmatch(name)
            if listener is not None:
                bounds.append(f"{listener[1]}:{value}")
                continue
            field = _FIELDS.get(name)
            if field is None:
                raise unknown_setting("broker", name, _FIELDS)
            sections[field.section][field.name] = value
        if bounds:
            given = sections["connections"].get(_LISTENER_BOUNDS)
            bounds = [*bounds, *([given] if given else ())]
            sections["connections"][_LISTENER_BOUNDS] = ",".join(bounds)
        parts = {name: replace_settings(getattr(self, name), sections[name]) for name in _SECTIONS}
        topic = self.topic.overridden(sections["topic"])
        return replace_settings(self, sections[""], topic=topic, **parts)

    def described(self) -> dict[str, str]:
        """Every setting by the broker's name, as text."""
        texts = {name: texts_of(getattr(self, name)) for name in (*_SECTIONS, "topic")}
        texts[""] = texts_of(self)
        return {name: texts[field.section][field.name] for name, field in _FIELDS.items()}


class _SettingField(NamedTuple):
    """Where a setting of the broker is kept: in which part, and by which name there."""

    section: str
    name: str


_LISTENER_BOUNDS = "max.connections.per.listener"
_LISTENER_BOUND = re.compile(r"listener\.name\.([A-Za-z0-9_]+)\.max\.connections")
"""Kafka's spelling of one of them."""
_SECTIONS: Mapping[str, type[Any]] = {
    "cluster": ClusterConfig,
    "quorum": QuorumConfig,
    "peers": PeerConfig,
    "group": GroupConfig,
    "transaction": TransactionConfig,
    "replication": ReplicationConfig,
    "connections": ConnectionConfig,
    "security": SecurityConfig,
    "ignored": IgnoredConfig,
}
"""Parts of the broker's table."""
_TABLES: Mapping[str, type[Any]] = {"": BrokerConfig, **_SECTIONS}
_SETTINGS = {
    section: {name: each.setting for name, each in declared_settings(table).items()}
    for section, table in _TABLES.items()
}
BROKER_SETTINGS: Mapping[str, Setting] = {
    **{name: each for settings in _SETTINGS.values() for name, each in settings.items()},
    **{
        each.broker_name: replace(each, name=each.broker_name, broker_name="")
        for each in TOPIC_SETTINGS.values()
        if each.broker_name
    },
}
"""The settings of a broker, by name, those that topics inherit included."""
_FIELDS = {
    **{
        name: _SettingField(part, name) for part, settings in _SETTINGS.items() for name in settings
    },
    **{
        each.broker_name: _SettingField("topic", name)
        for name, each in TOPIC_SETTINGS.items()
        if each.broker_name
    },
}
