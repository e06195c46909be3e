"""The settings of connections: listeners and the limits on clients.

Listeners come from Kafka's three settings: `listeners` says where the broker listens,
`listener.security.protocol.map` with which security protocol, and `advertised.listeners` which
endpoint clients get instead. A listener whose name is a security protocol uses that protocol.

Rule of the file, as in `config/broker`: a setting without an effect is not declared.
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
    integer,
    items,
)
from streamlog.errors import ConfigError

SYSTEM_BUFFER = -1
"""The size of a socket buffer that the operating system tunes."""
_COUNTED = Form(r"(\s*[^,\s]+:[1-9][0-9]{0,8}\s*(,|$))*", "a comma-separated list of NAME:COUNT")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionConfig:
    """Limits of client connections.

    Raises:
        ConfigError: a value is out of range.
    """

    request_bytes_max: int = integer(
        100 * 1024 * 1024,
        NamedSetting(
            "socket.request.max.bytes",
            "The largest request; a client that sends a larger one is disconnected. Applies to new"
            " connections.",
            "bytes",
        ),
        minimum=1024,
        maximum=INT_MAX,
    )
    # Kafka has no limit. A connection costs two descriptors, and systems limit descriptors.
    max_connections: int = integer(
        4096,
        NamedSetting(
            "max.connections",
            "The most simultaneous connections. When another one arrives, the oldest that has sent"
            " no request, or is not authenticated, is closed; if there is none, the new one is"
            " refused. The limit of open files may allow fewer; `streamlog doctor` reports how"
            " many.",
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    max_connections_of_listeners: str = items(
        "",
        NamedSetting(
            "max.connections.per.listener",
            "The most simultaneous connections by listener, such as `CLIENTS:500,BROKERS:50`; other"
            " listeners have no limit of their own. A file may use Kafka's spelling too:"
            " `listener.name.clients.max.connections=500`.",
        ),
        _COUNTED,
    )
    max_connections_per_address: int = integer(
        2048,
        NamedSetting(
            "max.connections.per.ip",
            "The most simultaneous connections from one address, so that one machine can't shut out"
            " others.",
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    max_connections_of_addresses: str = items(
        "",
        NamedSetting(
            "max.connections.per.ip.overrides",
            "The limits of single addresses, such as `10.0.0.7:50,::1:1000`.",
        ),
        _COUNTED,
    )
    telemetry_bytes_max: int = integer(
        1024 * 1024,
        NamedSetting(
            "telemetry.max.bytes",
            "The largest push of a client's metrics (KIP-714), as it is sent and decompressed.",
            "bytes",
        ),
        minimum=1,
        maximum=INT_MAX,
    )
    idle_ms: int = integer(
        600_000,
        NamedSetting(
            "connections.max.idle.ms",
            "A client that neither sends nor reads for this long, and waits for no response, is"
            " disconnected.",
            "ms",
        ),
        minimum=1,
    )
    queued_request_bytes: int = integer(
        256 * 1024 * 1024,
        NamedSetting(
            "queued.max.request.bytes",
            "Memory for large requests while they are received, for all clients together; when it"
            " is used up, the broker stops reading from clients that send one. A request larger"
            " than this is received alone.",
            "bytes",
        ),
        minimum=1,
    )
    queued_response_bytes_per_connection: int = integer(
        1024 * 1024,
        NamedSetting(
            "queued.max.response.bytes.per.connection",
            "Responses of one connection held in memory behind one that waits; beyond this, the"
            " broker stops reading from the connection.",
            "bytes",
        ),
        maximum=INT_MAX,
    )
    queued_response_bytes: int = integer(
        256 * 1024 * 1024,
        NamedSetting(
            "queued.max.response.bytes",
            "Responses held in memory for all clients together; beyond this, the broker stops"
            " reading from connections with unread responses.",
            "bytes",
        ),
    )
    fetch_sessions_max: int = integer(
        1000,
        NamedSetting(
            "max.incremental.fetch.session.cache.slots",
            "The most fetch sessions: readers whose partitions the broker remembers, so that they"
            " need not repeat them; 0: none. If there are as many, a new session replaces one that"
            " was not used for two minutes, or a smaller one that is more than two minutes old.",
        ),
        maximum=100_000,
    )

    # Kafka's default is 102400. A fixed size ends the system's own tuning of the buffer, which is
    # better on most networks.
    send_buffer_bytes: int = integer(
        SYSTEM_BUFFER,
        NamedSetting(
            "socket.send.buffer.bytes",
            "The send buffer of client connections (SO_SNDBUF); -1: the operating system tunes it.",
            "bytes",
            is_dynamic=False,
        ),
        minimum=SYSTEM_BUFFER,
        maximum=INT_MAX,
    )
    receive_buffer_bytes: int = integer(
        SYSTEM_BUFFER,
        NamedSetting(
            "socket.receive.buffer.bytes",
            "The receive buffer of client connections (SO_RCVBUF); -1: the operating system tunes"
            " it.",
            "bytes",
            is_dynamic=False,
        ),
        minimum=SYSTEM_BUFFER,
        maximum=INT_MAX,
    )
    produce_bytes_per_s: int = integer(
        LONG_MAX,
        NamedSetting(
            "quota.producer.default",
            "Bytes of batches per second that one client id may write; a client that writes more is"
            " throttled: it learns how long to wait, and the broker stops reading from it for that"
            " long.",
            "bytes",
        ),
        minimum=1,
    )
    fetch_bytes_per_s: int = integer(
        LONG_MAX,
        NamedSetting(
            "quota.consumer.default",
            "Bytes of batches per second that one client id may read; see quota.producer.default.",
            "bytes",
        ),
        minimum=1,
    )

    def __post_init__(self) -> None:
        check_table(self)

    def max_connections_of(self, listener: str) -> int | None:
        """Return the limit of a listener's connections; None if it has none of its own."""
        return _counts(self.max_connections_of_listeners.upper()).get(listener.upper())

    def max_connections_from(self, address: str) -> int:
        """Return the limit of connections from one address."""
        # An IPv6 socket shows IPv4 clients with mapped addresses; the setting has plain ones.
        named = _counts(self.max_connections_of_addresses)
        return named.get(address.removeprefix("::ffff:"), self.max_connections_per_address)


