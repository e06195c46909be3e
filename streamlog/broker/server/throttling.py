"""Throttling: which clients have to wait, for their quotas or for memory of requests.

`Quotas` (KIP-13, KIP-219) bounds how many bytes a second a client may write and read. The quota
table says which clients share a bound; without an entry, the defaults of the settings hold per
client id. Use fills a bucket that drains at the allowed rate and holds `BURST_MS` of it. A client
that overflows gets its response, with the throttle time, and nothing more is read from its
connection until that time has passed. Clients in the broker's own process have no quota.

`RequestMemory` bounds the memory of all requests that are being received. A small request fits into
the buffer that every connection has. A larger one needs memory for all of it before its bytes are
read; otherwise many half-received requests could hold everything and none could finish. Memory is
granted in the order of asking, whatever the size. A request larger than the bound is received
alone; if all holders wait for more, the largest holder gets it, which exceeds the bound by one
request.

Rule of the file: it counts and decides. Not done here: muting, reading and closing (`connection`),
and the number of connections (`connections`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from streamlog.broker.config.connections import ConnectionConfig
from streamlog.broker.config.resources import FETCH_RATE, PRODUCE_RATE, Account, Bound, QuotaTable
from streamlog.broker.config.settings import LONG_MAX
from streamlog.metrics.registry import OTHER, SERIES_MAX, Kind, Metric
from streamlog.protocol.messages.produce_and_fetch import FetchResponse, ProduceRequest
from streamlog.protocol.schema import Message, Records

BURST_MS = 1_000
"""The size of a bucket: how many ms of the allowed rate a client may use at once."""
THROTTLE_MS_MAX = 30_000
"""The maximum throttle time: a client that waited longer would take the broker for dead."""
CLIENTS_MAX = 10_000
"""The maximum number of buckets; the one that was used least recently makes room."""
UNBOUNDED = LONG_MAX
_QUOTA_NAMES = {PRODUCE_RATE: "produce", FETCH_RATE: "fetch"}

QuotaClient: TypeAlias = tuple[str, str | None]
"""A user's name, without its principal type, and a client id."""


class _Bucket(NamedTuple):
    used_bytes: float
    at_ms: int


@dataclass(slots=True)
class _Throttled:
    """How often an account was throttled since the start, and for how long."""

    times: int = 0
    total_ms: int = 0


ALL_OTHERS: Account = (OTHER, OTHER)
"""Accounts beyond `SERIES_MAX` are counted together."""


class Quota:
    """The bytes of each account in one direction."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[Account, _Bucket] = OrderedDict()
        self.throttled: dict[Account, _Throttled] = {}

    def charge(self, account: Account, sizes: Sequence[int], bytes_per_s: int, now_ms: int) -> int:
        """Count the bytes of messages; return the throttle time in ms, 0 within the quota."""
        if bytes_per_s >= UNBOUNDED:
            return 0
        used_bytes = self._used_bytes(account, bytes_per_s, now_ms)
        for size_bytes in sizes:
            used_bytes += size_bytes
        self._buckets.pop(account, None)
        self._buckets[account] = _Bucket(used_bytes, now_ms)
        # Re-inserted above, so the first is the least recently used. Its client starts again with
        # an empty bucket.
        if len(self._buckets) > CLIENTS_MAX:
            self._buckets.popitem(last=False)
        over_bytes = used_bytes - bytes_per_s * BURST_MS / 1000
        if over_bytes <= 0:
            return 0
        # Rounded up: after the throttle time the bucket is not over the burst any more.
        throttle_ms = min(int(over_bytes * 1000 / bytes_per_s) + 1, THROTTLE_MS_MAX)
        self._note(account, throttle_ms)
        return throttle_ms

    def count_fitting(
        self, account: Account, sizes: Sequence[int], bytes_per_s: int, now_ms: int
    ) -> int:
        """Return how many messages, from the first on, `charge` would not throttle."""
        if bytes_per_s >= UNBOUNDED:
            return len(sizes)
        used_bytes = self._used_bytes(account, bytes_per_s, now_ms)
        most_bytes = bytes_per_s * BURST_MS / 1000
        for count, size_bytes in enumerate(sizes):
            used_bytes += size_bytes
            if used_bytes > most_bytes:
                return count
        return len(sizes)

    def _note(self, account: Account, throttle_ms: int) -> None:
        known = self.throttled.get(account)
        if known is None:
            # Client ids come from outside: any number of them may be throttled.
            name = account if len(self.throttled) < SERIES_MAX else ALL_OTHERS
            known = self.throttled.setdefault(name, _Throttled())
        known.times += 1
        known.total_ms += throttle_ms

    def _used_bytes(self, account: Account, bytes_per_s: int, now_ms: int) -> float:
        """Return the bytes in an account's bucket now."""
        bucket = self._buckets.get(account)
        if bucket is None:
            return 0.0
        drained = (now_ms - bucket.at_ms) * bytes_per_s / 1000
        return max(bucket.used_bytes - drained, 0)


