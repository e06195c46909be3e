"""BrokerConfig: the table of a broker's settings, with `topic` and other tables as parts.

Rule of the file: a setting without an effect is not declared, and one that is not declared is
refused by name instead of being stored and forgotten. Settings have Kafka's names on the wire
(`segment.bytes`) and the same words here (`segment_bytes`); `settings` defines the types of fields.
A topic setting has a second name, the broker's, which sets the default of all topics.
docs/configuration.md lists all settings, and a test compares it with these tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from streamlog.broker.config.cluster import (
    ClusterConfig,
    PeerConfig,
    QuorumConfig,
    ReplicationConfig,
)
from streamlog.broker.config.connections import ConnectionConfig
from streamlog.broker.config.coordinators import GroupConfig, TransactionConfig
from streamlog.broker.config.schema_service import RegistryConfig
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.config.settings import (
    INT_MAX,
    LONG_MAX,
    NAMES,
    Form,
    IgnoredConfig,
    NamedSetting,
    Setting,
    boolean,
    check_table,
    choice,
    declared_settings,
    integer,
    items,
    replace_settings,
    text,
    texts_of,
    unknown_setting,
)
from streamlog.broker.config.topic import (
    AS_PRODUCED,
    CREATE_TIME,
    FLUSH_NEVER,
    FOR_EVER,
    LOG_APPEND_TIME,
    MESSAGE_BYTES_MAX,
    TOPIC_SETTINGS,
    UNCOMPRESSED,
    TopicConfig,
)
from streamlog.errors import ConfigError
from streamlog.replace import replace

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
"""The most partitions of one topic; each is a directory with open files."""
ALL_DIRECTORIES = "*"
"""The value of `cordoned.log.dirs` that cordons a broker."""
FLUSH_ALWAYS = "always"
FLUSH_OS = "os"


def _paths(given: str) -> tuple[str, ...]:
    paths = (each.strip() for each in given.split(","))
    return tuple(each.rstrip("/") or "/" for each in paths if each)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings of one broker.

    Raises:
        ConfigError: a value is out of range.
    """

    node_id: int = integer(
        1,
        NamedSetting(
            "node.id",
            "The id of the broker in its cluster; stored in the data directory when it is created.",
            is_dynamic=False,
        ),
        maximum=INT_MAX,
    )
    log_dirs: str = text(
        "",
        NamedSetting(
            "log.dirs",
            "The data directories of the broker, comma-separated, each on a disk of its own, unless"
            " the command line gives them. The first one also has the metadata; a new partition"
            " goes to the one with the fewest.",
            is_dynamic=False,
        ),
    )
    cordoned_log_dirs: str = items(
        "",
        NamedSetting(
            "cordoned.log.dirs",
            "'*' cordons the broker: no new partition or replica is placed on it, and it keeps"
            " those that it has (KIP-1066). Change it by `streamlog cluster cordon` and"
            " `uncordon`. Paths out of log.dirs: new partitions of the broker go to its other"
            " directories.",
        ),
        Form(r"|\*|[^,*]+(,[^,*]+)*", "* for all log directories, paths out of log.dirs, or empty"),
    )
    rack: str = text(
        "",
        NamedSetting(
            "broker.rack",
            "The rack of the broker; replicas of a partition are placed in different racks.",
            is_dynamic=False,
        ),
    )
    web: str = text(
        "",
        NamedSetting(
            "web.listener",
            "HOST:PORT at which the broker serves /live, /ready, /metrics and the console. Empty:"
            " it serves none of them. Needs the extra streamlog-py[web].",
            is_dynamic=False,
        ),
    )
    web_users: str = text(
        "",
        NamedSetting(
            "web.users.file",
            "The file of web.listener's users, made by `streamlog users add NAME --file FILE`. With"
            " it, every path but /live and /ready needs a password. Empty: there are no users, and"
            " a broker serves the console only on an address that no other machine can reach, and"
            " only if it has neither ACLs nor secured listeners.",
            is_dynamic=False,
        ),
    )
    web_certificate: str = text(
        "",
        NamedSetting(
            "web.certificate.file",
            "PEM file with the private key and the certificates of web.listener. With it, the"
            " listener speaks HTTPS. Required for web.users.file on an address that other machines"
            " can reach.",
            is_dynamic=False,
        ),
    )
    web_operators: str = items(
        "",
        NamedSetting(
            "web.operators",
            "The users of web.users.file who may make changes in the console; the others may only"
            " read.",
            is_dynamic=False,
        ),
        NAMES,
    )
    web_registry: str = text(
        "",
        NamedSetting(
            "web.schema.registry",
            "The schema registry whose schemas the console shows and reads records by: its URL, or"
            " a file with Confluent's settings for clients, which may hold a password. Empty: the"
            " one that this broker serves at schema.registry.listener.",
            is_dynamic=False,
        ),
    )
    web_connect: str = text(
        "",
        NamedSetting(
            "web.connect",
            "The Connect service whose connectors the console shows: its URL, or a file with url,"
            " user, password and ca, a file of authorities. Empty: it shows none.",
            is_dynamic=False,
        ),
    )
    otel_metrics: bool = boolean(
        NamedSetting(
            "otel.metrics",
            "Whether the broker exports its metrics by OTLP, to where OpenTelemetry's variables"
            " (OTEL_*) in its environment say. Needs the extra streamlog-py[otel].",
            is_dynamic=False,
        ),
        default=False,
    )
    # Enough for four consumers to share a topic, few enough to open at once on a small machine.
    num_partitions: int = integer(
        4,
        NamedSetting("num.partitions", "Partitions of a topic whose creator gives no number."),
        minimum=1,
        maximum=PARTITIONS_MAX,
    )
    auto_create_topics: bool = boolean(
        NamedSetting(
            "auto.create.topics.enable",
            "Whether a topic that does not exist is created when a client requests its metadata.",
        ),
        default=True,
    )
    retention_check_interval_ms: int = integer(
        300_000,
        NamedSetting(
            "log.retention.check.interval.ms",
            "The interval at which the broker looks for expired segments.",
            "ms",
        ),
        minimum=1,
    )
    log_retention_minutes: int = integer(
        FOR_EVER,
        NamedSetting(
            "log.retention.minutes",
            "log.retention.ms in minutes; counts where log.retention.ms is not set.",
            is_dynamic=False,
        ),
        minimum=FOR_EVER,
        maximum=INT_MAX,
    )
    log_retention_hours: int = integer(
        FOR_EVER,
        NamedSetting(
            "log.retention.hours",
            "log.retention.ms in hours; counts where neither log.retention.ms nor"
            " log.retention.minutes is set.",
            is_dynamic=False,
        ),
        minimum=FOR_EVER,
        maximum=INT_MAX,
    )
    log_roll_hours: int = integer(
        7 * 24,
        NamedSetting(
            "log.roll.hours",
            "log.roll.ms in hours; counts where log.roll.ms is not set.",
            is_dynamic=False,
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    flush: str = choice(
        FLUSH_ALWAYS,
        NamedSetting(
            "flush",
            "When a record is acknowledged and visible to consumers: when it is on disk, so that it"
            " survives a power cut (always), or when the operating system has it, so that it"
            " survives the death of the process (os).",
            is_dynamic=False,
        ),
        (FLUSH_ALWAYS, FLUSH_OS),
    )
    log_cleaner_enable: bool = boolean(
        NamedSetting(
            "log.cleaner.enable",
            "Whether this broker compacts topics with cleanup.policy 'compact'.",
        ),
        default=True,
    )
    log_cleaner_backoff_ms: int = integer(
        15_000,
        NamedSetting(
            "log.cleaner.backoff.ms",
            "The pause after a search for logs to compact that has found none.",
            "ms",
        ),
        minimum=1,
    )
    log_cleaner_dedupe_buffer_size: int = integer(
        128 * 1024 * 1024,
        NamedSetting(
            "log.cleaner.dedupe.buffer.size",
            "Memory for the keys of one compaction, 32 bytes each; a partition with more keys in"
            " its dirty part is compacted in several passes.",
            "bytes",
        ),
        minimum=1024,
    )
    log_cleaner_io_max_bytes_per_second: int = integer(
        LONG_MAX,
        NamedSetting(
            "log.cleaner.io.max.bytes.per.second",
            "The limit of what compaction reads and writes per second, in total.",
            "bytes",
        ),
        minimum=1024,
    )
    group: GroupConfig = field(default_factory=GroupConfig)
    """Settings of consumer groups."""
    transaction: TransactionConfig = field(default_factory=TransactionConfig)
    """Settings of transactions."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    """Settings of the cluster."""
    quorum: QuorumConfig = field(default_factory=QuorumConfig)
    """Settings of the controller quorum."""
    peers: PeerConfig = field(default_factory=PeerConfig)
    """Settings of connections between brokers."""
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)
    """Settings of replication."""
    connections: ConnectionConfig = field(default_factory=ConnectionConfig)
    """Settings of client connections."""
    security: SecurityConfig = field(default_factory=SecurityConfig)
    """Settings of listeners, TLS, SASL and ACLs."""
    registry: RegistryConfig = field(default_factory=RegistryConfig)
    """Settings of the schema registry."""
    ignored: object = field(default_factory=IgnoredConfig)
    """Kafka's settings without effect here."""
    topic: TopicConfig = field(default_factory=TopicConfig)
    """The defaults of topic settings."""

    def __post_init__(self) -> None:
        check_table(self)
        self.quorum.check(self.node_id)
        paths = self.directories
        if len({*paths}) < len(paths):
            raise ConfigError(f"log.dirs={self.log_dirs}: a directory is named twice")

    @property
    def directories(self) -> tuple[str, ...]:
        """The paths in `log.dirs`, the first one first."""
        return _paths(self.log_dirs)

    @property
    def cordoned_directories(self) -> tuple[str, ...]:
        """The paths in `cordoned.log.dirs`; none if it is `*`, which the controller obeys."""
        return () if self.cordoned_log_dirs == ALL_DIRECTORIES else _paths(self.cordoned_log_dirs)

    def override(self, configs: Mapping[str, str]) -> BrokerConfig:
        """Return these settings with some replaced, by the broker's names and as text.

        Raises:
            ConfigError: a name is unknown, or a value malformed or out of range.
        """
        sections: dict[str, dict[str, str]] = {name: {} for name in ("", *_SECTIONS, "topic")}
        bounds: list[str] = []
        for name, value in {**configs, **_in_ms(configs)}.items():
            listener = _LISTENER_BOUND.fullmatch(name)
            if listener is not None:
                bounds.append(f"{listener[1]}:{value}")
                continue
            field = _FIELDS.get(name)
            if field is None:
                raise unknown_setting("broker", name, _FIELDS)
            sections[field.section][field.name] = value
        if bounds:
            # Last, so that `max.connections.per.listener` wins over Kafka's spelling.
            given = sections["connections"].get(_LISTENER_BOUNDS)
            bounds = [*bounds, *([given] if given else ())]
            sections["connections"][_LISTENER_BOUNDS] = ",".join(bounds)
        parts = {name: replace_settings(getattr(self, name), sections[name]) for name in _SECTIONS}
        topic = self.topic.override(sections["topic"])
        return replace_settings(self, sections[""], topic=topic, **parts)

    def as_texts(self) -> dict[str, str]:
        """Return every setting by the broker's name, as text."""
        texts = {name: texts_of(getattr(self, name)) for name in (*_SECTIONS, "topic")}
        texts[""] = texts_of(self)
        return {name: texts[field.section][field.name] for name, field in _FIELDS.items()}

    def as_text(self, name: str) -> str:
        """Return one setting by the broker's name, as text."""
        field = _FIELDS[name]
        table = getattr(self, field.section) if field.section else self
        attribute, setting = declared_settings(type(table))[field.name]
        return setting.text(getattr(table, attribute))


MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
_COARSER: Mapping[str, tuple[tuple[str, int], ...]] = {
    "log.retention.ms": (("log.retention.minutes", MINUTE_MS), ("log.retention.hours", HOUR_MS)),
    "log.roll.ms": (("log.roll.hours", HOUR_MS),),
}
"""Other names of settings in milliseconds, with their units; the finest that is given counts."""


def _in_ms(configs: Mapping[str, str]) -> dict[str, str]:
    """Return the settings in milliseconds that are given in coarser units only.

    Raises:
        ConfigError: a value is malformed or out of range.
    """
    found: dict[str, str] = {}
    for name, coarser in _COARSER.items():
        given = [(each, unit_ms) for each, unit_ms in coarser if each in configs]
        if name not in configs and given:
            coarse, unit_ms = given[0]
            value = int(BROKER_SETTINGS[coarse].parse(configs[coarse]))
            found[name] = str(value * unit_ms if value >= 0 else FOR_EVER)
    return found


class _SettingField(NamedTuple):
    """The table and the name there of a broker setting."""

    section: str
    name: str


_LISTENER_BOUNDS = "max.connections.per.listener"
_LISTENER_BOUND = re.compile(r"listener\.name\.([A-Za-z0-9_]+)\.max\.connections")
"""Kafka's spelling of the limit of one listener."""
_SECTIONS: Mapping[str, type[Any]] = {
    "cluster": ClusterConfig,
    "quorum": QuorumConfig,
    "peers": PeerConfig,
    "group": GroupConfig,
    "transaction": TransactionConfig,
    "replication": ReplicationConfig,
    "connections": ConnectionConfig,
    "security": SecurityConfig,
    "registry": RegistryConfig,
    "ignored": IgnoredConfig,
}
"""The parts of the broker's table."""
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
"""The settings of a broker by name, including the defaults of topic settings."""
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
