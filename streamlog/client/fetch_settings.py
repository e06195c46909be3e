"""FetchSettings: how much a reader fetches at once, from whom, and where it begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from streamlog.client.offsets import ISOLATION_LEVELS, Isolation
from streamlog.errors import ConfigError

Reset: TypeAlias = Literal["earliest", "latest", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """How much to fetch, and where to begin."""

    auto_offset_reset: Reset = "latest"
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 50 * 1024 * 1024
    max_partition_fetch_bytes: int = 1024 * 1024
    isolation_level: Isolation = "read_uncommitted"
    """read_committed: only records of committed transactions, and of none, up to the first
    transaction that is still open."""
    client_rack: str = ""
    """Where this reader stands, in the words of broker.rack: a leader sends it to a replica that is
    nearer, if replica.selector.class says so (KIP-392)."""
    metadata_max_age_ms: int = 300_000
    """How often a member looks for topics that have come, gone or grown, and how long a nearer
    replica is read from until the leader is asked for the nearest one again."""

    def __post_init__(self) -> None:
        if self.auto_offset_reset not in {"earliest", "latest", "none"}:
            raise ConfigError(
                f"auto_offset_reset is {self.auto_offset_reset!r}: "
                "it can be 'earliest', 'latest' or 'none'"
            )
        if self.isolation_level not in ISOLATION_LEVELS:
            raise ConfigError(
                f"isolation_level is {self.isolation_level!r}: "
                "it can be 'read_committed' or 'read_uncommitted'"
            )
        for name in ("fetch_min_bytes", "fetch_max_wait_ms"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it can't be negative")
        for name in ("fetch_max_bytes", "max_partition_fetch_bytes"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}: it has to be positive")