class Quotas:
    """The quotas of all clients, for Produce and for Fetch."""

    def __init__(self) -> None:
        self._buckets = {PRODUCE_RATE: Quota(), FETCH_RATE: Quota()}
        self._defaults: dict[str, int] = {}
        self._table = QuotaTable()

    def configure(self, table: QuotaTable, limits: ConnectionConfig) -> bool:
        """Use these quotas from now on; return whether any client has one."""
        self._table = table
        self._defaults = {
            PRODUCE_RATE: limits.produce_bytes_per_s,
            FETCH_RATE: limits.fetch_bytes_per_s,
        }
        return bool(table) or min(self._defaults.values()) < UNBOUNDED

    def metrics(self) -> Iterator[Metric]:
        """Yield how often and for how long clients were throttled, by quota."""
        known = [
            ((_QUOTA_NAMES[key], user or "", client_id or ""), throttled)
            for key, quota in self._buckets.items()
            for (user, client_id), throttled in quota.throttled.items()
        ]
        labels = ("quota", "user", "client_id")
        yield Metric(
            "streamlog_quota_throttles_total",
            "Times that clients of a quota had to wait; an empty label stands for all.",
            Kind.COUNTER,
            labels,
            [(each, throttled.times) for each, throttled in known],
        )
        yield Metric(
            "streamlog_quota_throttle_seconds_total",
            "Time that clients of a quota had to wait, in seconds.",
            Kind.COUNTER,
            labels,
            [(each, throttled.total_ms / 1000) for each, throttled in known],
        )

    def charge(self, user: str, client_id: str | None, message: Message, *, now_ms: int) -> int:
        """Count the records of a Produce request or of a Fetch response, and no other message.

        Returns the throttle time in ms, 0 for a client within its quota.
        """
        client = user, client_id
        if isinstance(message, ProduceRequest):
            parts = (each for topic in message.topic_data for each in topic.partition_data)
            return self.charge_produced(
                client, [sum(_size(each.records) for each in parts)], now_ms
            )
        if isinstance(message, FetchResponse):
            found = (each for topic in message.responses for each in topic.partitions)
            return self.charge_fetched(client, sum(_size(each.records) for each in found), now_ms)
        return 0

    def charge_produced(self, client: QuotaClient, sizes: Sequence[int], now_ms: int) -> int:
        """Count the records of Produce requests, in bytes; return the throttle time in ms."""
        bound = self._bound(PRODUCE_RATE, client)
        buckets = self._buckets[PRODUCE_RATE]
        return buckets.charge(bound.account, sizes, bound.bytes_per_s, now_ms)

    def count_fitting(self, client: QuotaClient, sizes: Sequence[int], now_ms: int) -> int:
        """Return how many Produce requests of these sizes stay within the quota, from the first."""
        bound = self._bound(PRODUCE_RATE, client)
        buckets = self._buckets[PRODUCE_RATE]
        return buckets.count_fitting(bound.account, sizes, bound.bytes_per_s, now_ms)

    def charge_fetched(self, client: QuotaClient, size_bytes: int, now_ms: int) -> int:
        """Count the records of a Fetch response; return the throttle time in ms."""
        bound = self._bound(FETCH_RATE, client)
        buckets = self._buckets[FETCH_RATE]
        return buckets.charge(bound.account, (size_bytes,), bound.bytes_per_s, now_ms)

    def _bound(self, key: str, client: QuotaClient) -> Bound:
        user, client_id = client[0], client[1] or ""
        set_for = self._table.bound(key, user, client_id)
        return Bound(self._defaults[key], (None, client_id)) if set_for is None else set_for


def _size(records: Records | None) -> int:
    if isinstance(records, list):
        return sum(map(len, records))
    return 0 if records is None else len(records)


