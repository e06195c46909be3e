"""Quotas: how many bytes a second one client may write and read (KIP-13, KIP-219).

Who shares a bound with whom is said by `quota_table`, and where that has none by the defaults of
the settings, for each client id. What is used flows into a bucket that drains at the rate that is
allowed and holds `BURST_MS` of it; who overflows gets the answer all the same, with the time after
which the bucket has room again, and nothing more is read from that connection until then.
Rule of the file: it counts and says how long, muting is the server's. Quotas are of connections:
who is in the broker's own process has none.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from streamlog.broker.config.connections import ConnectionConfig
from streamlog.broker.config.quota_table import FETCH_RATE, PRODUCE_RATE, Account, Bound, QuotaTable
from streamlog.broker.config.settings import LONG_MAX
from streamlog.protocol.messages.produce_and_fetch import FetchResponse, ProduceRequest
from streamlog.protocol.schema import Message, Records

BURST_MS = 1_000
"""So much of what is allowed may be used at once."""
THROTTLE_MS_MAX = 30_000
"""No client waits longer, or it would take the broker for dead."""
CLIENTS_MAX = 10_000
"""Clients remembered; the one that has been silent for longest makes room."""
UNBOUNDED = LONG_MAX


class _Bucket(NamedTuple):
    used_bytes: float
    at_ms: int


class Quota:
    """The bytes of each account in one direction."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[Account, _Bucket] = OrderedDict()

    def charge(self, account: Account, size_bytes: int, bytes_per_s: int, now_ms: int) -> int:
        """Count bytes; for how many milliseconds who has used them is to be left alone."""
        if bytes_per_s >= UNBOUNDED:
            return 0
        bucket = self._buckets.pop(account, None)
        used_bytes = 0.0
        if bucket is not None:
            drained = (now_ms - bucket.at_ms) * bytes_per_s / 1000
            used_bytes = max(bucket.used_bytes - drained, 0)
        used_bytes += size_bytes
        self._buckets[account] = _Bucket(used_bytes, now_ms)
        if len(self._buckets) > CLIENTS_MAX:
            self._buckets.popitem(last=False)
        over_bytes = used_bytes - bytes_per_s * BURST_MS / 1000
        if over_bytes <= 0:
            return 0
        return min(int(over_bytes * 1000 / bytes_per_s) + 1, THROTTLE_MS_MAX)


class Quotas:
    """Both directions, of all clients."""

    def __init__(self) -> None:
        self._buckets = {PRODUCE_RATE: Quota(), FETCH_RATE: Quota()}
        self._defaults: dict[str, int] = {}
        self._table = QuotaTable()

    def configure(self, table: QuotaTable, limits: ConnectionConfig) -> bool:
        """Go by these from now on; whether anybody has a quota at all."""
        self._table = table
        self._defaults = {
            PRODUCE_RATE: limits.produce_bytes_per_s,
            FETCH_RATE: limits.fetch_bytes_per_s,
        }
        return bool(table) or min(self._defaults.values()) < UNBOUNDED

    def charge(self, user: str, client_id: str | None, message: Message, *, now_ms: int) -> int:
        """Count what a Produce brings or what the answer to a Fetch takes; how long to wait."""
        name = client_id or ""
        if isinstance(message, ProduceRequest):
            bound = self._bound(PRODUCE_RATE, user, name)
            if bound.bytes_per_s < UNBOUNDED:
                parts = (each for topic in message.topic_data for each in topic.partition_data)
                size_bytes = sum(_size(each.records) for each in parts)
                return self._buckets[PRODUCE_RATE].charge(
                    bound.account, size_bytes, bound.bytes_per_s, now_ms
                )
        elif isinstance(message, FetchResponse):
            bound = self._bound(FETCH_RATE, user, name)
            if bound.bytes_per_s < UNBOUNDED:
                found = (each for topic in message.responses for each in topic.partitions)
                size_bytes = sum(_size(each.records) for each in found)
                return self._buckets[FETCH_RATE].charge(
                    bound.account, size_bytes, bound.bytes_per_s, now_ms
                )
        return 0

    def _bound(self, key: str, user: str, client_id: str) -> Bound:
        set_for = self._table.bound(key, user, client_id)
        return Bound(self._defaults[key], (None, client_id)) if set_for is None else set_for


def _size(records: Records | None) -> int:
    if isinstance(records, list):
        return sum(map(len, records))
    return 0 if records is None else len(records)
