"""Subscriptions: which metrics the broker asks each client for (KIP-714).

A subscription is a resource of type CLIENT_METRICS with settings (`config/resources`). A client is
asked for the metrics of all subscriptions whose conditions it meets, at the shortest of their
intervals. Rule of this module: functions of their inputs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final, Self

import msgspec
from crc32c import crc32c

from streamlog.broker.config.resources import (
    CLIENT_METRICS_RESOURCE,
    ClientMetricsConfig,
    check_settings,
)
from streamlog.protocol.schema import id_text

ALL_METRICS: Final = "*"
"""The prefix that stands for all metrics."""
INTERVAL_DEFAULT_MS: Final = ClientMetricsConfig().interval_ms
"""The interval of clients that no subscription matches: they ask again after it."""
_INT32: Final = 1 << 32


class TelemetryClient(msgspec.Struct, frozen=True):
    """A client, by what subscriptions select on."""

    instance_id: bytes
    client_id: str = ""
    software_name: str = ""
    software_version: str = ""
    address: str = ""
    port: int = 0

    def attributes(self) -> dict[str, str]:
        """Return the attributes that `match` may name, with their values."""
        return {
            "client_instance_id": id_text(self.instance_id),
            "client_id": self.client_id,
            "client_software_name": self.software_name,
            "client_software_version": self.software_version,
            "client_source_address": self.address,
            "client_source_port": str(self.port),
        }


class Subscribed(msgspec.Struct, frozen=True):
    """What one client is asked for."""

    metrics: tuple[str, ...]
    """Prefixes of names, sorted; empty: nothing."""
    interval_ms: int
    subscription_id: int
    """A hash of the others and of the client; changes with them."""

    def wants(self, name: str) -> bool:
        """Whether the client is asked for a metric."""
        # `startswith` of an empty tuple is false: of a client that is asked for nothing, no metric
        # is wanted.
        return self.metrics == (ALL_METRICS,) or name.startswith(self.metrics)


class Subscriptions:
    """All subscriptions, as they are now."""

    def __init__(self, configs: Iterable[ClientMetricsConfig] = ()) -> None:
        self._configs = [(each, each.patterns()) for each in configs]

    @classmethod
    def read(cls, settings: Mapping[str, Mapping[str, str]]) -> Self:
        """Return the subscriptions with these settings, by name."""
        return cls(check_settings(CLIENT_METRICS_RESOURCE, each) for each in settings.values())

    def of(self, client: TelemetryClient) -> Subscribed:
        """Return what a client is asked for."""
        attributes = client.attributes()
        interval_ms = INTERVAL_DEFAULT_MS
        metrics: set[str] = set()
        for config, patterns in self._configs:
            # As in Kafka, a pattern matches the whole value.
            if all(each.fullmatch(attributes[name]) for name, each in patterns.items()):
                metrics |= {each.strip() for each in config.metrics.split(",")} - {""}
                # The default takes part: subscriptions shorten the interval and never lengthen it.
                interval_ms = min(interval_ms, config.interval_ms)
        names = (ALL_METRICS,) if ALL_METRICS in metrics else tuple(sorted(metrics))
        return Subscribed(names, interval_ms, _hash(names, interval_ms, client.instance_id))


def _hash(metrics: Iterable[str], interval_ms: int, instance_id: bytes) -> int:
    """Return the CRC-32C of metrics and interval, mixed with the client's id, as a signed number.

    All brokers compute the same number, because a client may push to another one than it has asked.
    """
    found = crc32c(f"[{', '.join(metrics)}]{interval_ms}".encode())
    for part in struct.unpack(">4I", instance_id):
        found ^= part
    return found - _INT32 if found >= _INT32 // 2 else found
