"""The settings of connections: listeners and the limits on clients.

Listeners come from Kafka's three settings: `listeners` says where the broker listens,
`listener.security.protocol.map` with which security protocol, and `advertised.listeners` which
endpoint clients get instead. A listener whose name is a security protocol uses that protocol.
Rule of the file: that of `config`: a setting without an effect is not declared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from streamlog.broker.config.security import (
    PLAINTEXT,
    PROTOCOLS,
    SASL_PLAINTEXT,
    SASL_SSL,
    SSL,
    SecurityConfig,
)
from streamlog.broker.config.settings import (
    INT_MAX,
    LONG_MAX,
    Form,
    NamedSetting,
    check_table,
    items,
    whole,
)
from streamlog.errors import ConfigError

_COUNTED = Form(
    r"(\s*[^,\s]+:[1-9][0-9]{0,8}\s*(,|$))*", "NAME:COUNT, with commas between several of them"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionConfig:
    """What clients may cost.

    Raises:
        ConfigError: a value is out of range.
    """

    request_bytes_max: int = whole(
        100 * 1024 * 1024,
        NamedSetting(
            "socket.request.max.bytes",
            "The largest request; who sends a larger one is hung up on. Holds for connections that"
            " are made afterwards.",
            "bytes",
        ),
        least=1024,
        most=INT_MAX,
    )
    # Kafka has no bounds. Each connection is two descriptors here, and a system gives so many.
    max_connections: int = whole(
        4096,
        NamedSetting(
            "max.connections",
            "Connections at a time. When one more comes, the oldest one that has sent no request,"
            " or has not proven who it is, is closed in its favor; if there is none, the new one is"
            " refused. The limit of open files may allow fewer; `streamlog doctor` says how many.",
        ),
        least=1,
        most=INT_MAX,
    )
    max_connections_of_listeners: str = items(
        "",
        NamedSetting(
            "max.connections.per.listener",
            "Connections at a time by listener, such as `CLIENTS:500,BROKERS:50`; a listener that"
            " is not named has no bound of its own. In a file, Kafka's spelling works, too:"
            " `listener.name.clients.max.connections=500`.",
        ),
        _COUNTED,
    )
    max_connections_per_address: int = whole(
        2048,
        NamedSetting(
            "max.connections.per.ip",
            "Connections at a time from one address, so that one machine does not shut out others.",
        ),
        least=1,
        most=INT_MAX,
    )
    max_connections_of_addresses: str = items(
        "",
        NamedSetting(
            "max.connections.per.ip.overrides",
            "The same for single addresses, such as `10.0.0.7:50,::1:1000`.",
        ),
        _COUNTED,
    )
    idle_ms: int = whole(
        600_000,
        NamedSetting(
            "connections.max.idle.ms",
            "Who neither sends nor reads anything for so long, and waits for nothing, is hung up"
            " on.",
            "ms",
        ),
        least=1,
    )
    queued_request_bytes: int = whole(
        256 * 1024 * 1024,
        NamedSetting(
            "queued.max.request.bytes",
            "Memory for large requests while they are received, for all clients together; who"
            " sends one when there is none left is not read from until there is. A larger request"
            " is received alone.",
            "bytes",
        ),
        least=1,
    )
    queued_response_bytes_per_connection: int = whole(
        1024 * 1024,
        NamedSetting(
            "queued.max.response.bytes.per.connection",
            "Answers held in memory behind one that waits; beyond this the connection is not read"
            " from.",
            "bytes",
        ),
        most=INT_MAX,
    )
    queued_response_bytes: int = whole(
        256 * 1024 * 1024,
        NamedSetting(
            "queued.max.response.bytes",
            "Answers held in memory for all clients together; beyond this no connection is read"
            " from that has not taken its own.",
            "bytes",
        ),
    )
    fetch_sessions_max: int = whole(
        1000,
        NamedSetting(
            "max.incremental.fetch.session.cache.slots",
            "Readers whose partitions the broker remembers, so that they need not repeat them; 0:"
            " none. One that was not there for two minutes gives way to any other, and a smaller"
            " one that is older than that to a larger.",
        ),
        most=100_000,
    )

    produce_bytes_per_s: int = whole(
        LONG_MAX,
        NamedSetting(
            "quota.producer.default",
            "Bytes of batches a second that one client id may write over connections; who writes"
            " more is told how long to wait, and not read from until then.",
            "bytes",
        ),
        least=1,
    )
    fetch_bytes_per_s: int = whole(
        LONG_MAX,
        NamedSetting(
            "quota.consumer.default",
            "Likewise, what it may read.",
            "bytes",
        ),
        least=1,
    )

    def __post_init__(self) -> None:
        check_table(self)

    def max_connections_of(self, listener: str) -> int | None:
        """How many connections a listener may have at a time; None: no bound of its own."""
        return _counts(self.max_connections_of_listeners.upper()).get(listener.upper())

    def max_connections_from(self, address: str) -> int:
        """How many connections one address may have at a time."""
        named = _counts(self.max_connections_of_addresses)
        return named.get(address.removeprefix("::ffff:"), self.max_connections_per_address)


@lru_cache(maxsize=16)
def _counts(text: str) -> Mapping[str, int]:
    pairs = (each.strip().rpartition(":") for each in text.split(",") if each.strip())
    return {name.strip("[]"): int(count) for name, _, count in pairs}


PORT_MAX = 65_535
_LISTENER = re.compile(r"(?P<name>[A-Za-z0-9_]+)://(?P<host>\[[^\]]*\]|[^:]*):(?P<port>\d{1,5})")


class AdvertisedEndpoint(NamedTuple):
    """Where a client has reached a broker; others are shown to it by the same listener."""

    listener: str
    """Its name."""
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One place to come to."""

    name: str = PLAINTEXT
    host: str = "127.0.0.1"
    """Empty: all addresses."""
    port: int = 0
    protocol: str = PLAINTEXT
    advertised: tuple[str, int] | None = None
    """What clients are told, if it is not where they have come to."""

    @property
    def has_tls(self) -> bool:
        """Whether what goes over it is encrypted."""
        return self.protocol in (SSL, SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        """Whether clients have to prove by SASL who they are."""
        return self.protocol in (SASL_PLAINTEXT, SASL_SSL)


def listeners_of(config: SecurityConfig) -> tuple[Listener, ...]:
    """The listeners in the settings; none if they name none.

    Raises:
        ConfigError: a setting can't be read, or they contradict each other.
    """
    protocols = protocols_of(config)
    places = _parse_endpoints("listeners", config.listeners)
    advertised = _parse_endpoints("advertised.listeners", config.advertised_listeners)
    for name, (host, port) in advertised.items():
        if name not in places:
            raise ConfigError(
                f"advertised.listeners names {name}, but listeners has only"
                f" {', '.join(places) or 'none'}"
            )
        if not host or not port:
            raise ConfigError(
                f"advertised.listeners: {name} has no host or no port; clients need both"
            )
    listeners = []
    for name, (host, port) in places.items():
        if name not in protocols:
            raise ConfigError(
                f"listener {name} has no security protocol: add {name}:SSL, or another of"
                f" {', '.join(PROTOCOLS)}, to listener.security.protocol.map"
            )
        listeners.append(
            Listener(
                name=name,
                host=host,
                port=port,
                protocol=protocols[name],
                advertised=advertised.get(name),
            )
        )
    return tuple(listeners)


def protocols_of(config: SecurityConfig) -> dict[str, str]:
    """The security protocol of each name of a listener.

    Raises:
        ConfigError: the map can't be read.
    """
    protocols = {}
    for item in _items(config.protocol_map):
        name, _, protocol = item.partition(":")
        if protocol.upper() not in PROTOCOLS:
            raise ConfigError(
                f"listener.security.protocol.map: {item!r} is not NAME:PROTOCOL with one of"
                f" {', '.join(PROTOCOLS)}"
            )
        protocols[name.upper()] = protocol.upper()
    return protocols


def _parse_endpoints(setting: str, text: str) -> dict[str, tuple[str, int]]:
    places: dict[str, tuple[str, int]] = {}
    for item in _items(text):
        found = _LISTENER.fullmatch(item)
        if found is None or int(found["port"]) > PORT_MAX:
            raise ConfigError(f"{setting}: {item!r} must be NAME://HOST:PORT")
        name, place = found["name"].upper(), (found["host"].strip("[]"), int(found["port"]))
        if name in places:
            raise ConfigError(f"{setting}: {name} is in it twice")
        if place[1] and place in places.values():
            raise ConfigError(f"{setting}: two names for {item.partition('://')[2]}")
        places[name] = place
    return places


def _items(text: str) -> list[str]:
    return [item for item in (each.strip() for each in text.split(",")) if item]
