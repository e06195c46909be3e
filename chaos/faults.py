"""Faults: what goes wrong with brokers, machines and networks, one at a time.

Each is a coroutine that makes it happen and ends when the cluster has what it needs again: the
process runs, the network is whole. What follows from it may still be under way by then. Whom it
hits is drawn; who leads something or decides is preferred.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from types import MappingProxyType
from typing import Final, TypeAlias

from chaos.cluster import Cluster

Fault: TypeAlias = Callable[[Cluster, Random, Counter[str]], Awaitable[None]]
"""What happened, and what came of it, is counted."""

AWAY_S: Final = (0.0, 0.05, 1.0, 5.0)
"""How long a broker is not there: before anybody has noticed, and after it was fenced."""
PAUSE_S: Final = (2.0, 20.0)
NETWORK_S: Final = (1.0, 8.0)
DISK_S: Final = (0.5, 5.0)
SYNC_MS_MAX: Final = 1_500
EIO_S: Final = 10.0
"""By then a broker whose disk has failed has ended."""
CLOCK_JUMPS_MS: Final = (-31_536_000_000, -3_600_000, 3_600_000, 31_536_000_000)
CLOCK_S: Final = (2.0, 6.0)
WHOLE_S: Final = 60.0
"""By then a broker that is back has everything."""


async def kill(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """One process is killed."""
    victim = await cluster.victim(chance)
    counts["of a controller"] += victim.node_id == await cluster.controller()
    await victim.kill()
    await asyncio.sleep(chance.choice(AWAY_S))
    await victim.start()


async def kill_all(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """All processes are killed at once."""
    await cluster.kill()
    counts["brokers"] += len(cluster.brokers)
    await asyncio.sleep(chance.choice(AWAY_S))
    await cluster.start()


async def stop(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """One is asked to end, and ends in order."""
    victim = await cluster.victim(chance)
    code = await victim.stop()
    counts[f"ended with {code}"] += 1
    await asyncio.sleep(chance.choice(AWAY_S))
    await victim.start()


async def pause(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """One stands still, and goes on as if no time had passed."""
    victim = await cluster.victim(chance)
    lasts_s = chance.uniform(*PAUSE_S)
    await victim.stand_still(lasts_s)
    counts["seconds"] += round(lasts_s)


async def power_cut(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """The power of one is gone, and what was not synced with it."""
    victim = await cluster.victim(chance)
    await victim.cut_power(chance)
    await asyncio.sleep(chance.choice(AWAY_S))
    await victim.start()
    counts["brokers"] += 1


async def power_cut_all(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """The power of all is gone at once."""
    await cluster.kill()
    for each in cluster.brokers.values():
        await each.cut_power(chance)
    await asyncio.sleep(chance.choice(AWAY_S))
    await cluster.start()
    counts["brokers"] += len(cluster.brokers)


async def slow_sync(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """The disk of one takes its time."""
    await _turned(cluster, chance, {"sync_ms": chance.randint(10, SYNC_MS_MAX)}, counts)


async def short_writes(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """The disk of one takes a part of many writes."""
    await _turned(cluster, chance, {"short": chance.randint(1, 5)}, counts)


async def full_disk(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """The disk of one is full for a while; it has to get on by itself when there is space."""
    await _turned(cluster, chance, {"enospc": 1}, counts)


async def refused_sync(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """A sync of one has failed: it may not go on, and is started on a disk that works again."""
    victim = await cluster.victim(chance)
    victim.turn({"sync_eio": 1})
    code = await victim.ended(EIO_S)
    counts["went on until it was killed" if code is None else f"ended with {code}"] += 1
    victim.turn({})
    await victim.kill()
    await victim.start()


async def clock_jump(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """The clock of one is off by an hour or a year."""
    victim = await cluster.victim(chance)
    jump_ms = chance.choice(CLOCK_JUMPS_MS)
    victim.turn({"clock_ms": jump_ms})
    counts[f"by {jump_ms // 3_600_000} h"] += 1
    await asyncio.sleep(chance.uniform(*CLOCK_S))
    victim.turn({})


async def isolated(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """Nobody reaches one of them."""
    victim = await cluster.victim(chance)
    cluster.network.isolate(victim.node_id)
    await _cut_off(cluster, chance, counts)


async def parted(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """No broker reaches another one, and clients reach them all."""
    cluster.network.part_brokers()
    await _cut_off(cluster, chance, counts)


async def one_way(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """What one sends to another one is lost."""
    source, target = await _pair(cluster, chance)
    cluster.network.lose(source, target)
    await _cut_off(cluster, chance, counts)


async def half_open(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """One can't ask another one anything, and is asked by it."""
    source, target = await _pair(cluster, chance)
    cluster.network.lose(source, target, requests_only=True)
    await _cut_off(cluster, chance, counts)


async def partial(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """Two don't reach each other, and both reach the third."""
    source, target = await _pair(cluster, chance)
    cluster.network.lose(source, target)
    cluster.network.lose(target, source)
    await _cut_off(cluster, chance, counts)


async def controller_cut_off(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """Who decides reaches no other broker; clients reach it."""
    deciding = await cluster.controller()
    if deciding is None:
        deciding = (await cluster.victim(chance)).node_id
        counts["nobody decided"] += 1
    for other in cluster.brokers:
        if other != deciding:
            cluster.network.lose(deciding, other)
            cluster.network.lose(other, deciding)
    await _cut_off(cluster, chance, counts)


async def _pair(cluster: Cluster, chance: Random) -> tuple[int, int]:
    source = (await cluster.victim(chance)).node_id
    return source, chance.choice([each for each in cluster.brokers if each != source])


async def _cut_off(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """What was done to the network lasts for a while."""
    lasts_s = chance.uniform(*NETWORK_S)
    try:
        await asyncio.sleep(lasts_s)
    finally:
        cluster.network.heal()
    counts["seconds"] += round(lasts_s)


async def _turned(
    cluster: Cluster, chance: Random, knobs: dict[str, int], counts: Counter[str]
) -> None:
    victim = await cluster.victim(chance)
    victim.turn(knobs)
    lasts_s = chance.uniform(*DISK_S)
    await asyncio.sleep(lasts_s)
    victim.turn({})
    if await victim.ended(0.1) is not None:
        counts["ended by it"] += 1
        await victim.start()


async def rolling_restart(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """One after the other is stopped in order and started, each once the others are whole.

    Raises:
        RuntimeError: one has not ended in order, or its replicas don't come in sync again.
    """
    numbers = list(cluster.brokers)
    chance.shuffle(numbers)
    for number in numbers:
        victim = cluster.brokers[number]
        counts["of a controller"] += number == await cluster.controller()
        code = await victim.stop()
        if code:
            raise RuntimeError(f"broker {number} has ended with {code}")
        await victim.start()
        left = await cluster.all_in_sync(WHOLE_S)
        if left:
            raise RuntimeError(f"broker {number} was started again, and still: {left}")


async def any_network(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """One of those that need a network of our own."""
    name = chance.choice(sorted(NETWORK))
    counts[name] += 1
    await NETWORK[name](cluster, chance, counts)


async def kill_pause_or_part(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """What transactions are tried under."""
    faults = [kill, pause] + ([any_network] if cluster.network.breakable else [])
    await chance.choice(faults)(cluster, chance, counts)


NETWORK: Final[Mapping[str, Fault]] = MappingProxyType(
    {
        "isolated": isolated,
        "parted": parted,
        "one-way": one_way,
        "half-open": half_open,
        "partial": partial,
        "controller-only": controller_cut_off,
    }
)
"""Those that need a network of our own."""
