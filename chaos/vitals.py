"""Vitals: what a broker's process holds, memory, open files and a topic's bytes; does it grow?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from chaos.broker import BrokerProcess
from streamlog.broker.storage.data_directory import partition_folder

HOUR_S: Final = 3_600
RESIDENT: Final = "VmRSS:"
KIB: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """A process at a moment."""

    at_s: float
    """Since the begin."""
    resident_bytes: int
    used_bytes: int
    """Of these: what is held, without what was freed and not given back."""
    open_files: int
    partition_bytes: int
    """Records of the largest partition of the topic that is looked at."""

    def as_json(self) -> dict[str, float]:
        """For a file."""
        return asdict(self)


async def look(broker: BrokerProcess, at_s: float, topic_id: bytes, partitions: int) -> Vitals:
    """How a broker that runs is at present.

    Raises:
        OSError, RuntimeError: its process is gone.
    """
    used_bytes = await broker.used_bytes()
    return await asyncio.to_thread(_look, broker, at_s, used_bytes, topic_id, partitions)


def _look(
    broker: BrokerProcess, at_s: float, used_bytes: int, topic_id: bytes, partitions: int
) -> Vitals:
    process = Path("/proc") / str(broker.pid)
    (resident,) = (
        line.split()[1]
        for line in (process / "status").read_text().splitlines()
        if line.startswith(RESIDENT)
    )
    folders = [broker.data / partition_folder(topic_id, number) for number in range(partitions)]
    return Vitals(
        at_s=at_s,
        resident_bytes=int(resident) * KIB,
        used_bytes=used_bytes,
        open_files=len(list((process / "fd").iterdir())),
        partition_bytes=max(map(_bytes_in, folders)),
    )


def growth_per_hour(taken: Sequence[Vitals]) -> float:
    """By how much the memory that is used grows in an hour, as a share of it.

    What clients are about at a look is used as well, more of it one time than the next: so the
    least of the first third of the looks is held against the least of the last third, over the
    time between their middles.

    Raises:
        ValueError: there are fewer than three.
    """
    third = len(taken) // 3
    if not third:
        raise ValueError(f"{len(taken)} looks have no thirds")
    first, last = taken[:third], taken[-third:]
    passed_s = _middle_s(last) - _middle_s(first)
    floor = min(each.used_bytes for each in first)
    grown = min(each.used_bytes for each in last) - floor
    return grown / floor * HOUR_S / passed_s


def _middle_s(taken: Sequence[Vitals]) -> float:
    return (taken[0].at_s + taken[-1].at_s) / 2


def _bytes_in(folder: Path) -> int:
    """Of its segments; some may be removed in the meantime."""
    total = 0
    for path in folder.glob("*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total
