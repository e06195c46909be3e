"""Settings of resources other than topics and brokers: groups, client metrics and client quotas.

Settings are kept by the name of the resource, whether or not a group of that name exists. A group
inherits from the broker what it does not set itself.

`QuotaTable` says which quota applies to a client (KIP-13, KIP-55, KIP-546). A quota is set for a
user, a client id, or both, each by name or as the default. The most specific one applies, in
Kafka's order: user before client id, name before default. A user's clients share the user's quota;
clients under a default do not share. The table is immutable: a change makes a new one, which is
kept with the altered settings of the broker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from streamlog.broker.config.settings import (
    INT_MAX,
    Form,
    NamedSetting,
    Setting,
    check_table,
    choice,
    declared_settings,
    ignored_settings,
    integer,
    items,
    replace_settings,
    texts_of,
    unknown_setting,
)
from streamlog.errors import ConfigError

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)
PRODUCE_RATE: Final = "producer_byte_rate"
FETCH_RATE: Final = "consumer_byte_rate"
RATES: Final = (PRODUCE_RATE, FETCH_RATE)
"""Enforced quotas of users and client ids, in bytes per second."""
REQUEST_PERCENTAGE: Final = "request_percentage"
MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_RATE: Final = "connection_creation_rate"
KEPT_ONLY: Final = (REQUEST_PERCENTAGE, MUTATION_RATE)
"""Quotas of users and client ids that are stored and described for Kafka's tools, not enforced."""
IP_QUOTAS: Final = (CONNECTION_RATE,)
"""Quotas of addresses, stored but not enforced: `max.connections.per.ip` limits an address."""

Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Types with names, sorted; None is the default of a type."""
Account: TypeAlias = tuple[str | None, str | None]
"""User and client id that share a quota; None means any."""


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Return an entity in its canonical order."""
    return tuple(sorted(parts, key=lambda part: part[0]))


class Bound(NamedTuple):
    """A quota in bytes per second, and the account that shares it."""

    bytes_per_s: int
    account: Account


class QuotaTable:
    """The quotas that were set."""

    def __init__(self, rates: Mapping[Entity, Mapping[str, float]] | None = None) -> None:
        self._rates = {entity: dict(bounds) for entity, bounds in (rates or {}).items() if bounds}

    def __len__(self) -> int:
        return len(self._rates)

    def __iter__(self) -> Iterator[Entity]:
        return iter(self._rates)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QuotaTable) and self._rates == other._rates

    __hash__ = None  # type: ignore[assignment]  # it holds dicts

    def of(self, entity: Entity) -> Mapping[str, float]:
        """Return the quotas set for exactly this entity."""
        return self._rates.get(entity, {})

    def alter(self, entity: Entity, changes: Mapping[str, float | None]) -> QuotaTable:
        """Return the table with other quotas for an entity; None removes one."""
        bounds = {**self.of(entity), **changes}
        kept = {key: rate for key, rate in bounds.items() if rate is not None}
        return QuotaTable({**self._rates, entity: kept})

    def bound(self, key: str, user: str, client_id: str) -> Bound | None:
        """Return the quota of a client of a user; None without one."""
        if not self._rates:
            return None
        # The account decides who shares: a quota set for a user's name is shared by all clients of
        # the user; one set for a default is counted separately for each name.
        both, of_user, of_client = (user, client_id), (user, None), (None, client_id)
        candidates: tuple[tuple[Entity, Account], ...] = (
            (((CLIENT_ID, client_id), (USER, user)), both),
            (((CLIENT_ID, None), (USER, user)), both),
            (((USER, user),), of_user),
            (((CLIENT_ID, client_id), (USER, None)), both),
            (((CLIENT_ID, None), (USER, None)), both),
            (((USER, None),), of_user),
            (((CLIENT_ID, client_id),), of_client),
            (((CLIENT_ID, None),), of_client),
        )
        for entity, account in candidates:
            rate = self._rates.get(entity, {}).get(key)
            if rate is not None:
                return Bound(int(rate), account)
        return None


BROKER_LOGGER_RESOURCE: Final = 8
CLIENT_METRICS_RESOURCE: Final = 16
GROUP_RESOURCE: Final = 32
"""Kafka's numbers for types of resources."""
HOUR_MS: Final = 3_600_000