# Cached: asked for each new connection. Of equal names the last one counts.
@lru_cache(maxsize=16)
def _counts(text: str) -> Mapping[str, int]:
    pairs = (each.strip().rpartition(":") for each in text.split(",") if each.strip())
    return {name.strip("[]"): int(count) for name, _, count in pairs}


PORT_MAX = 65_535
_LISTENER = re.compile(r"(?P<name>[A-Za-z0-9_]+)://(?P<host>\[[^\]]*\]|[^:]*):(?P<port>\d{1,5})")


class AdvertisedEndpoint(NamedTuple):
    """The endpoint that a client has connected to; it gets other brokers' of the same listener."""

    listener: str
    """The name of the listener."""
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One listener of a broker."""

    name: str = PLAINTEXT
    host: str = "127.0.0.1"
    """The address to listen on; empty for all addresses of the machine."""
    port: int = 0
    protocol: str = PLAINTEXT
    advertised: tuple[str, int] | None = None
    """The endpoint that clients get, if it differs from the one they use."""

    @property
    def has_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.protocol in (SSL, SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        """Whether clients have to authenticate by SASL."""
        return self.protocol in (SASL_PLAINTEXT, SASL_SSL)


def listeners_of(config: SecurityConfig) -> tuple[Listener, ...]:
    """Return the listeners in the settings; none if no listener is set.

    Raises:
        ConfigError: a setting is malformed, or settings contradict each other.
    """
    protocols = protocols_of(config)
    endpoints = _parse_endpoints("listeners", config.listeners)
    advertised = _parse_endpoints("advertised.listeners", config.advertised_listeners)
    for name, (host, port) in advertised.items():
        if name not in endpoints:
            raise ConfigError(
                f"advertised.listeners names {name}, but listeners has only"
                f" {', '.join(endpoints) or 'none'}"
            )
        if not host or not port:
            raise ConfigError(
                f"advertised.listeners: {name} has no host or no port; clients need both"
            )
    listeners = []
    for name, (host, port) in endpoints.items():
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
    """Return the security protocol of each listener name.

    Raises:
        ConfigError: the map is malformed.
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
    endpoints: dict[str, tuple[str, int]] = {}
    for item in _items(text):
        found = _LISTENER.fullmatch(item)
        if found is None or int(found["port"]) > PORT_MAX:
            raise ConfigError(f"{setting}: {item!r} must be NAME://HOST:PORT")
        name, endpoint = found["name"].upper(), (found["host"].strip("[]"), int(found["port"]))
        if name in endpoints:
            raise ConfigError(f"{setting}: {name} occurs twice")
        # Port 0 may occur more than once: the system chooses a different port each time.
        if endpoint[1] and endpoint in endpoints.values():
            raise ConfigError(
                f"{setting}: two listeners have the address {item.partition('://')[2]}"
            )
        endpoints[name] = endpoint
    return endpoints


def _items(text: str) -> list[str]:
    return [item for item in (each.strip() for each in text.split(",")) if item]
