"""Connections: who is connected to a broker, and what all of them together may cost.

Bounded are how many there are, in total and from one address, how long one may say nothing, and
how much memory is held by answers that nobody reads and by requests that are being received.
Rule of the file: whoever goes over a bound is refused, muted or hung up on, and the others do not
notice; a refusal is told in the log, and then at most every `REFUSALS_TOLD_MS` how many more.
Settings are looked at once a sweep, so what is altered holds within a second.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from streamlog.broker.connection_config import ConnectionConfig
from streamlog.broker.quota_table import QuotaTable
from streamlog.broker.quotas import Quotas
from streamlog.broker.request_memory import Receiver, RequestMemory

SWEEP_MS = 1_000
"""How often idle connections are looked for."""
SWEEPS_PER_IDLE = 4
"""At least: so a connection lives by a quarter too long at most."""
REFUSALS_TOLD_MS = 10_000

_log = logging.getLogger(__name__)


class Member(Receiver, Protocol):
    """A connection, as its server sees it."""

    def progress(self) -> int | None:
        """A number that changes whenever something moves; None while the broker's answer is due."""
        ...

    def end_idle(self, idle_ms: int) -> None:
        """Hang up on who says nothing."""
        ...

    def end_slow(self) -> None:
        """Hang up on who holds memory that others wait for."""
        ...


M = TypeVar("M", bound=Member)


class Connections(Generic[M]):
    """The connections of one server."""

    def __init__(
        self,
        config: Callable[[], ConnectionConfig],
        *,
        quota_table: Callable[[], QuotaTable] = QuotaTable,
    ) -> None:
        self.limits = config()
        self.quotas = Quotas()
        self._quota_table = quota_table
        self.has_quotas = self.quotas.configure(quota_table(), self.limits)
        """Whether anything has to be counted; asked for each request."""
        self.held_bytes = 0
        """Memory of all answers that wait for their clients."""
        self.memory: RequestMemory[M] = RequestMemory(lambda: self.limits.queued_request_bytes)
        self.refused = 0
        """Connections that were one too many, since the start."""
        self._config = config
        self._members: dict[M, str] = {}
        self._of_address: Counter[str] = Counter()
        self._quiet: dict[M, tuple[int | None, int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._untold = 0
        self._accepted = 0
        self._mute_until_s = 0.0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[M]:
        return iter(list(self._members))

    @property
    def is_full(self) -> bool:
        """Whether answers hold so much memory that nobody who holds some may ask for more."""
        return self.held_bytes >= self.limits.queued_response_bytes

    def next_number(self) -> int:
        """For one more; by it the older of two is told."""
        self._accepted += 1
        return self._accepted

    def open(self) -> None:
        """Begin to look for idle ones."""
        if self._timer is None:
            self._arm()

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def admit(self, member: M, address: str) -> bool:
        """Whether there is room for one more; it counts from now on."""
        limits = self._look()
        if len(self._members) >= limits.max_connections:
            self._refuse(address, f"max.connections is {limits.max_connections}")
            return False
        if self._of_address[address] >= limits.max_connections_per_address:
            bound = limits.max_connections_per_address
            self._refuse(address, f"max.connections.per.ip is {bound}")
            return False
        self._members[member] = address
        self._of_address[address] += 1
        return True

    def leave(self, member: M) -> None:
        """It is gone, if it ever was one."""
        address = self._members.pop(member, None)
        self._quiet.pop(member, None)
        if address is None:
            return
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]

    def sweep(self) -> None:
        """Hang up on who has been idle for too long."""
        idle_ms = self._look().idle_ms
        sweeps = max(idle_ms // self._sweep_ms(), 1)
        for member in self:
            progress = member.progress()
            before, quiet = self._quiet.get(member, (None, 0))
            quiet = quiet + 1 if progress is not None and progress == before else 0
            self._quiet[member] = (progress, quiet)
            if quiet >= sweeps:
                member.end_idle(idle_ms)
        for member in self.memory.slow(int(asyncio.get_running_loop().time() * 1000)):
            member.end_slow()
        self._tell()
        self._arm()

    def _look(self) -> ConnectionConfig:
        """The settings of now."""
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
        self._untold += 1
        if asyncio.get_running_loop().time() >= self._mute_until_s:
            self._untold = 0
            self._mute_until_s = asyncio.get_running_loop().time() + REFUSALS_TOLD_MS / 1000
            _log.warning(
                "refused a connection from %s: there are %d, and %s",
                address,
                len(self._members),
                why,
            )

    def _tell(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._untold and now_s >= self._mute_until_s:
            _log.warning("refused %d more connections", self._untold)
            self._untold = 0
            self._mute_until_s = now_s + REFUSALS_TOLD_MS / 1000
