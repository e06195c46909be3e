"""Listeners: where a broker listens, under which names, and what it asks of who comes.

Read from Kafka's three settings: `listeners` says where, `listener.security.protocol.map` how,
`advertised.listeners` what clients are told instead. A listener whose name is a security
protocol has that one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from streamlog.broker.config.security import (
    PLAINTEXT,
    PROTOCOLS,
    SASL_PLAINTEXT,
    SASL_SSL,
    SSL,
    SecurityConfig,
)
from streamlog.errors import ConfigError

PORT_MAX = 65_535
_LISTENER = re.compile(r"(?P<name>[A-Za-z0-9_]+)://(?P<host>\[[^\]]*\]|[^:]*):(?P<port>\d{1,5})")


class Reached(NamedTuple):
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
    places = _places("listeners", config.listeners)
    advertised = _places("advertised.listeners", config.advertised_listeners)
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


def _places(setting: str, text: str) -> dict[str, tuple[str, int]]:
    places: dict[str, tuple[str, int]] = {}
    for item in _items(text):
        found = _LISTENER.fullmatch(item)
        if found is None or int(found["port"]) > PORT_MAX:
            raise ConfigError(f"{setting}: {item!r} is not NAME://HOST:PORT")
        name, place = found["name"].upper(), (found["host"].strip("[]"), int(found["port"]))
        if name in places:
            raise ConfigError(f"{setting}: {name} is in it twice")
        if place[1] and place in places.values():
            raise ConfigError(f"{setting}: two names for {item.partition('://')[2]}")
        places[name] = place
    return places


def _items(text: str) -> list[str]:
    return [item for item in (each.strip() for each in text.split(",")) if item]