NO_SHARE_GROUPS: Final = "there are no share groups"
NO_STREAMS_GROUPS: Final = "there are no groups of the streams protocol (KIP-1071)"
_SELECTORS: Final = (
    "client_instance_id|client_id|client_software_name|client_software_version"
    "|client_source_address|client_source_port"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOverrides:
    """The settings that a single group can have.

    Raises:
        ConfigError: a value is out of range.
    """

    consumer_session_timeout_ms: int = integer(
        45_000,
        NamedSetting(
            "consumer.session.timeout.ms",
            "A member of this group that the coordinator has not heard from for this long is"
            " removed (KIP-848).",
            "ms",
            broker_name="group.consumer.session.timeout.ms",
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    consumer_heartbeat_interval_ms: int = integer(
        5_000,
        NamedSetting(
            "consumer.heartbeat.interval.ms",
            "The interval of heartbeats that the coordinator gives to members of this group.",
            "ms",
            broker_name="group.consumer.heartbeat.interval.ms",
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    share_session_timeout_ms: int = integer(
        45_000,
        NamedSetting("share.session.timeout.ms", ignored_settings(NO_SHARE_GROUPS), "ms"),
        minimum=1,
        maximum=INT_MAX,
    )
    share_heartbeat_interval_ms: int = integer(
        5_000,
        NamedSetting("share.heartbeat.interval.ms", ignored_settings(NO_SHARE_GROUPS), "ms"),
        minimum=1,
        maximum=INT_MAX,
    )
    share_record_lock_duration_ms: int = integer(
        30_000,
        NamedSetting("share.record.lock.duration.ms", ignored_settings(NO_SHARE_GROUPS), "ms"),
        minimum=1_000,
        maximum=INT_MAX,
    )
    share_auto_offset_reset: str = items(
        "latest",
        NamedSetting("share.auto.offset.reset", ignored_settings(NO_SHARE_GROUPS)),
        Form(r"latest|earliest|by_duration:.+", "latest, earliest or by_duration:DURATION"),
    )
    share_isolation_level: str = choice(
        "read_uncommitted",
        NamedSetting("share.isolation.level", ignored_settings(NO_SHARE_GROUPS)),
        ("read_uncommitted", "read_committed"),
    )
    streams_session_timeout_ms: int = integer(
        45_000,
        NamedSetting("streams.session.timeout.ms", ignored_settings(NO_STREAMS_GROUPS), "ms"),
        minimum=1,
        maximum=INT_MAX,
    )
    streams_heartbeat_interval_ms: int = integer(
        5_000,
        NamedSetting("streams.heartbeat.interval.ms", ignored_settings(NO_STREAMS_GROUPS), "ms"),
        minimum=1,
        maximum=INT_MAX,
    )
    streams_num_standby_replicas: int = integer(
        0,
        NamedSetting("streams.num.standby.replicas", ignored_settings(NO_STREAMS_GROUPS)),
        maximum=INT_MAX,
    )

    def __post_init__(self) -> None:
        check_table(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetricsConfig:
    """One subscription to metrics of clients (KIP-714).

    Raises:
        ConfigError: a value is out of range or malformed.
    """

    interval_ms: int = integer(
        300_000,
        NamedSetting(
            "interval.ms", "The interval at which matching clients push their metrics.", "ms"
        ),
        minimum=100,
        maximum=HOUR_MS,
    )
    match: str = items(
        "",
        NamedSetting(
            "match", "Which clients match: all conditions must hold; empty: every client."
        ),
        Form(rf"(({_SELECTORS})=[^,]+(,|$))*", f"conditions KEY=REGEX; KEY is {_SELECTORS}"),
    )
    metrics: str = items(
        "",
        NamedSetting("metrics", "Prefixes of the names of metrics; empty: none, *: all."),
        Form(".*", "comma-separated prefixes"),
    )

    def __post_init__(self) -> None:
        check_table(self)
        self.patterns()

    def patterns(self) -> dict[str, re.Pattern[str]]:
        """Return the pattern of each attribute of clients that `match` names.

        Raises:
            ConfigError: one is not a regular expression.
        """
        found: dict[str, re.Pattern[str]] = {}
        for condition in filter(None, self.match.split(",")):
            attribute, _, pattern = condition.partition("=")
            try:
                found[attribute.strip()] = re.compile(pattern)
            except re.error as error:
                raise ConfigError(
                    f"match: {pattern!r} is not a regular expression: {error}"
                ) from None
        return found


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
    """Return the settings of a type of resource by name."""
    return {name: each.setting for name, each in declared_settings(RESOURCE_TABLES[kind]).items()}


def check_settings(kind: int, texts: Mapping[str, str]) -> Any:  # noqa: ANN401 - one of the tables
    """Return the table of a type of resource with these values.

    Raises:
        ConfigError: a name is unknown, or a value malformed or out of range.
    """
    known = declared_settings(RESOURCE_TABLES[kind])
    for name in texts:
        if name not in known:
            raise unknown_setting(RESOURCE_NAMES[kind], name, known)
    return replace_settings(RESOURCE_TABLES[kind](), texts)


def effective(kind: int, texts: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the value of each setting as text; `inherited` are the broker's settings by name."""
    # The table's defaults stand in for values that are not set; those of the broker replace them.
    own = texts_of(check_settings(kind, texts))
    for name, setting in resource_settings(kind).items():
        if name not in texts and setting.broker_name:
            own[name] = inherited[setting.broker_name]
    return own
