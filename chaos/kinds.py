"""Kinds: the faults that are tried, how often, and under which load.

The numbers are those that a release has to have shown (`nightly`), and what every change is tried
with (`short`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Final

from chaos import faults
from chaos.cluster import Cluster
from chaos.faults import NETWORK, Fault
from chaos.flips import flip_and_heal
from chaos.load import bulk, busy_transactions
from simulation.load.mix import Program
from simulation.load.room import Room

FAULTS: Final[Mapping[str, Fault]] = MappingProxyType(
    {
        "kill": faults.kill,
        "kill-all": faults.kill_all,
        "stop": faults.stop,
        "pause": faults.pause,
        "power-cut": faults.power_cut,
        "power-cut-all": faults.power_cut_all,
        "slow-sync": faults.slow_sync,
        "short-writes": faults.short_writes,
        "full-disk": faults.full_disk,
        "refused-sync": faults.refused_sync,
        "clock": faults.clock_jump,
    }
)
"""Those that may come one after the other, in any order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of fault."""

    name: str
    fault: Fault
    short: int
    nightly: int
    needs_network: bool = False
    """Of our own, to break it."""
    is_lossy: bool = False
    """Whether disks forget what was not synced."""
    is_noticed: bool = True
    """Whether clients may be told of it, by an error or a lost answer."""
    counts: str = "faults"
    """What the numbers count."""
    between_s: float = 1.5
    """From one fault to the next, on average: what the last one has begun may be under way."""
    more: Callable[[Room], list[Program]] | None = None
    """Clients beside those of every load."""


async def any_of_them(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """One of all that go wrong with a cluster whose disks forget."""
    kinds = [*FAULTS, *(NETWORK if cluster.network.breakable else ())]
    name = chance.choice(sorted(kinds))
    counts[f"a {name}"] += 1
    await {**FAULTS, **NETWORK}[name](cluster, chance, counts)


def _kinds() -> Mapping[str, Kind]:
    made = [
        Kind(name="mixed", fault=any_of_them, short=8, nightly=200, is_lossy=True),
        Kind(name="kill", fault=faults.kill, short=3, nightly=300),
        Kind(name="kill-all", fault=faults.kill_all, short=1, nightly=50),
        Kind(name="stop", fault=faults.stop, short=1, nightly=20),
        Kind(name="power-cut", fault=faults.power_cut, short=2, nightly=50, is_lossy=True),
        Kind(name="power-cut-all", fault=faults.power_cut_all, short=1, nightly=30, is_lossy=True),
        Kind(name="pause", fault=faults.pause, short=1, nightly=100),
        *(
            Kind(name=name, fault=fault, short=1, nightly=20, needs_network=True)
            for name, fault in NETWORK.items()
        ),
        Kind(name="slow-sync", fault=faults.slow_sync, short=1, nightly=20),
        Kind(name="short-writes", fault=faults.short_writes, short=1, nightly=20),
        Kind(name="full-disk", fault=faults.full_disk, short=1, nightly=20),
        Kind(name="refused-sync", fault=faults.refused_sync, short=1, nightly=5),
        Kind(name="bit-flips", fault=flip_and_heal, short=5, nightly=200, counts="bits"),
        Kind(name="clock", fault=faults.clock_jump, short=1, nightly=20),
        Kind(
            name="rolling-restart",
            fault=faults.rolling_restart,
            short=1,
            nightly=20,
            is_noticed=False,
            more=bulk,
        ),
        Kind(
            name="transactions",
            fault=faults.kill_pause_or_part,
            short=200,
            nightly=100_000,
            counts="transactions",
            between_s=5.0,
            more=busy_transactions,
        ),
    ]
    return MappingProxyType({each.name: each for each in made})


KINDS: Final[Mapping[str, Kind]] = _kinds()
