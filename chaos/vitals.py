"""Vitals: what a broker's process holds, memory, open files and a topic's bytes; does it grow?"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from chaos.broker import BrokerProcess
from streamlog.broker.storage.folders import partition_folder

HOUR_S: Final = 3_600
RESIDENT: Final = "VmRSS:"
KIB: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """A process at a moment."""

    at_s: float
    """Since the begin."""
    resident_bytes: int
    open_files: int
    partition_bytes: int
    """Records of the largest partition of the topic that is looked at."""

    def as_json(self) -> dict[str, float]:
        """For a file."""
        return asdict(self)


def look(broker: BrokerProcess, at_s: float, topic_id: bytes, partitions: int) -> Vitals:
    """How a broker that runs is at present.

    Raises:
        OSError: its process is gone.
    """
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
        open_files=len(list((process / "fd").iterdir())),
        partition_bytes=max(map(_bytes_in, folders)),
    )


def growth_per_hour(taken: Sequence[Vitals], of: Callable[[Vitals], float]) -> float:
    """By how much it grows in an hour, as a share of its mean: the slope of the least squares.

    Raises:
        statistics.StatisticsError: there are less than two.
    """
    values = [of(each) for each in taken]
    slope, _ = statistics.linear_regression([each.at_s for each in taken], values)
    return slope * HOUR_S / statistics.mean(values)


def _bytes_in(folder: Path) -> int:
    """Of its segments; some may be removed in the meantime."""
    total = 0
    for path in folder.glob("*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total
