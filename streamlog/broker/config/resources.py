"""Settings of resources that are neither topics nor brokers: groups, and metrics of clients.

They are kept as they are set, by the name of the resource, whether or not a group of that name
exists. What a group does not set itself is the broker's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from streamlog.broker.config.ignored import ignored
from streamlog.broker.config.settings import (
    INT_MAX,
    Form,
    NamedSetting,
    Setting,
    check_table,
    choice,
    declared,
    items,
    replaced,
    texts_of,
    unknown,
    whole,
)

BROKER_LOGGER_RESOURCE: Final = 8
CLIENT_METRICS_RESOURCE: Final = 16
GROUP_RESOURCE: Final = 32
"""Kafka's numbers."""
HOUR_MS: Final = 3_600_000

NO_SHARE_GROUPS: Final = "there are no share groups"
NO_STREAMS_GROUPS: Final = "there are no groups of the streams protocol (KIP-1071)"
_SELECTORS: Final = (
    "client_instance_id|client_id|client_software_name|client_software_version"
    "|client_source_address|client_source_port"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOverrides:
    """What one group can have of its own.

    Raises:
        ConfigError: a value is out of range.
    """

    consumer_session_timeout_ms: int = whole(
        45_000,
        NamedSetting(
            "consumer.session.timeout.ms",
            "A member of this group that the coordinator has not heard from for this long is"
            " removed (KIP-848).",
            "ms",
            broker_name="group.consumer.session.timeout.ms",
        ),
        least=1,
        most=INT_MAX,
    )
    consumer_heartbeat_interval_ms: int = whole(
        5_000,
        NamedSetting(
            "consumer.heartbeat.interval.ms",
            "The interval of heartbeats that the coordinator gives to members of this group.",
            "ms",
            broker_name="group.consumer.heartbeat.interval.ms",
        ),
        least=1,
        most=INT_MAX,
    )
    share_session_timeout_ms: int = whole(
        45_000,
        NamedSetting("share.session.timeout.ms", ignored(NO_SHARE_GROUPS), "ms"),
        least=1,
        most=INT_MAX,
    )
    share_heartbeat_interval_ms: int = whole(
        5_000,
        NamedSetting("share.heartbeat.interval.ms", ignored(NO_SHARE_GROUPS), "ms"),
        least=1,
        most=INT_MAX,
    )
    share_record_lock_duration_ms: int = whole(
        30_000,
        NamedSetting("share.record.lock.duration.ms", ignored(NO_SHARE_GROUPS), "ms"),
        least=1_000,
        most=INT_MAX,
    )
    share_auto_offset_reset: str = items(
        "latest",
        NamedSetting("share.auto.offset.reset", ignored(NO_SHARE_GROUPS)),
        Form(r"latest|earliest|by_duration:.+", "latest, earliest or by_duration:DURATION"),
    )
    share_isolation_level: str = choice(
        "read_uncommitted",
        NamedSetting("share.isolation.level", ignored(NO_SHARE_GROUPS)),
        ("read_uncommitted", "read_committed"),
    )
    streams_session_timeout_ms: int = whole(
        45_000,
        NamedSetting("streams.session.timeout.ms", ignored(NO_STREAMS_GROUPS), "ms"),
        least=1,
        most=INT_MAX,
    )
    streams_heartbeat_interval_ms: int = whole(
        5_000,
        NamedSetting("streams.heartbeat.interval.ms", ignored(NO_STREAMS_GROUPS), "ms"),
        least=1,
        most=INT_MAX,
    )
    streams_num_standby_replicas: int = whole(
        0, NamedSetting("streams.num.standby.replicas", ignored(NO_STREAMS_GROUPS)), most=INT_MAX
    )

    def __post_init__(self) -> None:
        check_table(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetricsConfig:
    """One subscription to metrics of clients (KIP-714).

    Raises:
        ConfigError: a value is out of range, or written in no form that is known.
    """

    interval_ms: int = whole(
        300_000,
        NamedSetting("interval.ms", "How often clients that match push their metrics.", "ms"),
        least=100,
        most=HOUR_MS,
    )
    match: str = items(
        "",
        NamedSetting("match", "Which clients: all conditions have to hold; empty: every client."),
        Form(rf"(({_SELECTORS})=[^,]+(,|$))*", f"conditions KEY=REGEX; KEY is {_SELECTORS}"),
    )
    metrics: str = items(
        "",
        NamedSetting("metrics", "Prefixes of the names of metrics; empty: none, *: all."),
        Form(".*", "prefixes with commas between them"),
    )

    def __post_init__(self) -> None:
        check_table(self)


RESOURCE_TABLES: Final[Mapping[int, type[Any]]] = {
    GROUP_RESOURCE: GroupOverrides,
    CLIENT_METRICS_RESOURCE: ClientMetricsConfig,
}
"""The table of each type of resource."""
RESOURCE_NAMES: Final[Mapping[int, str]] = {
    GROUP_RESOURCE: "group",
    CLIENT_METRICS_RESOURCE: "client metrics",
}


def resource_settings(kind: int) -> dict[str, Setting]:
    """The settings of a type of resource, by name."""
    return {name: each.setting for name, each in declared(RESOURCE_TABLES[kind]).items()}


def checked(kind: int, texts: Mapping[str, str]) -> Any:  # noqa: ANN401 - one of the tables
    """The table with these values.

    Raises:
        ConfigError: a name is unknown, or a value malformed or out of range.
    """
    known = declared(RESOURCE_TABLES[kind])
    for name in texts:
        if name not in known:
            raise unknown(RESOURCE_NAMES[kind], name, known)
    return replaced(RESOURCE_TABLES[kind](), texts)


def effective(kind: int, texts: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """The value of each setting, as text; `check_inheritance` holds the broker's, by name."""
    own = texts_of(checked(kind, texts))
    for name, setting in resource_settings(kind).items():
        if name not in texts and setting.broker_name:
            own[name] = inherited[setting.broker_name]
    return own
