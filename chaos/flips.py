"""Flips: single bits of one replica turned over while its broker is down.

The broker has to notice before it serves what was damaged: it refuses to start, or to serve, or
gets the partition from the others again. What it has not noticed by itself is found by looking
through its directory, and the disk is replaced then, as an operator would.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from chaos.broker import BrokerProcess
from chaos.cluster import Cluster
from streamlog.broker.storage.repair.inspection import Inspection
from streamlog.errors import StreamlogError

FLIPS_MAX: Final = 5
"""At once, all of one broker."""
NOT_DATA: Final = ("lock", "listener")
"""Of no meaning while the broker is down."""
READ_S: Final = 3.0
"""How long readers have for what was damaged."""
WHOLE_S: Final = 60.0


class Flip(NamedTuple):
    """One bit."""

    path: Path
    position: int
    bit: int


async def flip_and_heal(cluster: Cluster, chance: Random, counts: Counter[str]) -> None:
    """Stop one, damage what it has, start it, and see to it that it is whole in the end.

    Raises:
        RuntimeError: it does not get whole again.
    """
    victim = await cluster.victim(chance)
    if chance.random() < 0.5:
        await victim.stop()
    else:
        await victim.kill()
    flips = flipped(victim.data, chance.randint(1, FLIPS_MAX), chance)
    counts["bits"] += len(flips)
    for each in flips:
        counts[f"in {each.path.suffix or each.path.name}"] += 1
    try:
        await victim.start()
    except RuntimeError:
        counts["it refused to start"] += 1
        await _replace_disk(victim)
        counts["disks replaced"] += 1
    await asyncio.sleep(READ_S)
    if not await asyncio.to_thread(_is_sound, victim.data):
        counts["found by looking through"] += 1
        await _replace_disk(victim)
        counts["disks replaced"] += 1
    left = await cluster.all_in_sync(WHOLE_S)
    if left:
        raise RuntimeError(f"after {flips} broker {victim.node_id} does not get whole: {left}")


def flipped(directory: Path, many: int, chance: Random) -> list[Flip]:
    """Turn so many bits over, anywhere in the files of a broker that is down."""
    files = sorted(
        each
        for each in directory.rglob("*")
        if each.is_file() and each.name not in NOT_DATA and each.stat().st_size
    )
    done = []
    for _ in range(many):
        path = chance.choice(files)
        flip = Flip(path, chance.randrange(path.stat().st_size), chance.randrange(8))
        with path.open("r+b") as file:
            file.seek(flip.position)
            (byte,) = file.read(1)
            file.seek(flip.position)
            file.write(bytes([byte ^ (1 << flip.bit)]))
        done.append(flip)
    return done


def _is_sound(directory: Path) -> bool:
    """Whether nothing is to be seen of damage, beside a broker that may be running."""
    try:
        with Inspection.open(str(directory)) as inspection:
            return not any(each.is_damage for each in inspection.verify().findings)
    except StreamlogError:
        return False


async def _replace_disk(broker: BrokerProcess) -> None:
    await broker.kill()
    await asyncio.to_thread(broker.replace_disk)
    await broker.start()