RECEIVE_BYTES_PER_S_MIN: Final = 10 * 1024
"""The minimum rate of a connection that holds memory for which others wait."""
SLOW_MS: Final = 10_000
"""The span in ms over which that rate is measured."""


class Receiver(Protocol):
    """A connection that receives requests."""

    def go_on(self, size_bytes: int) -> None:
        """Take the granted memory; called in the middle of another connection's work."""
        ...

    def give_back(self) -> int:
        """Release memory that is only kept for later; return the bytes still held."""
        ...

    def received_bytes(self) -> int | None:
        """Return the bytes received so far; None while nothing is read from the client."""
        ...


M = TypeVar("M", bound=Receiver)


class _Sample(NamedTuple):
    received_bytes: int
    at_ms: int


class RequestMemory(Generic[M]):
    """Grants memory for requests being received, in the order of asking."""

    def __init__(self, bound_bytes: Callable[[], int]) -> None:
        self._bound_bytes = bound_bytes
        self._held: dict[M, int] = {}
        self._waiting: OrderedDict[M, int] = OrderedDict()
        self._samples: dict[M, _Sample] = {}
        self.used_bytes = 0

    @property
    def is_short(self) -> bool:
        """Whether connections should release memory that they don't need now."""
        return bool(self._waiting) or 2 * self.used_bytes > self._bound_bytes()

    def want(self, member: M, size_bytes: int, *, wait: bool = True) -> bool:
        """Grant a member this many bytes; return whether it has them now.

        With `wait`, a member without a grant queues, and `go_on` is called when it is granted,
        which may be before this returns. A smaller hold than before is always granted.
        """
        if size_bytes <= self._held.get(member, 0):
            self._waiting.pop(member, None)
            self._hold(member, size_bytes)
            self._serve()
            return True
        if member in self._waiting:
            self._waiting[member] = size_bytes  # It keeps its turn.
            return False
        if not self._fits(member, size_bytes):
            for other in [each for each in self._held if each is not member]:
                self._hold(other, other.give_back())
            self._serve()
        if not self._waiting and self._fits(member, size_bytes):
            self._hold(member, size_bytes)
            return True
        if wait:
            self._waiting[member] = size_bytes
            self._serve()  # It may hold what the others wait for.
        return False

    def leave(self, member: M) -> None:
        """Release everything that a closed connection holds or waits for."""
        self._waiting.pop(member, None)
        self._samples.pop(member, None)
        self._hold(member, 0)
        self._serve()

    def slow(self, now_ms: int) -> list[M]:
        """Return the members that hold memory for which others wait, and send too slowly."""
        if not self._waiting:
            self._samples.clear()
            return []
        found = []
        for member in self._held:
            received_bytes = member.received_bytes()
            sample = self._samples.get(member)
            if received_bytes is None:
                self._samples.pop(member, None)
            elif sample is None:
                self._samples[member] = _Sample(received_bytes, now_ms)
            elif now_ms - sample.at_ms >= SLOW_MS:
                least_bytes = RECEIVE_BYTES_PER_S_MIN * (now_ms - sample.at_ms) // 1000
                if received_bytes - sample.received_bytes < least_bytes:
                    found.append(member)
                self._samples[member] = _Sample(received_bytes, now_ms)
        return found

    def _fits(self, member: M, size_bytes: int) -> bool:
        # A request larger than the bound is received when no other member holds memory.
        others_bytes = self.used_bytes - self._held.get(member, 0)
        return others_bytes == 0 or others_bytes + size_bytes <= self._bound_bytes()

    def _hold(self, member: M, size_bytes: int) -> None:
        # The former hold is released in the same step: a hold grows by the difference.
        self.used_bytes += size_bytes - self._held.pop(member, 0)
        if size_bytes:
            self._held[member] = size_bytes

    def _serve(self) -> None:
        """Grant what fits, in the order of asking."""
        while (member := self._next()) is not None:
            size_bytes = self._waiting.pop(member)
            self._hold(member, size_bytes)
            member.go_on(size_bytes)

    def _next(self) -> M | None:
        """Return the member to grant next; None while holders of memory have to finish first."""
        first = next(iter(self._waiting), None)
        if first is None or self._fits(first, self._waiting[first]):
            return first
        if any(holder not in self._waiting for holder in self._held):
            return None
        # 1. A and B each hold half of the memory. 2. Both ask for more. 3. Neither can finish, so
        # neither would release anything. The larger of them exceeds the bound, and finishes.
        return max(self._held, key=self._held.__getitem__)
