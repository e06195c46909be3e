"""Connections: the connections of a broker, and the bounds on what all of them together cost.

There are bounds on the number of connections, in total and from one address; on the time that one
may be idle; and on the memory for unread responses and for requests being received. Connections
that have not sent a request, or have not authenticated, are half open: they get a small share of
that memory, and are closed first when there are too many.

Rule of the file: a connection that exceeds a bound is refused, muted or closed, without an effect
on the others. The log has the first refusal, and then the number of further ones, at most every
`REFUSALS_LOG_MS`. Settings are read once per sweep, so a change takes effect within a second.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Generic, NamedTuple, Protocol, TypeVar

from streamlog import repeated
from streamlog.broker.config.connections import ConnectionConfig
from streamlog.broker.config.resources import QuotaTable
from streamlog.broker.config.settings import INT_MAX
from streamlog.broker.server.throttling import Quotas, Receiver, RequestMemory
from streamlog.metrics.registry import Kind, Metric, Point, number

SWEEP_MS = 1_000
"""The interval of the search for idle connections."""
SWEEPS_PER_IDLE = 4
"""The minimum number of sweeps in the idle time: it is exceeded by a quarter at most."""
REFUSALS_LOG_MS = 10_000
SCRATCH_BYTES = 64 * 1024
"""The size of one read of encrypted bytes from a socket."""
HALF_OPEN_MS = 1_000
"""A connection that has been half open for this many ms gives way to a new one."""
HALF_OPEN_REQUEST_BYTES = 16 * 1024 * 1024
"""The memory for large requests of all clients together that have not authenticated."""
ADDRESS_SHARE = 3 / 4
"""The share of the connections allowed by the limit of open files that one address may have."""

_SOCKETS = "kafka_network_socketserver_"
_SOCKET_METRICS = "kafka_server_socket_server_metrics_"

_log = repeated.logger(__name__)


class AuthenticationEvent(Enum):
    """What has come of a client's attempt to authenticate, by TLS or SASL (Kafka's names)."""

    SUCCESSFUL = "successful_authentication"
    FAILED = "failed_authentication"
    SUCCESSFUL_AGAIN = "successful_reauthentication"
    FAILED_AGAIN = "failed_reauthentication"


class ClientConnection(Receiver, Protocol):
    """A connection, as its server sees it."""

    def progress(self) -> int | None:
        """Return a number that changes with every read or write; None if the client must wait."""
        ...

    def end_idle(self, idle_ms: int) -> None:
        """Close the connection because it is idle."""
        ...

    @property
    def is_half_open(self) -> bool:
        """Whether the connection has not sent a request, or its client has not authenticated."""
        ...

    def end_half_open(self) -> None:
        """Close the connection to make room for another one."""
        ...

    def end_slow(self) -> None:
        """Close the connection because it holds memory for which others wait."""
        ...


M = TypeVar("M", bound=ClientConnection)


class _Origin(NamedTuple):
    """The address and the listener of a connection; empty: any."""

    address: str
    listener: str

    def holds(self, other: _Origin) -> bool:
        """Return whether this covers the other one."""
        return self.address in ("", other.address) and self.listener in ("", other.listener)


class Connections(Generic[M]):
    """The connections of one server, with their limits."""

    def __init__(
        self,
        config: Callable[[], ConnectionConfig],
        *,
        quota_table: Callable[[], QuotaTable] = QuotaTable,
        most: int = INT_MAX,
        preferred: str = "",
    ) -> None:
        """Bound connections by the settings, and by `most`, which file descriptors allow.

        `preferred` is the listener of other brokers: if there is no room for a connection there,
        a client's connection is closed.
        """
        self.limits = config()
        self._most = most
        self._preferred = preferred
        self.quotas = Quotas()
        self._quota_table = quota_table
        self.has_quotas = self.quotas.configure(quota_table(), self.limits)
        """Whether any client has a quota; read for each request."""
        self.held_bytes = 0
        """The memory of all answers that wait for their clients to read."""
        self.memory: RequestMemory[M] = RequestMemory(lambda: self.limits.queued_request_bytes)
        self.refused = 0
        """How many connections were refused since the start."""
        self.evicted = 0
        """How many connections were closed to make room for others since the start."""
        self.strangers_memory: RequestMemory[M] = RequestMemory(
            lambda: min(HALF_OPEN_REQUEST_BYTES, self.limits.queued_request_bytes)
        )
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        """The buffer for encrypted bytes, shared: each connection decrypts them at once."""
        self._config = config
        self._members: dict[M, _Origin] = {}
        self._of_address: Counter[str] = Counter()
        self._of_listener: Counter[str] = Counter()
        self._half_open: dict[M, float] = {}
        """When each half-open connection began, oldest first; some may no longer be half open."""
        self._quiet: dict[M, tuple[int | None, int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._unlogged = 0
        self._unlogged_evictions = 0
        self._accepted = 0
        self._created: Counter[str] = Counter()
        self._closed: Counter[str] = Counter()
        self._authentications: dict[AuthenticationEvent, Counter[str]] = {
            each: Counter() for each in AuthenticationEvent
        }
        """How many connections were created and closed, and authentications ended, by listener."""
        self._mute_until_s = 0.0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[M]:
        # A copy: a connection that the loop closes leaves while the loop runs.
        return iter(list(self._members))

    @property
    def is_full(self) -> bool:
        """Whether answers hold so much memory that their clients may send no more requests."""
        return self.held_bytes >= self.limits.queued_response_bytes

    def metrics(self) -> Iterator[Metric]:
        """Yield what is known of connections, authentications, memory and throttled clients."""
        yield from self._listener_metrics()
        yield from self.quotas.metrics()
        yield number("streamlog_connections", "Connections to this broker.", len(self._members))
        for name, text, count in (
            ("refused", "Connections refused because of a limit.", self.refused),
            ("evicted", "Half-open connections closed to make room for new ones.", self.evicted),
        ):
            yield number(f"streamlog_connections_{name}_total", text, count, kind=Kind.COUNTER)
        yield number(
            _SOCKETS + "memorypoolused", "Bytes of requests being received.", self.memory.used_bytes
        )
        yield number(
            _SOCKETS + "memorypoolavailable",
            "Bytes for further requests being received.",
            max(self.limits.queued_request_bytes - self.memory.used_bytes, 0),
        )

    def on_authentication(self, listener: str, event: AuthenticationEvent) -> None:
        """Count the end of an attempt to authenticate."""
        self._authentications[event][listener] += 1

    def _listener_metrics(self) -> Iterator[Metric]:
        for name, text, kind, counts in (
            ("connection_count", "Open connections.", Kind.GAUGE, self._of_listener),
            ("connection_creation_total", "Accepted connections.", Kind.COUNTER, self._created),
            ("connection_close_total", "Ended connections.", Kind.COUNTER, self._closed),
            *(
                (f"{event.value}_total", f"Attempts: {event.value}.", Kind.COUNTER, counts)
                for event, counts in self._authentications.items()
            ),
        ):
            # A listener that had a connection once stays, with 0.
            listeners = sorted({*self._created, *counts})
            points: list[Point] = [((each,), counts[each]) for each in listeners]
            yield Metric(_SOCKET_METRICS + name, text, kind, ("listener",), points)

    def next_number(self) -> int:
        """Return the number of a new connection, larger than those of older ones."""
        self._accepted += 1
        return self._accepted

    def open(self) -> None:
        """Begin to search for idle connections."""
        if self._timer is None:
            self._arm()

    def close(self) -> None:
        """Stop the search for idle connections."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def admit(self, member: M, address: str, listener: str = "") -> bool:
        """Count a new connection; return False if a bound refuses it."""
        limits = self._look()
        origin = _Origin(address, listener)
        for lacks, setting, among in (
            (self._lacks_room_of_address, "max.connections.per.ip", _Origin(address, "")),
            (self._lacks_room_of_listener, "max.connections.per.listener", _Origin("", listener)),
            (self._lacks_room, "max.connections", _Origin("", "")),
        ):
            bound = lacks(limits, origin)
            if bound is not None and not self._make_room(among, origin):
                self._refuse(address, f"{setting} is {bound}")
                return False
        self._members[member] = origin
        self._of_address[address] += 1
        self._of_listener[listener] += 1
        self._created[listener] += 1
        self._half_open[member] = asyncio.get_running_loop().time()
        return True

    def _lacks_room_of_address(self, limits: ConnectionConfig, origin: _Origin) -> int | None:
        """Return the bound that one more connection would exceed; None if there is room."""
        bound = limits.max_connections_from(origin.address)
        # Where open files are the tighter limit, one host must not take all of them.
        if self._most < limits.max_connections:
            bound = min(bound, max(int(self._most * ADDRESS_SHARE), 1))
        return bound if self._of_address[origin.address] >= bound else None

    def _lacks_room_of_listener(self, limits: ConnectionConfig, origin: _Origin) -> int | None:
        bound = limits.max_connections_of(origin.listener)
        if bound is None:
            return None
        return bound if self._of_listener[origin.listener] >= bound else None

    def _lacks_room(self, limits: ConnectionConfig, origin: _Origin) -> int | None:  # noqa: ARG002 - as its siblings
        bound = min(limits.max_connections, self._most)
        return bound if len(self._members) >= bound else None

    def _make_room(self, among: _Origin, newcomer: _Origin) -> bool:
        """Close one connection that gives way to the newcomer; False if none does."""
        since_s = asyncio.get_running_loop().time() - HALF_OPEN_MS / 1000
        for member, began_s in list(self._half_open.items()):
            origin = self._members.get(member)
            if origin is None or not member.is_half_open:
                del self._half_open[member]
            elif began_s > since_s:
                break  # All that follow are younger still.
            elif among.holds(origin):
                self._evict(member)
                return True
        return self._is_preferred(newcomer, among) and self._end_quietest()

    def _is_preferred(self, newcomer: _Origin, among: _Origin) -> bool:
        return bool(self._preferred) and newcomer.listener == self._preferred and not any(among)

    def _end_quietest(self) -> bool:
        """Close the client that has been idle for longest, to let another broker in."""
        # By sweeps without progress; one that no sweep has seen yet counts as busy.
        others = [each for each, at in self._members.items() if at.listener != self._preferred]
        if not others:
            return False
        self._evict(max(others, key=lambda each: self._quiet.get(each, (None, 0))[1]))
        return True

    def _evict(self, member: M) -> None:
        self.evicted += 1
        self._unlogged_evictions += 1
        # Here, not when the transport reports the end, in a later turn: the newcomer counts now.
        self.leave(member)
        member.end_half_open()

    def leave(self, member: M) -> None:
        """Stop counting a connection; one that was refused is not counted."""
        origin = self._members.pop(member, None)
        self._quiet.pop(member, None)
        self._half_open.pop(member, None)
        if origin is None:
            return
        self._closed[origin.listener] += 1
        for counts, name in (
            (self._of_address, origin.address),
            (self._of_listener, origin.listener),
        ):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]

    def pass_on(self, member: M) -> None:
        """Stop counting a connection that another member is from now on, in the same step."""
        origin = self._members.get(member)
        self.leave(member)
        # The next member is admitted in the same step, so no look sees the counts fall.
        if origin is not None:
            self._created[origin.listener] -= 1
            self._closed[origin.listener] -= 1

    def sweep(self) -> None:
        """Close connections that are idle for too long or too slow, and read the settings."""
        idle_ms = self._look().idle_ms
        sweeps = max(idle_ms // self._sweep_ms(), 1)
        for member in self:
            progress = member.progress()
            # Idle time is counted in sweeps without progress.
            before, quiet = self._quiet.get(member, (None, 0))
            quiet = quiet + 1 if progress is not None and progress == before else 0
            self._quiet[member] = (progress, quiet)
            if quiet >= sweeps:
                member.end_idle(idle_ms)
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        for member in [*self.memory.slow(now_ms), *self.strangers_memory.slow(now_ms)]:
            member.end_slow()
        self._tell()
        self._arm()

    def _look(self) -> ConnectionConfig:
        """Read the settings and quotas, and return the limits."""
        self.limits = self._config()
        self.has_quotas = self.quotas.configure(self._quota_table(), self.limits)
        return self.limits

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._sweep_ms() / 1000, self.sweep)

    def _sweep_ms(self) -> int:
        return max(min(SWEEP_MS, self.limits.idle_ms // SWEEPS_PER_IDLE), 1)

    def _refuse(self, address: str, why: str) -> None:
        self.refused += 1
        self._unlogged += 1
        if asyncio.get_running_loop().time() >= self._mute_until_s:
            self._unlogged = 0
            self._mute_until_s = asyncio.get_running_loop().time() + REFUSALS_LOG_MS / 1000
            _log.warning(
                "refused a connection from %s: %s; open connections of all clients: %d",
                address,
                why,
                len(self._members),
            )

    def _tell(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if (self._unlogged or self._unlogged_evictions) and now_s >= self._mute_until_s:
            _log.warning(
                "connections refused since the last message: %d; half-open connections closed to"
                " make room: %d",
                self._unlogged,
                self._unlogged_evictions,
            )
            self._unlogged = self._unlogged_evictions = 0
            self._mute_until_s = now_s + REFUSALS_LOG_MS / 1000
