"""The table of settings of connections, a part of the broker's (`config`): what clients may cost.

Rule of the file: that of `config`: a setting that nothing honours is not declared. Names are
Kafka's on the wire; what a field of a table can be is `settings`'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from streamlog.broker.config.settings import (
    INT_MAX,
    LONG_MAX,
    Form,
    NamedSetting,
    check_table,
    items,
    whole,
)

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
